"""The sample that ships with the package: 2,000 animals of WordNet, mentions of animals in SemCor's texts, an index of
them made with the built-in cross-encoder, and that scorer's exact scores for the test mentions."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np

from anncur.arrays import FloatMatrix
from anncur.datasets.jsonl import read_items, read_queries
from anncur.items import Item, Query

SAMPLE = Path(__file__).parent.parent / "assets" / "sample"
SAMPLE_INDEX = SAMPLE / "animals.anncur"


@dataclass(frozen=True)
class Sample:
    """Items, anchor queries and test queries, and the folder of a ready index of them, to be copied and not changed."""

    items: list[Item]
    anchor_queries: list[Query]
    test_queries: list[Query]
    index_path: Path


def load_sample() -> Sample:
    """The bundled sample: 2,000 animals of WordNet, and mentions of animals in running text as queries."""
    return Sample(sample_items(), sample_anchor_queries(), sample_test_queries(), SAMPLE_INDEX)


def sample_items() -> list[Item]:
    """2,000 animals with their glosses."""
    return list(read_items(SAMPLE / "corpus.jsonl"))


def sample_anchor_queries() -> list[Query]:
    """150 mentions of animals in context."""
    return list(read_queries(SAMPLE / "anchor_queries.jsonl"))


def sample_test_queries() -> list[Query]:
    """50 mentions from other documents than those of the anchor queries."""
    return list(read_queries(SAMPLE / "test_queries.jsonl"))


def sample_test_scores() -> FloatMatrix:
    """The built-in cross-encoder's exact scores of all items for the test queries. (50, 2000)"""
    scores: FloatMatrix = np.load(SAMPLE / "test_scores.npy", allow_pickle=False)
    return scores
