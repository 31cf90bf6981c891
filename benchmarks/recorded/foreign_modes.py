"""Failure modes from a force window or from motor currents alone, as foreign logs have them.

Such logs come with their own units, loads and noise. So each is set against the rest of its set,
which needs no label: where the sensor is quiet, what the arm can press with, how it rests.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Final

import numpy as np
from numpy.typing import NDArray

from gaploop.core.messages import FloatArray
from gaploop.core.take import Take
from gaploop.core.vocabulary import FailureMode
from gaploop.failure_analysis.signals.motion import quiet_stretch
from gaploop.failure_analysis.views.view import TakeView

LEAST_TAKES: Final = 5
STILL_RAD_S: Final = 0.03
ALIKE_SHARE: Final = 0.25
"""Currents nearer to each other than this share of the usual rest current are the same rest."""
SAME_LOAD: Final = 6.0
"""Two windows whose quiet readings are nearer, in spreads of the quiet sensor, bear one load."""
SHARED_LOAD: Final = 0.05
"""Of a set's windows: what fewer are quiet at is no load but a push."""
CONTACT_FORCE: Final = 10.0
"""Times the sensor's quiet noise: free motion shakes a wrist sensor by less."""
CONTACT_TORQUE: Final = 6.0
"""The same for torque, which acceleration of a small load touches less than force."""
PRESSING_SHARE: Final = 0.15
"""Share of what the arm can press with: an obstruction is pushed until the drives give way."""
PRESSING_FORCE: Final = 100.0
"""And at least this many times the noise, where no window of the set shows the arm's limit."""

STOPPED_SAMPLES: Final = 2
RARE_REST: Final = 0.20
"""Of the set's rests: an arm that stands with currents rarer than this was stopped on its way."""
UNLOADED_SPREADS: Final = 1.0


@dataclass(frozen=True)
class ForceSet:
    """What a set of force windows says about its sensor.

    Attributes:
        shared: quiet readings that many windows share [N, N m], shape (k, 6): one cluster for each
            load that the sensor carried.
        rests: median reading around each, shape (k, 6).
        noises: median spread of the quiet force [N] and torque [N m] around each, shape (k, 2).
        noise: the same over the whole set, shape (2,).
        limit_n: 95th percentile of the windows' peak force: what the arm can press with [N].
    """

    shared: FloatArray
    rests: FloatArray
    noises: FloatArray
    noise: FloatArray
    limit_n: float

    def usual(self, wrench: FloatArray) -> tuple[FloatArray, FloatArray]:
        """Return rest, shape (6,), and noise, shape (2,), of the load that a window was read at."""
        away = np.linalg.norm((self.shared - _quiet(wrench)[0]) / np.repeat(self.noise, 3), axis=1)
        nearest = int(np.argmin(away))
        return self.rests[nearest], self.noises[nearest]


def _quiet(wrench: FloatArray) -> tuple[FloatArray, FloatArray]:
    """Return a window's quietest reading [N, N m], shape (6,), and its spreads, shape (2,)."""
    force, torque = quiet_stretch(wrench), quiet_stretch(np.roll(wrench, 3, axis=1))
    return np.r_[force[0][:3], torque[0][:3]], np.array([force[1], torque[1]])


def force_set(takes: Iterable[Take]) -> ForceSet | None:
    """Describe the sensor of a set of force windows; None without at least five.

    What many windows share is a load; one that is quiet where few others are is pressed at, or
    falls. One rest for all took free motions with a part for collisions beside an empty gripper.
    """
    windows = [w for w in (TakeView(t, images=False).wrench for t in takes) if w is not None]
    windows = [w for w in windows if len(w) >= 3 and np.isfinite(w).all()]
    if len(windows) < LEAST_TAKES:
        return None
    quiet = [_quiet(w) for w in windows]
    readings, spreads = np.array([q for q, _ in quiet]), np.array([s for _, s in quiet])
    noise = np.maximum(np.median(spreads, axis=0), (1e-3, 1e-4))
    scaled = readings / np.repeat(noise, 3)
    near = np.linalg.norm(scaled[:, None] - scaled, axis=2) < SAME_LOAD
    shared = near.sum(axis=1) >= max(3, SHARED_LOAD * len(windows))
    if not shared.any():
        shared, near = np.ones(len(windows), dtype=bool), np.ones_like(near)
    groups = near[shared]
    rests = np.array([np.median(readings[g], axis=0) for g in groups])
    noises = np.array([np.maximum(np.median(spreads[g], axis=0), noise) for g in groups])
    known = ForceSet(readings[shared], rests, noises, noise, 0.0)
    peaks = [np.linalg.norm((w - known.usual(w)[0])[:, :3], axis=1).max() for w in windows]
    return replace(known, limit_n=float(np.percentile(peaks, 95)))


