"""What several commands share: groups of options, output, progress, log settings.

Options keep LeRobot's names, so that `--dataset.repo_id`, `--policy.path` and the like mean
the same as in `lerobot-record` and `lerobot-train`. Nothing heavy is imported here.
"""

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
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, is_dataclass
from enum import Enum
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, TextIO

from gaploop.core.errors import UnusableInputError, unknown_choice
from gaploop.core.files import printable, writable_folder, write_json
from gaploop.core.labels import check_dimensions
from gaploop.core.station import SIM_STATION

if TYPE_CHECKING:
    from rich.console import Console, RenderableType

    from gaploop.datasets.cache.folder import CacheOptions
from gaploop.datasets.hub.target import check_repo_id

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


WHERE_TO: Final = "Where to? Name a run folder with --output_dir=OUT."


def required[T](given: T | None, ask: str) -> T:
    """Return what an option was given.

    Raises:
        UnusableInputError: it was given nothing; `ask` says what is wanted, and how it is named.
    """
    if not given:
        raise UnusableInputError(ask)
    return given


@dataclass
class DatasetFolder:
    """Which dataset, for commands that read one."""

    root: Path | None = None
    """Folder of the dataset (`gaploop <command> DIR` is short for it)."""

    def folder(self, command: str = "") -> Path:
        """Return `root`; UnusableInputError without. `command`: one that takes it bare."""
        bare = f"Which folder? Name it: gaploop {command} DIR"
        named = "Which dataset? Name its folder with --dataset.root=DIR."
        return required(self.root, bare if command else named)


@dataclass
class TakesFolder(DatasetFolder):
    """Which takes, for commands that read a dataset or a journal."""

    root: Path | None = None
    """Folder of the dataset or journal (`gaploop <command> DIR` is short for it)."""


@dataclass
class CacheFlags:
    """How decoded pictures are kept for training; see docs/loading.md."""

    mode: str = "auto"
    """auto (raw where it fits, else jpeg, else off), raw, jpeg or off."""
    size: str = "native"
    """What pictures are scaled to, such as 224 or 320x240: what training uses loads fastest."""
    max_gb: float = 20.0
    """What all caches in --cache.dir may take together [GB]."""
    dir: Path | None = None
    """Where caches are; gaploop/frames in the user's cache folder unless given."""
    quality: int = 90
    """Of JPEG pictures, 1 to 100."""

    def options(self) -> CacheOptions:
        """Return them checked."""
        from gaploop.datasets.cache.folder import CacheOptions, parse_size

        size = parse_size(self.size)
        return CacheOptions(self.mode, size, self.max_gb, self.dir, self.quality)


@dataclass
class DatasetEpisodes(DatasetFolder):
    """Which dataset, and which episodes of it."""

    episodes: list[int] | None = None
    """Only these episodes, such as '[0, 3]'."""


@dataclass
class DatasetTarget(DatasetFolder):
    """Which dataset to publish to."""

    repo_id: str = "local/gaploop"
    """Name on the Hub, such as me/pick_place."""
    push_to_hub: bool = False
    """Push to the Hub afterwards; see gaploop push --help. A Hub that is down is tried later."""
    private: bool | None = None
    """With push_to_hub: make a new repository private."""
    tags: list[str] | None = None
    """With push_to_hub: more tags for the card, such as '[so101, kitchen]'."""

    def __post_init__(self) -> None:
        if self.push_to_hub:
            check_repo_id(self.repo_id, "--dataset.repo_id")


@dataclass
class DatasetOptions(DatasetTarget):
    """Which dataset, and what to record into it."""

    single_task: str = ""
    """The instruction, in words; that of the dataset unless given."""
    new_task: bool = False
    """single_task is another one than the dataset holds so far."""
    num_episodes: int = 20
    """How many takes to record."""
    episode_time_s: float = 60.0
    """Longest time of one take [s]."""
    fps: float | None = None
    """Frames a second; the dataset's, else the robot's own rate unless given [Hz]."""


def is_given(config: Any, name: str) -> bool:
    """Say whether an option such as `robot.use_degrees` was given, not left as it is."""
    found = vars(config).get("given", {})
    for part in name.split("."):
        if not isinstance(found, dict) or part not in found:
            return False
        found = found[part]
    return True


@dataclass
class PolicyFolder:
    """Which policy."""

    path: str = ""
    """Folder of a policy or an adapter; base names the one that ships with gaploop."""

    def required(self) -> str:
        """Return `path`; UnusableInputError without."""
        return required(self.path, "Which policy? Name its folder with --policy.path=DIR.")


@dataclass
class PolicyOptions(PolicyFolder):
    """Which policy, and how fast it is meant to run."""

    fps: float | None = None
    """Frames a second that it was trained at [Hz], where neither its gaploop.json nor the dataset
    that its train_config.json names states it."""


