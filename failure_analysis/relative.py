"""What sets failed takes apart from takes that went well, beyond chance; nothing else is named.

Outside the embedded cell only takes of the station itself say what is usual. Each take becomes the
same figures, of its joints, gripper, motor loads and cameras. A figure is named if it separates
failures from successes better than the best of all figures does for 19 of 20 ways of dealing out
the same outcomes anew (the max-T test of Westfall and Young 1993), so that outcomes dealt at random
name anything in one set of twenty, however many figures are tried.
"""

import contextlib
import itertools
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Final

import cv2
import numpy as np
from numpy.typing import NDArray

from gaploop.core.messages import FloatArray, Image
from gaploop.core.station import Interval
from gaploop.core.take import Take
from gaploop.core.vocabulary import FailureMode, GapDimension
from gaploop.failure_analysis.modes import PRECEDENCE, SHAKE_RAD, ModeCall, failure_mode
from gaploop.failure_analysis.signals.grip import pressing
from gaploop.failure_analysis.signals.motion import STILL_RAD_S
from gaploop.failure_analysis.signals.registry import (
    Evidence,
    MissingChannelError,
    measure,
    registry,
)
from gaploop.failure_analysis.views.handled import Handled, gripper_map, handled, spots
from gaploop.failure_analysis.views.phases import Grasp, carry_deg, grasps, let_go_on_the_way
from gaploop.failure_analysis.views.pictures import photometry, squared
from gaploop.failure_analysis.views.view import MOVING_RAD_S, ArmMotion, TakeView, runs

D, M = GapDimension, FailureMode
CHANCE: Final = 0.05
"""Share of sets in which outcomes dealt at random name anything."""
MOST_DEALS: Final = 1_999
LEAST_KNOWN: Final = 0.75
"""Of failures and of successes, the part in which a figure must be known."""
BEYOND: Final = 0.9
"""An episode shows a figure if it stands off more than this part of the successes."""
PICTURES: Final = (0, 10, 20, 40)
"""Pictures looked at, by their number in the episode."""
TRAVELS_RAD: Final = math.radians(8.0)
"""A joint that is told to move less than this says nothing about how far it goes."""
FEWEST_RESTS: Final = 5
"""Rows at rest, from which on an offset is taken from them: a late joint is off as it moves."""
LASTS: Final = 0.25
"""Share of an offset that is there in the first third of an attempt, too."""
STUCK: Final = 0.2
"""Share of what it is told to travel, below which a gripper is stuck, and not at what it holds."""
NEIGHBOURS: Final = 3
STOPS: Final = 3
"""So often an arm may stop more in failures than in successes, and read nothing twice for that."""
JUMP: Final = 4.0
"""Spreads by which a figure must jump where failures were recorded one after another, without an
overlap, and how somebody drove isn't compared at all: both change over a session by themselves."""
POSES: Final = ("start", "close", "open", "end")
"""Figures of where a joint is, by its readings."""
HANDLED: Final = ("held", "carried", "taken", "put")
"""Figures of what the gripper holds. Without loads, a joint off its command is said to press, and a
jaw that holds something is such a joint: these go before."""
SEEN_SHARE: Final = 40.0
"""What a camera shows of taking and putting says something if it shows so much of it where things
go well [%]; an episode lacks it at half of what successes have."""
LOADS: Final = ("peak_current_a", "load_peak_pct", "force_peak_n")
WOULD_TELL: Final = (
    "What would tell: more labelled episodes, or the policy that ran, asked about its "
    "demonstrations (--policy.path=… --trained_on=…)."
)
SHOWN: Final = 4
"""Figures that an episode lists as evidence."""
ENDS: Final = ("standstill_s", "never", "closings", "end", "duration")
"""Figures of how an attempt ended: what it ended by began before."""
WENT: Final = 0.5
"""Where no gripper tells: who went this part of the way that joints usually travel, and then
stands, may be done, and isn't called frozen."""
WAITS_S: Final = 0.3
"""An arm that stands still so soon after it has let go has done what it meant to."""


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
        name: FigureKind(sentence, unit, floor, dimension, side=side, by_policy=False)
        for name, sentence, unit, floor, dimension, side in (
            ("brightness", "{about}: the median grey is {value} of 255", "", 4.0,
             D.VISUAL_DOMAIN, 0),
            ("contrast", "{about}: grey levels spread by {value}", "", 2.0, D.VISUAL_DOMAIN, 0),
            ("saturation", "{about}: the median saturation is {value} of 255", "", 5.0,
             D.VISUAL_DOMAIN, 0),
            ("cast_red", "{about}: red stands at {value} (log) to green", "", 0.02,
             D.VISUAL_DOMAIN, 0),
            ("cast_blue", "{about}: blue stands at {value} (log) to green", "", 0.03,
             D.VISUAL_DOMAIN, 0),
            ("sharpness", "{about}: edges are {value} times as strong as the contrast", "", 0.06,
             D.VISUAL_DOMAIN, 0),
            ("corners", "{about}: corners are {value} times as bright as the middle", "", 0.03,
             D.VISUAL_DOMAIN, 0),
            ("covered", "{about}: {value} of the picture is dark and without detail", " %", 2.0,
             D.VISUAL_DOMAIN, 1),
        )
    },
}  # fmt: skip
"""Kinds of figures by what their names begin with; `close:elbow` is of the elbow."""
FOLLOWED_S: Final = 0.3
"""Over so long an arm is asked to keep up with its commands."""
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
    carried = (
        carry_deg(motion, grasp)
        if motion is not None and grasp is not None and grasp.released
        else np.empty((0, 0))
    )
    seen_handled = dict[str, Handled]()
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
    for k, joint in enumerate(motion.joints):
        told = float(np.ptp(sent[:, k]))
        if told > TRAVELS_RAD:
            went = float(np.ptp(read[:, k])) / math.degrees(told)
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
    until_s = grasp.open_s if math.isnan(grasp.lost_s) else grasp.lost_s
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


