"""Figures of an episode: the same numbers of every take, of any arm.

Of its joints, gripper, motor loads and cameras, whatever became of it: how far each joint goes,
where the gripper closes and opens, what the pictures look like.
"""

import contextlib
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Final

import cv2
import numpy as np

from gaploop.core.messages import FloatArray, Image
from gaploop.core.station import Interval
from gaploop.core.take import Take
from gaploop.core.vocabulary import FailureMode, GapDimension
from gaploop.failure_analysis.modes import ModeCall, failure_mode
from gaploop.failure_analysis.signals.grip import pressing
from gaploop.failure_analysis.signals.motion import STILL_RAD_S
from gaploop.failure_analysis.signals.registry import MissingChannelError, measure, registry
from gaploop.failure_analysis.views.handled import Handled, gripper_map, handled, spots
from gaploop.failure_analysis.views.phases import Grasp, carry_deg, grasps
from gaploop.failure_analysis.views.pictures import photometry, squared
from gaploop.failure_analysis.views.view import MOVING_RAD_S, ArmMotion, TakeView, runs

D, M = GapDimension, FailureMode
PICTURES: Final = (0, 10, 20, 40)
"""Pictures looked at, by their number in the episode."""
STEADY_S: Final = 0.5
"""Over which commands and readings are averaged before they are asked how far they go: more than a
swing of a joint that shakes."""
TRAVELS_RAD: Final = math.radians(8.0)
"""A joint that is told to move less than this says nothing about how far it goes."""
FEWEST_RESTS: Final = 5
"""Rows at rest, from which on an offset is taken from them: a late joint is off as it moves."""
LASTS: Final = 0.25
"""Share of an offset that is there in the first third of an attempt, too."""
STUCK: Final = 0.2
"""Share of what it is told to travel, below which a gripper is stuck, and not at what it holds."""
FOLLOWED_S: Final = 0.3
"""Over so long an arm is asked to keep up with its commands."""


@dataclass(frozen=True)
class FigureKind:
    """One kind of number that every take of a set has.

    Attributes:
        sentence: with `{about}`, a joint or camera, and `{value}`.
        unit: as people read it, with a space where one belongs.
        floor: the difference of two takes that means nothing.
        dimension: what it is direct evidence for; None if several causes may bring it about.
        mode: the failure mode that it shows, if it is one of how the attempt went.
        side: +1 or -1 if only more or less of it is a fault.
        by_policy: whoever drives another way has it otherwise.
    """

    sentence: str
    unit: str
    floor: float
    dimension: GapDimension | None = None
    mode: FailureMode | None = None
    side: int = 0
    by_policy: bool = True

    def show(self, value: float) -> str:
        """Return a value as people read it."""
        return f"{value:.0f}{self.unit}" if abs(value) >= 100 else f"{value:.3g}{self.unit}"


