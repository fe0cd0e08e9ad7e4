"""The training loop: resumable, seeded, and its folder holds the best model."""

from __future__ import annotations

import json
from dataclasses import dataclass, field, replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("torch", reason="needs the extra `train`")
pytest.importorskip("transformers", reason="needs the extra `train`")

import torch
from safetensors.torch import load_file

from anncur.errors import DamagedError, InputError, ResumeError
from anncur.training.loop import LOG, RESUME, LogRow, TrainSettings, train
from training.toy_tasks import Toys

pytestmark = pytest.mark.slow  # the whole of it takes seconds

SETTINGS = TrainSettings(epochs=2, learning_rate=1e-3, evaluations=2)
TASKS = ["cross_encoder", "dual_encoder", "distillation"]


@pytest.fixture(scope="module")
def toys(tmp_path_factory: pytest.TempPathFactory) -> Toys:
    return Toys(tmp_path_factory.mktemp("toys"), dropout=0.1)


class KilledError(Exception):
    """Stands for a kill of the process."""


@dataclass
class Killer:
    """Raises at the call after this many."""

    after: int

    def __call__(self, *_: Any) -> None:
        self.after -= 1
        if self.after < 0:
            raise KilledError


@dataclass
class KillAtNewRow:
    """Kills a training whenever a row is new, between the evaluation and the save."""

    seen: set[int] = field(default_factory=set)

    def __call__(self, row: LogRow) -> None:
        if row.step not in self.seen:
            self.seen.add(row.step)
            raise KilledError


@dataclass
class Scripted:
    """A training task with given held-out scores, and a model of one weight and one bias."""

    dev: list[float]
    per_epoch: int = 4
    model: torch.nn.Module = field(default_factory=lambda: torch.nn.Linear(1, 1))
    saved: list[int] = field(default_factory=list)
    name: str = "scripted"

    def __post_init__(self) -> None:
        self.evaluations = 0

    def describe(self) -> dict[str, Any]:
        return {"task": self.name}

    def n_batches(self) -> int:
        return self.per_epoch

    def batches(self, epoch: int) -> list[Any]:
        return [torch.full((1, 1), float(place)) for place in range(self.per_epoch)]

    def loss(self, batch: Any) -> torch.Tensor:
        return self.model(batch).sum()  # type: ignore[no-any-return]

    def evaluate(self) -> float:
        self.evaluations += 1
        return self.dev[self.evaluations - 1]

    def save(self, folder: Path) -> None:
        self.saved.append(self.evaluations - 1)


def rows_of(rows: list[LogRow]) -> list[LogRow]:
    """Rows without their seconds."""
    return [replace(row, seconds=0.0) for row in rows]


def logged(folder: Path) -> list[LogRow]:
    """The rows of the log, each without its seed."""
    records = [json.loads(line) for line in (folder / LOG).read_text().splitlines()]
    return [LogRow(**{name: value for name, value in record.items() if name != "seed"}) for record in records]


def weights(folder: Path) -> dict[str, torch.Tensor]:
    found: dict[str, torch.Tensor] = load_file(folder / "model.safetensors")
    return found


def assert_same_weights(first: dict[str, torch.Tensor], second: dict[str, torch.Tensor]) -> None:
    assert first.keys() == second.keys()
    assert all(torch.equal(value, second[name]) for name, value in first.items())


@pytest.mark.parametrize("kind", TASKS)
def test_a_training_that_is_killed_at_every_step_and_row_ends_with_the_same_weights(
    toys: Toys, tmp_path: Path, kind: str
) -> None:
    whole = getattr(toys, kind)(tmp_path / "whole")
    expected = train(whole, tmp_path / "whole", SETTINGS)
    n_steps = SETTINGS.epochs * whole.n_batches()
    out = tmp_path / "killed"
    n_kills, rows, on_row = 0, None, KillAtNewRow()
    while rows is None:
        try:
            rows = train(getattr(toys, kind)(out), out, SETTINGS, progress=Killer(1), on_row=on_row, save_every=0)
        except KilledError:
            n_kills += 1
            assert n_kills < 3 * n_steps, "every run must make progress before it is killed"
    assert n_kills == n_steps - 1 + len(expected)
    assert rows_of(rows) == rows_of(logged(out)) == rows_of(expected)
    assert_same_weights(weights(out), weights(tmp_path / "whole"))


