"""How often all items must be ranked: rounds that re-rank a shortlist, against rounds that rank everything.

    python benchmarks/rankings.py DATA --work FOLDER [--anchors 0 20 200] [--seeds 3] [--engines exact faiss]

DATA is in ZESHEL's layout; the items are the entities of all worlds, the queries mentions of any world, and the scorer
is late interaction. Scores and embeddings are kept in FOLDER, block by block: a run that was stopped resumes. Recall is
that of 120 test queries for each seed; a ranking is one of all items for one query."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np

import anncur
from anncur.arrays import FloatMatrix, FloatVector, Positions
from anncur.cli.frame import show_progress
from anncur.datasets.zeshel import Zeshel
from anncur.progress import Progress
from anncur.search import posterior_search
from anncur.search.model import PosteriorModel
from anncur.search.posterior_search import PosteriorSearch
from anncur.search.settings import Tuned
from anncur.search.shortlist import shortlist_size
from anncur.vectors.engines import VectorEngine
from common import new_parser, write_rows
from late_interaction import QUERY_TOKENS, MaxSim, MiniLMTokens, text_near, unit

N_QUERIES, N_TESTS, ITEMS_AT_ONCE = 320, 120, 4096
KS, BUDGETS = (1, 10, 50), (50, 100, 200)
EVERYTHING = "all items in every round"

Recalls = dict[tuple[str, int, int], list[FloatVector]]  # of test queries, by variant, budget and k


@dataclass(frozen=True, eq=False)
class Board:
    """Exact scores, (n_queries, n_items), and embeddings of items and queries."""

    exact_scores: FloatMatrix
    items: FloatMatrix
    queries: FloatMatrix


class Embeddings:
    """The retriever of a board; a query's text is its number."""

    name = "embeddings"

    def __init__(self, board: Board) -> None:
        self._board = board
        self._items = board.items.astype(np.float32)

    def fit(self, items: Iterable[anncur.Item]) -> None:
        """Nothing."""

    def scores(self, queries: Sequence[anncur.Query]) -> FloatMatrix:
        """(n_queries, n_items)"""
        rows: FloatMatrix = self._board.queries[[int(query.text) for query in queries]] @ self._items.T
        return rows

    def item_vectors(self) -> FloatMatrix:
        """(n_items, width)"""
        return self._board.items


def main() -> None:
    """Measure all numbers of anchor queries, print a table, and write rows."""
    parser = new_parser(__doc__, "rankings.jsonl")
    parser.add_argument("data", type=Path)
    parser.add_argument("--work", type=Path, required=True)
    parser.add_argument("--anchors", type=int, nargs="+", default=[0, 20, 200])
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--engines", nargs="+", default=["exact", "exact:float16", "faiss"])
    options = parser.parse_args()
    with show_progress(as_json=False) as progress:
        board = read_board(options.data, options.work, progress)
    rows = []
    for n_anchors in options.anchors:
        for has_retriever in (True, False) if n_anchors else (True,):
            rows += compare(board, n_anchors, range(options.seeds), options.engines, has_retriever=has_retriever)
    write_rows(options.out, rows)


