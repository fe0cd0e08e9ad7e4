"""Vectors in half precision: half of the memory, and products in single precision."""

from __future__ import annotations

import numpy as np

from anncur.arrays import FloatMatrix

ROWS_IN_CACHE = 1024  # turned to single precision while they are multiplied
LARGEST_LOSS = 2e-3  # of a vector's length, by rounding to half precision; beyond, single precision is kept
_SIGN_AND_NUMBER = np.uint32(0x8FFFE000).view(np.int32)
_EXPONENT_SHIFT = np.float32(2.0**112)  # between the exponents of half and single precision


def halved(rows: FloatMatrix) -> FloatMatrix:
    """In half precision, unless that can't hold them: numbers beyond 65,504, or so small that they would vanish."""
    with np.errstate(over="ignore"):
        half = rows.astype(np.float16)
    if not np.isfinite(half).all():
        return rows
    lost = np.linalg.norm(rows - half.astype(np.float32), axis=1)
    return half if (lost <= LARGEST_LOSS * np.linalg.norm(rows, axis=1)).all() else rows


def inner_products(vectors: FloatMatrix, query_vectors: FloatMatrix) -> FloatMatrix:
    """(n_queries, n_items) in float32, a block of items at a time, so that no copy of all of them is made.

    Query by query, so that a query gets the same scores alone and among others."""
    found = np.empty((len(query_vectors), len(vectors)), dtype=np.float32)
    for start in range(0, len(vectors), ROWS_IN_CACHE):
        block = single(vectors[start : start + ROWS_IN_CACHE])
        for row, query_vector in zip(found, query_vectors, strict=True):
            row[start : start + len(block)] = block @ query_vector
    return found


def single(rows: FloatMatrix) -> FloatMatrix:
    """Finite numbers in single precision.

    NumPy turns half precision to single number by number; moving their bits does it five times as fast."""
    if rows.dtype != np.float16:
        return rows.astype(np.float32, copy=False)
    bits = np.ascontiguousarray(rows).view(np.int16).astype(np.int32)  # the sign fills what is above
    bits <<= 13
    bits &= _SIGN_AND_NUMBER
    single = bits.view(np.float32)
    single *= _EXPONENT_SHIFT
    return single
