"""Pieces of joint motion with bounded speed and acceleration, strung together."""

from __future__ import annotations

import bisect
import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np

from gaploop.core.types import FloatArray


class MotionSegment(Protocol):
    """A stretch of joint motion."""

    @property
    def duration_s(self) -> float:
        """How long it takes [s]."""
        ...

    def at(self, t_s: float) -> FloatArray:
        """Return joint positions [rad], shape (n_joints,), `t_s` [s] after its start."""
        ...


@dataclass(frozen=True)
class Dwell:
    """Rest at `q_rad` [rad]."""

    q_rad: FloatArray
    duration_s: float

    def at(self, t_s: float) -> FloatArray:
        """Return the pose."""
        del t_s
        return self.q_rad


@dataclass(frozen=True)
class Smooth:
    """From one pose to another with the least jerk (Flash and Hogan 1985), rest to rest."""

    start_rad: FloatArray
    end_rad: FloatArray
    duration_s: float

    @classmethod
    def within(
        cls, start_rad: FloatArray, end_rad: FloatArray, velocity: float, acceleration: float
    ) -> Smooth:
        """Return the fastest one within a speed [rad/s] and an acceleration [rad/s²]."""
        way = float(np.abs(end_rad - start_rad).max())
        # The profile peaks at 15/8 of its mean speed and at 10/sqrt(3) of way / duration².
        slow = max(1.875 * way / velocity, math.sqrt(10 / math.sqrt(3) * way / acceleration))
        return cls(start_rad, end_rad, max(slow, 1e-3))

    def at(self, t_s: float) -> FloatArray:
        """Return the pose at `t_s` [s]."""
        s = min(max(t_s / self.duration_s, 0.0), 1.0)
        share = s**3 * (10.0 - 15.0 * s + 6.0 * s * s)
        return np.asarray(self.start_rad + share * (self.end_rad - self.start_rad))


@dataclass(frozen=True)
class Stroke:
    """One joint from `start_rad` by `way_rad` [rad] at a steady speed, with sharp ends."""

    start_rad: FloatArray
    joint: int
    way_rad: float
    speed_rad_s: float
    acceleration_rad_s2: float

    @property
    def _ramp_s(self) -> float:
        reached = math.sqrt(abs(self.way_rad) / self.acceleration_rad_s2)
        return min(self.speed_rad_s / self.acceleration_rad_s2, reached)

    @property
    def duration_s(self) -> float:
        """How long it takes [s]."""
        ramp_s = self._ramp_s
        return ramp_s + abs(self.way_rad) / (self.acceleration_rad_s2 * ramp_s)

    def at(self, t_s: float) -> FloatArray:
        """Return the pose at `t_s` [s]."""
        ramp_s, a = self._ramp_s, self.acceleration_rad_s2
        t_s = min(max(t_s, 0.0), self.duration_s)
        left_s = self.duration_s - t_s
        if t_s < ramp_s:
            way = 0.5 * a * t_s**2
        elif left_s < ramp_s:
            way = abs(self.way_rad) - 0.5 * a * left_s**2
        else:
            way = a * ramp_s * (t_s - 0.5 * ramp_s)
        q = self.start_rad.copy()
        q[self.joint] += math.copysign(way, self.way_rad)
        return q


@dataclass(frozen=True)
class Chirp:
    """One joint swings about `centre_rad`, ever faster; the swing shrinks to keep the limits.

    Attributes:
        low_hz: frequency at the start [Hz].
        high_hz: frequency at the end [Hz].
        velocity_rad_s: fastest the swing may get [rad/s].
        acceleration_rad_s2: fastest its speed may change [rad/s²].
    """

    centre_rad: FloatArray
    joint: int
    amplitude_rad: float
    low_hz: float
    high_hz: float
    duration_s: float
    velocity_rad_s: float
    acceleration_rad_s2: float

    def at(self, t_s: float) -> FloatArray:
        """Return the pose at `t_s` [s]."""
        t_s = min(max(t_s, 0.0), self.duration_s)
        growth = math.log(self.high_hz / self.low_hz)
        turns_s = self.duration_s / growth if growth > 1e-9 else 0.0
        rate = 2.0 * math.pi * self.low_hz * math.exp(growth * t_s / self.duration_s)
        phase = (rate - 2.0 * math.pi * self.low_hz) * turns_s if turns_s else rate * t_s
        most = (self.amplitude_rad, self.velocity_rad_s / rate, self.acceleration_rad_s2 / rate**2)
        # Below the least of the three, without the corner where one takes over from another.
        swing = sum(bound**-4.0 for bound in most) ** -0.25
        # Fades in and out over a period of the lowest frequency: it starts and ends at rest.
        fade_s = min(1.0 / self.low_hz, 0.25 * self.duration_s)
        near = min(t_s, self.duration_s - t_s, fade_s) / fade_s
        q = self.centre_rad.copy()
        q[self.joint] += swing * math.sin(0.5 * math.pi * near) ** 2 * math.sin(phase)
        return q


class Trajectory:
    """Pieces one after the other."""

    def __init__(self, pieces: Sequence[MotionSegment]) -> None:
        self._pieces = tuple(pieces)
        self._ends_s = list(itertools.accumulate(piece.duration_s for piece in pieces))

    @property
    def duration_s(self) -> float:
        """How long it takes [s]."""
        return self._ends_s[-1] if self._ends_s else 0.0

    def at(self, t_s: float) -> FloatArray:
        """Return the pose at `t_s` [s]; before and after it, that of its start and end."""
        index = min(bisect.bisect_right(self._ends_s, t_s), len(self._pieces) - 1)
        start_s = self._ends_s[index - 1] if index else 0.0
        return self._pieces[index].at(t_s - start_s)

    def sampled(self, period_s: float) -> FloatArray:
        """Return poses [rad] every `period_s` [s], its end included, shape (k, n_joints)."""
        steps = math.ceil(self.duration_s / period_s)
        return np.array([self.at(index * period_s) for index in range(steps + 1)])
