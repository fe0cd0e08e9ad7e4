"""Item vectors from a dual encoder's own, by a small network with a gated skip connection.

It learns from sparse scores. Unlike free vectors (`sparse.py`), what it learns holds for items that no anchor query was
scored with. Queries have such a network too, which serves the training alone. Needs the extra `train`."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import torch
from torch import Tensor, nn

from anncur.arrays import FloatMatrix, Positions
from anncur.factors.sparse import SparseScores, Start

N_EPOCHS = 10
QUERIES_AT_ONCE = 32
ITEMS_AT_ONCE = 8192
LEARNING_RATE = 1e-3
WEIGHT_DECAY = 1e-2


class Gated(nn.Module):
    """vector + gate x (network(vector) - vector). The gate starts at 0, closed: vectors are as the dual encoder's."""

    def __init__(self, vectors: Tensor, generator: torch.Generator) -> None:
        super().__init__()
        width = vectors.shape[1]
        self._scale = float(vectors.square().mean().sqrt()) or 1.0  # the network works on numbers about 1
        self.inner = nn.Parameter(torch.randn(width, width, generator=generator) * (2 / width) ** 0.5)
        self.inner_bias = nn.Parameter(torch.zeros(width))
        self.outer = nn.Parameter(torch.randn(width, width, generator=generator) * (1 / width) ** 0.5)
        self.outer_bias = nn.Parameter(torch.zeros(width))
        self.gate = nn.Parameter(torch.zeros(()))

    def forward(self, vectors: Tensor) -> Tensor:
        """(…, width), as the vectors are."""
        hidden = torch.relu(vectors / self._scale @ self.inner + self.inner_bias)
        changed = (hidden @ self.outer + self.outer_bias) * self._scale
        return vectors + self.gate * (changed - vectors)


def train_gated(sparse: SparseScores, start: Start, *, seed: int, n_epochs: int = N_EPOCHS) -> FloatMatrix:
    """Item vectors, (n_items, width) in float32: those that they start as, through a network that was trained so that
    products of items and queries fit the scores."""
    generator, rng = torch.Generator().manual_seed(seed), np.random.default_rng(seed)
    queries = torch.tensor(start.queries, dtype=torch.float32)
    items = torch.tensor(start.items, dtype=torch.float32)
    scores = torch.tensor(sparse.scores, dtype=torch.float32)
    of_items, of_queries = Gated(items, generator), Gated(queries, generator)
    parameters = [*of_items.parameters(), *of_queries.parameters()]
    optimiser = torch.optim.AdamW(parameters, lr=LEARNING_RATE, weight_decay=WEIGHT_DECAY)
    unit = float(scores.square().mean()) or 1.0
    for rows in _batches(len(queries), n_epochs, rng):
        seen, places = np.unique(sparse.items[rows], return_inverse=True)  # an item of many queries is embedded once
        vectors = of_items(items[seen])[places.reshape(len(rows), -1)]  # (n_rows, n_scored, width)
        guesses = torch.einsum("qw,qsw->qs", of_queries(queries[rows]), vectors)
        loss = (guesses - scores[rows]).square().mean() / unit
        optimiser.zero_grad()
        loss.backward()  # type: ignore[no-untyped-call]
        optimiser.step()
    return _through(of_items, items)


def _batches(n_queries: int, n_epochs: int, rng: np.random.Generator) -> Iterator[Positions]:
    for _ in range(n_epochs):
        order = rng.permutation(n_queries)
        for start in range(0, n_queries, QUERIES_AT_ONCE):
            yield order[start : start + QUERIES_AT_ONCE]


@torch.no_grad()
def _through(network: Gated, vectors: Tensor) -> FloatMatrix:
    starts = range(0, len(vectors), ITEMS_AT_ONCE)
    return np.concatenate([network(vectors[start : start + ITEMS_AT_ONCE]).numpy() for start in starts])
