"""The process that hands out units to the workers of a Ray cluster, and decides what becomes of those that fail.

    waiting ──► in flight, two for each worker ──► done
       ▲                     │
       └── tried again ◄── failed, or its worker was lost ──► given up, and named at the end

A worker that is lost is started again by Ray, perhaps on another machine; until it has loaded what the job needs, the
others do its units. Only the unit that was in work when a worker was lost is suspected of having caused it."""

from __future__ import annotations

import contextlib
import math
import os
import sys
import time
import warnings
from collections import Counter, deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Any

import ray
from ray import cloudpickle
from ray.exceptions import ActorDiedError, RayError, RayTaskError, RuntimeEnvSetupError

from anncur.engines.base import Job, Loader, Spread
from anncur.engines.ray_worker import Outcome, RayWorker, StoppedError
from anncur.errors import (
    AnncurError,
    AnncurWarning,
    EngineError,
    FingerprintError,
    InputError,
    ScorerAccessError,
    SpendCapError,
    StorageError,
)

if TYPE_CHECKING:
    from anncur.engines.ray import RayEngine

IN_FLIGHT = 2  # units for each worker, so that none waits for the next
POLL_SECONDS = 1.0  # between questions of how far units are
STOPPING_SECONDS = 5.0  # for workers to write what they have
PATIENCE_SECONDS = 60.0  # without any worker, before a warning
STALLED_SECONDS = 300.0  # in which a unit in work gets no further, before a warning
UNITS_NAMED = 5  # in an error
GIVEN_UP_IN_A_ROW = 3  # units for each worker, after which it is not the units that fail
FATAL = (SpendCapError, FingerprintError, ScorerAccessError, StorageError, InputError)  # no other unit would be done
CONTROL = "control"  # the thread of a worker that answers while a unit is in work


@dataclass(eq=False)
class Member:
    """A worker, and the units that it has, the one in work first."""

    actor: Any
    units: deque[int] = field(default_factory=deque)
    is_ready: bool = False
    pause: float = POLL_SECONDS  # before it is asked to start again


