"""The oldest file of a query log may go at any moment, and deleting it may fail."""

from __future__ import annotations

from pathlib import Path

import pytest

from anncur.errors import StorageError
from anncur.items import Query
from anncur.storage.query_log import FolderQueryLog, LoggedSearch


def searches(n_searches: int) -> list[LoggedSearch]:
    return [LoggedSearch(Query(f"query {number}"), {"a": float(number)}, 1) for number in range(n_searches)]


def test_a_file_that_is_deleted_while_a_log_is_read_is_skipped(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    log = FolderQueryLog(tmp_path)
    log.append(searches(16), most=16)
    files = log._files()
    files[0].unlink()
    monkeypatch.setattr(log, "_files", lambda: files)
    assert [search.query.text for search in log.read()] == [f"query {number}" for number in range(2, 16)]


def test_a_file_that_cannot_be_deleted_is_a_storage_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    log = FolderQueryLog(tmp_path)
    log.append(searches(16), most=16)

    def refused(path: Path, missing_ok: bool = False) -> None:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(Path, "unlink", refused)
    with pytest.raises(StorageError, match=r"00000001\.jsonl: Permission denied"):
        log.append(searches(1), most=16)


@pytest.mark.parametrize("most", [1, 3, 5, 16, 100])
def test_the_latest_searches_are_the_end_of_all(tmp_path: Path, most: int) -> None:
    log = FolderQueryLog(tmp_path)
    log.append(searches(16), most=16)  # two in each file
    log.forget(["b"], 2)
    assert log.read_latest(most) == log.read()[-most:]


def test_only_the_last_files_are_read_for_the_latest(tmp_path: Path) -> None:
    log = FolderQueryLog(tmp_path)
    log.append(searches(16), most=16)
    log._files()[0].write_text("damaged\n")  # which would be warned of
    assert len(log.read_latest(14)) == 14


def test_drift_is_logged_where_it_is_known_and_older_lines_have_none(tmp_path: Path) -> None:
    log = FolderQueryLog(tmp_path)
    known = LoggedSearch(Query("q"), {"a": 1.0}, 1, drift=0.97, drift_reference="1a2b3c4d")
    log.append([*searches(1), known], most=16)
    (file,) = log._files()
    assert file.read_text().count("drift_reference") == 1
    assert [search.drift for search in log.read()] == [None, 0.97]
    assert log.read()[1] == known
