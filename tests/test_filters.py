"""Which items pass a filter, what is refused, and how metadata is stored in columns."""

from __future__ import annotations

import io
import math
import operator
import sys
from collections.abc import Callable, Mapping
from typing import Any, TypeAlias

import numpy as np
import pytest
from numpy.random import Generator
from numpy.typing import NDArray

from anncur.columns import MetadataColumns, merged_kinds
from anncur.errors import InputError
from anncur.filters import Condition, parse_filter

Metadata: TypeAlias = list[dict[str, Any]]

NUMBERS: list[Any] = [-1, 0, 1, 1.0, 0.5, -0.0, 2020, 2020.5]
EXTREMES: list[Any] = [2**53, 2**53 + 1, float(2**53), 2**53 + 2, -(2**53) - 1, 1e300]
EXTREMES += [2**63 - 1, 2**63, float(2**63), 2**63 + 1, -(2**63), -(2**63) - 1, float(-(2**63)), 10**40]
STRINGS: list[Any] = ["", "a", "ab", "b", "é", "\uffff", "\ud800", "?", "\U0001f600", "1", "True"]
BOOLEANS: list[Any] = [True, False]
EVERYTHING: list[Any] = NUMBERS + EXTREMES + STRINGS + BOOLEANS
POOLS = {"lang": STRINGS, "year": NUMBERS, "key": EXTREMES, "flag": BOOLEANS, "mixed": EVERYTHING, "tags": EVERYTHING}
COMPARE = {"<": operator.lt, "<=": operator.le, ">": operator.gt, ">=": operator.ge}


def passing(filter: object, metadata: Metadata) -> list[bool]:
    found: list[bool] = parse_filter(filter).passing(MetadataColumns.of(metadata)).tolist()
    return found


def checked(filter: object, metadata: Metadata) -> None:
    parse_filter(filter).check(MetadataColumns.of(metadata).kinds())


def pick(rng: Generator, choices: list[Any]) -> Any:
    return choices[int(rng.integers(len(choices)))]


def random_metadata(rng: Generator, n_items: int) -> Metadata:
    """Items with all sorts of values; some fields are in every item, others in few."""
    share = {name: pick(rng, [0.2, 0.7, 1.0]) for name in POOLS}
    return [{name: random_entry(rng, name) for name in POOLS if rng.random() < share[name]} for _ in range(n_items)]


def random_entry(rng: Generator, name: str) -> Any:
    if name == "mixed" and rng.random() < 0.3:
        return pick(rng, [None, {"nested": 1}, [], math.nan, math.inf, 10**400, [[1]]])
    if name == "tags":
        return [pick(rng, [*POOLS[name], None, {}, [1]]) for _ in range(int(rng.integers(4)))]
    return pick(rng, POOLS[name])


def random_filter(rng: Generator, depth: int = 0) -> dict[str, Any]:
    entries = [random_condition(rng, depth) for _ in range(int(rng.choice([0, 1, 1, 1, 2, 2])))]
    return dict(entries)


def random_condition(rng: Generator, depth: int) -> tuple[str, Any]:
    word = pick(rng, ["and", "or", "not"]) if depth < 3 and rng.random() < 0.4 else "field"
    if word == "not":
        return word, random_filter(rng, depth + 1)
    if word != "field":
        return word, [random_filter(rng, depth + 1) for _ in range(int(rng.integers(1, 4)))]
    name = pick(rng, list(POOLS))
    values = [*POOLS[name], None]
    several = [pick(rng, values) for _ in range(int(rng.choice([0, 1, 2, 3, 50])))]
    return name, pick(rng, [pick(rng, values), several, random_operators(rng, values, several)])


def random_operators(rng: Generator, values: list[Any], several: list[Any]) -> dict[str, Any]:
    kind = pick(rng, [float, str])
    bounds = [value for value in [*NUMBERS, *EXTREMES, *STRINGS] if isinstance(value, str) == (kind is str)]
    operators = {sign: pick(rng, bounds) for sign in COMPARE if rng.random() < 0.4}
    operators |= {sign: pick(rng, values) for sign in ("=", "!=") if rng.random() < 0.2}
    operators |= {sign: several for sign in ("in", "not in") if rng.random() < 0.2}
    return operators or {"exists": bool(rng.random() < 0.5)}


