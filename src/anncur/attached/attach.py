"""`attach`: an existing collection of a vector database, searched from the first query on.

Nothing is built, nothing is written, and the collection is never listed: a search fetches what it ranks highest. Brings
together a `Collection`, the model of `model.py` and the loop that searches indexes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from anncur.arrays import NO_POSITIONS, FloatMatrix
from anncur.attached.base import COSINE, EVERYTHING, METRICS, Collection, Names, RowId, Selection, check_rows
from anncur.attached.milvus import MilvusItems
from anncur.attached.model import N_SAMPLED, AttachedModel, Basis, NearestRerank
from anncur.attached.pgvector import PgvectorCollection
from anncur.attached.pool import Pool, PoolItems, as_compared
from anncur.candidates import Candidates
from anncur.databases.location import PGVECTOR, Location
from anncur.engines.base import Engine
from anncur.errors import FingerprintError, InputError
from anncur.factors.cur import CurFactors
from anncur.filters import parse_filter
from anncur.index.filtering import Filter, ids_of
from anncur.index.searchable import Searchable
from anncur.index.searching import QueryLogSettings, Searcher, SearchRequest
from anncur.item_scores import HeldScores
from anncur.items import Items
from anncur.ranking import Hits
from anncur.retrievers.base import foreign_code
from anncur.retrievers.embeddings import EMBEDDINGS, SAME, checked_rows
from anncur.retrievers.user_embeddings import EmbedItems, EmbedQueries, UserEmbeddings, UserRetriever
from anncur.scorers.base import ScorerLike
from anncur.scorers.guard import GuardedScorer
from anncur.scorers.loading import load_scorer
from anncur.scorers.stability import StabilityWatch
from anncur.search.base import Knowledge, Method
from anncur.search.methods import Rerank
from anncur.search.posterior import Posterior
from anncur.search.splits import SplitTable
from anncur.vectors.naming import timeout_of
from anncur.waiting import Waiting

OPTIONS = ("table", "collection", "timeout")  # of a location
MOST_COUNTED = 50_000  # items that a search may score: nobody needs to know how many more there are
N_COMPARED = 4  # items whose embeddings are compared with those that `embed_items` gives


def attach(
    collection: str | Collection,
    scorer: ScorerLike,
    *,
    embed_queries: EmbedQueries | str | None = None,
    embed_items: EmbedItems | None = None,
    id: str = "id",
    text: str = "text",
    title: str | None = None,
    embedding: str = "embedding",
    metadata: str | Sequence[str] | None = None,
    metric: str | None = None,
    cache: str | Path | None = None,
    seed: int = 0,
) -> Attached:
    """Search a collection that somebody else filled, with the embeddings that are in it.

    `collection` is `"pgvector:postgresql://…/database?table=…"` or `"milvus:http://…?collection=…"`, or an object that
    fulfils `anncur.attached.base.Collection`. `embed_queries` is a function of a list of queries, of the model that the
    embeddings came from; without it, queries bring their own: `Query(text, embedding=…)`. With `embed_items`, a
    function of a list of items, a few of them are embedded now and compared with what is stored, so that another model
    is noticed. `id`, `text`, `title` and `embedding` name the columns or fields; `metadata` one of JSON or several
    others, by default all that can be filtered by. `metric` is "ip", "cosine" or "l2", by default that of the
    collection's index. `cache` is a file that keeps every score that is paid for. Passwords may also come from
    PGPASSWORD or ANNCUR_MILVUS_TOKEN. A sample of the items is read once, drawn with `seed`."""
    if metric is not None and metric not in METRICS:
        raise InputError(f"metric must be one of {', '.join(METRICS)}, got {metric!r}")
    several = tuple(metadata) if metadata is not None and not isinstance(metadata, str) else metadata
    names = Names(id, text, title, embedding, several)
    opened = _open(collection, names, metric) if isinstance(collection, str) else collection
    if not isinstance(opened, Collection):
        raise InputError(
            "collection must be named like 'pgvector:postgresql://…?table=…' or 'milvus:http://…?collection=…', or be "
            f"an object with the methods of anncur.attached.base.Collection, got {type(opened).__name__}"
        )
    embedder = UserRetriever(UserEmbeddings(None, embed_queries))
    embedder.load()
    sample = check_rows(opened, opened.sample(N_SAMPLED, seed=seed))
    if not len(sample.ids):
        raise InputError(f"{opened.name} must have at least one item with an embedding, got none")
    if embed_items is not None:
        _check_same(opened, embed_items, sample.ids[:N_COMPARED], sample.embeddings[:N_COMPARED])
    return Attached(opened, load_scorer(scorer, cache=cache), embedder, Basis.fit(sample, opened.metric))


class Attached(Searchable):
    """A collection and a scorer; made by `attach`. Searches as an `Index` does, and is thread-safe if the scorer is.

    Methods are "posterior" and "rerank"; filters are conditions or ids, which the database evaluates. Recall isn't
    estimated, since nothing was ever scored in full, and there is no story of a search."""

    def __init__(self, collection: Collection, scorer: GuardedScorer, embedder: UserRetriever, basis: Basis) -> None:
        self.collection = collection
        self._scorer = scorer
        self._embedder = embedder
        self._basis = basis
        watch = StabilityWatch(capacity=0)  # positions are other items in every search
        self._searcher = Searcher(None, watch, QueryLogSettings(), takes_masks=False)

    def __repr__(self) -> str:
        return f"<anncur.Attached to {self.collection.name}, {self._scorer.fingerprint}>"

    async def _search(self, request: SearchRequest, waiting: Waiting) -> list[Hits]:
        possible = _possible(request)
        self._embedder.check_queries(request.queries)
        view = await waiting.compute(self._view, request.filter)
        return await self._searcher.search(view, self._scorer, possible, waiting)

    def _search_by(self, engine: Engine, request: SearchRequest) -> list[Hits]:
        raise InputError(f"a collection is searched by this process, got the engine {engine.name!r}; leave engine out")

    def _view(self, filter: Filter | None) -> _View:
        """What one search sees of the collection."""
        selection = _selection(filter)
        self.collection.check(selection)
        n_items = self.collection.count(selection, most=MOST_COUNTED)
        pool = Pool(self.collection, selection, n_items)
        model = AttachedModel(pool, self._basis, self.collection.metric, self._embedder)
        nothing = CurFactors(HeldScores(np.empty((0, 0), dtype=np.float32)), NO_POSITIONS)
        table = SplitTable([], np.empty((0, 0, 0), dtype=np.int16))
        return _View(Knowledge(n_items, nothing, table, {}, model), PoolItems(pool))


@dataclass(frozen=True, eq=False)
class _View:
    """What a search works on: `Searched`, of a collection."""

    knowledge: Knowledge
    items: Items
    version: int = 0

    def candidates(self, filter: Filter | None, *, takes_masks: bool = True) -> Candidates:
        return Candidates(self.knowledge.n_items)  # the database filters

    def items_for(self, scorer: str) -> Items:
        return self.items


def _open(name: str, names: Names, metric: str | None) -> Collection:
    location = Location.parse(name, options=OPTIONS)
    make = PgvectorCollection.open if location.kind == PGVECTOR else MilvusItems.open
    return make(location, names, metric, timeout_of(location))


def _possible(request: SearchRequest) -> SearchRequest:
    """What is asked for, without its filter, which the database evaluates; refused where a collection can't do it."""
    if request.limits.target_recall is not None:
        raise InputError(
            "target_recall needs estimates of recall, which need queries that all items were scored for; an attached "
            "collection has none: give budget=…, or build an Index of its items"
        )
    budget = request.limits.budget
    if budget is not None and budget > MOST_COUNTED:
        raise InputError(f"budget must be at most {MOST_COUNTED:,} pairs for a collection, got {budget:,}")
    if request.explain:
        raise InputError("explain needs a map of all items, and a collection is never listed; build an Index of them")
    return replace(request, method=_as_method(request.method), filter=None)


