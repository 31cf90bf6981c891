"""What the contact between an arm's jaws, an object and the table is like, from a short probe.

A person stands the object between the open jaws and takes it away afterwards. The jaws close by a
few torque limits and slide down the object, squeeze it harder, lift it in slow motion, open by a
few torque limits, and push it over the table; then they do the lift empty. The camera counts only
with the arm withdrawn.

The goals are replayed in cells whose contact is drawn from wide ranges, with the drives as they
were identified, drawn from their intervals. What was felt is summed up by means over windows of the
motion; trees predict the contact from them (Geurts, Ernst and Wehenkel 2006), and the station's
contact is the prediction plus the errors of the draws predicted alike (semi-automatic approximate
Bayesian computation: Fearnhead and Prangle 2012; its adjustment: Beaumont, Zhang and Balding 2002).
"""

import math
import os
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from functools import cache
from typing import Any, Final

import numpy as np

from gaploop.core.arm import CellArm
from gaploop.core.messages import FloatArray
from gaploop.core.take import TRACKED_SCENE, Take
from gaploop.core.twin import Twin, TwinParameter, around_twin
from gaploop.sim import scene
from gaploop.sim.catalogue import SO101
from gaploop.sim.cell import SimCell
from gaploop.sim.gaps.mechanism import Values
from gaploop.sim.identification.wander import DRIFT
from gaploop.sim.kinematics import ArmIk, from_polar
from gaploop.sim.randomise import draw, over

PROBE: Final = "probe"
"""The condition that names a take's part of a probe;"""
FULL, EMPTY = "contact", "contact empty"
"""those of contact: with the object, and without."""
PERIOD_S: Final = 0.02
RADIUS_M: Final = 0.16
"""Where the object stands: straight ahead, so far from the first joint's axis [m]."""
PLACED_M, PLACED_RAD = 0.001, 0.05
"""Standard deviations of where a person puts it."""
SEEN_M: Final = 0.001
"""Standard deviation of where it is tracked;"""
HIDDEN_M: Final = 0.035
"""nearer to the tool than this, or higher, it isn't."""
SEEN: Final = TRACKED_SCENE.index("visible")
ASIDE_RAD: Final = 1.2
"""The arm turns so far aside when the camera looks."""
SLIDES_PCT: Final = (6.0, 10.0, 16.0)
"""Torque limits that the jaws slide down at [% of stall]. At more, rough jaws would stall the arm;
at less, the gripper's own friction holds it."""
SQUEEZES_PCT: Final = (*SLIDES_PCT, 25.0, 50.0)
FEELS: Final = (1, 2, 3, -1)
"""Joints whose load counts: those that lift, and the gripper."""
RELEASES_PCT: Final = (3.0, 4.5, 6.5, 9.0, 12.0)
"""Torque limits that the jaws open by: a sticky object holds them."""
SLIDE_M, LIFT_M, OVER_M = 0.002, 0.04, 0.05
PUSH_RAD: Final = (0.55, 0.08)
PUSH_RAD_S: Final = 2.6
HANDED_ON: Final = (
    "actuator_response.", "spatial_geometry.zero_offset", "spatial_geometry.base_pose",
    "spatial_geometry.bent_hand", "object_property.size",
)  # fmt: skip
READINGS: Final = ("sensor_noise.coarse_encoder", "sensor_noise.encoder_drift")
AWAY_M: Final = np.array([-0.3, -0.3])


@dataclass(frozen=True)
class ContactScript:
    """What the arm is told.

    Attributes:
        goal_rad: every `PERIOD_S` [rad], shape (n, n_joints).
        torque_pct: what the gripper may push with, of its stall torque, shape (n,).
        windows: name to first and last row.
    """

    goal_rad: FloatArray
    torque_pct: FloatArray
    windows: Mapping[str, tuple[int, int]]

    @property
    def duration_s(self) -> float:
        """How long it takes [s]."""
        return PERIOD_S * len(self.goal_rad)

    def at(self, t_s: float) -> tuple[FloatArray, float]:
        """Return goal [rad] and torque limit [%] at `t_s` [s]."""
        row = min(int(t_s / PERIOD_S + 1e-6), len(self.goal_rad) - 1)
        return self.goal_rad[row], float(self.torque_pct[row])


