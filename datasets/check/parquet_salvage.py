"""Rows of a Parquet file whose end is missing: what a killed or cut-off writer leaves.

A Parquet file's footer says where its columns are, and is written last. Without it no library
reads the file, though every finished row group is there. Here the pages are walked from the
front, row group by row group, and a new footer is made for those that are whole.

Sources: the Parquet format (parquet.thrift, 2.10) and Thrift's compact protocol
(thrift-compact-protocol.md in the Thrift repository).
"""

import io
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import pyarrow as pa
import pyarrow.parquet as pq

from gaploop.core.errors import UnusableInputError

# Thrift's compact protocol: types, and values of them. A struct is {field: (type, value)}, a list
# (type of its items, items); a double stays eight bytes.

TRUE: Final = 1
FALSE: Final = 2
BYTE: Final = 3
I32: Final = 5
I64: Final = 6
DOUBLE: Final = 7
BINARY: Final = 8
LIST: Final = 9
STRUCT: Final = 12
_INTEGERS: Final = (4, I32, I64)
_LISTS: Final = (LIST, 10)  # and sets
_DEEP: Final = 20

type Struct = dict[int, tuple[int, Any]]


def decode(data: bytes, at: int, kind: int = STRUCT, depth: int = 0) -> tuple[Any, int]:
    """Return the value of a type that begins at `at`, and where it ends.

    Raises:
        IndexError, ValueError: there is none.
    """
    if depth > _DEEP:
        raise ValueError("nested too deep")
    if kind in (TRUE, FALSE, BYTE):
        return (data[at] if kind == BYTE else data[at] == TRUE), at + 1
    if kind in _INTEGERS:
        value, at = _number(data, at)
        return (value >> 1) ^ -(value & 1), at
    if kind in (DOUBLE, BINARY):
        size, at = (8, at) if kind == DOUBLE else _number(data, at)
        if size > len(data) - at:
            raise ValueError("text longer than the file")
        return data[at : at + size], at + size
    if kind in _LISTS:
        (size, item), at = divmod(data[at], 16), at + 1
        if size == 15:
            size, at = _number(data, at)
        if size > len(data) - at:
            raise ValueError("list longer than the file")
        items = []
        for _ in range(size):
            value, at = decode(data, at, item, depth + 1)
            items.append(value)
        return (item, items), at
    if kind != STRUCT:
        raise ValueError(f"type {kind} is not used in Parquet")
    fields: Struct = {}
    number = 0
    while data[at]:
        (step, kind), at = divmod(data[at], 16), at + 1
        if step:
            number += step
        else:
            number, at = decode(data, at, I32)
        if kind in (TRUE, FALSE):  # the type is the value
            fields[number] = (TRUE, kind == TRUE)
        else:
            value, at = decode(data, at, kind, depth + 1)
            fields[number] = (kind, value)
    return fields, at + 1


def _number(data: bytes, at: int) -> tuple[int, int]:
    value = shift = 0
    while True:
        byte, at = data[at], at + 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value, at
        shift += 7
        if shift > 70:
            raise ValueError("number too long")


def encode(value: Any, kind: int = STRUCT) -> bytes:
    """Return the bytes of a value; the inverse of `decode`."""
    if kind in (TRUE, FALSE):
        return bytes([TRUE if value else FALSE])
    if kind == BYTE:
        return bytes([value])
    if kind in _INTEGERS:
        return _varint((value << 1) ^ (value >> 63))
    if kind in (DOUBLE, BINARY):
        return (b"" if kind == DOUBLE else _varint(len(value))) + bytes(value)
    if kind in _LISTS:
        item, items = value
        size = len(items)
        head = bytes([size << 4 | item]) if size < 15 else bytes([0xF0 | item]) + _varint(size)
        return head + b"".join(encode(v, item) for v in items)
    out, last = bytearray(), 0
    for number, (kind, content) in sorted(value.items()):
        is_bool, step = kind in (TRUE, FALSE), number - last
        kind = (TRUE if content else FALSE) if is_bool else kind
        out += bytes([step << 4 | kind]) if 0 < step < 16 else bytes([kind]) + encode(number, I32)
        out += b"" if is_bool else encode(content, kind)
        last = number
    return bytes(out) + b"\0"


def _varint(value: int) -> bytes:
    out = bytearray()
    while value > 0x7F:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    return bytes(out) + bytes([value])


MAGIC: Final = b"PAR1"
DICTIONARY_PAGE: Final = 2
DATA_PAGES: Final = (0, 3)
_HEADERS: Final = {0: 5, 2: 7, 3: 8}
"""Kind of a page to the field of its header that counts its values."""
_CODECS: Final = (1, 0, 6, 2)  # Snappy, none, Zstandard, gzip
_ENCODINGS: Final = (0, 3, 8)  # PLAIN, RLE, RLE_DICTIONARY
_MAX_PAGE: Final = 1 << 30


