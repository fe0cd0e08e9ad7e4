"""Training tasks on gold links: a cross-encoder or a dual encoder picks a mention's entity among candidates.

Reads `examples.py`, feeds `jobs.py`; `loop.py` runs them. A cross-encoder may also match the scores of a teacher."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional

from anncur.arrays import FloatMatrix, Positions
from anncur.models.encoders import CrossEncoder, DualEncoder
from anncur.progress import Progress, silent
from anncur.retrievers.dual_encoder import DualEncoderRetriever
from anncur.training.cache import cached
from anncur.training.examples import (
    Candidates,
    Examples,
    NegativeSettings,
    Pool,
    draw_candidates,
    macro_accuracy,
    pools,
    shuffled_batches,
)

PAIRS_AT_ONCE = 4096  # enough to find pairs of like lengths


@dataclass(frozen=True, slots=True)
class Teacher:
    """A larger model's scores of candidates, which are the same in every epoch so that each is scored once."""

    candidates: Candidates
    scores: FloatMatrix  # (n_examples, n_candidates)
    gold_weight: float = 0.5  # weight of the gold entities beside the teacher's scores


@dataclass
class CrossEncoderTask:
    """Every mention is scored with its gold entity and some negatives; the loss is the cross-entropy of the choice.

    The target is the gold entity, and with a teacher also the softmax of its scores."""

    model: CrossEncoder
    examples: Examples
    pools: Sequence[Pool]
    negatives: NegativeSettings
    dev: Examples
    dev_candidates: Candidates
    mentions_per_batch: int = 4
    seed: int = 0
    teacher: Teacher | None = None
    source: str = ""  # origin of the negatives
    network: str = ""  # origin of the weights

    def describe(self) -> dict[str, Any]:
        return {
            "task": "cross-encoder",
            "network": self.network,
            "head": self.model.head,
            "shape": _shape(self.model.network.config),
            "text": asdict(self.model.tokenizer.format),
            "negatives": {"source": self.source, **asdict(self.negatives)},
            "mentions_per_batch": self.mentions_per_batch,
            "teacher": None if self.teacher is None else [self.teacher.gold_weight, float(self.teacher.scores.sum())],
            **_describe_data(self.examples, self.dev),
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
        gold_loss = _gold_loss(logits)
        if self.teacher is None:
            return gold_loss
        target = torch.from_numpy(self.teacher.scores[rows]).softmax(dim=-1)
        weight = self.teacher.gold_weight
        return weight * gold_loss + (1 - weight) * functional.cross_entropy(logits, target)

    def evaluate(self) -> float:
        return macro_accuracy(_cross_scores(self.model, self.dev, self.dev_candidates), self.dev.owner)

    def save(self, folder: Path) -> None:
        self.model.save(folder)


@dataclass
class DualEncoderTask:
    """The loss is the cross-entropy of picking the gold entity among its negatives, by dot product.

    Negatives are random in the first epoch and mined by the model itself before each later one; they are kept in
    `mined`, so that a resumed training has the same."""

    model: DualEncoder
    examples: Examples
    negatives: NegativeSettings
    dev: Examples
    dev_candidates: Candidates
    mined: Path
    mentions_per_batch: int = 8
    seed: int = 0
    progress: Progress = silent
    network: str = ""  # origin of the weights

    def describe(self) -> dict[str, Any]:
        return {
            "task": "dual-encoder",
            "network": self.network,
            "head": self.model.head,
            "is_shared": self.model.is_shared,
            "shape": _shape(self.model.item_tower.config),
            "text": asdict(self.model.tokenizer.format),
            "negatives": asdict(self.negatives),
            "mentions_per_batch": self.mentions_per_batch,
            **_describe_data(self.examples, self.dev),
        }

    def n_batches(self) -> int:
        return -(-len(self.examples) // self.mentions_per_batch)

    def batches(self, epoch: int) -> Sequence[tuple[Positions, Candidates]]:
        retriever = DualEncoderRetriever(self.model) if epoch else None
        rows = cached(
            self.mined,
            "negatives",
            f"{self.examples.describe()} {asdict(self.negatives)} {self.seed} {epoch}",
            lambda: np.concatenate(
                pools(self.examples, retriever, self.negatives.pool, seed=self.seed, progress=self.progress)
            ),
        )
        drawn = draw_candidates(self.examples, self.examples.by_world(rows), self.negatives, seed=[self.seed, epoch])
        return shuffled_batches(drawn, self.mentions_per_batch, seed=[self.seed, epoch, 1])

    def loss(self, batch: tuple[Positions, Candidates]) -> Tensor:
        rows, candidates = batch
        _, items = self.examples.pairs(rows, candidates)
        vectors = self.model.item_vectors(items).view(*candidates.shape, -1)  # (n_rows, n_candidates, hidden)
        queries = self.model.query_vectors([self.examples.queries[row] for row in rows])
        return _gold_loss(self.model.scale * torch.einsum("mh,mch->mc", queries, vectors))

    def evaluate(self) -> float:
        return macro_accuracy(_dual_scores(self.model, self.dev, self.dev_candidates), self.dev.owner)

    def save(self, folder: Path) -> None:
        self.model.save(folder)


def _describe_data(examples: Examples, dev: Examples) -> dict[str, Any]:
    return {
        "examples": examples.describe(),
        "dev": dev.describe(),
        "texts": f"{examples.texts} to train on, {dev.texts} held out",
    }


def _shape(config: Any) -> str:
    return f"{config.num_hidden_layers} x {config.hidden_size}"


def _gold_loss(logits: Tensor) -> Tensor:
    """The cross-entropy of the first candidate, which is the gold entity."""
    return functional.cross_entropy(logits, torch.zeros(len(logits), dtype=torch.long))


def _cross_scores(model: CrossEncoder, examples: Examples, candidates: Candidates) -> FloatMatrix:
    """(n_examples, n_candidates)"""
    blocks = np.array_split(np.arange(len(candidates)), max(1, candidates.size // PAIRS_AT_ONCE))
    scores = [model.score_tokens(*examples.pairs(rows, candidates[rows])) for rows in blocks]
    return np.concatenate(scores).reshape(candidates.shape)


def _dual_scores(model: DualEncoder, examples: Examples, candidates: Candidates) -> FloatMatrix:
    """(n_examples, n_candidates)"""
    _, items = examples.pairs(np.arange(len(candidates)), candidates)
    vectors = model.embed_tokens(items, are_items=True).reshape(*candidates.shape, -1)
    queries = model.embed_tokens(examples.queries, are_items=False)
    scores: FloatMatrix = np.einsum("mh,mch->mc", queries, vectors)
    return scores