def read_board(data: Path, work: Path, progress: Progress) -> Board:
    """What is stored of the board, and what is missing made."""
    source = Zeshel(data)
    worlds = sorted((split, world) for split in source.splits for world in source.worlds(split))
    items = [item for world in sorted({world for _, world in worlds}) for item in source.entities(world)]
    mentions = [mention for split, world in worlds for mention in source.mentions(split, world)]
    distinct = list({mention.query.marked_text: mention.query for mention in mentions}.values())
    chosen = [distinct[place] for place in np.random.default_rng(0).permutation(len(distinct))[:N_QUERIES]]
    tokens = MiniLMTokens()
    states = list(tokens.states([text_near(query) for query in chosen], QUERY_TOKENS))
    blocks = []
    for start in range(0, len(items), ITEMS_AT_ONCE):
        blocks.append(read_block(work, start // ITEMS_AT_ONCE, items[start : start + ITEMS_AT_ONCE], states, tokens))
        progress("scoring items", min(start + ITEMS_AT_ONCE, len(items)), len(items))
    scores, embeddings = zip(*blocks, strict=True)
    queries = unit(np.stack([each.mean(axis=0) for each in states]))
    return Board(np.concatenate(scores, axis=1), np.concatenate(embeddings), queries)


def read_block(
    work: Path, number: int, items: Sequence[anncur.Item], queries: Sequence[FloatMatrix], tokens: MiniLMTokens
) -> tuple[FloatMatrix, FloatMatrix]:
    """Scores of some items, (n_queries, n), and their embeddings."""
    file = work / f"c{number:03}.npz"
    if not file.exists():
        scorer = MaxSim(items, tokens)
        scores = np.stack([scorer.row(unit(each)) for each in queries])
        unfinished = file.with_suffix(".part.npz")
        work.mkdir(parents=True, exist_ok=True)
        np.savez(unfinished, s=scores.astype(np.float32), e=scorer.embeddings.astype(np.float16))
        unfinished.rename(file)
    with np.load(file) as stored:
        return stored["s"], stored["e"]


def compare(
    board: Board, n_anchors: int, seeds: Iterable[int], engines: Sequence[str], *, has_retriever: bool
) -> list[dict[str, Any]]:
    """The rows of one number of anchor queries."""
    found: Recalls = {}
    rankings: dict[str, list[float]] = {}
    for seed in seeds:
        order = np.random.default_rng(seed).permutation(len(board.exact_scores))
        for engine in engines:
            model = make_model(board, order[:n_anchors], engine, has_retriever=has_retriever)
            for name in (EVERYTHING, engine) if engine == "exact" else (engine,):
                rankings.setdefault(name, []).append(search(board, model, order[-N_TESTS:], name, found))
    rows = []
    print(f"{n_anchors} anchor queries, {'with' if has_retriever else 'without'} the retriever")
    for name, counted in rankings.items():
        cells = [compared(found, name, budget, k) for budget in BUDGETS for k in KS]
        about = {"n_anchor_queries": n_anchors, "has_retriever": has_retriever, "variant": name}
        rows += [{**about, "rankings": float(np.mean(counted)), **cell} for cell in cells]
        shown = " ".join(f"{cell['recall']:5.1f} {cell['difference']:+4.1f} ±{cell['error']:3.1f}" for cell in cells)
        print(f"  {name:26} {np.mean(counted):4.1f} rankings  {shown}", flush=True)
    return rows


def make_model(board: Board, anchors: Positions, engine: str, *, has_retriever: bool) -> PosteriorModel:
    """Of these anchor queries, untuned."""
    retrievers = {"embeddings": Embeddings(board)} if has_retriever else {}
    queries = [anncur.Query(str(place)) for place in anchors.tolist()]
    anchor_scores = np.ascontiguousarray(board.exact_scores[anchors].T)
    return PosteriorModel(anchor_scores, queries, retrievers, Tuned(), engine=VectorEngine(engine))


def search(board: Board, model: PosteriorModel, tests: Positions, name: str, found: Recalls) -> float:
    """Search for the test queries, and add their recalls; returns the rankings for each of them."""
    settings, truth = model.settings(), board.exact_scores[tests].astype(np.float64)
    prior = model.prior(settings, [anncur.Query(str(place)) for place in tests.tolist()])
    run = PosteriorSearch(model.item_model(settings), prior, len(tests), engine=model.engine_index(settings))
    ranked = 0
    make_shortlist, rank_all = run._make_shortlist, run._rank_all

    def counted_shortlist(size: int, rows: Positions) -> Any:
        nonlocal ranked
        ranked += len(rows)
        return make_shortlist(size, rows)

    def counted_ranking(n_best: int, rows: Positions, exclude: Sequence[Positions]) -> Any:
        nonlocal ranked
        ranked += len(rows) if name == EVERYTHING else 0
        return rank_all(n_best, rows, exclude)

    size = (lambda *_: None) if name == EVERYTHING else shortlist_size
    with (
        mock.patch.object(run, "_make_shortlist", counted_shortlist),
        mock.patch.object(run, "_rank_all", counted_ranking),
        mock.patch.object(posterior_search, "shortlist_size", size),
    ):
        for n_best in settings.round_sizes(max(BUDGETS)):
            positions = np.stack([proposal.positions for proposal in run.propose(n_best)])
            run.observe(positions, np.take_along_axis(truth, positions, axis=1))
    best = -np.sort(-truth, axis=1)
    for budget in BUDGETS:
        for k in KS:
            n_found = (run.exact_scores[:, :budget] >= best[:, k - 1 : k]).sum(axis=1)
            found.setdefault((name, budget, k), []).append(np.minimum(n_found, k) / k)
    return ranked / len(tests)


def compared(found: Recalls, name: str, budget: int, k: int) -> dict[str, Any]:
    """Recall, and its difference to that of ranking everything, with a 95% interval over queries."""
    recall, whole = (100 * np.concatenate(found[variant, budget, k]) for variant in (name, EVERYTHING))
    error = 1.96 * (recall - whole).std(ddof=1) / np.sqrt(len(recall))
    difference = float((recall - whole).mean())
    return {"k": k, "budget": budget, "recall": float(recall.mean()), "difference": difference, "error": float(error)}


if __name__ == "__main__":
    main()
