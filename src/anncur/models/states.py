"""The last layer's states at the few places where a head reads them.

In a network of few layers most of the last one's work is for states that nobody reads. A BERT's last layer takes keys
and values from everywhere, but the rest is computed only where it is asked for: the same numbers, for a two-layer
network in little more than half the time. Other networks are run whole."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.nn import functional
from transformers import PreTrainedModel

from anncur.tokens import PairBatch


def states_at(network: PreTrainedModel, batch: PairBatch, columns: Tensor) -> Tensor:
    """States of the base network at some columns of each row. (n_rows, n_columns) to (n_rows, n_columns, hidden)"""
    base: Any = network.base_model
    if base.config.model_type != "bert":
        return pick(base(**inputs(batch)).last_hidden_state, columns)
    given = inputs(batch)
    mask = given.pop("attention_mask")[:, None, None, :].bool()
    states = base.embeddings(**given)
    *earlier, last = base.encoder.layer
    for layer in earlier:
        states = layer(states, mask)
    return _last_layer(last, states, mask, columns)


def pick(states: Tensor, columns: Tensor) -> Tensor:
    """(n_rows, width, hidden) at (n_rows, n_columns) gives (n_rows, n_columns, hidden)."""
    return states.gather(1, columns[:, :, None].expand(-1, -1, states.shape[-1]))


def inputs(batch: PairBatch) -> dict[str, Tensor]:
    """A batch as a BERT-like network of transformers takes it."""
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

    read = pick(states, columns)
    attended = functional.scaled_dot_product_attention(
        heads(attention.query(read)),
        heads(attention.key(states)),
        heads(attention.value(states)),
        attn_mask=mask,
        dropout_p=attention.dropout.p if layer.training else 0.0,
    )
    result: Tensor = layer.feed_forward_chunk(layer.attention.output(attended.transpose(1, 2).flatten(-2), read))
    return result
