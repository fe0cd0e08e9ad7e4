"""What retrievers derive from items, such as embeddings and counts of words: .npy arrays, stored part by part.

    segments/<name>/retrievers/<retriever>/about.json                    what it was derived with
    segments/<name>/retrievers/<retriever>/00000000.embeddings.npy       an array of the part that begins with that row
    retrievers/<retriever>-<digest>/basis.npy                            fitted once, for the items of all segments

A part is a unit of work: a build that was killed encodes only the parts that are missing. Knows nothing of what the
arrays mean; reads them from bytes that were hashed before, and never maps a file into memory."""

from __future__ import annotations

import hashlib
import io
import json
import math
import re
import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from anncur.arrays import Positions
from anncur.errors import DamagedError, RetrieverError
from anncur.progress import Progress, silent
from anncur.retrievers.base import Arrays, Encoded, EncodingRetriever, ProjectingRetriever, Retriever
from anncur.scores import ItemsAt
from anncur.storage.files import FileRecord, read_file, storing, write_file
from anncur.storage.manifest import SEGMENTS

RETRIEVERS, ABOUT = "retrievers", "about.json"
SAFE_NAME = re.compile(r"[a-z0-9_]{1,40}")
MOST_HEADER = 2**16 + 10  # bytes of an .npy file before its numbers
N_COMPARED = 2  # items that are encoded again, to see whether parts that are there can be continued


class Parts(Protocol):
    """Where parts are kept while items are encoded, by the row of their first item."""

    def get(self, start: int, names: Sequence[str], /) -> Arrays | None:
        """The arrays of these names, if all are there."""
        ...

    def put(self, start: int, arrays: Arrays, /) -> None:
        """Keep arrays of a part."""
        ...


class MemoryParts:
    """Nowhere: whoever encodes has them."""

    def get(self, start: int, names: Sequence[str]) -> Arrays | None:
        return None

    def put(self, start: int, arrays: Arrays) -> None:
        """Nothing."""


