"""The paper's experiments by name, in the order of the report."""

from __future__ import annotations

from anncur.evaluation.distribution import histogram
from anncur.evaluation.experiments import Experiment
from anncur.evaluation.scoreboard import depth
from anncur.reproduction import curves, matrix
from anncur.reproduction.baselines import paper_scoreboard
from anncur.reproduction.study import PaperStudy

EXPERIMENTS: dict[str, Experiment[PaperStudy]] = {
    "recall-at-depth": curves.recall_at_depth,
    "recall-at-cost": curves.recall_at_cost,
    "anchor-queries": curves.anchor_queries,
    "world-size": curves.world_size,
    "item-item": curves.item_item,
    "heatmap": matrix.heatmap,
    "rank": matrix.rank,
    "histogram": histogram,
    "indexing": matrix.indexing,
    "scoreboard": paper_scoreboard,
    "depth": depth,
}
