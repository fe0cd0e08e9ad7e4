"""Writes runs in TREC's format, which evaluation tools read."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np

from anncur.ranking import Hits

TREC_SUFFIXES = (".trec", ".run")


def write_run(file: Path, answers: Sequence[Hits], *, name: str) -> None:
    """Write answers as a run."""
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(run_text(answers, name=name), encoding="utf-8")


def run_text(answers: Sequence[Hits], *, name: str) -> str:
    """A run: query, Q0, item, rank, score and the name of the run.

    Tools order a run by its scores alone, so that these fall with the rank: they are negated where lower is better, and
    of equal ones the later is lowered by the last digit of a float32. A query without an id gets its number, from 1."""
    tag = "-".join(name.split())
    is_rising = any(len(hits) and hits.scores[0] < hits.scores[-1] for hits in answers)
    return "".join(
        f"{hits.query.id or number} Q0 {hit.id} {rank} {score:.9g} {tag}\n"
        for number, hits in enumerate(answers, start=1)
        for rank, (hit, score) in enumerate(zip(hits, _falling(hits.scores, is_rising), strict=True), start=1)
    )


def _falling(scores: Sequence[float], is_rising: bool) -> list[float]:
    """Scores of a ranking as float32, each below the one before it."""
    found: list[np.float32] = []
    for score in scores:
        value = np.float32((-score if is_rising else score) + 0.0)  # which is never -0
        found.append(min(value, np.nextafter(found[-1], np.float32(-np.inf))) if found else value)
    return [float(value) for value in found]