class Driver:
    """Has the units of one job done by some workers."""

    def __init__(
        self,
        job: Job[Any, Any],
        units: deque[int],
        new_actor: Callable[[], Any],
        *,
        n_workers: int,
        retries: int,
    ) -> None:
        self._job = job
        self._waiting = units
        self._new_actor = new_actor
        self._retries = retries
        self._members = [Member(new_actor()) for _ in range(n_workers)]
        self._starting = {member.actor.start.remote(): member for member in self._members}
        self._away: dict[Member, float] = {}  # when those that couldn't be started are asked to again
        self._running: dict[Any, tuple[Member, int]] = {}
        self._polls: dict[Any, Member] = {}  # questions of how far units are
        self._tries: Counter[int] = Counter()  # of units, since they last got any further
        self._left: dict[int, int] = {}  # of units that failed, how much there was to do then
        self._given_up: dict[int, str] = {}  # unit -> what its last try ended with
        self._n_in_vain = 0  # failures in a row in which no unit got any further
        self._has_started = self._has_done_any = False
        self._seen: Counter[int] = Counter()  # how much of units in work was reported
        self._moved: dict[int, float] = {}  # when units in work were last seen to get further
        self._last_poll = self._last_at_work = time.monotonic()
        self._warned: set[str] = set()

    @classmethod
    @contextlib.contextmanager
    def started(cls, engine: RayEngine, job: Job[Any, Any], units: deque[int]) -> Iterator[Driver]:
        """A driver whose workers live as long as it is entered; what stops it lets them write what they have."""
        spread = _spread(engine, n_units=len(units))
        loader = _pickled(job.loader(spread))
        actor_class = ray.remote(
            num_cpus=engine.cpus_per_worker,
            num_gpus=engine.gpus_per_worker,
            max_restarts=-1,  # a worker that is lost begins again, here or elsewhere
            max_task_retries=0,  # but which unit is done again, and by whom, is decided here
            max_concurrency=1,
            concurrency_groups={CONTROL: 1},
            scheduling_strategy="SPREAD",
        )(RayWorker)
        new_actor = partial(actor_class.remote, loader, [os.path.abspath(path) for path in sys.path])
        driver = cls(job, units, new_actor, n_workers=spread.n_workers, retries=engine.retries)
        try:
            yield driver
        except BaseException:  # Ctrl-C, too
            driver._stop()
            raise
        finally:
            with contextlib.suppress(RayError):
                for member in driver._members:
                    ray.kill(member.actor)

    def run(self) -> None:
        """Have all units done; an error names those that can't be."""
        while self._hand_out() or self._running:
            asked = [*self._starting, *self._running, *self._polls]
            if not asked:  # no worker is there
                time.sleep(POLL_SECONDS)
            for reference in ray.wait(asked, num_returns=1, timeout=POLL_SECONDS)[0] if asked else ():
                self._settle(reference)
            self._poll()
        if self._given_up:
            raise self._error()

    def _hand_out(self) -> bool:
        """Give units to workers that can take them; whether there are any left to give."""
        for load in range(IN_FLIGHT):  # first one to each
            for member in self._members:
                if member.is_ready and len(member.units) <= load:
                    self._give(member)
        return bool(self._waiting)

    def _give(self, member: Member) -> None:
        while self._waiting:
            unit = self._waiting.popleft()
            payload = self._job.payload(unit)
            if payload is not None:
                self._running[member.actor.do.remote(unit, payload)] = (member, unit)
                member.units.append(unit)
                self._seen[unit] = 0
                self._moved.pop(unit, None)
                return

    def _settle(self, reference: Any) -> None:
        if reference in self._starting:
            self._settle_start(reference)
        elif reference in self._running:
            self._settle_unit(reference)
        else:
            self._settle_poll(reference)

    def _settle_start(self, reference: Any) -> None:
        member = self._starting.pop(reference)
        try:
            outcome: Outcome = ray.get(reference)
        except (RuntimeEnvSetupError, RayTaskError) as error:
            raise EngineError(f"workers can't be started: {error}") from error
        except RayError as error:
            self._fail_in_vain(f"a worker was lost while it started ({_first_line(error)})")
            self._restart(member, error)
            return
        self._warn(outcome)
        if outcome.error is None:
            member.is_ready = self._has_started = True
            member.pause = POLL_SECONDS
        elif not self._has_started:
            raise outcome.error
        else:
            self._warn_once(f"a worker can't be used: {outcome.error}")
            others = [one for one in self._members if one is not member]
            if not any(one.is_ready or one in self._away or one in self._starting.values() for one in others):
                raise outcome.error

    def _settle_unit(self, reference: Any) -> None:
        member, unit = self._running[reference]
        try:
            outcome: Outcome = ray.get(reference)
        except RayTaskError as error:  # not even an outcome: what came of it can't be sent
            outcome = Outcome(None, EngineError(_first_line(error.cause)), ())
        except RayError as error:
            self._lose(member, error)
            return
        del self._running[reference]
        member.units.remove(unit)
        self._warn(outcome)
        self._job.count(outcome.n_calls)
        if isinstance(outcome.error, FATAL):
            raise outcome.error
        if outcome.error is not None:
            if not self._job.keeps_progress:
                self._tries[unit] = self._retries
            self._fail(unit, str(outcome.error))
            return
        self._job.finish(unit, outcome.result)
        self._n_in_vain, self._has_done_any = 0, True

    def _lose(self, member: Member, error: RayError) -> None:
        """A worker is gone: the unit that was in work has failed, the others wait again."""
        for reference in [one for one, (of, _) in self._running.items() if of is member]:
            del self._running[reference]
        suspect, *others = member.units
        member.units.clear()
        member.is_ready = False
        self._waiting.extendleft(reversed(others))
        self._fail(suspect, f"its worker was lost ({_first_line(error)})")
        self._restart(member, error)

    def _restart(self, member: Member, error: RayError) -> None:
        """Wait until a worker is there again: Ray starts it, where there is room, unless it is gone for good.

        Until then it can't be asked anything, so that each question waits twice as long as the one before."""
        if isinstance(error, ActorDiedError):
            member.actor = self._new_actor()
        self._away[member] = time.monotonic() + member.pause
        member.pause *= 2

    def _fail(self, unit: int, reason: str) -> None:
        """Try a unit again after all others, unless it failed too often without getting any further."""
        left = self._job.left(unit)
        if left < self._left.get(unit, left):
            self._tries[unit], self._n_in_vain = 0, 0
        self._left[unit] = left
        self._tries[unit] += 1
        if self._tries[unit] > self._retries:
            self._given_up[unit] = f"in the last of {self._tries[unit]} tries: {reason}"
        else:
            self._waiting.append(unit)
        self._fail_in_vain(reason)

    def _fail_in_vain(self, reason: str) -> None:
        self._n_in_vain += 1
        n_units = len(self._members) * (GIVEN_UP_IN_A_ROW if self._has_done_any else 1)
        if self._n_in_vain > n_units * (self._retries + 1):
            raise EngineError(
                f"workers fail again and again, {self._n_in_vain} times without getting any further; the last time, "
                f"{reason}; what was done is kept: repair it, and run the same again"
            )

    def _poll(self) -> None:
        """Ask workers now and then how far their units are; who doesn't answer isn't asked again."""
        now = time.monotonic()
        if now - self._last_poll < POLL_SECONDS:
            return
        self._last_poll = now
        for member in [member for member, due in self._away.items() if due <= now]:
            del self._away[member]
            self._starting[member.actor.start.remote()] = member
        working = [member for member in self._members if member.units]
        if working:
            self._last_at_work = now
        elif now - self._last_at_work > PATIENCE_SECONDS:
            self._warn_once("no worker has been ready for a minute; is there room for one, and does it load?")
        for member in working:
            if member not in self._polls.values():
                self._polls[member.actor.progress.options(concurrency_group=CONTROL).remote()] = member

    def _settle_poll(self, reference: Any) -> None:
        member = self._polls.pop(reference)
        with contextlib.suppress(RayError):
            unit, n_done = ray.get(reference)
            if unit in member.units:
                n_more = max(0, n_done - self._seen[unit])
                self._seen[unit] += n_more
                self._job.advance(unit, n_more)
                self._watch(unit, has_moved=bool(n_more))

    def _watch(self, unit: int, *, has_moved: bool) -> None:
        """Warn of a unit that hangs: its worker answers, so that Ray has no reason to end it."""
        now = time.monotonic()
        since = now if has_moved else self._moved.setdefault(unit, now)
        self._moved[unit] = since
        if now - since > STALLED_SECONDS:
            self._warn_once(
                f"{self._job.noun} {unit} ({self._job.describe(unit)}) has got no further for "
                f"{STALLED_SECONDS / 60:g} minutes; if the scorer hangs, stop this, give it a timeout, and run the "
                "same again: what was done is kept"
            )

    def _stop(self) -> None:
        """Let workers end what they have in work, with what was done of it kept."""
        with contextlib.suppress(RayError, KeyboardInterrupt):
            orders = [member.actor.stop.options(concurrency_group=CONTROL).remote() for member in self._members]
            ray.wait(orders, num_returns=len(orders), timeout=STOPPING_SECONDS / 2)
            if self._running:
                ended, _ = ray.wait([*self._running], num_returns=len(self._running), timeout=STOPPING_SECONDS)
                for reference in ended:
                    self._take(reference)

    def _take(self, reference: Any) -> None:
        """What came of a unit before all was stopped."""
        with contextlib.suppress(RayError):
            outcome: Outcome = ray.get(reference)
            self._job.count(outcome.n_calls)
            if outcome.error is None:
                self._job.finish(self._running[reference][1], outcome.result)
            elif not isinstance(outcome.error, StoppedError):
                self._warn(outcome)

    def _warn(self, outcome: Outcome) -> None:
        """Warn here of what a worker was warned of, each once."""
        for warning in outcome.warnings:
            if f"{type(warning)}: {warning}" not in self._warned:
                self._warned.add(f"{type(warning)}: {warning}")
                warnings.warn(warning, stacklevel=2)

    def _warn_once(self, message: str) -> None:
        if message not in self._warned:
            self._warned.add(message)
            warnings.warn(message, AnncurWarning, stacklevel=2)

    def _error(self) -> EngineError:
        named = [
            f"{self._job.noun} {unit} ({self._job.describe(unit)}), {reason}"
            for unit, reason in sorted(self._given_up.items())[:UNITS_NAMED]
        ]
        more = len(self._given_up) - len(named)
        return EngineError(
            f"{len(self._given_up)} of {len(self._job.units)} {self._job.noun}s can't be done: {'; '.join(named)}"
            + (f"; and {more} more" if more else "")
            + "; all others are done and kept: repair it, or leave these items out, and run the same again"
        )


