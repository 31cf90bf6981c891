"""Mutations of files: bytes, and values where the format is known. All decided by a `Random`."""

from __future__ import annotations

import csv
import io
import json
import zipfile
from collections.abc import Callable
from pathlib import Path
from random import Random
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import yaml

OUTSIDE = "outside"
"""Folder beside the one that is read: nothing may be opened or written in it."""
DEEP = 100_000
VALUES = (
    "null", "true", "false", "0", "-1", "1", "-0.0", "0.5", "1e-320", "1e308", "1e400", "-1e400",
    "NaN", "Infinity", "-Infinity", "1" + "0" * 400, "1" + "0" * 5000, "9223372036854775808",
    "4294967296", "1000000000", '""', '"NaN"', '"0"', '" "', '"a\\u0000b"', '"\\ud800"',
    '"\\n\\u001b[31m"', '"{0}"', '"{chunk_index:999999999d}"', '"{video_key.__class__}"', "[]",
    "{}", "[[]]", "[null]", "[{}]", '{"":null}', '{"a":{"b":[1,2,{"c":null}]}}', "[1,2,3]",
    '["a","b"]', "[NaN]", '"' + "A" * 100_000 + '"', "[" + "0," * 10_000 + "0]",
    f'"../{OUTSIDE}/secret.json"', f'"/../../{OUTSIDE}/new"', '"subprocess.Popen"',
    "[" * DEEP, "[" * DEEP + "]" * DEEP, '{"a":' * DEEP + "1" + "}" * DEEP,
)  # fmt: skip
YAML_VALUES = (
    "!!python/object/apply:os.system [touch pwned]", "!!python/name:os.system", "&a [*a]", "*none",
    "2001-13-45", "2001-01-01", "0b", "190:20:30", "1:60", "!!int x", "!!float x", "!!timestamp x",
    "!!binary x", "!!set {a, b}", "{? [a, b] : c}", "{<<: [1]}", "{<<: &b {<<: *b}}", ".inf",
    ".nan", "~", "? x", "{[a]: b}", "0x" + "F" * 6000, "1" * 5000, "- - - -", "|\n x", "%TAG",
    "[" * 3_000, "{a: " * 3_000,
)  # fmt: skip
BOMB = "\n".join(
    ["a0: &a0 [x,x,x,x,x,x,x,x,x]"]
    + [f"a{n}: &a{n} [" + ",".join([f"*a{n - 1}"] * 9) + "]" for n in range(1, 12)]
)
TYPES = (
    pa.int8(), pa.int64(), pa.uint64(), pa.float16(), pa.float32(), pa.float64(), pa.bool_(),
    pa.string(), pa.binary(), pa.large_string(), pa.date32(), pa.timestamp("ns"),
    pa.decimal128(38, 2), pa.list_(pa.float32()), pa.list_(pa.string()), pa.null(),
    pa.struct([("bytes", pa.binary())]), pa.dictionary(pa.int32(), pa.string()),
)  # fmt: skip
NUMBERS = (0, -1, 1, 2**31, 2**63 - 1, -(2**63), 10**9)
FLOATS = (0.0, -1.0, float("nan"), float("inf"), float("-inf"), 1e308, 5e-324)
TEXTS = ("", "x", "../outside/new", "\x00", "A" * 10_000, "{", "[" * DEEP, "NaN", "null", "9" * 400)


def mutate(path: Path, rng: Random) -> None:
    """Change a file in place, as its name says that it is built; sometimes only its bytes."""
    kind = next((v for k, v in _KINDS.items() if path.name.endswith(k)), None)
    if kind is None or rng.random() < 0.25:
        path.write_bytes(of_bytes(path.read_bytes(), rng))
    else:
        kind(path, rng)


def of_bytes(data: bytes, rng: Random) -> bytes:
    """Return bytes with some flipped, cut, moved, put in or doubled."""
    found = bytearray(data)
    for _ in range(rng.choice((1, 1, 2, 8))):
        at, far = rng.randrange(len(found) + 1), rng.choice((1, 2, 8, 100, 5000))
        match rng.randrange(8):
            case 0 | 1 if at < len(found):
                found[at] ^= 1 << rng.randrange(8)
            case 2:
                del found[at:]
            case 3:
                del found[at : at + far]
            case 4:
                found[at:at] = rng.randbytes(min(far, 100))
            case 5:
                found[at:at] = found[at : at + far]
            case 6:
                found[at : at + far] = rng.choice((b"\0", b"\xff")) * far
            case _:
                found[at : at + 8] = rng.choice((b"\x7f" + b"\xff" * 7, b"\xff" * 8, b"\x01" * 4))
    return bytes(found)