@dataclass(frozen=True)
class Separation:
    """A figure that separates failures from successes.

    Attributes:
        p: share of deals in which the best figure separates as well.
        failed, well: the figure's median in failures, and in successes.
        size: their difference in spreads of the successes.
    """

    name: str
    p: float
    failed: float
    well: float
    size: float

    @property
    def message(self) -> str:
        """What differs, in words."""
        said, _ = words_of(self.name, self.failed)
        return f"{said}; {words_of(self.name, self.well)[1]} in successes"


@dataclass(frozen=True)
class Comparison:
    """Failures beside successes.

    Attributes:
        separations: what separates them beyond chance, the farthest apart first.
        tried: figures that were tried.
        in_a_row: failures were recorded one after another, which chance would hardly do.
        least_p: the smallest p that so many takes can reach; above `CHANCE` nothing can be told.
        nearest: the figure that separates best, named or not; None if there is none.
        on_the_way: which takes let go before the end of the way that successes carry along.
        done: which stood still only once they had done what they meant to.
    """

    failures: int
    successes: int
    tried: int = 0
    in_a_row: bool = False
    least_p: float = 1.0
    separations: tuple[Separation, ...] = ()
    nearest: Separation | None = None
    values: Mapping[str, FloatArray] = field(default_factory=dict)
    on_the_way: NDArray[np.bool_] = field(default_factory=lambda: np.zeros(0, dtype=bool))
    done: NDArray[np.bool_] = field(default_factory=lambda: np.zeros(0, dtype=bool))

    def shown_by(self, row: int, name: str, failed: NDArray[np.bool_]) -> bool:
        """Say whether a take stands off most successes, on the failures' side, in a figure."""
        column = self.values[name]
        well = column[~failed & np.isfinite(column)]
        side = math.copysign(1.0, float(np.nanmedian(column[failed])) - float(np.median(well)))
        return bool(np.mean(side * column[row] > side * well) >= BEYOND)

    @property
    def cause(self) -> Separation | None:
        """The named figure that is direct evidence for a cause, if there is one."""
        return next((s for s in self.separations if figure_of(s.name).dimension), None)

    def message(self) -> str:
        """Return in words what the failures together say, or what would tell."""
        n, m = self.failures, self.successes
        if not n:
            return "Nothing failed: nothing to explain."
        if not m:
            return (
                "Station: unknown. No episode that went well is at hand to set the failures "
                "against. "
                "What would tell: label episodes that went well, or name such episodes with "
                "--reference."
            )
        takes = f"{many(n, 'failure')} and {many(m, 'success')}"
        if self.least_p > CHANCE or not self.tried:
            return (
                f"Station: unknown. {takes} are too few to tell any difference from chance. "
                "What would tell: 8 of each, or episodes that went well with --reference."
            )
        if not self.separations:
            near = (
                f" (nearest: {self.nearest.message}; p {self.nearest.p:.2f})"
                if self.nearest
                else ""
            )
            beyond = "chance"
            if self.in_a_row:
                beyond = "what else may have changed as the failures were recorded together"
            return (
                f"Station: unknown. None of {self.tried} figures sets {takes} apart beyond "
                f"{beyond}{near}. {WOULD_TELL}"
            )
        ends = {"duration", "end", "standstill_s"}
        if any(s.name == "mode:frozen" for s in self.separations):
            ends.remove("standstill_s")
        why = [s for s in self.separations if s.name.partition(":")[0] not in ends]
        first = self.cause or [*why, *self.separations][0]
        said = f"Station: {first.message} (p {max(first.p, 0.001):.3f} over {self.tried} figures; "
        said += f"{takes})."
        if not why:  # who doesn't succeed goes on until the time is up
            said += f" That is how they end, not why. {WOULD_TELL}"
        if self.in_a_row:
            said += " The failures were recorded together: what else changed then looks the same."
        return said


