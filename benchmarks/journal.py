"""`benchmarks journal`: what a SIGKILL costs, beside LeRobot; hand-over and sealing.

A process records two 640×480 cameras at 50 Hz with telemetry at 200 Hz in real time, or publishes,
and is killed at a random instant; in turn the encoder's process alone is. Then the journal is
recovered, every take that had been claimed sealed is read to its last picture, and the dataset
is loaded with plain LeRobot. LeRobot records the same pictures and is killed after five saved
episodes. A power cut is not what is measured here: a kill leaves the page cache.
"""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import shutil
import signal
import statistics
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from multiprocessing.connection import Connection
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from benchmarks.cameras import CAMERAS, read_barcodes
from gaploop.core.errors import DeviceError, UnusableInputError
from gaploop.scripts import options

if TYPE_CHECKING:
    from benchmarks.bench import BenchConfig

PHASES: Final = ("record", "seal", "publish", "record", "encoder")
"""What is killed, in turn."""
TAKE_S: Final = 1.2
LONGEST_S: Final = 3.5
"""Recording is killed at a random instant up to here [s]."""
SEAL_S: Final = 0.1
"""Sealing is killed at a random instant up to here after it began [s]."""
PER_JOURNAL: Final = 50
"""Kills before another journal and dataset are begun, so that reading them stays quick."""
EPISODES: Final = 5
TIMED_TAKES: Final = 12
_SHOWN: Final[dict[str, list[int]]] = {}
"""Numbers of a video's pictures by its SHA-256: a sealed take is looked at again and again."""
_JOBS: Final = "benchmarks.journal_jobs"
_WAIT_S: Final = 120.0


@dataclass
class Tally:
    """What the kills cost.

    Attributes:
        kills: phase to kills.
        sealed: takes that had been claimed sealed.
        sealed_lost: of them, those that aren't whole.
        open_lost_s: phase to, of each take that was open, what had been asked for and isn't
            there [s].
        torn: takes whose streams or pictures don't match, or that couldn't be recovered.
        dropped: pictures that the encoder couldn't take, all reported.
        unloadable: times that plain LeRobot couldn't load the dataset, or found less than before.
    """

    kills: Counter[str] = field(default_factory=Counter)
    sealed: int = 0
    sealed_lost: int = 0
    open_lost_s: dict[str, list[float]] = field(default_factory=lambda: defaultdict(list))
    torn: int = 0
    dropped: int = 0
    unloadable: int = 0


class ClaimingProcess:
    """A process that claims what it has done on a pipe."""

    def __init__(self, context: Any, name: str, *arguments: Any) -> None:
        self.claims: list[tuple[Any, ...]] = []
        self._ear, mouth = context.Pipe(duplex=False)
        self.process = context.Process(target=_run, args=(name, mouth, *arguments))
        self.process.start()
        mouth.close()

    def wait_for(self, claim: str, more: int = 1, timeout_s: float = _WAIT_S) -> tuple[Any, ...]:
        """Return the next `more`-th claim of that name.

        Raises:
            DeviceError: the process ended or said nothing in time.
        """
        until_s = time.monotonic() + timeout_s
        while time.monotonic() < until_s:
            if not self._hear(max(0.0, until_s - time.monotonic())):
                break
            if self.claims[-1][0] == claim:
                more -= 1
                if not more:
                    return self.claims[-1]
        raise DeviceError(f"The bench's process ended without '{claim}'. Run the bench again.")

    def listen(self, seconds: float) -> None:
        """Take in what is said over `seconds` [s]; less if the process ends."""
        until_s = time.monotonic() + seconds
        while (left_s := until_s - time.monotonic()) > 0 and self._hear(left_s):
            pass

    def _hear(self, timeout_s: float) -> bool:
        try:
            if self._ear.poll(timeout_s):
                self.claims.append(self._ear.recv())
            return True
        except EOFError:
            return False

    def kill(self) -> None:
        """Kill the process and take in what it had claimed."""
        self.process.kill()
        self.process.join()
        with contextlib.suppress(EOFError, OSError):
            while self._ear.poll(0):
                self.claims.append(self._ear.recv())
        self._ear.close()

    def newest(self, claim: str) -> tuple[Any, ...]:
        """Return the newest claim of that name."""
        return next(c for c in reversed(self.claims) if c[0] == claim)


def _run(name: str, claims: Connection, *arguments: Any) -> None:
    from benchmarks import journal_jobs as jobs

    jobs_by_name: Mapping[str, Callable[..., None]] = vars(jobs)
    jobs_by_name[name](claims, *arguments)


