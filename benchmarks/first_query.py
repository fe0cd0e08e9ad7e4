"""Search from the first query on: how much posterior finds with no anchor queries, with a few, and with many.

    python benchmarks/first_query.py sample
    python benchmarks/first_query.py DATA --work FOLDER --scorer maxsim|MODEL [--world noun.animal] [--items 5000]
    python benchmarks/first_query.py                                        # the tables of all rows in --out

DATA and the matrices in --work are those of matrices.py; `sample` is the bundled one, whose scores are stored. The
protocol is `sound`: anchors and test queries come from different documents. For one seed all have the same test
queries, and fewer anchor queries are a subset of more. A row is written for every method, number of anchor queries,
seed, k and budget as it is made, and a rerun makes what is missing; `--again` measures posterior again. To compare two
versions, run this with PYTHONPATH set to the source of the earlier one and `--label before`.

At the end: recall, differences with intervals over documents, and the cells that miss the targets."""

from __future__ import annotations

import argparse
import os
import string
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cache, cached_property, lru_cache
from pathlib import Path
from typing import TypeAlias

import numpy as np

import anncur
from anncur.arrays import FloatMatrix
from anncur.cli.frame import show_progress
from anncur.evaluation.intervals import Interval, difference
from anncur.evaluation.own import fit_sizes, sample_world
from anncur.evaluation.protocol import SOUND, build
from anncur.evaluation.recall import recalls
from anncur.evaluation.rows import Batch, Cell, Row, RowFile, distinct, grouped, mean, read_rows, select
from anncur.evaluation.scoreboard import DOCUMENTS, Trial, documents
from anncur.evaluation.study import Sizes, Study
from anncur.evaluation.worlds import ScoredWorld
from anncur.items import Item, Query
from anncur.progress import Progress
from anncur.retrievers.base import Retriever, item_vectors
from anncur.retrievers.loading import load_retriever
from anncur.retrievers.rrf import Rrf
from anncur.retrievers.stored import StoredRetriever
from anncur.search.base import Method
from anncur.training.cache import cached
from common import OUT, new_parser
from matrices import read_world, score_world

EXPERIMENT = "first query"
SAMPLE = "sample"
OURS, BEFORE, ANNCUR = "posterior", "before", "ANNCUR"
KS, BUDGETS = (1, 10, 50), (50, 100, 200)
POINTS = [(k, budget) for k in KS for budget in BUDGETS]
N_ANCHORS = (0, 5, 10, 20, 40, 200)
N_TESTS, N_SAMPLE_TESTS = 100, 50
BM25, MINILM, RRF = "bm25", "minilm", Rrf.name
BOTH = f"{BM25}+{MINILM}"
# what posterior is compared with: re-ranking and ADACUR that have no other retrievers than it has itself
RERANKED_BY = {BOTH: (BM25, MINILM, RRF), MINILM: (MINILM,), BM25: (BM25,)}
DIGITS = string.digits + string.ascii_letters  # numbers up to 61, a character each

LEAST_LEAD = 0.05  # over re-ranking, in the mean of all cells whose k is at least MEAN_K
MEAN_K = 10

TrialOf: TypeAlias = Callable[[int, int, str], Trial]  # of a seed, a number of anchor queries and retrievers


@dataclass(frozen=True)
class Variant:
    """A method, the retrievers of its index, and whether it needs anchor queries or takes none."""

    method: Method
    retrievers: str = BOTH
    needs_anchors: bool = False
    takes_anchors: bool = True

    def takes(self, n_anchors: int) -> bool:
        """Whether it is measured with that many anchor queries."""
        return self.takes_anchors if n_anchors else not self.needs_anchors


def rerank(name: str) -> str:
    """The variant that re-ranks by a retriever."""
    return f"re-rank {name}"


def adacur(name: str) -> str:
    """The variant of ADACUR that begins with a retriever."""
    return f"ADACUR from {name}"


