"""What a search returns, and the one rule for order: higher first, ties by position.

Reads exact scores, feeds the user. Knows nothing of scorers or methods."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, overload

import numpy as np

from anncur.arrays import NO_POSITIONS, FloatVector, Positions, Selector
from anncur.errors import InputError
from anncur.items import Item, Query
from anncur.story import Story

SHOWN = 3  # hits in a repr
UNLIKE_ANCHORS = 0.95  # the drift from which a query counts as unlike the anchor queries: 5 of 100 that are like them


@dataclass(frozen=True, slots=True)
class Hit:
    """One item of an answer, with the scorer's own score for it.

    `round` is the one in which it was scored, from 1; 0 for what was drawn at random, for the query log."""

    id: str
    score: float
    item: Item
    round: int = field(default=1, repr=False, compare=False)


@dataclass(frozen=True, slots=True, eq=False)
class Explanation:
    """What a method knew when it proposed some items, beside their score estimates.

    Prior means are the estimates before anything was scored, spreads the standard deviations of the estimates; both
    are None where the scale of scores isn't known yet. `estimated_recall` is that of what was scored before."""

    prior_means: FloatVector | None
    spreads: FloatVector | None
    estimated_recall: float | None

    def take(self, places: Positions) -> Explanation:
        """Of some of the items."""
        prior_means = None if self.prior_means is None else self.prior_means[places]
        spreads = None if self.spreads is None else self.spreads[places]
        return Explanation(prior_means, spreads, self.estimated_recall)


@dataclass(frozen=True, slots=True, eq=False)
class Round:
    """One round of a search: the items that were scored, their score estimates, and their exact scores.

    `is_exploring` marks items that were drawn at random, for the query log. `explanation` is there where it was asked
    for and the method gives one."""

    positions: Positions
    guesses: FloatVector | None  # None where the method chose without estimates, as for fixed anchors
    exact_scores: FloatVector
    is_exploring: bool = False
    explanation: Explanation | None = None


@dataclass(frozen=True, repr=False)
class Hits(Sequence[Hit]):
    """An answer: the best items first, and what it cost.

    `calls` counts the pairs that were scored, `cached_calls` those of them that a cache had and nobody paid for, and
    `n_requests` the requests that held some of the others. `is_partial` marks an answer that budget or deadline cut
    short. `seconds` is the time spent, in a batch this query's share of it. `trace` holds one `Round` per round,
    `index_version` is the version of the index that was searched, and `story` tells how the items were found, where
    that was asked for.

    `drift` tells how unlike the anchor queries this query is: the share of held-out anchor queries whose exact scores
    were less surprising to the model, or less low, from 0 to 1. None where it can't be known: for methods other than
    "posterior" and settings other than the tuned ones, and where no queries were held out or calibrated on."""

    hits: tuple[Hit, ...]
    query: Query
    method: str
    calls: int
    seconds: float = field(compare=False)
    is_partial: bool
    estimated_recall: float | None = None
    drift: float | None = None
    trace: tuple[Round, ...] = field(default=(), compare=False)
    cached_calls: int = field(default=0, compare=False)
    n_requests: int = field(default=0, compare=False)
    index_version: int | None = field(default=None, compare=False)
    story: Story | None = field(default=None, compare=False)

    def __len__(self) -> int:
        return len(self.hits)

    @overload
    def __getitem__(self, index: int) -> Hit: ...
    @overload
    def __getitem__(self, index: slice) -> Hits: ...
    def __getitem__(self, index: int | slice) -> Hit | Hits:
        if isinstance(index, slice):
            return replace(self, hits=self.hits[index])
        return self.hits[index]

    @property
    def ids(self) -> list[str]:
        """The ids, best first."""
        return [hit.id for hit in self.hits]

    @property
    def scores(self) -> list[float]:
        """The exact scores, best first."""
        return [hit.score for hit in self.hits]

    @property
    def n_rounds(self) -> int:
        """How often the method asked for scores; exploring is no round of its own."""
        return sum(not step.is_exploring for step in self.trace)

    @property
    def is_unlike_anchors(self) -> bool:
        """Whether the query is unlike the anchor queries, by its `drift`: recall, and the estimate of it, may be lower.

        Of queries like them, 5 of 100 are called unlike. Where the drift isn't known, none is."""
        return self.drift is not None and self.drift >= UNLIKE_ANCHORS

    def __repr__(self) -> str:
        best = ", ".join(f"{hit.id!r}: {hit.score:.4g}" for hit in self.hits[:SHOWN])
        more = f", … {len(self.hits)} in all" if len(self.hits) > SHOWN else ""
        return f"<anncur.Hits {{{best}{more}}}, {self.calls} pairs{', partial' if self.is_partial else ''}>"

    def _repr_html_(self) -> str:
        from anncur.notebook import hits_html

        return hits_html(self)

    def to_pandas(self) -> Any:
        """A data frame with a row per hit: id, score, title, text, and the metadata. Needs pandas."""
        try:
            import pandas
        except ModuleNotFoundError as error:
            raise InputError("to_pandas needs pandas; run pip install pandas") from error
        rows = [{**hit.item.metadata, **_hit_record(hit)} for hit in self.hits]
        return pandas.DataFrame(rows, columns=None if rows else ["id", "score", "title", "text"]).drop(
            columns="metadata", errors="ignore"
        )

    def to_dict(self) -> dict[str, Any]:
        """Plain values for JSON: `hits`, `calls`, `seconds`, `estimated_recall`, and what else describes the answer."""
        told = {} if self.story is None else {"story": self.story.to_dict()}
        return {
            "query": self.query.marked_text,
            "method": self.method,
            "hits": [_hit_record(hit) for hit in self.hits],
            "calls": self.calls,
            "cached_calls": self.cached_calls,
            "n_requests": self.n_requests,
            "n_rounds": self.n_rounds,
            "seconds": self.seconds,
            "is_partial": self.is_partial,
            "estimated_recall": self.estimated_recall,
            "drift": self.drift,
            "is_unlike_anchors": self.is_unlike_anchors,
            "index_version": self.index_version,
            **told,
        }


