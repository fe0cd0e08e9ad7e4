"""A pilot shows what a build will cost and bring, and which anchor queries are worth paying for."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytest

import anncur
from anncur.arrays import FloatMatrix
from anncur.errors import InputError, RetrieverError
from anncur.planning import pilot
from anncur.planning import plan as planning
from anncur.planning.comparison import compare_methods, shares_by_budget, split_queries
from anncur.planning.plan import BuildPlan, plan
from anncur.planning.worth import AnchorCost
from anncur.progress import silent
from anncur.retrievers.loading import load_retrievers
from anncur.scorers.loading import load_scorer
from anncur.tuning import measure, posterior, splits
from worlds import World, low_rank_scores

pytestmark = pytest.mark.slow  # a second or two each, because every plan tunes several times

WORDS = [f"w{number}" for number in range(400)]


@pytest.fixture(autouse=True)
def few_trials(monkeypatch: pytest.MonkeyPatch) -> None:
    """Tune in little time, where it doesn't matter how well."""
    monkeypatch.setattr(measure, "MOST_PAIRS", 200)
    monkeypatch.setattr(posterior, "MOST_PAIRS", 200)
    monkeypatch.setattr(splits, "ANCHOR_COUNTS", (0, 5, 20))


def plan_for(world: World, **options: Any) -> BuildPlan:
    return plan(iter(world.items), world.scorer, world.queries, **options)


def methods(made: BuildPlan) -> list[str]:
    return list(dict.fromkeys(recall.method for recall in made.recalls))


def recall_of(made: BuildPlan, method: str, share: float = 0.1) -> float:
    (found,) = (row.recall for row in made.recalls if (row.method, row.share) == (method, share))
    return found


def has_line(made: BuildPlan, words: str) -> bool:
    return any(words in line for line in made.advice)


class Embedded:
    """Items and queries with vectors, a scorer that is nearly their dot product, and a retriever of the same kind."""

    def __init__(self, n_items: int, n_queries: int, *, width: int = 6, noise: float = 0.0) -> None:
        rng = np.random.default_rng(0)
        self.vectors = rng.normal(size=(n_items, width)).astype(np.float32)
        self._of_query = rng.normal(size=(n_queries, width)).astype(np.float32)
        scores = self._of_query @ self.vectors.T + noise * rng.normal(size=(n_queries, n_items))
        self.world = World(scores.astype(np.float32))

    def embed_queries(self, queries: Sequence[anncur.Query]) -> FloatMatrix:
        return self._of_query[[int(query.text.split()[1]) for query in queries]]


def test_a_plan_counts_pairs_and_scales_time_and_disk_with_them() -> None:
    made = plan_for(World(low_rank_scores(20, 300, rank=3)))
    assert made.n_pairs == 20 * 300
    assert made.seconds == pytest.approx(made.n_pairs * made.seconds_per_pair)
    assert made.disk_bytes > 4 * made.n_pairs


def test_every_number_of_anchor_queries_that_is_tried_has_its_cost() -> None:
    made = plan_for(World(low_rank_scores(66, 120, rank=3)), price_per_1000=2.5)
    assert [cost.n_anchor_queries for cost in made.costs] == [0, 10, 40, 44, 66]
    for cost in made.costs:
        assert cost.n_pairs == 120 * cost.n_anchor_queries
        assert cost.price == pytest.approx(0.0025 * cost.n_pairs)
        assert cost.seconds == pytest.approx(cost.n_pairs * made.seconds_per_pair)
    assert (made.price, made.seconds) == (made.costs[-1].price, made.costs[-1].seconds)
    assert {row.n_anchor_queries for row in made.recalls} == {0, 10, 40, 44}


def test_a_pilot_scores_as_many_pairs_as_it_reports() -> None:
    world = World(low_rank_scores(20, 300, rank=3))
    made = plan_for(world)
    assert len(world.scorer.pairs) == made.pilot_calls


def test_a_slow_scorer_gets_a_small_pilot_and_its_pace_is_measured() -> None:
    n_pairs = 0

    def slow(pairs: list[tuple[str, str]]) -> list[float]:
        nonlocal n_pairs
        n_pairs += len(pairs)
        time.sleep(0.001 * len(pairs))
        return [float(len(item)) for _, item in pairs]

    queries = [f"query {number}" for number in range(40)]
    made = plan((f"item {number}" for number in range(2000)), slow, queries, seconds=0.5)
    assert made.n_items == 2000
    assert n_pairs == made.pilot_calls < 2000
    assert made.seconds_per_pair >= 0.001


