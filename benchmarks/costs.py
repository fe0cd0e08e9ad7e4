"""What searches cost in seconds and dollars, from rows that other benchmarks wrote: tables, break-evens and figures.

    python benchmarks/costs.py ROWS… [--experiment "first query"] [--price 1] [--latency-ms 200 --pair-ms 2] [--k 10]
        [--n-anchor-queries 0 40] [--without PATTERN] [--queries-served 10000] [--out FOLDER]

ROWS are files of rows with `recall`, `calls` and `seconds`, better also `rounds` and `own_seconds`; of methods whose
rounds nobody counted there are no seconds. A page is written for all worlds and scorers in them, and printed. Methods
whose names match `--without` are left out. Where rows have nDCG@10 of each query (`judged`), that is shown against
costs, too. Nothing is measured."""

from __future__ import annotations

import argparse
import re
from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np

from anncur.evaluation.cost_report import costs_section, recommendation_section
from anncur.evaluation.page import Section, write_pages
from anncur.evaluation.recommendation import Terms, reckon
from anncur.evaluation.rows import Row, distinct, grouped, read_rows
from anncur.evaluation.scoreboard import JUDGED_K
from common import new_parser
from first_query import unpacked

NAME = "costs"
NDCG = f"nDCG@{JUDGED_K}"


def main() -> None:
    """Write the page, and print it."""
    options = parse()
    rows = [row for file in options.rows for row in read_rows(file) if is_wanted(row, options)]
    (options.out / "figures").mkdir(parents=True, exist_ok=True)
    sections = list(make_sections(rows, options))
    markdown, _ = write_pages(sections, options.out, NAME)
    print(markdown.read_text(encoding="utf-8"))


def parse() -> argparse.Namespace:
    """What is asked for."""
    parser = new_parser(__doc__, NAME)
    parser.add_argument("rows", type=Path, nargs="+")
    parser.add_argument("--experiment", help="only its rows (default: all)")
    parser.add_argument("--n-anchor-queries", type=int, nargs="+", help="only these numbers (default: any)")
    parser.add_argument("--without", action="append", default=[], help="a regular expression; may be repeated")
    parser.add_argument("--k", type=int, default=10)
    parser.add_argument("--price", type=float, help="price of 1,000 pairs, in dollars")
    parser.add_argument("--latency-ms", type=float)
    parser.add_argument("--pair-ms", type=float)
    parser.add_argument("--queries-served", type=int)
    return parser.parse_args()


def is_wanted(row: Row, options: argparse.Namespace) -> bool:
    """Whether a row is of the experiment, of these numbers of anchor queries, and of no method that is left out."""
    is_of_it = options.experiment in (None, row.cell.experiment)
    numbers = options.n_anchor_queries
    is_with_them = None in (numbers, row.cell.n_anchor_queries) or row.cell.n_anchor_queries in numbers
    return is_of_it and is_with_them and not any(re.search(pattern, row.cell.method) for pattern in options.without)


def make_sections(rows: Sequence[Row], options: argparse.Namespace) -> Iterator[Section]:
    """The recommendation and the costs of every world, scorer and matrix."""
    latency, seconds_per_pair = (
        None if milliseconds is None else milliseconds / 1000 for milliseconds in (options.latency_ms, options.pair_ms)
    )
    terms = Terms(options.price, latency, seconds_per_pair, options.queries_served)
    for (world, scorer, _), some in grouped(rows, "world", "scorer", "data").items():
        at_k = [numbers(row) for row in some if row.cell.k in (None, options.k)]
        found = reckon(at_k, terms)
        if found is not None:
            name = f"{world}, scored by {scorer}, {distinct(some, 'n_items')[-1]:,} items"
            yield recommendation_section(name, found, options.out / "figures")
            yield costs_section(name, found, judged(at_k), options.out / "figures")


def judged(rows: Sequence[Row]) -> list[Row]:
    """Those with judgements, with the mean of their queries' nDCG@10."""
    found = []
    for row in rows:
        known = [value for value in row.values.get("judged", []) if value is not None]
        if known:
            found.append(Row(row.cell, {**row.values, NDCG: float(np.mean(known))}))
    return found


def numbers(row: Row) -> Row:
    """The row with what each query found as numbers, as intervals are made from."""
    return unpacked(row) if isinstance(row.values.get("found"), str) else row


if __name__ == "__main__":
    main()
