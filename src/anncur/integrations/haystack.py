"""An index as a retriever of Haystack. Needs haystack-ai."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, Unpack

from anncur.errors import InputError
from anncur.index.filtering import Filter
from anncur.index.index import Index
from anncur.integrations.foreign_filters import from_haystack
from anncur.integrations.searching import Search, SearchOptions, check_options, metadata_of, needed
from anncur.ranking import Hits

with needed("haystack-ai"):
    from haystack import Document, component, default_from_dict, default_to_dict


@component
class AnncurRetriever:
    """Retrieves the items that the index's scorer likes best, as documents with their exact scores, the highest first.

    `index` is an index or the path of one, which is opened when the pipeline warms up; `options` are those of
    `Index.search`, and `filters` are Haystack's own, in the place of `filter`. Beside `documents`, the outputs are
    `calls` (pairs that were scored), `estimated_recall` and `is_partial`; a document's `meta` has the item's metadata
    and title, and its round under "anncur"."""

    def __init__(
        self, index: Index | str | Path, *, filters: dict[str, Any] | None = None, **options: Unpack[SearchOptions]
    ) -> None:
        self.options: SearchOptions = {**options, **_given(None, None, options.get("filter"), filters)}
        check_options(**self.options)
        self.index = index
        self._search: Search | None = None

    def warm_up(self) -> None:
        """Open the index."""
        self._opened()

    @component.output_types(documents=list[Document], calls=int, estimated_recall=float | None, is_partial=bool)
    def run(
        self,
        query: str,
        k: int | None = None,
        budget: int | None = None,
        filter: Filter | None = None,
        filters: dict[str, Any] | None = None,
    ) -> dict[str, Any]:
        """The best documents for a query; what is given here goes before what the component was made with."""
        search = self._opened()
        return _outputs(search(query, **_given(k, budget, filter, filters)), search)

    @component.output_types(documents=list[Document], calls=int, estimated_recall=float | None, is_partial=bool)
    async def run_async(
        self,
        query: str,
        k: int | None = None,
        budget: int | None = None,
        filter: Filter | None = None,
        filters: dict[str, Any] | None = None,
    ) -> dict[str, Any]:
        """The same, for callers that await."""
        search = self._opened()
        return _outputs(await search.awaited(query, **_given(k, budget, filter, filters)), search)

    def to_dict(self) -> dict[str, Any]:
        """The component as plain values, for a pipeline's file; its index must be on disk."""
        path = self.index.info.path if isinstance(self.index, Index) else self.index
        if path is None:
            raise InputError("an index in memory can't be written into a pipeline's file; save it, and pass its path")
        try:
            options = json.loads(json.dumps(self.options))
        except TypeError as error:
            raise InputError(
                f"a pipeline's file takes plain values alone ({error}); give the method by its name, and the filter as "
                "conditions or a list of ids"
            ) from error
        return dict(default_to_dict(self, index=str(path), **options))

    @classmethod
    def from_dict(cls, data: dict[str, Any]) -> AnncurRetriever:
        """The component that `to_dict` was called on."""
        made: AnncurRetriever = default_from_dict(cls, data)
        return made

    def _opened(self) -> Search:
        if self._search is None:
            self._search = Search(self.index, **self.options)
        return self._search


def _given(k: int | None, budget: int | None, filter: Filter | None, filters: dict[str, Any] | None) -> SearchOptions:
    if filter is not None and filters:
        raise InputError("filter is anncur's and filters are Haystack's; pass one of them")
    given: SearchOptions = {}
    if k is not None:
        given["k"] = k
    if budget is not None:
        given["budget"] = budget
    if filters:
        given["filter"] = from_haystack(filters)
    elif filter is not None:
        given["filter"] = filter
    return given


def _outputs(hits: Hits, search: Search) -> dict[str, Any]:
    return {
        "documents": [
            Document(id=hit.id, content=hit.item.text, meta=metadata_of(hit, hits), score=score)
            for hit, score in zip(hits, search.rising_scores(hits), strict=True)
        ],
        "calls": hits.calls,
        "estimated_recall": hits.estimated_recall,
        "is_partial": hits.is_partial,
    }
