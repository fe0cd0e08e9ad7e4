"""Settings are chosen on anchor queries, for each k and budget."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

import anncur
from anncur.arrays import NO_POSITIONS, FloatMatrix
from anncur.evaluation import scoreboard
from anncur.evaluation.choices import bagel_grid, choose, gar_grid, refit_grid
from anncur.evaluation.experiments import EXPERIMENTS
from anncur.evaluation.rows import select
from anncur.evaluation.study import Study
from anncur.evaluation.worlds import QuerySplit, ScoredWorld
from anncur.retrievers.stored import StoredRetriever
from anncur.search.base import Method
from anncur.search.methods import Rerank
from toy_studies import make_study, measure

KS, BUDGETS = (1, 5), (10, 40)


class Oracle:
    """Ranks by the exact scores of some queries, and the others at random."""

    name = "oracle"

    def __init__(self, world: ScoredWorld, known: Sequence[int]) -> None:
        rows = {world.queries[place].marked_text: world.exact_scores[place] for place in known}
        self._known, self._n_items = rows, len(world.items)

    def fit(self, items: Iterable[anncur.Item]) -> None:
        """It knows them."""

    def scores(self, queries: Sequence[anncur.Query]) -> FloatMatrix:
        at_random = np.random.default_rng(0).normal(size=self._n_items)
        return np.stack([self._known.get(query.marked_text, at_random) for query in queries])


def two_retrievers(known: Sequence[int]) -> Study:
    study = make_study()
    oracle = StoredRetriever(Oracle(study.world, known), study.world.queries, study.world.items)
    return replace(study, retrievers=[*study.retrievers, oracle])


def chosen(known: Sequence[int], split: QuerySplit, grid: Sequence[Method]) -> set[Method]:
    study = two_retrievers(known)
    trial = scoreboard.over_nothing(study, 0)
    found = choose(grid, trial.index, study.world, split, ks=KS, budgets=BUDGETS)
    assert set(found) == {(k, budget) for k in KS for budget in BUDGETS}
    return set(found.values())


def test_what_finds_most_for_the_anchor_queries_is_chosen_whatever_it_finds_for_tests() -> None:
    split, grid = make_study().sound_split(0), [Rerank("hashed"), Rerank("oracle")]
    assert chosen(split.anchors.tolist(), split, grid) == {Rerank("oracle")}
    of_tests = two_retrievers(split.tests.tolist())
    tests_alone = choose(
        grid[::-1], scoreboard.over_nothing(of_tests, 0).index, of_tests.world, split, ks=KS, budgets=BUDGETS
    )
    assert Rerank("hashed") in tests_alone.values()


def test_without_anchor_queries_the_usual_settings_are_taken() -> None:
    split = make_study().sound_split(0)
    unanchored = QuerySplit(NO_POSITIONS, split.tests)
    assert chosen(split.tests.tolist(), unanchored, [Rerank("hashed"), Rerank("oracle")]) == {Rerank("hashed")}


def test_no_grid_has_the_same_settings_twice() -> None:
    for grid in (gar_grid(None, ("rrf", "minilm")), refit_grid("minilm"), bagel_grid("minilm")):
        assert len(set(grid)) == len(grid) > 1


@pytest.mark.slow
def test_the_scoreboard_has_the_rivals_and_the_fusion_of_several_retrievers(tmp_path: Path) -> None:
    study = two_retrievers([])
    rows = measure(study, EXPERIMENTS, "scoreboard", tmp_path)
    for name in ("GAR", "ReFIT", "BAGEL", "rerank rrf"):
        assert {(row.cell.k, row.cell.cost) for row in select(rows, method=name)} == {
            (1, 10),
            (1, 40),
            (5, 10),
            (5, 40),
        }


def test_a_single_retriever_without_vectors_has_no_rivals() -> None:
    study = two_retrievers([])
    assert not scoreboard.rival_variants(replace(study, retrievers=study.retrievers[1:]))
    assert "rerank rrf" not in scoreboard.rival_variants(replace(study, retrievers=study.retrievers[:1]))
