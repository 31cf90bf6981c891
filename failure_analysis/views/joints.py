"""A take's joint values as angles: what their LeRobot units mean, and which joint answers which.

LeRobot writes joints in degrees about the middle of their calibrated range, or as -100 to 100 over
it, and grippers as 0 to 100; which, stands in no plain dataset. It is told from the values where
they leave no doubt, and asked for where they don't.
"""

import itertools
import logging
import math
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Final

import numpy as np

from gaploop.core.arms import ARM_MODELS, CELL_ARMS, model_of
from gaploop.core.errors import GaploopError, UnusableInputError
from gaploop.core.grippers import Gripper, gripper_columns, gripper_of, is_grip
from gaploop.core.labels import LabelEvent
from gaploop.core.messages import FloatArray
from gaploop.core.take import Take, TakeInfo
from gaploop.core.telemetry import Telemetry
from gaploop.core.vocabulary import MOVES_RAD, joint_units, named, plainly_radians
from gaploop.datasets.labels import open_labelled
from gaploop.datasets.layout import is_dataset, numbers

log = logging.getLogger(__name__)
NORMALISED: Final = ("koch_follower", "omx_follower")
"""Robot types that LeRobot 0.6 writes as -100 to 100 unless told otherwise."""
CLAMP: Final = 100.0
"""Normalised values end here; readings beyond by more than rounding are degrees."""
WHOLE_TURN_RAD: Final = 2.0 * math.pi
FARTHEST_DEG: Final = 3 * 360.0
"""What reads more is no angle: encoder ticks, or pixels."""
TICKS: Final = 4095
"""The last step of a servo's encoder."""
FOLLOWS_RAD: Final = math.radians(15.0)
"""Nearer than this, in the middle of an episode, a reading stands to the command that it
answers."""
MOST_PAIRINGS: Final = 2000
STEP_DEG: Final = 360.0 / (TICKS + 1)
"""One step of such an encoder."""
FEWEST_STEPS: Final = 30
"""Values that a joint takes, at least, before their distances say what its steps are."""


def with_units(takes: Sequence[Take], stated: str = "") -> list[Take]:
    """Return takes with the units of their joints and their grippers; see `units_of`."""
    units = units_of(takes, stated)
    grippers = grippers_of(takes)
    return [replace(in_units(take, units), grippers=grippers) for take in takes]


def grippers_of(takes: Sequence[Take]) -> tuple[Gripper, ...] | None:
    """Return the grippers of takes of one folder; None for arms whose models know theirs."""
    driven = [t for t in takes if t.frames.sent.size and t.frames.state.size]
    if not driven:
        return None
    first = driven[0].info
    names, cells = first.joint_names, {arm.robot_type for arm in CELL_ARMS.values()}
    for take in driven:
        info, frames = take.info, take.frames
        known = model_of(info.robot_type) is not None or info.robot_type in cells
        alike = info.joint_names == names and frames.sent.shape == frames.state.shape
        if known or take.telemetry.arms() or not alike or frames.state.shape[1] != len(names):
            return None
    sent, read = [t.frames.sent for t in driven], [t.frames.state for t in driven]
    found = list[Gripper]()
    for k in gripper_columns(names, sent, first.fps):
        told, answered = ([v[:, k] for v in values] for values in (sent, read))
        grip = gripper_of(k, told, answered, first.fps, named=is_grip(names[k]))
        found += [grip] if grip is not None else []
    return tuple(found)