def kind(value: Any) -> str | None:
    if isinstance(value, bool):
        return "boolean"
    if isinstance(value, (int, float)):
        return "number" if abs(value) <= sys.float_info.max else None
    return "string" if isinstance(value, str) else None


def values_of(item: Mapping[str, Any], name: str) -> list[Any]:
    found = item.get(name)
    return [value for value in (found if isinstance(found, list) else [found]) if kind(value)]


def is_in(item: Mapping[str, Any], name: str, wanted: list[Any]) -> bool:
    values = values_of(item, name)
    if not values:
        return any(one is None for one in wanted)
    return any(kind(value) == kind(one) and value == one for value in values for one in wanted)


def meets(item: Mapping[str, Any], name: str, operators: Mapping[str, Any]) -> bool:
    """The plain reading of the operators, one item at a time."""
    comparisons = [(COMPARE[sign], bound) for sign, bound in operators.items() if sign in COMPARE]
    is_within = any(
        all(kind(value) == kind(bound) and compare(value, bound) for compare, bound in comparisons)
        for value in values_of(item, name)
    )
    others: dict[str, Callable[[Any], bool]] = {
        "=": lambda wanted: is_in(item, name, [wanted]),
        "!=": lambda wanted: not is_in(item, name, [wanted]),
        "in": lambda wanted: is_in(item, name, wanted),
        "not in": lambda wanted: not is_in(item, name, wanted),
        "exists": lambda wanted: bool(values_of(item, name)) == wanted,
    }
    holds = all(others[sign](value) for sign, value in operators.items() if sign in others)
    return holds and (is_within or not comparisons)


def passes(item: Mapping[str, Any], filter: Mapping[str, Any]) -> bool:
    return all(holds(item, name, value) for name, value in filter.items())


def holds(item: Mapping[str, Any], name: str, value: Any) -> bool:
    if name == "and":
        return all(passes(item, each) for each in value)
    if name == "or":
        return any(passes(item, each) for each in value)
    if name == "not":
        return not passes(item, value)
    if isinstance(value, dict):
        return meets(item, name, value)
    return is_in(item, name, value if isinstance(value, list) else [value])


@pytest.mark.parametrize("seed", range(30))
def test_a_filter_over_columns_is_the_filter_of_each_item(seed: int) -> None:
    rng = np.random.default_rng(seed)
    metadata = random_metadata(rng, n_items=int(rng.integers(0, 60)))
    columns = MetadataColumns.of(metadata)
    for _ in range(10):
        asked = random_filter(rng)
        expected = [passes(item, asked) for item in metadata]
        assert parse_filter(asked).passing(columns).tolist() == expected, asked


@pytest.mark.parametrize("seed", range(10))
def test_parts_of_an_index_pass_what_the_whole_passes(seed: int) -> None:
    rng = np.random.default_rng(seed)
    metadata = random_metadata(rng, n_items=40)
    metadata[20:] = [{"lang": "a"} if rng.random() < 0.5 else {} for _ in range(20)]  # lack most fields
    parts = [MetadataColumns.of(metadata[:20]), MetadataColumns.of(metadata[20:])]
    assert merged_kinds(parts) == MetadataColumns.of(metadata).kinds()
    for _ in range(10):
        asked = random_filter(rng)
        found = np.concatenate([parse_filter(asked).passing(part) for part in parts])
        assert found.tolist() == passing(asked, metadata), asked


@pytest.mark.parametrize("seed", range(10))
def test_columns_are_the_same_after_storing(seed: int) -> None:
    rng = np.random.default_rng(seed)
    metadata = [*random_metadata(rng, n_items=30), {'a "field" é\ud800': "\ud800", "object": {"a": 1}}]
    columns = MetadataColumns.of(metadata)
    file = io.BytesIO()
    np.savez(file, **columns.to_arrays())  # type: ignore[arg-type]  # a name could be allow_pickle
    file.seek(0)
    with np.load(file, allow_pickle=False) as stored:
        again = MetadataColumns.from_arrays(dict(stored))
    assert len(again) == 31
    assert again.kinds() == columns.kinds()
    assert_same(again.to_arrays(), columns.to_arrays())
    for _ in range(10):
        condition = parse_filter(random_filter(rng))
        assert condition.passing(again).tolist() == condition.passing(columns).tolist()


