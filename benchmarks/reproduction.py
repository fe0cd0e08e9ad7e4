"""The paper's experiments on real score matrices: rows, and a report.

    python benchmarks/reproduction.py DATA --work FOLDER [--emb MODEL] [--cls MODEL] [--base FOLDER] [--part NAME …] …

DATA is in ZESHEL's layout. Parts, in the order of need: `statistics`; `distillation` (of dual encoders, from the [EMB]
model's scores); `cross-encoders` ([EMB] and [CLS], 500 anchors and 200 tests on --items entities of each test world);
`whole-worlds` (the [EMB] model, 200 anchors and 100 tests on all entities); `linking`; `maxsim` (5,000 entities and
2,000 anchors, or 1,000 where a world has fewer mentions); `negatives` (rank and accuracy of the models in --model);
`item-item` (items as queries); `sizes` (nested worlds up to all entities of all worlds, MaxSim); `training-times` (of
pairs, in a small world and in a large one). Exact scores, trainings and rows are kept as they are made: run the same
again, and it resumes.

Distilled dual encoders start from MiniLM (`scratch+ce`) and from --base, one that was trained on links (`base+ce`).
They are distilled from the anchor queries of the scoreboard's first seed, and compared there and in the paper's
protocol with that same split by document; with its own random split they have seen test queries, and are left out."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Literal

import numpy as np

from anncur.arrays import Positions
from anncur.cli.frame import show_progress
from anncur.datasets.zeshel import LinkingWorld, Zeshel, read_worlds
from anncur.evaluation.experiments import choose_experiments, run_experiments
from anncur.evaluation.linking import by_retriever, by_scorer, sample_mentions
from anncur.evaluation.own import fit_sizes
from anncur.evaluation.rows import RowFile
from anncur.evaluation.study import DISTILLED, store_retrievers
from anncur.evaluation.worlds import ScoredWorld
from anncur.planning.pilot import seconds_per_pair
from anncur.progress import Progress
from anncur.reproduction.experiments import EXPERIMENTS
from anncur.reproduction.models import MATCH, PAIR, linking, statistics, training_time
from anncur.reproduction.report import write_report
from anncur.reproduction.study import PaperSizes, PaperStudy, nested_items, score_items
from anncur.retrievers.dual_encoder import MINILM
from anncur.retrievers.loading import load_retriever
from anncur.scorers.loading import load_scorer
from anncur.training.distillation import DistillationJob, ScoredQueries, distill
from anncur.training.loop import TrainSettings
from common import new_parser
from matrices import CONTEXT_WORDS, World, read_world, score_world

WORLDS = ("noun.artifact", "noun.animal", "noun.communication")
LEXICAL = ("bm25", "tfidf")  # which take no time with all entities of all worlds
N_TESTS, N_ITEMS, N_ITEM_ANCHORS = 200, 5000, 500
SMALL = PaperSizes(fewer_anchors=(100,), n_anchor_queries=500, grid=(50, 100, 200, 500), n_tests=N_TESTS)
LARGE = PaperSizes(n_tests=N_TESTS)
WHOLE = PaperSizes(fewer_anchors=(100,), n_anchor_queries=200, grid=(50, 100, 200), n_tests=100)
N_LINKED = 200  # mentions of a world
NEGATIVES = ("noun.animal", 200, 250)  # world, queries and items that models with other negatives are compared on
WORLD_SIZES = (5_000, 10_000, 20_000, 50_000)
N_TOP = 24  # items of a query that dual encoders are distilled from
N_TIMED, TIMED_SIZES = 100, (5_000, 20_000)  # queries and items of the trainings whose time is compared
CURVES = ("recall-at-depth", "recall-at-cost", "anchor-queries")
MATRIX_EXPERIMENTS = (*CURVES, "rank", "histogram", "scoreboard", "heatmap")  # which need nothing but exact scores


class Reproduction:
    """All parts over one folder of data."""

    def __init__(self, options: argparse.Namespace, progress: Progress) -> None:
        self._options = options
        self._data = Zeshel(options.data, context_words=CONTEXT_WORDS)
        self._progress = progress
        self._small, self._large = (
            replace(sizes, n_seeds=options.seeds, n_grid_seeds=options.seeds) for sizes in (SMALL, LARGE)
        )
        self.file = RowFile(options.out / "rows.jsonl")

    def distillation(self) -> None:
        """Dual encoders of every world, distilled from the [EMB] model."""
        starts = {"scratch+ce": MINILM, **({"base+ce": str(self._options.base)} if self._options.base else {})}
        for name in self._options.world:
            world = self._score(self._draw(name), self._options.emb)
            for n_anchors in SMALL.curve_anchors:
                for encoder, start in starts.items():
                    self._distill(world, n_anchors, start, "match", self._folder(world, f"{encoder}@{n_anchors}"))

    def training_times(self) -> None:
        """How long training on pairs takes in a small world and in a large one."""
        for n_items in TIMED_SIZES:
            world = self._among_all(n_items)
            folder = self._folder(world, f"scratch+ce@{N_TIMED}")
            self._distill(world, N_TIMED, MINILM, "pair", folder)
            self._training_time(PaperStudy(world, [], SMALL), PAIR, folder)

    def _distill(
        self, world: ScoredWorld, n_anchors: int, start: str, loss: Literal["match", "pair"], folder: Path
    ) -> None:
        anchors = _distilled_from(world, n_anchors)
        scored = ScoredQueries(world.queries_at(anchors), world.items, world.exact_scores[anchors])
        job = DistillationJob(start, loss, n_top=N_TOP, train=TrainSettings(epochs=1, evaluations=1))
        distill(job, scored, folder, progress=self._progress)

    def _folder(self, world: ScoredWorld, encoder: str) -> Path:
        """Where a dual encoder that was distilled from a world's scores is kept."""
        of_scorer = self._options.work / "distilled" / world.scorer_name
        return Path(of_scorer / f"{world.name} {len(world.items)}" / encoder)

    def cross_encoders(self) -> None:
        """Every experiment on every world with both kinds of cross-encoder."""
        for study in self._studies(self._scorers()):
            self._run(study, [name for name in EXPERIMENTS if name not in ("world-size", "item-item")])
            if study.distilled_from:
                named = replace(study.world, name=f"{study.world.name}, split by document")
                self._run(replace(study, world=named, is_split_by_document=True), CURVES)
            for encoder in study.distilled_from:
                self._training_time(study, MATCH, self._folder(study.world, encoder))

    def whole_worlds(self) -> None:
        """All entities of a world, with the [EMB] model."""
        for name in self._options.world:
            n_entities = len(self._data.entities(name))
            drawn = read_world(self._options.data, name, WHOLE.n_queries, n_entities)
            world = replace(self._score(drawn, self._options.emb), name=f"{name}, whole")
            sizes = replace(WHOLE, n_seeds=self._options.seeds, n_grid_seeds=self._options.seeds)
            fitting = fit_sizes(sizes, world.groups, n_entities, by_document=True)
            self._run(self._study(world, fitting), MATRIX_EXPERIMENTS)

    def item_item(self) -> None:
        """The baselines over item-item scores, with the [EMB] model."""
        for study in self._studies([self._options.emb]):
            item_queries = score_items(
                study.world,
                load_scorer(self._options.emb),
                self._options.work / "items",
                N_ITEM_ANCHORS,
                seed=0,
                on_cost=lambda cost: print(f"items as queries: {cost}"),
                progress=self._progress,
            )
            self._run(replace(study, item_queries=item_queries), ["item-item"])

    def maxsim(self) -> None:
        """The paper's largest numbers of anchor queries, with a cheaper scorer."""
        for name in self._options.world:
            n_mentions = len({mention.query.marked_text for mention in self._data.mentions("test", name)})
            most = 2000 if n_mentions >= 2000 + N_TESTS else 1000
            sizes = replace(self._large, n_anchor_queries=most)
            world = read_world(self._options.data, name, sizes.n_queries, N_ITEMS)
            study = self._study(self._score(world, "maxsim"), sizes)
            self._run(study, MATRIX_EXPERIMENTS)

    def sizes(self) -> None:
        """Nested worlds up to all entities, searched with the mentions of the test worlds."""
        sizes = replace(self._small, fewer_anchors=(), world_sizes=WORLD_SIZES)
        self._run(self._study(self._among_all(), sizes, LEXICAL), ["world-size"])

    def _among_all(self, n_items: int | None = None) -> ScoredWorld:
        """Mentions of the test worlds among the entities of all worlds, or some of them, with MaxSim's scores."""
        names = [name for split in self._data.splits for name in self._data.worlds(split)]
        items = [item for name in names for item in self._data.entities(name)]
        mentions = [mention for name in WORLDS for mention in self._data.mentions("test", name)]
        distinct = list({mention.query.marked_text: mention for mention in mentions}.values())
        chosen = [distinct[place] for place in np.random.default_rng(0).permutation(len(distinct))[: 500 + N_TESTS]]
        world = self._score(World(chosen, items, "all worlds", (len(chosen), len(items))), "maxsim")
        if n_items is None:
            return world
        some = world.take_items(np.sort(nested_items(len(items))[:n_items]))
        return replace(some, name=f"{n_items:,} of all worlds")

    def linking(self) -> None:
        """The accuracy of all rankers over MiniLM's 64 candidates in the test worlds."""
        self._link(self._scorers(), "linking")

    def negatives(self) -> None:
        """Accuracy of models that were trained with other negatives, rank and distribution of their scores."""
        drawn = read_world(self._options.data, *NEGATIVES)
        sizes = replace(self._small, fewer_anchors=(), n_anchor_queries=100, n_tests=100)
        for model in self._options.model:
            world = replace(self._score(drawn, str(model)), name=_with_other_negatives(drawn.name))
            self._run(self._study(world, sizes), ["rank", "histogram"])
        if self._options.model:
            self._link([*map(str, self._options.model)], "linking, other negatives", _with_other_negatives)

    def _link(self, scorers: Sequence[str], stage: str, rename: Callable[[str], str] = str) -> None:
        """Scorers beside retrievers in the test worlds, which rows call by the names that `rename` gives them."""
        first = load_retriever("minilm")
        rankers = {Path(name).name: by_scorer(load_scorer(name), self._progress) for name in scorers}
        rankers |= {"minilm": by_retriever(first, is_fitted=True), "tfidf": by_retriever(load_retriever("tfidf"))}

        def worlds() -> Iterator[LinkingWorld]:
            for world in read_worlds(self._data, "test", list(WORLDS)):
                yield replace(sample_mentions(world, N_LINKED), name=rename(world.name))

        batch = linking(
            worlds, [rename(name) for name in WORLDS], first, rankers, [Path(name).name for name in scorers]
        )
        self.file.make_missing([batch], stage=stage, progress=self._progress)

    def statistics(self) -> None:
        """How large the worlds are."""
        self.file.make_missing([statistics(self._data)], stage="statistics", progress=self._progress)

    def _scorers(self) -> list[str]:
        """Those that all experiments are made with."""
        return [self._options.emb, *([str(self._options.cls)] if self._options.cls else [])]

    def _studies(self, scorers: Sequence[str]) -> Iterator[PaperStudy]:
        """Every world with every scorer, and how long a pair takes."""
        for name in self._options.world:
            drawn = self._draw(name)
            for scorer in scorers:
                world = self._score(drawn, scorer)
                pace = seconds_per_pair(load_scorer(scorer), world.items, world.queries[0])
                yield self._study(replace(world, seconds_per_pair=pace), self._small)

    def _draw(self, name: str) -> World:
        """What cross-encoders score."""
        return read_world(self._options.data, name, self._small.n_queries, self._options.items)

    def _score(self, world: World, scorer: str) -> ScoredWorld:
        return score_world(world, scorer, self._options.work, self._progress)

    def _study(self, world: ScoredWorld, sizes: PaperSizes, names: Sequence[str] | None = None) -> PaperStudy:
        """With these retrievers, by default all, and those that were distilled from these scores."""
        folders = sorted(self._folder(world, "").glob(f"*{DISTILLED}*"))
        names = names or [*LEXICAL, "minilm", *([str(self._options.base)] if self._options.base else [])]
        retrievers = store_retrievers(map(load_retriever, (*names, *map(str, folders))), world)
        queries = {each.name: world.queries_at(_distilled_from(world, _n_anchors(each))) for each in folders}
        texts = {name: [query.marked_text for query in some] for name, some in queries.items()}
        return PaperStudy(world, retrievers, sizes, distilled_from=texts)

    def _run(self, study: PaperStudy, names: Sequence[str]) -> None:
        run_experiments(study, self.file, choose_experiments(EXPERIMENTS, names), progress=self._progress)

    def _training_time(self, study: PaperStudy, method: str, folder: Path) -> None:
        batch = training_time(study, method, _n_anchors(folder), folder)
        self.file.make_missing([batch], stage="training times", progress=self._progress)


