"""The index as its users meet it."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import anncur
from anncur.errors import (
    AnncurWarning,
    FingerprintError,
    InputError,
    ResumeError,
    ScorerError,
    ScorerOutputError,
    SpendCapError,
)
from anncur.scorers.base import ScorerLike
from anncur.scores import ScoreMatrix
from worlds import World, low_rank_scores

MakeWorld = Callable[..., World]


def lengths(pairs: list[tuple[str, str]]) -> list[float]:
    return [float(len(item)) for _, item in pairs]


def build(
    scorer: ScorerLike = lengths,
    items: Sequence[anncur.ItemLike] = ("a", "bb", "ccc"),
    anchor_queries: Sequence[str] = ("q", "p"),
) -> anncur.Index:
    return anncur.Index.build(items, scorer, anchor_queries)


def test_six_lines_find_the_scorers_favourite() -> None:
    index = anncur.Index.build(["short", "the longest text", "middle one"], lengths, ["any query"])
    hits = index.search("another query", k=1, budget=3)
    assert (hits[0].id, hits[0].score, hits[0].item.text) == ("1", 16.0, "the longest text")
    assert hits.calls == 3
    assert hits.seconds > 0
    assert hits.estimated_recall == 1.0, "all there is was scored"


def test_without_enough_anchor_queries_recall_is_not_estimated() -> None:
    assert build(items=["one", "two", "three"]).search("q", k=1, budget=2).estimated_recall is None


@pytest.mark.slow
def test_most_of_the_top_ten_is_found_with_a_fraction_of_the_pairs() -> None:
    world = World(low_rank_scores(70, 600, rank=10, noise=0.2))
    found = world.index(50).search_many(world.queries[50:], k=10, budget=60)
    recall = np.mean([len({*hits.ids} & {*world.brute_force(50 + n, 10)}) / 10 for n, hits in enumerate(found)])
    assert recall > 0.9


def test_a_build_scores_every_pair_once_and_eight_twice() -> None:
    world = World(low_rank_scores(5, 40, rank=2))
    index = anncur.Index.build(world.items, world.scorer, world.queries)
    assert index.info.build_calls == len(world.scorer.pairs) == 5 * 40 + 8
    assert len(set(world.scorer.pairs)) == 200


def test_the_same_seed_builds_the_same_index_and_another_one_another(make_world: MakeWorld) -> None:
    world = make_world(noise=1.0)

    def anchors(seed: int) -> list[list[int]]:
        index = world.index(20, seed=seed, anchor_method="random")
        answers = index.search_many(world.queries[20:], k=5, budget=20, method="anncur")
        return [step.positions.tolist() for hits in answers for step in hits.trace]

    assert anchors(3) == anchors(3)
    assert anchors(3) != anchors(4)


def test_one_item_works() -> None:
    hits = build(items=["only"]).search("q", k=10)
    assert hits.ids == ["0"]
    assert not hits.is_partial


def test_k_beyond_the_items_returns_all_of_them() -> None:
    hits = build().search("q", k=99)
    assert hits.ids == ["2", "1", "0"]
    assert not hits.is_partial


def test_a_budget_below_k_returns_what_it_bought_marked_as_partial() -> None:
    hits = build().search("q", k=3, budget=2)
    assert len(hits) == hits.calls == 2
    assert hits.is_partial


def test_a_budget_beyond_the_items_buys_them_all() -> None:
    assert build().search("q", budget=10_000).calls == 3


def test_exhaustive_scores_everything_unless_a_budget_cuts_it_short(make_world: MakeWorld) -> None:
    world = make_world(n_items=300)
    index = world.index(4)
    whole = index.search(world.queries[5], method="exhaustive")
    assert (whole.calls, whole.is_partial) == (300, False)
    cut = index.search(world.queries[5], budget=250, method="exhaustive")
    assert (cut.calls, cut.is_partial) == (250, True)


@pytest.mark.parametrize("k", [0, -1, 2.5, "10", None])
def test_k_must_be_a_whole_number_of_at_least_one(k: object) -> None:
    with pytest.raises(InputError, match="k must be"):
        build().search("q", k=k)  # type: ignore[arg-type]


@pytest.mark.parametrize("budget", [0, -5, 1.5, "200"])
def test_the_budget_must_be_a_whole_number_of_at_least_one(budget: object) -> None:
    with pytest.raises(InputError, match="budget must be"):
        build().search("q", budget=budget)  # type: ignore[arg-type]


@pytest.mark.parametrize("method", ["magic", None, 5, anncur.Rerank])
def test_an_unknown_method_is_refused_with_those_there_are(method: Any) -> None:
    with pytest.raises(
        InputError, match="one of posterior, anncur, adacur, axn, rerank, exhaustive, or a method object, got"
    ):
        build().search("q", method=method)


@pytest.mark.parametrize("deadline", ["500", float("nan"), float("inf"), -1])
def test_a_deadline_must_be_a_number(deadline: Any) -> None:
    with pytest.raises(InputError, match="deadline_ms must be a number at least 0"):
        build().search("q", deadline_ms=deadline)


@pytest.mark.parametrize("wrong", [{"anchor_method": "best"}, {"seed": -1}, {"seed": "x"}, {"retrievers": ["bm26"]}])
def test_wrong_options_are_refused_before_anything_is_paid(make_world: MakeWorld, wrong: dict[str, Any]) -> None:
    world = make_world()
    with pytest.raises(InputError):
        world.index(10, **wrong)
    assert world.scorer.pairs == []


def test_a_retriever_that_the_index_lacks_is_named() -> None:
    with pytest.raises(InputError, match="this index has the retrievers: bm25"):
        build().search("q", method=anncur.Rerank("tfidf"))


def test_no_items_are_refused() -> None:
    with pytest.raises(InputError, match="at least one item"):
        build(items=[])


def test_no_anchor_queries_leave_re_ranking_and_a_clear_error_for_anncur() -> None:
    index = build(anchor_queries=[])
    assert index.search("q", k=1, method="rerank").calls == 3
    with pytest.raises(InputError, match="needs anchor queries"):
        index.search("q", method="anncur")


def test_an_empty_query_is_refused() -> None:
    with pytest.raises(InputError, match="some text"):
        build().search("")


@pytest.mark.parametrize("bad", [float("nan"), float("inf"), "high", None])
def test_a_scorer_that_answers_nonsense_stops_the_build(bad: object) -> None:
    with pytest.raises(ScorerOutputError, match="one finite number per pair"):
        build(scorer=lambda pairs: [bad] * len(pairs))


def test_scores_too_large_to_store_stop_the_build() -> None:
    with pytest.raises(ScorerOutputError, match="too large for float32"):
        build(scorer=lambda pairs: [1e39] * len(pairs))


class Failing:
    """Raises once its quota is used up, until it is raised."""

    fingerprint = "failing"

    def __init__(self, n_good_pairs: int) -> None:
        self.n_left: float = n_good_pairs
        self.n_scored = 0

    def score(self, query: anncur.Query, items: Sequence[anncur.Item]) -> list[float]:
        if len(items) > self.n_left:
            raise ConnectionError("quota used up")
        self.n_left -= len(items)
        self.n_scored += len(items)
        return [float(hash((query.text, item.id)) % 1000) for item in items]


def test_a_failed_build_keeps_what_was_paid_for_and_is_resumed_from_there() -> None:
    items, queries = [f"item {n}" for n in range(600)], ["a", "b", "c"]
    scorer = Failing(n_good_pairs=1000)
    with pytest.raises(ScorerError, match="quota used up") as caught:
        build(scorer, items, queries)
    kept = caught.value.kept
    assert isinstance(kept, ScoreMatrix)
    assert kept.all().size - kept.n_missing == scorer.n_scored > 800
    scorer.n_left = float("inf")
    index = anncur.Index.build(items, scorer, queries, exact_scores=kept)
    assert scorer.n_scored == 3 * len(items) + 8
    assert index.search("a", k=3, budget=len(items)).ids == index.search("a", k=3, method="exhaustive").ids


@pytest.mark.parametrize("on_disk", [True, False], ids=["on disk", "in memory"])
def test_a_scorer_that_tells_no_items_apart_is_warned_of(tmp_path: Path, on_disk: bool) -> None:
    scorer = anncur.load_scorer(lambda pairs: [0.5] * len(pairs), fingerprint="constant", higher_is_better=False)
    path = tmp_path / "x.anncur" if on_disk else None
    with pytest.warns(anncur.AnncurWarning, match=r"the scorer constant gives all pairs the same score, 0\.5, so"):
        anncur.Index.build([f"item {number}" for number in range(50)], scorer, ["q", "p"], path=path)
    anncur.Index.build(["a", "b", "c"], scorer, ["q", "p"])  # where that may be chance
    anncur.Index.build([f"item {number}" for number in range(50)], scorer)


def test_scores_of_another_scorer_are_refused() -> None:
    with pytest.raises(
        FingerprintError, match=r"built with another scorer \(.*lengths there, failing given\); give the same"
    ):
        anncur.Index.build(["a", "bb", "ccc"], Failing(9), ["q", "p"], exact_scores=build().exact_scores)


def test_an_array_in_the_place_of_scores_is_refused() -> None:
    with pytest.raises(InputError, match="must be a ScoreMatrix, got ndarray"):
        anncur.Index.build(["a"], lengths, ["q"], exact_scores=np.zeros((1, 1)))  # type: ignore[arg-type]


def test_scores_of_other_items_are_refused() -> None:
    scorer, items = Failing(n_good_pairs=3), ["a", "bb", "ccc"]
    with pytest.raises(ScorerError) as caught:
        build(scorer, items)
    assert isinstance(caught.value.kept, ScoreMatrix)
    with pytest.raises(ResumeError, match="built with other items; give the same"):
        anncur.Index.build(items[::-1], scorer, ["q", "p"], exact_scores=caught.value.kept)


def test_scores_that_were_turned_around_are_refused() -> None:
    kept = build(scorer=lengths).exact_scores
    turned = anncur.load_scorer(lengths, higher_is_better=False)
    with pytest.raises(ResumeError, match=r"another higher_is_better \(True there, False given\)"):
        anncur.Index.build(["a", "bb", "ccc"], turned, ["q", "p"], exact_scores=kept)


def test_the_scores_of_a_finished_build_serve_another_one_without_scoring() -> None:
    scorer = Failing(n_good_pairs=10**6)
    first = build(scorer)
    n_scored = scorer.n_scored
    second = anncur.Index.build(["a", "bb", "ccc"], scorer, ["q", "p"], exact_scores=first.exact_scores)
    assert scorer.n_scored - n_scored == second.info.build_calls == 3  # the check of stability, on three items
    assert first.search("q").ids == second.search("q").ids


def test_ctrl_c_keeps_what_was_paid_for() -> None:
    def scorer(pairs: list[tuple[str, str]]) -> list[float]:
        if pairs[0][0] == "p":
            raise KeyboardInterrupt
        return lengths(pairs)

    with pytest.raises(KeyboardInterrupt) as caught:
        build(anncur.load_scorer(scorer, batch_size=3))
    kept = caught.value.kept  # type: ignore[attr-defined]
    assert kept.n_missing == 3


def test_one_score_too_large_to_store_keeps_the_others() -> None:
    with pytest.raises(ScorerOutputError, match="too large for float32") as caught:
        build(scorer=lambda pairs: [1e39 if item == "bb" else 1.0 for _, item in pairs])
    assert isinstance(caught.value.kept, ScoreMatrix)
    assert np.isfinite(caught.value.kept.all()[:, 0]).tolist() == [True, False, True]


def test_a_cap_that_leaves_no_room_for_the_check_of_stability_loses_nothing() -> None:
    with pytest.warns(AnncurWarning, match="could not check whether the scorer is stable"):
        index = build(scorer=anncur.load_scorer(lengths, max_calls=6))
    assert index.info.build_calls == 6


def test_the_same_anchor_query_twice_is_paid_for_once() -> None:
    index = build(anchor_queries=["q", "p", "q"])
    assert index.info.n_anchor_queries == 2
    assert index.info.build_calls == 2 * 3 + 3


def test_a_failed_search_keeps_the_hits_that_were_paid_for() -> None:
    scorer = Failing(n_good_pairs=10**6)
    index = anncur.Index.build([f"{n}" for n in range(100)], anncur.load_scorer(scorer, batch_size=10), ["q"])
    scorer.n_left = 25
    with pytest.raises(ScorerError) as caught:
        index.search("new", k=5, budget=100, method="rerank")
    assert isinstance(caught.value.kept, anncur.Hits)
    assert (caught.value.kept.calls, len(caught.value.kept), caught.value.kept.is_partial) == (20, 5, True)


def test_a_failed_batch_keeps_the_finished_answers() -> None:
    scorer = Failing(n_good_pairs=10**6)
    index = anncur.Index.build([f"{n}" for n in range(100)], anncur.load_scorer(scorer, batch_size=10), ["q"])
    scorer.n_left = 150
    with pytest.raises(ScorerError) as caught:
        index.search_many(["new", "newer", "newest"], k=5, method="exhaustive")
    assert isinstance(caught.value.kept, list)
    assert [hits.is_partial for hits in caught.value.kept] == [False, True, True]
    assert [hits.calls for hits in caught.value.kept] == [100, 50, 0]


def test_the_cap_on_spend_covers_build_and_searches() -> None:
    index = build(scorer=anncur.load_scorer(lengths, max_calls=15))
    index.search("q")
    with pytest.raises(SpendCapError, match="cap of 15"):
        index.search_many(["a", "b"])


def test_lower_is_better_ranks_upwards_and_shows_the_scorers_own_numbers() -> None:
    index = build(scorer=anncur.load_scorer(lengths, higher_is_better=False))
    hits = index.search("q", k=3)
    assert hits.ids == ["0", "1", "2"]
    assert hits.scores == [1.0, 2.0, 3.0]
    guess, found = hits.trace[-1].guesses, hits.trace[-1].exact_scores
    assert guess is not None
    assert found.min() == 1.0
    np.testing.assert_allclose(guess, found, atol=1e-5)  # the scores have rank one, so guesses are exact


def test_a_deadline_returns_the_best_so_far_marked() -> None:
    def slow(pairs: list[tuple[str, str]]) -> list[float]:
        if pairs[0][0] == "slow":
            time.sleep(0.01 * len(pairs))
        return lengths(pairs)

    index = build(scorer=slow, items=["x" * n for n in range(1, 200)])
    hits = index.search("slow", k=5, budget=150, deadline_ms=100)
    assert hits.is_partial
    assert 0 < hits.calls < 150
    assert hits.scores == sorted(hits.scores, reverse=True)


def test_a_scorer_that_fails_until_the_deadline_is_an_error_and_not_an_empty_answer() -> None:
    scorer = Failing(n_good_pairs=100)
    index = build(scorer=anncur.load_scorer(scorer, retries=5, retry_wait=10.0))
    scorer.n_left = 0
    with pytest.raises(ScorerError, match="quota used up"):
        index.search("new", deadline_ms=100)


def test_no_retriever_is_asked_after_the_deadline() -> None:
    asked: list[int] = []

    class Slow:
        name = "slow"

        def fit(self, items: Iterable[anncur.Item]) -> None:
            self.n_items = len(list(items))

        def scores(self, queries: Sequence[anncur.Query]) -> Any:
            asked.append(len(queries))
            return np.zeros((len(queries), self.n_items))

    index = anncur.Index.build(["a", "bb"], lengths, [], retrievers=[Slow()])
    assert all(hits.is_partial for hits in index.search_many(["q"] * 200, method="rerank", deadline_ms=0))
    assert asked == []


def test_a_deadline_that_has_passed_returns_nothing_marked() -> None:
    hits = build().search("q", deadline_ms=0)
    assert (len(hits), hits.calls, hits.is_partial) == (0, 0, True)


@pytest.mark.slow
def test_searches_from_many_threads_do_not_disturb_each_other(make_world: MakeWorld) -> None:
    world = make_world(n_queries=60, n_items=200)
    alone = world.index(20).search_many(world.queries[20:], k=5, budget=40)
    index = world.index(20)
    barrier = threading.Barrier(8)

    def search(number: int) -> anncur.Hits:
        if number < 8:
            barrier.wait()  # the first ones all start at once, on caches that are still empty
        return index.search(world.queries[20 + number % 40], k=5, budget=40)

    with ThreadPoolExecutor(8) as threads:
        together = list(threads.map(search, range(120)))
    assert together == [alone[number % 40] for number in range(120)]
    assert len(world.scorer.pairs) == sum(hits.calls for hits in together)


def test_progress_is_shown_for_every_stage_up_to_its_end(make_world: MakeWorld) -> None:
    shown: list[tuple[str, int, int]] = []

    def progress(stage: str, done: int, total: int) -> None:
        shown.append((stage, done, total))

    world = make_world()
    index = world.index(20, progress=progress)
    index.search_many(world.queries[20:], progress=progress)
    last = {stage: (done, total) for stage, done, total in shown}
    stages = {"encoding items for words", "scoring anchor queries", "tuning anncur", "tuning posterior", "searching"}
    assert set(last) == stages
    assert all(done == total for done, total in last.values())
    assert [done for stage, done, _ in shown if stage == "scoring anchor queries"] == [60 * n for n in range(1, 21)]


def test_info_and_repr_show_what_the_index_is_made_of() -> None:
    index = build()
    assert (index.info.n_items, index.info.n_anchor_queries, index.info.retrievers) == (3, 2, ("bm25",))
    assert repr(index) == f"<anncur.Index of 3 items, 2 anchor queries, {index.info.scorer}>"
