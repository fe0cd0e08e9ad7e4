"""What the paper adds to the scoreboard: fixedITEM, itemCUR, and ANNCUR with fixed numbers of anchor items.

itemCUR needs no method of its own: it is ANNCUR over an index whose anchor queries are items."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import ClassVar

import numpy as np

from anncur.arrays import Positions
from anncur.evaluation.protocol import build
from anncur.evaluation.rows import Batch
from anncur.evaluation.scoreboard import (
    ANNCUR,
    Trial,
    Variant,
    adaptive_variants,
    cheap_variants,
    over_anchors,
    scoreboard,
)
from anncur.evaluation.worlds import QuerySplit, ScoredWorld
from anncur.items import Query
from anncur.reproduction.study import ItemQueries, PaperStudy
from anncur.search.anncur import Anncur
from anncur.search.base import Knowledge, Proposal, QueryBlock, Rounds, best_guesses
from anncur.vectors.exact import ExactVectors

ITEM_CUR, FIXED_ITEM = "itemCUR", "fixedITEM"


@dataclass(frozen=True, eq=False)
class FixedItems:
    """Compares items by their scores with fixed ones: half of the budget scores the query with those, the other half
    the items whose scores with them have the largest dot product with the query's.

    `items` are the positions of the index's anchor queries, which are items."""

    items: Positions
    name: ClassVar[str] = "fixed_items"
    is_exact: ClassVar[bool] = False

    def rounds(self, block: QueryBlock, knowledge: Knowledge) -> Rounds:
        n_fixed, among = min(len(self.items), block.budget // 2), block.candidates(knowledge)
        fixed = self.items[:n_fixed]
        exact_scores = yield [Proposal(fixed)] * len(block.queries)
        vectors = ExactVectors(np.ascontiguousarray(knowledge.factors.item_vectors[:, :n_fixed]))
        exclude = [fixed] * len(block.queries)
        yield best_guesses(vectors, np.stack(exact_scores), n_best=block.budget - n_fixed, exclude=exclude, among=among)
        return None


def paper_scoreboard(study: PaperStudy) -> Iterator[Batch]:
    """The scoreboard with the paper's baselines."""
    return scoreboard(study, paper_variants)


def paper_variants(study: PaperStudy, split: QuerySplit) -> dict[str, Variant]:
    """All methods that the study has the parts for; those over the same index come together."""
    found = cheap_variants(study, split)
    if study.item_queries is not None:
        found[FIXED_ITEM] = Variant(FixedItems(study.item_queries.items), over_items)
        found[ITEM_CUR] = Variant(Anncur(), over_items)
    found[ANNCUR] = Variant(Anncur(), over_anchors)
    for n in study.sizes.n_anchor_items:
        found[f"{ANNCUR}, {n} anchors"] = Variant(Anncur(n_anchor_items=n), over_anchors, above=n)
    return {**found, **adaptive_variants(study)}


def over_items(study: PaperStudy, seed: int) -> Trial:
    """An index over items in place of the anchor queries."""
    assert study.item_queries is not None, "only where items were scored as queries"
    world = with_items_as_queries(study.world, study.item_queries)
    n_items = len(study.item_queries.items)
    split = QuerySplit(np.arange(n_items), study.sound_split(seed).tests + n_items)
    return Trial(world, split, build(world, split, [], seed=seed))


def with_items_as_queries(world: ScoredWorld, item_queries: ItemQueries) -> ScoredWorld:
    """The same world with the items that were scored as queries in front of the queries."""
    queries = [Query.of_item(world.items[position]) for position in item_queries.items.tolist()]
    exact_scores = np.concatenate([item_queries.exact_scores, world.exact_scores])
    groups = [*(f"item {query.id}" for query in queries), *world.groups]
    return replace(world, queries=[*queries, *world.queries], groups=groups, exact_scores=exact_scores)
