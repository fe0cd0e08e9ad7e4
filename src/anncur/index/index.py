"""The index: built from a scorer, items and anchor queries; searched for the scorer's top k.

Brings the stages together and validates what the user passes; the work is done in `scores`, `search/` and below."""

from __future__ import annotations

import threading
from collections.abc import Iterable
from dataclasses import dataclass, replace
from pathlib import Path

from anncur.anchors import check_method
from anncur.candidates.loading import RetrieverLike, load_retrievers
from anncur.errors import AnncurError, FingerprintError, InputError
from anncur.index.build import Request, Settings
from anncur.index.folder import FolderStorage
from anncur.index.folder_build import build_in_folder, check_shard
from anncur.index.memory import MemoryStorage, build_in_memory
from anncur.index.searching import NO_HABITS, Habits, Searcher
from anncur.index.snapshot import Snapshot
from anncur.index.storage import Storage
from anncur.items import ItemLike, Items, QueryLike, as_queries, as_query, check_items
from anncur.numbers import whole_number
from anncur.progress import Progress, silent
from anncur.ranking import Hits
from anncur.scorers.guard import GuardedScorer
from anncur.scorers.loading import load_scorer
from anncur.scorers.stability import Stability, StabilityWatch
from anncur.scores import ScoreMatrix
from anncur.search.base import Policy
from anncur.search.limits import DEFAULT_BUDGET, Limits
from anncur.search.methods import DEFAULT_METHOD


@dataclass(frozen=True)
class IndexInfo:
    """What an index is made of. `build_calls` counts the pairs that this object's build asked the scorer for."""

    version: int
    n_items: int
    n_anchor_queries: int
    retrievers: tuple[str, ...]
    scorer: str
    build_calls: int
    stability: Stability


