"""The paper's experiments on real score matrices: rows, and the report in docs/reproduction.

    python benchmarks/reproduction.py DATA --work FOLDER [--cls MODEL] [--dual-encoder FOLDER …] [--part NAME …]

DATA is in ZESHEL's layout. Parts, in the order of need: `statistics`; `cross-encoders` (the built-in [EMB] model and a
[CLS] one, 500 anchors and 200 tests on 5,000 entities of each test world); `linking`; `maxsim` (2,000 anchors, or 1,000
where a world has fewer mentions); `negatives` (the rank of the models in --model); `item-item` (items as queries);
`sizes` (nested worlds up to all entities of all worlds, MaxSim). Exact scores and rows are kept as they are made: run
the same again, and it goes on where it was.

Distilled dual encoders are given by folders WORLD/NAME@500, where 500 is the number of anchor queries that they were
distilled from, by the built-in scorer; `--part anchors` writes those queries to WORK/anchors/WORLD/500.jsonl, to build
an index of and distil from. Their training time is reported as that of the loss in --loss. With --split-by-document
(in all parts) the same encoders come into the scoreboard of the first seed too; otherwise they would be tested there on
queries that they have seen, and are left out."""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable, Iterator
from dataclasses import asdict, replace
from pathlib import Path

import numpy as np

from anncur.candidates.loading import load_retriever
from anncur.cli.frame import show_progress
from anncur.datasets.jsonl import read_queries
from anncur.datasets.zeshel import Zeshel, read_worlds
from anncur.evaluation.experiments.models import MATCH, PAIR, linking, statistics, training_time
from anncur.evaluation.experiments.suite import EXPERIMENTS, run_experiments
from anncur.evaluation.linking import by_retriever, by_scorer, sample_mentions
from anncur.evaluation.own import with_item_scores
from anncur.evaluation.report import write_report
from anncur.evaluation.rows import RowFile
from anncur.evaluation.study import DISTILLED, Sizes, Study, store_retrievers
from anncur.evaluation.tasks import Task
from anncur.index.plan import seconds_per_call
from anncur.progress import Progress
from anncur.scorers.loading import load_scorer
from matrices import CONTEXT_WORDS, World, read_task, read_world

WORLDS = ("noun.artifact", "noun.animal", "noun.communication")
RETRIEVERS = ("bm25", "tfidf", "minilm")
N_TESTS, N_ITEMS, N_ITEM_ANCHORS = 200, 5000, 500
REPORT = Path(__file__).parent.parent / "docs" / "reproduction"
SMALL = Sizes(n_anchor_queries=(100, 500), grid=(50, 100, 200, 500), n_tests=N_TESTS)
LARGE = Sizes(n_tests=N_TESTS)
NEGATIVES_SHAPE = (200, 1000)  # queries and items that models with other negatives are compared on
WORLD_SIZES = (5_000, 10_000, 20_000, 50_000)


