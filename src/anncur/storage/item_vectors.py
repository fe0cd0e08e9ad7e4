"""The items of an index as searches rank them, computed once and mapped by every process that opens it.

    vectors/<space>/projection.safetensors     how items become offsets and vectors
    vectors/<space>/<segment>.<version>.offsets.npy   the offset of each row of a segment, and the squared length of its
                                                      vector
    vectors/<space>/<segment>.<version>.vectors.npy   the vectors
    vectors/<space>/<segment>.<version>.keys.npy      the number of each vector, which stays its own when segments are
                                                      merged

A space is a projection and all that was ever projected by it; its name begins with the version that it came with, and
files name the one that they came with: no file is ever written twice. Rows that were hidden when they were projected
are zeros. All of it can be made again from exact scores and items."""

from __future__ import annotations

import hashlib
import io
import json
import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np
import safetensors
import safetensors.numpy
from numpy.typing import NDArray

from anncur.arrays import FloatMatrix, FloatVector, Positions
from anncur.errors import DamagedError
from anncur.factors.items import ITEMS_AT_ONCE, EmbeddingBasis, ItemBasis
from anncur.retrievers.features import Scale
from anncur.search.projection import Projection
from anncur.storage.codecs import decode_settings
from anncur.storage.encoded import encode_array
from anncur.storage.files import FileRecord, write_blocks, write_file
from anncur.vectors.half import halved, single

VECTORS = "vectors"
PROJECTION = "projection.safetensors"
OFFSETS, ROWS, KEYS = "offsets.npy", "vectors.npy", "keys.npy"
KEYS_PER_VERSION = 2**39  # that one version may give to rows
ROWS_PER_START = 2**14  # between the 2**24 places where the numbers of a version may begin


@dataclass(frozen=True, eq=False)
class SegmentVectors:
    """What is stored of the rows of one segment."""

    offsets: FloatMatrix  # (n_rows, 2): offsets and squared lengths
    vectors: FloatMatrix  # (n_rows, width)
    keys: Positions  # (n_rows,), ascending


def space_of(version: int, projection: bytes) -> str:
    """The name of the space that a version begins."""
    return f"{version:08}-{hashlib.sha256(projection).hexdigest()[:16]}"


def first_key(version: int, segments: Sequence[str] = ()) -> int:
    """The first of the numbers that a version gives to the rows of these segments.

    Two copies of an index may both go on to the same version: other segments have other numbers there."""
    digest = hashlib.sha256("\n".join(segments).encode()).digest()
    start = int.from_bytes(digest[:3], "big") * ROWS_PER_START if segments else 0
    return version * KEYS_PER_VERSION + start


def first_key_since(space: str) -> int:
    """The first of the numbers that were given after a space began."""
    return first_key(int(space.partition("-")[0]) + 1)


def projection_file(space: str) -> str:
    """Where a projection is, within an index."""
    return f"{VECTORS}/{space}/{PROJECTION}"


def segment_file(space: str, segment: str, version: int, what: str) -> str:
    """Where an array of a segment is, within an index."""
    return f"{VECTORS}/{space}/{segment}.{version}.{what}"


def write_projection(folder: Path, space: str, content: bytes) -> dict[str, FileRecord]:
    """Store an encoded projection."""
    return {projection_file(space): write_file(folder / projection_file(space), content)}


@dataclass(frozen=True, eq=False)
class SegmentRows:
    """The rows of a segment that are to be stored: `blocks` gives offsets and vectors of the `live` ones, in order."""

    segment: str
    version: int
    live: Positions
    keys: Positions  # (n_rows,)
    blocks: Callable[[], Iterable[tuple[FloatVector, FloatMatrix]]]


def write_projected(folder: Path, space: str, rows: SegmentRows, *, is_half: bool) -> dict[str, FileRecord]:
    """Store a segment's rows; half precision is kept only where it holds all of them."""
    try:
        return _write_projected(folder, space, rows, halved if is_half else single)
    except _TooPreciseError:
        return _write_projected(folder, space, rows, single)


class _TooPreciseError(Exception):
    """Half precision doesn't hold all vectors."""


