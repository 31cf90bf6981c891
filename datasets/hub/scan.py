"""Secrets and absolute paths in what is about to be pushed: neither can be called back."""

from __future__ import annotations

import contextlib
import json
import re
import struct
import zipfile
import zlib
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any, Final

import av
import pyarrow as pa
import pyarrow.parquet as pq

from gaploop.core.errors import UnusableInputError
from gaploop.core.files import LARGEST_TEXT, open_video_file, parse_json, regular_file

SECRETS: Final[dict[str, re.Pattern[str]]] = {
    "a Hugging Face token": re.compile(r"\b(?:hf|api_org)_[A-Za-z0-9]{16,}\b"),
    "an AWS key": re.compile(r"\b(?:AKIA|ASIA)[A-Z0-9]{16}\b"),
    "a GitHub token": re.compile(r"\b(?:gh[pousr]_[A-Za-z0-9]{30,}|github_pat_\w{30,})"),
    "a GitLab token": re.compile(r"\bglpat-[\w-]{20,}"),
    "an API key": re.compile(r"\b(?:sk-[\w-]{20,}|AIza[\w-]{35}|xox[abprs]-[\w-]{10,})"),
    "a JSON web token": re.compile(r"\beyJ[\w-]{10,}\.eyJ[\w-]{10,}\.[\w-]{10,}"),
    "a private key": re.compile(r"-----BEGIN (?:[A-Z]+ )*PRIVATE KEY"),
    "a password in an address": re.compile(r"\b[a-z][a-z0-9+.-]*://[^/\s:@\"']+:[^/\s:@\"']+@"),
    "a password or key": re.compile(
        r"(?i)\b\w*(?:passw(?:or)?d|api_?key|secret(?:_?key)?|(?:access|auth|hf|hub)_?token)"
        r"[\"']?\s*[:=]\s*[\"']?(?!null\b|none\b|true\b|false\b)[^\s\"',{}\[\]]{8,}"
    ),
}
"""What it is to how it looks: prefixes that their issuers publish, and assignments to names."""

PATHS: Final = re.compile(
    r"(?<![\w./:~-])(?:/(?:home|Users|root|mnt|media|tmp|var|opt|srv|data|scratch|Volumes|private)"
    r"(?:/[\w.@+-]+)+|~/[\w.@+-]+)"
    r"|\bfile://[^\s\"']+|(?<![\w\\])[A-Za-z]:\\{1,2}\w[^\s\"',:]*"
)
"""A path on somebody's computer, in running text."""
QUOTED_PATH: Final = re.compile(r"\"(/(?!dev/)[\w.@+ -]+(?:/[\w.@+ -]+)+)/?\"")
"""A JSON or YAML string that is an absolute path from its first letter to its last."""
_SNIFFED: Final = 1024
"""Without a zero byte in as many from its beginning, a file is text, whatever it is called."""
_CHUNK: Final = re.compile(r"(?:.*/)?(?:c/)?\d+(?:[./]\d+)*")
"""A chunk of numbers in a Zarr archive."""
_HEADER_LIMIT: Final = 100 << 20


@dataclass(frozen=True)
class Hit:
    """Something that must not leave: a secret, or a path.

    Attributes:
        where: file, and the part of it.
        shown: enough of it to find it, never all of a secret.
    """

    where: str
    what: str
    shown: str
    secret: bool


def require_clean(root: Path, files: Mapping[str, Path], allow_paths: bool) -> None:
    """Refuse files that hold a secret or, unless allowed, a path on somebody's computer."""
    hits = [hit for hit in scan(files.items()) if hit.secret or not allow_paths]
    hits.sort(key=lambda hit: not hit.secret)
    if not hits:
        return
    first, more = hits[0], f" ({len(hits) - 1} more)" if len(hits) > 1 else ""
    fix = (
        "Take it out, and revoke it: anybody with a copy of the folder has it."
        if first.secret
        else "Take it out, or push it anyway with --allow_paths."
    )
    raise UnusableInputError(
        f"{root} must not be pushed: {first.where} holds {first.what} ({first.shown}){more}. {fix}"
    )


