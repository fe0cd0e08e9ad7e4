"""What a scorer is, and how other people's scorers become one.

A scorer gives one number for a query and each of some items, or for pairs of several queries at once. Adapters here
translate calling conventions and nothing else: `guard.py` checks the answers, retries, and caps the spend."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Protocol, TypeAlias, runtime_checkable

from anncur.arrays import FloatVector
from anncur.errors import InputError
from anncur.items import Item, Query
from anncur.tokens import PairTokenizer, Tokens

Pair: TypeAlias = tuple[Query, Item]
TextPair: TypeAlias = tuple[str, str]  # the query's marked text and the item's full text


@runtime_checkable
class Scorer(Protocol):
    """Scores items for a query.

    `fingerprint` names the scorer: two scorers with the same fingerprint give the same scores. `score` returns one
    finite number per item, in the order of the items. It may be async."""

    @property
    def fingerprint(self) -> str: ...

    def score(self, query: Query, items: Sequence[Item], /) -> Any: ...


class PairScorer(Protocol):
    """Scores pairs, also of several queries at once. `score_pairs` may be async."""

    @property
    def fingerprint(self) -> str: ...

    def score_pairs(self, pairs: Sequence[Pair], /) -> Any: ...


class Predictor(Protocol):
    """An object that scores (query text, item text) pairs, such as a sentence-transformers CrossEncoder."""

    def predict(self, pairs: list[TextPair], /) -> Any: ...


# what `load_scorer` takes: a name or a path, an object, or a callable over pairs
ScorerLike: TypeAlias = "str | Path | Scorer | PairScorer | Predictor | Callable[[list[TextPair]], Any] | Any"


class PreparingScorer(Scorer, Protocol):
    """A scorer that makes something of an item once, such as its tokens.

    An index calls `prepare` when items come in, keeps the values beside them, and gives `score` items whose `prepared`
    is their value. It is empty where nothing was kept: for items that were never in an index, and in one made before
    the scorer could prepare. So `score` must work without it, and give the same scores with and without.
    Values are kept under the scorer's fingerprint: whoever changes what `prepare` gives changes the fingerprint."""

    def prepare(self, items: Sequence[Item], /) -> Sequence[bytes]:
        """One value for each item; empty bytes where there is nothing to keep."""
        ...


class TokenScorer(Scorer, Protocol):
    """A scorer that also takes what its tokenizer made."""

    @property
    def tokenizer(self) -> PairTokenizer: ...

    def score_tokens(self, queries: Sequence[Tokens], items: Sequence[Tokens], /) -> FloatVector:
        """Scores of tokenised queries, each with the item at the same place."""
        ...


class TextPairScorer:
    """A callable over a list of (query text, item text) pairs, or the `predict` of an object."""

    def __init__(self, thing: Any, function: Callable[..., Any], options: Mapping[str, Any] | None = None) -> None:
        self._function = functools.partial(function, **options) if options else function
        self.asked = function  # which may be async
        self.fingerprint = fingerprint_of(thing)
        self.is_known_by_name = not _has_fingerprint(thing)

    def score_pairs(self, pairs: Sequence[Pair]) -> Any:
        return self._function(text_pairs(pairs))


class ObjectScorer:
    """An object with `score(query, items)` or `score_pairs(pairs)` that gives itself no fingerprint."""

    def __init__(self, scorer: Any) -> None:
        self.fingerprint = fingerprint_of(scorer)
        self.is_known_by_name = True
        for name in ("score", "score_pairs", "prepare"):
            if callable(getattr(scorer, name, None)):
                setattr(self, name, getattr(scorer, name))


def as_scorer(thing: object) -> Scorer | PairScorer:
    """Adapt an object with `score_pairs(pairs)`, `score(query, items)` or `predict(pairs)`, or a callable over text
    pairs."""
    if not isinstance(thing, type):
        if any(callable(getattr(thing, name, None)) for name in ("score_pairs", "score")):
            return thing if _has_fingerprint(thing) else ObjectScorer(thing)  # type: ignore[return-value]
        if callable(predict := getattr(thing, "predict", None)):
            return TextPairScorer(thing, predict, _quiet_and_raw(predict))
        if callable(thing):
            return TextPairScorer(thing, thing)
    raise InputError(
        f"a scorer must be a callable over (query text, item text) pairs, or an object with predict(pairs), "
        f"score(query, items) or score_pairs(pairs), got {thing!r}"
    )


def text_pairs(pairs: Sequence[Pair]) -> list[TextPair]:
    """What scorers over text see."""
    return [(query.marked_text, item.full_text) for query, item in pairs]


def with_prepared(items: Sequence[Item], values: Sequence[bytes]) -> list[Item]:
    """The same items as their scorer gets them; whatever another one made of them is gone."""
    return [
        item if item.prepared == value else replace(item, prepared=value)
        for item, value in zip(items, values, strict=True)
    ]


def fingerprint_of(thing: object) -> str:
    """Its `fingerprint` attribute, else its qualified name.

    For an object that is its class's name, and that of the model it was loaded from where it records that (transformers
    keep it in their configuration)."""
    if _has_fingerprint(thing):
        return str(thing.fingerprint)  # type: ignore[attr-defined]
    if isinstance(thing, functools.partial):
        return fingerprint_of(thing.func)
    named = thing if hasattr(thing, "__qualname__") else type(thing)
    model = getattr(getattr(thing, "config", None), "_name_or_path", "")
    return f"{named.__module__}:{named.__qualname__}" + (f"({model})" if isinstance(model, str) and model else "")


def _has_fingerprint(thing: object) -> bool:
    return isinstance(getattr(thing, "fingerprint", None), str)


def _quiet_and_raw(predict: Callable[..., Any]) -> dict[str, Any]:
    """The options that turn off activation and progress bar, of those that this `predict` takes."""
    wanted = {"activation_fn": _identity, "activation_fct": _identity, "show_progress_bar": False}
    try:
        taken = inspect.signature(predict).parameters
    except ValueError:  # a builtin without a signature takes no options that we know of
        return {}
    options = {name: value for name, value in wanted.items() if name in taken}
    if len(options) == 3:
        del options["activation_fct"]  # the old name of activation_fn, kept by some versions for compatibility
    return options


def _identity(logits: Any) -> Any:
    return logits
