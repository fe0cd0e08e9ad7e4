"""Cross-encoders and dual encoders: what they compute, how they are made, and what they refuse."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("torch", reason="needs the extra `train`")
pytest.importorskip("transformers", reason="needs the extra `train`")

import torch
import transformers

from anncur import Item, Query
from anncur.errors import FileFormatError, InputError
from anncur.models.encoders import (
    CrossEncoder,
    DualEncoder,
    load_cross_encoder,
    load_dual_encoder,
    new_cross_encoder,
    new_dual_encoder,
)
from anncur.tokens import PairBatch, PairFormat
from toy_linking import VOCABULARY, WORDS, tokenizer_json, write_network

TEXT = PairFormat(24, 16)


@pytest.fixture(scope="module")
def network(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A network of two layers with weights large enough that texts have different scores."""
    return write_network(tmp_path_factory.mktemp("network"), num_hidden_layers=2, initializer_range=0.3)


def transformers_model(kind: Any, folder: Path) -> Any:
    """A model of transformers, which has no types, for inference."""
    return kind.from_pretrained(folder).eval()


def pairs(n: int = 12, seed: int = 0) -> tuple[list[Query], list[Item]]:
    """Texts of many lengths."""
    rng = np.random.default_rng(seed)

    def text() -> str:
        return " ".join(rng.choice(WORDS, size=rng.integers(1, 20)))

    queries = [Query(found, mention=(0, len(found.split()[0]))) for found in (text() for _ in range(n))]
    return queries, [Item(str(number), text(), text()) for number in range(n)]


def scores(model: CrossEncoder, n: int = 12) -> np.ndarray:
    queries, items = pairs(n)
    return model.score_tokens(model.tokenizer.queries(queries), model.tokenizer.items(items))


def batch_of(model: CrossEncoder, n: int = 12) -> PairBatch:
    queries, items = pairs(n)
    return model.tokenizer.assemble(model.tokenizer.queries(queries), model.tokenizer.items(items))


def inputs(batch: PairBatch) -> dict[str, Any]:
    names = {"input_ids": "token_ids", "token_type_ids": "segment_ids", "position_ids": "position_ids"}
    return {name: torch.from_numpy(getattr(batch, own)).long() for name, own in names.items()} | {
        "attention_mask": torch.from_numpy(batch.mask).long()
    }


def test_an_emb_score_is_the_mean_of_the_mentions_marks_times_the_entitys(network: Path) -> None:
    model = new_cross_encoder(network, "emb", TEXT)
    batch = batch_of(model)
    own = transformers_model(transformers.BertModel, network)
    with torch.no_grad():
        states = own(**inputs(batch)).last_hidden_state.numpy()
    places = [[list(row).index(VOCABULARY.index(f"[unused{n}]")) for n in range(3)] for row in batch.token_ids]
    expected = [(row[a] + row[b]) / 2 @ row[c] for row, (a, b, c) in zip(states, places, strict=True)]
    np.testing.assert_allclose(scores(model), expected, atol=1e-4)
    assert np.std(expected) > 0.1, "scores must differ for this test to mean anything"


def test_a_cls_score_is_the_logit_of_transformers_classifier(network: Path, tmp_path: Path) -> None:
    torch.manual_seed(0)
    model = new_cross_encoder(network, "cls", TEXT)
    torch.nn.init.normal_(model.network.classifier.weight)  # type: ignore[union-attr, arg-type]
    model.save(tmp_path)
    own = transformers_model(transformers.BertForSequenceClassification, tmp_path)
    with torch.no_grad():
        expected = own(**inputs(batch_of(model))).logits[:, 0].numpy()
    np.testing.assert_allclose(scores(model), expected, atol=1e-5)
    assert np.std(expected) > 0.1


@pytest.mark.parametrize("head", ["emb", "cls"])
def test_training_and_inference_give_the_same_scores(network: Path, head: str) -> None:
    model = new_cross_encoder(network, head, TEXT).eval()
    np.testing.assert_allclose(model(batch_of(model)).detach().numpy(), scores(model), atol=1e-5)


@pytest.mark.parametrize("head", ["emb", "cls"])
def test_gradients_are_those_of_the_whole_network(network: Path, head: str) -> None:
    model = new_cross_encoder(network, head, TEXT).eval()
    batch = batch_of(model)
    model(batch).sum().backward()
    given = {name: parameter.grad.clone() for name, parameter in model.named_parameters() if parameter.grad is not None}
    model.zero_grad()
    output = model.network(**inputs(batch))
    if head == "cls":
        whole = output.logits[:, 0]
    else:
        rows = torch.arange(len(batch.marks))
        start, end, entity = (output.last_hidden_state[rows, column] for column in batch.marks.T.tolist())
        whole = ((start + end) / 2 * entity).sum(dim=1)
    whole.sum().backward()
    for name, parameter in model.named_parameters():
        expected = parameter.grad if parameter.grad is not None else torch.zeros_like(parameter)
        torch.testing.assert_close(given.get(name, torch.zeros_like(parameter)), expected, atol=1e-3, rtol=1e-3)


