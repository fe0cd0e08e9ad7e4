"""A scorer, with an index over each task's corpus, as a search model of MTEB. Needs mteb."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from importlib.metadata import version
from pathlib import Path
from typing import Any, Unpack

from anncur.errors import InputError
from anncur.index.index import Index
from anncur.integrations.searching import Search, SearchOptions, check_options, needed
from anncur.items import Item, Query, QueryLike
from anncur.retrievers.loading import RetrieverLike
from anncur.scorers.base import ScorerLike
from anncur.scorers.loading import load_scorer
from anncur.search.methods import DEFAULT_METHOD, as_method

with needed("mteb"):
    from mteb.abstasks.task_metadata import TaskMetadata
    from mteb.models.model_meta import ModelMeta
    from mteb.types import (
        CorpusDatasetType,
        EncodeKwargs,
        QueryDatasetType,
        RetrievalOutputType,
        TopRankedDocumentsType,
    )


class AnncurSearch:
    """Searches each task's corpus for what the scorer likes best, or re-ranks the candidates that a task gives.

    MTEB has the corpora, so that this builds the indexes: in memory, or in `folder`, where one that is complete is used
    again. `anchor_queries` must look like the tasks' queries, and must not be those of the test split. `options` are
    those of `Index.search`, without `k`, which a task gives. `name` is what results are filed under."""

    def __init__(
        self,
        scorer: ScorerLike,
        *,
        anchor_queries: Iterable[QueryLike] = (),
        retrievers: Iterable[RetrieverLike] | None = None,
        folder: str | Path | None = None,
        name: str = "",
        **options: Unpack[SearchOptions],
    ) -> None:
        if "k" in options:
            raise InputError("a task of MTEB tells how many items it wants; leave out k=…")
        check_options(**options)
        self._scorer = load_scorer(scorer)
        self._anchor_queries = list(anchor_queries)
        self._retrievers = None if retrievers is None else list(retrievers)
        self._folder = None if folder is None else Path(folder)
        self._options = options
        self._name = name or f"anncur/{as_method(options.get('method', DEFAULT_METHOD)).name}"
        self._search: Search | None = None

    @property
    def mteb_model_meta(self) -> ModelMeta:
        """What results are filed under: name, version, scorer and options."""
        settings = {
            **{name: str(value) for name, value in self._options.items()},
            "scorer": self._scorer.fingerprint,
            "n_anchor_queries": len(self._anchor_queries),
        }
        return ModelMeta.create_empty(
            {
                "name": self._name,
                "revision": version("anncur"),
                "model_type": ["cross-encoder"],
                "experiment_kwargs": settings,
            }
        )

    def index(
        self,
        corpus: CorpusDatasetType,
        *,
        task_metadata: TaskMetadata,
        hf_split: str,
        hf_subset: str,
        encode_kwargs: EncodeKwargs,
        num_proc: int | None = None,
        **kwargs: Any,
    ) -> None:
        """Build the index of a task's corpus."""
        task = f"{task_metadata.name}-{hf_subset}-{hf_split}.anncur"
        path = None if self._folder is None else self._folder / task
        items = [_item(row) for row in corpus]
        built = Index.build(items, self._scorer, self._anchor_queries, path=path, retrievers=self._retrievers)
        self._search = Search(built, **self._options)

    def search(
        self,
        queries: QueryDatasetType,
        *,
        task_metadata: TaskMetadata,
        hf_split: str,
        hf_subset: str,
        top_k: int,
        encode_kwargs: EncodeKwargs,
        top_ranked: TopRankedDocumentsType | None = None,
        num_proc: int | None = None,
        **kwargs: Any,
    ) -> RetrievalOutputType:
        """For each query's id, the ids and scores of the best items."""
        if self._search is None:
            raise InputError("there is no index to search yet; call index(corpus, …) first, as mteb.evaluate does")
        asked = [_query(row) for row in queries]
        if top_ranked is None:
            answers = self._search.many(asked, k=top_k)
        else:
            answers = [self._search.among(query, top_ranked.get(query.id, []), k=top_k) for query in asked]
        rising = self._search.rising_scores
        return {hits.query.id: dict(zip(hits.ids, rising(hits), strict=True)) for hits in answers}


def _item(row: Mapping[str, Any]) -> Item:
    return Item(str(row["id"]), row["text"], row.get("title") or "")


def _query(row: Mapping[str, Any]) -> Query:
    """With its instruction behind it, as MTEB's own models see it."""
    instruction = row.get("instruction") or ""
    return Query(f"{row['text']} {instruction}" if instruction else row["text"], str(row["id"]))
