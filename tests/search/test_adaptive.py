"""Adaptive search learns what a query is from the scores that it pays for."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from itertools import product

import numpy as np
import pytest

import anncur
from anncur import Posterior
from anncur.arrays import FloatMatrix
from anncur.errors import InputError
from anncur.search.model import PosteriorModel
from anncur.search.posterior_search import PosteriorSearch
from anncur.search.prior import QueryPrior
from worlds import World, low_rank_scores

pytestmark = pytest.mark.slow

MakeWorld = Callable[..., World]


def prior_means(prior: QueryPrior, n_items: int) -> FloatMatrix:
    """Of all items for each query, (n_queries, n_items)."""
    n_queries = 1 if prior.features is None else len(prior.features.of_items(slice(0, 1)))
    return prior.offsets + prior.means_at(np.tile(np.arange(n_items), (n_queries, 1)))


def recalls(world: World, found: list[anncur.Hits], first: int, k: int) -> list[float]:
    true = [set(world.brute_force(first + number, k)) for number in range(len(found))]
    return [len(set(hits.ids) & ids) / k for hits, ids in zip(found, true, strict=True)]


@pytest.fixture(scope="module")
def hard() -> World:
    """A world in which neither few pairs nor few anchors find everything."""
    return World(low_rank_scores(260, 800, rank=60, noise=3.0, seed=3))


@pytest.fixture(scope="module")
def index(hard: World) -> anncur.Index:
    return hard.index(100, retrievers=())


def test_it_is_ahead_of_fixed_anchors_for_the_same_budget(hard: World, index: anncur.Index) -> None:
    ours, theirs = (
        np.mean(recalls(hard, index.search_many(hard.queries[100:], 10, 100, method), 100, 10))
        for method in ("posterior", "anncur")
    )
    assert ours > theirs + 0.05


def test_a_larger_budget_begins_as_a_smaller_one_does(hard: World, index: anncur.Index) -> None:
    small, large = (index.search(hard.queries[200], k=10, budget=budget) for budget in (60, 200))
    scored = [np.concatenate([step.positions for step in hits.trace]).tolist() for hits in (small, large)]
    assert set(scored[0][:49]) <= set(scored[1])  # the last round is cut where a budget ends
    assert scored[0][:49] == scored[1][:49]


def test_queries_searched_together_get_what_each_gets_alone(hard: World, index: anncur.Index) -> None:
    together = index.search_many(hard.queries[100:110], k=5, budget=50)
    alone = [index.search(query, k=5, budget=50) for query in hard.queries[100:110]]
    assert [hits.ids for hits in together] == [hits.ids for hits in alone]


def test_the_estimate_of_recall_is_true_on_average_and_differs_by_query(hard: World, index: anncur.Index) -> None:
    found = index.search_many(hard.queries[100:], k=10, budget=100)
    true = np.array(recalls(hard, found, 100, 10))
    estimates = np.array([hits.estimated_recall for hits in found])
    assert 0.5 < true.mean() < 0.95, "too easy or too hard a world would prove nothing"
    assert estimates.mean() == pytest.approx(true.mean(), abs=0.05)
    assert np.abs(estimates - true).mean() < np.abs(true - np.median(true)).mean()


def test_expected_recall_is_what_other_queries_then_find(hard: World, index: anncur.Index) -> None:
    found = index.search_many(hard.queries[100:], k=10, budget=100)
    true = float(np.mean(recalls(hard, found, 100, 10)))
    expected = index.expected_recall(k=10, budget=100)
    assert expected is not None
    assert true - 0.08 < expected < true + 0.03  # it was measured with a sixth fewer anchors


def test_a_target_recall_is_reached_on_average_with_fewer_pairs_for_easy_queries(
    hard: World, index: anncur.Index
) -> None:
    found = index.search_many(hard.queries[100:], k=10, target_recall=0.9)
    assert np.mean(recalls(hard, found, 100, 10)) == pytest.approx(0.9, abs=0.04)
    assert len({hits.calls for hits in found}) > 1
    assert not any(hits.is_partial for hits in found)


def test_the_first_round_may_score_what_retrievers_find_and_then_the_highest_prior_means(hard: World) -> None:
    """BM25 finds the items that share a word with the query; there are fewer of them than a first round scores."""
    items = [*hard.items[:-2], anncur.Item("i798", "query 200"), anncur.Item("i799", "query 200, too")]
    index = anncur.Index.build(items, hard.scorer, hard.queries[:3], retrievers=("bm25",))
    posterior = index._current().knowledge.posterior
    settings = replace(posterior.settings(), coefficients=(("bm25", (1.0, 0.0)),), n_initial=5, retriever_weight=0.0)
    prior = posterior.prior(settings, [anncur.Query(hard.queries[200])])
    search = PosteriorSearch(posterior.item_model(settings), prior, 1)
    (first,) = search.propose(5)
    assert set(first.positions[:3].tolist()) == {200, 798, 799}
    means = prior_means(prior, len(items))
    best_means = np.argsort(-means[0], kind="stable")
    assert first.positions[3:].tolist() == [place for place in best_means.tolist() if place not in {200, 798, 799}][:2]
    assert first.guesses is not None
    np.testing.assert_allclose(first.guesses, means[0, first.positions], rtol=1e-5)
    search.observe(first.positions[None], np.zeros((1, 5)))
    assert not set(search.propose(5)[0].positions.tolist()) & set(first.positions.tolist())


@pytest.fixture(scope="module")
def posterior(hard: World) -> PosteriorModel:
    index = anncur.Index.build(hard.items, hard.scorer, hard.queries[:3], retrievers=("bm25",))
    return index._current().knowledge.posterior


def test_retrievers_have_their_weight_in_the_prior_mean(hard: World, posterior: PosteriorModel) -> None:
    queries = [anncur.Query(hard.queries[200])]
    fitted = []
    for weight in (1.0, 0.5, 0.0):
        settings = replace(posterior.settings(), coefficients=(("bm25", (1.0, 0.0)),), retriever_weight=weight)
        fitted.append(posterior.prior(settings, queries).means_at(np.arange(800)[None]))
    full, half, none = fitted
    assert full.any()
    np.testing.assert_allclose(half, 0.5 * full)
    assert not none.any()


def test_item_models_are_fitted_to_the_residuals_of_retrievers_by_their_weight(
    hard: World, posterior: PosteriorModel
) -> None:
    settings = [
        replace(posterior.settings(), coefficients=(("bm25", (1.0, 0.0)),), retriever_weight=weight)
        for weight in (0.0, 0.5, 1.0)
    ]
    own = [posterior.prior(each, [anncur.Query(query) for query in hard.queries[:3]]) for each in settings]
    for each, prior in zip(settings, own, strict=True):
        residuals = posterior.scores.all() - prior.means_at(np.tile(np.arange(800), (3, 1))).T
        np.testing.assert_allclose(posterior.item_model(each).offsets, residuals.mean(axis=1), atol=1e-4)


def test_retrievers_choose_the_first_round_only_where_there_are_initial_candidates(
    hard: World, posterior: PosteriorModel
) -> None:
    begun = []
    for n_initial in (5, 0):
        settings = replace(posterior.settings(), coefficients=(("bm25", (0.01, 0.0)),), n_initial=n_initial)
        prior = posterior.prior(settings, [anncur.Query(hard.queries[200])])
        begun += PosteriorSearch(posterior.item_model(settings), prior, 1).propose(5)
    best_means = np.argsort(-prior_means(prior, 800)[0], kind="stable").tolist()
    assert begun[0].positions.tolist() == [200, *best_means[:4]]
    assert begun[1].positions.tolist() == best_means[:5]


def test_rounds_have_the_sizes_of_the_settings(hard: World) -> None:
    index = anncur.Index.build(hard.items, hard.scorer, hard.queries[:3], retrievers=("bm25",))
    for n_initial, expected in ((8, [8, 3, 3, 3, 3]), (0, [3, 3, 3, 3, 3, 3, 2])):
        method = Posterior(n_initial=n_initial, min_round_size=3, growth=0.1)
        hits = index.search(hard.queries[200], k=5, budget=20, method=method)
        assert [len(step.positions) for step in hits.trace] == expected


def test_what_both_retrievers_and_prior_means_rank_highest_is_scored_once(
    hard: World, posterior: PosteriorModel
) -> None:
    settings = replace(posterior.settings(), coefficients=(("bm25", (30.0, 0.0)),), n_initial=5, retriever_weight=1.0)
    prior = posterior.prior(settings, [anncur.Query(hard.queries[200])])
    (first,) = PosteriorSearch(posterior.item_model(settings), prior, 1).propose(5)
    assert first.positions[0] == 200
    assert len(set(first.positions.tolist())) == 5


def test_scores_that_retrievers_predicted_leave_the_posterior_as_it_was(hard: World, posterior: PosteriorModel) -> None:
    settings = replace(posterior.settings(), coefficients=(("bm25", (30.0, 0.0)),), retriever_weight=1.0)
    prior = posterior.prior(settings, [anncur.Query(hard.queries[200])])
    search = PosteriorSearch(posterior.item_model(settings), prior, 1)
    positions, means = np.arange(198, 203), prior_means(prior, 800)
    search.observe(positions[None], means[:, positions].astype(np.float64))
    (after,) = search.propose(5)
    assert after.guesses is not None
    np.testing.assert_allclose(after.guesses, means[0, after.positions], rtol=1e-5)


def test_active_queries_keep_what_retrievers_predict_for_them(hard: World, posterior: PosteriorModel) -> None:
    settings = replace(posterior.settings(), coefficients=(("bm25", (30.0, 0.0)),), retriever_weight=1.0)
    queries = [anncur.Query(hard.queries[number]) for number in (200, 201)]
    both, alone = (
        PosteriorSearch(posterior.item_model(settings), posterior.prior(settings, some), len(some))
        for some in (queries, queries[1:])
    )
    positions = np.arange(10).reshape(2, 5)
    both.observe(positions, np.ones((2, 5)))
    alone.observe(positions[1:], np.ones((1, 5)))
    both.keep(np.array([1]))
    (kept,), (expected,) = both.propose(5), alone.propose(5)
    assert kept.positions.tolist() == expected.positions.tolist()
    assert kept.positions[0] == 201, "bm25 knows it by its number"
    assert kept.guesses is not None
    assert expected.guesses is not None
    np.testing.assert_allclose(kept.guesses, expected.guesses, rtol=1e-5)


def test_features_of_recall_for_a_k_are_the_same_alone_and_beside_others(
    hard: World, posterior: PosteriorModel
) -> None:
    """Calibration is fitted to those of several k together, and applied to those of one."""
    settings = posterior.settings()
    search = PosteriorSearch(
        posterior.item_model(settings), posterior.prior(settings, [anncur.Query(hard.queries[200])]), 1
    )
    search.observe(np.arange(150)[None], hard.exact_scores[None, 200, :150])
    together = search.recall_features((1, 10, 100))
    for place, k in enumerate((1, 10, 100)):
        np.testing.assert_allclose(search.recall_features([k])[:, 0], together[:, place])


def test_max_budget_caps_the_way_to_a_target(hard: World, index: anncur.Index) -> None:
    found = index.search_many(hard.queries[100:110], k=10, target_recall=0.99, max_budget=40)
    assert {hits.calls for hits in found} == {40}


@pytest.mark.slow
def test_a_retriever_that_agrees_with_the_scorer_raises_recall() -> None:
    """Words of the items are all that the scorer looks at, and BM25 sees them."""
    rng = np.random.default_rng(0)
    texts = [" ".join(f"w{word}" for word in rng.integers(0, 60, 6)) for _ in range(600)]
    items = [anncur.Item(f"i{number}", text) for number, text in enumerate(texts)]
    queries = [f"w{number}" for number in range(60)]

    def overlap(pairs: list[tuple[str, str]]) -> list[float]:
        return [item.split().count(query) + len(item) / 1e4 for query, item in pairs]

    index = anncur.Index.build(items, overlap, queries[:30], retrievers=("bm25",))
    truth = index.search_many(queries[30:], 10, method="exhaustive")
    found = index.search_many(queries[30:], 10, 40)
    plain = index.search_many(queries[30:], 10, 40, Posterior(retrievers=()))
    ours, without = (
        np.mean([len(set(hits.ids) & set(true.ids)) / 10 for hits, true in zip(answers, truth, strict=True)])
        for answers in (found, plain)
    )
    assert ours > without + 0.2


@pytest.mark.slow
def test_tuning_chooses_many_initial_candidates_where_the_best_items_are_among_them() -> None:
    """Of the 15 items with the query's word, which BM25 scores the same, five at random are the best by far."""
    rng = np.random.default_rng(0)
    texts = [f"w{number % 40} thing{number}" for number in range(600)]
    queries = [f"w{number}" for number in range(30)]
    scores = rng.normal(size=(30, 30)) @ rng.normal(size=(30, 600)) / 5
    for number, row in enumerate(scores):
        row[rng.choice(np.arange(number, 600, 40), 5, replace=False)] += 8
    table = {pair: float(score) for pair, score in zip(product(queries, texts), scores.ravel(), strict=True)}
    index = anncur.Index.build(texts, lambda pairs: [table[pair] for pair in pairs], queries)
    assert index._current().knowledge.posterior.settings().n_initial == 20


