"""Ready-made settings: what a laptop can train in an evening, and the paper's own."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from anncur.errors import InputError
from anncur.retrievers.dual_encoder import MINILM
from anncur.tokens import PairFormat
from anncur.training.loop import TrainSettings
from anncur.training.negatives import NegativeSettings


@dataclass(frozen=True, slots=True)
class Preset:
    """Where every option of a training starts from."""

    network: str
    text: PairFormat
    negatives: NegativeSettings
    cross_encoder_batch: int
    dual_encoder_batch: int
    dual_encoder_head: Literal["cls", "mean"]
    has_shared_towers: bool
    train: TrainSettings
    distillation: TrainSettings
    n_top: int


PRESETS = {
    "small": Preset(
        network=MINILM,
        text=PairFormat(query_length=40, item_length=40),
        negatives=NegativeSettings(n=7, pool=32, random_share=0.25),
        cross_encoder_batch=8,
        dual_encoder_batch=8,
        dual_encoder_head="mean",
        has_shared_towers=True,
        train=TrainSettings(epochs=1, learning_rate=5e-5, warmup=0.05, evaluations=8),
        distillation=TrainSettings(epochs=5, learning_rate=3e-5, warmup=0.05, evaluations=1),
        n_top=32,
    ),
    "paper": Preset(
        network="bert-base-uncased",
        text=PairFormat(query_length=128, item_length=128),
        negatives=NegativeSettings(n=63, pool=63, random_share=0.0),
        cross_encoder_batch=4,
        dual_encoder_batch=8,
        dual_encoder_head="cls",
        has_shared_towers=False,
        train=TrainSettings(epochs=4, learning_rate=1e-5, warmup=0.01, evaluations=5),
        distillation=TrainSettings(epochs=10, learning_rate=1e-5, warmup=0.01, evaluations=1),
        n_top=100,
    ),
}


def preset(name: str) -> Preset:
    """A preset by its name."""
    if name not in PRESETS:
        raise InputError(f"no preset {name!r}; take one of {', '.join(PRESETS)}")
    return PRESETS[name]
