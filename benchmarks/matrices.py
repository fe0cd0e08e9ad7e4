"""Exact score matrices of real scorers, made block by block and kept, for benchmarks that need the whole truth.

    python benchmarks/matrices.py DATA --work FOLDER --scorer builtin|maxsim|MODEL [--world noun.animal] [--keep]

DATA is in ZESHEL's layout: mentions of a test world are the queries, its entities the items; both are drawn at random,
the right entities of the mentions among them. Or it is in BEIR's layout, where each query is a document of its own.
Scoring can be stopped at any moment: run the same again, and it resumes. `--keep` also writes the rows to
benchmarks/scores, for those that take hours: every benchmark reads them from there, also for some of the items, as long
as texts and scorer are the same. `maxsim` is the late interaction of late_interaction.py."""

from __future__ import annotations

import argparse
import hashlib
import os
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path

import numpy as np

from anncur.arrays import FloatMatrix, FloatVector
from anncur.cli.frame import show_progress
from anncur.datasets.beir import Qrels, read_qrels
from anncur.datasets.jsonl import read_items, read_queries
from anncur.datasets.zeshel import Mention, Zeshel
from anncur.evaluation.worlds import ScoredWorld
from anncur.items import Item, Query
from anncur.progress import Progress
from anncur.scorers.base import fingerprint_of
from anncur.scorers.loading import load_scorer
from anncur.training.cache import cached
from common import new_parser, write_rows
from late_interaction import ITEM_TOKENS, LONG_ITEM_TOKENS, MaxSim, MiniLMTokens

QUERIES_AT_ONCE = 10
CONTEXT_WORDS = 48
KEPT = Path(__file__).parent / "scores"
MAXSIM = "maxsim"

ScoreBlock = Callable[[Sequence[Query]], FloatMatrix]


@dataclass(frozen=True, eq=False)
class World:
    """Mentions and entities of one world, drawn once for all scorers; `asked` are the numbers that were asked for.

    Late interaction reads at most `item_tokens` of an item. `qrels` are the judgements of documents."""

    mentions: list[Mention]
    items: list[Item]
    name: str
    asked: tuple[int, int]
    item_tokens: int = ITEM_TOKENS
    qrels: Qrels = field(default_factory=dict)

    @property
    def judgements(self) -> Qrels:
        """Those of documents, or the right entities."""
        return self.qrels or {mention.query.id: {mention.entity_id: 1} for mention in self.mentions}

    @property
    def queries(self) -> list[Query]:
        """The mentions as queries."""
        return [mention.query for mention in self.mentions]


def read_world(data: Path, world: str, n_queries: int, n_items: int) -> World:
    """Draw mentions, and entities among which theirs are; the same for the same numbers. BEIR's layout has one."""
    if (data / "corpus.jsonl").is_file():
        return read_documents(data, n_queries, n_items)
    source = Zeshel(data, context_words=CONTEXT_WORDS)
    distinct = {mention.query.marked_text: mention for mention in source.mentions("test", world)}
    mentions, entities = list(distinct.values()), source.entities(world)
    rng = np.random.default_rng(0)
    chosen = [mentions[place] for place in rng.permutation(len(mentions))[:n_queries]]
    golds = {mention.entity_id for mention in chosen}
    others = [place for place in rng.permutation(len(entities)).tolist() if entities[place].id not in golds]
    drawn = {entities[place].id for place in others[: max(0, n_items - len(golds))]} | golds
    return World(chosen, [item for item in entities if item.id in drawn], world, (n_queries, n_items))


def read_documents(data: Path, n_queries: int, n_items: int) -> World:
    """Draw queries and documents in BEIR's layout, with the judgements of all splits."""
    distinct = list({query.marked_text: query for query in read_queries(data)}.values())
    items = list(read_items(data))
    rng = np.random.default_rng(0)
    queries = [distinct[place] for place in rng.permutation(len(distinct))[:n_queries]]
    mentions = [Mention(query, "", data.name, query.marked_text) for query in queries]
    drawn = np.sort(rng.permutation(len(items))[:n_items]).tolist()
    qrels = {
        query_id: grades
        for file in (data / "qrels").glob("*.tsv")
        for query_id, grades in read_qrels(data, file.stem).items()
    }
    taken = [items[place] for place in drawn]
    return World(mentions, taken, data.name, (n_queries, n_items), LONG_ITEM_TOKENS, qrels)


def score_world(world: World, scorer: str, work: Path, progress: Progress, *, n_rows: int | None = None) -> ScoredWorld:
    """A world with its exact scores, as experiments take it."""
    exact_scores = matrix(world, scorer, work, progress, n_rows=n_rows)
    mentions = world.mentions[: len(exact_scores)]
    documents = [mention.document_id for mention in mentions]
    queries = [mention.query for mention in mentions]
    return ScoredWorld(world.name, queries, documents, world.items, exact_scores, scorer_name=Path(scorer).name)