def rounds_by_position(trace: Iterable[Round]) -> dict[int, int]:
    """For every position that was scored, the round in which it was, from 1; 0 for what was drawn at random."""
    found: dict[int, int] = {}
    n_rounds = 0
    for step in trace:
        n_rounds += not step.is_exploring
        found.update(dict.fromkeys(step.positions.tolist(), 0 if step.is_exploring else n_rounds))
    return found


def top_k(scores: FloatVector, k: int) -> Positions:
    """The positions of the k highest scores, best first; of equal scores the lower position comes first."""
    if k <= 0:
        return NO_POSITIONS
    if k >= len(scores):
        return np.argsort(-scores, kind="stable")
    kth_best = np.partition(scores, len(scores) - k)[len(scores) - k]
    above = np.flatnonzero(scores > kth_best)
    level = np.flatnonzero(scores == kth_best)[: k - len(above)]
    chosen = np.concatenate([above, level])
    return chosen[np.lexsort((chosen, -scores[chosen]))]


class RunningTop:
    """The best of scores that come block by block; what comes later loses ties, because its position is higher."""

    def __init__(self, n_best: int, excluded: Positions = NO_POSITIONS) -> None:
        self._n_best = n_best
        self._excluded = excluded  # in ascending order
        self.positions = NO_POSITIONS
        self.scores: FloatVector = np.empty(0, dtype=np.float32)

    def add(self, scores: FloatVector, items: Selector) -> None:
        """Take in the scores of some items, which come in ascending order; overwrites those of excluded items."""
        scores[_places(self._excluded, items)] = -np.inf
        better = self._better(scores)
        if len(better):
            found = items.start + better if isinstance(items, slice) else items[better]
            positions = np.concatenate([self.positions, found])
            merged = np.concatenate([self.scores, scores[better]])
            order = top_k(merged, self._n_best)  # ties by place, and places are in the order of positions
            self.positions, self.scores = positions[order], merged[order]

    def _better(self, scores: FloatVector) -> Positions:
        """Those that may belong to the best, in an order that keeps ties by position."""
        if len(self.scores) < self._n_best:
            best = top_k(scores, self._n_best)
            return best[scores[best] > -np.inf]  # without the excluded
        return np.flatnonzero(scores > self.scores[-1]) if self._n_best else NO_POSITIONS


def _places(positions: Positions, items: Selector) -> Positions:
    """Where those of some positions that are among the items stand there; both are in ascending order."""
    if isinstance(items, slice):
        first, last = np.searchsorted(positions, [items.start, items.stop])
        neighbours: Positions = positions[first:last] - items.start
        return neighbours
    places = np.minimum(np.searchsorted(items, positions), len(items) - 1)
    picked: Positions = places[items[places] == positions]
    return picked


def _hit_record(hit: Hit) -> dict[str, Any]:
    return {
        "id": hit.id,
        "score": hit.score,
        "title": hit.item.title,
        "text": hit.item.text,
        "metadata": dict(hit.item.metadata),
    }