FIGURES: Final[Mapping[str, FigureKind]] = {
    "offset": FigureKind(
        "{about} stands {value} off its command", "°", 0.5, D.SPATIAL_GEOMETRY, by_policy=False
    ),
    "start": FigureKind("{about} starts at {value}", "°", 0.5, D.SPATIAL_GEOMETRY),
    "travel": FigureKind(
        "{about} moves by {value} of what it is told", " %", 5.0, D.ACTUATOR_RESPONSE, side=-1,
        by_policy=False,
    ),
    "never": FigureKind("the joints travel {value} in all", "°", 20.0, mode=M.FROZEN, side=-1),
    "duration": FigureKind("the attempt runs for {value}", " s", 0.5, mode=M.TIMEOUT, side=1),
    "closings": FigureKind("the gripper closes {value} times", "", 0.5, mode=M.TIMEOUT, side=-1),
    "close": FigureKind(
        "the gripper closes with {about} at {value}", "°", 1.0, mode=M.MISSED_GRASP
    ),
    "close_far": FigureKind(
        "the gripper closes {value} from where it closes in the most similar episodes", "°", 1.0,
        mode=M.MISSED_GRASP, side=1,
    ),
    "held": FigureKind(
        "something holds the jaws open for {value} of the closing", " %", 10.0,
        mode=M.MISSED_GRASP, side=-1,
    ),
    "carried": FigureKind(
        "the gripper opens {value} after it closed", " s", 0.3, mode=M.SLIP, side=-1
    ),
    "open": FigureKind("the gripper opens with {about} at {value}", "°", 1.0, mode=M.MISPLACEMENT),
    "open_far": FigureKind(
        "the gripper opens {value} from where it opens in the most similar episodes", "°", 1.0,
        mode=M.MISPLACEMENT, side=1,
    ),
    "taken": FigureKind(
        "{about}: where the gripper closes, {value} of the spot is taken away", " %", 5.0,
        mode=M.MISSED_GRASP, side=-1,
    ),
    "put": FigureKind(
        "{about}: where the gripper opens, {value} of the spot has something new", " %", 5.0,
        mode=M.SLIP, side=-1,
    ),
    "end": FigureKind("the attempt ends with {about} at {value}", "°", 1.0),
    "mode": FigureKind("{about} is seen in {value} of the episodes", " %", 1.0, side=1),
    **{
        name: FigureKind(
            f"{{about}}: {sentence}", unit, floor, D.VISUAL_DOMAIN, side=side, by_policy=False
        )
        for name, sentence, unit, floor, side in (
            ("brightness", "the median grey is {value} of 255", "", 4.0, 0),
            ("contrast", "grey levels spread by {value}", "", 2.0, 0),
            ("saturation", "the median saturation is {value} of 255", "", 5.0, 0),
            ("cast_red", "red stands at {value} (log) to green", "", 0.02, 0),
            ("cast_blue", "blue stands at {value} (log) to green", "", 0.03, 0),
            ("sharpness", "edges are {value} times as strong as the contrast", "", 0.06, 0),
            ("corners", "corners are {value} times as bright as the middle", "", 0.03, 0),
            ("covered", "{value} of the picture is dark and without detail", " %", 2.0, 1),
        )
    },
}  # fmt: skip
"""Kinds of figures by what their names begin with; `close:elbow` is of the elbow."""
SIGNALS: Final[Mapping[str, tuple[GapDimension | None, FailureMode | None, int, bool]]] = {
    "lag_s": (D.ACTUATOR_RESPONSE, None, 1, False),
    "backlash_rad": (D.ACTUATOR_RESPONSE, None, 1, False),
    "speed_gain": (D.ACTUATOR_RESPONSE, None, -1, False),
    "oscillation_rad": (None, M.OSCILLATION, 1, True),
    "jitter_rad": (D.SENSOR_NOISE, None, 1, False),
    "quantum_rad": (D.SENSOR_NOISE, None, 1, False),
    "repeat_share": (D.SENSOR_NOISE, None, 1, False),
    "dropout_share": (D.SENSOR_NOISE, None, 1, False),
    "standstill_s": (None, M.FROZEN, 1, True),
    "lost_count": (None, M.SLIP, 1, True),
    "carry_current_a": (D.OBJECT_PROPERTY, None, 1, True),
    "effort_a": (None, M.OBSTRUCTION, 1, True),
    "peak_current_a": (None, M.OBSTRUCTION, 1, True),
    "load_peak_pct": (None, M.OBSTRUCTION, 1, True),
    "force_peak_n": (None, M.COLLISION, 1, True),
    "approach_force_n": (None, M.COLLISION, 1, True),
    "place_force_n": (None, None, 1, True),
    "carry_force_n": (D.OBJECT_PROPERTY, None, 1, True),
    "touch_onset_s": (None, None, 0, True),
    "touch_slope": (None, None, 0, True),
    "touch_share": (None, M.SLIP, -1, True),
    "touch_release_s": (None, None, 1, True),
}
"""Signals that mean the same on any arm: dimension, mode, side, and whether the driver matters."""


def figure_of(name: str) -> FigureKind:
    """Return the kind of a figure by its name."""
    kind = name.partition(":")[0]
    if kind in FIGURES:
        return FIGURES[kind]
    spec, (dimension, mode, side, by_policy) = registry()[kind], SIGNALS[kind]
    return FigureKind(spec.sentence, "", spec.floor, dimension, mode, side, by_policy)


def words_of(name: str, value: float) -> tuple[str, str]:
    """Return the sentence about a figure's value, and the value alone."""
    kind, _, about = name.partition(":")
    if kind not in FIGURES:
        spec = registry()[kind]
        by = f" (by the {about.replace('_', ' ')})" if about else ""
        return spec.describe(value) + by, spec.show(value)
    shown = FIGURES[kind].show(value)
    return FIGURES[kind].sentence.format(about=about.replace("_", " "), value=shown), shown


