"""Noise of a servo's readings as logs of a real arm show it, joint by joint.

Real readings are no white noise: an arm at rest reads the same step for seconds, noise grows with
speed (a reading is taken somewhat earlier or later than it says), neighbours are alike, some spans
are louder, single readings are wildly wrong or repeat. `sim.identification.noise` learns these
figures; only a twin has them, and no gap is drawn from them.
"""

from typing import Final

import numpy as np
from numpy.typing import NDArray

from gaploop.core.messages import FloatArray
from gaploop.core.vocabulary import GapDimension
from gaploop.sim.gaps.mechanism import JOINTS, Appliers, Mechanism, Parameter, Rng, Values

TAUS_S: Final = (0.03, 0.2)
"""Correlation times of the parts of noise that aren't white [s]."""
NOISE: Final = (
    Parameter("noise_rad", "rad", 0.0, 0.5),
    Parameter("per_speed_s", "s", 0.0, 1.0),
    Parameter("fast_share", "1", 0.0, 1.0),
    Parameter("slow_share", "1", 0.0, 1.0),
    Parameter("loud_share", "1", 0.0, 0.5),
    Parameter("loud_factor", "1", 1.0, 1000.0, 1.0),
    Parameter("loud_s", "s", 0.001, 10.0, 0.1),
    Parameter("spike_hz", "1/s", 0.0, 100.0),
    Parameter("spike_rad", "rad", 0.0, 10.0),
    Parameter("held_share", "1", 0.0, 0.95),
    Parameter("held_s", "s", 0.001, 10.0, 0.1),
    Parameter("dead_rad", "rad", 0.0, 0.5),
    Parameter("step_rad", "rad", 0.0, 0.5),
)
"""Of one joint: standard deviation at rest, what it grows by with speed (at a right angle to it),
the shares of variance with `TAUS_S`, louder spans, wild and repeated readings, the change below
which a reading stays as it is, and steps."""


class ReadingNoise:
    """Adds such noise to readings; the same seed gives the same noise at the same times."""

    def __init__(self, joints: list[Values | None]) -> None:
        """Take each joint's values by the names of `NOISE`; None leaves its readings alone."""
        nominal = {p.name: p.nominal for p in NOISE}
        rows = [{**nominal, **(joint or {})} for joint in joints]
        self._p = {name: np.array([row[name] for row in rows]) for name in nominal}
        self._silent = np.array([joint is None for joint in joints])
        self.reset(np.random.default_rng(0))

    def reset(self, rng: Rng) -> None:
        """Start a take; `rng` draws its noise."""
        n = len(self._silent)
        self._rng, self._t_s = rng, -np.inf
        self._slow: FloatArray = rng.normal(size=(len(TAUS_S), n))
        self._loud: NDArray[np.bool_] = rng.random(n) < self._p["loud_share"]
        self._held: NDArray[np.bool_] = np.zeros(n, dtype=np.bool_)
        self._true: FloatArray | None = None
        self._read: FloatArray = np.zeros(n)

    def read(self, t_s: float, q_rad: FloatArray) -> FloatArray:
        """Return what is read at `t_s` [s] of angles [rad], shape (n_joints,)."""
        if self._true is None:
            self._true, self._read = q_rad.copy(), q_rad.copy()
            since_s = 0.02
        elif t_s <= self._t_s:
            return self._read
        else:
            since_s = t_s - self._t_s
        speed = np.abs(q_rad - self._true) / since_s
        p, rng, n = self._p, self._rng, len(q_rad)
        stay = np.exp(-since_s / np.array(TAUS_S))[:, None]
        self._slow = stay * self._slow + np.sqrt(1 - stay**2) * rng.normal(size=(len(TAUS_S), n))
        self._loud = _switch(rng, self._loud, p["loud_share"], p["loud_s"], since_s)
        self._held = _switch(rng, self._held, p["held_share"], p["held_s"], since_s)
        shares = np.stack([p["fast_share"], p["slow_share"]])
        white = np.sqrt(np.maximum(1 - shares.sum(0), 0.0))
        unit = white * rng.normal(size=n) + (np.sqrt(shares) * self._slow).sum(0)
        loudness = np.where(self._loud, p["loud_factor"], 1.0)
        read = q_rad + loudness * np.hypot(p["noise_rad"], p["per_speed_s"] * speed) * unit
        spike = rng.random(n) < 1 - np.exp(-p["spike_hz"] * since_s)
        read += np.where(spike, p["spike_rad"] * rng.normal(size=n), 0.0)
        step = np.where(p["step_rad"] > 0, p["step_rad"], 1.0)
        read = np.where(p["step_rad"] > 0, np.round(read / step) * step, read)
        stays = self._held | (np.abs(read - self._read) < p["dead_rad"])
        read = np.where(stays, self._read, read)
        self._t_s, self._true = t_s, q_rad.copy()
        self._read = np.where(self._silent, q_rad, read)
        return self._read


def _switch(
    rng: Rng, on: NDArray[np.bool_], share: FloatArray, lasts_s: FloatArray, since_s: float
) -> NDArray[np.bool_]:
    """Return a two-state process later on: on for `lasts_s` on average, and `share` of the time."""
    rate = 1 / (lasts_s * (1 - share))  # of going on and off together
    keeps = np.exp(-rate * since_s)
    drawn = rng.random(len(on))
    return np.asarray(drawn < np.where(on, share + (1 - share) * keeps, share * (1 - keeps)))


class _Readings(Mechanism):
    dimension, name = GapDimension.SENSOR_NOISE, "readings"
    parameters = tuple(
        Parameter(f"{joint}.{p.name}", p.unit, p.low, p.high, p.nominal)
        for joint in JOINTS
        for p in NOISE
    )

    def apply(self, p: Values, on: Appliers) -> None:
        arm = on.model.arm
        on.sensors.logged = ReadingNoise(
            [{q.name: p[f"{joint}.{q.name}"] for q in NOISE} if k in arm.arm_columns else None
             for k, joint in enumerate(arm.joint_names)]
        )  # fmt: skip


READINGS: Final = _Readings()
