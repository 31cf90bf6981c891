"""Before anything drives: what a policy needs, and what a station measures each morning.

A preflight says who is asked, what is kept of it, and whether a rollout can rely on it. In the
morning `gaploop doctor` puts the joints' test motions through the tests that datasets go through
(`datasets/absolute`), and says what changed since the mornings before. A station's figures are kept
beside its file, STATION.mornings.jsonl, one line a run: when, and the numbers; nothing about
people, paths or pictures.
"""

import contextlib
import json
import math
import platform
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final

import numpy as np

from gaploop.collect.operator.keys import LOOK_S, Keys, keys
from gaploop.collect.rollout import SOFT, SOFT_UNTIL, SUCCESSES, SpeedRamp
from gaploop.core.clock import utc_ns
from gaploop.core.errors import DAMAGE, GaploopError, UnusableInputError
from gaploop.core.files import append_line, json_lines, read_json, writable_folder, write_json
from gaploop.core.messages import SPEED, FloatArray, Tick
from gaploop.core.protocols import Follower
from gaploop.core.run_record import versions
from gaploop.core.statistics import Estimate
from gaploop.core.vocabulary import Domain
from gaploop.datasets.absolute import findings
from gaploop.datasets.absolute.arm_findings import ArmTests
from gaploop.datasets.absolute.findings import AbsoluteReport, Figure
from gaploop.datasets.absolute.recording import recording_of
from gaploop.teleop.checks import CheckResult, Level
from gaploop.teleop.checks.connected_arm import DAMPING, ESTOP, MEASURE

FILE: Final = "preflight.json"
"""In the journal's folder: the newest preflight of the cell."""
SCHEMA: Final = "gaploop.preflight.v1"
OLD_H: Final = 24.0
"""What was checked longer ago is worth checking again [h]: cables, light and cameras move."""


@dataclass(frozen=True)
class Checked:
    """Which policy, by its id, a preflight was for, and which robot: its type and id, in words.

    Attributes:
        runs: where and how the policy computes, in words.
    """

    policy: str
    robot: str
    runs: str = ""


def check_speed(ramp: SpeedRamp, domain: Domain) -> CheckResult:
    """Return how fast a policy begins that is new to the arm."""
    data = {"speed_scale": ramp.scale, "successes": ramp.successes}
    found = "a simulated arm; full speed"
    if domain is not Domain.SIM:
        found = f"begins at {ramp.scale:.0%} of its speed, {ramp.successes} of {SUCCESSES} "
        found += "successes until full speed"
        found += f"; {SOFT}" if (ramp.successes or 0) < SOFT_UNTIL else ""
    return CheckResult("speed", Level.OK, found, data=data)


def write_record(journal: Path, checked: Checked, ok: bool, content: Mapping[str, Any]) -> Path:
    """Write what a preflight found into the journal's folder, made if needed; return the file."""
    file = writable_folder(journal, "Journal", "--journal") / FILE
    at = datetime.fromtimestamp(utc_ns() * 1e-9, UTC).isoformat(timespec="seconds")
    write_json(file, {"schema": SCHEMA, "at": at, **asdict(checked), "ok": ok, **content})
    return file


def missing(journal: Path, checked: Checked) -> str:
    """Return why a rollout can't rely on a preflight, in one line; "" where it can."""
    file = journal / FILE
    if not file.exists():
        return "this arm and policy were never checked together"
    try:
        kept = read_json(file)
        at = datetime.fromisoformat(str(kept["at"]))
        age_h = (utc_ns() * 1e-9 - at.timestamp()) / 3600.0
    except (GaploopError, *DAMAGE):
        return f"{file} can't be read"
    if kept.get("policy") != checked.policy or kept.get("robot") != checked.robot:
        return "the last check was of another policy or another arm"
    if kept.get("runs", "") != checked.runs:
        return f"the last check was with the policy on {kept.get('runs') or 'another machine'}"
    if not kept.get("ok"):
        return "the last check found something that has to be fixed"
    return f"the last check is {age_h:.0f} hours old" if age_h > OLD_H else ""


