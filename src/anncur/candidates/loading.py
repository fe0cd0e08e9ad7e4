"""Finds the retrievers that an index is asked to have."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import TypeAlias

from anncur.arrays import FloatMatrix
from anncur.candidates.base import Retriever, item_vectors
from anncur.candidates.function import FunctionRetriever, RetrieverFunction
from anncur.candidates.mention import MentionOnly
from anncur.errors import InputError
from anncur.items import Item, Query

RetrieverLike: TypeAlias = str | Retriever | RetrieverFunction


def load_retrievers(retrievers: Iterable[RetrieverLike], *, are_remembered: bool = False) -> dict[str, Retriever]:
    """Retrievers by name, still to be fitted; takes names, objects, and functions of a query and items.

    Of those that an index remembers, the folder of a dual encoder need be there only when it is asked."""
    if isinstance(retrievers, str) or not isinstance(retrievers, Iterable):
        raise InputError(f"retrievers must be a list such as ('bm25', 'tfidf'), got {retrievers!r}")
    found: dict[str, Retriever] = {}
    for wanted in retrievers:
        retriever = _as_retriever(wanted, is_remembered=are_remembered)
        if retriever.name in found:
            raise InputError(f"retrievers must have different names, got {retriever.name!r} twice")
        found[retriever.name] = retriever
    return found


def _as_retriever(wanted: RetrieverLike, *, is_remembered: bool) -> Retriever:
    if isinstance(wanted, str):
        return load_retriever(wanted, is_remembered=is_remembered)
    if not isinstance(wanted, type):
        if isinstance(wanted, Retriever):
            return wanted
        if callable(wanted):
            return FunctionRetriever(wanted)
    raise InputError(
        "a retriever is a name, an object with name, fit(items) and scores(queries), or a function of a query and "
        f"items, got {wanted!r}"
    )


class LateDualEncoder:
    """A dual encoder that is read when it is first fitted: opening an index must need neither torch nor its folder."""

    def __init__(self, source: str) -> None:
        self.name = source
        self._found: Retriever | None = None

    def fit(self, items: Iterable[Item]) -> None:
        self._found = self._found or _dual_encoder(self.name)
        self._found.fit(items)

    def scores(self, queries: Sequence[Query]) -> FloatMatrix:
        assert self._found is not None, "fit comes first"
        return self._found.scores(queries)

    def item_vectors(self) -> FloatMatrix | None:
        assert self._found is not None, "fit comes first"
        return item_vectors(self._found)


def load_retriever(name: str, *, is_remembered: bool = False) -> Retriever:
    """A retriever by its name, still to be fitted.

    Words alone and untrained encoders don't see what is marked: they look for a query's mention, if it has one."""
    if name in _LEXICAL:
        return _LEXICAL[name]()
    if name == "minilm" or Path(name).is_dir() or (is_remembered and "/" in name):
        return LateDualEncoder(name)
    raise InputError(
        f"no retriever {name!r}; take one of {', '.join(_LEXICAL)}, minilm, the folder of a dual encoder, or an object"
    )


def _bm25() -> Retriever:
    from anncur.candidates.lexical import BM25  # here, because bm25s takes a fifth of a second to import

    return MentionOnly(BM25())


def _tfidf() -> Retriever:
    from anncur.candidates.lexical import TfIdf

    return MentionOnly(TfIdf())


def _dual_encoder(source: str) -> Retriever:
    try:
        from anncur.candidates.dual_encoder import load_dual_encoder_retriever
    except ModuleNotFoundError as error:
        raise InputError(f"the retriever {source!r} needs {error.name}; run pip install 'anncur[train]'") from error
    return load_dual_encoder_retriever(source)


_LEXICAL: dict[str, Callable[[], Retriever]] = {"bm25": _bm25, "tfidf": _tfidf}
