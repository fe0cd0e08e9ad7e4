"""The index: built from items, a scorer and anchor queries; searched for the scorer's top k.

Brings the stages together and validates what the user passes; the work is done in `scores`, `search/` and below."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from anncur.anchors import check_method
from anncur.arrays import FloatMatrix
from anncur.engines.base import Engine
from anncur.engines.names import EngineLike, as_engine
from anncur.errors import DamagedError, InputError
from anncur.index.arguments import as_folder, as_function, check_has_embeddings, check_path, checked_id, warn_of_script
from anncur.index.backend import Backend, Contents
from anncur.index.blocks import Reopening, search_blocks
from anncur.index.build import BuildSettings, Request
from anncur.index.current import CurrentVersion
from anncur.index.encoding import without_arrays
from anncur.index.filtering import Filter
from anncur.index.folder import FolderBackend
from anncur.index.folder_build import build_in_folder
from anncur.index.item_map import MapSample, sample_map
from anncur.index.memory import MemoryBackend, build_in_memory
from anncur.index.scorer import IndexScorer, cache_file
from anncur.index.searchable import Searchable
from anncur.index.searching import QueryLogSettings, Searcher, SearchRequest
from anncur.index.snapshot import Snapshot
from anncur.items import Item, ItemLike, Items, Query, QueryLike, as_queries, as_query, check_items, is_taken
from anncur.numbers import number, whole_number
from anncur.planning.suitability import Suitability, TuningReport, assess, compare
from anncur.progress import ProgressLike, showing
from anncur.ranking import Hits
from anncur.retrievers.embeddings import EMBEDDINGS
from anncur.retrievers.loading import RetrieverLike, chosen_retrievers, load_retrievers
from anncur.retrievers.user_embeddings import (
    EmbeddingsLike,
    EmbedItems,
    EmbedQueries,
    UserEmbeddings,
    UserRetriever,
    own_embeddings,
)
from anncur.scorers.base import ScorerLike
from anncur.scorers.loading import load_scorer
from anncur.scorers.stability import Stability, StabilityWatch
from anncur.scores import ScoreMatrix
from anncur.search.drift import MOST_QUERIES, DriftSummary
from anncur.search.limits import DEFAULT_BUDGET
from anncur.search.settings import Tuned
from anncur.vectors.engines import EXACT, VectorEngine
from anncur.waiting import Waiting

LOG = logging.getLogger("anncur")


@dataclass(frozen=True)
class IndexInfo(Contents):
    """What an index is made of. `build_calls` counts the pairs that this object's build asked the scorer for.

    `drift` tells how unlike the anchor queries the latest queries in the query log were, or where there is none, those
    that this object has searched for; None where nothing is known of that."""

    build_calls: int
    stability: Stability
    drift: DriftSummary | None = None

    def to_dict(self) -> dict[str, Any]:
        """Plain values for JSON."""
        return {**asdict(self), "path": None if self.path is None else str(self.path)}


class Index(Searchable):
    """Finds the items that a scorer likes best, with few pairs scored. Made by `build` or `open`.

    `search` is thread-safe, also while items are added or removed: an answer belongs to one version of the index. An
    index on disk can be pickled, and is opened again in the other process."""

    def __init__(
        self,
        backend: Backend,
        scorer: IndexScorer,
        *,
        watch: StabilityWatch,
        log_settings: QueryLogSettings,
        build_calls: int = 0,
        refresh_seconds: float | None = None,
    ) -> None:
        self._backend = backend
        self._scorer = scorer
        self._watch = watch
        self._log_settings = log_settings
        self._searcher = Searcher(backend, watch, log_settings, takes_masks=refresh_seconds is None)
        self._build_calls = build_calls
        self._version = CurrentVersion(backend, refresh_seconds)

    @classmethod
    def build(
        cls,
        items: Iterable[ItemLike],
        scorer: ScorerLike,
        anchor_queries: Iterable[QueryLike] = (),
        *,
        path: str | Path | None = None,
        retrievers: Iterable[RetrieverLike] | None = None,
        embeddings: EmbeddingsLike | None = None,
        embed_queries: EmbedQueries | str | None = None,
        anchor_method: str = "pivoted_qr",
        vectors: str = EXACT,
        engine: EngineLike = "local",
        dtype: str = "float32",
        items_per_chunk: int | None = None,
        exact_scores: ScoreMatrix | None = None,
        cache: str | Path | bool = False,
        shard: tuple[int, int] | None = None,
        scorer_name: str = "",
        log_queries: int = 0,
        explore: float | None = None,
        seed: int = 0,
        progress: ProgressLike = None,
    ) -> Index:
        """Score all items for the anchor queries, and tune searches on that.

        With a `path` the index is kept there, and a build that was stopped at any moment resumes when it is run again;
        without, it lives with the process. `scorer` is anything that `load_scorer` takes. An anchor query that is
        given twice counts once. `retrievers` are names ("bm25", "tfidf", "minilm", "rrf", the folder of a dual
        encoder, "package.module:name"), objects, or functions of a query and all items that give a number for each; by
        default "bm25" and an embedding retriever, if one is at hand. `embeddings` of your own make the retriever
        "embeddings": an array with a row for each item, or a function of a list of items; `embed_queries` is a
        function of a list of queries that gives a row for each, or its "package.module:name", which the index
        remembers. Without it, queries bring their own: `Query(text, embedding=…)`. What retrievers derive from items
        is stored with them. `anchor_method` tells how anchor items are chosen (see `anncur.anchors`), and `vectors` who
        ranks all items: "exact", "exact:float16" with half of the memory, or "faiss", "faiss:ivf" or "faiss:hnsw" for
        very many items (extra `ann`). `engine` is who scores chunks of items and computes embeddings: "local", "ray"
        (extra `ray`), or `RayEngine(address=…, workers=…)`; the index is the same. Scores are stored as `dtype`,
        float32 or float16, in chunks of `items_per_chunk` items. Several processes can build one index: each with
        `shard=(i, n)` scores every n-th chunk, and whoever finds all of them scored publishes it. The index remembers
        `scorer_name`, or the name that the scorer was loaded by. `log_queries`, `explore` and `cache` are as for
        `open`. `exact_scores` resumes from the scores of an earlier build in memory, complete or not. Eight pairs are
        scored twice, to notice a scorer that answers differently to the same pair. Whatever stops a build in memory,
        Ctrl-C included, the exception's `kept` holds the scores that were paid for. Without anchor queries nothing is
        scored, and searches work from the first query on; two or more raise recall, four or more are tuned on.
        `progress` shows how far work is: by default when it takes longer than two seconds, True always, False never, or
        a function of stage, done and total."""
        check_method(anchor_method)
        log_settings = QueryLogSettings.of(log_queries, explore)
        if items_per_chunk is not None:
            items_per_chunk = whole_number("items_per_chunk", items_per_chunk, least=1)
        seed = whole_number("seed", seed, least=0)
        settings = BuildSettings(anchor_method, seed, dtype, items_per_chunk, VectorEngine.wanted(vectors))
        check_items(items)
        check_path(path, exact_scores, shard)
        guarded = load_scorer(scorer, cache=cache_file(cache, path))
        queries = list({query.key: query for query in as_queries(anchor_queries)}.values())
        chosen = chosen_retrievers(retrievers, own_embeddings(embeddings, embed_queries))
        watch, calls_before = StabilityWatch(dtype=dtype), guarded.calls_made
        name = scorer_name or guarded.name
        backend: Backend
        with showing(progress) as shown, as_engine(engine) as runs_on:
            request = Request(items, queries, guarded, settings, chosen, watch, shown, runs_on)
            if path is None:
                backend = build_in_memory(request, exact_scores, scorer_name=name)
            else:
                warn_of_script(guarded.fingerprint, name)
                build_in_folder(Path(path), request, scorer_name=name, shard=shard)
                given = settings.engine if settings.engine.is_database else None  # it may have a password
                backend = FolderBackend(Path(path), without_arrays(chosen), engine=given)
        build_calls = guarded.calls_made - calls_before
        LOG.info("built an index with %d pairs at %s", build_calls, path or "(in memory)")
        return cls(backend, IndexScorer(guarded), watch=watch, log_settings=log_settings, build_calls=build_calls)

    @classmethod
    def open(
        cls,
        path: str | Path,
        scorer: ScorerLike | None = None,
        *,
        retrievers: Iterable[RetrieverLike] = (),
        embeddings: EmbedItems | None = None,
        embed_queries: EmbedQueries | str | None = None,
        vectors: str | None = None,
        log_queries: int = 0,
        explore: float | None = None,
        cache: str | Path | bool = False,
        refresh_seconds: float | None = None,
        check: bool = True,
    ) -> Index:
        """Open the newest version of an index on disk.

        Every file of it is checked, or with `check=False` not before it is needed: so a damaged index can be verified
        and repaired. The scorer is loaded when it is first needed; it may be left out if the index was built with one
        that has a name. Where its fingerprint is only a name, the first search scores four stored pairs again, beside
        its budget, to notice a scorer that changed. `retrievers` are those of the index that were objects or functions
        of yours. Of an index that was built with embeddings, `embed_queries` is the function for queries, if the index
        doesn't remember its name, and `embeddings` one for items that will be added. `vectors` is who ranks all items,
        as for `build`; by default the one that it was built with. With `log_queries`, what searches pay for is logged
        for `learn`: that many of them at most, the oldest go. Nothing is logged unless you ask for it. `explore` is
        the share of a search's pairs that are of random items, which `learn` needs; 0.05 unless given, and 0 where
        nothing is logged. `cache` keeps every score that is paid for, so that no pair is paid for twice: True for a
        file in the folder of the index, or the path of one, which several indexes may share. With `refresh_seconds`, a
        search that finds that nobody has looked for that long looks for a newer version and loads it, while others go
        on with the one that is there; without, `refresh` does."""
        if refresh_seconds is not None:
            refresh_seconds = number("refresh_seconds", refresh_seconds, least=0)
        own = load_retrievers(retrievers)
        if embeddings is not None or embed_queries is not None:
            own[EMBEDDINGS] = UserRetriever(UserEmbeddings(as_function(embeddings), embed_queries))
        engine = None if vectors is None else VectorEngine.wanted(vectors)
        backend = FolderBackend(as_folder(path), own, engine=engine)
        late_scorer = IndexScorer(scorer, backend.latest_contents, cache=cache_file(cache, path))
        log_settings = QueryLogSettings.of(log_queries, explore)
        watch = StabilityWatch()
        index = cls(backend, late_scorer, watch=watch, log_settings=log_settings, refresh_seconds=refresh_seconds)
        if check:
            index.refresh()
            check_has_embeddings(own, backend.latest_contents())
            if late_scorer.is_at_hand:
                late_scorer.load()  # so that a wrong one is refused at once
        return index

    def save(self, path: str | Path) -> None:
        """Write the newest version to a new folder: an index that was built in memory, or a copy of one on disk."""
        self._backend.save(as_folder(path))

    def refresh(self) -> None:
        """Load the newest version, which another process may have published."""
        self._version.refresh()

    def close(self) -> None:
        """Let go of what is loaded; `with` does it by itself."""
        self._version.close()

    @property
    def items(self) -> Items:
        """The items, in the order of their positions."""
        return self._current().items

    @property
    def anchor_queries(self) -> Sequence[Query]:
        """The queries that every item was scored for."""
        return self._current().anchor_queries

    def anchor_scores(self) -> FloatMatrix:
        """The exact scores of all items for the anchor queries, (n_items, n_anchor_queries), higher is better.

        Read-only: it is what searches use."""
        scores = self._current().knowledge.factors.item_vectors.view()
        scores.flags.writeable = False
        return scores

    @property
    def exact_scores(self) -> ScoreMatrix | None:
        """The exact scores of an index in memory, to build another one from; None on disk, where they are kept."""
        return self._backend.matrix if isinstance(self._backend, MemoryBackend) else None

    def add(
        self, items: Iterable[ItemLike], *, embeddings: EmbeddingsLike | None = None, progress: ProgressLike = None
    ) -> None:
        """Score new items for the anchor queries, and append them. Their ids must not be there yet.

        Where the index has embeddings of yours, `embeddings` are those of the new items, an array or a function; by
        default the function that it was built or opened with."""
        check_items(items)
        self._version.check_open()
        with showing(progress) as shown:
            self._backend.add(items, self._scorer.load(), embeddings=embeddings, progress=shown)
        self._version.outdated()

    def upsert(
        self, items: Iterable[ItemLike], *, embeddings: EmbeddingsLike | None = None, progress: ProgressLike = None
    ) -> None:
        """Add items whose ids are new, and replace those whose ids are already there, in one version.

        Items that are the same in all, text, title and metadata, are left alone. Where only metadata changed, the exact
        scores stay; where the text or title did, the item is scored for the anchor queries again, and the query log
        forgets it. What is new or changed comes behind all others. Every item needs an id of its own. `embeddings` are
        as for `add`: an array has a row for each item that is passed, also for those that are left alone. If it fails
        or is killed half-way, the version before still answers, and the same call resumes."""
        check_items(items)
        self._version.check_open()
        with showing(progress) as shown:
            self._backend.upsert(items, self._scorer.load(), embeddings=embeddings, progress=shown)
        self._version.outdated()

    def remove(self, item_ids: Iterable[str]) -> None:
        """Hide items at once and for good. All ids must be there."""
        if isinstance(item_ids, str):
            raise InputError(f"item_ids must be a list of ids, got {item_ids!r}; pass [{item_ids!r}]")
        self._version.check_open()
        self._backend.remove([checked_id(item_id) for item_id in item_ids])
        self._version.outdated()

    def tune(self, *, anchor_method: str = "pivoted_qr", seed: int = 0, progress: ProgressLike = None) -> TuningReport:
        """Tune the methods again on the stored scores; returns what was chosen, and what that changes.

        Worth it after many items were added. Costs no pairs."""
        check_method(anchor_method)
        try:
            before = self._current().derived.tuned
        except DamagedError:  # tuning also repairs what it writes
            before = Tuned()
        with showing(progress) as shown:
            self._backend.tune(anchor_method, whole_number("seed", seed, least=0), progress=shown)
        self._version.outdated()
        return compare(before, self._current().derived.tuned, n_items=len(self))

    def learn(self, *, progress: ProgressLike = None) -> int:
        """Fit a feedback model to the query log; returns the number of queries that it was fitted to.

        Costs no pairs. The method "posterior" uses it from now on, also where the index is opened again."""
        self._version.check_open()
        with showing(progress) as shown:
            n_queries = self._backend.learn(progress=shown)
        self._version.outdated()
        return n_queries

    def calibrate(self, queries: Iterable[QueryLike], *, progress: ProgressLike = None) -> int:
        """Calibrate estimates of recall, and `target_recall`, on queries like those to come; returns the pairs scored.

        For an index without anchor queries, which has no others to try itself on. Every query is scored on every item,
        so ten queries on a thousand items take ten thousand pairs; where it was interrupted, it resumes."""
        self._version.check_open()
        scorer = self._scorer.load()
        before = scorer.calls_made
        with showing(progress) as shown:
            self._backend.calibrate(as_queries(queries), scorer, progress=shown)
        self._version.outdated()
        return scorer.calls_made - before

    def verify(self, *, repair: bool = False, progress: ProgressLike = None) -> list[str]:
        """The damaged files, a line each; empty when all is well.

        With `repair`, damaged chunks of scores are scored again, and what is derived is derived again; what remains
        can't be repaired."""
        if not repair:
            return self._backend.verify()
        with showing(progress) as shown:
            remaining = self._backend.repair(self._scorer.load(), progress=shown)
        self._version.outdated()
        return remaining

    def compact(self) -> None:
        """Merge all that was ever added into one segment, without removed items, and delete what older versions need.

        Costs no pairs, and changes no answer. Of an index on disk, `add`, `upsert` and `remove` do the same for small
        segments when there are several; one in memory needs it never."""
        self._version.check_open()
        self._backend.compact()
        self._version.outdated()

    def gc(self, *, unpublished: bool = False) -> list[str]:
        """Delete files that only older versions need, and with `unpublished` also unfinished builds; returns their
        names."""
        return self._backend.gc(unpublished=unpublished)

    def digest(self) -> str:
        """A hash of all that the index holds: queries, items, exact scores, and what was derived from them."""
        return self._current().digest()

    def first_guesses(self, query: QueryLike, k: int = 10, *, filter: Filter | None = None) -> list[Item]:
        """The items that are best by what is known before the scorer is asked, best first: what a search scores first.

        For when the scorer can't be had. Costs no pairs."""
        return self._searcher.first_guesses(self._version.for_search(), as_query(query), k, filter)

    def map_items(self, n_items: int = 1000) -> MapSample:
        """Items at random, at most `n_items`, on a map of two principal components of what searches know of items."""
        snapshot = self._current()
        return sample_map(snapshot, whole_number("n_items", n_items, least=1), self._searcher.item_map(snapshot))

    def expected_recall(self, k: int = 10, budget: int = DEFAULT_BUDGET) -> float | None:
        """The mean recall that "posterior" had on held-out anchor queries, or on those that it was calibrated on.

        None where nothing was measured: with fewer than four anchor queries and no calibration, for k above 100, for
        budgets above 500."""
        budget = min(whole_number("budget", budget, least=1), len(self))
        return self._current().derived.tuned.curve.recall(whole_number("k", k, least=1), budget)

    def suitability(self) -> Suitability:
        """How well the index suits its scorer: what each method finds for queries that it doesn't know, and what to
        use."""
        snapshot = self._current()
        return assess(snapshot.derived, n_items=len(snapshot.items))

    def engine_recall(self) -> float:
        """The share of the best items that the engine of `vectors` finds, for query vectors at random; 1 for "exact".

        What it misses costs a search less, since all that it ranks is scored in many rounds."""
        return self._current().knowledge.posterior.engine_recall()

    def plot_recall(self, file: str | Path) -> Path:
        """Draw the recall of queries that it doesn't know against the budget: .png, .svg or .pdf (extra `plots`)."""
        from anncur.planning.plot import draw_recall

        return draw_recall(self._current().derived.tuned, Path(file))

    @property
    def is_complete(self) -> bool:
        """Whether all of it is scored and published; not so after a build of one shard, while others are missing."""
        return self._backend.is_complete

    @property
    def info(self) -> IndexInfo:
        """What this index is made of, and how stable its scorer has been."""
        contents = self._backend.contents()
        fields = {name: getattr(contents, name) for name in Contents.__dataclass_fields__}
        return IndexInfo(**fields, build_calls=self._build_calls, stability=self._watch.report, drift=self._drift())

    def _drift(self) -> DriftSummary | None:
        """Of the query log, each query once, or of this object's searches; what was compared with other queries doesn't
        count."""
        logged = [search for search in self._backend.latest_searches(MOST_QUERIES) if search.drift is not None]
        if not logged and self._searcher.drift_watch.is_empty:
            return None  # and nothing needs to be loaded
        reference = self._current().knowledge.posterior.drift_reference()
        by_text = {each.query.marked_text: each.drift for each in logged if each.drift_reference == reference.identity}
        drifts = [drift for drift in by_text.values() if drift is not None]
        if drifts:
            return DriftSummary.of(drifts, n_reference=reference.n_queries)
        return self._searcher.drift_watch.summary(reference)

    @property
    def loaded(self) -> tuple[int, int]:
        """The version that searches use now, and the number of its items; reads no files once one is loaded."""
        snapshot = self._current()
        return snapshot.version, len(snapshot.items)

    def __len__(self) -> int:
        return len(self.items)

    def __contains__(self, item_id: object) -> bool:
        wanted = item_id.id if isinstance(item_id, Item) else item_id
        return isinstance(wanted, str) and is_taken(wanted, self.items)

    def __getitem__(self, item_id: str) -> Item:
        items = self.items
        return items[items.position(checked_id(item_id))]

    def __iter__(self) -> Iterator[Item]:
        return iter(self.items)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def __repr__(self) -> str:
        found = self._backend.contents()
        return f"<anncur.Index of {found.n_items:,} items, {found.n_anchor_queries} anchor queries, {found.scorer}>"

    def _repr_html_(self) -> str:
        from anncur.notebook import index_html

        return index_html(self.info)

    def __reduce__(self) -> tuple[Any, ...]:
        return self._reopening(self._scorer.source), ()

    def _reopening(self, scorer: ScorerLike | None) -> partial[Index]:
        """Opens the index again, in this or another process, with this scorer; None is the one that it remembers."""
        if not isinstance(self._backend, FolderBackend):
            raise InputError("an index in memory can't be pickled; save it to a folder, and open it there")
        return partial(
            Index.open,
            self._backend.folder.absolute(),
            scorer,
            retrievers=list(self._backend.own_retrievers.values()),
            log_queries=self._log_settings.log_queries,
            explore=self._log_settings.explore,
            cache=self._scorer.cache or False,
            refresh_seconds=self._version.refresh_seconds,
            vectors=None if self._backend.engine is None else self._backend.engine.name,
        )

    def _search_by(self, engine: Engine, request: SearchRequest) -> list[Hits]:
        if isinstance(self._backend, FolderBackend) and self._backend.engine is not None:
            self._backend.engine.check_for_others()
        opening = Reopening(self._scorer.source, self._reopening)
        return search_blocks(self._version.for_search(), request, opening, engine=engine)

    async def _search(self, request: SearchRequest, waiting: Waiting) -> list[Hits]:
        snapshot = await waiting.compute(self._version.for_search)
        is_hurried = request.limits.deadline_ms is not None
        scorer = await self._scorer.for_use(snapshot, is_hurried=is_hurried, waiting=waiting)
        return await self._searcher.search(snapshot, scorer, request, waiting)

    def _current(self) -> Snapshot:
        """The version that is loaded; the newest one, where none is."""
        return self._version.get()