def assert_same(found: dict[str, NDArray[Any]], expected: dict[str, NDArray[Any]]) -> None:
    assert list(found) == list(expected)
    for name, array in expected.items():
        assert found[name].dtype == array.dtype
        assert found[name].tobytes() == array.tobytes(), name


def test_the_same_metadata_gives_the_same_arrays_whatever_the_order_of_its_fields() -> None:
    metadata = random_metadata(np.random.default_rng(0), n_items=30)
    turned = [dict(reversed(item.items())) for item in metadata]
    assert_same(MetadataColumns.of(turned).to_arrays(), MetadataColumns.of(metadata).to_arrays())


def test_columns_are_read_from_an_iterator() -> None:
    columns = MetadataColumns.of({"n": n} for n in range(5))
    assert parse_filter({"n": {">=": 3}}).passing(columns).tolist() == [False, False, False, True, True]


def test_a_field_that_every_item_has_once_takes_no_row_numbers() -> None:
    arrays = MetadataColumns.of(
        {"lang": "en", "year": n, "price": n if n % 2 else n + 0.5} for n in range(1000)
    ).to_arrays()
    assert sum(array.nbytes for name, array in arrays.items() if name != "header") == 1000 * (4 + 8 + 8) + 2 + 2 * 8


def test_every_item_passes_an_empty_filter_and_none_an_empty_set() -> None:
    metadata: Metadata = [{}, {"a": 1}]
    assert passing({}, metadata) == [True, True]
    assert passing({"and": []}, metadata) == [True, True]
    assert passing({"a": []}, metadata) == [False, False]
    assert passing({"a": {"not in": []}}, metadata) == [True, True]


def test_all_entries_of_a_filter_must_hold() -> None:
    metadata: Metadata = [{"lang": "en", "year": 2021}, {"lang": "en", "year": 2024}, {"lang": "de", "year": 2021}]
    assert passing({"lang": "en", "year": {">=": 2020, "<": 2024}}, metadata) == [True, False, False]


def test_true_is_not_one_but_one_is_one_point_zero() -> None:
    metadata: Metadata = [{"a": True}, {"a": 1}, {"a": 1.0}, {"a": "1"}]
    assert passing({"a": True}, metadata) == [True, False, False, False]
    assert passing({"a": 1}, metadata) == [False, True, True, False]
    assert passing({"a": 1.0}, metadata) == [False, True, True, False]
    assert parse_filter({"a": True}) != parse_filter({"a": 1})


def test_integers_that_float64_rounds_are_told_apart() -> None:
    large = 2**53
    integers: Metadata = [{"a": large}, {"a": large + 1}]
    for metadata in (integers, [*integers, {"a": 0.5}]):
        assert passing({"a": large + 1}, metadata)[:2] == [False, True]
        assert passing({"a": float(large)}, metadata)[:2] == [True, False]
        assert passing({"a": {">": large}}, metadata)[:2] == [False, True]
        assert passing({"a": {"<=": float(large)}}, metadata)[:2] == [True, False]


def test_integers_beyond_int64_are_told_apart() -> None:
    metadata: Metadata = [{"a": 2**64}, {"a": 2**64 + 1}, {"a": 1}]
    assert passing({"a": 2**64 + 1}, metadata) == [False, True, False]
    assert passing({"a": {"<=": 2**64}}, metadata) == [True, False, True]


def test_items_that_lack_a_field_pass_only_negations() -> None:
    metadata: Metadata = [{}, {"a": None}, {"a": []}, {"a": {"b": 1}}, {"a": math.nan}]
    for value in ({"!=": 1}, {"not in": [1]}, None, {"exists": False}):
        assert passing({"a": value}, metadata) == [True] * 5, value
        assert passing({"not": {"a": value}}, metadata) == [False] * 5, value
    for other in (1, {"<": 1}, {">=": 1}, {"exists": True}, {"!=": None}):
        assert passing({"a": other}, metadata) == [False] * 5, other
        assert passing({"not": {"a": other}}, metadata) == [True] * 5, other


