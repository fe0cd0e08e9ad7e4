"""Dual encoders in ONNX Runtime give the vectors that torch gives, and name themselves by what decides these."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("torch", reason="needs the extra `train`")
pytest.importorskip("transformers", reason="needs the extra `train`")

import torch

from anncur import Item, Query
from anncur.errors import InputError
from anncur.models import embedding
from anncur.models.checkpoint import ModelCard
from anncur.models.embedding import OnnxDualEncoder, dual_encoder_fingerprint, open_dual_encoder
from anncur.models.encoders import DualEncoder, load_dual_encoder, new_dual_encoder
from anncur.tokens import PairFormat
from toy_linking import WORDS, write_network

TEXT = PairFormat(24, 16)


def texts(n: int = 40) -> tuple[list[Query], list[Item]]:
    """Texts of many lengths, some of them cut."""
    rng = np.random.default_rng(0)

    def text() -> str:
        return " ".join(rng.choice(WORDS, size=rng.integers(1, 30)))

    queries = [Query(found, mention=(0, len(found.split()[0]))) for found in (text() for _ in range(n))]
    return queries, [Item(str(number), text(), text()) for number in range(n)]


def save(folder: Path, *, head: Any = "mean", is_shared: bool = True, format: PairFormat = TEXT) -> Path:
    """A dual encoder as `anncur train` writes it, whose towers differ if they are not shared."""
    network = write_network(folder / "network", num_hidden_layers=2, initializer_range=0.3)
    model = new_dual_encoder(network, format, head=head, is_shared=is_shared)
    torch.manual_seed(0)
    with torch.no_grad():
        for parameter in model.query_tower.parameters():
            parameter.add_(0.1 * torch.randn_like(parameter))
    model.save(folder / "dual")
    return folder / "dual"


@pytest.mark.parametrize("head", ["cls", "mean"])
@pytest.mark.parametrize("is_shared", [True, False])
def test_vectors_are_those_of_torch(tmp_path: Path, head: str, is_shared: bool) -> None:
    folder = save(tmp_path, head=head, is_shared=is_shared)
    queries, items = texts()
    expected, found = load_dual_encoder(folder), open_dual_encoder(folder)
    assert isinstance(found, OnnxDualEncoder)
    np.testing.assert_allclose(found.embed_items(items), expected.embed_items(items), atol=2e-5)
    np.testing.assert_allclose(found.embed_queries(queries), expected.embed_queries(queries), atol=2e-5)
    assert found.embed_items(items).std(axis=0).mean() > 0.02, "vectors must differ for this test to mean anything"


@pytest.mark.parametrize("head", ["cls", "mean"])
def test_a_vector_depends_neither_on_order_nor_on_the_texts_beside_it(tmp_path: Path, head: str) -> None:
    model = open_dual_encoder(save(tmp_path, head=head))
    _, items = texts()
    together = model.embed_items(items)
    order = np.random.default_rng(0).permutation(len(items))
    np.testing.assert_allclose(model.embed_items([items[place] for place in order]), together[order], atol=1e-5)
    np.testing.assert_allclose(np.concatenate([model.embed_items([item]) for item in items]), together, atol=1e-5)


def test_many_texts_are_tokenised_in_parts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    model = open_dual_encoder(save(tmp_path))
    _, items = texts()
    expected = model.embed_items(items)
    monkeypatch.setattr(embedding, "TEXTS_AT_ONCE", 7)
    np.testing.assert_allclose(model.embed_items(items), expected, atol=1e-5)


def test_no_texts_have_no_vectors_but_a_width(tmp_path: Path) -> None:
    model = open_dual_encoder(save(tmp_path))
    assert model.embed_items([]).shape == model.embed_queries([]).shape == (0, 32)


def test_threads_share_a_model(tmp_path: Path) -> None:
    model = OnnxDualEncoder(save(tmp_path), ModelCard("dual-encoder", "mean", TEXT), threads=2)
    _, items = texts()
    expected = model.embed_items(items)
    with ThreadPoolExecutor(4) as pool:
        for found in pool.map(lambda _: model.embed_items(items), range(8)):
            np.testing.assert_allclose(found, expected, atol=1e-5)


def test_a_network_without_a_graph_runs_in_torch_with_the_same_vectors(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = save(tmp_path)
    _, items = texts()
    expected = open_dual_encoder(folder).embed_items(items)
    monkeypatch.setattr(embedding, "is_supported", lambda _: False)
    in_torch = open_dual_encoder(folder)
    assert isinstance(in_torch, DualEncoder)
    np.testing.assert_allclose(in_torch.embed_items(items), expected, atol=2e-5)


def test_a_bert_with_another_activation_runs_in_torch(tmp_path: Path) -> None:
    folder = save(tmp_path)
    change_config(folder, hidden_act="relu")
    assert isinstance(open_dual_encoder(folder), DualEncoder)


def change_config(folder: Path, **changes: Any) -> None:
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps({**config, **changes}))


@pytest.mark.parametrize("change", [{"hidden_size": 64}, {"num_hidden_layers": 1}, {"num_hidden_layers": 3}], ids=str)
def test_weights_that_do_not_match_their_config_are_refused(tmp_path: Path, change: dict[str, int]) -> None:
    folder = save(tmp_path)
    change_config(folder, **change)
    with pytest.raises(InputError, match=r"2 layers of width 32, but its config\.json"):
        open_dual_encoder(folder)


def test_texts_longer_than_the_networks_positions_are_refused(tmp_path: Path) -> None:
    folder = save(tmp_path)
    OnnxDualEncoder(folder, ModelCard("dual-encoder", "mean", PairFormat(64, 63)))
    with pytest.raises(InputError, match="texts of 65 tokens are longer than the 64"):
        OnnxDualEncoder(folder, ModelCard("dual-encoder", "mean", PairFormat(64, 64)))


def test_a_cross_encoder_is_refused(tmp_path: Path) -> None:
    folder = save(tmp_path)
    ModelCard("cross-encoder", "emb", TEXT).write(folder)
    with pytest.raises(InputError, match="holds a cross-encoder, where a dual-encoder is needed"):
        open_dual_encoder(folder)


def test_a_copy_of_a_folder_has_the_same_fingerprint(tmp_path: Path) -> None:
    folder = save(tmp_path, is_shared=False)
    copied = shutil.copytree(folder, tmp_path / "copied")
    assert dual_encoder_fingerprint(copied) == dual_encoder_fingerprint(folder)
    model = open_dual_encoder(copied)
    assert model.fingerprint() == dual_encoder_fingerprint(folder)


def flip_last_byte(file: Path) -> None:
    content = bytearray(file.read_bytes())
    content[-1] ^= 1
    file.write_bytes(content)


def shorten(folder: Path) -> None:
    ModelCard("dual-encoder", "mean", PairFormat(24, 15), is_shared=False).write(folder)


def pool_otherwise(folder: Path) -> None:
    ModelCard("dual-encoder", "cls", TEXT, is_shared=False).write(folder)


@pytest.mark.parametrize(
    "change",
    [
        lambda folder: flip_last_byte(folder / "model.safetensors"),
        lambda folder: flip_last_byte(folder / "query" / "model.safetensors"),
        lambda folder: flip_last_byte(folder / "tokenizer.json"),
        lambda folder: change_config(folder, layer_norm_eps=1e-3),
        shorten,
        pool_otherwise,
    ],
    ids=["weights", "query tower", "tokenizer", "config", "length", "pooling"],
)
def test_what_changes_vectors_changes_the_fingerprint(tmp_path: Path, change: Callable[[Path], None]) -> None:
    folder = save(tmp_path, is_shared=False)
    before = dual_encoder_fingerprint(folder)
    change(folder)
    assert dual_encoder_fingerprint(folder) != before


def test_a_model_in_torch_has_another_fingerprint_when_its_weights_change(tmp_path: Path) -> None:
    model = load_dual_encoder(save(tmp_path))
    before = model.fingerprint()
    assert load_dual_encoder(tmp_path / "dual").fingerprint() == before
    with torch.no_grad():
        next(model.parameters())[0, 0] += 1
    assert model.fingerprint() != before


def test_a_missing_file_has_no_fingerprint(tmp_path: Path) -> None:
    folder = save(tmp_path)
    (folder / "model.safetensors").unlink()
    with pytest.raises(InputError, match=r"no file .*model\.safetensors"):
        dual_encoder_fingerprint(folder)
