"""Gymnasium environments through LeRobot, with a tiny one that is registered here."""

from __future__ import annotations

import json
import os
import sys
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
from lerobot.configs import FeatureType, PolicyFeature
from lerobot.datasets.lerobot_dataset import LeRobotDataset
from lerobot.envs.configs import EnvConfig, PushtEnv

from gaploop.core import platform_calls
from gaploop.core.errors import GaploopError, UnusableInputError
from gaploop.core.suite import Suite, SuiteTask
from gaploop.core.twin import Twin, TwinParameter, save_twin
from gaploop.core.vocabulary import Domain, Outcome
from gaploop.datasets.lerobot_read import load_takes
from gaploop.failure_analysis.views.joints import units_of
from gaploop.finetune.evaluation import ROLLOUTS
from gaploop.finetune.gate.attempts import cell_attempts, check_tasks
from gaploop.finetune.gate.folder import GateAttempt
from gaploop.finetune.gate.run import Gate
from gaploop.finetune.lerobot_gym import Demonstrations, Job, evaluate_gym
from gaploop.scripts.cli import main
from gaploop.sim.lerobot_worlds import GymEnvConfig, SceneEnvConfig
from gaploop.sim.scene_world import SceneWorld
from gaploop.sim.world import NOMINAL, GymWorld, WorldSpec

JOINTS, SCENE, STEPS, FPS = 6, 7, 12, 10
SCENE_FILE = Path(__file__).parents[2] / "examples/scene/scene.yaml"


class Even(gym.Env[dict[str, Any], np.ndarray]):
    """Succeeds at the third step in even scenes; odd ones run out of time."""

    metadata = {"render_modes": ["rgb_array"], "render_fps": FPS}  # noqa: RUF012
    task = "even"

    def __init__(self, render_mode: str = "rgb_array") -> None:
        self.render_mode = render_mode
        self.observation_space = gym.spaces.Dict(
            {
                "agent_pos": gym.spaces.Box(-180, 180, (JOINTS,), np.float64),
                "environment_state": gym.spaces.Box(-9, 9, (SCENE,), np.float64),
            }
        )
        self.action_space = gym.spaces.Box(-360, 360, (JOINTS,), np.float32)

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[dict[str, Any], dict[str, Any]]:
        super().reset(seed=seed, options=options)
        if seed is not None:
            self.seed, self.steps = seed, 0
        return self._see(), {"is_success": False}

    def step(self, action: np.ndarray) -> tuple[dict[str, Any], float, bool, bool, dict[str, Any]]:
        assert action.shape == (JOINTS,)
        self.steps += 1
        won = self.seed % 2 == 0 and self.steps == 3
        return self._see(), float(won), won, False, {"is_success": won}

    def _see(self) -> dict[str, Any]:
        return {"agent_pos": np.zeros(JOINTS), "environment_state": np.zeros(SCENE)}


gym.register("gym_even/Even-v0", entry_point=Even, max_episode_steps=STEPS)


class Silent(Even):
    """Tells of success by a word of its own."""

    def step(self, action: np.ndarray) -> tuple[dict[str, Any], float, bool, bool, dict[str, Any]]:
        *said, info = super().step(action)
        return *said, {"well_done": info["is_success"]}  # type: ignore[return-value]


class Breaks(Even):
    """Fails in its own way."""

    def step(self, action: np.ndarray) -> tuple[dict[str, Any], float, bool, bool, dict[str, Any]]:
        if self.steps == 2:
            raise RuntimeError("the licence\nis over")
        return super().step(action)


class Old(Even):
    """As gym, not gymnasium, had it."""

    def reset(self) -> Any:  # type: ignore[override]
        return self._see()


for kind in (Silent, Breaks, Old):
    gym.register(f"gym_even/{kind.__name__}-v0", entry_point=kind, max_episode_steps=STEPS)


@EnvConfig.register_subclass("even")
@dataclass
class EvenConfig(EnvConfig):
    task: str | None = "Even-v0"
    fps: int = FPS
    features: dict[str, PolicyFeature] = field(
        default_factory=lambda: {
            "action": PolicyFeature(type=FeatureType.ACTION, shape=(JOINTS,)),
            "agent_pos": PolicyFeature(type=FeatureType.STATE, shape=(JOINTS,)),
            "environment_state": PolicyFeature(type=FeatureType.ENV, shape=(SCENE,)),
        }
    )
    features_map: dict[str, str] = field(
        default_factory=lambda: {
            "action": "action",
            "agent_pos": "observation.state",
            "environment_state": "observation.environment_state",
        }
    )

    @property
    def gym_kwargs(self) -> dict[str, Any]:
        return {}


