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
_LIMITING = threading.Lock()


@contextlib.contextmanager
def one_blas_thread() -> Iterator[None]:
    """Run BLAS on one thread: where products are small, or other processes busy, threads mostly wait for each other.

    The limit is the process's. Whoever sets it takes it back, so that two searches at once can't restore each other's;
    the other one may then have more threads for a while, which does no harm."""
    if not _LIMITING.acquire(blocking=False):
        yield
        return
    try:
        with _thread_pools(int(time.monotonic() / SECONDS_BETWEEN_LOOKS)).limit(limits=1, user_api="blas"):
            yield
    finally:
        _LIMITING.release()


@functools.lru_cache(maxsize=1)
def _thread_pools(look: int) -> threadpoolctl.ThreadpoolController:
    """The libraries that are loaded, found once for each `look`."""
    return threadpoolctl.ThreadpoolController()
