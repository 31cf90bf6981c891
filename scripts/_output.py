"""What commands print: results on stdout, errors on stderr."""

from __future__ import annotations

import contextlib
import io
import json
import math
import os
import platform
import sys
from collections.abc import Iterator, Mapping
from dataclasses import asdict, is_dataclass
from datetime import UTC, datetime
from enum import Enum
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, TextIO

from gaploop.core.files import printable, writable_folder, write_json
from gaploop.core.progress import console

if TYPE_CHECKING:
    from rich.console import RenderableType

LONGEST: Final = 1200
"""Characters of an error's line."""
_real_stdout: list[TextIO] = []


@contextlib.contextmanager
def stdout_is_json() -> Iterator[None]:
    """Keep stdout for `emit` alone: what anything else prints goes to stderr."""
    _real_stdout.append(sys.stdout)
    try:
        with contextlib.redirect_stdout(sys.stderr):
            yield
    finally:
        _real_stdout.pop()


def emit(as_json: bool, obj: Any, text: str = "") -> None:
    """Print a command's result on stdout: `obj` as one JSON object, or else `text` for people.

    Args:
        as_json: the command's `--json`.
        obj: a dataclass or mapping; NaN and infinities become null, paths and enums text.
        text: what a person reads; nothing is printed where it is empty.
    """
    stream = _real_stdout[-1] if _real_stdout else sys.stdout
    if as_json:
        print(
            json.dumps(jsonable(obj), ensure_ascii=False, allow_nan=False), file=stream, flush=True
        )
    elif text:
        print(printable(text), file=stream, flush=True)


def counted(count: int, what: str) -> str:
    """Return a count in words, such as "1 episode" or "3 episodes"."""
    return f"{count} {what}{'s' * (count != 1)}"


def keep(output_dir: Path | None, name: str, answer: Any) -> None:
    """Write an answer as JSON to the folder that was named for it, if one was."""
    if output_dir is not None:
        write_json(writable_folder(output_dir) / name, jsonable(answer))


def as_lines(*shown: RenderableType) -> list[str]:
    """Return what Rich draws as lines of plain text, without the empty ones."""
    buffer = io.StringIO()
    page = console(file=buffer, width=100, color_system=None)
    for part in shown:
        page.print(part)
    return [line.rstrip() for line in buffer.getvalue().splitlines() if line.strip()]


def machine() -> dict[str, Any]:
    """Return what a measurement ran on, and when."""
    return {
        "cores": os.cpu_count(),
        "system": platform.platform(terse=True),
        "processor": platform.machine(),
        "at": datetime.now(UTC).isoformat(timespec="seconds"),
    }


def jsonable(value: Any) -> Any:
    """Return `value` as JSON types: dataclasses to objects, NumPy to numbers, NaN to null."""
    if is_dataclass(value) and not isinstance(value, type):
        return jsonable(asdict(value))
    if isinstance(value, Mapping):
        return {str(getattr(k, "value", k)): jsonable(v) for k, v in value.items()}
    if isinstance(value, Enum):
        return jsonable(value.value)
    if isinstance(value, list | tuple | set | frozenset):
        return [jsonable(v) for v in value]
    if hasattr(value, "tolist"):  # NumPy arrays and scalars, torch tensors
        return jsonable(value.tolist())
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    return value if isinstance(value, bool | int | str | None) else str(value)


def print_error(message: str, program: str) -> None:
    """Print one line on stderr: a message may quote a file that somebody else wrote."""
    line = printable(" ".join(message.split()))
    if len(line) > LONGEST:
        line = f"{line[: LONGEST // 2]} … {line[-LONGEST // 2 :]}"
    print(f"{program}: {line}", file=sys.stderr)
