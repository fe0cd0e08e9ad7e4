"""Experiments: each measures its cells and no others, the same twice, and what it measures is true."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import anncur
from anncur.errors import InputError
from anncur.evaluation.baselines import FixedItems
from anncur.evaluation.experiments import curves, matrix, scoreboard
from anncur.evaluation.experiments.suite import EXPERIMENTS, run_experiments
from anncur.evaluation.rows import Row, RowFile, select
from anncur.evaluation.study import QUICK, Sizes, Study, store_retrievers
from anncur.retrievers.stored import StoredRetriever
from toy_studies import N_ITEMS, SIZES, make_study, make_task
from worlds import HashedVectors

TIMES = {"seconds", "version", "commit", "hardware", "numpy"}


def with_distilled(name: str) -> Study:
    """A study with a second retriever, of this name."""
    study = make_study()
    distilled = StoredRetriever(HashedVectors(), study.task.queries, study.task.items)
    distilled.name = name
    return replace(study, retrievers=[*study.retrievers, distilled])


def rows_of(name: str, folder: Path, **options: Any) -> list[Row]:
    file = RowFile(folder / "rows.jsonl")
    run_experiments(make_study(folder / "runs", **options), file, [name])
    return file.rows


def without_times(rows: list[Row]) -> list[tuple[Any, Any]]:
    return [(row.cell, {name: value for name, value in row.values.items() if name not in TIMES}) for row in rows]


@pytest.fixture(scope="module")
def measured(tmp_path_factory: pytest.TempPathFactory) -> dict[str, list[Row]]:
    """The rows of every experiment, made once for all tests that only look at them."""
    return {name: rows_of(name, tmp_path_factory.mktemp(name)) for name in EXPERIMENTS}


@pytest.mark.parametrize("name", EXPERIMENTS)
def test_a_fixed_seed_gives_the_same_rows_twice_and_a_rerun_makes_none(
    name: str, measured: dict[str, list[Row]], tmp_path: Path
) -> None:
    again = rows_of(name, tmp_path)
    assert again
    assert without_times(again) == without_times(measured[name])
    assert run_experiments(make_study(), RowFile(tmp_path / "rows.jsonl"), [name]) == 0


@pytest.mark.parametrize("name", EXPERIMENTS)
def test_every_row_tells_its_world_scorer_and_data(name: str, measured: dict[str, list[Row]]) -> None:
    data = make_study().data
    cells = [row.cell for row in measured[name]]
    assert {(cell.world, cell.scorer, cell.experiment, cell.data) for cell in cells} == {("toy", "toy-emb", name, data)}


def test_other_scores_are_other_cells(tmp_path: Path) -> None:
    file = RowFile(tmp_path / "rows.jsonl")
    n_rows = run_experiments(make_study(), file, ["rank"])
    assert run_experiments(make_study(noise=0.2), file, ["rank"]) == n_rows


def test_an_unknown_experiment_is_refused_before_anything_is_measured(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="no experiment 'magic'; take some of recall-at-depth"):
        run_experiments(make_study(), RowFile(tmp_path / "rows.jsonl"), ["rank", "magic"])
    assert not (tmp_path / "rows.jsonl").exists()


def test_sizes_shrink_to_what_a_task_has_enough_for() -> None:
    task = make_task()
    sizes = Sizes(n_tests=20, world_sizes=(100, 100_000)).within(task)
    assert sizes.n_anchor_queries == (40,), "all that the tests leave"
    assert max(sizes.costs) < N_ITEMS
    assert sizes.grid == ()
    assert sizes.world_sizes[-1] == N_ITEMS
    with pytest.raises(InputError, match="take fewer tests"):
        Sizes(n_tests=60).within(task)


def test_the_quick_sizes_fit_the_bundled_sample() -> None:
    assert QUICK.n_queries == 200


def test_the_oracle_errs_least_and_more_anchors_make_it_err_less(tmp_path: Path) -> None:
    rows = rows_of("heatmap", tmp_path, noise=0.5)
    for seed in range(SIZES.n_grid_seeds):
        square = select(rows, seed=seed, n_anchor_queries=20, n_anchor_items=20)
        errors = {row.cell.method: row["error"] for row in square}
        assert errors[matrix.ORACLE] == min(errors.values())
        (small,) = select(rows, seed=seed, n_anchor_queries=5, n_anchor_items=5, method=matrix.ORACLE)
        assert errors[matrix.ORACLE] < small["error"]


def test_heatmaps_are_measured_on_all_queries_that_are_no_anchors(tmp_path: Path) -> None:
    rows = rows_of("heatmap", tmp_path)
    assert {row.cell.n_anchor_queries + row["n_tests"] for row in rows} == {60}


def test_the_rank_of_scores_of_known_rank_is_found(tmp_path: Path) -> None:
    rows = rows_of("rank", tmp_path, noise=0.0)
    assert {row["rank"] for row in rows if "tolerance" in row.cell.part} == {4}
    assert all(row["rank"] <= 5 for row in rows)


def test_a_histogram_holds_all_pairs(measured: dict[str, list[Row]]) -> None:
    rows = select(measured["histogram"], method="scorer")
    assert sum(row["share"] for row in rows if "share" in row.values) == pytest.approx(1)


def test_scoring_time_is_the_pace_of_the_scorer_times_the_pairs(measured: dict[str, list[Row]]) -> None:
    rows = select(measured["indexing"], part=matrix.SCORING)
    assert {row.cell.n_anchor_queries: row["seconds"] for row in rows} == {15: 15 * 0.15, 30: 30 * 0.15}


def test_worlds_of_all_sizes_are_searched_with_the_same_queries(
    measured: dict[str, list[Row]],
) -> None:
    rows = measured["world-size"]
    assert {row.cell.n_items for row in rows} == {60, 100, 150}
    assert len({row["n_tests"] for row in rows}) == 1


def test_smaller_worlds_are_made_of_items_of_larger_ones(monkeypatch: pytest.MonkeyPatch) -> None:
    taken: list[set[int]] = []
    whole = Study.take_items
    monkeypatch.setattr(Study, "take_items", lambda study, items: (taken.append(set(items)), whole(study, items))[1])
    for batch in curves.world_size(make_study()):
        list(batch.measure(batch.cells))
    assert [len(items) for items in taken] == [60, 100, 150]
    assert taken[0] < taken[1] < taken[2]


def test_a_distilled_retriever_is_compared_where_it_knows_as_many_queries() -> None:
    study = with_distilled("base+ce@15")
    for batch in curves.recall_at_cost(study):
        n_anchor_queries = batch.cells[0].n_anchor_queries
        assert any("base" in cell.method for cell in batch.cells) == (n_anchor_queries == 15)


def test_a_distilled_retriever_is_not_compared_on_queries_that_it_has_seen() -> None:
    study = with_distilled("base+ce@30")
    split = study.sound_split(0)
    assert "rerank base+ce@30" in scoreboard.ways(study, split)
    seen = {"base+ce@30": [study.task.queries[split.tests[3]].marked_text]}
    assert "rerank base+ce@30" not in scoreboard.ways(replace(study, learnt_from=seen), split)


def test_split_by_document_the_paper_protocol_tests_what_the_first_seed_of_the_scoreboard_tests() -> None:
    study = replace(make_study(), is_split_by_document=True)
    few, many = (study.paper_split(n_anchors) for n_anchors in (15, 30))
    sound = study.sound_split(0)
    assert few.tests.tolist() == many.tests.tolist() == sound.tests.tolist()
    assert set(few.anchors) < set(many.anchors) == set(sound.anchors)
    (batch, _) = curves.recall_at_cost(study)
    assert {cell.protocol for cell in batch.cells} == {"paper, split by document"}


def test_a_distilled_retriever_is_no_part_of_other_methods() -> None:
    study = with_distilled("base+ce@30")
    assert study.first_stage().name == "hashed"
    index = scoreboard.Grounds(study).get(0).index
    assert index.info.retrievers == ("hashed",)


def test_a_retriever_is_called_by_the_last_part_of_its_folder() -> None:
    task = make_task()
    retriever = HashedVectors()
    retriever.name = "models/toy/base"
    assert [each.name for each in store_retrievers([retriever], task)] == ["base"]


def test_no_method_of_the_scoreboard_exceeds_its_budget_and_exhaustive_search_finds_all(
    measured: dict[str, list[Row]],
) -> None:
    rows = [row for row in measured["scoreboard"] if row.cell.method != scoreboard.DOCUMENTS]
    assert all(row["calls"] <= row.cell.cost for row in rows)
    assert {row["recall"] for row in select(rows, method="exhaustive")} == {1.0}
    wanted = {"rerank hashed", "ANNCUR", "ANNCUR, 8 anchors", "ADACUR from hashed", "AXN, transductive", "fixedITEM"}
    assert wanted | {"itemCUR", "posterior"} <= {row.cell.method for row in rows}


def test_the_scoreboard_counts_what_each_query_found(measured: dict[str, list[Row]]) -> None:
    rows = measured["scoreboard"]
    for row in rows:
        if row.cell.method != scoreboard.DOCUMENTS:
            (documents,) = select(rows, method=scoreboard.DOCUMENTS, seed=row.cell.seed)
            assert len(row["found"]) == len(documents["groups"])
            assert row["recall"] == pytest.approx(np.mean(row["found"]) / row.cell.k)


@pytest.mark.parametrize("seed", range(3))
def test_the_scoreboard_tests_documents_that_no_anchor_query_comes_from(seed: int) -> None:
    study = make_study()
    split = study.sound_split(seed)
    of_anchors, of_tests = ({study.task.groups[place] for place in some} for some in (split.anchors, split.tests))
    assert not of_anchors & of_tests


def test_only_one_index_is_held_at_a_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(scoreboard, "build", lambda *_, **__: object())
    grounds = scoreboard.Grounds(make_study())
    first = grounds.get(0)
    assert grounds.get(0) is first
    grounds.get(1)
    assert grounds.get(0) is not first


def test_fixed_items_keep_their_budget_and_find_all_with_a_whole_one() -> None:
    task = make_task()
    assert task.item_scores is not None
    ground = scoreboard.Grounds(make_study()).get(0, scoreboard.ITEMS)
    method = FixedItems(task.item_scores.items)
    queries = task.queries[:5]
    for hits in ground.index.search_many(queries, 5, 30, method=method):
        assert hits.calls <= 30
    best = ground.index.search_many(queries, 5, N_ITEMS, method="exhaustive")
    assert [hits.ids for hits in ground.index.search_many(queries, 5, N_ITEMS, method=method)] == [
        hits.ids for hits in best
    ]


def test_fixed_items_guess_by_the_dot_product_of_scores_with_them() -> None:
    task = make_task()
    assert task.item_scores is not None
    ground = scoreboard.Grounds(make_study()).get(0, scoreboard.ITEMS)
    (hits,) = ground.index.search_many(task.queries[:1], 5, 30, method=FixedItems(task.item_scores.items))
    fixed, guessed = (each.positions for each in hits.trace)
    half = task.item_scores.items[:15]
    assert sorted(fixed) == sorted(half)
    products = task.exact_scores[0, half] @ task.item_scores.exact_scores[:15]
    products[half] = -np.inf
    assert set(guessed) == set(np.argsort(-products)[:15])


def test_an_item_task_has_the_items_as_anchor_queries_in_front() -> None:
    task = make_task()
    assert task.item_scores is not None
    items = task.item_task()
    first = task.items[task.item_scores.items[0]]
    assert items.queries[0] == anncur.Query.of_item(first)
    assert items.exact_scores[:20].tolist() == task.item_scores.exact_scores.tolist()
    assert items.exact_scores[20:].tolist() == task.exact_scores.tolist()


def test_judged_metrics_are_perfect_where_everything_is_scored(tmp_path: Path) -> None:
    rows = rows_of("depth", tmp_path)
    (row,) = select(rows, method="exhaustive")
    assert (row["nDCG@10"], row["R@100"], row["recall"]) == (1.0, 1.0, 1.0)
    assert all(0 <= row["nDCG@10"] <= 1 for row in rows)
    assert (tmp_path / "runs" / "rerank-hashed-10.trec").is_file()


def test_what_a_task_lacks_is_not_measured() -> None:
    study = make_study()
    bare = type(study)(type(study.task)(*_parts(study.task)), study.retrievers, study.sizes)
    assert not list(curves.item_item(bare))
    assert not list(scoreboard.depth(bare))
    assert not any("item" in name for name in scoreboard.ways(bare, bare.sound_split(0)))


def _parts(task: Any) -> tuple[Any, ...]:
    return task.name, task.queries, task.groups, task.items, task.exact_scores
