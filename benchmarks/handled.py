"""What a fixed camera adds to joints and gripper: modes of failure by kind, in worlds of others.

One script picks and places in metaworld and in gymnasium-robotics' Fetch; a failure is its commands
altered, or an object that falls out. Run it where they are installed (`make test-worlds`).
"""

from __future__ import annotations

import importlib
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import mujoco
import numpy as np
from numpy.typing import NDArray

from gaploop.core.messages import FloatArray
from gaploop.core.statistics import percent, rate
from gaploop.core.take import Frames, Take, TakeInfo
from gaploop.core.telemetry import Telemetry
from gaploop.core.vocabulary import Outcome
from gaploop.failure_analysis.comparison import compare, take_evidence
from gaploop.failure_analysis.episode_figures import TakeFigures, figures_of, with_pictures

if TYPE_CHECKING:
    from benchmarks.bench import BenchConfig

KINDS: Final = {
    "beside": "missed_grasp", "above": "missed_grasp", "early": "slip", "slip": "slip",
    "elsewhere": "misplacement",
}  # fmt: skip
"""What is done, and the mode that is right: closes 5 to 7 cm beside, 6 to 8 cm above; opens, or
loses the object, a third to two thirds of the way; puts it down 8 to 12 cm from the goal."""
RECORDED: Final = (*(28 * ("success",)), *(10 * tuple(KINDS)))
FAILURES, SUCCESSES, SETS, CHANCE = 8, 16, 10, 200
SIZE_PX: Final = (180, 240)


class World:
    """One of the two, with its arm, an object, a goal and two fixed cameras."""

    def __init__(self, name: str) -> None:
        import gymnasium as gym

        self.fetch, self.slick = name == "fetch", False
        if self.fetch:
            gym.register_envs(importlib.import_module("gymnasium_robotics"))
            self.gym: Any = gym.make("FetchPickAndPlace-v4", max_episode_steps=9999)
            at, views = (1.3, 0.75, 0.45), ((1.3, 150, -35), (1.2, 200, -50))
        else:
            importlib.import_module("metaworld")
            self.gym = gym.make("Meta-World/MT1", env_name="pick-place-v3", seed=0)
            at, views = (0.0, 0.7, 0.05), ((0.95, 60, -35), (0.95, 150, -50))
        self.gym.reset(seed=0)
        self.env = self.gym.unwrapped
        self.model, self.data, self.cameras = self.env.model, self.env.data, []
        for distance, azimuth, elevation in views:
            view = mujoco.MjvCamera()
            view.lookat[:], view.distance = at, distance
            view.azimuth, view.elevation = azimuth, elevation
            self.cameras.append(view)
        self.table_m, self.every = (0.425, 1) if self.fetch else (0.02, 6)
        self.block = "object0" if self.fetch else "obj"
        if not self.fetch:  # its room is slow to draw
            self.model.vis.quality.offsamples = 0
        self.renderer = mujoco.Renderer(self.model, *SIZE_PX)
        for flag in () if self.fetch else ("SHADOW", "REFLECTION"):
            self.renderer.scene.flags[getattr(mujoco.mjtRndFlag, f"mjRND_{flag}")] = 0
        arm = ("shoulder", "upperarm", "elbow", "forearm", "wrist") if self.fetch else ("right_j",)
        names = [self.model.joint(k).name for k in range(self.model.njnt)]
        self.joints = [k for k, n in enumerate(names) if any(part in n for part in arm)]

    def reset(self, rng: np.random.Generator) -> None:
        """Draw where the object and its goal lie."""
        low, high = ((1.22, 0.6), (1.38, 0.75)) if self.fetch else ((-0.12, 0.58), (0.12, 0.68))
        goals = ((1.25, 0.85), (1.4, 0.95)) if self.fetch else ((-0.1, 0.78), (0.1, 0.86))
        self.gym.reset()
        self.goal_m = np.array([*rng.uniform(*goals), self.table_m])
        block = rng.uniform(low, high)
        if self.fetch:
            self.data.joint("object0:joint").qpos[:2] = block
            self.env.goal = self.goal_m
        else:
            self.env.max_path_length = 9999
            self.env._set_obj_xyz(np.array([*block, self.table_m]))
            self.env._target_pos = self.goal_m
        mujoco.mj_forward(self.model, self.data)
        site = "target0" if self.fetch else "goal"
        self.model.site(site).pos += self.goal_m - self.data.site(site).xpos

    @property
    def hand_m(self) -> FloatArray:
        """Where the gripper is, shape (3,)."""
        at = self.data.site("robot0:grip").xpos if self.fetch else self.env.tcp_center
        return np.array(at)

    @property
    def block_m(self) -> FloatArray:
        """Where the object is, shape (3,)."""
        return np.array(self.data.body(self.block).xpos)

    def act(self, move_m: FloatArray, open_: float) -> None:
        """Move the hand that far, the gripper open (1) or shut (0)."""
        gain, jaw = (8.0, 2 * open_ - 1) if self.fetch else (10.0, 1 - 2 * open_)
        self.env.step(np.r_[np.clip(move_m * gain, -1, 1), jaw].astype(np.float32))

    def state(self) -> FloatArray:
        """Return the joints [rad] and how far the jaws are open, 0 to 1."""
        q = self.data.qpos[self.model.jnt_qposadr[self.joints]]
        if self.fetch:
            fingers = [self.data.joint(f"robot0:{s}_gripper_finger_joint").qpos[0] for s in "lr"]
            return np.asarray(np.r_[q, sum(fingers) / 0.1])
        pads = self.data.body("rightpad").xpos - self.data.body("leftpad").xpos
        return np.asarray(np.r_[q, (np.linalg.norm(pads) - 0.03) / 0.07])