def units_of(takes: Sequence[Take], stated: str = "") -> str:
    """Return what takes of a folder that don't say their joints' units have them in; "" if all do.

    Those are what was `stated`, as of `joint_units`, or are told from the values.

    Raises:
        UnusableInputError: no such units, others than a take says, or values that leave a doubt.
    """
    said = joint_units(stated)
    for take in takes:
        other = take.info.units
        if said and other not in ("", "unknown", said):
            raise UnusableInputError(
                f"--units={stated}, but take {take.info.uid} states its joints in {named(other)}. "
                "Leave --units out, or fix the episodes: gaploop edit retag DIR --episodes=0:"
                f'{len(takes)} --set=\'{{"units": "{named(said)}"}}\' --yes.'
            )
    _require_one_unit(takes)
    if said:
        return said
    silent = []
    for take in takes:
        info = take.info
        tool = any(n.startswith("ee.") or n in ("x", "y", "z") for n in info.joint_names)
        arm = info.robot_type not in ("", "unknown") and not tool and not take.telemetry.arms()
        arm &= bool(info.joint_names)  # none of rows that are no vector
        if arm and _is_silent(take):  # an arm's joints, of which nothing but the units is missing
            silent.append(take)
    if not silent:
        return ""
    info = silent[0].info
    body = [k for k, name in enumerate(info.joint_names) if "gripper" not in name]
    state = np.concatenate([t.frames.state[:, body] for t in silent])
    low, high = float(np.nanmin(state)), float(np.nanmax(state))
    read = max(-low, high)
    peak = max(read, *(float(np.nanmax(np.abs(t.frames.action), initial=0.0)) for t in silent))
    if read <= WHOLE_TURN_RAD:  # an arm that is used moves by more than 6 degrees, or 6 of 100
        return "rad" if float(np.ptp(state, axis=0).max()) > MOVES_RAD else ""
    if read > FARTHEST_DEG and low >= 0 and high <= TICKS:
        raise UnusableInputError(
            f"Joints of {info.robot_type} from {low:.0f} to {high:.0f} are encoder ticks. Convert "
            "them with the arm's calibration file: gaploop convert DIR --calibration=FILE.json "
            "--output_dir=NEW; --units=unknown goes on without joints."
        )
    if peak > CLAMP + 0.5:
        return "deg" if read <= FARTHEST_DEG else ""
    at_the_end = float(np.mean(np.abs(np.abs(state) - CLAMP).min(axis=1) < 0.01))
    one = info.robot_type.removeprefix("bi_")  # LeRobot's pairs of that arm
    ours = model_of(one) is not None
    if one in NORMALISED or (ours and at_the_end > 0.01):
        return "m100_100"
    if ours and (told := _told_by_steps(state)):
        return told
    if info.robot_type == "simulation" and all(n.startswith("state_") for n in info.joint_names):
        return ""  # all that somebody's simulation shows, of which `evaluate` knows no joints
    raise UnusableInputError(
        f"Joints of {info.robot_type} from {low:.0f} to {high:.0f} may be degrees or LeRobot's "
        "-100 to 100. Say which: --units=degrees (use_degrees=true, LeRobot 0.6's default for "
        "SO-100 and SO-101) or --units=normalized; --units=unknown goes on without joints."
    )


def _told_by_steps(state: FloatArray) -> str:
    """Return the units that an encoder's steps show, "" of values without such steps.

    In degrees they are alike at all joints; in shares of each joint's own range they aren't.

    Args:
        state: readings of an arm of servos with 4096 steps a turn, shape (n, joints).
    """
    degrees, own = list[bool](), list[float]()
    for column in state.T:
        gaps = np.diff(np.unique(np.round(column, 5)))
        if len(gaps) < FEWEST_STEPS:
            continue
        step = float(np.percentile(gaps, 10))
        step = float(np.median(gaps[np.abs(gaps / step - 1.0) < 0.2]))
        on_degrees, on_own = (
            float(np.mean(np.abs(gaps / s - np.round(gaps / s)) < 0.06)) for s in (STEP_DEG, step)
        )
        degrees.append(on_degrees > 0.95)
        own += [step] * (on_own > 0.95 and on_degrees < 0.5)
    if len(degrees) < 2:
        return ""
    apart = [max(a, b) / min(a, b) for a, b in itertools.combinations(own, 2)]
    unlike = any(abs(r - round(r)) > 0.01 for r in apart)  # else rounded: 0.1 or 0.2 everywhere
    return "deg" if all(degrees) else "m100_100" if unlike else ""


def remember_units(root: Path, stated: str) -> None:
    """Note in a dataset what was stated of its joints' units, for episodes that don't say theirs.

    As a tag beside the labels, which `gaploop edit retag` overrules; a dataset that can't be
    written has to be told again.
    """
    units = joint_units(stated)
    if units in ("", "unknown") or not is_dataset(root):
        return
    try:
        store = open_labelled(root)
        silent = [e.info.units in ("", "unknown") for e in store.episodes]
        if any(silent) and store.lacks_columns:
            store = store.add_columns()
        store.say([
            LabelEvent(e.info.uid, "units", units, "gaploop", "operator", note=f"--units={stated}")
            for e, is_silent in zip(store.episodes, silent, strict=True) if is_silent
        ])  # fmt: skip
    except (GaploopError, OSError) as error:
        log.warning("--units=%s has to be given again next time: %s", stated, error)