# --- text -------------------------------------------------------------------------------------


def of_json(text: str, rng: Random) -> str:
    """Return JSON with some of its values, keys or types replaced."""
    marks: dict[str, str] = {}

    def raw(token: str) -> str:
        marks[f"\ue000{len(marks)}\ue001"] = token
        return f"\ue000{len(marks) - 1}\ue001"

    value = json.loads(text)
    for _ in range(rng.choice((1, 1, 1, 2, 3))):
        value = _edited(value, rng, raw)
    new = json.dumps(value, ensure_ascii=False)
    for mark, token in marks.items():
        new = new.replace(f'"{mark}"', token).replace(mark, "key")
    return new


def _edited(value: Any, rng: Random, raw: Callable[[str], str]) -> Any:
    places: list[tuple[Any, Any]] = [(None, None)]
    todo = [value]
    while todo:
        node = todo.pop()
        keys = (
            node if isinstance(node, dict) else range(len(node)) if isinstance(node, list) else ()
        )
        places += [(node, key) for key in keys]
        todo += [node[key] for key in keys]
    # Long lists of numbers would take nearly all mutations.
    places = places if len(places) < 400 else places[:60] + rng.sample(places, 300)
    holder, key = rng.choice(places[1:] if len(places) > 1 and rng.random() < 0.97 else places[:1])
    if holder is None:
        return raw(rng.choice(VALUES))
    old = holder[key]
    match rng.randrange(10):
        case 0:
            del holder[key]
        case 1 if isinstance(holder, dict):
            holder[rng.choice(("", "../x", "A" * 5000, "schema", "__class__", "1"))] = old
            del holder[key]
        case 2 if isinstance(old, dict):
            again = json.dumps(rng.choice(list(old) or [""]))
            holder[key] = raw(f"{json.dumps(old)[:-1]},{again}:{rng.choice(VALUES)}}}")
        case 3 if isinstance(holder, list):
            holder.extend(holder * rng.choice((1, 10)))
        case 4:
            holder[key] = [old]
        case 5:
            holder[key] = str(old)
        case 6:
            other, name = rng.choice(places[1:])
            holder[key] = json.loads(json.dumps(other[name]))
        case _:
            holder[key] = raw(rng.choice(VALUES))
    return value


def _json(path: Path, rng: Random) -> None:
    path.write_text(of_json(path.read_text(), rng), errors="surrogatepass")


def _json_lines(path: Path, rng: Random) -> None:
    lines = path.read_text().splitlines()
    at = rng.randrange(len(lines))
    lines[at] = of_json(lines[at], rng)
    for _ in range(rng.choice((0, 0, 1))):
        lines.insert(at, rng.choice(("", "{", "null", lines[at], "[]")))
    path.write_text("\n".join(lines) + rng.choice(("\n", "", "\r\n")), errors="surrogatepass")


def _yaml(path: Path, rng: Random) -> None:
    text = path.read_text()
    match rng.randrange(8):
        case 0:
            lines = text.splitlines()
            at = rng.randrange(len(lines))
            key, colon, _ = lines[at].partition(":")
            lines[at] = f"{key}{colon} {rng.choice(YAML_VALUES)}"
            new = "\n".join(lines)
        case 1:
            new = f"{BOMB}\n{text}"
            if rng.random() < 0.5:
                key = rng.choice(list(yaml.safe_load(text)))
                new = f"{new}\n{key}: *a11\n"
        case 2:
            new = text + "\n" + rng.choice(text.splitlines())
        case _:
            new = of_json(json.dumps(yaml.safe_load(text), default=str), rng)
    path.write_text(new, errors="surrogatepass")


def _csv(path: Path, rng: Random) -> None:
    rows = list(csv.reader(io.StringIO(path.read_text())))
    for _ in range(rng.choice((1, 2, 5))):
        row = rng.choice(rows)
        match rng.randrange(6):
            case 0:
                row.append("x")
            case 1 if row:
                row.pop()
            case 2:
                rows.append(list(row))
            case 3 if len(rows) > 2:
                rows.remove(row)
            case _ if row:
                row[rng.randrange(len(row))] = rng.choice(
                    (
                        *TEXTS,
                        *map(str, NUMBERS),
                        *map(str, FLOATS),
                        '"',
                        "\n",
                        "\r",
                        "﻿",
                        "B" * 200_000,
                    )
                )
    text = io.StringIO(newline="")
    csv.writer(text, delimiter=rng.choice(",,,,;\t")).writerows(rows)
    path.write_text(text.getvalue())


