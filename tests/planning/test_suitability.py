"""A report shows what tuning has measured, and advises by it."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from dataclasses import replace

import numpy as np
import pytest

import anncur
from anncur import anchors
from anncur.arrays import FloatMatrix
from anncur.item_scores import ChunkedScores
from anncur.planning.advice import advise
from anncur.planning.suitability import assess, compare
from anncur.search.settings import PosteriorSettings, RecallCurve, Tuned
from anncur.search.splits import BudgetSplit, SplitTable
from anncur.storage.codecs import decode_tuned, encode_tuned
from anncur.tuning import posterior, splits
from anncur.tuning.derive import Derived, derive
from worlds import World, low_rank_scores

pytestmark = pytest.mark.slow

NO_SPLITS = SplitTable([], np.empty((0, 0, 0), dtype=np.int16))


@pytest.fixture
def few_trials(monkeypatch: pytest.MonkeyPatch) -> None:
    """Tune in little time, where it doesn't matter how well."""
    monkeypatch.setattr(posterior, "MOST_PAIRS", 100)
    monkeypatch.setattr(splits, "ANCHOR_COUNTS", (0, 5))


class Blurred:
    """A retriever that knows the exact scores, but for some noise."""

    def __init__(self, world: World, name: str, noise: float) -> None:
        self.name = name
        self._places = {text: place for place, text in enumerate(world.queries)}
        self._scores = world.exact_scores + noise * np.random.default_rng(1).normal(size=world.exact_scores.shape)

    def fit(self, items: Iterable[anncur.Item]) -> None:
        pass

    def scores(self, queries: Sequence[anncur.Query]) -> FloatMatrix:
        return self._scores[[self._places[query.text] for query in queries]].astype(np.float32)


def derived_of(world: World, *retrievers: Blurred) -> Derived:
    return derive(
        ChunkedScores(np.split(world.exact_scores.T, [100, 200]), np.arange(len(world.items)), len(world.queries)),
        queries=[anncur.Query(text) for text in world.queries],
        retrievers={each.name: each for each in retrievers},
        anchor_method="pivoted_qr",
        seed=0,
    )


@pytest.mark.usefixtures("few_trials")
def test_the_recall_curve_of_a_retriever_is_what_re_ranking_with_it_finds() -> None:
    world = World(low_rank_scores(12, 300, rank=5, noise=0.5))
    cheap = Blurred(world, "cheap", noise=2.0)
    curve = derived_of(world, cheap).tuned.rerank_curves["cheap"]
    index = world.index(12, retrievers=[cheap])
    for k, budget in ((1, 5), (10, 30), (50, 120), (10, 300)):
        found = index.search_many(world.queries, k, budget, anncur.Rerank("cheap"))
        true = [set(world.brute_force(query, k)) for query in range(12)]
        measured = np.mean([len(set(hits.ids) & ids) / k for hits, ids in zip(found, true, strict=True)])
        assert curve.recall(k, budget) == pytest.approx(measured), (k, budget)


@pytest.mark.usefixtures("few_trials")
@pytest.mark.slow
def test_a_sample_of_the_items_gives_about_the_same_curve(monkeypatch: pytest.MonkeyPatch) -> None:
    world = World(low_rank_scores(16, 3000, rank=5, noise=0.5))
    cheap = Blurred(world, "cheap", noise=2.0)
    from_all = derived_of(world, cheap).tuned.rerank_curves["cheap"]
    monkeypatch.setattr(anchors, "MOST_CONSIDERED", 600)
    from_some = derived_of(world, cheap).tuned.rerank_curves["cheap"]
    for budget in (50, 200, 500):
        assert from_some.recall(10, budget) == pytest.approx(from_all.recall(10, budget), abs=0.05)
    assert from_some.recall(100, 3000) == 1.0


def test_the_budget_for_a_recall_that_was_measured_is_the_one_that_it_was_measured_at() -> None:
    curve = RecallCurve(np.arange(1, 961, dtype=np.int32).reshape(96, 10), most_calls=960)
    for budget in range(10, 960):
        assert curve.budget(10, curve.recall(10, budget) or 0.0) == budget


@pytest.mark.usefixtures("few_trials")
def test_what_an_older_version_tuned_is_read_and_written_as_it_was() -> None:
    world = World(low_rank_scores(12, 80, rank=3))
    newer = encode_tuned(derived_of(world, Blurred(world, "cheap", noise=1.0)).tuned)
    record = json.loads(newer)
    del record["rerank"], record["spectrum"]
    older = json.dumps(record, sort_keys=True).encode()
    assert decode_tuned(older).rerank_curves == {}
    assert encode_tuned(decode_tuned(older)) == older
    assert encode_tuned(decode_tuned(newer)) == newer


def test_a_report_has_every_method_and_stops_short_of_scoring_everything() -> None:
    world = World(low_rank_scores(16, 300, rank=4, noise=0.1))
    found = assess(derived_of(world, Blurred(world, "good", 0.5), Blurred(world, "poor", 9.0)), n_items=300)
    assert found.methods == ("posterior", "anncur", "rerank good", "rerank poor")
    assert {(row.k, row.budget) for row in found.recalls} == {
        *((k, budget) for k in (1, 10) for budget in (50, 100, 200)),
        *((50, budget) for budget in (100, 200)),
        (100, 200),
    }
    good, poor = (found.recall(f"rerank {name}", 10, 100) for name in ("good", "poor"))
    assert good is not None
    assert poor is not None
    assert good > poor + 0.2
    assert found.most_components == 15
    assert found.components[0].n_components <= 4
    assert json.loads(json.dumps(found.to_dict()))["recalls"][0].keys() == {"method", "k", "budget", "recall"}


