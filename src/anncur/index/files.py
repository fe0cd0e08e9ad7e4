"""Files that are either whole or not there: written aside, synced, renamed; and hashed before anybody reads them.

Knows nothing of what is in them."""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import os
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from anncur.errors import DamagedError, LockedError, StorageError

BLOCK = 2**20
STAGING = ".new"  # ends the name of what we are still writing
UNFINISHED = (STAGING, ".__lock")  # and of what TensorStore is


@dataclass(frozen=True)
class FileRecord:
    """What a file must be."""

    sha256: str
    size: int


def write_file(path: Path, content: bytes) -> FileRecord:
    """Write a file so that after any crash it is there as a whole or not at all."""
    staged = path.with_name(path.name + STAGING)
    with storing(path, len(content)):
        make_folder(path.parent)
        with staged.open("wb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        os.rename(staged, path)
        sync_folder(path.parent)
    return FileRecord(hashlib.sha256(content).hexdigest(), len(content))


def publish_file(path: Path, content: bytes) -> None:
    """Like `write_file`, but never in the place of a file that is already there: that is a `LockedError`."""
    staged = path.with_name(f"{path.name}.{os.getpid()}{STAGING}")
    write_file(staged, content)
    with storing(path, len(content)):
        try:
            os.link(staged, path)  # unlike a rename, it never replaces
        except FileExistsError:
            raise LockedError(f"{path} was published by somebody else just now; try again") from None
        finally:
            os.unlink(staged)
        sync_folder(path.parent)


def sync_file(path: Path) -> None:
    """Make sure that a file written by others is on disk."""
    with storing(path, 0), path.open("rb") as file:
        os.fsync(file.fileno())


def make_folder(folder: Path) -> None:
    """Make a folder, and what is missing above it, with their names on disk."""
    if not folder.is_dir():
        make_folder(folder.parent)
        folder.mkdir(exist_ok=True)
        sync_folder(folder.parent)


def sync_folder(folder: Path) -> None:
    """Make sure that a folder's names are on disk."""
    with storing(folder, 0):
        handle = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(handle)
        finally:
            os.close(handle)


def record_file(path: Path) -> FileRecord:
    """Hash a file, block by block."""
    digest, size = hashlib.sha256(), 0
    with storing(path, 0), path.open("rb") as file:
        while block := file.read(BLOCK):
            digest.update(block)
            size += len(block)
    return FileRecord(digest.hexdigest(), size)


def read_checked(path: Path, record: FileRecord) -> bytes:
    """The content of a file, if it is what it must be."""
    try:
        content = path.read_bytes()
    except OSError as error:
        raise DamagedError(f"{path} can't be read: {error.strerror or error}") from error
    if len(content) != record.size or hashlib.sha256(content).hexdigest() != record.sha256:
        raise damaged(path, record, len(content))
    return content


def check_file(path: Path, record: FileRecord) -> None:
    """Refuse a file that isn't what it must be, without holding it in memory."""
    try:
        found = record_file(path)
    except StorageError as error:
        raise DamagedError(str(error)) from error
    if found != record:
        raise damaged(path, record, found.size)


def damaged(path: Path, record: FileRecord, size: int) -> DamagedError:
    """The error for a file that isn't what it must be."""
    what = f"has {size:,} bytes instead of {record.size:,}" if size != record.size else "doesn't match its checksum"
    return DamagedError(f"{path} {what}; `anncur verify --repair` mends what can be scored again")


@contextlib.contextmanager
def storing(path: Path, n_bytes: int) -> Iterator[None]:
    """Turn errors of the operating system into ours, with the path and the bytes needed."""
    try:
        yield
    except StorageError:
        raise
    except OSError as error:
        needed = f" ({n_bytes:,} bytes)" if n_bytes else ""
        raise StorageError(f"can't store or read {path}{needed}: {error.strerror or error}") from error


@contextlib.contextmanager
def in_use(path: Path) -> Iterator[None]:
    """Show that a file is being worked with, so that nobody deletes it; several may."""
    with storing(path, 0):
        handle = os.open(path, os.O_RDONLY)
    try:
        fcntl.flock(handle, fcntl.LOCK_SH)
        yield
    finally:
        os.close(handle)


def is_in_use(path: Path) -> bool:
    """Whether somebody is working with a file."""
    handle = os.open(path, os.O_RDONLY)
    try:
        return not _try_lock(handle)
    finally:
        os.close(handle)


@contextlib.contextmanager
def writer_lock(
    folder: Path, *, patience: float = 0.0, remedy: str = "build in shards (--shard i/n)"
) -> Iterator[None]:
    """Hold a folder for writing; a second writer is refused after `patience` seconds. Readers never need it.

    The refusal tells to wait, or else to do what `remedy` says."""
    with storing(folder, 0):
        make_folder(folder)
        handle = os.open(folder / "lock", os.O_RDWR | os.O_CREAT, 0o644)
    try:
        deadline = time.monotonic() + patience
        while not _try_lock(handle):
            if time.monotonic() >= deadline:
                holder = os.pread(handle, 100, 0).decode(errors="replace").strip() or "another process"
                raise LockedError(f"{folder} is being written to by {holder}; wait for it, or {remedy}")
            time.sleep(0.05)
        with storing(folder / "lock", 0):
            os.ftruncate(handle, 0)
            os.pwrite(handle, f"process {os.getpid()}\n".encode(), 0)
        yield
    finally:
        os.close(handle)  # which also gives the lock back


def _try_lock(handle: int) -> bool:
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True
