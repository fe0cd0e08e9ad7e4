"""Arrays that take minutes to make, kept in a folder under a digest of what they were made from.

Used by all trainings and by the benchmarks. Needs no torch."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from anncur.errors import DamagedError


def cached(folder: Path, kind: str, made_from: str, make: Callable[[], NDArray[Any]]) -> NDArray[Any]:
    """The array that `make` returns, read from the folder where it was made before from the same."""
    file = folder / f"{kind}-{hashlib.sha256(made_from.encode()).hexdigest()[:20]}.npy"
    if file.exists():
        return _read(file)
    made = make()
    folder.mkdir(parents=True, exist_ok=True)
    unfinished = file.with_suffix(f".{os.getpid()}.part")
    with unfinished.open("wb") as out:
        np.save(out, made, allow_pickle=False)
    os.replace(unfinished, file)
    return made


def _read(file: Path) -> NDArray[Any]:
    try:
        found: NDArray[Any] = np.load(file, allow_pickle=False)
    except (ValueError, EOFError) as error:  # NumPy's errors for files of another format or cut short
        raise DamagedError(f"{file} can't be read: {error}; delete it to have it made again") from error
    return found


def array_digest(array: NDArray[Any]) -> str:
    """A digest of an array's type, shape and content."""
    return hashlib.sha256(f"{array.dtype} {array.shape}".encode() + array.tobytes()).hexdigest()[:16]


def file_digest(file: Path) -> str:
    """A digest of a file's content."""
    with file.open("rb") as content:
        return hashlib.file_digest(content, "sha256").hexdigest()[:16]