def attempt(world: World, kind: str, seed: int) -> dict[str, Any]:
    """Pick and place once; return what was recorded and where the object lay."""
    rng = np.random.default_rng(seed)
    world.reset(rng)
    turn, up = rng.uniform(0, 2 * np.pi), np.array([0.0, 0.0, 0.12])
    way = np.array([np.cos(turn), np.sin(turn), 0.0])
    pick = np.array([*world.block_m[:2], world.table_m])
    put = world.goal_m + np.array([0, 0, 0.015])
    pick += {
        "beside": rng.uniform(0.05, 0.07) * way,
        "above": rng.uniform(0.06, 0.08) * up / 0.12,
    }.get(kind, np.zeros(3))
    put = put + (rng.uniform(0.08, 0.12) * way * [1, -np.sign(way[1]), 0]) * (kind == "elsewhere")
    pick, put = pick + rng.normal(0, 0.003, 3), put + rng.normal(0, 0.006, 3)
    home = world.hand_m + rng.normal(0, 0.01, 3)
    seen: dict[str, list[Any]] = {"state": [], "told": [], "0": [], "1": []}
    steps = 0

    def go(to: FloatArray, open_: float, near_m: float, most: int, part: float = 1.0) -> None:
        nonlocal steps
        start = world.hand_m
        for _ in range(most * world.every):
            world.act(to - world.hand_m, open_)
            if steps % world.every == 0:
                seen["state"].append(world.state())
                seen["told"].append(open_)
                for name, camera in zip("01", world.cameras, strict=True):
                    world.renderer.update_scene(world.data, camera)
                    seen[name].append(world.renderer.render().copy())
            steps += 1
            gone = np.linalg.norm(world.hand_m - start) / (np.linalg.norm(to - start) + 1e-9)
            if near_m and (np.linalg.norm(world.hand_m - to) < near_m or gone > part):
                return

    go(home, 1.0, 0.0, int(rng.integers(2, 6)))
    go(pick + up, 1.0, 0.015, 80)
    go(pick, 1.0, 0.008, 80)
    go(pick, 0.0, 0.0, 8)
    go(pick + up, 0.0, 0.015, 80)
    had = bool(world.block_m[2] > world.table_m + 0.05)
    shut = 0.0
    if kind in ("early", "slip"):
        go(put + up, 0.0, 0.015, 80, rng.uniform(0.3, 0.6))
        if kind == "early":
            go(world.hand_m, 1.0, 0.0, 6)
            shut = 1.0
        else:  # not recorded: knocked out of the jaws, which close again
            for open_ in [1.0] * 3 * world.every + [0.0] * 3 * world.every:
                world.act(np.zeros(3), open_)
    go(put + up, shut, 0.015, 80)
    go(put, shut, 0.01, 80)
    go(put, 1.0, 0.0, 6)
    go(put + up, 1.0, 0.015, 80)
    go(home + np.array([0, 0, 0.05]), 1.0, 0.03, 80)
    well = bool(np.linalg.norm((world.block_m - world.goal_m)[:2]) < 0.05)
    dt_s = world.every * float(world.env.dt)
    if had == (kind in ("beside", "above")):  # not what was meant to happen
        kind = "other"
    return {"kind": kind, "ok": well, "t": dt_s * np.arange(len(seen["told"]))} | seen


