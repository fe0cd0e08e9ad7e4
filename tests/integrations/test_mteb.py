"""Our scorers, with indexes, as search models of MTEB."""

from __future__ import annotations

import importlib
from pathlib import Path
from typing import Any, ClassVar

import pytest

import anncur
from boxes import ITEMS, NEAREST, Pencils, distance_scorer, score_boxes

mteb = pytest.importorskip("mteb", reason="needs mteb; `make test-integrations` installs it")

from mteb.abstasks.retrieval import AbsTaskRetrieval
from mteb.mocks.mock_tasks.retrieval import MockInstructionRetrieval, MockRetrievalTask
from mteb.models.models_protocols import SearchProtocol

from anncur.integrations.mteb import AnncurSearch

Dataset: Any = importlib.import_module("datasets").Dataset  # a type checker takes the folder beside this one for it
CORPUS = [{"id": item.id, "title": item.title, "text": item.text} for item in ITEMS]
QUERIES = [{"id": "a", "text": "42 pencils"}, {"id": "b", "text": "0 pencils"}]
RELEVANT = {"a": {"box-42": 1}, "b": {"box-3": 1}}


class Boxes(AbsTaskRetrieval):
    """A task of MTEB's own kind, whose data come from here."""

    metadata = MockRetrievalTask.metadata.model_copy(update={"name": "Boxes", "eval_splits": ["test"]})
    candidates: ClassVar[dict[str, list[str]] | None] = None

    def load_data(self, num_proc: int | None = None, **kwargs: Any) -> None:
        split = {
            "corpus": Dataset.from_list(CORPUS),
            "queries": Dataset.from_list(QUERIES),
            "relevant_docs": RELEVANT,
            "top_ranked": self.candidates,
        }
        self.dataset = {"default": {"test": split}}
        self.data_loaded = True


class Candidates(Boxes):
    candidates: ClassVar[dict[str, list[str]] | None] = {"a": ["box-1", "box-42"], "b": ["box-3", "box-8", "box-9"]}


def evaluated(model: AnncurSearch, task: AbsTaskRetrieval) -> dict[str, float]:
    results = mteb.evaluate(model, task, cache=None, show_progress_bar=False)
    scores: dict[str, float] = results[0].scores["test"][0]
    return scores


def search(model: AnncurSearch, queries: list[dict[str, str]], **options: Any) -> dict[str, dict[str, float]]:
    task = {"task_metadata": Boxes.metadata, "hf_split": "test", "hf_subset": "default", "encode_kwargs": {}}
    model.index(Dataset.from_list(CORPUS), **task)
    found: dict[str, dict[str, float]] = model.search(Dataset.from_list(queries), **task, **options)
    return found


def test_a_task_is_evaluated_with_the_scorers_top_items(scorer: Pencils) -> None:
    model = AnncurSearch(scorer, budget=60)
    assert isinstance(model, SearchProtocol)
    scores = evaluated(model, Boxes())
    assert scores["mrr_at_10"] == pytest.approx((1 + 1 / 3) / 2, abs=1e-4)
    assert scores["recall_at_1"] == 0.5
    assert scorer.n_pairs == 60 * len(QUERIES)


def test_a_re_ranking_task_has_its_candidates_scored_and_no_others(scorer: Pencils) -> None:
    scores = evaluated(AnncurSearch(scorer), Candidates())
    assert scores["mrr_at_10"] == pytest.approx(1.0)
    assert scorer.n_pairs == 5


def test_answers_map_queries_to_items_and_their_exact_scores(scorer: Pencils) -> None:
    found = search(AnncurSearch(scorer, anchor_queries=["9 pencils", "90 pencils"], budget=60), QUERIES, top_k=3)
    assert {query: list(scores) for query, scores in found.items()} == {"a": NEAREST, "b": ["box-1", "box-2", "box-3"]}
    assert list(found["a"].values()) == [0.0, -1.0, -1.0]


def test_a_query_without_candidates_has_no_answers(scorer: Pencils) -> None:
    found = search(AnncurSearch(scorer), QUERIES, top_k=3, top_ranked={"a": ["box-9", "box-42"]})
    assert {query: list(scores) for query, scores in found.items()} == {"a": ["box-42", "box-9"], "b": []}


def test_an_instruction_stands_behind_its_query(scorer: Pencils) -> None:
    asked: list[str] = []

    def listening(pairs: list[tuple[str, str]]) -> list[float]:
        asked.extend(query for query, _ in pairs)
        return score_boxes(pairs)

    search(AnncurSearch(listening, budget=10), [{**QUERIES[0], "instruction": "count them"}], top_k=3)
    assert set(asked) == {"42 pencils count them"}
    assert evaluated(AnncurSearch("builtin"), MockInstructionRetrieval())


def test_higher_scores_are_better_also_where_the_scorer_likes_low_ones() -> None:
    found = search(AnncurSearch(distance_scorer(), budget=200), QUERIES, top_k=3)["a"]
    assert sorted(found, key=lambda item_id: -found[item_id]) == NEAREST


def test_an_index_in_a_folder_is_used_again(tmp_path: Path) -> None:
    def builder() -> AnncurSearch:
        return AnncurSearch("boxes:score_boxes", anchor_queries=["9 pencils", "90 pencils"], folder=tmp_path, budget=30)

    first = search(builder(), QUERIES, top_k=3)
    assert [folder.name for folder in tmp_path.iterdir()] == ["Boxes-default-test.anncur"]
    assert search(builder(), QUERIES, top_k=3) == first
    assert anncur.Index.open(tmp_path / "Boxes-default-test.anncur").info.version == 1


def test_results_are_filed_under_the_method_the_scorer_and_the_options(scorer: Pencils) -> None:
    described = AnncurSearch(scorer, method="rerank", budget=60).mteb_model_meta
    assert (described.name, described.revision) == ("anncur/rerank", anncur.__version__)
    assert described.experiment_kwargs == {
        "method": "rerank",
        "budget": "60",
        "scorer": "pencils",
        "n_anchor_queries": 0,
    }


def test_what_a_task_decides_is_refused_and_nothing_is_searched_before_it_is_indexed(scorer: Pencils) -> None:
    with pytest.raises(anncur.InputError, match="leave out k"):
        AnncurSearch(scorer, k=3)
    task = {"task_metadata": Boxes.metadata, "hf_split": "test", "hf_subset": "default", "encode_kwargs": {}}
    with pytest.raises(anncur.InputError, match="first"):
        AnncurSearch(scorer).search(Dataset.from_list(QUERIES), **task, top_k=3)