def _write_projected(
    folder: Path, space: str, rows: SegmentRows, in_precision: Callable[[FloatMatrix], FloatMatrix]
) -> dict[str, FileRecord]:
    offsets = np.zeros((len(rows.keys), 2), dtype=np.float32)
    blocks = iter(rows.blocks())
    first = next(blocks)  # a segment has live rows
    shape = (len(rows.keys), first[1].shape[1])
    wanted = in_precision(np.zeros((1, 1), dtype=np.float32)).dtype

    def vectors() -> Iterator[FloatMatrix]:
        done = 0
        for of_block, block in chain([first], blocks):
            here = rows.live[done : done + len(block)]
            offsets[here, 0], offsets[here, 1] = of_block, np.einsum("ij,ij->i", block, block)
            done += len(block)
            stored = in_precision(block)
            if stored.dtype != wanted:
                raise _TooPreciseError
            yield stored

    names = [segment_file(space, rows.segment, rows.version, what) for what in (OFFSETS, ROWS, KEYS)]
    of_vectors = _write_rows(folder / names[1], _with_hidden(vectors(), rows.live, shape), shape, wanted)
    return {
        names[0]: write_file(folder / names[0], encode_array(offsets)),
        names[1]: of_vectors,
        names[2]: write_file(folder / names[2], encode_array(rows.keys)),
    }


def _with_hidden(blocks: Iterable[FloatMatrix], live: Positions, shape: tuple[int, int]) -> Iterator[FloatMatrix]:
    """Blocks of live rows with zeros for the hidden ones between them."""
    done, row, (n_rows, width) = 0, 0, shape
    for block in blocks:
        stop = int(live[done + len(block)]) if done + len(block) < len(live) else n_rows
        spread = np.zeros((stop - row, width), dtype=block.dtype)
        spread[live[done : done + len(block)] - row] = block
        done, row = done + len(block), stop
        yield spread


def _write_rows(path: Path, blocks: Iterable[FloatMatrix], shape: tuple[int, int], dtype: np.dtype[Any]) -> FileRecord:
    """An .npy file of rows that come block by block."""
    header, stored = io.BytesIO(), dtype.newbyteorder("<")
    about = {"descr": np.lib.format.dtype_to_descr(stored), "fortran_order": False, "shape": shape}
    np.lib.format.write_array_header_1_0(header, about)

    def content() -> Iterator[bytes | memoryview]:
        yield header.getvalue()
        for block in blocks:
            if block.size:
                yield np.ascontiguousarray(block, dtype=stored).data.cast("B")

    return write_blocks(path, content(), len(header.getvalue()) + math.prod(shape) * stored.itemsize)


def live_blocks(parts: Iterable[tuple[SegmentVectors, Positions]]) -> Iterator[tuple[FloatVector, FloatMatrix]]:
    """Offsets and vectors of the live rows of segments, block by block."""
    for part, live in parts:
        for start in range(0, len(live), ITEMS_AT_ONCE):
            rows = live[start : start + ITEMS_AT_ONCE]
            yield part.offsets[rows, 0], single(part.vectors[rows])


def encode_projection(projection: Projection) -> bytes:
    """Settings and numbers as JSON, arrays beside them; the same bytes for the same projection."""
    basis = projection.basis
    embeddings = basis.embeddings
    arrays: dict[str, NDArray[Any]] = {f"scale.{name}": scale.rows() for name, scale in projection.scales.items()}
    if basis.components is not None:
        arrays["components"] = basis.components
    if embeddings is not None:
        arrays["embeddings.mean"] = embeddings.mean
        if embeddings.components is not None:
            arrays["embeddings.components"] = embeddings.components
    record = {
        "settings": asdict(projection.settings),
        "n_fitted": projection.n_fitted,
        "factor": basis.factor,
        "mean_offset": basis.mean_offset,
        "noise": basis.noise,
        "embedding_factor": None if embeddings is None else embeddings.factor,
    }
    contiguous = {name: np.ascontiguousarray(array, dtype=np.float32) for name, array in sorted(arrays.items())}
    return safetensors.numpy.save(contiguous, {"projection": json.dumps(record, sort_keys=True)})


def decode_projection(content: bytes, name: str) -> Projection:
    """Read what `encode_projection` gave."""
    try:
        arrays = safetensors.numpy.load(content)
        n_header = int.from_bytes(content[:8], "little")
        record = json.loads(json.loads(content[8 : 8 + n_header])["__metadata__"]["projection"])
        embeddings = None
        if record["embedding_factor"] is not None:
            components = arrays.get("embeddings.components")
            embeddings = EmbeddingBasis(arrays["embeddings.mean"], components, record["embedding_factor"])
        basis = ItemBasis(
            arrays.get("components"), record["factor"], embeddings, record["mean_offset"], record["noise"]
        )
        scales = {
            array.removeprefix("scale."): Scale.of_rows(arrays[array]) for array in arrays if array.startswith("scale.")
        }
        return Projection(decode_settings(record["settings"]), basis, record["n_fitted"], scales)
    except (ValueError, TypeError, KeyError, safetensors.SafetensorError) as error:
        raise DamagedError(f"{name} can't be read: {error}") from error
