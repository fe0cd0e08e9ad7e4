"""The training loop, for every model and loss: a training task has batches, a loss and a score on held-out data.

It can be killed at any moment: it resumes from its last save and ends with the same weights. Writes the best model,
`training.jsonl` with one tidy row per evaluation, and `resume.safetensors` with all that a resumed run needs."""

from __future__ import annotations

import json
import math
import os
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Protocol

import torch
from safetensors import safe_open
from safetensors.torch import save_file
from torch import Tensor, nn

from anncur.errors import DamagedError, InputError, ResumeError
from anncur.numbers import number, whole_number
from anncur.progress import Progress, silent
from anncur.training.folder import write_model

LOG, RESUME = "training.jsonl", "resume.safetensors"


@dataclass(frozen=True, slots=True)
class TrainSettings:
    """How long and how fast to train.

    The learning rate rises over the first `warmup` share of all steps and then falls linearly to 0.
    Training ends early after `patience` evaluations without a better one."""

    epochs: int = 1
    learning_rate: float = 1e-5
    warmup: float = 0.01
    weight_decay: float = 0.01
    clip: float = 1.0
    evaluations: int = 5  # in each epoch
    patience: int | None = None
    seed: int = 0

    def __post_init__(self) -> None:
        whole_number("epochs", self.epochs, least=1)
        whole_number("evaluations", self.evaluations, least=1)
        number("learning_rate", self.learning_rate, least=0)
        number("warmup", self.warmup, least=0, most=1)
        if self.patience is not None:
            whole_number("patience", self.patience, least=1)
        whole_number("seed", self.seed, least=0)


class TrainingTask(Protocol):
    """A model, the batches that it is trained on, its loss, and its score on held-out data."""

    @property
    def model(self) -> nn.Module: ...

    def describe(self) -> dict[str, Any]:
        """All that the outcome depends on, apart from the `TrainSettings`; a resumed run must have the same."""
        ...

    def n_batches(self) -> int:
        """The number of batches in every epoch."""
        ...

    def batches(self, epoch: int, /) -> Sequence[Any]:
        """The batches of an epoch, the same for the same epoch."""
        ...

    def loss(self, batch: Any, /) -> Tensor:
        """A batch's loss, to be minimised."""
        ...

    def evaluate(self) -> float:
        """The model's score on held-out data; higher is better."""
        ...

    def save(self, folder: Path, /) -> None:
        """Write the model into an empty folder."""
        ...


@dataclass(frozen=True, slots=True)
class LogRow:
    """One evaluation, a row of the log."""

    epoch: int
    step: int
    loss: float | None  # mean since the row before; None before training
    learning_rate: float
    dev: float  # score on held-out data
    is_best: bool
    seconds: float  # training time so far, evaluations included


@dataclass
class State:
    """The progress of a training."""

    step: int = 0
    best: float = -math.inf
    since_best: int = 0  # evaluations without a better one
    seconds: float = 0.0
    losses: list[float] = field(default_factory=list)  # of the steps since the last evaluation
    is_finished: bool = False


