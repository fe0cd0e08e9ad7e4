"""A cascade: the shallow scorer's pairs are charged, and what it likes best is scored."""

from __future__ import annotations

import numpy as np
import pytest

import anncur
from anncur import AnncurError, Rerank
from anncur.arrays import FloatVector, Positions
from anncur.rivals.cascade import Cascade, shallow_scorer
from worlds import HashedVectors, World, low_rank_scores


class Shallow:
    """Knows the exact scores, and counts what it is asked for."""

    def __init__(self, world: World) -> None:
        self._world = world
        self.n_pairs = 0

    def __call__(self, query: anncur.Query, positions: Positions) -> FloatVector:
        self.n_pairs += len(positions)
        row: FloatVector = self._world.exact_scores[self._world.queries.index(query.text), positions]
        return row


@pytest.fixture
def world() -> World:
    return World(low_rank_scores(3, 200, rank=3))


@pytest.mark.parametrize(("cost", "share"), [(0.1, 0.25), (0.3, 0.5), (0.05, 0.1)])
def test_shallow_pairs_are_charged_at_their_cost(world: World, cost: float, share: float) -> None:
    shallow = Shallow(world)
    index = world.index(0, retrievers=(HashedVectors(),))
    hits = index.search(world.queries[0], k=5, budget=60, method=Cascade(shallow, cost, share))
    assert shallow.n_pairs == int(share * 60 / cost)
    assert 59 < hits.calls + cost * shallow.n_pairs <= 60


def test_the_best_by_the_shallow_scorer_among_the_retrievers_first_are_scored(world: World) -> None:
    index = world.index(0, retrievers=(HashedVectors(),))
    first = index.search(world.queries[0], k=150, budget=150, method=Rerank()).trace[0].positions
    hits = index.search(world.queries[0], k=45, budget=60, method=Cascade(Shallow(world), 0.1))
    by_score = first[np.argsort(-world.exact_scores[0, first])]
    assert [hit.id for hit in hits] == [f"i{position}" for position in by_score[:45]]


def test_a_budget_that_leaves_nothing_to_choose_is_re_ranking(world: World) -> None:
    shallow = Shallow(world)
    index = world.index(0, retrievers=(HashedVectors(),))
    for budget, method in ((1, Cascade(shallow, 0.1)), (60, Cascade(shallow, 1.0)), (200, Cascade(shallow, 0.1))):
        ours, theirs = (index.search(world.queries[1], k=60, budget=budget, method=one) for one in (method, Rerank()))
        assert ours.ids == theirs.ids
    assert shallow.n_pairs == 0


def test_any_scorer_can_be_the_shallow_one(world: World) -> None:
    def count_words(pairs: list[tuple[str, str]]) -> list[float]:
        return [float(len(text)) for _, text in pairs]

    score = shallow_scorer(anncur.load_scorer(count_words), world.items)
    assert score(anncur.Query("a"), np.array([5, 100])).tolist() == [17.0, 19.0]


@pytest.mark.parametrize("setting", [{"cost": 0}, {"cost": 2}, {"share": 1.5}])
def test_a_cascade_refuses_settings_that_make_no_sense(world: World, setting: dict[str, float]) -> None:
    with pytest.raises(AnncurError, match=next(iter(setting))):
        Cascade(Shallow(world), **{"cost": 0.1, **setting})  # type: ignore[arg-type]
