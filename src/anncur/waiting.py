"""One code for callers who block and for callers who await.

All that stands between a search and its scorer is written once, as coroutines that wait only through a `Waiting`.
`BLOCKING` waits in the caller's thread, so that such a coroutine never suspends and `run` carries it to its end;
`AWAITING` hands over to the event loop of the caller."""

from __future__ import annotations

import asyncio
import atexit
import functools
import inspect
import os
import threading
import time
from collections.abc import Awaitable, Callable, Coroutine, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor, wait
from contextvars import ContextVar
from typing import Any, Protocol, TypeAlias, TypeVar

CLOSING_SECONDS = 5.0
MOST_THREADS = 128  # for scorers that block, in searches that are awaited

T = TypeVar("T")
Job: TypeAlias = Callable[[], Coroutine[Any, Any, None]]


class Waiting(Protocol):
    """How to wait for time, for other people's code, for long computations, and for several jobs at once."""

    async def sleep(self, seconds: float, /) -> None: ...

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
        stopped = _STOPPED.get()
        if stopped is None:
            time.sleep(seconds)
        elif stopped.wait(seconds):
            raise _Stopped

    async def call(self, function: Callable[..., Any], *arguments: Any) -> Any:
        if (stopped := _STOPPED.get()) is not None and stopped.is_set():
            raise _Stopped
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
                futures = [pool.submit(queue.work_in_thread) for _ in range(at_once)]
                wait(futures)
            except BaseException:  # Ctrl-C, which reaches the thread that waits
                queue.stop()
                raise
        _raise_first([future.exception() for future in futures])
        return None


class Awaiting:
    """Waits on the caller's event loop; sync functions run in threads."""

    async def sleep(self, seconds: float) -> None:
        await asyncio.sleep(seconds)

    async def call(self, function: Callable[..., Any], *arguments: Any) -> Any:
        if is_async(function):
            return await function(*arguments)
        await asyncio.sleep(0)  # whoever is cancelled begins nothing
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
        tasks = [asyncio.create_task(queue.work()) for _ in range(at_once)]
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
    try:
        return await asyncio.shield(future)
    except asyncio.CancelledError:
        await asyncio.wait([future])
        task = asyncio.current_task()
        if task is None or future.exception() is not None:
            raise
        task.uncancel()
        task.cancel()  # again, so that a timeout around it counts it once
        return future.result()


class _Stopped(BaseException):
    """Ends a worker whose fellows have failed or were interrupted."""


_STOPPED: ContextVar[threading.Event | None] = ContextVar("stopped", default=None)  # that of the worker in this thread


class _Queue:
    """Jobs that several workers take from."""

    def __init__(self, jobs: Iterator[Job]) -> None:
        self._jobs = jobs
        self._lock = threading.Lock()
        self._stopped = threading.Event()

    async def work(self) -> None:
        """Do one job after the other."""
        try:
            while (job := self._next()) is not None:
                await job()
        except BaseException:
            self.stop()
            raise

    def work_in_thread(self) -> None:
        """The same for a thread that only works: it sleeps no longer than until it is stopped."""
        token = _STOPPED.set(self._stopped)
        try:
            run(self.work())
        finally:
            _STOPPED.reset(token)

    def stop(self) -> None:
        """Let no other job begin, and nobody try again."""
        self._stopped.set()

    def _next(self) -> Job | None:
        with self._lock:
            return None if self._stopped.is_set() else next(self._jobs, None)


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
        threading.Thread(target=self.loop.run_forever, name="anncur event loop", daemon=True).start()
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
    future = asyncio.run_coroutine_threadsafe(_awaited(answer), _background().loop)
    try:
        return future.result()
    except BaseException:
        future.cancel()
        raise


async def _awaited(answer: Awaitable[T]) -> T:
    return await answer
