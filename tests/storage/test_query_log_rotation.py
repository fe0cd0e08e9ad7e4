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
