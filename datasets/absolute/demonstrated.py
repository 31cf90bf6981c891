"""What rollouts, or other episodes, show that a policy's training set never showed.

Distances are to the nearest row of any demonstration, in spreads of each joint (levels of small
pictures); how far is far, demonstrations say among themselves: each against the others.
"""

import itertools
import shlex
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import cv2
import numpy as np
from numpy.typing import NDArray

from gaploop.core.grippers import is_grip
from gaploop.core.messages import FloatArray
from gaploop.core.statistics import Estimate
from gaploop.datasets.absolute.findings import AbsoluteReport
from gaploop.datasets.absolute.recording import evenly
from gaploop.datasets.columns import ACTION, IMAGES, STATE
from gaploop.datasets.lerobot_read import pictures_at
from gaploop.datasets.v3_files import FrameTable, load_frames

LEAST: Final = 8
"""Demonstrations; fewer don't tell how far they lie apart."""
MOST: Final = 40
ROWS: Final = 60
"""Rows of each episode that are looked at."""
SUSTAINED: Final = 3
"""Rows in turn that are far: one may be a slip."""
MARGIN: Final = 1.5
"""Times as far as any demonstration from the others."""
ODD: Final = 2
"""Rollouts; one of more may be odd as one in twenty demonstrations of a person is."""
START_MARGIN: Final = 0.5
"""Share of the range of demonstrated poses beyond which one lies outside."""
GRIPS: Final = 0.3
"""Of its travel: a gripper that goes so far within a second closes, or opens."""
VIEWS: Final = 5
"""Pictures of each episode that are looked at, the first among them."""
SEEN: Final = 24
"""Episodes of which pictures are looked at."""
THUMB: Final = (48, 36)
COARSE: Final = (16, 12)
CROPS: Final = (0.9, 0.8, 0.7, 0.6, 0.5)
UNDONE: Final = 0.6
"""Of the distance between the usual first pictures: what undoes a mistake leaves less."""
RESAMPLED: Final = 40
AGREE: Final = 0.75
"""Share of episodes in which it must."""


type Images = NDArray[np.uint8]
type Views = dict[int, Images]
"""Small pictures of some episodes, each of shape (views, height, width, 3)."""


