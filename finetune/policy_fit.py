"""Does a policy fit the arm that it is about to drive? Names, units, rate, cameras, statistics."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import numpy as np

from gaploop.core.messages import FloatArray, Image, Observation, feature_of
from gaploop.core.protocols import CameraSource, Follower
from gaploop.core.vocabulary import Domain
from gaploop.failure_analysis.cameras import FILE, CameraReference, describe_move, moved
from gaploop.failure_analysis.views.pictures import squared
from gaploop.finetune.batches import FeatureMoments
from gaploop.finetune.lerobot_act import ACTION, STATE
from gaploop.finetune.lerobot_latency import check_latency, time_plans, warm_up
from gaploop.finetune.lerobot_policy import IMAGES, ActPolicy
from gaploop.sim.arms import arm_of
from gaploop.sim.tracker import Tracker
from gaploop.teleop.checks.result import CheckResult, Level

type Stats = Mapping[str, Mapping[str, object]]
FEATURES: Final = "features"
STATISTICS: Final = "statistics"
VIEWS: Final = "views"
PLANS: Final = 200
"""Plans that are timed: p99 of fewer says little."""
MOVED_PX: Final = 4.0
"""A camera whose picture lies further from its place, of 192 px, is worth a warning."""
FAR: Final = 4.0
"""A joint this many spreads from the mean of the takes is outside what they show."""
IMPOSSIBLE: Final = 10.0
"""A joint this far out isn't posed unusually: units, zero or order differ from the takes'."""
NARROW: Final = 1e-4
"""A spread below this, in units of the arm, divides a sensor's noise into huge inputs."""
REACH: Final = 1.0
"""Actions this many spreads from their mean are usual in the takes, also where a gripper is either
open or closed."""


@dataclass(frozen=True)
class PolicyFacts:
    """What a policy was trained for.

    Attributes:
        fps: frames a second [Hz].
        state_names: entries of `observation.state`; numbers where the policy doesn't name them.
        units: LeRobot units of state and action; "" where it doesn't say.
        robot_type: LeRobot's name of the follower; "" where it doesn't say.
        cameras: name to (height, width) of the pictures it sees [px].
        execute: steps of a plan that it executes before the next one.
        state: statistics of `observation.state`; None where it normalises otherwise.
    """

    fps: float
    state_names: tuple[str, ...]
    action_names: tuple[str, ...]
    units: str = ""
    robot_type: str = ""
    cameras: Mapping[str, tuple[int, int]] = field(default_factory=dict)
    needs_scene: bool = False
    execute: int = 1
    state: FeatureMoments | None = None
    action: FeatureMoments | None = None


def facts_of(policy: ActPolicy) -> PolicyFacts:
    """Return what a loaded policy was trained for."""
    bundle = policy.bundle
    signature = bundle.signature
    inputs = bundle.policy.config.input_features or {}
    steps = bundle.preprocessor.steps
    stats: Stats = next((s.stats for s in steps if getattr(s, "stats", None)), {})
    return PolicyFacts(
        policy.fps,
        signature.state_names,
        signature.action_names,
        signature.units,
        signature.robot_type,
        {
            key.removeprefix(IMAGES): (int(feature.shape[1]), int(feature.shape[2]))
            for key, feature in inputs.items()
            if key.startswith(IMAGES)
        },
        policy.needs_scene,
        policy.execute,
        _spread(stats, STATE),
        _spread(stats, ACTION),
    )


def _spread(stats: Stats, key: str) -> FeatureMoments | None:
    said = stats.get(key, {})
    if "mean" not in said or "std" not in said:
        return None
    mean, std = (np.asarray(said[name], dtype=np.float64).ravel() for name in ("mean", "std"))
    return FeatureMoments(mean, std)


@dataclass(frozen=True)
class ArmInputs:
    """What the arm gives.

    Attributes:
        fps: frames a second that the session would run at [Hz].
        state: where it stands, shape (n_joints,), in LeRobot units.
        limits: lower and upper joint limit, shape (n_joints, 2), in LeRobot units.
        cameras: name to (height, width) of its pictures [px].
    """

    joint_names: tuple[str, ...]
    units: str
    fps: float
    domain: Domain
    robot_type: str
    state: FloatArray
    limits: FloatArray
    cameras: Mapping[str, tuple[int, int]]


def observed_features(
    follower: Follower, fps: float, domain: Domain, cameras: Mapping[str, tuple[int, int]]
) -> ArmInputs:
    """Return what a connected arm gives."""
    low, high = (follower.to_units(q_rad) for q_rad in follower.joint_limits_rad.T)
    return ArmInputs(
        follower.joint_names,
        follower.units,
        fps,
        domain,
        follower.robot_type,
        follower.to_units(follower.read().position_rad),
        np.stack([np.minimum(low, high), np.maximum(low, high)], axis=1),
        cameras,
    )


