"""The product over all items, block by block."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from anncur.candidates import Candidates
from anncur.ranking import top_k
from anncur.search.base import best_guesses
from anncur.vectors.exact import ExactVectors


@given(
    n_items=st.integers(1, 60), n_queries=st.integers(1, 4), n_best=st.integers(0, 70), at_once=st.integers(1, 400),
    data=st.data(),
)  # fmt: skip
def test_neither_blocks_nor_how_candidates_are_picked_change_anything(
    n_items: int, n_queries: int, n_best: int, at_once: int, data: st.DataObject
) -> None:
    rng = np.random.default_rng(data.draw(st.integers(0, 100)))
    item_vectors = rng.integers(-2, 3, size=(n_items, 3)).astype(np.float32)  # small integers: exact, and full of ties
    query_vectors = rng.integers(-2, 3, size=(n_queries, 3)).astype(np.float32)
    exclude = [rng.permutation(n_items)[: data.draw(st.integers(0, n_items))] for _ in range(n_queries)]
    passing = data.draw(st.sampled_from([None, rng.permutation(n_items)[: data.draw(st.integers(1, n_items))]]))
    among = Candidates(n_items, None if passing is None else np.sort(passing))
    exclude = [among.of(excluded) for excluded in exclude]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("anncur.vectors.exact.PRODUCTS_AT_ONCE", at_once)
        proposals = best_guesses(ExactVectors(item_vectors), query_vectors, n_best=n_best, exclude=exclude, among=among)
    for proposal, vector, excluded in zip(proposals, query_vectors, exclude, strict=True):
        allowed = np.setdiff1d(among.first(n_items), excluded)
        expected = allowed[top_k(item_vectors[allowed] @ vector, n_best)]
        assert proposal.positions.tolist() == expected.tolist()
        assert proposal.guesses is not None
        assert proposal.guesses.tolist() == (item_vectors[expected] @ vector).tolist()