def many(count: int, word: str) -> str:
    """Return a number of failures or successes in words."""
    plural = {"failure": "failures", "success": "successes"}[word]
    return f"{count} {word if count == 1 else plural}"


def compare(
    rows: Sequence[TakeFigures],
    failed: Sequence[bool],
    *,
    other_driver: bool = False,
    in_order: bool = True,
) -> Comparison:
    """Set failures against successes, figure by figure.

    Args:
        rows: figures of both, in the order they were recorded.
        failed: which of them failed.
        other_driver: somebody else drove what went well: how it was driven isn't compared.
        in_order: a steady change over the recording is allowed for; without it, order means
            nothing.
    """
    bad = np.array(failed, dtype=bool)
    n, fails = len(bad), int(bad.sum())
    wells = n - fails
    if not fails or not wells:
        return Comparison(fails, wells)
    columns = {
        name: np.array([r.values.get(name, math.nan) for r in rows])
        for name in sorted({name for r in rows for name in r.values})
    }
    for name in columns:
        if name.startswith("mode:"):
            columns[name] = np.nan_to_num(columns[name])
    done = _done(rows)
    if "mode:frozen" in columns:
        columns["mode:frozen"][done] = 0.0
    for what in ("close", "open"):
        pose = [c for name, c in columns.items() if name.startswith(f"{what}:")]
        if pose and n > NEIGHBOURS:
            places = np.array(pose).T
            apart = np.sqrt(np.mean((places[:, None] - places[None]) ** 2, axis=2))
            np.fill_diagonal(apart, np.nan)
            columns[f"{what}_far"] = np.sort(apart, axis=1)[:, :NEIGHBOURS].mean(axis=1)
    # A delay is no finer than half a row: between rows it goes with how somebody moves. And each
    # stop of an arm repeats a reading.
    floors = {name: figure_of(name).floor for name in columns}
    row_s = max(r.row_s for r in rows)
    if "lag_s" in floors:
        floors["lag_s"] = max(floors["lag_s"], 0.5 * row_s)
    if "oscillation_rad" in floors:  # the root mean square of a swing that counts as shaking
        floors["oscillation_rad"] = SHAKE_RAD / math.sqrt(8.0)
    if "repeat_share" in floors and "duration" in columns:
        stops = STOPS * row_s / max(float(np.nanmedian(columns["duration"])), 1e-3)
        floors["repeat_share"] = max(floors["repeat_share"], stops)
    names = []
    for name, column in columns.items():
        known = np.isfinite(column)
        kind = figure_of(name)
        if min(known[bad].mean(), known[~bad].mean()) < LEAST_KNOWN or (
            other_driver and kind.by_policy
        ):
            continue
        unseen = name.partition(":")[0] in ("taken", "put") and (
            np.percentile(column[known], 75) < SEEN_SHARE
        )
        if np.ptp(column[known]) >= floors[name] and not unseen:
            names.append(name)
    deals = _deals(n, fails)
    # Dealt the other way round, two groups of one size are as far apart.
    least_p = (2.0 if fails == wells else 1.0) / math.comb(n, fails)
    if not names or least_p > CHANCE:
        return Comparison(fails, wells, len(names), least_p=least_p)
    # Values tell a jump from a spread, ranks heed no single outlier: the better of both counts.
    told_by = [np.array([f(columns[name]) for name in names]).T for f in (_centred, _ranks)]
    sides = np.array([figure_of(name).side for name in names])
    of_time = [np.ones(n), np.linspace(-1.0, 1.0, n)] if in_order and n > 4 else [np.ones(n)]
    trend, _ = np.linalg.qr(np.array(of_time).T)
    told_by = [_unit(x - trend @ (trend.T @ x)) for x in told_by]
    labels = bad[None].astype(float)
    observed = _separates(labels, told_by, trend, sides)[0]
    best = _separates(deals, told_by, trend, sides).max(axis=1)
    drawn = len(best) < math.comb(n, fails)  # at random, the true one not among them
    p = ((best[:, None] >= observed - 1e-9).sum(axis=0) + drawn) / (len(best) + drawn)
    turns, usual = (np.abs(np.diff(x, axis=1)).sum(axis=1) for x in (labels, deals))
    in_a_row = in_order and bool(np.mean(usual <= turns[0]) <= CHANCE)
    told, nearest = list[Separation](), None
    for k, name in enumerate(names):
        column, floor = columns[name], floors[name]
        ours, theirs = (column[mask & np.isfinite(column)] for mask in (bad, ~bad))
        here, there = float(np.median(ours)), float(np.median(theirs))
        if name.startswith("mode:"):
            here, there = float(ours.mean()), float(theirs.mean())
        spread = max(1.4826 * float(np.median(np.abs(x - np.median(x)))) for x in (ours, theirs))
        found = Separation(name, float(p[k]), here, there, abs(here - there) / max(spread, floor))
        if nearest is None or (found.p, -found.size) < (nearest.p, -nearest.size):
            nearest = found
        apart = ours.min() > theirs.max() or ours.max() < theirs.min()
        own = not figure_of(name).by_policy
        plain = not in_a_row or (apart and own and found.size >= JUMP)
        if found.p <= CHANCE and abs(here - there) >= floor and plain:
            told.append(found)
    # A joint that reads wrongly seems to be elsewhere whatever it does.
    off = {s.name.partition(":")[2] for s in told if s.name.startswith("offset:")}
    told = [s for s in told if not (
        (s.name.partition(":")[2] in off and s.name.partition(":")[0] in POSES)
        or (off and s.name.endswith("_far"))
    )]  # fmt: skip
    # What comes first in the attempt comes first here; how it ended comes last.
    begins_s = {s.name: _begins_s(s.name, [r for r, b in zip(rows, bad, strict=True) if b])
                for s in told}  # fmt: skip
    told.sort(key=lambda s: (begins_s[s.name], -s.size))
    return Comparison(
        fails, wells, len(names), in_a_row, least_p, tuple(told), nearest, columns,
        let_go_on_the_way(
            [r.carry_deg for r in rows],
            np.array([r.values.get("carried", math.nan) for r in rows]),
            ~bad,
        ),
        done,
    )  # fmt: skip