class Terminal:
    """A `Person` asked on stderr, who answers by keys; nobody if standard input is no terminal."""

    def __init__(self) -> None:
        self._gone: Callable[[], bool] = lambda: False
        self._keys = Keys()
        self._typed: list[str] = []
        self.stopped = False
        """The emergency stop was pressed, or the terminal was closed."""

    @property
    def is_there(self) -> bool:
        """Whether somebody can answer."""
        return sys.stdin is not None and sys.stdin.isatty()

    @contextlib.contextmanager
    def listening(self, estop: Callable[[], None], gone: Callable[[], bool]) -> Iterator[None]:
        """Hear the space bar while the block runs, asked or not: it stops the arm."""
        self._gone = gone

        def stop() -> None:
            self.stopped = True
            estop()

        with keys() as self._keys:
            self._keys.listen(stop)
            yield
        self._keys = Keys()

    def ask(self, question: str, choices: Mapping[str, str]) -> str | None:
        """Ask until one of the choices is typed; None where nobody is there."""
        if not self.is_there or self._gone() or self.stopped:
            return None
        menu = ", ".join(f"{key} {meaning}" for key, meaning in choices.items())
        asked, line = f"\n{question}\n  {menu}: ", ""
        with contextlib.ExitStack() as held:
            heard = self._keys if self._keys.works else held.enter_context(keys())
            _say(asked)
            while heard.works and not self._gone() and not self.stopped:
                self._typed += [] if self._typed else heard.presses(LOOK_S)
                name = self._typed.pop(0) if self._typed else ""
                if name == "return":
                    _say("\n")
                    if line in choices:
                        return line
                    _say(asked)
                    line = ""
                elif name == "backspace" and line:
                    line = line[:-1]
                    _say("\b \b")
                elif len(name) == 1:
                    line += name
                    _say(name)  # shown as it is typed
        return None

    def instruct(self, what: str) -> bool:
        """Ask for something to be done."""
        if self.is_there:
            _say(f"\n{what}\n")
        return self.is_there


def _say(words: str) -> None:
    sys.stderr.write(words)
    sys.stderr.flush()


SUFFIX: Final = ".mornings.jsonl"
MORNINGS: Final = 60
"""So many runs are looked back at."""
MOTION: Final = "motion"
HISTORY: Final = "history"
FPS: Final = 50.0
"""Turns are thinned to about this rate [Hz]: steps between readings must be larger than noise."""
AROUND_S: Final = 0.6
"""Of the rest before and after a motion so much belongs to it [s]."""
PLAY_DEG: Final = 1.0
"""An arm that is put back somewhere reads the same to within this."""
SLIPPED_DEG: Final = 2.0
"""Beyond this a joint reads otherwise: a gear's tooth, a slipped horn, another calibration."""
HELD: Final = 0.05
"""A number that was read once is taken to be right to this share."""
SAID: Final = ("offset", "noise", "repeats", "quantum", "dead_band", "joint_delay", "jumps")
"""Kinds that motions of a few degrees can show; the others are for demonstrations."""
MENDS: Final = {
    "offset": "Where nothing weighs on it, calibrate leader and follower in one pose.",
    "repeats": "Look at what is between here and the servos: a network, or a bus at a low rate.",
}
"""What to do where a dataset would be edited, or sent here."""


