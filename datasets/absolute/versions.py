"""What a policy sees in one training set and not in another: starts, goals, speed, light, words.

Each quantity has a value for each episode; its distance is the difference of means over the spread
within the sets (Hedges 1981), of words the difference of shares over theirs, so that all can be
ranked together. Intervals are for all comparisons at once (Bonferroni). Nothing here is a cause.
"""

import hashlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from statistics import NormalDist
from typing import Any, Final

import numpy as np

from gaploop.core.messages import FloatArray
from gaploop.core.statistics import Estimate, rate
from gaploop.datasets import layout
from gaploop.datasets.absolute import joint_fits
from gaploop.datasets.absolute.camera_looks import CameraLook
from gaploop.datasets.absolute.findings import SHOWN, AbsoluteReport
from gaploop.datasets.absolute.recording import Episode, MotionRecording

NEAR: Final = 0.2
"""A distance whose interval reaches below is none to speak of ("small", Cohen 1988)."""
FEWEST: Final = 4
"""Episodes on either side."""
MOVES_DEG_S: Final = 3.0
GRIPS_PCT: Final = 30.0
"""A gripper that travels by so much closes, or opens."""
OF_EPISODES: Final = (
    "empty_grasp", "frozen_camera", "frozen_state", "idle_start", "jumps", "missing", "motionless",
    "noise_episode", "pause", "short_episode", "stalled_gripper",
)  # fmt: skip
"""Kinds of finding that an episode has for itself; others are of all episodes together."""
WORDS: Final = ("operator", "station", "outcome", "light")
LEAST: Final = {"°": 0.5, "": 0.01, "s": 0.1, "of 255": 1.0}
"""By unit: a spread of less is taken for so much."""


@dataclass
class SetContents:
    """What the episodes of a training set hold.

    Attributes:
        keys: a digest of each episode's commands and readings: the same in copies.
        numbers: quantity to each episode's value; `units`: quantity to its unit.
        words: `task`, `operator`, … or a kind of finding, to each episode's word.
        pictures: camera to each episode's first picture.
    """

    name: str
    keys: dict[int, bytes] = field(default_factory=dict)
    numbers: dict[str, dict[int, float]] = field(default_factory=dict)
    units: dict[str, str] = field(default_factory=dict)
    words: dict[str, dict[int, str]] = field(default_factory=dict)
    pictures: dict[str, dict[int, FloatArray]] = field(default_factory=dict)

    def put(self, what: str, unit: str, episode: int, value: float) -> None:
        """Add an episode's value."""
        self.numbers.setdefault(what, {})[episode] = value
        self.units[what] = unit


@dataclass(frozen=True)
class SetDifference:
    """One thing that differs.

    Attributes:
        sentence: with both values.
        distance: in spreads within a set, with an interval for all comparisons at once.
        moved: how far what is trained on moved, in spreads: the distance, times the share of
            episodes that it is about; ranks the sentences.
    """

    about: str
    sentence: str
    distance: Estimate
    moved: float

    def line(self) -> str:
        """The sentence with its distance."""
        d = self.distance
        return f"{self.sentence}: {d.value:.1f} spreads [{d.low:.1f}, {d.high:.1f}]."

    def to_json(self) -> dict[str, Any]:
        """As `--json` prints it."""
        d = self.distance
        return {
            "about": self.about, "sentence": self.sentence, "moved": self.moved,
            "distance": d.value, "low": d.low, "high": d.high,
        }  # fmt: skip


@dataclass(frozen=True)
class SetComparison:
    """Two versions of a training set; `differences` with the largest first."""

    before: str
    after: str
    counts: tuple[int, int, int]
    """Episodes that both hold, that only the first and only the second does."""
    differences: tuple[SetDifference, ...]
    compared: int
    why_not: str = ""

    def lines(self) -> list[str]:
        """As printed."""
        both, old, new = self.counts
        lines = [
            f"From {self.before} ({both + old} episodes) to {self.after} ({both + new}): {both} "
            f"are the same, {old} are only in the first, {new} only in the second."
        ]
        if self.why_not:
            return [*lines, self.why_not]
        shown = self.differences[:SHOWN]
        lines += [f"{n}. {d.line()}" for n, d in enumerate(shown, 1)]
        if more := self.differences[SHOWN:]:
            lines.append(f"And {len(more)} more, with --json: {', '.join(d.about for d in more)}.")
        alike = self.compared - len(self.differences)
        lines.append(f"{alike} of {self.compared} quantities of content don't differ clearly.")
        if shown:
            lines.append("None of this is called a cause. To test one: train with and without the "
                         "episodes that differ, then set both policies against each other: gaploop "
                         "gate")  # fmt: skip
        return lines

    def to_json(self) -> dict[str, Any]:
        """As `--json` prints it."""
        same, old, new = self.counts
        return {
            "before": self.before, "after": self.after, "same": same, "only_before": old,
            "only_after": new, "compared": self.compared, "why_not": self.why_not,
            "differences": [d.to_json() for d in self.differences],
        }  # fmt: skip


