"""The paper's encoders over any BERT-like network: [CLS] and [EMB] cross-encoders, and dual encoders.

A network comes from a folder or a name that transformers knows, whole, with fewer layers, or narrower. Reads integer
batches from `tokens.py`; knows nothing of training."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, ClassVar, Literal

import numpy as np
import torch
from safetensors import SafetensorError
from torch import Tensor, nn
from transformers import AutoConfig, AutoModel, AutoModelForSequenceClassification, PreTrainedModel
from transformers.utils import logging as transformers_logging

from anncur.arrays import FloatMatrix, FloatVector
from anncur.errors import InputError
from anncur.items import Item, Query
from anncur.models.checkpoint import Head, ModelCard
from anncur.models.states import inputs, states_at
from anncur.tokens import PairBatch, PairFormat, PairTokenizer, Tokens

HEAD_WIDTH = 32  # of one attention head in a narrowed network, as in MiniLM
UNIT_SCALE = 20.0  # the usual temperature of encoders whose vectors have length one
TOKENS_PER_BATCH = 8192  # of inference: large enough for the cores, small enough for the caches


class CrossEncoder(nn.Module):
    """Reads query and item together, and gives one number."""

    head: ClassVar[Literal["emb", "cls"]]

    def __init__(self, network: PreTrainedModel, tokenizer: PairTokenizer) -> None:
        super().__init__()
        _check_positions(network, tokenizer.format.query_length + tokenizer.format.item_length)
        self.network = network
        self.tokenizer = tokenizer

    def forward(self, batch: PairBatch) -> Tensor:
        """One score per pair. (n_pairs,)"""
        raise NotImplementedError

    @property
    def card(self) -> ModelCard:
        """What `save` writes beside the weights."""
        return ModelCard("cross-encoder", self.head, self.tokenizer.format)

    def save(self, folder: Path) -> None:
        """Write weights, tokenizer and card."""
        _save(self.network, folder)
        (folder / "tokenizer.json").write_text(self.tokenizer.json, encoding="utf-8")
        self.card.write(folder)

    @torch.no_grad()
    def predict(self, queries: Sequence[Tokens], items: Sequence[Tokens]) -> FloatVector:
        """Score each query with the item at the same place, in batches of like lengths. (n_pairs,)"""
        self.eval()
        scores = np.empty(len(queries), dtype=np.float32)
        for rows in _by_length([len(query) + len(item) for query, item in zip(queries, items, strict=True)]):
            batch = self.tokenizer.assemble([queries[row] for row in rows], [items[row] for row in rows])
            scores[rows] = self(batch).float().numpy()
        return scores


class EmbCrossEncoder(CrossEncoder):
    """The dot product of the mention's state, the mean of [Ms] and [Me], and the entity's, [ENT]."""

    head = "emb"

    def forward(self, batch: PairBatch) -> Tensor:
        states = states_at(self.network, batch, torch.from_numpy(batch.marks).long())
        start, end, entity = states.unbind(dim=1)  # (n_pairs, hidden) each
        return ((start + end) / 2 * entity).sum(dim=-1)


class ClsCrossEncoder(CrossEncoder):
    """A linear layer over the pooled state of [CLS]."""

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

    The two towers are separate networks, or one and the same. A vector is the raw state of [CLS], or with the head
    `mean` the mean of all states, of length one."""

    def __init__(
        self, query_tower: PreTrainedModel, item_tower: PreTrainedModel, tokenizer: PairTokenizer, *, head: Head = "cls"
    ) -> None:
        super().__init__()
        _check_positions(item_tower, max(tokenizer.format.query_length, 1 + tokenizer.format.item_length))
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
        """Whether one network reads both."""
        return self.query_tower is self.item_tower

    def save(self, folder: Path) -> None:
        """Write towers, tokenizer and card."""
        _save(self.item_tower, folder)
        if not self.is_shared:
            _save(self.query_tower, folder / "query")
        (folder / "tokenizer.json").write_text(self.tokenizer.json, encoding="utf-8")
        ModelCard("dual-encoder", self.head, self.tokenizer.format, self.is_shared).write(folder)

    @property
    def scale(self) -> float:
        """What a score is multiplied by before a softmax: vectors of length one are too close for it."""
        return 1.0 if self.head == "cls" else UNIT_SCALE

    def embed_queries(self, queries: Sequence[Query]) -> FloatMatrix:
        """(n_queries, hidden)"""
        return self.embed_tokens(self.tokenizer.queries(queries), are_items=False)

    def embed_items(self, items: Sequence[Item]) -> FloatMatrix:
        """(n_items, hidden)"""
        return self.embed_tokens(self.tokenizer.items(items), are_items=True)

    @torch.no_grad()
    def embed_tokens(self, texts: Sequence[Tokens], *, are_items: bool) -> FloatMatrix:
        """The vectors of tokenised texts, in batches of like lengths. (n_texts, hidden)"""
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
    projected onto their leading directions."""
    if head == "emb" and not text.marks:
        raise InputError("an [EMB] cross-encoder needs marks; pass a format with marks=True")
    factory = AutoModelForSequenceClassification if head == "cls" else AutoModel
    network = _resized(_pretrained(factory, source), factory, layers=layers, width=width)
    return CROSS_ENCODERS[head](network, PairTokenizer.from_folder(local_folder(source), text))


def load_cross_encoder(folder: str | Path) -> CrossEncoder:
    """Read what `CrossEncoder.save` wrote."""
    card = ModelCard.read(folder, kind="cross-encoder")
    factory = AutoModelForSequenceClassification if card.head == "cls" else AutoModel
    network = _pretrained(factory, folder, is_trained=True)
    return CROSS_ENCODERS[card.head](network, PairTokenizer.from_folder(folder, card.text))


def new_dual_encoder(
    source: str | Path, text: PairFormat, *, head: Head = "cls", is_shared: bool = False, layers: int | None = None
) -> DualEncoder:
    """A dual encoder to be trained: both towers start from the same network."""
    towers = [_resized(_pretrained(AutoModel, source), AutoModel, layers=layers) for _ in range(1 if is_shared else 2)]
    return DualEncoder(towers[0], towers[-1], PairTokenizer.from_folder(local_folder(source), text), head=head)


def load_dual_encoder(folder: str | Path) -> DualEncoder:
    """Read what `DualEncoder.save` wrote."""
    card = ModelCard.read(folder, kind="dual-encoder")
    item_tower = _pretrained(AutoModel, folder, is_trained=True)
    query_tower = item_tower if card.is_shared else _pretrained(AutoModel, Path(folder) / "query", is_trained=True)
    return DualEncoder(query_tower, item_tower, PairTokenizer.from_folder(folder, card.text), head=card.head)


def local_folder(source: str | Path) -> Path:
    """Where a model's files lie: the folder itself, or the hub's cache of a name."""
    if Path(source).is_dir():
        return Path(source)
    from huggingface_hub import snapshot_download

    try:
        return Path(snapshot_download(str(source), allow_patterns=["*.json", "*.safetensors"]))
    except Exception as error:
        raise InputError(f"no folder {source}, and no model of that name could be fetched: {error}") from error


def _pretrained(factory: Any, source: str | Path, *, is_trained: bool = False) -> PreTrainedModel:
    """A network with all of its weights; only one that is still to be trained may lack a head."""
    folder = local_folder(source)
    if not (folder / "config.json").is_file():
        raise InputError(f"no file {folder / 'config.json'}; pass the folder of a transformers model")
    options = {"num_labels": 1} if factory is AutoModelForSequenceClassification else {}
    try:
        with _quiet():
            network, found = factory.from_pretrained(
                folder, local_files_only=True, dtype=torch.float32, output_loading_info=True, **options
            )
    except (OSError, RuntimeError, ValueError, SafetensorError) as error:
        raise InputError(f"{folder} doesn't hold the weights of the network in its config.json: {error}") from error
    _check_is_bert_like(network, folder)
    heads = ("pooler.", "classifier.") if not is_trained else ("pooler.",) if factory is AutoModel else ()
    wrong = {name for name in found["missing_keys"] if not any(head in name for head in heads)}
    wrong |= {name for name in found["unexpected_keys"] if "encoder.layer." in name}
    if wrong:
        raise InputError(
            f"{folder} doesn't hold the weights of the network in its config.json: {len(wrong)} of them are missing "
            f"or too many, such as {min(wrong)}"
        )
    return network  # type: ignore[no-any-return]


def _check_is_bert_like(network: PreTrainedModel, folder: Path) -> None:
    base: Any = network.base_model
    embeddings = getattr(base, "embeddings", None)
    tables = ("word_embeddings", "position_embeddings", "token_type_embeddings")
    is_bert_like = all(hasattr(embeddings, table) for table in tables) and hasattr(base.encoder, "layer")
    if not is_bert_like or network.config.type_vocab_size < 2:
        raise InputError(
            f"{folder} holds a network of the kind {network.config.model_type!r}; take one like BERT, with position "
            "embeddings and two token types"
        )


def _check_positions(network: PreTrainedModel, n_positions: int) -> None:
    limit = network.config.max_position_embeddings
    if n_positions > limit:
        raise InputError(f"texts of {n_positions} tokens are longer than the {limit} that this network can read")


@contextmanager
def _quiet() -> Iterator[None]:
    """No bars, and no warning of a missing head: we are about to train it."""
    verbosity = transformers_logging.get_verbosity()
    transformers_logging.set_verbosity_error()  # type: ignore[no-untyped-call]
    transformers_logging.disable_progress_bar()  # type: ignore[no-untyped-call]
    try:
        yield
    finally:
        transformers_logging.set_verbosity(verbosity)
        transformers_logging.enable_progress_bar()  # type: ignore[no-untyped-call]


def _resized(
    network: PreTrainedModel, factory: Any, *, layers: int | None, width: int | None = None
) -> PreTrainedModel:
    config = network.config
    if width is not None and width > config.hidden_size:
        raise InputError(f"width must be at most the network's {config.hidden_size}, got {width}")
    if layers is not None and not 1 <= layers <= config.num_hidden_layers:
        raise InputError(f"layers must be between 1 and the network's {config.num_hidden_layers}, got {layers}")
    if width is not None and width < config.hidden_size:
        network = _narrowed(network, factory, width, layers or config.num_hidden_layers)
    elif layers is not None:
        encoder: Any = network.base_model.encoder
        encoder.layer = encoder.layer[:layers]
        config.num_hidden_layers = layers
    return network


def _narrowed(network: PreTrainedModel, factory: Any, width: int, layers: int) -> PreTrainedModel:
    """New layers over the leading directions of the pretrained embeddings."""
    if width < 1 or width % HEAD_WIDTH:
        raise InputError(f"width must be a multiple of {HEAD_WIDTH}, got {width}")
    shape = {
        "hidden_size": width,
        "intermediate_size": 4 * width,
        "num_attention_heads": width // HEAD_WIDTH,
        "num_hidden_layers": layers,
    }
    config = AutoConfig.for_model(**{**network.config.to_dict(), **shape})
    narrow: PreTrainedModel = factory.from_config(config)
    wide: Any = network.base_model.embeddings
    words = wide.word_embeddings.weight.detach()
    directions = torch.linalg.svd(words.T @ words)[0][:, :width]  # (hidden, width), leading first
    new: Any = narrow.base_model.embeddings
    with torch.no_grad():
        for name in ("word_embeddings", "position_embeddings", "token_type_embeddings"):
            getattr(new, name).weight.copy_(getattr(wide, name).weight @ directions)
    return narrow


def _save(network: PreTrainedModel, folder: Path) -> None:
    with _quiet():
        network.save_pretrained(folder)


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