@pytest.mark.parametrize("kind", TASKS)
def test_the_last_weights_are_the_same_after_a_kill(toys: Toys, tmp_path: Path, kind: str) -> None:
    """Not only the best weights: every later epoch depends on the last ones."""
    whole, killed = getattr(toys, kind)(tmp_path / "whole"), getattr(toys, kind)(tmp_path / "killed")
    train(whole, tmp_path / "whole", SETTINGS)
    with pytest.raises(KilledError):
        train(killed, tmp_path / "killed", SETTINGS, progress=Killer(whole.n_batches() + 1), save_every=0)
    resumed = getattr(toys, kind)(tmp_path / "killed")
    train(resumed, tmp_path / "killed", SETTINGS)
    assert_same_weights(resumed.model.state_dict(), whole.model.state_dict())


def test_a_kill_between_saves_costs_only_the_time_since_the_last_one(toys: Toys, tmp_path: Path) -> None:
    expected = train(toys.cross_encoder(tmp_path), tmp_path / "whole", SETTINGS)
    out = tmp_path / "killed"
    with pytest.raises(KilledError):
        train(toys.cross_encoder(out), out, SETTINGS, progress=Killer(5))  # saved after step 3
    assert json.loads((out / LOG).read_text().splitlines()[-1])["step"] == 3
    steps: list[int] = []

    def note(stage: str, done: int, total: int) -> None:
        steps.append(done)

    rows = train(toys.cross_encoder(out), out, SETTINGS, progress=note)
    assert steps[0] == 4
    assert rows_of(rows) == rows_of(expected)


def test_a_finished_training_is_not_done_again(toys: Toys, tmp_path: Path) -> None:
    rows = train(toys.cross_encoder(tmp_path), tmp_path, SETTINGS)
    assert train(toys.cross_encoder(tmp_path), tmp_path, SETTINGS, progress=Killer(0)) == rows
    assert (tmp_path / RESUME).stat().st_size < 20_000, "a finished training needs no optimizer"


def test_the_same_seed_gives_the_same_weights_and_another_seed_others(toys: Toys, tmp_path: Path) -> None:
    found = {}
    for name, seed in (("a", 0), ("b", 0), ("c", 1)):
        task = toys.cross_encoder(tmp_path, seed=seed)
        train(task, tmp_path / name, replace(SETTINGS, epochs=1, seed=seed))
        found[name] = task.model.state_dict()
    assert_same_weights(found["a"], found["b"])
    assert any(not torch.equal(value, found["c"][name]) for name, value in found["a"].items())


def test_the_model_of_the_best_evaluation_is_saved(tmp_path: Path) -> None:
    task = Scripted(dev=[0.1, 0.5, 0.4, 0.5, 0.7])
    rows = train(task, tmp_path, TrainSettings(epochs=1, evaluations=4))
    assert [row.dev for row in rows] == task.dev
    assert task.saved == [row for row, found in enumerate(rows) if found.is_best] == [0, 1, 4], "ties keep the earlier"


def test_the_model_in_the_folder_is_that_of_the_best_row(toys: Toys, tmp_path: Path) -> None:
    from anncur.models.encoders import load_cross_encoder

    task = toys.cross_encoder(tmp_path)
    rows = train(task, tmp_path, replace(SETTINGS, learning_rate=1e-2))
    task.model = load_cross_encoder(tmp_path)
    assert task.evaluate() == max(row.dev for row in rows)


def test_patience_ends_a_training_that_gets_no_better(tmp_path: Path) -> None:
    task = Scripted(dev=[0.1, 0.5, 0.5, 0.4, 0.9, 0.9])
    rows = train(task, tmp_path, TrainSettings(epochs=1, evaluations=4, patience=2))
    assert [row.step for row in rows] == [0, 1, 2, 3]
    assert train(Scripted(dev=[]), tmp_path, TrainSettings(epochs=1, evaluations=4, patience=2)) == rows