def test_null_in_a_set_stands_for_items_that_lack_the_field() -> None:
    metadata: Metadata = [{"a": 1}, {"a": 2}, {}]
    assert passing({"a": [1, None]}, metadata) == [True, False, True]
    assert passing({"a": {"not in": [1, None]}}, metadata) == [False, True, False]


def test_an_item_with_several_values_passes_by_any_of_them() -> None:
    metadata: Metadata = [{"tags": ["a", "b"]}, {"tags": "b"}, {"tags": ["c"]}, {"tags": ("a",)}]
    assert passing({"tags": "a"}, metadata) == [True, False, False, True]
    assert passing({"tags": ["b", "c"]}, metadata) == [True, True, True, False]
    assert passing({"tags": {"!=": "a"}}, metadata) == [False, True, True, False]


def test_as_many_values_as_items_are_not_one_for_each() -> None:
    assert passing({"tags": "b"}, [{"tags": ["a", "b"]}, {}]) == [True, False]


def test_an_item_may_have_values_of_several_kinds() -> None:
    metadata: Metadata = [{"tags": ["a", 1]}, {"tags": "b"}, {"tags": "c"}]
    assert passing({"tags": [1, "b"]}, metadata) == [True, True, False]


def test_a_set_may_hold_hundreds_of_values() -> None:
    wanted = [*range(-100, 100), *(n + 0.5 for n in range(100)), *(str(n) for n in range(100)), 2**64, 10**30, True]
    integers: Metadata = [{"a": 99}, {"a": 100}, {"a": 2**63 - 1}, {"a": -100}]
    floats: Metadata = [{"a": 99.0}, {"a": 99.25}, {"a": 99.5}, {"a": 1e30}, {"a": 2.0**64}]
    others: Metadata = [{"a": "99"}, {"a": "100"}, {"a": True}, {"a": False}, {"a": 2**64}, {"a": 2**64 + 1}]
    for metadata in (integers, floats, others):
        assert passing({"a": wanted}, metadata) == [is_in(item, "a", wanted) for item in metadata]


def test_one_value_must_lie_within_the_whole_range() -> None:
    metadata: Metadata = [{"years": [2010, 2030]}, {"years": [2010, 2021]}]
    assert passing({"years": {">=": 2020, "<": 2024}}, metadata) == [False, True]


def test_strings_are_ordered_by_code_point() -> None:
    metadata: Metadata = [{"a": "\uffff"}, {"a": "\U0001f600"}, {"a": "Z"}, {"a": "a"}]
    assert passing({"a": {">": "\uffff"}}, metadata) == [False, True, False, False]
    assert passing({"a": {"<": "a"}}, metadata) == [False, False, True, False]


def test_values_of_numpy_and_sets_are_taken() -> None:
    metadata: Metadata = [{"a": 1}, {"a": 2}, {"a": 0.5}]
    assert passing({"a": np.int64(1)}, metadata) == [True, False, False]
    assert passing({"a": {1, 2}}, metadata) == [True, True, False]
    assert passing({"a": {"<": np.float32(1)}}, metadata) == [False, False, True]


def test_subclasses_of_plain_types_are_values() -> None:
    metadata: Metadata = [{"a": np.str_("x"), "b": np.float64(0.5)}, {"a": "x", "b": 0.5}]
    assert passing({"a": "x", "b": 0.5}, metadata) == [True, True]


def test_what_passes_belongs_to_the_caller() -> None:
    columns = MetadataColumns.of([{"a": True}, {"a": True}])
    for asked in ({}, {"a": True}, {"a": {"exists": True}}, {"not": {"a": False}}):
        condition = parse_filter(asked)
        condition.passing(columns)[:] = False
        assert condition.passing(columns).all()


def test_a_filter_that_fits_the_metadata_is_accepted() -> None:
    metadata: Metadata = [{"lang": "en", "year": 2020, "tags": ["a", 1]}, {"flag": False}]
    checked({"lang": ["en", None], "year": {">": 1.5}, "tags": [1, "b"], "flag": True}, metadata)
    checked({"not": {"or": [{"lang": {"exists": False}}, {"and": [{"year": []}]}]}}, metadata)


def test_fields_of_another_type_of_name_are_ignored() -> None:
    assert MetadataColumns.of([{1: "a", "b": 2}]).kinds() == {"b": frozenset({"number"})}  # type: ignore[dict-item]


