"""A search as a story: what was scored in which round, what was thought of it before, and what it turned out to be.

Plain values that the index makes of a search's trace, for people and programs that show it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from anncur.items import Item

LABEL_LENGTH = 80


@dataclass(frozen=True, slots=True)
class ScoredItem:
    """One item of a round: its prior mean, the posterior mean and its spread just before it was scored, and the score.

    What the method doesn't know is None. `place` is where the item stands on the map of items."""

    item: Item
    prior_mean: float | None
    posterior_mean: float | None
    spread: float | None
    score: float
    place: tuple[float, float] | None

    def to_dict(self) -> dict[str, Any]:
        """Plain values for JSON."""
        x, y = self.place or (None, None)
        return {
            "id": self.item.id,
            "label": label(self.item),
            "prior_mean": self.prior_mean,
            "posterior_mean": self.posterior_mean,
            "spread": self.spread,
            "score": self.score,
            "x": x,
            "y": y,
        }


@dataclass(frozen=True, slots=True)
class StoryRound:
    """One round, and the recall that was estimated after it; exploring ones scored items at random."""

    items: tuple[ScoredItem, ...]
    estimated_recall: float | None
    is_exploring: bool

    def to_dict(self) -> dict[str, Any]:
        """Plain values for JSON."""
        return {
            "items": [item.to_dict() for item in self.items],
            "estimated_recall": self.estimated_recall,
            "is_exploring": self.is_exploring,
        }


@dataclass(frozen=True, slots=True)
class Story:
    """The rounds of a search, in their order."""

    rounds: tuple[StoryRound, ...]

    def to_dict(self) -> dict[str, Any]:
        """Plain values for JSON."""
        return {"rounds": [step.to_dict() for step in self.rounds]}


def label(item: Item) -> str:
    """A few words of an item, on one line: its title, or the beginning of its text."""
    words = " ".join((item.title or item.text[: 4 * LABEL_LENGTH]).split())
    return words if len(words) <= LABEL_LENGTH else words[: LABEL_LENGTH - 1] + "…"
