"""An index as a retriever of LlamaIndex. Needs llama-index-core."""

from __future__ import annotations

from pathlib import Path
from typing import Unpack

from anncur.errors import InputError
from anncur.index.index import Index
from anncur.integrations.foreign_filters import from_llama_index
from anncur.integrations.searching import FACTS, Search, SearchOptions, metadata_of, needed
from anncur.ranking import Hits

with needed("llama-index-core"):
    from llama_index.core.callbacks import CallbackManager
    from llama_index.core.retrievers import BaseRetriever
    from llama_index.core.schema import NodeWithScore, QueryBundle, TextNode
    from llama_index.core.vector_stores import MetadataFilters


class AnncurRetriever(BaseRetriever):
    """Retrieves the items that the index's scorer likes best, as nodes with their exact scores.

    `index` is an index or the path of one, `options` are those of `Index.search`; `filters` are LlamaIndex's own, in
    the place of `filter`. A node has the item's id, text, title and metadata, and under "anncur" of its metadata the
    round and what the search cost, which no model is shown."""

    def __init__(
        self,
        index: Index | str | Path,
        *,
        filters: MetadataFilters | None = None,
        callback_manager: CallbackManager | None = None,
        **options: Unpack[SearchOptions],
    ) -> None:
        if filters is not None:
            if options.get("filter") is not None:
                raise InputError("filter is anncur's and filters are LlamaIndex's; pass one of them")
            options["filter"] = from_llama_index(filters)
        self._search = Search(index, **options)
        super().__init__(callback_manager=callback_manager)

    def _retrieve(self, query_bundle: QueryBundle) -> list[NodeWithScore]:
        return self._nodes(self._search(query_bundle.query_str))

    async def _aretrieve(self, query_bundle: QueryBundle) -> list[NodeWithScore]:
        return self._nodes(await self._search.awaited(query_bundle.query_str))

    def _nodes(self, hits: Hits) -> list[NodeWithScore]:
        nodes = [
            TextNode(
                id_=hit.id,
                text=hit.item.text,
                metadata=metadata_of(hit, hits),
                excluded_llm_metadata_keys=[FACTS],
                excluded_embed_metadata_keys=[FACTS],
            )
            for hit in hits
        ]
        rising = self._search.rising_scores(hits)
        return [NodeWithScore(node=node, score=score) for node, score in zip(nodes, rising, strict=True)]