@dataclass(frozen=True)
class TakeFigures:
    """One take's figures by name, and when in it they were read [s].

    `handled` is what each fixed camera saw of the gripper; `places` where it closed and opened
    there [px], once that is known; `row_s` the time from one row of joints to the next [s];
    `carry_deg` the arm's way from closing to opening, as of `views.phases.carry_deg`.
    """

    values: Mapping[str, float]
    at_s: Mapping[str, float]
    mode: ModeCall
    handled: Mapping[str, Handled] = field(default_factory=dict)
    places: Mapping[str, tuple[FloatArray, FloatArray]] = field(default_factory=dict)
    row_s: float = 0.0
    carry_deg: FloatArray = field(default_factory=lambda: np.empty((0, 0)))


def figures_of(
    take: Take, images: bool = True, object_hue_deg: Interval | None = None
) -> TakeFigures:
    """Return the figures of a take, whatever its outcome; see `with_pictures`, `handled`."""
    view = TakeView(take, images=False)
    motion, measured = view.motion, measure(view)
    values = {name: measured[name] for name in SIGNALS}
    if view.touch is None:  # the gripper's own current stands for it
        with contextlib.suppress(MissingChannelError):
            values |= pressing(view)
    if motion is not None:
        values["speed_gain"] = _speed_reached(motion)
    at_s = dict[str, float]()
    values["duration"] = take.duration_s
    call = failure_mode(view, measured)
    # All that a take shows: an attempt that went on to hold something recovered from it, and it is
    # no less usual for that. Every success lets go, and ends.
    for mode in sorted(call.seen.keys() - {M.TIMEOUT, M.MISPLACEMENT}):
        values[f"mode:{mode}"] = 100.0
    grasp = _joints(motion, values, at_s) if motion is not None else None
    if grasp is not None and grasp.held:  # what closed on nothing later, or before, isn't why
        values.pop(f"mode:{M.MISSED_GRASP}", None)
    carried: FloatArray = np.empty((0, 0))
    seen_handled = dict[str, Handled]()
    if motion is not None and grasp is not None and grasp.released:
        carried = carry_deg(motion, grasp)
    for camera in sorted(take.cameras) if images else ():
        if motion is not None and grasp is not None and grasp.released:
            of_camera = handled(take, camera, motion, grasp.close_s, grasp.open_s, object_hue_deg)
            seen_handled |= {camera: of_camera} if of_camera is not None else {}
        seen = [p for n, p in zip(range(PICTURES[-1] + 1), take.cameras[camera](), strict=False)
                if n in PICTURES]  # fmt: skip
        if seen:
            small = [squared(p) for p in seen]
            values |= {f"{k}:{camera}": v for k, v in photometry(small).items() if k in FIGURES}
            values[f"covered:{camera}"] = 100.0 * float(np.median([_covered(p) for p in small]))
    row_s = 1.0 / motion.rate_hz if motion is not None else 0.0
    return TakeFigures(values, at_s, call, seen_handled, row_s=row_s, carry_deg=carried)


def with_pictures(rows: Sequence[TakeFigures]) -> list[TakeFigures]:
    """Add what goes with the gripper and what it leaves behind, by fixed camera.

    Where in the picture it closes and opens follows from all takes together, whatever became of
    them.
    """
    values = [dict(row.values) for row in rows]
    places = [dict[str, tuple[FloatArray, FloatArray]]() for _ in rows]
    for camera in sorted({name for row in rows for name in row.handled}):
        found = gripper_map([row.handled[camera] for row in rows if camera in row.handled])
        for row, own, there in zip(rows, values, places, strict=True):
            if found is not None and (seen := row.handled.get(camera)) is not None:
                closes, opens = found.at(seen.closes), found.at(seen.opens)
                taken, put = spots(seen, closes, opens)
                own |= {f"taken:{camera}": 100.0 * taken, f"put:{camera}": 100.0 * put}
                there[camera] = closes, opens
    return [replace(r, values=v, places=p) for r, v, p in zip(rows, values, places, strict=True)]


