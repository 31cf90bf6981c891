"""What ends in a figure, by command, in simulations that nobody here wrote.

Run it where they are installed: `make test-worlds` makes such an environment. A figure is checked
by what the world itself knows: the numbers without gaploop, what was drawn, who was better.
"""

from __future__ import annotations

import contextlib
import io
import json
import shutil
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import gymnasium as gym
import mujoco
import numpy as np
import yaml

from gaploop.core.errors import GaploopError
from gaploop.core.files import read_json, write_json
from gaploop.scripts import cli, options

if TYPE_CHECKING:
    from benchmarks.bench import BenchConfig

STEPS: Final = 20
TIMED, TIMES = 20, 20
"""Steps that are timed in turn, with a tenth as many pictures, and how often: the least is told."""
LATE: Final = {"actuator_response.latency": 0.7}
NOT_RUN: Final = "not run: "
TINY: Final = (
    "--policy.type=act", "--policy.push_to_hub=false", "--batch_size=4", "--steps=10",
    "--num_workers=0", "--policy.device=cpu", "--policy.dim_model=64", "--policy.n_heads=2",
    "--policy.dim_feedforward=64", "--policy.pretrained_backbone_weights=null",
)  # fmt: skip
"""An ACT that is trained in seconds: that the way from takes to policy ends, not how good it is."""


@dataclass(frozen=True)
class Foreign:
    """A simulation of others.

    Attributes:
        script: a policy of its own that succeeds, or "".
    """

    gym: str
    kwargs: Mapping[str, Any] = field(default_factory=dict)
    script: str = ""

    @property
    def named(self) -> list[str]:
        """How a command is told."""
        return [f"--env.gym={self.gym}", f"--env.kwargs={json.dumps(dict(self.kwargs))}"]

    @property
    def unseen(self) -> Foreign:
        """The same without pictures, which its script doesn't look at."""
        return replace(self, kwargs={**self.kwargs, "render_mode": None})


SMALL: Final = {"width": 96, "height": 96}
WORLDS: Final = {
    "metaworld pick-place": Foreign(
        "metaworld:Meta-World/MT1",
        {"env_name": "pick-place-v3", "seed": 0, "camera_name": "corner2", **SMALL},
        "metaworld.policies:SawyerPickPlaceV3Policy",
    ),
    "metaworld button-press": Foreign(
        "metaworld:Meta-World/MT1",
        {"env_name": "button-press-v3", "seed": 0, "camera_name": "corner2", **SMALL},
        "metaworld.policies:SawyerButtonPressV3Policy",
    ),
    "robosuite Lift": Foreign(
        "benchmarks.worlds:robosuite/Lift-v0", script="benchmarks.worlds:Lifted"
    ),
    "gymnasium-robotics Fetch": Foreign(
        "gymnasium_robotics:FetchPickAndPlace-v4", SMALL, "benchmarks.worlds:Fetch"
    ),
    "so101-nexus": Foreign("so101_nexus.mujoco:MuJoCoPickLift-v1"),
    "pusht": Foreign("gym_pusht:gym_pusht/PushT-v0", {"obs_type": "pixels_agent_pos"}),
}


class Lift(gym.Env[Any, Any]):
    """robosuite's Lift as gymnasium has environments."""

    def __init__(self) -> None:
        import robosuite
        from robosuite.wrappers import GymWrapper

        self.made = robosuite.make(
            "Lift", robots="Panda", has_renderer=False, has_offscreen_renderer=False,
            use_camera_obs=False, use_object_obs=True, control_freq=20, horizon=200, seed=0,
        )  # fmt: skip
        self.inner = GymWrapper(self.made)
        self.observation_space = self.inner.observation_space
        self.action_space = self.inner.action_space
        self.dt = 1.0 / self.made.control_freq

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        """Start an episode."""
        super().reset(seed=seed, options=options)
        return self.inner.reset(seed=seed)

    def step(self, action: Any) -> Any:
        """Step, and say whether the cube is lifted."""
        seen, reward, over, late, info = self.inner.step(action)
        return seen, reward, over, late, {**info, "success": self.made._check_success()}


gym.register("robosuite/Lift-v0", "benchmarks.worlds:Lift")


