"""Tiny random BERTs with a tokenizer, saved as folders; and their scores by transformers."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from anncur.items import Item, Query
from anncur.models.checkpoint import ModelCard
from anncur.tokens import PairBatch, PairFormat, PairTokenizer

TEXT = "small bat that eats fruit a large cat with stripes lives in the forest of many old trees and rivers"
WORDS = TEXT.split()
VOCABULARY = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "[unused0]", "[unused1]", "[unused2]", "[", "]", *WORDS]
QUERY = Query("the small bat that eats fruit in trees", mention=(4, 13))
CONFIG: dict[str, Any] = {
    "vocab_size": len(VOCABULARY),
    "hidden_size": 32,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "intermediate_size": 64,
    "max_position_embeddings": 64,
    "initializer_range": 0.4,  # far from linear, so that a wrong activation or a lost bias shows
}


def make_folder(
    folder: Path,
    *,
    head: Literal["emb", "cls"] = "emb",
    format: PairFormat | None = None,
    n_layers: int = 2,
    seed: int = 0,
) -> Path:
    """A random cross-encoder as `anncur train` writes it."""
    save_model(folder, head=head, n_layers=n_layers, seed=seed)
    ModelCard("cross-encoder", head, format or PairFormat(32, 24)).write(folder)
    return folder


def save_model(folder: Path, *, head: Literal["emb", "cls"], n_layers: int = 2, seed: int = 0) -> Any:
    """A random BERT and its tokenizer as transformers writes them; returns the model."""
    import torch
    from transformers import BertConfig, BertForSequenceClassification, BertModel

    config = BertConfig(**{**CONFIG, "num_hidden_layers": n_layers, "num_labels": 1})
    classifier, encoder = _untyped(BertForSequenceClassification), _untyped(BertModel)
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        model = classifier(config) if head == "cls" else encoder(config, add_pooling_layer=False)
        for name, parameter in model.named_parameters():
            if parameter.ndim == 1:  # biases and norms are trivial in a new model
                torch.nn.init.normal_(parameter, mean=float("LayerNorm.weight" in name), std=0.3)
    model.eval().save_pretrained(folder)
    write_tokenizer(folder)
    return model


def write_tokenizer(folder: Path) -> None:
    """A WordPiece tokenizer of a few words."""
    from tokenizers import Tokenizer, models, normalizers, pre_tokenizers, processors
    from transformers import PreTrainedTokenizerFast

    numbers = {word: number for number, word in enumerate(VOCABULARY)}
    tokenizer = Tokenizer(models.WordPiece(numbers, unk_token="[UNK]"))
    tokenizer.normalizer = normalizers.BertNormalizer()
    tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    tokenizer.post_processor = processors.BertProcessing(("[SEP]", numbers["[SEP]"]), ("[CLS]", numbers["[CLS]"]))
    _untyped(PreTrainedTokenizerFast)(
        tokenizer_object=tokenizer,
        pad_token="[PAD]",
        unk_token="[UNK]",
        cls_token="[CLS]",
        sep_token="[SEP]",
        model_input_names=["input_ids", "token_type_ids", "attention_mask"],
    ).save_pretrained(folder)


def make_items(n_items: int, *, seed: int = 0) -> list[Item]:
    """Items of many lengths."""
    rng = np.random.default_rng(seed)
    texts = [" ".join(rng.choice(WORDS, size=rng.integers(1, 30))) for _ in range(n_items)]
    return [Item(str(place), text, title=" ".join(text.split()[:2])) for place, text in enumerate(texts)]


def transformers_scores(
    folder: Path, query: Query, items: list[Item], *, state: dict[str, Any] | None = None
) -> NDArray[np.float32]:
    """The scores of transformers' own implementation, with other weights if given."""
    card = ModelCard.from_json((folder / "anncur.json").read_text(), where="card")
    tokenizer = PairTokenizer.from_folder(folder, card.text)
    batch = tokenizer.assemble([tokenizer.query(query)] * len(items), tokenizer.items(items))
    return run_transformers(folder, batch, head=card.head, state=state)


def run_transformers(
    folder: Path, batch: PairBatch, *, head: str, state: dict[str, Any] | None = None
) -> NDArray[np.float32]:
    """The scores of a batch."""
    import torch
    from transformers import BertForSequenceClassification, BertModel

    if head == "cls":
        model = _untyped(BertForSequenceClassification).from_pretrained(folder)
    else:
        model = _untyped(BertModel).from_pretrained(folder, add_pooling_layer=False)
    model.eval()
    if state is not None:
        model.load_state_dict({key: torch.from_numpy(value) for key, value in state.items()})
    with torch.no_grad():
        output = model(
            input_ids=torch.from_numpy(batch.token_ids).long(),
            token_type_ids=torch.from_numpy(batch.segment_ids).long(),
            position_ids=torch.from_numpy(batch.position_ids).long(),
            attention_mask=torch.from_numpy(batch.mask).long(),
        )
    if head == "cls":
        scores: NDArray[np.float32] = output.logits[:, 0].numpy()
        return scores
    states = output.last_hidden_state.numpy()
    start, end, entity = (states[np.arange(len(states)), column] for column in batch.marks.T)
    dots: NDArray[np.float32] = (0.5 * (start + end) * entity).sum(axis=1)
    return dots


def _untyped(thing: Any) -> Any:
    """The models of transformers, which have no types."""
    return thing
