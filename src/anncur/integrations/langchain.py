"""An index as a retriever of LangChain. Needs langchain-core."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Unpack

from anncur.index.index import Index
from anncur.integrations.searching import Search, SearchOptions, metadata_of, needed
from anncur.ranking import Hits
from anncur.search.methods import DEFAULT_METHOD

with needed("langchain-core"):
    from langchain_core.callbacks import AsyncCallbackManagerForRetrieverRun, CallbackManagerForRetrieverRun
    from langchain_core.documents import Document
    from langchain_core.retrievers import BaseRetriever
    from pydantic import PrivateAttr


class AnncurRetriever(BaseRetriever):
    """Retrieves the items that the index's scorer likes best, as documents, best first.

    `index` is an index or the path of one; the other fields are the options of `Index.search`, and `invoke` takes them
    too, for one query. A document has the item's id, text, title and metadata, and under "anncur" of its metadata the
    score, the round, and what the search cost."""

    index: Index | str | Path
    k: int = 10
    budget: int | None = None
    method: Any = DEFAULT_METHOD
    filter: Any = None
    target_recall: float | None = None
    max_budget: int | None = None
    max_rounds: int | None = None
    deadline_ms: float | None = None
    min_score: float | None = None
    seed: int = 0
    _search: Search = PrivateAttr()

    def model_post_init(self, context: Any, /) -> None:
        """Open the index; copies of this retriever share it."""
        options: SearchOptions = {
            "k": self.k,
            "budget": self.budget,
            "method": self.method,
            "filter": self.filter,
            "target_recall": self.target_recall,
            "max_budget": self.max_budget,
            "max_rounds": self.max_rounds,
            "deadline_ms": self.deadline_ms,
            "min_score": self.min_score,
            "seed": self.seed,
        }
        self._search = Search(self.index, **options)
        self.index = self._search.index

    def _get_relevant_documents(
        self, query: str, *, run_manager: CallbackManagerForRetrieverRun, **options: Unpack[SearchOptions]
    ) -> list[Document]:
        return _documents(self._search(query, **options))

    async def _aget_relevant_documents(
        self, query: str, *, run_manager: AsyncCallbackManagerForRetrieverRun, **options: Unpack[SearchOptions]
    ) -> list[Document]:
        return _documents(await self._search.awaited(query, **options))


def _documents(hits: Hits) -> list[Document]:
    return [Document(id=hit.id, page_content=hit.item.text, metadata=metadata_of(hit, hits)) for hit in hits]
