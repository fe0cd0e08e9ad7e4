"""What an index is kept in: memory, or a folder."""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from anncur.index.snapshot import Snapshot
from anncur.items import ItemLike, Query
from anncur.progress import Progress
from anncur.retrievers.user_embeddings import EmbeddingsLike
from anncur.scorers.guard import GuardedScorer
from anncur.storage.query_log import LoggedSearch


@dataclass(frozen=True)
class Contents:
    """What the newest version of an index is made of. `path` is None, and `n_bytes` 0, in memory."""

    path: Path | None
    version: int
    n_items: int
    n_removed: int
    n_anchor_queries: int
    n_segments: int
    scorer: str
    scorer_name: str
    higher_is_better: bool
    dtype: str
    retrievers: tuple[str, ...]
    vectors: str
    n_bytes: int


class Backend(Protocol):
    """The life of an index; each change makes a new version."""

    @property
    def is_complete(self) -> bool:
        """Whether there is a version to load."""
        ...

    def contents(self) -> Contents:
        """What the newest version is made of."""
        ...

    def mark(self) -> Hashable:
        """Changes whenever there is another version; found at little cost."""
        ...

    def load(self) -> Snapshot:
        """The newest version."""
        ...

    def add(
        self,
        items: Iterable[ItemLike],
        scorer: GuardedScorer,
        *,
        embeddings: EmbeddingsLike | None = None,
        progress: Progress,
    ) -> None:
        """Score new items for the anchor queries, and append them; `embeddings` are those of the new items."""
        ...

    def upsert(
        self,
        items: Iterable[ItemLike],
        scorer: GuardedScorer,
        *,
        embeddings: EmbeddingsLike | None = None,
        progress: Progress,
    ) -> None:
        """Append items that are new or changed, and hide those that had their ids."""
        ...

    def remove(self, item_ids: Iterable[str]) -> None:
        """Hide items."""
        ...

    def compact(self) -> None:
        """Merge all segments into one, without the items that are hidden."""
        ...

    def tune(self, anchor_method: str, seed: int, *, progress: Progress) -> None:
        """Derive again what can be derived from the stored scores."""
        ...

    def log(self, searches: Sequence[LoggedSearch], *, most: int) -> None:
        """Append to the query log, which holds at most this many searches."""
        ...

    def latest_searches(self, most: int) -> list[LoggedSearch]:
        """The latest in the query log, at most so many, the oldest first."""
        ...

    def learn(self, *, progress: Progress) -> int:
        """Fit a feedback model to the query log; returns the number of its queries."""
        ...

    def calibrate(self, queries: Sequence[Query], scorer: GuardedScorer, *, progress: Progress) -> None:
        """Score these queries on all items, and calibrate the estimates of recall on them."""
        ...

    def save(self, folder: Path) -> None:
        """Write the newest version to a new folder."""
        ...

    def verify(self) -> list[str]:
        """What is damaged, a line each."""
        ...

    def repair(self, scorer: GuardedScorer, *, progress: Progress) -> list[str]:
        """Repair what can be scored or derived again; returns what can't."""
        ...

    def gc(self, *, unpublished: bool) -> list[str]:
        """Delete what isn't needed; returns the names."""
        ...
