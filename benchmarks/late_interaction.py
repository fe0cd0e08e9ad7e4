"""A scorer by late interaction: for every token of the query the most similar token of the item, and their mean.

Tokens are those of MiniLM. For a fixed set of items `MaxSim` scores all of them at once; `maxsim` is a scorer like any
other, so that `anncur` can be tried with it on any corpus:

    PYTHONPATH=benchmarks anncur bench run CORPUS --scorer late_interaction:maxsim"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np

from anncur.arrays import FloatMatrix, FloatVector
from anncur.items import Item, Query

ITEM_TOKENS, LONG_ITEM_TOKENS, QUERY_TOKENS = 40, 128, 32  # an entity's, a document's, a query's; more are cut off
TEXTS_AT_ONCE = 64
MOST_BLOCKS = 128  # of items, whose tokens are kept


class MiniLMTokens:
    """MiniLM, of which the vectors of single tokens are taken."""

    def __init__(self) -> None:
        from transformers import AutoModel, AutoTokenizer

        from anncur.retrievers.dual_encoder import minilm_folder

        self._model = AutoModel.from_pretrained(minilm_folder()).eval()
        self._tokenizer = AutoTokenizer.from_pretrained(minilm_folder())

    def states(self, texts: Sequence[str], most: int) -> Iterator[FloatMatrix]:
        """Of every text the states of its tokens, (n_tokens, hidden)."""
        import torch

        for start in range(0, len(texts), TEXTS_AT_ONCE):
            some = list(texts[start : start + TEXTS_AT_ONCE])
            batch = self._tokenizer(some, truncation=True, max_length=most, padding=True, return_tensors="pt")
            with torch.no_grad():
                states = self._model(**batch).last_hidden_state.numpy()
            for row, mask in zip(states, batch["attention_mask"].numpy(), strict=True):
                yield row[mask.astype(bool)]

    def vectors(self, texts: Sequence[str], most: int) -> list[FloatMatrix]:
        """Vectors of length one for every token of every text, (n_tokens, hidden) each."""
        return [unit(states) for states in self.states(texts, most)]


def unit(rows: FloatMatrix) -> FloatMatrix:
    """Rows of length one."""
    scaled: FloatMatrix = rows / np.linalg.norm(rows, axis=-1, keepdims=True)
    return scaled


class MaxSim:
    """Late interaction with the same items for every query."""

    def __init__(self, items: Sequence[Item], tokens: MiniLMTokens, *, most: int = ITEM_TOKENS) -> None:
        self._tokens = tokens
        states = list(tokens.states([item.full_text for item in items], most))
        self.embeddings = unit(np.stack([each.mean(axis=0) for each in states]))  # (n_items, hidden)
        found = [unit(each) for each in states]
        self._item_tokens = np.concatenate(found)  # (tokens of all items, hidden)
        self._starts = np.cumsum([0, *(len(each) for each in found[:-1])])

    def scores(self, queries: Sequence[Query]) -> FloatMatrix:
        """(n_queries, n_items)"""
        texts = [text_near(query) for query in queries]
        return np.stack([self.row(vectors) for vectors in self._tokens.vectors(texts, QUERY_TOKENS)])

    def row(self, query_tokens: FloatMatrix) -> FloatVector:
        """The scores of one query, from its tokens. (n_items,)"""
        likeness = self._item_tokens @ query_tokens.T  # (tokens of all items, tokens of the query)
        means: FloatVector = np.maximum.reduceat(likeness, self._starts).mean(axis=1)
        return means


class LateInteraction:
    """A scorer over documents, which keeps the tokens of queries, and of the blocks of items that it saw last."""

    def __init__(self) -> None:
        self._tokens: MiniLMTokens | None = None
        self._blocks: dict[tuple[str, ...], MaxSim] = {}
        self._queries: dict[str, FloatMatrix] = {}

    def score(self, query: Query, items: Sequence[Item]) -> FloatVector:
        """(n_items,)"""
        self._tokens = self._tokens or MiniLMTokens()
        text, texts = text_near(query), tuple(item.full_text for item in items)
        if text not in self._queries:
            (self._queries[text],) = self._tokens.vectors([text], QUERY_TOKENS)
        block = self._blocks.pop(texts, None) or MaxSim(items, self._tokens, most=LONG_ITEM_TOKENS)
        self._blocks[texts] = block
        if len(self._blocks) > MOST_BLOCKS:
            del self._blocks[next(iter(self._blocks))]
        return block.row(self._queries[text])


def text_near(query: Query, n_words: int = 8) -> str:
    """The mention with a few words around it, so that it isn't cut away."""
    if query.mention is None:
        return query.text
    start, stop = query.mention
    left, right = query.text[:start].split()[-n_words:], query.text[stop:].split()[:n_words]
    return " ".join([*left, query.text[start:stop], *right])


maxsim = LateInteraction()