@cache
def contact_script(arm: CellArm = SO101, empty: bool = False) -> ContactScript:
    """Return the motion with the object, or the same lift without it."""
    ik = ArmIk(scene.build_model(scene.SceneOptions(arm=arm)), arm.joint_names[:-1])
    grip, half_m = arm.grip, scene.CUBE_HALF_SIZE_M
    low_m, reach_m = half_m - 0.001, RADIUS_M + grip.object_offset_m(half_m, 0.006)
    q = np.array(arm.home_q_rad)
    at = np.array([0.0, low_m + OVER_M, grip.open_rad])  # azimuth, height, gripper
    goals, limits, windows = list[FloatArray](), list[float](), dict[str, tuple[int, int]]()

    def go(
        seconds: float, pct: float = 50.0, name: str = "", azimuth: float | None = None,
        height: float | None = None, gripper: float | None = None,
    ) -> None:  # fmt: skip
        nonlocal at, q
        given = zip(at, (azimuth, height, gripper), strict=True)
        end = np.array([now if to is None else to for now, to in given])
        rows = round(seconds / PERIOD_S)
        for k in range(1, rows + 1):
            share = k / rows if name else 3.0 * (k / rows) ** 2 - 2.0 * (k / rows) ** 3
            now = at + (end - at) * share
            place = np.array([*from_polar(now[0], reach_m), now[1]])
            q = np.append(ik.solve(place, now[0] + np.pi, q), now[2])
            goals.append(q)
            limits.append(pct)
        at = end
        if name:
            windows[name] = (len(goals) - round(0.7 * rows), len(goals))

    home, at[0] = np.array(arm.home_q_rad), ASIDE_RAD
    for _ in range(50):
        q[:-1] = ik.solve(np.array([*from_polar(at[0], reach_m), at[1]]), at[0] + np.pi, q)
    q[-1] = at[2]
    goals += [home + (q - home) * k / 50 for k in range(1, 51)]
    limits += [50.0] * 50
    go(0.6, name="look 0")
    go(1.2, azimuth=0.0)
    if not empty:
        go(1.2, height=low_m + len(SLIDES_PCT) * SLIDE_M)
        go(3.2, SLIDES_PCT[0], gripper=grip.shut_rad)
        for pct in SQUEEZES_PCT:
            go(0.5, pct, f"squeeze {pct:g}")
            if pct in SLIDES_PCT:
                go(0.8, pct, f"slide {pct:g}", height=at[1] - SLIDE_M)
    else:
        go(1.2, height=low_m, gripper=grip.shut_rad)
    go(2.5, 50.0, "up", height=low_m + LIFT_M)
    go(2.5, 50.0, "down", height=low_m)
    if not empty:
        for pct in RELEASES_PCT:
            go(0.4, pct, f"release {pct:g}", gripper=grip.open_rad)
        go(0.3, gripper=grip.open_rad)
        go(1.2, height=low_m + OVER_M)
        go(0.8, azimuth=ASIDE_RAD)
        go(0.6, name="look 1")
        go(0.6, azimuth=PUSH_RAD[0], gripper=grip.shut_rad)
        go(1.0, height=low_m)
        go((PUSH_RAD[0] - PUSH_RAD[1]) / PUSH_RAD_S, 50.0, "push", azimuth=PUSH_RAD[1])
        go(0.4)
        go(1.0, height=low_m + OVER_M)
        go(0.8, azimuth=ASIDE_RAD)
        go(0.6, name="look 2")
    return ContactScript(np.array(goals), np.array(limits), windows)


@dataclass(frozen=True)
class Felt:
    """What a probe felt, by the rows of its script.

    Attributes:
        goal_rad: what the arm was told [rad], shape (n, n_joints).
        q_rad: readings [rad], same shape.
        load_pct: of stall torque, same shape.
        seen_m: where the object was seen [m], shape (n, 2); NaN where it wasn't.
    """

    goal_rad: FloatArray
    q_rad: FloatArray
    load_pct: FloatArray
    seen_m: FloatArray


