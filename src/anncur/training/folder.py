"""The folder that a training writes to: one writer at a time, and a best model that is whole at every moment.

A model is several files, so it is written aside, declared ready by one rename, and then moved to its place file by
file; a kill on the way leaves the old model, or a new one whose move the next training finishes."""

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
    """Hold a folder for one training, and finish what a killed one had ready; a second one is refused."""
    with writer_lock(folder, remedy="take another folder"):
        _move_to_place(folder)
        yield


def write_model(folder: Path, write: Callable[[Path], None]) -> None:
    """Replace the model in a folder by the one that `write` puts into the folder that it is given."""
    _move_to_place(folder)
    staged, ready = folder / f"model{STAGING}", folder / READY
    shutil.rmtree(staged, ignore_errors=True)  # a killed training may have left a part
    staged.mkdir(parents=True)
    write(staged)
    for path in staged.rglob("*"):
        sync_folder(path) if path.is_dir() else sync_file(path)
    sync_folder(staged)
    staged.rename(ready)
    sync_folder(folder)
    _move_to_place(folder)


def _move_to_place(folder: Path) -> None:
    """Move what is ready; done as often as it takes, it ends the same."""
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
