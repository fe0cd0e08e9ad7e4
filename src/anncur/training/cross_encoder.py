"""Training a cross-encoder: to pick a mention's entity among candidates, or to agree with a teacher about them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn import functional

from anncur.arrays import FloatMatrix, Positions
from anncur.models.encoders import CrossEncoder
from anncur.training.examples import Examples, draw_candidates, macro_accuracy, score_candidates, shuffled_batches
from anncur.training.negatives import Candidates, NegativeSettings


@dataclass(frozen=True, slots=True)
class Teacher:
    """A larger model's scores of candidates, paid for once, so the candidates are the same in every epoch."""

    candidates: Candidates
    scores: FloatMatrix  # (n_mentions, n_candidates)
    gold_weight: float = 0.5  # what the right answers count beside the teacher's


@dataclass
class CrossEncoderTask:
    """Every mention is scored with its entity and some negatives; the loss is the cross-entropy of the choice.

    The target is the right entity, and with a teacher also the softmax of its scores."""

    model: CrossEncoder
    examples: Examples
    pools: Sequence[NDArray[np.int64]]
    negatives: NegativeSettings
    dev: Examples
    dev_candidates: Candidates
    mentions_per_batch: int = 4
    seed: int = 0
    teacher: Teacher | None = None
    source: str = ""  # of the negatives
    network: str = ""  # that the weights started from

    def describe(self) -> dict[str, Any]:
        config = self.model.network.config
        return {
            "task": "cross-encoder",
            "network": self.network,
            "head": self.model.head,
            "shape": f"{config.num_hidden_layers} x {config.hidden_size}",
            "text": asdict(self.model.tokenizer.format),
            "examples": self.examples.describe(),
            "dev": self.dev.describe(),
            "texts": f"{self.examples.texts} to train on, {self.dev.texts} held out",
            "negatives": {"source": self.source, **asdict(self.negatives)},
            "mentions_per_batch": self.mentions_per_batch,
            "teacher": None if self.teacher is None else [self.teacher.gold_weight, float(self.teacher.scores.sum())],
        }

    def n_batches(self) -> int:
        return -(-len(self.examples) // self.mentions_per_batch)

    def batches(self, epoch: int) -> Sequence[tuple[Positions, Candidates]]:
        if self.teacher is not None:
            candidates = self.teacher.candidates
        else:
            candidates = draw_candidates(self.examples, self.pools, self.negatives, seed=[self.seed, epoch])
        return shuffled_batches(candidates, self.mentions_per_batch, seed=[self.seed, epoch, 1])

    def loss(self, batch: tuple[Positions, Candidates]) -> Tensor:
        rows, candidates = batch
        queries, items = self.examples.pairs(rows, candidates)
        logits = self.model(self.model.tokenizer.assemble(queries, items)).view(len(rows), -1)
        gold = functional.cross_entropy(logits, torch.zeros(len(rows), dtype=torch.long))  # the right one is first
        if self.teacher is None:
            return gold
        target = torch.from_numpy(self.teacher.scores[rows]).softmax(dim=-1)
        weight = self.teacher.gold_weight
        return weight * gold + (1 - weight) * functional.cross_entropy(logits, target)

    def evaluate(self) -> float:
        return macro_accuracy(score_candidates(self.model, self.dev, self.dev_candidates), self.dev.owner)

    def save(self, folder: Path) -> None:
        self.model.save(folder)