def stand_object(cell: SimCell, rng: np.random.Generator) -> None:
    """Stand the object where a person does, right after a reset."""
    centre = from_polar(0.0, RADIUS_M) + PLACED_M * np.clip(rng.normal(size=2), -2, 2)
    yaw_rad = PLACED_RAD * float(np.clip(rng.normal(), -2, 2))
    cell.lay(centre, yaw_rad, AWAY_M)


def take_object_away(cell: SimCell) -> None:
    """Put the object out of the way, right after a reset."""
    cell.lay(-AWAY_M, 0.0, AWAY_M)


def replay(
    of: Felt, arm: CellArm, empty: bool, parameters: Mapping[str, Values], rng: np.random.Generator
) -> Felt:
    """Return what is felt of the same goals in another cell, in the script's windows."""
    script = contact_script(arm, empty)
    q, load = np.full_like(of.q_rad, np.nan), np.full_like(of.q_rad, np.nan)
    seen: FloatArray = np.full((len(q), 2), np.nan)
    counts = dict.fromkeys(range(len(q)), "")
    for name, rows in script.windows.items():
        counts |= dict.fromkeys(range(*rows), name)
    with SimCell(parameters=parameters, robot=arm.name, image_size=32, camera_hz=0.01) as cell:
        if any(name.startswith(READINGS) for name in parameters):
            cell.reset(int(rng.integers(1 << 31)))  # noise of its own for each replay
        if empty:
            take_object_away(cell)
        else:
            stand_object(cell, rng)
        for k, pct in enumerate(script.torque_pct.tolist()):
            cell.limit_gripper(pct)
            cell.command(of.goal_rad[k])
            cell.advance(PERIOD_S)
            if counts[k]:
                state = cell.read()
                q[k], load[k] = state.position_rad, state.load_pct
            if counts[k].startswith("look"):
                truth: dict[str, Any] = cell.truth()
                at, tool = (np.asarray(truth[f"{what}_pos_m"]) for what in ("object", "tool"))
                if math.dist(at[:2], tool[:2]) > HIDDEN_M > at[2]:
                    seen[k] = at[:2] + rng.normal(0.0, SEEN_M, 2)
    return Felt(of.goal_rad, q, load, seen)


def felt(take: Take, arm: CellArm, empty: bool) -> Felt | None:
    """Return what a take of the probe felt, NaN from where a trip ended it; None where too early.

    A heavy object that slips out of the jaws stalls the arm as it comes down; what was felt before
    that counts.
    """
    record, frames, script = take.telemetry, take.frames, contact_script(arm, empty)
    times = PERIOD_S * np.arange(1, len(script.goal_rad) + 1)
    end_s = min(record.t_s[-1], frames.t_s[-1]) + 2 * PERIOD_S
    last = "down" if empty else f"squeeze {SQUEEZES_PCT[-1]:g}"
    if end_s < times[script.windows[last][1] - 1]:
        return None
    told, rows, seen = (
        np.clip(np.searchsorted(t_s, at_s + 1e-6, side="right") - 1, 0, None)
        for t_s, at_s in (
            (record.t_s, times - PERIOD_S), (record.t_s, times), (frames.t_s, times)
        )
    )  # fmt: skip
    order = [record.joints("follower").index(name) for name in arm.joint_names]
    tracked = frames.environment_state[seen]
    places = [from_polar(*row[:2]) if row[SEEN] else np.full(2, np.nan) for row in tracked]
    sent, read, load = (
        record.stack("follower", name)[at][:, order]
        for name, at in (("sent_rad", told), ("position_rad", rows), ("load_pct", rows))
    )
    load[times > end_s] = np.nan
    return Felt(sent, read, load, np.array(places))


