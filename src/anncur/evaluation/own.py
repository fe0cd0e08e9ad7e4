"""Tasks from a user's own scorer, items and queries, or from the bundled sample.

Exact scores are paid for once and kept in a folder: it can be stopped at any moment, and goes on where it was. Reads
scorers, feeds studies."""

from __future__ import annotations

import hashlib
import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from anncur.arrays import FloatMatrix, Positions
from anncur.datasets.beir import Qrels
from anncur.datasets.sample import (
    SAMPLE_INDEX,
    sample_anchor_queries,
    sample_items,
    sample_test_queries,
    sample_test_scores,
)
from anncur.errors import InputError
from anncur.evaluation.study import Sizes
from anncur.evaluation.tasks import ItemScores, Task, split_by_group
from anncur.index.index import Index
from anncur.items import Item, Query, digest_items
from anncur.planning.plan import seconds_per_pair
from anncur.progress import Progress, silent
from anncur.scorers.base import with_prepared
from anncur.scorers.guard import GuardedScorer
from anncur.scores import ScoreMatrix, ScoreSpec

LEAST_QUERIES = 12  # that there are anchors to learn from and tests to measure with


@dataclass(frozen=True, eq=False)
class OwnData:
    """What a user brings: `groups` are the documents of the queries, `qrels` what judges said of them."""

    name: str
    items: Sequence[Item]
    queries: Sequence[Query]
    groups: Sequence[str]
    qrels: Qrels | None = None


@dataclass(frozen=True)
class Cost:
    """What exact scores cost: all pairs, those that are still to be paid for, and the seconds of one."""

    n_queries: int
    n_items: int
    n_missing: int
    seconds_per_pair: float | None  # None where nothing is missing

    @property
    def seconds(self) -> float:
        """About how long it takes."""
        return self.n_missing * (self.seconds_per_pair or 0.0)


Tell = Callable[[Cost], None]


def draw_queries(data: OwnData, n_queries: int, *, seed: int) -> OwnData:
    """At most so many of the queries at random, and of those with the same text only one."""
    distinct = list({query.marked_text: place for place, query in enumerate(data.queries)}.values())
    if len(distinct) < LEAST_QUERIES:
        raise InputError(
            f"a benchmark needs at least {LEAST_QUERIES} different queries, got {len(distinct)}; take a file with more"
        )
    drawn = sorted(np.random.default_rng(seed).permutation(distinct)[:n_queries].tolist())
    queries, groups = ([values[place] for place in drawn] for values in (data.queries, data.groups))
    return replace(data, queries=queries, groups=groups)


def draw_items(data: OwnData, n_items: int, *, seed: int) -> OwnData:
    """At most so many of the items at random, in their order; those that answer one of the queries are among them."""
    grades = [(data.qrels or {}).get(query.id, {}) for query in data.queries]
    answers = {item_id for of_query in grades for item_id, grade in of_query.items() if grade > 0}
    shuffled = np.random.default_rng(seed).permutation(len(data.items)).tolist()
    answers_first = sorted(shuffled, key=lambda place: data.items[place].id not in answers)
    return replace(data, items=[data.items[place] for place in sorted(answers_first[:n_items])])


def fit_sizes(sizes: Sizes, groups: Sequence[str], n_items: int, *, by_document: bool) -> Sizes:
    """What there are enough queries and items for, told before anything is paid for.

    Tests `by_document` are whole documents, and these seldom add up to just what the anchors leave: where they don't,
    as many queries fewer are anchors as the largest document has beyond one."""
    fitting = sizes.among(len(groups), n_items)
    if not by_document:
        return fitting
    try:
        _try_splits(fitting, groups)
    except InputError:
        most_anchors = len(groups) - fitting.n_tests - max(Counter(groups).values()) + 1
        fewer = tuple(number for number in fitting.n_anchor_queries if number < most_anchors)
        fitting = replace(fitting, n_anchor_queries=(*fewer, max(1, most_anchors)))
        _try_splits(fitting, groups)
    return fitting


def _try_splits(sizes: Sizes, groups: Sequence[str]) -> None:
    for seed in range(sizes.n_seeds):
        split_by_group(groups, n_anchors=sizes.n_anchor_queries[-1], n_tests=sizes.n_tests, seed=seed)


def own_task(
    data: OwnData, scorer: GuardedScorer, scorer_name: str, folder: Path, *, tell: Tell, progress: Progress = silent
) -> Task:
    """The task of a user's data, after all its pairs have been scored; what that costs is told before."""
    exact_scores, pace = _scores(folder, scorer, data.items, data.queries, tell=tell, progress=progress)
    return Task(
        name=data.name,
        queries=data.queries,
        groups=data.groups,
        items=data.items,
        exact_scores=exact_scores,
        scorer_name=scorer_name,
        qrels=data.qrels,
        seconds_per_pair=pace,
    )


def sample_task(scorer: GuardedScorer | None = None) -> Task:
    """The bundled sample, whose exact scores are stored; the scorer is asked only for its pace."""
    queries, items = sample_anchor_queries() + sample_test_queries(), sample_items()
    pace = None if scorer is None else seconds_per_pair(scorer, with_prepared(items, scorer.prepare(items)), queries[0])
    anchor_scores = Index.open(SAMPLE_INDEX).anchor_scores().T
    return Task(
        name="animals",
        queries=queries,
        groups=[query.id.rpartition(".")[0] for query in queries],  # of a mention's id, the document
        items=items,
        exact_scores=np.concatenate([anchor_scores, sample_test_scores()]).astype(np.float32),
        scorer_name="builtin",
        seconds_per_pair=pace,
    )


def with_item_scores(
    task: Task, scorer: GuardedScorer, folder: Path, n: int, *, seed: int, tell: Tell, progress: Progress = silent
) -> Task:
    """The same task with the exact scores of so many items as queries, drawn at random."""
    chosen: dict[str, int] = {}
    for position in np.random.default_rng(seed).permutation(len(task.items)).tolist():
        if len(chosen) < n and task.items[position].full_text.strip():
            chosen.setdefault(Query.of_item(task.items[position]).marked_text, position)
    positions: Positions = np.array(list(chosen.values()), dtype=np.int64)
    queries = [Query.of_item(task.items[position]) for position in positions.tolist()]
    exact_scores, _ = _scores(folder, scorer, task.items, queries, tell=tell, progress=progress)
    return replace(task, item_scores=ItemScores(positions, exact_scores))


def _scores(
    folder: Path,
    scorer: GuardedScorer,
    items: Sequence[Item],
    queries: Sequence[Query],
    *,
    tell: Tell,
    progress: Progress,
) -> tuple[FloatMatrix, float | None]:
    """The exact scores, (n_queries, n_items), and the seconds of a pair; another plan is kept in another folder."""
    prepared = with_prepared(items, scorer.prepare(items))
    plan = ScoreSpec.make(scorer, queries, items_digest=digest_items(items), n_items=len(items))
    name = hashlib.sha256(plan.to_json().encode()).hexdigest()[:12]
    matrix = ScoreMatrix.stored(str((folder / f"scores-{name}").absolute()), plan)
    n_missing = matrix.n_missing
    pace = seconds_per_pair(scorer, prepared, queries[0]) if n_missing else None
    tell(Cost(len(queries), len(items), n_missing, pace))
    started = time.perf_counter()
    matrix.fill(scorer, queries, lambda start, stop: prepared[start:stop], progress=progress)
    seconds = (time.perf_counter() - started) / n_missing if n_missing else None
    return np.ascontiguousarray(matrix.all().T), seconds
