"""Rivals on one board: what re-ranking a fusion, GAR, ReFIT, BAGEL and a cascade find, beside posterior and the others.

    python benchmarks/rivals.py sample [--shallow SCORER --cost SHARE]
    python benchmarks/rivals.py DATA --work FOLDER --scorer maxsim|MODEL [--world noun.animal] [--items 5000]
    python benchmarks/rivals.py                                             # the tables of all rows in --out

Data, matrices and splits are those of first_query.py. Anchor queries choose the settings of those that learn nothing
else from them; without any, these have the first of their settings. With `--shallow`, a cascade is measured, too: the
shallow scorer's pairs are charged at `--cost` of a pair.

A row has the recall, and how many of the best k each query found; pairs (`calls`), rounds, and seconds per query:
`own_seconds` are those of the processor beyond the scorer's, which a busy machine changes little. Where k is 10, it has
of each query whether a right item came first (`right`) and its nDCG@10 (`judged`), where there are judgements.
Retriever scores are stored, so that no time is theirs.

At the end: a board for each number of anchor queries, where posterior isn't best, and the task's own metrics."""

from __future__ import annotations

import argparse
import json
import time
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

import anncur
from anncur.arrays import NO_POSITIONS, FloatVector, Positions
from anncur.cli.frame import show_progress
from anncur.datasets.beir import Qrels
from anncur.datasets.sample import SAMPLE as SAMPLE_FOLDER
from anncur.evaluation.choices import Chosen, bagel_grid, choose, gar_grid, refit_grid
from anncur.evaluation.intervals import Interval, difference, recall_interval
from anncur.evaluation.judgements import judge_queries
from anncur.evaluation.own import fit_sizes, sample_world
from anncur.evaluation.protocol import SOUND
from anncur.evaluation.recall import recalls
from anncur.evaluation.rows import Batch, Cell, Row, RowFile, distinct, grouped, mean, read_rows, select
from anncur.evaluation.scoreboard import DOCUMENTS, documents
from anncur.evaluation.study import Sizes, Study
from anncur.evaluation.worlds import QuerySplit, ScoredWorld
from anncur.items import Item, Query
from anncur.progress import Progress
from anncur.ranking import Hits
from anncur.retrievers.loading import load_retriever
from anncur.rivals.cascade import Cascade, ShallowScorer
from anncur.rivals.gar import NeighbourGraph, graph_by_retriever, graph_by_vectors
from anncur.scorers.loading import load_scorer
from anncur.scorers.stored import StoredScorer
from anncur.search.base import Method
from anncur.training.cache import cached
from common import new_parser
from first_query import (
    BM25,
    BOTH,
    BUDGETS,
    KS,
    MINILM,
    N_SAMPLE_TESTS,
    N_TESTS,
    POINTS,
    RRF,
    SAMPLE,
    add_matrix_options,
    packed,
    stored_retrievers,
    unpacked,
)
from matrices import read_world, score_world

EXPERIMENT = "rivals"
OURS, CASCADE, EXHAUSTIVE = "posterior", "cascade", "exhaustive"
N_ANCHORS = (0, 10, 40, 200)
TASK_K, TASK_ANCHORS = 10, 40  # the task's own metrics as more items are scored are shown with so many anchor queries
TASK_BUDGETS = (20, *BUDGETS)
MOST_SEEDS = 5  # as many anchor queries as all of these leave, so that more seeds change no split
FUSED = f"{BOTH}+{RRF}"
CLOSE = 0.005  # half a point


@dataclass(frozen=True)
class Variant:
    """Settings of a method, of which the first are the usual ones, and the retrievers of its index.

    One that `learns` has an index with anchor queries; for the others, these only choose among settings."""

    grid: Sequence[Method]
    retrievers: str = FUSED
    learns: bool = False
    needs_anchors: bool = False


@dataclass(frozen=True, eq=False)
class Found:
    """What a method answered with one budget, a query's seconds, and those of the processor beyond the scorer's."""

    answers: Sequence[Hits]
    seconds: float
    own_seconds: float