def _require_one_unit(takes: Sequence[Take]) -> None:
    """Refuse takes of one folder in several units: what is usual of one isn't of the others."""
    fix = "Diagnose them apart, with --episodes, or convert a part: gaploop edit harmonise."
    stated: dict[str, list[str]] = {}
    for take in takes:
        name = take.info.uid if take.episode is None else f"episode {take.episode}"
        if take.info.units not in ("", "unknown"):
            stated.setdefault(take.info.units, []).append(name)
    if len(stated) > 1:
        listed = "; ".join(f"{unit}: {numbers(found)}" for unit, found in stated.items())
        raise UnusableInputError(f"These episodes are in several units ({listed}). {fix}")
    silent = [t for t in takes if _is_silent(t) and np.isfinite(t.frames.state).all()]
    if len({t.info.joint_names for t in silent}) != 1:
        return
    low, high = (np.array([f(t.frames.state, axis=0) for t in silent]) for f in (np.min, np.max))
    if odd := [silent[i] for i in plainly_radians(low, high)]:
        listed = numbers([t.info.uid if t.episode is None else t.episode for t in odd])
        raise UnusableInputError(
            f"Episodes {listed} look like radians, the others like degrees. {fix}"
        )


def in_units(take: Take, units: str) -> Take:
    """Return a take with these units of its joints, where it doesn't say any itself."""
    is_told = bool(units) and _is_silent(take)
    return replace(take, info=replace(take.info, units=units)) if is_told else take


def _is_silent(take: Take) -> bool:
    return take.info.units in ("", "unknown") and bool(take.frames.state.size)


def angles_rad(values: FloatArray, info: TakeInfo) -> FloatArray | None:
    """Return joint values, shape (n, n_joints), as angles [rad]; None where units don't tell.

    -100 to 100 spans the joint's range in the arm's model, and +-100 degrees where no model is
    known; 0 to 100 of a gripper its travel, where that is known.
    """
    names = info.joint_names
    if len(names) != values.shape[1]:  # another arm's commands: only its gripper is known
        names = ("",) * (values.shape[1] - 1) + names[-1:]
    plain = [name.removeprefix("left_").removeprefix("right_") for name in names]
    model, cells = model_of(info.robot_type), CELL_ARMS.values()
    if info.units.startswith("deg"):
        angles = np.radians(values)
    elif info.units == "m100_100":
        halves = ARM_MODELS[model].half_range_rad if model is not None else {}
        angles = values / CLAMP * np.array([halves.get(n, math.radians(CLAMP)) for n in plain])
    else:
        return values if info.units == "rad" else None
    travels = (arm.grip.travel_rad for arm in cells if arm.robot_type == info.robot_type)
    travel = ARM_MODELS[model].gripper_percent_rad if model is not None else next(travels, None)
    for k, name in enumerate(plain):
        if "gripper" in name and travel is not None:
            angles[:, k] = travel[0] + (travel[1] - travel[0]) * values[:, k] / 100.0
    return np.asarray(angles)


