"""The task's own metrics by judgements, and runs that other tools can read."""

from __future__ import annotations

from pathlib import Path

import pytest

import anncur
from anncur.datasets.trec import write_run
from anncur.errors import InputError
from anncur.evaluation.judgements import judge, judge_queries
from anncur.ranking import Hit, Hits

pytest.importorskip("ir_measures")


def answer(query_id: str, *item_ids: str, score: float = 1.0) -> Hits:
    hits = tuple(Hit(item_id, score, anncur.Item(item_id, "text")) for item_id in item_ids)
    return Hits(hits, anncur.Query("text", query_id), "toy", calls=3, seconds=0.0, is_partial=False)


def test_the_right_item_first_is_perfect_and_further_down_is_less() -> None:
    qrels = {"q": {"right": 1}}
    assert judge([answer("q", "right", "wrong")], qrels)["nDCG@10"] == 1.0
    assert judge([answer("q", "wrong", "right")], qrels)["nDCG@10"] == pytest.approx(0.6309, abs=1e-4)


def test_items_with_the_same_score_are_judged_in_the_order_of_the_answer() -> None:
    qrels = {"q": {"b": 1}}
    found = [judge([answer("q", *order, score=2.0)], qrels)["nDCG@10"] for order in ("ab", "ba")]
    assert found[0] < found[1] == 1.0


def test_recall_counts_what_is_among_the_answers() -> None:
    assert judge([answer("q", "a", "b")], {"q": {"a": 1, "c": 1}})["R@100"] == 0.5


def test_queries_that_were_not_asked_do_not_count() -> None:
    qrels = {"q": {"a": 1}, "other": {"b": 1}}
    assert judge([answer("q", "a")], qrels)["nDCG@10"] == 1.0


def test_answers_to_queries_that_nobody_judged_are_refused() -> None:
    with pytest.raises(InputError, match="none of the test queries has been judged"):
        judge([answer("q", "a")], {"other": {"a": 1}})


def test_a_run_has_a_line_for_each_hit(tmp_path: Path) -> None:
    write_run(tmp_path / "runs" / "toy.trec", [answer("q1", "a", "b"), answer("q2", "c")], name="rerank bm25")
    lines = (tmp_path / "runs" / "toy.trec").read_text().splitlines()
    assert lines == ["q1 Q0 a 1 1 rerank-bm25", "q1 Q0 b 2 0.99999994 rerank-bm25", "q2 Q0 c 1 1 rerank-bm25"]


def test_each_judged_query_has_its_own_measure() -> None:
    answers = [answer("a", "right", "wrong"), answer("b", "wrong", "right"), answer("nobody judged", "right")]
    found = judge_queries(answers, {"a": {"right": 1}, "b": {"right": 1}, "not asked": {"right": 1}}, "nDCG@10")
    assert found == {"a": 1.0, "b": pytest.approx(0.6309, abs=1e-4)}
