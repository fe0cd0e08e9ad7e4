"""Files that are either whole or not there: written aside, synced, renamed; and hashed before anybody reads them.

Knows nothing of what is in them."""

from __future__ import annotations

import contextlib
import ctypes
import hashlib
import mmap
import os
import shutil
import sys
import weakref
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

import filelock

from anncur.errors import DamagedError, LockedError, StorageError

BLOCK = 2**20
LEAST_MAPPED = 2**16  # bytes; a smaller file is read
STAGING = ".new"  # ends the name of what we are still writing
UNFINISHED = (STAGING, ".__lock")  # and of what TensorStore is
LOCK, LOCKS, WRITER = "lock", "locks", "writer"


@dataclass(frozen=True)
class FileRecord:
    """What a file must be."""

    sha256: str
    size: int


def write_file(path: Path, content: bytes) -> FileRecord:
    """Write a file so that after any crash it is there as a whole or not at all."""
    return write_blocks(path, [content], len(content))


def write_blocks(path: Path, blocks: Iterable[bytes | memoryview], n_bytes: int) -> FileRecord:
    """The same of content that comes block by block, `n_bytes` in all."""
    staged, digest = path.with_name(path.name + STAGING), hashlib.sha256()
    with storing(path, n_bytes):
        make_folder(path.parent)
        with staged.open("wb") as file:
            for block in blocks:
                file.write(block)
                digest.update(block)
            file.flush()
            os.fsync(file.fileno())
        os.replace(staged, path)
        sync_folder(path.parent)
    return FileRecord(digest.hexdigest(), n_bytes)


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


def copy_file(source: Path, path: Path) -> None:
    """Copy a file that must be there, with its content and its name on disk."""
    with storing(path, 0):
        make_folder(path.parent)
        try:
            shutil.copyfile(source, path)
        except FileNotFoundError as error:
            raise DamagedError(f"{source} can't be read: {error.strerror or error}") from error
        sync_file(path)
        sync_folder(path.parent)


def sync_file(path: Path) -> None:
    """Make sure that a file written by others is on disk."""
    with storing(path, 0), path.open("rb+") as file:
        os.fsync(file.fileno())


def make_folder(folder: Path) -> None:
    """Make a folder, and what is missing above it, with their names on disk."""
    if not folder.is_dir():
        make_folder(folder.parent)
        folder.mkdir(exist_ok=True)
        sync_folder(folder.parent)


def sync_folder(folder: Path) -> None:
    """Make sure that a folder's names are on disk, where the system can: Windows opens no folders."""
    if os.name == "nt":
        return
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
    content = read_file(path)
    if len(content) != record.size or hashlib.sha256(content).hexdigest() != record.sha256:
        raise damaged(path, record, len(content))
    return content


def map_checked(path: Path, record: FileRecord) -> memoryview:
    """The same without reading it into memory: pages of the file, which all processes that map it share.

    They stay when the file is deleted. Where a system allows no more maps, it is read."""
    try:
        with path.open("rb") as file:
            size = os.fstat(file.fileno()).st_size
            if size < LEAST_MAPPED:
                return memoryview(read_checked(path, record))
            mapped = _mapped(file.fileno(), size)
    except FileNotFoundError as error:
        raise DamagedError(f"{path} can't be read: {error.strerror}") from error
    except OSError:
        return memoryview(read_checked(path, record))
    if size != record.size or hashlib.sha256(mapped).hexdigest() != record.sha256:
        raise damaged(path, record, size)
    return mapped


def _mapped(descriptor: int, size: int) -> memoryview:
    """Pages of a file that need no open descriptor: an index may have more files than a process may open."""
    if sys.version_info >= (3, 13):
        return memoryview(mmap.mmap(descriptor, size, access=mmap.ACCESS_READ, trackfd=False))
    if not hasattr(mmap, "PROT_READ"):
        raise OSError("this system maps no files without keeping them open")
    library = ctypes.CDLL(None, use_errno=True)
    library.mmap.restype = ctypes.c_void_p
    library.mmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t, *[ctypes.c_int] * 3, ctypes.c_long]
    address = library.mmap(None, size, mmap.PROT_READ, mmap.MAP_SHARED, descriptor, 0)
    if address == ctypes.c_void_p(-1).value:
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))
    pages = (ctypes.c_ubyte * size).from_address(address)
    unmap = weakref.finalize(pages, library.munmap, ctypes.c_void_p(address), ctypes.c_size_t(size))
    unmap.atexit = False  # other threads may still read when the process ends
    return memoryview(pages).cast("B").toreadonly()


def read_file(path: Path) -> bytes:
    """The content of a file that must be there."""
    try:
        return path.read_bytes()
    except OSError as error:
        raise DamagedError(f"{path} can't be read: {error.strerror or error}") from error


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
    return DamagedError(f"{path} {what}")


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
def in_use(folder: Path, name: str) -> Iterator[None]:
    """Show that something in a folder is being worked with, so that nobody deletes it; several processes may."""
    path = folder / LOCKS / f"{name}-{os.getpid()}.lock"
    with storing(path, 0):
        make_folder(path.parent)
        lock = filelock.FileLock(path)
        lock.acquire()
    try:
        yield
    finally:
        lock.release()
        path.unlink(missing_ok=True)


def is_in_use(folder: Path, name: str) -> bool:
    """Whether somebody is working with it. Who was killed holds nothing."""
    return any(_is_held(path) for path in (folder / LOCKS).glob(f"{name}-*.lock"))


@contextlib.contextmanager
def locked(path: Path, *, patience: float = -1.0) -> Iterator[None]:
    """Hold a lock file, alone among all processes and threads; waits `patience` seconds, or as long as it takes."""
    with storing(path, 0):
        make_folder(path.parent)
        lock = filelock.FileLock(path, timeout=patience)
        try:
            lock.acquire()
        except filelock.Timeout as error:
            raise LockedError(f"{path} is held by somebody else; wait for it") from error
    try:
        yield
    finally:
        lock.release()


@contextlib.contextmanager
def writer_lock(
    folder: Path, *, patience: float = 0.0, remedy: str = "build in shards (--shard i/n)"
) -> Iterator[None]:
    """Hold a folder for writing; a second writer is refused after `patience` seconds. Readers never need it.

    The refusal advises to wait, or else the `remedy`."""
    with contextlib.ExitStack() as held:
        try:
            held.enter_context(locked(folder / LOCK, patience=patience))
        except LockedError:
            raise LockedError(f"{folder} is being written to by {_writer(folder)}; wait for it, or {remedy}") from None
        with storing(folder / WRITER, 0):
            (folder / WRITER).write_text(f"process {os.getpid()}\n")
        yield


def _writer(folder: Path) -> str:
    try:
        return (folder / WRITER).read_text(errors="replace")[:100].strip() or "another process"
    except OSError:
        return "another process"


def _is_held(path: Path) -> bool:
    try:
        with locked(path, patience=0.0):
            return False
    except LockedError:
        return True
