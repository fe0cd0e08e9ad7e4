"""Learning from the query log: what searches paid for is logged on request, and makes the next ones better."""

from __future__ import annotations

import asyncio
import shutil
import threading
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import anncur
from anncur.arrays import FloatMatrix
from anncur.errors import AnncurWarning, DamagedWarning, InputError, StorageError
from anncur.index.folder import FolderBackend
from anncur.index.memory import MemoryBackend
from anncur.storage.manifest import FEEDBACK_ITEMS
from anncur.storage.query_log import FolderQueryLog, LoggedSearch, MemoryQueryLog
from worlds import World, low_rank_scores

pytestmark = pytest.mark.slow

MakeWorld = Callable[..., World]


class Weak:
    """A retriever that gives the exact scores with much noise."""

    name = "weak"

    def __init__(self, world: World, *, noise: float = 3.0) -> None:
        self._world = world
        rng = np.random.default_rng(5)
        self._noisy = world.exact_scores + noise * rng.normal(size=world.exact_scores.shape)

    def fit(self, items: Iterable[anncur.Item]) -> None:
        self._columns = [int(item.id[1:]) if item.id[1:].isdecimal() else 0 for item in items]

    def scores(self, queries: Sequence[anncur.Query]) -> FloatMatrix:
        rows = [self._world.queries.index(query.text) for query in queries]
        return self._noisy[np.ix_(rows, self._columns)].astype(np.float32)


def build(path: Path | None, world: World, n_anchors: int = 0, **options: Any) -> anncur.Index:
    options = {"log_queries": 1000, "retrievers": [Weak(world)], "scorer": world.scorer, **options}
    return anncur.Index.build(world.items, anchor_queries=world.queries[:n_anchors], path=path, **options)


def fitted(path: Path | None, world: World, n_searches: int = 16, **options: Any) -> anncur.Index:
    """An index with a feedback model, fitted to the first queries."""
    index = build(path, world, **options)
    index.search_many(world.queries[:n_searches], budget=20)
    index.learn()
    return index


def recall(world: World, index: anncur.Index, queries: range, budget: int, k: int = 10) -> float:
    found = index.search_many([world.queries[query] for query in queries], k, budget)
    shares = [
        len(set(hits.ids) & set(world.brute_force(query, k))) / k for query, hits in zip(queries, found, strict=True)
    ]
    return float(np.mean(shares))


def query_log_of(index: anncur.Index) -> FolderQueryLog | MemoryQueryLog:
    assert isinstance(index._backend, (FolderBackend, MemoryBackend))
    return index._backend._query_log


def test_retrievers_that_a_search_names_have_the_weight_that_was_tuned(make_world: MakeWorld) -> None:
    """Not that of the feedback model, which is fitted with other coefficients."""
    model = fitted(None, make_world(), n_anchors=4)._current().knowledge.posterior
    assert model.feedback is not None
    model.tuned = replace(model.tuned, settings=replace(model.own_settings(), retriever_weight=0.5))
    named = anncur.Posterior(retrievers=())._settings(model)
    assert named.retriever_weight == model.own_settings().retriever_weight != model.settings().retriever_weight


@pytest.fixture(params=[True, False], ids=["on disk", "in memory"])
def path(request: pytest.FixtureRequest, tmp_path: Path) -> Path | None:
    return tmp_path / "x.anncur" if request.param else None


def test_an_index_without_anchor_queries_is_built_and_searched_without_a_log(
    path: Path | None, make_world: MakeWorld
) -> None:
    world = make_world(n_items=200)
    index = build(path, world, retrievers=[Weak(world), "bm25"], log_queries=0)
    assert world.scorer.pairs == []
    assert {hits.calls for hits in index.search_many(world.queries, budget=30)} == {30}
    with pytest.raises(InputError, match="the query log is empty"):
        index.learn()


def test_a_search_without_noise_works_beside_a_feedback_model(make_world: MakeWorld) -> None:
    world = make_world()
    index = fitted(None, world)
    assert index.search(world.queries[0], k=5, budget=20, method=anncur.Posterior(noise_share=0.0)).calls == 20


