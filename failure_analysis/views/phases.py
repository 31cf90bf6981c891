"""Segments an attempt: when the gripper closed, what it held, when it let go, by phase.

Everything comes from the gripper's command and reading and, where there is one, the tracked
scene. Where an attempt holds several grasps, the last one that held something counts.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Final

import numpy as np
from numpy.typing import NDArray

from gaploop.core.arm import PAN_AXIS_X_M
from gaploop.core.messages import FloatArray
from gaploop.core.vocabulary import Phase
from gaploop.failure_analysis.views.view import ArmMotion, TakeView, ToolPath, runs, tool_places

CLOSED_SHARE = 0.30  # of the commanded gripper travel: below it the gripper is meant to be shut
HELD_RAD = 0.06  # a jaw that stops this far short of its command has something between its pads
SETTLE_S = 0.35  # from closing to a jaw at rest
GRASP_S = 0.5
PLACE_S = 0.5
LIFTED_M = 0.012  # a tool that has risen so far has taken the weight
LOWERED = 0.6  # of the highest lift: below it the object is being put down
RELEASE_S = 0.3
AGAIN_S = 1.0  # after opening, the next attempt's approach begins so much later


@dataclass(frozen=True)
class Grasp:
    """One closing of the gripper, by the times at which closing and opening were commanded.

    Attributes:
        open_s: the end of the take where it wasn't `released`.
        short_rad: how far the settled gripper is from its command: more than `HELD_RAD` means held.
        lost_s: when a held object went, before opening was commanded; NaN if it didn't.
        gripper: column of the gripper: of a pair, which hand it was.
    """

    close_s: float
    open_s: float
    released: bool
    short_rad: float
    lost_s: float
    gripper: int

    @property
    def held(self) -> bool:
        """Whether something stopped the jaws."""
        return self.short_rad > HELD_RAD

    @property
    def gone_s(self) -> float:
        """When what it held was lost, or let go [s]."""
        return self.open_s if math.isnan(self.lost_s) else self.lost_s


def grasps(motion: ArmMotion) -> tuple[Grasp, ...]:
    """Find every closing of every gripper, oldest first; none where there is no gripper."""
    t_s, found = motion.t_s, []
    lag = 0.0 if np.isnan(motion.lag_samples) else motion.lag_samples
    settles = max(round(SETTLE_S * motion.rate_hz + lag), round(motion.settles_s * motion.rate_hz))
    for gripper in motion.grippers:
        sent, read = motion.sent_rad[:, gripper], motion.position_rad[:, gripper]
        low, high = float(sent.min()), float(max(sent[0], np.percentile(sent, 90)))
        if high - low < 0.2:
            continue
        for start, stop in zip(*runs(sent < low + CLOSED_SHARE * (high - low)), strict=True):
            if (stop - start) / motion.rate_hz < 0.15:
                continue
            settled = min(int(start) + settles, int(stop) - 1)
            window = slice(settled, min(settled + max(3, round(0.1 * motion.rate_hz)), stop))
            short = float(np.median(read[window])) - float(np.median(sent[window]))
            lost = float("nan")
            if short > HELD_RAD:
                opening = np.flatnonzero(sent[settled:stop] > float(sent[settled]) + 0.05)
                until = settled + int(opening[0]) if len(opening) else stop
                later = np.flatnonzero(read[settled:until] - sent[settled:until] < 0.4 * short)
                lost = float(t_s[settled + later[0]]) if len(later) else lost
            open_s, released = float(t_s[min(stop, len(t_s) - 1)]), bool(stop < len(t_s))
            found.append(Grasp(float(t_s[start]), open_s, released, short, lost, gripper))
    return tuple(sorted(found, key=lambda grasp: grasp.close_s))


def main_grasp(motion: ArmMotion) -> Grasp | None:
    """Return the last grasp that held something, or else the last one, or None."""
    found = grasps(motion)
    return next((g for g in reversed(found) if g.held), found[-1] if found else None)


@dataclass(frozen=True)
class Stretch:
    """One phase of an attempt, from `start_s` to `end_s` [s] since the take began."""

    phase: Phase
    start_s: float
    end_s: float


def timeline(
    motion: ArmMotion, tool: ToolPath | None = None, closings: Sequence[Grasp] | None = None
) -> tuple[Stretch, ...]:
    """Return the phases of a take in order, without gaps, through every attempt in it.

    Approach until the gripper is told to close; grasp until the tool has lifted what it holds;
    transport until it has come down for the last time; place until shortly after it opens;
    retreat, until the next attempt's approach. Without a gripper everything is approach; without a
    tool path lifting and lowering are taken to last `GRASP_S` and `PLACE_S`.
    """
    found, end_s = grasps(motion) if closings is None else closings, float(motion.t_s[-1])
    ends: list[tuple[Phase, float]] = []
    for number, grasp in enumerate(found):
        last = number == len(found) - 1
        ends.append((Phase.APPROACH, grasp.close_s))
        if grasp.held:
            lifted_s, lowered_s = lift(grasp, tool)
            let_go = grasp.released and np.isnan(grasp.lost_s)
            ends += [
                (Phase.GRASP, lifted_s),
                (Phase.TRANSPORT, min(lowered_s, grasp.gone_s)),
                (Phase.PLACE, grasp.gone_s + (RELEASE_S if let_go else 0.0)),
                (Phase.TRANSPORT, grasp.open_s),  # empty-handed
            ]
        else:
            ends.append((Phase.GRASP, grasp.open_s))
        ends.append((Phase.RETREAT, end_s if last else grasp.open_s + AGAIN_S))
    stretches, at_s = list[Stretch](), float(motion.t_s[0])
    for phase, until_s in ends or [(Phase.APPROACH, end_s)]:
        if min(until_s, end_s) > at_s + 1e-6:  # no phase of a rounding error's length
            stretches.append(Stretch(phase, at_s, min(until_s, end_s)))
            at_s = stretches[-1].end_s
    return tuple(stretches) or (Stretch(Phase.APPROACH, at_s, end_s),)


def lift(grasp: Grasp, tool: ToolPath | None) -> tuple[float, float]:
    """Return when a grasp has lifted, and when the tool has come down for the last time [s].

    Without a tool path both are guessed from the time that closing and lowering take.
    """
    lowered_s = grasp.open_s - PLACE_S if grasp.released else grasp.open_s
    if tool is None:
        return grasp.close_s + GRASP_S, max(lowered_s, grasp.close_s + GRASP_S)
    inside = (tool.t_s >= grasp.close_s + 0.1) & (tool.t_s <= grasp.open_s)
    if inside.sum() < 2:
        return grasp.open_s, grasp.open_s
    t_s, height = tool.t_s[inside], tool.read_m[inside, 2]
    rise = height - np.minimum.accumulate(height)
    lifted = np.flatnonzero(rise >= LIFTED_M)
    if not len(lifted):
        return grasp.open_s, grasp.open_s
    high = np.flatnonzero(rise > LOWERED * rise.max())
    return float(t_s[lifted[0]]), float(t_s[max(high[-1], lifted[0])])


CARRY_POSES: Final = 24
AS_SUCCESSES: Final = 3
"""Successes that closed most alike, along whose ways an attempt's own is looked at."""
ARRIVED: Final = 0.9
"""Share of the way, from which on what is carried has arrived, however soon."""
EARLY: Final = 0.75
"""What is carried for less than this share of the time that successes take is let go early."""
ASIDE: Final = 1.5
"""Times as far as any success is from the others' ways: farther is another way."""
WAY_DEG: Final = 2.0
"""Two ways that are this near are one."""


