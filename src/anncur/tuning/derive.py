"""Derives from exact scores what searches need: anchor items, budget splits, and tuned settings.

Reads exact scores and retrievers, feeds `storage/` and `index/`. Costs no pairs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from anncur.anchors import choose_anchors, sample_positions
from anncur.arrays import Positions
from anncur.item_scores import ItemScores
from anncur.items import Query
from anncur.progress import Progress, silent
from anncur.retrievers.base import Retriever
from anncur.search.feedback import FeedbackModel
from anncur.search.settings import Tuned
from anncur.search.splits import SplitTable
from anncur.threads import one_blas_thread
from anncur.tuning.posterior import tune_posterior
from anncur.tuning.splits import ANCHOR_COUNTS, tune_splits


@dataclass(frozen=True, eq=False)
class Derived:
    """The best anchor items in their order, how to split budgets, tuned settings, and the feedback model if the query
    log was fitted."""

    anchor_items: Positions
    splits: SplitTable
    tuned: Tuned = field(default_factory=Tuned)
    feedback: FeedbackModel | None = None

    def take(self, kept: Positions) -> Derived:
        """That of the items at these positions (in ascending order); positions past the last are new items."""
        feedback = None if self.feedback is None else self.feedback.take(kept)
        places: Positions = np.minimum(np.searchsorted(kept, self.anchor_items), len(kept) - 1)
        is_kept = np.equal(kept[places], self.anchor_items)
        return Derived(places[is_kept], self.splits, self.tuned, feedback)


def derive(
    scores: ItemScores,
    *,
    queries: Sequence[Query],
    retrievers: Mapping[str, Retriever],
    anchor_method: str,
    seed: int,
    progress: Progress = silent,
) -> Derived:
    """Choose anchor items, and tune the methods on held-out anchor queries. Memory doesn't grow with the items.

    `retrievers` are fitted to the items, now or when they are first asked."""
    rng = np.random.default_rng(seed)
    with one_blas_thread():
        sample = sample_positions(scores.n_items, rng)
        columns = scores.rows(sample).T
        chosen = sample[choose_anchors(columns, n_anchors=ANCHOR_COUNTS[-1], method=anchor_method, rng=rng)]
        splits = tune_splits(scores, anchor_method=anchor_method, rng=rng, progress=progress)
        tuned = tune_posterior(scores, queries, retrievers, rng=rng, progress=progress)
    return Derived(chosen, splits, tuned)