def tuned_to(ours: float, theirs: float) -> Derived:
    """From the share of the top k that each finds within any budget, the same for every k."""
    rng = np.random.default_rng(0)
    found = [np.where(rng.random((96, 100)) < share, 20, 5000).astype(np.int32) for share in (ours, theirs)]
    rerank = {"bm25": RecallCurve(found[1], most_calls=5000)}
    return Derived(
        np.arange(3), NO_SPLITS, Tuned(PosteriorSettings(), RecallCurve(found[0], 500), rerank_curves=rerank)
    )


def test_adaptive_search_is_advised_where_it_finds_more() -> None:
    first, *_ = advise(tuned_to(0.9, 0.5), n_items=5000)
    assert first.startswith("use posterior, the default: it finds 9")
    assert "re-ranking bm25 finds 49%" in first
    assert "would need 5,000 pairs" in first


def test_plain_re_ranking_is_advised_where_it_finds_more() -> None:
    first, *_ = advise(tuned_to(0.5, 0.9), n_items=5000)
    assert first.startswith('plain re-ranking serves you better (method=anncur.Rerank("bm25")): bm25 finds 9')


def test_plain_re_ranking_is_advised_where_it_finds_as_much() -> None:
    first, *_ = advise(tuned_to(0.9, 0.9), n_items=5000)
    assert first.startswith("plain re-ranking serves you as well")


def test_a_difference_that_may_be_chance_decides_nothing() -> None:
    theirs = np.full((2, 100), 5000, dtype=np.int32)
    ours = theirs.copy()
    ours[0] = 20  # all for one query, nothing for the other
    tuned = Tuned(PosteriorSettings(), RecallCurve(ours, 500), rerank_curves={"bm25": RecallCurve(theirs, 5000)})
    first, *_ = advise(Derived(np.arange(3), NO_SPLITS, tuned), n_items=5000)
    assert first.startswith("use more anchor queries: 2 are too few to tell")


def test_where_re_ranking_is_better_only_somewhere_the_advice_names_where() -> None:
    derived = tuned_to(0.9, 0.5)
    derived.tuned.curve.found_after[:, 0] = 80  # the very best comes late
    derived.tuned.rerank_curves["bm25"].found_after[:, 0] = 1
    first, second, *_ = advise(derived, n_items=5000)
    assert first.startswith("use posterior")
    assert second == "plain re-ranking with bm25 serves better for the top 1 with 50 pairs (100% against 0%)"


def test_what_was_never_tuned_is_to_be_tuned() -> None:
    table = SplitTable([BudgetSplit(0, 0.1)], np.zeros((1, 4, 10), dtype=np.int16))  # there are anchor queries
    (line,) = advise(Derived(np.arange(3), table), n_items=5000)
    assert line == "adaptive search was not tuned: run `anncur tune`"


def test_an_index_without_anchor_queries_searches_from_the_first_query_on() -> None:
    nothing = Derived(np.arange(3), NO_SPLITS)
    assert assess(nothing, n_items=5000).recalls == ()
    assert assess(nothing, n_items=5000).components == ()
    searches, calibrate, anchors = advise(nothing, n_items=5000)
    assert "searches from the first query on" in searches
    assert "index.calibrate(queries)" in calibrate
    assert "anchor queries may raise recall: `anncur plan` tells how far" in anchors


def test_an_index_of_a_build_without_anchor_queries_is_not_to_be_tuned() -> None:
    advice = World(low_rank_scores(2, 1200, rank=2)).index(0).suitability().advice
    assert len(advice) == 3
    assert not [line for line in advice if "anncur tune" in line]


def test_once_it_is_calibrated_it_is_compared_with_re_ranking() -> None:
    tuned = replace(tuned_to(0.9, 0.5).tuned, settings=None)
    searches, compared, budgets, anchors = advise(Derived(np.arange(3), NO_SPLITS, tuned), n_items=5000)
    assert "searches from the first query on" in searches
    assert compared.startswith("use posterior, the default: it finds 9")
    assert "on held-out queries" in compared
    assert budgets.startswith("pairs in which posterior finds 90%")
    assert "anchor queries may raise recall" in anchors


def test_too_few_queries_to_calibrate_with_are_said_to_be_too_few() -> None:
    theirs = np.full((2, 100), 5000, dtype=np.int32)
    ours = theirs.copy()
    ours[0] = 20
    tuned = Tuned(None, RecallCurve(ours, 500), rerank_curves={"bm25": RecallCurve(theirs, 5000)})
    advice = advise(Derived(np.arange(3), NO_SPLITS, tuned), n_items=5000)
    assert advice[1].startswith("calibrate with more queries: 2 are too few to tell")


def test_few_items_are_better_scored_all() -> None:
    first, *_ = advise(tuned_to(0.9, 0.5), n_items=800)
    assert "scoring them all" in first
    assert len(advise(tuned_to(0.9, 0.5), n_items=40)) == 1


def test_a_comparison_with_nothing_has_only_what_is_expected_now() -> None:
    changes = compare(Tuned(), tuned_to(0.9, 0.5).tuned, n_items=5000).changes
    assert {change.before for change in changes} == {None}
    assert all(change.after is not None for change in changes)


def test_settings_without_effect_are_not_reported_as_chosen() -> None:
    settings = PosteriorSettings(coefficients=(("bm25", (0.5, 0.1)),), embedding_share=0.3)
    chosen = compare(Tuned(), Tuned(settings), n_items=5000).chosen
    assert chosen is not None
    assert chosen["retrievers"] == {"bm25": [0.5, 0.1]}
    assert (chosen["embeddings_of"], chosen["embedding_share"]) == (None, 0.0)
    assert compare(Tuned(settings), Tuned(), n_items=5000).chosen is None
