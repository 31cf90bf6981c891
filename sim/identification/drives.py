"""Which drives a station's arm has, from the goals it was given and where it said it was.

What may differ is in `drive_parameters`, the fit and its choice in `drive_fit`; here episodes are
held out, ways of reading them compared, and rows of the twin made. At the end the whole station's
twin: the scene by its pictures, contact by what is felt of it.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final, NamedTuple

import numpy as np
from scipy.stats import t as student

from gaploop.core.messages import FloatArray
from gaploop.core.take import Take
from gaploop.core.twin import Twin, TwinParameter
from gaploop.sim.cell import ENCODER_STEP_RAD
from gaploop.sim.identification.contact import FULL, PROBE, fit_contact
from gaploop.sim.identification.drive_fit import (
    CLEAR,
    DEAD_BAND,
    LATENCY,
    LEAST_BAND_RAD,
    LEAST_GAIN,
    NORMAL_MEDIAN,
    QUICK,
    ZERO,
    ZERO_OFFSET,
    Candidate,
    DriveFitter,
    Fit,
    candidates,
    jump_rad,
    merged,
    moving,
)
from gaploop.sim.identification.noise import LostGoals, losses, noise_parameters
from gaploop.sim.identification.open_loop import (
    DriveLog,
    DrivenArm,
    OpenLoopArm,
    ServoArm,
    drive_logs,
    encoder_step_rad,
)
from gaploop.sim.identification.scene import fit_scene
from gaploop.sim.scene import TIMESTEP_S

CLOSE_RAD: Final = 2 * ENCODER_STEP_RAD
"""An error below this is as good as encoders are; a larger one leaves something unexplained."""
UNLIKE: Final = 3.0
"""A joint whose error is so many times the others' median has something that wasn't measured."""
SELECT_S: Final = 30.0
"""So much motion decides which parameters differ; all of it, by how much [s]."""
HELD: Final = "frames, goals held"
MOST_S: Final = 160.0
"""Of more motion than this, episodes are left out evenly [s]."""


@dataclass(frozen=True)
class OpenLoopCurve:
    """A take that was held out, or what a fit without any is shown on.

    Attributes:
        read_rad: readings of the joints that are fitted [rad], shape (n, n_joints).
        sent_rad: the goals of then [rad], same shape.
        before_rad: what the nominal arm does [rad], same shape.
        after_rad: what the fitted arm does [rad], same shape.
    """

    uid: str
    t_s: FloatArray
    read_rad: FloatArray
    sent_rad: FloatArray
    before_rad: FloatArray
    after_rad: FloatArray


@dataclass(frozen=True)
class FittedDrives:
    """What a station's drives are.

    Attributes:
        parameters: what was measured, and what couldn't be.
        fit: how well, for the twin's file: see docs/diagnose/twin.md.
    """

    parameters: list[TwinParameter]
    fit: dict[str, Any]
    curves: list[OpenLoopCurve]


class Sent(NamedTuple):
    """Logs as their goals may have been sent, divided for a fit.

    Attributes:
        goals: in which way, in words.
        judge: pieces that are held out.
        chooser: of those that choose parameters.
        rest: of all others: judges what was chosen.
    """

    goals: str
    logs: list[DriveLog]
    judge: list[DriveLog]
    chooser: DriveFitter
    rest: DriveFitter


def fit_drives(
    takes: Sequence[Take], arm: DrivenArm, advance: Callable[[int], None] = lambda _steps: None
) -> FittedDrives:
    """Fit an arm's drives to takes with joint goals and readings.

    The last take of four, or the last third of a single one, is held out to judge the fit by; the
    values are then fitted to everything. `advance` is told how many physics steps were simulated.

    Raises:
        UnusableInputError: as of `drive_logs`.
    """
    whole = drive_logs(takes, arm, 0.0)
    jumps_rad = [jump_rad(whole, k) for k in arm.arm_columns]
    sent, found, rival = _as_sent(_evenly(drive_logs(takes, arm), MOST_S), arm, jumps_rad, advance)
    if lost := _lost(sent.logs, arm, sent.chooser.late()):
        heard = _cut(sent.goals, lost.heard(sent.logs), arm, advance)
        by_heard, its_rival = heard.chooser.choose(heard.rest, jumps_rad)
        column = arm.arm_columns.index(lost.column)
        if heard.rest.spread(by_heard)[column] < (1 - LEAST_GAIN) * sent.rest.spread(found)[column]:
            # what the drives do isn't taken for losses
            lost = _lost(sent.logs, arm, by_heard) or lost
            whole = lost.heard(whole)
            sent = heard._replace(logs=lost.heard(sent.logs))
            found, rival = by_heard, its_rival
        else:  # the drives explain as much
            lost = None
    curves = _curves(sent.judge, arm, found)
    before, after = (_moving_error(curves, which) for which in ("before_rad", "after_rad"))
    if after > (1 - LEAST_GAIN) * before:  # what was found does hardly more than nothing
        found, rival = Fit((), np.empty(0), found.error), ()
        curves = [replace(c, after_rad=c.before_rad) for c in curves]
    everything = DriveFitter(arm, [piece for log in sent.logs for piece in log.pieces()], advance)
    final, bands = everything.with_dead_bands(
        everything.without_idle(everything.fit(found.chosen, found.x, QUICK))
    )
    motion_s = sum(float(log.t_s[-1]) for log in sent.logs)
    source = (
        f"{len(sent.logs)} episode{'s' * (len(sent.logs) > 1)}, {motion_s:.0f} s of motion, "
        f"{sent.goals}"
    )
    encoders = _encoder_parameters(everything, final, sent.logs, source)
    noise = list[TwinParameter]()
    if not isinstance(arm, ServoArm):  # whose joints `sensor_noise.readings` doesn't know
        noise = noise_parameters(whole, arm, final.setting, source)
    if noise and not encoders[0].differs:
        encoders = [encoders[0], *noise]  # instead of white noise of all joints
    parameters = [*_drive_parameters(everything, final, bands, source), *encoders]
    if lost:
        parameters += lost.parameters(arm.joint_names[lost.column], source)
    by_joint, named = _by_joint(curves), [arm.joint_names[k] for k in arm.arm_columns]
    close_rad = max(CLOSE_RAD, *(p.estimate for p in encoders if p.unit == "rad"))
    # One joint that its model doesn't follow hides in the mean over all of them.
    odd_rad = max(close_rad, UNLIKE * float(np.median(by_joint[:, 2])))
    unlike = {j: e for j, e in zip(named, by_joint[:, 2].tolist(), strict=True) if e > odd_rad}
    _, before_rad, after_rad = by_joint.mean(0).tolist()
    fit = {
        "open_loop_error_before": before_rad,
        "open_loop_error_after": after_rad,
        "unit": "rad",
        "held_out": sorted({log.uid for log in sent.judge}),
        "takes": len(sent.logs),
        "motion_s": motion_s,
        "goals": sent.goals,
        "explained": after_rad <= close_rad and not unlike,
        "unlike": unlike,
        "moves_rad": {
            f"{c.mechanism}.{c.parameter} {c.joint}".strip(): moved
            for c, moved in zip(final.chosen, everything.moved(final), strict=True)
        },
        "error_by_joint": dict(zip(named, by_joint.tolist(), strict=True)),
        "cut_short": sent.chooser.cut_short,
        "instead": sorted({f"{c.mechanism}.{c.key}" for c in rival} if found.chosen else ()),
    }
    return FittedDrives(parameters, fit, curves)


def _as_sent(
    logs: list[DriveLog], arm: DrivenArm, jumps_rad: Sequence[float], advance: Callable[[int], None]
) -> tuple[Sent, Fit, tuple[Candidate, ...]]:
    """Return the logs as their goals were sent, and what `DriveFitter.choose` finds in them so."""
    ways = {"telemetry": logs}
    if any(log.from_frames for log in logs):
        # LeRobot's own loop sends one goal a frame. A loop that is faster than its frames goes on
        # between them; taking its goals for held ones would look like drives that answer early.
        ways = {
            HELD: logs,
            "frames, goals ramped": [log.ramped() if log.from_frames else log for log in logs],
        }
    tried = [_cut(goals, way, arm, advance) for goals, way in ways.items()]
    choosers = [sent.chooser for sent in tried]
    best = likeliest(choosers, [chooser.late() for chooser in choosers])
    sent = tried[best]
    found = sent.chooser.choose(sent.rest, jumps_rad)
    if found[0].chosen and any(log.from_frames for log in sent.chooser.logs):
        # Slow drives hide how goals came, until they are known.
        other = tried[1 - best]
        fits = [found[0], sent_otherwise(found[0], other.chooser, sent.goals == HELD)]
        if likeliest([sent.chooser, other.chooser], fits, CLEAR):
            return other, *other.chooser.choose(other.rest, jumps_rad)
    return sent, *found


def _cut(goals: str, logs: list[DriveLog], arm: DrivenArm, advance: Callable[[int], None]) -> Sent:
    learn, judge = _held_out([list(log.pieces()) for log in logs])
    chooser = DriveFitter(arm, _evenly(learn, SELECT_S), advance)
    chosen_by = [id(piece) for piece in chooser.logs]
    rest = [piece for piece in (*learn, *judge) if id(piece) not in chosen_by]
    return Sent(goals, logs, judge, chooser, DriveFitter(arm, rest, advance))


def _curves(judge: Sequence[DriveLog], arm: DrivenArm, found: Fit) -> list[OpenLoopCurve]:
    nominal, fitted = OpenLoopArm(arm, judge).readings([{}, found.setting])
    shown = arm.arm_columns
    return [
        OpenLoopCurve(log.uid, log.t_s, *(q[:, shown] for q in (log.q_rad, log.sent(), *paths)))
        for log, *paths in zip(judge, nominal, fitted, strict=True)
    ]


def _moving_error(curves: Sequence[OpenLoopCurve], which: str) -> float:
    """Return the sum of errors where the arm moves, or everywhere if it never does [rad]."""
    moves = [moving(c.read_rad, c.t_s) for c in curves]
    if not any(rows.any() for rows in moves):
        moves = [np.ones_like(rows) for rows in moves]
    return sum(
        float(np.abs(getattr(c, which) - c.read_rad)[rows].sum())
        for c, rows in zip(curves, moves, strict=True)
    )


def _lost(way: Sequence[DriveLog], arm: DrivenArm, drives: Fit) -> LostGoals | None:
    """Return which goals a joint lost, as far as an arm with these drives would have gone on."""
    late_s = drives.setting.get(LATENCY.shared[0], {}).get(LATENCY.shared[1], 0.0)
    (paths,) = OpenLoopArm(arm, way).readings([drives.setting])
    return losses(way, paths, late_s, encoder_step_rad(way))


def likeliest(ways: Sequence[DriveFitter], fits: Sequence[Fit], clear: float = 0.0) -> int:
    """Return which of one or two ways of sending the goals most joints speak for, the first one
    unless the second is better by more than `clear`.

    What differs, such as a delay, must do for all of them; the fault of a joint may look like
    another way, so that joints vote. Neighbouring readings are counted alike: a poor fit's count
    makes it look less so.
    """
    if len(ways) < 2:
        return 0
    each = list(zip(ways, fits, strict=True))
    count = np.minimum.reduce([fitter.alike(fit.error) for fitter, fit in each])
    one, other = (fitter.cost(fit.error) / count for fitter, fit in each)
    return int(np.median(one - other) > clear)


def sent_otherwise(found: Fit, fitter: DriveFitter, was_held: bool) -> Fit:
    """Return what was found as goals that were sent the other way have it.

    Held goals come half a frame later than those that go on between frames.
    """
    frames_s = [np.diff(log.t_s) for log in fitter.logs if log.from_frames]
    half_s = float(np.median(np.concatenate(frames_s))) / 2
    values = dict(zip(found.chosen, found.x.tolist(), strict=True))
    late = Candidate(*LATENCY.shared, "", None, LATENCY)
    values[late] = max(values.get(late, 0.0) + (half_s if was_held else -half_s), 0.0)
    return fitter.fit([*values], [*values.values()], QUICK)


def _by_joint(curves: Sequence[OpenLoopCurve]) -> FloatArray:
    """Return mean errors of goals, nominal arm and fitted arm [rad], shape (n_joints, 3)."""
    errors = [
        [np.abs(q - c.read_rad).mean(0) for q in (c.sent_rad, c.before_rad, c.after_rad)]
        for c in curves
    ]
    return np.asarray(np.mean(errors, 0).T)


def _evenly(logs: Sequence[DriveLog], most_s: float) -> list[DriveLog]:
    """Return logs of so much motion, left out evenly."""
    total = sum(float(log.t_s[-1]) for log in logs)
    count = max(1, math.ceil(len(logs) * min(1.0, most_s / total)))
    return [logs[k] for k in np.unique(np.linspace(0, len(logs) - 1, count).round().astype(int))]


def _held_out(cut: Sequence[Sequence[DriveLog]]) -> tuple[list[DriveLog], list[DriveLog]]:
    """Return the pieces to learn from, and those to judge by.

    The last parts of a probe may move the gripper alone. Judged by them no arm is late, so that of
    each joint that rests there an episode from the middle of those that move it is held out, too.
    """
    if len(cut) > 1:
        moves = np.array(
            [
                np.any([moving(p.q_rad[:, p.columns], p.t_s).any(0) for p in pieces], axis=0)
                for pieces in cut
            ]
        )
        judge = set(range(len(cut) - max(1, len(cut) // 4), len(cut)))
        for joint in np.flatnonzero(~moves[sorted(judge)].any(0)):
            those = np.flatnonzero(moves[:, joint])
            judge |= {int(those[len(those) // 2])} if len(those) > 1 else set()
        learn = [p for k, c in enumerate(cut) if k not in judge for p in c]
        return learn, [p for k in sorted(judge) for p in cut[k]]
    pieces = list(cut[0])
    if len(pieces) > 2:
        first = len(pieces) - max(1, len(pieces) // 3)
        return pieces[:first], pieces[first:]
    last = pieces[-1]
    rows = last.t_s <= 2 / 3 * last.t_s[-1]
    return [*pieces[:-1], replace(last, t_s=last.t_s[rows], q_rad=last.q_rad[rows])], [last]


def _drive_parameters(
    fitter: DriveFitter, fit: Fit, bands: Mapping[Candidate, float], source: str
) -> list[TwinParameter]:
    """Return each quantity of all joints and of each, and the zeros; `bands` has half the intervals
    of dead bands."""
    log = fitter.logs[0]  # when goals were sent between frames is known to half a frame
    unknown_s = float(np.median(np.diff(log.goal_t_s))) / 2 if log.from_frames else 0.0
    zeros = [Candidate(ZERO, key, "", None, ZERO_OFFSET) for key in fitter.arm.zero_keys]
    rest = [c for c in (*candidates(fitter.arm), *zeros) if c not in fit.chosen]
    slopes = together = fitter.slopes(fit)
    widths, steps, may_differ = dict[Candidate, float](), dict[Candidate, float](), list[float]()
    for c, slope in _secants(fitter, fit, rest):
        step, half = fitter.intervals(fit.error, np.concatenate([slopes, slope[..., None]], 2))
        steps[c], widths[c] = float(step[-1]), float(half[-1])
        if widths[c] > c.quantity.useful and not c.joint:
            together = np.concatenate([together, slope[..., None]], 2)
            may_differ.append(c.quantity.useful)
    _, half = fitter.intervals(fit.error, together, may_differ)
    widths |= {c: float(h) for c, h in zip(fit.chosen, half, strict=False)}
    widths |= bands
    rows = []
    for c in (*candidates(fitter.arm), *zeros):
        low_limit, high_limit = c.bounds
        at = float(fit.x[fit.chosen.index(c)]) if c in fit.chosen else c.nominal
        wide = widths[c]
        # Nearly no damping is told from the nominal, whatever it is.
        told = c in fit.chosen and abs(at - c.nominal) > wide
        excited = told or bool(wide <= c.quantity.useful)
        if c.quantity is LATENCY:  # the cell acts in whole steps
            at = round(at / TIMESTEP_S) * TIMESTEP_S
            wide += TIMESTEP_S + unknown_s
        estimate, interval = c.spec.nominal, (-math.inf, math.inf)
        if excited and c in fit.chosen:
            estimate = c.value(at)
            interval = c.span(max(at - wide, low_limit), min(at + wide, high_limit))
        elif excited:
            middle = min(max(at + steps[c], low_limit), high_limit)
            low, high = min(middle - wide, at), max(middle + wide, at)
            if c.quantity is DEAD_BAND:
                high = max(high, LEAST_BAND_RAD)
            interval = c.span(max(low, low_limit), min(high, high_limit))
        rows.append(
            TwinParameter(
                f"{c.mechanism}.{c.parameter}",
                c.spec.unit,
                c.spec.nominal,
                estimate,
                (min(interval[0], estimate), max(interval[1], estimate)),
                excited,
                source,
                c.joint,
            )
        )
    return rows


def _secants(
    fitter: DriveFitter, fit: Fit, rest: Sequence[Candidate]
) -> list[tuple[Candidate, FloatArray]]:
    """Return how errors change with what wasn't chosen, over a change that would matter.

    As in `DriveFitter._begun`, joints are moved together and looked at one by one.
    """
    values = dict(zip(fit.chosen, fit.x, strict=True))
    every = [*(c for c in candidates(fitter.arm) if c.joint or c.quantity is LATENCY), *rest]
    groups = {c if c.quantity is ZERO_OFFSET else c.quantity: list[Candidate]() for c in rest}
    for c in dict.fromkeys(every):
        key = c if c.quantity is ZERO_OFFSET else c.quantity
        if key in groups and (c.joint or c.quantity in (LATENCY, ZERO_OFFSET)):
            groups[key].append(c)
    changes, settings = [], []
    for moved in groups.values():
        quantity = moved[0].quantity
        towards = moved[0].scaled(quantity.starts[0]) - moved[0].nominal
        changes.append(math.copysign(quantity.useful, towards))
        x = [float(values.get(c, c.nominal)) + changes[-1] for c in moved]
        settings.append(merged(fit.setting, moved, x))
    found = {
        key: (error - fit.error) / change
        for key, error, change in zip(groups, fitter.errors(settings), changes, strict=True)
    }
    slopes = []
    for c in rest:
        slope = found[c if c.quantity is ZERO_OFFSET else c.quantity]
        if c.column is not None:
            slope = np.where(np.arange(slope.shape[1]) == c.column, slope, 0.0)
        slopes.append((c, slope))
    return slopes


def _encoder_parameters(
    fitter: DriveFitter, fit: Fit, whole: Sequence[DriveLog], source: str
) -> list[TwinParameter]:
    """Return what the encoders add: steps, noise from reading to reading, and drift, untold.

    Of a servo that drifts the arm goes astray, not the reading: see `wander`.
    """
    step_rad = encoder_step_rad(whole)
    coarse = step_rad > 1.5 * ENCODER_STEP_RAD
    off = ENCODER_STEP_RAD / 2  # readings are rounded to the nominal encoder's steps
    jumps = np.abs(np.diff(fit.error, axis=0)) / math.sqrt(2)
    spans = [
        float(np.median(jumps[rows]) / NORMAL_MEDIAN)
        for k in range(int(fitter.block[-1]) + 1)
        if (rows := np.flatnonzero(fitter.block[1:] == k)).size > 10
    ]
    noise = float(np.mean(spans))
    half = float(student.ppf(0.95, max(len(spans) - 1, 1)) * np.std(spans) / math.sqrt(len(spans)))
    half = math.hypot(half, ENCODER_STEP_RAD / 4)
    noisy = not coarse and noise > ENCODER_STEP_RAD
    noise_rad = math.sqrt(max(noise**2 - ENCODER_STEP_RAD**2 / 12, 0.0)) if noisy else 0.0
    everywhere = (-math.inf, math.inf)
    return [
        TwinParameter(
            "sensor_noise.coarse_encoder.step_rad", "rad", 0.0, step_rad if coarse else 0.0,
            (step_rad - off, step_rad + off) if coarse else (0.0, 1.5 * ENCODER_STEP_RAD),
            True, source,
        ),
        TwinParameter(
            "sensor_noise.encoder_drift.noise_rad", "rad", 0.0, noise_rad,
            (max(noise_rad - half, 0.0) if noisy else 0.0, max(noise_rad, noise) + half),
            not coarse, source,
        ),
        TwinParameter(
            "sensor_noise.encoder_drift.drift_rad", "rad", 0.0, 0.0, everywhere, False, source
        ),
    ]  # fmt: skip


def fit_station(
    takes: Sequence[Take],
    arm: DrivenArm,
    station: str,
    *,
    made_from: Sequence[Mapping[str, Any]] = (),
    pictures: bool = True,
    advance: Callable[..., None] = lambda *_: None,
) -> tuple[Twin, FittedDrives]:
    """Return the twin, and how its drives were found.

    Args:
        takes: of the station; their units known.
        arm: the cell's arm that stands for its own, or anybody's.
        made_from: as in `Twin`.
        pictures: measure the scene, too.
        advance: told the physics steps of work on the drives; called after each piece on contact.
    """
    free = [take for take in takes if take.info.conditions.get(PROBE) != FULL]
    drives = fit_drives(free, arm, advance)
    rows = {(p.name, p.joint): p for p in drives.parameters}
    noise_rad, step_rad = (
        max((p.estimate for p in drives.parameters if p.name.endswith(end)), default=0.0)
        for end in (".noise_rad", "coarse_encoder.step_rad")
    )
    jitter_rad = math.hypot(noise_rad, step_rad)  # a coarse servo stands anywhere in a step
    if pictures and not isinstance(arm, ServoArm):
        # Zeros may come of either: of the one that can tell.
        for row in fit_scene(takes, arm, jitter_rad):
            if (row.name, row.joint) not in rows or row.excited:
                rows[row.name, row.joint] = row
    twin = Twin(station, arm.name, tuple(rows.values()), tuple(made_from), drives.fit)
    if isinstance(arm, ServoArm):
        return replace(twin, world={"model": str(arm.path.resolve())}), drives
    contact = fit_contact(takes, arm, twin, advance=advance)
    return replace(twin, parameters=(*twin.parameters, *contact)), drives
