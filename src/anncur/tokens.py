"""Texts as tokens: a query and an item as one input of a cross-encoder, or each as an input of a dual encoder.

A query is `[CLS] left [Ms] mention [Me] right [SEP]` (without a mention `[CLS] [Ms] text [Me] [SEP]`), an item is
`title [ENT] description [SEP]`. Both are tokenised apart, so an item's tokens can be kept and joined to any query.
Feeds `models/` and `scorers/onnx.py`. Knows no model: only the tokenizer's file and integers."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, TypeAlias

import numpy as np
from numpy.typing import NDArray

from anncur.errors import FileFormatError, InputError
from anncur.items import Item, Query
from anncur.numbers import whole_number

if TYPE_CHECKING:
    from tokenizers import Tokenizer

Layout: TypeAlias = Literal["contiguous", "fixed-offset"]
Tokens: TypeAlias = NDArray[np.int32]  # (n_tokens,), one text

MENTION_START, MENTION_END, ENTITY = "[unused0]", "[unused1]", "[unused2]"


@dataclass(frozen=True, slots=True)
class PairFormat:
    """How a pair is laid out.

    `query_length` counts [CLS] and [SEP], `item_length` its [SEP]. In the `contiguous` layout the item follows the
    query directly; in `fixed-offset` its positions start at `query_length`, however short the query is. Without
    `marks` a pair is the plain `[CLS] query [SEP] item [SEP]` of models that others trained."""

    query_length: int = 128
    item_length: int = 128
    layout: Layout = "contiguous"
    marks: bool = True

    def __post_init__(self) -> None:
        whole_number("query_length", self.query_length, least=8)
        whole_number("item_length", self.item_length, least=4)
        if self.layout not in ("contiguous", "fixed-offset"):
            raise InputError(f"layout must be 'contiguous' or 'fixed-offset', got {self.layout!r}")


@dataclass(frozen=True, slots=True)
class PairBatch:
    """Pairs as integer arrays, one row each, padded to the longest.

    `marks` has the columns of [Ms], [Me] and [ENT]; zeros in a format without marks."""

    token_ids: NDArray[np.int32]  # (n_pairs, width)
    segment_ids: NDArray[np.int32]  # (n_pairs, width), 0 for the query and 1 for the item
    position_ids: NDArray[np.int32]  # (n_pairs, width)
    mask: NDArray[np.int32]  # (n_pairs, width), 1 where there is a token
    marks: NDArray[np.int32]  # (n_pairs, 3)


class PairTokenizer:
    """Tokenises queries and items in a `PairFormat`."""

    def __init__(self, tokenizer: Tokenizer, format: PairFormat) -> None:
        self.format = format
        self._json = tokenizer.to_str()
        tokenizer.no_truncation()
        tokenizer.no_padding()
        tokenizer.encode_special_tokens = True  # "[SEP]" in a text is five characters
        self._tokenizer = tokenizer
        self._cls, self._sep, self.pad = (_known(tokenizer, token) for token in ("[CLS]", "[SEP]", "[PAD]"))
        marks = (MENTION_START, MENTION_END, ENTITY) if format.marks else ("[", "]")
        self._marks = [_known(tokenizer, token) for token in marks]

    @classmethod
    def from_folder(cls, folder: str | Path, format: PairFormat) -> PairTokenizer:
        """Read a folder's `tokenizer.json`."""
        file = Path(folder) / "tokenizer.json"
        if not file.is_file():
            raise InputError(f"no file {file}; a model's folder must hold its tokenizer.json")
        return cls.from_json(file.read_text(encoding="utf-8", errors="replace"), format, where=str(file))

    @classmethod
    def from_json(cls, text: str, format: PairFormat, *, where: str = "this text") -> PairTokenizer:
        """Read the text of a `tokenizer.json`; errors name `where` it is from."""
        from tokenizers import Tokenizer  # slow to import

        try:
            return cls(Tokenizer.from_str(text), format)
        except InputError:
            raise
        except Exception as error:
            raise FileFormatError(f"{where}: not a tokenizer.json: {error}") from error

    @property
    def json(self) -> str:
        """The text of `tokenizer.json`."""
        return self._json

    @property
    def fingerprint(self) -> str:
        """Names the tokenizer: two with the same fingerprint give the same tokens."""
        content = self._json + json.dumps(asdict(self.format), sort_keys=True)
        return hashlib.sha256(content.encode()).hexdigest()[:16]

    def query(self, query: Query) -> Tokens:
        """One query, [CLS] and [SEP] included."""
        return self.queries([query])[0]

    def queries(self, queries: Sequence[Query]) -> list[Tokens]:
        """Queries with their [CLS] and [SEP]; context is cut before a mention, and far context before near.

        In a format without marks a mention is in square brackets, as in the query's `marked_text`."""
        spans = [query.mention or (0, len(query.text)) for query in queries]
        parts = self._encode(
            part
            for query, (start, end) in zip(queries, spans, strict=True)
            for part in (query.text[:start], query.text[start:end], query.text[end:])
        )
        return [
            self._query(*parts[3 * number : 3 * number + 3], marks=self._around(query))
            for number, query in enumerate(queries)
        ]

    def items(self, items: Sequence[Item]) -> list[Tokens]:
        """Items with their [SEP]; a description is cut before a title, and [ENT] is never cut."""
        parts = self._encode(part for item in items for part in (item.title, item.text))
        return [self._item(*parts[first : first + 2]) for first in range(0, len(parts), 2)]

    def assemble(self, queries: Sequence[Tokens], items: Sequence[Tokens]) -> PairBatch:
        """Join each query to the item at the same position."""
        n_query = np.array([len(tokens) for tokens in queries], dtype=np.int32)
        n_item = np.array([len(tokens) for tokens in items], dtype=np.int32)
        columns = np.arange((n_query + n_item).max(initial=0), dtype=np.int32)
        is_item = columns >= n_query[:, None]
        token_ids = np.full(is_item.shape, self.pad, dtype=np.int32)
        for row, query, item in zip(token_ids, queries, items, strict=True):
            row[: len(query)] = query
            row[len(query) : len(query) + len(item)] = item
        shift = self.format.query_length - n_query if self.format.layout == "fixed-offset" else np.zeros_like(n_query)
        mask = columns < (n_query + n_item)[:, None]
        return PairBatch(
            token_ids=token_ids,
            segment_ids=(is_item & mask).astype(np.int32),
            position_ids=np.where(mask, columns + is_item * shift[:, None], 0).astype(np.int32),
            mask=mask.astype(np.int32),
            marks=self._mark_columns(token_ids),
        )

    def single(self, texts: Sequence[Tokens], *, are_items: bool) -> PairBatch:
        """Texts alone, as a dual encoder reads them; an item gets the [CLS] that it doesn't have in a pair."""
        start = np.array([self._cls] if are_items else [], dtype=np.int32)
        batch = self.assemble([start] * len(texts), texts)
        positions = np.arange(batch.mask.shape[1], dtype=np.int32) * batch.mask  # without the offset of a second text
        return replace(batch, segment_ids=np.zeros_like(batch.mask), position_ids=positions)

    def _around(self, query: Query) -> list[list[int]]:
        """The marks before and after the mention."""
        if not self.format.marks and query.mention is None:
            return [[], []]
        return [[mark] for mark in self._marks[:2]]

    def _query(self, left: list[int], mention: list[int], right: list[int], *, marks: list[list[int]]) -> Tokens:
        before, after = marks
        room = self.format.query_length - 2 - len(before) - len(after)
        mention = mention[:room]
        room -= len(mention)
        n_left = min(len(left), max(room - len(right), room // 2))
        left, right = left[len(left) - n_left :], right[: room - n_left]
        return self._tokens([self._cls, *left, *before, *mention, *after, *right, self._sep])

    def _item(self, title: list[int], text: list[int]) -> Tokens:
        entity = [self._marks[2]] if self.format.marks else []
        room = self.format.item_length - 1 - len(entity)
        title = title[:room]
        return self._tokens([*title, *entity, *text[: room - len(title)], self._sep])

    def _mark_columns(self, token_ids: NDArray[np.int32]) -> NDArray[np.int32]:
        if not self.format.marks or not token_ids.size:
            return np.zeros((len(token_ids), 3), dtype=np.int32)
        return np.stack([(token_ids == mark).argmax(axis=1) for mark in self._marks], axis=1).astype(np.int32)

    def _encode(self, texts: Iterable[str]) -> list[list[int]]:
        return [found.ids for found in self._tokenizer.encode_batch_fast(list(texts), add_special_tokens=False)]

    @staticmethod
    def _tokens(ids: list[int]) -> Tokens:
        return np.array(ids, dtype=np.int32)


def _known(tokenizer: Any, token: str) -> int:
    found: int | None = tokenizer.token_to_id(token)
    if found is None:
        raise InputError(
            f"this tokenizer has no token {token}; take a BERT-like one, or a format without marks if it is [unused…]"
        )
    return found