def test_a_target_without_tuning_is_refused(make_world: MakeWorld) -> None:
    with pytest.raises(InputError, match="target_recall needs an index that was tuned"):
        make_world().index(3).search("any", target_recall=0.9)


@pytest.mark.parametrize(
    ("limits", "message"),
    [
        ({"budget": 50, "target_recall": 0.9}, "give one of them, or with target_recall max_budget"),
        ({"max_budget": 50}, "max_budget goes with target_recall"),
        ({"target_recall": 1.5}, "target_recall must be"),
        ({"target_recall": 0.9, "max_budget": 0}, "max_budget must be"),
    ],
)
def test_limits_that_make_no_sense_are_refused(limits: dict[str, float], message: str, make_world: MakeWorld) -> None:
    with pytest.raises(InputError, match=message):
        make_world().index(10).search("any", **limits)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    "settings",
    [{"noise_share": 2.0}, {"min_round_size": 0}, {"n_initial": -1}, {"growth": -1.0}, {"embedding_share": "x"}],
)
def test_settings_out_of_range_are_refused(settings: dict[str, object]) -> None:
    with pytest.raises(InputError):
        Posterior(**settings)  # type: ignore[arg-type]


def test_an_unknown_retriever_is_refused_with_those_there_are(make_world: MakeWorld) -> None:
    with pytest.raises(InputError, match="this index has the retrievers: bm25"):
        make_world().index(10).search("any", method=Posterior(retrievers=("magic",)))


def test_no_estimate_is_above_what_can_have_been_found_or_of_more_items_than_were_tried() -> None:
    world = World(low_rank_scores(60, 400, rank=3, noise=0.0, seed=1))
    index = world.index(40)
    for k, budget in ((100, 40), (50, 20), (10, 5)):
        estimate = index.search(world.queries[50], k=k, budget=budget).estimated_recall
        assert estimate is not None
        assert estimate <= budget / k
    assert index.search(world.queries[50], k=300, budget=350).estimated_recall is None
