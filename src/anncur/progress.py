"""How long work tells how far it is. The library only calls; showing is the caller's business (see `cli/`)."""

from __future__ import annotations

from typing import Protocol


class Progress(Protocol):
    """Called as work goes on: the name of the stage, how much is done, and how much there is in all."""

    def __call__(self, stage: str, done: int, total: int, /) -> None: ...


def silent(stage: str, done: int, total: int, /) -> None:
    """Show nothing."""
