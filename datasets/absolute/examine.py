"""All absolute tests of a dataset, of several of one station, and of two versions of one."""

import json
import os
import re
import shlex
import unicodedata
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final

import numpy as np

from gaploop.core.errors import UnusableInputError
from gaploop.core.files import read_json
from gaploop.core.paths import relative_path
from gaploop.core.statistics import Estimate
from gaploop.core.vocabulary import Outcome, plainly_radians
from gaploop.datasets import layout
from gaploop.datasets.absolute import joint_fits
from gaploop.datasets.absolute.arm_findings import ArmTests
from gaploop.datasets.absolute.camera_findings import CameraTests
from gaploop.datasets.absolute.camera_looks import look
from gaploop.datasets.absolute.findings import (
    BELONGS,
    WITHOUT,
    AbsoluteFinding,
    AbsoluteReport,
    Day,
    Trend,
    trends,
)
from gaploop.datasets.absolute.joint_fits import examine_heat
from gaploop.datasets.absolute.recording import MotionRecording, read_recording
from gaploop.datasets.absolute.versions import SetComparison, compare, contents
from gaploop.datasets.check.frames import stretches
from gaploop.datasets.video import open_video

SHORTEST: Final = 2
"""Rows: an episode of no more was begun by mistake."""
STILL_DEG: Final = 1.0
IDLE_S: Final = 2.0
"""A policy that learns from it learns to wait; a person takes about a second to begin."""
PAUSE_S: Final = 4.0
NOISE: Final = 0.7
"""Rms of a command's steps over its own spread: white noise has 1.4, a hand below 0.1."""
START_DEG: Final = 10.0


