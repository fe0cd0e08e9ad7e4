"""The scorer over .onnx files: same scores in any company, tokens kept or not, threads or none."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("onnx", reason="needs the extra `train`")
pytest.importorskip("transformers", reason="needs the extra `train`")

import anncur
from anncur.errors import FileFormatError, InputError
from anncur.models.export import export, export_bytes
from anncur.models.session import SMALL_BATCH, TOKENS_PER_BATCH, batches
from anncur.scorers import onnx as onnx_scorer
from anncur.scorers.onnx import OnnxScorer
from anncur.threads import usable_cores
from anncur.tokens import Tokens
from models.tiny import QUERY, make_folder, make_items, save_model, transformers_scores

ITEMS = make_items(60)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_folder(tmp_path_factory.mktemp("model"))


@pytest.fixture(scope="module")
def whole(folder: Path) -> bytes:
    return export_bytes(folder)


@pytest.fixture
def scorer(whole: bytes) -> OnnxScorer:
    return OnnxScorer(whole, threads=1)


def test_scores_are_those_of_transformers_for_queries_of_all_kinds(scorer: OnnxScorer, folder: Path) -> None:
    for query in (QUERY, anncur.Query("bat"), anncur.Query("many old trees " * 30, mention=(100, 103))):
        np.testing.assert_allclose(scorer.score(query, ITEMS), transformers_scores(folder, query, ITEMS), atol=1e-4)


def test_no_items_no_scores(scorer: OnnxScorer) -> None:
    assert scorer.score(QUERY, []).shape == (0,)
    assert scorer.prepare([]) == []


def test_scores_depend_neither_on_order_nor_on_company(scorer: OnnxScorer) -> None:
    together = scorer.score(QUERY, ITEMS)
    order = np.random.default_rng(0).permutation(len(ITEMS))
    np.testing.assert_allclose(scorer.score(QUERY, [ITEMS[place] for place in order]), together[order], rtol=1e-5)
    np.testing.assert_allclose([scorer.score(QUERY, [item])[0] for item in ITEMS], together, rtol=1e-5)


def test_prepared_items_score_the_same_and_are_not_tokenised(scorer: OnnxScorer) -> None:
    expected = scorer.score(QUERY, ITEMS)
    values = scorer.prepare(ITEMS)
    prepared = [replace(item, text="", title="", prepared=value) for item, value in zip(ITEMS, values, strict=True)]
    np.testing.assert_array_equal(scorer.score(QUERY, prepared), expected)
    mixed = [*prepared[:30], *ITEMS[30:]]
    np.testing.assert_array_equal(scorer.score(QUERY, mixed), expected)


def test_prepared_tokens_take_two_bytes_each(scorer: OnnxScorer) -> None:
    (value,) = scorer.prepare([anncur.Item("a", "large cat", "bat")])
    assert len(value) == 2 * len(["bat", "[ENT]", "large", "cat", "[SEP]"])


def remembering(whole: bytes, monkeypatch: pytest.MonkeyPatch, *, n_bytes: int = 2**20) -> tuple[OnnxScorer, list[int]]:
    """A scorer that remembers this much, and a list of how many items it tokenised at each request."""
    monkeypatch.setattr(onnx_scorer, "REMEMBERED_BYTES", n_bytes)
    scorer = OnnxScorer(whole, threads=1)
    tokenised: list[int] = []
    tokenise = scorer.tokenizer.items

    def counted(items: Sequence[anncur.Item]) -> list[Tokens]:
        tokenised.append(len(items))
        return tokenise(items)

    monkeypatch.setattr(scorer.tokenizer, "items", counted)
    return scorer, tokenised


def test_items_seen_before_are_not_tokenised_again_and_the_oldest_are_forgotten(
    whole: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    alike = [anncur.Item(str(n), f"bat {n:02}") for n in range(60)]
    whole_scorer, _ = remembering(whole, monkeypatch)
    whole_scorer.score(QUERY, alike[:50])
    scorer, tokenised = remembering(whole, monkeypatch, n_bytes=whole_scorer._memo._n_bytes)  # room for just 50
    for items in (alike[:40], alike[:40], alike[20:60], alike[:10]):
        scorer.score(QUERY, items)
    assert tokenised == [40, 0, 20, 10]  # the first ten were forgotten


def test_what_is_remembered_of_long_items_is_bounded_too(whole: bytes, monkeypatch: pytest.MonkeyPatch) -> None:
    scorer, tokenised = remembering(whole, monkeypatch, n_bytes=2**16)
    long = [anncur.Item(str(n), f"{n} bat " * 1200) for n in range(20)]  # of 7 kB and more
    for item in long:
        scorer.score(QUERY, [item])
    held = sum(len(text) for key in scorer._memo._latest for text in key)
    assert 2**15 < held <= 2**16
    scorer.score(QUERY, long[-3:])
    assert tokenised[-1] == 0
    scorer.score(QUERY, [anncur.Item("x", "bat " * 2**15), anncur.Item("y", "cat")])
    scorer.score(QUERY, [anncur.Item("y", "cat")])
    assert tokenised[-1] == 0, "one that is larger than all room goes before the others"


def test_batches_hold_every_pair_once_and_are_small_enough() -> None:
    rng = np.random.default_rng(0)
    for lengths in (rng.integers(5, 300, size=500), np.full(100, 256), np.array([TOKENS_PER_BATCH * 2, 3])):
        found = list(batches(lengths))
        assert sorted(place for batch in found for place in batch) == list(range(len(lengths)))
        assert all(len(batch) == 1 or len(batch) * lengths[batch].max() <= TOKENS_PER_BATCH for batch in found)


def test_a_few_pairs_are_enough_for_all_threads() -> None:
    lengths = np.full(20, 50)
    assert [len(batch) for batch in batches(lengths, n_parts=2)] == [10, 10]
    assert [len(batch) for batch in batches(lengths[:5], n_parts=2)] == [5], "too small to be divided"


def test_one_thread_scores_in_the_thread_that_asks(scorer: OnnxScorer, monkeypatch: pytest.MonkeyPatch) -> None:
    expected = scorer.score(QUERY, ITEMS)
    monkeypatch.setattr(scorer._session, "_pool", None)  # a forked process has no threads but its own
    np.testing.assert_array_equal(scorer.score(QUERY, ITEMS), expected)


def test_only_small_batches_are_padded() -> None:
    lengths = np.random.default_rng(0).integers(100, 140, size=1000)
    for batch in batches(lengths):
        shortest, longest = lengths[batch].min(), lengths[batch].max()
        assert shortest == longest or (lengths[batch] < longest).sum() * longest < SMALL_BATCH + longest


def test_threads_share_a_scorer(scorer: OnnxScorer) -> None:
    queries = [anncur.Query(text) for text in ("bat", "cat", "old trees", "fruit in the forest")] * 5
    expected = [scorer.score(query, ITEMS) for query in queries]
    with ThreadPoolExecutor(4) as pool:
        found = list(pool.map(lambda query: scorer.score(query, ITEMS), queries))
    np.testing.assert_allclose(found, expected, rtol=1e-6)


def test_the_number_of_threads_does_not_change_scores(whole: bytes) -> None:
    one, two = (OnnxScorer(whole, threads=threads).score(QUERY, ITEMS) for threads in (1, 2))
    np.testing.assert_allclose(one, two, rtol=1e-6)
    assert OnnxScorer(whole).n_threads == usable_cores() >= 1
    with pytest.raises(InputError, match="threads must be"):
        OnnxScorer(whole, threads=0)


@pytest.mark.parametrize("threads", [1, 2])
def test_a_scorer_is_loaded_with_as_many_threads_as_are_asked_for(
    whole: bytes, folder: Path, tmp_path: Path, threads: int
) -> None:
    (tmp_path / "x.onnx").write_bytes(whole)
    for source in ("builtin", tmp_path / "x.onnx", folder):
        loaded: Any = anncur.load_scorer(source, threads=threads)._scorer
        assert loaded.n_threads == threads


def test_threads_of_a_scorer_that_has_none_to_set_are_refused(whole: bytes) -> None:
    for source in (len, "builtins:len", anncur.load_scorer("builtin", threads=1)):
        with pytest.raises(InputError, match=r"threads can be set where .*; leave them out for"):
            anncur.load_scorer(source, threads=2)
    with pytest.raises(InputError, match="threads must be at least 1, got 0"):
        anncur.load_scorer("builtin", threads=0)


def test_the_fingerprint_is_that_of_the_files_bytes(whole: bytes, tmp_path: Path) -> None:
    (tmp_path / "renamed.onnx").write_bytes(whole)
    assert OnnxScorer.open(tmp_path / "renamed.onnx").fingerprint == OnnxScorer(whole).fingerprint
    other = export_bytes(make_folder(tmp_path / "other", seed=1))
    assert OnnxScorer(other).fingerprint != OnnxScorer(whole).fingerprint


@pytest.mark.parametrize(("n_kept", "added"), [(0, b""), (2000, b""), (0, b"x" * 99)])
def test_a_damaged_file_is_refused_by_name(n_kept: int, added: bytes, whole: bytes, tmp_path: Path) -> None:
    (tmp_path / "broken.onnx").write_bytes(whole[:n_kept] + added)
    with pytest.raises(FileFormatError, match=r"broken\.onnx"):
        OnnxScorer.open(tmp_path / "broken.onnx")


def test_a_foreign_onnx_file_is_refused_with_what_it_lacks(whole: bytes, tmp_path: Path) -> None:
    import onnx

    model = onnx.load_from_string(whole)
    del model.metadata_props[:]
    (tmp_path / "foreign.onnx").write_bytes(model.SerializeToString())
    with pytest.raises(FileFormatError, match=r"foreign\.onnx.*no 'anncur\.json'.*anncur export"):
        anncur.load_scorer(tmp_path / "foreign.onnx")


def test_a_file_and_its_folder_are_the_same_scorer_with_large_batches(folder: Path, tmp_path: Path) -> None:
    export(folder, tmp_path / "x.onnx")
    from_file, from_folder = (anncur.load_scorer(source) for source in (str(tmp_path / "x.onnx"), folder))
    assert from_file.fingerprint == from_folder.fingerprint
    assert from_file.rules.batch_size == OnnxScorer.batch_size
    assert anncur.load_scorer(folder, batch_size=7).rules.batch_size == 7
    np.testing.assert_array_equal(from_file.score(QUERY, ITEMS), from_folder.score(QUERY, ITEMS))


def test_an_index_keeps_what_the_scorer_prepares(folder: Path, tmp_path: Path) -> None:
    scorer = anncur.load_scorer(folder)
    index = anncur.Index.build(ITEMS, scorer, ["large bat", "old trees", "a cat"], path=tmp_path / "x.anncur")
    hits = index.search(QUERY, k=5, budget=len(ITEMS))
    expected = np.argsort(-scorer.score(QUERY, ITEMS), kind="stable")[:5]
    assert hits.ids == [ITEMS[place].id for place in expected]


def test_a_folder_of_a_cross_encoder_is_loaded_offline(tmp_path: Path) -> None:
    pytest.importorskip("sentence_transformers", reason="needs the extra `st`")
    save_model(tmp_path, head="cls")
    guarded = anncur.load_scorer(str(tmp_path))
    plain = OnnxScorer(export_bytes(tmp_path))
    short = make_items(10)
    np.testing.assert_allclose(guarded.score(QUERY, short), plain.score(QUERY, short), atol=1e-4)


def test_a_cross_encoder_without_sentence_transformers_names_the_remedy(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "sentence_transformers", None)
    with pytest.raises(InputError, match=r"pip install 'anncur\[st\]'"):
        anncur.load_scorer(str(tmp_path))


def test_a_folder_without_a_model_is_refused(tmp_path: Path) -> None:
    pytest.importorskip("sentence_transformers", reason="needs the extra `st`")
    with pytest.raises(InputError, match="sentence-transformers can't load it"):
        anncur.load_scorer(str(tmp_path))


@pytest.mark.parametrize("source", ["no-such.onnx", Path("no/such/folder")])
def test_files_that_are_not_there_are_named(source: Any) -> None:
    with pytest.raises(InputError, match=str(source)):
        anncur.load_scorer(source)


def test_a_missing_builtin_model_is_named(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(onnx_scorer, "BUILTIN", tmp_path / "builtin.onnx")
    with pytest.raises(InputError, match="no builtin model"):
        anncur.load_scorer("builtin")


def test_the_builtin_model_is_loaded_by_its_name(whole: bytes, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    (tmp_path / "builtin.onnx").write_bytes(whole)
    monkeypatch.setattr(onnx_scorer, "BUILTIN", tmp_path / "builtin.onnx")
    assert anncur.load_scorer("builtin").fingerprint == OnnxScorer(whole).fingerprint


@pytest.mark.parametrize(
    ("key", "value"),
    [("anncur.json", "{"), ("anncur.json", "[]"), ("anncur.json", '{"format": 1, "kind": []}'), ("n_tokens", "many")],
)
def test_foreign_metadata_is_a_clear_error_of_ours(key: str, value: str, whole: bytes) -> None:
    import onnx

    model = onnx.load_from_string(whole)
    metadata = {entry.key: entry.value for entry in model.metadata_props}
    onnx.helper.set_model_props(model, {**metadata, key: value})
    with pytest.raises(FileFormatError, match="here"):
        OnnxScorer(model.SerializeToString(), where="here")


def test_a_network_without_a_graph_scores_in_torch_and_the_same(
    scorer: OnnxScorer, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("anncur.models.export.is_exportable", lambda _: False)
    in_torch = anncur.load_scorer(folder)
    assert in_torch.fingerprint.startswith("torch:")
    items = make_items(20)
    np.testing.assert_allclose(in_torch.score(QUERY, items), scorer.score(QUERY, items), atol=1e-4)
