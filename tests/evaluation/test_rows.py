"""Rows: written as they are made, read as they were written, and never made twice."""

from __future__ import annotations

import gzip
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest

from anncur.errors import DamagedError, InputError
from anncur.evaluation.rows import Batch, Cell, Row, RowFile, distinct, grouped, mean, read_rows, select

CELLS = [Cell("curve", "toy", "posterior", k=k, cost=50) for k in (1, 10, 50)]


def batch(asked: list[Cell]) -> Batch:
    """Records which cells it was asked to measure."""

    def measure(missing: Sequence[Cell]) -> Iterator[Row]:
        for cell in missing:
            asked.append(cell)
            yield Row(cell, {"recall": 0.5})

    return Batch(CELLS, measure)


def test_rows_come_back_as_they_were_written(tmp_path: Path) -> None:
    file = RowFile(tmp_path / "deep" / "rows.jsonl")
    file.append(Row(CELLS[0], {"recall": 1 / 3, "found": [1, 0]}))
    (row,) = read_rows(file.path)
    assert row.cell == CELLS[0]
    assert (row["recall"], row["found"]) == (1 / 3, [1, 0])


def test_a_row_has_the_versions_and_the_machine_that_it_was_measured_with(tmp_path: Path) -> None:
    file = RowFile(tmp_path / "rows.jsonl")
    file.append(Row(CELLS[0], {"recall": 1.0}))
    assert {"version", "commit", "hardware", "numpy"} <= read_rows(file.path)[0].values.keys()


def test_a_rerun_measures_only_what_is_missing(tmp_path: Path) -> None:
    first: list[Cell] = []
    again: list[Cell] = []
    file = RowFile(tmp_path / "rows.jsonl")
    file.append(Row(CELLS[1], {"recall": 0.25}))
    assert file.make_missing([batch(first)], stage="toy") == 2
    assert first == [CELLS[0], CELLS[2]]
    assert RowFile(file.path).make_missing([batch(again)], stage="toy") == 0
    assert not again


@pytest.mark.parametrize("n_lost", [1, 2, 30])
def test_a_line_that_was_cut_short_is_measured_again_and_harms_no_other(tmp_path: Path, n_lost: int) -> None:
    file = RowFile(tmp_path / "rows.jsonl")
    file.make_missing([batch([])], stage="toy")
    whole = file.path.read_bytes()
    file.path.write_bytes(whole[:-n_lost])
    asked: list[Cell] = []
    RowFile(file.path).make_missing([batch(asked)], stage="toy")
    assert [row.cell for row in read_rows(file.path)] == CELLS
    assert asked == ([] if n_lost == 1 else CELLS[2:])


def test_rows_that_were_made_before_a_crash_are_there_after_it(tmp_path: Path) -> None:
    def fail(missing: Sequence[Cell]) -> Iterator[Row]:
        yield Row(missing[0], {"recall": 1.0})
        raise KeyboardInterrupt

    file = RowFile(tmp_path / "rows.jsonl")
    with pytest.raises(KeyboardInterrupt):
        file.make_missing([Batch(CELLS, fail)], stage="toy")
    assert [row.cell for row in read_rows(file.path)] == CELLS[:1]


@pytest.mark.parametrize("line", ['{"id": 1}', "[1]", "3", '{"experiment": "a", "world": "b", "method": [1]}'])
def test_a_file_of_something_else_is_refused(tmp_path: Path, line: str) -> None:
    (tmp_path / "other.jsonl").write_text(f"{line}\n")
    with pytest.raises(DamagedError, match=r"other.jsonl:1: not a row"):
        read_rows(tmp_path / "other.jsonl")


def test_numbers_that_json_does_not_know_are_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="JSON"):
        RowFile(tmp_path / "rows.jsonl").append(Row(CELLS[0], {"recall": float("nan")}))


def test_rows_are_selected_grouped_and_averaged_by_their_columns() -> None:
    rows = [Row(cell, {"recall": share}) for cell, share in zip(CELLS, (0.0, 0.5, 1.0), strict=True)]
    assert select(rows, k=10) == [rows[1]]
    assert list(grouped(rows, "cost", "method")) == [(50, "posterior")]
    assert distinct(rows, "k") == [1, 10, 50]
    assert distinct(rows, "n_items") == []
    assert mean(rows, "recall") == 0.5


def test_a_gzipped_file_is_read_as_it_was_and_not_appended_to(tmp_path: Path) -> None:
    plain = RowFile(tmp_path / "rows.jsonl")
    plain.make_missing([batch([])], stage="toy")
    packed = tmp_path / "rows.jsonl.gz"
    packed.write_bytes(gzip.compress(plain.path.read_bytes()))
    file = RowFile(packed)
    assert file.rows == plain.rows
    assert file.make_missing([batch([])], stage="toy") == 0
    with pytest.raises(InputError, match="unpack it with gunzip"):
        file.append(Row(CELLS[0], {"recall": 1.0}))


@pytest.mark.parametrize("n_lost", [1, 10, 40])
def test_a_gzipped_file_that_was_cut_short_is_refused(tmp_path: Path, n_lost: int) -> None:
    packed = tmp_path / "rows.jsonl.gz"
    packed.write_bytes(gzip.compress(Row(CELLS[0], {"recall": 0.5}).to_json().encode())[:-n_lost])
    with pytest.raises(DamagedError, match="can't be unpacked"):
        read_rows(packed)
