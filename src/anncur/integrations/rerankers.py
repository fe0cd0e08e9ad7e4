"""A scorer of anncur's as a model of the library `rerankers`."""

from __future__ import annotations

from typing import Any, TypeAlias

from anncur.arrays import FloatVector
from anncur.integrations.searching import needed
from anncur.items import Corpus, Item, Query
from anncur.ranking import top_k
from anncur.scorers.base import ScorerLike
from anncur.scorers.loading import load_scorer
from anncur.scorers.payment import scores_of
from anncur.waiting import AWAITING, BLOCKING, Waiting, run

with needed("rerankers"):
    from rerankers.documents import Document
    from rerankers.models.ranker import BaseRanker
    from rerankers.results import RankedResults, Result
    from rerankers.utils import prep_docs

Documents: TypeAlias = "str | list[str] | Document | list[Document]"


class AnncurRanker(BaseRanker):
    """Ranks documents with any scorer that an index takes: "builtin", a model's folder, an endpoint, a function.

    Documents are scored in as few requests as the scorer allows; `rank_async` awaits a scorer that can be awaited.
    Higher scores are better: those of a scorer that likes the lowest best are negated."""

    def __init__(self, scorer: ScorerLike) -> None:
        self._scorer = load_scorer(scorer)

    def score(self, query: str, doc: str) -> float:
        """The score of one document."""
        return float(run(self._scores(query, [Document(doc)], BLOCKING))[0])

    def rank(
        self,
        query: str,
        docs: Documents,
        doc_ids: list[str] | list[int] | None = None,
        metadata: list[dict[str, Any]] | None = None,
    ) -> RankedResults:
        """The documents with their scores, best first; equal ones in the order given."""
        documents = _prepared(docs, doc_ids, metadata)
        return _ranked(query, documents, run(self._scores(query, documents, BLOCKING)))

    async def rank_async(
        self,
        query: str,
        docs: Documents,
        doc_ids: list[str] | list[int] | None = None,
        metadata: list[dict[str, Any]] | None = None,
    ) -> RankedResults:
        """The same, for callers that await."""
        documents = _prepared(docs, doc_ids, metadata)
        return _ranked(query, documents, await self._scores(query, documents, AWAITING))

    async def _scores(self, query: str, documents: list[Document], waiting: Waiting) -> FloatVector:
        items = Corpus(Item(str(number), document.text) for number, document in enumerate(documents))
        return await scores_of(self._scorer, Query(query), items, waiting)


def _prepared(docs: Documents, doc_ids: list[Any] | None, metadata: list[dict[str, Any]] | None) -> list[Document]:
    if isinstance(docs, list) and not docs:
        return []  # which the library's own preparation can't take
    prepared: list[Document] = prep_docs(docs, doc_ids, metadata)
    return prepared


def _ranked(query: str, documents: list[Document], exact_scores: FloatVector) -> RankedResults:
    order = top_k(exact_scores, len(documents)).tolist()
    results = [
        Result(document=documents[place], score=float(exact_scores[place]), rank=rank)
        for rank, place in enumerate(order, start=1)
    ]
    return RankedResults(results=results, query=query, has_scores=True)
