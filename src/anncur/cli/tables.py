"""What tuning knows, as people read it: shown by `anncur info`, `plan` and `tune`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from rich.console import Console
from rich.table import Table

from anncur.planning.suitability import Change, Suitability, TuningReport

HELD_OUT = "Share of the scorer's top k that is found\n(mean of held-out queries)"


def show_suitability(out: Console, found: Suitability, *, of: str = "", title: str = HELD_OUT) -> None:
    """Print the spectrum and the expected recalls."""
    if found.components:
        explained = ", ".join(f"{row.n_components} explain {row.explained_variance:.0%}" for row in found.components)
        text = (
            f"\nOf {found.most_components} principal components of the anchor scores{of}, {explained} of the variance."
        )
        out.print(text, markup=False, soft_wrap=True)
    if not found.recalls:
        return
    budgets = sorted({row.budget for row in found.recalls})
    table = _table(title, "method", budgets)
    for k in sorted({row.k for row in found.recalls}):
        for place, method in enumerate(found.methods):
            cells = [_percent(found.recall(method, k, budget)) for budget in budgets]
            table.add_row("" if place else f"top {k}", method, *cells, end_section=method == found.methods[-1])
    out.print(table)


def show_tuning(out: Console, report: TuningReport) -> None:
    """Print what tuning chose, and what it has changed."""
    if report.chosen is None:
        out.print("There was nothing to tune on: that takes at least 4 anchor queries.")
        return
    for name, value in _chosen_words(report.chosen).items():
        out.print(f"{name:>14}  {value}", markup=False, soft_wrap=True)
    budgets = sorted({change.budget for change in report.changes})
    if not budgets:
        return
    table = _table(
        "Expected recall of adaptive search, before → after\n(each on its own held-out queries)", None, budgets
    )
    for k in sorted({change.k for change in report.changes}):
        found = {change.budget: change for change in report.changes if change.k == k}
        table.add_row(f"top {k}", *(_change(found.get(budget)) for budget in budgets))
    out.print(table)


def _chosen_words(chosen: Mapping[str, Any]) -> dict[str, str]:
    """What was chosen, in words. The coefficients are those of a retriever's score and of what peaks in it."""
    retrievers = [
        f"{name} ({', '.join(f'{value:+.2f}' for value in values)})" for name, values in chosen["retrievers"].items()
    ]
    embeddings_of, share = chosen["embeddings_of"], chosen["embedding_share"]
    first = chosen["n_initial"] or chosen["min_round_size"]
    best_by = "the retrievers" if chosen["n_initial"] else "the prior mean"
    return {
        "retrievers": ", ".join(retrievers) or "none",
        "embeddings": f"those of {embeddings_of}, {share:.0%} of the variance" if embeddings_of else "none",
        "noise": f"{chosen['noise_share']:.0%} of the variance",
        "weight": f"{chosen['retriever_weight']:.0%} of the retrievers' prediction in the prior mean",
        "first round": f"{first} items, the best by {best_by}",
        "later rounds": f"{chosen['growth']:.0%} of what has been scored, at least {chosen['min_round_size']} items",
    }


def _table(title: str, second: str | None, budgets: Sequence[int]) -> Table:
    table = Table(title=f"\n{title}")
    table.add_column("")
    if second is not None:
        table.add_column(second)
    for budget in budgets:
        table.add_column(f"{budget} pairs", justify="right")
    return table


def _change(change: Change | None) -> str:
    return "" if change is None else f"{_percent(change.before) or '?'} → {_percent(change.after) or '?'}"


def _percent(recall: float | None) -> str:
    return "" if recall is None else f"{recall:.0%}"
