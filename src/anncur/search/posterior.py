"""The default method: score the best guesses of a Gaussian posterior, in rounds.

Before a search, the score estimate of an item is its prior mean: its offset, and what cheap retrievers predict for the
query. The first round scores what retrievers rank highest, if there are any; every other one the items with the highest
posterior mean that were not scored yet. The exact scores update the posterior (`factors/posterior.py`). The method
estimates its own recall, calibrated on held-out anchor queries."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray

from anncur.arrays import NO_POSITIONS, NO_SCORES, Positions
from anncur.errors import DeadlineError, InputError
from anncur.numbers import number, whole_number
from anncur.search.base import Estimates, Knowledge, Proposal, QueryBlock, Rounds
from anncur.search.drift import DriftReference
from anncur.search.model import PosteriorModel
from anncur.search.posterior_search import PAIRS_TRIED, PosteriorSearch
from anncur.search.settings import PosteriorSettings

ROUNDS_TRIED = 3  # before an end for want of items above `min_score` is to be trusted


@dataclass(frozen=True)
class Posterior:
    """Scores the best guesses of a Gaussian posterior, in rounds. What is not given is as it was tuned.

    `noise_share` is the share of an item's variance that the anchor queries leave unexplained, `embedding_share` that
    of item embeddings. `retrievers` go into the prior mean: some of the index's, or () for none. The first round scores
    the `n_initial` items that the retrievers rank highest (0 for none); every other one `growth` times what has been
    scored, but at least `min_round_size`."""

    noise_share: float | None = None
    retrievers: Sequence[str] | None = None
    embedding_share: float | None = None
    n_initial: int | None = None
    min_round_size: int | None = None
    growth: float | None = None
    name: ClassVar[str] = "posterior"
    is_exact: ClassVar[bool] = False
    estimates_recall: ClassVar[bool] = True

    def __post_init__(self) -> None:
        for name in ("noise_share", "embedding_share"):
            if getattr(self, name) is not None:
                object.__setattr__(self, name, number(name, getattr(self, name), least=0, most=1))
        for name, least in (("n_initial", 0), ("min_round_size", 1)):
            if getattr(self, name) is not None:
                object.__setattr__(self, name, whole_number(name, getattr(self, name), least=least))
        if self.growth is not None:
            object.__setattr__(self, "growth", number("growth", self.growth, least=0))

    def rounds(self, block: QueryBlock, knowledge: Knowledge) -> Rounds:
        model = knowledge.posterior
        settings, calibration = self._settings(model), model.tuned.calibration
        if block.target_recall is not None and not calibration.ks:
            raise InputError(
                "target_recall needs an index that was tuned, with at least 4 anchor queries, or calibrated: call "
                "index.calibrate(queries), or run `anncur calibrate`"
            )
        reference = model.drift_reference() if settings == model.settings() else DriftReference()
        prior = model.prior(settings, block.queries)
        noise = block.noise_share if prior.is_scale_free else block.noise
        among = block.candidates(knowledge)
        items = model.item_model(settings).with_noise(noise)
        search = PosteriorSearch(items, prior, len(block.queries), among, engine=model.engine_index(settings))
        active = np.arange(len(block.queries))  # the others have found enough
        recalls, drifts = np.full((2, len(block.queries)), np.nan)

        def estimate() -> None:
            recalls[active] = search.estimates(calibration, block.k)
            drifts[active] = search.drifts(reference)

        def stop(is_enough: NDArray[np.bool_]) -> None:
            """Continue without the queries that have found enough."""
            nonlocal active
            search.keep(np.flatnonzero(~is_enough))
            active = active[~is_enough]

        for n_rounds, size in enumerate(settings.round_sizes(block.budget, block.schedule)):
            if not len(active):
                break
            proposals = search.propose(size)
            if block.min_score is not None and n_rounds >= ROUNDS_TRIED and search.scored.shape[1] >= PAIRS_TRIED:
                is_enough = search.has_all_above(block.min_score, proposals)
                estimate()
                proposals = [proposal for proposal, skip in zip(proposals, is_enough, strict=True) if not skip]
                stop(is_enough)
                if not len(active):
                    break
            if block.explains:
                proposals = search.explained(proposals, calibration, block.k)
            try:
                answers = yield _for_all(proposals, active, len(block.queries))
            except DeadlineError:
                if search.scored.shape[1]:
                    estimate()
                break
            positions = np.stack([proposal.positions for proposal in proposals])
            search.observe(positions, np.stack([answers[row] for row in active.tolist()]))
            if search.scored.shape[1] == block.budget or block.target_recall is not None:
                estimate()
            if block.target_recall is not None:
                stop(search.has_enough(calibration, block.k, block.target_recall))
        return Estimates(recalls.tolist(), drifts.tolist())

    def _settings(self, model: PosteriorModel) -> PosteriorSettings:
        """As tuned, but for what was given."""
        settings = model.settings()
        if self.retrievers is not None and tuple(self.retrievers) != settings.retrievers:
            settings = model.settings_with(self.retrievers)
        names = ("noise_share", "embedding_share", "n_initial", "min_round_size", "growth")
        given = {name: getattr(self, name) for name in names}
        return replace(settings, **{name: value for name, value in given.items() if value is not None})


def _for_all(proposals: Sequence[Proposal], active: Positions, n_queries: int) -> list[Proposal]:
    """Proposals for the active queries, and empty ones for the others."""
    by_query = dict(zip(active.tolist(), proposals, strict=True))
    return [by_query.get(query, Proposal(NO_POSITIONS, NO_SCORES)) for query in range(n_queries)]