def test_scenes_are_counted_one_by_one_and_kept(tmp_path: Path) -> None:
    found = evaluate_gym("base", EvenConfig(), 5, seed=3, folder=tmp_path)
    assert [(r.seed, r.success) for r in found.outcomes] == [
        (3, False), (4, True), (5, False), (6, True), (7, False),
    ]  # fmt: skip
    assert {r.reason for r in found.outcomes if not r.success} == {"time ran out"}
    assert [r.duration_s for r in found.outcomes if r.success] == [3 / FPS] * 2
    assert found.evidence == "simulation (even, Even-v0)"
    told: list[int] = []
    again = evaluate_gym(
        "base", EvenConfig(), 6, seed=3, folder=tmp_path, on_rollouts=lambda r: told.append(len(r))
    )
    assert told == [5, 1]
    assert again.trials == 6
    assert len((tmp_path / ROLLOUTS).read_text().splitlines()) == 7


def test_an_environment_that_is_not_installed_is_named_with_its_extra() -> None:
    with pytest.raises(UnusableInputError, match=r"gym_pusht.*pip install 'lerobot\[pusht\]'"):
        evaluate_gym("base", PushtEnv(), 1)


def test_an_environment_that_does_not_exist_is_told_in_one_line() -> None:
    with pytest.raises(GaploopError) as caught:
        evaluate_gym("base", EvenConfig(task="Missing-v0"), 1)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("gym_id", "kwargs", "advice"),
    [
        ("Missing-v0", {}, "Install its package"),
        ("no_such_package:Any-v0", {"camera_name": "front"}, "Install its package"),
        ("CartPole-v1", {"camera_name": "front"}, "mend it in --env.kwargs"),
        ("CartPole-v1", {"render_mode": 3, "sutton_barto_reward": 1, "no": 1}, "in --env.kwargs"),
    ],
)
def test_what_keeps_an_environment_from_being_made_decides_the_advice(
    gym_id: str, kwargs: dict[str, Any], advice: str
) -> None:
    """Fetch takes no camera_name: who gave it one was told to install what was installed."""
    with pytest.raises(UnusableInputError, match=advice) as caught:
        GymEnvConfig(gym=gym_id, kwargs=kwargs).make()
    assert "\n" not in str(caught.value)


class Stays:
    """A script as somebody wrote it for the environment."""

    def get_action(self, observation: dict[str, Any]) -> np.ndarray:
        return np.asarray(observation["agent_pos"], dtype=np.float32)


SCRIPT = f"{Stays.__module__}:Stays"


def test_a_script_drives_any_environment_by_its_id_and_a_success_ends_once_it_has_held() -> None:
    found = evaluate_gym(SCRIPT, GymEnvConfig(gym="gym_even/Even-v0"), 4)
    assert [r.success for r in found.outcomes] == [True, False, True, False]
    assert {r.duration_s for r in found.outcomes} == {3 / FPS, STEPS / FPS}
    assert found.policy == SCRIPT
    assert found.evidence == "simulation (gym_even/Even-v0)"


def test_a_lerobot_policy_drives_an_environment_by_its_id_with_gaps() -> None:
    gaps = {"actuator_response.latency": 0.5}
    found = evaluate_gym("base", GymEnvConfig(gym="gym_even/Even-v0"), 2, spec=WorldSpec(gaps=gaps))
    assert [r.success for r in found.outcomes] == [True, False]
    assert found.gaps == gaps