class FolderParts:
    """In a folder, a file for each array."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def begin(self, retriever: EncodingRetriever, items_at: ItemsAt, n_items: int) -> None:
        """Let go of parts that were encoded in another way than this retriever would."""
        about = about_encoded(retriever.fingerprint(), n_items, retriever.items_per_part)
        if not self._can_continue(about, retriever, items_at):
            with storing(self._folder, 0):
                (self._folder / ABOUT).unlink(
                    missing_ok=True
                )  # first: a kill must not leave some of the others with it
                shutil.rmtree(self._folder, ignore_errors=True)
            write_file(self._folder / ABOUT, about)

    def _can_continue(self, about: bytes, retriever: EncodingRetriever, items_at: ItemsAt) -> bool:
        try:
            is_same = (self._folder / ABOUT).read_bytes() == about
        except FileNotFoundError:
            return False
        first = self.get(0, retriever.arrays) if is_same else None
        if first is None:
            return False
        few = np.arange(min(N_COMPARED, n_rows(retriever, first)))
        return retriever.continues(items_at(0, len(few)), retriever.select(first, few))

    def get(self, start: int, names: Sequence[str]) -> Arrays | None:
        paths = {name: self._folder / part_file(start, name) for name in names}
        try:
            return {name: decode_array(read_file(path), str(path)) for name, path in paths.items()}
        except DamagedError:
            return None

    def put(self, start: int, arrays: Arrays) -> None:
        for name, array in arrays.items():
            write_file(self._folder / part_file(start, name), encode_array(array))


def encode_items(
    retriever: EncodingRetriever,
    items_at: ItemsAt,
    n_items: int,
    *,
    parts: Parts,
    basis: Arrays | None = None,
    progress: Progress = silent,
) -> tuple[list[Arrays], Arrays | None]:
    """All parts of some items, those that are missing encoded now; and the basis, fitted unless it is given."""
    found: list[Arrays] = []
    stage = f"encoding items for {retriever.stored_as}"
    progress(stage, 0, n_items)
    for start, stop in ranges(retriever, n_items):
        part = parts.get(start, retriever.arrays)
        if part is None:
            part = retriever.encode(items_at(start, stop), start)
            _check_alike(retriever, found[:1], part)
            parts.put(start, part)
        found.append(part)
        progress(stage, stop, n_items)
    if isinstance(retriever, ProjectingRetriever):
        basis = retriever.fit_basis(found) if basis is None else basis
        for place, (start, _) in enumerate(ranges(retriever, n_items)):
            projected = retriever.project(found[place], basis)
            parts.put(start, projected)
            found[place] = {**found[place], **projected}
    return found, basis


def _check_alike(retriever: EncodingRetriever, first: Sequence[Arrays], part: Arrays) -> None:
    """Refuse a part whose arrays are of another width than those of the first."""
    for name in retriever.arrays:
        widths = [other[name].shape[1:] for other in (*first, part)]
        if len(set(widths)) > 1:
            raise RetrieverError(
                f"the retriever {retriever.name} must give all items {name} of the same width, got {widths[0][0]} and "
                f"{widths[1][0]}"
            )


def encode_segment(
    index: Path,
    segment: str,
    retrievers: Mapping[str, Retriever],
    *,
    items_at: ItemsAt,
    n_items: int,
    bases: Mapping[str, Arrays] | None = None,
    progress: Progress = silent,
) -> tuple[dict[str, Encoded], dict[str, FileRecord]]:
    """Store what retrievers derive from the items of a segment that is being made; what others derived before goes.

    `bases` are those of the index that it is added to. Returns what was derived, by what it is stored as, and the files
    that this needs outside of the segment."""
    wanted = encoding_retrievers(retrievers)
    for path in (index / SEGMENTS / segment / RETRIEVERS).glob("*"):
        if path.name not in map(folder_name, wanted):
            shutil.rmtree(path, ignore_errors=True)
    found: dict[str, Encoded] = {}
    files: dict[str, FileRecord] = {}
    for stored_as, retriever in wanted.items():
        parts = FolderParts(index / encoded_folder(segment, stored_as))
        parts.begin(retriever, items_at, n_items)
        known = (bases or {}).get(stored_as)
        encoded, basis = encode_items(retriever, items_at, n_items, parts=parts, basis=known, progress=progress)
        found[stored_as] = Encoded(encoded, retriever.fingerprint())
        if basis is not None and known is None:
            files |= write_basis(index, stored_as, basis)
    return found, files


def store_encoded(
    index: Path, segment: str, retrievers: Mapping[str, Retriever], encoded: Mapping[str, Encoded]
) -> None:
    """Write what is in memory as that of a new segment."""
    for stored_as, retriever in encoding_retrievers(retrievers).items():
        start, folder = 0, index / encoded_folder(segment, stored_as)
        for part in encoded[stored_as].parts:
            FolderParts(folder).put(start, part)
            start += n_rows(retriever, part)
        write_file(folder / ABOUT, about_encoded(encoded[stored_as].fingerprint, start))


def encoding_retrievers(retrievers: Mapping[str, Retriever]) -> dict[str, EncodingRetriever]:
    """Those that derive something that is stored, one for each name that it is stored as."""
    return {one.stored_as: one for one in retrievers.values() if isinstance(one, EncodingRetriever)}


def by_name(retrievers: Mapping[str, Retriever], encoded: Mapping[str, Encoded]) -> dict[str, Encoded]:
    """What is stored of each retriever; several may share it."""
    return {
        name: encoded[one.stored_as]
        for name, one in retrievers.items()
        if isinstance(one, EncodingRetriever) and one.stored_as in encoded
    }


def selected(retriever: EncodingRetriever, parts: Sequence[Arrays], rows: Positions) -> list[Arrays]:
    """The same parts with some rows only, counted through all of them; a part that has none left is dropped."""
    kept, start = [], 0
    for part in parts:
        stop = start + n_rows(retriever, part)
        own = rows[(rows >= start) & (rows < stop)] - start
        if len(own):
            kept.append(part if len(own) == stop - start else retriever.select(part, own))
        start = stop
    return kept


def n_rows(retriever: EncodingRetriever, part: Arrays) -> int:
    """The number of items of a part."""
    return len(part[retriever.arrays[-1]])


def ranges(retriever: EncodingRetriever, n_items: int) -> list[tuple[int, int]]:
    """The first row of each part, and the first after it."""
    step = retriever.items_per_part
    return [(start, min(start + step, n_items)) for start in range(0, n_items, step)]


def write_basis(index: Path, stored_as: str, basis: Arrays) -> dict[str, FileRecord]:
    """Store a basis under a name of its own, unless it is there."""
    contents = {name: encode_array(array) for name, array in basis.items()}
    digest = hashlib.sha256(b"".join(contents.values())).hexdigest()[:16]
    folder = f"{RETRIEVERS}/{folder_name(stored_as)}-{digest}"
    return {f"{folder}/{name}.npy": write_file(index / folder / f"{name}.npy", contents[name]) for name in contents}


def is_of_basis(name: str, stored_as: str) -> bool:
    """Whether a file of an index is of a basis."""
    return name.startswith(f"{RETRIEVERS}/{folder_name(stored_as)}-")


def folder_name(stored_as: str) -> str:
    """A name for files: the name itself, if that is a plain word, else a digest."""
    if SAFE_NAME.fullmatch(stored_as):
        return stored_as
    return hashlib.sha256(stored_as.encode()).hexdigest()[:16]


def encoded_folder(segment: str, stored_as: str) -> str:
    """Where the parts of a segment are, within an index."""
    return f"{SEGMENTS}/{segment}/{RETRIEVERS}/{folder_name(stored_as)}"


def part_file(start: int, name: str) -> str:
    """The file of an array of the part that begins with this row."""
    return f"{start:08}.{name}.npy"


def about_encoded(fingerprint: str, n_items: int, items_per_part: int | None = None) -> bytes:
    """What is written beside parts: what they were encoded with, and how far a process would go on with them."""
    about = {"fingerprint": fingerprint, "n_items": n_items, "items_per_part": items_per_part}
    return json.dumps(about, sort_keys=True).encode()


def read_fingerprint(about: bytes) -> str:
    """The fingerprint of what items were encoded with."""
    try:
        return str(json.loads(about)["fingerprint"])
    except (ValueError, KeyError, TypeError) as error:
        raise DamagedError(f"what a retriever stored can't be read: {error}") from error


def encode_array(array: NDArray[Any]) -> bytes:
    """The bytes of an .npy file, the same for the same array."""
    content = io.BytesIO()
    np.save(content, np.ascontiguousarray(array), allow_pickle=False)
    return content.getvalue()


def decode_array(content: bytes | memoryview, name: str) -> NDArray[Any]:
    """Read what `encode_array` gave, without copying it."""
    try:
        header = io.BytesIO(content[:MOST_HEADER])
        np.lib.format.read_magic(header)
        shape, is_fortran, dtype = np.lib.format.read_array_header_1_0(header)
        if is_fortran or dtype.hasobject:
            raise ValueError(f"it holds {dtype}")
        return np.frombuffer(content, dtype, count=math.prod(shape), offset=header.tell()).reshape(shape)
    except ValueError as error:
        raise DamagedError(f"{name} can't be read: {error}") from error