@pytest.mark.parametrize(("evaluations", "steps"), [(1, [4, 8]), (2, [2, 4, 6, 8]), (3, [2, 3, 4, 6, 7, 8])])
def test_evaluations_are_spread_over_every_epoch(tmp_path: Path, evaluations: int, steps: list[int]) -> None:
    rows = train(Scripted(dev=[0.0] * 9), tmp_path, TrainSettings(epochs=2, evaluations=evaluations))
    assert [row.step for row in rows] == [0, *steps]
    assert [row.epoch for row in rows[1:]] == [(step - 1) // 4 for step in steps]


def test_the_learning_rate_rises_and_then_falls_linearly(tmp_path: Path) -> None:
    settings = TrainSettings(epochs=1, learning_rate=1.0, warmup=0.25, evaluations=16)
    rows = train(Scripted(dev=[0.0] * 17, per_epoch=16), tmp_path, settings)
    rates = [row.learning_rate for row in rows]
    assert rates[:4] == [0.25, 0.5, 0.75, 1.0]
    falls = [before - after for before, after in pairwise(rates[4:])]
    assert falls == pytest.approx([1 / 12] * len(falls))
    assert rates[-1] == 0.0


def test_a_row_holds_the_mean_loss_since_the_row_before(tmp_path: Path) -> None:
    task = Scripted(dev=[0.0] * 3, model=torch.nn.Linear(1, 1))
    with torch.no_grad():
        task.model.weight.fill_(1.0)  # type: ignore[operator]
        task.model.bias.fill_(0.0)  # type: ignore[operator]
    rows = train(task, tmp_path, TrainSettings(epochs=1, learning_rate=0, evaluations=2))
    assert [row.loss for row in rows] == [None, 0.5, 2.5]


def test_the_log_is_strict_json_with_the_seed_in_every_row(tmp_path: Path) -> None:
    train(Scripted(dev=[0.0] * 3), tmp_path, TrainSettings(evaluations=2, seed=7))

    def refuse(constant: str) -> None:
        raise AssertionError(f"{constant} is no JSON")

    lines = (tmp_path / LOG).read_text().splitlines()
    assert [json.loads(line, parse_constant=refuse)["seed"] for line in lines] == [7, 7, 7]


def test_another_training_in_the_same_folder_is_refused_with_what_differs(tmp_path: Path) -> None:
    train(Scripted(dev=[0.0] * 6), tmp_path, TrainSettings())
    with pytest.raises(ResumeError, match=r"learning_rate was 1e-05 and is now 0\.1; take another folder, or delete"):
        train(Scripted(dev=[]), tmp_path, TrainSettings(learning_rate=0.1))
    with pytest.raises(ResumeError, match="task was 'scripted' and is now 'other'"):
        train(Scripted(dev=[], name="other"), tmp_path, TrainSettings())


@pytest.mark.parametrize("damage", ["cut", "empty", "foreign"])
def test_a_damaged_state_is_named_with_its_remedy(tmp_path: Path, damage: str) -> None:
    from safetensors.torch import save_file

    train(Scripted(dev=[0.0] * 6), tmp_path, TrainSettings())
    file = tmp_path / RESUME
    if damage == "foreign":
        save_file({"x": torch.zeros(1)}, file)
    else:
        file.write_bytes(file.read_bytes()[:50] if damage == "cut" else b"")
    with pytest.raises(DamagedError, match=rf"{RESUME} can't be read: .*; delete it to train from the start"):
        train(Scripted(dev=[]), tmp_path, TrainSettings())
    file.unlink()
    assert len(train(Scripted(dev=[0.0] * 6), tmp_path, TrainSettings())) == 5


@pytest.mark.parametrize(
    "wrong",
    [
        {"epochs": 0},
        {"evaluations": 0},
        {"learning_rate": -1},
        {"learning_rate": float("nan")},
        {"warmup": 1.5},
        {"patience": 0},
    ],
    ids=str,
)
def test_settings_that_make_no_sense_are_refused(wrong: dict[str, Any]) -> None:
    with pytest.raises(InputError, match=next(iter(wrong))):
        TrainSettings(**wrong)


def test_a_training_whose_loss_is_not_a_number_is_refused_with_a_remedy(toys: Toys, tmp_path: Path) -> None:
    with pytest.raises(InputError, match="lower learning rate"):
        train(toys.cross_encoder(tmp_path), tmp_path, replace(SETTINGS, learning_rate=1e30))