def carry_deg(motion: ArmMotion, grasp: Grasp) -> FloatArray:
    """Return the arm's poses by its readings from closing to opening, or to where it lost its hold.

    In equal parts of the way, shape (`CARRY_POSES`, n_arm_joints) [degree]; of no rows where it
    doesn't move.
    """
    inside = (motion.t_s >= grasp.close_s) & (motion.t_s <= grasp.gone_s)
    poses = np.degrees(motion.position_rad[inside][:, motion.arm_joints])
    steps = np.linalg.norm(np.diff(poses, axis=0), axis=1)
    if not steps.sum() > WAY_DEG:
        return np.empty((0, poses.shape[1]))
    way = np.r_[0.0, np.cumsum(steps)]
    at = np.linspace(0.0, way[-1], CARRY_POSES)
    return np.array([np.interp(at, way, column) for column in poses.T]).T


def let_go_on_the_way(
    carries_deg: Sequence[FloatArray], carried_s: FloatArray, well: NDArray[np.bool_]
) -> NDArray[np.bool_]:
    """Say which attempts opened early, along the way that successes carry on.

    Args:
        carries_deg: each attempt's `carry_deg`.
        carried_s: how long it carried, shape (n,).
        well: which of them are successes, shape (n,).

    Along means: about as near as successes themselves are, at that part, to the ways of others. A
    way begins where the attempt's own did, and comes to the other's by its end.
    """
    moved = [k for k, carry in enumerate(carries_deg) if len(carry)]
    usual = np.array([k for k in moved if well[k]])
    found = np.zeros(len(carries_deg), dtype=bool)
    if len(usual) < 2:
        return found
    ways = np.array([carries_deg[k] for k in usual])
    left = np.linspace(1.0, 0.0, CARRY_POSES)[:, None]

    def nearest(k: int, pose: FloatArray) -> tuple[float, int]:
        """Return how far a pose is from others that closed most alike, and at which part."""
        aside = carries_deg[k][0] - ways[:, 0]
        alike = np.where(usual == k, np.inf, np.linalg.norm(aside, axis=1))
        among = np.argsort(alike)[: min(AS_SUCCESSES, len(usual) - 1)]
        away = np.linalg.norm(ways[among] + left * aside[among, None] - pose, axis=2)
        return float(away.min()), int(np.unravel_index(away.argmin(), away.shape)[1])

    usual_deg, usual_s = dict[int, float](), float(np.median(carried_s[usual]))
    for k in moved:
        if carried_s[k] >= EARLY * usual_s:
            continue
        away_deg, part = nearest(k, carries_deg[k][-1])
        if part < ARRIVED * (CARRY_POSES - 1):
            if part not in usual_deg:
                usual_deg[part] = max(nearest(w, carries_deg[w][part])[0] for w in usual)
            found[k] = away_deg <= max(WAY_DEG, ASIDE * usual_deg[part])
    return found