def _done(rows: Sequence[TakeFigures]) -> NDArray[np.bool_]:
    """Say whose standstill began once it had let go; without closings, once it had gone far."""
    closings, way_deg = (
        np.array([row.values.get(name, math.nan) for row in rows]) for name in ("closings", "never")
    )
    if np.median(closings) > 0:
        at_s = [(r.at_s.get("standstill_s", 0.0), r.at_s.get("open", math.inf)) for r in rows]
        return np.array([still_s >= open_s - WAITS_S for still_s, open_s in at_s])
    known = way_deg[np.isfinite(way_deg)]
    return np.asarray(way_deg >= WENT * (np.median(known) if len(known) else math.inf))


def _begins_s(name: str, rows: Sequence[TakeFigures]) -> float:
    """Return when in failures a figure is read: 0 if throughout, and last if it is of the end."""
    kind = name.partition(":")[0]
    if kind in ENDS or name == "mode:frozen":
        return math.inf
    return float(np.median([r.at_s.get(kind.removesuffix("_far"), 0.0) for r in rows]))


def _ranks(column: FloatArray) -> FloatArray:
    """Return ranks, ties alike, about 0; what isn't known stands in the middle."""
    from scipy.stats import rankdata

    known = np.isfinite(column)
    ranks = np.zeros(len(column))
    ranks[known] = rankdata(column[known]) - 0.5 * (known.sum() + 1)
    return ranks