def test_a_feedback_model_leaves_item_embeddings_their_share() -> None:
    """Embeddings that tell all of the scorer: a few logged queries and anchor queries must not drown them."""
    world = World(low_rank_scores(80, 400, rank=30, noise=0.1))
    vectors = np.linalg.svd(world.exact_scores, full_matrices=False)[2][:30].T

    class Embedding(Weak):
        name = "embedding"

        def item_vectors(self) -> FloatMatrix:
            return vectors[self._columns].astype(np.float32)

    index = build(None, world, 8, retrievers=[Embedding(world)])
    before = recall(world, index, range(40, 80), 60)
    index.search_many(world.queries[8:40], budget=40)
    index.learn()
    assert recall(world, index, range(40, 80), 60) > before - 0.03


def test_recall_rises_as_queries_come_in() -> None:
    world = World(low_rank_scores(240, 400, rank=5, noise=0.3))
    index = build(None, world)
    held_out = range(200, 240)
    asked, recalls = 0, [recall(world, index, held_out, 40)]
    for n_searches in (50, 200):
        index.search_many(world.queries[asked:n_searches], budget=40)
        assert index.learn() >= n_searches
        recalls.append(recall(world, index, held_out, 40))
        asked = n_searches
    assert recalls[0] + 0.1 < recalls[1]
    assert recalls[1] + 0.05 < recalls[2]


def test_searches_add_to_what_anchor_queries_give() -> None:
    world = World(low_rank_scores(200, 300, rank=8, noise=0.3))
    index = build(None, world, 6, retrievers=())
    before = recall(world, index, range(160, 200), 40)
    index.search_many(world.queries[6:160], budget=40)
    index.learn()
    assert recall(world, index, range(160, 200), 40) > before + 0.05


def test_nothing_is_logged_unless_it_is_asked_for(tmp_path: Path, make_world: MakeWorld) -> None:
    world = make_world()
    index = build(tmp_path / "x.anncur", world, log_queries=0)
    before = sorted(tmp_path.rglob("*"))
    hits = index.search(world.queries[0], budget=40)
    assert sorted(tmp_path.rglob("*")) == before
    assert not any(step.is_exploring for step in hits.trace)
    with pytest.raises(InputError, match="the query log is empty; open the index with log_queries"):
        index.learn()


def test_what_is_logged_is_the_query_and_what_was_paid_for(tmp_path: Path, make_world: MakeWorld) -> None:
    world = make_world()
    index = build(tmp_path / "x.anncur", world)
    hits = index.search(world.queries[3], budget=20)
    (logged,) = FolderQueryLog(tmp_path / "x.anncur").read()
    assert logged.query.text == world.queries[3]
    assert len(logged.scores) == hits.calls == 20
    assert all(logged.scores[hit.id] == hit.score for hit in hits)


def test_a_mention_is_logged(tmp_path: Path) -> None:
    items = [anncur.Item(str(n), "x" * n) for n in range(1, 9)]
    index = anncur.Index.build(items, lambda pairs: [len(i) for _, i in pairs], [], path=tmp_path / "x", log_queries=5)
    query = anncur.Query.marked("a [small] bat")
    index.search(query, budget=3)
    (logged,) = FolderQueryLog(tmp_path / "x").read()
    assert logged.query == query


@pytest.mark.parametrize("most", [1, 3, 10, 40])
def test_no_more_searches_are_logged_than_allowed_and_the_oldest_go(
    tmp_path: Path, make_world: MakeWorld, most: int
) -> None:
    world = make_world(n_queries=100)
    index = build(tmp_path / "x.anncur", world, log_queries=most)
    for start in range(0, 96, 8):
        index.search_many(world.queries[start : start + 7], budget=5)
        index.search(world.queries[start + 7], budget=5)
        logged = [search.query.text for search in FolderQueryLog(tmp_path / "x.anncur").read()]
        assert logged == world.queries[: start + 8][-len(logged) :]
        assert min(most, start + 8) - most / 4 - 1 <= len(logged) <= most


def test_opened_again_it_answers_with_its_feedback_model(tmp_path: Path, make_world: MakeWorld) -> None:
    world = make_world(n_items=200)
    index = fitted(tmp_path / "x.anncur", world)
    opened = anncur.Index.open(tmp_path / "x.anncur", world.scorer, retrievers=[Weak(world)], explore=0.05)
    assert opened.digest() == index.digest()
    assert opened.search_many(world.queries[16:], budget=30) == index.search_many(world.queries[16:], budget=30)
    assert opened.verify() == []


