"""Our scorers as models of `rerankers`."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

import anncur
from boxes import ITEMS, Pencils, distance_scorer, score_boxes

pytest.importorskip("rerankers", reason="needs rerankers; `make test-integrations` installs it")

from rerankers import Document
from rerankers.models.ranker import BaseRanker
from rerankers.results import RankedResults

from anncur.integrations.rerankers import AnncurRanker

TEXTS = ["a box of 9 pencils", "a box of 50 pencils", "a box of 34 pencils"]


def test_documents_are_ranked_by_the_scorer() -> None:
    ranker = AnncurRanker(score_boxes)
    assert isinstance(ranker, BaseRanker)
    results = ranker.rank("42 pencils", TEXTS, doc_ids=["a", "b", "c"], metadata=[{"n": 9}, {"n": 50}, {"n": 34}])
    assert [(result.doc_id, result.score, result.rank) for result in results] == [
        ("b", -8, 1),
        ("c", -8, 2),
        ("a", -33, 3),
    ]
    assert results[0].document.metadata == {"n": 50}
    assert [result.doc_id for result in results.top_k(1)] == ["b"]
    assert ranker.score("42 pencils", TEXTS[0]) == -33


def test_documents_keep_their_ids_and_none_is_needed() -> None:
    ranker = AnncurRanker(score_boxes)
    documents = [Document(text, doc_id=f"d{place}") for place, text in enumerate(TEXTS)]
    assert [result.doc_id for result in ranker.rank("7 pencils", documents)] == ["d0", "d2", "d1"]
    assert [result.doc_id for result in ranker.rank("7 pencils", TEXTS)] == [0, 2, 1]
    assert ranker.rank("7 pencils", TEXTS[0]).results_count() == 1
    assert ranker.rank("7 pencils", []).results_count() == 0


def test_an_awaited_ranking_runs_the_scorer_on_the_callers_event_loop(scorer: Pencils) -> None:
    async def ask() -> tuple[RankedResults, asyncio.AbstractEventLoop]:
        return await AnncurRanker(scorer).rank_async("42 pencils", TEXTS), asyncio.get_running_loop()

    results, loop = asyncio.run(ask())
    assert [result.doc_id for result in results] == [1, 2, 0]
    assert set(scorer.loops) == {loop}


def test_the_best_come_first_also_where_the_scorer_likes_low_scores() -> None:
    assert [result.doc_id for result in AnncurRanker(distance_scorer()).rank("7 pencils", TEXTS).top_k(3)] == [0, 2, 1]


def test_scores_that_a_cache_has_are_not_paid_for_again(scorer: Pencils, tmp_path: Path) -> None:
    ranker = AnncurRanker(anncur.load_scorer(scorer, cache=tmp_path / "scores.sqlite"))
    first = ranker.rank("42 pencils", TEXTS)
    assert [result.score for result in ranker.rank("42 pencils", TEXTS)] == [result.score for result in first]
    assert scorer.n_pairs == len(TEXTS)


def test_the_built_in_model_is_one_of_them() -> None:
    results = AnncurRanker("builtin").rank("box 42", [item.text for item in ITEMS[:50]])
    assert results.results_count() == 50
    assert results.get_score_by_docid(0) == pytest.approx(
        AnncurRanker("builtin").score("box 42", ITEMS[0].text), abs=1e-4
    )