def _joints(motion: ArmMotion, values: dict[str, float], at_s: dict[str, float]) -> Grasp | None:
    """Add what each joint does, and where they are when the gripper closes and opens.

    Returns the closing that counts.
    """
    read, sent = np.degrees(motion.position_rad), motion.sent_rad
    off = np.degrees(motion.residual_rad)
    # No arm goes as far as it is told where commands shake.
    rows = min(max(1, round(STEADY_S * motion.rate_hz)), len(read))
    steady = np.lib.stride_tricks.sliding_window_view
    went_deg, told_rad = (np.ptp(steady(x, rows, 0).mean(axis=-1), axis=0) for x in (read, sent))
    for k, joint in enumerate(motion.joints):
        told = float(told_rad[k])
        if told > TRAVELS_RAD:
            went = float(went_deg[k]) / math.degrees(told)
            # Jaws stop at what they hold, however wide it is: only such as hardly move are stuck.
            held_up = k not in motion.arm_joints and went >= STUCK
            values[f"travel:{joint}"] = 100.0 * (1.0 if held_up else went)
        if k in motion.arm_joints:
            # What isn't off from the beginning is pushed, later.
            begins, rests = off[: len(off) // 3, k], motion.slow[: len(off) // 3, k]
            middle = float(np.median(off[:, k]))
            first = float(np.median(begins[rests] if rests.sum() >= FEWEST_RESTS else begins))
            lasts = first * middle >= LASTS * middle**2
            values[f"offset:{joint}"] = middle if lasts else 0.0
            values[f"start:{joint}"] = float(np.median(read[:3, k]))
            values[f"end:{joint}"] = float(np.median(read[-3:, k]))
    values["never"] = float(np.abs(np.diff(read, axis=0)).sum())
    still = runs(np.asarray((np.abs(motion.velocity_rad_s) <= STILL_RAD_S).all(axis=1)))
    if len(still[0]):
        at_s["standstill_s"] = float(motion.t_s[still[0][np.argmax(still[1] - still[0])]])
    at_s |= dict.fromkeys(("end", "duration"), float(motion.t_s[-1]))
    closings = grasps(motion)
    if not motion.grippers:
        return None
    values["closings"] = float(len(closings))
    if not closings:
        return None
    grasp = next((g for g in closings if g.held), closings[0])
    until_s = grasp.gone_s
    values["carried"] = until_s - grasp.close_s
    values["held"] = 100.0 * float(grasp.held) * (until_s - grasp.close_s) / max(
        grasp.open_s - grasp.close_s, 1e-3
    )  # fmt: skip
    for what, when_s in (("close", grasp.close_s), ("open", until_s)):
        if what == "open" and not grasp.released:
            continue
        row = int(np.searchsorted(motion.t_s, when_s).clip(0, len(motion.t_s) - 1))
        for k in motion.arm_joints:
            values[f"{what}:{motion.joints[k]}"] = float(read[row, k])
        at_s[what] = when_s
    at_s |= {"taken": grasp.close_s, "put": grasp.open_s, "carried": until_s}
    at_s["held"] = until_s if grasp.held else grasp.close_s
    return grasp


def _speed_reached(motion: ArmMotion) -> float:
    """Return `speed_gain` over `FOLLOWED_S`, where a joint is told to go fast; 1 if it keeps up.

    No arm follows commands that jump, as chunks' do, and one that swings to where an attempt begins
    is told nothing.
    """
    rows = max(1, round(FOLLOWED_S * motion.rate_hz))
    late = 0 if math.isnan(motion.lag_samples) else round(motion.lag_samples)
    n = len(motion.t_s) - rows - late
    if n < 1:
        return math.nan
    asked, done = (
        np.abs(x[rows:] - x[:-rows])[:, motion.arm_joints]
        for x in (motion.sent_rad, motion.position_rad)
    )
    asked, done = asked[:n], done[late : late + n]
    most = np.percentile(asked, 99, axis=0)
    drives = most > max(MOVING_RAD_S * FOLLOWED_S, 0.5 * float(most.max(initial=0.0)))
    reached = [
        float(np.median(done[fast, k] / asked[fast, k]))
        for k in np.flatnonzero(drives)
        if (fast := asked[:, k] > 0.5 * most[k]).any()
    ]
    return min(1.0, float(np.median(reached))) if reached else math.nan


def _covered(picture: Image) -> float:
    """Return the share of a picture's cells that are dark and have no detail."""
    grey = cv2.cvtColor(picture, cv2.COLOR_RGB2GRAY).astype(np.float64)
    cells = grey.reshape(16, grey.shape[0] // 16, 16, -1)
    return float(((cells.std(axis=(1, 3)) < 2.0) & (cells.mean(axis=(1, 3)) < 40.0)).mean())
