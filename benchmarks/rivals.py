"""Rivals on one board: what re-ranking a fusion, GAR, ReFIT, BAGEL and a cascade find, beside posterior and the others.

    python benchmarks/rivals.py sample [--shallow SCORER --cost SHARE]
    python benchmarks/rivals.py DATA --work FOLDER --scorer maxsim|MODEL [--world noun.animal] [--items 5000]
    python benchmarks/rivals.py                                             # the tables of all rows in --out

Data, matrices and splits are those of first_query.py. Anchor queries choose the settings of those that learn nothing
else from them; without any, these have the first of their settings. With `--shallow`, a cascade is measured, too: the
shallow scorer's pairs are charged at `--cost` of a pair.

A row has the recall, and how many of the best k each query found; pairs (`calls`), rounds, and seconds per query:
`own_seconds` are those of the processor beyond the scorer's, which a busy machine changes little. Where k is 10, it has
of each query whether a right item came first (`right`) and its nDCG@10 (`judged`), where there are judgements. Methods
that search in rounds are also measured with at most 3 and 6 of them, which costs.py reads.
Retriever scores are stored, so that no time is theirs.

At the end: a board for each number of anchor queries, where posterior isn't best, and the task's own metrics."""

from __future__ import annotations

import argparse
import json
import time
from collections import defaultdict
from collections.abc import Iterator, Sequence
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
from anncur.evaluation.cost_rows import FEWER_ROUNDS
from anncur.evaluation.judgements import judge_queries
from anncur.evaluation.own import fit_sizes, sample_world
from anncur.evaluation.protocol import SOUND
from anncur.evaluation.recall import recalls
from anncur.evaluation.rows import Batch, Cell, Row, RowFile, grouped, read_rows, select
from anncur.evaluation.scoreboard import documents
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
)
from matrices import read_world, score_world
from rival_boards import EXHAUSTIVE, OURS, TASK_ANCHORS, TASK_BUDGETS, TASK_K, Board, show

EXPERIMENT = "rivals"
CASCADE = "cascade"
N_ANCHORS = (0, 10, 40, 200)
MOST_SEEDS = 5  # as many anchor queries as all of these leave, so that more seeds change no split
FUSED = f"{BOTH}+{RRF}"


@dataclass(frozen=True)
class Variant:
    """Settings of a method, of which the first are the usual ones, and the retrievers of its index.

    One that `learns` has an index with anchor queries; for the others, these only choose among settings."""

    grid: Sequence[Method]
    retrievers: str = FUSED
    learns: bool = False
    needs_anchors: bool = False
    has_rounds: bool = False


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
            for name, variant in variants.items():
                if n_anchors or not variant.needs_anchors:
                    columns = {"protocol": SOUND, "seed": seed, "n_anchor_queries": n_anchors}
                    first = study.cell(EXPERIMENT, name, **columns)
                    places = points(study, name, n_anchors)
                    cells = [replace(first, k=k, cost=budget) for k, budget in places]
                    yield bench.batch(variant, [*cells, *(in_few_rounds(first) if variant.has_rounds else [])])


def in_few_rounds(first: Cell) -> list[Cell]:
    """What a scorer that waits would leave of a method's rounds."""
    return [replace(first, k=TASK_K, cost=budget, part=f"{n} rounds") for n in FEWER_ROUNDS for budget in BUDGETS]


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
        self._found: dict[tuple[Method, int, int, int, str], Found] = {}

    def variants(self, shallow: ShallowScorer | None, cost: float | None) -> dict[str, Variant]:
        """All that is measured."""
        learning = {"learns": True, "needs_anchors": True}
        found = {f"re-rank {name}": Variant([anncur.Rerank(name)]) for name in (BM25, MINILM, RRF)}
        for name in (BM25, MINILM):
            found[f"GAR, neighbours by {name}"] = Variant(gar_grid(self._graph(name), (RRF, MINILM)), has_rounds=True)
        found |= {"ReFIT": Variant(refit_grid(MINILM)), "BAGEL": Variant(bagel_grid(MINILM), has_rounds=True)}
        if shallow is not None and cost is not None:
            found[CASCADE] = Variant([Cascade(shallow, cost, share, RRF) for share in (0.75, 0.5, 0.9, 0.25)])
        found |= {
            "ANNCUR": Variant([anncur.Anncur()], BOTH, **learning),
            f"ADACUR from {MINILM}": Variant([anncur.Adacur(retriever=MINILM)], BOTH, has_rounds=True, **learning),
            "AXN": Variant([anncur.Axn(retriever=MINILM)], BOTH, has_rounds=True, **learning),
            OURS: Variant([anncur.Posterior()], BOTH, learns=True, has_rounds=True),
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
        n_anchors, max_rounds = len(split.anchors) if variant.learns else 0, rounds_of(cell)
        key = (method, budget, n_anchors, (cell.k or 0) if is_split else 0, cell.part)
        if key not in self._found:
            index, scorer = self._index(variant, split, cell.seed)
            queries, k = self._study.world.queries_at(split.tests), min(budget, (cell.k or 0) if is_split else max(KS))
            index.search(queries[0], k, budget, method=method)  # so that nothing is made for the first time below
            scorer.seconds, started = 0.0, time.process_time()
            answers = index.search_many(queries, k, budget, method=method, max_rounds=max_rounds)
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


def rounds_of(cell: Cell) -> int | None:
    """The most rounds of a cell, where there is a limit."""
    return int(cell.part.split()[0]) if cell.part else None


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


if __name__ == "__main__":
    main()
