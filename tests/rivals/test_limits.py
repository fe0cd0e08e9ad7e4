"""Every rival keeps to a filter and to the rounds that are allowed."""

from __future__ import annotations

import numpy as np
import pytest

import anncur
from anncur.rivals.bagel import Bagel
from anncur.rivals.cascade import Cascade
from anncur.rivals.gar import Gar
from anncur.rivals.refit import Refit
from anncur.scorers.stored import StoredScorer
from anncur.search.base import Method
from worlds import HashedVectors, low_rank_scores

RIVALS: dict[str, Method] = {
    "gar": Gar(batch_size=4),
    "refit": Refit(n_rounds=6),
    "bagel": Bagel(),
    "cascade": Cascade(lambda _, positions: np.cos(positions), cost=0.1),
}


@pytest.fixture(scope="module")
def index() -> anncur.Index:
    items = [anncur.Item(f"i{n}", f"item {n}", metadata={"part": n % 3}) for n in range(90)]
    scorer = StoredScorer(low_rank_scores(2, 90, rank=3), ["query 0", "query 1"], [item.id for item in items])
    return anncur.Index.build(items, scorer, retrievers=(HashedVectors(),))


@pytest.mark.parametrize("name", RIVALS)
@pytest.mark.parametrize("budget", [7, 20, 30])
def test_only_items_that_pass_the_filter_are_scored(index: anncur.Index, name: str, budget: int) -> None:
    hits = index.search("query 1", k=90, budget=budget, method=RIVALS[name], filter={"part": 1})
    assert {hit.item.metadata["part"] for hit in hits} == {1}
    assert name == "cascade" or hits.calls == budget


@pytest.mark.parametrize("name", RIVALS)
@pytest.mark.parametrize("max_rounds", [1, 2, 3])
def test_there_are_no_more_rounds_than_allowed(index: anncur.Index, name: str, max_rounds: int) -> None:
    hits = index.search("query 0", k=5, budget=40, method=RIVALS[name], max_rounds=max_rounds)
    assert hits.n_rounds == (1 if name == "cascade" else max_rounds)
    assert name == "cascade" or hits.calls == 40
