"""Cached arrays: made once for what they were made from, and never stored in part."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from anncur.errors import DamagedError
from anncur.training.cache import array_digest, cached, file_digest

ARRAY = np.arange(6, dtype=np.int64).reshape(2, 3)


class Maker:
    """Makes an array and counts how often."""

    def __init__(self) -> None:
        self.n_made = 0

    def __call__(self) -> np.ndarray:
        self.n_made += 1
        return ARRAY


def test_an_array_is_made_once_for_each_thing_that_it_is_made_from(tmp_path: Path) -> None:
    make = Maker()
    for made_from, n_made in (("a", 1), ("a", 1), ("b", 2), ("a", 2)):
        np.testing.assert_array_equal(cached(tmp_path / "new", "kind", made_from, make), ARRAY)
        assert make.n_made == n_made
    cached(tmp_path / "new", "other kind", "a", make)
    assert make.n_made == 3


def test_an_array_that_could_not_be_made_leaves_no_file(tmp_path: Path) -> None:
    def fail() -> np.ndarray:
        raise MemoryError

    with pytest.raises(MemoryError):
        cached(tmp_path, "kind", "a", fail)
    make = Maker()
    cached(tmp_path, "kind", "a", make)
    assert make.n_made == 1
    assert [file.suffix for file in tmp_path.iterdir()] == [".npy"]


@pytest.mark.parametrize("content", [b"", b"no array", b"cut"], ids=["empty", "foreign", "cut"])
def test_a_damaged_array_is_named_with_its_remedy(tmp_path: Path, content: bytes) -> None:
    make = Maker()
    cached(tmp_path, "kind", "a", make)
    (file,) = tmp_path.iterdir()
    file.write_bytes(file.read_bytes()[:-9] if content == b"cut" else content)
    with pytest.raises(DamagedError, match=rf"{file.name} can't be read: .*; delete it to have it made again"):
        cached(tmp_path, "kind", "a", make)
    file.unlink()
    np.testing.assert_array_equal(cached(tmp_path, "kind", "a", make), ARRAY)
    assert make.n_made == 2


def test_digests_differ_by_content_shape_and_type(tmp_path: Path) -> None:
    arrays = [ARRAY, ARRAY + 1, ARRAY.T, ARRAY.reshape(3, 2), ARRAY.view(np.float64)]
    assert len({array_digest(array) for array in arrays}) == len(arrays)
    assert array_digest(ARRAY) == array_digest(ARRAY.copy())
    for name, content in (("a", "x"), ("b", "x"), ("c", "y")):
        (tmp_path / name).write_text(content)
    assert file_digest(tmp_path / "a") == file_digest(tmp_path / "b") != file_digest(tmp_path / "c")