@pytest.mark.parametrize(
    ("n_items", "shares"),
    [
        (1000, {20: 0.02, 50: 0.05, 100: 0.1, 200: 0.2}),
        (447, {10: 10 / 447, 22: 0.05, 45: 0.1, 89: 0.2}),
        (120, {10: 10 / 120, 12: 0.1, 24: 0.2}),
        (6, {6: 1.0}),
    ],
)
def test_every_budget_that_is_tried_is_there_once_with_its_share(n_items: int, shares: dict[int, float]) -> None:
    assert shares_by_budget(n_items) == shares


def test_recalls_of_a_small_pilot_are_those_of_different_budgets() -> None:
    made = plan_for(World(low_rank_scores(8, 120, rank=2)))
    budgets = [row.budget for row in made.recalls if row.method == "rerank bm25"]
    assert budgets == [10, 12, 24]


def pilot_cost(world: World, **options: Any) -> tuple[AnchorCost, int]:
    """What a plan says before its pilot, and what had been scored by then."""
    said: list[tuple[AnchorCost, int]] = []
    made = plan_for(world, on_pilot=lambda cost: said.append((cost, len(world.scorer.pairs))), **options)
    assert said[0][0].n_pairs == made.pilot_items * made.pilot_queries
    return said[0]


def test_what_the_pilot_costs_is_told_before_it_is_paid_for() -> None:
    cost, n_scored = pilot_cost(World(low_rank_scores(20, 300, rank=3)), price_per_1000=2)
    assert (cost.n_pairs, cost.price) == (6000, 12.0)
    assert cost.seconds > 0
    assert n_scored <= 33, "a few that the pace was measured with"