class TimedScorer(StoredScorer):
    """Adds up the seconds of the processor that it took to look scores up."""

    seconds = 0.0

    def score(self, query: Query, items: Sequence[Item]) -> FloatVector:
        started = time.process_time()
        found = super().score(query, items)
        self.seconds += time.process_time() - started
        return found


def main() -> None:
    """Measure what is missing, and print tables."""
    options = parse()
    if options.data is None:
        rows = read_rows(options.out)
    else:
        file, data = measure_missing(options)
        rows = select(file.rows, data=data)
    for _, some in grouped(select(rows, experiment=EXPERIMENT), "data").items():
        show(Board(some))


def parse() -> argparse.Namespace:
    """What is asked for."""
    parser = new_parser(__doc__, "rivals/rows.jsonl")
    parser.add_argument("data", nargs="?", help=f"a folder, or {SAMPLE}; without, only tables are printed")
    add_matrix_options(parser)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--tests", type=int, help=f"test queries (default: {N_TESTS}, of the sample {N_SAMPLE_TESTS})")
    parser.add_argument("--shallow", help="the scorer that proposes in a cascade")
    parser.add_argument("--cost", type=float, help="the time of its pairs as a share of the scorer's")
    options = parser.parse_args()
    if (options.shallow is None) != (options.cost is None):
        parser.error("--shallow and --cost go together")
    return options


def measure_missing(options: argparse.Namespace) -> tuple[RowFile, str]:
    """Make the rows of one matrix that are missing; the file, and the name of the matrix."""
    with show_progress(as_json=False) as progress:
        study = read_study(options, progress)
        file = RowFile(options.out)
        file.make_missing(batches(study, options), stage=study.world.name, progress=progress)
    return file, study.data


def read_study(options: argparse.Namespace, progress: Progress) -> Study:
    """What is measured: a seed's test queries are the same for any number of anchor queries."""
    world = judged_world(options, progress)
    n_tests = options.tests or (N_SAMPLE_TESTS if options.data == SAMPLE else N_TESTS)
    asked = Sizes(ks=KS, budgets=BUDGETS, n_anchor_queries=N_ANCHORS[-1], n_tests=n_tests, n_seeds=MOST_SEEDS)
    sizes = fit_sizes(asked, world.groups, len(world.items), by_document=True)
    return Study(world, [], replace(sizes, n_seeds=min(options.seeds, MOST_SEEDS)))


def judged_world(options: argparse.Namespace, progress: Progress) -> ScoredWorld:
    """Queries and items with their exact scores and the judgements."""
    if options.data == SAMPLE:
        return replace(sample_world(), qrels=sample_golds())
    drawn = read_world(Path(options.data), options.world, options.queries, options.items)
    scored = score_world(drawn, options.scorer, options.work, progress, n_rows=options.rows)
    return replace(scored, qrels=drawn.judgements)


def sample_golds() -> Qrels:
    """The right entities of the sample's mentions."""
    files = [SAMPLE_FOLDER / f"{name}_queries.jsonl" for name in ("anchor", "test")]
    records = [json.loads(line) for file in files for line in file.read_text(encoding="utf-8").splitlines()]
    return {record["id"]: {record["gold"]: 1} for record in records}


def batches(study: Study, options: argparse.Namespace) -> Iterator[Batch]:
    """Every variant with every number of anchor queries that there are enough of."""
    bench = Bench(study, options.work)
    shallow = None if options.shallow is None else shallow_scorer(study.world, options.shallow)
    variants = bench.variants(shallow, options.cost)
    for seed in range(study.sizes.n_seeds):
        yield documents(study, EXPERIMENT, protocol=SOUND, seed=seed)
        for n_anchors in numbers_of_anchors(study):
            columns = {"protocol": SOUND, "seed": seed, "n_anchor_queries": n_anchors}
            for name, variant in variants.items():
                if n_anchors or not variant.needs_anchors:
                    places = points(study, name, n_anchors)
                    cells = [study.cell(EXPERIMENT, name, k=k, cost=budget, **columns) for k, budget in places]
                    yield bench.batch(variant, cells)