class Fetch:
    """Fetch's pick and place by where things are, which it is told."""

    opened = 1.0

    def __init__(self) -> None:
        self._closed = 0

    def get_action(self, observation: Mapping[str, Any]) -> np.ndarray[Any, Any]:
        """Return the next pull of the hand and its gripper, shape (4,)."""
        seen = observation["observation"]
        return self.carried(seen[:3], seen[3:6], observation["desired_goal"])

    def carried(self, hand: Any, thing: Any, there: Any) -> np.ndarray[Any, Any]:
        """Go above the thing, down, close, and take it there; positions have shape (3,) [m]."""
        above = np.linalg.norm((thing - hand)[:2]) > 0.015
        if self._closed == 0 and (above or hand[2] - thing[2] > 0.01):
            goal, grip = thing + np.array([0.0, 0.0, 0.08 if above else 0.0]), self.opened
        else:
            self._closed += 1
            goal, grip = (thing if self._closed < 8 else there), -self.opened
        return np.clip(np.append(8.0 * (goal - hand), grip), -1.0, 1.0).astype(np.float32)


class Lifted(Fetch):
    """robosuite's Lift in the same way: the cube is raised where it lies."""

    opened = -1.0

    def get_action(self, observation: Any) -> np.ndarray[Any, Any]:
        """Return the next pull of the hand, no turn, and its gripper, shape (7,)."""
        thing = observation[:3]
        pull = self.carried(thing - observation[7:10], thing, thing + np.array([0.0, 0.0, 0.1]))
        return np.concatenate([pull[:3], np.zeros(3, np.float32), pull[3:]])


def nothing(observation: Any) -> Any:
    """Do nothing, which never succeeds."""
    del observation
    return _space.sample() * 0


_space: Any = None
"""Actions of the world that `nothing` is tried in."""


def measure(config: BenchConfig, folder: Path) -> dict[str, Any]:
    """Return world to what each of `COLUMNS` came to, in words; what ended isn't done again."""
    global _space
    columns = {c: do for c, do in COLUMNS.items() if c in (config.tasks or FIGURES)}
    kept = folder / "cells.json"
    found: dict[str, dict[str, str]] = read_json(kept) if kept.exists() else {}
    with options.progress("Cells", len(WORLDS) * len(columns)) as advance:
        for name, world in WORLDS.items():
            cells = found.setdefault(name, {})
            try:
                _space = made(world).action_space
            except GaploopError as error:
                cells |= dict.fromkeys(columns, f"{NOT_RUN}{error}")
                advance(len(columns))
                continue
            for column, cell in columns.items():
                if cells.get(column, NOT_RUN).startswith(NOT_RUN):
                    place = folder / name.replace(" ", "_") / column.replace(" ", "_")
                    shutil.rmtree(place, ignore_errors=True)
                    place.mkdir(parents=True)
                    try:
                        cells[column] = cell(world, place, config.n or 3)
                    except Exception as error:  # noqa: BLE001  (whatever another's world raises)
                        cells[column] = f"{NOT_RUN}{' '.join(str(error).split())}"
                    write_json(kept, found)
                advance()
    figures = [cells[c] for cells in found.values() for c in FIGURES if c in cells]
    ended = sum(not cell.startswith(NOT_RUN) for cell in figures)
    return {"worlds": found, "ended": ended, "of": len(figures)}


def made(world: Foreign) -> gym.Env[Any, Any]:
    """Make one as it is."""
    from gaploop.sim.lerobot_worlds import GymEnvConfig

    return GymEnvConfig(gym=world.gym, kwargs=dict(world.kwargs)).make()


def said(*arguments: str) -> dict[str, Any]:
    """Return what a command says with --json."""
    out, told = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(told):
        code = cli.main([*arguments, "--json"])
    lines = told.getvalue().strip().splitlines() or [f"gaploop {arguments[0]} ended with {code}"]
    text = out.getvalue()
    if "{" not in text:
        raise GaploopError(lines[-1])
    answer: dict[str, Any] = json.loads(text[text.index("{") :])
    return answer


def _driver(world: Foreign) -> str:
    return world.script or f"{__name__}:nothing"


