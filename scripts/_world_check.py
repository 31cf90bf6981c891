"""What `gaploop doctor` looks at in a simulation of somebody's own: --env.scene, --env.gym."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from gaploop.core.errors import UnusableInputError
from gaploop.core.files import writable_folder
from gaploop.teleop.checks.result import CheckResult, Level

if TYPE_CHECKING:
    from gaploop.sim.scene_file import SceneWorld
    from gaploop.sim.world import GymWorld

RESETS: Final = 20
SETTLE_S: Final = 0.5
MOVE_DEG: Final = 10.0
SANK_M: Final = 0.02
WEAK: Final = 0.8
"""A demonstrator that succeeds less often than this is too weak to learn from."""


@dataclass
class WorldOptions:
    """A scene of yours, to be looked at."""

    scene: Path | None = None
    """scene.yaml: move its joints, reset it, run its demonstrator (docs/start/my_simulation.md)."""
    gym: str = ""
    """Id of a gymnasium environment, such as FetchPickAndPlace-v4, or package:ID."""
    kwargs: dict[str, Any] = field(default_factory=dict)
    """What gymnasium.make is given beside the id."""
    pictures: Path | None = None
    """Save a picture of each camera in this folder."""


def check_world(env: WorldOptions, roles: Path | None) -> Iterator[CheckResult]:
    """Look at a scene or an environment."""
    from gaploop.sim.lerobot_worlds import GymEnvConfig, SceneEnvConfig
    from gaploop.sim.scene_file import SceneWorld
    from gaploop.sim.world import GymWorld, WorldSpec

    config = GymEnvConfig(gym=env.gym, kwargs=env.kwargs)
    if env.scene:
        config = SceneEnvConfig(scene=env.scene)
    world = GymWorld(config.make, WorldSpec(roles=roles))
    inner = world.unwrapped
    try:
        if isinstance(inner, SceneWorld):
            yield from _scene(inner)
        yield from _pictures(world, writable_folder(env.pictures) if env.pictures else None)
        yield from _inside(world)
    finally:
        world.close()


def _scene(world: SceneWorld) -> Iterator[CheckResult]:
    """Move every joint, reset often, run the demonstrator."""
    world.draws = False
    world.reset(seed=0)
    count, steps = len(world.joint_names), round(SETTLE_S / world.period_s)
    for k in range(count):
        low, high = world.limits[k]
        step = min(np.radians(MOVE_DEG), 0.2 * (high - low))
        goal = world.home.copy()
        goal[k] += step if goal[k] + step <= high else -step
        world.reset(seed=0)
        before = world.angles()[k]
        for _ in range(steps):
            world.step(world.action_of(goal))
        share = (world.angles()[k] - before) / (goal[k] - before)
        fix = "" if 0.5 < share < 1.5 else "Raise its actuator's kp, or see what blocks it."
        yield _result("joints", f"moves {share:.0%} of what it is sent", fix, world.joint_names[k])
    done, sank = 0, set[str]()
    for seed in range(RESETS):
        world.reset(seed=seed)
        start = {p.body: world.data.body(p.body).xpos[2] for p in world.scene.reset}
        done += world.success()
        for _ in range(steps):
            world.step(world.action_of(world.home))
        sank |= {b for b, z in start.items() if abs(world.data.body(b).xpos[2] - z) > SANK_M}
    if done:
        fix = "Reset things further apart, or ask for more in success."
        yield _result("reset", f"{done} of {RESETS} scenes begin with success", fix)
    elif sank:
        fix = "Give them a z_m at which they lie, clear of the arm and each other."
        yield _result("reset", f"after a reset {', '.join(sorted(sank))} falls or jumps", fix)
    else:
        yield _result("reset", f"{RESETS} resets; things stay where they are put")
    if not world.scene.demonstrator:
        yield CheckResult("demonstrator", Level.WARN, "none", "Add waypoints, or record a person.")
        return
    from gaploop.finetune.evaluation import wilson
    from gaploop.sim.scene_file import Demonstrator

    won = 0
    for seed in range(RESETS):
        observation, _ = world.reset(seed=seed)
        driver = Demonstrator(world)
        for _ in range(round(world.scene.max_s * world.scene.fps)):
            observation, *_ = world.step(driver(observation))
            if world.success():
                won += 1
                break
    rate = wilson(won, RESETS)
    level = Level.OK if rate.rate >= WEAK else Level.WARN
    fix = "" if level is Level.OK else "Mend its waypoints first: a policy learns no better."
    yield CheckResult("demonstrator", level, f"succeeds {rate}", fix)
    world.draws = True


def _pictures(world: GymWorld, folder: Path | None) -> Iterator[CheckResult]:
    from PIL import Image

    from gaploop.sim.lerobot_worlds import CAMERA, pictures_in

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
        fix = "Name cameras in the scene, or give kwargs with a render_mode."
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


def wanted(env: WorldOptions) -> bool:
    """Say whether a scene was named; UnusableInputError for two at once."""
    if env.scene and env.gym:
        raise UnusableInputError("Give --env.scene or --env.gym, not both.")
    return bool(env.scene or env.gym)
