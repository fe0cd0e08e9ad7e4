"""A collection in memory, as somebody might write one for a database of their own, and worlds to search."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

import anncur
from anncur.arrays import FloatMatrix
from anncur.attached.base import COSINE, DISTANCE, FoundRows, RowId, Selection
from anncur.attached.pool import as_compared
from anncur.columns import MetadataColumns
from anncur.errors import InputError
from anncur.ranking import top_k
from anncur.scorers.stored import StoredScorer

N_ITEMS, N_QUERIES, WIDTH = 1500, 12, 24


class ArrayCollection:
    """Counts what it is asked for."""

    name = "an array"

    def __init__(self, items: Sequence[anncur.Item], embeddings: FloatMatrix, metric: str = "ip") -> None:
        self._items, self._embeddings, self.metric = list(items), embeddings, metric
        self._places = {item.id: place for place, item in enumerate(items)}
        self._columns = MetadataColumns.of(item.metadata for item in items)
        self.n_requests, self.n_fetched, self.n_texts = 0, 0, 0

    @property
    def width(self) -> int:
        return int(self._embeddings.shape[1])

    def check(self, selection: Selection) -> None:
        if selection.condition is not None:
            selection.condition.check(self._columns.kinds())

    def count(self, selection: Selection, *, most: int) -> int:
        return min(most, int(self._passing(selection).sum()))

    def sample(self, n: int, *, seed: int) -> FoundRows:
        return self._rows(np.random.default_rng(seed).permutation(len(self._items))[:n])

    def nearest(
        self,
        points: FloatMatrix,
        n_best: int,
        *,
        exclude: Sequence[Sequence[RowId]],
        selection: Selection,
        is_thorough: bool = False,
    ) -> list[FoundRows]:
        self.n_requests += 1
        found = []
        for point, seen in zip(points, exclude, strict=True):
            rows = as_compared(self._embeddings, self.metric)
            scores = -np.square(rows - point).sum(axis=1) if self.metric == DISTANCE else rows @ point
            scores[~self._passing(selection)] = -np.inf
            scores[[self._places[str(one)] for one in seen]] = -np.inf
            best = top_k(scores, n_best)
            found.append(self._rows(best[scores[best] > -np.inf]))
        self.n_fetched += sum(len(rows.ids) for rows in found)
        return found

    def items(self, ids: Sequence[RowId]) -> list[anncur.Item]:
        self.n_texts += len(ids)
        return [self._items[self._places[str(one)]] for one in ids]

    def _passing(self, selection: Selection) -> np.ndarray:
        if selection.ids is not None:
            return np.isin([item.id for item in self._items], selection.ids)
        if selection.condition is None:
            return np.ones(len(self._items), dtype=np.bool_)
        return selection.condition.passing(self._columns)

    def _rows(self, places: np.ndarray) -> FoundRows:
        return FoundRows([self._items[place].id for place in places.tolist()], self._embeddings[places])


class EmbeddedWorld:
    """A scorer that is linear in embeddings that items have, and queries with embeddings that are off."""

    def __init__(self, metric: str = "ip", n_items: int = N_ITEMS) -> None:
        rng = np.random.default_rng(0)
        self.metric = metric
        self.embeddings = (rng.normal(size=(n_items, WIDTH)) * rng.uniform(0.5, 1.5, size=(n_items, 1))).astype(
            np.float32
        )
        queries = rng.normal(size=(N_QUERIES, WIDTH))
        self.rough = (queries + 0.8 * rng.normal(size=queries.shape)).astype(np.float32)
        rows = as_compared(self.embeddings, metric)
        products = queries @ rows.T
        if metric == DISTANCE:
            products = 2 * products - np.square(rows).sum(axis=1)
        noise = 0.2 * products.std() * rng.normal(size=products.shape)
        self.exact_scores = products + noise + rng.normal(size=(N_QUERIES, 1))
        self.queries = [f"query {number}" for number in range(N_QUERIES)]
        self.items = [
            anncur.Item(
                f"i{number}",
                f"thing {number}",
                title=f"title {number}",
                metadata={"lang": "en" if number % 2 else "de", "year": 2000 + number % 30},
            )
            for number in range(n_items)
        ]

    @property
    def scorer(self) -> StoredScorer:
        return StoredScorer(self.exact_scores, self.queries, [item.id for item in self.items])

    def embed(self, queries: Sequence[anncur.Query]) -> FloatMatrix:
        rows = [int(query.text.removeprefix("query ")) for query in queries]
        return as_compared(self.rough[rows], self.metric)

    def index(self) -> anncur.Index:
        """In memory, of the same items; a scorer by distance has no such twin, so that products are its."""
        if self.metric == DISTANCE:
            raise InputError("an index compares embeddings by products")
        embeddings = as_compared(self.embeddings, COSINE) if self.metric == COSINE else self.embeddings
        return anncur.Index.build(
            self.items, self.scorer, embeddings=embeddings, embed_queries=self.embed, retrievers=[], progress=False
        )

    def recall(self, answers: Sequence[anncur.Hits], k: int = 10, passing: np.ndarray | None = None) -> float:
        shares = []
        for row, hits in zip(self.exact_scores, answers, strict=True):
            allowed = row if passing is None else np.where(passing, row, -np.inf)
            shares.append(len(set(hits.ids) & {f"i{place}" for place in top_k(allowed, k).tolist()}) / k)
        return float(np.mean(shares))