def _with_other_negatives(world: str) -> str:
    """What rows call a world where models differ in the negatives that they were trained with."""
    return f"{world}, other negatives"


def _n_anchors(folder: Path) -> int:
    """The number of queries that a dual encoder was distilled from, which is part of its name."""
    return int(folder.name.partition(DISTILLED)[2])


def _distilled_from(world: ScoredWorld, n_anchors: int) -> Positions:
    """The queries that dual encoders are distilled from: anchors of the scoreboard's first seed."""
    return PaperStudy(world, [], SMALL, is_split_by_document=True).paper_split(n_anchors).anchors


PARTS: dict[str, Callable[[Reproduction], None]] = {
    "statistics": Reproduction.statistics,
    "distillation": Reproduction.distillation,
    "cross-encoders": Reproduction.cross_encoders,
    "whole-worlds": Reproduction.whole_worlds,
    "linking": Reproduction.linking,
    "maxsim": Reproduction.maxsim,
    "negatives": Reproduction.negatives,
    "item-item": Reproduction.item_item,
    "sizes": Reproduction.sizes,
    "training-times": Reproduction.training_times,
}


def main() -> None:
    """Measure what is missing, and write the report."""
    parser = new_parser(__doc__, "reproduction")
    parser.add_argument("data", type=Path)
    parser.add_argument("--work", type=Path, required=True, help="where exact scores are kept")
    parser.add_argument("--emb", default="builtin", help="an [EMB] model, with emb in its name (default: builtin)")
    parser.add_argument("--cls", type=Path, help="the folder or .onnx file of a [CLS] model, with cls in its name")
    parser.add_argument("--model", type=Path, action="append", default=[], help="trained with other negatives")
    parser.add_argument("--base", type=Path, help="the folder of a dual encoder that was trained on links")
    parser.add_argument("--items", type=int, default=2000, help="of a world are scored by cross-encoders")
    parser.add_argument("--seeds", type=int, default=5, help="of the scoreboard and of the heatmaps")
    parser.add_argument("--world", action="append", choices=WORLDS, help="only this one, in parts that go by world")
    parser.add_argument("--part", action="append", choices=list(PARTS), help="only this one; may be repeated")
    options = parser.parse_args()
    options.world = options.world or list(WORLDS)
    with show_progress(as_json=False) as progress:
        reproduction = Reproduction(options, progress)
        for name in options.part or PARTS:
            PARTS[name](reproduction)
    write_report(reproduction.file.rows, options.out)


if __name__ == "__main__":
    main()
