"""What commands print: results on stdout, progress, logs and errors on stderr."""

from __future__ import annotations

import contextlib
import io
import json
import logging
import math
import os
import sys
import threading
import time
import warnings
from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict, is_dataclass
from enum import Enum
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, TextIO

from gaploop.core.files import printable, writable_folder, write_json

if TYPE_CHECKING:
    from rich.console import Console, RenderableType

LONGEST: Final = 1200
"""Characters of an error's line."""
AGAIN_S: Final = 10.0
"""The same line isn't logged again within this [s]."""
FIRST_LINE_S: Final = 2.0
"""Work that takes longer tells what it is, also where stderr is no terminal [s]."""
NEXT_LINE_S: Final = 30.0
"""There, how long after that each further line comes [s]."""
QUIET_LOGGERS: Final = ("lerobot", "torchcodec", "torch", "datasets", "huggingface_hub", "fsspec")
"""Libraries whose logs below ERROR say nothing that a user of gaploop can act on."""

_QUIET_ENVIRONMENT: Final = {
    "HF_DATASETS_DISABLE_PROGRESS_BARS": "1",
    "HF_HUB_DISABLE_PROGRESS_BARS": "1",
    "TOKENIZERS_PARALLELISM": "false",
    "SVT_LOG": "1",  # svt-av1 prints its settings on every file unless told to log errors only
}

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
    """Return a count in words, such as "1 take" or "3 takes"."""
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


def console(**how: Any) -> Console:
    """Return a Rich console whose texts can't steer the terminal, whoever wrote them."""
    from rich.console import Console
    from rich.text import Text

    class PlainTextConsole(Console):
        def render_str(self, text: str, **style: Any) -> Text:
            return super().render_str(printable(text), **style)

    return PlainTextConsole(**how)


def machine() -> dict[str, Any]:
    """Return what a measurement ran on, and when."""
    import platform
    from datetime import UTC, datetime

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


@contextlib.contextmanager
def progress(description: str, total: int | None = None) -> Iterator[Callable[..., None]]:
    """Show a progress bar on stderr while the block runs; plain lines where that is no terminal.

    There, work of less than two seconds shows nothing.

    Yields:
        a function to call after each step: `advance()`, `advance(3)` after three, or
        `advance(3, "Recording, 2 failed")` to say something new.
    """
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
    from rich.progress import TimeRemainingColumn as Remaining

    shown = console(stderr=True)
    text = TextColumn("{task.description}")
    columns = (text, BarColumn(), MofNCompleteColumn(), TimeElapsedColumn(), Remaining())
    bar = Progress(*columns, console=shown, transient=True, disable=not shown.is_terminal)
    task = bar.add_task(description, total=total)

    def advance(steps: int = 1, says: str = "") -> None:
        bar.update(task, advance=steps, description=says or None)

    def line() -> str:
        now = bar.tasks[task]
        of = f" of {now.total:.0f}" if now.total is not None else ""
        count = f": {now.completed:.0f}{of}" if of or now.completed else ""
        return f"{now.description}{count} …"

    with bar if shown.is_terminal else lines_while(line):
        yield advance


@contextlib.contextmanager
def lines_while(
    line: Callable[[], str], wait: Callable[[float], bool] | None = None
) -> Iterator[None]:
    """Print what goes on as lines on stderr while the block runs, if it takes long.

    Args:
        line: returns what goes on now.
        wait: waits for so long [s] or until the block ends; returns whether it ended.
    """
    ended, stream, began_s = threading.Event(), sys.stderr, time.monotonic()
    waits = wait or ended.wait

    def tell() -> None:
        pause_s = FIRST_LINE_S
        while not waits(pause_s):
            passed_s = time.monotonic() - began_s
            after = f" ({passed_s:.0f} s so far)" if pause_s == NEXT_LINE_S else ""
            print(f"{line()}{after}", file=stream, flush=True)
            pause_s = NEXT_LINE_S

    thread = threading.Thread(target=tell, name="progress", daemon=True)
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join()


def print_error(message: str, program: str) -> None:
    """Print one line on stderr: a message may quote a file that somebody else wrote."""
    line = printable(" ".join(message.split()))
    if len(line) > LONGEST:
        line = f"{line[: LONGEST // 2]} … {line[-LONGEST // 2 :]}"
    print(f"{program}: {line}", file=sys.stderr)


def setup_logging() -> None:
    """Send logs to stderr, one line each, without what libraries say to themselves."""
    for name, value in _QUIET_ENVIRONMENT.items():
        os.environ.setdefault(name, value)
    said_s: dict[str, float] = {}

    def is_passed(record: logging.LogRecord) -> bool:
        nonlocal said_s
        if record.levelno < logging.ERROR:
            # LeRobot logs through the root logger: only the file tells whose record it is.
            in_noisy_file = any(f"/{name}/" in record.pathname for name in QUIET_LOGGERS)
            if in_noisy_file or record.name.split(".")[0] in QUIET_LOGGERS:
                return False
        # A line passes once in `AGAIN_S`: a cable that is out fails every turn of a loop.
        line, now_s = record.getMessage(), record.created
        is_new = now_s - said_s.get(line, -math.inf) > AGAIN_S
        if is_new:
            said_s = {k: s for k, s in said_s.items() if now_s - s <= AGAIN_S} | {line: now_s}
        return is_new

    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(logging.Formatter("%(message)s"))
    handler.addFilter(is_passed)
    root = logging.getLogger()
    root.handlers[:] = [handler]
    root.setLevel(logging.WARNING)
    logging.getLogger("gaploop").setLevel(logging.INFO)
    for module in (*QUIET_LOGGERS, "torchvision"):
        warnings.filterwarnings("ignore", module=rf"{module}(\.|$)")
