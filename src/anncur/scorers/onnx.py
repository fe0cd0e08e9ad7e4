"""Scores pairs with a cross-encoder in one .onnx file, as `models/export.py` writes it; fast on CPUs.

Needs ONNX Runtime and tokenizers, which are loaded with the first file, but no torch. `models/session.py` scores pairs
in batches of one length. An index can store the tokens of items (`prepare`), so that they are tokenised once."""

from __future__ import annotations

import hashlib
import sys
import threading
from collections import OrderedDict
from collections.abc import Sequence
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from anncur.errors import FileFormatError, InputError
from anncur.items import Item, Query
from anncur.models.checkpoint import ModelCard
from anncur.models.export import CARD_KEY, N_TOKENS_KEY, TOKENIZER_KEY
from anncur.models.session import Session
from anncur.scorers.base import Pair
from anncur.tokens import PairBatch, PairTokenizer, Tokens

BUILTIN = Path(__file__).parent.parent / "assets" / "builtin.onnx"
REMEMBERED_BYTES = 64 * 2**20  # items and their tokens: about 50,000 of a paragraph each


class OnnxScorer:
    """A cross-encoder in ONNX Runtime; safe to call from several threads.

    `threads` of None takes one for each core that this process may use."""

    batch_size = 1024  # large enough to hold several pairs of each length

    def __init__(self, content: bytes, *, threads: int | None = None, where: str = "this model") -> None:
        self._session = Session(content, threads=threads, where=where)
        self.n_threads = self._session.n_threads  # no part of the fingerprint: scores don't depend on it
        self.fingerprint = f"onnx:{hashlib.sha256(content).hexdigest()[:16]}"
        self.tokenizer, n_tokens = _read_metadata(self._session, where)
        self._kept_as = np.dtype("<u2" if n_tokens <= 1 << 16 else "<i4")
        self._memo = _Memo(self.tokenizer, REMEMBERED_BYTES)

    @classmethod
    def open(cls, file: str | Path, *, threads: int | None = None) -> OnnxScorer:
        """Read a file that `anncur export` wrote."""
        path = Path(file)
        if path == BUILTIN and not path.is_file():
            raise InputError(
                "this installation of anncur has no builtin model; install it again, or name another scorer"
            )
        if not path.is_file():
            raise InputError(f"no file {path}; make one with: anncur export MODEL --out {path}")
        return cls(path.read_bytes(), threads=threads, where=str(path))

    def score(self, query: Query, items: Sequence[Item]) -> NDArray[np.float32]:
        """Raw scores, one per item."""
        return self.score_pairs([(query, item) for item in items])

    def score_pairs(self, pairs: Sequence[Pair]) -> NDArray[np.float32]:
        """Raw scores, one per pair."""
        queries = {id(query): query for query, _ in pairs}
        tokens = {key: self.tokenizer.query(query) for key, query in queries.items()}
        items = self._tokens([item for _, item in pairs])
        return self.score_tokens([tokens[id(query)] for query, _ in pairs], items)

    def score_tokens(self, queries: Sequence[Tokens], items: Sequence[Tokens]) -> NDArray[np.float32]:
        """Raw scores of tokenised queries, each with the item at the same position."""
        return self._session.run(
            [len(query) + len(item) for query, item in zip(queries, items, strict=True)],
            lambda chosen: self.tokenizer.assemble(
                [queries[place] for place in chosen], [items[place] for place in chosen]
            ),
        )

    def prepare(self, items: Sequence[Item]) -> list[bytes]:
        """The items' tokens, to be stored as `item.prepared`."""
        return [tokens.astype(self._kept_as).tobytes() for tokens in self.tokenizer.items(items)]

    def _tokens(self, items: Sequence[Item]) -> list[Tokens]:
        kept: list[bytes] = [getattr(item, "prepared", b"") for item in items]
        made = iter(self._memo.tokens([item for item, prepared in zip(items, kept, strict=True) if not prepared]))
        return [
            np.frombuffer(prepared, self._kept_as).astype(np.int32) if prepared else next(made) for prepared in kept
        ]


class _Memo:
    """Tokens of the items that were scored last, in at most `max_bytes` of memory."""

    def __init__(self, tokenizer: PairTokenizer, max_bytes: int) -> None:
        self._tokenizer = tokenizer
        self._max_bytes = max_bytes
        self._n_bytes = 0
        self._lock = threading.Lock()
        self._latest: OrderedDict[tuple[str, str], Tokens] = OrderedDict()

    def tokens(self, items: Sequence[Item]) -> list[Tokens]:
        """The tokens of each item; only new items are tokenised."""
        with self._lock:
            found = {key: self._latest[key] for key in map(_texts, items) if key in self._latest}
        new = {_texts(item): item for item in items if _texts(item) not in found}
        found.update(zip(new, self._tokenizer.items(list(new.values())), strict=True))
        with self._lock:
            for key, tokens in found.items():
                if key not in self._latest:
                    self._n_bytes += _n_bytes(key, tokens)
                self._latest[key] = tokens
                self._latest.move_to_end(key)
            while self._n_bytes > self._max_bytes:
                self._n_bytes -= _n_bytes(*self._latest.popitem(last=False))
        return [found[_texts(item)] for item in items]


def _texts(item: Item) -> tuple[str, str]:
    return item.title, item.text


def _n_bytes(key: tuple[str, str], tokens: Tokens) -> int:
    """The memory that an item takes; four small objects stand for its entry in the ordered dict."""
    return sum(map(sys.getsizeof, (*key, key, tokens, 0, 0, 0, 0)))


def _read_metadata(session: Session, where: str) -> tuple[PairTokenizer, int]:
    try:
        record, tokenizer, n_tokens = (session.metadata[key] for key in (CARD_KEY, TOKENIZER_KEY, N_TOKENS_KEY))
    except KeyError as error:
        raise FileFormatError(
            f"{where}: this .onnx file has no {error} in its metadata; only those that `anncur export` writes can score"
        ) from error
    card = ModelCard.from_json(record, where=where)
    fields = PairBatch.__dataclass_fields__
    if card.kind != "cross-encoder" or not set(session.inputs) <= fields.keys() or not n_tokens.isdigit():
        raise FileFormatError(f"{where}: this .onnx file doesn't score pairs as `anncur export` writes it")
    return PairTokenizer.from_json(tokenizer, card.text, where=where), int(n_tokens)