def _words(path: Path, rng: Random) -> None:
    """For lines of numbers with spaces between."""
    lines = path.read_text().splitlines()
    at = rng.randrange(len(lines))
    words = lines[at].split() or [""]
    words[rng.randrange(len(words))] = rng.choice(
        ("nan", "inf", "-1e400", "9" * 400, "x", "", "0x1")
    )
    lines[at] = "\t".join(words)
    path.write_text("\n".join(lines))


# --- tables -----------------------------------------------------------------------------------


def of_table(table: pa.Table, rng: Random) -> pa.Table:
    """Return a table with other types, nulls, rows or columns."""
    for _ in range(rng.choice((1, 1, 2, 3))):
        if not table.num_columns:
            break
        at = rng.randrange(table.num_columns)
        name, column = table.column_names[at], table.column(at)
        match rng.randrange(9):
            case 0:
                table = table.slice(0, rng.choice((0, 1, max(table.num_rows - 1, 0))))
            case 1:
                table = table.drop_columns([name])
            case 2:
                names = list(table.column_names)
                names[at] = rng.choice(("x", "", "../x", rng.choice(names)))
                table = table.rename_columns(names)
            case 3:
                table = pa.concat_tables([table, table])
            case 4:
                table = table.set_column(at, name, _cast(column, rng.choice(TYPES)))
            case 5:
                table = table.set_column(at, name, pa.nulls(len(table), column.type))
            case _:
                table = table.set_column(at, name, _hostile(column, rng))
    return table


def _cast(column: pa.ChunkedArray, kind: pa.DataType) -> Any:
    try:
        return column.cast(kind, safe=False)
    except (pa.ArrowException, NotImplementedError):
        return pa.nulls(len(column), kind)


def _hostile(column: pa.ChunkedArray, rng: Random) -> Any:
    values, kind = column.to_pylist(), column.type
    if not values:
        return column
    at = rng.randrange(len(values))
    if pa.types.is_integer(kind):
        values[at] = rng.choice((*NUMBERS, None))
    elif pa.types.is_floating(kind):
        values[at] = rng.choice((*FLOATS, None))
    elif pa.types.is_string(kind):
        values[at] = rng.choice((*TEXTS, None))
    elif pa.types.is_list(kind) or pa.types.is_fixed_size_list(kind):
        kind = pa.list_(kind.value_type)
        old = values[at] or []
        values[at] = rng.choice((None, [], old[:-1], old * 2, [None] * len(old)))
        if pa.types.is_floating(kind.value_type) and rng.random() < 0.5:
            values[at] = [rng.choice(FLOATS) for _ in old]
    else:
        values[at] = None
    try:
        return pa.array(values, kind)
    except (pa.ArrowException, OverflowError, TypeError, ValueError):
        return pa.nulls(len(values), kind)


def _parquet(path: Path, rng: Random) -> None:
    table = of_table(pq.read_table(path, partitioning=None), rng)
    pq.write_table(table.replace_schema_metadata(rng.choice((table.schema.metadata, None))), path)


def _arrow(path: Path, rng: Random) -> None:
    with pa.OSFile(str(path)) as file, pa.ipc.open_stream(file) as reader:
        table = reader.read_all()
    table = of_table(table, rng)
    with path.open("wb") as stream, pa.ipc.new_stream(stream, table.schema) as writer:
        writer.write_table(table)


# --- containers -------------------------------------------------------------------------------


def _zip(path: Path, rng: Random) -> None:
    with zipfile.ZipFile(path) as archive:
        held = {name: archive.read(name) for name in archive.namelist()}
    name = rng.choice(list(held))
    match rng.randrange(6):
        case 0:
            del held[name]
        case 1:
            held = (
                {} if rng.random() < 0.2 else {k: v for k, v in held.items() if rng.random() < 0.5}
            )
        case 2:
            held[f"../../{OUTSIDE}/new"] = held[name]
        case _:
            held[name] = _entry(name, held[name], rng)
    with zipfile.ZipFile(path, "w") as archive:
        for entry, content in held.items():
            archive.writestr(zipfile.ZipInfo(entry), content)  # without the time of day


def _entry(name: str, content: bytes, rng: Random) -> bytes:
    if name.endswith(_ZARR) and rng.random() < 0.8:
        return of_json(content.decode(), rng).encode(errors="surrogatepass")
    return of_bytes(content, rng)


_ZARR = ("zarr.json", ".zarray", ".zattrs", ".zgroup")


_KINDS: dict[str, Callable[[Path, Random], None]] = {
    ".json": _json, ".zarray": _json, ".zattrs": _json, ".zgroup": _json, ".jsonl": _json_lines,
    ".yaml": _yaml, ".csv": _csv, ".data": _words, ".parquet": _parquet, ".arrows": _arrow,
    ".zip": _zip,
}  # fmt: skip
