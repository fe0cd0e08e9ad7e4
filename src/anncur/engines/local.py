"""The engine of this process: one unit after the other, in their order; the first error ends it."""

from __future__ import annotations

from functools import partial
from types import TracebackType
from typing import Any, Self

from anncur.engines.base import Job, Worker


class LocalEngine:
    """Does the units of a job in this process."""

    name = "local"
    is_elsewhere = False

    def run(self, job: Job[Any, Any]) -> None:
        worker: Worker | None = None
        for unit in job.units:
            payload = job.payload(unit)
            if payload is None:
                continue
            worker = worker or job.loader(None)()
            job.finish(unit, worker(payload, partial(job.advance, unit)))

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Nothing was started."""


LOCAL = LocalEngine()