def measure(config: BenchConfig, folder: Path) -> dict[str, Any]:
    """Kill `kills` times, then time hand-over, sealing and LeRobot's equivalent."""
    if config.kills < 1:
        raise UnusableInputError(f"--kills must be 1 or more, got {config.kills}.")
    context, draw = _context(), np.random.default_rng(config.seed)
    lerobot_kills = max(2, config.kills // 50)
    with options.progress("Killing", config.kills + lerobot_kills) as advance:
        tally = kill_gaploop(context, folder, config.kills, draw, advance)
        lerobot = [_lerobot_kill(context, folder / "lerobot", draw) for _ in range(lerobot_kills)]
        advance(lerobot_kills)
    return {
        "gaploop": figures(tally),
        "timing": _timing(context, folder / "timing"),
        "lerobot": {**_lerobot_figures(lerobot), **_lerobot_timing(context, folder / "lerobot")},
    }


def _context() -> Any:
    """Return how processes are made: forked from one that has imported everything already."""
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload([_JOBS])
    return context


def kill_gaploop(
    context: Any,
    folder: Path,
    kills: int,
    draw: np.random.Generator,
    advance: Callable[[], None] = lambda: None,
) -> Tally:
    """Kill gaploop's recording, sealing, publishing and encoding, in turn, and judge each."""
    tally = Tally()
    for number in range(kills):
        work = folder / f"work_{number // PER_JOURNAL}"
        if number % PER_JOURNAL == 0:
            shutil.rmtree(work, ignore_errors=True)
            work.mkdir(parents=True)
        _one_kill(context, work, PHASES[number % len(PHASES)], draw, tally)
        if number % PER_JOURNAL == PER_JOURNAL - 1 or number == kills - 1:
            _check_all(work, tally)
        advance()
    return tally


def _one_kill(
    context: Any, work: Path, phase: str, draw: np.random.Generator, tally: Tally
) -> None:
    journal, root = work / "journal", work / "data"
    tally.kills[phase] += 1
    if phase == "publish":
        _kill_publish(context, journal, root, draw, tally)
        return
    job = ClaimingProcess(context, "record", journal, TAKE_S, 100)
    job.wait_for("ready")
    if phase == "record":
        job.listen(draw.uniform(0.0, LONGEST_S))
    elif phase == "seal":
        job.wait_for("sealing", int(draw.integers(1, 3)))
        job.listen(draw.uniform(0.0, SEAL_S))
    else:
        job.listen(draw.uniform(0.1, 2 * TAKE_S))
        with contextlib.suppress(ProcessLookupError):
            os.kill(job.newest("encoder")[1], signal.SIGKILL)
        job.wait_for("lost")
        job.wait_for("sealed")  # the session goes on: a later take is sealed
    job.kill()
    _judge(journal, job.claims, tally, phase)


def _judge(journal: Path, claims: list[tuple[Any, ...]], tally: Tally, phase: str) -> None:
    """Compare what was claimed with what is there after recovery."""
    from gaploop.collect.recovery import recover
    from gaploop.core.journal_format import read_end

    report = recover(journal) if journal.exists() else None
    tally.torn += len(report.failed) + len(report.open) if report else 0
    asked: dict[str, int] = {}
    for claim in claims:
        if claim[0] == "row":
            asked[claim[1]] = claim[2] + 1
    sealed = {claim[1] for claim in claims if claim[0] == "sealed"}
    tally.sealed += len(sealed)
    for uid, rows in asked.items():
        end = read_end(journal / uid)
        kept = end.frames if end is not None else 0
        whole = end is not None and _whole(journal / uid, end)
        tally.dropped += sum(end.dropped.values()) if end is not None else 0
        if uid in sealed:
            tally.sealed_lost += not whole or kept != rows
        else:
            tally.torn += end is not None and not whole
            tally.open_lost_s[phase].append((rows - kept) / 50)


def _whole(take: Path, end: Any) -> bool:
    """Say whether every file is what was sealed and every row stands beside its own picture."""
    from gaploop.core.files import sha256
    from gaploop.core.journal_format import read_take

    if any(sha256(take / name) != digest for name, digest in end.checksums.items()):
        return False
    read = read_take(take)
    if len(read.frames) != end.frames or len(read.telemetry) != end.telemetry_rows:
        return False
    if (read.frames.state[:, 0] != np.arange(end.frames)).any():
        return False
    for k, camera in enumerate(CAMERAS):
        digest = end.checksums[f"{camera}.mkv"] if end.frames else ""
        if digest not in _SHOWN:
            _SHOWN[digest] = read_barcodes(take / f"{camera}.mkv")
        shown = _SHOWN[digest]
        ages_s = read.frames.camera_age_s.get(camera, np.empty(0))
        age_rows = np.round(ages_s * 50).astype(int)
        if shown != [2 * (i - int(age)) + k for i, age in enumerate(age_rows)]:
            return False
    return True


def _kill_publish(
    context: Any, journal: Path, root: Path, draw: np.random.Generator, tally: Tally
) -> None:
    before = _published(root)
    job = ClaimingProcess(context, "publish", journal, root)
    job.wait_for("ready")
    job.listen(float(draw.choice([draw.uniform(0, 0.3), draw.uniform(0, 2.0)])))
    job.kill()
    after = _published(root)
    tally.unloadable += after is None or not (before or set()) <= after


def _published(root: Path) -> set[str] | None:
    """Return the takes that plain LeRobot finds in a dataset; None where it can't load it."""
    from lerobot.datasets.lerobot_dataset import LeRobotDataset

    from benchmarks.journal_jobs import REPO
    from gaploop.datasets import layout

    if not root.exists():
        return set()
    try:
        dataset = LeRobotDataset(REPO, root=root)
        for index in (0, len(dataset) - 1):
            dataset[index]
    except Exception:  # noqa: BLE001  # whatever it raises, the dataset can't be loaded
        return None
    return {str(row["gap_uid"]) for row in layout.episode_rows(root)}


def _check_all(work: Path, tally: Tally) -> None:
    """Look once more at every sealed take, and publish what the kills left."""
    from benchmarks.journal_jobs import REPO
    from gaploop.core.journal_format import read_end, take_folders
    from gaploop.core.vocabulary import Outcome
    from gaploop.datasets.lerobot_publish import publish_takes

    publish_takes(work / "journal", work / "data", REPO)
    found = _published(work / "data")
    tally.unloadable += found is None
    for take in take_folders(work / "journal"):
        end = read_end(take)
        if end is not None and end.outcome is Outcome.SUCCESS:
            tally.sealed_lost += not _whole(take, end) or take.name not in (found or ())
    shutil.rmtree(work)


def figures(tally: Tally) -> dict[str, Any]:
    """Return a tally as figures."""
    lost = [s for phase in tally.open_lost_s.values() for s in phase] or [0.0]
    return {
        "kills": dict(tally.kills),
        "sealed_takes": tally.sealed,
        "sealed_takes_lost": tally.sealed_lost,
        "load_takes": sum(map(len, tally.open_lost_s.values())),
        "open_lost_s_median": round(statistics.median(lost), 3),
        "open_lost_s_max": round(max(lost), 3),
        "open_lost_s_max_by_phase": {k: round(max(v), 3) for k, v in tally.open_lost_s.items()},
        "torn_takes": tally.torn,
        "dropped_pictures_reported": tally.dropped,
        "datasets_lerobot_cannot_load": tally.unloadable,
    }


def _timing(context: Any, folder: Path) -> dict[str, Any]:
    """Record takes without a kill and time what lies between them."""
    shutil.rmtree(folder, ignore_errors=True)
    job = ClaimingProcess(context, "record", folder, TAKE_S, TIMED_TAKES)
    job.wait_for("done")
    job.kill()
    hand_over = [1e3 * claim[1] for claim in job.claims if claim[0] == "handed over"]
    seal = [1e3 * claim[2] for claim in job.claims if claim[0] == "sealed"]
    shutil.rmtree(folder)
    return {
        "takes": len(seal),
        **{f"hand_over_ms_{k}": v for k, v in _spread(hand_over)},
        **{f"sealed_behind_ms_{k}": v for k, v in _spread(seal)},
    }


def _spread(values: list[float]) -> Iterator[tuple[str, float]]:
    yield "median", round(statistics.median(values), 2)
    yield "max", round(max(values), 2)


def _lerobot_kill(context: Any, root: Path, draw: np.random.Generator) -> int | None:
    """Kill LeRobot after saved episodes; return how many it finds, None where it can't load."""
    from lerobot.datasets.lerobot_dataset import LeRobotDataset

    from benchmarks.journal_jobs import REPO

    shutil.rmtree(root, ignore_errors=True)
    job = ClaimingProcess(context, "lerobot_record", root, EPISODES, round(TAKE_S * 50))
    job.wait_for("waiting")
    job.listen(draw.uniform(0.0, 0.5))
    job.kill()
    try:
        dataset = LeRobotDataset(REPO, root=root)
        dataset[len(dataset) - 1]
        return int(dataset.num_episodes)
    except Exception:  # noqa: BLE001  # whatever it raises, the dataset can't be loaded
        return None


def _lerobot_figures(found: list[int | None]) -> dict[str, Any]:
    return {
        "kills": len(found),
        "saved_episodes": EPISODES * len(found),
        "saved_episodes_lost": sum(EPISODES - (n or 0) for n in found),
        "datasets_lerobot_cannot_load": found.count(None),
    }


def _lerobot_timing(context: Any, root: Path) -> dict[str, Any]:
    shutil.rmtree(root, ignore_errors=True)
    job = ClaimingProcess(context, "lerobot_durable", root, EPISODES, round(TAKE_S * 50))
    job.wait_for("done")
    job.kill()
    took = [1e3 * claim[1] for claim in job.claims if claim[0] == "durable"]
    shutil.rmtree(root, ignore_errors=True)
    return {f"save_finalize_resume_ms_{k}": v for k, v in _spread(took)}


def table(result: Mapping[str, Any]) -> str:
    """Return the figures as text."""
    lines = []
    for part in ("gaploop", "timing", "lerobot"):
        lines.append(part)
        lines += [f"  {name:<34}{value}" for name, value in result[part].items()]
    return "\n".join(lines)