def scan(files: Iterable[tuple[str, Path]]) -> Iterator[Hit]:
    """Yield what is found in files, the first of each kind in each part of each file.

    Text is read whole, whatever its name ends with; Parquet's string columns and metadata, text in
    zip archives, safetensors headers and the metadata of videos too. Numbers and pictures aren't
    text.
    """
    for name, path in files:
        # What is damaged ends a file, and is for `gaploop check` to say.
        with contextlib.suppress(OSError, pa.ArrowException, zipfile.BadZipFile, av.FFmpegError):
            for part, text in _texts(name, path):
                where = f"{name}{part}"
                for what, pattern in SECRETS.items():
                    found = pattern.search(text)
                    if found:
                        yield Hit(where + _line(text, found), what, f"{found[0][:6]}…", True)
                found = PATHS.search(text) or QUOTED_PATH.search(text)
                if found:
                    shown = found[found.lastindex or 0][:60]
                    yield Hit(where + _line(text, found), "an absolute path", shown, False)


def _line(text: str, found: re.Match[str]) -> str:
    lines = text.count("\n", 0, found.start())
    return f", line {lines + 1}" if "\n" in text.strip() else ""


def _texts(name: str, path: Path) -> Iterator[tuple[str, str]]:
    """Yield the parts of a file that hold text, each with its name."""
    suffix = Path(name).suffix.lower()
    if suffix == ".parquet":
        with pq.ParquetFile(path) as file:
            for key, value in (file.schema_arrow.metadata or {}).items():
                yield f" ({key.decode()})", value.decode(errors="replace")
            leaves = [file.schema.column(k) for k in range(len(file.schema.names))]
            for leaf in (one.path for one in leaves if one.logical_type.type == "STRING"):
                for group in range(file.num_row_groups):
                    table = file.read_row_group(group, columns=[leaf])
                    yield f" (column {leaf})", "\n".join(_strings(table.column(0)))
    elif suffix == ".zip":
        with zipfile.ZipFile(path) as archive:
            for entry in archive.infolist():
                if _CHUNK.fullmatch(entry.filename):
                    continue
                if entry.file_size > LARGEST_TEXT:
                    raise UnusableInputError(
                        f"{path} must not be pushed: {entry.filename} in it unpacks to "
                        f"{entry.file_size >> 20} MiB, too much to scan. Delete it."
                    )
                # RuntimeError: encrypted. The entries after one that can't be read are read.
                damaged = contextlib.suppress(RuntimeError, zipfile.BadZipFile, zlib.error)
                with damaged, archive.open(entry) as stream:
                    yield from _plain(f" ({entry.filename})", stream)
    elif suffix == ".safetensors":
        # Eight bytes of length, then JSON (the format's specification).
        with regular_file(path).open("rb") as stream:
            (length,) = struct.unpack("<Q", stream.read(8).ljust(8, b"\0"))
            header = stream.read(min(length, _HEADER_LIMIT)).decode(errors="replace")
        try:
            yield " (header)", json.dumps(parse_json(header).get("__metadata__", {}))
        except (ValueError, AttributeError):
            yield " (header)", header
    elif suffix in (".mp4", ".mkv"):
        with open_video_file(path) as container:
            parts: list[Any] = [container, *container.streams]
            text = "\n".join(f"{k}={v}" for part in parts for k, v in part.metadata.items())
        yield " (metadata)", text
    else:
        with regular_file(path).open("rb") as stream:
            yield from _plain("", stream)


def _plain(part: str, stream: IO[bytes]) -> Iterator[tuple[str, str]]:
    start = stream.read(_SNIFFED)
    if b"\0" not in start:
        yield part, (start + stream.read()).decode(errors="replace")


def _strings(column: pa.ChunkedArray) -> list[str]:
    """Return the distinct texts of a column of which only one leaf was read."""
    values = column.combine_chunks()
    while not (pa.types.is_string(values.type) or pa.types.is_large_string(values.type)):
        if pa.types.is_dictionary(values.type):  # such as a pandas category
            values = values.dictionary_decode()
        elif pa.types.is_string_view(values.type):
            values = values.cast(pa.large_string())
        else:
            values = values.field(0) if pa.types.is_struct(values.type) else values.flatten()
    return [str(v) for v in values.unique().to_pylist() if v]
