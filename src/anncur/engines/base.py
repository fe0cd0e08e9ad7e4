"""What a job is, and what an engine is: a job has units of work, and an engine decides which process does each.

A unit is a chunk of exact scores, a part of what a retriever derives from items, or a block of queries. Engines know
nothing of these: a job makes what a worker needs for a unit, and takes what comes of it. Units may be done in any
order, and more than once: what a lost worker had is done again."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from types import TracebackType
from typing import Any, Generic, Protocol, Self, TypeAlias, TypeVar

Payload = TypeVar("Payload")
Result = TypeVar("Result")

Report: TypeAlias = Callable[[int], None]  # called by a worker when this much more of a unit is done


class Worker(Protocol):
    """Does units, one after the other."""

    @property
    def calls_made(self) -> int:
        """Pairs that the scorer has been asked for in this process."""
        ...

    def __call__(self, payload: Any, report: Report, /) -> Any: ...


Loader: TypeAlias = Callable[[], Worker]  # sent to other processes by pickle


@dataclass(frozen=True)
class Spread:
    """How many workers share a job, and on how many machines."""

    n_workers: int
    n_machines: int


class Job(ABC, Generic[Payload, Result]):
    """Units of work that any process can do, and what becomes of them in this one."""

    noun: str  # what a unit is called in messages
    units: Sequence[int]
    keeps_progress = True  # whether a unit that fails keeps what was done of it, so that another try costs little

    @abstractmethod
    def loader(self, spread: Spread | None) -> Loader:
        """Gives a worker: one in this process, or where there is a `spread`, one that is loaded in each of others.

        Refuses a spread that would break a rule, such as a cap that only one process can keep."""

    @abstractmethod
    def payload(self, unit: int) -> Payload | None:
        """What a worker needs for a unit; None where nothing of it is left to do. Asked for again when it failed."""

    @abstractmethod
    def left(self, unit: int) -> int:
        """How much of a unit is still to be done."""

    @abstractmethod
    def describe(self, unit: int) -> str:
        """What is in a unit, for messages."""

    @abstractmethod
    def finish(self, unit: int, result: Result) -> None:
        """Take what came of a unit."""

    def advance(self, unit: int, n_more: int) -> None:  # most units are short
        """More of a unit is done."""

    def count(self, n_calls: int) -> None:  # most jobs ask no scorer
        """The scorer was asked for this many pairs in another process."""


class Engine(Protocol):
    """Has the units of jobs done. Entered around several jobs, it may keep what it started between them."""

    @property
    def name(self) -> str: ...

    @property
    def is_elsewhere(self) -> bool:
        """Whether units are done in other processes."""
        ...

    def run(self, job: Job[Any, Any], /) -> None:
        """Have all units done that are not done yet. What can't be done is an error, and all else is kept."""
        ...

    def __enter__(self) -> Self: ...

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None, /
    ) -> None: ...