class EpisodeTests:
    """Tests across a recording's episodes, each adding to its report."""

    def __init__(self, recording: MotionRecording, report: AbsoluteReport) -> None:
        self.recording, self.report = recording, report
        self.fps, self.total = recording.info.fps, len(recording.lengths)
        self.looked = len(recording.episodes)  # of which rows were read, too
        report.episodes = self.total
        self.root = shlex.quote(str(recording.info.root))

    def run(self) -> None:
        """Run all tests."""
        before = len(self.report.findings)
        short = {e: float(n) for e, n in self.recording.lengths.items() if n <= SHORTEST}
        self.report.add(
            "short_episode", "", "Some episodes are of a frame or two", short, self.total,
            self.report.without(list(short), self.total), 20.0, apart="a key pressed twice",
        )  # fmt: skip
        self._tasks()
        if self.looked:
            left = self.total - len(self.recording.missing_rows) - self.looked
            if left > 0:
                what = f"motion in {left} of {self.total} episodes"
                self.report.untested[what] = f"{self.looked} are looked at, spread evenly"
            self._motion()
            self._units()
            self._starts()
        if len(self.report.findings) == before and self.total > 1:
            self.report.good["episodes"] = "episodes are alike in length, motion, start and wording"

    def _say(self, kind: str, sentence: str, found: dict[int, float], unit: str, apart: str,
             command: str, cost_deg: float) -> None:  # fmt: skip
        self.report.add(
            kind, "", sentence, found, self.looked, command, cost_deg, unit=unit, apart=apart
        )

    def _tasks(self) -> None:
        """Find tasks that differ by case, spaces, a full stop or how accents are encoded only."""
        spelt: dict[str, dict[str, list[int]]] = {}
        rows = layout.episode_rows(self.recording.info.root)
        for row in rows:
            for task in row.get("tasks") or []:
                text = unicodedata.normalize("NFKC", str(task)).casefold()
                plain = " ".join(re.sub(r"[^\w\s]", " ", text).split())
                spelt.setdefault(plain, {}).setdefault(str(task), []).append(
                    int(row["episode_index"])
                )
        for wordings in spelt.values():
            if len(wordings) < 2:
                continue
            most = max(wordings, key=lambda w: len(wordings[w]))
            odd = {e for w, found in wordings.items() if w != most for e in found}
            if any(row.get("gap_uid") for row in rows):
                task = shlex.quote(json.dumps({"task": most}, ensure_ascii=False))
                listed = "[" + ", ".join(map(str, sorted(odd))) + "]"
                fix = f"gaploop edit retag {self.root} --episodes='{listed}' --set={task} --yes"
            else:  # LeRobot's own, which asks for a name on the Hub though nothing goes there
                other = {w: most for w in wordings if w != most}
                fix = f"lerobot-edit-dataset --repo_id=me/it --root={self.root} "
                fix += "--operation.type=modify_tasks --operation.task_replacements="
                fix += shlex.quote(json.dumps(other, ensure_ascii=False))
            n, same = len(wordings), len({unicodedata.normalize("NFC", w) for w in wordings}) == 1
            by = "how accents are encoded" if same else "case, spaces or a full stop"
            self.report.add(
                "task_wording", most, f"One task is worded in {n} ways that differ by {by}",
                sorted(odd), self.total, fix, 7.0, worst=min(odd), size=Estimate(n, n, n),
            )  # fmt: skip

    def _motion(self) -> None:
        still, noise = dict[int, float](), dict[int, float]()
        idle, pause = dict[int, float](), dict[int, float]()
        for e in self.recording.episodes:
            u = e.command
            if len(u) <= SHORTEST or not self.recording.arm:  # a gripper alone tells of no motion
                continue
            spread, steps = u.std(axis=0), np.diff(u, axis=0).std(axis=0)
            far = float(max(np.ptp(u, axis=0).max(), np.ptp(e.reading, axis=0).max()))
            if far < 2 * STILL_DEG:
                still[e.index] = far
                continue
            loud = spread > STILL_DEG
            if loud.any() and float(np.median(steps[loud] / spread[loud])) > NOISE:
                noise[e.index] = float(steps[loud].max())
                continue
            moved = np.abs(u - u[0]).max(axis=1) > 2 * STILL_DEG
            first = int(moved.argmax()) / self.fps
            if first > IDLE_S:
                idle[e.index] = first
            window = max(2, round(0.5 * self.fps))
            if len(u) > 2 * window:
                both = np.c_[u, e.reading]  # commands may be in a unit in which they hardly change
                change = np.abs(both[window:] - both[:-window]).max(axis=1) < STILL_DEG
                inner = [
                    (b - a + window) / self.fps for a, b in stretches(change)
                    if a > first * self.fps and b < len(change)
                ]  # fmt: skip
                if inner and max(inner) > PAUSE_S:
                    pause[e.index] = max(inner)
        unit = self.recording.unit or "units"
        fix = self.report.without(list(still), self.looked)
        apart = "an arm that was off, readings that stopped"
        if len(still) == self.looked and not any(still.values()):
            apart = "a set recorded without joints, filled up; an arm that was off"
            fix = "If no joints were recorded: pictures alone can be used. Else record them again."
        self._say("motionless", "Nothing moves in some episodes: joints cover", still, unit, apart,
                  fix, 25.0)  # fmt: skip
        self._say(
            "noise_episode", "Commands are noise in some episodes: from row to row they jump by",
            noise, unit, "a broken leader, made-up data",
            self.report.without(list(noise), self.looked), 45.0,
        )  # fmt: skip
        if len(idle) >= max(1, 0.1 * len(self.recording.episodes)):
            self._say(
                "idle_start", "Episodes begin idle: nothing is commanded for", idle, "s",
                "waiting for something to happen", f"gaploop edit trim {self.root} "
                f"--output_dir={self.root}_trimmed", 3.0 + 10 * len(idle) / self.looked,
            )  # fmt: skip
        if len(pause) >= max(1, 0.1 * len(self.recording.episodes)):
            self._say(
                "pause", "Episodes hold still in between, for", pause, "s",
                "waiting for something to happen", f"gaploop review {self.root}",
                2.0 + 10 * len(pause) / self.looked,
            )  # fmt: skip

    def _units(self) -> None:
        whole = [e for e in self.recording.episodes if len(e.reading) > SHORTEST]
        own = self.recording.arm
        if not whole or not own or self.recording.joints[own[0]].scale != 1.0:
            return
        low, high = (np.array([f(e.reading[:, own], axis=0) for e in whole]) for f in (
            np.min, np.max))  # fmt: skip
        odd = plainly_radians(low, high)
        found = {whole[k].index: float(np.ptp(whole[k].reading[:, own], axis=0).max()) for k in odd}
        self._say(
            "mixed_units", "Some episodes look like radians, the others like degrees: joints cover",
            found, "", "", self.report.without(list(found), self.looked), 90.0,
        )  # fmt: skip

    def _starts(self) -> None:
        """Find the episodes from which on joints, command and reading, start elsewhere."""
        whole = [e for e in self.recording.episodes if len(e.reading) > SHORTEST]
        if len(whole) < 8:
            return
        changes = dict[int, dict[str, Estimate]]()  # one change moves many joints: one sentence
        for k in self.recording.arm:
            starts = np.array([(e.command[0, k] + e.reading[0, k]) / 2 for e in whole])
            first, step, clear = joint_fits.change_point(starts)
            if first >= 3 and len(whole) - first >= 3 and abs(step) > START_DEG and clear > 8:
                before = starts[:first] - np.median(starts[:first])
                half = 1.57 * float(np.ptp(np.percentile(before, [25, 75]))) / first**0.5
                size = Estimate(step, step - half, step + half)
                changes.setdefault(first, {})[self.recording.joints[k].name] = size
        for first, moved in changes.items():
            after = [e.index for e in whole[first:]]
            name, *others = sorted(moved, key=lambda joint: -abs(moved[joint].value))
            who = f"{name} starts elsewhere, by"
            if others:
                rest = others[0] if len(others) == 1 else f"{len(others)} other joints"
                who = f"{name} and {rest} start elsewhere, {name} by"
            self.report.add(
                "start_change", name, f"From episode {after[0]} on, {who}", after, len(whole),
                f"gaploop review {self.root}", 0.3 * abs(moved[name].value),
                unit=self.recording.unit or "units", worst=after[0], size=moved[name],
                apart="another resting pose, leader and follower calibrated anew",
                to_mend=False,  # it may have been on purpose
            )  # fmt: skip


