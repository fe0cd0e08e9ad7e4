"""The scorer of an index: loaded when it is first needed, and checked to be the one that the index was built with."""

from __future__ import annotations

import threading
import warnings
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np

from anncur.anchors import sample_positions
from anncur.caching import Cache
from anncur.errors import ChangedScorerWarning, FingerprintError, InputError, ScorerError
from anncur.index.backend import Contents
from anncur.index.snapshot import Snapshot
from anncur.scorers.guard import GuardedScorer
from anncur.scorers.loading import load_scorer
from anncur.scorers.payment import answer_again
from anncur.scorers.stability import n_different
from anncur.storage.segments import CACHE
from anncur.waiting import Waiting

PAIRS_CHECKED = 4  # stored scores that are compared with what the scorer gives now


class IndexScorer:
    """A scorer that was given, or that an index remembers by name. Thread-safe."""

    def __init__(
        self, source: object, contents: Callable[[], Contents] | None = None, *, cache: Path | None = None
    ) -> None:
        self._source = source
        self.cache = cache
        self._contents = contents  # of an index on disk, which may have been built with another scorer
        self._loaded: Cache[GuardedScorer] = Cache()
        self._comparing = threading.Lock()  # held by the search that compares scores, and for good once it could

    @property
    def is_at_hand(self) -> bool:
        """Whether it was given as an object, so that loading it takes no time."""
        return self._source is not None and not isinstance(self._source, (str, Path))

    @property
    def source(self) -> object:
        """As it was given: None for the one that the index remembers."""
        return self._source

    def load(self) -> GuardedScorer:
        """The scorer, loaded once."""
        return self._loaded.get(None, self._load)

    async def for_use(self, snapshot: Snapshot, *, is_hurried: bool, waiting: Waiting) -> GuardedScorer:
        """The scorer; when it is first used without a deadline, after a look whether it still gives the same scores."""
        scorer = await waiting.compute(self.load)
        is_due = scorer.may_change and not is_hurried and scorer.calls_left > PAIRS_CHECKED
        if self._contents is not None and is_due and self._comparing.acquire(blocking=False):
            is_compared = False
            try:
                dtype = self._contents().dtype
                is_compared = await check_unchanged(scorer, snapshot, dtype=dtype, waiting=waiting)
            finally:
                if not is_compared:
                    self._comparing.release()
        return scorer

    def _load(self) -> GuardedScorer:
        if self._contents is None:
            return load_scorer(self._source)
        built = self._contents()
        if self._source is None and not built.scorer_name:
            raise InputError(
                f"{built.path} was built with a scorer that has no name to load it by, {built.scorer}; pass that scorer"
            )
        scorer = load_scorer(built.scorer_name if self._source is None else self._source, cache=self.cache)
        if scorer.fingerprint != built.scorer:
            raise FingerprintError(
                f"{built.path} was built with the scorer {built.scorer}, not with {scorer.fingerprint}; open it with "
                f"that one, or if it is the same under another name, give it the fingerprint {built.scorer!r}"
            )
        return scorer.with_rules(replace(scorer.rules, higher_is_better=built.higher_is_better))


def cache_file(cache: str | Path | bool, folder: str | Path | None) -> Path | None:
    """Where scores are cached: nowhere, in the folder of an index, or at a path."""
    if not isinstance(cache, bool):
        return Path(cache)
    if cache and folder is None:
        raise InputError("an index in memory has no folder for a cache; give the path of a file: cache='scores.cache'")
    return Path(folder) / CACHE if cache and folder is not None else None


async def check_unchanged(scorer: GuardedScorer, snapshot: Snapshot, *, dtype: str, waiting: Waiting) -> bool:
    """Warn where a scorer gives other scores than those that are stored; whether it could be compared.

    One that fails now isn't reported: whoever needs it will see."""
    queries = snapshot.anchor_queries[:1]
    if not queries:
        return True
    positions = np.unique(np.linspace(0, len(snapshot.items) - 1, PAIRS_CHECKED).astype(np.int64))
    try:
        now = await answer_again(scorer, queries[0], snapshot.items_for(scorer.fingerprint), positions, waiting)
    except ScorerError:
        return False
    scores = snapshot.knowledge.posterior.scores
    some = scores.rows(sample_positions(scores.n_items, np.random.default_rng(0)))[:, 0]
    stored = scores.rows(positions)[:, 0]
    n_changed = n_different(stored, now, lowest=float(some.min()), highest=float(some.max()), dtype=dtype)
    if n_changed:
        warnings.warn(
            f"the scorer {scorer.fingerprint} gives other scores than those that the index was built with: for "
            f"{n_changed} of {len(positions)} stored pairs. If it was changed, build the index again, and give it a "
            "fingerprint that tells its version, such as 'name-v2'",
            ChangedScorerWarning,
            stacklevel=2,
        )
    return True