@dataclass(frozen=True)
class _Page:
    """One page: of which kind, where it begins and ends, how many values it holds.

    Nulls and list entries count. `raw` is its size without compression, with its header.
    """

    kind: int
    start: int
    end: int
    values: int
    raw: int


@dataclass(frozen=True)
class _Leaf:
    """A column as Parquet stores it: what a footer says of it in all row groups; values a row."""

    meta: Mapping[int, tuple[int, Any]]
    width: int


def salvage(path: Path, schema: pa.Schema) -> pa.Table:
    """Return the rows of the whole row groups of a Parquet file that lacks its footer.

    Its columns must be those of `schema`, in order; lists of fixed length, nothing encrypted.

    Raises:
        UnusableInputError: nothing whole is left, or the columns are others.
    """
    data = path.read_bytes()
    if data[:4] != MAGIC:
        raise UnusableInputError(f"{path} is no Parquet file.")
    # The footer of a file of the schema, and the schema's leaves.
    footer = _footer(schema.empty_table())
    one_row = pa.table([pa.nulls(1, field.type) for field in schema], names=schema.names)
    [row_group] = _footer(one_row)[4][1][1]
    metas = [chunk[3][1] for chunk in row_group[1][1][1]]
    same = [{1: meta[1], 2: (LIST, (I32, list(_ENCODINGS))), 3: meta[3]} for meta in metas]
    widths = [w for field in schema for w in _widths(field.type)]
    leaves = [_Leaf(meta, width) for meta, width in zip(same, widths, strict=True)]
    tables: list[pa.Table] = []
    at, codecs = 4, list(_CODECS)
    while (group := _group(data, at, leaves)) is not None:
        at = group[-1][-1].end
        for codec in codecs:
            try:
                tables.append(_rows_of_group(data, footer, leaves, group, codec))
            except (pa.ArrowException, OSError, ValueError):
                continue
            codecs = [codec]  # one file, one compression
            break
        else:
            break
    if not tables:
        raise UnusableInputError(f"{path}: no row group of it is whole.")
    return pa.concat_tables(tables)


def _footer(table: pa.Table) -> Struct:
    sink = io.BytesIO()
    pq.write_table(table, sink)
    data = sink.getvalue()
    footer: Struct = decode(data, len(data) - 8 - int.from_bytes(data[-8:-4], "little"))[0]
    return footer


def _widths(kind: pa.DataType) -> list[int]:
    if pa.types.is_struct(kind):
        return [w for field in kind for w in _widths(field.type)]
    width = 1
    while pa.types.is_fixed_size_list(kind):
        width, kind = width * int(kind.list_size), kind.value_type
    if pa.types.is_nested(kind):
        raise UnusableInputError(f"Columns of type {kind} can't be put together again.")
    return [width]


def _group(data: bytes, at: int, leaves: list[_Leaf]) -> list[list[_Page]] | None:
    """Return the pages of each column of the row group at `at`; None where it isn't whole."""
    pages: list[_Page] = []  # as many as one row group can have: its end isn't marked
    dictionaries = 0
    while at < len(data):
        try:
            fields, body = decode(data, at)
            kind, raw, stored = (fields[number][1] for number in (1, 2, 3))
            in_it = next(iter(fields[_HEADERS[kind]][1].values()))[1]
            end = body + stored
            if not (0 <= stored <= _MAX_PAGE and 0 <= raw <= _MAX_PAGE and end <= len(data)):
                break
            page = _Page(kind, at, end, int(in_it), raw + body - at)
        except (LookupError, ValueError, TypeError, AttributeError, StopIteration):
            break  # not whole, or no page
        at = end
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
    data: bytes, footer: Struct, leaves: list[_Leaf], group: list[list[_Page]], codec: int
) -> pa.Table:
    """Return a row group's rows by way of a file of its own."""
    start, end = group[0][0].start, group[-1][-1].end
    counts = [sum(p.values for p in pages if p.kind in DATA_PAGES) for pages in group]
    rows = counts[0] // leaves[0].width
    chunks = []
    for leaf, pages, count in zip(leaves, group, counts, strict=True):
        meta = {
            **leaf.meta,
            4: (I32, codec),
            5: (I64, count),
            6: (I64, sum(p.raw for p in pages)),
            7: (I64, pages[-1].end - pages[0].start),
            9: (I64, next(p.start for p in pages if p.kind in DATA_PAGES) - start + 4),
        }
        for page in (p for p in pages if p.kind == DICTIONARY_PAGE):
            meta[11] = (I64, page.start - start + 4)
        chunks.append({2: (I64, 0), 3: (STRUCT, meta)})
    raw = sum(p.raw for pages in group for p in pages)
    row_group = {1: (LIST, (STRUCT, chunks)), 2: (I64, raw), 3: (I64, rows)}
    tail = encode({**footer, 3: (I64, rows), 4: (LIST, (STRUCT, [row_group]))})
    file = MAGIC + data[start:end] + tail + len(tail).to_bytes(4, "little") + MAGIC
    table = pq.read_table(io.BytesIO(file))
    table.validate(full=True)
    return table
