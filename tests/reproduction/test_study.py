"""Sizes of the paper's experiments, and items that are scored as queries."""

from __future__ import annotations

from pathlib import Path

import pytest

import anncur
from anncur.errors import InputError
from anncur.evaluation.own import OwnData, fit_sizes, own_world
from anncur.reproduction.study import QUICK, PaperSizes, score_items
from anncur.scorers.loading import load_scorer
from toy_studies import N_ITEMS, N_QUERIES


def test_sizes_shrink_to_what_a_world_has_enough_for() -> None:
    sizes = PaperSizes(n_tests=20, world_sizes=(100, 100_000)).within(N_QUERIES, N_ITEMS)
    assert sizes.curve_anchors == (40,), "all that the tests leave"
    assert max(sizes.budgets) < N_ITEMS
    assert sizes.grid == ()
    assert sizes.world_sizes[-1] == N_ITEMS
    with pytest.raises(InputError, match="take fewer tests"):
        PaperSizes(n_tests=60).within(N_QUERIES, N_ITEMS)


def test_fewer_anchors_are_those_of_the_curves_below_them() -> None:
    assert QUICK.with_anchors(60).curve_anchors == (25, 50, 60)
    assert QUICK.with_anchors(300).curve_anchors == (25, 50, 100, 150, 300)
    assert QUICK.with_anchors(50).curve_anchors == (25, 50)


def test_the_quick_sizes_fit_the_bundled_sample() -> None:
    assert QUICK.n_queries == 200


@pytest.mark.parametrize(("size", "n_anchors"), [(2, 150), (4, 147), (9, 142)])
def test_where_documents_do_not_add_up_to_the_tests_the_largest_number_of_anchors_is_smaller(
    size: int, n_anchors: int
) -> None:
    groups = [f"d{number // size}" for number in range(200)]
    assert fit_sizes(QUICK, groups, 2000, by_document=True).curve_anchors == (25, 50, 100, n_anchors)


def test_items_as_queries_are_scored_as_a_query_of_an_item_is(tmp_path: Path) -> None:
    items = [anncur.Item(f"i{number}", f"text {number}", title=f"title {number}") for number in range(30)]
    queries = [anncur.Query(f"query {number}") for number in range(12)]

    def score(pairs: list[tuple[str, str]]) -> list[float]:
        return [float(hash((query, item)) % 1000) for query, item in pairs]

    scorer = load_scorer(score)
    data = OwnData("toy", items, queries, [str(number) for number in range(12)])
    world = own_world(data, scorer, tmp_path, scorer_name="toy", on_cost=lambda _: None)
    found = score_items(world, scorer, tmp_path, 7, seed=0, on_cost=lambda _: None)
    first = items[found.items[0]]
    expected = score([(anncur.Query.of_item(first).marked_text, item.full_text) for item in items])
    assert found.exact_scores[0].tolist() == expected
    assert found.exact_scores.shape == (7, 30)
