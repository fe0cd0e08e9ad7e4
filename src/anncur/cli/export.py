"""`anncur export`: write a model as one file, for fast scoring without torch."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import typer

from anncur.cli.frame import DebugOption, JsonOption, console, print_json
from anncur.datasets.sample import sample_items, sample_test_queries
from anncur.items import Item, Query
from anncur.models.export import ScoreChange, WeightFormat
from anncur.models.export import export as export_model

N_SAMPLE_PAIRS = 200


def export(
    model: Annotated[Path, typer.Argument(help="The folder of a cross-encoder: ours, or a BERT classifier's.")],
    out: Annotated[Path, typer.Option("--out", help="The .onnx file.")],
    weights: Annotated[
        WeightFormat, typer.Option("--weights", help="Exact, a quarter as large, or a quarter as large and faster.")
    ] = "float32",
    as_json: JsonOption = False,
    debug: DebugOption = False,
) -> None:
    """Write a cross-encoder as one file that scores without torch.

    `compact` and `int8` change scores; the change is measured on pairs of the bundled sample.

    Examples:

    - `anncur export my-model --out my-model.onnx`
    - `anncur export my-model --out small.onnx --weights compact`
    """
    sample = _sample_pairs() if weights != "float32" else []
    report = export_model(model, out, weights=weights, sample=sample)
    if as_json:
        change = asdict(report.change) if report.change else None
        print_json({"path": str(out), "bytes": report.n_bytes, "weights": weights, "change": change})
        return
    message = f"{out} has {report.n_bytes / 1e6:,.1f} MB. Use it as --scorer {out}"
    console().print(message, markup=False, soft_wrap=True)
    if report.change is not None:
        console().print(_change_message(report.change), markup=False, soft_wrap=True)


def _sample_pairs() -> list[tuple[Query, Item]]:
    queries, items = sample_test_queries(), sample_items()
    return [(queries[n % len(queries)], items[n * len(items) // N_SAMPLE_PAIRS]) for n in range(N_SAMPLE_PAIRS)]


def _change_message(change: ScoreChange) -> str:
    return (
        f"On {change.n_pairs} pairs of the sample, scores differ from float32 by {change.mean_difference:.4f} on "
        f"average and {change.max_difference:.4f} at most; their ranks correlate with {change.rank_correlation:.4f}."
    )