@pytest.mark.parametrize("n_anchors", [0, 1, 3, 8])
def test_on_disk_and_in_memory_it_learns_the_same(tmp_path: Path, make_world: MakeWorld, n_anchors: int) -> None:
    world = make_world()
    stored, held = (fitted(path, world, n_anchors=n_anchors) for path in (tmp_path / "x.anncur", None))
    assert stored.digest() == held.digest()
    assert stored.search_many(world.queries[16:], budget=20) == held.search_many(world.queries[16:], budget=20)


def test_what_one_index_object_logged_another_one_learns_from(tmp_path: Path, make_world: MakeWorld) -> None:
    world = make_world()
    build(tmp_path / "x.anncur", world).search_many(world.queries[:16], budget=20)
    opened = anncur.Index.open(tmp_path / "x.anncur", world.scorer, retrievers=[Weak(world)])
    assert opened.learn() == 16


def test_learning_costs_no_pairs(path: Path | None, make_world: MakeWorld) -> None:
    world = make_world()
    index = build(path, world)
    index.search_many(world.queries[:8], budget=20)
    world.scorer.pairs.clear()
    index.learn()
    assert world.scorer.pairs == []


def test_a_budget_for_all_items_still_gives_the_truth(path: Path | None, make_world: MakeWorld) -> None:
    world = make_world()
    index = fitted(path, world)
    assert index.search(world.queries[20], k=60, budget=60).ids == world.brute_force(20, 60)


@pytest.mark.parametrize("method", ["posterior", "rerank", "anncur"])
@pytest.mark.parametrize(("budget", "n_random"), [(1, 0), (20, 4), (59, 12), (60, 12)])
def test_a_share_of_the_budget_explores(make_world: MakeWorld, method: str, budget: int, n_random: int) -> None:
    world = make_world()
    index = build(None, world, 4, explore=0.2)
    hits = index.search(world.queries[10], budget=budget, method=method)
    *_, last = hits.trace
    assert hits.calls == budget
    assert sum(len(step.positions) for step in hits.trace) == budget
    assert (len(last.positions) if last.is_exploring else 0) == n_random
    assert not any(step.is_exploring for step in hits.trace[:-1])


def test_exploring_draws_from_all_items(make_world: MakeWorld) -> None:
    world = make_world(n_queries=400, n_items=50)
    found = build(None, world, explore=0.2).search_many(world.queries, budget=10)
    drawn = np.concatenate([hits.trace[-1].positions for hits in found])
    assert len(drawn) == 2 * 400
    assert len(np.unique(drawn)) == 50


def test_exploring_many_queries_draws_the_same_as_one_by_one(make_world: MakeWorld) -> None:
    world = make_world(n_items=200)
    index = build(None, world, explore=0.3)
    together = index.search_many(world.queries, budget=20)
    assert together == [index.search(query, budget=20) for query in world.queries]


@pytest.mark.parametrize(
    ("options", "problem"),
    [({"log_queries": -1}, "log_queries must be at least 0"), ({"explore": 1.5}, "explore must be a number between")],
)
def test_settings_that_make_no_sense_are_refused(make_world: MakeWorld, options: dict[str, Any], problem: str) -> None:
    with pytest.raises(InputError, match=problem):
        build(None, make_world(), **options)


def test_items_come_and_go_after_learning(path: Path | None, make_world: MakeWorld) -> None:
    world = make_world()
    index = fitted(path, world)
    index.remove(["i3", "i40"])
    index.add([anncur.Item("i3", "again"), anncur.Item("i40", "again")])
    left = [item for item in world.items if item.id not in ("i3", "i40")]
    assert [item.id for item in index.items] == [*(item.id for item in left), "i3", "i40"]
    assert index.search(world.queries[20], k=60, budget=60).scores == sorted(world.exact_scores[20], reverse=True)
    assert len(index.search(world.queries[20], budget=20)) == 10
    index.learn()
    assert index.verify() == []


def test_removing_items_leaves_the_feedback_model_of_the_others(tmp_path: Path, make_world: MakeWorld) -> None:
    world = make_world()
    stored, held = (fitted(path, world) for path in (tmp_path / "x.anncur", None))
    for index in (stored, held):
        index.add([anncur.Item("new", "new")])
        index.remove(["i0", "i7", "i59"])
        index.remove(["new"])  # and with it the last item of its segment
    assert stored.digest() == held.digest()
    assert stored.info.n_items == 57


