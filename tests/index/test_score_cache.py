"""An index with a cache of scores: what was ever paid for is not paid for again."""

from __future__ import annotations

import pickle
from pathlib import Path

import pytest

import anncur
from anncur.errors import InputError, ScorerError
from worlds import World, low_rank_scores


@pytest.fixture
def world() -> World:
    return World(low_rank_scores(20, 60, rank=3, noise=0.1))


def n_asked(world: World) -> int:
    n_pairs = len(world.scorer.pairs)
    world.scorer.pairs.clear()
    return n_pairs


def test_a_cache_in_the_folder_of_an_index_serves_builds_and_searches(world: World, tmp_path: Path) -> None:
    path = tmp_path / "x.anncur"
    built = anncur.Index.build(world.items, world.scorer, world.queries[:5], path=path, cache=True)
    assert n_asked(world) == 5 * 60 + 8, "eight pairs are scored twice, past the cache"
    first = built.search(world.queries[10], k=5, budget=20)
    assert n_asked(world) == 20
    opened = anncur.Index.open(path, world.scorer, cache=True)
    again = opened.search(world.queries[10], k=5, budget=20)
    assert (again.calls, again.cached_calls, again.n_requests) == (20, 20, 0)
    assert again.ids == first.ids
    assert opened.verify() == []
    assert opened.gc() == []
    assert n_asked(world) <= 4, "a scorer that is known by its name is checked"


def test_two_indexes_share_a_cache(world: World, tmp_path: Path) -> None:
    cache = tmp_path / "scores.cache"
    anncur.Index.build(world.items, world.scorer, world.queries[:5], cache=cache)
    n_asked(world)
    anncur.Index.build(world.items[:40], world.scorer, world.queries[:6], cache=cache)
    assert n_asked(world) == 40 + 8


def test_a_build_that_failed_pays_only_for_the_rest(world: World, tmp_path: Path) -> None:
    class Failing:
        fingerprint = world.scorer.fingerprint

        def score(self, query: anncur.Query, items: list[anncur.Item]) -> object:
            if query.text == world.queries[3]:
                raise ConnectionError("gone")
            return world.scorer.score(query, items)

    cache = tmp_path / "scores.cache"
    with pytest.raises(ScorerError, match="gone"):
        anncur.Index.build(world.items, Failing(), world.queries[:5], cache=cache)
    n_paid = n_asked(world)
    anncur.Index.build(world.items, world.scorer, world.queries[:5], cache=cache)
    assert n_paid + n_asked(world) == 5 * 60 + 8


def test_an_index_in_memory_needs_a_path_for_its_cache(world: World) -> None:
    with pytest.raises(InputError, match=r"give the path of a file: cache='scores\.cache'"):
        anncur.Index.build(world.items, world.scorer, cache=True)


def test_an_index_that_is_pickled_keeps_its_cache(
    world: World, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    Path("scorer_of_pickles.py").write_text("def score(pairs): return [float(len(item)) for _, item in pairs]\n")
    scorer = anncur.load_scorer("scorer_of_pickles:score", cache=tmp_path / "scores.cache")
    index = anncur.Index.build(world.items, scorer, path=tmp_path / "x.anncur")
    index.search("any", k=5, budget=20)
    again = pickle.loads(pickle.dumps(index)).search("any", k=5, budget=20)
    assert again.cached_calls == 20
