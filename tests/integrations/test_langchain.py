"""An index behind LangChain's retrievers."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

import anncur
from boxes import NEAREST, Pencils

pytest.importorskip("langchain_core", reason="needs langchain-core; `make test-integrations` installs it")

from langchain_core.documents import Document
from langchain_core.runnables import ConfigurableField, RunnableLambda

from anncur.integrations.langchain import AnncurRetriever


def ids(documents: list[Document]) -> list[str | None]:
    return [document.id for document in documents]


def test_documents_are_the_hits_best_first(index: anncur.Index) -> None:
    retriever = AnncurRetriever(index=index, k=3, budget=60)
    documents = retriever.invoke("42 pencils")
    assert ids(documents) == NEAREST
    first = documents[0]
    assert (first.page_content, first.metadata["title"], first.metadata["size"]) == (
        "a box of 42 pencils",
        "Box 42",
        42,
    )
    facts = first.metadata["anncur"]
    assert (facts["score"], facts["calls"], facts["is_partial"]) == (0.0, 60, False)
    assert facts["round"] >= 1
    assert 0 <= facts["estimated_recall"] <= 1


def test_an_awaited_search_runs_the_scorer_on_the_callers_event_loop(index: anncur.Index, scorer: Pencils) -> None:
    retriever = AnncurRetriever(index=index, k=3, budget=60)

    async def ask() -> tuple[list[Document], asyncio.AbstractEventLoop]:
        scorer.loops.clear()
        return await retriever.ainvoke("42 pencils"), asyncio.get_running_loop()

    documents, loop = asyncio.run(ask())
    assert ids(documents) == NEAREST
    assert set(scorer.loops) == {loop}


def test_one_call_may_have_options_of_its_own(index: anncur.Index) -> None:
    retriever = AnncurRetriever(index=index, k=3, budget=60)
    assert len(retriever.invoke("42 pencils", k=5)) == 5
    assert ids(retriever.invoke("42 pencils", filter={"size": {">": 100}})) == ["box-101", "box-102", "box-103"]


def test_it_is_a_step_of_a_chain(index: anncur.Index) -> None:
    chain = AnncurRetriever(index=index, k=2) | RunnableLambda(lambda found: " / ".join(x.page_content for x in found))
    assert chain.invoke("42 pencils") == "a box of 42 pencils / a box of 41 pencils"
    assert [text[:11] for text in chain.batch(["7 pencils", "9 pencils"])] == ["a box of 7 ", "a box of 9 "]


def test_an_index_given_by_its_path_is_opened_once_for_all_configurations(folder: Path) -> None:
    retriever = AnncurRetriever(index=folder, k=3)
    assert isinstance(retriever.index, anncur.Index)
    assert ids(retriever.invoke("42 pencils")) == NEAREST
    variable = retriever.configurable_fields(k=ConfigurableField(id="k"))
    assert len(variable.invoke("42 pencils", config={"configurable": {"k": 5}})) == 5


def test_wrong_options_are_refused_when_it_is_made(index: anncur.Index) -> None:
    with pytest.raises(ValueError, match="k must be"):
        AnncurRetriever(index=index, k=0)
