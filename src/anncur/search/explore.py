"""Scores a few items at random after a search, within its budget: what a method would never look at is learnt too.

Feeds `Index.learn`. The method ends before, with the rest of the budget; what is found here still counts."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence

import numpy as np

from anncur.arrays import Positions
from anncur.errors import DeadlineError
from anncur.ranking import Round
from anncur.search.loop import Run

TRIES = 4  # random draws per wanted item, before all that is left is listed


def n_explored(budget: int, share: float) -> int:
    """How many calls of a budget are for exploring; the method has at least one."""
    return min(round(share * budget), budget - 1)


def explore(runs: Sequence[Run], *, n_items: int, share: float, seed: int) -> None:
    """Let each run score items at random: `share` of all its calls. What the deadline cuts off is left."""
    for run in runs:
        meter = run.meter
        wanted = min(round(share * meter.calls / (1 - share)), meter.remaining, n_items - meter.calls)
        if run.is_cut or wanted <= 0:
            continue
        calls_before = meter.calls
        positions = _draw(wanted, n_items, meter.positions, _generator(seed, meter.query.marked_text))
        try:
            meter.score(positions)
        except DeadlineError:
            return
        finally:
            paid, exact_scores = meter.positions[calls_before:], meter.exact_scores[calls_before:]
            if len(paid):
                run.trace.append(Round(paid, None, exact_scores, is_exploring=True))


def _generator(seed: int, text: str) -> np.random.Generator:
    """Of a query alone, so that it is answered the same among others and by itself."""
    digest = hashlib.sha256(text.encode()).digest()
    return np.random.default_rng([seed, int.from_bytes(digest[:8], "little")])


def _draw(n_wanted: int, n_items: int, scored: Positions, rng: np.random.Generator) -> Positions:
    """Distinct items that weren't scored. Without listing all items, unless most of them were."""
    if TRIES * (n_wanted + len(scored)) >= n_items:
        return rng.choice(np.setdiff1d(np.arange(n_items), scored), n_wanted, replace=False)
    found = dict.fromkeys(rng.integers(n_items, size=TRIES * (n_wanted + 8)).tolist())
    taken = set(scored.tolist())
    drawn = [position for position in found if position not in taken][:n_wanted]
    return np.array(drawn, dtype=np.int64)