class DemonstratedTests:
    """Tests of episodes against their policy's training set.

    Args:
        training: folder of the demonstrations.
        rollouts: actions and readings of the episodes.
    """

    def __init__(self, training: Path, rollouts: FrameTable, report: AbsoluteReport) -> None:
        self.report, self.rollouts = report, rollouts
        self.shown = load_frames(training, [STATE, ACTION])
        self.names = [n.removesuffix(".pos") for n in rollouts.info.names(STATE)]
        self.root, self.training = shlex.quote(str(rollouts.info.root)), shlex.quote(str(training))
        columns = (np.asarray(t.columns[STATE], np.float64) for t in (self.shown, rollouts))
        self._shown, self._rolled = columns

    def run(self, *, demonstrations: bool) -> None:
        """Run all tests; of demonstrations, which may go elsewhere, only those of the cameras."""
        if self._shown.shape[1] != self._rolled.shape[1]:
            self.report.untested["rollouts against demonstrations"] = "their joints differ"
        elif len(self.shown.episodes) < LEAST:
            self.report.untested["rollouts against demonstrations"] = (
                f"{len(self.shown.episodes)} demonstrations are too few"
            )
        else:
            before = len(self.report.findings), len(self.report.untested)
            if not demonstrations:
                self._poses()
                self._states()
            self._views(demonstrations)
            after = len(self.report.findings), len(self.report.untested)
            if after == before and not demonstrations:
                self.report.good["demonstrated"] = (
                    f"rollouts begin and stay where the {len(self.shown.episodes)} "
                    "demonstrations went"
                )

    def _say(
        self, kind: str, about: str, sentence: str, found: Mapping[int, float], unit: str,
        apart: str, command: str, cost: float,
    ) -> None:  # fmt: skip
        if len(found) < ODD and len(self.rollouts.episodes) > 2 * ODD:
            (odd,) = found
            self.report.untested[f"episode {odd}"] = f"the only one of {kind}, as any may be"
            return
        worst = min(found, key=lambda e: found[e]) if unit == "s" else None  # the earliest
        self.report.add(
            kind, about, sentence, found, len(self.rollouts.episodes), command, cost, unit=unit,
            apart=apart, worst=worst,
        )  # fmt: skip

    # Joints

    def _poses(self) -> None:
        """Find rollouts that begin, or first use the gripper, outside all demonstrated poses."""
        began = set[int]()
        for kind, pose_of, does, fix in (
            ("start_outside", self._starts, "begin outside all demonstrated starts",
             "Begin where demonstrations do, or record some from there"),
            ("grasp_outside", self._grasps, "first use the gripper where no demonstration did",
             "Put the object where demonstrations had it, or record some with it there"),
        ):  # fmt: skip
            shown = pose_of(self.shown, self._shown)
            if len(shown) < LEAST:
                continue
            reach = np.maximum(np.ptp(self._shown, axis=0), 1e-9)
            low, high = (f(list(shown.values()), axis=0) for f in (np.min, np.max))
            room = START_MARGIN * (high - low) + 0.05 * reach
            out: dict[int, tuple[int, float]] = {}
            for index, pose in pose_of(self.rollouts, self._rolled).items():
                off = np.maximum(low - room - pose, pose - high - room) / reach
                if off.max() > 0 and index not in began:
                    k = int(off.argmax())
                    out[index] = k, float(pose[k] - (low[k] if pose[k] < low[k] else high[k]))
            began |= set(out)
            if out:
                joint = Counter(k for k, _ in out.values()).most_common(1)[0][0]
                self._say(
                    kind, self.names[joint], f"Rollouts {does}: {self.names[joint]} is beyond "
                    "them by", {e: v for e, (k, v) in out.items() if k == joint}, "units",
                    "another zero or calibration", fix, 40.0,
                )  # fmt: skip

    def _starts(self, table: FrameTable, state: FloatArray) -> dict[int, FloatArray]:
        return {e: rows[0] for e, rows in self._rows(table, state).items()}

    def _grasps(self, table: FrameTable, state: FloatArray) -> dict[int, FloatArray]:
        """Return each episode's pose where its gripper is first sent far within a second."""
        found = dict[int, FloatArray]()
        hand = next((k for k, n in enumerate(table.info.names(ACTION)) if is_grip(n)), None)
        if hand is None:
            return found
        sent = np.asarray(table.columns[ACTION], np.float64)[:, hand]
        span, travel = round(table.info.fps), float(np.ptp(sent))
        for one in table.episodes:
            rows = table.rows_of(one.index)
            far = np.abs(sent[rows][span:] - sent[rows][:-span]) > GRIPS * travel
            if far.any():
                found[one.index] = state[rows][int(far.argmax()) + span]
        return found

    def _rows(self, table: FrameTable, values: FloatArray) -> dict[int, FloatArray]:
        found = {}
        for one in table.episodes:
            own = values[table.rows_of(one.index)]
            if len(own):
                found[one.index] = own[evenly(len(own), ROWS)]
        return found

    def _states(self) -> None:
        scale = np.maximum(self._shown.std(axis=0), 0.02 * np.ptp(self._shown, axis=0) + 1e-9)
        shown = {e: r / scale for e, r in self._rows(self.shown, self._shown).items()}
        rolled = {e: r / scale for e, r in self._rows(self.rollouts, self._rolled).items()}
        left = _left(shown, rolled)
        if not left:
            return
        joints = Counter(int(np.abs(rolled[e][k] - near).argmax()) for e, (k, near) in left.items())
        joint = self.names[joints.most_common(1)[0][0]]
        lengths, fps = {e.index: e.length for e in self.rollouts.episodes}, self.rollouts.info.fps
        times = {e: k * max(1.0, (lengths[e] - 1) / (ROWS - 1)) / fps for e, (k, _) in left.items()}
        self._say(
            "left_demonstrations", joint, "Rollouts go where no demonstration went, most in "
            f"{joint}, after", times, "s", "cause and effect: a policy that is lost leaves them, "
            "too", f"Look there: gaploop review {self.root}; record corrections from there", 30.0,
        )  # fmt: skip

    # Cameras

    def _views(self, demonstrations: bool) -> None:
        """Find cameras that show what they never did, or that were changed in a way that shows."""
        keys = [k for k in self.rollouts.info.picture_keys if k in self.shown.info.picture_keys]
        known = {k: self._thumbs(self.shown, k) for k in keys}
        now = {k: self._thumbs(self.rollouts, k) for k in keys}
        for key in keys:
            if len(known[key]) < LEAST or not now[key] or self._changed(key, known, now):
                continue
            if demonstrations:
                continue
            name = key.removeprefix(IMAGES)
            shown, rolled = ({e: _flat(x, COARSE) for e, x in s[key].items()} for s in (known, now))
            left = _left(shown, rolled)
            if len(left) > 0.5 * len(rolled):
                bank = np.concatenate(list(shown.values()))
                self._say(
                    "unfamiliar_view", name, f"Camera {name} shows what it never did in the "
                    "demonstrations: the nearest of their pictures differs in mean by",
                    {e: float(_nearest(rolled[e], bank)[0].mean()) for e in left}, "levels",
                    "light, a moved camera, another object or background",
                    f"Look at both: gaploop review {self.root}, gaploop review {self.training}",
                    35.0,
                )  # fmt: skip
                continue
            self._scenes(name, known[key], now[key])

    def _thumbs(self, table: FrameTable, key: str) -> Views:
        found = {}
        for one in (table.episodes[k] for k in evenly(len(table.episodes), SEEN)):
            rows = evenly(one.length, VIEWS)
            shown = pictures_at(table.info, one, key, rows)
            small = [cv2.resize(shown[r], THUMB, interpolation=cv2.INTER_AREA) for r in rows]
            found[one.index] = np.asarray(small, np.uint8)
        return found

    def _changed(self, key: str, known: Mapping[str, Views], now: Mapping[str, Views]) -> bool:
        """Say whether the usual first picture is another camera's, or cut, or has other colours."""
        name = key.removeprefix(IMAGES)
        usual = {k: np.median([p[0] for p in v.values()], axis=0) for k, v in known.items() if v}
        firsts = {e: p[0].astype(np.float64) for e, p in now[key].items()}
        here = np.median(list(firsts.values()), axis=0)
        straight = _apart(here, usual[key])
        best = min(_changes(key, usual), key=lambda change: change.away(here))
        closer = [p for p in firsts.values() if best.away(p) < _apart(p, usual[key])]
        rng, shown = np.random.default_rng(0), [p[0] for p in known[key].values()]
        drawn = [_drawn(shown, len(firsts), rng) for _ in range(RESAMPLED)]
        chance = float(np.median([_apart(p, usual[key]) for p in drawn]))
        # Cutting away what is new in the scene brings it closer, too, but not as close as chance.
        if (
            best.away(here) > min(UNDONE * straight, 2 * chance)
            or straight < 2 * chance
            or len(closer) < AGREE * len(firsts)
        ):
            return False
        again = [_drawn(list(firsts.values()), len(firsts), rng) for _ in range(RESAMPLED)]
        ratios = [_apart(p, usual[key]) / max(best.away(p), 0.5) for p in again]
        low, middle, high = np.percentile(ratios, [2.5, 50, 97.5])
        self.report.add(
            best.kind, name, f"Camera {name} {best.words}: so understood, its usual first picture "
            "is closer to the demonstrations', by a factor of", list(firsts), len(firsts),
            best.fix, 125.0, size=Estimate(float(middle), float(low), float(high)),
            apart="a camera that was moved" if best.kind == "wrong_crop" else "",
        )  # fmt: skip
        return True

    def _scenes(self, name: str, known: Views, now: Views) -> None:
        """Find rollouts whose first picture is like none of the demonstrations'."""
        shown, rolled = ({e: _flat(p[:1], THUMB) for e, p in s.items()} for s in (known, now))
        every = np.concatenate(list(shown.values()))
        own = [
            float(_nearest(rows, np.delete(every, k, axis=0))[0][0])
            for k, rows in enumerate(shown.values())
        ]
        away = {e: float(_nearest(rows, every)[0][0]) for e, rows in rolled.items()}
        out = {e: d / max(float(np.median(own)), 0.5) for e, d in away.items()
               if d > MARGIN * max(own)}  # fmt: skip
        if out:
            self._say(
                "scene_outside", name, f"Rollouts begin with a scene that {name} saw in no "
                "demonstration: times as far from the nearest as these are from each other", out,
                "", "light, another object, a person in the picture",
                f"Look at both: gaploop review {self.root}, gaploop review {self.training}; record "
                "demonstrations of such scenes", 33.0,
            )  # fmt: skip