@pytest.mark.parametrize("of", ["gym_even/Even-v0", "gym_other/Other-v0"])
def test_a_twin_of_another_simulation_is_said(
    of: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Its values were put into one that it had nothing to do with, without a word."""
    late = TwinParameter("actuator_response.latency.latency_s", "s", 0.0, 0.1, (0.1, 0.1), True, "")
    twin = tmp_path / "twin.yaml"
    save_twin(Twin("theirs", "theirs", (late,), (), {}, {"gym": of, "kwargs": {}}), twin)
    given = ["--env.gym=gym_even/Even-v0", f"--policy.path={SCRIPT}", "--n=1", f"--twin={twin}"]
    assert main(["evaluate", *given, f"--output_dir={tmp_path / 'out'}"]) == 0
    is_other = of == "gym_other/Other-v0"
    assert ("is a twin of gym_other/Other-v0" in capsys.readouterr().err) == is_other


def test_gaps_and_settings_that_an_environment_cannot_have_are_told(
    caplog: pytest.LogCaptureFixture,
) -> None:
    env, gap = GymEnvConfig(gym="gym_even/Even-v0"), {"object_property.size": 0.5}
    with pytest.raises(UnusableInputError, match="no MuJoCo model was found in it"):
        evaluate_gym(SCRIPT, env, 1, spec=WorldSpec(gaps=gap))
    found = evaluate_gym(SCRIPT, env, 1, conditions=[{}, {"table_height": 0.01}])
    assert list(found.by_condition) == ["nominal"]
    assert "table_height" in caplog.text


@pytest.mark.parametrize(
    ("name", "told"),
    [
        ("Breaks", r"in step \(RuntimeError: the licence is over, test_evaluate_gym.py:\d+\)\.$"),
        ("Old", "in reset .TypeError: .*seed"),
    ],
)
def test_what_an_environment_raises_is_told_in_one_line_with_its_place(
    name: str, told: str
) -> None:
    env = GymEnvConfig(gym=f"gym_even/{name}-v0")
    with pytest.raises(UnusableInputError, match=f"The environment broke off {told}"):
        evaluate_gym(SCRIPT, env, 1)
    with pytest.raises(UnusableInputError, match="its action_space is Box"):
        GymWorld(Even).step(np.zeros(JOINTS + 1))


def test_an_environment_that_never_tells_of_success_is_said_to_be_silent(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """Every attempt counted as failed, in silence."""
    evaluate_gym(SCRIPT, GymEnvConfig(gym="gym_even/Even-v0"), 2)
    assert "info" not in caplog.text
    evaluate_gym(SCRIPT, GymEnvConfig(gym="gym_even/Silent-v0"), 2)
    assert caplog.text.count("No step's info (its keys: well_done) said is_success") == 1


def test_a_script_that_does_not_exist_is_told_in_one_line() -> None:
    with pytest.raises(UnusableInputError, match="It must be module:name"):
        evaluate_gym("no_such_module:act", GymEnvConfig(gym="gym_even/Even-v0"), 1)


def test_successes_become_a_dataset_to_train_on(tmp_path: Path) -> None:
    env, root = GymEnvConfig(gym="gym_even/Even-v0"), tmp_path / "takes"
    with Demonstrations(root, "Be even") as shown:
        evaluate_gym(SCRIPT, env, 4, demonstrations=shown)
    dataset = LeRobotDataset("local/takes", root=root)
    assert (dataset.num_episodes, dataset.num_frames) == (2, 2 * 3)  # scenes 0 and 2
    frame = dataset[0]
    assert frame["task"] == "Be even"
    assert frame["action"].shape == frame["observation.state"].shape == (JOINTS,)
    assert frame["observation.environment_state"].shape == (SCENE,)
    with pytest.raises(UnusableInputError, match="isn't empty"):
        Demonstrations(root)
    lacking = Demonstrations(tmp_path / "none", "Be even")
    with pytest.raises(UnusableInputError, match="No attempt succeeded"), lacking as shown:
        evaluate_gym(SCRIPT, env, 1, seed=1, demonstrations=shown)


def test_kept_attempts_carry_the_joints_that_an_environment_names(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    names = [f"joint_{k}" for k in range(JOINTS)]
    monkeypatch.setitem(Even.metadata, "joint_names", names)
    env, root = GymEnvConfig(gym="gym_even/Even-v0"), tmp_path / "takes"
    with Demonstrations(root, "Be even") as shown:
        evaluate_gym(SCRIPT, env, 1, demonstrations=shown)
    kept = LeRobotDataset("local/takes", root=root).features
    assert kept["action"]["names"] == [f"{name}.pos" for name in names]


@pytest.mark.members(1)
@pytest.mark.parametrize("failures", [True, False])
def test_kept_attempts_of_a_scene_say_the_units_of_its_joints(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, failures: bool
) -> None:
    """`diagnose` asked for them where no joint had left -100 to 100."""
    monkeypatch.setattr(SceneWorld, "success", lambda _self: True)
    twin = WorldSpec(parameters={"actuator_response.latency": {"latency_s": 0.1}})
    with Demonstrations(tmp_path / "takes", failures=failures) as shown:
        env = SceneEnvConfig(scene=SCENE_FILE, episode_length=12)
        spec = twin if failures else NOMINAL
        evaluate_gym("demonstrator", env, 1, spec=spec, demonstrations=shown)
    (take,) = load_takes(tmp_path / "takes")
    assert (take.info.units, take.outcome) == ("deg", Outcome.SUCCESS)
    if failures:  # attempts in a twin were called those of the nominal simulation
        assert take.info.domain is Domain.SIM_TARGET
    assert units_of([take]) == ""  # nothing to ask
    # What encodes pictures takes the highest priority where root runs it. An evaluation that kept
    # it left one of two cores to everybody else.
    assert [n for n in _priorities() if n == platform_calls.HIGHEST] == []


def _priorities() -> list[int]:
    threads = map(int, os.listdir("/proc/self/task") if sys.platform == "linux" else ())
    return [os.sched_getparam(thread).sched_priority for thread in threads]


def test_a_few_demonstrations_become_many_that_say_where_they_are_from(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    quick = tmp_path / "quick.yaml"
    said = SCENE_FILE.read_text().replace("-180, 180", "-20, 20")
    quick.write_text("\n".join(row for row in said.splitlines() if "front" not in row))
    quick.write_text(quick.read_text().replace("cameras:\n", ""))
    (tmp_path / "bench.xml").write_text(SCENE_FILE.with_name("bench.xml").read_text())
    env, few, many = SceneEnvConfig(scene=quick), tmp_path / "few", tmp_path / "many"
    with Demonstrations(few) as shown:
        evaluate_gym("demonstrator", env, 1, seed=7, demonstrations=shown)
    with Demonstrations(many) as shown, caplog.at_level("INFO"):
        found = evaluate_gym(f"replay:{few}", env, 3, seed=20, demonstrations=shown)
    assert "1 of 1 demonstrations" in caplog.text
    (first,) = load_takes(few)
    takes = list(load_takes(many))
    assert len(takes) == found.by_condition["nominal"].successes >= 2
    told = [json.loads(row) for row in (many / "truth.jsonl").read_text().splitlines()]
    assert [row["uid"] for row in told] == [take.info.uid for take in takes]
    assert {row["source"] for row in told} == {first.info.uid}
    assert {row["seed"] for row in told} <= {20, 21, 22}
    (few / "truth.jsonl").unlink()
    with pytest.raises(UnusableInputError, match="doesn't say of which scenes"):
        evaluate_gym(f"replay:{few}", env, 1)


def test_where_scenes_do_not_depend_on_their_seeds_one_process_makes_all_attempts() -> None:
    """metaworld begins with the same scene whatever the seed: two would count it twice."""
    even = Job(SCRIPT, GymEnvConfig(gym="gym_even/Even-v0"), NOMINAL, "", tuple(range(20)))
    assert not even.can_be_spread()
    some = Job("demonstrator", SceneEnvConfig(scene=SCENE_FILE), NOMINAL, "", tuple(range(20)))
    assert some.can_be_spread()
    assert [j.seeds for j in some.parts(3)] == [
        tuple(range(7)), tuple(range(7, 14)), tuple(range(14, 20)),
    ]  # fmt: skip
    assert not replace(some, seeds=(0, 1, 2)).can_be_spread()


@pytest.mark.slow
def test_processes_side_by_side_give_what_one_gives() -> None:
    env = SceneEnvConfig(scene=SCENE_FILE, episode_length=150)
    gaps = WorldSpec(gaps={"actuator_response.latency": 0.5})
    one, two = (evaluate_gym("demonstrator", env, 8, spec=gaps, batch=k) for k in (1, 2))
    assert sorted(two.outcomes, key=lambda r: r.seed) == list(one.outcomes)


def test_a_gate_compares_policies_in_anybodys_simulation() -> None:
    """Scene by scene what the environment itself says; what it can't have is said beforehand."""
    task = SuiteTask("even", env={"gym": "gym_even/Even-v0"}, success_check="script")
    policies = {"baseline": Path(SCRIPT), "candidate": Path(SCRIPT)}
    with cell_attempts(policies, [task]) as attempt:
        made = [attempt("hardware", GateAttempt(n, 0, 0, "baseline", n)) for n in range(4)]
    assert [m.success for m in made] == [True, False, True, False]
    assert {m.stage for m in made} == {"hardware"}
    check_tasks([task])
    with pytest.raises(UnusableInputError, match="can't be set here"):
        check_tasks([replace(task, gaps={"object_property.size": 0.5})])
    with pytest.raises(UnusableInputError, match="Unknown environment 'evn'"):
        check_tasks([replace(task, env={"type": "evn"})])
    dim = replace(task, conditions={"lighting": "dim"}, candidate_speed=0.5)
    suite = Suite("s", (dim, replace(task, task="odd")))
    nominal = Gate(suite, policies).nominal_tasks
    assert [(t.task, dict(t.conditions), t.env) for t in nominal] == [
        ("even", {}, task.env), ("odd", {}, task.env),
    ]  # fmt: skip
    assert {t.candidate_speed for t in nominal} == {1.0}  # a speed forgets nothing