def take_of(path: Path) -> tuple[str, bool, Take]:
    """Return a stored episode's kind, whether it went well, and the take."""
    with np.load(path) as held:
        seen = {name: held[name] for name in held.files}
    state, n = seen["state"], len(seen["state"])
    sent = np.vstack([state[1:], state[-1:]])  # as of many datasets: an action is the next reading
    sent[:, -1] = seen["told"]
    frames = Frames(
        seen["t"], state, sent, sent, np.empty((n, 0)), np.zeros(n, bool), np.zeros(n, int)
    )
    names = tuple(f"joint_{k + 1}" for k in range(state.shape[1] - 1))
    info = TakeInfo(
        path.stem, "place", float(1 / np.diff(seen["t"]).mean()), robot_type="other", units="rad",
        joint_names=(*names, "gripper"),
    )  # fmt: skip
    cameras = {f"camera {k}": (lambda k=k: iter(seen[k])) for k in "01"}
    outcome = Outcome.SUCCESS if seen["ok"] else Outcome.FAILURE
    return str(seen["kind"]), bool(seen["ok"]), Take(
        info, outcome, frames, Telemetry(np.empty(0), {}), cameras=cameras
    )  # fmt: skip


def measure(config: BenchConfig, folder: Path) -> dict[str, Any]:
    """Record episodes, unless `--data` names a folder of them, and judge sets of them."""
    worlds = {}
    for name in ("fetch", "metaworld"):
        place = (config.data or folder) / name
        if config.data is None:
            place.mkdir(parents=True, exist_ok=True)
            world = World(name)
            for seed, kind in enumerate(RECORDED):
                if not (place / f"{seed:04d}.npz").exists():
                    np.savez_compressed(place / f"{seed:04d}.npz", **attempt(world, kind, seed))
        if place.is_dir():
            worlds[name] = judged(
                [take_of(p) for p in sorted(place.glob("*.npz"))], config.n or SETS
            )
    return {"evidence": "simulations of others", "worlds": worlds}


def judged(episodes: Sequence[tuple[str, bool, Take]], sets: int) -> dict[str, Any]:
    """Return how many failures of each kind got the right mode, by what was looked at."""
    kept = [(kind, take) for kind, well, take in episodes if well is (kind == "success")]
    kinds, rng = np.array([kind for kind, _ in kept]), np.random.default_rng(0)
    out: dict[str, Any] = {"episodes": dict(Counter(kinds.tolist()))}
    good = np.flatnonzero(kinds == "success")
    rows = {"jaw": [figures_of(take) for _, take in kept]}
    seen = [row.handled for row in rows["jaw"]]
    rows["no jaw"] = [figures_of(_jaw_not_read(take), False) for _, take in kept]
    for jaw, plain in rows.items():
        for what, shown in (("", [{}] * len(kept)), (" and pictures", seen)):
            some = [replace(r, handled=h) for r, h in zip(plain, shown, strict=True)]
            for kind, right in KINDS.items():
                modes, pool = Counter[str](), np.flatnonzero(kinds == kind)
                for _ in range(sets):
                    bad = rng.choice(pool, min(FAILURES, len(pool)), replace=False)
                    well = rng.choice(good, min(SUCCESSES, len(good)), replace=False)
                    chosen = rng.permutation(np.r_[bad, well])  # in turns
                    modes += _modes([some[k] for k in chosen], np.isin(chosen, bad))
                out[f"{kind}, {jaw}{what}"] = [modes[right], modes.total(), dict(modes)]
            every = with_pictures(some)  # outcomes play no part in it
            for dealt, among in (("outcomes dealt", np.arange(len(kept))), ("halves", good)):
                named = 0
                for _ in range(CHANCE if what else 0):
                    chosen = np.sort(rng.choice(among, min(24, len(among)), replace=False))
                    failed = rng.permutation(np.arange(len(chosen)) < len(chosen) // 2)
                    found = compare([every[k] for k in chosen], failed.tolist())
                    named += bool(found.separations)
                out[f"{dealt}, {jaw}{what}"] = [named, CHANCE if what else 0]
    return out


def _jaw_not_read(take: Take) -> Take:
    state = take.frames.state.copy()
    state[:, -1] = take.frames.sent[:, -1]
    return replace(take, frames=replace(take.frames, state=state))


def _modes(rows: Sequence[TakeFigures], failed: NDArray[np.bool_]) -> Counter[str]:
    rows = with_pictures(rows)
    found = compare(rows, failed.tolist())
    calls = [take_evidence(found, int(k), rows[k], failed, 25.0)[1] for k in np.flatnonzero(failed)]
    return Counter(str(call.mode or "unknown") for call in calls)


def table(result: dict[str, Any]) -> str:
    """Return the figures as a table."""
    columns = ("jaw", "jaw and pictures", "no jaw", "no jaw and pictures")
    lines = [f"| world | failures | {' | '.join(columns)} |", "|---" * 6 + "|"]
    for world, found in result["worlds"].items():
        for what in [*KINDS, "outcomes dealt", "halves"]:
            told = [found[f"{what}, {column}"][:2] for column in columns]
            cells = [f"{percent(rate(k, n))} ({k}/{n})" if n else "" for k, n in told]
            lines.append(f"| {world} | {what} | {' | '.join(cells)} |")
    return "\n".join(lines)