def posterior(label: str, retrievers: str) -> str:
    """The variant of posterior, this version's or that of a label."""
    return f"{' '.join(filter(None, (OURS, label)))}, {retrievers}"


def variants(label: str) -> dict[str, Variant]:
    """All that is measured; those over the same index come together."""
    reranked = {rerank(name): Variant(anncur.Rerank(name), name, takes_anchors=False) for name in RERANKED_BY[BOTH]}
    adaptive = {adacur(name): Variant(anncur.Adacur(retriever=name), needs_anchors=True) for name in (BM25, MINILM)}
    ours = {posterior(label, retrievers): Variant(anncur.Posterior(), retrievers) for retrievers in RERANKED_BY}
    return {**reranked, ANNCUR: Variant(anncur.Anncur(), needs_anchors=True), **adaptive, **ours}


def main() -> None:
    """Measure what is missing, and print tables."""
    options = parse()
    if options.data is None:
        rows = read_rows(options.out)
    else:
        file, study = measure_missing(options)
        rows = select(file.rows, data=study.data)
    for (data,), some in grouped(select(rows, experiment=EXPERIMENT), "data").items():
        show(Board(some, options.label), data)


def parse() -> argparse.Namespace:
    """What is asked for."""
    parser = new_parser(__doc__, "first_query/rows.jsonl")
    parser.add_argument("data", nargs="?", help=f"a folder, or {SAMPLE}; without, only tables are printed")
    add_matrix_options(parser)
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--label", default="", help=f"of the version that is measured, such as {BEFORE}")
    parser.add_argument("--again", action="store_true", help="drop this label's rows of posterior on this data first")
    return parser.parse_args()


def add_matrix_options(parser: argparse.ArgumentParser) -> None:
    """What says which matrix is measured."""
    parser.add_argument("--work", type=Path, default=OUT / "first_query", help="where matrices are kept")
    parser.add_argument("--scorer", default="maxsim")
    parser.add_argument("--world", default="noun.animal")
    parser.add_argument("--queries", type=int, default=300)
    parser.add_argument("--items", type=int, default=5000)
    parser.add_argument("--rows", type=int, help="only the first queries, where no more are scored yet (default: all)")


def measure_missing(options: argparse.Namespace) -> tuple[RowFile, Study]:
    """Make the rows of one matrix that are missing."""
    with show_progress(as_json=False) as progress:
        study = read_study(options, progress)
        if options.again:
            forget(options.out, study.data, [posterior(options.label, retrievers) for retrievers in RERANKED_BY])
        file = RowFile(options.out)
        file.make_missing(batches(study, options), stage=study.world.name, progress=progress)
    return file, study


def forget(path: Path, data: str, methods: Sequence[str]) -> None:
    """Take the rows of some methods on one matrix out of a file."""
    if path.exists():
        kept = [row for row in read_rows(path) if row.cell.data != data or row.cell.method not in methods]
        unfinished = path.with_suffix(".part")
        unfinished.write_text("".join(f"{row.to_json()}\n" for row in kept), encoding="utf-8")
        os.replace(unfinished, path)


def read_study(options: argparse.Namespace, progress: Progress) -> Study:
    """What is measured: a seed's test queries are the same for any number of anchor queries."""
    world, n_tests = scored_world(options, progress)
    asked = Sizes(ks=KS, budgets=BUDGETS, n_anchor_queries=N_ANCHORS[-1], n_tests=n_tests, n_seeds=options.seeds)
    return Study(world, [], fit_sizes(asked, world.groups, len(world.items), by_document=True))


def scored_world(options: argparse.Namespace, progress: Progress) -> tuple[ScoredWorld, int]:
    """Queries and items with their exact scores, and how many of the queries are for tests."""
    if options.data == SAMPLE:
        return sample_world(), N_SAMPLE_TESTS
    drawn = read_world(Path(options.data), options.world, options.queries, options.items)
    return score_world(drawn, options.scorer, options.work, progress, n_rows=options.rows), N_TESTS