def _pickled(loader: Loader) -> bytes:
    try:
        return bytes(cloudpickle.dumps(loader))
    except AnncurError:
        raise
    except Exception as error:  # whatever the parts of somebody else's object raise
        raise InputError(
            f"this can't be sent to workers: {type(error).__name__}: {_first_line(error)}; pass a scorer, retriever or "
            "function by its name, package.module:name, so that workers load it themselves"
        ) from error


def _spread(engine: RayEngine, *, n_units: int) -> Spread:
    """As many workers as are asked for, or as fit; no more than there are units."""
    nodes = [node for node in ray.nodes() if node["Alive"]]
    fitting = sum(_n_fitting(node["Resources"], engine) for node in nodes)
    if not fitting:
        resources = ray.cluster_resources()
        gpu = f" and {engine.gpus_per_worker:g} of a GPU" if engine.gpus_per_worker else ""
        raise InputError(
            f"no machine of this Ray cluster has room for a worker with {engine.cpus_per_worker:g} core(s){gpu}; all "
            f"together have {', '.join(f'{kind} {resources.get(kind, 0):g}' for kind in ('CPU', 'GPU'))}"
        )
    n_workers = min(engine.workers or fitting, max(1, n_units))
    if n_workers > fitting:
        message = f"{n_workers} workers were asked for, and there is room for {fitting}; the others wait for more"
        warnings.warn(message, AnncurWarning, stacklevel=2)
    return Spread(n_workers, len({node["NodeManagerHostname"] for node in nodes}))


def _n_fitting(resources: dict[str, float], engine: RayEngine) -> int:
    by_cores = resources.get("CPU", 0.0) / engine.cpus_per_worker
    by_gpus = math.inf if engine.workers_per_gpu is None else resources.get("GPU", 0.0) * engine.workers_per_gpu
    return int(min(by_cores, by_gpus) + 1e-9)


def _first_line(error: BaseException | None) -> str:
    return str(error).strip().partition("\n")[0][:200]
