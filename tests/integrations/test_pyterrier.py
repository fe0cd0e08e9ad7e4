"""An index behind PyTerrier's transformers."""

from __future__ import annotations

from pathlib import Path

import pytest

import anncur
from boxes import ITEMS, NEAREST, Pencils, distance_scorer

pt = pytest.importorskip("pyterrier", reason="needs pyterrier; `make test-integrations` installs it")

import pandas as pd

from anncur.integrations.pyterrier import AnncurTransformer

QUERIES = pd.DataFrame([["a", "42 pencils"], ["b", "0 pencils"]], columns=["qid", "query"])


def test_rows_are_the_hits_with_ranks_and_rounds(index: anncur.Index) -> None:
    found = AnncurTransformer(index, k=3, budget=60).transform(QUERIES)
    assert found["docno"].tolist() == [*NEAREST, "box-1", "box-2", "box-3"]
    assert found["qid"].tolist() == ["a"] * 3 + ["b"] * 3
    assert found["rank"].tolist() == [0, 1, 2] * 2
    assert found["score"].tolist() == [0.0, -1.0, -1.0, -1.0, -2.0, -3.0]
    assert found["text"].iloc[0] == "a box of 42 pencils"
    hits = index.search("42 pencils", k=3, budget=60)
    assert found["iteration"].tolist()[:3] == [hit.round for hit in hits]
    assert found["estimated_recall"].tolist()[:3] == [hits.estimated_recall] * 3
    assert set(found["calls"]) == {60}


def test_results_are_re_ranked_and_no_others_scored(index: anncur.Index, scorer: Pencils) -> None:
    first = pd.DataFrame(
        [["a", "42 pencils", "box-9", 2.0], ["a", "42 pencils", "box-50", 1.0], ["b", "0 pencils", "box-9", 1.0]],
        columns=["qid", "query", "docno", "score"],
    )
    pipeline = pt.Transformer.from_df(first) >> AnncurTransformer(index)
    before = scorer.n_pairs
    found = pipeline(QUERIES)
    assert found[["qid", "docno"]].to_numpy().tolist() == [["a", "box-50"], ["a", "box-9"], ["b", "box-9"]]
    assert scorer.n_pairs == before + 3


def test_pipelines_can_be_composed_cut_and_measured(folder: Path) -> None:
    qrels = pd.DataFrame([["a", "box-42", 1], ["b", "box-3", 1]], columns=["qid", "docno", "label"])
    found = pt.Experiment(
        [AnncurTransformer(folder, k=5), AnncurTransformer(folder, k=5) % 1], QUERIES, qrels, ["recip_rank"]
    )
    assert found["recip_rank"].tolist() == pytest.approx([(1 + 1 / 3) / 2, 1 / 2])


def test_columns_are_known_before_anything_is_searched(index: anncur.Index) -> None:
    transformer = AnncurTransformer(index)
    expected = list(transformer(QUERIES).columns)
    assert pt.inspect.transformer_outputs(transformer, ["qid", "query"]) == expected
    assert {"docno", "score", "rank", "iteration"} <= set(expected)
    assert transformer(QUERIES.iloc[:0]).empty
    with pytest.raises(pt.validate.InputValidationError):
        transformer(QUERIES[["qid"]])


def test_numbers_may_be_ids_of_queries(index: anncur.Index) -> None:
    numbered = QUERIES.assign(qid=[7, 8])
    found = AnncurTransformer(index, k=2)(numbered)
    assert found["qid"].tolist() == [7, 7, 8, 8]
    again = AnncurTransformer(index, k=1)(found)
    assert again[["qid", "docno"]].to_numpy().tolist() == [[7, "box-42"], [8, "box-1"]]


def test_other_columns_of_queries_are_kept(index: anncur.Index) -> None:
    found = AnncurTransformer(index, k=1)(QUERIES.assign(query_0=["forty-two", "none"]))
    assert found["query_0"].tolist() == ["forty-two", "none"]


def test_the_best_come_first_also_where_the_scorer_likes_low_scores() -> None:
    found = AnncurTransformer(anncur.Index.build(ITEMS, distance_scorer()), k=3, budget=200)(QUERIES)
    ranked = found.sort_values("score", ascending=False, kind="stable")
    assert ranked[ranked["qid"] == "a"]["docno"].tolist() == NEAREST
