"""One code for callers who block and for callers who await.

All that stands between a search and its scorer is written once, as coroutines that wait only through a `Waiting`.
`BLOCKING` waits in the caller's thread, so that such a coroutine never suspends and `run` carries it to its end;
`AWAITING` hands over to the event loop of the caller."""

from __future__ import annotations

import asyncio
import atexit
import contextlib
import functools
import inspect
import os
import sys
import threading
from collections.abc import Awaitable, Callable, Coroutine, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor, wait
from contextvars import ContextVar
from typing import Any, NoReturn, Protocol, TypeAlias, TypeVar

from anncur.errors import InputError

CLOSING_SECONDS = 5.0
LONGEST_SECONDS = 365 * 24 * 3600.0  # what any clock and any event loop can wait for
MOST_THREADS = 128  # for scorers that block, in searches that are awaited

T = TypeVar("T")
Job: TypeAlias = Callable[[], Coroutine[Any, Any, None]]


class Signal:
    """Given once, from any thread; wakes all who wait for it, be it in threads or on event loops."""

    def __init__(self) -> None:
        self.is_given = False
        self._lock = threading.Lock()
        self._wakers: set[Callable[[], object]] = set()

    def give(self) -> None:
        """Wake all who wait, and whoever comes later."""
        with self._lock:
            self.is_given = True
            wakers = list(self._wakers)
        for wake in wakers:
            wake()

    @contextlib.contextmanager
    def waking(self, wake: Callable[[], object]) -> Iterator[None]:
        """Call a function when the signal is given, or at once if it was."""
        with self._lock:
            self._wakers.add(wake)
        if self.is_given:
            wake()
        try:
            yield
        finally:
            with self._lock:
                self._wakers.discard(wake)


class Waiting(Protocol):
    """How to wait for time, signals, other people's code and long computations, and for several jobs at once."""

    async def sleep(self, seconds: float, /) -> None: ...

    async def wait(self, signal: Signal, seconds: float, /) -> None:
        """Until the signal is given, or that many seconds have passed."""
        ...

    async def call(self, function: Callable[..., Any], /, *arguments: Any) -> Any:
        """What a function answers, be it sync or async."""
        ...

    async def compute(self, function: Callable[..., T], /, *arguments: Any) -> T:
        """What a function of ours gives that may take a while and doesn't wait for anybody."""
        ...

    async def finish(self, function: Callable[..., T], /, *arguments: Any) -> T:
        """The same for what must come to its end, also when the caller is cancelled."""
        ...

    async def each(self, jobs: Iterator[Job], /, *, at_once: int) -> None:
        """Do jobs, some at once, each taken from the iterator when it can begin.

        After an error or an interruption no other begins; what has begun comes to its end, and then the error goes
        up."""
        ...


def run(coroutine: Coroutine[Any, Any, T]) -> T:
    """The result of a coroutine that waits by `BLOCKING` alone."""
    try:
        coroutine.send(None)
    except StopIteration as end:
        result: T = end.value
        return result
    coroutine.close()
    raise RuntimeError("a coroutine that should have blocked was suspended")


class Blocking:
    """Waits in the caller's thread; async functions run in an event loop of their own, in another thread."""

    async def sleep(self, seconds: float) -> None:
        await self.wait(Signal(), seconds)

    async def wait(self, signal: Signal, seconds: float) -> None:
        woken = threading.Event()
        with _waking(woken.set, signal):
            woken.wait(min(seconds, LONGEST_SECONDS))

    async def call(self, function: Callable[..., Any], *arguments: Any) -> Any:
        _check_stopped()
        answer = function(*arguments)
        return _in_background(answer) if inspect.isawaitable(answer) else answer

    async def compute(self, function: Callable[..., T], *arguments: Any) -> T:
        return function(*arguments)

    async def finish(self, function: Callable[..., T], *arguments: Any) -> T:
        return function(*arguments)

    async def each(self, jobs: Iterator[Job], *, at_once: int) -> None:
        queue = _Queue(jobs)
        if at_once <= 1:
            return await queue.work()
        with ThreadPoolExecutor(at_once, thread_name_prefix="anncur") as pool:
            try:
                futures = [pool.submit(lambda: run(queue.work_with_others())) for _ in range(at_once)]
                wait(futures)
            except BaseException:  # Ctrl-C, which reaches the thread that waits
                queue.stop()
                raise
        _raise_first([future.exception() for future in futures])
        return None