def _centred(column: FloatArray) -> FloatArray:
    return np.nan_to_num(column - np.nanmean(column))


def _unit(columns: FloatArray) -> FloatArray:
    size = np.linalg.norm(columns, axis=0, keepdims=True)
    return np.asarray(columns / np.where(size > 1e-9, size, np.inf))


def _separates(
    labels: FloatArray, told_by: Sequence[FloatArray], trend: FloatArray, sides: NDArray[np.int64]
) -> FloatArray:
    """Return how well each deal of labels, (deals, n), is told by columns, (n, k): (deals, k)."""
    left = _unit((labels - (labels @ trend) @ trend.T).T)
    both = [np.where(sides == 0, np.abs(r), r * sides) for r in (left.T @ x for x in told_by)]
    return np.asarray(np.maximum(both[0], both[1]))


def _deals(n: int, failures: int) -> FloatArray:
    """Return every way to say which of n takes failed, or many at random: shape (deals, n)."""
    if math.comb(n, failures) <= MOST_DEALS:
        chosen = list(itertools.combinations(range(n), failures))
        labels = np.zeros((len(chosen), n))
        labels[np.arange(len(chosen))[:, None], chosen] = 1.0
        return labels
    order = np.argsort(np.random.default_rng(0).random((MOST_DEALS, n)), axis=1)
    return np.asarray((order < failures).astype(float))


