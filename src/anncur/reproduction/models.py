"""Rows about models and data rather than scores: entity linking, the time of a distillation, the size of worlds.

Feeds the report; the models are trained by `benchmarks/reproduction.py`."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import Any

from anncur.datasets.zeshel import LinkingWorld, Zeshel
from anncur.errors import InputError
from anncur.evaluation.linking import MACRO, LinkingRow, Ranker, link
from anncur.evaluation.rows import Batch, Cell, Row
from anncur.evaluation.study import Study
from anncur.retrievers.base import Retriever

TRAINING = "training"  # the stage of a distillation beside those of indexing
PAIR, MATCH = "distillation, pair", "distillation, match"
LOG = "training.jsonl"


def linking(
    worlds: Callable[[], Iterable[LinkingWorld]],
    names: Sequence[str],
    retriever: Retriever,
    rankers: Mapping[str, Ranker],
    scorers: Sequence[str],
) -> Batch:
    """The accuracy of rankers in the worlds of these names, and its average; some of them are `scorers`."""
    cells = {
        (world, ranker): Cell("linking", world, ranker, scorer=ranker if ranker in scorers else "")
        for world in (*names, MACRO)
        for ranker in rankers
    }

    def measure(missing: Sequence[Cell]) -> Iterable[Row]:
        for row in link(worlds(), retriever, dict(rankers)):
            if cells[row.world, row.ranker] in missing:
                yield Row(cells[row.world, row.ranker], _linked(row))

    return Batch(list(cells.values()), measure)


def _linked(row: LinkingRow) -> dict[str, Any]:
    return {name: value for name, value in asdict(row).items() if name not in ("world", "ranker")}


def statistics(data: Zeshel) -> Batch:
    """The entities and mentions of every world."""
    found = {
        Cell("statistics", row.world, "count", part=row.split, n_items=row.n_entities): row for row in data.statistics()
    }
    return Batch(list(found), lambda missing: (Row(cell, {"n_mentions": found[cell].n_mentions}) for cell in missing))


def training_time(study: Study, method: str, n_anchor_queries: int, folder: Path) -> Batch:
    """The seconds of a distillation from `n_anchor_queries` of the study's queries, from the log of its folder."""
    cell = study.cell("indexing", method, part=TRAINING, n_anchor_queries=n_anchor_queries)
    return Batch([cell], partial(_logged, folder))


def _logged(folder: Path, missing: Sequence[Cell]) -> Iterable[Row]:
    file = folder / LOG
    lines = file.read_text(encoding="utf-8").splitlines() if file.is_file() else []
    if not lines:
        raise InputError(f"no log of a training in {folder}; pass the folder that `anncur distill` wrote")
    yield from (Row(cell, {"seconds": float(json.loads(lines[-1])["seconds"])}) for cell in missing)