class MotionLog:
    """A `TakeSink` that keeps what joints were sent and where they were."""

    def __init__(self) -> None:
        self.turns: list[Tick] = []

    def tick(self, tick: Tick) -> None:
        """Take note of one turn."""
        self.turns.append(tick)

    def report(self, names: Sequence[str]) -> AbsoluteReport | None:
        """Return what the motions show by themselves; None where there were too few."""
        found = AbsoluteReport(Path())
        if len(self.turns) < 10:
            return None
        t = np.array([turn.t_s for turn in self.turns])
        step = max(1, round(1 / FPS / max(float(np.median(np.diff(t))), 1e-3)))
        turns = self.turns[::step]
        fps = 1.0 / float(np.median(np.diff(t[::step])))
        names = [name for name in names if not name.endswith(SPEED)]  # a base's stand last
        sent = np.degrees([turn.command.sent_rad[: len(names)] for turn in turns])
        read = np.degrees([turn.state.position_rad[: len(names)] for turn in turns])
        around, last = round(AROUND_S * fps), 0
        made = []
        moves = np.abs(np.diff(sent, axis=0)) > 0.01
        which = np.where(moves.any(axis=1), moves.argmax(axis=1), -1)
        rows = np.flatnonzero(which >= 0)  # an episode is what one joint does
        for part in np.split(rows, np.flatnonzero(np.diff(which[rows])) + 1):
            first, end = max(last, part[0] - around), part[-1] + around
            made += [(sent[first:end], read[first:end])] if len(part) > around else []
            last = int(part[-1])
        if not made:
            return None
        ArmTests(recording_of(names, made, fps), found).run()
        found.rank()
        return found


def check_motion(report: AbsoluteReport) -> Iterator[CheckResult]:
    """Yield what the test motions show by themselves."""
    said = [f for f in report.findings if f.kind in SAID]
    for finding in said:
        fix = MENDS.get(finding.kind, finding.command)
        yield CheckResult(MOTION, Level.WARN, finding.line(), fix, finding.to_json())
    if not said:
        rests = [f for f in report.figures if f.what == "offset"]
        worst = max(rests, key=lambda f: abs(f.size.value), default=None)
        found = "joints follow their commands"
        if worst is not None:
            found += f"; at rest {worst.about} is furthest off, by {worst.size.value:.2g}°"
        yield CheckResult(MOTION, Level.OK, found)


def rest_figures(names: Sequence[str], position_rad: FloatArray) -> list[Figure]:
    """Return where joints read to be before they move: a slipped horn shows from day to day."""
    degrees = np.degrees(position_rad).tolist()
    return [
        Figure("reading at rest", name, "°", Estimate(value, value - PLAY_DEG, value + PLAY_DEG),
               SLIPPED_DEG)
        for name, value in zip(names, degrees, strict=True)
        if not name.endswith(SPEED)
    ]  # fmt: skip


def camera_figures(results: Sequence[CheckResult]) -> list[Figure]:
    """Return what was measured of the pictures."""
    kinds = (("rate_hz", "new pictures a second", "", 3.0), ("brightness", "brightness", "of 255",
             8.0), ("age_p99_s", "age", "s", 0.05))  # fmt: skip
    return [
        Figure(what, str(r.data["camera"]), unit, _once(float(r.data[key])), least)
        for r in results if "camera" in r.data
        for key, what, unit, least in kinds if math.isfinite(r.data.get(key, math.nan))
    ]  # fmt: skip


def _once(value: float) -> Estimate:
    half = HELD * abs(value)
    return Estimate(value, value - half, value + half)


def check_history(
    station: Path, figures: Sequence[Figure], now: datetime | None = None
) -> Iterator[CheckResult]:
    """Yield what changed since the mornings before; keep this morning's figures."""
    path = station.with_name(f"{station.stem}{SUFFIX}")

    def day(row: Any, _where: str) -> findings.Day:
        return str(row["at"]), findings.figures_from_json(row["figures"])

    today = (now or datetime.now(UTC)).astimezone()
    try:
        days = list(json_lines(path, "a morning's figures", day)) if path.exists() else []
    except UnusableInputError as error:
        fix = f"Move {path} away: a new one is begun."
        yield CheckResult(HISTORY, Level.WARN, str(error), fix)
        return
    if not figures:
        found = "nothing was measured that could be set against another day"
        yield CheckResult(HISTORY, Level.WARN, found, "Let the joints move; give it cameras.")
        return
    name = f"{today:%a %Y-%m-%d %H:%M}"
    row = {"at": name, "figures": findings.figures_to_json(figures)}
    try:
        append_line(path, json.dumps(row, ensure_ascii=False))
    except OSError as error:
        yield CheckResult(HISTORY, Level.WARN, f"not kept: {error}", f"Make {path} writable.")
    changed = findings.trends([*days[-MORNINGS:], (name, figures)])
    for trend in changed:
        yield CheckResult(HISTORY, Level.WARN, trend.line(), data=trend.to_json())
    if not changed:
        found = f"first figures of this station, kept in {path}"
        if days:
            runs = "run" if len(days) == 1 else f"{len(days)} runs"
            found = f"{len(figures)} figures as on the {runs} before, since {days[0][0]}"
        yield CheckResult(HISTORY, Level.OK, found)