def journal_beside(root: Path, journal: Path | None) -> Path:
    """Return the folder of a dataset's takes: the one that is given, or else the one beside it."""
    root = root.absolute()
    return (journal or root.with_name(f"{root.name}_journal")).absolute()


def require_action(action: str, known: Sequence[str], command: str) -> None:
    """Check what a command is to do.

    Raises:
        UnusableInputError: nothing, or none of what it can do.
    """
    if not action:
        raise UnusableInputError(f"gaploop {command} what? One of: {', '.join(known)}.")
    if action not in known:
        raise unknown_choice("action", action, known)


def warn_withdrawn(policy: str | Path) -> None:
    """Warn where a policy learned from a person who withdrew consent: it can't be pushed."""
    from gaploop.finetune.lerobot_policy import policy_id, resolve
    from gaploop.finetune.runs import withdrawn_from

    reason = withdrawn_from(resolve(policy), policy_id(policy))
    if reason:
        logging.getLogger(__name__).warning("%s %s. Train it again.", policy, reason)


@dataclass
class RayOptions:
    """Rollouts on many machines."""

    address: str = ""
    """Address of a Ray cluster, such as auto or ray://head:10001; local starts one here. Needs
    pip install 'gaploop[ray]' on every machine. Unless given, --workers processes here."""


@dataclass
class StationCell:
    """What the embedded cell is made like, instead of nominal."""

    twin: Path | None = None
    """station_twin.yaml of gaploop identify: the cell is as that station was measured."""
    randomise: str = ""
    """Draw every take's cell anew: BG (background), LT (light), TD (texture, distractors), CP
    (camera pose), TH (table height), several as BG+LT, visual, dynamics, all; a file of ranges;
    twin: what the twin leaves open. help prints a file to edit."""
    randomise_strength: float = 1.0
    """1 draws from the ranges as they are, 0.5 from half of them."""
    gaps_module: str = ""
    """A Python module with gap mechanisms of your own, such as my_lab.gaps (docs/gaps.md)."""

    def show_ranges(self) -> bool:
        """Print a file of ranges where that is asked for; say whether it is."""
        if self.randomise == "help":
            from gaploop.core.randomisation import as_yaml
            from gaploop.sim.randomise import preset

            print(as_yaml(preset("all", self.randomise_strength)), end="")
        return self.randomise == "help"


@dataclass
class EnvOptions(StationCell):
    """The embedded cell: its task, what is injected into it, what is set up in it."""

    task: str = "pick_place"
    """pick_place, pick_lift or stack_cube."""
    gaps: dict[str, float] = field(default_factory=dict)
    """Gap dimension to severity from 0 to 1, such as '{"contact_dynamics": 0.6}'."""
    gap_seed: int = 0
    """Draws mechanism and direction of each gap."""
    conditions: dict[str, Any] = field(default_factory=dict)
    """What is set up, such as '{"distractors": 4}'."""
    robot: str = "so101"
    """The cell's arm: so101, or vx300s (a ViperX 300 S; its meshes are gym-aloha's)."""

    def __post_init__(self) -> None:
        # A mechanism may follow its dimension, as in object_property.size; the cell knows which.
        check_dimensions({k.partition(".")[0]: v for k, v in self.gaps.items()}, "--env.gaps")
        SIM_STATION.check_conditions(self.conditions, "--env.conditions")

    def cell(self) -> dict[str, Any]:
        """Return all but the conditions as arguments of what makes a cell, such as `SimCell`."""
        return cell_arguments(self, self.robot, "--env.robot")


def cell_arguments(given: Any, arm: str, option: str) -> dict[str, Any]:
    """Return what `--env.*` or `--robot.*` say of a cell as arguments of what makes one."""
    from gaploop.sim.gaps import add_mechanisms
    from gaploop.sim.randomise import known_and_drawn

    if given.gaps_module:
        add_mechanisms(given.gaps_module)
    strength = given.randomise_strength
    known, drawn = known_and_drawn(given.twin, given.randomise, strength, arm, option)
    same = {name: getattr(given, name) for name in ("task", "gaps", "gap_seed")}
    return {**same, "robot": arm, "parameters": known, "randomise": drawn}


def cell_words(task: str, robot: str) -> str:
    """Return the options of a cell with this task and arm, where they aren't the usual ones."""
    told = {"task": task, "robot": robot}.items()
    return "".join(f" --env.{n}={v}" for n, v in told if v != getattr(EnvOptions, n))


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


def print_error(message: str, command: str = "") -> None:
    """Print one line on stderr, whatever line breaks `message` holds."""
    name = f"gaploop {command}".rstrip()
    print(f"{name}: {' '.join(message.split())}", file=sys.stderr)


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