def phase_at(
    motion: ArmMotion,
    t_s: float,
    tool: ToolPath | None = None,
    closings: Sequence[Grasp] | None = None,
) -> Phase:
    """Return the phase at a time [s], see `timeline`; what ends a phase belongs to it."""
    stretches = timeline(motion, tool, closings)
    return next((s.phase for s in stretches if t_s <= s.end_s), stretches[-1].phase)


def scene_xy_m(scene: FloatArray) -> tuple[FloatArray, FloatArray, NDArray[np.bool_]]:
    """Split a tracked scene, shape (n, 7), into object and target and whether the object is seen.

    Places are on the table [m], each shape (n, 2).
    """

    def place(azimuth: FloatArray, radius: FloatArray) -> FloatArray:
        return np.stack([PAN_AXIS_X_M + radius * np.cos(azimuth), radius * np.sin(azimuth)], axis=1)

    return place(scene[:, 0], scene[:, 1]), place(scene[:, 3], scene[:, 4]), scene[:, 5] > 0.5


@dataclass(frozen=True)
class ToolAndObject:
    """Tracked object [m], shape (n, 2), and tool centre [m], shape (n, 3), at frame rate.

    `near` says that the tool has come within reach of the object by then.
    """

    t_s: FloatArray
    object_m: FloatArray
    visible: NDArray[np.bool_]
    tool_m: FloatArray
    near: NDArray[np.bool_]