def test_an_item_does_not_inherit_the_scores_of_one_that_had_its_id(path: Path | None, make_world: MakeWorld) -> None:
    world = make_world()
    index = build(path, world)
    index.search_many(world.queries[:8], budget=60)
    assert all("i3" in search.scores for search in query_log_of(index).read())
    index.remove(["i3"])
    index.add([anncur.Item("i3", "another")])
    logged = query_log_of(index).read()
    assert [len(search.scores) for search in logged] == [59] * 8
    index.search(world.queries[9], budget=60)
    assert "i3" in query_log_of(index).read()[-1].scores


def test_tuning_keeps_the_feedback_model(path: Path | None, make_world: MakeWorld) -> None:
    world = make_world()
    index = fitted(path, world, n_anchors=8)
    before = index._current().knowledge.posterior.feedback
    index.tune(seed=1)
    after = index._current().knowledge.posterior.feedback
    assert before is not None
    assert after is not None
    np.testing.assert_array_equal(before.item_rows, after.item_rows)


def test_gc_leaves_the_query_log_and_the_feedback_model(tmp_path: Path, make_world: MakeWorld) -> None:
    world = make_world()
    index = fitted(tmp_path / "x.anncur", world)
    digest = index.digest()
    assert index.gc()
    opened = anncur.Index.open(tmp_path / "x.anncur", world.scorer, retrievers=[Weak(world)])
    assert opened.digest() == digest
    assert opened.learn() == 16


def test_a_search_asked_twice_counts_once_and_anchor_queries_not_at_all(make_world: MakeWorld) -> None:
    world = make_world()
    index = build(None, world, 4)
    index.search_many(world.queries[:4], budget=20)
    with pytest.raises(InputError, match="all are of anchor queries"):
        index.learn()
    index.search_many([*world.queries[4:8], world.queries[4]], budget=20)
    assert index.learn() == 4


def test_a_lower_is_better_scorer_learns_the_same(make_world: MakeWorld) -> None:
    world = make_world()

    def distance(query: anncur.Query, items: Sequence[anncur.Item]) -> FloatMatrix:
        return -world.scorer.score(query, items)

    scorers = (world.scorer.score, distance)
    turned = [
        anncur.Index.build(
            world.items,
            anncur.load_scorer(Scored(score), higher_is_better=place == 0),
            [],
            retrievers=[Weak(world)],
            log_queries=100,
        )
        for place, score in enumerate(scorers)
    ]
    for index in turned:
        index.search_many(world.queries[:16], budget=20)
        index.learn()
    higher, lower = (index.search_many(world.queries[16:], budget=20) for index in turned)
    assert [hits.ids for hits in higher] == [hits.ids for hits in lower]


class Scored:
    """Scores by a function."""

    fingerprint = "scored"

    def __init__(self, score: Callable[..., FloatMatrix]) -> None:
        self.score = score


def test_a_torn_record_is_dropped_and_the_next_one_stands(tmp_path: Path, make_world: MakeWorld) -> None:
    world = make_world()
    index = build(tmp_path / "x.anncur", world)
    index.search_many(world.queries[:3], budget=20)
    (file,) = (tmp_path / "x.anncur" / "query_log").glob("*.jsonl")
    whole = file.read_bytes()
    for n_bytes in (len(whole) - 1, len(whole) - 100, whole.rfind(b"\n", 0, -1) + 2):
        file.write_bytes(whole[:n_bytes])
        assert len(FolderQueryLog(tmp_path / "x.anncur").read()) == 2
        index.search(world.queries[5], budget=20)
        logged = FolderQueryLog(tmp_path / "x.anncur").read()
        assert [search.query.text for search in logged] == [*world.queries[:2], world.queries[5]]


def test_damaged_records_are_dropped_and_counted(tmp_path: Path, make_world: MakeWorld) -> None:
    world = make_world()
    index = build(tmp_path / "x.anncur", world)
    index.search_many(world.queries[:6], budget=20)
    (file,) = (tmp_path / "x.anncur" / "query_log").glob("*.jsonl")
    lines = file.read_bytes().splitlines(keepends=True)
    lines[1] = lines[1].replace(b"0", b"1", 1)
    lines[4] = b"\xff garbage\n"
    file.write_bytes(b"".join(lines))
    with pytest.warns(DamagedWarning, match=r"2 damaged record\(s\) in .* were dropped, 4 are whole"):
        assert index.learn() == 4


