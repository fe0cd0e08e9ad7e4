"""Scores pairs with a cross-encoder in one .onnx file, as `models/export.py` writes it; fast on CPUs.

Needs ONNX Runtime and tokenizers, which are loaded with the first file, but no torch. Pairs of the same length are
scored together: nothing is padded but the smallest batches. Each thread scores batches of its own, because threads that
share every product wait for each other. An index can store the tokens of items (`prepare`), so that they are tokenised
once."""

from __future__ import annotations

import hashlib
import sys
import threading
from collections import OrderedDict
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from anncur.errors import FileFormatError, InputError
from anncur.items import Item, Query
from anncur.models.checkpoint import ModelCard
from anncur.models.export import CARD_KEY, N_TOKENS_KEY, TOKENIZER_KEY
from anncur.numbers import whole_number
from anncur.threads import usable_cores
from anncur.tokens import PairBatch, PairTokenizer, Tokens

if TYPE_CHECKING:
    from onnxruntime import InferenceSession

BUILTIN = Path(__file__).parent.parent / "assets" / "builtin.onnx"
TOKENS_PER_BATCH = 1024  # within 4% of 4096 either way, and takes less memory in every thread
SMALL_BATCH = 256  # tokens; below it, a batch takes in longer pairs although that means padding
REMEMBERED_BYTES = 64 * 2**20  # items and their tokens: about 50,000 of a paragraph each


class OnnxScorer:
    """A cross-encoder in ONNX Runtime; safe to call from several threads.

    `threads` of None takes one for each core that this process may use."""

    batch_size = 1024  # large enough to hold several pairs of each length

    def __init__(self, content: bytes, *, threads: int | None = None, where: str = "this model") -> None:
        if threads is not None:
            whole_number("threads", threads, least=1)
        self.n_threads = threads or usable_cores()  # `threads` isn't part of the fingerprint: scores don't depend on it
        self.fingerprint = f"onnx:{hashlib.sha256(content).hexdigest()[:16]}"
        self._session = _session(content, where=where)
        self._pool = ThreadPoolExecutor(self.n_threads, thread_name_prefix="anncur-onnx")
        self._inputs = [value.name for value in self._session.get_inputs()]
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
        return self.score_tokens([self.tokenizer.query(query)] * len(items), self._tokens(items))

    def score_tokens(self, queries: Sequence[Tokens], items: Sequence[Tokens]) -> NDArray[np.float32]:
        """Raw scores of tokenised queries, each with the item at the same position."""
        scores = np.empty(len(items), dtype=np.float32)
        lengths = [len(query) + len(item) for query, item in zip(queries, items, strict=True)]

        def run(chosen: list[int]) -> None:
            batch = self.tokenizer.assemble([queries[place] for place in chosen], [items[place] for place in chosen])
            (scores[chosen],) = self._session.run(None, {name: getattr(batch, name) for name in self._inputs})

        chosen = list(batches(np.array(lengths, dtype=np.int64), n_parts=self.n_threads))
        each = self._pool.map if min(len(chosen), self.n_threads) > 1 else map
        for _ in each(run, chosen):
            pass
        return scores

    def prepare(self, items: Sequence[Item]) -> list[bytes]:
        """The items' tokens, to be stored as `item.prepared`."""
        return [tokens.astype(self._kept_as).tobytes() for tokens in self.tokenizer.items(items)]

    def _tokens(self, items: Sequence[Item]) -> list[Tokens]:
        kept: list[bytes] = [getattr(item, "prepared", b"") for item in items]
        made = iter(self._memo.tokens([item for item, prepared in zip(items, kept, strict=True) if not prepared]))
        return [
            np.frombuffer(prepared, self._kept_as).astype(np.int32) if prepared else next(made) for prepared in kept
        ]


def batches(lengths: NDArray[np.int64], *, n_parts: int = 1) -> Iterator[list[int]]:
    """Positions of pairs to score together: of one length, unless that makes too small a batch.

    Few pairs are still divided into `n_parts` batches, if these are not too small."""
    most = min(TOKENS_PER_BATCH, max(SMALL_BATCH, int(lengths.sum()) // n_parts))
    batch: list[int] = []
    width = 0  # length of the batch's last and longest pair
    for place, length in zip(*_sorted(lengths), strict=True):
        is_large_enough = length != width and len(batch) * width >= SMALL_BATCH
        if batch and (is_large_enough or (len(batch) + 1) * length > most):
            yield batch
            batch = []
        batch.append(place)
        width = length
    if batch:
        yield batch


def _sorted(lengths: NDArray[np.int64]) -> tuple[list[int], list[int]]:
    order = np.argsort(lengths, kind="stable")
    return order.tolist(), lengths[order].tolist()


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


def _session(content: bytes, *, where: str) -> InferenceSession:
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = 1
    options.inter_op_num_threads = 1
    options.log_severity_level = 3
    # Folds constants, but doesn't fuse our operators: fused sums and norms were slower.
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_ENABLE_BASIC
    try:
        return onnxruntime.InferenceSession(content, options, providers=["CPUExecutionProvider"])
    except Exception as error:  # ONNX Runtime raises errors of many kinds
        raise FileFormatError(
            f"{where}: ONNX Runtime can't open it: {error}; copy or export it again, or upgrade onnxruntime"
        ) from error


def _read_metadata(session: InferenceSession, where: str) -> tuple[PairTokenizer, int]:
    metadata: dict[str, Any] = session.get_modelmeta().custom_metadata_map
    try:
        record, tokenizer, n_tokens = (metadata[key] for key in (CARD_KEY, TOKENIZER_KEY, N_TOKENS_KEY))
    except KeyError as error:
        raise FileFormatError(
            f"{where}: this .onnx file has no {error} in its metadata; only those that `anncur export` writes can score"
        ) from error
    card = ModelCard.from_json(record, where=where)
    inputs = {value.name for value in session.get_inputs()}
    if card.kind != "cross-encoder" or not inputs <= set(PairBatch.__dataclass_fields__) or not n_tokens.isdigit():
        raise FileFormatError(f"{where}: this .onnx file doesn't score pairs as `anncur export` writes it")
    return PairTokenizer.from_json(tokenizer, card.text, where=where), int(n_tokens)