def numbers_of_anchors(study: Study) -> list[int]:
    """As asked for, as far as there are as many; the most there are comes last."""
    most = study.sizes.n_anchor_queries
    return [*(few for few in N_ANCHORS if few < most), most]


def points(study: Study, name: str, n_anchors: int) -> list[tuple[int, int]]:
    """Every k and budget that a variant is measured at; scoring everything once, for the task's own metrics."""
    if name == EXHAUSTIVE:
        return [(TASK_K, len(study.world.items))] if n_anchors == task_anchors(study) else []
    task = [(TASK_K, budget) for budget in TASK_BUDGETS if (TASK_K, budget) not in POINTS]
    return [*POINTS, *(task if n_anchors == task_anchors(study) else [])]


def task_anchors(study: Study) -> int:
    """The number of anchor queries with which the task's own metrics are shown."""
    return min(TASK_ANCHORS, study.sizes.n_anchor_queries)


class Bench:
    """Searches a matrix: what was searched once with the same settings is not searched again."""

    def __init__(self, study: Study, work: Path) -> None:
        self._study = study
        self._stored = stored_retrievers(study, work)
        self._work = work
        self._seed = -1
        self._indexes: dict[tuple[int, str], tuple[anncur.Index, TimedScorer]] = {}
        self._found: dict[tuple[Method, int, int, int], Found] = {}

    def variants(self, shallow: ShallowScorer | None, cost: float | None) -> dict[str, Variant]:
        """All that is measured."""
        learning = {"learns": True, "needs_anchors": True}
        found = {f"re-rank {name}": Variant([anncur.Rerank(name)]) for name in (BM25, MINILM, RRF)}
        for name in (BM25, MINILM):
            found[f"GAR, neighbours by {name}"] = Variant(gar_grid(self._graph(name), (RRF, MINILM)))
        found |= {"ReFIT": Variant(refit_grid(MINILM)), "BAGEL": Variant(bagel_grid(MINILM))}
        if shallow is not None and cost is not None:
            found[CASCADE] = Variant([Cascade(shallow, cost, share, RRF) for share in (0.75, 0.5, 0.9, 0.25)])
        found |= {
            "ANNCUR": Variant([anncur.Anncur()], BOTH, **learning),
            f"ADACUR from {MINILM}": Variant([anncur.Adacur(retriever=MINILM)], BOTH, **learning),
            "AXN": Variant([anncur.Axn(retriever=MINILM)], BOTH, **learning),
            OURS: Variant([anncur.Posterior()], BOTH, learns=True),
            EXHAUSTIVE: Variant([anncur.Exhaustive()]),
        }
        return found

    def batch(self, variant: Variant, cells: Sequence[Cell]) -> Batch:
        """One variant with one seed and one number of anchor queries."""

        def measure(missing: Sequence[Cell]) -> Iterator[Row]:
            split = self._study.sound_split(cells[0].seed).fewer(cells[0].n_anchor_queries or 0, cells[0].seed)
            chosen = self._choose(variant, split, missing)
            for cell in missing:
                yield self._row(cell, variant, chosen[cell.k or 0, cell.cost or 0], split)

        return Batch(cells, measure)

    def _choose(self, variant: Variant, split: QuerySplit, cells: Sequence[Cell]) -> Chosen:
        places = [(cell.k or 0, cell.cost or 0) for cell in cells]
        if len(variant.grid) == 1:
            return dict.fromkeys(places, variant.grid[0])
        index, _ = self._index(variant, split, cells[0].seed)
        budgets = sorted({budget for _, budget in places})
        chosen = choose(variant.grid, index, self._study.world, split, ks=KS, budgets=budgets)
        # where k is the whole budget, the next smaller k chooses
        below = {budget: max(k for k in KS if (k, budget) in chosen) for budget in budgets}
        return {(k, budget): chosen.get((k, budget)) or chosen[below[budget], budget] for k, budget in places}

    def _row(self, cell: Cell, variant: Variant, method: Method, split: QuerySplit) -> Row:
        k, world = cell.k or 0, self._study.world
        found = self._search(variant, method, split, cell)
        shares = recalls(found.answers, world.exact_scores[split.tests], k)
        values = {
            "recall": round(float(shares.mean()), 6),
            "calls": float(np.mean([hits.calls for hits in found.answers])),
            "rounds": float(np.mean([hits.n_rounds for hits in found.answers])),
            "seconds": round(found.seconds, 6),
            "own_seconds": round(found.own_seconds, 6),
            "found": packed(shares * k),
        }
        settings = {"settings": described(method)} if len(variant.grid) > 1 else {}
        task = judged(found.answers, world.qrels or {}) if k == TASK_K else {}
        return Row(cell, {**values, **settings, **task})

    def _search(self, variant: Variant, method: Method, split: QuerySplit, cell: Cell) -> Found:
        """All but ANNCUR, whose split is tuned for a k, score the same items for any k: one search serves all."""
        self._begin(cell.seed)
        budget, is_split = cell.cost or 0, isinstance(method, anncur.Anncur)
        key = (method, budget, len(split.anchors) if variant.learns else 0, (cell.k or 0) if is_split else 0)
        if key not in self._found:
            index, scorer = self._index(variant, split, cell.seed)
            queries, k = self._study.world.queries_at(split.tests), min(budget, (cell.k or 0) if is_split else max(KS))
            index.search(queries[0], k, budget, method=method)  # so that nothing is made for the first time below
            scorer.seconds, started = 0.0, time.process_time()
            answers = index.search_many(queries, k, budget, method=method)
            own_seconds = (time.process_time() - started - scorer.seconds) / len(queries)
            self._found[key] = Found(answers, float(np.mean([hits.seconds for hits in answers])), own_seconds)
        return self._found[key]

    def _begin(self, seed: int) -> None:
        if seed != self._seed:
            self._seed = seed
            self._indexes.clear()
            self._found.clear()

    def _index(self, variant: Variant, split: QuerySplit, seed: int) -> tuple[anncur.Index, TimedScorer]:
        """The last index with anchor queries and the one without are kept."""
        self._begin(seed)
        anchors = split.anchors if variant.learns else NO_POSITIONS
        key = (len(anchors), variant.retrievers)
        if key not in self._indexes:
            self._indexes = {other: made for other, made in self._indexes.items() if not (variant.learns and other[0])}
            world = self._study.world
            scorer = TimedScorer(world.exact_scores, world.queries, [item.id for item in world.items])
            retrievers = [self._stored(name) for name in variant.retrievers.split("+")]
            anchor_queries = world.queries_at(anchors)
            index = anncur.Index.build(world.items, scorer, anchor_queries, retrievers=retrievers, seed=seed)
            self._indexes[key] = index, scorer
        return self._indexes[key]

    def _graph(self, name: str) -> NeighbourGraph:
        """Kept, because items as queries take a while."""
        items = self._study.world.items

        def make() -> Positions:
            if name == MINILM:
                vectors = self._stored(name).item_vectors()
                assert vectors is not None, "MiniLM embeds items"
                return graph_by_vectors(vectors).neighbours
            retriever = load_retriever(name)
            retriever.fit(items)
            return graph_by_retriever(retriever, items).neighbours

        return NeighbourGraph(cached(self._work / "graphs", name, self._study.data, make))


