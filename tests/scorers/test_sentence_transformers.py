"""A real sentence-transformers CrossEncoder, tiny and untrained, serves as a scorer with raw scores."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import anncur

VOCABULARY = [
    "[PAD]",
    "[UNK]",
    "[CLS]",
    "[SEP]",
    "[MASK]",
    "small",
    "bat",
    "that",
    "eats",
    "fruit",
    "a",
    "large",
    "cat",
]
QUERY = anncur.Query("small bat that eats fruit")
ITEMS = [anncur.Item("a", "eats fruit", "bat"), anncur.Item("b", "a large cat"), anncur.Item("c", "bat")]


@pytest.fixture(scope="module")
def cross_encoder(tmp_path_factory: pytest.TempPathFactory) -> Any:
    sentence_transformers = pytest.importorskip("sentence_transformers", reason="needs the extra `st`")
    transformers: Any = pytest.importorskip("transformers", reason="needs the extra `st`")
    import torch

    folder: Path = tmp_path_factory.mktemp("tiny")
    (folder / "vocab.txt").write_text("\n".join(VOCABULARY) + "\n")
    config = transformers.BertConfig(
        vocab_size=len(VOCABULARY), hidden_size=16, num_hidden_layers=1, num_attention_heads=2,
        intermediate_size=32, num_labels=1, max_position_embeddings=64,
    )  # fmt: skip
    torch.manual_seed(0)
    transformers.BertForSequenceClassification(config).save_pretrained(folder)
    transformers.BertTokenizerFast(vocab_file=str(folder / "vocab.txt")).save_pretrained(folder)
    return sentence_transformers.CrossEncoder(str(folder), device="cpu")


def test_scores_are_the_raw_logits(cross_encoder: Any) -> None:
    import torch

    pairs = [(QUERY.text, item.full_text) for item in ITEMS]
    raw = cross_encoder.predict(pairs, activation_fn=torch.nn.Identity())
    squashed = cross_encoder.predict(pairs)
    assert not np.allclose(raw, squashed), "the model's own activation must differ for this test to mean anything"
    np.testing.assert_allclose(anncur.load_scorer(cross_encoder).score(QUERY, ITEMS), raw, atol=1e-6)


def test_the_fingerprint_names_the_model(cross_encoder: Any) -> None:
    assert cross_encoder.config._name_or_path in anncur.load_scorer(cross_encoder).fingerprint


def test_an_index_is_built_and_searched_with_it(cross_encoder: Any) -> None:
    index = anncur.Index.build(ITEMS, cross_encoder, ["large bat", "small cat"])
    hits = index.search(QUERY, k=3)
    exact = anncur.load_scorer(cross_encoder).score(QUERY, ITEMS)
    assert hits.ids == [ITEMS[position].id for position in np.argsort(-exact)]
