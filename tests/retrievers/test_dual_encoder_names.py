"""Dual encoders as retrievers of an index, by the name of their folder."""

from __future__ import annotations

import copy
import shutil
from pathlib import Path

import pytest

pytest.importorskip("torch", reason="needs the extra `train`")
pytest.importorskip("transformers", reason="needs the extra `train`")

import anncur
from anncur.errors import InputError
from anncur.models.encoders import new_dual_encoder
from anncur.retrievers.lexical import TfIdf
from anncur.retrievers.loading import load_retrievers
from anncur.tokens import PairFormat
from toy_linking import write_network

ITEMS = [anncur.Item(str(number), f"text {number}") for number in range(30)]


def longer_is_better(pairs: list[tuple[str, str]]) -> list[float]:
    return [float(len(query) + len(item)) for query, item in pairs]


def test_an_index_opens_without_its_dual_encoder_and_needs_it_only_when_it_is_asked(tmp_path: Path) -> None:
    folder = tmp_path / "models" / "dual"
    new_dual_encoder(write_network(tmp_path / "network"), PairFormat(12, 12), is_shared=True).save(folder)
    built = anncur.Index.build(
        ITEMS, longer_is_better, ["a", "bb", "ccc"], path=tmp_path / "x.anncur", retrievers=["bm25", str(folder)]
    )
    by_folder = anncur.Rerank(str(folder))
    expected = built.search("a", k=3, budget=5, method=by_folder).ids
    opened = anncur.Index.open(tmp_path / "x.anncur", longer_is_better)
    assert opened.search("a", k=3, budget=5, method=by_folder).ids == expected
    shutil.rmtree(folder)
    opened = anncur.Index.open(tmp_path / "x.anncur", longer_is_better)
    assert len(opened.search("a", k=3, budget=5, method="rerank")) == 3
    with pytest.raises(InputError, match="dual"):
        opened.search("a", k=3, budget=5, method=by_folder)


def test_a_folder_that_is_not_there_is_refused_when_an_index_is_built() -> None:
    with pytest.raises(InputError, match="no retriever"):
        load_retrievers(["models/no-such-folder"])


def test_copies_of_a_retriever_are_fitted_apart() -> None:
    first = TfIdf()
    second = copy.copy(first)
    first.fit(ITEMS[:3])
    second.fit(ITEMS)
    query = anncur.Query.marked("the [text] of it")
    assert first.scores([query]).shape == (1, 3)
    assert second.scores([query]).shape == (1, 30)
