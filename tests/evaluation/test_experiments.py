"""Experiments on one's own data: each measures its cells and no others, the same twice, and correctly."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from anncur.arrays import FloatMatrix
from anncur.errors import InputError
from anncur.evaluation import cost_rows, scoreboard
from anncur.evaluation.experiments import EXPERIMENTS, choose_experiments, run_experiments
from anncur.evaluation.intervals import measured_methods
from anncur.evaluation.rows import Row, RowFile, select
from anncur.evaluation.study import QUICK, Sizes, Study, store_retrievers
from anncur.evaluation.worlds import ScoredWorld
from anncur.items import Item, Query
from anncur.planning.pilot import RequestTime
from anncur.retrievers.stored import StoredRetriever
from toy_studies import N_ITEMS, N_QUERIES, add_distilled, check_rerun, make_study, make_world, measure
from worlds import HashedVectors

pytestmark = pytest.mark.slow  # the whole of it takes seconds


def with_distilled(name: str) -> Study:
    return add_distilled(make_study(), name)


class Informed:
    """A retriever that ranks items as the scorer does."""

    name = "informed"

    def __init__(self, world: ScoredWorld) -> None:
        self._world = world

    def fit(self, items: Iterable[Item]) -> None:
        assert list(items) == list(self._world.items)

    def scores(self, queries: Sequence[Query]) -> FloatMatrix:
        assert list(queries) == list(self._world.queries)
        return self._world.exact_scores


class InformedVectors(Informed):
    """The same with item vectors."""

    name = "informed vectors"

    def item_vectors(self) -> FloatMatrix:
        return self._world.exact_scores.T


def rows_of(name: str, folder: Path, **options: Any) -> list[Row]:
    return measure(make_study(folder / "runs", **options), EXPERIMENTS, name, folder)


@pytest.fixture(scope="module")
def measured(tmp_path_factory: pytest.TempPathFactory) -> dict[str, list[Row]]:
    """The rows of every experiment, made once for all tests that only look at them."""
    return {name: rows_of(name, tmp_path_factory.mktemp(name)) for name in EXPERIMENTS}


@pytest.mark.parametrize("name", EXPERIMENTS)
def test_a_fixed_seed_gives_the_same_rows_twice_and_a_rerun_makes_none(
    name: str, measured: dict[str, list[Row]], tmp_path: Path
) -> None:
    check_rerun(make_study(tmp_path / "runs"), EXPERIMENTS, name, measured[name], tmp_path)


def test_no_row_mentions_the_paper(measured: dict[str, list[Row]]) -> None:
    assert not [row for rows in measured.values() for row in rows if "paper" in row.to_json()]


def test_other_scores_are_other_cells(tmp_path: Path) -> None:
    file, spectrum = RowFile(tmp_path / "rows.jsonl"), choose_experiments(EXPERIMENTS, ["spectrum"])
    n_rows = run_experiments(make_study(), file, spectrum)
    assert run_experiments(make_study(noise=0.2), file, spectrum) == n_rows


def test_an_unknown_experiment_is_refused() -> None:
    with pytest.raises(InputError, match="no experiment 'magic'; take some of scoreboard"):
        choose_experiments(EXPERIMENTS, ["spectrum", "magic"])


def test_without_names_all_experiments_are_chosen() -> None:
    assert choose_experiments(EXPERIMENTS, []) == EXPERIMENTS


def test_sizes_shrink_to_what_a_world_has_enough_for() -> None:
    sizes = Sizes(n_anchor_queries=500, n_tests=20).within(N_QUERIES, N_ITEMS)
    assert sizes.n_anchor_queries == 40, "all that the tests leave"
    assert max(sizes.budgets) < N_ITEMS
    with pytest.raises(InputError, match="take fewer tests"):
        Sizes(n_tests=60).within(N_QUERIES, N_ITEMS)


def test_the_quick_sizes_fit_the_bundled_sample() -> None:
    assert QUICK.n_queries == 200


def test_scores_of_known_rank_have_as_many_principal_components(tmp_path: Path) -> None:
    rows = rows_of("spectrum", tmp_path, noise=0.0)
    assert [row.cell.part for row in rows] == ["90% of the variance", "95% of the variance", "99% of the variance"]
    assert 1 <= rows[0]["n_components"] <= rows[-1]["n_components"] <= 4
    assert {row["most_components"] for row in rows} == {N_QUERIES - 1}


def test_a_scorer_that_scores_all_queries_alike_has_no_components(tmp_path: Path) -> None:
    study = make_study()
    alike = replace(study.world, exact_scores=np.tile(study.world.exact_scores[:1], (N_QUERIES, 1)))
    file = RowFile(tmp_path / "rows.jsonl")
    run_experiments(Study(alike, [], study.sizes), file, choose_experiments(EXPERIMENTS, ["spectrum"]))
    assert {row["n_components"] for row in file.rows} == {0}


def test_a_histogram_holds_all_pairs(measured: dict[str, list[Row]]) -> None:
    rows = select(measured["histogram"], method="scorer")
    assert sum(row["share"] for row in rows if "share" in row.values) == pytest.approx(1)


def test_a_distilled_retriever_is_not_compared_on_queries_that_it_has_seen() -> None:
    study = with_distilled("base+ce@30")
    split = study.sound_split(0)
    assert "rerank base+ce@30" in scoreboard.variants(study, split)
    seen = {"base+ce@30": [study.world.queries[split.tests[3]].marked_text]}
    assert "rerank base+ce@30" not in scoreboard.variants(replace(study, distilled_from=seen), split)


def test_a_distilled_retriever_is_no_part_of_other_methods() -> None:
    study = with_distilled("base+ce@30")
    assert study.first_stage().name == "hashed"
    index = scoreboard.Trials(study).get(0).index
    assert index.info.retrievers == ("hashed",)


def test_methods_begin_with_the_retriever_that_finds_the_most_whatever_the_order() -> None:
    study = make_study()
    (hashed,), world = study.retrievers, study.world
    bare, best = (StoredRetriever(of(world), world.queries, world.items) for of in (Informed, InformedVectors))
    assert replace(study, retrievers=[hashed, bare]).first_stage().name == "hashed", "the only one with item vectors"
    for retrievers in ([hashed, bare, best], [best, hashed]):
        assert replace(study, retrievers=retrievers).first_stage() is best


def test_distilled_retrievers_alone_are_not_enough() -> None:
    study = with_distilled("base+ce@30")
    with pytest.raises(InputError, match="at least one retriever that was not distilled"):
        replace(study, retrievers=study.retrievers[1:]).first_stage()


def test_a_retriever_is_called_by_the_last_part_of_its_folder() -> None:
    retriever = HashedVectors()
    retriever.name = "models/toy/base"
    assert [each.name for each in store_retrievers([retriever], make_world())] == ["base"]


def test_no_method_of_the_scoreboard_exceeds_its_budget_and_exhaustive_search_finds_all(
    measured: dict[str, list[Row]],
) -> None:
    rows = [row for row in measured["scoreboard"] if row.cell.method != scoreboard.DOCUMENTS]
    assert all(row["calls"] <= row.cell.cost for row in rows)
    assert {row["recall"] for row in select(rows, method="exhaustive")} == {1.0}
    wanted = {
        "rerank hashed",
        "GAR",
        "ReFIT",
        "BAGEL",
        "ANNCUR",
        "ADACUR from hashed",
        "AXN, transductive",
        "posterior",
    }
    assert wanted <= {row.cell.method for row in rows}


def test_the_scoreboard_has_the_default_method_without_anchor_queries_and_with_few(
    measured: dict[str, list[Row]],
) -> None:
    names = ("rerank hashed", "posterior, no anchor queries", "posterior, 10 anchor queries", "posterior")
    rows = {name: select(measured["scoreboard"], method=name) for name in names}
    n_anchors = [{row["build_calls"] // N_ITEMS for row in some} for some in rows.values()]
    assert n_anchors == [{0}, {0}, {10}, {30}], "and a few pairs twice, to see whether the scorer is stable"


def test_rows_of_methods_tell_how_many_rounds_they_took(measured: dict[str, list[Row]]) -> None:
    rows = [row for row in measured["scoreboard"] if row.cell.cost]
    assert {row["rounds"] for row in rows if row.cell.method.startswith("rerank")} == {1.0}
    assert all(row["rounds"] > 1 for row in rows if row.cell.method == "posterior")


def test_the_scoreboard_has_the_scorers_own_pace_and_searches_in_few_rounds(tmp_path: Path) -> None:
    study = make_study()
    world = replace(study.world, request_time=RequestTime(0.2, 0.002), n_corpus_items=9000)
    sizes = replace(study.sizes, ks=(10,), budgets=(20, 40))
    file = RowFile(tmp_path / "rows.jsonl")
    run_experiments(replace(study, world=world, sizes=sizes), file, choose_experiments(EXPERIMENTS, ["scoreboard"]))
    (pace,) = select(file.rows, method="scorer")
    assert (pace["latency"], pace["seconds_per_pair"], pace["n_corpus_items"]) == (0.2, 0.002, 9000)
    assert {row.cell.part for row in select(file.rows, method="posterior")} == {"", "3 rounds", "6 rounds"}
    limited = select(file.rows, part="3 rounds")
    assert all(row["rounds"] <= 3 for row in limited)
    assert {row.cell.part for row in measured_methods(file.rows)} == {""}, "the scoreboard itself has no limits"


def test_re_ranking_and_the_default_method_are_measured_with_larger_budgets(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cost_rows, "LARGER_BUDGETS", (40, 100, 200))
    study = make_study()
    file = RowFile(tmp_path / "rows.jsonl")
    sizes = replace(study.sizes, ks=(10,), budgets=(20, 40))
    run_experiments(replace(study, sizes=sizes), file, choose_experiments(EXPERIMENTS, ["scoreboard"]))
    larger = select(file.rows, part=cost_rows.MORE_PAIRS)
    assert {row.cell.cost for row in larger} == {100}, "more than the largest budget, and less than all items"
    assert {"rerank hashed", "posterior", "posterior, no anchor queries"} <= {row.cell.method for row in larger}


def test_slow_methods_are_left_out_where_the_answer_shall_be_quick() -> None:
    pytest.importorskip("torch")
    study = make_study()
    assert "AXN, inductive" in scoreboard.adaptive_variants(study)
    quick = replace(study, sizes=replace(study.sizes, has_slow_methods=False))
    assert "AXN, inductive" not in scoreboard.adaptive_variants(quick)


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
    of_anchors, of_tests = ({study.world.groups[place] for place in some} for some in (split.anchors, split.tests))
    assert not of_anchors & of_tests


def test_only_one_index_is_held_at_a_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(scoreboard, "build", lambda *_, **__: object())
    trials = scoreboard.Trials(make_study())
    first = trials.get(0)
    assert trials.get(0) is first
    trials.get(1)
    assert trials.get(0) is not first


def test_judged_metrics_are_perfect_where_everything_is_scored(tmp_path: Path) -> None:
    rows = rows_of("depth", tmp_path)
    (row,) = select(rows, method="exhaustive")
    assert (row["nDCG@10"], row["R@100"], row["recall"]) == (1.0, 1.0, 1.0)
    assert all(0 <= row["nDCG@10"] <= 1 for row in rows)
    assert (tmp_path / "runs" / "rerank-hashed-10.trec").is_file()


def test_without_judgements_the_tasks_own_metrics_are_not_measured() -> None:
    study = make_study()
    assert not list(scoreboard.depth(replace(study, world=replace(study.world, qrels=None))))
