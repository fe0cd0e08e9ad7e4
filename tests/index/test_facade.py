"""An index as Python programs use it: a collection of items that can be saved, opened, pickled and looked at."""

from __future__ import annotations

import logging
import pickle
import subprocess
import sys
from pathlib import Path

import pytest

import anncur
from worlds import World, low_rank_scores

ITEMS = [anncur.Item(f"i{number}", f"thing {number}", metadata={"n": number}) for number in range(40)]
QUERIES = [f"query {number}" for number in range(12)]


def by_digits(pairs: list[tuple[str, str]]) -> list[float]:
    return [float(sum(map(int, filter(str.isdigit, query + item)))) for query, item in pairs]


@pytest.fixture
def index() -> anncur.Index:
    return anncur.Index.build(ITEMS, by_digits, QUERIES)


def test_an_index_is_a_collection_of_its_items(index: anncur.Index) -> None:
    assert len(index) == 40
    assert "i7" in index
    assert "nobody" not in index
    assert 7 not in index
    assert ITEMS[7] in index
    assert index["i7"] == ITEMS[7]
    assert list(index) == ITEMS
    assert [query.text for query in index.anchor_queries] == QUERIES
    assert index.anchor_scores().shape == (40, 12)
    with pytest.raises(anncur.UnknownIdError, match="nobody"):
        index["nobody"]


def test_without_anchor_queries_nothing_is_scored_and_searches_answer() -> None:
    index = anncur.Index.build(ITEMS, by_digits)
    assert index.info.build_calls == 0
    assert len(index.search("thing 9", k=3, budget=10)) == 3


def test_an_index_that_was_built_in_memory_is_saved_and_answers_the_same(index: anncur.Index, tmp_path: Path) -> None:
    index.save(tmp_path / "x.anncur")
    opened = anncur.Index.open(tmp_path / "x.anncur", by_digits)
    assert opened.digest() == index.digest()
    assert opened.verify() == []
    assert opened.search("a 7", k=5).ids == index.search("a 7", k=5).ids
    opened.add([anncur.Item("new", "thing 999")])
    assert opened.search("a 7", k=1, budget=41).ids == ["new"]


def test_saving_costs_no_pairs_and_keeps_what_the_scorer_prepared(tmp_path: Path) -> None:
    scorer = anncur.load_scorer("builtin")
    index = anncur.Index.build(ITEMS[:6], scorer, QUERIES[:2])
    n_pairs = scorer.calls_made
    index.save(tmp_path / "x.anncur")
    assert scorer.calls_made == n_pairs
    assert list(tmp_path.glob("x.anncur/segments/*/prepared.sqlite"))
    assert anncur.Index.open(tmp_path / "x.anncur").search("thing 3", k=6).ids == index.search("thing 3", k=6).ids


def test_an_index_on_disk_is_copied(index: anncur.Index, tmp_path: Path) -> None:
    index.save(tmp_path / "x.anncur")
    anncur.Index.open(tmp_path / "x.anncur", by_digits).save(tmp_path / "copy.anncur")
    copy = anncur.Index.open(tmp_path / "copy.anncur", by_digits)
    assert copy.digest() == index.digest()
    assert copy.verify() == []


def test_an_index_on_disk_is_opened_again_from_its_pickle(index: anncur.Index, tmp_path: Path) -> None:
    index.save(tmp_path / "x.anncur")
    opened = anncur.Index.open(tmp_path / "x.anncur", by_digits)
    again = pickle.loads(pickle.dumps(opened))
    assert again.search("a 7", k=5).ids == opened.search("a 7", k=5).ids
    with pytest.raises(anncur.InputError, match="save it to a folder"):
        pickle.dumps(index)