def test_a_search_answers_also_where_nothing_can_be_logged(
    tmp_path: Path, make_world: MakeWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    world = make_world()
    index = build(tmp_path / "x.anncur", world)

    def full(*_: object, **__: object) -> None:
        raise StorageError("no space left")

    monkeypatch.setattr(FolderQueryLog, "append", full)
    with pytest.warns(AnncurWarning, match="the query log can't be written: no space left"):
        assert len(index.search(world.queries[0], budget=20)) == 10


def test_the_query_log_can_be_deleted_at_any_time(tmp_path: Path, make_world: MakeWorld) -> None:
    world = make_world()
    index = fitted(tmp_path / "x.anncur", world)
    shutil.rmtree(tmp_path / "x.anncur" / "query_log")
    assert anncur.Index.open(tmp_path / "x.anncur", world.scorer, retrievers=[Weak(world)]).verify() == []
    index.search(world.queries[0], budget=20)
    assert len(FolderQueryLog(tmp_path / "x.anncur").read()) == 1


def test_a_damaged_feedback_model_is_reported_and_left_out_by_repair(tmp_path: Path, make_world: MakeWorld) -> None:
    world = make_world()
    index = fitted(tmp_path / "x.anncur", world)
    (file,) = tmp_path.glob(f"x.anncur/learned/*/{FEEDBACK_ITEMS}")
    file.write_bytes(file.read_bytes()[:-4])
    assert len(index.verify()) == 1
    with pytest.warns(DamagedWarning, match="the feedback model is lost until `learn` fits one again"):
        assert index.verify(repair=True) == []
    index.refresh()
    assert len(index.search(world.queries[0], budget=20)) == 10
    assert index.learn() == 16


def test_texts_of_any_kind_survive(tmp_path: Path) -> None:
    log = FolderQueryLog(tmp_path)
    query = anncur.Query('a "line"\nbreak, \u2028 größer, \U0001f987', mention=(2, 8))
    search = LoggedSearch(query, {"id\n": 0.1, "ü": -1e300}, 3)
    log.append([search, search], most=5)
    assert log.read() == [search, search]


def test_a_query_log_under_its_older_name_is_still_used(tmp_path: Path, make_world: MakeWorld) -> None:
    world, path = make_world(), tmp_path / "x.anncur"
    build(path, world).search_many(world.queries[:3], budget=20)
    (path / "query_log").rename(path / "traffic")
    index = anncur.Index.open(path, world.scorer, retrievers=[Weak(world)], log_queries=100)
    index.search(world.queries[3], budget=20)
    assert index.learn() == 4
    assert not (path / "query_log").exists()


@pytest.mark.parametrize("is_cancelled", [False, True])
def test_an_awaited_search_reads_items_and_writes_its_log_off_the_event_loop(
    tmp_path: Path, make_world: MakeWorld, monkeypatch: pytest.MonkeyPatch, is_cancelled: bool
) -> None:
    n_requests = []

    async def score(pairs: list[tuple[str, str]]) -> list[float]:
        n_requests.append(1)
        if is_cancelled and len(n_requests) > 1 and (task := asyncio.current_task()):
            task.cancel()
        await asyncio.sleep(0)
        return [float(len(item)) for _, item in pairs]

    scorer = anncur.load_scorer(score, fingerprint="length", batch_size=2)
    index = build(tmp_path / "x.anncur", make_world(), scorer=scorer, retrievers=["bm25"])
    threads = {"take": threads_of(monkeypatch, type(index._current().items), "take")}
    threads["log"] = threads_of(monkeypatch, FolderBackend, "log")
    with suppress(asyncio.CancelledError):
        asyncio.run(index.asearch("query 1", k=3, budget=6, method="rerank"))
    assert len(threads["log"]) == 1
    assert len(threads["take"]) > len(n_requests), "once for each request, and for hits and log"
    assert threading.main_thread() not in threads["log"] + threads["take"]
    assert len(query_log_of(index).read()) == 1


def threads_of(monkeypatch: pytest.MonkeyPatch, kind: type, method: str) -> list[threading.Thread]:
    """The threads in which a method is called from now on."""
    threads: list[threading.Thread] = []
    function = getattr(kind, method)

    def watched(*arguments: Any, **options: Any) -> Any:
        threads.append(threading.current_thread())
        return function(*arguments, **options)

    monkeypatch.setattr(kind, method, watched)
    return threads
