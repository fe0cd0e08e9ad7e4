"""What the integrations share; no library is needed for these."""

from __future__ import annotations

import importlib
import inspect
import re
import sys
from pathlib import Path
from typing import Any

import pytest

import anncur
from anncur.integrations.searching import Search, SearchOptions, metadata_of
from boxes import ITEMS, NEAREST, Pencils, distance_scorer

MODULES = {
    "dspy": "dspy",
    "haystack": "haystack-ai",
    "langchain_core": "langchain-core",
    "llama_index": "llama-index-core",
    "mteb": "mteb",
    "pyterrier": "pyterrier",
    "rerankers": "rerankers",
}


@pytest.fixture
def plain(scorer: Pencils) -> anncur.Index:
    """Without anchor queries, which take a while to tune on."""
    return anncur.Index.build(ITEMS, scorer)


def test_a_search_has_the_options_of_an_index() -> None:
    taken = set(inspect.signature(anncur.Index.search).parameters) - {
        "self",
        "query",
        "explain",
    }  # stories are for pages
    assert set(SearchOptions.__annotations__) == taken


def test_what_is_given_for_one_query_goes_before_what_was_given_for_all(plain: anncur.Index) -> None:
    search = Search(plain, k=3, budget=60)
    assert search("42 pencils").ids == NEAREST
    assert len(search("42 pencils", k=7)) == 7
    assert search("42 pencils", budget=30).calls == 30
    assert search("42 pencils").calls == 60


def test_an_index_is_opened_by_its_path(folder: Path) -> None:
    assert Search(folder, k=3)("42 pencils").ids == NEAREST
    assert Search(str(folder), k=3)("42 pencils").ids == NEAREST


@pytest.mark.parametrize(
    "options", [{"top_k": 3}, {"k": 0}, {"budget": 0}, {"method": "magic"}, {"deadline_ms": -1}, {"max_budget": 5}]
)
def test_options_that_no_search_takes_are_refused_at_once(plain: anncur.Index, options: dict[str, Any]) -> None:
    with pytest.raises(anncur.InputError, match=next(iter(options))):
        Search(plain, **options)
    with pytest.raises(anncur.InputError, match=next(iter(options))):
        Search(plain)("42 pencils", **options)


def test_a_search_among_candidates_scores_no_others_and_takes_no_filter(plain: anncur.Index) -> None:
    hits = Search(plain).among("42 pencils", ["box-7", "box-50"])
    assert (hits.ids, hits.calls) == (["box-50", "box-7"], 2)
    with pytest.raises(anncur.InputError, match="filter"):
        Search(plain, filter={"size": 7}).among("42 pencils", ["box-7"])


def test_metadata_has_the_title_and_what_the_search_found_out(index: anncur.Index) -> None:
    hits = index.search("42 pencils", k=3, budget=60)
    assert metadata_of(hits[0], hits) == {
        "title": "Box 42",
        "size": 42,
        "anncur": {
            "score": 0.0,
            "round": hits[0].round,
            "method": "posterior",
            "calls": 60,
            "estimated_recall": hits.estimated_recall,
            "is_partial": False,
        },
    }


def test_a_search_among_candidates_ranks_all_of_them_unless_fewer_are_asked_for(plain: anncur.Index) -> None:
    candidates = [item.id for item in ITEMS[:150]]
    hits = Search(plain).among("42 pencils", candidates)
    assert (len(hits), hits.calls) == (150, 150)
    hits = Search(plain, budget=40).among("42 pencils", candidates, k=5)
    assert (len(hits), hits.calls) == (5, 40)
    assert len(Search(plain).among("42 pencils", [])) == 0


def test_scores_rise_for_libraries_that_sort_by_them(plain: anncur.Index) -> None:
    search = Search(plain)
    hits = search("42 pencils", k=3, budget=60)
    assert search.rising_scores(hits) == hits.scores
    search = Search(anncur.Index.build(ITEMS, distance_scorer()))
    hits = search("42 pencils", k=3, budget=200)
    assert hits.ids == NEAREST
    assert search.rising_scores(hits) == [0.0, -1.0, -1.0]


def test_the_page_names_the_versions_that_are_tested() -> None:
    root = Path(__file__).parents[2]
    page = (root / "docs" / "how-to" / "integrations.md").read_text(encoding="utf-8")
    pins = (root / "constraints-integrations.txt").read_text(encoding="utf-8").splitlines()
    named = {f"{name}=={version}" for name, version in re.findall(r"\| ([\w-]+) ([\d.]+) \|$", page, re.M)}
    assert {pin.split("==")[0] for pin in named} == set(MODULES.values())
    assert named <= set(pins)


@pytest.mark.parametrize("library", MODULES)
def test_a_missing_library_is_named_with_the_package_to_install(library: str, monkeypatch: pytest.MonkeyPatch) -> None:
    module = f"anncur.integrations.{library.removesuffix('_core')}"
    monkeypatch.delitem(sys.modules, module, raising=False)
    for name in [name for name in sys.modules if name.split(".")[0] == library]:
        monkeypatch.setitem(sys.modules, name, None)
    monkeypatch.setitem(sys.modules, library, None)
    with pytest.raises(ModuleNotFoundError, match=f"pip install {MODULES[library]}$"):
        importlib.import_module(module)
