"""Writes runs in TREC's format, which evaluation tools read."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from anncur.ranking import Hits

TREC_SUFFIXES = (".trec", ".run")


def write_run(file: Path, answers: Sequence[Hits], *, name: str) -> None:
    """Write answers as a run."""
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(run_text(answers, name=name), encoding="utf-8")


def run_text(answers: Sequence[Hits], *, name: str) -> str:
    """A run: query, Q0, item, rank, score and the name of the run.

    A query without an id gets its number, from 1."""
    tag = "-".join(name.split())
    return "".join(
        f"{hits.query.id or number} Q0 {hit.id} {rank} {hit.score:.9g} {tag}\n"
        for number, hits in enumerate(answers, start=1)
        for rank, hit in enumerate(hits, start=1)
    )
