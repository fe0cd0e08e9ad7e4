"""An index behind DSPy's programs."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

import anncur
from boxes import NEAREST, Pencils

dspy = pytest.importorskip("dspy", reason="needs dspy; `make test-integrations` installs it")

from anncur.integrations.dspy import AnncurRetriever


def test_a_prediction_has_the_passages_and_what_the_search_found_out(index: anncur.Index) -> None:
    found = AnncurRetriever(index, k=3, budget=60)("42 pencils")
    assert isinstance(found, dspy.Prediction)
    assert found.passages[0] == "Box 42\na box of 42 pencils"
    assert (found.ids, found.scores) == (NEAREST, [0.0, -1.0, -1.0])
    assert found.metadata[0] == {"size": 42}
    assert min(found.rounds) >= 1
    assert (found.calls, found.is_partial) == (60, False)
    assert 0 <= found.estimated_recall <= 1


def test_an_awaited_call_runs_the_scorer_on_the_callers_event_loop(index: anncur.Index, scorer: Pencils) -> None:
    retriever = AnncurRetriever(index, k=3, budget=60)

    async def ask() -> tuple[list[str], asyncio.AbstractEventLoop]:
        scorer.loops.clear()
        return (await retriever.acall("42 pencils")).ids, asyncio.get_running_loop()

    found, loop = asyncio.run(ask())
    assert found == NEAREST
    assert set(scorer.loops) == {loop}


def test_programs_that_call_retrieve_find_it_as_their_retrieval_model(folder: Path) -> None:
    with dspy.context(rm=AnncurRetriever(folder, budget=60).as_rm()):
        found = dspy.Retrieve(k=3)("42 pencils")
    assert found.passages == [f"Box {size}\na box of {size} pencils" for size in (42, 41, 43)]


def test_a_program_with_it_can_be_copied_and_its_state_saved(index: anncur.Index, tmp_path: Path) -> None:
    class Program(dspy.Module):  # type: ignore[name-defined]
        def __init__(self) -> None:
            super().__init__()
            self.retrieve = AnncurRetriever(index, k=3)
            self.answer = dspy.Predict("context, question -> answer")

        def forward(self, question: str) -> list[str]:
            passages: list[str] = self.retrieve(question).passages
            return passages

    program = Program()
    copy = program.deepcopy()  # as optimisers do
    program.save(tmp_path / "program.json")
    copy.load(tmp_path / "program.json")
    assert copy("42 pencils") == program("42 pencils")
