"""BERT-like networks of transformers: loading them by folder or name, with fewer or narrower layers, and running them.

Feeds `encoders.py`. Loading is strict: missing or unexpected weights are an error, apart from a head that is still to
be trained."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from torch import Tensor
from torch.nn import functional
from transformers import AutoConfig, AutoModel, AutoModelForSequenceClassification, PreTrainedModel
from transformers.utils import logging as transformers_logging

from anncur.errors import InputError
from anncur.tokens import PairBatch

HEAD_WIDTH = 32  # width of an attention head in a narrowed network, as in MiniLM


def local_folder(source: str | Path) -> Path:
    """The folder of a model's files: the given one, or the hub's cache of a name."""
    if Path(source).is_dir():
        return Path(source)
    from huggingface_hub import snapshot_download

    try:
        return Path(snapshot_download(str(source), allow_patterns=["*.json", "*.safetensors"]))
    except Exception as error:
        raise InputError(f"no folder {source}, and no model of that name could be fetched: {error}") from error


def pretrained(factory: Any, source: str | Path, *, is_trained: bool = False) -> PreTrainedModel:
    """Load a network with all of its weights; only one that is still to be trained may lack a head."""
    folder = local_folder(source)
    if not (folder / "config.json").is_file():
        raise InputError(f"no file {folder / 'config.json'}; pass the folder of a transformers model")
    options: dict[str, Any] = {
        "use_safetensors": True,
        "attn_implementation": "sdpa",
    }  # safetensors: nothing is unpickled
    if factory is AutoModelForSequenceClassification:
        options["num_labels"] = 1
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


def check_positions(network: PreTrainedModel, n_positions: int) -> None:
    """Refuse texts that are longer than a network can read."""
    limit = network.config.max_position_embeddings
    if n_positions > limit:
        raise InputError(f"texts of {n_positions} tokens are longer than the {limit} that this network can read")


@contextmanager
def _quiet() -> Iterator[None]:
    """No progress bars, and no warning about a missing head, which is still to be trained."""
    verbosity = transformers_logging.get_verbosity()
    transformers_logging.set_verbosity_error()  # type: ignore[no-untyped-call]
    transformers_logging.disable_progress_bar()  # type: ignore[no-untyped-call]
    try:
        yield
    finally:
        transformers_logging.set_verbosity(verbosity)
        transformers_logging.enable_progress_bar()  # type: ignore[no-untyped-call]


def resized(network: PreTrainedModel, factory: Any, *, layers: int | None, width: int | None = None) -> PreTrainedModel:
    """The first layers of a network, or new and narrower ones over its embeddings."""
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
    """New layers over the pretrained embeddings, projected onto the leading singular vectors of the word embeddings."""
    if width < 1 or width % HEAD_WIDTH:
        raise InputError(f"width must be a multiple of {HEAD_WIDTH}, got {width}")
    shape = {
        "hidden_size": width,
        "intermediate_size": 4 * width,
        "num_attention_heads": width // HEAD_WIDTH,
        "num_hidden_layers": layers,
    }
    config = AutoConfig.for_model(**{**network.config.to_dict(), **shape})
    narrow: PreTrainedModel = factory.from_config(config, attn_implementation="sdpa")
    wide: Any = network.base_model.embeddings
    words = wide.word_embeddings.weight.detach()
    projection = torch.linalg.svd(words.T @ words)[0][:, :width]  # (hidden, width), leading singular vectors first
    new: Any = narrow.base_model.embeddings
    with torch.no_grad():
        for name in ("word_embeddings", "position_embeddings", "token_type_embeddings"):
            getattr(new, name).weight.copy_(getattr(wide, name).weight @ projection)
    return narrow


def save_network(network: PreTrainedModel, folder: Path) -> None:
    """Write configuration and weights."""
    with _quiet():
        network.save_pretrained(folder)


def states_at(network: PreTrainedModel, batch: PairBatch, columns: Tensor) -> Tensor:
    """Last-layer states at the columns that a head reads. (n_rows, n_columns) to (n_rows, n_columns, hidden)

    A BERT's last layer takes keys and values from all columns, but is computed only at these: the same numbers, for a
    two-layer network in little more than half the time. Other networks are run in full."""
    base: Any = network.base_model
    if base.config.model_type != "bert":
        return _pick(base(**inputs(batch)).last_hidden_state, columns)
    given = inputs(batch)
    mask = given.pop("attention_mask")[:, None, None, :].bool()
    states = base.embeddings(**given)
    *earlier, last = base.encoder.layer
    for layer in earlier:
        states = layer(states, mask)
    return _last_layer(last, states, mask, columns)


def inputs(batch: PairBatch) -> dict[str, Tensor]:
    """A batch as keyword arguments of a BERT-like network of transformers."""
    return {
        "input_ids": torch.from_numpy(batch.token_ids).long(),
        "token_type_ids": torch.from_numpy(batch.segment_ids).long(),
        "position_ids": torch.from_numpy(batch.position_ids).long(),
        "attention_mask": torch.from_numpy(batch.mask).long(),
    }


def _last_layer(layer: Any, states: Tensor, mask: Tensor, columns: Tensor) -> Tensor:
    attention = layer.attention.self

    def heads(projected: Tensor) -> Tensor:  # (n_rows, n_heads, n_places, head width)
        return projected.view(*projected.shape[:2], -1, attention.attention_head_size).transpose(1, 2)

    read = _pick(states, columns)
    attended = functional.scaled_dot_product_attention(
        heads(attention.query(read)),
        heads(attention.key(states)),
        heads(attention.value(states)),
        attn_mask=mask,
        dropout_p=attention.dropout.p if layer.training else 0.0,
    )
    result: Tensor = layer.feed_forward_chunk(layer.attention.output(attended.transpose(1, 2).flatten(-2), read))
    return result


def _pick(states: Tensor, columns: Tensor) -> Tensor:
    """(n_rows, width, hidden) at (n_rows, n_columns) gives (n_rows, n_columns, hidden)."""
    return states.gather(1, columns[:, :, None].expand(-1, -1, states.shape[-1]))