def summary(full: Felt, empty: Felt, arm: CellArm) -> FloatArray:
    """Return what a probe comes to, with the object and without: loads [%], angles, shifts.

    NaN for all that comes after a trip.
    """
    found = list[float]()
    windows, bare = (contact_script(arm, is_empty).windows for is_empty in (False, True))
    for name, (first, end) in windows.items():
        if name.startswith(("look", "push")):
            continue
        load = full.load_pct[first:end].mean(0)
        if name in bare:
            load[:-1] -= empty.load_pct[slice(*bare[name])].mean(0)[:-1]
        grip = full.q_rad[first:end, -1]
        # Readings go on after a trip, so that they take its NaN from the load.
        found += [*load[list(FEELS)], *(np.array([grip.mean(), grip[-1] - grip[0]]) + 0 * load[-1])]
    shares, at = list[float](), list[FloatArray]()
    for rows in (slice(*windows[f"look {k}"]) for k in range(3)):
        look, gone = full.seen_m[rows], 0.0 * full.load_pct[rows].sum()
        is_seen = np.isfinite(look).any()
        shares.append(float(np.isfinite(look).mean() + gone))
        at.append((np.nanmedian(look, 0) if is_seen else np.zeros(2)) + gone)
    return np.array([*found, *shares, *(at[1] - at[0]), *(at[2] - at[1])])


LOOKS: Final = 7
"""So many entries of a summary, its last, come from pictures; whether anything was seen first."""


SLIPPERY: Final = "contact_dynamics.slippery.friction_factor"
MASS: Final = "object_property.mass.mass_factor"
SOFT: Final = "contact_dynamics.soft.time_constant_factor"
STICKY: Final = "contact_dynamics.sticky.adhesion_n"
TABLE: Final = "contact_dynamics.table_friction.friction_factor"
PRIOR: Final[Mapping[str, tuple[float, float]]] = {
    SLIPPERY: (0.004, 1.1), MASS: (0.3, 20.0), SOFT: (1.0, 3.5), STICKY: (0.0, 4.5),
    TABLE: (0.03, 1.5),
}  # fmt: skip
"""What contacts are drawn from: evenly in the logarithm, the adhesion itself. Half are soft, half
are sticky."""
_AT: Final = {name: k for k, name in enumerate(PRIOR)}
_NOMINAL: Final = {name: 0.0 if name == STICKY else 1.0 for name in PRIOR}
CONFIDENCE: Final = 0.9
DRAWS: Final = 300
TREES: Final = 100
ALIKE: Final = 60
"""Draws that are predicted most alike: by their errors the station's contact is known."""
USEFUL: Final = 0.5
"""An interval wider than so much of what was drawn from says nothing."""
STRANGE: Final = 0.15
"""Of what was felt, so much lies outside of all that was simulated: it is something else."""
UNLIKE: Final = "nothing that was simulated feels like it"
UNEXPLAINED: Final = "the arm moves unlike its twin, so that what it feels isn't the object's alone"
WANDERS: Final = (
    "the arm's readings wander, and it goes astray: what it feels isn't the object's alone"
)
NOT_PROBED: Final = (
    "no contact part of a probe in the embedded cell: how hard an arm presses for what it reports "
    "is known there only"
)


def drawn(rng: np.random.Generator) -> dict[str, dict[str, float]]:
    """Return a contact, as `SimCell(parameters=…)` takes it."""
    found = dict[str, dict[str, float]]()
    for name, (low, high) in PRIOR.items():
        share, is_there = rng.random(), rng.random() < 0.5
        if is_there or name not in (SOFT, STICKY):
            value = low + share * (high - low) if name == STICKY else low * (high / low) ** share
            mechanism, _, key = name.rpartition(".")
            found[mechanism] = {key: float(value)}
    if SOFT.rpartition(".")[0] in found:
        found[SOFT.rpartition(".")[0]]["slip_creep"] = 0.8 * rng.random() ** 2
    return found


def scaled(contact: Mapping[str, Values]) -> FloatArray:
    """Return a contact as it is fitted, shape (5,): logarithms, and the adhesion [N].

    In place of the time constant t there is the compliance, t² over mass, which is what is felt.
    """
    values = []
    for name in PRIOR:
        mechanism, _, key = name.rpartition(".")
        values.append(_scaled(name, contact.get(mechanism, {}).get(key, _NOMINAL[name])))
    values[_AT[SOFT]] = 2.0 * values[_AT[SOFT]] - values[_AT[MASS]]
    return np.array(values)


