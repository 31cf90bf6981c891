"""The cheap signals of a running take, updated every turn of the loop.

At the end of a take, after `finish`, each equals what `signals` measures on the recorded take;
before, speeds are half their 50 ms window behind. Numbers so far, not of a window.
"""

from collections import deque
from collections.abc import Mapping, Sequence
from typing import Final

import numpy as np

from gaploop.core.messages import FloatArray, Tick
from gaploop.core.take import TRACKED_SCENE
from gaploop.failure_analysis.signals.motion import (
    STEP_S,
    STILL_RAD_S,
    TRANSIENT_S,
    TURNING_RAD_S,
    high_pass_filter,
)
from gaploop.failure_analysis.views.phases import HELD_RAD, HOLD_S, TaskProgress, scene_xy_m
from gaploop.failure_analysis.views.view import MOVING_RAD_S, tool_places

PATH_EVERY: Final = 5
"""Samples per step of `path_ratio`, as in the signal."""
STREAMED: Final = (
    "tracking_rms_rad", "oscillation_energy_rad2_s2", "reversals_hz", "command_reversals_hz",
    "standstill_s", "idle_end_s", "joint_path_rad", "path_ratio", "repeat_share", "held_s",
    "current_jump_a", "effort_a", "load_jump_pct", "hidden_share", "hidden_longest_s", "hidden_hz",
    "way_left_m", "headway_stall_s", "way_lost_m",
)  # fmt: skip
"""Signals that are watched live, by their registered names."""


class LiveSignals:
    """A sink that keeps the cheap signals of the take so far; `joints` as ticks' arrays have them.

    The loop turns at `control_hz`, the policy sees `fps` frames a second.
    """

    def __init__(self, joints: Sequence[str], control_hz: float, fps: float) -> None:
        self._joints, self._rate_hz, self._fps = tuple(joints), control_hz, fps
        self._arm = np.array([i for i, name in enumerate(joints) if "gripper" not in name])
        self._grippers = [i for i, name in enumerate(joints) if "gripper" in name]
        self.reset()

    def reset(self) -> None:
        """Forget the take before."""
        self.ticks = 0
        self.t_s = self._start_s = 0.0
        self._square = self._effort = 0.0
        self._speeds = _Speeds(self._rate_hz, self._arm)
        self._shakes = _Shakes(len(self._arm), self._rate_hz)
        self._paths = _Paths(self._rate_hz)
        self._hold = _Runs()
        self._currents = _Jump(self._rate_hz)
        self._loads = _Jump(self._rate_hz)
        self._scene = _SceneSoFar(self._joints, self._fps)
        self._last: FloatArray | None = None

    def tick(self, tick: Tick) -> None:
        """Take note of one turn."""
        state, sent = tick.state, tick.command.sent_rad
        read, missing = state.position_rad, np.isnan(state.position_rad)
        if missing.any():  # as they were last
            before = self._last if self._last is not None else np.zeros_like(read)
            read = np.where(missing, before, read)
        self._last = read
        if not self.ticks:
            self._start_s = tick.t_s
        self.ticks += 1
        self.t_s = tick.t_s
        arm_read, arm_sent = read[self._arm], sent[self._arm]
        error = arm_read - arm_sent
        self._square += float(error @ error)
        self._speeds.push(tick.t_s, read, sent)
        self._shakes.push(arm_read, arm_sent)
        self._paths.push(arm_read, arm_sent)
        short_rad = np.nan
        if self._grippers:
            short_rad = float((read - sent)[self._grippers].max())
            self._hold.push(short_rad > HELD_RAD)
        self._effort += float(np.nansum(np.abs(state.current_a)))
        self._currents.push(state.current_a[self._arm])
        self._loads.push(state.load_pct[self._arm])
        if tick.policy_frame and tick.environment_state is not None:
            self._scene.push(tick.t_s, read, short_rad, tick.environment_state)

    def finish(self) -> None:
        """Say that the take is over, so that the last speeds count too."""
        self._speeds.finish()

    def values(self) -> dict[str, float]:
        """Return signal to value so far, for each of `STREAMED`; NaN where it can't be seen."""
        if not self.ticks:
            return dict.fromkeys(STREAMED, np.nan)
        held_s = self._hold.beyond(HOLD_S * self._rate_hz) / self._rate_hz
        known = {
            "tracking_rms_rad": (self._square / (self.ticks * len(self._arm))) ** 0.5,
            "oscillation_energy_rad2_s2": self._shakes.energy,
            "held_s": held_s if self._grippers else np.nan,
            "current_jump_a": self._currents.rms,
            "effort_a": self._effort / self.ticks if self._currents.seen else np.nan,
            "load_jump_pct": self._loads.rms,
            **self._speeds.values(self.t_s - self._start_s),
            **self._paths.values(),
            **self._scene.values(),
        }
        return {name: known[name] for name in STREAMED}


