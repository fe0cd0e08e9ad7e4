"""What keeps an index: in memory, or in a folder."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Protocol

from anncur.index.snapshot import Snapshot
from anncur.index.traffic import KeptSearch
from anncur.items import ItemLike
from anncur.progress import Progress
from anncur.scorers.guard import GuardedScorer


class Storage(Protocol):
    """The life of an index; each change makes a new version."""

    def load(self) -> Snapshot:
        """The newest version."""
        ...

    def add(self, items: Iterable[ItemLike], scorer: GuardedScorer, *, progress: Progress) -> None:
        """Score new items for the anchor queries, and append them."""
        ...

    def remove(self, item_ids: Iterable[str]) -> None:
        """Hide items."""
        ...

    def tune(self, anchors: str, seed: int, *, progress: Progress) -> None:
        """Learn anew from the stored scores."""
        ...

    def keep(self, searches: Sequence[KeptSearch], *, most: int) -> None:
        """Keep what searches paid for, at most so many of them."""
        ...

    def learn(self, *, progress: Progress) -> int:
        """Learn from the searches that were kept, however many; returns their number."""
        ...

    def verify(self) -> list[str]:
        """What is damaged, a line each."""
        ...

    def repair(self, scorer: GuardedScorer, *, progress: Progress) -> list[str]:
        """Mend what can be mended; returns what can't."""
        ...

    def gc(self, *, drafts: bool) -> list[str]:
        """Delete what isn't needed; returns the names."""
        ...
