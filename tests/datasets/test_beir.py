"""Reading data sets in BEIR's layout."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from anncur import Item, Query
from anncur.datasets.beir import read_beir, read_qrels
from anncur.errors import FileFormatError, InputError

HEADER = "query-id\tcorpus-id\tscore\n"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Two items, three queries, judgements of two of them."""
    items = [{"_id": "d1", "title": "T", "text": "body"}, {"_id": "d2", "title": "", "text": "other"}]
    queries = [{"_id": f"q{number}", "text": f"claim {number}"} for number in (1, 2, 3)]
    (tmp_path / "corpus.jsonl").write_text("".join(json.dumps(item) + "\n" for item in items))
    (tmp_path / "queries.jsonl").write_text("".join(json.dumps(query) + "\n" for query in queries))
    write_qrels(tmp_path, HEADER + "q3\td1\t2\nq1\td2\t1\nq3\td2\t0\n")
    return tmp_path


def write_qrels(folder: Path, text: str, split: str = "test") -> None:
    (folder / "qrels").mkdir(exist_ok=True)
    (folder / "qrels" / f"{split}.tsv").write_text(text, encoding="utf-8")


def test_a_split_gives_all_items_and_only_the_queries_that_were_judged(folder: Path) -> None:
    found = read_beir(folder, "test")
    assert list(found.items) == [Item("d1", "body", "T"), Item("d2", "other")]
    assert found.queries == [Query("claim 1", "q1"), Query("claim 3", "q3")]
    assert found.qrels == {"q3": {"d1": 2, "d2": 0}, "q1": {"d2": 1}}


def test_every_split_has_judgements_of_its_own(folder: Path) -> None:
    write_qrels(folder, HEADER + "q2\td1\t1\r\n\r\n", "dev")
    assert read_qrels(folder, "dev") == {"q2": {"d1": 1}}
    assert [query.id for query in read_beir(folder, "dev").queries] == ["q2"]


def test_a_judged_item_that_the_corpus_lacks_stays_in_the_judgements(folder: Path) -> None:
    write_qrels(folder, HEADER + "q1\tgone\t1\n")
    assert read_beir(folder).qrels == {"q1": {"gone": 1}}


def test_a_judged_query_that_is_not_there_is_an_error(folder: Path) -> None:
    write_qrels(folder, HEADER + "q1\td1\t1\nq9\td1\t1\n")
    with pytest.raises(FileFormatError, match=r"test\.tsv: judges query 'q9' and 0 others"):
        read_beir(folder)


def test_an_unknown_split_is_answered_with_those_that_there_are(folder: Path) -> None:
    with pytest.raises(InputError, match=r"no file .*train\.tsv; take one of the splits test"):
        read_qrels(folder, "train")
    with pytest.raises(InputError, match="there are none"):
        read_qrels(folder / "elsewhere", "train")


@pytest.mark.parametrize("missing", ["corpus.jsonl", "queries.jsonl"])
def test_a_missing_file_is_named(folder: Path, missing: str) -> None:
    (folder / missing).unlink()
    with pytest.raises(InputError, match=f"no file .*{missing}"):
        read_beir(folder)


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("q1\td1\t1\n", "tsv:1: the first line must be the header"),
        ("", "tsv:1: the first line must be the header"),
        (HEADER, "tsv: holds no judgements"),
        (HEADER + "q1\td1\t1\nq1 d2 1\n", "tsv:3: a judgement is query id, item id and grade"),
        (HEADER + "q1\t0\td1\t1\n", "tsv:2: a judgement is query id, item id and grade"),
        (HEADER + "\td1\t1\n", "tsv:2: a judgement is query id, item id and grade"),
        (HEADER + "q1\td1\t0.5\n", "tsv:2: a grade must be a whole number, got '0.5'"),
        (HEADER + "q1\td1\tyes\n", "tsv:2: a grade must be a whole number, got 'yes'"),
        (HEADER + "q1\td1\t1\nq1\td1\t0\n", "tsv:3: query 'q1' and item 'd1' were judged differently"),
    ],
)
def test_a_bad_line_is_named_with_its_problem(folder: Path, text: str, problem: str) -> None:
    write_qrels(folder, text)
    with pytest.raises(FileFormatError, match=problem):
        read_qrels(folder, "test")


def test_the_same_judgement_twice_is_no_problem(folder: Path) -> None:
    write_qrels(folder, HEADER + "q1\td1\t1\nq1\td1\t1\n")
    assert read_qrels(folder) == {"q1": {"d1": 1}}
