"""Rows about models and data: linking, training times, the sizes of worlds."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from anncur.datasets.zeshel import Zeshel, read_worlds
from anncur.errors import InputError
from anncur.evaluation.linking import MACRO, by_retriever
from anncur.evaluation.rows import RowFile, select
from anncur.reproduction.models import PAIR, TRAINING, linking, statistics, training_time
from anncur.retrievers.lexical import TfIdf
from anncur.retrievers.loading import load_retriever
from toy_linking import write_zeshel
from toy_studies import make_study


@pytest.fixture
def data(tmp_path: Path) -> Zeshel:
    return Zeshel(write_zeshel(tmp_path / "data"))


def test_linking_has_a_row_for_each_world_and_ranker_and_their_averages(data: Zeshel, tmp_path: Path) -> None:
    first = load_retriever("bm25")
    rankers = {"words": by_retriever(first, is_fitted=True), "tfidf": by_retriever(TfIdf())}
    batch = linking(lambda: read_worlds(data, "test", None), ["delta"], first, rankers, ["words"])
    file = RowFile(tmp_path / "rows.jsonl")
    assert file.make_missing([batch], stage="linking") == 4
    assert {row.cell.world for row in file.rows} == {"delta", MACRO}
    assert {row.cell.method: row.cell.scorer for row in file.rows} == {"words": "words", "tfidf": ""}
    assert all(0 <= row["accuracy"] <= row["recall"] <= 1 for row in file.rows)


def test_the_sizes_of_worlds_are_counted(data: Zeshel, tmp_path: Path) -> None:
    file = RowFile(tmp_path / "rows.jsonl")
    file.make_missing([statistics(data)], stage="statistics")
    (row,) = select(file.rows, world="delta")
    assert (row.cell.part, row.cell.n_items, row["n_mentions"]) == ("test", 12, 24)


def test_the_time_of_a_distillation_is_the_last_of_its_log(tmp_path: Path) -> None:
    lines = [json.dumps({"step": step, "seconds": 10.0 * step}) for step in (1, 2, 3)]
    (tmp_path / "training.jsonl").write_text("\n".join(lines) + "\n")
    file = RowFile(tmp_path / "rows.jsonl")
    file.make_missing([training_time(make_study(), PAIR, 15, tmp_path)], stage="times")
    assert (file.rows[0].cell.part, file.rows[0]["seconds"]) == (TRAINING, 30.0)


def test_a_folder_without_a_log_is_refused(tmp_path: Path) -> None:
    batch = training_time(make_study(), PAIR, 15, tmp_path)
    with pytest.raises(InputError, match="no log of a training"):
        list(batch.measure(batch.cells))
