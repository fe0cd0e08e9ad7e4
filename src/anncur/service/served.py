"""The indexes that a service answers from, by name; each is read by one object and written by another.

So a change is loaded aside while searches go on with the version that is there, and none of them waits for it."""

from __future__ import annotations

import asyncio
import re
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from anncur.errors import AnncurError, DeadlineError, InputError, UnknownIdError
from anncur.index.index import Index
from anncur.items import Corpus, Item, Query
from anncur.numbers import number
from anncur.progress import Progress
from anncur.scorers.base import ScorerLike
from anncur.scorers.guard import GuardedScorer
from anncur.scorers.loading import load_scorer
from anncur.scorers.payment import scores_of
from anncur.search.methods import METHODS
from anncur.search.settings import KS
from anncur.service.access_log import LOG
from anncur.service.problems import UNKNOWN_INDEX, ProblemError
from anncur.service.schemas import INDEX_NAME
from anncur.waiting import AWAITING

BUDGETS = (10, 20, 50, 100, 200, 300, 500)  # of the curve of expected recall
REFRESH_SECONDS = 2.0
LEAST_REFRESH_SECONDS = 0.02


class Change:
    """A change of items under way, which ends early after some seconds of work, or when nobody wants it any more."""

    def __init__(self, seconds: float) -> None:
        self._seconds = seconds
        self._is_given_up = threading.Event()

    def give_up(self) -> None:
        """Let it end where it is."""
        self._is_given_up.set()

    def watched(self) -> Progress:
        """What is called as the work gets on, from now."""
        end = time.monotonic() + self._seconds

        def check(stage: str, done: int, total: int) -> None:
            if self._is_given_up.is_set() or time.monotonic() > end:
                raise DeadlineError(
                    f"a change may take {self._seconds:g} seconds, and this one was given up while {stage}"
                )

        return check


@dataclass(frozen=True, eq=False)
class ServedIndex:
    """One index: what searches read, and what writes change, under one lock."""

    name: str
    reader: Index
    writer: Index
    scorer: GuardedScorer
    refresh_seconds: float = REFRESH_SECONDS
    _writing: asyncio.Lock = field(default_factory=asyncio.Lock)
    _refreshing: set[asyncio.Task[None]] = field(default_factory=set)

    @classmethod
    def open(
        cls, name: str, path: str | Path, scorer: ScorerLike | None = None, *, refresh_seconds: float = REFRESH_SECONDS
    ) -> ServedIndex:
        """Open the index of a folder with its scorer, or the one that it remembers; searches share its requests."""
        remembered = Index.open(path, check=False).info.scorer_name if scorer is None else None
        if scorer is None and not remembered:
            raise InputError(f"{path} was built with a scorer that has no name to load it by; pass that scorer")
        shared = load_scorer(scorer or remembered, shares_requests=True)
        number("refresh_seconds", refresh_seconds, least=0)
        reader, writer = Index.open(path, shared), Index.open(path, shared, check=False)
        return cls(name, reader, writer, shared, refresh_seconds)

    def keep_fresh(self) -> None:
        """Look for newer versions from now on, so that no search waits until one is loaded; once on an event loop."""
        if not any(not task.done() for task in self._refreshing):
            task = asyncio.create_task(self._refresh())
            self._refreshing.add(task)
            task.add_done_callback(self._refreshing.discard)

    async def _refresh(self) -> None:
        is_readable = True
        while True:
            await asyncio.sleep(max(self.refresh_seconds, LEAST_REFRESH_SECONDS))
            try:
                await AWAITING.finish(self.reader.refresh)
                is_readable = True
            except AnncurError as error:
                if is_readable:
                    LOG.warning(
                        "the newest version of %s can't be read, and the one before is used: %s", self.name, error
                    )
                is_readable = False

    async def upsert(self, items: Sequence[Item], change: Change) -> int:
        """Add or replace items; the version that has them, which is on disk and loaded."""
        return await self._change(lambda: self.writer.upsert(items, progress=change.watched()))

    async def remove(self, item_id: str, change: Change) -> tuple[int, bool]:
        """Remove an item; the version without it, and whether it was there."""
        was_there = True

        def removed() -> None:
            nonlocal was_there
            change.watched()("waiting", 0, 1)  # once it has begun it is short, and scores nothing
            try:
                self.writer.remove([item_id])
            except UnknownIdError:
                was_there = False

        return await self._change(removed), was_there

    async def _change(self, change: Callable[[], object]) -> int:
        async with self._writing:
            return await AWAITING.finish(self._changed, change)

    def _changed(self, change: Callable[[], object]) -> int:
        change()
        self.reader.refresh()
        return self.reader.info.version

    async def score(self, query: Query, texts: Sequence[str]) -> list[float]:
        """The scorer's scores of texts that belong to no index, higher is better."""
        items = Corpus(Item(str(place), text) for place, text in enumerate(texts))
        scores: list[float] = (await scores_of(self.scorer, query, items, AWAITING)).tolist()
        return scores

    def facts(self) -> dict[str, Any]:
        """What a client may know of it; reads the manifest."""
        info = self.reader.info
        return {
            "name": self.name,
            "version": info.version,
            "n_items": info.n_items,
            "n_anchor_queries": info.n_anchor_queries,
            "scorer": _public_name(info.scorer),
            "higher_is_better": info.higher_is_better,
            "retrievers": list(info.retrievers),
            "vectors": info.vectors,
            "methods": list(METHODS),
            "expected_recall": [curve for k in KS if (curve := self._curve(k, info.n_items))["points"]],
        }

    def _curve(self, k: int, n_items: int) -> dict[str, Any]:
        budgets = [budget for budget in BUDGETS if k <= budget < n_items]
        recalls = ((budget, self.reader.expected_recall(k, budget)) for budget in budgets)
        points = [{"budget": budget, "recall": recall} for budget, recall in recalls if recall is not None]
        return {"k": k, "points": points}

    def close(self) -> None:
        """Let go of what is loaded."""
        for task in self._refreshing:
            task.cancel()
        self.reader.close()
        self.writer.close()


class ServedIndexes(Mapping[str, ServedIndex]):
    """Indexes by name; the first is the one that is meant where no name is given."""

    def __init__(self, indexes: Iterable[ServedIndex]) -> None:
        self._by_name: dict[str, ServedIndex] = {}
        for index in indexes:
            if not re.fullmatch(INDEX_NAME, index.name):
                raise InputError(
                    f"an index must have a name of letters, digits, '.', '_' and '-', got {index.name!r}; give one as "
                    "NAME=FOLDER"
                )
            if index.name in self._by_name:
                raise InputError(f"two indexes are called {index.name}; name them apart as NAME=FOLDER")
            self._by_name[index.name] = index
        if not self._by_name:
            raise InputError("a service needs at least one index")

    def __getitem__(self, name: str) -> ServedIndex:
        return self._by_name[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._by_name)

    def __len__(self) -> int:
        return len(self._by_name)

    def named(self, name: str | None) -> ServedIndex:
        """The index of this name, or the first."""
        if name is None:
            return next(iter(self._by_name.values()))
        try:
            return self._by_name[name]
        except KeyError:
            raise ProblemError(UNKNOWN_INDEX, f"those of this service are: {', '.join(self._by_name)}") from None

    def for_model(self, model: str | None) -> ServedIndex:
        """The index that a re-ranking client means by its model; other names mean the first."""
        return self._by_name.get(model or "") or self.named(None)


def _public_name(fingerprint: str) -> str:
    """A scorer's fingerprint without the folder that it may hold."""
    return fingerprint.rsplit("/", 1)[-1][-80:]