def check_features(facts: PolicyFacts, seen: ArmInputs) -> list[CheckResult]:
    """Return what of the arm isn't what the policy was trained with; one item where all is."""
    faults = [
        *_names("observation.state", facts.state_names, seen),
        *_names("action", facts.action_names, seen),
    ]
    if facts.units and facts.units != seen.units:
        fix = "Train on takes of this arm, or choose the units it was trained with."
        if {facts.units, seen.units} <= {"deg", "m100_100"} and seen.domain is Domain.REAL:
            fix = f"Set --robot.use_degrees={'true' if facts.units == 'deg' else 'false'}."
        faults.append(_bad(f"the policy works in {facts.units}, the arm in {seen.units}", fix))
    if abs(facts.fps - seen.fps) > 1e-6:
        found = f"the policy was trained at {facts.fps:g} fps and would run at {seen.fps:g}"
        faults.append(_bad(found, f"Set --dataset.fps={facts.fps:g}."))
    for name, size in facts.cameras.items():
        have = seen.cameras.get(name)
        if have is None:
            known = ", ".join(seen.cameras) or "none"
            fix = f"Name it so in --robot.cameras='{{{name}: {{…}}}}'."
            if seen.domain is not Domain.REAL:
                fix = f"Choose a policy that sees {known}: the cell's cameras have fixed names."
            faults.append(_bad(f"the policy sees camera {name}; the arm has {known}", fix))
        elif have != size:
            is_alike = size[0] * have[1] == size[1] * have[0]
            found = f"camera {name} gives {have[1]}x{have[0]}, the policy was trained with "
            found += f"{size[1]}x{size[0]}"
            fix = f"Set width: {size[1]} and height: {size[0]} in --robot.cameras."
            if seen.domain is not Domain.REAL:
                fix = f"Set --robot.image_size={size[0]}."
            level = Level.WARN if is_alike else Level.FAIL
            faults.append(CheckResult(FEATURES, level, found, fix))
    if facts.needs_scene and seen.domain is Domain.REAL:
        found = "the policy needs the tracked scene, which is known for the simulated cell only"
        faults.append(_bad(found, "Train one on what the arm records."))
    elif facts.needs_scene and not seen.cameras:
        found = "the policy needs the tracked scene, and there is no camera"
        faults.append(_bad(found, "Give it the cell's camera: gaploop emulate --cameras."))
    if faults:
        return faults
    cameras = ", ".join(facts.cameras) or ("the tracked scene" if facts.needs_scene else "none")
    found = f"{len(facts.action_names)} joints in order, {facts.units or 'units unknown'}, "
    found += f"{facts.fps:g} fps, cameras: {cameras}"
    unsure = "" if facts.units and facts.robot_type else "the policy doesn't state units or robot"
    if unsure:
        fix = "Policies that gaploop trains state them in gaploop.json."
        return [CheckResult(FEATURES, Level.WARN, f"{found}; {unsure}", fix)]
    return [CheckResult(FEATURES, Level.OK, found)]


def _names(what: str, wanted: Sequence[str], seen: ArmInputs) -> Iterator[CheckResult]:
    have = [feature_of(name) for name in seen.joint_names]
    if all(name.isdigit() for name in wanted):  # the policy doesn't name them
        if len(wanted) != len(have):
            yield _bad(f"{what}: the policy has {len(wanted)} entries, the arm {len(have)}",
                       "Choose a policy of this arm.")  # fmt: skip
        return
    if list(wanted) == have:
        return
    same = sorted(wanted) == sorted(have)
    first = next((f"{a} for {b}" for a, b in zip(wanted, have, strict=False) if a != b), "length")
    how = f"in another order, first {first}" if same else f"others: {', '.join(wanted)}"
    yield _bad(f"{what}: the policy's joints are {how}; the arm's: {', '.join(have)}",
               "Choose a policy of this arm, or train one on its takes.")  # fmt: skip


