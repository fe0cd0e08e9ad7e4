"""What methods over embeddings share: a retriever's vectors of items and queries.

Reads a retriever with item vectors; feeds `refit.py`, `bagel.py` and `gar.py`. Query vectors are found from the
retriever's scores, so that stored scores serve as well as a model."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from anncur.arrays import FloatMatrix, Positions
from anncur.candidates import Candidates
from anncur.errors import InputError
from anncur.items import Query
from anncur.retrievers.base import Retriever, embedding_source, item_vectors
from anncur.search.axn import Reference
from anncur.search.base import Knowledge


@dataclass(frozen=True, eq=False)
class Embedded:
    """A retriever, its item vectors, and what turns its scores into query vectors."""

    retriever: Retriever
    vectors: FloatMatrix  # (n_items, width)
    reference: Reference

    @cached_property
    def unit(self) -> FloatMatrix:
        """Item vectors of length one, in single precision."""
        return unit_rows(self.vectors)

    def begin(self, queries: Sequence[Query], among: Candidates, n_best: int) -> tuple[Positions, FloatMatrix]:
        """For each query its best candidates, (n_queries, n_best), and its vector, (n_queries, width)."""
        first: list[Positions] = []
        vectors: list[FloatMatrix] = []
        for query in queries:  # a row per query over all items is the largest thing here, so one at a time
            row = self.retriever.scores([query])
            first.append(among.best(row[0], n_best))
            vectors.append(self.reference.fit(row))
        return np.stack(first), np.concatenate(vectors)


def embedded(knowledge: Knowledge, name: str | None, *, method: str) -> Embedded:
    """The named retriever, or the one whose item vectors the index uses; an error where it has none."""
    retriever = knowledge.retriever(name or embedding_source(knowledge.retrievers))

    def make() -> Embedded:
        vectors = item_vectors(retriever)
        if vectors is None:
            raise InputError(
                f"{method} needs a retriever with item vectors, and {retriever.name} has none; build the index with a "
                "dual encoder, such as retrievers=('minilm',), or with embeddings=…"
            )
        return Embedded(retriever, vectors, Reference(vectors))

    found: Embedded = knowledge.cache.get(("embedded", retriever.name), make)
    return found


def unit_rows(vectors: FloatMatrix) -> FloatMatrix:
    """Rows of length one, in single precision; zeros stay zeros."""
    rows = vectors.astype(np.float32)
    lengths = np.linalg.norm(rows, axis=-1, keepdims=True)
    scaled: FloatMatrix = rows / np.where(lengths > 0, lengths, 1)
    return scaled
