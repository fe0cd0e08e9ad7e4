"""Small training tasks: one of every kind, on the toy worlds and on toy scores."""

from __future__ import annotations

from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np

from anncur.datasets.zeshel import LinkingWorld, Zeshel, read_worlds
from anncur.items import Item, Query
from anncur.models.encoders import new_cross_encoder, new_dual_encoder
from anncur.tokens import PairFormat
from anncur.training.distillation import DistillationTask, ScoredQueries
from anncur.training.encoders import CrossEncoderTask, DualEncoderTask
from anncur.training.examples import Examples, NegativeSettings, pools, whole_pool
from anncur.training.jobs import CrossEncoderJob, DataSettings, DualEncoderJob
from toy_linking import WORDS, write_network, write_zeshel

TEXT = PairFormat(12, 12)
NEGATIVES = NegativeSettings(n=4, pool=6, random_share=0.25)


class Toys:
    """A ZESHEL folder and a network, and new training tasks over them."""

    def __init__(self, folder: Path, *, dropout: float) -> None:
        self.data = write_zeshel(folder / "data")
        dropouts: dict[str, Any] = dict.fromkeys(("hidden_dropout_prob", "attention_probs_dropout_prob"), dropout)
        self.network = write_network(folder / "network", initializer_range=0.2, **dropouts)

    def save_dual(self, network: Path) -> Path:
        """A dual encoder over a network, untrained."""
        folder = network.parent / f"dual-{network.name}"
        new_dual_encoder(network, TEXT, head="mean", is_shared=True).save(folder)
        return folder

    @cached_property
    def dual(self) -> Path:
        """The folder of a dual encoder over the network."""
        return self.save_dual(self.network)

    def cross_job(self, **options: Any) -> CrossEncoderJob:
        return CrossEncoderJob(**{**self._common(), "mentions_per_batch": 8, **options})

    def dual_job(self, **options: Any) -> DualEncoderJob:
        return DualEncoderJob(**{**self._common(), **options})

    def _common(self) -> dict[str, Any]:
        return {
            "data": DataSettings(self.data, dev_candidates=8),
            "network": str(self.network),
            "dual_encoder": str(self.dual),
            "text": TEXT,
            "negatives": NEGATIVES,
        }

    def worlds(self, split: str) -> list[LinkingWorld]:
        return list(read_worlds(Zeshel(self.data), split))

    def cross_encoder(self, out: Path, **options: Any) -> CrossEncoderTask:
        model = new_cross_encoder(self.network, "emb", TEXT)
        examples, dev = self._examples(model.tokenizer)
        return CrossEncoderTask(
            model=model,
            examples=examples,
            pools=pools(examples, None, NEGATIVES.pool),
            negatives=NEGATIVES,
            dev=dev,
            dev_candidates=whole_pool(dev, pools(dev, None, 8)),
            mentions_per_batch=8,
            **options,
        )

    def dual_encoder(self, out: Path, **options: Any) -> DualEncoderTask:
        model = new_dual_encoder(self.network, TEXT, head="mean", is_shared=True)
        examples, dev = self._examples(model.tokenizer)
        return DualEncoderTask(
            model=model,
            examples=examples,
            negatives=NEGATIVES,
            dev=dev,
            dev_candidates=whole_pool(dev, pools(dev, None, 8)),
            mined=out / "mined",
            mentions_per_batch=8,
            **options,
        )

    def distillation(self, out: Path, **options: Any) -> DistillationTask:
        train_on, held_out = toy_scores().split(0.25, 0)
        chosen: Any = {"kind": "pair", "n_top": 10, "queries_per_batch": 4, **options}
        model = new_dual_encoder(self.network, TEXT, head="mean", is_shared=True)
        return DistillationTask(model=model, train_on=train_on, held_out=held_out, mined=out / "mined", **chosen)

    def _examples(self, tokenizer: Any) -> tuple[Examples, Examples]:
        return (
            Examples.draw(self.worlds("train"), tokenizer, n=None, seed=0),
            Examples.draw_from_each(self.worlds("val"), tokenizer, n=None, seed=0),
        )


def toy_scores() -> ScoredQueries:
    """Queries and items of two words; the more words they share, the higher the score."""
    pairs = [(first, second) for first in WORDS for second in WORDS if first < second]
    items = [Item(f"{a}-{b}", f"the {b}", a) for a, b in pairs[::2]]
    queries = [Query(f"{a} and {b}") for a, b in pairs[1::4]]
    words = [set(query.text.split()) for query in queries]
    overlap = [[4.0 * len(found & {*item.id.split("-")}) for item in items] for found in words]
    noise = np.random.default_rng(0).normal(size=(len(queries), len(items)))
    return ScoredQueries(queries, items, (np.array(overlap) + 0.1 * noise).astype(np.float32))
