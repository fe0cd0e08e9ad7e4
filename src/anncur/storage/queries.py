"""Queries as JSON: text, id, mention, and the embedding of one that brought its own."""

from __future__ import annotations

import base64
from typing import Any

import numpy as np

from anncur.arrays import FloatVector
from anncur.errors import DamagedError
from anncur.items import Query

TYPES = ("<f2", "<f4")


def query_record(query: Query) -> dict[str, Any]:
    """All that a query is; its embedding just as it came."""
    record: dict[str, Any] = {"text": query.text, "id": query.id, "mention": query.mention}
    if query.embedding is not None:
        record["embedding"] = encode_embedding(query.embedding)
    return record


def read_query(record: dict[str, Any]) -> Query:
    """Read what `query_record` gave."""
    mention = record["mention"]
    return Query(
        record["text"],
        record["id"],
        None if mention is None else tuple(mention),
        decode_embedding(record.get("embedding")),
    )


def encode_embedding(embedding: FloatVector) -> str:
    """Its type and its bytes as text."""
    numbers = embedding.astype("<f2" if embedding.dtype == np.float16 else "<f4")
    return f"{numbers.dtype.str}:{base64.b64encode(numbers.tobytes()).decode()}"


def decode_embedding(text: str | None) -> FloatVector | None:
    """Read what `encode_embedding` gave; None where there was none."""
    if text is None:
        return None
    dtype, _, numbers = text.partition(":")
    try:
        if dtype not in TYPES:
            raise ValueError(f"it is of type {dtype!r}")
        return np.frombuffer(base64.b64decode(numbers, validate=True), dtype=dtype).astype(np.float32)
    except ValueError as error:
        raise DamagedError(f"the embedding of a query can't be read: {error}") from error
