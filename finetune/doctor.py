"""What `gaploop doctor` says of a policy, and of a simulation of somebody's own.

Does a policy fit the arm that it is about to drive: names, units, rate, cameras, statistics? The
arm stands in for a dataset: what a checkpoint's files say is set against it as against any.
"""

import contextlib
import math
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final

import gymnasium
import mujoco
import numpy as np
import PIL.Image

from gaploop.collect.policy_leader import Planner
from gaploop.core.files import writable_folder
from gaploop.core.messages import FloatArray, Image, Observation, feature_of
from gaploop.core.progress import lines_while
from gaploop.core.protocols import CameraSource, Follower
from gaploop.core.vocabulary import Domain
from gaploop.datasets.absolute.checkpoint import Checkpoint, CheckpointTests, read_checkpoint
from gaploop.datasets.absolute.findings import AbsoluteReport
from gaploop.datasets.columns import ACTION, ENVIRONMENT, FORCE, IMAGES, STATE
from gaploop.datasets.layout import DatasetInfo
from gaploop.failure_analysis.cameras.policy_cameras import (
    FILE,
    CameraReference,
    describe_move,
    moved,
)
from gaploop.failure_analysis.views.pictures import squared
from gaploop.finetune.evaluation import Rollout
from gaploop.finetune.lerobot_gym import DEMONSTRATOR, evaluate_gym
from gaploop.finetune.lerobot_latency import check_timing
from gaploop.sim.catalogue import arm_of
from gaploop.sim.demonstrators import AT_IT_M, SPEED_M_S, Demonstrator, place_of, things_of
from gaploop.sim.gaps.world_model import NoModel
from gaploop.sim.kinematics import fold_square
from gaploop.sim.lerobot_worlds import CAMERA, GymEnvConfig, SceneEnvConfig, pictures_in
from gaploop.sim.predicates import parse
from gaploop.sim.roles import diverged, find_roles, motors_of, servo_joints
from gaploop.sim.scene_file import OUT
from gaploop.sim.scene_world import SceneWorld
from gaploop.sim.tracker import Tracker
from gaploop.sim.world import GymWorld, WorldSpec
from gaploop.teleop.checks import CheckResult, Level

FEATURES: Final = "features"
STATISTICS: Final = "statistics"
VIEWS: Final = "views"
MOVED_PX: Final = 4.0
"""A camera whose picture lies further from its place, of 192 px, is worth a warning."""
FAR: Final = 4.0
"""A joint this many spreads from the mean of the episodes is outside what they show."""
IMPOSSIBLE: Final = 10.0
"""A joint this far out isn't posed unusually: units, zero or order differ from the episodes'."""
NARROW: Final = 1e-4
"""A spread below this, in units of the arm, divides a sensor's noise into huge inputs."""
REACH: Final = 1.0
"""Actions this many spreads from their mean are usual in the episodes, also where a gripper is
either open or closed."""


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
    state: FloatArray
    limits: FloatArray
    cameras: Mapping[str, tuple[int, int]]


