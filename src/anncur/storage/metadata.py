"""The metadata of a segment's items in columns, so that a filter reads no items: one .npz file, made of the items.

segments/<name>/metadata.npz"""

from __future__ import annotations

import io
import zipfile
from collections.abc import Iterator
from pathlib import Path

import numpy as np

from anncur.columns import MetadataColumns
from anncur.errors import DamagedError
from anncur.items import Item
from anncur.storage.files import write_file
from anncur.storage.items import ItemRows

METADATA = "metadata.npz"
ITEMS_AT_ONCE = 1000


def write_metadata(segment: Path, items: ItemRows) -> None:
    """Store the metadata of a segment's items, unless they are there."""
    if not (segment / METADATA).exists():
        content = io.BytesIO()
        np.savez(content, allow_pickle=False, **columns_of(items).to_arrays())
        write_file(segment / METADATA, content.getvalue())


def columns_of(items: ItemRows) -> MetadataColumns:
    """The metadata of items in columns."""
    return MetadataColumns.of(item.metadata for item in _streamed(items))


def decode_metadata(content: bytes, name: str) -> MetadataColumns:
    """Read what `write_metadata` stored."""
    try:
        with np.load(io.BytesIO(content), allow_pickle=False) as arrays:
            return MetadataColumns.from_arrays(dict(arrays))
    except (ValueError, KeyError, zipfile.BadZipFile) as error:
        raise DamagedError(f"{name} can't be read: {error}") from error


def _streamed(items: ItemRows) -> Iterator[Item]:
    for start in range(0, len(items), ITEMS_AT_ONCE):
        yield from items.between(start, start + ITEMS_AT_ONCE)
