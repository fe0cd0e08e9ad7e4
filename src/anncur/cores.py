"""How many cores this process may use: what the machine has, less what affinity, quota and environment take away."""

from __future__ import annotations

import math
import os
from pathlib import Path

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