def check_features(known: Checkpoint, seen: ArmInputs, needs_scene: bool) -> list[CheckResult]:
    """Return what of the arm isn't what the policy was trained with; one item where all is."""
    is_real, have = seen.domain is Domain.REAL, [feature_of(name) for name in seen.joint_names]
    vector = {"dtype": "float32", "shape": (len(have),), "names": have}
    features: dict[str, Mapping[str, Any]] = {STATE: vector, ACTION: vector}
    features |= {
        f"{IMAGES}{name}": {"dtype": "video", "shape": (*size, 3)}
        for name, size in seen.cameras.items()
    }
    report = AbsoluteReport(known.folder)
    info = DatasetInfo(known.folder, seen.fps, features, "", 1, 1)
    CheckpointTests(known, info, {}, (), report, "the arm").fits()
    fixes = {"joint_order": "Choose a policy of this arm, or train one on its episodes."}
    if not is_real:  # the cell's cameras have fixed names
        fixes["wrong_features"] = "Choose a policy of this arm and the cell's cameras."
        fixes["wrong_crop"] = "Set --robot.image_size to the height that it learned from."
    faults = [(f.sentence, fixes.get(f.kind, f.command)) for f in report.findings]
    for what, names in ((STATE, known.state_names), (ACTION, known.names)):
        if not all(n.isdigit() for n in names) and sorted(names) != sorted(have):
            faults.append((
                f"{what}: the policy's joints are others: {', '.join(names)}; the arm's: "
                f"{', '.join(have)}", "Choose a policy of this arm, or train one on its episodes.",
            ))  # fmt: skip
    if known.units and known.units != seen.units:
        fix = "Train on episodes of this arm, or choose the units it was trained with."
        if {known.units, seen.units} <= {"deg", "m100_100"} and is_real:
            fix = f"Set --robot.use_degrees={'true' if known.units == 'deg' else 'false'}."
        faults.append((f"the policy works in {known.units}, the arm in {seen.units}", fix))
    if needs_scene and is_real:
        faults.append(("the policy needs the tracked scene, which is known for the simulated cell "
                       "only", "Train one on what the arm records."))  # fmt: skip
    elif needs_scene and not seen.cameras:
        faults.append(("the policy needs the tracked scene, and there is no camera",
                       "Give it the cell's camera: gaploop emulate --cameras."))  # fmt: skip
    if faults:
        return [CheckResult(FEATURES, Level.FAIL, found, fix) for found, fix in faults]
    cameras = ", ".join(k.removeprefix(IMAGES) for k in known.cameras)
    cameras = cameras or ("the tracked scene" if needs_scene else "none")
    found = f"{len(have)} joints in order, {known.units or 'units unknown'}, "
    found += f"{seen.fps:g} fps, cameras: {cameras}"
    if not known.units:
        found, fix = f"{found}; the policy doesn't state units", (
            "Policies that gaploop trains state them in gaploop.json.")  # fmt: skip
        return [CheckResult(FEATURES, Level.WARN, found, fix)]
    return [CheckResult(FEATURES, Level.OK, found)]


def check_views(reference: CameraReference, images: Mapping[str, Image]) -> list[CheckResult]:
    """Return which camera doesn't show what it showed in training; one item where all do.

    Args:
        reference: of the policy's training takes.
        images: one picture of each camera, RGB.
    """
    results, close = list[CheckResult](), list[str]()
    for name in reference.cameras.keys() & images.keys():
        picture = squared(images[name])
        if (shown_by := reference.shown_by(name, picture)) != name:
            what = f"camera {name} shows what {shown_by} showed in training: swapped or renamed"
            fix = "Give each camera its own name in --robot.cameras: exchange them there."
            results.append(CheckResult(VIEWS, Level.FAIL, what, fix))
            continue
        move = moved(reference.cameras[name], picture)
        if move is None:
            what = f"camera {name} doesn't look as it did in training"
            fix = "See whether it is the right one, where it looks, its lens and the light."
            results.append(CheckResult(VIEWS, Level.WARN, what, fix))
        elif (shift := float(np.hypot(*move.shift_px))) > MOVED_PX:
            what = f"camera {name} has moved: its picture lies {describe_move(move)}"
            fix = "Put it back, or adapt the policy on episodes with it there."
            results.append(CheckResult(VIEWS, Level.WARN, what, fix))
        else:
            close.append(f"{name} within {shift:.1f} px")
    found_all = f"as in training: {', '.join(sorted(close)) or 'none is known'}"
    return results or [CheckResult(VIEWS, Level.OK, found_all)]


def check_statistics(known: Checkpoint, seen: ArmInputs) -> list[CheckResult]:
    """Return whether the state now, and the arm's limits, are what the policy's takes had.

    A joint at rest may be unusual; one that is far outside all takes means other units, another
    zero or another order.
    """
    names = seen.joint_names
    state, action = (known.stats.get(feature, {}) for feature in (STATE, ACTION))
    if {len(s.get(of, ())) for s in (state, action) for of in ("mean", "std")} != {len(names)}:
        found = "the policy's statistics can't be compared with the arm's joints"
        return [CheckResult(STATISTICS, Level.WARN, found)]
    bad = list[CheckResult]()
    narrow = [name for name, s in zip(names, state["std"], strict=True) if not s > NARROW]
    if narrow:
        found = f"{', '.join(narrow)} never moved in the policy's episodes: noise is amplified"
        fix = "Train on episodes in which it moves, or leave it out."
        bad.append(CheckResult(STATISTICS, Level.WARN, found, fix))
    away = np.abs(seen.state - state["mean"]) / np.maximum(state["std"], NARROW)
    worst = int(away.argmax())
    stands = f"the arm stands {away[worst]:.1f} spreads from the episodes' mean at most "
    stands += f"({names[worst]})"
    data: dict[str, Any] = {"spreads": dict(zip(names, away.tolist(), strict=True))}
    if away[worst] > IMPOSSIBLE:
        fix = "Check units, calibration (lerobot-calibrate) and joint order."
        bad.append(CheckResult(STATISTICS, Level.FAIL, stands, fix, data))
    elif away[worst] > FAR:
        fix = "Put the arm where the policy's episodes begin."
        bad.append(CheckResult(STATISTICS, Level.WARN, stands, fix, data))
    low, high = seen.limits.T
    below = low - (action["mean"] - REACH * action["std"])
    above = action["mean"] + REACH * action["std"] - high
    beyond = np.maximum(below, above) / np.maximum(high - low, NARROW)
    out = [f"{name} by {b:.0%}" for name, b in zip(names, beyond, strict=True) if b > 0.1]
    if out:
        found = f"usual actions exceed the arm's limits (share of range): {', '.join(out)}"
        fix = "They will be clamped. Is it the arm that the episodes were recorded with?"
        bad.append(CheckResult(STATISTICS, Level.WARN, found, fix))
    return bad or [CheckResult(STATISTICS, Level.OK, stands, data=data)]


