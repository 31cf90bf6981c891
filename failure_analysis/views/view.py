"""What the signals look at: one take's channels, prepared once and shared by all of them."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from gaploop.core.arms import CELL_ARMS
from gaploop.core.grippers import is_grip, sides_of
from gaploop.core.messages import FloatArray, Image
from gaploop.core.take import TRACKED_SCENE, Take
from gaploop.failure_analysis.views.joints import angles_rad, answering
from gaploop.failure_analysis.views.pictures import PictureSummary, summarise

SLOW_RAD_S = 0.15  # slower than this the servo error is that of rest, not of motion
MOVING_RAD_S = 0.30
GRIPPER_RAD = 1.92  # travel of the SO-101's gripper: limits on angles hold for it
UNREAD_S = 0.5  # a joint that isn't read for longer is left out of its take


@dataclass(frozen=True)
class ArmMotion:
    """One arm's commands and readings, from the control-rate record or else from the frames.

    Attributes:
        t_s: time since the take began [s], shape (n,).
        sent_rad: joint commands after safety [rad], shape (n, n_joints).
        position_rad: joint readings [rad], shape (n, n_joints).
        current_a: motor currents [A], shape (n, n_joints), NaN where lacking.
        grippers: columns of the grippers; a pair of arms has two. One whose values are no known
            angle, per cent or metres as they may be, has the travel of an SO-101's.
        scaled: the grippers' values are so, and say nothing about how late the arm answers.
        settles_s: what those take to close [s]; 0 if that isn't known.
    """

    t_s: FloatArray
    sent_rad: FloatArray
    position_rad: FloatArray
    current_a: FloatArray
    joints: tuple[str, ...]
    rate_hz: float
    grippers: tuple[int, ...] = ()
    scaled: bool = False
    settles_s: float = 0.0

    @cached_property
    def sent_velocity_rad_s(self) -> FloatArray:
        """Speed of the command [rad/s], over 50 ms, shape (n, n_joints)."""
        return _slope(self.sent_rad, self.rate_hz, 0.05)

    @cached_property
    def velocity_rad_s(self) -> FloatArray:
        """Speed of the readings [rad/s], over 50 ms, shape (n, n_joints)."""
        return _slope(self.position_rad, self.rate_hz, 0.05)

    @cached_property
    def arm_joints(self) -> NDArray[np.int64]:
        """Columns of the joints that aren't a gripper's or a hand's."""
        names = enumerate(self.joints)
        return np.array([i for i, n in names if not is_grip(n) and i not in self.grippers], int)

    @cached_property
    def short_rad(self) -> FloatArray:
        """How far a gripper stays open beyond its command [rad], shape (n,); the most of a pair."""
        columns = list(self.grippers)
        return np.asarray((self.position_rad - self.sent_rad)[:, columns].max(axis=1))

    def arm_of(self, gripper: int) -> NDArray[np.int64]:
        """Columns of the joints of the arm that a gripper is on: `left_…` of `left_gripper`."""
        sides = sides_of(self.joints)
        return np.array([i for i in self.arm_joints if sides[gripper] in ("", sides[i])], int)

    @cached_property
    def lag_samples(self) -> float:
        """Delay from command to reading [samples]; NaN where nothing moved enough to tell."""
        # The delay that explains the answer best, by cross-correlation over all joints.
        columns = self.arm_joints if self.scaled else np.arange(len(self.joints))
        sent, answer = self.sent_velocity_rad_s[:, columns], self.velocity_rad_s[:, columns]
        n = len(sent)
        longest = min(round(0.5 * self.rate_hz), n // 3)
        if longest < 2 or np.abs(sent).max(initial=0.0) < MOVING_RAD_S:
            return float("nan")
        size = 1 << (2 * n - 1).bit_length()
        spectrum = np.conj(np.fft.rfft(sent, size, axis=0)) * np.fft.rfft(answer, size, axis=0)
        match = np.fft.irfft(spectrum, size, axis=0)[: longest + 1].sum(axis=1)
        best = int(np.argmax(match))
        if match[best] <= 0:
            return float("nan")
        if not 0 < best < longest:
            return float(best)
        left, middle, right = match[best - 1 : best + 2]
        bend = left - 2 * middle + right
        return best + (0.5 * (left - right) / bend if bend < 0 else 0.0)

    @cached_property
    def residual_rad(self) -> FloatArray:
        """Reading minus the command that it answers, lag taken out [rad], shape (n, n_joints)."""
        shift = 0 if np.isnan(self.lag_samples) else round(self.lag_samples)
        late = np.concatenate([np.repeat(self.sent_rad[:1], shift, axis=0), self.sent_rad])
        return np.asarray(self.position_rad - late[: len(self.t_s)])

    @cached_property
    def slow(self) -> NDArray[np.bool_]:
        """Where a joint has stood almost still under its command, shape (n, n_joints)."""
        from scipy.ndimage import maximum_filter1d  # here: importing the types needs no scipy

        steady = np.abs(_slope(self.position_rad, self.rate_hz, 0.2))  # noise averages out
        speed = np.maximum(np.abs(self.sent_velocity_rad_s), steady)
        window = max(1, round(0.1 * self.rate_hz))
        lately = maximum_filter1d(speed, 2 * window + 1, axis=0, mode="nearest")
        return np.asarray(lately < SLOW_RAD_S)


@dataclass(frozen=True)
class ToolPath:
    """Tool centre over time in the base frame [m], shape (n, 3), by readings and by commands."""

    t_s: FloatArray
    read_m: FloatArray
    sent_m: FloatArray

    def at(self, t_s: float) -> FloatArray:
        """Return the tool by the readings at a time [m], shape (3,)."""
        return np.array([np.interp(t_s, self.t_s, self.read_m[:, k]) for k in range(3)])


def tool_places(q_rad: FloatArray, joints: Sequence[str]) -> FloatArray | None:
    """Return the tool centre [m], shape (n, 3), at joint positions; None for an unknown arm.

    In the base frame. Of a pair it is that of the arm which is at work, see `CellArm.at_work`.
    """
    known = next((arm for arm in CELL_ARMS.values() if arm.joint_names == tuple(joints)), None)
    if known is None:
        return None
    if not known.mounted:
        return known.tool_centre_m(q_rad)
    places = []
    for row in q_rad:
        side = known.at_work(row)
        (tool_m,) = side.arm.tool_centre_m(row[None, known.columns(side)])
        places.append(tool_m + np.array([*side.at_m, 0.0]))
    return np.array(places).reshape(-1, 3)


class TakeView:
    """A take, and what several signals need of it, computed when first asked for.

    The background and `start_pose_rad` are what is usual; without `images` none is decoded.
    """

    def __init__(
        self,
        take: Take,
        background: Image | None = None,
        images: bool = True,
        start_pose_rad: FloatArray | None = None,
    ) -> None:
        self.take = take
        self.background = background
        self.start_pose_rad = start_pose_rad
        self._images = images

    @cached_property
    def motion(self) -> ArmMotion | None:
        """The arm's commands and readings, or None where the take has none."""
        record, frames, info = self.take.telemetry, self.take.frames, self.take.info
        found: ArmMotion | None = None
        for arm in sorted(record.arms(), key=lambda name: name != "follower"):
            sent, position = record.stack(arm, "sent_rad"), record.stack(arm, "position_rad")
            if len(record) >= 10 and np.isfinite(sent).any() and np.isfinite(position).any():
                current = record.stack(arm, "current_a")
                found = _motion(record.t_s, sent, position, current, record.joints(arm))
                break
        if found is not None or len(frames) < 10 or not frames.state.size or not frames.sent.size:
            return found
        commands, readings = angles_rad(frames.sent, info), angles_rad(frames.state, info)
        if commands is None or readings is None:
            return None
        commands, readings = commands.copy(), readings.copy()
        for grip in self.take.grippers or ():
            k = grip.column
            commands[:, k] = GRIPPER_RAD * grip.opened(frames.sent[:, k], read=False)
            readings[:, k] = GRIPPER_RAD * grip.opened(frames.state[:, k], read=True)
        columns = answering(commands, readings)
        if columns is None:
            return None
        # What wasn't read for long says nothing of its joint: filled, that would seem to stand.
        longest = max(1, round(UNREAD_S / (float(np.median(np.diff(frames.t_s))) or 1.0)))

        def is_read(values: FloatArray) -> bool:
            starts, stops = runs(~np.isfinite(values))
            return bool((stops - starts).max(initial=0) <= longest)

        known = [
            (sent, read) for sent, read in zip(*columns, strict=True)
            if is_read(commands[:, sent]) and is_read(readings[:, read])
        ]  # fmt: skip
        if not known:
            return None
        commanded, answers = map(list, zip(*known, strict=True))
        names = tuple(info.joint_names[k].removesuffix(".pos") for k in answers)
        read, unknown = readings[:, answers], np.full((len(frames), len(answers)), np.nan)
        motion = _motion(frames.t_s, commands[:, commanded], read, unknown, names)
        if motion is None or self.take.grippers is None:
            return motion
        seen = [g for g in self.take.grippers if g.column in answers]
        at, settle_s = tuple(answers.index(g.column) for g in seen), [g.settles_s for g in seen]
        return replace(motion, grippers=at, scaled=bool(at), settles_s=max(settle_s, default=0.0))

    @cached_property
    def tool(self) -> ToolPath | None:
        """The tool's path at 25 Hz or more, or None for an arm that isn't known."""
        motion = self.motion
        if motion is None:
            return None
        every = max(1, round(motion.rate_hz / 25.0))
        read = tool_places(motion.position_rad[::every], motion.joints)
        sent = tool_places(motion.sent_rad[::every], motion.joints)
        return None if read is None or sent is None else ToolPath(motion.t_s[::every], read, sent)

    @cached_property
    def scene(self) -> FloatArray | None:
        """Tracked scene, shape (n, 7) as `TRACKED_SCENE`, or None where nothing tracks."""
        frames = self.take.frames
        tracks = frames.environment_names == TRACKED_SCENE and frames.environment_state.size
        return frames.environment_state if tracks else None

    @cached_property
    def currents_a(self) -> FloatArray | None:
        """Motor currents [A], shape (n, n_joints), or None where no drive reports them."""
        stacks = [self.take.telemetry.stack(a, "current_a") for a in self.take.telemetry.arms()]
        seen = [s for s in stacks if s.size and np.isfinite(s).any()]
        return np.concatenate(seen, axis=1) if seen else None

    @cached_property
    def loads_pct(self) -> FloatArray | None:
        """Loads of one arm's drives [% of stall], or None where none reports them.

        Shape (n, n_arm_joints): without the gripper, which stalls whenever it holds something.
        """
        record = self.take.telemetry
        for arm in sorted(record.arms(), key=lambda name: name != "follower"):
            columns = [i for i, name in enumerate(record.joints(arm)) if "gripper" not in name]
            loads = record.stack(arm, "load_pct")[:, columns]
            if loads.size and np.isfinite(loads).any():
                return loads
        return None

    @cached_property
    def wrench(self) -> FloatArray | None:
        """Forces [N] and torques [N m] of the first sensor, shape (n, 6), or None.

        Axes that the sensor lacks are 0; rows in which it missed one are NaN throughout.
        """
        columns = self.take.telemetry.columns
        names = sorted(n.removesuffix(".fx_n") for n in columns if n.endswith(".fx_n"))
        if not names:
            return None
        axes = ("fx_n", "fy_n", "fz_n", "tx_nm", "ty_nm", "tz_nm")
        missing = np.full(len(self.take.telemetry), np.nan)
        read = np.stack([columns.get(f"{names[0]}.{axis}", missing) for axis in axes], axis=1)
        silent = np.isnan(read).all(axis=0)
        if silent.all():
            return None
        read[:, silent] = 0.0
        read[np.isnan(read).any(axis=1)] = np.nan
        return read if np.isfinite(read).any() else None

    @cached_property
    def touch(self) -> FloatArray | None:
        """The sum of what the first sensor without forces by axis reads, shape (n,), or None."""
        record = self.take.telemetry
        for name, columns in record.sensors().items():
            if f"{name}.fx_n" not in columns:
                read = np.abs(np.stack([record.columns[column] for column in columns], axis=1))
                return np.asarray(read.sum(axis=1)) if np.isfinite(read).any() else None
        return None

    @cached_property
    def pictures(self) -> PictureSummary | None:
        """What the first camera's pictures say, or None without pictures."""
        if not self._images or not self.take.cameras:
            return None
        name = sorted(self.take.cameras)[0]
        return summarise(self.take.cameras[name](), len(self.take.frames), self.background)

    def blind(self) -> dict[str, str]:
        """Return source of signals to why nothing of it can be seen."""
        no_pictures = "no pictures" if self._images else "pictures not analysed"
        frames, no_motion = self.take.frames, "no joint commands with readings"
        if len(frames) and frames.state.size and frames.sent.size:
            few = "too few frames" if len(frames) < 10 else "no joint angles that are known"
            no_motion = f"{few} in commands and readings"
        channels = (
            ("motion", self.motion, no_motion),
            ("currents", self.currents_a, "no motor currents"),
            ("loads", self.loads_pct, "no drive loads"),
            ("scene", self.scene, "no tracked scene"),
            ("force", self.wrench, "no force or torque sensor"),
            ("touch", self.touch, "no touch sensor"),
            ("images", self.pictures, no_pictures),
        )
        return {source: why for source, channel, why in channels if channel is None}


def _motion(
    t_s: FloatArray,
    sent: FloatArray,
    position: FloatArray,
    current: FloatArray,
    joints: tuple[str, ...],
) -> ArmMotion | None:
    period_s = float(np.median(np.diff(t_s)))
    if not period_s > 0:
        return None
    rate_hz = round(1.0 / period_s, 3)  # windows of half a sample must not hang on rounding
    grippers = tuple(i for i, name in enumerate(joints) if "gripper" in name)
    return ArmMotion(t_s, _filled(sent), _filled(position), current, joints, rate_hz, grippers)


def _filled(values: FloatArray) -> FloatArray:
    """Carry the last finite value forward, column by column; leading gaps take the first one.

    Columns without any are 0.
    """
    bad = ~np.isfinite(values)
    if not bad.any():
        return values
    rows = np.where(bad, np.argmin(bad, axis=0), np.arange(len(values))[:, None])
    filled = np.take_along_axis(values, np.maximum.accumulate(rows, axis=0), axis=0)
    filled[:, bad.all(axis=0)] = 0.0
    return filled


def runs(flags: NDArray[np.bool_]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Return where stretches in which `flags`, shape (n,), hold begin, and where they are over."""
    edges = np.flatnonzero(np.diff(np.r_[0, flags.astype(np.int8), 0]))
    return edges[::2], edges[1::2]


def _slope(values: FloatArray, rate_hz: float, span_s: float) -> FloatArray:
    half = max(1, round(0.5 * span_s * rate_hz))
    padded = np.pad(values, ((half, half), (0, 0)), mode="edge")
    return np.asarray((padded[2 * half :] - padded[: -2 * half]) * (rate_hz / (2 * half)))
