"""The folder that a training writes to: one writer at a time, and a best model that is complete at every moment.

A model is several files, so it is written aside, declared ready by one rename, and then moved to its place file by
file. A kill in between leaves the old model, or a new one whose move the next training finishes. Needs no torch."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from anncur.models.checkpoint import READY
from anncur.storage.files import STAGING, sync_file, sync_folder, writer_lock


@contextmanager
def training_in(folder: Path) -> Iterator[None]:
    """Hold a folder for one training, and finish the move of a killed one; a second training is refused."""
    with writer_lock(folder, remedy="take another folder"):
        _move_to_place(folder)
        yield


def write_model(folder: Path, write: Callable[[Path], None]) -> None:
    """Replace the model in a folder by the one that `write` puts into the folder it gets."""
    _move_to_place(folder)
    staged, ready = folder / f"model{STAGING}", folder / READY
    shutil.rmtree(staged, ignore_errors=True)  # left by a killed training
    staged.mkdir(parents=True)
    write(staged)
    for path in staged.rglob("*"):
        sync_folder(path) if path.is_dir() else sync_file(path)
    sync_folder(staged)
    staged.rename(ready)
    sync_folder(folder)
    _move_to_place(folder)


def _move_to_place(folder: Path) -> None:
    """Move what is ready; a move that was interrupted continues with the files that are left."""
    ready = folder / READY
    if not ready.is_dir():
        return
    for path in sorted(ready.rglob("*")):
        if path.is_file():
            place = folder / path.relative_to(ready)
            place.parent.mkdir(exist_ok=True)
            os.replace(path, place)
    sync_folder(folder)
    shutil.rmtree(ready)