@contextmanager
def seeded(seed: int) -> Iterator[None]:
    """Seed torch within the block; its global state is restored afterwards."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        yield


def ignore_row(row: LogRow, /) -> None:
    """The default of `on_row`."""


def train(
    task: TrainingTask,
    folder: str | Path,
    settings: TrainSettings,
    *,
    progress: Progress = silent,
    on_row: Callable[[LogRow], None] = ignore_row,
    save_every: float = 300.0,
) -> list[LogRow]:
    """Train a model; the best of all evaluations is in `folder` afterwards. Returns all rows of the log.

    A state to resume from is saved at every evaluation and every `save_every` seconds."""
    with seeded(settings.seed):
        run = _Run(task, Path(folder), settings)
        started = time.monotonic() - run.state.seconds
        last_save = time.monotonic()
        if run.state.step == 0 and not run.rows:
            on_row(run.evaluate(seconds=time.monotonic() - started))
        while not run.state.is_finished:
            run.step()
            progress("training", run.state.step, run.n_steps)
            run.state.seconds = time.monotonic() - started
            if run.is_evaluation_due():
                on_row(run.evaluate(seconds=run.state.seconds))
            elif time.monotonic() - last_save < save_every:
                continue
            run.save()
            last_save = time.monotonic()
        return run.rows


class _Run:
    """One training, new or resumed."""

    def __init__(self, task: TrainingTask, folder: Path, settings: TrainSettings) -> None:
        self.task = task
        self.folder = folder
        self.settings = settings
        self.per_epoch = task.n_batches()
        self.n_steps = settings.epochs * self.per_epoch
        self.rows: list[LogRow] = []
        self.state = State()
        self._epoch = -1
        self._batches: Sequence[Any] = []
        self._optimizer = _optimizer(task.model, settings)
        folder.mkdir(parents=True, exist_ok=True)
        if (folder / RESUME).exists():
            self._resume()

    def step(self) -> None:
        epoch, place = divmod(self.state.step, self.per_epoch)
        if epoch != self._epoch:
            self._epoch, self._batches = epoch, self.task.batches(epoch)
        self.task.model.train()
        for group in self._optimizer.param_groups:
            group["lr"] = self._learning_rate()
        loss = self.task.loss(self._batches[place])
        if not torch.isfinite(loss):
            raise InputError(f"the loss is {loss.item()} at step {self.state.step + 1}; take a lower learning rate")
        self._optimizer.zero_grad()
        loss.backward()  # type: ignore[no-untyped-call]
        nn.utils.clip_grad_norm_(self.task.model.parameters(), self.settings.clip)
        self._optimizer.step()
        self.state.losses.append(loss.item())
        self.state.step += 1

    def is_evaluation_due(self) -> bool:
        done, before = (
            step * self.settings.evaluations // self.per_epoch for step in (self.state.step, self.state.step - 1)
        )
        return done > before

    def evaluate(self, *, seconds: float) -> LogRow:
        state = self.state
        with torch.random.fork_rng():
            dev = self.task.evaluate()
        is_best = dev > state.best
        state.best = max(dev, state.best)
        state.since_best = 0 if is_best else state.since_best + 1
        if is_best:
            write_model(self.folder, self.task.save)
        loss = sum(state.losses) / len(state.losses) if state.losses else None
        epoch = (state.step - 1) // self.per_epoch if state.step else 0
        row = LogRow(epoch, state.step, loss, self._learning_rate(), dev, is_best, seconds)
        state.losses = []
        state.is_finished = state.step >= self.n_steps or state.since_best == self.settings.patience
        self.rows.append(row)
        return row

    def save(self) -> None:
        """Write all that the remaining steps depend on into one file, which replaces the last one in one step."""
        moments = {
            f"optimizer.{number}.{name}": value
            for number, values in self._optimizer.state_dict()["state"].items()
            for name, value in values.items()
        }
        weights = {f"model.{name}": value for name, value in self.task.model.state_dict().items()}
        tensors = {**weights, **moments, "random": torch.get_rng_state()} if not self.state.is_finished else {}
        about = {
            "plan": json.dumps(self._plan()),
            "state": json.dumps(asdict(self.state)),
            "rows": json.dumps([asdict(row) for row in self.rows]),
        }
        lines = "".join(json.dumps({**asdict(row), "seed": self.settings.seed}) + "\n" for row in self.rows)
        (self.folder / LOG).write_text(lines, encoding="utf-8")  # before the state: a finished run never writes again
        unfinished = self.folder / f"{RESUME}.part"
        save_file({name: value.contiguous().clone() for name, value in tensors.items()}, unfinished, about)
        os.replace(unfinished, self.folder / RESUME)

    def _resume(self) -> None:
        file = self.folder / RESUME
        about, tensors = _read_resume(file)
        plan = json.loads(json.dumps(self._plan()))
        wanted = {
            name: value for name, value in plan.items() if name in about["plan"]
        }  # states of older versions have fewer fields
        if about["plan"] != wanted:
            raise ResumeError(
                f"{self.folder} holds another training: {_difference(about['plan'], wanted)}; "
                f"take another folder, or delete {file} to train from the start"
            )
        self.state = State(**about["state"])
        self.rows = [LogRow(**row) for row in about["rows"]]
        if tensors:
            self._restore(tensors)

    def _restore(self, tensors: dict[str, Tensor]) -> None:
        torch.set_rng_state(tensors.pop("random"))
        weights = {name.removeprefix("model."): value for name, value in tensors.items() if name.startswith("model.")}
        self.task.model.load_state_dict(weights)
        state: dict[int, dict[str, Tensor]] = {}
        for name, value in tensors.items():
            if name.startswith("optimizer."):
                _, number_text, kind = name.split(".")
                state.setdefault(int(number_text), {})[kind] = value
        self._optimizer.load_state_dict({**self._optimizer.state_dict(), "state": state})

    def _plan(self) -> dict[str, Any]:
        return {**asdict(self.settings), **self.task.describe()}

    def _learning_rate(self) -> float:
        """Linear warm-up, then linear decay."""
        n_warmup = max(1, round(self.settings.warmup * self.n_steps))
        rising = (self.state.step + 1) / n_warmup
        falling = (self.n_steps - self.state.step) / max(1, self.n_steps - n_warmup)
        return self.settings.learning_rate * min(1.0, rising, falling)


def _read_resume(file: Path) -> tuple[dict[str, Any], dict[str, Tensor]]:
    """Plan, state and rows, and the tensors, as `save` wrote them."""
    try:
        with safe_open(file, "pt") as stored:
            about = {name: json.loads(stored.metadata()[name]) for name in ("plan", "state", "rows")}
            tensors = {name: stored.get_tensor(name) for name in stored.keys()}  # noqa: SIM118 (no mapping)
    except Exception as error:
        raise DamagedError(f"{file} can't be read: {error}; delete it to train from the start") from error
    return about, tensors


def _optimizer(model: nn.Module, settings: TrainSettings) -> torch.optim.AdamW:
    """AdamW, without decay for biases and norms."""
    trained = [parameter for parameter in model.parameters() if parameter.requires_grad]
    groups = [
        {"params": [p for p in trained if p.dim() > 1], "weight_decay": settings.weight_decay},
        {"params": [p for p in trained if p.dim() <= 1], "weight_decay": 0.0},
    ]
    return torch.optim.AdamW(groups, lr=settings.learning_rate)


def _difference(stored: dict[str, Any], wanted: dict[str, Any]) -> str:
    names = [name for name in {**stored, **wanted} if stored.get(name) != wanted.get(name)]
    return "; ".join(f"{name} was {stored.get(name)!r} and is now {wanted.get(name)!r}" for name in names[:3])
