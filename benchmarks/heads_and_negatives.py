"""[EMB] against [CLS], for random, TF-IDF and mined negatives: linking accuracy, and the rank of the score matrix.

    python benchmarks/heads_and_negatives.py DATA --work FOLDER

DATA is in ZESHEL's layout. Six models of one shape are trained on the same mentions in the same number of steps; the
accuracy is that of re-ranking the same candidates on the worlds of the split test, and the rank that of the scores of
some mentions and entities of one of them. Trainings and matrices are kept in FOLDER, and not made again."""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any

import numpy as np
import torch

from anncur.arrays import FloatMatrix
from anncur.candidates.loading import load_linking_retriever
from anncur.cli.frame import show_progress
from anncur.datasets.zeshel import LinkingWorld, Zeshel, read_worlds
from anncur.evaluation.linking import MACRO, by_scorer, link, sample_mentions
from anncur.factors.cur import energy_rank, numerical_rank
from anncur.progress import Progress
from anncur.scorers.guard import GuardedScorer
from anncur.scorers.loading import load_scorer
from anncur.training.cache import cached
from anncur.training.jobs import CrossEncoderJob, DataSettings, NegativeKind, train_cross_encoder
from anncur.training.presets import preset
from circumstances import circumstances

HEADS, KINDS = ("emb", "cls"), ("random", "tfidf", "mined")
SHARES = (0.90, 0.95, 0.99)
PAPER_TOLERANCE = 1.2e-3  # of float32 at the paper's 3,374 x 10,031
RESULTS = Path(__file__).parent / "results" / "heads_and_negatives.jsonl"


def main() -> None:
    """Print a table, and write a row for every model."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("data", type=Path)
    parser.add_argument("--work", type=Path, required=True, help="where trainings and matrices are kept")
    parser.add_argument("--layers", type=int, default=2)
    parser.add_argument("--mentions", type=int, default=2000, help="to train on")
    parser.add_argument("--train-world", action="append", help="all of the split train by default; may be repeated")
    parser.add_argument("--test-mentions", type=int, default=100, help="of each test world, to link")
    parser.add_argument("--world", default="noun.animal", help="whose score matrix is measured")
    parser.add_argument("--shape", type=int, nargs=2, default=(200, 600), help="mentions and entities of the matrix")
    parser.add_argument("--threads", type=int)
    parser.add_argument("--out", type=Path, default=RESULTS)
    options = parser.parse_args()
    if options.threads:
        torch.set_num_threads(options.threads)
    options.out.parent.mkdir(parents=True, exist_ok=True)
    with options.out.open("w") as file, show_progress(as_json=False) as progress:
        for kind in KINDS:
            for head in HEADS:
                row = measure(head, kind, options, progress)
                file.write(json.dumps({**circumstances(), **row}) + "\n")
                file.flush()
                print({name: value for name, value in row.items() if name != "worlds"}, flush=True)


def measure(head: Any, kind: NegativeKind, options: argparse.Namespace, progress: Progress) -> dict[str, Any]:
    """Train a model, and measure it."""
    chosen = preset("small")
    job = CrossEncoderJob(
        data=DataSettings(options.data, train_worlds=options.train_world, mentions=options.mentions),
        head=head,
        layers=options.layers,
        text=chosen.text,
        kind=kind,
        negatives=chosen.negatives,
        mentions_per_batch=chosen.cross_encoder_batch,
        train=chosen.train,
    )
    folder = options.work / f"{head}-{kind}"
    log = train_cross_encoder(job, folder, cache=options.work / "cache", progress=progress)
    scorer = load_scorer(folder)
    data = Zeshel(options.data)
    worlds = [sample_mentions(world, options.test_mentions) for world in read_worlds(data, "test")]
    linked = list(link(worlds, load_linking_retriever("minilm"), {head: by_scorer(scorer, progress)}))
    (world,) = read_worlds(data, "test", [options.world])
    matrix = cached(
        options.work / "cache", "matrix", f"{scorer.fingerprint} {world.describe()} {options.shape}",
        lambda: score_matrix(scorer, world, options.shape, progress),
    )  # fmt: skip
    rank = numerical_rank(matrix.astype(np.float32))
    return {
        "head": head,
        "negatives": kind,
        "layers": options.layers,
        "mentions": options.mentions,
        "val_accuracy": max(row.dev for row in log),
        "test_accuracy": next(row.accuracy for row in linked if row.world == MACRO),
        "worlds": {row.world: row.accuracy for row in linked},
        "matrix": list(matrix.shape),
        "rank": rank.rank,
        "tolerance": rank.tolerance,
        "rank_at_the_papers_tolerance": numerical_rank(matrix, tolerance=PAPER_TOLERANCE).rank,
        **{f"energy_rank_{share:.0%}": energy_rank(matrix - matrix.mean(), share) for share in SHARES},
    }


def score_matrix(scorer: GuardedScorer, world: LinkingWorld, shape: tuple[int, int], progress: Progress) -> FloatMatrix:
    """Exact scores of some mentions and entities, drawn at random. (n_mentions, n_entities)"""
    rng = np.random.default_rng(0)
    mentions, entities = (
        np.sort(rng.permutation(n)[:size])
        for n, size in zip((len(world.mentions), len(world.items)), shape, strict=True)
    )
    items = world.items.take(entities)
    rows = []
    for number, mention in enumerate(mentions):
        rows.append(scorer.score(world.queries[mention], items))
        progress("score matrix", number + 1, len(mentions))
    return np.stack(rows)


if __name__ == "__main__":
    main()
