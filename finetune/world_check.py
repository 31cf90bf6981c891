"""What `gaploop doctor` looks at in a simulation of somebody's own: --env.scene, --env.gym."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Final

import numpy as np
from PIL import Image

from gaploop.core.files import writable_folder
from gaploop.core.progress import lines_while
from gaploop.finetune.lerobot_gym import DEMONSTRATOR, evaluate_gym
from gaploop.sim.lerobot_worlds import CAMERA, GymEnvConfig, SceneEnvConfig, pictures_in
from gaploop.sim.scene_world import Demonstrator, SceneWorld
from gaploop.sim.world import GymWorld, WorldSpec
from gaploop.teleop.checks.result import CheckResult, Level

RESETS: Final = 20
SETTLE_S: Final = 0.5
MOVE_DEG: Final = 10.0
SANK_M: Final = 0.02
APART_M: Final = 0.01
"""From a waypoint, or of a tool from its hand."""
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
            yield from _inside(world)


def _joints(world: SceneWorld) -> Iterator[CheckResult]:
    """Move each joint a little."""
    for k, name in enumerate(world.joint_names):
        low, high = world.limits[k]
        step = min(np.radians(MOVE_DEG), 0.2 * (high - low))
        goal = world.home.copy()
        goal[k] += step if goal[k] + step <= high else -step
        world.reset(seed=0)
        before = world.angles()[k]
        for _ in range(round(SETTLE_S / world.period_s)):
            world.step(world.action_of(goal))
        share = (world.angles()[k] - before) / (goal[k] - before)
        fix = "" if share > 0.5 else "Raise its actuator's kp, or see what blocks it."
        if share >= 1.5:
            fix = "Raise its actuator's kp against its weight, and its damping (dampratio, kv)."
        is_hinge = world.joints_of(np.ones(len(world.home)))[k] != 1.0
        in_deg = is_hinge and name != world.scene.gripper.get("joint")  # as the file has them
        unit = "°" if in_deg else "rad" if is_hinge else "m"
        unit = unit if name in world.driven_joints else "of its tendon's length"
        low, high = np.degrees(world.limits[k]) if in_deg else world.limits[k]
        said = f"moves {share:.0%} of what it is sent; it goes from {low:.3g} to {high:.3g} {unit}"
        yield _result("joints", said, fix, name)


def _resets(world: SceneWorld) -> CheckResult:
    """Reset often: is anything done, or falling, from the start?"""
    done, sank = 0, set[str]()
    for seed in range(RESETS):
        world.reset(seed=seed)
        start = {p.body: world.data.body(p.body).xpos[2] for p in world.scene.reset}
        done += world.success()
        for _ in range(round(SETTLE_S / world.period_s)):
            world.step(world.action_of(world.home))
        sank |= {b for b, z in start.items() if abs(world.data.body(b).xpos[2] - z) > SANK_M}
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
    rate = evaluate_gym(DEMONSTRATOR, config, RESETS).total
    fix = ""
    if rate.rate < WEAK:
        fix = f"{_missed(world)}Mend its waypoints first: a policy learns no better."
    return CheckResult("demonstrator", Level.WARN if fix else Level.OK, f"succeeds {rate}", fix)


def _missed(world: SceneWorld) -> str:
    """Say what is seen of why waypoints fail: a tool that points elsewhere, or stays off one."""
    world.reset(seed=0)
    site = world.data.site(world.scene.tool.site)
    hand_m = world.data.xpos[world.model.site_bodyid[site.id]]
    along_m = site.xmat.reshape(3, 3).T @ (site.xpos - hand_m)
    most = int(np.argmax(np.abs(along_m)))
    if np.abs(along_m).max() > APART_M and (most < 2 or along_m[2] < 0.0):
        axis = "-" * int(along_m[most] < 0.0) + "xyz"[most]
        return f"Its tool's {axis} axis seems to point out of the hand, not z: write out: {axis}. "
    drives = Demonstrator(world)
    for _ in range(world.max_steps):
        world.step(drives(None))
    off_m = max(drives.off_m, default=0.0)
    number = drives.off_m.index(off_m) + 1 if off_m > APART_M else 0
    return f"The tool stays {1000.0 * off_m:.0f} mm off waypoint {number}. " if number else ""


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
            Image.fromarray(picture).save(path)
            said += f", {path}"
        yield CheckResult("camera", Level.OK, said, subject=name)
    if not found:
        fix = "Give --env.kwargs with a render_mode."
        if isinstance(world.unwrapped, SceneWorld):
            model = world.unwrapped.model
            there = ", ".join(model.camera(c).name for c in range(model.ncam))
            fix = f"Name cameras in the scene file; the model has {there or 'none, so aim one'}."
        yield CheckResult("camera", Level.WARN, "shows no pictures", fix)


def _inside(world: GymWorld) -> Iterator[CheckResult]:
    """Say what was found inside, and what gaps can be injected."""
    known = world.surveyed()
    if known is None:
        said = "MuJoCo doesn't simulate it: only pictures and the time that actions take can change"
        yield CheckResult("inside", Level.WARN, said)
    else:
        for role, said in known.roles.words(known.model).items():
            fix, level = "", Level.OK
            if role in known.roles.doubts:
                fix, level = f"Write {role}: NAME into a file, and give --roles=FILE.", Level.WARN
                if isinstance(world.unwrapped, SceneWorld) and role in IN_SCENE:
                    fix = f"Write {IN_SCENE[role]} into the scene file."
            yield CheckResult("inside", level, said, fix, subject=role)
        drives = f"{len(known.servos) or 'no'} position servos"
        shown = f"{len({r.joint for r in known.readings})} of {len(known.roles.arm)}"
        said = f"{drives}; the observation shows the angles of {shown} joints of the arm"
        yield _result("inside", said, subject="drives")
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
