"""Networks that encoders are made of: from a folder or a name that transformers knows, whole, cut or narrower.

Loads all weights or none: what is missing or too much is an error, apart from a head that is still to be trained."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from transformers import AutoConfig, AutoModel, AutoModelForSequenceClassification, PreTrainedModel
from transformers.utils import logging as transformers_logging

from anncur.errors import InputError

HEAD_WIDTH = 32  # of one attention head in a narrowed network, as in MiniLM


def local_folder(source: str | Path) -> Path:
    """Where a model's files lie: the folder itself, or the hub's cache of a name."""
    if Path(source).is_dir():
        return Path(source)
    from huggingface_hub import snapshot_download

    try:
        return Path(snapshot_download(str(source), allow_patterns=["*.json", "*.safetensors"]))
    except Exception as error:
        raise InputError(f"no folder {source}, and no model of that name could be fetched: {error}") from error


def pretrained(factory: Any, source: str | Path, *, is_trained: bool = False) -> PreTrainedModel:
    """A network with all of its weights; only one that is still to be trained may lack a head."""
    folder = local_folder(source)
    if not (folder / "config.json").is_file():
        raise InputError(f"no file {folder / 'config.json'}; pass the folder of a transformers model")
    options: dict[str, Any] = {"use_safetensors": True, "attn_implementation": "sdpa"}  # nothing is unpickled
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
    """No bars, and no warning of a missing head: we are about to train it."""
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
    narrow: PreTrainedModel = factory.from_config(config, attn_implementation="sdpa")
    wide: Any = network.base_model.embeddings
    words = wide.word_embeddings.weight.detach()
    directions = torch.linalg.svd(words.T @ words)[0][:, :width]  # (hidden, width), leading first
    new: Any = narrow.base_model.embeddings
    with torch.no_grad():
        for name in ("word_embeddings", "position_embeddings", "token_type_embeddings"):
            getattr(new, name).weight.copy_(getattr(wide, name).weight @ directions)
    return narrow


def save_network(network: PreTrainedModel, folder: Path) -> None:
    """Write configuration and weights."""
    with _quiet():
        network.save_pretrained(folder)