def evaluated(world: Foreign, n: int, *more: str, policy: str = "") -> dict[str, Any]:
    """Return what `gaploop evaluate` says of n scenes; its own script drives unless given."""
    named = f"--policy.path={policy or _driver(world)}"
    return said("evaluate", named, *world.named, f"--n={n}", *more)


def _factors(world: Foreign, folder: Path, n: int) -> str:
    del folder
    answer = evaluated(world, n, "--factors=all")
    count = len(answer["by_condition"])
    if count < 2:
        raise GaploopError("none of the factors can be varied")
    return f"{count - 1} settings beside the scene as it is"


def _zero(world: Foreign, folder: Path, n: int) -> str:
    """All gaps that it can have at severity 0: every number as without gaploop."""
    from gaploop.sim.world import GymWorld, WorldSpec

    del folder, n
    plain = made(world)
    can = [key for key, why in GymWorld(lambda: made(world)).parameters().items() if not why]
    gapped = GymWorld(lambda: made(world), WorldSpec(gaps=dict.fromkeys(can, 0.0)))
    rng, actions = np.random.default_rng(0), list[Any]()
    for _ in range(STEPS):
        plain.action_space.seed(int(rng.integers(2**31)))
        actions.append(plain.action_space.sample())
    if _numbers(plain, actions) != _numbers(gapped, actions):
        raise GaploopError("its numbers differ")
    return f"{len(can)} gaps at 0: identical to the bit over {STEPS} steps"


def _numbers(env: gym.Env[Any, Any], actions: list[Any]) -> list[bytes]:
    from gaploop.sim.roles import numbers_in

    observation, _ = env.reset(seed=3)
    seen = list[bytes]()
    for action in actions:
        seen += [value.tobytes() for _, value in numbers_in(observation)]
        observation, reward, *_ = env.step(action)
        seen.append(np.float64(reward).tobytes())
    env.close()
    return seen


def _costs(world: Foreign, folder: Path, n: int) -> str:
    """What gaps cost a step and a picture at severity 0."""
    del folder, n
    can = _can(world)
    step, picture = _times(world, dict.fromkeys(can, 0.0), drawn=True)
    told = f"{len(can)} gaps at 0: a step {step - 1.0:+.0%}, no callback left"
    return told + (f", {picture:.2f} times as many pictures a second" if picture else "")


def _active(world: Foreign, folder: Path, n: int) -> str:
    """What each gap costs a step at severity 0.5, and what it puts in."""
    del folder, n
    return ", ".join(f"{key} {_times(world, {key: 0.5})[0] - 1.0:+.0%}" for key in _can(world))


def _can(world: Foreign) -> list[str]:
    from gaploop.sim.world import GymWorld

    with contextlib.closing(GymWorld(lambda: made(world))) as inside:
        return [key for key, why in inside.parameters().items() if not why]


def _times(
    world: Foreign, gaps: Mapping[str, float], *, drawn: bool = False
) -> tuple[float, float]:
    """Return how long a step takes by how long it takes as it is, and pictures a second likewise.

    0 for pictures where none are drawn.
    """
    from gaploop.sim.world import GymWorld, WorldSpec

    pair = made(world), GymWorld(lambda: made(world), WorldSpec(gaps=gaps))
    draws = (False, True) if drawn and pair[0].render_mode == "rgb_array" else (False,)
    least = {(env, draw): np.inf for env in pair for draw in draws}
    actions = [pair[0].action_space.sample() for _ in range(TIMED)]
    for _ in range(TIMES):
        for env in pair:
            env.reset(seed=3)
            for draw in draws:
                began_s = time.process_time()
                for action in actions[:: 10 if draw else 1]:
                    env.render() if draw else env.step(action)
                least[env, draw] = min(least[env, draw], time.process_time() - began_s)
    for env in pair:
        env.close()
    if (left := mujoco.get_mjcb_control()) is not None:
        raise GaploopError(f"a callback is left: {left}")
    took = [[least[env, draw] for env in pair] for draw in draws]
    return took[0][1] / took[0][0], took[1][0] / took[1][1] if len(draws) > 1 else 0.0