@dataclass(frozen=True)
class PictureChange:
    """What may have been done to a camera's pictures: undone, they are like `usual`."""

    kind: str
    words: str
    fix: str
    usual: FloatArray
    undo: Callable[[FloatArray], FloatArray] = lambda picture: picture

    def away(self, picture: FloatArray) -> float:
        """Return how far a picture is from what it would be [levels]."""
        return _apart(self.undo(picture), self.usual)


def _changes(key: str, usual: Mapping[str, FloatArray]) -> Iterator[PictureChange]:
    name = key.removeprefix(IMAGES)
    for other in (k for k in usual if k != key):
        to = other.removeprefix(IMAGES)
        yield PictureChange(
            "camera_order", f"shows what {to} showed in the demonstrations",
            f"Exchange {name} and {to} in --robot.cameras, or by --rename_map", usual[other],
        )  # fmt: skip
    yield PictureChange(
        "colour_order", "has red and blue exchanged", "Give pictures as RGB: OpenCV's are BGR "
        "(cv2.cvtColor, or color_mode: rgb)", usual[key], lambda p: p[..., ::-1],
    )  # fmt: skip
    fix = "Crop and resize pictures as for the policy's training"
    for share, (x, y) in itertools.product(CROPS, ((1, 1), (1, 0), (0, 1))):
        part = "the picture" if x and y else "the width" if x else "the height"
        fx, fy = share if x else 1.0, share if y else 1.0
        yield PictureChange(
            "wrong_crop", f"is cut to {share:.0%} of {part}", fix, cut_to(usual[key], fx, fy)
        )
        yield PictureChange(
            "wrong_crop", f"shows {1 / share:.2g} times as much of {part} as it did", fix,
            usual[key], lambda p, fx=fx, fy=fy: cut_to(p, fx, fy),  # type: ignore[misc]
        )  # fmt: skip


