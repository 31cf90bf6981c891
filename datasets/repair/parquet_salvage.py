"""Rows of a Parquet file whose end is missing: what a killed or cut-off writer leaves.

A Parquet file's footer says where its columns are, and is written last. Without it no library
reads the file, though every finished row group is there. Here the pages are walked from the
front, row group by row group, and a new footer is made for those that are whole.

Sources: the Parquet format (parquet.thrift, 2.10) and Thrift's compact protocol
(thrift-compact-protocol.md in the Thrift repository).
"""

from __future__ import annotations

import io
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import pyarrow as pa
import pyarrow.parquet as pq

from gaploop.core.errors import UnusableInputError

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


MAGIC: Final = b"PAR1"
DICTIONARY_PAGE: Final = 2
DATA_PAGES: Final = (0, 3)
_CODECS: Final = (1, 0, 6, 2)  # Snappy, none, Zstandard, gzip
_ENCODINGS: Final = (0, 3, 8)  # PLAIN, RLE, RLE_DICTIONARY
_MAX_PAGE: Final = 1 << 30


@dataclass(frozen=True)
class _Page:
    """One page.

    Attributes:
        start: where its header begins in the file.
        end: where the next page begins.
        values: how many values it holds, nulls and list entries counted.
        raw: size of the page without compression, its header counted.
    """

    kind: int
    start: int
    end: int
    values: int
    raw: int


@dataclass(frozen=True)
class _Leaf:
    """One column of numbers or bytes as Parquet stores it.

    Attributes:
        path: its names from the root.
        kind: Parquet's physical type.
        width: values in a row: 1, or the length of a list.
    """

    path: tuple[str, ...]
    kind: int
    width: int


def salvage(path: Path, schema: pa.Schema) -> pa.Table:
    """Return the rows of a file's whole row groups.

    Args:
        path: a Parquet file that lacks its footer, without encryption.
        schema: its columns, in order. Lists must be of fixed length.

    Raises:
        UnusableInputError: nothing whole is left, or the columns are others.
    """
    data = path.read_bytes()
    if data[:4] != MAGIC:
        raise UnusableInputError(f"{path} is no Parquet file.")
    footer, leaves = _template(schema)
    groups = []
    at = 4
    while True:
        group = _group(data, at, leaves)
        if group is None:
            break
        groups.append(group)
        at = group[-1][-1].end
    tables = []
    codecs = list(_CODECS)
    for group in groups:
        table = None
        for codec in codecs:
            try:
                table = _rows_of_group(data, footer, leaves, group, codec)
            except (pa.ArrowException, OSError, ValueError):
                continue
            codecs = [codec]  # one file, one compression
            break
        if table is None:
            break
        tables.append(table)
    if not tables:
        raise UnusableInputError(f"{path}: no row group of it is whole.")
    return pa.concat_tables(tables)


def _template(schema: pa.Schema) -> tuple[list[ThriftField], list[_Leaf]]:
    """Return the footer that an empty file of the schema has, and the schema's leaves."""
    sink = io.BytesIO()
    pq.write_table(schema.empty_table(), sink)
    data = sink.getvalue()
    size = int.from_bytes(data[-8:-4], "little")
    footer, _ = decode(data, len(data) - 8 - size)
    parquet = pq.ParquetFile(io.BytesIO(data)).schema
    widths = [_widths(field.type) for field in schema]
    flat = [w for ws in widths for w in ws]
    names = {
        "BOOLEAN": 0,
        "INT32": 1,
        "INT64": 2,
        "INT96": 3,
        "FLOAT": 4,
        "DOUBLE": 5,
        "BYTE_ARRAY": 6,
        "FIXED_LEN_BYTE_ARRAY": 7,
    }
    leaves = [
        _Leaf(tuple(parquet.column(i).path.split(".")), names[parquet.column(i).physical_type], w)
        for i, w in enumerate(flat)
    ]
    return footer, [_with_path(leaf, i, schema) for i, leaf in enumerate(leaves)]


def _with_path(leaf: _Leaf, number: int, schema: pa.Schema) -> _Leaf:
    """Put names together again that have dots in them, such as `observation.state`."""
    at = 0
    for field in schema:
        count = len(_widths(field.type))
        if number < at + count:
            rest = ".".join(leaf.path)[len(field.name) :].strip(".")
            return _Leaf((field.name, *(rest.split(".") if rest else ())), leaf.kind, leaf.width)
        at += count
    raise UnusableInputError("The schema has fewer columns than its file.")


