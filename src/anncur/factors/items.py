"""Items as a posterior sees them: offsets and vectors, made of exact scores and embeddings.

Item vectors are the item's centred scores under the anchor queries, so that the anchor queries' own vectors, and by
the same measure those of other queries, have a standard normal distribution. Embeddings stand beside them. What is
fitted over all items, such as principal components and the noise, is an `ItemMap`: items that come later are mapped by
the one of those before them, and nothing of these changes.

Reads exact scores, feeds `posterior.py` and `search/projection.py`. Pure NumPy: no files, no models."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from anncur.arrays import FloatMatrix, FloatVector, Positions
from anncur.vectors.exact import ExactVectors
from anncur.vectors.half import halved, single

ITEMS_AT_ONCE = 8192
MOST_COMPONENTS = 256  # of the anchor queries' covariance; the others are left to the noise, and are little missed
MOST_EMBEDDING_COMPONENTS = 256
OFFSET_SPREAD = 0.3  # of a query's coefficient of the offsets, whose mean is 1
LEAST_NOISE_SHARE = 1e-6  # of an item's variance: exact scores of low rank have none, and rounding must not rule


@dataclass(frozen=True, eq=False)
class ItemModel:
    """Offsets and vectors of items: the prior of scores before a query is known."""

    offsets: FloatVector  # (n_items,)
    vectors: ExactVectors
    noise: float  # a variance
    most_variance: float  # of an item

    @classmethod
    def of(cls, offsets: FloatVector, vectors: FloatMatrix, noise: float) -> ItemModel:
        """With these vectors, (n_items, width)."""
        return cls(offsets, ExactVectors(vectors), noise, most_variance(vectors))

    @property
    def width(self) -> int:
        """Of the vectors."""
        return self.vectors.width

    def take(self, items: Positions) -> ItemModel:
        """That of some items."""
        return ItemModel(self.offsets[items], ExactVectors(self.vectors.take(items)), self.noise, self.most_variance)

    def halved(self) -> ItemModel:
        """The same with vectors in half precision, where that holds them."""
        if self.vectors.is_half:
            return self
        array = self.vectors.all()
        starts = range(0, len(array), ITEMS_AT_ONCE)
        parts = [halved(array[start : start + ITEMS_AT_ONCE]) for start in starts]
        if any(part.dtype != np.float16 for part in parts):
            return self
        return replace(self, vectors=ExactVectors(np.concatenate(parts)))

    def with_noise(self, variance: float) -> ItemModel:
        """The same for scores that are noisier by this much."""
        return replace(self, noise=self.noise + variance) if variance else self


def most_variance(vectors: FloatMatrix) -> float:
    """The largest squared length of a row."""
    return float(np.einsum("ij,ij->i", vectors, vectors).max(initial=0.0))


def centred_items(anchor_scores: FloatMatrix, fitted: FloatMatrix | None = None) -> tuple[FloatVector, FloatMatrix]:
    """Offsets and centred scores of items, each item's own, from their scores under the anchor queries, (n_items,
    n_anchor_queries).

    `fitted` is the part of these scores that retrievers account for, and that a query's prior mean brings back."""
    n_items, n_queries = anchor_scores.shape
    offsets = np.zeros(n_items, dtype=np.float32)
    vectors = np.zeros((n_items, n_queries), dtype=np.float32)
    scale = 1 / np.sqrt(max(1, n_queries - 1))
    for start in range(0, n_items if n_queries else 0, ITEMS_AT_ONCE):
        part = slice(start, start + ITEMS_AT_ONCE)
        residuals = anchor_scores[part] if fitted is None else anchor_scores[part] - fitted[part]
        offsets[part] = residuals.mean(axis=1)
        vectors[part] = (residuals - offsets[part, None]) * scale
    return offsets, vectors


@dataclass(frozen=True, eq=False)
class EmbeddingMap:
    """Embeddings centred, in principal components, and scaled to a variance."""

    mean: FloatVector  # (width,)
    components: FloatMatrix | None  # (width, at most MOST_EMBEDDING_COMPONENTS); None for all as they are
    factor: float

    @classmethod
    def fit(cls, embeddings: FloatMatrix, variance: float) -> EmbeddingMap:
        """To embeddings, (n_items, any width), that shall have this mean variance then."""
        rows = single(embeddings)
        mean = rows.mean(axis=0)
        plain = cls(mean, principal_components(rows - mean, MOST_EMBEDDING_COMPONENTS), 1.0)
        return replace(plain, factor=float(np.sqrt(variance / (mean_square(plain.apply(rows)) or 1.0))))

    def apply(self, embeddings: FloatMatrix) -> FloatMatrix:
        """(n_items, n_components)"""
        mapped = in_components(single(embeddings) - self.mean, self.components)
        return mapped * np.float32(self.factor)


