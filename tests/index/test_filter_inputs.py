"""What a filter may be given as: masks of any kind, arrays in conditions, and many ids at once."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pandas
import pytest

import anncur
from anncur.errors import InputError
from anncur.storage.tables import SqliteTable

ITEMS = [anncur.Item(f"i{number}", f"thing {number}", metadata={"n": number}) for number in range(30)]
EVEN = [number % 2 == 0 for number in range(30)]


def by_digits(pairs: list[tuple[str, str]]) -> list[float]:
    return [float("".join(filter(str.isdigit, item))) for _, item in pairs]


@pytest.fixture(params=["memory", "folder"])
def index(request: pytest.FixtureRequest, tmp_path: Path) -> anncur.Index:
    path = tmp_path / "x" if request.param == "folder" else None
    return anncur.Index.build(ITEMS, by_digits, ["a", "b"], path=path)


@pytest.mark.parametrize(
    "mask",
    [
        EVEN,
        tuple(EVEN),
        list(np.array(EVEN)),
        pandas.Series(EVEN),
        pandas.Series(EVEN, dtype="boolean"),
        np.array(EVEN, dtype=object),
    ],
)
def test_whatever_holds_only_booleans_is_a_mask(index: anncur.Index, mask: Any) -> None:
    assert index.search("q", k=3, filter=mask).ids == ["i28", "i26", "i24"]


@pytest.mark.parametrize(
    "ids", [pandas.Series(["i3", "i7"]), np.array(["i3", "i7"]), {"i3": 0, "i7": 0}.keys(), {"i3", "i7"}]
)
def test_ids_may_come_in_any_collection(index: anncur.Index, ids: Any) -> None:
    assert index.search("q", filter=ids).ids == ["i7", "i3"]


@pytest.mark.parametrize("wrong", [np.array(True), np.array("i3"), np.str_("i3"), np.bool_(True), 1.5, b"i3"])
def test_a_single_value_is_no_filter(index: anncur.Index, wrong: Any) -> None:
    with pytest.raises(InputError, match=r"conditions over metadata such as .*, a list of ids, or a mask"):
        index.search("q", filter=wrong)


@pytest.mark.parametrize("wrong", [[*EVEN[1:], None], [*EVEN[1:], "i3"], [["i3"]], np.arange(30), [[[[[[[[]]]]]]]]])
def test_what_is_neither_a_mask_nor_ids_is_refused(index: anncur.Index, wrong: Any) -> None:
    with pytest.raises(InputError, match="must hold strings"):
        index.search("q", filter=wrong)


def test_several_filters_are_refused_as_one_holds_for_all_queries(index: anncur.Index) -> None:
    several: Any = [{"n": 1}, {"n": 2}]
    with pytest.raises(InputError, match=r"one filter holds for all queries; pass its conditions without the list"):
        index.search_many(["q", "r"], filter=several)


@pytest.mark.parametrize(
    "condition",
    [np.array([3, 7]), range(3, 8, 4), {"in": np.array([3, 7])}, {"in": range(3, 8, 4)}, {">=": 3, "not in": range(8)}],
)
def test_values_of_conditions_may_be_arrays_and_ranges(index: anncur.Index, condition: Any) -> None:
    expected = ["i29", "i28"] if isinstance(condition, dict) and ">=" in condition else ["i7", "i3"]
    assert index.search("q", k=2, filter={"n": condition}).ids == expected


def test_an_array_of_several_dimensions_is_no_list_of_values(index: anncur.Index) -> None:
    with pytest.raises(InputError, match="a value of 'n' must be"):
        index.search("q", filter={"n": np.array([[3, 7]])})


def test_an_index_that_changes_its_version_by_itself_takes_no_mask(tmp_path: Path) -> None:
    writer = anncur.Index.build(ITEMS, by_digits, ["a", "b"], path=tmp_path / "x")
    reader = anncur.Index.open(tmp_path / "x", by_digits, refresh_seconds=0)
    mask = np.array([item.metadata["n"] % 2 == 0 for item in reader.items])
    writer.upsert([anncur.Item("i0", "thing 0", metadata={"n": 0, "new": True})])  # all other positions shift
    with pytest.raises(InputError, match="pass conditions over metadata or a list of ids"):
        reader.search("q", filter=mask)
    assert reader.search("q", k=2, filter=["i0", "i3"]).ids == ["i3", "i0"]
    assert reader.search("q", filter={"new": True}).ids == ["i0"]


@pytest.fixture
def counted(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    queries: list[str] = []
    fetch = SqliteTable._fetch

    def counting(self: SqliteTable, query: str, parameters: Any) -> list[Any]:
        queries.append(query)
        return fetch(self, query, parameters)

    monkeypatch.setattr(SqliteTable, "_fetch", counting)
    return queries


def test_many_ids_are_looked_up_at_once_among_live_items(tmp_path: Path, counted: list[str]) -> None:
    items = [anncur.Item(f"i{number}", f"thing {number}") for number in range(1200)]
    index = anncur.Index.build(items[:1190], by_digits, path=tmp_path / "x")
    for item in items[1190:]:
        index.add([item])
    index.upsert([anncur.Item("i0", "thing 2000"), anncur.Item("i1195", "thing 2001")])
    index.remove(["i1", "i1199"])
    ids = [item.id for item in items] + ["gone", "i5"]
    items_there, expected = index.items, [n for n, item in enumerate(index.items) if item.id in set(ids)]
    counted.clear()
    assert items_there.positions(ids).tolist() == expected == list(range(1198))
    assert len(counted) == 3 * index.info.n_segments
    assert items_there.positions(["i0", "i2", "i1"]).tolist() == sorted(map(items_there.position, ["i0", "i2"]))
    assert items_there.positions([]).tolist() == items_there.positions(["gone"]).tolist() == []


def test_ids_that_no_item_can_have_pass_nothing(index: anncur.Index) -> None:
    assert index.search("q", filter=["\ud800", "i3", "i4\0", ""]).ids == ["i3"]
