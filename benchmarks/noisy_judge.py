"""Recall of the truly best items with a scorer whose every answer is off by a new random number.

    python benchmarks/noisy_judge.py [--noise 0.5 2 8] [--seeds 3]

Scores are those of the bundled sample with Gaussian noise, whose spread is given in gaps between the exact scores of
ranks 10 and 11 (the mean over queries). "trusted": one answer for each pair, taken as exact. "modelled": the same with
the noise that a build finds. "3 answers": the best 20 are asked for three times, within the same budget, and the mean
counts."""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from typing import Any

import numpy as np

import anncur
from anncur.datasets.sample import SAMPLE_INDEX, load_sample, sample_test_scores
from anncur.scorers.noise import Noise
from common import new_parser, write_rows

K, BUDGET, N_ANCHORS = 10, 200, 40


class Noisy:
    """Stored scores, and a new random number with each answer."""

    fingerprint = "noisy"

    def __init__(self, exact_scores: np.ndarray, queries: Sequence[anncur.Query], *, spread: float, seed: int) -> None:
        self._exact_scores, self._spread = exact_scores, spread
        self._rows = {query.marked_text: row for row, query in enumerate(queries)}
        self._columns = {item.id: column for column, item in enumerate(load_sample().items)}
        self._rng = np.random.default_rng(seed)

    def score(self, query: anncur.Query, items: Sequence[anncur.Item]) -> np.ndarray:
        """An answer for each item."""
        exact_scores = self._exact_scores[self._rows[query.marked_text], [self._columns[item.id] for item in items]]
        return exact_scores + self._spread * self._rng.normal(size=len(items))


class NoNoise(Noise):
    """What a search would know that trusts every answer."""

    variance = 0.0
    share = 0.0


def main() -> None:
    """Measure every noise, print a table, and write rows."""
    parser = new_parser(__doc__, "noisy_judge.jsonl")
    parser.add_argument("--noise", type=float, nargs="+", default=[0.5, 2.0, 8.0])
    parser.add_argument("--seeds", type=int, default=3)
    arguments = parser.parse_args()
    warnings.simplefilter("ignore", anncur.UnstableScorerWarning)
    sample = load_sample()
    queries = [*sample.anchor_queries, *sample.test_queries]
    exact_scores = np.concatenate([anncur.Index.open(SAMPLE_INDEX).anchor_scores().T, sample_test_scores()])
    ranked = -np.sort(-exact_scores, axis=1)
    gap = float((ranked[:, K - 1] - ranked[:, K]).mean())
    rows: list[dict[str, Any]] = []
    for noise in arguments.noise:
        for name, repeats in (("trusted", 1), ("modelled", 1), ("3 answers", 3)):
            found, estimates = [], []
            for seed in range(arguments.seeds):
                scorer = Noisy(exact_scores, queries, spread=noise * gap, seed=seed)
                answers = search(scorer, sample, name=name, repeats=repeats, seed=seed)
                found.append(true_recall(answers, sample_test_scores()))
                estimates.append(np.mean([hits.estimated_recall for hits in answers]))
            row = {"noise_in_gaps": noise, "how": name, "recall": np.mean(found), "spread_over_seeds": np.std(found)}
            rows.append({**row, "estimated_recall": np.mean(estimates), "budget": BUDGET, "n_seeds": arguments.seeds})
            print(f"{noise:>5} gaps  {name:<10} {row['recall']:.1%}, estimated {np.mean(estimates):.1%}")
    write_rows(arguments.out, rows)


def search(scorer: Noisy, sample: Any, *, name: str, repeats: int, seed: int) -> list[anncur.Hits]:
    """The answers to the test queries."""
    guarded = anncur.load_scorer(scorer, repeats=repeats)
    if name == "trusted":
        guarded._shared.noise = NoNoise()
    anchors = np.random.default_rng(seed).permutation(len(sample.anchor_queries))[:N_ANCHORS]
    chosen = [sample.anchor_queries[place] for place in anchors]
    index = anncur.Index.build(sample.items, guarded, chosen, progress=False)
    return index.search_many(sample.test_queries, K, BUDGET, progress=False)


def true_recall(answers: Sequence[anncur.Hits], exact_scores: np.ndarray) -> float:
    """The share of the truly best k that was returned; the scores of the hits are noisy."""
    columns = {item.id: column for column, item in enumerate(load_sample().items)}
    least = np.partition(exact_scores, -K, axis=1)[:, -K]
    own = [exact_scores[row, [columns[item_id] for item_id in hits.ids]] for row, hits in enumerate(answers)]
    return float(np.mean([(scores >= enough).mean() for scores, enough in zip(own, least, strict=True)]))


if __name__ == "__main__":
    main()