def described(method: Method) -> str:
    """The numbers and names among a method's settings."""
    plain = {name: value for name, value in vars(method).items() if isinstance(value, (int, float, str))}
    return ", ".join(f"{name} {value}" for name, value in plain.items())


def shallow_scorer(world: ScoredWorld, name: str) -> ShallowScorer:
    """Another scorer, which scores a pair once however often a cascade asks for it."""
    scorer = load_scorer(name)
    known: dict[str, dict[int, float]] = defaultdict(dict)

    def score(query: Query, positions: Positions) -> FloatVector:
        scores = known[query.marked_text]
        new = [place for place in positions.tolist() if place not in scores]
        if new:
            found = scorer.score(query, [world.items[place] for place in new])
            scores.update(zip(new, map(float, found), strict=True))
        return np.array([scores[place] for place in positions.tolist()], dtype=np.float32)

    return score


def judged(answers: Sequence[Hits], qrels: Qrels) -> dict[str, Any]:
    """Of each query, whether a right item came first, and its nDCG@10; None for those that nobody judged."""
    if not qrels:
        return {}
    of_queries = judge_queries(answers, qrels, "nDCG@10")
    grades = [qrels.get(hits.query.id, {}) for hits in answers]
    right = [of_query.get(hits[0].id, 0) > 0 for of_query, hits in zip(grades, answers, strict=True)]
    values = [of_queries.get(hits.query.id) for hits in answers]
    return {
        "right": packed(np.array(right, dtype=np.float64)),
        "judged": [None if one is None else round(one, 3) for one in values],
    }


