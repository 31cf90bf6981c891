"""Segments an attempt: when the gripper closed, what it held, when it let go, by phase.

Everything comes from the gripper's command and reading and, where there is one, the tracked
scene. Where an attempt holds several grasps, the last one that held something counts.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from gaploop.core.types import FloatArray
from gaploop.core.vocabulary import Phase
from gaploop.failure_analysis.views.view import Motion, View

CLOSED_SHARE = 0.30  # of the commanded gripper travel: below it the gripper is meant to be shut
HELD_RAD = 0.06  # a jaw that stops this far short of its command has something between its pads
SETTLE_S = 0.35  # from closing to a jaw at rest
GRASP_S = 0.5
PLACE_S = 0.5
LIFT_M = 0.02


@dataclass(frozen=True)
class Grasp:
    """One closing of the gripper.

    Attributes:
        close_s: when closing was commanded [s].
        open_s: when opening was commanded, or the end of the take [s].
        released: opening was commanded.
        width_rad: reading of the gripper once settled [rad].
        short_rad: how far that is from the command: more than `HELD_RAD` means held [rad].
        lost_s: when a held object went, before opening was commanded; NaN if it didn't [s].
    """

    close_s: float
    open_s: float
    released: bool
    width_rad: float
    short_rad: float
    lost_s: float

    @property
    def held(self) -> bool:
        """Whether something stopped the jaws."""
        return self.short_rad > HELD_RAD


def grasps(motion: Motion) -> tuple[Grasp, ...]:
    """Find every closing of the gripper, oldest first; none where there is no gripper."""
    if motion.gripper is None:
        return ()
    sent, read = motion.sent_rad[:, motion.gripper], motion.position_rad[:, motion.gripper]
    low, high = float(sent.min()), float(max(sent[0], np.percentile(sent, 90)))
    if high - low < 0.2:
        return ()
    shut = sent < low + CLOSED_SHARE * (high - low)
    edges = np.flatnonzero(np.diff(np.r_[0, shut.astype(np.int8), 0]))
    found = []
    for start, stop in zip(edges[::2], edges[1::2], strict=True):
        if (stop - start) / motion.rate_hz >= 0.15:
            found.append(_grasp(motion, sent, read, int(start), int(stop)))
    return tuple(found)


def _grasp(motion: Motion, sent: FloatArray, read: FloatArray, start: int, stop: int) -> Grasp:
    lag = 0.0 if np.isnan(motion.lag_samples) else motion.lag_samples
    settled = min(start + round(SETTLE_S * motion.rate_hz + lag), stop - 1)
    window = slice(settled, min(settled + max(3, round(0.1 * motion.rate_hz)), stop))
    width = float(np.median(read[window]))
    short = width - float(np.median(sent[window]))
    lost = float("nan")
    if short > HELD_RAD:
        opening = np.flatnonzero(sent[settled:stop] > float(sent[settled]) + 0.05)
        until = settled + int(opening[0]) if len(opening) else stop
        later = np.flatnonzero(read[settled:until] - sent[settled:until] < 0.4 * short)
        if len(later):
            lost = float(motion.t_s[settled + later[0]])
    t_s = motion.t_s
    return Grasp(
        float(t_s[start]), float(t_s[min(stop, len(t_s) - 1)]), stop < len(t_s), width, short, lost
    )


def main_grasp(motion: Motion) -> Grasp | None:
    """Return the last grasp that held something, or else the last one, or None."""
    found = grasps(motion)
    held = [g for g in found if g.held]
    if not found:
        return None
    return held[-1] if held else found[-1]


def phase_at(motion: Motion, t_s: float) -> Phase:
    """Return the phase at a time [s] by the grasp that is current then."""
    before = [g for g in grasps(motion) if g.close_s <= t_s]
    if not before:
        return Phase.APPROACH
    grasp = before[-1]
    if t_s < grasp.close_s + GRASP_S:
        return Phase.GRASP
    if not grasp.held:
        return Phase.GRASP if t_s < grasp.open_s else Phase.APPROACH
    if t_s < grasp.open_s - PLACE_S or not grasp.released:
        return Phase.TRANSPORT
    return Phase.PLACE if t_s < grasp.open_s + PLACE_S else Phase.RETREAT


def scene_xy_m(scene: FloatArray) -> tuple[FloatArray, FloatArray, NDArray[np.bool_]]:
    """Split a tracked scene into object and target on the table and whether the object is seen.

    Args:
        scene: `observation.environment_state`, shape (n, 7).

    Returns:
        Object and target [m], each shape (n, 2), and visible, shape (n,).
    """
    from gaploop.sim.kinematics import PAN_AXIS_X_M

    def place(azimuth: FloatArray, radius: FloatArray) -> FloatArray:
        return np.stack([PAN_AXIS_X_M + radius * np.cos(azimuth), radius * np.sin(azimuth)], axis=1)

    return place(scene[:, 0], scene[:, 1]), place(scene[:, 3], scene[:, 4]), scene[:, 5] > 0.5


@dataclass(frozen=True)
class Handling:
    """Tracked object and tool together, at frame rate.

    Attributes:
        t_s: times of the frames [s], shape (n,).
        object_m: tracked object [m], shape (n, 2).
        target_m: tracked target [m], shape (n, 2).
        visible: the object is seen, shape (n,).
        tool_m: tool centre [m], shape (n, 3).
        near: the tool has come within reach of the object by then, shape (n,).
    """

    t_s: FloatArray
    object_m: FloatArray
    target_m: FloatArray
    visible: NDArray[np.bool_]
    tool_m: FloatArray
    near: NDArray[np.bool_]


NEAR_M = 0.07


def handling(view: View) -> Handling | None:
    """Bring tracked scene and tool to one clock; None where either is missing."""
    motion, scene = view.motion, view.scene
    if motion is None or scene is None:
        return None
    tool = view.tool
    if tool is None:
        return None
    t_s = view.take.frames.t_s
    tool_m = np.stack([np.interp(t_s, tool.t_s, tool.read_m[:, k]) for k in range(3)], axis=1)
    object_m, target_m, visible = scene_xy_m(scene)
    closings = grasps(motion)
    near = np.linalg.norm(tool_m[:, :2] - object_m, axis=1) < NEAR_M
    near = np.maximum.accumulate(near)  # from there on the arm itself may be what is seen
    if closings:
        near |= t_s >= closings[0].close_s
    return Handling(t_s, object_m, target_m, visible, tool_m, near)