def contents(
    name: str,
    recording: MotionRecording,
    looks: Sequence[CameraLook],
    report: AbsoluteReport,
    only: Sequence[int] | None = None,
) -> SetContents:
    """Return what a dataset's episodes hold; `only` some of them, where a checkpoint says so."""
    held = SetContents(name)
    chosen = [e for e in recording.episodes if only is None or e.index in set(only)]
    closes = {
        k: joint_fits.closing(recording, k) for k, j in enumerate(recording.joints) if j.is_grip
    }
    for e in chosen:
        together = np.concatenate([e.command, e.reading], axis=1).astype(np.float32)
        held.keys[e.index] = hashlib.blake2b(together.tobytes(), digest_size=16).digest()
        for what, unit, value in _motion(recording, e, closes):
            held.put(what, unit, e.index, value)
    for look in looks:
        starts = {e: x for e, x in look.starts.items() if e in held.keys}
        held.pictures[look.name] = starts
        for index, picture in starts.items():
            red, green, blue = (picture.reshape(-1, 3).mean(axis=0) + 1.0).tolist()
            for what, unit, value in (
                ("brightness", "of 255", picture.mean()),
                ("contrast", "of 255", picture.mean(axis=2).std()),
                ("red over green", "", red / green),
                ("blue over green", "", blue / green),
            ):
                held.put(f"{what} of {look.name}", unit, index, float(value))
    for entry in layout.episode_rows(recording.info.root):
        index = int(entry["episode_index"])
        told = {"task": (entry.get("tasks") or [""])[0]}
        told |= {word: entry.get(f"gap_{word}") for word in WORDS}
        for word, value in told.items():
            if value and index in held.keys:
                held.words.setdefault(word, {})[index] = str(value)
    flags = report.flags()
    every = {flag for own in flags.values() for flag in own}
    for kind in sorted(flag for flag in every if flag.partition(":")[0] in OF_EPISODES):
        held.words[f"shows {kind}"] = {
            e: "yes" if kind in flags.get(str(e), []) else "no" for e in held.keys
        }
    return held


def _motion(
    recording: MotionRecording, e: Episode, closes: Mapping[int, float]
) -> Iterator[tuple[str, str, float]]:
    """Yield an episode's quantities of motion: what, unit, value."""
    fps, unit = recording.info.fps, recording.unit or "units"
    yield "length", "s", len(e.reading) / fps
    moments = {"at the start": 0, "at the end": len(e.reading) - 1}
    for k, sign in closes.items():
        moments |= _gripping(e, k, sign, fps)
    for when, row in moments.items():
        for k in recording.arm:
            yield f"{recording.joints[k].name} {when}", unit, float(e.reading[row, k])
        if not when.startswith("at the"):
            yield f"time {when}", "s", row / fps
    speed = np.linalg.norm(np.diff(e.reading[:, recording.arm], axis=0), axis=1) * fps
    if (moves := speed > MOVES_DEG_S).any():
        yield "speed of the arm", f"{unit}/s", float(np.median(speed[moves]))
    if len(speed):
        yield "share of time at rest", "", float(1 - moves.mean())


def _gripping(e: Episode, k: int, sign: float, fps: float) -> dict[str, int]:
    """Return the rows at which a gripper has first closed, and last begins to open."""
    u = sign * e.command[:, k]
    span = max(2, round(fps))
    if len(u) <= span:
        return {}
    change = u[span:] - u[:-span]
    closes, opens = np.flatnonzero(change < -GRIPS_PCT), np.flatnonzero(change > GRIPS_PCT)
    found = dict[str, int]()
    if len(closes):
        found["of the first grasp"] = int(closes[0]) + span
    if len(opens) and len(closes) and opens[-1] > closes[0]:
        found["of the last release"] = int(opens[-1])
    return found


