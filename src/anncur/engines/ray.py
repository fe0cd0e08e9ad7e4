"""The engine of a Ray cluster: workers on one or many machines do the units of a job (extra `ray`).

A worker is an actor: it loads what the job needs once, and has about two units in flight, so that it never waits for
the next. What happens to units is decided here and not by Ray: a unit whose worker is lost, or fails, goes to another
worker, and is given up when it has failed several times without getting any further; the others go on, and at the end
an error names those that were given up. Ray is imported when the first unit has to be done."""

from __future__ import annotations

import os
from collections import deque
from types import TracebackType
from typing import Any, Self

from anncur.engines.base import Job
from anncur.errors import InputError
from anncur.numbers import number, whole_number
from anncur.threads import usable_cores

RETRIES = 4


class RayEngine:
    """Has units done by the workers of a Ray cluster.

    `address` is that of a cluster ("auto" for one on this machine, "ray://…" for a client's); without it, the cluster
    that the program is connected to, that of RAY_ADDRESS, or one that is started here and ends with the job. `workers`
    is how many there are at most, by default as many as fit. Each gets `cpus_per_worker` cores, and with
    `workers_per_gpu` its share of a GPU. A unit that fails, or loses its worker, is tried again `retries` times; where
    it had got further since, that doesn't count."""

    name = "ray"
    is_elsewhere = True

    def __init__(
        self,
        *,
        address: str | None = None,
        workers: int | None = None,
        cpus_per_worker: float = 1,
        workers_per_gpu: int | None = None,
        retries: int = RETRIES,
    ) -> None:
        if address is not None and not (isinstance(address, str) and address):
            raise InputError(f"address must be that of a Ray cluster, such as 'auto' or 'host:6379', got {address!r}")
        self.address = address
        self.workers = None if workers is None else whole_number("workers", workers, least=1)
        self.cpus_per_worker = number("cpus_per_worker", cpus_per_worker, least=0.01)
        self.workers_per_gpu = (
            None if workers_per_gpu is None else whole_number("workers_per_gpu", workers_per_gpu, least=1)
        )
        self.retries = whole_number("retries", retries, least=0)
        self._depth = 0
        self._has_started = False

    def __repr__(self) -> str:
        given = {
            "address": self.address,
            "workers": self.workers,
            "cpus_per_worker": self.cpus_per_worker,
            "workers_per_gpu": self.workers_per_gpu,
            "retries": self.retries,
        }
        return f"RayEngine({', '.join(f'{name}={value!r}' for name, value in given.items() if value is not None)})"

    @property
    def gpus_per_worker(self) -> float:
        """The share of a GPU that a worker gets."""
        return 0.0 if self.workers_per_gpu is None else 1 / self.workers_per_gpu

    def run(self, job: Job[Any, Any]) -> None:
        with self:
            units = deque(job.units)
            while units and job.payload(units[0]) is None:
                units.popleft()
            if units:
                from anncur.engines.ray_driver import Driver

                self._connect()
                with Driver.started(self, job, units) as driver:
                    driver.run()

    def __enter__(self) -> Self:
        check_ray()
        self._depth += 1
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._depth -= 1
        if not self._depth and self._has_started:
            import ray

            self._has_started = False
            ray.shutdown()

    def _connect(self) -> None:
        """Connect to a cluster, or start one on this machine, unless that is done."""
        import ray

        if self._has_started:
            return
        if ray.is_initialized():
            there = ray.get_runtime_context().gcs_address
            if self.address not in (None, "auto", there):
                raise InputError(
                    f"this program is connected to the Ray cluster at {there}, not to {self.address}; leave out "
                    "address, or call ray.shutdown() before"
                )
            return
        quiet: dict[str, Any] = {"log_to_driver": False, "logging_level": "warning"}
        is_elsewhere = self.address or os.environ.get("RAY_ADDRESS")
        try:
            if is_elsewhere:
                ray.init(address=self.address, **quiet)
            else:
                os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")  # what is started unasked reports to nobody
                ray.init(**self._own_cluster(), **quiet)
        except (ConnectionError, ValueError, RuntimeError) as error:
            where = f"the Ray cluster at {is_elsewhere}" if is_elsewhere else "a Ray cluster on this machine"
            raise InputError(f"can't connect to {where}: {error}; check that it runs, and its address") from error
        self._has_started = True

    def _own_cluster(self) -> dict[str, Any]:
        n_cores = max(usable_cores(), round((self.workers or 1) * self.cpus_per_worker))
        return {"num_cpus": n_cores, "include_dashboard": False}


def check_ray() -> None:
    """Refuse to begin without Ray."""
    try:
        import ray  # noqa: F401
    except ModuleNotFoundError as error:
        raise InputError("the engine ray needs ray; run pip install 'anncur[ray]'") from error
