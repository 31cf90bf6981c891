"""Thrift's compact protocol, as far as Parquet's headers use it.

Source: thrift-compact-protocol.md in the Thrift repository.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final

TRUE: Final = 1
FALSE: Final = 2
BYTE: Final = 3
I16: Final = 4
I32: Final = 5
I64: Final = 6
DOUBLE: Final = 7
BINARY: Final = 8
LIST: Final = 9
SET: Final = 10
MAP: Final = 11
STRUCT: Final = 12
_DEEP: Final = 20


@dataclass(frozen=True)
class ThriftField:
    """One field of a struct.

    Attributes:
        id: its number.
        kind: its type.
        value: bool, int, bytes (also a double's), list of fields, or (type, items) of a list.
    """

    id: int
    kind: int
    value: Any


def decode(data: bytes, at: int) -> tuple[list[ThriftField], int]:
    """Return the struct at `at` and where it ends.

    Raises:
        IndexError, ValueError: there is none.
    """
    return _struct(data, at, 0)


def _struct(data: bytes, at: int, depth: int) -> tuple[list[ThriftField], int]:
    if depth > _DEEP:
        raise ValueError("nested too deep")
    fields: list[ThriftField] = []
    number = 0
    while True:
        head = data[at]
        at += 1
        if head == 0:
            return fields, at
        kind, step = head & 0x0F, head >> 4
        if step:
            number += step
        else:
            value, at = _varint(data, at)
            number = _unzigzag(value)
        content, at = _value(data, at, kind, depth, in_field=True)
        fields.append(ThriftField(number, kind, content))


def _value(data: bytes, at: int, kind: int, depth: int, *, in_field: bool) -> tuple[Any, int]:
    if kind in (TRUE, FALSE):
        return (kind == TRUE, at) if in_field else (data[at] == TRUE, at + 1)
    if kind == BYTE:
        return data[at], at + 1
    if kind in (I16, I32, I64):
        value, at = _varint(data, at)
        return _unzigzag(value), at
    if kind == DOUBLE:
        return data[at : at + 8], at + 8
    if kind == BINARY:
        size, at = _varint(data, at)
        if size > len(data) - at:
            raise ValueError("text longer than the file")
        return data[at : at + size], at + size
    if kind in (LIST, SET):
        return _list(data, at, depth)
    if kind == STRUCT:
        return _struct(data, at, depth + 1)
    raise ValueError(f"type {kind} is not used in Parquet")


def _list(data: bytes, at: int, depth: int) -> tuple[tuple[int, list[Any]], int]:
    head = data[at]
    at += 1
    size, kind = head >> 4, head & 0x0F
    if size == 15:
        size, at = _varint(data, at)
    if size > len(data) - at:
        raise ValueError("list longer than the file")
    items = []
    for _ in range(size):
        item, at = _value(data, at, kind, depth + 1, in_field=False)
        items.append(item)
    return (kind, items), at


def _varint(data: bytes, at: int) -> tuple[int, int]:
    value = shift = 0
    while True:
        byte = data[at]
        at += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value, at
        shift += 7
        if shift > 70:
            raise ValueError("number too long")


def _unzigzag(value: int) -> int:
    return (value >> 1) ^ -(value & 1)


def encode(fields: list[ThriftField]) -> bytes:
    """Return a struct's bytes."""
    out = bytearray()
    last = 0
    for field in fields:
        step = field.id - last
        kind = (TRUE if field.value else FALSE) if field.kind in (TRUE, FALSE) else field.kind
        if 0 < step < 16:
            out.append(step << 4 | kind)
        else:
            out.append(kind)
            out += _number(field.id)
        last = field.id
        if kind not in (TRUE, FALSE):
            out += _encoded(kind, field.value)
    out.append(0)
    return bytes(out)


def _encoded(kind: int, value: Any) -> bytes:
    if kind in (TRUE, FALSE):
        return bytes([TRUE if value else FALSE])
    if kind == BYTE:
        return bytes([value])
    if kind in (I16, I32, I64):
        return _number(value)
    if kind == DOUBLE:
        return bytes(value)
    if kind == BINARY:
        return _plain(len(value)) + bytes(value)
    if kind in (LIST, SET):
        item, items = value
        size = len(items)
        head = bytes([size << 4 | item]) if size < 15 else bytes([0xF0 | item]) + _plain(size)
        return head + b"".join(_encoded(item, v) for v in items)
    return encode(value)


def _number(value: int) -> bytes:
    return _plain((value << 1) ^ (value >> 63))


def _plain(value: int) -> bytes:
    out = bytearray()
    while value > 0x7F:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)
    return bytes(out)
