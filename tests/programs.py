"""A program that works on an index in a process of its own and can be made to fail, and the means to start and stop it.

`python programs.py TASK` does one `Task`, given as JSON. It prints "ready" before it touches the index, and ends with
the digest of the index or with the error that it met, as JSON."""

from __future__ import annotations

import ctypes
import errno
import json
import os
import platform
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import anncur
from anncur.arrays import FloatVector
from anncur.errors import AnncurError
from anncur.index import folder_changes
from anncur.scorers.base import ScorerLike
from anncur.scores import StoredChunks
from worlds import CountingScorer, World, low_rank_scores

N_BUILT, N_ADDED, N_QUERIES, ITEMS_PER_CHUNK = 90, 30, 6, 8
PAIRS_PER_CHUNK = ITEMS_PER_CHUNK * N_QUERIES
N_CHUNKS = -(-N_BUILT // ITEMS_PER_CHUNK)
STABILITY_CHECKS = 8  # pairs that a build scores again at its end

FILE_CALLS = ("fsync", "rename", "replace", "link", "unlink", "mkdir")
SYSTEM_CALLS = {
    "x86_64": {"write": 1, "pwrite64": 18, "writev": 20, "fsync": 74, "rename": 82, "seccomp": 317},
    "aarch64": {"write": 64, "pwrite64": 68, "writev": 66, "fsync": 82, "rename": 38, "seccomp": 277},
}
KILL, FAIL_WITH_EIO, ALLOW = 0x80000000, 0x00050000 | errno.EIO, 0x7FFF0000  # what seccomp may do


@dataclass(frozen=True)
class Task:
    """What a process is to do, and how it is to fail.

    It is killed before or after its `die_at`-th call of `FILE_CALLS`; and once it is about to write the chunk
    `forbid_at`, or from the start if that is None, the system calls `forbid` kill it, or fail with EIO if `eio`."""

    path: str
    operation: str = "build"
    shard: tuple[int, int] | None = None
    log: str | None = None
    seconds_per_request: float = 0.0
    die_at: int = 0
    die_after: bool = False
    forbid: tuple[str, ...] = ()
    forbid_at: int | None = None
    eio: bool = False
    n_steps: int = 0


@dataclass(frozen=True)
class Outcome:
    """How a process ended; `code` is minus the signal that killed it."""

    code: int
    digest: str = ""
    error: str = ""
    message: str = ""


class PreparingScorer(CountingScorer):
    """Counts pairs, and refuses items that come without what it made of them."""

    def prepare(self, items: Sequence[anncur.Item]) -> list[bytes]:
        return [item.full_text.encode() for item in items]

    def score(self, query: anncur.Query, items: Sequence[anncur.Item]) -> FloatVector:
        assert [item.prepared for item in items] == self.prepare(items)
        return super().score(query, items)


class LoggingScorer:
    """Scores as another one does, and appends a line per pair to a file before it answers."""

    def __init__(self, inner: Any, log: str | None, seconds_per_request: float) -> None:
        self._inner = inner
        self._seconds = seconds_per_request
        self._log = os.open(log or os.devnull, os.O_WRONLY | os.O_APPEND | os.O_CREAT)
        self.fingerprint = inner.fingerprint
        self.prepare = inner.prepare

    def score(self, query: anncur.Query, items: Sequence[anncur.Item]) -> FloatVector:
        os.write(self._log, "".join(f"{query.text}\t{item.id}\n" for item in items).encode())
        time.sleep(self._seconds)
        exact_scores: FloatVector = self._inner.score(query, items)
        return exact_scores


def make_world() -> World:
    """The same items, queries and scores in every process."""
    world = World(low_rank_scores(N_QUERIES, N_BUILT + N_ADDED, rank=4, noise=0.1))
    world.scorer = PreparingScorer(world.scorer)
    return world


def build(path: Path | str, scorer: ScorerLike | None = None, **options: Any) -> anncur.Index:
    """Build, in this process, the index that a task builds."""
    world = make_world()
    return anncur.Index.build(
        world.items[:N_BUILT],
        scorer or world.scorer,
        world.queries,
        path=path,
        items_per_chunk=ITEMS_PER_CHUNK,
        retrievers=["bm25"],
        **options,
    )


def open_index(path: Path | str) -> anncur.Index:
    """Open, in this process, an index that a task built."""
    return anncur.Index.open(path, make_world().scorer)


def add(index: anncur.Index) -> None:
    """Add what the task "add" adds."""
    index.add(make_world().items[N_BUILT:])


def remove(index: anncur.Index) -> None:
    """Remove what the task "remove" removes."""
    index.remove(["i3", "i40", "i89"])


def upsert(index: anncur.Index) -> None:
    """Replace and add what the task "upsert" does: new texts, other metadata, new items, and one that is the same."""
    items = make_world().items
    texts = [replace(item, text=f"{item.text}, changed") for item in items[5:25:4]]
    metadata = [replace(item, metadata={"colour": "red"}) for item in items[30:36]]
    index.upsert([*texts, items[3], *metadata, *items[N_BUILT : N_BUILT + 10]])


def compact(index: anncur.Index) -> None:
    """Merge what there is."""
    index.compact()


def items_of_step(step: int) -> list[anncur.Item]:
    """What one of many upserts holds; the last one tells which upsert it was."""
    items = make_world().items
    changed = [items[(7 * step + place) % (N_BUILT - 1)] for place in range(3)]
    texts = [replace(item, text=f"{item.text} in edition {step}") for item in changed[:2]]
    return [*texts, replace(changed[2], metadata={"step": step}), replace(items[N_BUILT - 1], metadata={"step": step})]


def step_of(index: anncur.Index) -> int:
    """The last of many upserts that an index has seen."""
    return int(index[make_world().items[N_BUILT - 1].id].metadata.get("step", 0))


def change(index: anncur.Index, n_steps: int) -> None:
    """Do those of many upserts that remain to be done; with merges by themselves, and all merged at the end."""
    folder_changes.LEAST_MERGED = 3
    for step in range(step_of(index) + 1, n_steps + 1):
        index.upsert(items_of_step(step))
    index.compact()


def grow(task: Task, scorer: ScorerLike) -> anncur.Index:
    """Build and then add, whatever of it remains to be done."""
    index = build(task.path, scorer)
    if len(index) == N_BUILT:
        add(index)
    return index


def start(task: Task) -> AbstractContextManager[subprocess.Popen[str]]:
    """Start a process with a task; it is about to touch the index when this returns."""
    process = subprocess.Popen(
        [sys.executable, __file__, json.dumps(asdict(task))],
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
        stdout=subprocess.PIPE,
        text=True,
    )
    assert process.stdout is not None
    assert process.stdout.readline() == "ready\n"
    return process


def finish(process: subprocess.Popen[str]) -> Outcome:
    """Wait for the end of a process."""
    output, _ = process.communicate(timeout=120)
    return Outcome(process.returncode, **json.loads(output or "{}"))


def run(task: Task) -> Outcome:
    """Do a task in a process of its own."""
    with start(task) as process:
        return finish(process)


def n_lines(log: Path) -> int:
    """The pairs that were scored, by the file that they were logged to."""
    return log.read_bytes().count(b"\n") if log.exists() else 0


def wait_until(is_so: Callable[[], bool]) -> None:
    """Wait until something holds, for at most a minute."""
    deadline = time.monotonic() + 60
    while not is_so():
        assert time.monotonic() < deadline, "it never came"
        time.sleep(0.005)


def can_forbid_system_calls() -> bool:
    """Whether `forbid` works on this machine."""
    return sys.platform == "linux" and platform.machine() in SYSTEM_CALLS


def do(task: Task) -> anncur.Index:
    """Do a task in this process."""
    scorer = LoggingScorer(make_world().scorer, task.log, task.seconds_per_request)
    if task.operation == "build":
        return build(task.path, scorer, shard=task.shard)
    if task.operation == "grow":
        return grow(task, scorer)
    index = anncur.Index.open(task.path, scorer)
    if task.operation == "change":
        change(index, task.n_steps)
    else:
        {"add": add, "remove": remove, "upsert": upsert, "compact": compact}[task.operation](index)
    return index


def die_at_file_call(number: int, *, after: bool) -> None:
    """Kill this process before or after one of its `FILE_CALLS`."""
    n_calls = 0

    def deadly(call: Callable[..., Any]) -> Callable[..., Any]:
        def counted(*args: Any, **options: Any) -> Any:
            nonlocal n_calls
            n_calls += 1
            is_last = n_calls == number
            if is_last and not after:
                os.kill(os.getpid(), signal.SIGKILL)
            try:
                return call(*args, **options)
            finally:
                if is_last:
                    os.kill(os.getpid(), signal.SIGKILL)

        return counted

    for name in FILE_CALLS:
        setattr(os, name, deadly(getattr(os, name)))


def forbid(task: Task) -> None:
    """Forbid system calls, at once or when the time has come."""
    action = FAIL_WITH_EIO if task.eio else KILL
    if task.forbid_at is None:
        forbid_system_calls(task.forbid, action)
        return
    write = StoredChunks.write

    def watched(self: StoredChunks, chunk: int, values: Any) -> None:
        if chunk == task.forbid_at:
            forbid_system_calls(task.forbid, action)
        write(self, chunk, values)

    StoredChunks.write = watched  # type: ignore[method-assign]


def forbid_system_calls(names: Sequence[str], action: int) -> None:
    """Forbid system calls to all threads of this process for good, except on its standard streams."""
    numbers = SYSTEM_CALLS[platform.machine()]
    load, jump_if_equal, jump_if_greater, answer = 0x20, 0x15, 0x25, 0x06
    program = [(load, 0, 0, 0)]  # the number of the system call
    program += [(jump_if_equal, len(names) - place, 0, numbers[name]) for place, name in enumerate(names)]
    program += [
        (answer, 0, 0, ALLOW),
        (load, 0, 0, 16),  # its first argument: a file's number, or the address of a path
        (jump_if_greater, 1, 0, 2),
        (answer, 0, 0, ALLOW),
        (answer, 0, 0, action),
    ]
    _install(b"".join(_instruction(*parts) for parts in program), n_instructions=len(program))


def _instruction(code: int, if_true: int, if_false: int, operand: int) -> bytes:
    return code.to_bytes(2, "little") + bytes([if_true, if_false]) + operand.to_bytes(4, "little")


class _Filter(ctypes.Structure):
    _fields_ = (("length", ctypes.c_ushort), ("program", ctypes.c_char_p))


def _install(program: bytes, *, n_instructions: int) -> None:
    libc, no_new_privileges, set_filter, all_threads = ctypes.CDLL(None, use_errno=True), 38, 1, 1
    wanted = _Filter(n_instructions, program)
    libc.prctl(no_new_privileges, 1, 0, 0, 0)
    seccomp = SYSTEM_CALLS[platform.machine()]["seccomp"]
    if libc.syscall(seccomp, set_filter, all_threads, ctypes.byref(wanted)):
        raise OSError(ctypes.get_errno(), "seccomp refused the filter")


def main() -> None:
    """Do the task of the command line."""
    import tensorstore  # noqa: F401  # so that it isn't still being imported when a kill comes

    fields = json.loads(sys.argv[1])
    task = Task(**{**fields, "shard": fields["shard"] and tuple(fields["shard"])})
    print_now("ready\n")
    if task.die_at:
        die_at_file_call(task.die_at, after=task.die_after)
    if task.forbid:
        forbid(task)
    try:
        index = do(task)
        print_now(json.dumps({"digest": "" if task.shard else index.digest()}))
    except (AnncurError, OSError) as error:
        print_now(json.dumps({"error": type(error).__name__, "message": str(error)}))
        sys.exit(1)


def print_now(text: str) -> None:
    """Write to the standard output at once."""
    os.write(sys.stdout.fileno(), text.encode())


if __name__ == "__main__":
    main()
