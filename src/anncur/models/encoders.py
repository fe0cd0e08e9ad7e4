"""The paper's encoders over any BERT-like network: [CLS] and [EMB] cross-encoders, and dual encoders.

Networks come from `networks.py`, batches of integers from `tokens.py`. Feeds `training/`, and what can't run in ONNX
Runtime; knows nothing of losses. In torch: needs the extra `train`."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, ClassVar, Literal

import numpy as np
import torch
from torch import Tensor, nn
from transformers import AutoModel, AutoModelForSequenceClassification, PreTrainedModel

from anncur.arrays import FloatMatrix, FloatVector
from anncur.errors import InputError
from anncur.items import Item, Query
from anncur.models.checkpoint import Head, ModelCard
from anncur.models.networks import (
    check_positions,
    inputs,
    local_folder,
    pretrained,
    resized,
    save_network,
    states_at,
)
from anncur.tokens import PairBatch, PairFormat, PairTokenizer, Tokens

UNIT_SCALE = 20.0  # the usual inverse temperature for unit vectors
TOKENS_PER_BATCH = 8192  # at inference: large enough for all cores, small enough for their caches


class CrossEncoder(nn.Module):
    """Reads query and item together, and returns one score."""

    head: ClassVar[Literal["emb", "cls"]]

    def __init__(self, network: PreTrainedModel, tokenizer: PairTokenizer) -> None:
        super().__init__()
        check_positions(network, tokenizer.format.query_length + tokenizer.format.item_length)
        self.network = network
        self.tokenizer = tokenizer

    def forward(self, batch: PairBatch) -> Tensor:
        """One score per pair. (n_pairs,)"""
        raise NotImplementedError

    @property
    def card(self) -> ModelCard:
        """The card that `save` writes beside the weights."""
        return ModelCard("cross-encoder", self.head, self.tokenizer.format)

    def save(self, folder: Path) -> None:
        """Write weights, tokenizer and card."""
        save_network(self.network, folder)
        (folder / "tokenizer.json").write_text(self.tokenizer.json, encoding="utf-8")
        self.card.write(folder)

    @torch.no_grad()
    def score_tokens(self, queries: Sequence[Tokens], items: Sequence[Tokens]) -> FloatVector:
        """Score each query with the item at the same position, in batches of like lengths. (n_pairs,)"""
        self.eval()
        scores = np.empty(len(queries), dtype=np.float32)
        for rows in _by_length([len(query) + len(item) for query, item in zip(queries, items, strict=True)]):
            batch = self.tokenizer.assemble([queries[row] for row in rows], [items[row] for row in rows])
            scores[rows] = self(batch).float().numpy()
        return scores


class EmbCrossEncoder(CrossEncoder):
    """Scores by the dot product of the mention's state, the mean of [Ms] and [Me], and the entity's, [ENT]."""

    head = "emb"

    def forward(self, batch: PairBatch) -> Tensor:
        states = states_at(self.network, batch, torch.from_numpy(batch.marks).long())
        start, end, entity = states.unbind(dim=1)  # (n_pairs, hidden) each
        return ((start + end) / 2 * entity).sum(dim=-1)


class ClsCrossEncoder(CrossEncoder):
    """Scores by a linear layer over the pooled state of [CLS]."""

    head = "cls"

    def forward(self, batch: PairBatch) -> Tensor:
        network: Any = self.network
        if network.config.model_type != "bert":
            logits: Tensor = network(**inputs(batch)).logits  # (n_pairs, 1)
        else:
            states = states_at(network, batch, torch.zeros(len(batch.mask), 1, dtype=torch.long))
            logits = network.classifier(network.dropout(network.base_model.pooler(states)))
        return logits[:, 0]


class DualEncoder(nn.Module):
    """Reads query and item apart, and scores them by the dot product of their vectors.

    The two towers are separate networks, or one shared network. A vector is the raw state of [CLS], or with the head
    `mean` the mean of all states as a unit vector."""

    def __init__(
        self, query_tower: PreTrainedModel, item_tower: PreTrainedModel, tokenizer: PairTokenizer, *, head: Head = "cls"
    ) -> None:
        super().__init__()
        check_positions(item_tower, max(tokenizer.format.query_length, 1 + tokenizer.format.item_length))
        self.query_tower = query_tower
        self.item_tower = item_tower
        self.tokenizer = tokenizer
        self.head = head

    def query_vectors(self, queries: Sequence[Tokens]) -> Tensor:
        """(n_queries, hidden)"""
        return self._vectors(self.query_tower, self.tokenizer.single(queries, are_items=False))

    def item_vectors(self, items: Sequence[Tokens]) -> Tensor:
        """(n_items, hidden)"""
        return self._vectors(self.item_tower, self.tokenizer.single(items, are_items=True))

    def _vectors(self, tower: PreTrainedModel, batch: PairBatch) -> Tensor:
        if self.head == "cls":
            return states_at(tower, batch, torch.zeros(len(batch.mask), 1, dtype=torch.long))[:, 0]
        states: Tensor = tower(**inputs(batch)).last_hidden_state  # (n_texts, width, hidden)
        mask = torch.from_numpy(batch.mask)[:, :, None]
        return nn.functional.normalize((states * mask).sum(dim=1), dim=-1)

    @property
    def is_shared(self) -> bool:
        """Whether one network is both towers."""
        return self.query_tower is self.item_tower

    def save(self, folder: Path) -> None:
        """Write towers, tokenizer and card."""
        save_network(self.item_tower, folder)
        if not self.is_shared:
            save_network(self.query_tower, folder / "query")
        (folder / "tokenizer.json").write_text(self.tokenizer.json, encoding="utf-8")
        self.card.write(folder)

    @property
    def card(self) -> ModelCard:
        """The card that `save` writes beside the weights."""
        return ModelCard("dual-encoder", self.head, self.tokenizer.format, self.is_shared)

    def fingerprint(self) -> str:
        """Names what decides the vectors: the weights as they are now, pooling, lengths and marks."""
        digest = hashlib.sha256((self.card.json + self.tokenizer.fingerprint).encode())
        for name, weight in self.state_dict().items():
            digest.update(name.encode())
            digest.update(weight.contiguous().numpy())
        return f"dual-encoder:{digest.hexdigest()[:16]}"

    @property
    def scale(self) -> float:
        """The inverse temperature of a softmax over scores: those of unit vectors are too close without one."""
        return 1.0 if self.head == "cls" else UNIT_SCALE

    def embed_queries(self, queries: Sequence[Query]) -> FloatMatrix:
        """(n_queries, hidden)"""
        return self.embed_tokens(self.tokenizer.queries(queries), are_items=False)

    def embed_items(self, items: Sequence[Item]) -> FloatMatrix:
        """(n_items, hidden)"""
        return self.embed_tokens(self.tokenizer.items(items), are_items=True)

    @torch.no_grad()
    def embed_tokens(self, texts: Sequence[Tokens], *, are_items: bool) -> FloatMatrix:
        """Embed tokenised texts, in batches of like lengths. (n_texts, hidden)"""
        self.eval()
        encode = self.item_vectors if are_items else self.query_vectors
        vectors = np.empty((len(texts), self.item_tower.config.hidden_size), dtype=np.float32)
        for rows in _by_length([len(text) for text in texts]):
            vectors[rows] = encode([texts[row] for row in rows]).float().numpy()
        return vectors


CROSS_ENCODERS: dict[str, type[CrossEncoder]] = {"emb": EmbCrossEncoder, "cls": ClsCrossEncoder}


def new_cross_encoder(
    source: str | Path, head: str, text: PairFormat, *, layers: int | None = None, width: int | None = None
) -> CrossEncoder:
    """A cross-encoder to be trained, over the network of a folder or name.

    `layers` keeps only the first ones. A smaller `width` makes new layers of that width, over word embeddings
    projected onto their leading singular vectors."""
    if head == "emb" and not text.marks:
        raise InputError("an [EMB] cross-encoder needs marks; pass a format with marks=True")
    factory = AutoModelForSequenceClassification if head == "cls" else AutoModel
    network = resized(pretrained(factory, source), factory, layers=layers, width=width)
    return CROSS_ENCODERS[head](network, PairTokenizer.from_folder(local_folder(source), text))


def load_cross_encoder(folder: str | Path) -> CrossEncoder:
    """Read what `CrossEncoder.save` wrote."""
    card = ModelCard.read(folder, kind="cross-encoder")
    factory = AutoModelForSequenceClassification if card.head == "cls" else AutoModel
    network = pretrained(factory, folder, is_trained=True)
    return CROSS_ENCODERS[card.head](network, PairTokenizer.from_folder(folder, card.text))


def new_dual_encoder(
    source: str | Path, text: PairFormat, *, head: Head = "cls", is_shared: bool = False, layers: int | None = None
) -> DualEncoder:
    """A dual encoder to be trained: both towers start from the same network."""
    towers = [resized(pretrained(AutoModel, source), AutoModel, layers=layers) for _ in range(1 if is_shared else 2)]
    return DualEncoder(towers[0], towers[-1], PairTokenizer.from_folder(local_folder(source), text), head=head)


def load_dual_encoder(folder: str | Path) -> DualEncoder:
    """Read what `DualEncoder.save` wrote."""
    card = ModelCard.read(folder, kind="dual-encoder")
    item_tower = pretrained(AutoModel, folder, is_trained=True)
    query_tower = item_tower if card.is_shared else pretrained(AutoModel, Path(folder) / "query", is_trained=True)
    return DualEncoder(query_tower, item_tower, PairTokenizer.from_folder(folder, card.text), head=card.head)


def _by_length(lengths: Sequence[int]) -> Iterator[list[int]]:
    """Rows in batches of at most `TOKENS_PER_BATCH`, like lengths together."""
    rows: list[int] = []
    for row in np.argsort(lengths, kind="stable")[::-1].tolist():
        if rows and (len(rows) + 1) * lengths[rows[0]] > TOKENS_PER_BATCH:
            yield rows
            rows = []
        rows.append(row)
    if rows:
        yield rows