def cut_to(picture: FloatArray, x: float, y: float) -> FloatArray:
    """Cut a picture to a share of its width and height, at equal size."""
    height, width = picture.shape[:2]
    w, h = round(width * x), round(height * y)
    left, top = (width - w) // 2, (height - h) // 2
    part = picture[top : top + h, left : left + w]
    return np.asarray(cv2.resize(part, (width, height), interpolation=cv2.INTER_LINEAR))


def _drawn(pictures: Sequence[Images], n: int, rng: np.random.Generator) -> FloatArray:
    """Return the usual picture of n drawn ones."""
    return np.asarray(np.median([pictures[k] for k in rng.integers(len(pictures), size=n)], axis=0))


def _apart(a: FloatArray, b: FloatArray) -> float:
    return float(np.abs(a - b).mean())


def _flat(pictures: Images, size: tuple[int, int]) -> FloatArray:
    """Return pictures as rows whose distances are rms differences [levels]."""
    small = [cv2.resize(p, size, interpolation=cv2.INTER_AREA) for p in pictures]
    values = np.stack(small).reshape(len(small), -1).astype(np.float64)
    return np.asarray(values / values.shape[1] ** 0.5)


def _left(
    shown: Mapping[int, FloatArray], rolled: Mapping[int, FloatArray]
) -> dict[int, tuple[int, FloatArray]]:
    """Return, of each rollout that leaves, the place of the first row and the nearest known."""
    some = [list(shown)[k] for k in evenly(len(shown), MOST)]
    bank = np.concatenate([shown[e] for e in some])
    owner = np.repeat(some, [len(shown[e]) for e in some])
    reach = max(_sustained(_nearest(shown[e], bank[owner != e])[0]).max(initial=0.0) for e in some)
    left = {}
    for index, rows in rolled.items():
        away, near = _nearest(rows, bank)
        far = np.flatnonzero(_sustained(away) > MARGIN * reach)
        if len(far):
            left[index] = int(far[0]), bank[near[far[0]]]
    return left


def _nearest(rows: FloatArray, bank: FloatArray) -> tuple[FloatArray, NDArray[np.intp]]:
    """Return the distance of each row to the nearest known one, and which that is."""
    square = (rows**2).sum(1)[:, None] + (bank**2).sum(1) - 2 * rows @ bank.T
    near = square.argmin(axis=1)
    return np.sqrt(np.maximum(square[np.arange(len(rows)), near], 0.0)), near


def _sustained(away: FloatArray) -> FloatArray:
    """Return from each row on the least of `SUSTAINED` in turn."""
    if len(away) < SUSTAINED:
        return away
    least = np.lib.stride_tricks.sliding_window_view(away, SUSTAINED).min(axis=1)
    return np.asarray(least, dtype=np.float64)
