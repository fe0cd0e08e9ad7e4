"""The array types that signatures speak of."""

from __future__ import annotations

from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

FloatVector: TypeAlias = NDArray[np.floating[Any]]  # one axis
FloatMatrix: TypeAlias = NDArray[np.floating[Any]]  # two axes; the docstring names them
Positions: TypeAlias = NDArray[np.int64]  # places in a corpus or in a list of queries, never ids
Selector: TypeAlias = slice | Positions  # neighbouring items, or picked ones in ascending order

NO_POSITIONS: Positions = np.empty(0, dtype=np.int64)
NO_SCORES: FloatVector = np.empty(0, dtype=np.float64)
