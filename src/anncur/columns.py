"""Items' metadata in typed columns, for filters over many items at once.

Reads the metadata of items (JSON values), feeds `filters.py`. Evaluates one field at a time. Reads and writes no
files: it turns into plain arrays and back."""

from __future__ import annotations

import functools
import json
import math
import operator
from array import array
from bisect import bisect_left, bisect_right
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple, TypeAlias

import numpy as np
from numpy.typing import NDArray

Kind: TypeAlias = Literal["boolean", "number", "string"]
Scalar: TypeAlias = bool | int | float | str
Mask: TypeAlias = NDArray[np.bool_]  # a truth per row, or per value of a column

FEW = 32  # wanted numbers that are compared one by one, which is faster than looking each value up
LARGEST_WHOLE = 2**53  # up to here float64 holds every whole number
INT64_MIN, INT64_MAX = -(2**63), 2**63 - 1


class Value(NamedTuple):
    """A value with its kind, so that True is not 1."""

    kind: Kind
    value: Scalar


class Comparison(NamedTuple):
    """A bound of a range: `<`, `<=`, `>` or `>=`, and a number or string."""

    operator: str
    bound: Value


class MetadataColumns:
    """The metadata of items, a row per item in their order.

    A field has a column for every kind of value that it holds. Nulls, nested objects, empty lists and numbers that
    aren't finite are no values: an item that has nothing else lacks the field. Strings compare by code point."""

    def __init__(self, n_rows: int, columns: Mapping[str, Sequence[Column]]) -> None:
        self._n_rows = n_rows
        self._columns = columns

    @classmethod
    def of(cls, metadata: Iterable[Mapping[str, Any]]) -> MetadataColumns:
        """Read the metadata of items once, in order."""
        builders: defaultdict[str, _FieldBuilder] = defaultdict(_FieldBuilder)
        n_rows = 0
        for row, entries in enumerate(metadata):
            for name, value in entries.items():
                if value is not None:
                    builders[name].add(row, value)
            n_rows = row + 1
        names = sorted(name for name in builders if isinstance(name, str))
        return cls(n_rows, {name: builders.pop(name).columns(n_rows) for name in names})

    def __len__(self) -> int:
        return self._n_rows

    def kinds(self) -> dict[str, frozenset[str]]:
        """The kinds of value of every field; none for a field that can't be filtered by."""
        return {name: frozenset(column.kind for column in columns) for name, columns in self._columns.items()}

    def present(self, name: str) -> Mask:
        """The rows that have a value."""
        return self._rows(name, lambda column: np.ones(len(column.values), dtype=np.bool_))

    def among(self, name: str, wanted: Sequence[Value]) -> Mask:
        """The rows that have one of the wanted values."""
        return self._rows(name, lambda column: column.among([one.value for one in wanted if one.kind == column.kind]))

    def within(self, name: str, comparisons: Sequence[Comparison]) -> Mask:
        """The rows that have a value for which every comparison holds; their bounds are of one kind."""

        def hits(column: Column) -> Mask:
            if column.kind != comparisons[0].bound.kind:
                return np.zeros(len(column.values), dtype=np.bool_)
            return functools.reduce(
                operator.and_, (column.compared(each.operator, each.bound.value) for each in comparisons)
            )

        return self._rows(name, hits)

    def _rows(self, name: str, hits: Callable[[Column], Mask]) -> Mask:
        passing = np.zeros(self._n_rows, dtype=np.bool_)
        for column in self._columns.get(name, ()):
            if column.rows is None:
                passing |= hits(column)
            else:
                rows = column.rows.compress(hits(column))
                passing[rows.astype(np.intp)] = True  # faster than int32
        return passing

    def to_arrays(self) -> dict[str, NDArray[Any]]:
        """Plain arrays by name, the same for the same metadata; `header` names the fields, in JSON."""
        storages = {name: [column.storage for column in columns] for name, columns in self._columns.items()}
        header = json.dumps({"n_rows": self._n_rows, "fields": storages}).encode()
        arrays: dict[str, NDArray[Any]] = {"header": np.frombuffer(header, dtype=np.uint8)}
        columns = (column for columns in self._columns.values() for column in columns)
        for number, column in enumerate(columns):
            arrays |= {f"{number}.{part}": values for part, values in column.to_arrays().items()}
        return arrays

    @classmethod
    def from_arrays(cls, arrays: Mapping[str, NDArray[Any]]) -> MetadataColumns:
        """Take what `to_arrays` gave."""
        header = json.loads(arrays["header"].tobytes())
        columns: dict[str, list[Column]] = {}
        number = 0
        for name, storages in header["fields"].items():
            columns[name] = [
                _stored_column(storage, arrays, prefix=f"{number + place}.") for place, storage in enumerate(storages)
            ]
            number += len(storages)
        return cls(header["n_rows"], columns)


def merged_kinds(columns: Iterable[MetadataColumns]) -> dict[str, frozenset[str]]:
    """The kinds of value of every field, over several parts of an index."""
    merged: dict[str, frozenset[str]] = {}
    for part in columns:
        for name, kinds in part.kinds().items():
            merged[name] = merged.get(name, frozenset()) | kinds
    return merged