def test_another_process_opens_a_pickled_index_with_the_scorer_that_it_remembers(tmp_path: Path) -> None:
    anncur.Index.build(ITEMS[:6], "builtin", QUERIES[:2], path=tmp_path / "x.anncur")
    opened = anncur.Index.open(tmp_path / "x.anncur")
    opened.search("thing 3", k=2)  # loads the scorer, which can't be pickled itself
    (tmp_path / "index.pickle").write_bytes(pickle.dumps(opened))
    program = "import pickle; print(pickle.load(open('index.pickle', 'rb')).search('thing 3', k=2).ids)"
    run = subprocess.run([sys.executable, "-c", program], cwd=tmp_path, capture_output=True, text=True, check=True)
    assert run.stdout.strip() == str(opened.search("thing 3", k=2).ids)


def test_an_index_that_was_just_built_is_pickled_with_its_named_scorer_and_rules(tmp_path: Path) -> None:
    scorer = anncur.load_scorer("builtin", max_calls=10_000)
    index = anncur.Index.build(ITEMS[:6], scorer, QUERIES[:2], path=tmp_path / "x.anncur")
    again = pickle.loads(pickle.dumps(index))
    assert again.search("thing 3", k=2).ids == index.search("thing 3", k=2).ids


def test_a_pickled_index_knows_its_scorer_by_the_fingerprint_that_was_given(tmp_path: Path) -> None:
    scorer = anncur.load_scorer("builtin", fingerprint="mine-v1")
    index = anncur.Index.build(ITEMS[:6], scorer, QUERIES[:2], path=tmp_path / "x.anncur")
    for known in (index, anncur.Index.open(tmp_path / "x.anncur", scorer)):
        assert pickle.loads(pickle.dumps(known)).search("thing 3", k=2).ids == index.search("thing 3", k=2).ids


def test_anchor_scores_cannot_be_changed_by_accident(index: anncur.Index) -> None:
    with pytest.raises(ValueError, match="read-only"):
        index.anchor_scores()[0, 0] = 7.0


def test_a_closed_index_is_refused(index: anncur.Index, tmp_path: Path) -> None:
    index.save(tmp_path / "x.anncur")
    with anncur.Index.open(tmp_path / "x.anncur", by_digits) as opened:
        assert len(opened) == 40
    with pytest.raises(anncur.InputError, match="closed"):
        opened.search("a 7")
    with pytest.raises(anncur.InputError, match="closed"):
        opened.add(["one more"])


def test_hits_and_indexes_show_themselves_briefly_and_as_html(index: anncur.Index) -> None:
    hits = index.search("a <b> 7", k=5)
    assert len(repr(hits)) < 200
    assert f"'{hits[0].id}': {hits[0].score:.4g}" in repr(hits)
    page = hits._repr_html_()
    assert "a &lt;b&gt; 7" in page
    assert page.count("<tr>") == 6
    assert "40" in repr(index)
    assert "12" in index._repr_html_()
    assert hits.n_rounds == len(hits.trace)
    assert hits.to_dict()["n_rounds"] == hits.n_rounds


def test_hits_become_a_data_frame(index: anncur.Index) -> None:
    pytest.importorskip("pandas", reason="needs pandas")
    frame = index.search("a 7", k=3).to_pandas()
    assert list(frame["id"]) == index.search("a 7", k=3).ids
    assert "n" in frame.columns, "metadata"


@pytest.mark.slow
def test_suitability_tuning_and_plans_are_there_in_python() -> None:
    world = World(low_rank_scores(20, 120, rank=3))
    index = world.index(16)
    suitability = index.suitability()
    assert suitability.recall("posterior", 10, 50) == pytest.approx(index.expected_recall(10, 50), abs=1e-4)
    assert suitability.advice
    report = index.tune(seed=1)
    assert report.chosen is not None
    assert {change.k for change in report.changes} == {1, 10, 50}
    planned = anncur.plan(world.items, world.scorer, world.queries[:16], seconds=1)
    assert planned.n_pairs == 120 * 16


def test_what_happens_is_logged_under_the_name_of_the_package(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.INFO, logger="anncur"):
        anncur.Index.build(ITEMS, by_digits, QUERIES)
    assert any("built an index" in record.message for record in caplog.records)


def test_every_public_name_can_be_imported_and_nothing_of_the_docs_imports_deeper() -> None:
    assert all(hasattr(anncur, name) for name in anncur.__all__)