def batches(study: Study, options: argparse.Namespace) -> Iterator[Batch]:
    """Every variant with every number of anchor queries that there are enough of."""
    trial_of = trials(study, options.work)
    most = study.sizes.n_anchor_queries
    for seed in range(study.sizes.n_seeds):
        yield documents(study, EXPERIMENT, protocol=SOUND, seed=seed)
        for n_anchors in (*(few for few in N_ANCHORS if few < most), most):
            for name, variant in variants(options.label).items():
                if variant.takes(n_anchors):
                    columns = {"protocol": SOUND, "seed": seed, "n_anchor_queries": n_anchors}
                    cells = [study.cell(EXPERIMENT, name, k=k, cost=budget, **columns) for k, budget in POINTS]
                    yield batch(variant, cells, trial_of)


def batch(variant: Variant, cells: Sequence[Cell], trial_of: TrialOf) -> Batch:
    """One variant with one seed and one number of anchor queries."""

    def measure(missing: Sequence[Cell]) -> Iterator[Row]:
        trial = trial_of(cells[0].seed, cells[0].n_anchor_queries or 0, variant.retrievers)
        for (budget,), some in by_budget(missing).items():
            yield from measure_budget(trial, variant.method, budget, some)

    return Batch(cells, measure)


def by_budget(cells: Sequence[Cell]) -> dict[tuple[int], list[Cell]]:
    """Cells that one search may serve."""
    found: dict[tuple[int], list[Cell]] = {}
    for cell in cells:
        found.setdefault((cell.cost or 0,), []).append(cell)
    return found


def measure_budget(trial: Trial, method: Method, budget: int, cells: Sequence[Cell]) -> Iterator[Row]:
    """All but ANNCUR, whose split is tuned for a k, score the same items for any k: one search serves all."""
    queries = trial.world.queries_at(trial.split.tests)
    exact_scores = trial.world.exact_scores[trial.split.tests]
    for some in ([cell] for cell in cells) if isinstance(method, anncur.Anncur) else [cells]:
        answers = trial.index.search_many(queries, max(cell.k or 1 for cell in some), budget, method=method)
        seconds = float(np.mean([hits.seconds for hits in answers]))
        for cell in some:
            found = recalls(answers, exact_scores, cell.k or 1)
            calls = float(np.mean([hits.calls for hits in answers]))
            rounds = float(np.mean([hits.n_rounds for hits in answers]))
            values = {"recall": round(float(found.mean()), 6), "calls": calls, "rounds": rounds}
            values["seconds"] = round(seconds, 6)
            yield Row(cell, {**values, "found": packed(found * (cell.k or 1))})


def packed(found: FloatMatrix) -> str:
    """How many of the best k each query found, a character for each."""
    return "".join(DIGITS[number] for number in np.rint(found).astype(int).tolist())


def unpacked(row: Row) -> Row:
    """The same with numbers, as intervals are made from."""
    if "found" not in row.values:
        return row
    return Row(row.cell, {**row.values, "found": [DIGITS.index(character) for character in row["found"]]})


def trials(study: Study, work: Path) -> TrialOf:
    """Indexes by seed, number of anchor queries and retrievers; these are loaded when they are first needed."""
    stored = stored_retrievers(study, work)

    @lru_cache(maxsize=1)  # an index is as large as its anchor scores
    def trial(seed: int, n_anchors: int, retrievers: str) -> Trial:
        split = study.sound_split(seed).fewer(n_anchors, seed)
        those = [stored(name) for name in retrievers.split("+")]
        return Trial(study.world, split, build(study.world, split, those, seed=seed))

    return trial


