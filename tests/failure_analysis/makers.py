"""Synthetic takes with known faults, made from NumPy alone."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import cache

import numpy as np

from gaploop.core.messages import FloatArray, Image
from gaploop.core.plan import Plan
from gaploop.core.take import TRACKED_SCENE, Frames, Take, TakeInfo
from gaploop.core.telemetry import Telemetry
from gaploop.core.vocabulary import Domain, Outcome, TakeKind
from gaploop.failure_analysis.diagnosis import Diagnosis
from gaploop.failure_analysis.planning.gains import Budget
from gaploop.failure_analysis.planning.planner import PlanRequest, plan_for

JOINTS = ("shoulder_pan", "shoulder_lift", "elbow_flex", "wrist_flex", "wrist_roll", "gripper")
RATE_HZ = 100.0
QUANTUM_RAD = 2 * np.pi / 4096


def commands(seconds: float = 6.0, seed: int = 0) -> FloatArray:
    """Smooth point-to-point moves with rests between them [rad], shape (n, 6)."""
    return _commands(seconds, seed).copy()


@cache
def _commands(seconds: float, seed: int) -> FloatArray:
    rng = np.random.default_rng(seed)
    n = int(seconds * RATE_HZ)
    knots = np.cumsum(rng.uniform(-0.6, 0.6, (5, 6)), axis=0)
    places = np.linspace(0, n - 1, 6)[:-1]
    sent = np.zeros((n, 6))
    for k in range(n):
        at = int(np.searchsorted(places, k, side="right")) - 1
        share = np.clip((k - places[at]) / (0.5 * n / 5), 0.0, 1.0)
        before = knots[at - 1] if at else np.zeros(6)
        sent[k] = before + (knots[at] - before) * (3 * share**2 - 2 * share**3)
    t = np.arange(n) / RATE_HZ
    sent[:, 5] = np.interp(
        t, [0, 1.5, 1.8, 4.0, 4.3, seconds], [0.75, 0.75, -0.1, -0.1, 0.75, 0.75]
    )
    return sent


def take(
    *,
    uid: str = "take",
    sent: FloatArray | None = None,
    lag_s: float = 0.0,
    noise_rad: float = 0.0,
    offset_rad: float = 0.0,
    quantum_rad: float = QUANTUM_RAD,
    hold_rad: float = 0.2,
    seed: int = 0,
    outcome: Outcome = Outcome.FAILURE,
    kind: TakeKind = TakeKind.ROLLOUT,
    pictures: list[Image] | None = None,
    scene: FloatArray | None = None,
    extra: Mapping[str, FloatArray] | None = None,
) -> Take:
    """Return a take whose readings follow its commands with the faults asked for.

    Args:
        hold_rad: how far the jaws stop short of a closed command: they hold something.
        extra: further telemetry columns.
    """
    rng = np.random.default_rng(seed + 1)
    sent = commands(seed=seed) if sent is None else sent
    shift = round(lag_s * RATE_HZ)
    position = np.concatenate([np.repeat(sent[:1], shift, axis=0), sent])[: len(sent)].copy()
    position[:, 5] = np.maximum(position[:, 5], sent[:, 5].min() + hold_rad)
    position[:, 1] += offset_rad
    position += rng.normal(0.0, noise_rad, position.shape) if noise_rad else 0.0
    if quantum_rad:
        position = np.round(position / quantum_rad) * quantum_rad
    columns = {}
    for j, name in enumerate(JOINTS):
        columns[f"follower.{name}.sent_rad"] = sent[:, j]
        columns[f"follower.{name}.position_rad"] = position[:, j]
    columns.update(extra or {})
    t_s = np.arange(len(sent)) / RATE_HZ
    info = TakeInfo(
        uid=uid, fps=50.0, kind=kind, domain=Domain.SIM_TARGET, joint_names=JOINTS, units="deg"
    )
    return Take(
        info,
        outcome,
        frames(sent[::2], position[::2], scene),
        Telemetry(t_s, columns),
        cameras={"overhead": lambda: iter(pictures)} if pictures else {},
    )


def frames(sent: FloatArray, position: FloatArray, scene: FloatArray | None = None) -> Frames:
    """Return the policy-rate record of commands and readings [rad]."""
    n = len(sent)
    none = np.empty((n, 0))
    return Frames(
        np.arange(n) / 50.0,
        np.degrees(position),
        np.degrees(sent),
        np.degrees(sent),
        none if scene is None else scene,
        np.zeros(n, dtype=bool),
        np.zeros(n, dtype=np.int64),
        environment_names=() if scene is None else TRACKED_SCENE,
    )


def only(columns: Mapping[str, FloatArray], rate_hz: float = 50.0, uid: str = "log") -> Take:
    """Return an imported take that has these telemetry columns and nothing else."""
    n = len(next(iter(columns.values())))
    info = TakeInfo(uid=uid, fps=rate_hz, kind=TakeKind.IMPORT)
    record = Telemetry(np.arange(n) / rate_hz, columns)
    return Take(info, Outcome.UNLABELLED, Frames.empty(), record)


def wrench(force_n: FloatArray, uid: str = "window", seed: int = 0) -> Take:
    """Return a force window whose fz is `force_n` plus a 60 N weight and 1 N of noise."""
    rng = np.random.default_rng(seed)
    n = len(force_n)
    axes = ("fx_n", "fy_n", "fz_n", "tx_nm", "ty_nm", "tz_nm")
    values = {f"wrist.{axis}": rng.normal(0.0, 1.0, n) for axis in axes}
    values["wrist.fz_n"] = values["wrist.fz_n"] + 60.0 + force_n
    return only(values, uid=uid)


def scene_picture(
    *, object_px: int = 12, shift_px: tuple[int, int] = (0, 0), gain: float = 1.0, blobs: int = 1
) -> Image:
    """Return a 192 px picture of a textured table with a blue disc and red squares."""
    rng = np.random.default_rng(3)
    big = np.kron(rng.uniform(0.7, 1.0, (40, 40)), np.ones((6, 6)))
    table = big[:240, :240, None] * np.array([200.0, 165.0, 120.0])
    right, down = shift_px
    view = table[24 - down : 216 - down, 24 - right : 216 - right].copy()
    row, column = np.mgrid[:192, :192]
    view[(row - 60 - down) ** 2 + (column - 60 - right) ** 2 < 16**2] = (20, 75, 215)
    for k in range(blobs):
        top, left = 110 + down, 40 + 35 * k + right
        view[top : top + object_px, left : left + object_px] = (230, 30, 15)
    return np.clip(view * gain, 0, 255).astype(np.uint8)


def repeated(picture: Image, count: int = 10) -> list[Image]:
    """Return `count` copies of a picture."""
    return [picture.copy() for _ in range(count)]


def successes(count: int = 8) -> Iterator[Take]:
    """Yield takes that went well, with pictures that differ as real ones do."""
    for k in range(count):
        yield take(
            uid=f"good-{k}",
            seed=k,
            outcome=Outcome.SUCCESS,
            pictures=repeated(scene_picture(gain=1.0 + 0.004 * k)),
        )


def make_plan(diagnosis: Diagnosis, budget_takes: int) -> Plan:
    """A plan within a number of takes."""
    return plan_for(diagnosis, PlanRequest(Budget(takes=budget_takes)))