def of_model(
    takes: Sequence[Take], model: str, joints: Sequence[str], limits_rad: FloatArray, stated: str
) -> tuple[list[Take], list[str], str]:
    """Return takes in radians with the joints of an arm's model.

    Joints count by name (joint_1.pos is joint1), else by order where there are as many. One that no
    command is for is told to stay where it begins.

    Args:
        model: its file, for messages.
        limits_rad: lowest and highest angle of each joint [rad], shape (n_joints, 2).
        stated: units, as of `units_of`; "" to tell them by the model's limits.

    Returns:
        The takes; the joints that commands are for; what was taken for granted, in words.

    Raises:
        UnusableInputError: no joints that could be the model's, or units in doubt.
    """
    first = takes[0].info
    sources = [{j for arm in t.telemetry.arms() for j in t.telemetry.joints(arm)} for t in takes]
    if all(source.issuperset(joints) for source in sources):
        return list(takes), list(joints), ""
    known = {_plain(n): k for k, n in enumerate(first.joint_names)}
    columns = [known.get(_plain(j), -1) for j in joints]
    body = [k for k, n in enumerate(first.joint_names) if not is_grip(n)]
    if -1 in columns and len(body) == len(joints):
        columns = body
    if -1 in columns or any(t.info.joint_names != first.joint_names for t in takes):
        raise UnusableInputError(
            f"{model} has the joints {', '.join(joints)}; the episodes have "
            f"{', '.join(first.joint_names) or 'none with names'}. Call them alike in the model."
        )
    sent = [t.frames.action if np.isnan(t.frames.sent).all() else t.frames.sent for t in takes]
    state = np.concatenate([t.frames.state for t in takes])
    units = joint_units(stated) or first.units.replace("unknown", "")
    units = units or _units_within(state[:, columns], np.degrees(limits_rad), model)
    per_unit = 1.0 if units == "rad" else math.radians(1.0)
    pairs = answering(np.concatenate(sent) * per_unit, state * per_unit)
    if pairs is None:
        raise UnusableInputError(
            "No joint of observation.state stays near one of action. Record joint commands in the "
            "units of the readings."
        )
    by_reading = dict(zip(pairs[1], pairs[0], strict=True))
    middle, half = limits_rad.mean(axis=1), np.ptp(limits_rad, axis=1) / 2.0

    def angles(values: FloatArray, k: int) -> FloatArray:
        scaled = values / CLAMP * half[k] + middle[k]
        return np.asarray(scaled if units == "m100_100" else values * per_unit)

    found = []
    for take, goals in zip(takes, sent, strict=True):
        read = np.stack([angles(take.frames.state[:, c], k) for k, c in enumerate(columns)], 1)
        told = np.repeat(read[:1], len(read), axis=0)
        for k, c in enumerate(columns):
            if c in by_reading:
                told[:, k] = angles(goals[:, by_reading[c]], k)
        info = replace(take.info, joint_names=tuple(joints), units="rad")
        frames = replace(take.frames, state=read, action=told, sent=told)
        found.append(replace(take, info=info, frames=frames, telemetry=Telemetry(np.empty(0), {})))
    commanded = [j for j, c in zip(joints, columns, strict=True) if c in by_reading]
    still = [j for j in joints if j not in commanded]
    notes = [f"no command is for {' or '.join(still)}: not fitted"] if still else []
    if units == "m100_100":
        notes.append(f"-100 to 100 is taken for each joint's range in {model}")
    return found, commanded, "; ".join(notes)


def _plain(name: str) -> str:
    return "".join(c for c in name.lower().removesuffix(".pos") if c.isalnum())


def _units_within(read: FloatArray, limits_deg: FloatArray, model: str) -> str:
    """Return the units in which readings, shape (n, n_joints), lie within a model's limits."""
    if np.nanmax(np.abs(read)) <= WHOLE_TURN_RAD and np.nanmax(np.ptp(read, axis=0)) > MOVES_RAD:
        return "rad"
    low, high = np.nanmin(read, axis=0), np.nanmax(read, axis=0)
    slack_deg = math.degrees(FOLLOWS_RAD) / 2.0
    degrees = ((low > limits_deg[:, 0] - slack_deg) & (high < limits_deg[:, 1] + slack_deg)).all()
    normalised = max(-low.min(), high.max()) <= CLAMP + 0.01
    if bool(degrees) == normalised:
        raise UnusableInputError(
            f"Joints from {low.min():.0f} to {high.max():.0f} may be degrees or LeRobot's -100 to "
            f"100, by the limits in {model}. Say which: --units=degrees or --units=normalized."
        )
    return "deg" if degrees else "m100_100"


def answering(sent: FloatArray, read: FloatArray) -> tuple[list[int], list[int]] | None:
    """Return the columns of commands and of the readings that answer them, in order; None: none.

    Leader and follower may be different arms, with a joint more or less: the pairing is the one
    that keeps their order and in which the readings, shape (n, b), stand nearest to the commands,
    shape (n, a).
    """
    a, b = sent.shape[1], read.shape[1]
    if a == b:
        return list(range(a)), list(range(b))
    if math.comb(max(a, b), min(a, b)) > MOST_PAIRINGS:
        return None
    away = np.median(np.abs(sent[:, :, None] - read[:, None, :]), axis=0)
    if a > b:
        away = away.T
    fewer = list(range(min(a, b)))
    picked = min(
        itertools.combinations(range(max(a, b)), min(a, b)),
        key=lambda columns: float(away[fewer, list(columns)].sum()),
    )
    if float(away[fewer, list(picked)].max()) > FOLLOWS_RAD:
        return None
    return (fewer, list(picked)) if a < b else (list(picked), fewer)
