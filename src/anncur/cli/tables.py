"""What tuning knows, as people read it: shown by `anncur info`, `plan` and `tune`."""

from __future__ import annotations

from collections.abc import Sequence

from rich.console import Console
from rich.table import Table

from anncur.index.report import Change, Suitability
from anncur.search.beliefs import PosteriorSettings


def show_suitability(out: Console, found: Suitability, *, of: str = "") -> None:
    """Print the spectrum and the expected recalls."""
    if found.directions:
        held = ", ".join(f"{row.n_directions} hold {row.energy:.0%}" for row in found.directions)
        told = f"\nOf {found.most_directions} directions of the anchor scores{of}, {held} of the energy."
        out.print(told, markup=False, soft_wrap=True)
    if not found.recalls:
        return
    budgets = sorted({row.budget for row in found.recalls})
    table = _table("Share of the scorer's top k that is found\n(mean of held-out anchor queries)", "method", budgets)
    for k in sorted({row.k for row in found.recalls}):
        for place, method in enumerate(found.methods):
            cells = [_percent(found.recall(method, k, budget)) for budget in budgets]
            table.add_row("" if place else f"top {k}", method, *cells, end_section=method == found.methods[-1])
    out.print(table)


def show_tuning(out: Console, settings: PosteriorSettings | None, changes: Sequence[Change]) -> None:
    """Print what tuning chose, and what it has changed."""
    if settings is None:
        out.print("There was nothing to tune on: that takes at least 4 anchor queries.")
        return
    for name, value in _chosen_words(settings).items():
        out.print(f"{name:>14}  {value}", markup=False, soft_wrap=True)
    budgets = sorted({change.budget for change in changes})
    if not budgets:
        return
    table = _table(
        "Expected recall of adaptive search, before → after\n(each on its own held-out queries)", None, budgets
    )
    for k in sorted({change.k for change in changes}):
        found = {change.budget: change for change in changes if change.k == k}
        table.add_row(f"top {k}", *(_change(found.get(budget)) for budget in budgets))
    out.print(table)


def _chosen_words(settings: PosteriorSettings) -> dict[str, str]:
    """What was chosen, in words. The coefficients are those of a retriever's score and of what peaks in it."""
    retrievers = [
        f"{name} ({', '.join(f'{value:+.2f}' for value in values)})" for name, values in settings.coefficients
    ]
    has_side = settings.side is not None and settings.side_share > 0
    has_opening = bool(settings.opening and settings.coefficients)
    first = settings.opening if has_opening else settings.first
    best_by = "what retrievers say" if has_opening else "the prior mean"
    return {
        "retrievers": ", ".join(retrievers) or "none",
        "side vectors": f"those of {settings.side}, {settings.side_share:.0%} of the variance" if has_side else "none",
        "noise": f"{settings.noise_share:.0%} of the variance",
        "weight": f"{settings.weight:.0%} of that in the prior mean" if retrievers else "none",
        "first round": f"{first} items, the best by {best_by}",
        "later rounds": f"{settings.growth:.0%} of what has been scored, at least {settings.first} items",
    }


def _table(title: str, second: str | None, budgets: Sequence[int]) -> Table:
    table = Table(title=f"\n{title}")
    table.add_column("")
    if second is not None:
        table.add_column(second)
    for budget in budgets:
        table.add_column(f"{budget} calls", justify="right")
    return table


def _change(change: Change | None) -> str:
    return "" if change is None else f"{_percent(change.before) or '?'} → {_percent(change.after) or '?'}"


def _percent(recall: float | None) -> str:
    return "" if recall is None else f"{recall:.0%}"