def check_policy(
    policy: Planner,
    folder: Path | None,
    follower: Follower,
    cameras: Sequence[CameraSource],
    domain: Domain,
    fps: float,
) -> Iterator[CheckResult]:
    """Yield whether a policy fits an arm and its cameras at `fps` [Hz], and plans in time.

    Args:
        folder: what it was loaded from; None where it is on another machine.
    """
    # What the policy would see now; a scene of zeros where nothing tracks it.
    images = {camera.name: camera.frame().image for camera in cameras}
    sizes = {name: (image.shape[0], image.shape[1]) for name, image in images.items()}
    ends = [follower.to_units(q_rad) for q_rad in follower.joint_limits_rad.T]
    seen = ArmInputs(
        follower.joint_names, follower.units, fps, domain,
        follower.to_units(follower.read().position_rad),
        np.sort(np.stack(ends, axis=1), axis=1), sizes,
    )  # fmt: skip
    needs_scene = bool(getattr(policy, "needs_scene", False))
    scene: FloatArray | None = None
    forces = dict[str, FloatArray]()
    if folder is None:
        yield CheckResult(
            FEATURES, Level.WARN, "the policy's files are on another machine: not compared with "
            "joints, units and cameras here",
            "Copy the policy here and run gaploop doctor --policy.path=DIR with this robot, once.",
        )  # fmt: skip
    else:
        known = replace(read_checkpoint(folder), fps=policy.fps)
        yield from check_features(known, seen, needs_scene)
        yield from check_statistics(known, seen)
        if (file := folder / FILE).exists() and known.cameras:
            yield from check_views(CameraReference.load(file), images)
        felt = {k: shape for k, shape in known.inputs.items() if k.startswith(FORCE)}
        forces = {key.removeprefix(FORCE): np.zeros(shape) for key, shape in felt.items()}
        size = known.inputs.get(ENVIRONMENT, (0,))[0]
        scene = np.zeros(size) if size else None
    if needs_scene and images:
        image = next(iter(images.values()))
        arm = arm_of(str(getattr(policy, "robot_type", "")))
        scene = Tracker.nominal(image.shape[0], arm=arm).observe(image)
    yield from check_timing(policy, Observation(seen.state, scene, images, forces), fps)


# -- what it says of a simulation --------------------------------------------------------------

RESETS: Final = 20
SETTLE_S: Final = 0.5
MOVE_DEG: Final = 10.0
SANK_M: Final = 0.02
APART_M: Final = 0.01
"""From a waypoint, or of a tool from its hand."""
CLOSE_S: Final = 1.0
STEP_M, DEEP_M = 0.004, 0.005
ASIDE_M: Final = [(0.0, 0.0)] + [
    (k * STEP_M, 0.0)[::turn] for n in range(1, 13) for k in (n, -n) for turn in (1, -1)
]
OUT_M: Final = [0.01 * k for k in range(-4, 25)]
"""Where a tool is looked for that is between the jaws."""
MOST_REACH_M: Final = 20.0
"""Between the joints of an arm: more is taken for millimetres."""
DIVERGED: Final = "the simulation becomes unstable (MuJoCo meets NaN or huge numbers)"
STEADIER: Final = (
    'Give <option> a smaller timestep, joints some armature="0.01" and damping, and see that '
    "lengths are in m and nothing overlaps."
)
IMPLICIT: Final = '<option integrator="implicitfast"/>'
WEAK: Final = 0.8
"""A demonstrator that succeeds less often than this is too weak to learn from."""
IN_SCENE: Final = {
    "gripper": "gripper: {joint: NAME, open: …, closed: …}",
    "cameras": "cameras: {NAME: {}}",
}
"""Roles that a scene file says itself."""