def check_views(reference: CameraReference, images: Mapping[str, Image]) -> list[CheckResult]:
    """Return which camera doesn't show what it showed in training; one item where all do.

    Args:
        reference: of the policy's training takes.
        images: one picture of each camera, RGB.
    """
    results, close = list[CheckResult](), list[str]()
    for name in reference.cameras.keys() & images.keys():
        picture, (height, width) = squared(images[name]), images[name].shape[:2]
        found = reference.identity(name, (height, width), picture)
        if swapped := [f.message for f in found if f.kind == "swapped"]:
            fix = "Give each camera its own name in --robot.cameras: exchange them there."
            results.append(CheckResult(VIEWS, Level.FAIL, swapped[0], fix))
            continue
        move = moved(reference.cameras[name].picture, picture)
        if move is None:
            what = f"camera {name} doesn't look as it did in training"
            fix = "See whether it is the right one, where it looks, its lens and the light."
            results.append(CheckResult(VIEWS, Level.WARN, what, fix))
        elif (shift := float(np.hypot(*move.shift_px))) > MOVED_PX:
            what = f"camera {name} has moved: its picture lies {describe_move(move)}"
            fix = "Put it back, or adapt the policy on takes with it there."
            results.append(CheckResult(VIEWS, Level.WARN, what, fix))
        else:
            close.append(f"{name} within {shift:.1f} px")
    found_all = f"as in training: {', '.join(sorted(close)) or 'none is known'}"
    return results or [CheckResult(VIEWS, Level.OK, found_all)]


def _bad(found: str, fix: str) -> CheckResult:
    return CheckResult(FEATURES, Level.FAIL, found, fix)


def check_statistics(facts: PolicyFacts, seen: ArmInputs) -> list[CheckResult]:
    """Return whether the state now, and the arm's limits, are what the policy's takes had.

    A joint at rest may be unusual; one that is far outside all takes means other units, another
    zero or another order.
    """
    n = len(seen.joint_names)
    if facts.state is None or facts.action is None or len(facts.state.mean) != n:
        found = "the policy's statistics can't be compared with the arm's joints"
        return [CheckResult(STATISTICS, Level.WARN, found)]
    bad, names = list[CheckResult](), seen.joint_names
    narrow = [name for name, s in zip(names, facts.state.std, strict=True) if not s > NARROW]
    if narrow:
        found = f"{', '.join(narrow)} never moved in the policy's takes: noise is amplified"
        fix = "Train on takes in which it moves, or leave it out."
        bad.append(CheckResult(STATISTICS, Level.WARN, found, fix))
    away = np.abs(seen.state - facts.state.mean) / np.maximum(facts.state.std, NARROW)
    worst = int(away.argmax())
    stands = f"the arm stands {away[worst]:.1f} spreads from the takes' mean at most "
    stands += f"({names[worst]})"
    data: dict[str, Any] = {"spreads": dict(zip(names, away.tolist(), strict=True))}
    if away[worst] > IMPOSSIBLE:
        fix = "Check units, calibration (lerobot-calibrate) and joint order."
        bad.append(CheckResult(STATISTICS, Level.FAIL, stands, fix, data))
    elif away[worst] > FAR:
        fix = "Put the arm where the policy's takes begin."
        bad.append(CheckResult(STATISTICS, Level.WARN, stands, fix, data))
    if len(facts.action.mean) == n:
        (low, high), usual = seen.limits.T, facts.action
        below = low - (usual.mean - REACH * usual.std)
        above = usual.mean + REACH * usual.std - high
        beyond = np.maximum(below, above) / np.maximum(high - low, NARROW)
        out = [f"{name} by {b:.0%}" for name, b in zip(names, beyond, strict=True) if b > 0.1]
        if out:
            found = f"usual actions exceed the arm's limits (share of range): {', '.join(out)}"
            fix = "They will be clamped. Is it the arm that the takes were recorded with?"
            bad.append(CheckResult(STATISTICS, Level.WARN, found, fix))
    return bad or [CheckResult(STATISTICS, Level.OK, stands, data=data)]


def check_policy(
    policy: ActPolicy,
    folder: Path,
    follower: Follower,
    cameras: Sequence[CameraSource],
    domain: Domain,
    fps: float,
) -> Iterator[CheckResult]:
    """Yield whether a policy, loaded from `folder`, fits an arm and its cameras at `fps` [Hz]."""
    facts = facts_of(policy)
    # What the policy would see now; a scene of zeros where nothing tracks it.
    images = {camera.name: camera.frame().image for camera in cameras}
    sizes = {name: (image.shape[0], image.shape[1]) for name, image in images.items()}
    seen = observed_features(follower, fps, domain, sizes)
    yield from check_features(facts, seen)
    yield from check_statistics(facts, seen)
    if (file := folder / FILE).exists() and facts.cameras:
        yield from check_views(CameraReference.load(file), images)
    names = policy.bundle.signature.environment_names
    scene: FloatArray | None = np.zeros(len(names)) if names else None
    if policy.needs_scene and images:
        image = next(iter(images.values()))
        arm = arm_of(policy.bundle.signature.robot_type)
        scene = Tracker.nominal(image.shape[0], arm=arm).observe(image)
    observation = Observation(seen.state, scene, images)
    warm_up(policy, observation)
    timing = time_plans(lambda: policy.plan(observation), PLANS)
    yield check_latency(timing, fps, 1 if policy.chunk is None else len(policy.chunk))