@dataclass(frozen=True, eq=False)
class ItemMap:
    """How an item's offset, centred scores and embedding become its vector.

    Without scores (`mean_offset` is None) it is the embedding alone. Else the offset stands behind the centred scores
    and the embedding: how far a query's scores follow the offsets is its own."""

    components: FloatMatrix | None  # of centred scores, (n_anchor_queries, MOST_COMPONENTS); None for all as they are
    factor: float  # of centred scores
    embeddings: EmbeddingMap | None
    mean_offset: float | None
    noise: float  # a variance

    @classmethod
    def fit(
        cls,
        offsets: FloatVector,
        vectors: FloatMatrix,
        *,
        noise_share: float,
        embeddings: FloatMatrix | None = None,
        embedding_share: float = 0.0,
    ) -> ItemMap:
        """To items with these offsets and centred scores, all or some of an index.

        `embeddings`, (n_items, any width), are a retriever's view of which items are alike; `embedding_share` of the
        variance is theirs; where there are no scores, it is their variance. The noise is `noise_share` of the mean
        variance of an item."""
        embedded = embeddings if embedding_share else None
        if not vectors.shape[1]:
            of_embeddings = None if embedded is None else EmbeddingMap.fit(embedded, embedding_share)
            return cls(None, 1.0, of_embeddings, None, noise_of(noise_share, 1.0))
        components = principal_components(vectors, MOST_COMPONENTS)
        variance = mean_square(in_components(vectors, components))
        return cls(
            components,
            1.0 if embedded is None else float(np.sqrt(1 - embedding_share)),
            None if embedded is None else EmbeddingMap.fit(embedded, embedding_share * (variance or 1.0)),
            float(offsets.mean(dtype=np.float64)),
            noise_of(noise_share, variance),
        )

    @property
    def needs_embeddings(self) -> bool:
        """Whether vectors have a part of embeddings."""
        return self.embeddings is not None

    def apply(self, offsets: FloatVector, vectors: FloatMatrix, embeddings: FloatMatrix | None) -> FloatMatrix:
        """Vectors of items, (n_items, width), from their offsets, centred scores and embeddings."""
        columns = [np.float32(self.factor) * in_components(vectors, self.components)]
        if self.embeddings is not None:
            assert embeddings is not None, "fitted with embeddings"
            columns.append(self.embeddings.apply(embeddings))
        if self.mean_offset is not None:
            columns.append(offset_column(offsets, self.mean_offset))
        return np.hstack(columns)


def item_model(
    offsets: FloatVector,
    vectors: FloatMatrix,
    *,
    noise_share: float,
    embeddings: FloatMatrix | None = None,
    embedding_share: float = 0.0,
) -> ItemModel:
    """The model of items with these offsets and centred scores, by the map that is fitted to themselves."""
    fitted = ItemMap.fit(
        offsets, vectors, noise_share=noise_share, embeddings=embeddings, embedding_share=embedding_share
    )
    return ItemModel.of(offsets, fitted.apply(offsets, vectors, embeddings), fitted.noise)


def beside_offsets(offsets: FloatVector, vectors: FloatMatrix) -> FloatMatrix:
    """Vectors with the offsets as a column behind them."""
    return np.hstack([vectors, offset_column(offsets, float(offsets.mean(dtype=np.float64)))])


def offset_column(offsets: FloatVector, mean: float) -> FloatMatrix:
    """Offsets as a coordinate of vectors, (n_items, 1)."""
    column: FloatMatrix = (OFFSET_SPREAD * (offsets - mean)).astype(np.float32)[:, None]
    return column


def noise_of(noise_share: float, variance: float) -> float:
    """The noise's variance, from its share of an item's."""
    return max(noise_share, LEAST_NOISE_SHARE) * (variance or 1.0)


def principal_components(vectors: FloatMatrix, most: int) -> FloatMatrix | None:
    """The first of the vectors' principal components, (width, most); None where they have no more coordinates."""
    if vectors.shape[1] <= most:
        return None
    components: FloatMatrix = np.linalg.eigh(gram(vectors))[1][:, -most:].astype(np.float32)
    return components


def in_components(vectors: FloatMatrix, components: FloatMatrix | None) -> FloatMatrix:
    """Vectors in these components, or as they are."""
    return vectors if components is None else vectors @ components


def gram(vectors: FloatMatrix) -> FloatMatrix:
    """Products of the columns with each other, (width, width), summed over the items block by block."""
    total = np.zeros((vectors.shape[1], vectors.shape[1]))
    for start in range(0, len(vectors), ITEMS_AT_ONCE):
        part = vectors[start : start + ITEMS_AT_ONCE].astype(np.float64)
        total += part.T @ part
    return total


def mean_square(vectors: FloatMatrix) -> float:
    """The mean squared length of the rows."""
    return float(np.einsum("ij,ij->", vectors, vectors, dtype=np.float64) / max(1, len(vectors)))
