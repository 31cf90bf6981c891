"""What the encoders report: offset, drift, noise, coarse steps, bus outages."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from gaploop.sim.arms import CellArm
from gaploop.sim.gaps.catalog import InjectedGap

DRIFT_HZ = (0.15, 0.5)  # a drift that comes and goes within a take
HORIZON_S = 30.0  # outages and spikes are drawn this far ahead; no take is longer
SPIKE_S = (0.03, 0.09)  # from a few wrong readings to one that a servo acts upon


class SensorPath:
    """Joint offsets and read faults of one station, redrawn for each take."""

    def __init__(self, gaps: Sequence[InjectedGap], arm: CellArm) -> None:
        merged: dict[str, float] = {}
        for gap in gaps:
            merged.update(gap.parameters)
        # The gripper's angle is not offset: its zero is the closed jaw, which every calibration
        # finds.
        self._zero = np.array([merged.get(key, 0.0) for key in arm.zero_keys] + [0.0])
        self._drift_rad = merged.get("drift_rad", 0.0)
        self._noise_rad = merged.get("noise_rad", 0.0)
        self._stale_fraction = min(merged.get("stale_fraction", 0.0), 0.95)
        self._burst_s = merged.get("burst_s", 0.0)
        self._step_rad = merged.get("step_rad", 0.0)
        self._spike_hz = merged.get("spike_hz", 0.0)
        self._spike_rad = merged.get("spike_rad", 0.0)
        self.offsets_active = bool(
            self._zero.any() or self._drift_rad or self._step_rad or self._spike_hz
        )
        self.reset(np.random.default_rng(0))

    def reset(self, rng: np.random.Generator) -> None:
        """Draw what changes from take to take."""
        self._rng = rng
        self._phase = rng.uniform(0.0, 2.0 * np.pi, len(self._zero))
        self._hz = rng.uniform(*DRIFT_HZ, len(self._zero))
        self._held: NDArray[np.float64] | None = None
        self._outages = self._draw_outages(rng)
        self._spikes = self._draw_spikes(rng)

    def _draw_outages(self, rng: np.random.Generator) -> NDArray[np.float64]:
        """Times [s] at which the bus goes down, up, down, ..., shape (n,); empty without gap."""
        if not self._stale_fraction:
            return np.empty(0)
        count = int(HORIZON_S / self._burst_s) + 1
        down = self._burst_s * rng.uniform(0.3, 1.7, count)
        up = self._burst_s * (1.0 / self._stale_fraction - 1.0) * rng.uniform(0.3, 1.7, count)
        return np.asarray(np.cumsum(np.column_stack([up, down]).reshape(-1)))

    def _draw_spikes(self, rng: np.random.Generator) -> NDArray[np.float64]:
        """Start, end [s], joint and jump [rad] of false readings, shape (n, 4)."""
        if not self._spike_hz:
            return np.empty((0, 4))
        starts = np.cumsum(rng.exponential(1.0 / self._spike_hz, int(HORIZON_S * self._spike_hz)))
        joints = rng.integers(0, len(self._zero) - 1, len(starts))
        jumps = rng.choice([-1.0, 1.0], len(starts)) * rng.uniform(0.4, 1.0, len(starts))
        ends = starts + rng.uniform(*SPIKE_S, len(starts))
        return np.column_stack([starts, ends, joints, jumps * self._spike_rad])

    def bus_out(self, t_s: float) -> bool:
        """Say whether the servo bus is down: no goal arrives and readings repeat."""
        return bool(np.searchsorted(self._outages, t_s) % 2 == 1)

    def offset(self, t_s: float, q_rad: NDArray[np.float64]) -> NDArray[np.float64]:
        """What the encoders read beyond the true angles `q_rad` [rad] at `t_s` [s]; same shape.

        A servo controls its own reading, so the same offset moves the arm the other way.
        """
        drift = self._drift_rad * np.sin(2.0 * np.pi * self._hz * t_s + self._phase)
        offset = self._zero + drift
        starts, ends = self._spikes[:, 0], self._spikes[:, 1]
        for _, _, joint, jump_rad in self._spikes[(starts <= t_s) & (t_s < ends)]:
            offset[int(joint)] += jump_rad
        if self._step_rad:
            read = q_rad + offset
            offset = offset + np.round(read / self._step_rad) * self._step_rad - read
        offset[-1] = 0.0
        return np.asarray(offset)

    def position(self, t_s: float, q_rad: NDArray[np.float64]) -> NDArray[np.float64]:
        """Reported position [rad], shape (n_joints,), for a true one."""
        if self.offsets_active:
            q_rad = q_rad + self.offset(t_s, q_rad)
        if self._noise_rad:
            q_rad = q_rad + self._rng.normal(0.0, self._noise_rad, len(self._zero))
        if self._held is not None and self.bus_out(t_s):
            return self._held
        self._held = q_rad
        return q_rad