def nested(depth: int) -> Any:
    asked: dict[str, Any] = {"a": 1}
    for _ in range(depth - 1):
        asked = {"not": asked}
    return asked


def test_filters_may_be_nested_fifty_deep() -> None:
    assert passing(nested(50), [{"a": 1}, {"a": 2}]) == [False, True]


KNOWN = "the operators are =, !=, in, not in, exists, <, <=, >, >="
LISTED = "pass one of these, or a list of them"


@pytest.mark.parametrize(
    ("filter", "message"),
    [
        ("a", "a filter must be a mapping of fields to values, got 'a'; write it as {'lang': 'en'}"),
        ([{"a": 1}], "a filter must be a mapping of fields to values, got list;"),
        (None, "a filter must be a mapping of fields to values, got None;"),
        ({"not": [{"a": 1}]}, "'not' must be a filter, got list; write {'not': {…}}, with 'or' in it for several"),
        ({"OR": [{"a": 1}, {"b": 1}]}, "'OR' is no word of filters; did you mean 'or'?"),
        ({"$and": ({"a": 1},)}, "'$and' is no word of filters; did you mean 'and'?"),
        ({"Not": {"a": 1}}, "'Not' is no word of filters; did you mean 'not'?"),
        ({"and": [1]}, "a filter must be a mapping of fields to values, got 1;"),
        ({1: 2}, "a field of a filter must be a string, got 1; name a field of the metadata"),
        ({"and": {"a": 1}}, "'and' must be a list of filters, got dict; write {'and': [{…}, {…}]}"),
        ({"or": "x"}, "'or' must be a list of filters, got 'x'; write {'or': [{…}, {…}]}"),
        ({"or": []}, "'or' must have at least one filter, got an empty list; leave it out to pass every item"),
        ({"a": {}}, f"'a' must have at least one operator, got an empty mapping; {KNOWN}"),
        ({"a": {"$gt": 1}}, f"'a' has the unknown operator '$gt'; {KNOWN}"),
        ({"a": {2: 1}}, f"'a' has the unknown operator 2; {KNOWN}"),
        ({"a": {"=": [1]}}, "'a' = must have one value, got list; use 'in' for several"),
        ({"a": {"!=": [1]}}, "'a' != must have one value, got list; use 'not in' for several"),
        ({"a": {"in": "bc"}}, "'a' in must have a list of values, got 'bc'; use '=' for a single one"),
        ({"a": {"not in": 1}}, "'a' not in must have a list of values, got 1; use '!=' for a single one"),
        ({"a": {"exists": 1}}, "'a' exists must be true or false, got 1; pass a boolean"),
        ({"a": {"<": None}}, "'a' < must have a number or a string, got None; use '=' or 'exists'"),
        ({"a": {"<": True}}, "'a' < must have a number or a string, got True; use '=' or 'exists'"),
        ({"a": {">=": [1]}}, "a value of 'a' >= must be a boolean, a finite number, a string or null, got list;"),
        ({"a": {">": 1, "<": "b"}}, "the bounds of 'a' must be of one kind, got a number and a string; put two"),
        ({"a": math.nan}, f"a value of 'a' must be a boolean, a finite number, a string or null, got nan; {LISTED}"),
        ({"a": {"<": math.inf}}, "a value of 'a' < must be a boolean, a finite number, a string or null, got inf;"),
        ({"a": [1, 10**5000]}, "got an integer beyond the range of float64; pass one of these"),
        ({"a": [[1]]}, "a value of 'a' must be a boolean, a finite number, a string or null, got list;"),
        ({"a": [{"=": 1}]}, "a value of 'a' must be a boolean, a finite number, a string or null, got dict;"),
        ({"a": b"x"}, "a value of 'a' must be a boolean, a finite number, a string or null, got bytes;"),
        (nested(51), "filters must be nested at most 50 deep, got one that is deeper; flatten it"),
        (nested(100_000), "filters must be nested at most 50 deep, got one that is deeper; flatten it"),
    ],
    ids=lambda value: value[:70] if isinstance(value, str) else "filter",
)
def test_what_is_no_filter_is_refused(filter: object, message: str) -> None:
    with pytest.raises(InputError) as error:
        parse_filter(filter)
    assert message in str(error.value)