def _scaled(name: str, value: float) -> float:
    return value if name == STICKY else math.log(value)


def in_units(contact: FloatArray) -> dict[str, dict[str, float]]:
    """Return a contact that was `scaled`, as `SimCell(parameters=…)` takes it."""
    values, found = dict(zip(PRIOR, contact.tolist(), strict=True)), dict[str, dict[str, float]]()
    values[SOFT] = (values[SOFT] + values[MASS]) / 2.0
    for name, (low, high) in PRIOR.items():
        mechanism, _, key = name.rpartition(".")
        value = values[name] if name == STICKY else math.exp(values[name])
        found[mechanism] = {key: min(max(value, low), high)}
    return found


@dataclass(frozen=True)
class Simulated:
    """Probes of cells whose contact was drawn.

    Attributes:
        contact: of each, as `scaled`, shape (n, 5).
        felt: its `summary`, shape (n, k).
    """

    contact: FloatArray
    felt: FloatArray


def simulate(
    probe: tuple[Felt, Felt],
    arm: CellArm,
    twin: Twin,
    n: int = DRAWS,
    advance: Callable[[], None] = lambda: None,
) -> Simulated:
    """Replay a probe, with the object and without, in cells like the twin, each of another contact.

    What the twin has beside contact is drawn from its intervals.
    """
    known = twin.values(m for m in twin.mechanisms if m.startswith((*HANDED_ON, *READINGS)))
    about = around_twin(twin)
    about = replace(about, ranges=tuple(r for r in about.ranges if r.mechanism in known))

    # Where nothing is drawn around the drives, all draws share the probe without an object.
    empty = None
    if not about.ranges:
        empty = replay(probe[1], arm, True, known, np.random.default_rng([0, 40]))

    def felt_in(k: int) -> tuple[FloatArray, FloatArray]:
        rng = np.random.default_rng([0, k, 40])
        contact = drawn(rng)
        drives = over(known, draw(about, [0, k]))
        bare = replay(probe[1], arm, True, drives, rng) if empty is None else empty
        full = replay(probe[0], arm, False, over(drives, contact), rng)
        return scaled(contact), summary(full, bare, arm)

    contacts, summaries = list[FloatArray](), list[FloatArray]()
    with ThreadPoolExecutor(os.cpu_count()) as threads:  # physics leaves other threads their turn
        for contact, felt_there in threads.map(felt_in, range(n)):
            contacts.append(contact)
            summaries.append(felt_there)
            advance()
    return Simulated(np.array(contacts), np.array(summaries))


def predict(simulated: Simulated, felt: FloatArray) -> tuple[FloatArray, FloatArray]:
    """Return the contact as predicted, shape (5,), and errors of the draws alike, shape (k, 5).

    An error is a draw's contact minus its prediction by the trees that were grown without it.
    """
    from sklearn.ensemble import ExtraTreesRegressor

    trees = ExtraTreesRegressor(
        TREES, min_samples_leaf=2, max_features=0.5, bootstrap=True, oob_score=True, random_state=0
    )
    here, others = np.empty(len(PRIOR)), np.empty_like(simulated.contact)
    shown = np.isfinite(felt)
    if not felt[-LOOKS] > 0.5:  # a camera may not see it at all
        shown[-LOOKS:] = False
    for k, known in enumerate(simulated.contact.T):
        trees.fit(simulated.felt[:, shown], known)
        here[k], others[:, k] = trees.predict(felt[None, shown])[0], trees.oob_prediction_
    away = (((others - here) / simulated.contact.std(0)) ** 2).sum(1)
    alike = np.argsort(away)[:ALIKE]
    return here, (simulated.contact - others)[alike]


def is_known(arm: CellArm) -> bool:
    """Say whether contact can be told of an arm of the cell: of the SO-101, one of whose jaws is
    fixed."""
    return arm is SO101


def probed(takes: Sequence[Take], arm: CellArm) -> tuple[Felt, Felt] | None:
    """Return what a probe felt with the object and without; None where it hasn't both."""
    parts = {take.info.conditions.get(PROBE): take for take in takes}
    full, empty = (
        felt(parts[name], arm, is_empty) if name in parts else None
        for name, is_empty in ((FULL, False), (EMPTY, True))
    )
    return (full, empty) if full and empty else None