def kind_of(value: object) -> Kind | None:
    """The kind of a value; none of what can't be filtered by."""
    if isinstance(value, bool):
        return "boolean"
    if isinstance(value, int | float):
        return "number" if _is_finite(value) else None
    return "string" if isinstance(value, str) else None


def sign_beside(sign: str, bound: float, *, held: float) -> str:
    """The sign of the same comparison with `held`, the closest number to the bound that a type can hold."""
    if held == bound:
        return sign
    return sign[0] + ("=" if (held < bound) == (sign[0] == "<") else "")  # no number of the type lies in between


@dataclass(frozen=True, slots=True, eq=False)
class PlainColumn:
    """Booleans, or numbers of one type, as they are."""

    values: NDArray[Any]  # bool, int64 or float64
    rows: NDArray[np.int32] | None  # the row of each value; None where every row has exactly one

    @property
    def kind(self) -> Kind:
        return "boolean" if self.storage == "bool" else "number"

    @property
    def storage(self) -> str:
        return self.values.dtype.name

    def among(self, wanted: Sequence[Scalar]) -> Mask:
        """The values that are wanted; a number that this type can't hold equals none of them."""
        cast: Callable[[Any], Any] = {"bool": bool, "int64": int, "float64": float}[self.storage]
        held = {cast(value) for value in wanted if cast(value) == value}
        if self.storage == "int64":
            held = {value for value in held if INT64_MIN <= value <= INT64_MAX}
        if len(held) > FEW:
            return np.isin(self.values, np.array(sorted(held), dtype=self.values.dtype))
        hits = np.zeros(len(self.values), dtype=np.bool_)
        for value in held:
            hits |= self.values == value
        return hits

    def compared(self, sign: str, bound: Any) -> Mask:
        """The values for which a comparison holds, exact for every pair of number types."""
        if self.storage == "int64":
            bound = math.floor(bound) if sign in {"<=", ">"} else math.ceil(bound)
        else:
            sign, bound = sign_beside(sign, bound, held=float(bound)), float(bound)
        hits: Mask = _COMPARE[sign](self.values, bound)
        return hits

    def to_arrays(self) -> dict[str, NDArray[Any]]:
        return {"values": self.values} if self.rows is None else {"values": self.values, "rows": self.rows}


@dataclass(frozen=True, slots=True, eq=False)
class CodedColumn:
    """Strings, or integers beyond int64, as places in a sorted vocabulary."""

    kind: Kind
    values: NDArray[np.int32]
    rows: NDArray[np.int32] | None  # as in `PlainColumn`
    vocabulary: Vocabulary

    @property
    def storage(self) -> str:
        return "string" if self.kind == "string" else "integer"

    def among(self, wanted: Sequence[Scalar]) -> Mask:
        """The values that are wanted."""
        codes = [code for value in wanted if (code := self._code(value)) is not None]
        if len(codes) == 1:
            return np.equal(self.values, codes[0])
        is_wanted = np.zeros(len(self.vocabulary), dtype=np.bool_)
        is_wanted[codes] = True
        return is_wanted.take(self.values)  # faster than indexing

    def compared(self, sign: str, bound: Scalar) -> Mask:
        """The values for which a comparison holds."""
        place = self._place(bisect_right if sign in {"<=", ">"} else bisect_left, bound)
        return self.values < place if sign[0] == "<" else self.values >= place

    def _code(self, value: Scalar) -> int | None:
        place = self._place(bisect_left, value)
        is_there = place < len(self.vocabulary) and self._place(bisect_right, value, place, place + 1) > place
        return place if is_there else None

    def _place(self, bisect: Callable[..., int], value: Scalar, *between: int) -> int:
        if isinstance(value, str):
            return bisect(self.vocabulary, _encoded(value), *between)  # bytes of UTF-8 sort like code points
        return bisect(self.vocabulary, value, *between, key=int)

    def to_arrays(self) -> dict[str, NDArray[Any]]:
        arrays: dict[str, NDArray[Any]] = {"values": self.values}
        arrays |= {"buffer": self.vocabulary.buffer, "offsets": self.vocabulary.offsets}
        return arrays if self.rows is None else arrays | {"rows": self.rows}


Column: TypeAlias = PlainColumn | CodedColumn


@dataclass(frozen=True, slots=True, eq=False)
class Vocabulary:
    """Byte strings in one buffer: word n is from `offsets[n]` to `offsets[n + 1]`."""

    buffer: NDArray[np.uint8]
    offsets: NDArray[np.int64]

    @classmethod
    def of(cls, words: Sequence[bytes]) -> Vocabulary:
        """Join words, in their order."""
        lengths = np.fromiter(map(len, words), dtype=np.int64, count=len(words))
        return cls(np.frombuffer(b"".join(words), dtype=np.uint8), np.concatenate([[0], np.cumsum(lengths)]))

    def __len__(self) -> int:
        return len(self.offsets) - 1

    def __getitem__(self, number: int) -> bytes:
        return self.buffer[self.offsets[number] : self.offsets[number + 1]].tobytes()


