"""Results as tidy rows, one JSON object per line: written as they are made, so that a rerun makes what is missing.

Written by experiments; reports and figures read nothing else. Doesn't depend on what is measured."""

from __future__ import annotations

import gzip
import importlib.metadata
import json
import math
import os
import platform
import subprocess
import zlib
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np

from anncur.errors import DamagedError, InputError
from anncur.progress import Progress, silent

GZIPPED = ".gz"

Values: TypeAlias = Mapping[str, Any]  # what was measured, by name: recall, calls, seconds, error, rank, …


@dataclass(frozen=True, slots=True)
class Cell:
    """What a row measures: a cell is measured once. Columns that don't apply are empty.

    `data` is a digest of the exact scores, so that rows of other scores are never taken for these. `part` is the stage
    of a build or the bin of a histogram, where several are measured together."""

    experiment: str
    world: str
    method: str
    scorer: str = ""
    protocol: str = ""
    seed: int = 0
    k: int | None = None
    cost: int | None = None
    n_anchor_queries: int | None = None
    n_anchor_items: int | None = None
    n_rerank: int | None = None
    n_items: int | None = None
    part: str = ""
    data: str = ""


@dataclass(frozen=True, slots=True)
class Row:
    """A cell, and what was measured there."""

    cell: Cell
    values: Values

    def __getitem__(self, name: str) -> Any:
        return self.values[name]

    def to_json(self) -> str:
        """One line, without the columns that are empty."""
        columns = {name: value for name, value in asdict(self.cell).items() if value not in (None, "")}
        return json.dumps({**columns, **self.values}, ensure_ascii=False, allow_nan=False)


COLUMNS = tuple(field.name for field in fields(Cell))


@dataclass(frozen=True, eq=False)
class Batch:
    """Cells that are measured together; `measure` gets those of them that are missing."""

    cells: Sequence[Cell]
    measure: Callable[[Sequence[Cell]], Iterable[Row]]


class RowFile:
    """A file of rows that can be appended to, unless it is gzipped (.gz); a line that a crash cut short is ignored."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.rows = read_rows(path) if path.exists() else []
        self._cells = {row.cell for row in self.rows}
        self._stamp = provenance()
        self._is_cut = path.exists() and path.read_bytes()[-1:] not in (b"", b"\n")

    def __contains__(self, cell: Cell) -> bool:
        return cell in self._cells

    def append(self, row: Row) -> None:
        """Write a row immediately, with the versions and the machine that it was measured with."""
        if self.path.suffix == GZIPPED:
            raise InputError(f"{self.path} is compressed, so no rows can be appended; unpack it with gunzip first")
        stamped = Row(row.cell, {**row.values, **self._stamp})
        self.path.parent.mkdir(parents=True, exist_ok=True)
        border = "\n" if self._is_cut else ""
        with self.path.open("a", encoding="utf-8") as file:
            file.write(f"{border}{stamped.to_json()}\n")
        self._is_cut = False
        self.rows.append(stamped)
        self._cells.add(row.cell)

    def make_missing(self, batches: Iterable[Batch], *, stage: str, progress: Progress = silent) -> int:
        """Measure the cells that have no row yet; returns how many rows were made."""
        todo = list(batches)
        n_made = 0
        for number, batch in enumerate(todo):
            missing = [cell for cell in batch.cells if cell not in self]
            for row in batch.measure(missing) if missing else ():
                self.append(row)
                n_made += 1
            assert all(cell in self for cell in missing), "a batch measures all of its missing cells"
            progress(stage, number + 1, len(todo))
        return n_made


def read_rows(path: Path) -> list[Row]:
    """The rows of a file, which may be gzipped (.gz), without lines that a crash cut short."""
    found = []
    for number, line in enumerate(_read(path).decode("utf-8", errors="replace").split("\n"), start=1):
        try:
            record = json.loads(line)
        except ValueError:
            continue
        found.append(_row(record, f"{path}:{number}"))
    return found


def _read(path: Path) -> bytes:
    if path.suffix != GZIPPED:
        return path.read_bytes()
    try:
        return gzip.decompress(path.read_bytes())
    except (EOFError, gzip.BadGzipFile, zlib.error) as error:
        raise DamagedError(f"{path} can't be unpacked: {error}; take another copy of it") from error


def select(rows: Iterable[Row], **wanted: Any) -> list[Row]:
    """The rows whose columns have these values."""
    return [row for row in rows if all(getattr(row.cell, name) == value for name, value in wanted.items())]


def grouped(rows: Iterable[Row], *columns: str) -> dict[tuple[Any, ...], list[Row]]:
    """Rows by the values of some columns, in the order of their appearance."""
    groups: dict[tuple[Any, ...], list[Row]] = {}
    for row in rows:
        groups.setdefault(tuple(getattr(row.cell, name) for name in columns), []).append(row)
    return groups


def distinct(rows: Iterable[Row], column: str) -> list[Any]:
    """The values of a column, in ascending order, without the empty ones."""
    return sorted({getattr(row.cell, column) for row in rows} - {None, ""})


def mean(rows: Sequence[Row], name: str) -> float:
    """The mean of a value; NaN where there are no rows."""
    return float(np.mean([row[name] for row in rows])) if rows else math.nan


def provenance() -> dict[str, Any]:
    """The versions and the machine that a row is measured with."""
    return {
        "version": importlib.metadata.version("anncur"),
        "commit": _commit(),
        "hardware": f"{platform.machine()}, {os.cpu_count()} cores",
        "numpy": np.__version__,
    }


def _commit() -> str:
    """The last commit of this package, where it runs from a repository."""
    command = ["git", "-C", str(Path(__file__).parent.parent), "log", "-1", "--format=%h", "--", "."]
    try:
        return subprocess.run(command, capture_output=True, text=True, check=False).stdout.strip()
    except OSError:  # no git
        return ""


def _row(record: Any, where: str) -> Row:
    """A row from the object on its line."""
    if not isinstance(record, dict) or not record.keys() >= {"experiment", "world", "method"}:
        raise DamagedError(
            f"{where}: not a row of results, which has experiment, world and method; this is a file of another "
            "program: pass one that `anncur bench run` wrote"
        )
    columns = {name: record[name] for name in COLUMNS if name in record}
    if not all(isinstance(value, (str, int)) for value in columns.values()):
        raise DamagedError(f"{where}: not a row of results: {columns} are not all strings and whole numbers")
    return Row(Cell(**columns), {name: value for name, value in record.items() if name not in COLUMNS})
