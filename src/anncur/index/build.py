"""What a build is asked for, and its checks of the scorer and of retrievers.

Feeds the two backends. Everything here but the stability check costs no pairs."""

from __future__ import annotations

import warnings
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field

import numpy as np

from anncur.engines import base as engines
from anncur.engines.local import LOCAL
from anncur.errors import AnncurWarning, ScorerError
from anncur.filling import ItemsAt
from anncur.items import Corpus, ItemLike, Items, Query
from anncur.progress import Progress
from anncur.retrievers.base import FittedRetriever, Retriever
from anncur.retrievers.loading import is_foreign, load_models
from anncur.scorers.guard import GuardedScorer
from anncur.scorers.payment import score_again
from anncur.scorers.stability import StabilityWatch
from anncur.scores import ScoreMatrix
from anncur.vectors.engines import VectorEngine

TELLING_PAIRS = 100  # fewer may all have the same score by chance
STABILITY_CHECKS = 8  # pairs that a build scores twice


@dataclass(frozen=True)
class BuildSettings:
    """What a build was asked for, beside scorer, items and queries."""

    anchor_method: str = "pivoted_qr"
    seed: int = 0
    dtype: str = "float32"
    items_per_chunk: int | None = None
    engine: VectorEngine = field(default_factory=VectorEngine)


@dataclass(frozen=True, eq=False)
class Request:
    """All that a build is asked for, checked but for the items, which are read as they come."""

    items: Iterable[ItemLike]
    queries: Sequence[Query]
    scorer: GuardedScorer
    settings: BuildSettings
    retrievers: Mapping[str, Retriever]
    watch: StabilityWatch
    progress: Progress
    engine: engines.Engine = LOCAL  # who scores chunks and encodes parts; that of the settings ranks items


def check_retrievers(retrievers: Mapping[str, Retriever], items: Items, queries: Sequence[Query]) -> None:
    """Let retrievers of the user's own fit the items, and others load their models, so that one that can't fails before
    anything is paid for."""
    for name, retriever in retrievers.items():
        load_models(retriever)
        if is_foreign(retriever):
            fitted = FittedRetriever(name, retriever, items)
            fitted.item_vectors()
            if queries:
                fitted.scores(queries[:1])


def check_stability(
    watch: StabilityWatch, matrix: ScoreMatrix, scorer: GuardedScorer, queries: Sequence[Query], items_at: ItemsAt
) -> None:
    """Score a few pairs again, spread over the items, so that an unstable scorer shows at once.

    A scorer that fails now, after all was scored, doesn't stop the build."""
    if not queries:
        return
    positions = np.unique(np.linspace(0, matrix.spec.n_items - 1, STABILITY_CHECKS).astype(np.int64))
    items = Corpus(item for position in positions.tolist() for item in items_at(position, position + 1))
    before = matrix.rows(positions)[:, 0].astype(np.float64)
    watch.observe(queries[0], positions, before)
    try:
        again = score_again(scorer, queries[0], items, np.arange(len(positions)))
    except ScorerError as error:
        warnings.warn(f"could not check whether the scorer is stable: {error}", AnncurWarning, stacklevel=3)
    else:
        repeated = watch.observe(queries[0], positions, again)
        if repeated is not None:
            scorer.noise.observe_again(*repeated)


def warn_of_constant(matrix: ScoreMatrix, scorer: GuardedScorer) -> None:
    """Warn where every item has the same score, whatever the query: most likely the scorer reads neither."""
    if matrix.n_items > 1 and matrix.n_anchor_queries * matrix.n_items >= TELLING_PAIRS:
        first = matrix.rows(np.zeros(1, dtype=np.int64))[0, 0]
        if all((values == first).all() for _, values in matrix.parts()):
            warnings.warn(
                f"the scorer {scorer.fingerprint} gives all pairs the same score, {scorer.sign * first:g}, so that no "
                "item is better than another; check that it reads the texts",
                AnncurWarning,
                stacklevel=3,
            )


@contextmanager
def keeping(paid: object) -> Iterator[None]:
    """Attach what was paid for to whatever stops the work, Ctrl-C included, as `kept`."""
    try:
        yield
    except BaseException as error:
        error.kept = paid  # type: ignore[attr-defined]
        raise


@contextmanager
def one_kept() -> Iterator[None]:
    """Let an error of the search for one query have its hits as `kept`, not a list of them."""
    try:
        yield
    except BaseException as error:  # Ctrl-C too: what was paid for is the user's
        kept = getattr(error, "kept", None)
        if isinstance(kept, list):
            error.kept = kept[0] if kept else None  # type: ignore[attr-defined]
        raise
