"""Whole trainings, from a folder of data to a model's folder: what the commands `anncur train …` run.

Data is in ZESHEL's layout. What takes minutes (mined negatives, a teacher's scores) is kept in a cache folder, so
that a training that was stopped, or another one on the same data, doesn't pay again."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Literal, TypeAlias

import numpy as np
import torch
from numpy.typing import NDArray

from anncur.arrays import FloatMatrix, Positions
from anncur.datasets.zeshel import LinkingWorld, Zeshel, read_worlds
from anncur.errors import InputError
from anncur.models.encoders import new_cross_encoder, new_dual_encoder
from anncur.numbers import number, whole_number
from anncur.progress import Progress, silent
from anncur.retrievers.base import Retriever
from anncur.retrievers.dual_encoder import MINILM, minilm_folder
from anncur.retrievers.loading import load_retriever
from anncur.scorers.base import TokenScorer
from anncur.scorers.loading import open_trained
from anncur.tokens import PairFormat, PairTokenizer
from anncur.training.cache import array_digest, cached, file_digest
from anncur.training.cross_encoder import CrossEncoderTask, Teacher
from anncur.training.dual_encoder import DualEncoderTask
from anncur.training.examples import Examples, draw_candidates, pool_size, pools, whole_pool
from anncur.training.folder import training_in
from anncur.training.loop import RESUME, LogRow, TrainSettings, ignore_row, seeded, train
from anncur.training.negatives import Candidates, NegativeSettings, retrieved_negatives

NegativeKind: TypeAlias = Literal["random", "tfidf", "mined"]
KEPT_POOL = 64  # wrong entities of every mention that a cache keeps, at least
TEACHER_BLOCK = 512  # mentions that a teacher scores between two saves
CONTEXT_WORDS = 128  # before and after a mention, more than any text format keeps


@dataclass(frozen=True, slots=True)
class DataSettings:
    """Which mentions are trained on, and which are held out to choose the best checkpoint."""

    folder: Path
    train_worlds: Sequence[str] | None = None  # all of the split `train`
    dev_worlds: Sequence[str] | None = None  # all of the split `val`
    mentions: int | None = None  # drawn in proportion; all of them
    dev_mentions: int | None = 60  # of each world
    dev_candidates: int = 16  # the dual encoder's best, beside the right one
    short_contexts: float = 0.0  # the share of mentions, trained on and held out, that lose most of their context

    def __post_init__(self) -> None:
        for name in ("mentions", "dev_mentions"):
            if getattr(self, name) is not None:
                whole_number(name, getattr(self, name), least=1)
        whole_number("dev_candidates", self.dev_candidates, least=1)
        number("short_contexts", self.short_contexts, least=0, most=1)


@dataclass(frozen=True, slots=True)
class CrossEncoderJob:
    """Everything that decides what `train_cross_encoder` makes."""

    data: DataSettings
    network: str = MINILM  # a folder or name that the weights start from
    head: Literal["emb", "cls"] = "emb"
    layers: int | None = None
    width: int | None = None
    text: PairFormat = field(default_factory=PairFormat)
    kind: NegativeKind = "mined"
    negatives: NegativeSettings = field(default_factory=NegativeSettings)
    dual_encoder: str = MINILM  # mines negatives, and the candidates held out
    mentions_per_batch: int = 4
    teacher: Path | None = None
    gold_weight: float = 0.5
    train: TrainSettings = field(default_factory=TrainSettings)

    def __post_init__(self) -> None:
        whole_number("mentions_per_batch", self.mentions_per_batch, least=1)
        number("gold_weight", self.gold_weight, least=0, most=1)


@dataclass(frozen=True, slots=True)
class DualEncoderJob:
    """Everything that decides what `train_dual_encoder` makes."""

    data: DataSettings
    network: str = MINILM
    head: Literal["cls", "mean"] = "mean"
    is_shared: bool = True
    layers: int | None = None
    text: PairFormat = field(default_factory=PairFormat)
    negatives: NegativeSettings = field(default_factory=NegativeSettings)
    dual_encoder: str = MINILM  # finds the candidates held out
    mentions_per_batch: int = 8
    train: TrainSettings = field(default_factory=TrainSettings)

    def __post_init__(self) -> None:
        whole_number("mentions_per_batch", self.mentions_per_batch, least=1)


def train_cross_encoder(
    job: CrossEncoderJob,
    out: Path,
    *,
    cache: Path | None = None,
    progress: Progress = silent,
    on_row: Callable[[LogRow], None] = ignore_row,
) -> list[LogRow]:
    """Train a cross-encoder into the folder `out`; the same job again goes on where it was stopped."""
    with training_in(out):
        task = _cross_encoder_task(job, _Kept(cache or out / "cache", job.dual_encoder, progress))
        return train(task, out, job.train, progress=progress, on_row=on_row)


def _cross_encoder_task(job: CrossEncoderJob, kept: _Kept) -> CrossEncoderTask:
    with seeded(job.train.seed):  # new layers and heads start from it
        model = new_cross_encoder(network_source(job.network), job.head, job.text, layers=job.layers, width=job.width)
    examples, dev = _examples(job.data, model.tokenizer, job.train.seed)
    negative_pools = kept.pools(examples, job.kind, job.negatives.pool, seed=job.train.seed)
    return CrossEncoderTask(
        model=model,
        examples=examples,
        pools=negative_pools,
        negatives=job.negatives,
        dev=dev,
        dev_candidates=whole_pool(dev, kept.pools(dev, "mined", job.data.dev_candidates)),
        mentions_per_batch=job.mentions_per_batch,
        seed=job.train.seed,
        teacher=None if job.teacher is None else kept.teacher(job, examples, negative_pools),
        source=job.kind if job.kind != "mined" else f"mined by {job.dual_encoder}",
        network=job.network,
    )


def train_dual_encoder(
    job: DualEncoderJob,
    out: Path,
    *,
    cache: Path | None = None,
    progress: Progress = silent,
    on_row: Callable[[LogRow], None] = ignore_row,
) -> list[LogRow]:
    """Train a dual encoder into the folder `out`; the same job again goes on where it was stopped."""
    with training_in(out):
        kept = _Kept(cache or out / "cache", job.dual_encoder, progress)
        task = _dual_encoder_task(job, kept, mined_folder(out), progress)
        return train(task, out, job.train, progress=progress, on_row=on_row)


def _dual_encoder_task(job: DualEncoderJob, kept: _Kept, mined: Path, progress: Progress) -> DualEncoderTask:
    with seeded(job.train.seed):
        model = new_dual_encoder(
            network_source(job.network), job.text, head=job.head, is_shared=job.is_shared, layers=job.layers
        )
    examples, dev = _examples(job.data, model.tokenizer, job.train.seed)
    return DualEncoderTask(
        model=model,
        examples=examples,
        negatives=job.negatives,
        dev=dev,
        dev_candidates=whole_pool(dev, kept.pools(dev, "mined", job.data.dev_candidates)),
        mined=mined,
        mentions_per_batch=job.mentions_per_batch,
        seed=job.train.seed,
        progress=progress,
        network=job.network,
    )


def mined_folder(out: Path) -> Path:
    """Where a training keeps what it mined on its way; what another one left there is thrown away."""
    if not (out / RESUME).exists():
        shutil.rmtree(out / "mined", ignore_errors=True)
    return out / "mined"


def _examples(data: DataSettings, tokenizer: PairTokenizer, seed: int) -> tuple[Examples, Examples]:
    """Mentions to train on, and mentions of other worlds to choose the best checkpoint by."""
    worlds = Zeshel(data.folder, context_words=CONTEXT_WORDS)
    train_worlds = list(read_worlds(worlds, "train", data.train_worlds))
    dev_worlds = list(read_worlds(worlds, "val", data.dev_worlds))
    drawn = (
        Examples.draw(train_worlds, tokenizer, n=data.mentions, seed=seed),
        Examples.draw_from_each(dev_worlds, tokenizer, n=data.dev_mentions, seed=0),
    )
    train_on, dev = (replace(examples, short_contexts=data.short_contexts) for examples in drawn)
    return train_on, dev


class _Kept:
    """What a job needs and a cache may have."""

    def __init__(self, folder: Path, dual_encoder: str, progress: Progress) -> None:
        self._folder = folder
        self._dual_encoder = dual_encoder
        self._progress = progress

    def pools(self, examples: Examples, kind: NegativeKind, n: int, *, seed: int = 0) -> list[NDArray[np.int64]]:
        """Negatives to draw from, of each world."""
        if kind == "random":
            return pools(examples, None, n, seed=seed)
        n = pool_size(examples, n)
        retriever = self._retriever(kind)
        found = []
        for world, mentions in zip(examples.worlds, examples.chosen, strict=True):
            found.append(self._world_pool(world, retriever, kind, max(n, KEPT_POOL))[mentions, :n])
            self._progress(f"negatives ({kind})", len(found), len(examples.worlds))
        return found

    def _world_pool(self, world: LinkingWorld, retriever: Retriever, kind: NegativeKind, n: int) -> NDArray[np.int64]:
        """The best wrong entities for all mentions of a world, whichever of them are trained on."""
        miner = f"{self._dual_encoder} {_digest(self._dual_encoder)}" if kind == "mined" else kind

        def mine() -> NDArray[np.int64]:
            retriever.fit(world.items)
            return retrieved_negatives(world, np.arange(len(world.mentions)), retriever, n)

        return cached(self._folder, f"pool-{kind}", f"{world.describe()} {miner} {n}", mine)

    def teacher(self, job: CrossEncoderJob, examples: Examples, negative_pools: Sequence[NDArray[np.int64]]) -> Teacher:
        """The teacher's scores of candidates that are drawn once."""
        assert job.teacher is not None
        candidates = draw_candidates(examples, negative_pools, job.negatives, seed=[job.train.seed, 0])
        teacher = open_trained(job.teacher, threads=torch.get_num_threads())
        read = Examples(examples.worlds, teacher.tokenizer, examples.chosen)  # a teacher sees whole contexts
        texts = " ".join(world.describe() for world in examples.worlds)
        made_from = f"{_digest(str(job.teacher))} {texts} {read.describe()} {array_digest(candidates)}"
        scores = self._teacher_scores(teacher, read, candidates, made_from)
        return Teacher(candidates, scores, job.gold_weight)

    def _teacher_scores(
        self, teacher: TokenScorer, examples: Examples, candidates: Candidates, made_from: str
    ) -> NDArray[np.float32]:
        def score(rows: Positions) -> FloatMatrix:
            return teacher.score_tokens(*examples.pairs(rows, candidates[rows])).reshape(len(rows), -1)

        blocks = []
        for start in range(0, len(candidates), TEACHER_BLOCK):
            rows = np.arange(start, min(start + TEACHER_BLOCK, len(candidates)))
            block = cached(self._folder, "teacher", f"{made_from} {start} {len(rows)}", partial(score, rows))
            blocks.append(block)
            self._progress("the teacher's scores", int(rows[-1]) + 1, len(candidates))
        return np.concatenate(blocks)

    def _retriever(self, kind: NegativeKind) -> Retriever:
        return load_retriever("tfidf" if kind == "tfidf" else self._dual_encoder)


def network_source(network: str) -> str | Path:
    """`minilm` by its name, everything else as it is."""
    return minilm_folder() if network == MINILM else network


def _digest(model: str) -> str:
    """What a model's weights are, so that a cache made with others isn't used."""
    file = Path(network_source(model)) / "model.safetensors"
    if not file.is_file():
        raise InputError(f"no file {file}; pass {MINILM!r}, or the folder of a model that was trained here")
    return file_digest(file)
