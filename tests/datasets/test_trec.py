"""Writing runs in TREC's format."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from anncur import Item, Query
from anncur.datasets.trec import write_run
from anncur.ranking import Hit, Hits


def answer(query: Query, scores: dict[str, float]) -> Hits:
    hits = tuple(Hit(item_id, score, Item(item_id, "text")) for item_id, score in scores.items())
    return Hits(hits, query, "rerank", calls=len(hits), seconds=0.0, is_partial=False)


def fields(file: Path) -> list[list[str]]:
    """The fields of every line."""
    return [line.split(" ") for line in file.read_text(encoding="utf-8").splitlines()]


def test_a_line_has_query_item_rank_score_and_name(tmp_path: Path) -> None:
    answers = [answer(Query("a bat", "q1"), {"fox": 2.5, "owl": -0.25}), answer(Query("a cat", "q2"), {"lynx": 1})]
    write_run(tmp_path / "runs" / "toy.trec", answers, name="rerank bm25")
    assert (tmp_path / "runs" / "toy.trec").read_text(encoding="utf-8") == (
        "q1 Q0 fox 1 2.5 rerank-bm25\nq1 Q0 owl 2 -0.25 rerank-bm25\nq2 Q0 lynx 1 1 rerank-bm25\n"
    )


def test_a_query_without_an_id_gets_its_number(tmp_path: Path) -> None:
    answers = [answer(Query("a text", query_id), {"x": 1.0}) for query_id in ("", "named", "")]
    write_run(tmp_path / "toy.run", answers, name="toy")
    assert [line[0] for line in fields(tmp_path / "toy.run")] == ["1", "named", "3"]


def test_scores_come_back_as_the_same_float32(tmp_path: Path) -> None:
    scores = np.sort(np.random.default_rng(0).normal(size=50).astype(np.float32))[::-1]
    by_id = {str(number): float(score) for number, score in enumerate(scores)}
    write_run(tmp_path / "toy.run", [answer(Query("a"), by_id)], name="toy")
    written = [float(line[4]) for line in fields(tmp_path / "toy.run")]
    np.testing.assert_array_equal(np.array(written, dtype=np.float32), scores)


def test_scores_fall_with_the_rank_where_lower_is_better(tmp_path: Path) -> None:
    answers = [answer(Query("a", "q1"), {"near": 0.5}), answer(Query("b", "q2"), {"near": 1.0, "far": 7.5})]
    write_run(tmp_path / "toy.run", answers, name="toy")
    assert [(line[2], line[4]) for line in fields(tmp_path / "toy.run")] == [
        ("near", "-0.5"),
        ("near", "-1"),
        ("far", "-7.5"),
    ]


def test_equal_scores_keep_their_order_for_tools_that_sort_by_score(tmp_path: Path) -> None:
    write_run(tmp_path / "toy.run", [answer(Query("a"), dict.fromkeys("zyxa", 3.0))], name="toy")
    lines = fields(tmp_path / "toy.run")
    scores = np.array([line[4] for line in lines], dtype=np.float32)
    assert (np.diff(scores) < 0).all()
    assert [line[2] for line in lines] == list("zyxa")
    np.testing.assert_allclose(scores, 3.0, rtol=1e-6)


def test_answers_without_hits_have_no_lines(tmp_path: Path) -> None:
    write_run(tmp_path / "toy.run", [answer(Query("a"), {})], name="toy")
    assert not (tmp_path / "toy.run").read_bytes()