def compare(before: SetContents, after: SetContents) -> SetComparison:
    """Compare two training sets: episodes that only one holds, or one's own with the rest."""
    keys = {key: e for e, key in before.keys.items()}
    same = {e for e, key in after.keys.items() if key in keys}
    kept = {keys[after.keys[e]] for e in same}
    old, new = set(before.keys) - kept, set(after.keys) - same
    counts = len(same), len(old), len(new)
    first, second = old or kept, new or same
    why = ""
    if not before.keys and not after.keys:
        why = "Neither has joints to compare."
    elif not old and not new:
        why = "They hold the same episodes."
    elif min(len(first), len(second)) < FEWEST:
        why = f"Fewer than {FEWEST} episodes on one side: too few to compare."
    if why:
        return SetComparison(before.name, after.name, counts, (), 0, why)
    share = max(len(new) / len(after.keys), len(old) / len(before.keys))
    sides = ((before, first), (after, second))
    for camera in set(before.pictures) & set(after.pictures):
        _scenes(sides, camera)
    pairs = [
        (what, [np.array([v for e, v in held.numbers[what].items() if e in chosen])
                for held, chosen in sides])
        for what in before.numbers if what in after.numbers
    ]  # fmt: skip
    pairs = [(what, both) for what, both in pairs if min(map(len, both)) >= FEWEST]
    words = list(_words(before, after, first, second))
    total = 2 * len(pairs) + len(words)
    confidence = 1.0 - 0.05 / max(total, 1)
    found = list[SetDifference]()
    for what, (a, b) in pairs:
        found += _differs(what, after.units[what], a, b, share, confidence)
    for what, word, had, have in words:
        p, q = (rate(sum(x), len(x), confidence) for x in (had, have))
        mixed = (sum(had) + sum(have)) / (len(had) + len(have))
        spread, step = max((mixed * (1 - mixed)) ** 0.5, 0.1), q.value - p.value
        low = float(step - np.hypot(q.value - q.low, p.high - p.value)) / spread
        high = float(step + np.hypot(q.high - q.value, p.value - p.low)) / spread
        size = Estimate(step / spread, low, high)
        if _is_clear(size):
            named = what if word == "yes" else f'{what} "{word}"'
            text = f"{named} in {p.value:.0%} of episodes before, {q.value:.0%} now"
            found.append(SetDifference(named, text, size, abs(size.value) * share))
    found.sort(key=lambda difference: -difference.moved)
    return SetComparison(before.name, after.name, counts, tuple(found), total)


def _is_clear(distance: Estimate) -> bool:
    return distance.excludes_zero and min(abs(distance.low), abs(distance.high)) > NEAR


def _differs(
    what: str, unit: str, a: FloatArray, b: FloatArray, share: float, confidence: float
) -> Iterator[SetDifference]:
    """Yield whether two sets' values lie apart, or else whether they are spread differently."""
    z, n, m = NormalDist().inv_cdf(0.5 + confidence / 2), len(a), len(b)
    for about, x, y, of in (
        (what, a, b, np.mean),
        (f"spread of {what}", np.abs(a - np.median(a)), np.abs(b - np.median(b)),
         lambda v: v.std(ddof=1)),
    ):  # fmt: skip
        spread = np.sqrt(((n - 1) * x.var(ddof=1) + (m - 1) * y.var(ddof=1)) / (n + m - 2))
        d = float((y.mean() - x.mean()) / max(float(spread), LEAST.get(unit, 0.5)))
        d *= 1 - 3 / (4 * (n + m) - 9)  # Hedges' correction of few episodes
        half = z * float(np.sqrt(1 / n + 1 / m + d * d / (2 * (n + m))))
        if _is_clear(size := Estimate(d, d - half, d + half)):
            was, now = (f"{of(v):.3g} {unit}".strip().replace(" °", "°") for v in (a, b))
            yield SetDifference(about, f"{about}: {was} before, {now} now", size, abs(d) * share)
            return


def _scenes(sides: Sequence[tuple[SetContents, set[int]]], camera: str) -> None:
    """Add how far each first picture is from the first set's usual one, brightness aside."""
    first, chosen = sides[0]
    usual = [p for e, p in first.pictures[camera].items() if e in chosen]
    for held, chosen in sides if len(usual) >= FEWEST else ():
        for e, picture in held.pictures[camera].items():
            if e in chosen:
                middle = np.median([p for p in usual if p is not picture], axis=0)
                gain = float(np.median((picture + 4) / (middle + 4)))
                away = float(np.abs(picture - gain * middle).mean())
                held.put(f"scene of {camera}", "of 255", e, away)


def _words(
    before: SetContents, after: SetContents, first: set[int], second: set[int]
) -> Iterator[tuple[str, str, list[bool], list[bool]]]:
    """Yield each word of each kind, and which episodes of both sets have it."""
    for what in {**before.words, **after.words}:
        sides: list[Mapping[int, str]] = [before.words.get(what, {}), after.words.get(what, {})]
        if what.startswith("shows "):
            sides = [s or dict.fromkeys(held.keys, "no") for s, held in
                     zip(sides, (before, after), strict=True)]  # fmt: skip
        values = [[v for e, v in s.items() if e in chosen] for s, chosen in
                  zip(sides, (first, second), strict=True)]  # fmt: skip
        if min(map(len, values)) < FEWEST:
            continue
        for word in sorted({*values[0], *values[1]} - {"no"}):
            yield what, word, [v == word for v in values[0]], [v == word for v in values[1]]