# -- examining them -------------------------------------------------------------------------------


OTHERS_SIMULATIONS: Final = ("simulation", "scene_sim")
"""Types of robot of which nobody can take hold; the embedded cell's stand for real ones."""
HARDWARE: Final = ("actuator_response", "sensor_noise", "spatial_geometry", "visual_domain")
"""What belongs there is mended at an arm or a camera, if it isn't left out."""
LARGEST: Final = 5000
"""Episodes of a training set that are compared; of a larger one so many, spread evenly."""
TRAIN_CONFIG: Final = "train_config.json"
PLACES: Final = ("", "pretrained_model", "checkpoints/last/pretrained_model")
"""Where LeRobot keeps it in a checkpoint, and in a training's folder."""


def examine(
    root: Path, *, pictures: bool = True, opened: Callable[[Path], Any] | None = None
) -> AbsoluteReport:
    """Examine a LeRobot v3 dataset; what it says needs no reference, label or outcome.

    Args:
        pictures: look at videos, too: seconds for two cameras.
        opened: opens a video that isn't at its path, such as one on a Hub.

    Raises:
        UnusableInputError: it isn't one, or its tables can't be read.
    """
    report = AbsoluteReport(root)
    with layout.reraise_for(root):
        recording = read_recording(root)
        report.failed = frozenset(
            int(row["episode_index"])
            for row in layout.episode_rows(root)
            if row.get("gap_outcome") == Outcome.FAILURE
        )
        ArmTests(recording, report).run()
        EpisodeTests(recording, report).run()
        examine_heat(recording, report)
        if pictures:
            CameraTests(recording, report, look(recording, opened or open_video)).run()
    if recording.info.robot_type in OTHERS_SIMULATIONS:
        report.findings = [_simulated(finding, root) for finding in report.findings]
    report.rank()
    return report


