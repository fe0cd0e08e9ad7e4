"""Finds the retrievers that an index is asked to have."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from anncur.candidates.base import Retriever
from anncur.errors import InputError


def load_retrievers(retrievers: Iterable[str | Retriever]) -> dict[str, Retriever]:
    """Retrievers by name, still to be fitted; takes names and objects."""
    if isinstance(retrievers, str) or not isinstance(retrievers, Iterable):
        raise InputError(f"retrievers must be a list such as ('bm25', 'tfidf'), got {retrievers!r}")
    found: dict[str, Retriever] = {}
    for wanted in retrievers:
        retriever = _named(wanted) if isinstance(wanted, str) else wanted
        if not isinstance(retriever, Retriever) or isinstance(retriever, type):
            raise InputError(f"a retriever is an object with name, fit(items) and scores(queries), got {wanted!r}")
        if retriever.name in found:
            raise InputError(f"retrievers must have different names, got {retriever.name!r} twice")
        found[retriever.name] = retriever
    return found


def _named(name: str) -> Retriever:
    if name not in _BUILTIN:
        raise InputError(f"no retriever {name!r}; take one of {', '.join(_BUILTIN)}, or pass an object")
    return _BUILTIN[name]()


def _bm25() -> Retriever:
    from anncur.candidates.lexical import BM25  # here, because bm25s takes a fifth of a second to import

    return BM25()


def _tfidf() -> Retriever:
    from anncur.candidates.lexical import TfIdf

    return TfIdf()


_BUILTIN: dict[str, Callable[[], Retriever]] = {"bm25": _bm25, "tfidf": _tfidf}