def check_world(
    scene: Path | None,
    gym: str,
    kwargs: Mapping[str, Any],
    roles: Path | None,
    pictures: Path | None,
) -> Iterator[CheckResult]:
    """Look at a scene file, or at a gymnasium environment; a folder gets its pictures."""
    config = SceneEnvConfig(scene=scene) if scene else GymEnvConfig(gym=gym, kwargs=dict(kwargs))
    with lines_while(lambda: f"Looking at {config.called} …"):
        world = GymWorld(config.make, WorldSpec(roles=roles))
        inner = world.unwrapped
        with contextlib.closing(world):
            if isinstance(inner, SceneWorld):
                inner.draws = False
                yield from _joints(inner)
                yield _resets(inner)
                yield _demonstrator(inner, config)
                inner.draws = True
            yield from _pictures(world, writable_folder(pictures) if pictures else None)
            world.action_space.seed(0)
            world.step(world.action_space.sample())
            if silence := world.silence():
                fix = "Write is_success into info at every step, in a gymnasium.Wrapper of yours."
                yield CheckResult("success", Level.WARN, silence, fix)
            yield from _inside(world)


def _joints(world: SceneWorld) -> Iterator[CheckResult]:
    """Move each joint a little."""
    shaken = ", ".join(name for name in world.servos.driven if _chatters(world, name))
    for k, name in enumerate(world.joint_names):
        low, high = world.limits[k]
        step = min(np.radians(MOVE_DEG), 0.2 * (high - low))
        goal = world.home.copy()
        goal[k] += step if goal[k] + step <= high else -step
        world.reset(seed=0)
        before = world.angles()[k]
        for _ in range(round(SETTLE_S / world.period_s)):
            world.step(world.action_of(goal))
        if diverged(world.data):
            yield _result("joints", DIVERGED, STEADIER, name)
            continue
        share = (world.angles()[k] - before) / (goal[k] - before)
        fix = (
            "" if share > 0.5 else f"Raise its actuator's kp, or see what blocks it.{_at(world, k)}"
        )
        if share >= 1.5:
            fix = "Raise its actuator's kp against its weight, and its damping (dampratio, kv)."
        if fix and shaken:
            fix = f"{shaken} chatter by their kv: lower it, or write {IMPLICIT}."
        is_hinge = world.joints_of(np.ones(len(world.home)))[k] != 1.0
        in_deg = is_hinge and name != world.scene.gripper.get("joint")  # as the file has them
        unit = "°" if in_deg else "rad" if is_hinge else "m"
        unit = unit if name in world.servos.driven else "of its tendon's length"
        low, high = np.degrees(world.limits[k]) if in_deg else world.limits[k]
        said = f"moves {share:.0%} of what it is sent; it goes from {low:.3g} to {high:.3g} {unit}"
        yield _result("joints", said, fix, name)
    if world.servos.others:
        said = f"stays at 0: scenes drive position servos alone: {', '.join(world.servos.others)}"
        fix = 'Write <position joint="…" kp="…"/> in place of each that is to move.'
        yield CheckResult("joints", Level.WARN, said, fix, subject="actuators")
    jaw = world.servos.jaw
    gripper = find_roles(world.model, world.data, jaw=jaw).gripper if jaw else ()
    others = {world.model.joint(j).name for j in gripper} & {*world.joint_names} - {jaw}
    if others:
        said = f"has servos that the gripper doesn't move: {', '.join(sorted(others))}"
        both = ", ".join([jaw, *sorted(others)])
        fix = f"Write gripper: {{joint: [{both}], open: […], closed: […]}}, a number for each."
        yield CheckResult("joints", Level.WARN, said, fix, subject="hand")