def _as_method(method: str | Method) -> Method:
    if method == Posterior.name or isinstance(method, Posterior):
        return Posterior() if isinstance(method, str) else method
    if method == NearestRerank.name or (isinstance(method, Rerank) and method.retriever in (None, EMBEDDINGS)):
        return NearestRerank()
    raise InputError(
        f"the methods for a collection are {Posterior.name} and {NearestRerank.name}, got {method!r}; the others need "
        "an Index of its items"
    )


def _selection(filter: Filter | None) -> Selection:
    if filter is None:
        return EVERYTHING
    if isinstance(filter, Mapping):
        return Selection(parse_filter(filter))
    return Selection(ids=tuple(ids_of(filter)))


def _check_same(collection: Collection, embed_items: EmbedItems, ids: Sequence[RowId], stored: FloatMatrix) -> None:
    """Refuse a model that embeds items otherwise than they are stored."""
    with foreign_code(EMBEDDINGS, f"to embed {len(ids)} items"):
        found = checked_rows(embed_items(collection.items(ids)), len(ids), what="the embeddings of items")
    if found.shape[1] != stored.shape[1]:
        raise InputError(
            f"{collection.name} has embeddings of {stored.shape[1]} numbers, and embed_items gives {found.shape[1]}; "
            "pass the model that they came from"
        )
    ours, theirs = (as_compared(rows, COSINE) for rows in (found, stored))
    is_other = np.linalg.norm(ours - theirs, axis=1) > SAME
    if is_other.any():
        raise FingerprintError(
            f"{collection.name} has other embeddings than embed_items gives, for {int(is_other.sum())} of "
            f"{len(is_other)} items; pass the model that they came from"
        )