@pytest.mark.parametrize("head", ["emb", "cls"])
@pytest.mark.parametrize("format", [TEXT, PairFormat(24, 16, "fixed-offset")], ids=["contiguous", "fixed"])
def test_a_saved_cross_encoder_scores_the_same(network: Path, tmp_path: Path, head: str, format: PairFormat) -> None:
    model = new_cross_encoder(network, head, format)
    model.save(tmp_path / "saved")
    again = load_cross_encoder(tmp_path / "saved")
    assert again.tokenizer.format == format
    assert again.head == head
    np.testing.assert_array_equal(scores(again), scores(model))


@pytest.mark.parametrize("head", ["emb", "cls"])
def test_a_score_does_not_depend_on_the_pairs_beside_it(
    network: Path, head: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = new_cross_encoder(network, head, TEXT)
    together = scores(model)
    queries, items = pairs()
    tokens = list(zip(model.tokenizer.queries(queries), model.tokenizer.items(items), strict=True))
    alone = [model.score_tokens([query], [item])[0] for query, item in tokens]
    np.testing.assert_allclose(together, alone, atol=1e-5)
    monkeypatch.setattr("anncur.models.encoders.TOKENS_PER_BATCH", 100)
    np.testing.assert_allclose(together, scores(model), atol=1e-5)


def test_no_pairs_have_no_scores(network: Path) -> None:
    assert new_cross_encoder(network, "emb", TEXT).score_tokens([], []).shape == (0,)


def test_fewer_layers_are_the_first_ones(network: Path) -> None:
    whole = new_cross_encoder(network, "emb", TEXT)
    shallow = new_cross_encoder(network, "emb", TEXT, layers=1)
    assert shallow.network.config.num_hidden_layers == 1
    weights = whole.network.state_dict()
    kept = shallow.network.state_dict()
    assert {name for name in weights if name not in kept} == {name for name in weights if "encoder.layer.1." in name}
    assert all(torch.equal(value, weights[name]) for name, value in kept.items())


def test_a_network_with_fewer_layers_is_saved_with_fewer_layers(network: Path, tmp_path: Path) -> None:
    model = new_cross_encoder(network, "emb", TEXT, layers=1)
    model.save(tmp_path)
    np.testing.assert_array_equal(scores(load_cross_encoder(tmp_path)), scores(model))


def word_embeddings(network: Any) -> torch.Tensor:
    weight: torch.Tensor = network.get_input_embeddings().weight
    return weight


def test_a_narrow_networks_word_embeddings_are_the_best_of_its_width(tmp_path: Path) -> None:
    """Their dot products are the best approximation of rank `width`: Eckart and Young's, by another SVD."""
    folder = write_network(tmp_path, hidden_size=64, initializer_range=0.3)
    wide = word_embeddings(new_cross_encoder(folder, "emb", TEXT).network).detach().numpy()
    narrow_model = new_cross_encoder(folder, "emb", TEXT, width=32)
    narrow = word_embeddings(narrow_model.network).detach().numpy()
    assert narrow.shape == (len(VOCABULARY), 32)
    left, values, _ = np.linalg.svd(wide.astype(np.float64), full_matrices=False)
    best = (left[:, :32] * values[:32] ** 2) @ left[:, :32].T
    np.testing.assert_allclose(narrow @ narrow.T, best, atol=1e-4)
    assert np.isfinite(scores(narrow_model)).all()


def test_a_narrow_network_may_also_have_fewer_layers(network: Path, tmp_path: Path) -> None:
    folder = write_network(tmp_path, hidden_size=64, num_hidden_layers=3)
    model = new_cross_encoder(folder, "cls", TEXT, width=32, layers=2)
    config = model.network.config
    assert (config.hidden_size, config.num_hidden_layers, config.num_attention_heads) == (32, 2, 1)
    model.save(tmp_path / "saved")
    np.testing.assert_array_equal(scores(load_cross_encoder(tmp_path / "saved")), scores(model))


@pytest.mark.parametrize(
    ("options", "problem"),
    [
        ({"layers": 0}, "layers must be between 1 and the network's 2, got 0"),
        ({"layers": 3}, "layers must be between 1 and the network's 2, got 3"),
        ({"width": 64}, "width must be at most the network's 32, got 64"),
        ({"width": 20}, "width must be a multiple of 32, got 20"),
        ({"width": 0}, "width must be"),
        ({"width": -32}, "width must be"),
    ],
)
def test_a_shape_that_does_not_fit_the_network_is_refused(network: Path, options: dict[str, int], problem: str) -> None:
    with pytest.raises(InputError, match=problem):
        new_cross_encoder(network, "emb", TEXT, **options)


@pytest.mark.parametrize("head", ["mean", "cls"])
@pytest.mark.parametrize("is_shared", [True, False])
def test_a_saved_dual_encoder_embeds_the_same(network: Path, tmp_path: Path, head: Any, is_shared: bool) -> None:
    model = new_dual_encoder(network, TEXT, head=head, is_shared=is_shared)
    with torch.no_grad():
        word_embeddings(model.query_tower).add_(0.1 * torch.randn(1, 32))
    model.save(tmp_path)
    again = load_dual_encoder(tmp_path)
    assert (again.head, again.is_shared) == (head, is_shared)
    queries, items = pairs()
    np.testing.assert_array_equal(again.embed_queries(queries), model.embed_queries(queries))
    np.testing.assert_array_equal(again.embed_items(items), model.embed_items(items))


@pytest.mark.parametrize("is_shared", [True, False])
def test_towers_learn_together_only_where_they_are_shared(network: Path, is_shared: bool) -> None:
    model = new_dual_encoder(network, TEXT, is_shared=is_shared)
    queries, _ = pairs()
    before = model.embed_queries(queries)
    with torch.no_grad():
        word_embeddings(model.item_tower).mul_(2)
    assert np.array_equal(model.embed_queries(queries), before) is not is_shared


def test_a_cls_vector_is_the_raw_first_state_and_a_mean_vector_the_mean_of_length_one(network: Path) -> None:
    _, items = pairs()
    own = transformers_model(transformers.BertModel, network)
    for head in ("cls", "mean"):
        model = new_dual_encoder(network, TEXT, head=head, is_shared=True)
        vectors = model.embed_items(items)
        for tokens, vector in zip(model.tokenizer.items(items), vectors, strict=True):
            with torch.no_grad():
                states = own(torch.tensor([[VOCABULARY.index("[CLS]"), *tokens]])).last_hidden_state[0].numpy()
            mean = states.mean(axis=0)
            expected = states[0] if head == "cls" else mean / np.linalg.norm(mean)
            np.testing.assert_allclose(vector, expected, atol=1e-4)


def test_a_vector_does_not_depend_on_the_texts_beside_it(network: Path) -> None:
    queries, items = pairs()
    for head in ("cls", "mean"):
        model: DualEncoder = new_dual_encoder(network, TEXT, head=head)
        alone = np.concatenate([model.embed_items([item]) for item in items])
        np.testing.assert_allclose(model.embed_items(items), alone, atol=1e-5)
        alone = np.concatenate([model.embed_queries([query]) for query in queries])
        np.testing.assert_allclose(model.embed_queries(queries), alone, atol=1e-5)


def test_an_emb_cross_encoder_without_marks_is_refused(network: Path) -> None:
    with pytest.raises(InputError, match="needs marks"):
        new_cross_encoder(network, "emb", PairFormat(24, 16, marks=False))


def test_texts_longer_than_the_networks_positions_are_refused(network: Path) -> None:
    with pytest.raises(InputError, match="texts of 65 tokens are longer than the 64 that this network can read"):
        new_cross_encoder(network, "emb", PairFormat(40, 25))
    new_cross_encoder(network, "emb", PairFormat(40, 24))
    with pytest.raises(InputError, match="texts of 65 tokens"):
        new_dual_encoder(network, PairFormat(40, 64))
    new_dual_encoder(network, PairFormat(64, 63))


def test_a_model_of_the_other_kind_is_refused(network: Path, tmp_path: Path) -> None:
    new_cross_encoder(network, "emb", TEXT).save(tmp_path / "cross")
    new_dual_encoder(network, TEXT, is_shared=True).save(tmp_path / "dual")
    with pytest.raises(InputError, match="holds a cross-encoder, where a dual-encoder is needed"):
        load_dual_encoder(tmp_path / "cross")
    with pytest.raises(InputError, match="holds a dual-encoder, where a cross-encoder is needed"):
        load_cross_encoder(tmp_path / "dual")


def test_a_folder_that_was_not_written_here_is_refused(network: Path, tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"no .*anncur\.json; pass a folder that `anncur train`"):
        load_cross_encoder(network)
    with pytest.raises(InputError, match=r"no .*anncur\.json"):
        load_cross_encoder(tmp_path / "nowhere")


@pytest.mark.parametrize(
    ("card", "problem"),
    [
        ("not JSON", "not JSON"),
        ("[]", "must hold one JSON object"),
        ({"format": 2}, "format 2 is not known here"),
        ({"format": 1, "kind": "cross-encoder"}, "not a model's description"),
        ({"format": 1, "kind": "cross-encoder", "head": "emb", "text": {"query_length": 1}}, "query_length must be"),
        ({"format": 1, "kind": "cross-encoder", "head": "mean", "text": {}}, "with the head 'mean' is not known"),
        ({"format": 1, "kind": "tree", "head": "emb", "text": {}}, "a tree with the head 'emb' is not known"),
    ],
)
def test_a_card_that_can_not_be_read_is_named(network: Path, tmp_path: Path, card: Any, problem: str) -> None:
    new_cross_encoder(network, "emb", TEXT).save(tmp_path)
    (tmp_path / "anncur.json").write_text(card if isinstance(card, str) else json.dumps(card))
    with pytest.raises(FileFormatError, match=rf"anncur\.json: .*{problem}"):
        load_cross_encoder(tmp_path)


def test_a_folder_without_a_config_is_refused(network: Path, tmp_path: Path) -> None:
    new_cross_encoder(network, "emb", TEXT).save(tmp_path)
    (tmp_path / "config.json").unlink()
    with pytest.raises(InputError, match=r"no file .*config\.json; pass the folder of a transformers model"):
        load_cross_encoder(tmp_path)


@pytest.mark.parametrize(
    "change",
    [
        {"hidden_size": 64},
        {"num_hidden_layers": 3},
        {"num_hidden_layers": 1},
        {"vocab_size": 99},
        {"model_type": "none-such"},
    ],
    ids=str,
)
@pytest.mark.parametrize("head", ["emb", "cls"])
def test_weights_that_do_not_match_their_config_are_refused(
    network: Path, tmp_path: Path, head: str, change: dict[str, Any]
) -> None:
    new_cross_encoder(network, head, TEXT).save(tmp_path)
    config = json.loads((tmp_path / "config.json").read_text())
    (tmp_path / "config.json").write_text(json.dumps({**config, **change}))
    with pytest.raises(InputError, match="doesn't hold the weights of the network in its config"):
        load_cross_encoder(tmp_path)
    with pytest.raises(InputError, match="doesn't hold the weights of the network in its config"):
        new_cross_encoder(tmp_path, head, TEXT)


def test_damaged_or_missing_weights_are_refused(network: Path, tmp_path: Path) -> None:
    new_cross_encoder(network, "emb", TEXT).save(tmp_path)
    weights = tmp_path / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:-100])
    with pytest.raises(InputError, match="doesn't hold the weights"):
        load_cross_encoder(tmp_path)
    weights.unlink()
    with pytest.raises(InputError, match="doesn't hold the weights"):
        load_cross_encoder(tmp_path)


