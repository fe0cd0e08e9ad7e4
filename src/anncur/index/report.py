"""What tuning knows of an index: how simple the scores are, what each method finds, and what was chosen.

Reads what tuning left behind on held-out anchor queries, feeds `advice.py` and `anncur info`, `plan` and `tune`. Costs
no calls, and tells nothing of what an index of an older version didn't keep."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from anncur.factors.spectrum import n_directions
from anncur.index.build import Learned
from anncur.search.beliefs import PosteriorSettings, Tuned
from anncur.search.calibration import KS
from anncur.search.one_shot import OneShot
from anncur.search.posterior import Posterior
from anncur.search.rerank import Rerank

ENERGIES = (0.9, 0.95, 0.99)
BUDGETS = (50, 100, 200, 500)  # that expected recall is told for

Cell = tuple[int, int]  # k and budget


@dataclass(frozen=True)
class Directions:
    """How many directions of the anchor queries together hold a share of the energy of their scores."""

    energy: float
    n_directions: int


@dataclass(frozen=True)
class ExpectedRecall:
    """The share of the scorer's top k that a method found for held-out anchor queries."""

    method: str
    k: int
    budget: int
    recall: float


@dataclass(frozen=True)
class Suitability:
    """What tuning knows of an index. Empty where it doesn't."""

    n_items: int
    n_held_out: int
    most_directions: int
    directions: tuple[Directions, ...]
    recalls: tuple[ExpectedRecall, ...]

    @property
    def methods(self) -> tuple[str, ...]:
        """Those that something is known of."""
        return tuple(dict.fromkeys(row.method for row in self.recalls))

    def recall(self, method: str, k: int, budget: int) -> float | None:
        """Of one method, where it is known."""
        found = (row.recall for row in self.recalls if (row.method, row.k, row.budget) == (method, k, budget))
        return next(found, None)

    def to_dict(self) -> dict[str, Any]:
        """Plain values for JSON."""
        return asdict(self)


def assess(learned: Learned, *, n_items: int) -> Suitability:
    """Bring together what tuning found for `n_items` items."""
    tuned = learned.tuned
    shares = tuned.spectrum
    held = tuple(Directions(energy, n_directions(shares, energy)) for energy in ENERGIES if shares)
    recalls = tuple(_recalls(learned, cells_for(n_items)))
    return Suitability(n_items, len(tuned.curve.found_after), len(shares), held, recalls)


def cells_for(n_items: int) -> list[Cell]:
    """The k and budgets that are reported, short of scoring everything."""
    return [(k, budget) for k in KS for budget in BUDGETS if k < budget < n_items]


def _recalls(learned: Learned, cells: Sequence[Cell]) -> Iterator[ExpectedRecall]:
    tuned = learned.tuned
    for k, budget in cells:
        found = {
            Posterior.name: tuned.curve.recall(k, budget),
            OneShot.name: learned.splits.highest_recall(k=k, budget=budget),
            **{rerank_name(name): curve.recall(k, budget) for name, curve in tuned.rerank_curves.items()},
        }
        for method, recall in found.items():
            if recall is not None:
                yield ExpectedRecall(method, k, budget, round(recall, 4))


def rerank_name(retriever: str) -> str:
    """How re-ranking with a retriever is called in a report."""
    return f"{Rerank.name} {retriever}"


@dataclass(frozen=True)
class Change:
    """The expected recall of adaptive search before and after tuning anew, where it is known."""

    k: int
    budget: int
    before: float | None
    after: float | None


def compare(before: Tuned, after: Tuned, *, n_items: int) -> tuple[Change, ...]:
    """What tuning anew has changed."""
    found = [
        (k, budget, before.curve.recall(k, budget), after.curve.recall(k, budget)) for k, budget in cells_for(n_items)
    ]
    return tuple(Change(k, budget, _rounded(was), _rounded(now)) for k, budget, was, now in found)


def chosen(settings: PosteriorSettings | None) -> dict[str, Any] | None:
    """Settings as plain values, without those that have no effect; None where there was nothing to tune on."""
    if settings is None:
        return None
    return {
        "retrievers": {name: [round(value, 4) for value in values] for name, values in settings.coefficients},
        "side": settings.side if settings.side_share else None,
        "side_share": settings.side_share if settings.side else 0.0,
        "noise_share": settings.noise_share,
        "weight": settings.weight if settings.coefficients else 0.0,
        "opening": settings.opening if settings.coefficients else 0,
        "first": settings.first,
        "growth": settings.growth,
    }


def _rounded(recall: float | None) -> float | None:
    return None if recall is None else round(recall, 4)