def _chatters(world: SceneWorld, joint: str) -> bool:
    """Say whether a servo's damping is too much for a step of an integrator that is explicit."""
    model, known = world.model, world.model.joint(joint)
    if int(model.opt.integrator) != int(mujoco.mjtIntegrator.mjINT_EULER):
        return False
    kv = -sum(model.actuator_biasprm[a, 2] for a in motors_of(model, [known.id]))
    return bool(kv * model.opt.timestep > 2.0 * model.dof_M0[known.dofadr[0]])


def _at(world: SceneWorld, k: int) -> str:
    """Say what touches what a joint moves; "" where nothing does."""
    model, data = world.model, world.data
    if (name := world.joint_names[k]) not in world.servos.driven:
        return ""
    moved = {int(model.jnt_bodyid[model.joint(name).id])}
    for body, above in enumerate(model.body_parentid):  # parents come first
        moved |= {body} if int(above) in moved else set()
    pairs = (
        [int(model.geom_bodyid[g]) for g in pair] for pair in data.contact.geom if min(pair) >= 0
    )
    for one, other in (sorted(p, key=moved.__contains__) for p in pairs):
        if other in moved and one not in moved:
            bodies = [model.body(b).name or f"body {b}" for b in (other, one)]
            return (
                f" {bodies[0]} touches {bodies[1]}: where they overlap by design, write <exclude "
                f'body1="{bodies[0]}" body2="{bodies[1]}"/> into <contact> of {world.scene.mjcf}.'
            )
    return ""


def _resets(world: SceneWorld) -> CheckResult:
    """Reset often: is anything done, or falling, from the start?"""
    done, sank, burst = 0, set[str](), 0
    for seed in range(RESETS):
        world.reset(seed=seed)
        start = {p.body: world.data.body(p.body).xpos[2] for p in world.scene.reset}
        done += world.success()
        for _ in range(round(SETTLE_S / world.period_s)):
            world.step(world.action_of(world.home))
        burst += diverged(world.data)
        sank |= {b for b, z in start.items() if abs(world.data.body(b).xpos[2] - z) > SANK_M}
    if burst:
        return _result("reset", f"in {burst} of {RESETS} scenes {DIVERGED}", STEADIER)
    if done:
        fix = "Reset things further apart, or ask for more in success."
        return _result("reset", f"{done} of {RESETS} scenes begin with success", fix)
    if sank:
        fix = "Give them a z_m at which they lie, clear of the arm and each other."
        return _result("reset", f"after a reset {', '.join(sorted(sank))} falls or jumps", fix)
    return _result("reset", f"{RESETS} resets; things stay where they are put")


def _demonstrator(world: SceneWorld, config: GymEnvConfig) -> CheckResult:
    if not world.scene.demonstrator:
        return CheckResult("demonstrator", Level.WARN, "none", "Add waypoints, or record a person.")
    tried = list[Rollout]()
    rate = evaluate_gym(DEMONSTRATOR, config, RESETS, on_rollouts=tried.extend).total
    fix = ""
    if rate.rate < WEAK:
        missed = _missed(world, [r.seed for r in tried if not r.success])
        fix = f"{missed} Mend its waypoints first: a policy learns no better."
    return CheckResult("demonstrator", Level.WARN if fix else Level.OK, f"succeeds {rate}", fix)


def _missed(world: SceneWorld, failed: Sequence[int]) -> str:
    """Say what is seen of why waypoints fail: a tool that points elsewhere, or what went wrong."""
    world.reset(seed=0)
    site = world.data.site(world.scene.tool.site)
    hand_m = world.data.xpos[world.model.site_bodyid[site.id]]
    along_m = site.xmat.reshape(3, 3).T @ (site.xpos - hand_m)
    most = int(np.argmax(np.abs(along_m)))
    if np.abs(along_m).max() > APART_M and (most < 2 or along_m[2] < 0.0):
        axis = "-" * int(along_m[most] < 0.0) + "xyz"[most]
        return f"Its tool's {axis} axis seems to point out of the hand, not z: write out: {axis}."
    if stands := next(filter(None, (_between(world, seed) for seed in failed[:3])), ""):
        return stands[0].upper() + stands[1:] + "."
    seen = [_went_wrong(world, seed) for seed in failed]
    usual, count = Counter(next(iter(faults)) for faults in seen).most_common(1)[0]
    shown = next(k for k, faults in enumerate(seen) if next(iter(faults)) == usual)
    alike = f"In {count} of {len(failed)} failures, such as scene {failed[shown]}, "
    return alike + "; ".join(seen[shown].values()) + "."