def fit_contact(
    takes: Sequence[Take],
    arm: CellArm,
    twin: Twin,
    simulated: Simulated | None = None,
    advance: Callable[[], None] = lambda: None,
) -> tuple[TwinParameter, ...]:
    """Return friction, mass, compliance and stickiness; not excited, with the reason, if untold.

    Args:
        takes: of the station, the contact parts of a probe among them.
        arm: the cell's arm that stands for its own.
        twin: what is known of the station so far, its drives above all.
        simulated: probes of cells like that twin; made here unless given.
        advance: called after each simulated probe.
    """
    probe = probed(takes, arm)
    if probe is None:
        return tuple(untold(name, NOT_PROBED) for name in PRIOR)
    if not twin.fit.get("explained", True):
        return tuple(untold(name, UNEXPLAINED) for name in PRIOR)
    if any(p.name == DRIFT and p.differs for p in twin.parameters):
        return tuple(untold(name, WANDERS) for name in PRIOR)
    simulated = simulated or simulate(probe, arm, twin, advance=advance)
    felt_here = summary(*probe, arm)
    outside = (felt_here < simulated.felt.min(0)) | (felt_here > simulated.felt.max(0))
    if outside[:-LOOKS].mean() > STRANGE:
        return tuple(untold(name, UNLIKE) for name in PRIOR)
    here, errors = predict(simulated, felt_here)
    source = f"probe: contact, {len(errors)} of {len(simulated.felt)} simulated"
    rows = []
    draws = [in_units(here + error) for error in errors]
    for name, column in _AT.items():
        told = here[column], errors[:, column], simulated.contact[:, column]
        said = source
        if name == SOFT:
            low, high = (math.exp(end) for end in ends(*told[:2]))
            said += f"; time constant² / mass {math.exp(told[0]):.3g} [{low:.3g}, {high:.3g}]"
            mass = here[_AT[MASS]], errors[:, _AT[MASS]], simulated.contact[:, _AT[MASS]]
            told = tuple((a + b) / 2.0 for a, b in zip(told, mass, strict=True))
        row = _row(name, *told, said)
        values = (float(f"{draw[row.mechanism][row.key]:.4g}") for draw in draws)
        rows.append(replace(row, draws=tuple(values)))
    return tuple(rows)


def ends(at: float, errors: FloatArray) -> tuple[float, float]:
    """Return the interval in which a further draw lies with the probability of `CONFIDENCE`."""
    values, rank = np.sort(at + errors), math.floor((1 - CONFIDENCE) / 2 * (len(errors) + 1))
    return float(values[rank - 1]), float(values[-rank])


def _row(name: str, at: float, errors: FloatArray, known: FloatArray, source: str) -> TwinParameter:
    """Return what is told of one quantity, everything as `scaled`."""
    nominal, unit, (low, high) = _NOMINAL[name], "N" if name == STICKY else "1", PRIOR[name]
    found, tail = (at, *ends(at, errors)), (1.0 - CONFIDENCE) / 2.0
    widest = float(np.quantile(known, 1.0 - tail) - np.quantile(known, tail))
    as_usual = np.min(at + errors) <= _scaled(name, nominal) <= np.max(at + errors)
    if as_usual and found[2] - found[1] > USEFUL * widest:
        return untold(name, f"{source}: too many contacts feel alike")
    estimate, *interval = (
        min(max(value if name == STICKY else math.exp(value), low), high) for value in found
    )
    estimate = nominal if as_usual else estimate
    return TwinParameter(
        name, unit, nominal, estimate,
        (min(interval[0], estimate), max(interval[1], estimate)), True, source,
    )  # fmt: skip


def untold(name: str, why: str) -> TwinParameter:
    """Return a quantity that a probe doesn't tell, and why."""
    nominal, unit = _NOMINAL[name], "N" if name == STICKY else "1"
    return TwinParameter(name, unit, nominal, nominal, (-math.inf, math.inf), False, why)
