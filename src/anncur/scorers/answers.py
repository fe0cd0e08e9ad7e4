"""Checks what a scorer answered: one finite number per pair, in any form that arrays and lists have.

Read by `guard.py`, whose errors speak of pairs in the same words."""

from __future__ import annotations

from collections.abc import Mapping, Sequence, Set
from typing import Any

import numpy as np

from anncur.arrays import FloatVector
from anncur.errors import ScorerOutputError
from anncur.scorers.base import Pair


def checked_scores(answer: Any, pairs: Sequence[Pair], *, fingerprint: str) -> FloatVector:
    """The scorer's answer as float64, or an error that names what is wrong with it."""
    problem = f"the scorer {fingerprint} must return one finite number per pair"
    try:
        scores = _as_floats(answer)
    except (TypeError, ValueError, OverflowError) as error:
        raise ScorerOutputError(f"{problem}, got {_described(answer)}: {error}") from error
    if scores.ndim == 2 and scores.shape[1] == 1:
        scores = scores[:, 0]
    if scores.ndim != 1:
        raise ScorerOutputError(
            f"{problem}, got an array of shape {scores.shape}; of a model with several outputs, pick one"
        )
    if len(scores) != len(pairs):
        raise ScorerOutputError(f"{problem}, got {len(scores)} numbers for {len(pairs)} {pair_or_pairs(len(pairs))}")
    if not np.isfinite(scores).all():
        where = int(np.flatnonzero(~np.isfinite(scores))[0])
        query, item = pairs[where]
        raise ScorerOutputError(
            f"{problem}, got {scores[where]} for item {item.id!a:.60} and query {query.marked_text!a:.60}"
        )
    return scores


def _as_floats(answer: Any) -> FloatVector:
    if hasattr(answer, "detach"):  # a torch tensor, perhaps on a GPU, perhaps bfloat16
        answer = answer.detach().cpu().double().numpy()
    elif isinstance(answer, (str, bytes, Mapping, Set)):
        raise TypeError("not a list of numbers")
    elif not isinstance(answer, np.ndarray):
        answer = list(answer)
    array = np.asarray(answer)
    if array.dtype.kind == "O":
        array = np.array([float(value) for value in _numbers_only(array)], dtype=np.float64)
    if array.dtype.kind not in "fiub":
        raise TypeError("not numbers")
    return array.astype(np.float64)


def _numbers_only(values: Any) -> Any:
    for value in values:
        if value is None or isinstance(value, (str, bytes)):
            raise TypeError(f"{value!r} is not a number")
        yield value


def _described(answer: Any) -> str:
    shown = repr(answer)
    return f"{type(answer).__name__} {shown if len(shown) <= 80 else shown[:79] + '…'}"


def described_pairs(pairs: Sequence[Pair]) -> str:
    """How many pairs, and of which queries."""
    texts = {query.marked_text for query, _ in pairs}
    of = f"{texts.pop()!a:.60}" if len(texts) == 1 else f"{len(texts)} queries"
    return f"{len(pairs)} {pair_or_pairs(len(pairs))} of {of}"


def pair_or_pairs(n_pairs: int) -> str:
    """The word for `n_pairs` pairs."""
    return "pair" if n_pairs == 1 else "pairs"