class Awaiting:
    """Waits on the caller's event loop; sync functions run in threads."""

    async def sleep(self, seconds: float) -> None:
        await self.wait(Signal(), seconds)

    async def wait(self, signal: Signal, seconds: float) -> None:
        woken, loop = asyncio.Event(), asyncio.get_running_loop()
        with _waking(lambda: _call_on(loop, woken.set), signal), contextlib.suppress(TimeoutError):
            async with asyncio.timeout(min(seconds, LONGEST_SECONDS)):
                await woken.wait()

    async def call(self, function: Callable[..., Any], *arguments: Any) -> Any:
        await asyncio.sleep(0)  # whoever is cancelled begins nothing
        _check_stopped()
        if is_async(function):
            return await function(*arguments)
        answer = await self.finish(function, *arguments)
        return await answer if inspect.isawaitable(answer) else answer

    async def compute(self, function: Callable[..., T], *arguments: Any) -> T:
        await asyncio.sleep(0)
        found = await self.finish(function, *arguments)
        await asyncio.sleep(0)
        return found

    async def finish(self, function: Callable[..., T], *arguments: Any) -> T:
        return await _in_thread(function, *arguments)

    async def each(self, jobs: Iterator[Job], *, at_once: int) -> None:
        queue = _Queue(jobs)
        if at_once <= 1:
            return await queue.work()
        tasks = [asyncio.create_task(queue.work_with_others()) for _ in range(at_once)]
        found = await asyncio.gather(*tasks, return_exceptions=True)  # which cancels all of them when it is cancelled
        _raise_first([result if isinstance(result, BaseException) else None for result in found])
        return None


BLOCKING, AWAITING = Blocking(), Awaiting()


def is_async(function: object) -> bool:
    """Whether calling it gives something to await."""
    while isinstance(function, functools.partial):
        function = function.func
    called = getattr(type(function), "__call__", None)  # noqa: B004  # what stands behind an object's call, not whether
    return inspect.iscoroutinefunction(function) or inspect.iscoroutinefunction(called)


async def _in_thread(function: Callable[..., T], *arguments: Any) -> T:
    """What a function gives that runs in a thread. A thread can't be cancelled: it comes to its end, what it gives is
    returned, and the caller is cancelled where it waits next."""
    loop = asyncio.get_running_loop()
    future = loop.run_in_executor(_background().threads, functools.partial(function, *arguments))
    is_ending, cancelled = _is_ending(), None
    while not future.done():
        try:
            await asyncio.wait([future])
        except asyncio.CancelledError as error:  # which some cancel scopes repeat
            cancelled = cancelled or error
    if cancelled is not None and not is_ending:
        _cancel_later(cancelled, has_failed=future.exception() is not None)
    return future.result()


def _is_ending() -> bool:
    """Whether the caller was cancelled before, and only cleans up while that goes up through its code."""
    error = sys.exception()
    if not isinstance(error, asyncio.CancelledError) or error.__traceback__ is None:
        return False
    handler: str = error.__traceback__.tb_frame.f_globals["__name__"]  # a user's handler may begin another search
    return handler.partition(".")[0] == __name__.partition(".")[0]


def _cancel_later(cancelled: asyncio.CancelledError, *, has_failed: bool) -> None:
    """Let a task that was cancelled be so where it waits next; at once if there is nothing that it could lose."""
    task = asyncio.current_task()
    if task is None or has_failed:
        raise cancelled
    task.uncancel()  # so that a timeout around it counts one cancellation
    task.cancel(*cancelled.args)


