"""Complete trainings, from a folder of data to a model's folder: what the commands `anncur train …` run.

Data is in ZESHEL's layout; presets are where all settings start from. Mined negatives and a teacher's scores, which
take minutes, are kept in a cache folder for a resumed training and for others on the same data."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Literal, TypeAlias

import numpy as np
import torch

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
from anncur.training.encoders import CrossEncoderTask, DualEncoderTask, Teacher
from anncur.training.examples import (
    Candidates,
    Examples,
    NegativeSettings,
    Pool,
    draw_candidates,
    pool_size,
    pools,
    retrieved_negatives,
    whole_pool,
)
from anncur.training.folder import training_in
from anncur.training.loop import RESUME, LogRow, TrainSettings, ignore_row, seeded, train

NegativeKind: TypeAlias = Literal["random", "tfidf", "mined"]
MIN_CACHED_POOL = 64  # negatives of every mention in the cache, so that smaller pools share one file
TEACHER_BLOCK = 512  # mentions that a teacher scores between two saves
CONTEXT_WORDS = 128  # before and after a mention, more than any text format keeps


@dataclass(frozen=True, slots=True)
class DataSettings:
    """Which mentions are trained on, and which are held out to choose the best checkpoint."""

    folder: Path
    train_worlds: Sequence[str] | None = None  # None is all worlds of the split `train`
    dev_worlds: Sequence[str] | None = None  # None is all worlds of the split `val`
    mentions: int | None = None  # drawn from all worlds in proportion; None is all mentions
    dev_mentions: int | None = 60  # drawn from each world
    dev_candidates: int = 16  # the dual encoder's best negatives, beside the gold entity
    short_contexts: float = 0.0  # share of mentions, trained on and held out, that lose most of their context

    def __post_init__(self) -> None:
        for name in ("mentions", "dev_mentions"):
            if getattr(self, name) is not None:
                whole_number(name, getattr(self, name), least=1)
        whole_number("dev_candidates", self.dev_candidates, least=1)
        number("short_contexts", self.short_contexts, least=0, most=1)


@dataclass(frozen=True, slots=True)
class CrossEncoderJob:
    """All settings of a cross-encoder's training."""

    data: DataSettings
    network: str = MINILM  # folder or name of the network that the weights start from
    head: Literal["emb", "cls"] = "emb"
    layers: int | None = None
    width: int | None = None
    text: PairFormat = field(default_factory=PairFormat)
    negative_kind: NegativeKind = "mined"
    negatives: NegativeSettings = field(default_factory=NegativeSettings)
    dual_encoder: str = MINILM  # mines negatives and the held-out candidates
    mentions_per_batch: int = 4
    teacher: Path | None = None
    gold_weight: float = 0.5
    train: TrainSettings = field(default_factory=TrainSettings)

    def __post_init__(self) -> None:
        whole_number("mentions_per_batch", self.mentions_per_batch, least=1)
        number("gold_weight", self.gold_weight, least=0, most=1)


@dataclass(frozen=True, slots=True)
class DualEncoderJob:
    """All settings of a dual encoder's training."""

    data: DataSettings
    network: str = MINILM
    head: Literal["cls", "mean"] = "mean"
    is_shared: bool = True
    layers: int | None = None
    text: PairFormat = field(default_factory=PairFormat)
    negatives: NegativeSettings = field(default_factory=NegativeSettings)
    dual_encoder: str = MINILM  # mines the held-out candidates
    mentions_per_batch: int = 8
    train: TrainSettings = field(default_factory=TrainSettings)

    def __post_init__(self) -> None:
        whole_number("mentions_per_batch", self.mentions_per_batch, least=1)


@dataclass(frozen=True, slots=True)
class Preset:
    """Settings that every training starts from: what a few cores can train in an hour, or the paper's own."""

    network: str
    text: PairFormat
    negatives: NegativeSettings
    cross_encoder_batch: int
    dual_encoder_batch: int
    dual_encoder_head: Literal["cls", "mean"]
    has_shared_towers: bool
    train: TrainSettings
    distillation: TrainSettings
    n_top: int


PRESETS = {
    "small": Preset(
        network=MINILM,
        text=PairFormat(query_length=40, item_length=40),
        negatives=NegativeSettings(n=7, pool=32, random_share=0.25),
        cross_encoder_batch=8,
        dual_encoder_batch=8,
        dual_encoder_head="mean",
        has_shared_towers=True,
        train=TrainSettings(epochs=1, learning_rate=5e-5, warmup=0.05, evaluations=8),
        distillation=TrainSettings(epochs=5, learning_rate=3e-5, warmup=0.05, evaluations=1),
        n_top=32,
    ),
    "paper": Preset(
        network="bert-base-uncased",
        text=PairFormat(query_length=128, item_length=128),
        negatives=NegativeSettings(n=63, pool=63, random_share=0.0),
        cross_encoder_batch=4,
        dual_encoder_batch=8,
        dual_encoder_head="cls",
        has_shared_towers=False,
        train=TrainSettings(epochs=4, learning_rate=1e-5, warmup=0.01, evaluations=5),
        distillation=TrainSettings(epochs=10, learning_rate=1e-5, warmup=0.01, evaluations=1),
        n_top=100,
    ),
}


def preset(name: str) -> Preset:
    """A preset by its name."""
    if name not in PRESETS:
        raise InputError(f"no preset {name!r}; take one of {', '.join(PRESETS)}")
    return PRESETS[name]


def train_cross_encoder(
    job: CrossEncoderJob,
    out: Path,
    *,
    cache: Path | None = None,
    progress: Progress = silent,
    on_row: Callable[[LogRow], None] = ignore_row,
) -> list[LogRow]:
    """Train a cross-encoder into the folder `out`; the same job again resumes it. Returns the rows of its log."""
    with training_in(out):
        job_cache = _JobCache(cache or out / "cache", job.dual_encoder, progress)
        task = _cross_encoder_task(job, job_cache)
        return train(task, out, job.train, progress=progress, on_row=on_row)