def _widths(kind: pa.DataType) -> list[int]:
    if pa.types.is_struct(kind):
        return [w for field in kind for w in _widths(field.type)]
    width = 1
    while pa.types.is_fixed_size_list(kind):
        width, kind = width * int(kind.list_size), kind.value_type
    if pa.types.is_nested(kind):
        raise UnusableInputError(f"Columns of type {kind} can't be put together again.")
    return [width]


def _pages(data: bytes, at: int) -> Iterator[_Page]:
    """Yield pages from `at` on, up to the first that isn't whole or isn't a page."""
    while at < len(data):
        try:
            fields, body = decode(data, at)
        except (IndexError, ValueError):
            return
        known = {f.id: f.value for f in fields}
        kind, raw, stored = known.get(1), known.get(2), known.get(3)
        if not (isinstance(kind, int) and isinstance(raw, int) and isinstance(stored, int)):
            return
        end = body + stored
        if not 0 <= stored <= _MAX_PAGE or not 0 <= raw <= _MAX_PAGE or end > len(data):
            return
        header = known.get({0: 5, 2: 7, 3: 8}.get(kind, -1))
        if not isinstance(header, list) or not header or not isinstance(header[0].value, int):
            return
        yield _Page(kind, at, end, header[0].value, raw + body - at)
        at = end


def _group(data: bytes, at: int, leaves: list[_Leaf]) -> list[list[_Page]] | None:
    """Return the pages of each column of the row group at `at`; None where it isn't whole."""
    pages: list[_Page] = []
    dictionaries = 0
    for page in _pages(data, at):  # as many as one row group can have; its end isn't marked
        dictionaries += page.kind == DICTIONARY_PAGE
        if dictionaries > len(leaves):
            break
        pages.append(page)
    columns: list[list[_Page]] = []
    rows = 0
    i = 0
    for leaf in leaves:
        chunk: list[_Page] = []
        values = 0
        while i < len(pages):
            page = pages[i]
            if page.kind == DICTIONARY_PAGE and chunk:
                break
            if rows and values == rows * leaf.width:
                break
            begins_second = (  # without a dictionary before it
                len(leaves) > 1
                and page.kind in DATA_PAGES
                and page.values == values // leaf.width * leaves[1].width
            )
            if not rows and values and begins_second:
                break
            chunk.append(page)
            values += page.values if page.kind in DATA_PAGES else 0
            i += 1
        if not values or values % leaf.width or (rows and values != rows * leaf.width):
            return None
        rows = rows or values // leaf.width
        columns.append(chunk)
    return columns


def _rows_of_group(
    data: bytes,
    footer: list[ThriftField],
    leaves: list[_Leaf],
    group: list[list[_Page]],
    codec: int,
) -> pa.Table:
    """Return a row group's rows by way of a file of its own."""
    start, end = group[0][0].start, group[-1][-1].end
    shift = 4 - start
    rows = sum(p.values for p in group[0] if p.kind in DATA_PAGES) // leaves[0].width
    chunks = [_chunk(leaf, pages, shift, codec) for leaf, pages in zip(leaves, group, strict=True)]
    row_group = [
        ThriftField(1, LIST, (STRUCT, chunks)),
        ThriftField(2, I64, sum(p.raw for pages in group for p in pages)),
        ThriftField(3, I64, rows),
    ]
    changed = [
        ThriftField(3, I64, rows)
        if f.id == 3
        else ThriftField(4, LIST, (STRUCT, [row_group]))
        if f.id == 4
        else f
        for f in footer
    ]
    tail = encode(changed)
    file = MAGIC + data[start:end] + tail + len(tail).to_bytes(4, "little") + MAGIC
    table = pq.read_table(io.BytesIO(file))
    table.validate(full=True)
    return table


def _chunk(leaf: _Leaf, pages: list[_Page], shift: int, codec: int) -> list[ThriftField]:
    """Return a ColumnChunk."""
    first = next(p for p in pages if p.kind in DATA_PAGES)
    dictionary = [p for p in pages if p.kind == DICTIONARY_PAGE]
    meta = [
        ThriftField(1, I32, leaf.kind),
        ThriftField(2, LIST, (I32, list(_ENCODINGS))),
        ThriftField(3, LIST, (BINARY, [name.encode() for name in leaf.path])),
        ThriftField(4, I32, codec),
        ThriftField(5, I64, sum(p.values for p in pages if p.kind in DATA_PAGES)),
        ThriftField(6, I64, sum(p.raw for p in pages)),
        ThriftField(7, I64, pages[-1].end - pages[0].start),
        ThriftField(9, I64, first.start + shift),
    ]
    meta += [ThriftField(11, I64, p.start + shift) for p in dictionary]
    return [ThriftField(2, I64, 0), ThriftField(3, STRUCT, meta)]
