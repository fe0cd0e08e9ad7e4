"""Queries unlike the anchor queries: how far recall and the estimate of recall fall, and whether the user is warned.

    python benchmarks/drift.py worlds|subjects|genres --data DATA --far SCIFACT --work FOLDER
    python benchmarks/drift.py sample --data DATA --far SCIFACT --work FOLDER
    python benchmarks/drift.py                                                # the tables of all rows in --out

DATA is in ZESHEL's layout, SCIFACT in BEIR's; matrices are kept in --work, as those of matrices.py. Anchor queries are
mentions of one world, or of one half of the genres of the Brown corpus; test queries are mentions like these in other
documents, mentions of another world or of the other genres, and claims about medicine. All are searched in the same
index, whose items are those of all worlds of the comparison; only `sample` has no items of the other world: it is the
bundled one, with the built-in cross-encoder, which is scored for the other queries at about 500 pairs per second.

A row is written for every kind of test queries, retrievers, number of anchor queries, seed, k and budget as it is made,
and a rerun makes what is missing. At the end: recall, the estimate of it, the mean absolute error of a query's
estimate, the share of queries that were marked as unlike the anchor queries, all with intervals over documents, and how
often a set of queries was."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

import numpy as np

from anncur.arrays import FloatVector, Positions
from anncur.cli.frame import show_progress
from anncur.datasets.jsonl import read_queries
from anncur.datasets.zeshel import Mention, Zeshel
from anncur.evaluation.intervals import Interval, clustered_interval
from anncur.evaluation.own import sample_world
from anncur.evaluation.protocol import SOUND, build
from anncur.evaluation.recall import recalls
from anncur.evaluation.rows import Batch, Cell, Row, RowFile, grouped, read_rows, select
from anncur.evaluation.study import Study
from anncur.evaluation.worlds import QuerySplit, ScoredWorld, split_by_group
from anncur.index.index import Index
from anncur.items import Item
from anncur.progress import Progress
from anncur.search.drift import DriftSummary
from anncur.search.posterior import Posterior
from anncur.tuning.posterior import MOST_HELD_OUT
from common import OUT, new_parser
from first_query import BM25, BOTH, packed, stored_retrievers, unpacked
from matrices import CONTEXT_WORDS, World, matrix, score_world

EXPERIMENT = "drift"
SAMPLE = "sample"
LIKE, FAR = "like the anchors", "claims"
POINTS = ((1, 100), (10, 50), (10, 100), (10, 200), (50, 200))
N_ANCHORS = (40, 200)
N_LIKE, N_OTHERS, N_TESTS = 320, 120, 100
N_SAMPLE_OTHERS, N_SAMPLE_TESTS = 60, 50
N_ITEMS = 2500  # of each world
INFORMATIVE, IMAGINATIVE = "abcdefghj", "klmnpr"  # genres of the Brown corpus, by the letter of a document
SET_SIZES = (20, 50, 100)
N_SETS = 200


@dataclass(frozen=True)
class Kind:
    """Mentions of one world, perhaps in documents of some genres only."""

    name: str
    world: str
    genres: str = INFORMATIVE + IMAGINATIVE

    def takes(self, mention: Mention) -> bool:
        """Whether a mention is of this kind."""
        return mention.world == self.world and genre(mention) in self.genres


def genre(mention: Mention) -> str:
    """The letter in the name of a document: `semcor.brown1.br-k03` is of genre k."""
    return mention.document_id.rpartition("-")[2][0]


@dataclass(frozen=True)
class Comparison:
    """Anchor queries of one kind, and test queries of another."""

    like: Kind
    other: Kind

    @property
    def worlds(self) -> list[str]:
        """Those whose entities are items."""
        return list(dict.fromkeys((self.like.world, self.other.world)))


COMPARISONS = {
    "worlds": Comparison(Kind(LIKE, "noun.animal"), Kind("artifacts", "noun.artifact")),
    "subjects": Comparison(Kind(LIKE, "noun.artifact"), Kind("communication", "noun.communication")),
    "genres": Comparison(
        Kind(LIKE, "noun.artifact", INFORMATIVE), Kind("imaginative prose", "noun.artifact", IMAGINATIVE)
    ),
}


@dataclass(frozen=True, eq=False)
class Scene:
    """A scored world whose queries are of several kinds; `kinds` has that of each."""

    world: ScoredWorld
    kinds: Sequence[str]
    n_tests: int

    def split(self, seed: int, n_anchors: int) -> tuple[QuerySplit, dict[str, Positions]]:
        """Anchor queries, and test queries of each kind; no test query is of the document of an anchor query."""
        kinds = np.array(self.kinds)
        like = np.flatnonzero(kinds == LIKE)
        groups = [self.world.groups[place] for place in like.tolist()]
        most = min(N_ANCHORS[-1], len(like) - self.n_tests)
        drawn = split_by_group(groups, n_anchors=most, n_tests=self.n_tests, seed=seed)
        anchors = drawn.fewer(n_anchors, seed).anchors
        others = {kind: np.flatnonzero(kinds == kind) for kind in dict.fromkeys(self.kinds) if kind != LIKE}
        return QuerySplit(like[anchors], like[drawn.tests]), {LIKE: like[drawn.tests], **others}


def main() -> None:
    """Measure what is missing, and print tables."""
    options = parse()
    rows = read_rows(options.out) if options.scene is None else measure_missing(options)
    for (world, scorer, _), some in grouped(select(rows, experiment=EXPERIMENT), "world", "scorer", "data").items():
        show([unpacked(row) for row in some], f"{world}, {scorer}")


def parse() -> argparse.Namespace:
    """What is asked for."""
    parser = new_parser(__doc__, "drift/rows.jsonl")
    parser.add_argument("scene", nargs="?", choices=[*COMPARISONS, SAMPLE], help="without, only tables are printed")
    parser.add_argument("--data", type=Path, help="a folder in ZESHEL's layout")
    parser.add_argument("--far", type=Path, help="a folder in BEIR's layout, whose queries are about something else")
    parser.add_argument("--work", type=Path, default=OUT / "drift", help="where matrices are kept")
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--retrievers", nargs="+", default=[BM25, BOTH])
    return parser.parse_args()


def measure_missing(options: argparse.Namespace) -> list[Row]:
    """Make the rows of one scene that are missing."""
    with show_progress(as_json=False) as progress:
        scene = read_scene(options, progress)
        study = Study(scene.world, [])
        file = RowFile(options.out)
        file.make_missing(batches(scene, study, options), stage=scene.world.name, progress=progress)
    return select(file.rows, data=study.data)


def read_scene(options: argparse.Namespace, progress: Progress) -> Scene:
    """Queries of several kinds with the exact scores of all items."""
    source = Zeshel(options.data, context_words=CONTEXT_WORDS)
    if options.scene == SAMPLE:
        return sample_scene(source, options, progress)
    comparison = COMPARISONS[options.scene]
    by_kind = draw_mentions(source, comparison) | {FAR: far_queries(options.far, N_OTHERS)}
    items = [item for world in comparison.worlds for item in draw_items(source, world, by_kind)]
    mentions = [mention for some in by_kind.values() for mention in some]
    world = World(mentions, items, options.scene, (len(mentions), len(items)))
    kinds = [kind for kind, some in by_kind.items() for _ in some]
    return Scene(score_world(world, "maxsim", options.work, progress), kinds, N_TESTS)


def draw_mentions(source: Zeshel, comparison: Comparison) -> dict[str, list[Mention]]:
    """Mentions of both kinds, of different documents."""
    rng = np.random.default_rng(0)
    distinct = list({mention.query.marked_text: mention for mention in source.mentions("test")}.values())
    documents = sorted({mention.document_id for mention in distinct})
    firsts = set(rng.permutation(documents)[: len(documents) // 2].tolist())
    is_split = comparison.like.genres == comparison.other.genres  # else no document is of both kinds
    found = {}
    for kind, is_first, most in ((comparison.like, True, N_LIKE), (comparison.other, False, N_OTHERS)):
        some = [
            mention
            for mention in distinct
            if kind.takes(mention) and (not is_split or (mention.document_id in firsts) == is_first)
        ]
        found[kind.name] = [some[place] for place in rng.permutation(len(some))[:most].tolist()]
    return found


def far_queries(folder: Path, n_queries: int) -> list[Mention]:
    """Queries of another data set, each a document of its own."""
    distinct = list({query.marked_text: query for query in read_queries(folder)}.values())
    chosen = np.random.default_rng(0).permutation(len(distinct))[:n_queries].tolist()
    return [Mention(distinct[place], "", folder.name, distinct[place].marked_text) for place in chosen]


def draw_items(source: Zeshel, world: str, by_kind: Mapping[str, Sequence[Mention]]) -> list[Item]:
    """Entities of a world, those of the mentions among them."""
    entities = source.entities(world)
    golds = {mention.entity_id for some in by_kind.values() for mention in some}
    others = [place for place in np.random.default_rng(0).permutation(len(entities)) if entities[place].id not in golds]
    n_golds = len(entities) - len(others)
    drawn = set(others[: max(0, N_ITEMS - n_golds)])
    return [item for place, item in enumerate(entities) if item.id in golds or place in drawn]


def sample_scene(source: Zeshel, options: argparse.Namespace, progress: Progress) -> Scene:
    """The bundled sample, whose scores are stored, and queries of other kinds, which are scored."""
    sample = sample_world()
    known = set(sample.groups)
    artifacts = {mention.query.marked_text: mention for mention in source.mentions("test", "noun.artifact")}
    others = [mention for mention in artifacts.values() if mention.document_id not in known]
    chosen = np.random.default_rng(0).permutation(len(others))[:N_SAMPLE_OTHERS].tolist()
    by_kind = {"artifacts": [others[place] for place in chosen], FAR: far_queries(options.far, N_SAMPLE_OTHERS)}
    mentions = [mention for some in by_kind.values() for mention in some]
    unlike = World(mentions, list(sample.items), "sample, other queries", (len(mentions), len(sample.items)))
    exact_scores = matrix(unlike, "builtin", options.work, progress)
    kinds = [LIKE] * len(sample.queries) + [kind for kind, some in by_kind.items() for _ in some]
    world = ScoredWorld(
        SAMPLE,
        [*sample.queries, *unlike.queries],
        [*sample.groups, *(mention.document_id for mention in mentions)],
        sample.items,
        np.concatenate([sample.exact_scores, exact_scores]),
        scorer_name="builtin",
    )
    return Scene(world, kinds, N_SAMPLE_TESTS)


def batches(scene: Scene, study: Study, options: argparse.Namespace) -> Iterator[Batch]:
    """Every kind of queries with every number of anchor queries, seed and choice of retrievers."""
    index_of = indexes(scene, study, options.work)
    for seed in range(options.seeds):
        for retrievers in options.retrievers:
            for n_anchors in N_ANCHORS:
                columns = {"protocol": SOUND, "seed": seed, "n_anchor_queries": n_anchors}
                name = f"{Posterior.name}, {retrievers}"
                cells = [
                    study.cell(EXPERIMENT, name, k=k, cost=budget, part=kind, **columns)
                    for kind in dict.fromkeys(scene.kinds)
                    for k, budget in POINTS
                ]
                yield batch(scene, cells, lambda cell, names=retrievers: index_of(cell, names))


def batch(scene: Scene, cells: Sequence[Cell], index_of: Callable[[Cell], Index]) -> Batch:
    """All kinds of queries in one index."""
    groups = np.unique(np.asarray(scene.world.groups), return_inverse=True)[1]

    def measure(missing: Sequence[Cell]) -> Iterator[Row]:
        for cell in missing:
            index = index_of(cell)
            tests = scene.split(cell.seed, cell.n_anchor_queries or 0)[1][cell.part]
            answers = index.search_many(scene.world.queries_at(tests), cell.k or 1, cell.cost or 1)
            found = recalls(answers, scene.world.exact_scores[tests], cell.k or 1)
            estimates = np.array([hits.estimated_recall for hits in answers])
            values = {
                "recall": round(float(found.mean()), 6),
                "estimate": round(float(estimates.mean()), 6),
                "found": packed(found * (cell.k or 1)),
                "estimates": np.round(estimates, 4).tolist(),
                "drifts": [None if hits.drift is None else round(hits.drift, 4) for hits in answers],
                "flags": "".join(str(int(hits.is_unlike_anchors)) for hits in answers),
                "groups": groups[tests].tolist(),
            }
            yield Row(cell, values)

    return Batch(cells, measure)


def indexes(scene: Scene, study: Study, work: Path) -> Callable[[Cell, str], Index]:
    """The index of a cell, with these retrievers."""
    stored = stored_retrievers(study, work)

    @lru_cache(maxsize=1)  # an index is as large as its anchor scores
    def index(seed: int, n_anchors: int, retrievers: str) -> Index:
        split, _ = scene.split(seed, n_anchors)
        return build(scene.world, split, [stored(name) for name in retrievers.split("+")], seed=seed)

    return lambda cell, retrievers: index(cell.seed, cell.n_anchor_queries or 0, retrievers)


def show(rows: Sequence[Row], title: str) -> None:
    """Recall, estimates and flags of every kind of queries, and what is flagged of sets of them."""
    n_seeds = len({row.cell.seed for row in rows})
    print(f"\n{title}: in %, {n_seeds} seeds, with 95% intervals over documents")
    for (method, n_anchors, k, budget), some in grouped(rows, "method", "n_anchor_queries", "k", "cost").items():
        print(f"\n{method}, {n_anchors} anchor queries, k = {k}, {budget} pairs")
        print(
            f"{'queries':<20}{'recall':>20}{'estimate':>20}{'error':>20}{'estimate is above':>20}{'unlike':>20}  sets"
        )
        for (kind,), of_kind in grouped(some, "part").items():
            shown = [percent(interval) for interval in intervals(of_kind, k)]
            print(f"{kind:<20}" + "".join(f"{one:>20}" for one in shown) + f"  {shown_sets(of_kind, n_anchors)}")


def intervals(rows: Sequence[Row], k: int) -> Iterator[Interval]:
    """Of recall, estimate, its absolute error, its bias, and the share of queries that are flagged."""
    found = np.concatenate([np.array(row["found"]) / k for row in rows])
    estimates = np.concatenate([row["estimates"] for row in rows])
    flags = np.array([flag == "1" for row in rows for flag in row["flags"]], dtype=float)
    groups = [group for row in rows for group in row["groups"]]
    for values in (found, estimates, np.abs(estimates - found), estimates - found, flags):
        yield clustered_interval(values, groups)


def percent(interval: Interval) -> str:
    """A mean and its interval."""
    low, middle, high = (100 * value for value in (interval.low, interval.mean, interval.high))
    return f"{middle:.1f} ({low:.1f}..{high:.1f})"


def shown_sets(rows: Sequence[Row], n_anchors: int) -> str:
    """The share of sets of queries that the index would warn of, by their size."""
    n_reference = min(n_anchors, MOST_HELD_OUT)
    return ", ".join(f"{size}: {100 * share_warned(rows, size, n_reference):.0f}" for size in SET_SIZES)


def share_warned(rows: Sequence[Row], size: int, n_reference: int) -> float:
    """Of sets of this size, drawn with replacement of whole documents, each from one seed's index."""
    rng, warned = np.random.default_rng(0), []
    for row in rows:
        drifts, groups = np.array(row["drifts"], dtype=float), np.array(row["groups"])
        for _ in range(N_SETS):
            drawn = draw_set(groups, size, rng)
            warned.append(DriftSummary.of(drifts[drawn].tolist(), n_reference=n_reference).is_drifting)
    return float(np.mean(warned))


def draw_set(groups: FloatVector, size: int, rng: np.random.Generator) -> Positions:
    """Queries of documents drawn at random, until there are enough."""
    documents = [np.flatnonzero(groups == group) for group in np.unique(groups)]
    chosen: list[int] = []
    while len(chosen) < size:
        chosen.extend(documents[rng.integers(len(documents))].tolist())
    return np.array(chosen[:size])


if __name__ == "__main__":
    main()
