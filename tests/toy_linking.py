"""A small folder in ZESHEL's layout, and a tiny random BERT with its words as vocabulary.

Every world's entities are named by one word each, and every entity's text mentions two others: comparing words links
them all."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

WORDS = [
    *("ant", "bat", "cat", "dog", "eel", "fox", "gnu", "hen", "ibis", "jay", "koala", "lynx"),
    *("mole", "newt", "owl", "pig", "quail", "rat", "seal", "toad", "vole", "wolf", "yak", "zebu"),
]
FILLERS = ["near", "and", "today", "stands", "unused", "sep", "fruit", "##s", "a", "the"]
SPECIAL = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
VOCABULARY = [*SPECIAL, "[unused0]", "[unused1]", "[unused2]", "[", "]", *FILLERS, *WORDS]
WORLDS = {  # by split; worlds of val and test have other entities, named by the same words
    "train": {"alpha": WORDS[:12], "beta": WORDS[12:]},
    "val": {"gamma": WORDS[::2]},
    "test": {"delta": WORDS[1::2]},
}


def write_zeshel(folder: Path) -> Path:
    """Two worlds to train on, one to choose by, one to test on; 12 entities and 24 mentions each."""
    for split, worlds in WORLDS.items():
        for world, words in worlds.items():
            write_lines(folder / "documents" / f"{world}.json", documents(world, words))
        rows = [mention for world, words in worlds.items() for mention in mentions(world, words)]
        write_lines(folder / "mentions" / f"{split}.json", rows)
    return folder


def documents(world: str, words: list[str]) -> list[dict[str, Any]]:
    n = len(words)
    texts = [f"{word} stands near {words[(i + 1) % n]} and {words[(i + 5) % n]} today" for i, word in enumerate(words)]
    return [
        {"document_id": f"{world}-{i}", "title": word, "text": text}
        for i, (word, text) in enumerate(zip(words, texts, strict=True))
    ]


def mentions(world: str, words: list[str]) -> list[dict[str, Any]]:
    """Each document names two others, at its tokens 3 and 5."""
    found = []
    for i in range(len(words)):
        for place, step in ((3, 1), (5, 5)):
            label = (i + step) % len(words)
            found.append(
                {
                    "mention_id": f"{world}-{i}-{place}",
                    "context_document_id": f"{world}-{i}",
                    "label_document_id": f"{world}-{label}",
                    "start_index": place,
                    "end_index": place,
                    "text": words[label],
                    "corpus": world,
                    "category": "HIGH_OVERLAP",
                }
            )
    return found


def write_lines(file: Path, records: Iterable[Mapping[str, Any]]) -> Path:
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text("".join(json.dumps(record) + "\n" for record in records), encoding="utf-8")
    return file


def tokenizer_json(vocabulary: Iterable[str] = VOCABULARY) -> str:
    """BERT's own WordPiece over these words."""
    from tokenizers import AddedToken, Tokenizer
    from tokenizers.models import WordPiece
    from tokenizers.normalizers import BertNormalizer
    from tokenizers.pre_tokenizers import BertPreTokenizer
    from tokenizers.processors import TemplateProcessing

    ids = {token: number for number, token in enumerate(vocabulary)}
    tokenizer = Tokenizer(WordPiece(ids, unk_token="[UNK]"))
    tokenizer.normalizer = BertNormalizer()
    tokenizer.pre_tokenizer = BertPreTokenizer()
    tokenizer.post_processor = TemplateProcessing(
        single="[CLS] $A [SEP]",
        pair="[CLS] $A [SEP] $B:1 [SEP]:1",
        special_tokens=[(token, ids[token]) for token in ("[CLS]", "[SEP]")],
    )
    tokenizer.add_special_tokens([AddedToken(token, special=True) for token in SPECIAL])
    return str(tokenizer.to_str())


def write_network(folder: Path, *, seed: int = 0, **shape: Any) -> Path:
    """A random BERT as transformers writes it, with its tokenizer."""
    import torch
    from transformers import BertConfig, BertModel

    torch.set_num_threads(1)  # more threads are slower on such small matrices
    defaults = {"hidden_size": 32, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 32}
    config = BertConfig(**{"vocab_size": len(VOCABULARY), "max_position_embeddings": 64, **defaults, **shape})
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        network = BertModel(config)  # type: ignore[no-untyped-call]
    network.save_pretrained(folder)
    (folder / "tokenizer.json").write_text(tokenizer_json(), encoding="utf-8")
    return folder
