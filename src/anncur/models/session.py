"""Runs a graph of `graph.py` in ONNX Runtime over many texts, or pairs of texts.

Texts of the same length are run together: nothing is padded but the smallest batches. Each thread runs batches of its
own, because threads that share every product wait for each other. Feeds the scorer over .onnx files and dual
encoders."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
from numpy.typing import NDArray

from anncur.errors import FileFormatError
from anncur.numbers import whole_number
from anncur.threads import usable_cores
from anncur.tokens import PairBatch

TOKENS_PER_BATCH = 1024  # within 4% of 4096 either way, and takes less memory in every thread
SMALL_BATCH = 256  # tokens; below it, a batch takes in longer texts although that means padding


class Session:
    """A graph that reads a `PairBatch` and gives a number or a vector for each row; safe to share between threads.

    `threads` of None takes one for each core that this process may use. Errors name `where` the graph is from."""

    def __init__(self, content: bytes, *, threads: int | None = None, where: str = "this model") -> None:
        if threads is not None:
            whole_number("threads", threads, least=1)
        self.n_threads = threads or usable_cores()
        self._session = _open(content, where)
        self._pool = ThreadPoolExecutor(self.n_threads, thread_name_prefix="anncur-onnx")
        self.inputs: list[str] = [value.name for value in self._session.get_inputs()]
        self.metadata: dict[str, str] = self._session.get_modelmeta().custom_metadata_map

    def run(self, lengths: Sequence[int], assemble: Callable[[list[int]], PairBatch]) -> NDArray[np.float32]:
        """A row for each of the texts with these lengths; `assemble` makes a batch of those at some positions."""
        (output,) = self._session.get_outputs()
        rows = np.empty((len(lengths), *output.shape[1:]), dtype=np.float32)

        def run(chosen: list[int]) -> None:
            batch = assemble(chosen)
            (rows[chosen],) = self._session.run(None, {name: getattr(batch, name) for name in self.inputs})

        chosen = list(batches(np.array(lengths, dtype=np.int64), n_parts=self.n_threads))
        each = self._pool.map if min(len(chosen), self.n_threads) > 1 else map
        for _ in each(run, chosen):
            pass
        return rows


def batches(lengths: NDArray[np.int64], *, n_parts: int = 1) -> Iterator[list[int]]:
    """Positions of texts to run together: of one length, unless that makes too small a batch.

    Few texts are still divided into `n_parts` batches, if these are not too small."""
    most = min(TOKENS_PER_BATCH, max(SMALL_BATCH, int(lengths.sum()) // n_parts))
    batch: list[int] = []
    width = 0  # length of the batch's last and longest text
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


def _open(content: bytes, where: str) -> Any:
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