def _simulated(finding: AbsoluteFinding, root: Path) -> AbsoluteFinding:
    """Return a finding of a simulated arm or camera: nobody turns a joint there by hand."""
    if BELONGS[finding.kind] not in HARDWARE or finding.kind in WITHOUT:
        return finding
    compare = f"gaploop identify {shlex.quote(str(root))} --env.scene=FILE  # or --env.gym=ID: "
    compare += "whether your simulation without gaps shows it, too"
    return replace(finding, not_told_apart="", command=compare, to_mend=False)


@dataclass(frozen=True)
class TrainingSet:
    """A dataset, and which of its episodes a training used; None is all."""

    name: str
    root: Path
    only: tuple[int, ...] | None = None


def training_set(path: Path) -> TrainingSet:
    """Return the dataset at a path, or the one that the checkpoint there was trained on.

    Raises:
        UnusableInputError: neither, or the checkpoint's dataset isn't on this machine.
    """
    if layout.is_dataset(path):
        return TrainingSet(str(path), path)
    found = [path / place / TRAIN_CONFIG for place in PLACES]
    config = next((file for file in found if file.is_file()), None)
    if config is None:
        raise UnusableInputError(
            f"{path} is neither a dataset nor a checkpoint with a {TRAIN_CONFIG}. Name one of them."
        )
    given: Any = read_json(config)
    given = given if isinstance(given, dict) else {}
    about: Any = given.get("dataset")
    about = about if isinstance(about, dict) else {}
    repo_id, root = str(about.get("repo_id") or ""), about.get("root")
    home = Path(os.environ.get("HF_LEROBOT_HOME") or Path.home() / ".cache/huggingface/lerobot")
    places = [_trained_in(config, given) / root, Path(root)] if isinstance(root, str) else []
    places += [home / relative_path(repo_id, "dataset.repo_id", config)] if repo_id else []
    there = next((place for place in places if layout.is_dataset(place)), None)
    if there is None:
        named = " or ".join(map(str, dict.fromkeys(places))) or "no dataset"
        raise UnusableInputError(
            f"{config} names {named}, which is not on this machine. Name the dataset itself."
        )
    episodes = about.get("episodes")
    only = tuple(map(int, episodes)) if isinstance(episodes, list) else None
    return TrainingSet(str(path), there, only)


def _trained_in(config: Path, given: Mapping[str, Any]) -> Path:
    """Return the folder in which the training was typed, as far as its output's place tells it.

    What it was given may be relative to it.
    """
    output, file = str(given.get("output_dir") or ""), config.absolute()
    typed_in = (folder for folder in file.parents if folder / output in file.parents)
    return next(typed_in if output else iter(()), Path())


def compare_sets(
    sets: Sequence[TrainingSet], advance: Callable[[], Any] = lambda: None
) -> tuple[list[Trend], SetComparison, list[str]]:
    """Return what changed over several datasets, oldest first.

    Returns:
        Figures of arm and cameras that changed, and between which; what the episodes of the last
        two hold that differs; and which datasets show too little for figures.

    Raises:
        UnusableInputError: one of them isn't a dataset, or its tables can't be read.
    """
    short = [Path(one.name).name for one in sets]
    names = short if len(set(short)) == len(sets) else [one.name for one in sets]
    days, silent, held = list[Day](), list[str](), []
    for n, (name, one) in enumerate(zip(names, sets, strict=True)):
        report = AbsoluteReport(one.root)
        with layout.reraise_for(one.root):
            recording = read_recording(one.root)
            ArmTests(recording, report).run()
            EpisodeTests(recording, report).run()
            looks = look(recording)
            CameraTests(recording, report, looks).run()
            days.append((name, report.figures))
            if not report.figures:
                silent.append(f"{name}: {recording.why_not or 'fewer than five episodes'}")
            advance()
            if n >= len(sets) - 2:
                whole = read_recording(one.root, at_most=LARGEST)
                held.append(contents(name, whole, looks, report, one.only))
    return trends(days), compare(*held), silent