# -- an arm as it was measured -------------------------------------------------------------------


REPORT_SCHEMA: Final = "gaploop.real_arm.v1"
PER_JOINT: Final = {
    "delay": "delay_ms", "dead band": "play_deg", "gain": "gain", "offset": "offset_deg",
    "noise at rest": "noise_deg",
}  # fmt: skip
"""Figures of the test motions to their keys in the file."""
WANTED: Final = ("delay_ms", "play_deg", "gain", "stop", "drop_deg", "fall", "bus_errors")


def write_measured(
    path: Path,
    follower: Follower,
    log: MotionLog,
    results: Sequence[CheckResult],
    figures: Sequence[Figure],
) -> CheckResult:
    """Write what was measured; say what couldn't be.

    Args:
        log: every turn in which the arm was held.
        results: of `check_moving`.
        figures: of the test motions and of the cameras.
    """
    joints: dict[str, dict[str, Any]] = {}
    for figure in figures:
        if (key := PER_JOINT.get(figure.what)) is not None:
            size = figure.size
            values = [round(v, 4) for v in (size.value, size.low, size.high)]
            joints.setdefault(key, {})[figure.about] = values
    said = {name: [r.data for r in results if r.check == name] for name in (ESTOP, DAMPING)}
    ended: Mapping[str, Any] = next((d for d in said[ESTOP] if "took_s" in d), {})
    stop = ended.get("stop")
    speeds = next((d["deg_s"] for d in said[DAMPING] if "deg_s" in d), None)
    device: Any = follower
    counts = device.fault_counts() if hasattr(device, "fault_counts") else {}
    ports = [Path(port).resolve() for port in getattr(device, "ports", ())]
    found: dict[str, Any] = {
        "schema": REPORT_SCHEMA,
        "arm": getattr(device, "robot_type", ""),
        "month": f"{datetime.now(UTC):%Y-%m}",
        "emulated": any(port.is_relative_to("/dev/pts") for port in ports),
        "system": f"{platform.system()} {platform.machine()}",
        "versions": {name: versions()[name] for name in ("gaploop", "lerobot")},
        **joints,
        "stop": stop and {**stop, "held_after_ms": round(1e3 * ended["took_s"], 1)},
        "drop_deg": ended.get("drop_deg"),
        "fall": speeds and {"braked_deg_s": round(speeds[0], 1), "free_deg_s": round(speeds[1], 1)},
        "bus_errors": {"turns": len(log.turns), **{k: n for k, n in counts.items() if n}},
        "cameras": _cameras(figures),
    }
    missing = [key for key in WANTED if found.get(key) in (None, {})]
    write_json(path, found)
    kept = f"kept in {path}, to be sent to others: it names the kind of arm, and nobody"
    if not missing:
        return CheckResult(MEASURE, Level.OK, kept, data=found)
    fix = "Begin with the arm in the middle of its range, say yes to the fall, and measure again."
    return CheckResult(
        MEASURE, Level.WARN, f"{kept}; not measured: {', '.join(missing)}", fix, found
    )


def _cameras(figures: Sequence[Figure]) -> list[dict[str, float]]:
    kinds = {"new pictures a second": ("rate_hz", 1.0), "age": ("age_p99_ms", 1e3)}
    seen: dict[str, dict[str, float]] = {}
    for figure in figures:
        if figure.what in kinds:
            key, scale = kinds[figure.what]
            seen.setdefault(figure.about, {})[key] = round(scale * figure.size.value, 1)
    return list(seen.values())  # without their names