def _twin(world: Foreign, folder: Path, n: int) -> str:
    """A station whose commands come late: is that what is found, and blamed?"""
    if not world.script:
        raise GaploopError("no policy of its own succeeds: it would fail without the gap, too")
    takes, twin = folder / "station", folder / "station_twin"
    plain, gap = world.unseen, (f"--gaps={json.dumps(LATE)}", "--gap_seed=7")
    evaluated(
        plain, 2 * n, *gap, f"--dataset.root={takes}", "--dataset.failures=true",
        "--dataset.single_task=Do it",
    )  # fmt: skip
    said("identify", str(takes), *plain.named, f"--output_dir={twin}")
    answer = said(
        "diagnose", str(takes), f"--twin={twin / 'station_twin.yaml'}", "--workers=1",
        f"--policy.path={world.script}", f"--n={2 * n}", f"--output_dir={folder / 'diagnosis'}",
    )  # fmt: skip
    named = answer["summary"]["station"]["named"]
    if named != [truth := next(iter(LATE)).partition(".")[0]]:
        raise GaploopError(f"named {named or 'nothing'}, injected was {truth}")
    return f"{truth} named, {len(answer['takes'])} episodes"


def _randomise(world: Foreign, folder: Path, n: int) -> str:
    answer = evaluated(world, n, "--randomise=all")
    again = evaluated(world, n, "--randomise=all")
    del folder
    if answer["by_condition"] != again["by_condition"]:
        raise GaploopError("equal seeds gave other results")
    return _rate(answer)


def _rate(answer: Mapping[str, Any]) -> str:
    (rate, *_) = answer["by_condition"].values()
    return f"{rate['successes']}/{rate['trials']}"


def _trained(world: Foreign, folder: Path, n: int) -> str:
    """Demonstrations, a policy trained on them, and its success."""
    if not world.script:
        raise GaploopError("no policy of its own succeeds: nobody demonstrates")
    takes, run = folder / "takes", folder / "run"
    shown = evaluated(world, n, f"--dataset.root={takes}", "--dataset.single_task=Do it")
    mixture = folder / "mixture.yaml"
    mixture.write_text(yaml.safe_dump({"sources": {"takes": "takes"}, "shares": {"takes": 1.0}}))
    code = cli.main(
        ["finetune", str(mixture), "--method=lerobot", f"--output_dir={run}", "--", *TINY]
    )
    if code:
        raise GaploopError(f"gaploop finetune ended with {code}")
    result = evaluated(world, 1, policy=str(run))
    return f"{_rate(shown)} shown; a tiny ACT of 10 steps {_rate(result)}"


def _gated(world: Foreign, folder: Path, _n: int) -> str:
    """Its own policy against one that does nothing: promoted only where it can succeed."""
    suite = folder / "suite.yaml"
    task = {
        "task": "its own", "env": {"gym": world.gym, "kwargs": dict(world.kwargs)},
        "success_check": "script", "min_pass_rate": 0.1,
    }  # fmt: skip
    rules = {"gain": 0.5, "max_pairs": 12, "baseline_rate": 0.2}
    suite.write_text(yaml.safe_dump({"name": "foreign", "tasks": [task], "rules": rules}))
    answer = said(
        "gate", f"--baseline={__name__}:nothing", f"--candidate={_driver(world)}",
        f"--suite={suite}", f"--output_dir={folder / 'gate'}", "--seed=0",
    )  # fmt: skip
    better = any(s["stage"] == "hardware" for s in answer["stages"]) and bool(world.script)
    if answer["verdict"] == "promote" and not better:
        raise GaploopError("it promoted what does nothing")
    return str(answer["verdict"])


COLUMNS: Final[Mapping[str, Callable[[Foreign, Path, int], str]]] = {
    "factors": _factors,
    "gaps at 0": _zero,
    "twin": _twin,
    "randomise": _randomise,
    "train": _trained,
    "gate": _gated,
    "costs": _costs,
    "active": _active,
}
FIGURES: Final = tuple(COLUMNS)[:6]
"""What is done unless --tasks names others, and counted."""


def table(result: Mapping[str, Any]) -> str:
    """Return each world's cells as lines."""
    lines = [f"{result['ended']} of {result['of']} cells end in a figure"]
    for name, cells in result["worlds"].items():
        lines += [name, *(f"  {column:<10} {said}" for column, said in cells.items())]
    return "\n".join(lines)
