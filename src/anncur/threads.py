"""How many cores this process may use, and how many threads linear algebra gets."""

from __future__ import annotations

import contextlib
import functools
import math
import os
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import threadpoolctl

QUOTA = Path("/sys/fs/cgroup/cpu.max")  # of a container under cgroup v2: microseconds per period, or `max`
SIBLINGS = "/sys/devices/system/cpu/cpu{}/topology/thread_siblings_list"


def usable_cores(*, quota: Path = QUOTA) -> int:
    """Physical cores that this process may use, at least one.

    Two threads on one core only disturb each other's arithmetic, and threads beyond a quota stop all others when it is
    used up. OMP_NUM_THREADS, which libraries of linear algebra obey, counts too."""
    return max(1, int(min(_physical_cores(), _allowed_by(quota), _asked_for())))


def _physical_cores() -> int:
    if not hasattr(os, "sched_getaffinity"):
        return os.cpu_count() or 1
    usable = os.sched_getaffinity(0)
    try:
        return len({Path(SIBLINGS.format(cpu)).read_text() for cpu in usable})
    except OSError:
        return len(usable)


def _allowed_by(quota: Path) -> float:
    """Cores that a quota amounts to, a part of one counted as one; infinite without a quota."""
    try:
        microseconds, period = quota.read_text().split()
        return math.inf if microseconds == "max" else math.ceil(int(microseconds) / int(period))
    except (OSError, ValueError, ZeroDivisionError):
        return math.inf


def _asked_for() -> float:
    asked = os.environ.get("OMP_NUM_THREADS", "")
    return int(asked) if asked.isdecimal() else math.inf


SECONDS_BETWEEN_LOOKS = 1.0  # for libraries that were loaded meanwhile: a look takes a millisecond
LARGE_PRODUCT = 2**28  # multiplications, a tenth of a second: from there on threads pay, also where others are busy
_LIMITING = threading.Lock()
_LIMITED = threading.local()  # `pools` of whoever limits in this thread: libraries, and the threads that they had


@contextlib.contextmanager
def blas_threads_for(n_multiplications: int) -> Iterator[None]:
    """Within `one_blas_thread`, all threads for a large product; for a small one nothing changes."""
    raised = getattr(_LIMITED, "pools", []) if n_multiplications >= LARGE_PRODUCT else []
    for pool, n_threads in raised:
        pool.set_num_threads(n_threads)
    try:
        yield
    finally:
        for pool, _ in raised:
            pool.set_num_threads(1)


class one_blas_thread:  # noqa: N801  # a context, as in contextlib; a class, because a generator costs more than it does
    """Run BLAS on one thread: where products are small, or other processes busy, threads mostly wait for each other.

    The limit is the process's. Whoever sets it takes it back, so that two searches at once can't restore each other's;
    the other one may then have more threads for a while, which does no harm."""

    def __enter__(self) -> None:
        self._limited: list[tuple[Any, int]] = []
        self._is_first = _LIMITING.acquire(blocking=False)
        if self._is_first:
            found = [
                (pool, pool.get_num_threads()) for pool in _blas_pools(int(time.monotonic() / SECONDS_BETWEEN_LOOKS))
            ]
            self._limited = [(pool, n_threads) for pool, n_threads in found if n_threads != 1]
            for pool, _ in self._limited:
                pool.set_num_threads(1)
            _LIMITED.pools = self._limited

    def __exit__(self, *_: object) -> None:
        if self._is_first:
            _LIMITED.pools = []
        for pool, n_threads in self._limited:
            pool.set_num_threads(n_threads)
            if hasattr(pool, "clear_controlling_thread"):  # else only this thread could ever set a limit again
                pool.clear_controlling_thread()
        if self._is_first:
            _LIMITING.release()


@functools.lru_cache(maxsize=1)
def _blas_pools(look: int) -> list[Any]:
    """The libraries of BLAS that are loaded, found once for each `look`; what `threadpool_limits` does is slower."""
    pools = threadpoolctl.ThreadpoolController().lib_controllers
    return [pool for pool in pools if pool.user_api == "blas"]