NEAR_M = 0.07


def tool_and_object(view: TakeView) -> ToolAndObject | None:
    """Bring tracked scene and tool to one clock; None where either is missing."""
    motion, scene, tool = view.motion, view.scene, view.tool
    if motion is None or scene is None or tool is None:
        return None
    t_s = view.take.frames.t_s
    tool_m = np.stack([np.interp(t_s, tool.t_s, tool.read_m[:, k]) for k in range(3)], axis=1)
    object_m, _, visible = scene_xy_m(scene)
    near = np.linalg.norm(tool_m[:, :2] - object_m, axis=1) < NEAR_M
    near = np.maximum.accumulate(near)  # from there on the arm itself may be what is seen
    if closings := grasps(motion):
        near |= t_s >= closings[0].close_s
    return ToolAndObject(t_s, object_m, visible, tool_m, near)


# -- progress towards the goal -------------------------------------------------------------------


HOLD_S: Final = 0.3
"""Jaws that stop short of their command this long hold something: closing takes less."""
GAIN_M: Final = 0.005
"""Less than this is no progress."""


@dataclass
class TaskProgress:
    """Progress so far; fed frame by frame.

    Attributes:
        remaining_path_m: way left from the tool over the object to the target [m].
        lost_m: most that it has risen above its least [m].
        gained_s: when it last came down by `GAIN_M` [s].
    """

    remaining_path_m: float = np.nan
    least_m: float = math.inf
    lost_m: float = 0.0
    gained_s: float = 0.0
    t_s: float = 0.0
    holding: bool = False
    _short_since_s: float | None = None
    _released_m: FloatArray | None = None

    def update(
        self,
        t_s: float,
        tool_m: FloatArray,
        object_m: FloatArray,
        target_m: FloatArray,
        visible: bool,
        short_rad: float,
    ) -> None:
        """Take note of one frame: tool, object and target on the table plane [m], shape (2,) each.

        `short_rad` is the gripper's reading less its command.
        """
        self.t_s = t_s
        if short_rad <= HELD_RAD:
            self._short_since_s = None
        elif self._short_since_s is None:
            self._short_since_s = t_s
        before, since = self.holding, self._short_since_s
        self.holding = since is not None and t_s - since >= HOLD_S
        if self.holding:
            self._released_m = None
        elif before:
            self._released_m = tool_m.copy()  # until it is seen again
        elif visible:
            self._released_m = None
        place = object_m if self._released_m is None else self._released_m
        place = tool_m if self.holding else place
        self.remaining_path_m = math.dist(tool_m, place) + math.dist(place, target_m)
        if self.remaining_path_m < self.least_m - GAIN_M:
            self.least_m, self.gained_s = self.remaining_path_m, t_s
        self.lost_m = max(self.lost_m, self.remaining_path_m - self.least_m)

    @property
    def stalled_s(self) -> float:
        """Time since the last progress [s]."""
        return self.t_s - self.gained_s


@lru_cache(maxsize=1)  # several signals in turn ask for it
def task_progress(view: TakeView) -> TaskProgress | None:
    """Return the progress at the end of a take; None without tracked scene or known arm."""
    motion, scene = view.motion, view.scene
    if motion is None or scene is None or not motion.grippers:
        return None
    t_s = view.take.frames.t_s
    # Frames and control ticks share a clock; the small step heeds rounding of their times.
    rows = np.searchsorted(motion.t_s, t_s - 1e-4).clip(0, len(motion.t_s) - 1)
    tool_m = tool_places(motion.position_rad[rows], motion.joints)
    if tool_m is None:
        return None
    short_rad = motion.short_rad[rows]
    object_m, target_m, visible = scene_xy_m(scene)
    state = TaskProgress()
    for k, time_s in enumerate(t_s):
        state.update(
            float(time_s), tool_m[k, :2], object_m[k], target_m[k], bool(visible[k]),
            float(short_rad[k]),
        )  # fmt: skip
    return state