def test_a_filter_that_holds_itself_is_refused() -> None:
    asked: dict[str, Any] = {}
    asked["or"] = [asked]
    with pytest.raises(InputError, match="nested at most 50 deep"):
        parse_filter(asked)


METADATA: Metadata = [{"lang": "en", "year": 2020, "mixed": 1}, {"mixed": "a", "author": {"name": "x"}}]


@pytest.mark.parametrize(
    ("filter", "message"),
    [
        ({"lnag": "en"}, "no item has the metadata field 'lnag'; did you mean 'lang'? the fields are 'author', 'lang'"),
        ({"zzzz": None}, "no item has the metadata field 'zzzz'; the fields are 'author', 'lang', 'mixed', 'year'"),
        ({"Lang": "en"}, "no item has the metadata field 'Lang'; did you mean 'lang'?"),
        ({"OR": "en"}, "no item has the metadata field 'OR'; did you mean 'or'?"),
        ({"id": "box-3"}, "no item has the metadata field 'id'; ids are passed as a list, filter=['…'];"),
        ({"zzzz": []}, "no item has the metadata field 'zzzz'"),
        ({"zzzz": {"<": 1}}, "no item has the metadata field 'zzzz'"),
        ({"$and": {"exists": True}}, "no item has the metadata field '$and'; did you mean 'and'?"),
        ({"author": "x"}, "got 'author', which holds only nested objects or empty lists; filter by another field"),
        ({"author": {"exists": True}}, "got 'author', which holds only nested objects or empty lists"),
        ({"lang": 1}, "'lang' holds strings, got the number 1; pass one of strings"),
        ({"lang": {"!=": True}}, "'lang' holds strings, got the boolean True;"),
        ({"year": [2020, "2021"]}, "'year' holds numbers, got the string '2021';"),
        ({"year": {"<": "2021"}}, "'year' holds numbers, got the string '2021';"),
        ({"mixed": True}, "'mixed' holds numbers and strings, got the boolean True;"),
        ({"and": [{"year": 1}, {"lang": 1}]}, "'lang' holds strings"),
        ({"or": [{"year": 1}, {"lang": 1}]}, "'lang' holds strings"),
        ({"not": {"lang": 1}}, "'lang' holds strings"),
        ({"lang": "e" * 100, "year": "y" * 100}, "'year' holds numbers, got the string 'yyyy"),
    ],
)
def test_a_filter_that_cannot_fit_the_metadata_is_refused(filter: object, message: str) -> None:
    with pytest.raises(InputError) as error:
        checked(filter, METADATA)
    assert message in str(error.value)
    assert "y" * 60 not in str(error.value)


def test_the_error_for_an_unknown_field_lists_ten_of_many() -> None:
    with pytest.raises(InputError, match=r"'f09', … 30 in all$") as error:
        checked({"other": 1}, [{f"f{n:02}": n for n in range(30)}])
    assert "'f10'" not in str(error.value)


def test_the_error_for_an_unknown_field_says_that_there_is_no_metadata() -> None:
    with pytest.raises(InputError, match="'lang'; the items have no metadata to filter by"):
        checked({"lang": "en"}, [{}, {"lang": None}])


def test_a_field_may_be_named_like_a_word_in_capitals() -> None:
    metadata: Metadata = [{"OR": "Salem", "NOT": 1}, {"OR": "Bend"}]
    assert passing({"OR": ["Salem", "Eugene"], "NOT": {"<": 2}}, metadata) == [True, False]


def test_the_kinds_of_parts_are_merged() -> None:
    parts = [
        MetadataColumns.of([{"a": 1, "b": {}}]),
        MetadataColumns.of([{"a": "x", "c": True}]),
        MetadataColumns.of([]),
    ]
    assert merged_kinds(parts) == {
        "a": frozenset({"number", "string"}),
        "b": frozenset(),
        "c": frozenset({"boolean"}),
    }


def test_a_condition_is_a_value() -> None:
    asked = {"a": [1, "x"], "not": {"b": {">": 2, "<=": 3}}}
    condition: Condition = parse_filter(asked)
    assert condition == parse_filter(asked)
    assert hash(condition) == hash(parse_filter(asked))