def test_with_a_price_a_pilot_is_no_more_than_a_tenth_of_a_large_build(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(planning, "PRICED_PAIRS", 2000)
    world = World(low_rank_scores(20, 600, rank=3))
    assert pilot_cost(world)[0].n_pairs == 12_000
    assert 1500 < pilot_cost(world, price_per_1000=2)[0].n_pairs <= 2000
    monkeypatch.setattr(planning, "PRICED_PAIRS", 0)
    assert 900 < pilot_cost(world, price_per_1000=2)[0].n_pairs <= 1200


def test_a_cap_on_spend_makes_the_pilot_smaller() -> None:
    world = World(low_rank_scores(20, 600, rank=3))
    made = plan(world.items, load_scorer(world.scorer, max_calls=3000), world.queries)
    assert 2000 < made.pilot_calls <= 3000


def test_where_scores_are_of_low_rank_anchor_queries_are_worth_paying_for() -> None:
    made = plan_for(World(low_rank_scores(60, 300, rank=4)))
    assert methods(made) == [
        "rerank bm25",
        "posterior, no anchor queries",
        "posterior, 10 anchor queries",
        "posterior, 40 anchor queries",
        "anncur",
    ]
    assert recall_of(made, "posterior, 10 anchor queries") > recall_of(made, "posterior, no anchor queries") + 0.3
    assert has_line(made, "10 anchor queries (3,000 pairs, about 1 s) raise this from ")
    assert not has_line(made, "nothing beats plain re-ranking")


def test_the_price_of_pairs_is_in_the_advice() -> None:
    made = plan_for(World(low_rank_scores(30, 300, rank=4)), price_per_1000=2)
    assert has_line(made, "anchor queries (3,000 pairs, about 1 s, for $6.00) raise this")


def test_where_words_decide_nothing_beats_plain_re_ranking() -> None:
    rng = np.random.default_rng(0)

    def some_words(count: int) -> str:
        return " ".join(WORDS[number] for number in rng.integers(0, len(WORDS), count))

    def overlap(pairs: list[tuple[str, str]]) -> list[float]:
        return [len(set(query.split()) & set(item.split())) + len(item) / 1000 for query, item in pairs]

    queries = [some_words(5) for _ in range(30)]
    made = plan([some_words(8) for _ in range(1500)], overlap, queries, retrievers=["bm25"])
    assert has_line(made, 'nothing beats plain re-ranking with bm25 on the pilot: method=anncur.Rerank("bm25"),')
    assert not has_line(made, "raise this")


def test_where_embeddings_know_half_the_scores_adaptive_search_is_ahead_from_the_first_query_on() -> None:
    data = Embedded(500, 24, width=12)
    skewed = data.vectors * np.linspace(0.1, 2.0, 12, dtype=np.float32)  # the same directions, weighted otherwise
    made = plan_for(data.world, retrievers=(), embeddings=skewed, embed_queries=data.embed_queries)
    assert methods(made)[:2] == ["rerank embeddings", "posterior, no anchor queries"]
    assert has_line(made, "begin without anchor queries: posterior finds ")


def test_the_rows_of_an_array_are_those_of_the_sampled_items(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pilot, "MOST_PILOT_ITEMS", 100)
    data = Embedded(400, 16)
    made = plan_for(data.world, embeddings=data.vectors, embed_queries=data.embed_queries, retrievers=["embeddings"])
    assert (made.n_items, made.pilot_items) == (400, 100)
    assert recall_of(made, "rerank embeddings") > 0.99, "with other rows it would be chance"


def test_every_retriever_and_their_fusion_are_compared_and_the_best_one_is_named() -> None:
    data = Embedded(300, 16, noise=0.5)
    made = plan_for(data.world, embeddings=data.vectors, embed_queries=data.embed_queries)
    assert methods(made)[:3] == ["rerank bm25", "rerank embeddings", "rerank rrf"]
    assert has_line(made, "re-ranking embeddings, the best retriever,")
    assert "rerank rrf" in made.suitability.methods


def test_fusion_that_is_asked_for_is_compared_once() -> None:
    made = plan_for(World(low_rank_scores(8, 60, rank=2)), retrievers=["bm25", "tfidf", "rrf"])
    assert [name for name in methods(made) if name.startswith("rerank")] == [
        "rerank bm25",
        "rerank tfidf",
        "rerank rrf",
    ]


def test_a_plan_without_retrievers_has_adaptive_search_alone() -> None:
    made = plan_for(World(low_rank_scores(24, 200, rank=3)), retrievers=())
    assert methods(made)[0] == "posterior, no anchor queries"
    assert has_line(made, "begin without anchor queries: posterior finds")


@pytest.mark.parametrize(
    ("n_queries", "tried"),
    [(4, [0]), (7, [0]), (8, [0, 4]), (12, [0, 8]), (30, [0, 10, 20]), (60, [0, 10, 40])],
)
def test_few_queries_try_as_many_anchor_queries_as_are_left(n_queries: int, tried: list[int]) -> None:
    made = plan_for(World(low_rank_scores(n_queries, 60, rank=2)))
    rows = {row.n_anchor_queries for row in made.recalls if row.method.startswith("posterior")}
    assert sorted(rows) == tried
    assert has_line(made, "pass at least 8") == (tried == [0])


def test_queries_cut_from_one_text_test_together_or_not_at_all() -> None:
    texts = [" ".join(f"text{text}word{number}" for number in range(12)) for text in range(8)]
    queries = [anncur.Query(f"{text} {part}") for part in range(3) for text in texts]
    test, others = split_queries(queries)
    assert sorted([*test, *others]) == list(range(24))
    assert len(test) in range(6, 10)
    assert not {place % 8 for place in test} & {place % 8 for place in others}


def test_more_queries_than_the_pilot_tried_may_find_more(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pilot, "MOST_PILOT_QUERIES", 24)
    made = plan_for(World(low_rank_scores(50, 300, rank=14)))
    assert has_line(made, "the pilot tried 16 of your 50 queries as anchor queries")


def test_a_plan_measures_what_an_index_with_the_same_anchor_queries_finds() -> None:
    world = World(low_rank_scores(24, 200, rank=5, noise=0.5))
    queries = [anncur.Query(text) for text in world.queries]
    fitted = pilot.fit_retrievers(
        load_retrievers(["bm25"]), pilot.Pilot(world.items, np.arange(200), queries), n_items=200
    )
    scores = world.exact_scores.T.copy()
    found = compare_methods(scores, queries, fitted, names=["bm25"], seed=0, progress=silent)
    test, others = split_queries(queries)
    index = anncur.Index.build(world.items, world.scorer, [queries[place] for place in others])
    true = [set(world.brute_force(place, 10)) for place in test.tolist()]
    for of_method, method in (
        (found.anncur, "anncur"),
        (found.reranked["bm25"], "rerank"),
        (found.posterior[-1], "posterior"),
    ):
        assert of_method is not None
        for budget, recalls in zip(found.shares, of_method.recalls.T, strict=True):
            hits = index.search_many([queries[place] for place in test], 10, budget, method)
            expected = [len(set(each.ids) & ids) / 10 for each, ids in zip(hits, true, strict=True)]
            np.testing.assert_allclose(recalls, expected, atol=1e-6, err_msg=f"{method} {budget}")


def test_few_items_need_no_index() -> None:
    assert has_line(plan_for(World(low_rank_scores(8, 100, rank=3))), "scoring them all")


def test_fewer_items_than_the_top_that_is_measured_are_no_problem() -> None:
    made = plan_for(World(low_rank_scores(8, 6, rank=2)))
    assert {row.recall for row in made.recalls} == {1.0}


@pytest.mark.parametrize("n_queries", [0, 3])
def test_too_few_queries_are_refused_with_what_to_do(n_queries: int) -> None:
    world = World(low_rank_scores(5, 100, rank=3))
    with pytest.raises(InputError, match=f"at least 4 different queries to measure with, got {n_queries}; pass some"):
        plan(world.items, world.scorer, world.queries[:n_queries])
    assert not world.scorer.pairs


def test_no_items_are_refused() -> None:
    with pytest.raises(InputError, match="at least one item"):
        plan([], lambda _: [], [f"q{number}" for number in range(20)])


@pytest.mark.parametrize(
    ("options", "problem"),
    [
        ({"embeddings": np.ones((99, 3))}, "a row for each of 100 items"),
        ({"embeddings": np.ones((100, 3))}, "has no embedding"),
        ({"embed_queries": "json:dumps"}, "goes with embeddings"),
        ({"price_per_1000": -1}, "price_per_1000 must be a number at least 0"),
        ({"retrievers": ["no such one"]}, "no retriever 'no such one'"),
    ],
)
def test_mistakes_are_found_before_the_pilot_is_paid_for(options: dict[str, Any], problem: str) -> None:
    world = World(low_rank_scores(20, 100, rank=3))
    if len(options.get("embeddings", ())) == 99:
        options = {**options, "embed_queries": lambda queries: np.ones((len(queries), 3))}
    with pytest.raises(InputError, match=problem):
        plan_for(world, **options)
    assert len(world.scorer.pairs) <= 33, "no more than the pace was measured with"


def best_of_the_whole_corpus(query: anncur.Query, items: Sequence[anncur.Item]) -> list[tuple[str, float]]:
    return [("i0", 2.0), ("not in the pilot", 1.0)]


def failing(query: anncur.Query, items: Sequence[anncur.Item]) -> list[float]:
    raise ValueError("it is broken")


@pytest.mark.parametrize(
    ("retriever", "error", "problem"),
    [
        (best_of_the_whole_corpus, InputError, "names items that aren't among the 100 of the pilot"),
        (failing, RetrieverError, "the retriever failing failed to score with ValueError: it is broken"),
    ],
)
def test_a_retriever_that_fails_does_so_before_the_pilot_is_paid_for(
    retriever: Callable[..., Any], error: type[Exception], problem: str
) -> None:
    world = World(low_rank_scores(20, 100, rank=3))
    with pytest.raises(error, match=problem):
        plan_for(world, retrievers=[retriever])
    assert len(world.scorer.pairs) <= 33, "no more than the pace was measured with"


def test_embeddings_count_as_disk_and_memory() -> None:
    data = Embedded(200, 8, width=64)
    own: dict[str, Any] = {"embeddings": data.vectors, "embed_queries": data.embed_queries}
    without, with_them = plan_for(data.world, retrievers=()), plan_for(data.world, retrievers=(), **own)
    assert with_them.disk_bytes - without.disk_bytes == 200 * 64 * 2
    assert with_them.memory_bytes - without.memory_bytes == 200 * 64 * 2


def test_a_plan_is_plain_values() -> None:
    made = plan_for(World(low_rank_scores(8, 60, rank=2)), price_per_1000=1)
    described = json.loads(json.dumps(made.to_dict()))
    assert described["costs"][0] == {"n_anchor_queries": 0, "n_pairs": 0, "seconds": 0.0, "price": 0.0}
    assert described["recalls"][0].keys() == {"method", "share", "recall", "n_anchor_queries", "budget"}


def test_the_same_seed_makes_the_same_plan() -> None:
    first, second = (plan_for(World(low_rank_scores(16, 80, rank=2)), seed=3).recalls for _ in range(2))
    assert first == second