def stored_retrievers(study: Study, work: Path) -> Callable[[str], StoredRetriever]:
    """Retrievers by name with their scores of the study's queries and items, computed once."""
    world = study.world

    @cache
    def stored(name: str) -> StoredRetriever:
        retriever: Retriever
        if name == RRF:
            retriever = Rrf([stored(BM25), stored(MINILM)])
        elif name == MINILM:
            retriever = KeptMiniLM(work / "retrievers", study.data)
        else:
            retriever = load_retriever(name)
        return StoredRetriever(retriever, world.queries, world.items)

    return stored


class KeptMiniLM:
    """MiniLM, whose scores and item vectors of a matrix, which take minutes, are kept in a folder for the next run."""

    name = MINILM

    def __init__(self, folder: Path, data: str) -> None:
        self._folder = folder
        self._data = data

    def fit(self, items: Iterable[Item]) -> None:
        """Nothing is embedded before it is needed."""
        self._items = list(items)

    def scores(self, queries: Sequence[Query]) -> FloatMatrix:
        """(n_queries, n_items)"""

        def score() -> FloatMatrix:
            return np.asarray(self._fitted.scores(queries), dtype=np.float32)

        return cached(self._folder, "minilm-scores", self._data, score)

    def item_vectors(self) -> FloatMatrix:
        """(n_items, width)"""

        def embed() -> FloatMatrix:
            vectors = item_vectors(self._fitted)
            assert vectors is not None, "MiniLM embeds items"
            return vectors.astype(np.float32)

        return cached(self._folder, "minilm-vectors", self._data, embed)

    @cached_property
    def _fitted(self) -> Retriever:
        retriever = load_retriever(MINILM)
        retriever.fit(self._items)
        return retriever


@dataclass(frozen=True)
class Gap:
    """How far posterior is from something else at one k and budget, and the least that it should be."""

    target: str
    variant: str
    against: str
    k: int
    budget: int
    interval: Interval
    least: float

    @property
    def is_missed(self) -> bool:
        """Whether it is below the target; rounding is not."""
        return self.interval.mean < self.least - 1e-9

    @property
    def text(self) -> str:
        """In points, with the interval."""
        low, middle, high = (100 * value for value in (self.interval.low, self.interval.mean, self.interval.high))
        return f"{middle:+.1f} ({low:.1f}..{high:.1f})"


class Board:
    """The rows of one matrix, seen from posterior, this version's or that of a label."""

    def __init__(self, rows: Sequence[Row], label: str) -> None:
        self.documents = select(rows, method=DOCUMENTS)
        self.measured = [unpacked(row) for row in rows if row.cell.method != DOCUMENTS]
        self.cells = grouped(self.measured, "method", "n_anchor_queries", "k", "cost")
        self.lines = sorted(grouped(self.measured, "method", "n_anchor_queries"), key=lambda line: line[1])
        self.n_anchors: list[int] = distinct(self.measured, "n_anchor_queries")
        self.label = label

    def gaps(self) -> Iterator[Gap]:
        """All comparisons that there are rows for."""
        for retrievers in RERANKED_BY:
            for k, budget in POINTS:
                yield from self._at(retrievers, k, budget)

    def _at(self, retrievers: str, k: int, budget: int) -> Iterator[Gap]:
        ours, before = posterior(self.label, retrievers), posterior(BEFORE, retrievers)
        reranked = [(rerank(name), 0) for name in RERANKED_BY[retrievers]]
        yield from self._gap("no anchor queries less best re-ranking", (ours, 0), reranked, (k, budget), 0.0)
        for place, n_anchors in enumerate(self.n_anchors):
            line = (ours, n_anchors)
            for few in reversed(self.n_anchors[:place]):
                yield from self._gap("more anchor queries less fewer", line, [(ours, few)], (k, budget), -0.005)
            if ours != before:
                yield from self._gap("less before", line, [(before, n_anchors)], (k, budget), -0.005)
            rivals = [(adacur(name), n_anchors) for name in retrievers.split("+")]
            yield from self._gap("less best ADACUR", line, rivals, (k, budget), 0.0)

    def _gap(
        self, target: str, line: tuple[str, int], others: list[tuple[str, int]], point: tuple[int, int], least: float
    ) -> Iterator[Gap]:
        """Ours less the best of the others."""
        ours = self.cells.get((*line, *point), [])
        rivals = {other: self._same_seeds(ours, self.cells.get((*other, *point), [])) for other in others}
        if ours and any(rivals.values()):
            best = max(rivals, key=lambda other: mean(rivals[other], "recall") if rivals[other] else 0.0)
            found = difference(ours, rivals[best], self.documents)
            yield Gap(target, described(line), described(best), *point, found, least)

    @staticmethod
    def _same_seeds(ours: Sequence[Row], theirs: Sequence[Row]) -> list[Row]:
        seeds = distinct(ours, "seed")
        return [row for row in theirs if row.cell.seed in seeds]


