"""Has retrievers encode the items of an index: what they need for that, and the checks before it.

The work is done by `storage/encoded.py`; this knows which retrievers there are, and what the user passed."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from anncur.engines.base import Engine
from anncur.engines.local import LOCAL
from anncur.errors import DamagedError, InputError
from anncur.items import Item, Query
from anncur.progress import Progress
from anncur.retrievers.base import Arrays, Encoded, EncodingRetriever, ProjectingRetriever, Retriever, check_fingerprint
from anncur.retrievers.embeddings import EMBEDDINGS, EmbeddingRetriever
from anncur.retrievers.user_embeddings import EmbeddingsLike, UserRetriever
from anncur.storage.encoded import (
    ABOUT,
    RETRIEVERS,
    FolderParts,
    MemoryParts,
    about_encoded,
    encode_items,
    encoded_folder,
    encoding_retrievers,
    folder_name,
    is_of_basis,
    part_file,
    write_basis,
)
from anncur.storage.files import FileRecord, record_file, write_file
from anncur.storage.manifest import Segment
from anncur.storage.version import Version


def check_embeddings(retrievers: Mapping[str, Retriever], n_items: int, queries: Sequence[Query]) -> None:
    """Refuse embeddings of another number of items, and anchor queries that can't be embedded, before any work."""
    for retriever in retrievers.values():
        if isinstance(retriever, UserRetriever):
            retriever.embedder.check_count(n_items)
            retriever.check_queries(queries)


def check_first_query(fitted: Mapping[str, Retriever], retrievers: Mapping[str, Retriever], query: Query) -> None:
    """Let embedders embed one query, so that one that can't fails before anything is paid for."""
    for name, retriever in retrievers.items():
        if isinstance(retriever, EmbeddingRetriever):
            fitted[name].scores([query])


def without_arrays(retrievers: Mapping[str, Retriever]) -> dict[str, Retriever]:
    """The same retrievers without arrays of the user's, which were for the items of one build."""
    return {
        name: retriever.with_items(None) if isinstance(retriever, UserRetriever) else retriever
        for name, retriever in retrievers.items()
    }


def with_new_items(retrievers: Mapping[str, Retriever], embeddings: EmbeddingsLike | None) -> dict[str, Retriever]:
    """The same retrievers, ready to encode items that are added."""
    own = retrievers.get(EMBEDDINGS)
    if not isinstance(own, UserRetriever):
        if embeddings is not None:
            raise InputError(
                "this index was built without embeddings, and can't take some now; build it with embeddings"
            )
        return dict(retrievers)
    ready = own if embeddings is None else own.with_items(embeddings)
    if not ready.embedder.has_items:
        raise InputError(
            "this index has embeddings of its items: give those of the new ones, an array with a row for each "
            "or a function of a list of items"
        )
    return {**retrievers, EMBEDDINGS: ready}


def check_encoder(retriever: EncodingRetriever, encoded: Encoded, items: Sequence[Item]) -> None:
    """Refuse to encode with another model than that of what is stored; `items` are those of the first part there."""
    check_fingerprint(retriever, encoded.fingerprint)
    if isinstance(retriever, UserRetriever):
        retriever.check_new(items, encoded.parts[0])


def encode_in_memory(
    retrievers: Mapping[str, Retriever],
    items: Sequence[Item],
    *,
    bases: Mapping[str, Arrays] | None = None,
    engine: Engine = LOCAL,
    progress: Progress,
) -> tuple[dict[str, Encoded], dict[str, Arrays]]:
    """What retrievers derive from items, by what it is stored as, and the bases: those given, or fitted now."""
    encoded: dict[str, Encoded] = {}
    found: dict[str, Arrays] = dict(bases or {})
    for stored_as, retriever in encoding_retrievers(retrievers).items():
        parts, basis = encode_items(
            retriever,
            lambda start, stop: items[start:stop],
            len(items),
            parts=MemoryParts(),
            basis=found.get(stored_as),
            engine=engine,
            progress=progress,
        )
        encoded[stored_as] = Encoded(parts, retriever.fingerprint())
        if basis is not None:
            found[stored_as] = basis
    return encoded, found


def encode_again(
    version: Version, retrievers: Mapping[str, Retriever], damaged: Sequence[str], *, progress: Progress
) -> dict[str, FileRecord]:
    """Repair what retrievers derived, as far as they can derive it again; returns all files of a version then."""
    files = dict(version.manifest.files)
    for stored_as, retriever in encoding_retrievers(retrievers).items():
        folder = f"/{RETRIEVERS}/{folder_name(stored_as)}/"
        is_basis_damaged = any(is_of_basis(name, stored_as) for name in damaged)
        if not is_basis_damaged and not any(folder in name for name in damaged):
            continue
        if isinstance(retriever, UserRetriever) and not retriever.embedder.has_items:
            continue
        progress(f"encoding items for {stored_as}", 0, 1)
        try:
            for segment in version.manifest.segments:
                _encode_parts_again(version, segment, retriever, damaged)
            if isinstance(retriever, ProjectingRetriever):
                basis_files = _project_again(version, retriever, is_basis_damaged=is_basis_damaged)
                if basis_files:
                    files = {name: of for name, of in files.items() if not is_of_basis(name, stored_as)} | basis_files
        except DamagedError:
            continue  # without its items there is nothing to encode
        files |= {name: record_file(version.folder / name) for name in files if folder in name}
        progress(f"encoding items for {stored_as}", 1, 1)
    return files


def _encode_parts_again(
    version: Version, segment: Segment, retriever: EncodingRetriever, damaged: Sequence[str]
) -> None:
    """Write the parts of a segment again that have a damaged file."""
    place = encoded_folder(segment.name, retriever.stored_as)
    for start, stop in version.part_ranges(segment, retriever):
        if any(f"{place}/{part_file(start, name)}" in damaged for name in retriever.arrays):
            part = retriever.encode(version.store(segment).between(start, stop), start)
            FolderParts(version.folder / place).put(start, part)
    if f"{place}/{ABOUT}" in damaged:
        about = about_encoded(retriever.fingerprint(), version.spec(segment).n_items)
        write_file(version.folder / place / ABOUT, about)


def _project_again(
    version: Version, retriever: ProjectingRetriever, *, is_basis_damaged: bool
) -> dict[str, FileRecord]:
    """Write the vectors of all parts again; returns the files of the basis, if it had to be fitted again."""
    found: list[tuple[FolderParts, int, Arrays]] = []
    for segment in version.manifest.segments:
        parts = FolderParts(version.folder / encoded_folder(segment.name, retriever.stored_as))
        for start, _ in version.part_ranges(segment, retriever):
            part = parts.get(start, retriever.arrays)
            if part is None:
                raise DamagedError(f"{version.folder} has lost a part of what it stored for {retriever.stored_as}")
            found.append((parts, start, part))
    if is_basis_damaged:
        basis = retriever.fit_basis([part for _, _, part in found])
    else:
        basis = version.bases([retriever.stored_as])[retriever.stored_as]
    for parts, start, part in found:
        parts.put(start, retriever.project(part, basis))
    return write_basis(version.folder, retriever.stored_as, basis) if is_basis_damaged else {}