class Index:
    """Finds the items that a scorer likes best, with few calls. Made by `build` or `open`.

    `search` is thread-safe, also while items are added or removed: an answer belongs to one version of the index."""

    def __init__(
        self,
        scorer: GuardedScorer,
        storage: Storage,
        *,
        watch: StabilityWatch,
        build_calls: int = 0,
        habits: Habits = NO_HABITS,
    ) -> None:
        self._scorer = scorer
        self._searcher = Searcher(scorer, storage, watch, habits)
        self._storage = storage
        self._watch = watch
        self.build_calls = build_calls
        self._loading = threading.Lock()
        self._snapshot: Snapshot | None = None

    @classmethod
    def build(
        cls,
        path: str | Path | None,
        scorer: object,
        items: Iterable[ItemLike],
        anchor_queries: Iterable[QueryLike],
        *,
        retrievers: Iterable[RetrieverLike] = ("bm25",),
        anchors: str = "pivoted_qr",
        dtype: str = "float32",
        items_per_chunk: int | None = None,
        exact_scores: ScoreMatrix | None = None,
        shard: tuple[int, int] | None = None,
        scorer_name: str = "",
        keep_traffic: int = 0,
        explore: float | None = None,
        seed: int = 0,
        progress: Progress = silent,
    ) -> Index:
        """Score all items for the anchor queries, and learn from that where the scorer's best items are.

        With a `path` the index is kept there, and a build that was stopped at any moment goes on where it was when it
        is run again; with None it lives with the process. `scorer` is anything that `load_scorer` takes. An anchor
        query that is given twice counts once. `retrievers` are names ("bm25", "tfidf"), objects, or functions of a
        query and all items that give a number for each. `anchors` says how anchor items are chosen (see
        `anncur.anchors`). Scores are stored as `dtype`, float32 or float16, in chunks of `items_per_chunk` items.
        Several processes can build one index: each with `shard=(i, n)` scores every n-th chunk, and whoever finds all
        of them scored publishes it. The index remembers `scorer_name`, or the scorer if it was given as a name.
        `keep_traffic` and `explore` are as for `open`. `exact_scores` goes on from the scores of an earlier build in
        memory, complete or not. Eight pairs are scored twice, to notice a scorer that answers differently to the same
        pair. Whatever stops a build in memory, Ctrl-C included, the exception's `kept` holds the scores that were paid
        for. Without anchor queries nothing is scored: the first retriever proposes, until there is something to `learn`
        from."""
        check_method(anchors)
        habits = Habits.of(keep_traffic, explore)
        if items_per_chunk is not None:
            items_per_chunk = whole_number("items_per_chunk", items_per_chunk, least=1)
        settings = Settings(anchors, whole_number("seed", seed, least=0), dtype, items_per_chunk)
        guarded = load_scorer(scorer)
        queries = list({query.marked_text: query for query in as_queries(anchor_queries)}.values())
        watch, calls_before = StabilityWatch(), guarded.calls_made
        request = Request(items, queries, guarded, settings, load_retrievers(retrievers), watch, progress)
        storage: Storage
        if path is None:
            storage = build_in_memory(request, exact_scores)
        else:
            _check_for_folder(path, exact_scores, shard)
            name = scorer_name or (scorer if isinstance(scorer, str) else "")
            storage = build_in_folder(Path(path), request, scorer_name=name, shard=shard)
        build_calls = guarded.calls_made - calls_before
        return cls(guarded, storage, watch=watch, build_calls=build_calls, habits=habits)

    @classmethod
    def open(
        cls,
        path: str | Path,
        scorer: object = None,
        *,
        retrievers: Iterable[RetrieverLike] = (),
        keep_traffic: int = 0,
        explore: float | None = None,
    ) -> Index:
        """Open the newest version of an index on disk, with every file of it checked.

        `scorer` may be left out if the index was built with one that has a name. `retrievers` are those of the index
        that were objects or functions of yours. With `keep_traffic`, what searches pay for is kept for `learn`: that
        many of them at most, the oldest go. Nothing is kept unless you say so. `explore` is the share of a search's
        calls that score items at random, which `learn` needs; 0.05 unless given, and 0 where nothing is kept."""
        habits = Habits.of(keep_traffic, explore)
        storage = FolderStorage(Path(path), load_retrievers(retrievers))
        index = cls(cls.scorer_of(storage, scorer), storage, watch=StabilityWatch(), habits=habits)
        index.refresh()
        return index

    @staticmethod
    def scorer_of(storage: FolderStorage, scorer: object = None, *, threads: int | None = None) -> GuardedScorer:
        """The scorer of an index on disk: the given one if it is the right one, else the one that it remembers.

        `threads` are as for `load_scorer`."""
        manifest = storage.newest().manifest
        if scorer is None and not manifest.scorer_name:
            raise InputError(
                f"{storage.folder} was built with a scorer that has no name, {manifest.scorer}; pass that scorer"
            )
        guarded = load_scorer(scorer or manifest.scorer_name, threads=threads)
        if guarded.fingerprint != manifest.scorer:
            raise FingerprintError(
                f"{storage.folder} was built with the scorer {manifest.scorer}, not with {guarded.fingerprint}; "
                "open it with that one"
            )
        return guarded.with_rules(replace(guarded.rules, higher_is_better=manifest.higher_is_better))

    def refresh(self) -> None:
        """Take up the newest version, which another process may have published."""
        self._outdated()
        self._current()

    @property
    def items(self) -> Items:
        """The items, in the order of their positions."""
        return self._current().items

    @property
    def exact_scores(self) -> ScoreMatrix | None:
        """The exact scores of an index in memory, to build another one from; None on disk, where they are kept."""
        return self._storage.matrix if isinstance(self._storage, MemoryStorage) else None

    def add(self, items: Iterable[ItemLike], *, progress: Progress = silent) -> None:
        """Score new items for the anchor queries, and append them. Their ids must not be there yet."""
        check_items(items)
        self._storage.add(items, self._scorer, progress=progress)
        self._outdated()

    def remove(self, item_ids: Iterable[str]) -> None:
        """Hide items at once and for good. All ids must be there."""
        if isinstance(item_ids, str):
            raise InputError(f"item_ids must be a list of ids, got {item_ids!r}; pass [{item_ids!r}]")
        self._storage.remove(item_ids)
        self._outdated()

    def tune(self, *, anchors: str = "pivoted_qr", seed: int = 0, progress: Progress = silent) -> None:
        """Tune adaptive search anew on the stored scores, and for "anncur" anchor items and splits.

        Worth it after many items were added. Costs no calls."""
        check_method(anchors)
        self._storage.tune(anchors, whole_number("seed", seed, least=0), progress=progress)
        self._outdated()

    def learn(self, *, progress: Progress = silent) -> int:
        """Learn from the searches that were kept where the scorer's best items are; returns how many they were.

        Costs no calls. The method "posterior" uses it from now on, also where the index is opened again."""
        n_queries = self._storage.learn(progress=progress)
        self._outdated()
        return n_queries

    def verify(self, *, repair: bool = False, progress: Progress = silent) -> list[str]:
        """The damaged files, a line each; empty when all is well.

        With `repair`, damaged chunks of scores are scored again, and what is derived is derived again; what remains
        can't be mended."""
        return self._storage.repair(self._scorer, progress=progress) if repair else self._storage.verify()

    def gc(self, *, drafts: bool = False) -> list[str]:
        """Delete files that only older versions need, and with `drafts` also unfinished builds; returns their names."""
        return self._storage.gc(drafts=drafts)

    def digest(self) -> str:
        """A hash of all that the index holds: queries, items, exact scores, and what was learnt from them."""
        return self._current().digest()

    def search(
        self,
        query: QueryLike,
        k: int = 10,
        budget: int | None = None,
        method: str | Policy = DEFAULT_METHOD,
        *,
        target_recall: float | None = None,
        max_budget: int | None = None,
        deadline_ms: float | None = None,
        seed: int = 0,
    ) -> Hits:
        """The k items that the scorer likes best for a query, found with at most `budget` calls.

        `budget` is 200 unless given; for "exhaustive", all items. `method` is "posterior", "anncur", "adacur", "axn",
        "rerank", "exhaustive", or a policy with settings of its own. With `target_recall` the search ends when it has
        probably found that share of the true top k, after at most `max_budget` calls. After `deadline_ms` no further
        call is started, and the best so far is returned, marked as partial. If the search fails, the exception's `kept`
        holds the hits so far."""
        limits = Limits(budget, target_recall, max_budget, deadline_ms)
        try:
            return self._searcher.search(self._current(), [as_query(query)], k, method, limits, seed=seed)[0]
        except AnncurError as error:
            error.kept = error.kept[0] if isinstance(error.kept, list) and error.kept else None
            raise

    def search_many(
        self,
        queries: Iterable[QueryLike],
        k: int = 10,
        budget: int | None = None,
        method: str | Policy = DEFAULT_METHOD,
        *,
        target_recall: float | None = None,
        max_budget: int | None = None,
        deadline_ms: float | None = None,
        seed: int = 0,
        progress: Progress = silent,
    ) -> list[Hits]:
        """Search for many queries, in blocks: the same answers as one by one, at less cost.

        `budget` is for each query, `deadline_ms` for all of them together. If the search fails, the exception's `kept`
        is the list of hits so far."""
        limits = Limits(budget, target_recall, max_budget, deadline_ms)
        parsed = as_queries(queries)
        return self._searcher.search(self._current(), parsed, k, method, limits, seed=seed, progress=progress)

    def expected_recall(self, k: int = 10, budget: int = DEFAULT_BUDGET) -> float | None:
        """The mean recall that "posterior" had on held-out anchor queries when it was tuned.

        None where tuning didn't look: with fewer than four anchor queries, for k above 100, for budgets above 500."""
        budget = min(whole_number("budget", budget, least=1), len(self))
        return self._current().knowledge.beliefs.tuned.curve.recall(whole_number("k", k, least=1), budget)

    def __len__(self) -> int:
        return len(self.items)

    def __repr__(self) -> str:
        info = self.info
        return f"<anncur.Index of {info.n_items} items, {info.n_anchor_queries} anchor queries, scorer {info.scorer}>"

    @property
    def info(self) -> IndexInfo:
        """What this index is made of, and how stable its scorer has been."""
        snapshot = self._current()
        return IndexInfo(
            version=snapshot.version,
            n_items=len(snapshot.items),
            n_anchor_queries=len(snapshot.queries),
            retrievers=tuple(snapshot.knowledge.retrievers),
            scorer=self._scorer.fingerprint,
            build_calls=self.build_calls,
            stability=self._watch.report,
        )

    def _outdated(self) -> None:
        """Another version is there, to be loaded when it is needed."""
        with self._loading:  # a load that has begun may be of the version before
            self._snapshot = None

    def _current(self) -> Snapshot:
        """The version to search; loaded when it is first needed."""
        snapshot = self._snapshot
        if snapshot is None:
            with self._loading:
                snapshot = self._snapshot or self._storage.load()
                self._snapshot = snapshot
        return snapshot


def _check_for_folder(path: object, exact_scores: ScoreMatrix | None, shard: tuple[int, int] | None) -> None:
    """Refuse what doesn't go with a build on disk."""
    check_shard(shard)
    if exact_scores is not None:
        raise InputError("exact_scores go with path=None; on disk a build goes on by itself")
    if not isinstance(path, (str, Path)) or not str(path):
        raise InputError(f"path must be the name of a folder or None, got {path!r}")