def test_a_trained_cls_cross_encoder_without_its_classifier_is_refused(network: Path, tmp_path: Path) -> None:
    new_cross_encoder(network, "emb", TEXT).save(tmp_path)
    card = json.loads((tmp_path / "anncur.json").read_text())
    (tmp_path / "anncur.json").write_text(json.dumps({**card, "head": "cls"}))
    with pytest.raises(InputError, match=r"missing or too many, such as classifier\.bias"):
        load_cross_encoder(tmp_path)


@pytest.mark.parametrize("kind", ["gpt2", "distilbert", "roberta"])
@pytest.mark.parametrize("head", ["emb", "cls"])
def test_a_network_of_another_architecture_is_refused(tmp_path: Path, kind: str, head: str) -> None:
    shape = {
        "gpt2": {"n_embd": 32, "n_layer": 1, "n_head": 2},
        "distilbert": {"dim": 32, "n_layers": 1, "n_heads": 2, "hidden_dim": 32},
        "roberta": {
            "hidden_size": 32,
            "num_hidden_layers": 1,
            "num_attention_heads": 2,
            "intermediate_size": 32,
            "type_vocab_size": 1,
        },
    }[kind]
    config = transformers.AutoConfig.for_model(kind, vocab_size=len(VOCABULARY), **shape)
    model: Any = transformers.AutoModel.from_config(config)  # type: ignore[no-untyped-call]
    model.save_pretrained(tmp_path)
    (tmp_path / "tokenizer.json").write_text(tokenizer_json(), encoding="utf-8")
    with pytest.raises(InputError, match=f"holds a network of the kind '{kind}'; take one like BERT"):
        new_cross_encoder(tmp_path, head, TEXT)
    with pytest.raises(InputError, match=f"holds a network of the kind '{kind}'"):
        new_dual_encoder(tmp_path, TEXT)