_COMPARE: dict[str, Callable[[Any, Any], Any]] = {
    "<": operator.lt,
    "<=": operator.le,
    ">": operator.gt,
    ">=": operator.ge,
}


class _Pairs:
    """Rows and values of a column that grows."""

    def __init__(self, typecode: str) -> None:
        self.values, self.rows = array(typecode), array("i")

    def add(self, row: int, value: Any) -> None:
        self.values.append(value)
        self.rows.append(row)


class _CodedPairs(_Pairs):
    """Rows and values of a column that grows, with the values numbered as they come."""

    def __init__(self) -> None:
        super().__init__("i")
        self._numbers: dict[Any, int] = {}

    def add(self, row: int, value: Any) -> None:
        numbers = self._numbers
        self.values.append(numbers.setdefault(value, len(numbers)))
        self.rows.append(row)

    def column(self, kind: Kind, n_rows: int) -> CodedColumn:
        words = sorted(self._numbers)
        codes = np.empty(len(words), dtype=np.int32)
        codes[[self._numbers[word] for word in words]] = np.arange(len(words))
        vocabulary = Vocabulary.of([_encoded(str(word)) for word in words])
        rows = np.array(self.rows, dtype=np.int32)
        return CodedColumn(kind, codes[np.array(self.values, dtype=np.int32)], _sparse(rows, n_rows), vocabulary)


class _FieldBuilder:
    """The columns of one field, value by value."""

    def __init__(self) -> None:
        self._booleans, self._int64s, self._floats = _Pairs("b"), _Pairs("q"), _Pairs("d")
        self._integers, self._strings = _CodedPairs(), _CodedPairs()
        self._adders: dict[type, Callable[[int, Any], None]] = {
            str: self._strings.add,
            bool: self._booleans.add,
            int: self._add_integer,
            float: self._add_float,
            list: self._add_list,
            tuple: self._add_list,
            object: _ignore,
        }

    def add(self, row: int, value: object) -> None:
        add = self._adders.get(type(value)) or self._inherited(type(value))
        add(row, value)

    def _inherited(self, kind: type) -> Callable[[int, Any], None]:
        return next(self._adders[base] for base in kind.__mro__ if base in self._adders)

    def _add_integer(self, row: int, value: int) -> None:
        if INT64_MIN <= value <= INT64_MAX:
            self._int64s.add(row, value)
        elif _is_finite(value):
            self._integers.add(row, value)

    def _add_float(self, row: int, value: float) -> None:
        if math.isfinite(value):
            self._floats.add(row, value)

    def _add_list(self, row: int, values: Sequence[object]) -> None:
        for value in values:
            if not isinstance(value, (list, tuple)):
                self.add(row, value)

    def columns(self, n_rows: int) -> list[Column]:
        """The columns that hold something."""
        columns: list[Column] = [
            _plain(self._booleans, np.dtype(np.bool_), n_rows),
            *_numbers(self._int64s, self._floats, n_rows),
            self._integers.column("number", n_rows),
            self._strings.column("string", n_rows),
        ]
        return [column for column in columns if len(column.values)]


def _ignore(row: int, value: object) -> None:
    """Pass over what can't be filtered by."""


def _plain(pairs: _Pairs, dtype: np.dtype[Any], n_rows: int) -> PlainColumn:
    return PlainColumn(np.array(pairs.values, dtype=dtype), _sparse(np.array(pairs.rows, dtype=np.int32), n_rows))


def _numbers(int64s: _Pairs, floats: _Pairs, n_rows: int) -> list[PlainColumn]:
    """One column where float64 holds every number of a field exactly, as prices of 10 and 9.99; else two."""
    whole, rest = int64s.values, floats.values
    if not whole or not rest or max(whole) > LARGEST_WHOLE or min(whole) < -LARGEST_WHOLE:
        return [_plain(int64s, np.dtype(np.int64), n_rows), _plain(floats, np.dtype(np.float64), n_rows)]
    rows = np.concatenate([int64s.rows, floats.rows]).astype(np.int32)
    values = np.concatenate([np.array(whole, dtype=np.float64), rest])
    order = np.argsort(rows, kind="stable")
    return [PlainColumn(values[order], _sparse(rows[order], n_rows))]


def _sparse(rows: NDArray[np.int32], n_rows: int) -> NDArray[np.int32] | None:
    is_dense = len(rows) == n_rows and np.array_equal(rows, np.arange(n_rows, dtype=np.int32))
    return None if is_dense else rows


def _stored_column(storage: str, arrays: Mapping[str, NDArray[Any]], *, prefix: str) -> Column:
    values, rows = arrays[f"{prefix}values"], arrays.get(f"{prefix}rows")
    if storage not in {"string", "integer"}:
        return PlainColumn(values, rows)
    vocabulary = Vocabulary(arrays[f"{prefix}buffer"], arrays[f"{prefix}offsets"])
    return CodedColumn("string" if storage == "string" else "number", values, rows, vocabulary)


def _encoded(text: str) -> bytes:
    return text.encode("utf-8", "surrogatepass")


def _is_finite(value: float) -> bool:
    try:
        return math.isfinite(value)
    except OverflowError:  # an integer that is too large for float64
        return False
