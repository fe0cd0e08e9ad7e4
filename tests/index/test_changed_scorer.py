"""A scorer that other programs can't find again, or that changed under its name, is noticed."""

from __future__ import annotations

import asyncio
import subprocess
import sys
import warnings
from pathlib import Path

import pytest

import anncur

ITEMS = [f"item {'x' * number}" for number in range(40)]
QUERIES = [f"query {number}" for number in range(6)]
SCRIPT = """
import warnings
import anncur

def scorer(pairs):
    return [float(len(item)) for _, item in pairs]

with warnings.catch_warnings(record=True) as caught:
    warnings.simplefilter("always")
    anncur.Index.build([str(n) for n in range(30)], scorer, ["a", "b", "c"], path="x.anncur")
print([str(warning.message) for warning in caught])
"""


def longer_is_better(pairs: list[tuple[str, str]]) -> list[float]:
    return [float(len(item)) for _, item in pairs]


def shorter_is_better(pairs: list[tuple[str, str]]) -> list[float]:
    return [-float(len(item)) for _, item in pairs]


shorter_is_better.__qualname__ = longer_is_better.__qualname__  # the same function, after it was changed


@pytest.mark.slow
def test_a_build_with_a_scorer_of_a_script_warns_and_the_error_names_the_way_out(tmp_path: Path) -> None:
    run = subprocess.run([sys.executable, "-c", SCRIPT], cwd=tmp_path, capture_output=True, text=True, check=True)
    assert "fingerprint='my-scorer-v1'" in run.stdout
    with pytest.raises(anncur.FingerprintError, match=r"give it the fingerprint '__main__:scorer'"):
        anncur.Index.open(tmp_path / "x.anncur", longer_is_better)
    same = anncur.load_scorer(longer_is_better, fingerprint="__main__:scorer")
    assert anncur.Index.open(tmp_path / "x.anncur", same).search("a", k=1).ids == ["10"]


def test_a_fingerprint_of_the_users_own_names_a_scorer_everywhere(tmp_path: Path) -> None:
    scorer = anncur.load_scorer(longer_is_better, fingerprint="length-v1")
    anncur.Index.build(ITEMS, scorer, QUERIES, path=tmp_path / "x.anncur")
    assert anncur.Index.open(tmp_path / "x.anncur").info.scorer == "length-v1"
    with pytest.raises(anncur.FingerprintError):
        anncur.Index.open(tmp_path / "x.anncur", longer_is_better)


def test_a_scorer_that_changed_under_its_name_is_noticed_when_it_is_first_used(tmp_path: Path) -> None:
    anncur.Index.build(ITEMS, longer_is_better, QUERIES, path=tmp_path / "x.anncur")
    changed = anncur.Index.open(tmp_path / "x.anncur", shorter_is_better)
    with pytest.warns(anncur.ChangedScorerWarning, match="gives other scores"):
        changed.search("query", k=1)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        changed.search("query", k=1)  # once is enough
        anncur.Index.open(tmp_path / "x.anncur", longer_is_better).search("query", k=1)


def test_a_scorer_whose_fingerprint_is_its_content_is_not_asked_again(tmp_path: Path) -> None:
    anncur.Index.build(ITEMS[:4], "builtin", QUERIES[:2], path=tmp_path / "x.anncur")
    scorer = anncur.load_scorer("builtin")
    hits = anncur.Index.open(tmp_path / "x.anncur", scorer).search("query", k=1, budget=3)
    assert scorer.calls_made == hits.calls == 3


def test_an_index_is_opened_and_looked_at_without_its_scorer(tmp_path: Path) -> None:
    anncur.Index.build(ITEMS, longer_is_better, QUERIES, path=tmp_path / "x.anncur")
    index = anncur.Index.open(tmp_path / "x.anncur")
    assert len(index) == 40
    assert index.info.n_anchor_queries == 6
    assert not index.verify()
    index.remove(["3"])
    index.tune()
    index.gc()
    assert index.suitability().n_items == 39
    with pytest.raises(anncur.InputError, match="pass that scorer"):
        index.search("query")


def test_the_look_whether_a_scorer_changed_leaves_the_cap_and_deadlines_alone(tmp_path: Path) -> None:
    anncur.Index.build(ITEMS, longer_is_better, QUERIES, path=tmp_path / "x.anncur")
    capped = anncur.load_scorer(longer_is_better, max_calls=4)
    assert anncur.Index.open(tmp_path / "x.anncur", capped).search("query", k=1, budget=4).calls == 4
    free = anncur.load_scorer(longer_is_better)
    index = anncur.Index.open(tmp_path / "x.anncur", free)
    index.search("query", k=1, budget=5, deadline_ms=60_000)
    assert free.calls_made == 5, "not while there is a deadline"
    index.search("query", k=1, budget=5)
    assert free.calls_made == 5 + 4 + 5


def test_searches_that_begin_together_pay_for_one_look_whether_the_scorer_changed(tmp_path: Path) -> None:
    async def slowly(pairs: list[tuple[str, str]]) -> list[float]:
        await asyncio.sleep(0.01)
        return longer_is_better(pairs)

    scorer = anncur.load_scorer(slowly, fingerprint="length-v1")
    anncur.Index.build(ITEMS, scorer, QUERIES, path=tmp_path / "x.anncur")
    index, n_before = anncur.Index.open(tmp_path / "x.anncur", scorer), scorer.calls_made

    async def search_all() -> list[anncur.Hits]:
        return await asyncio.gather(*(index.asearch(f"q{number}", k=1, budget=5) for number in range(20)))

    asyncio.run(search_all())
    assert scorer.calls_made - n_before == 20 * 5 + 4


def test_a_look_whether_the_scorer_changed_is_taken_again_after_it_failed(tmp_path: Path) -> None:
    is_down = [False]

    def now_and_then(pairs: list[tuple[str, str]]) -> list[float]:
        if is_down[0]:
            raise ConnectionError("down")
        return shorter_is_better(pairs)

    anncur.Index.build(ITEMS, longer_is_better, QUERIES, path=tmp_path / "x.anncur")
    scorer = anncur.load_scorer(now_and_then, fingerprint=anncur.load_scorer(longer_is_better).fingerprint)
    index = anncur.Index.open(tmp_path / "x.anncur", scorer)
    is_down[0] = True
    with pytest.raises(anncur.ScorerError, match="down"):
        index.search("query", k=1, budget=5)
    is_down[0] = False
    with pytest.warns(anncur.ChangedScorerWarning):
        index.search("query", k=1, budget=5)