def _between(world: SceneWorld, seed: int) -> str:
    """Say what the open hand would stand in where it is to grip, and what tool is between the jaws.

    The thing is held to the hand as it lies under it there, with jaws open, then closed.
    """
    world.reset(seed=seed)
    model, data, points = world.model, world.data, world.asked.demonstrator
    close = next((k for k, point in enumerate(points) if point.get("gripper") == "closed"), -1)
    number = next((k for k in range(close, -1, -1) if "to" in points[k]), -1)
    opens = "open" in world.scene.gripper and world.servos.jaw
    name = points[number]["to"] if number >= 0 and opens else ""
    thing, arm = mujoco.mj_name2id(model, mujoco.mjtObj.mjOBJ_BODY, name), world.state.arm
    first = int(model.body_jntadr[thing])
    if thing <= 0 or first < 0 or int(model.jnt_type[first]) != int(mujoco.mjtJoint.mjJNT_FREE):
        return ""
    site, (_, turn_rad) = data.site(world.scene.tool.site), place_of(world, name)
    jaw_rad = float(np.arctan2(site.xmat[3], site.xmat[0]))
    jaw_rad += fold_square(turn_rad - jaw_rad) + np.radians(points[number].get("jaw_deg", 0.0))
    cos, sin = np.cos(jaw_rad), np.sin(jaw_rad)
    under = np.array([[cos, sin, 0.0], [sin, -cos, 0.0], [0.0, 0.0, -1.0]])
    lies = under.T @ data.xmat[thing].reshape(3, 3)
    lies_m = -under.T @ points[number].get("offset_m", [0.0] * 3)
    free, hands = int(model.jnt_qposadr[first]), list[FloatArray]()
    for asked in ("open", "closed"):  # jaws on linkages are where they settle
        world.reset(seed=seed)
        goal = world.home.copy()
        goal[world.servos.gripper] = world.scene.gripper[asked]
        for _ in range(math.ceil(CLOSE_S / world.period_s)):
            world.step(world.action_of(goal))
        hands.append(data.qpos.copy())

    def met(hand: FloatArray, tool_m: FloatArray) -> str:
        """Return the body of the arm that the thing meets, were the tool so far from its place."""
        data.qpos[:] = hand
        mujoco.mj_kinematics(model, data)
        turn = site.xmat.reshape(3, 3)
        data.qpos[free : free + 3] = site.xpos + turn @ (lies_m + tool_m)
        mujoco.mju_mat2Quat(data.qpos[free + 3 : free + 7], (turn @ lies).ravel())
        mujoco.mj_fwdPosition(model, data)
        touching = [c.geom for c in data.contact if c.dist < 0.0 and min(c.geom) >= 0]
        pairs = [[int(model.geom_bodyid[g]) for g in pair] for pair in touching]
        others = [sum(pair) - thing for pair in pairs if thing in pair]
        return next((model.body(b).name or f"body {b}" for b in others if b in arm), "")

    stands_in = met(hands[0], np.zeros(3))
    if not stands_in:
        return ""
    said = f"at waypoint {number + 1} the open hand would stand in {name}, with {stands_in}"
    fits = [
        tool_m
        for aside_m in ASIDE_M
        for out_m in OUT_M
        if not met(hands[0], tool_m := np.array([*aside_m, out_m]))
        and met(hands[1], tool_m + np.array([0.0, 0.0, DEEP_M]))
    ]
    if not fits:
        return f"{said}; open its jaws wider, or turn them by jaw_deg"
    best = min(fits, key=lambda u: 2.0 * np.linalg.norm(u[:2]) + abs(u[2]))
    column = [u for u in fits if (u[:2] == best[:2]).all()]
    best = best if best[2] == 0.0 else min(column, key=lambda u: abs(u[2] - np.mean(column, 0)[2]))
    spare = best + np.append(np.sign(best[:2]) * STEP_M, 0.0)
    best = spare if any((u == spare).all() for u in fits) else best
    tool, turn = world.scene.tool, np.zeros(3)
    mujoco.mju_rotVecQuat(turn, best, np.array(OUT[tool.out]))
    at = ", ".join(f"{v:.3f}".rstrip("0").rstrip(".") for v in tool.at_m + turn + 0.0)
    kind = "body" if tool.on_body else "site"
    out = f"{{{kind}: {tool.name}, at_m: [{at}], out: {tool.out}}}".replace("-0,", "0,")
    return f"{said}: write tool: {out}, which is between its jaws"


