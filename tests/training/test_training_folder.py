"""The folder of a training: one writer, and a best model that survives a kill."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest

from anncur.errors import DamagedError, LockedError
from anncur.models.checkpoint import CARD, READY, ModelCard
from anncur.storage.files import writer_lock
from anncur.tokens import PairFormat
from anncur.training.folder import training_in, write_model

FILES = {"config.json": "c", "model.safetensors": "w", "query/model.safetensors": "q"}


class KilledError(BaseException):
    """Stands for a kill of the process."""


def write(folder: Path, mark: str, *, n_files: int = 9) -> None:
    """A model of several files with the same mark; killed after `n_files` of them."""
    for n_written, (name, content) in enumerate(FILES.items()):
        if n_written == n_files:
            raise KilledError
        (folder / name).parent.mkdir(exist_ok=True)
        (folder / name).write_text(content + mark)
    ModelCard("dual-encoder", "mean", PairFormat(8, 8), is_shared=False).write(folder)


def marks(folder: Path) -> set[str]:
    return {(folder / name).read_text().removeprefix(content) for name, content in FILES.items()}


def test_a_model_takes_the_place_of_the_one_before(tmp_path: Path) -> None:
    (tmp_path / "log").write_text("kept")
    for mark in ("1", "2"):
        write_model(tmp_path / "out", lambda folder, mark=mark: write(folder, mark))  # type: ignore[misc]
        assert marks(tmp_path / "out") == {mark}
    assert sorted(path.name for path in (tmp_path / "out").iterdir()) == [
        CARD,
        "config.json",
        "model.safetensors",
        "query",
    ]
    assert (tmp_path / "log").read_text() == "kept"


@pytest.mark.parametrize("n_files", range(len(FILES)))
def test_a_kill_while_a_model_is_written_leaves_the_one_before(tmp_path: Path, n_files: int) -> None:
    write_model(tmp_path, lambda folder: write(folder, "old"))
    with pytest.raises(KilledError):
        write_model(tmp_path, lambda folder: write(folder, "new", n_files=n_files))
    assert marks(tmp_path) == {"old"}
    assert ModelCard.read(tmp_path, kind="dual-encoder").head == "mean"
    write_model(tmp_path, lambda folder: write(folder, "newest"))
    assert marks(tmp_path) == {"newest"}


@pytest.mark.parametrize("n_moves", range(len(FILES) + 1))
def test_a_kill_while_a_model_is_moved_to_its_place_is_noticed_and_repaired_by_the_next_training(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, n_moves: int
) -> None:
    write_model(tmp_path, lambda folder: write(folder, "old"))
    replaced: list[Any] = []

    def replace(source: Path, target: Path) -> None:
        if len(replaced) == n_moves:
            raise KilledError
        replaced.append(source.rename(target))

    with monkeypatch.context() as patch:
        patch.setattr(os, "replace", replace)
        with pytest.raises(KilledError):
            write_model(tmp_path, lambda folder: write(folder, "new"))
    with pytest.raises(DamagedError, match=rf"killed while it moved .*; run it again, or move all .*{READY}"):
        ModelCard.read(tmp_path, kind="dual-encoder")
    with training_in(tmp_path):
        assert marks(tmp_path) == {"new"}
    assert ModelCard.read(tmp_path, kind="dual-encoder").head == "mean"


def test_a_second_training_in_the_same_folder_is_refused_until_the_first_has_ended(tmp_path: Path) -> None:
    with training_in(tmp_path):
        message = rf"{tmp_path} is being written to by process {os.getpid()}; wait for it, or take another folder"
        with pytest.raises(LockedError, match=message), training_in(tmp_path):
            pass
        with training_in(tmp_path / "other"):
            pass
    with training_in(tmp_path), pytest.raises(LockedError), writer_lock(tmp_path):
        pass