class Board:
    """The rows of one matrix, seen from posterior."""

    def __init__(self, rows: Sequence[Row]) -> None:
        self.documents = select(rows, method=DOCUMENTS)
        self.measured = [unpacked(row) for row in rows if row.cell.method != DOCUMENTS]
        self.n_anchors: list[int] = distinct(self.measured, "n_anchor_queries")
        self.cells = grouped(self.measured, "method", "n_anchor_queries", "k", "cost")

    def methods(self, n_anchors: int) -> list[str]:
        """Those with rows for a number of anchor queries, without exhaustive search."""
        rows = select(self.measured, n_anchor_queries=n_anchors)
        return [name for (name,) in grouped(rows, "method") if name != EXHAUSTIVE]

    def recall(self, method: str, n_anchors: int, point: tuple[int, int]) -> float:
        """The mean over seeds."""
        return mean(self.cells.get((method, n_anchors, *point), []), "recall")

    def interval(self, method: str, n_anchors: int, point: tuple[int, int]) -> Interval:
        """The same, with its interval over documents."""
        return recall_interval(self.cells[method, n_anchors, *point], self.documents)

    def lead(self, n_anchors: int, point: tuple[int, int]) -> tuple[str, Interval]:
        """The best of the others, and posterior less it."""
        rivals = [name for name in self.methods(n_anchors) if name != OURS]
        best = max(rivals, key=lambda name: self.recall(name, n_anchors, point))
        ours, theirs = (self.cells[name, n_anchors, *point] for name in (OURS, best))
        return best, difference(ours, theirs, self.documents)

    def behind(self, n_anchors: int) -> Iterator[tuple[tuple[int, int], str, Interval]]:
        """Where a rival is more than half a point ahead of posterior: the best one, and posterior less it."""
        for point in POINTS:
            best, lead = self.lead(n_anchors, point)
            if lead.mean < -CLOSE:
                yield point, best, lead

    def task(self, method: str, budget: int) -> list[Row]:
        """The rows with the task's own metrics, with few anchor queries."""
        n_anchors = min(max(self.n_anchors), TASK_ANCHORS)
        return [row for row in self.cells.get((method, n_anchors, TASK_K, budget), []) if "judged" in row.values]


def show(board: Board) -> None:
    """A board for each number of anchor queries, where posterior is behind, and the task's own metrics."""
    first = board.measured[0].cell
    n_seeds, n_tests = len(distinct(board.measured, "seed")), len(board.measured[0]["found"])
    print(
        f"\n## {first.world}, {first.scorer}, {first.n_items:,} items; {n_seeds} seeds, {n_tests} test queries or more"
    )
    show_summary(board)
    for n_anchors in board.n_anchors:
        print(f"\n{n_anchors} anchor queries: recall in %, with 95% intervals over documents\n")
        print_table(
            ["k, pairs", *(f"{k}, {budget}" for k, budget in POINTS), "ms", "rounds"],
            {name: board_line(board, name, n_anchors) for name in board.methods(n_anchors)},
        )
    show_behind(board)
    show_task(board)