def described(line: tuple[str, int]) -> str:
    """A variant and its number of anchor queries."""
    return f"{line[0]}, {line[1]}"


def show(board: Board, data: str) -> None:
    """Recall, differences, and what misses the targets."""
    first = board.measured[0].cell
    n_seeds, n_tests = len(distinct(board.measured, "seed")), len(board.measured[0]["found"])
    n_documents = len({group for row in board.documents for group in row["groups"]})
    print(
        f"\n{first.world}, {first.scorer}, {first.n_items:,} items ({data}): recall in %, mean of {n_seeds} seeds with "
        f"{n_tests} test queries or a few more, of {n_documents} documents in all; columns are k, budget"
    )
    print(f"{'anchor queries':<36}" + "".join(f"{f'{k}, {budget}':>9}" for k, budget in POINTS))
    for line in board.lines:
        rows = [board.cells.get((*line, *point), []) for point in POINTS]
        shown = [f"{100 * mean(some, 'recall'):.1f}" if some else "" for some in rows]
        n_measured = min(map(len, rows))
        note = "" if n_measured == n_seeds else f"  {n_measured} seeds"
        print(f"{described(line):<36}" + "".join(f"{one:>9}" for one in shown) + note)
    gaps = list(board.gaps())
    show_gaps(gaps)
    show_misses(gaps)


def show_gaps(gaps: Sequence[Gap]) -> None:
    """A table for every target; of fewer anchor queries only the next smaller number."""
    for target in dict.fromkeys(gap.target for gap in gaps):
        print(f"\n{target}, in points, with 95% intervals over documents")
        lines: dict[str, dict[tuple[int, int], str]] = {}
        for gap in gaps:
            if gap.target == target:
                lines.setdefault(gap.variant, {}).setdefault((gap.k, gap.budget), gap.text)
        for variant, texts in lines.items():
            print(f"{variant:<36}" + "".join(f"{texts.get(point, ''):>22}" for point in POINTS))


def show_misses(gaps: Sequence[Gap]) -> None:
    """The mean lead over re-ranking, and the cells that miss a target; those with an asterisk clearly."""
    missed = [gap for gap in gaps if gap.is_missed]
    over = [gap for gap in gaps if gap.target.startswith("no anchor") and gap.k >= MEAN_K]
    for variant in dict.fromkeys(gap.variant for gap in over):
        lead = float(np.mean([gap.interval.mean for gap in over if gap.variant == variant]))
        verdict = "" if lead >= LEAST_LEAD else f", below the target of {100 * LEAST_LEAD:.0f}"
        print(f"\n{variant}: {100 * lead:+.1f} points to the best re-ranking in the mean for k >= {MEAN_K}{verdict}")
    print(f"\n{len(missed)} of {len(gaps)} comparisons miss their target (* where the interval does)")
    for gap in sorted(missed, key=lambda gap: (gap.target, gap.interval.mean - gap.least)):
        mark = "*" if gap.interval.high < gap.least else " "
        print(f"{mark} {gap.target}: {gap.variant} against {gap.against}, k {gap.k}, {gap.budget} pairs: {gap.text}")


if __name__ == "__main__":
    main()