class Reproduction:
    """All parts over one folder of data."""

    def __init__(self, options: argparse.Namespace, progress: Progress) -> None:
        self._options = options
        self._data = Zeshel(options.data, context_words=CONTEXT_WORDS)
        self._progress = progress
        self.file = RowFile(options.out / "rows.jsonl")

    def anchors(self) -> None:
        """Write the queries that dual encoders are to be distilled from: the anchors of the `paper` protocol."""
        for name in self._options.world:
            world = read_world(self._options.data, name, SMALL.n_queries, N_ITEMS)
            for n_anchors in SMALL.n_anchor_queries:
                chosen = self._without_scores(world).paper_split(n_anchors).anchors
                records = [json.dumps(asdict(world.queries[place])) + "\n" for place in chosen.tolist()]
                file = self._anchors_file(name, f"{DISTILLED}{n_anchors}")
                file.parent.mkdir(parents=True, exist_ok=True)
                file.write_text("".join(records), encoding="utf-8")

    def _without_scores(self, world: World) -> Study:
        """A study that can be split, before anything is scored."""
        scores = np.zeros((len(world.mentions), 0), dtype=np.float32)
        documents = [mention.document_id for mention in world.mentions]
        task = Task(world.name, world.queries, documents, [], scores)
        return Study(task, [], SMALL, is_split_by_document=self._options.split_by_document)

    def cross_encoders(self) -> None:
        """Every experiment on every world with both kinds of cross-encoder."""
        for study in self._studies(SMALL):
            names = [name for name in EXPERIMENTS if name not in ("world-size", "item-item")]
            run_experiments(study, self.file, names, progress=self._progress)
            self._training_times(study)

    def item_item(self) -> None:
        """The baselines over item-item scores, with the built-in model."""
        for study in self._studies(SMALL):
            if study.task.scorer_name == "builtin":
                scorer = load_scorer("builtin")
                task = with_item_scores(
                    study.task,
                    scorer,
                    self._options.work / "items",
                    N_ITEM_ANCHORS,
                    seed=0,
                    tell=print,
                    progress=self._progress,
                )
                run_experiments(replace(study, task=task), self.file, ["item-item"], progress=self._progress)

    def maxsim(self) -> None:
        """The paper's largest numbers of anchor queries, with a cheaper scorer."""
        for name in WORLDS:
            n_mentions = len({mention.query.marked_text for mention in self._data.mentions("test", name)})
            most = 2000 if n_mentions >= 2000 + N_TESTS else 1000
            sizes = replace(LARGE, n_anchor_queries=(100, 500, most))
            world = read_world(self._options.data, name, sizes.n_queries, N_ITEMS)
            study = self._study(world, "maxsim", sizes)
            names = [
                "recall-at-depth",
                "recall-at-cost",
                "anchor-queries",
                "heatmap",
                "rank",
                "histogram",
                "scoreboard",
            ]
            run_experiments(study, self.file, names, progress=self._progress)

    def sizes(self) -> None:
        """Nested worlds up to all entities, searched with the mentions of the test worlds."""
        names = [name for split in self._data.splits for name in self._data.worlds(split)]
        items = [item for name in names for item in self._data.entities(name)]
        mentions = [mention for name in WORLDS for mention in self._data.mentions("test", name)]
        distinct = list({mention.query.marked_text: mention for mention in mentions}.values())
        chosen = [distinct[place] for place in np.random.default_rng(0).permutation(len(distinct))[: 500 + N_TESTS]]
        world = World(chosen, items, "all worlds", (len(chosen), len(items)))
        study = self._study(world, "maxsim", replace(SMALL, n_anchor_queries=(500,), world_sizes=WORLD_SIZES))
        run_experiments(study, self.file, ["world-size"], progress=self._progress)

    def linking(self) -> None:
        """The accuracy of all rankers over MiniLM's 64 candidates in the test worlds."""
        first = load_retriever("minilm")
        scorers = [*self._scorers(), *map(str, self._options.model)]
        rankers = {Path(name).name: by_scorer(load_scorer(name), self._progress) for name in scorers}
        rankers |= {"minilm": by_retriever(first, is_fitted=True), "tfidf": by_retriever(load_retriever("tfidf"))}
        batch = linking(
            lambda: (sample_mentions(world, 200) for world in read_worlds(self._data, "test", list(WORLDS))),
            WORLDS,
            first,
            rankers,
            [Path(name).name for name in scorers],
        )
        self.file.make_missing([batch], stage="linking", progress=self._progress)

    def negatives(self) -> None:
        """Rank and distribution of the scores of models that were trained with other negatives."""
        world = read_world(self._options.data, "noun.animal", *NEGATIVES_SHAPE)
        for model in self._options.model:
            study = self._study(world, str(model), replace(SMALL, n_anchor_queries=(100,), n_tests=100))
            named = replace(study, task=replace(study.task, name="noun.animal, other negatives"))
            run_experiments(named, self.file, ["rank", "histogram"], progress=self._progress)

    def statistics(self) -> None:
        """How large the worlds are."""
        self.file.make_missing([statistics(self._data)], stage="statistics", progress=self._progress)

    def _scorers(self) -> list[str]:
        """Those that all experiments are made with."""
        return ["builtin", *([str(self._options.cls)] if self._options.cls else [])]

    def _studies(self, sizes: Sizes) -> Iterator[Study]:
        for name in self._options.world:
            world = read_world(self._options.data, name, sizes.n_queries, N_ITEMS)
            for scorer in self._scorers():
                yield self._study(world, scorer, sizes, pace=True)

    def _study(self, world: World, scorer: str, sizes: Sizes, *, pace: bool = False) -> Study:
        task = read_task(world, scorer, self._options.work, self._progress)
        if pace:
            task = replace(task, seconds_per_pair=seconds_per_call(load_scorer(scorer), task.items, task.queries[0]))
        encoders = self._dual_encoders(task.name, task.scorer_name)
        retrievers = store_retrievers(map(load_retriever, (*RETRIEVERS, *map(str, encoders))), task)
        return Study(
            task,
            retrievers,
            sizes,
            learnt_from=self._learnt_from(encoders),
            is_split_by_document=self._options.split_by_document,
        )

    def _learnt_from(self, encoders: list[Path]) -> dict[str, list[str]]:
        """The texts of the queries that each distilled dual encoder was distilled from."""
        return {
            folder.name: [
                query.marked_text for query in read_queries(self._anchors_file(folder.parent.name, folder.name))
            ]
            for folder in encoders
            if DISTILLED in folder.name
        }

    def _anchors_file(self, world: str, encoder: str) -> Path:
        return self._options.work / "anchors" / world / f"{encoder.partition(DISTILLED)[2]}.jsonl"

    def _dual_encoders(self, world: str, scorer: str) -> list[Path]:
        """Those that are of no world, and with the built-in scorer those that were distilled from it in this one."""
        return [
            folder
            for folder in self._options.dual_encoder
            if DISTILLED not in folder.name or (folder.parent.name == world and scorer == "builtin")
        ]

    def _training_times(self, study: Study) -> None:
        for folder in self._dual_encoders(study.task.name, study.task.scorer_name):
            n_queries = folder.name.partition(DISTILLED)[2]
            if n_queries:
                batch = training_time(study, {"pair": PAIR, "match": MATCH}[self._options.loss], int(n_queries), folder)
                self.file.make_missing([batch], stage="training times", progress=self._progress)


PARTS: dict[str, Callable[[Reproduction], None]] = {
    "anchors": Reproduction.anchors,
    "statistics": Reproduction.statistics,
    "cross-encoders": Reproduction.cross_encoders,
    "linking": Reproduction.linking,
    "maxsim": Reproduction.maxsim,
    "negatives": Reproduction.negatives,
    "item-item": Reproduction.item_item,
    "sizes": Reproduction.sizes,
}


def main() -> None:
    """Measure what is missing, and write the report."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("data", type=Path)
    parser.add_argument("--work", type=Path, required=True, help="where exact scores are kept")
    parser.add_argument("--out", type=Path, default=REPORT, help="where rows and the report are kept")
    parser.add_argument("--cls", type=Path, help="the folder or .onnx file of a [CLS] model, with cls in its name")
    parser.add_argument("--model", type=Path, action="append", default=[], help="trained with other negatives")
    parser.add_argument("--dual-encoder", type=Path, action="append", default=[])
    parser.add_argument("--split-by-document", action="store_true", help="in the `paper` protocol too, where it isn't")
    parser.add_argument("--loss", choices=["pair", "match"], default="match", help="of the distilled dual encoders")
    parser.add_argument("--world", action="append", choices=WORLDS, help="only this one; may be repeated")
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