def _went_wrong(world: SceneWorld, seed: int) -> dict[str, str]:
    """Return what goes wrong in an attempt of the waypoints, in turn: its kind, and in words."""
    world.reset(seed=seed)
    drives, points, model = Demonstrator(world), world.asked.demonstrator, world.model
    loose = [
        model.body(b).name for b in range(model.nbody)
        if model.body_weldid[b] and b not in world.state.arm and model.body(b).name
    ]  # fmt: skip
    never = {thing for thing in things_of(world) if thing in loose}
    gripped, found = dict[str, int](), dict[str, str]()  # gripped: at which waypoint
    for _ in range(world.max_steps):
        before, action = len(drives.off_m), drives(None)
        touched = {b for b in loose if world.state.touching(b) & world.state.arm}
        never -= touched
        if (number := len(drives.off_m)) > before:  # a waypoint is over
            point = points[number - 1]
            if point.get("gripper") == "open":
                gripped = {}
            for body in gripped.keys() - touched:
                step_m = point.get("speed_m_s", SPEED_M_S) * world.period_s
                found[f"lost {number}"] = (
                    f"{body}, gripped at waypoint {gripped.pop(body)}, is lost on the way to "
                    f"{number}, where the tool goes {1e3 * step_m:.0f} mm a frame: lower its "
                    "speed_m_s, raise fps, or grip deeper or harder"
                )
            if point.get("gripper") == "closed":
                # Jaws that met, short of where they were sent, lie on a thing, not about it.
                met = drives.off_m[-1] > APART_M and _jaws_met(world)
                gripped = {} if met else dict.fromkeys(touched, number)
                if not gripped and (beside := _beside(world, loose, drives.off_m[-1])):
                    found[f"empty {number}"] = f"waypoint {number} grips nothing: {beside}"
        world.step(action)
    late = {} if drives.done else {
        "late": f"max_s is over before waypoint {len(drives.off_m) + 1} of {len(points)}"
    }  # fmt: skip
    why, off_m = dict[str, str](), max(drives.off_m, default=0.0)
    if never and not found:
        why["missed"] = f"the arm never touches {', '.join(sorted(never))}"
    if off_m > APART_M and not found:
        number = drives.off_m.index(off_m) + 1
        why[f"off {number}"] = f"the tool stays {1e3 * off_m:.0f} mm off waypoint {number}"
    return found | late | why | {"end": _lacks(world)}


def _jaws_met(world: SceneWorld) -> bool:
    """Say whether the gripper is as closed as it is ever told to be."""
    closed, opened = world.scene.gripper["closed"], world.scene.gripper.get("open")
    if opened in (None, closed):
        return False
    return bool((world.angles()[world.servos.gripper] - opened) / (closed - opened) > 0.97)


def _beside(world: SceneWorld, bodies: Sequence[str], off_m: float) -> str:
    """Say which of the bodies the tool is at, and how far from it; "" where it is at none.

    off_m: how far the tool is from where it was sent [m].
    """
    tip_m = world.data.site(world.scene.tool.site).xpos
    away_m = {b: float(np.linalg.norm(world.state.place_m(b) - tip_m)) for b in bodies}
    nearest = min(away_m, key=away_m.__getitem__, default="")
    if not nearest or away_m[nearest] >= AT_IT_M:
        return ""
    off = f", which is {1e3 * off_m:.0f} mm off it" * (off_m > APART_M)
    return f"{nearest} is {1e3 * away_m[nearest]:.0f} mm from the tool{off}"


def _lacks(world: SceneWorld) -> str:
    """Say which parts of success the world, as it stands, lacks."""
    said = world.asked.success
    parts = said["all"] if isinstance(said, Mapping) and "all" in said else [said]
    lacking = [p for p in parts if not world.state.satisfies(parse(p, world.model, ""))]
    words = ", ".join(str(part) + _apart(world, part) for part in lacking)
    words = words.replace("'", "").replace("{True:", "{on:")  # as YAML reads it
    return f"at the end not so: {words}" if words else "it succeeds when it is run again"