def _call_on(loop: asyncio.AbstractEventLoop, function: Callable[[], object]) -> None:
    """Call a function on an event loop, from any thread, unless the loop was closed with all that waited on it."""
    with contextlib.suppress(RuntimeError):
        loop.call_soon_threadsafe(function)


class _Stopped(BaseException):
    """Ends a worker whose fellows have failed or were interrupted."""


_STOPPED: ContextVar[Signal | None] = ContextVar("stopped", default=None)  # that of the worker in this thread or task


def _check_stopped() -> None:
    if (stopped := _STOPPED.get()) is not None and stopped.is_given:
        raise _Stopped


@contextlib.contextmanager
def _waking(wake: Callable[[], object], signal: Signal) -> Iterator[None]:
    """Call a function when the signal is given, or when this worker is stopped, which then ends."""
    stopped = _STOPPED.get() or Signal()
    with signal.waking(wake), stopped.waking(wake):
        yield
    _check_stopped()


class _Queue:
    """Jobs that several workers take from."""

    def __init__(self, jobs: Iterator[Job]) -> None:
        self._jobs = jobs
        self._lock = threading.Lock()
        self._stopped = Signal()

    async def work(self) -> None:
        """Do one job after the other."""
        try:
            while (job := self._next()) is not None:
                await job()
        except BaseException:
            self.stop()
            raise

    async def work_with_others(self) -> None:
        """The same in a thread or a task that does nothing else: it waits no longer than until it is stopped."""
        _STOPPED.set(self._stopped)
        await self.work()

    def stop(self) -> None:
        """Let no other job begin, and nobody try again."""
        self._stopped.give()

    def _next(self) -> Job | None:
        with self._lock:
            return None if self._stopped.is_given else next(self._jobs, None)


def _raise_first(errors: Sequence[BaseException | None]) -> None:
    """Errors of workers that were only stopped don't count."""
    for error in errors:
        if error is not None and not isinstance(error, _Stopped):
            raise error


class _Background:
    """Threads for what blocks, and an event loop in one of its own for async functions that a caller blocks for."""

    def __init__(self) -> None:
        self.pid = os.getpid()
        self.threads = ThreadPoolExecutor(MOST_THREADS, thread_name_prefix="anncur")
        self.loop = asyncio.new_event_loop()
        self.thread = threading.Thread(target=self.loop.run_forever, name="anncur event loop", daemon=True)
        self.thread.start()
        atexit.register(self._close)

    def _close(self) -> None:
        """Let clients of the loop close their connections."""
        if self.pid == os.getpid():
            asyncio.run_coroutine_threadsafe(self.loop.shutdown_asyncgens(), self.loop).result(timeout=CLOSING_SECONDS)


_LOCK = threading.Lock()
_BACKGROUNDS: list[_Background] = []


def _background() -> _Background:
    with _LOCK:
        if not _BACKGROUNDS or _BACKGROUNDS[-1].pid != os.getpid():  # a fork has no threads but the one that forked
            _BACKGROUNDS[:] = [_Background()]
        return _BACKGROUNDS[-1]


def _in_background(answer: Awaitable[T]) -> T:
    background = _background()
    if threading.current_thread() is background.thread:
        _refuse_to_block(answer)
    future = asyncio.run_coroutine_threadsafe(_awaited(answer), background.loop)
    try:
        return future.result()
    except BaseException:
        future.cancel()
        raise


def _refuse_to_block(answer: Awaitable[object]) -> NoReturn:
    if inspect.iscoroutine(answer):
        answer.close()
    raise InputError(
        "an async scorer must not block for another async scorer, since both run on one event loop; await it: "
        "index.asearch(…) in the place of index.search(…)"
    )


async def _awaited(answer: Awaitable[T]) -> T:
    return await answer
