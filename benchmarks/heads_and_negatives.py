"""[EMB] against [CLS], for random, TF-IDF and mined negatives: linking accuracy, and the rank of the score matrix.

    python benchmarks/heads_and_negatives.py DATA --work FOLDER --teacher MODEL

DATA is in ZESHEL's layout. Six models of one shape are trained on the same mentions in the same number of steps, with
the same teacher if there is one; the accuracy is that of re-ranking the same candidates on the worlds of the split
test, and the rank that of the scores of some mentions and entities of one of them. Trainings and matrices are kept in
FOLDER, and not made again."""

from __future__ import annotations

import argparse
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch

from anncur.arrays import FloatMatrix
from anncur.cli.frame import show_progress
from anncur.datasets.zeshel import LinkingWorld, Zeshel, read_worlds
from anncur.evaluation.linking import by_scorer, link, sample_mentions
from anncur.factors.cur import numerical_rank, variance_rank
from anncur.progress import Progress
from anncur.reproduction.matrix import PAPER_TOLERANCE
from anncur.retrievers.loading import load_retriever
from anncur.scorers.guard import GuardedScorer
from anncur.scorers.loading import load_scorer
from anncur.training.cache import cached
from anncur.training.jobs import CrossEncoderJob, DataSettings, NegativeKind, preset, train_cross_encoder
from anncur.training.loop import LogRow
from common import new_parser, write_rows

HEADS = ("emb", "cls")
KINDS: tuple[NegativeKind, ...] = ("random", "tfidf", "mined")
SHARES = (0.90, 0.95, 0.99)


def main() -> None:
    """Print a table, and write a row for every model."""
    parser = new_parser(__doc__, "heads_and_negatives.jsonl")
    parser.add_argument("data", type=Path)
    parser.add_argument("--work", type=Path, required=True, help="where trainings and matrices are kept")
    parser.add_argument("--teacher", type=Path, help="a larger cross-encoder to agree with; none by default")
    parser.add_argument("--twins", type=Path, nargs=2, help="an [EMB] and a [CLS] model of yours, to measure as well")
    parser.add_argument("--layers", type=int, default=3)
    parser.add_argument("--mentions", type=int, default=4000, help="to train on")
    parser.add_argument("--train-world", action="append", help="all of the split train by default; may be repeated")
    parser.add_argument("--test-mentions", type=int, default=100, help="of each test world, to link")
    parser.add_argument("--world", default="noun.animal", help="whose score matrix is measured")
    parser.add_argument("--shape", type=int, nargs=2, default=(200, 400), help="mentions and entities of the matrix")
    parser.add_argument("--threads", type=int)
    options = parser.parse_args()
    if options.threads:
        torch.set_num_threads(options.threads)
    with show_progress(as_json=False) as progress:
        rows = measure(options, progress)
    write_rows(options.out, rows)
    for row in rows:
        print(row)


def measure(options: argparse.Namespace, progress: Progress) -> list[dict[str, Any]]:
    """Train all models, and measure them on the same candidates and pairs."""
    folders = {(head, kind): options.work / f"{head}-{kind}" for kind in KINDS for head in HEADS}
    logs = {pair: train(*pair, options, progress) for pair in folders}
    folders |= {(head, "twins"): folder for head, folder in zip(HEADS, options.twins or (), strict=False)}
    scorers = {pair: load_scorer(folder) for pair, folder in folders.items()}
    data = Zeshel(options.data)
    worlds = [sample_mentions(world, options.test_mentions) for world in read_worlds(data, "test")]
    rankers = {"-".join(pair): by_scorer(scorer, progress) for pair, scorer in scorers.items()}
    linked = list(link(worlds, load_retriever("minilm"), rankers))
    (world,) = read_worlds(data, "test", [options.world])
    return [
        {
            "head": pair[0],
            "negatives": pair[1],
            **(trained_on(options, logs[pair]) if pair in logs else {}),
            **{f"accuracy {row.world}": row.accuracy for row in linked if row.ranker == "-".join(pair)},
            **ranks(score_matrix(scorer, world, options, progress)),
        }
        for pair, scorer in scorers.items()
    ]


def trained_on(options: argparse.Namespace, log: list[LogRow]) -> dict[str, Any]:
    """How a model was trained here."""
    return {
        "layers": options.layers,
        "mentions": options.mentions,
        "steps": log[-1].step,
        "val_accuracy": max(row.dev for row in log),
        "seed": 0,
    }


def train(head: Any, kind: NegativeKind, options: argparse.Namespace, progress: Progress) -> list[LogRow]:
    """One model; all differ in head and negatives alone."""
    chosen = preset("small")
    job = CrossEncoderJob(
        data=DataSettings(options.data, train_worlds=options.train_world, mentions=options.mentions),
        head=head,
        layers=options.layers,
        teacher=options.teacher,
        text=replace(chosen.text, query_length=32, item_length=32),
        negative_kind=kind,
        negatives=chosen.negatives,
        mentions_per_batch=4,
        train=replace(chosen.train, learning_rate=1e-4, evaluations=3),
    )
    return train_cross_encoder(job, options.work / f"{head}-{kind}", cache=options.work / "cache", progress=progress)


def ranks(matrix: FloatMatrix) -> dict[str, Any]:
    """By a tolerance of float32, by the paper's, and by the variance around the mean."""
    own = numerical_rank(matrix)
    return {
        "matrix": list(matrix.shape),
        "rank": own.rank,
        "tolerance": own.tolerance,
        "rank_at_the_papers_tolerance": numerical_rank(matrix, tolerance=PAPER_TOLERANCE).rank,
        **{f"variance_rank_{share:.0%}": variance_rank(matrix - matrix.mean(), share) for share in SHARES},
    }


def score_matrix(
    scorer: GuardedScorer, world: LinkingWorld, options: argparse.Namespace, progress: Progress
) -> FloatMatrix:
    """Exact scores of some mentions and entities, drawn at random. (n_mentions, n_entities)"""
    rng = np.random.default_rng(0)
    mentions = np.sort(rng.permutation(len(world.mentions))[: options.shape[0]])
    items = world.items.take(np.sort(rng.permutation(len(world.items))[: options.shape[1]]))

    def score() -> FloatMatrix:
        rows = []
        for number, mention in enumerate(mentions):
            rows.append(scorer.score(world.queries[mention], items))
            progress(f"score matrix {scorer.fingerprint}", number + 1, len(mentions))
        return np.stack(rows).astype(np.float32)

    made_from = f"{scorer.fingerprint} {world.describe()} {options.shape}"
    return cached(options.work / "cache", "matrix", made_from, score)


if __name__ == "__main__":
    main()
