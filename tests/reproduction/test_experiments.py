"""The paper's experiments: each measures its cells and no others, the same twice, and correctly."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import anncur
from anncur.arrays import Positions
from anncur.evaluation import scoreboard
from anncur.evaluation.rows import Row, select
from anncur.reproduction import curves, matrix
from anncur.reproduction.baselines import FixedItems, over_items, paper_variants, with_items_as_queries
from anncur.reproduction.experiments import EXPERIMENTS
from anncur.reproduction.study import PaperStudy
from toy_studies import N_ITEMS, PAPER_SIZES, add_distilled, check_rerun, make_paper_study, measure

pytestmark = pytest.mark.slow  # the paper's experiments, each on a small world


def with_distilled(name: str) -> PaperStudy:
    return add_distilled(make_paper_study(), name)


def rows_of(name: str, folder: Path, **options: Any) -> list[Row]:
    return measure(make_paper_study(folder / "runs", **options), EXPERIMENTS, name, folder)


@pytest.fixture(scope="module")
def measured(tmp_path_factory: pytest.TempPathFactory) -> dict[str, list[Row]]:
    """The rows of every experiment, made once for all tests that only look at them."""
    return {name: rows_of(name, tmp_path_factory.mktemp(name)) for name in EXPERIMENTS}


@pytest.mark.parametrize("name", EXPERIMENTS)
def test_a_fixed_seed_gives_the_same_rows_twice_and_a_rerun_makes_none(
    name: str, measured: dict[str, list[Row]], tmp_path: Path
) -> None:
    check_rerun(make_paper_study(tmp_path / "runs"), EXPERIMENTS, name, measured[name], tmp_path)


def test_the_oracle_errs_least_and_more_anchors_make_it_err_less(tmp_path: Path) -> None:
    rows = rows_of("heatmap", tmp_path, noise=0.5)
    for seed in range(PAPER_SIZES.n_grid_seeds):
        square = select(rows, seed=seed, n_anchor_queries=20, n_anchor_items=20)
        errors = {row.cell.method: row["error"] for row in square}
        assert errors[matrix.ORACLE] == min(errors.values())
        (small,) = select(rows, seed=seed, n_anchor_queries=5, n_anchor_items=5, method=matrix.ORACLE)
        assert errors[matrix.ORACLE] < small["error"]


def test_heatmaps_are_measured_on_all_queries_that_are_no_anchors(tmp_path: Path) -> None:
    rows = rows_of("heatmap", tmp_path)
    assert {(row.cell.n_anchor_queries or 0) + row["n_tests"] for row in rows} == {60}


def test_the_rank_of_scores_of_known_rank_is_found(tmp_path: Path) -> None:
    rows = rows_of("rank", tmp_path, noise=0.0)
    assert {row["rank"] for row in rows if "tolerance" in row.cell.part} == {4}
    assert all(row["rank"] <= 5 for row in rows)


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
    whole = PaperStudy.take_items

    def take_items(study: PaperStudy, items: Positions) -> PaperStudy:
        taken.append(set(items.tolist()))
        return whole(study, items)

    monkeypatch.setattr(PaperStudy, "take_items", take_items)
    for batch in curves.world_size(make_paper_study()):
        list(batch.measure(batch.cells))
    assert [len(items) for items in taken] == [60, 100, 150]
    assert taken[0] < taken[1] < taken[2]


def test_a_distilled_retriever_is_compared_where_it_knows_as_many_queries() -> None:
    study = with_distilled("base+ce@15")
    for batch in curves.recall_at_cost(study):
        n_anchor_queries = batch.cells[0].n_anchor_queries
        assert any("base" in cell.method for cell in batch.cells) == (n_anchor_queries == 15)


def test_split_by_document_the_paper_protocol_tests_what_the_first_seed_of_the_scoreboard_tests() -> None:
    study = replace(make_paper_study(), is_split_by_document=True)
    few, many = (study.paper_split(n_anchors) for n_anchors in (15, 30))
    sound = study.sound_split(0)
    assert few.tests.tolist() == many.tests.tolist() == sound.tests.tolist()
    assert set(few.anchors) < set(many.anchors) == set(sound.anchors)
    (batch, _) = curves.recall_at_cost(study)
    assert {cell.protocol for cell in batch.cells} == {"paper, split by document"}


def test_the_scoreboard_has_the_papers_baselines_and_none_exceeds_its_budget(measured: dict[str, list[Row]]) -> None:
    rows = [row for row in measured["scoreboard"] if row.cell.method != scoreboard.DOCUMENTS]
    assert all(row["calls"] <= row.cell.cost for row in rows)
    assert {row["recall"] for row in select(rows, method="exhaustive")} == {1.0}
    wanted = {"rerank hashed", "ANNCUR", "ANNCUR, 8 anchors", "ADACUR from hashed", "AXN, transductive", "fixedITEM"}
    assert wanted | {"itemCUR", "posterior"} <= {row.cell.method for row in rows}


def test_fixed_items_keep_their_budget_and_find_all_with_a_whole_one() -> None:
    study = make_paper_study()
    assert study.item_queries is not None
    index = over_items(study, 0).index
    method = FixedItems(study.item_queries.items)
    queries = study.world.queries[:5]
    for hits in index.search_many(queries, 5, 30, method=method):
        assert hits.calls <= 30
    best = index.search_many(queries, 5, N_ITEMS, method="exhaustive")
    assert [hits.ids for hits in index.search_many(queries, 5, N_ITEMS, method=method)] == [hits.ids for hits in best]


def test_fixed_items_guess_by_the_dot_product_of_scores_with_them() -> None:
    study = make_paper_study()
    assert study.item_queries is not None
    method = FixedItems(study.item_queries.items)
    (hits,) = over_items(study, 0).index.search_many(study.world.queries[:1], 5, 30, method=method)
    fixed, guessed = (each.positions for each in hits.trace)
    half = study.item_queries.items[:15]
    assert sorted(fixed) == sorted(half)
    products = study.world.exact_scores[0, half] @ study.item_queries.exact_scores[:15]
    products[half] = -np.inf
    assert set(guessed) == set(np.argsort(-products)[:15])


def test_items_as_queries_stand_in_front_of_the_queries() -> None:
    study = make_paper_study()
    assert study.item_queries is not None
    world = with_items_as_queries(study.world, study.item_queries)
    first = study.world.items[study.item_queries.items[0]]
    assert world.queries[0] == anncur.Query.of_item(first)
    assert world.exact_scores[:20].tolist() == study.item_queries.exact_scores.tolist()
    assert world.exact_scores[20:].tolist() == study.world.exact_scores.tolist()


def test_what_a_study_lacks_is_not_measured() -> None:
    study = make_paper_study()
    bare = replace(study, item_queries=None)
    assert not list(curves.item_item(bare))
    assert not any("item" in name for name in paper_variants(bare, bare.sound_split(0)))