def _apart(world: SceneWorld, part: Any) -> str:
    """Say how far the two are apart that a predicate is about; "" where it isn't about two."""
    said = next(iter(part.values())) if isinstance(part, Mapping) else None
    named = [v for v in said.values() if isinstance(v, str)] if isinstance(said, Mapping) else ()
    if len(named) != 2:
        return ""
    away_m = float(np.linalg.norm(world.state.place_m(named[0]) - world.state.place_m(named[1])))
    return f", {1e3 * away_m:.0f} mm apart" if away_m < 1.0 else f", {away_m:.0f} m apart"


def _pictures(world: GymWorld, folder: Path | None) -> Iterator[CheckResult]:
    observation, _ = world.reset(seed=0)
    found = pictures_in(observation)
    if not found and isinstance(drawn := world.render(), np.ndarray):
        found = {CAMERA: drawn}
    for number, (name, picture) in enumerate(found.items()):
        height, width = picture.shape[:2]
        said = f"{width}x{height}"
        if folder is not None:
            path = folder / f"picture_{number}.png"
            PIL.Image.fromarray(picture).save(path)
            said += f", {path}"
        yield CheckResult("camera", Level.OK, said, subject=name)
    if not found:
        modes = [mode for mode in world.metadata.get("render_modes", ()) if mode]
        fix = f"Give --env.kwargs with a render_mode of {', '.join(modes)}." if modes else ""
        if isinstance(world.unwrapped, SceneWorld):
            model = world.unwrapped.model
            there = ", ".join(model.camera(c).name for c in range(model.ncam))
            fix = f"Name cameras in the scene file; the model has {there or 'none, so aim one'}."
        yield CheckResult("camera", Level.WARN, "shows no pictures", fix)


def _inside(world: GymWorld) -> Iterator[CheckResult]:
    """Say what was found inside, and what gaps can be injected."""
    known = world.surveyed()
    if known is None:
        said = f"{NoModel.lacks}: only pictures and the time that actions take can change"
        yield CheckResult("inside", Level.WARN, said)
    else:
        for role, said in known.roles.words(known.model).items():
            fix, level = "", Level.OK
            if role in known.roles.doubts:
                name = "NAME" if role in ("object", "table") else "[NAME]"
                fix, level = f"Write {role}: {name} into a file, and give --roles=FILE.", Level.WARN
                if role == "cameras" and not said.startswith("one"):  # there is none to choose
                    fix = ""
                inner = world.unwrapped
                named = role == "gripper" and getattr(inner, "grip", -1) >= 0
                if isinstance(inner, SceneWorld) and role in IN_SCENE and not named:
                    fix = f"Write {IN_SCENE[role]} into the scene file."
            yield CheckResult("inside", level, said, fix, subject=role)
        said = f"{sum(s >= 0 for s in known.servos) or 'no'} position servos"
        theirs, model = {*known.roles.arm, *known.roles.gripper}, known.model
        others = [j for j in servo_joints(model) if j not in theirs]
        if others:
            names = ", ".join(model.joint(j).name for j in others)
            said += f", and those of {names}, which count neither as arm nor as gripper"
        shown = f"{len({r.joint for r in known.readings})} of {len(known.roles.arm)}"
        said += f"; the observation shows the angles of {shown} joints of the arm"
        if not isinstance(world.action_space, gymnasium.spaces.Box):
            said = f"{said.partition(';')[0]}; it takes {world.action_space}, no Box: not moved"
        yield _result("inside", said, subject="drives")
        bodies = model.jnt_bodyid[list(known.roles.arm)]
        reach_m = float(np.ptp(known.data.xpos[bodies], axis=0).max()) if len(bodies) else 0.0
        if reach_m > MOST_REACH_M:
            said = (
                f"the arm's joints are {reach_m:.0f} m apart: the model seems to be in millimetres"
            )
            fix = 'MuJoCo counts in metres: scale meshes (scale="0.001 0.001 0.001") and places.'
            yield CheckResult("inside", Level.WARN, said, fix, subject="size")
    can = world.parameters()
    possible = [key for key, why in can.items() if not why]
    said = f"{len(possible)} of {len(can)} can be injected: {', '.join(possible)}"
    yield CheckResult("gaps", Level.OK, said, data={"missing": dict(can)})
    for why in dict.fromkeys(filter(None, can.values())):
        names = ", ".join(key for key, said in can.items() if said == why)
        yield _result("gaps", f"not {names}: {why}")


def _result(check: str, found: str, fix: str = "", subject: str = "") -> CheckResult:
    """Return what is well, or with a fix what isn't."""
    return CheckResult(check, Level.FAIL if fix else Level.OK, found, fix, subject=subject)