def _cross_encoder_task(job: CrossEncoderJob, cache: _JobCache) -> CrossEncoderTask:
    with seeded(job.train.seed):  # draws new layers and heads
        model = new_cross_encoder(network_source(job.network), job.head, job.text, layers=job.layers, width=job.width)
    examples, dev = _examples(job.data, model.tokenizer, job.train.seed)
    negative_pools = cache.pools(examples, job.negative_kind, job.negatives.pool, seed=job.train.seed)
    return CrossEncoderTask(
        model=model,
        examples=examples,
        pools=negative_pools,
        negatives=job.negatives,
        dev=dev,
        dev_candidates=whole_pool(dev, cache.pools(dev, "mined", job.data.dev_candidates)),
        mentions_per_batch=job.mentions_per_batch,
        seed=job.train.seed,
        teacher=None if job.teacher is None else cache.teacher(job, examples, negative_pools),
        source=job.negative_kind if job.negative_kind != "mined" else f"mined by {job.dual_encoder}",
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
    """Train a dual encoder into the folder `out`; the same job again resumes it. Returns the rows of its log."""
    with training_in(out):
        job_cache = _JobCache(cache or out / "cache", job.dual_encoder, progress)
        task = _dual_encoder_task(job, job_cache, mined_folder(out), progress)
        return train(task, out, job.train, progress=progress, on_row=on_row)


def _dual_encoder_task(job: DualEncoderJob, cache: _JobCache, mined: Path, progress: Progress) -> DualEncoderTask:
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
        dev_candidates=whole_pool(dev, cache.pools(dev, "mined", job.data.dev_candidates)),
        mined=mined,
        mentions_per_batch=job.mentions_per_batch,
        seed=job.train.seed,
        progress=progress,
        network=job.network,
    )


def mined_folder(out: Path) -> Path:
    """Where a training keeps what it mined between epochs; what an earlier one mined is deleted."""
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


class _JobCache:
    """Pools of negatives and a teacher's scores, made once in a folder."""

    def __init__(self, folder: Path, dual_encoder: str, progress: Progress) -> None:
        self._folder = folder
        self._dual_encoder = dual_encoder
        self._progress = progress

    def pools(self, examples: Examples, kind: NegativeKind, n: int, *, seed: int = 0) -> list[Pool]:
        """Negatives to draw from, for each world."""
        if kind == "random":
            return pools(examples, None, n, seed=seed)
        n = pool_size(examples, n)
        retriever = self._retriever(kind)
        found = []
        for world, mentions in zip(examples.worlds, examples.chosen, strict=True):
            found.append(self._world_pool(world, retriever, kind, max(n, MIN_CACHED_POOL))[mentions, :n])
            self._progress(f"negatives ({kind})", len(found), len(examples.worlds))
        return found

    def _world_pool(self, world: LinkingWorld, retriever: Retriever, kind: NegativeKind, n: int) -> Pool:
        """The best negatives for all mentions of a world, whichever of them are trained on."""
        miner = f"{self._dual_encoder} {_digest(self._dual_encoder)}" if kind == "mined" else kind

        def mine() -> Pool:
            retriever.fit(world.items)
            return retrieved_negatives(world, np.arange(len(world.mentions)), retriever, n)

        return cached(self._folder, f"pool-{kind}", f"{world.describe()} {miner} {n}", mine)

    def teacher(self, job: CrossEncoderJob, examples: Examples, negative_pools: Sequence[Pool]) -> Teacher:
        """The teacher's scores of candidates that are drawn once."""
        assert job.teacher is not None
        candidates = draw_candidates(examples, negative_pools, job.negatives, seed=[job.train.seed, 0])
        teacher = open_trained(job.teacher, threads=torch.get_num_threads())
        read = Examples(examples.worlds, teacher.tokenizer, examples.chosen)  # a teacher reads the full contexts
        texts = " ".join(world.describe() for world in examples.worlds)
        made_from = f"{_digest(str(job.teacher))} {texts} {read.describe()} {array_digest(candidates)}"
        scores = self._teacher_scores(teacher, read, candidates, made_from)
        return Teacher(candidates, scores, job.gold_weight)

    def _teacher_scores(
        self, teacher: TokenScorer, examples: Examples, candidates: Candidates, made_from: str
    ) -> FloatMatrix:
        def score(rows: Positions) -> FloatMatrix:
            return teacher.score_tokens(*examples.pairs(rows, candidates[rows])).reshape(len(rows), -1)

        blocks = []
        for start in range(0, len(candidates), TEACHER_BLOCK):
            rows = np.arange(start, min(start + TEACHER_BLOCK, len(candidates)))
            block = cached(self._folder, "teacher", f"{made_from} {start} {len(rows)}", partial(score, rows))
            blocks.append(block)
            self._progress("teacher scores", int(rows[-1]) + 1, len(candidates))
        return np.concatenate(blocks)

    def _retriever(self, kind: NegativeKind) -> Retriever:
        return load_retriever("tfidf" if kind == "tfidf" else self._dual_encoder)


def network_source(network: str) -> str | Path:
    """The folder of `minilm`; any other network as it is."""
    return minilm_folder() if network == MINILM else network


def _digest(model: str) -> str:
    """A digest of a model's weights, so that a cache made with other weights isn't used."""
    file = Path(network_source(model)) / "model.safetensors"
    if not file.is_file():
        raise InputError(f"no file {file}; pass {MINILM!r}, or the folder of a model that was trained here")
    return file_digest(file)
