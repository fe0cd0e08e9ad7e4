"""An index behind Haystack's pipelines."""

from __future__ import annotations

import asyncio
from pathlib import Path

import numpy as np
import pytest

import anncur
from boxes import ITEMS, NEAREST, Pencils, distance_scorer

pytest.importorskip("haystack", reason="needs haystack-ai; `make test-integrations` installs it")

from haystack import Document, Pipeline
from haystack.components.builders import PromptBuilder
from haystack.utils.filters import document_matches_filter

from anncur.integrations.haystack import AnncurRetriever


def ids(documents: list[Document]) -> list[str]:
    return [document.id for document in documents]


def pipeline_of(retriever: AnncurRetriever) -> Pipeline:
    pipeline = Pipeline()
    pipeline.add_component("retriever", retriever)
    return pipeline


def test_documents_are_the_hits_with_exact_scores_and_the_cost_beside_them(index: anncur.Index) -> None:
    found = AnncurRetriever(index, k=3, budget=60).run(query="42 pencils")
    documents = found["documents"]
    assert ids(documents) == NEAREST
    assert [document.score for document in documents] == [0.0, -1.0, -1.0]
    assert documents[0].content == "a box of 42 pencils"
    assert (documents[0].meta["title"], documents[0].meta["size"]) == ("Box 42", 42)
    assert documents[0].meta["anncur"]["round"] >= 1
    assert (found["calls"], found["is_partial"]) == (60, False)
    assert 0 <= found["estimated_recall"] <= 1


def test_documents_have_the_highest_score_first_also_where_the_scorer_likes_low_ones() -> None:
    retriever = AnncurRetriever(anncur.Index.build(ITEMS, distance_scorer()), k=3, budget=200)
    documents = retriever.run(query="42 pencils")["documents"]
    assert [(document.id, document.score) for document in documents] == list(zip(NEAREST, [0, -1, -1], strict=True))
    assert [document.meta["anncur"]["score"] for document in documents] == [0, 1, 1]


def test_a_run_may_have_options_of_its_own(index: anncur.Index) -> None:
    retriever = AnncurRetriever(index, k=3, budget=60)
    found = retriever.run(query="42 pencils", k=2, budget=30, filter={"size": {">": 100}})
    assert (ids(found["documents"]), found["calls"]) == (["box-101", "box-102"], 30)


def test_it_feeds_other_components_of_a_pipeline(index: anncur.Index) -> None:
    pipeline = pipeline_of(AnncurRetriever(index, k=2))
    template = "{% for document in documents %}{{ document.content }}. {% endfor %}"
    pipeline.add_component("prompt", PromptBuilder(template, required_variables=["documents"]))
    pipeline.connect("retriever.documents", "prompt.documents")
    found = pipeline.run({"retriever": {"query": "42 pencils"}})
    assert found["prompt"]["prompt"].strip() == "a box of 42 pencils. a box of 41 pencils."


def test_an_awaited_run_runs_the_scorer_on_the_callers_event_loop(index: anncur.Index, scorer: Pencils) -> None:
    pipeline = pipeline_of(AnncurRetriever(index, k=3, budget=60))

    async def ask() -> tuple[list[str], asyncio.AbstractEventLoop]:
        scorer.loops.clear()
        found = await pipeline.run_async({"retriever": {"query": "42 pencils"}})
        return ids(found["retriever"]["documents"]), asyncio.get_running_loop()

    found, loop = asyncio.run(ask())
    assert found == NEAREST
    assert set(scorer.loops) == {loop}


@pytest.mark.parametrize("is_open", [False, True])
def test_a_pipeline_that_was_written_and_read_finds_the_same(folder: Path, is_open: bool) -> None:
    given = anncur.Index.open(folder) if is_open else folder
    pipeline = pipeline_of(AnncurRetriever(given, k=3, budget=60, filter={"size": {"<": 42}}))
    again = Pipeline.loads(pipeline.dumps(), allowed_modules=["anncur.integrations.haystack"])
    asked = {"retriever": {"query": "42 pencils"}}
    assert again.to_dict() == pipeline.to_dict()
    assert ids(again.run(asked)["retriever"]["documents"]) == ids(pipeline.run(asked)["retriever"]["documents"])


def test_what_no_file_can_hold_is_refused(index: anncur.Index, folder: Path) -> None:
    with pytest.raises(anncur.InputError, match="in memory"):
        AnncurRetriever(index).to_dict()
    with pytest.raises(anncur.InputError, match="by its name"):
        AnncurRetriever(folder, method=anncur.Rerank()).to_dict()
    with pytest.raises(anncur.InputError, match="conditions or a list of ids"):
        AnncurRetriever(folder, filter=np.ones(200, dtype=bool)).to_dict()


def test_an_index_is_opened_when_the_pipeline_warms_up_and_options_are_checked_before(tmp_path: Path) -> None:
    missing = AnncurRetriever(tmp_path / "missing.anncur")
    with pytest.raises(anncur.AnncurError, match=r"missing\.anncur"):
        missing.warm_up()
    with pytest.raises(anncur.InputError, match="k must be"):
        AnncurRetriever(tmp_path / "missing.anncur", k=0)


FILTERS = {
    "operator": "NOT",
    "conditions": [
        {"field": "meta.size", "operator": ">", "value": 40},
        {"field": "meta.size", "operator": "!=", "value": 50},
    ],
}


def test_filters_of_haystack_pass_what_haystack_passes(index: anncur.Index) -> None:
    passing = {
        item.id for item in ITEMS if document_matches_filter(FILTERS, Document(id=item.id, meta=dict(item.metadata)))
    }
    found = AnncurRetriever(index, k=len(ITEMS), method="exhaustive").run(query="42 pencils", filters=FILTERS)
    assert set(ids(found["documents"])) == passing
    made = AnncurRetriever(index, k=len(ITEMS), method="exhaustive", filters=FILTERS).run(query="42 pencils")
    assert set(ids(made["documents"])) == passing
    with pytest.raises(anncur.InputError, match="pass one of them"):
        AnncurRetriever(index, filter={"size": 3}, filters=FILTERS)
