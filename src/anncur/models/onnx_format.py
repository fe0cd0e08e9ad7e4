"""ONNX's file format, as much of it as `graph.py` writes: messages in the encoding of protocol buffers.

The package `onnx` writes the same bytes, but is larger than ONNX Runtime needs, and copies all weights several times.
A message is a list of parts, which are joined once, when the file is whole. Fields are in the order of their numbers,
which are those of onnx.proto."""

from __future__ import annotations

import struct
from collections.abc import Iterable, Mapping, Sequence
from enum import IntEnum
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

Message: TypeAlias = list[bytes | memoryview]  # parts, to be joined
Attribute: TypeAlias = float | list[int] | Message  # a number, integers, or a graph

_VARINT, _BYTES, _FLOAT = 0, 2, 5  # how a field's value is encoded
_ATTRIBUTE_FLOAT, _ATTRIBUTE_INT, _ATTRIBUTE_GRAPH, _ATTRIBUTE_INTS = 1, 2, 5, 7


class Kind(IntEnum):
    """The type of a tensor's numbers."""

    FLOAT = 1
    INT8 = 3
    INT32 = 6
    INT64 = 7
    BOOL = 9


_KINDS = {"float32": Kind.FLOAT, "int8": Kind.INT8, "int32": Kind.INT32, "int64": Kind.INT64, "bool": Kind.BOOL}


def tensor(value: NDArray[Any], name: str) -> Message:
    """A constant (TensorProto)."""
    little = np.ascontiguousarray(value, dtype=value.dtype.newbyteorder("<"))
    return [
        *_repeated(1, value.shape),
        *_field(2, _KINDS[value.dtype.name]),
        *_field(8, name),
        *_field(9, [little.reshape(-1).data.cast("B")]),
    ]


def node(
    operator: str, inputs: Sequence[str], outputs: Sequence[str], *, domain: str, attributes: Mapping[str, Attribute]
) -> Message:
    """An operation (NodeProto)."""
    return [
        *_repeated(1, inputs),
        *_repeated(2, outputs),
        *_field(4, operator),
        *_repeated(5, (_attribute(name, attributes[name]) for name in sorted(attributes))),
        *_field(7, domain),
    ]


def value_info(name: str, kind: Kind, shape: Sequence[int | str] | None) -> Message:
    """An input or output (ValueInfoProto); a dimension is a number or a name, and None is an unknown shape."""
    dimensions = (_field(2 if isinstance(size, str) else 1, size) for size in shape or ())
    known = [] if shape is None else _field(2, list(_repeated(1, dimensions)))
    return [*_field(1, name), *_field(2, _field(1, [*_field(1, kind), *known]))]


def graph(
    nodes: Iterable[Message],
    name: str,
    *,
    inputs: Iterable[Message] = (),
    outputs: Iterable[Message],
    constants: Iterable[Message] = (),
) -> Message:
    """Operations in the order of their execution (GraphProto)."""
    return [
        *_repeated(1, nodes),
        *_field(2, name),
        *_repeated(5, constants),
        *_repeated(11, inputs),
        *_repeated(12, outputs),
    ]


def model(whole: Message, *, ir_version: int, opsets: Mapping[str, int], metadata: Mapping[str, str]) -> bytes:
    """The content of an .onnx file (ModelProto)."""
    versions = ([*_field(1, domain), *_field(2, version)] for domain, version in opsets.items())
    entries = ([*_field(1, key), *_field(2, value)] for key, value in metadata.items())
    parts = [
        *_field(1, ir_version),
        *_field(2, "anncur"),
        *_field(7, whole),
        *_repeated(8, versions),
        *_repeated(14, entries),
    ]
    return b"".join(parts)


def _attribute(name: str, value: Attribute) -> Message:
    if isinstance(value, int):
        kind, fields = _ATTRIBUTE_INT, _field(3, value)
    elif isinstance(value, float):
        kind, fields = _ATTRIBUTE_FLOAT, _field(2, value)
    elif isinstance(value[0], int):
        kind, fields = _ATTRIBUTE_INTS, list(_repeated(8, value))
    else:
        kind, fields = _ATTRIBUTE_GRAPH, _field(6, value)
    return [*_field(1, name), *fields, *_field(20, kind)]


def _repeated(number: int, values: Iterable[Any]) -> Iterable[bytes | memoryview]:
    return (part for value in values for part in _field(number, value))


def _field(number: int, value: float | str | Message) -> Message:
    if isinstance(value, int):
        return [_varint(number << 3 | _VARINT) + _varint(value)]
    if isinstance(value, float):
        return [_varint(number << 3 | _FLOAT) + struct.pack("<f", value)]
    parts: Message = [value.encode()] if isinstance(value, str) else value
    return [_varint(number << 3 | _BYTES) + _varint(sum(map(len, parts))), *parts]


def _varint(value: int) -> bytes:
    """Seven bits a byte, the lowest first; a negative number as one of 64 bits."""
    value &= 2**64 - 1
    found = bytearray()
    while value > 0x7F:
        found.append(value & 0x7F | 0x80)
        value >>= 7
    found.append(value)
    return bytes(found)
