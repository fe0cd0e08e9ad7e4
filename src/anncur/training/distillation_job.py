"""A whole distillation, from an index's exact scores to a dual encoder's folder: what `anncur distill` runs."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal, get_args

from anncur.errors import InputError
from anncur.models.checkpoint import CARD
from anncur.models.encoders import DualEncoder, load_dual_encoder, new_dual_encoder
from anncur.numbers import number, whole_number
from anncur.progress import Progress, silent
from anncur.retrievers.dual_encoder import MINILM
from anncur.tokens import PairFormat
from anncur.training.distillation import DistillationTask, Loss, ScoredQueries
from anncur.training.folder import training_in, write_model
from anncur.training.jobs import mined_folder, network_source
from anncur.training.loop import LOG, RESUME, LogRow, TrainSettings, ignore_row, seeded, train


@dataclass(frozen=True, slots=True)
class DistillationJob:
    """Everything that decides what `distill` makes, apart from the scores.

    The dual encoder starts from `start`: the folder of a trained one (`base+ce`), or a network that has never seen a
    link (`scratch+ce`)."""

    start: str = MINILM
    loss: Literal["match", "pair", "best"] = "best"
    n_top: int = 100
    queries_per_batch: int = 1
    validation: float = 0.1  # the share of queries held out
    text: PairFormat = field(default_factory=PairFormat)  # where `start` is no trained dual encoder
    train: TrainSettings = field(default_factory=lambda: TrainSettings(epochs=10, evaluations=1))

    def __post_init__(self) -> None:
        whole_number("n_top", self.n_top, least=1)
        whole_number("queries_per_batch", self.queries_per_batch, least=1)
        number("validation", self.validation, least=0, most=1)


def distill(
    job: DistillationJob,
    scored: ScoredQueries,
    out: Path,
    *,
    progress: Progress = silent,
    on_row: Callable[[LogRow], None] = ignore_row,
) -> list[LogRow]:
    """Train a dual encoder towards exact scores, into the folder `out`.

    With the loss `best` both are tried, in folders below `out`, and the one that is better on held-out queries is
    copied into `out`. Gives the rows of the chosen one."""
    with training_in(out):
        others = [out] if job.loss == "best" else [out / kind for kind in get_args(Loss)]
        if any((other / RESUME).exists() for other in others):
            raise InputError(f"{out} holds a distillation with another loss; take another folder")
        if job.loss != "best":
            return _distill_with(job.loss, job, scored, out, progress=progress, on_row=on_row)
        tries: dict[Loss, list[LogRow]] = {}
        for kind in get_args(Loss):
            with training_in(out / kind):
                tries[kind] = _distill_with(kind, job, scored, out / kind, progress=progress, on_row=on_row)
        best = max(tries, key=lambda kind: max(row.dev for row in tries[kind]))
        write_model(out, load_dual_encoder(out / best).save)
        shutil.copyfile(out / best / LOG, out / LOG)
        return tries[best]


def _distill_with(
    kind: Loss,
    job: DistillationJob,
    scored: ScoredQueries,
    out: Path,
    *,
    progress: Progress,
    on_row: Callable[[LogRow], None],
) -> list[LogRow]:
    train_on, held_out = scored.split(job.validation, job.train.seed)
    task = DistillationTask(
        model=_start(job),
        train_on=train_on,
        held_out=held_out,
        kind=kind,
        mined=mined_folder(out),
        n_top=job.n_top,
        queries_per_batch=job.queries_per_batch,
        seed=job.train.seed,
        start=job.start,
    )
    return train(task, out, job.train, progress=progress, on_row=on_row)


def _start(job: DistillationJob) -> DualEncoder:
    if (Path(job.start) / CARD).is_file():
        return load_dual_encoder(job.start)
    with seeded(job.train.seed):
        return new_dual_encoder(network_source(job.start), job.text, head="mean", is_shared=True)
