"""How well an index suits its scorer: how simple the scores are, what each method finds, and what to use.

Reads what tuning found on held-out queries, feeds `Index.suitability`, `anncur info`, `plan` and `tune`. Costs
no pairs, and tells nothing of what an index of an older version didn't keep."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from anncur.factors.spectrum import n_components
from anncur.planning.advice import Point, advise, reported, rerank_name
from anncur.search.anncur import Anncur
from anncur.search.posterior import Posterior
from anncur.search.settings import PosteriorSettings, Tuned
from anncur.tuning.derive import Derived

EXPLAINED_VARIANCES = (0.9, 0.95, 0.99)


@dataclass(frozen=True)
class Components:
    """How many principal components of the anchor scores together explain a share of their variance."""

    explained_variance: float
    n_components: int


@dataclass(frozen=True)
class ExpectedRecall:
    """The share of the scorer's top k that a method found for held-out queries."""

    method: str
    k: int
    budget: int
    recall: float


@dataclass(frozen=True)
class Suitability:
    """What tuning knows of an index, and what it advises. Empty where it doesn't know."""

    n_items: int
    n_held_out: int
    most_components: int
    components: tuple[Components, ...]
    recalls: tuple[ExpectedRecall, ...]
    advice: tuple[str, ...]

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


def assess(derived: Derived, *, n_items: int) -> Suitability:
    """Bring together what tuning found for `n_items` items."""
    spectrum = derived.tuned.spectrum
    return Suitability(
        n_items=n_items,
        n_held_out=len(derived.tuned.curve.found_after),
        most_components=len(spectrum),
        components=tuple(Components(share, n_components(spectrum, share)) for share in EXPLAINED_VARIANCES if spectrum),
        recalls=tuple(_recalls(derived, reported(n_items))),
        advice=tuple(advise(derived, n_items=n_items)),
    )


def _recalls(derived: Derived, points: Sequence[Point]) -> Iterator[ExpectedRecall]:
    tuned = derived.tuned
    for k, budget in points:
        found = {
            Posterior.name: tuned.curve.recall(k, budget),
            Anncur.name: derived.splits.highest_recall(k=k, budget=budget),
            **{rerank_name(name): curve.recall(k, budget) for name, curve in tuned.rerank_curves.items()},
        }
        for method, recall in found.items():
            if recall is not None:
                yield ExpectedRecall(method, k, budget, round(recall, 4))


@dataclass(frozen=True)
class Change:
    """The expected recall of adaptive search before and after tuning again, where it is known."""

    k: int
    budget: int
    before: float | None
    after: float | None


@dataclass(frozen=True)
class TuningReport:
    """What tuning chose, as plain values (None where there was nothing to tune on), and what it has changed."""

    chosen: Mapping[str, Any] | None
    changes: tuple[Change, ...]

    def to_dict(self) -> dict[str, Any]:
        """Plain values for JSON."""
        return {"chosen": self.chosen, "expected_recall": [asdict(change) for change in self.changes]}


def compare(before: Tuned, after: Tuned, *, n_items: int) -> TuningReport:
    """What tuning again has chosen and changed."""
    found = [
        (k, budget, before.curve.recall(k, budget), after.curve.recall(k, budget)) for k, budget in reported(n_items)
    ]
    changes = tuple(Change(k, budget, _rounded(was), _rounded(now)) for k, budget, was, now in found)
    return TuningReport(_chosen(after.settings), changes)


def _chosen(settings: PosteriorSettings | None) -> dict[str, Any] | None:
    """Settings as plain values, without those that have no effect; None where there was nothing to tune on."""
    if settings is None:
        return None
    has_embeddings = settings.embeddings_of is not None and settings.embedding_share > 0
    return {
        "retrievers": {name: [round(value, 4) for value in values] for name, values in settings.coefficients},
        "embeddings_of": settings.embeddings_of if has_embeddings else None,
        "embedding_share": settings.embedding_share if has_embeddings else 0.0,
        "noise_share": settings.noise_share,
        "retriever_weight": settings.retriever_weight if settings.coefficients else 0.0,
        "n_initial": settings.n_initial if settings.coefficients else 0,
        "min_round_size": settings.min_round_size,
        "growth": settings.growth,
    }


def _rounded(recall: float | None) -> float | None:
    return None if recall is None else round(recall, 4)