def show_summary(board: Board) -> None:
    """Recall of the top 10 with every number of anchor queries, and posterior less the best of the others."""
    places = [(n_anchors, (TASK_K, budget)) for n_anchors in board.n_anchors for budget in BUDGETS]
    lines = {
        name: [
            f"{100 * board.recall(name, *place):.1f}" if (name, place[0], *place[1]) in board.cells else ""
            for place in places
        ]
        for name in board.methods(board.n_anchors[-1])
    }
    lines["posterior less the best other"] = [with_interval(board.lead(*place)[1], "+.1f") for place in places]
    print("\nrecall of the top 10, in %\n")
    print_table(["anchor queries, pairs", *(f"{n_anchors}, {budget}" for n_anchors, (_, budget) in places)], lines)


def board_line(board: Board, name: str, n_anchors: int) -> list[str]:
    """Recall at every point, and a query's own milliseconds and rounds with the budget in the middle."""
    middle = board.cells.get((name, n_anchors, TASK_K, BUDGETS[1]), [])
    recall = [with_interval(board.interval(name, n_anchors, point)) for point in POINTS]
    return [*recall, f"{1000 * mean(middle, 'own_seconds'):.1f}", f"{mean(middle, 'rounds'):.0f}"]


def show_behind(board: Board) -> None:
    """The cells where posterior is neither the best nor within half a point of it."""
    found = [(n_anchors, *one) for n_anchors in board.n_anchors for one in board.behind(n_anchors)]
    n_cells = len(board.n_anchors) * len(POINTS)
    print(f"\nposterior is best or within half a point in {n_cells - len(found)} of {n_cells} cells; elsewhere:\n")
    for n_anchors, (k, budget), best, lead in found:
        low, middle, high = (100 * value for value in (lead.low, lead.mean, lead.high))
        print(f"- {n_anchors} anchor queries, k {k}, {budget} pairs: {middle:+.1f} ({low:.1f}..{high:.1f}) to {best}")


def show_task(board: Board) -> None:
    """Accuracy (a right item first), nDCG@10 and recall of the scorer's top 10 as more items are scored."""
    names = [name for name in board.methods(board.n_anchors[-1]) if board.task(name, BUDGETS[0])]
    for title, value in (("a right item first", right), ("nDCG@10", ndcg), ("recall of the top 10", recall)):
        lines = {name: [value(board.task(name, budget)) for budget in TASK_BUDGETS] for name in names}
        everything = [row for row in board.measured if row.cell.method == EXHAUSTIVE and "judged" in row.values]
        if everything:
            print(f"\n{title}, in %; all items scored: {value(everything)}\n")
            print_table(["pairs", *map(str, TASK_BUDGETS)], lines)


def right(rows: Sequence[Row]) -> str:
    """How often a right item came first."""
    return percent([float(digit) for row in rows for digit in row["right"]])


def ndcg(rows: Sequence[Row]) -> str:
    """Over the queries that were judged."""
    return percent([value for row in rows for value in row["judged"] if value is not None])


def recall(rows: Sequence[Row]) -> str:
    """Of the scorer's own best."""
    return percent([row["recall"] for row in rows])


def with_interval(interval: Interval, form: str = ".1f") -> str:
    """In %, with half of its width."""
    return f"{100 * interval.mean:{form}} ±{100 * (interval.high - interval.mean):.1f}"


def percent(values: Sequence[float]) -> str:
    """The mean."""
    return f"{100 * float(np.mean(values)):.1f}" if values else ""


def print_table(columns: Sequence[str], lines: Mapping[str, Sequence[str]]) -> None:
    """In Markdown."""
    print(f"| {' | '.join(columns)} |\n|{'---|' * len(columns)}")
    for name, values in lines.items():
        print(f"| {' | '.join([name, *values])} |")


if __name__ == "__main__":
    main()