class _Runs:
    """Lengths of the stretches in which something is so."""

    def __init__(self) -> None:
        self.longest = self._now = 0
        self._closed: list[int] = []

    def push(self, is_so: bool) -> None:
        if is_so:
            self._now += 1
            self.longest = max(self.longest, self._now)
        elif self._now:
            self._closed.append(self._now)
            self._now = 0

    def beyond(self, least: float) -> float:
        """Return by how much the stretches were longer than `least`, in all."""
        return sum(max(run - least, 0.0) for run in (*self._closed, self._now))


class _Jump:
    """Changes within `TRANSIENT_S`."""

    def __init__(self, rate_hz: float) -> None:
        self._rows: deque[FloatArray] = deque(maxlen=max(1, round(TRANSIENT_S * rate_hz)) + 1)
        self._square, self._count = 0.0, 0
        self.seen = False

    def push(self, row: FloatArray) -> None:
        self._rows.append(row)
        if len(self._rows) == self._rows.maxlen:
            change = float(np.fmax.reduce(np.abs(row - self._rows[0])))
            if change == change:  # not NaN: some drive reported both
                self._square += change * change
                self._count += 1
        self.seen = self.seen or bool(np.isfinite(row).any())

    @property
    def rms(self) -> float:
        return (self._square / self._count) ** 0.5 if self._count else np.nan


class _Shakes:
    """Motion above 2.5 Hz, by the filter of `signals.motion.shaking_rad_s` sample by sample."""

    def __init__(self, width: int, rate_hz: float) -> None:
        self._rate_hz = rate_hz
        b, a = high_pass_filter(round(rate_hz, 6))
        self._b, self._a = b.tolist(), a.tolist()
        self._first, self._second = np.zeros(2 * width), np.zeros(2 * width)
        self._signs = np.r_[np.ones(width), -np.ones(width)]
        self._last: FloatArray | None = None
        self._sum, self._count = 0.0, 0

    def push(self, read: FloatArray, sent: FloatArray) -> None:
        row = np.concatenate((read, sent))
        last = row if self._last is None else self._last
        speed, b, a = (row - last) * self._rate_hz, self._b, self._a
        fast = b[0] * speed + self._first  # direct form II, transposed
        self._first = b[1] * speed - a[1] * fast + self._second
        self._second = b[2] * speed - a[2] * fast
        self._sum += float((fast * fast) @ self._signs)
        self._count += 1
        self._last = row

    @property
    def energy(self) -> float:
        return max(0.0, self._sum / max(self._count, 1))


class _Paths:
    """Ways of readings and commands."""

    def __init__(self, rate_hz: float) -> None:
        self._every = max(1, round(STEP_S * rate_hz))
        self._count = 0
        self._way = self._read = self._sent = 0.0
        self._step: FloatArray | None = None
        self._fifth: tuple[FloatArray, FloatArray] | None = None

    def push(self, read: FloatArray, sent: FloatArray) -> None:
        if self._count % self._every == 0:
            if self._step is not None:
                self._way += float(np.abs(read - self._step).sum())
            self._step = read
        if self._count % PATH_EVERY == 0:
            if self._fifth is not None:
                self._read += float(np.abs(read - self._fifth[0]).sum())
                self._sent += float(np.abs(sent - self._fifth[1]).sum())
            self._fifth = (read, sent)
        self._count += 1

    def values(self) -> Mapping[str, float]:
        ratio = self._read / self._sent if self._sent > 0.2 else np.nan
        return {"joint_path_rad": self._way, "path_ratio": ratio}


