"""What goes to stderr while a command works: progress, and logs."""

from __future__ import annotations

import contextlib
import logging
import math
import os
import sys
import threading
import time
import warnings
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any, Final, TextIO

from gaploop.core.files import printable

if TYPE_CHECKING:
    from rich.console import Console

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
    "HF_HUB_VERBOSITY": "error",  # it has a handler of its own
    "TOKENIZERS_PARALLELISM": "false",
    "SVT_LOG": "1",  # svt-av1 prints its settings on every file unless told to log errors only
}


def words_of_time(duration_s: float) -> str:
    """Return a duration [s] as people say it: 45 s, 12 min, 3 h 05 min."""
    if duration_s < 90:
        return f"{duration_s:.0f} s"
    minutes = round(duration_s / 60)
    return f"{minutes} min" if minutes < 90 else f"{minutes // 60} h {minutes % 60:02d} min"


def console(**how: Any) -> Console:
    """Return a Rich console whose texts can't steer the terminal, whoever wrote them."""
    from rich.console import Console
    from rich.text import Text

    class PlainTextConsole(Console):
        def render_str(self, text: str, **style: Any) -> Text:
            return super().render_str(printable(text), **style)

    return PlainTextConsole(**how)


@contextlib.contextmanager
def progress(
    description: str, total: int | None = None, then: str = ""
) -> Iterator[Callable[..., None]]:
    """Show a progress bar on stderr while the block runs; plain lines where that is no terminal.

    There, work of less than two seconds shows nothing. `then` is what follows the last step.

    Yields:
        a function to call after each step: `advance()`, `advance(3)` after three,
        `advance(3, "Recording, 2 failed")` to say something new, or `advance(total=40)` once it
        is known how many there will be.
    """
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
    from rich.progress import TimeRemainingColumn as Remaining

    shown = console(stderr=True)
    text = TextColumn("{task.description}")
    columns = (text, BarColumn(), MofNCompleteColumn(), TimeElapsedColumn(), Remaining())
    bar = Progress(*columns, console=shown, transient=True, disable=not shown.is_terminal)
    task = bar.add_task(description, total=total)

    first = list[tuple[float, float]]()  # when, and how many by then: what starts slowly isn't it

    def advance(steps: int = 1, says: str = "", total: int | None = None) -> None:
        bar.update(task, advance=steps, description=says or None, total=total)
        if steps and not first:
            first.append((time.monotonic(), bar.tasks[task].completed))
        if then and bar.tasks[task].finished:
            bar.update(task, description=then)

    def line() -> str:
        now = bar.tasks[task]
        if now.description == then:
            return f"{then} …"
        of = f" of {now.total:.0f}" if now.total is not None else ""
        count = f": {now.completed:.0f}{of}" if of or now.completed else ""
        left = ""
        if now.total and first and now.completed > first[0][1]:
            each_s = (time.monotonic() - first[0][0]) / (now.completed - first[0][1])
            left_s = each_s * (now.total - now.completed)
            left = f", about {words_of_time(left_s)} left" if left_s > NEXT_LINE_S else ""
        return f"{now.description}{count}{left} …"

    with bar if shown.is_terminal else lines_while(line):
        yield advance


@contextlib.contextmanager
def lines_while(
    line: Callable[[], str], wait: Callable[[float], bool] | None = None
) -> Iterator[None]:
    """Say on stderr what goes on while the block runs, if it takes long.

    On a terminal in one line, which goes away with the block; elsewhere as lines.

    Args:
        line: returns what goes on now.
        wait: waits for so long [s] or until the block ends; returns whether it ended.
    """
    ended, stream, began_s = threading.Event(), sys.stderr, time.monotonic()
    waits = wait or ended.wait

    def tell() -> None:
        if stream.isatty():
            while not waits(0.5):
                passed_s = time.monotonic() - began_s
                # What others print goes over it, from the line's beginning.
                print(
                    f"\x1b[K{line()} {words_of_time(passed_s)}", end="\r", file=stream, flush=True
                )
            print("\x1b[K", end="", file=stream, flush=True)
            return
        pause_s = FIRST_LINE_S
        while not waits(pause_s):
            passed_s = time.monotonic() - began_s
            after = f" ({words_of_time(passed_s)} so far)" if pause_s == NEXT_LINE_S else ""
            print(f"{line()}{after}", file=stream, flush=True)
            pause_s = NEXT_LINE_S

    thread = threading.Thread(target=tell, name="progress", daemon=True)
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join()


def loading(program: str) -> contextlib.AbstractContextManager[None]:
    """Say on a terminal which package comes in, while the block imports."""
    if not sys.stderr.isatty():
        return contextlib.nullcontext()
    return lines_while(lambda: f"{program}: loading {[*sys.modules][-1].partition('.')[0]} …")


class _Stderr(logging.StreamHandler[TextIO]):
    """Logs to what stderr is by then: a bar that is drawn stands in its place for that long."""

    def emit(self, record: logging.LogRecord) -> None:
        self.stream = sys.stderr
        super().emit(record)


def setup_logging() -> None:
    """Send logs to stderr, one line each, without what libraries say to themselves."""
    for name, value in _QUIET_ENVIRONMENT.items():
        os.environ.setdefault(name, value)
    said_s: dict[str, float] = {}

    def is_passed(record: logging.LogRecord) -> bool:
        nonlocal said_s
        owner = record.name.split(".")[0]
        if record.levelno < logging.ERROR and owner != "gaploop":
            # LeRobot logs through the root logger: only the file tells whose record it is.
            in_noisy_file = any(f"/{name}/" in record.pathname for name in QUIET_LOGGERS)
            if in_noisy_file or owner in QUIET_LOGGERS:
                return False
        # A line passes once in `AGAIN_S`: a cable that is out fails every turn of a loop.
        line, now_s = record.getMessage(), record.created
        is_new = now_s - said_s.get(line, -math.inf) > AGAIN_S
        if is_new:
            said_s = {k: s for k, s in said_s.items() if now_s - s <= AGAIN_S} | {line: now_s}
        return is_new

    handler = _Stderr()
    handler.setFormatter(logging.Formatter("%(message)s"))
    handler.addFilter(is_passed)
    root = logging.getLogger()
    root.handlers[:] = [handler]
    root.setLevel(logging.WARNING)
    logging.getLogger("gaploop").setLevel(logging.INFO)
    for module in (*QUIET_LOGGERS, "torchvision"):
        warnings.filterwarnings("ignore", module=rf"{module}(\.|$)")
