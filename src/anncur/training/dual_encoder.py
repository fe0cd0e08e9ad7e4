"""Training a dual encoder on gold links: random negatives first, then those that it takes for right itself."""

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
from anncur.models.encoders import DualEncoder
from anncur.progress import Progress, silent
from anncur.retrievers.dual_encoder import DualEncoderRetriever
from anncur.training.cache import cached
from anncur.training.examples import Examples, draw_candidates, macro_accuracy, pools, shuffled_batches, split_by_world
from anncur.training.negatives import Candidates, NegativeSettings


@dataclass
class DualEncoderTask:
    """The loss is the cross-entropy of picking the right entity among its negatives, by dot product.

    Negatives are random in the first epoch and mined by the model itself before each later one; they are kept in
    `mined`, so that a training that was stopped goes on with the same."""

    model: DualEncoder
    examples: Examples
    negatives: NegativeSettings
    dev: Examples
    dev_candidates: Candidates
    mined: Path
    mentions_per_batch: int = 8
    seed: int = 0
    progress: Progress = silent
    network: str = ""  # that the weights started from

    def describe(self) -> dict[str, Any]:
        config = self.model.item_tower.config
        return {
            "task": "dual-encoder",
            "network": self.network,
            "head": self.model.head,
            "is_shared": self.model.is_shared,
            "shape": f"{config.num_hidden_layers} x {config.hidden_size}",
            "text": asdict(self.model.tokenizer.format),
            "examples": self.examples.describe(),
            "dev": self.dev.describe(),
            "texts": f"{self.examples.texts} to train on, {self.dev.texts} held out",
            "negatives": asdict(self.negatives),
            "mentions_per_batch": self.mentions_per_batch,
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
        drawn = draw_candidates(
            self.examples, split_by_world(self.examples, rows), self.negatives, seed=[self.seed, epoch]
        )
        return shuffled_batches(drawn, self.mentions_per_batch, seed=[self.seed, epoch, 1])

    def loss(self, batch: tuple[Positions, Candidates]) -> Tensor:
        rows, candidates = batch
        _, items = self.examples.pairs(rows, candidates)
        vectors = self.model.item_vectors(items).view(*candidates.shape, -1)  # (n_rows, n_candidates, hidden)
        queries = self.model.query_vectors([self.examples.queries[row] for row in rows])
        logits = self.model.scale * torch.einsum("mh,mch->mc", queries, vectors)
        return functional.cross_entropy(logits, torch.zeros(len(rows), dtype=torch.long))  # the right one is first

    def evaluate(self) -> float:
        return macro_accuracy(_dual_scores(self.model, self.dev, self.dev_candidates), self.dev.owner)

    def save(self, folder: Path) -> None:
        self.model.save(folder)


def _dual_scores(model: DualEncoder, examples: Examples, candidates: Candidates) -> FloatMatrix:
    _, items = examples.pairs(np.arange(len(candidates)), candidates)
    vectors = model.embed_tokens(items, are_items=True).reshape(*candidates.shape, -1)
    queries = model.embed_tokens(examples.queries, are_items=False)
    scores: FloatMatrix = np.einsum("mh,mch->mc", queries, vectors)
    return scores