def take_evidence(
    found: Comparison, row: int, figures: TakeFigures, failed: NDArray[np.bool_], fps: float
) -> tuple[GapDimension | None, ModeCall, tuple[Evidence, ...]]:
    """Return what a failed take shows of what sets the failures apart: cause, mode, evidence.

    The mode is the first that it shows, in time; what came of it, a standstill or the end of time,
    counts where nothing went before.
    """
    cause: GapDimension | None = None
    shown = [s for s in found.separations if found.shown_by(row, s.name, failed)]
    names = {s.name.partition(":")[0] for s in shown}
    evidence, calls = list[Evidence](), list[tuple[float, int, ModeCall]]()
    handled = False
    for s in shown:
        kind, value = figure_of(s.name), float(found.values[s.name][row])
        name = s.name.partition(":")[0].removesuffix("_far")
        if name == "mode":
            mode = M(s.name.partition(":")[2])
            own, seen = mode is figures.mode.mode, ModeCall(mode, None, (figures.mode.seen[mode],))
            when_s = math.inf if mode is M.FROZEN else -math.inf
            calls.append((when_s, -own, figures.mode if own else seen))
            continue
        if name in ("taken", "put") and value > 0.5 * s.well:
            continue
        at_s = figures.at_s.get(name)
        said = f"{words_of(s.name, value)[0]}; {words_of(s.name, s.well)[1]} in successes"
        said += f" (at {at_s:.1f} s, frame {round(at_s * fps)})" if at_s is not None else ""
        evidence.append(Evidence(s.name, value, kind.unit.strip(), said))
        cause = cause or kind.dimension
        shows = _mode_of(name, value, found, row, failed, names)
        if shows is not None:
            when_s = at_s if at_s is not None else math.inf if name in ENDS else -math.inf
            by = evidence[-1]
            if name == "put":
                by = figures.mode.seen.get(shows, by)
            calls.append((when_s, PRECEDENCE.index(shows), ModeCall(shows, None, (by,))))
            handled |= name in HANDLED
    if handled and not any(math.isfinite(figures.values.get(n, math.nan)) for n in LOADS):
        calls = [c for c in calls if c[2].mode not in (M.OBSTRUCTION, M.COLLISION)]
    call = min(calls, key=lambda c: c[:2])[2] if calls else ModeCall(None, None)
    # What speaks for the cause, then for the mode, then the rest.
    first = [e for e in evidence if figure_of(e.signal).dimension is not None]
    ordered = dict.fromkeys([*first, *call.evidence, *evidence])
    return cause, call, tuple(ordered)[: SHOWN + len(call.evidence)]


def _was_taken(found: Comparison, row: int, failed: NDArray[np.bool_]) -> bool:
    """Say whether a camera that shows the taking of what goes well shows it here, too."""
    for name, column in found.values.items():
        well = column[~failed & np.isfinite(column)]
        shows = name.startswith("taken:") and len(well) and np.percentile(well, 75) >= SEEN_SHARE
        if shows and column[row] > 0.5 * np.median(well):
            return True
    return False


def _mode_of(
    name: str,
    value: float,
    found: Comparison,
    row: int,
    failed: NDArray[np.bool_],
    shown: set[str],
) -> FailureMode | None:
    """Return the mode that a figure shows beside the others that the take shows, if any."""
    mode = FIGURES[name].mode if name in FIGURES else SIGNALS[name][1]
    if name == "held":
        return M.SLIP if value > FIGURES[name].floor else mode
    held = found.values.get("held", np.full(len(failed), np.nan))
    well = held[~failed & np.isfinite(held)]
    jaws_tell = bool(len(well)) and np.median(well) >= 50.0
    if jaws_tell:
        if name in ("close", "taken") and held[row] >= BEYOND * np.median(well):
            return None  # whatever else is so, they had it until they were opened
        if name in ("open", "carried", "put") and held[row] < 0.5 * np.median(well):
            # They had nothing then: nothing came down for that, where all that went well had it.
            lost = M.SLIP if held[row] >= FIGURES["held"].floor else M.MISSED_GRASP
            return lost if name == "put" and well.min() >= 50.0 else None
    if name == "put" and shown & {"open", "open_far"}:
        return None  # where it opened is another place
    if name == "put" and not jaws_tell:
        return M.SLIP if _was_taken(found, row, failed) else None
    if name in ("open", "carried"):
        return M.SLIP if found.on_the_way[row] else M.MISPLACEMENT if name == "open" else None
    if mode in (M.FROZEN, M.TIMEOUT) and "standstill_s" in shown:
        return None if found.done[row] else mode
    return mode
