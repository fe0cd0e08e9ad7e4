"""An index as a retriever of DSPy. Needs dspy."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any, Unpack

from anncur.index.index import Index
from anncur.integrations.searching import Search, SearchOptions, needed
from anncur.ranking import Hits

with needed("dspy"):
    import dspy
    from dspy.dsp.utils import dotdict


class AnncurRetriever(dspy.Module):
    """Retrieves passages, as a module of a program; with `acall`, for callers that await.

    `index` is an index or the path of one, `options` are those of `Index.search`, and a call takes them too. A
    prediction has `passages` (title and text of the items that the scorer likes best), and for each its `ids`,
    `scores`, `metadata` and `rounds`; and `calls`, `estimated_recall` and `is_partial` of the search."""

    def __init__(self, index: Index | str | Path, **options: Unpack[SearchOptions]) -> None:
        super().__init__()
        self._search = Search(index, **options)

    def forward(self, query: str, **options: Unpack[SearchOptions]) -> dspy.Prediction:
        """The prediction for a query."""
        return _prediction(self._search(query, **options))

    async def aforward(self, query: str, **options: Unpack[SearchOptions]) -> dspy.Prediction:
        """The same, for callers that await."""
        return _prediction(await self._search.awaited(query, **options))

    def as_rm(self) -> Callable[..., list[Any]]:
        """What `dspy.configure(rm=…)` takes, for programs that call `dspy.Retrieve`."""

        def retrieve(query: str, **options: Unpack[SearchOptions]) -> list[Any]:
            hits = self._search(query, **options)
            found = zip(hits, self._search.rising_scores(hits), strict=True)
            return [dotdict({"long_text": hit.item.full_text, "id": hit.id, "score": score}) for hit, score in found]

        return retrieve


def _prediction(hits: Hits) -> dspy.Prediction:
    return dspy.Prediction(
        passages=[hit.item.full_text for hit in hits],
        ids=hits.ids,
        scores=hits.scores,
        metadata=[dict(hit.item.metadata) for hit in hits],
        rounds=[hit.round for hit in hits],
        calls=hits.calls,
        estimated_recall=hits.estimated_recall,
        is_partial=hits.is_partial,
    )
