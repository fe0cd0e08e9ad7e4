"""A dual encoder distilled from a cross-encoder, on the exact scores of one set of items: the paper's baseline.

Reads queries, items and the (n_queries, n_items) exact scores that an index was built from; `anncur distill` runs
`distill`. Both losses of the paper: `match` is the cross-entropy to the cross-encoder's softmax over its own top
`n_top` items; `pair` contrasts the cross-encoder's rank-j item with the rank-j item of the dual encoder's false
positives."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any, Literal, TypeAlias, get_args

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn import functional

from anncur.arrays import FloatMatrix, FloatVector, Positions
from anncur.errors import InputError
from anncur.items import Item, Query, TextDigest
from anncur.models.checkpoint import CARD
from anncur.models.encoders import DualEncoder, load_dual_encoder, new_dual_encoder
from anncur.numbers import number, whole_number
from anncur.progress import Progress, silent
from anncur.ranking import top_k
from anncur.retrievers.dual_encoder import MINILM
from anncur.tokens import PairFormat, Tokens
from anncur.training.cache import cached
from anncur.training.folder import training_in, write_model
from anncur.training.jobs import mined_folder, network_source
from anncur.training.loop import LOG, RESUME, LogRow, TrainSettings, ignore_row, seeded, train

Loss: TypeAlias = Literal["match", "pair"]
RECALL_K, RECALL_AT = 10, 50  # recall of the cross-encoder's top 10 in the dual encoder's top 50


@dataclass(frozen=True)
class ScoredQueries:
    """Queries with the exact scores of all items."""

    queries: Sequence[Query]
    items: Sequence[Item]
    exact_scores: FloatMatrix  # (n_queries, n_items)

    def __post_init__(self) -> None:
        expected = (len(self.queries), len(self.items))
        if self.exact_scores.shape != expected:
            raise InputError(
                f"exact scores must be {expected} for these queries and items, got {self.exact_scores.shape}"
            )

    def split(self, share: float, seed: int) -> tuple[ScoredQueries, ScoredQueries]:
        """The queries to train on, and a share held out."""
        if min(self.exact_scores.shape) < 2:  # a query on each side of the split, an item on each side of the loss
            n_queries, n_items = self.exact_scores.shape
            raise InputError(f"distillation needs at least 2 scored queries and 2 items, got {n_queries} and {n_items}")
        order = np.random.default_rng(seed).permutation(len(self.queries))
        n_held_out = max(1, round(share * len(order)))
        if n_held_out >= len(order):
            raise InputError(f"a share of {share:g} held out leaves none of {len(order)} queries to train on")
        return self.take(np.sort(order[n_held_out:])), self.take(np.sort(order[:n_held_out]))

    @cached_property
    def texts(self) -> str:
        """A digest of the queries and items."""
        digest = TextDigest()
        digest.add(*(query.marked_text for query in self.queries))
        for item in self.items:
            digest.add_item(item)
        return str(digest)[:12]

    def take(self, rows: Positions) -> ScoredQueries:
        """Some of the queries."""
        return ScoredQueries([self.queries[row] for row in rows], self.items, self.exact_scores[rows])


@dataclass(frozen=True, slots=True)
class DistillationJob:
    """All settings of a distillation.

    The dual encoder starts from `start`: the folder of a trained one (`base+ce`), or a network that was never trained
    on links (`scratch+ce`)."""

    start: str = MINILM
    loss: Literal["match", "pair", "best"] = "best"
    n_top: int = 100
    queries_per_batch: int = 1
    validation: float = 0.1  # share of queries held out
    text: PairFormat = field(default_factory=PairFormat)  # used where `start` isn't a trained dual encoder
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
    """Train a dual encoder towards exact scores, into the folder `out`; returns the rows of its log.

    With the loss `best` both are tried, in folders below `out`, and the one that is better on held-out queries is
    copied into `out`."""
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


@dataclass
class DistillationTask:
    """Trains a dual encoder to have the cross-encoder's best items among its own."""

    model: DualEncoder
    train_on: ScoredQueries
    held_out: ScoredQueries
    kind: Loss
    mined: Path
    n_top: int = 100
    queries_per_batch: int = 1
    seed: int = 0
    start: str = ""  # origin of the weights

    def describe(self) -> dict[str, Any]:
        texts = f"{self.train_on.texts} to train on, {self.held_out.texts} held out"
        return {"start": self.start, "texts": texts, **self._goal()}

    def _goal(self) -> dict[str, Any]:
        return {
            "task": "distillation",
            "loss": self.kind,
            "n_top": self.n_top,
            "queries_per_batch": self.queries_per_batch,
            "scores": [list(self.train_on.exact_scores.shape), float(self.train_on.exact_scores.sum(dtype=np.float64))],
            "head": self.model.head,
            "is_shared": self.model.is_shared,
        }

    def n_batches(self) -> int:
        return -(-len(self.train_on.queries) // self.queries_per_batch)

    def batches(self, epoch: int) -> Sequence[tuple[Positions, NDArray[np.int64]]]:
        """Queries, and the items that each is trained on: the best, and for `pair` as many false positives."""
        items = self._best
        if self.kind == "pair":
            key = f"{self._goal()} {self.seed} {epoch}"
            items = np.hstack([items, cached(self.mined, "false-positives", key, self._false_positives)])
        order = np.random.default_rng([self.seed, epoch]).permutation(len(items))
        starts = range(0, len(order), self.queries_per_batch)
        return [(rows, items[rows]) for rows in (order[start : start + self.queries_per_batch] for start in starts)]

    def loss(self, batch: tuple[Positions, NDArray[np.int64]]) -> Tensor:
        rows, items = batch
        queries = self.model.query_vectors([self._queries[row] for row in rows])
        distinct, places = np.unique(items, return_inverse=True)  # queries of a batch have many best items in common
        vectors = self.model.item_vectors([self._items[item] for item in distinct.tolist()])[torch.from_numpy(places)]
        logits = self.model.scale * torch.einsum("qh,qih->qi", queries, vectors.view(*items.shape, -1))
        if self.kind == "match":
            exact = np.take_along_axis(self.train_on.exact_scores[rows], items, axis=1).astype(np.float32)
            return functional.cross_entropy(logits, torch.from_numpy(exact).softmax(dim=-1))
        best, false_positives = logits.chunk(2, dim=1)
        return -functional.logsigmoid(best - false_positives).mean()

    def evaluate(self) -> float:
        approx_scores = self._dual_scores(self.held_out.queries)
        return retrieval_recall(self.held_out.exact_scores, approx_scores, k=RECALL_K, n_retrieved=RECALL_AT)

    def save(self, folder: Path) -> None:
        self.model.save(folder)

    @cached_property
    def _queries(self) -> list[Tokens]:
        return self.model.tokenizer.queries(self.train_on.queries)

    @cached_property
    def _items(self) -> list[Tokens]:
        return self.model.tokenizer.items(self.train_on.items)

    @cached_property
    def _best(self) -> NDArray[np.int64]:
        """The cross-encoder's best items, best first. (n_queries, n_top)"""
        n_top = min(self.n_top, len(self.train_on.items) // 2)
        return np.stack([top_k(row, n_top) for row in self.train_on.exact_scores])

    def _false_positives(self) -> NDArray[np.int64]:
        """The dual encoder's best items that aren't among the cross-encoder's. (n_queries, n_top)"""
        approx_scores = self._dual_scores(self.train_on.queries)
        np.put_along_axis(approx_scores, self._best, -np.inf, axis=1)
        return np.stack([top_k(row, self._best.shape[1]) for row in approx_scores])

    def _dual_scores(self, queries: Sequence[Query]) -> FloatMatrix:
        item_vectors = self.model.embed_tokens(self._items, are_items=True)
        return self.model.embed_queries(queries) @ item_vectors.T


def retrieval_recall(exact_scores: FloatMatrix, approx_scores: FloatMatrix, *, k: int, n_retrieved: int) -> float:
    """The mean recall of the exact top k in the top `n_retrieved` by approximate score."""

    def recall(exact: FloatVector, approx: FloatVector) -> float:
        return float(np.isin(top_k(exact, k), top_k(approx, n_retrieved)).mean())

    return float(np.mean([recall(exact, approx) for exact, approx in zip(exact_scores, approx_scores, strict=True)]))