class _Speeds:
    """What follows from speeds over 50 ms, centred as in `views.view`."""

    def __init__(self, rate_hz: float, arm: FloatArray) -> None:
        self._half = max(1, round(0.5 * 0.05 * rate_hz))
        self._rate_hz, self._arm = rate_hz, arm
        self._rows: deque[FloatArray] = deque(maxlen=2 * self._half + 1)
        self._marks: deque[tuple[float, bool]] = deque(maxlen=self._half + 1)
        self._signs: FloatArray = np.zeros((2, len(arm)))
        self._turns = np.zeros((2, len(arm)), dtype=np.int64)
        self._still = _Runs()
        self._first_s = self._moved_s = np.nan
        self._moving = self._repeats = 0

    def push(self, t_s: float, read: FloatArray, sent: FloatArray) -> None:
        row = np.stack((read, sent))
        if not self._rows:
            self._first_s = self._moved_s = t_s
            self._rows.extend([row] * self._half)
        same = bool((row[0] == self._rows[-1][0]).all())
        self._marks.append((t_s, same))
        self._add(row)

    def finish(self) -> None:
        for _ in range(self._half if self._rows else 0):
            self._marks.append(self._marks[-1])
            self._add(self._rows[-1])

    def _add(self, row: FloatArray) -> None:
        self._rows.append(row)
        if len(self._rows) < 2 * self._half + 1:
            return
        velocity = (row - self._rows[0]) * (self._rate_hz / (2 * self._half))
        t_s, same = self._marks[0]
        fastest = float(np.abs(velocity[0]).max())
        if fastest > STILL_RAD_S:
            self._moved_s = t_s
        self._still.push(fastest <= STILL_RAD_S)
        if fastest > MOVING_RAD_S and t_s > self._first_s:
            self._moving += 1
            self._repeats += same
        arm = velocity[:, self._arm]
        sign = np.sign(arm) * (np.abs(arm) > TURNING_RAD_S)
        self._turns += sign * self._signs < 0
        self._signs = np.where(sign == 0, self._signs, sign)

    def values(self, duration_s: float) -> Mapping[str, float]:
        turns = self._turns.max(axis=1) / max(duration_s, 1e-3)
        return {
            "reversals_hz": float(turns[0]),
            "command_reversals_hz": float(turns[1]),
            "standstill_s": self._still.longest / self._rate_hz,
            "idle_end_s": self._first_s + duration_s - self._moved_s,
            "repeat_share": self._repeats / self._moving if self._moving >= 20 else np.nan,
        }


class _SceneSoFar:
    """TaskProgress and dropouts of the tracker, frame by frame."""

    def __init__(self, joints: Sequence[str], fps: float) -> None:
        self._joints, self._fps = tuple(joints), fps
        self._progress: TaskProgress | None = None
        self._frames = self._hidden = self._run = self._longest = self._losses = 0
        self._was_visible = False

    def push(
        self, t_s: float, read_rad: FloatArray, short_rad: float, environment: FloatArray
    ) -> None:
        """Take note of a frame: its time [s], readings [rad], gripper error [rad] and scene."""
        if len(environment) != len(TRACKED_SCENE):
            return
        visible = bool(environment[5] > 0.5)
        hidden = bool(environment[5] < 0.5)
        self._frames += 1
        self._hidden += hidden
        self._losses += hidden and self._was_visible
        self._was_visible = not hidden
        self._run = self._run + 1 if hidden else 0
        self._longest = max(self._longest, self._run)
        tool_m = tool_places(read_rad[None], self._joints)
        if tool_m is None or np.isnan(short_rad):
            return
        object_m, target_m, _ = scene_xy_m(environment[None])
        if self._progress is None:
            self._progress = TaskProgress()
        self._progress.update(t_s, tool_m[0, :2], object_m[0], target_m[0], visible, short_rad)

    def values(self) -> Mapping[str, float]:
        way, seen = self._progress, self._frames
        return {
            "hidden_share": self._hidden / seen if seen else np.nan,
            "hidden_longest_s": self._longest / self._fps if seen else np.nan,
            "hidden_hz": self._losses * self._fps / seen if seen else np.nan,
            "way_left_m": way.remaining_path_m if way else np.nan,
            "headway_stall_s": way.stalled_s if way else np.nan,
            "way_lost_m": way.lost_m if way else np.nan,
        }
