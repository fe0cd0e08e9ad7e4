"""Boxes of pencils, and scorers that like the box with the wanted number best: what tests of other libraries search."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

import anncur

ITEMS = [
    anncur.Item(f"box-{size}", f"a box of {size} pencils", title=f"Box {size}", metadata={"size": size})
    for size in range(1, 201)
]


def score_boxes(pairs: Sequence[tuple[str, str]]) -> list[float]:
    """Higher for boxes that are nearer to the number in the query."""
    return [-abs(number_in(query) - number_in(text)) for query, text in pairs]


def distance_scorer() -> anncur.Scorer:
    """The same where lower scores are better."""
    return anncur.load_scorer(lambda pairs: [-score for score in score_boxes(pairs)], higher_is_better=False)


def number_in(text: str) -> float:
    """The first number of a text."""
    return next(float(word) for word in text.split() if word.isdigit())


class Pencils:
    """The same, awaited; notes on which event loops it ran."""

    fingerprint = "pencils"

    def __init__(self) -> None:
        self.loops: list[asyncio.AbstractEventLoop] = []
        self.n_pairs = 0

    async def score(self, query: anncur.Query, items: Sequence[anncur.Item]) -> list[float]:
        await asyncio.sleep(0)
        self.loops.append(asyncio.get_running_loop())
        self.n_pairs += len(items)
        return score_boxes([(query.text, item.full_text) for item in items])


NEAREST = ["box-42", "box-41", "box-43"]  # of 42 pencils; ties go to the item that comes first