def matrix(world: World, scorer: str, work: Path, progress: Progress, *, n_rows: int | None = None) -> FloatMatrix:
    """The exact scores of a world's first queries, (n_rows, n_items); what is there already is read."""
    n_rows = len(world.mentions) if n_rows is None else min(n_rows, len(world.mentions))
    made_from = f"{world.name} {world.asked[0]} {world.asked[1]} {Path(scorer).name}"
    kept = read_kept(world, scorer)
    score: ScoreBlock | None = None
    blocks: list[FloatMatrix] = []
    for start in range(0, n_rows, QUERIES_AT_ONCE):
        places = range(start, min(start + QUERIES_AT_ONCE, len(world.queries)))
        if kept.keys() >= set(places):
            blocks.append(np.stack([kept[place] for place in places]))
            continue

        def make(some: Sequence[Query] = tuple(world.queries[place] for place in places)) -> FloatMatrix:
            nonlocal score
            score = score or block_scorer(scorer, world)
            return score(some)

        blocks.append(cached(work / "matrices", "block", f"{made_from} {start}", make))
        progress(f"scores of {scorer}", min(start + QUERIES_AT_ONCE, n_rows), n_rows)
    return np.concatenate(blocks)[:n_rows]


def read_kept(world: World, scorer: str) -> dict[int, FloatVector]:
    """The kept scores of queries with all of a world's items, by the queries' positions.

    A file of any items serves that has these among them; one of another scorer is passed over."""
    files = sorted(KEPT.glob(f"{world.name} {Path(scorer).name} *.npz"))
    return {place: row for file in files for place, row in read_file(file, world, scorer).items()}


def read_file(file: Path, world: World, scorer: str) -> dict[int, FloatVector]:
    """What one file has of that."""
    with np.load(file, allow_pickle=False) as kept:
        columns = {digest: column for column, digest in enumerate(kept["items"].tolist())}
        needed = [columns.get(digest) for digest in digests(item.full_text for item in world.items)]
        if str(kept["scorer"]) != fingerprint(scorer) or None in needed:
            return {}
        rows = dict(zip(kept["queries"].tolist(), kept["exact_scores"][:, needed], strict=True))
    of_queries = enumerate(digests(query.marked_text for query in world.queries))
    return {place: rows[digest] for place, digest in of_queries if digest in rows}


def keep(exact_scores: FloatMatrix, world: World, scorer: str) -> Path:
    """Add the rows of a world's first queries to where `read_kept` finds them, but for those that are there."""
    file = KEPT / f"{world.name} {Path(scorer).name} {world.asked[0]}x{world.asked[1]}.npz"
    own = read_file(file, world, scorer) if file.is_file() else {}
    elsewhere = read_kept(world, scorer).keys() - own.keys()
    rows = own | {place: row for place, row in enumerate(exact_scores) if place not in elsewhere}
    file.parent.mkdir(exist_ok=True)
    unfinished = file.with_suffix(".part.npz")
    np.savez_compressed(
        unfinished,
        exact_scores=np.stack([rows[place] for place in sorted(rows)]),
        queries=np.array(digests(world.queries[place].marked_text for place in sorted(rows))),
        items=np.array(digests(item.full_text for item in world.items)),
        scorer=np.array(fingerprint(scorer)),
    )
    os.replace(unfinished, file)
    return file


@cache
def fingerprint(scorer: str) -> str:
    """What tells a scorer from others."""
    return scorer if scorer == MAXSIM else fingerprint_of(load_scorer(scorer))


def digests(texts: Iterable[str]) -> list[str]:
    """A short name of each text."""
    return [hashlib.sha256(text.encode()).hexdigest()[:16] for text in texts]


def block_scorer(scorer: str, world: World) -> ScoreBlock:
    """What scores some queries on all items."""
    if scorer == MAXSIM:
        return MaxSim(world.items, MiniLMTokens(), most=world.item_tokens).scores
    cross_encoder = load_scorer(scorer)

    def score(queries: Sequence[Query]) -> FloatMatrix:
        return np.stack([cross_encoder.score(query, world.items) for query in queries]).astype(np.float32)

    return score


def make_parser(
    about: str | None,
    *,
    scorer: str = "builtin",
    world: str = "noun.animal",
    n_queries: int | None = None,
    n_seeds: int | None = None,
    out: str = "",
) -> argparse.ArgumentParser:
    """The options that benchmarks on a matrix share, with these defaults; without one, an option is left out."""
    parser = new_parser(about, out)
    parser.add_argument("data", type=Path)
    parser.add_argument("--work", type=Path, required=True, help="where matrices are kept")
    parser.add_argument("--scorer", default=scorer)
    parser.add_argument("--world", default=world)
    if n_queries is not None:
        parser.add_argument("--queries", type=int, default=n_queries, help="the number of mentions that are queries")
    if n_seeds is not None:
        parser.add_argument("--seeds", type=int, default=n_seeds)
    return parser


def main() -> None:
    """Make a matrix, or what is missing of it."""
    parser = make_parser(__doc__, n_queries=700, out="matrices.jsonl")
    parser.add_argument("--items", type=int, default=5000)
    parser.add_argument("--rows", type=int, help="score only the first queries for now (default: all)")
    parser.add_argument("--keep", action="store_true", help="also write the rows to benchmarks/scores")
    options = parser.parse_args()
    world = read_world(options.data, options.world, options.queries, options.items)
    with show_progress(as_json=False) as progress:
        made = matrix(world, options.scorer, options.work, progress, n_rows=options.rows)
    row = {"world": world.name, "scorer": options.scorer, "shape": list(made.shape), "spread": float(made.std())}
    write_rows(options.out, [row])
    if options.keep:
        print(f"kept in {keep(made, world, options.scorer)}")
    print(f"{options.scorer}: {made.shape[0]:,} queries x {made.shape[1]:,} items, spread {made.std():.3f}")


if __name__ == "__main__":
    main()