def force_mode(view: TakeView, usual: ForceSet | None) -> FailureMode | None:
    """Tell obstruction, collision and nothing apart in a window of force and torque.

    An obstruction presses with a good part of what the arm can; a contact stands out of the
    sensor's quiet noise. A lone window is set against its own quietest stretch.
    """
    wrench = view.wrench
    if wrench is None or not np.isfinite(wrench[:, :3]).any():
        return None
    if usual is None:
        rest, noise = _quiet(wrench)
        noise = np.maximum(noise, (1.0, 0.1))
        usual = ForceSet(rest[None], rest[None], noise[None], noise, 0.0)
    rest, noise = usual.usual(wrench)
    deviation = wrench - rest
    force_n = float(np.nanmax(np.linalg.norm(deviation[:, :3], axis=1)))
    torques = np.linalg.norm(deviation[:, 3:], axis=1)
    torque_nm = float(np.nanmax(torques)) if np.isfinite(torques).any() else 0.0
    by_force, by_torque = force_n / noise[0], torque_nm / noise[1]
    pressing_n = max(PRESSING_SHARE * usual.limit_n, PRESSING_FORCE * usual.noise[0])
    if force_n > pressing_n:
        return FailureMode.OBSTRUCTION
    if by_force > CONTACT_FORCE or by_torque > CONTACT_TORQUE:
        return FailureMode.COLLISION
    return None


@dataclass(frozen=True)
class Drives:
    """Currents of one take's arm [A], shape (n, n_joints), and where no joint moves, shape (n,).

    Nothing stands still where no speeds were logged.
    """

    current_a: FloatArray
    still: NDArray[np.bool_]

    @property
    def load_a(self) -> float:
        """Largest summed current of the joints that bear the load (all but base and wrist) [A]."""
        bearing = self.current_a[:, 1:4] if self.current_a.shape[1] > 3 else self.current_a
        sums = np.abs(bearing).sum(axis=1)
        return float(np.nanmax(sums)) if np.isfinite(sums).any() else float("nan")


def drives(take: Take) -> Drives | None:
    """Return a take's currents and speeds, or None without currents."""
    record = take.telemetry
    for arm in record.arms():
        current, speed = record.stack(arm, "current_a"), record.stack(arm, "velocity_rad_s")
        if np.isfinite(current).any():
            known = np.isfinite(speed).all(axis=1)
            still = known & (np.abs(np.nan_to_num(speed)).max(axis=1) < STILL_RAD_S)
            return Drives(current, still)
    return None


@dataclass(frozen=True)
class CurrentSet:
    """What a set of current logs says about its arm.

    Attributes:
        rests_a: every resting current vector of the set [A], shape (m, n_joints).
        owner: which take each comes from, by uid, length m.
        alike_a: two rests nearer than this are the same rest [A].
        load_a: median over the takes of their largest load current [A].
        load_spread_a: its spread, 1.4826 MAD [A].
    """

    rests_a: FloatArray
    owner: tuple[str, ...]
    alike_a: float
    load_a: float
    load_spread_a: float

    def share_alike(self, current_a: FloatArray, uid: str) -> float:
        """Return the share of the other takes' rests that are like `current_a`, (n_joints,)."""
        others = np.array([name != uid for name in self.owner])
        if not others.any() or not np.isfinite(current_a).all():
            return float("nan")
        away = np.linalg.norm(self.rests_a[others] - current_a, axis=1)
        return float((away < self.alike_a).mean())


def current_set(takes: Iterable[Take]) -> CurrentSet | None:
    """Describe a set of current logs of one arm; None without at least five."""
    found = [(t.info.uid, d) for t in takes if (d := drives(t)) is not None]
    if len(found) < LEAST_TAKES or len({d.current_a.shape[1] for _, d in found}) != 1:
        return None
    rests, owner = [], list[str]()
    for uid, drive in found:
        rows = drive.current_a[drive.still & np.isfinite(drive.current_a).all(axis=1)]
        rests.append(rows)
        owner += [uid] * len(rows)
    loads = np.array([d.load_a for _, d in found])
    loads = loads[np.isfinite(loads)]
    if not owner or not len(loads):
        return None
    every = np.concatenate(rests)
    usual = float(np.median(np.linalg.norm(every, axis=1)))
    middle = float(np.median(loads))
    spread = 1.4826 * float(np.median(np.abs(loads - middle)))
    return CurrentSet(every, tuple(owner), ALIKE_SHARE * usual, middle, max(spread, 1e-3))


def current_mode(view: TakeView, usual: CurrentSet | None) -> FailureMode | None:
    """Tell a stopped arm, a lost grip and nothing apart from motor currents and speeds.

    An arm that was stopped stands, at the end, with currents it seldom rests with. Motors that
    never show the load that they show in the rest of the set carry nothing: what was gripped is
    gone.
    """
    arm = drives(view.take)
    if arm is None or usual is None:
        return None
    tail = arm.still[-4:]
    if tail.sum() >= STOPPED_SAMPLES:
        shares = [usual.share_alike(row, view.take.info.uid) for row in arm.current_a[-4:][tail]]
        share = float(np.nanmean(shares)) if np.isfinite(shares).any() else float("nan")
        if share < RARE_REST:
            return FailureMode.COLLISION
    if arm.load_a < usual.load_a - UNLOADED_SPREADS * usual.load_spread_a:
        return FailureMode.SLIP
    return None
