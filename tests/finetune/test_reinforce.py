"""Groups of attempts: what went better becomes likelier, and a run that was stopped goes on."""

from __future__ import annotations

import functools
import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
import torch

from gaploop.core.errors import UnusableInputError
from gaploop.core.files import read_json
from gaploop.core.messages import Observation
from gaploop.core.twin import Twin, TwinParameter, load_twin, save_twin
from gaploop.finetune import lerobot_act as act
from gaploop.finetune import lerobot_adapter as adapter
from gaploop.finetune import reinforce as reinforcement
from gaploop.finetune.batches import Signature
from gaploop.finetune.config import FinetuneConfig, StartPolicy, TrainingCell
from gaploop.finetune.lerobot_policy import LerobotDriver, load_policy
from gaploop.finetune.reinforce import (
    FAR,
    GROUP,
    ROUNDS,
    Decisions,
    Explorer,
    GroupLearner,
    SceneGroup,
    attempts,
    densities,
    offsets,
    planned,
    reinforce,
)
from gaploop.finetune.tuning.presets import PRESETS

SIGNATURE = Signature(50.0, ("a", "b", "c"), (), ("a", "b", "c"), "deg", "so101_sim")

UPDATES = 3
HERE = Observation(np.zeros(3), np.array([0.1, 1.0, 1.0]), {})
SHOWN = replace(HERE, environment_state=None, images={"overhead": np.full((64, 64, 3), 90, "u1")})


def here(explorer: Explorer) -> Observation:
    """Return what such a policy sees."""
    return SHOWN if isinstance(explorer.driver, LerobotDriver) else HERE


def leans_up(explorer: Explorer, _job: SceneGroup) -> bool:
    """An attempt of three plans, the better the further the first joint goes up."""
    explorer.driver.reset()
    for _ in range(3):
        explorer.driver.plan(here(explorer))
    up = np.mean([executed[:, 0].mean() for _, executed, _ in explorer.kept])
    return bool(explorer.rng.random() < 1 / (1 + np.exp(-15 * (up - START[0]))))


START = [0.0]


@pytest.fixture(autouse=True)
def _few_updates(monkeypatch: pytest.MonkeyPatch) -> None:
    """The toy has few attempts, too."""
    monkeypatch.setattr(reinforcement, "UPDATES", UPDATES)


def options(base: Path, folder: Path, **changes: Any) -> FinetuneConfig:
    known = {"steps": 4, "batch_size": 3 * GROUP, "num_workers": 1, "lr": 3e-3}
    return FinetuneConfig(StartPolicy(str(base)), output_dir=folder, **{**known, **changes})


def first_joint(folder: Path) -> float:
    """Return how far up a policy plans the first joint, normalised by nothing [°]."""
    return float(load_policy(folder).plan(HERE)[:2, 0].mean())


def decided(explorer: Explorer, advantage: float) -> Decisions:
    """Return an explorer's first decision, one row."""
    seen, tried, meant = explorer.kept[0]
    one = {key: value[None] for key, value in seen.items()}
    return Decisions(one, tried[None], meant[None], np.array([advantage]))


def test_what_went_better_becomes_likelier(base: Path, tmp_path: Path) -> None:
    explorer = Explorer(act.load(base), 0.0)
    explorer.driver.plan(HERE)
    START[0] = float(explorer.kept[0][1][:, 0].mean())
    said: list[dict[str, float]] = []
    done = reinforce(
        options(base, tmp_path / "run", steps=8),
        told=lambda line: said.append(dict(line)),
        attempts=functools.partial(attempts, attempt=leans_up),
    )
    assert first_joint(done.folder) > first_joint(base) + 0.1
    assert np.mean([s["success"] for s in said[-3:]]) > said[0]["success"] + 0.1
    assert len((tmp_path / "run" / ROUNDS).read_text().splitlines()) == 8
    assert read_json(tmp_path / "run" / "run.json")["command"] == "reinforce"
    np.testing.assert_allclose(
        load_policy(done.merged).plan(HERE), load_policy(done.folder).plan(HERE), atol=1e-5
    )


class Reach(gym.Env[Any, Any]):
    """Goes where it is told, and succeeds where it went far."""

    metadata = {"render_fps": 10}  # noqa: RUF012
    observation_space = gym.spaces.Box(-9.0, 9.0, (3,), np.float32)
    action_space = gym.spaces.Box(-9.0, 9.0, (3,), np.float32)

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        super().reset(seed=seed, options=options)
        self.went = list[float]()
        return np.zeros(3, np.float32), {}

    def step(self, action: Any) -> Any:
        self.went.append(float(action[0]))
        over = len(self.went) == 6
        won = over and np.mean(self.went) > START[0]
        return np.zeros(3, np.float32), 0.0, over, False, {"success": bool(won)}


class Far(Reach):
    """It has two axes more."""

    action_space = gym.spaces.Box(-9.0, 9.0, (5,), np.float32)


gym.register("gym_reach/Reach-v0", entry_point=Reach)
gym.register("gym_reach/Far-v0", entry_point=Far)


def test_a_policy_goes_on_in_the_simulation_that_a_twin_names(
    make_bundle: Callable[..., act.ActBundle], tmp_path: Path
) -> None:
    base, twin = tmp_path / "base", tmp_path / "twin.yaml"
    act.save(make_bundle(), base)
    bundle = act.load(base)
    with torch.inference_mode():
        rest = {act.STATE: torch.zeros(1, 3), act.ENVIRONMENT: torch.zeros(1, 3)}
        planned_now = bundle.policy.predict_action_chunk(bundle.preprocessor(rest))
        START[0] = float(bundle.postprocessor(planned_now[:, 0])[0, 0])
    environment = {"gym": "gym_reach/Reach-v0", "kwargs": {}}
    late = TwinParameter(
        "actuator_response.latency.latency_s", "s", 0.0, 0.1, (0.1, 0.1), True, "made up"
    )
    save_twin(Twin("theirs", "theirs", (late,), (), {}, environment), twin)
    said = list[dict[str, float]]()
    config = options(base, tmp_path / "run", steps=2, env=TrainingCell(twin=twin))
    reinforce(config, told=lambda line: said.append(dict(line)))
    assert said[1]["success"] > said[0]["success"] + 0.1
    put_in = read_json(tmp_path / "run" / "run.json")["config"]["cell"]["spec"]["parameters"]
    assert put_in == {"actuator_response.latency": {"latency_s": 0.1}}
    with pytest.raises(UnusableInputError, match="--method=lerobot"):
        TrainingCell(twin=twin).cell()
    save_twin(replace(load_twin(twin), world={"gym": "gym_reach/Far-v0", "kwargs": {}}), twin)
    with pytest.raises(
        UnusableInputError, match=r"action has 3 numbers, that of gym_reach/Far-v0 5"
    ):
        reinforce(options(base, tmp_path / "far", steps=2, env=TrainingCell(twin=twin)))


@pytest.fixture(scope="module")
def whole_sha256(_base: Path, tmp_path_factory: pytest.TempPathFactory) -> str:
    """What the weights are after all rounds in one go."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(reinforcement, "UPDATES", UPDATES)
        toy = functools.partial(attempts, attempt=leans_up)
        folder = tmp_path_factory.mktemp("whole") / "run"
        return reinforce(options(_base, folder), attempts=toy).result.weights_sha256


def test_a_run_that_was_stopped_goes_on_as_if_it_had_not_been(
    base: Path, tmp_path: Path, whole_sha256: str
) -> None:
    toy = functools.partial(attempts, attempt=leans_up)

    def stop(step: int, *_: float) -> None:
        if step == 2 * UPDATES:  # at the end of the second round
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        reinforce(options(base, tmp_path / "cut"), progress=stop, attempts=toy)
    resumed = reinforce(options(base, tmp_path / "cut", resume=True), attempts=toy)
    assert resumed.result.weights_sha256 == whole_sha256
    rounds = [json.loads(line)["round"] for line in (tmp_path / "cut" / ROUNDS).open()]
    assert rounds == list(range(4))


def test_a_run_that_ended_goes_on_for_more_rounds(
    base: Path, tmp_path: Path, whole_sha256: str
) -> None:
    toy = functools.partial(attempts, attempt=leans_up)
    reinforce(options(base, tmp_path / "run", steps=2), attempts=toy)
    longer = reinforce(options(base, tmp_path / "run", resume=True), attempts=toy)
    assert longer.result.weights_sha256 == whole_sha256


def test_groups_of_one_mind_teach_nothing_and_end_a_run_in_words(
    base: Path, tmp_path: Path
) -> None:
    never = functools.partial(attempts, attempt=lambda _explorer, _job: False)
    with pytest.raises(UnusableInputError, match="In six rounds whole groups of attempts failed"):
        reinforce(options(base, tmp_path / "run", steps=9), attempts=never)


def test_only_offsets_count_and_nearer_is_likelier() -> None:
    basis = torch.from_numpy(offsets(4)).float()
    beside = torch.tensor([1.0, -1.0, -1.0, 1.0])  # at a right angle to both offsets
    assert float((basis @ beside).abs().max()) < 1e-6
    deviation = torch.zeros(3, 4, 2)
    deviation[1, :, 0] = 0.05 * basis[1]
    deviation[2, :, 1] = 7.0 * beside
    values = densities(deviation, 0.1)
    assert values.tolist() == pytest.approx([0.0, -0.125, 0.0], abs=1e-5)


def test_what_is_explored_is_the_plan_and_offsets_of_the_spread(base: Path) -> None:
    bundle = act.load(base)
    explorer = Explorer(bundle, 0.2)
    explorer.driver.plan(HERE)
    _, executed, meant = explorer.kept[0]
    drawn = np.random.default_rng(0).normal(size=(2, executed.shape[1]))
    density = densities(torch.tensor((executed - meant)[None]), 0.2)
    assert float(density) == pytest.approx(-0.5 * np.square(drawn).sum(), rel=1e-3)


def test_a_policy_that_has_come_far_from_its_attempts_is_only_pulled_back(base: Path) -> None:
    bundle = act.load(base)
    module = adapter.wrap(bundle.policy, base, PRESETS["tracked_lora"].lora)
    learner = GroupLearner(bundle, module, 0.05)
    explorer = Explorer(bundle, 0.05)
    explorer.driver.plan(HERE)
    near = decided(explorer, 1.0)
    far = replace(near, planned=near.planned + 0.1)
    assert learner.loss(near).item() == pytest.approx(-1.0)
    worse = replace(far, advantage=-far.advantage)
    assert learner.loss(far).item() > FAR
    assert learner.loss(far).item() == learner.loss(worse).item()


@pytest.mark.slow
def test_a_policy_of_pictures_learns_and_its_own_weights_stay(
    tiny_policy: Callable[..., Path], tmp_path: Path
) -> None:
    base, toy = tiny_policy("keypoint"), functools.partial(attempts, attempt=leans_up)
    act.save_processors(replace(act.load(base), signature=SIGNATURE), base)  # its rate
    explorer = Explorer(act.load(base), 0.0)
    explorer.driver.plan(SHOWN)
    START[0] = float(explorer.kept[0][1][:, 0].mean())
    first = {k: v for k, v in explorer.kept[0][0].items() if k.startswith("first.")}
    explorer.driver.plan(replace(SHOWN, images={"overhead": np.zeros((64, 64, 3), "u1")}))
    for key, picture in first.items():  # what an attempt began with is kept beside each decision
        assert np.array_equal(explorer.kept[1][0][key], picture)
        assert not np.array_equal(explorer.kept[1][0][key.removeprefix("first.")], picture)

    many = {"steps": 6, "lr": 1e-2}
    whole = reinforce(options(base, tmp_path / "whole", **many), attempts=toy)
    after = load_policy(whole.folder).plan(SHOWN)[:, 0].mean()
    assert after > load_policy(base).plan(SHOWN)[:, 0].mean()
    for file in ("model.safetensors", "config.json"):
        assert (whole.folder / "base" / file).read_bytes() == (base / file).read_bytes()

    def stop(step: int, *_: float) -> None:
        if step == 2 * UPDATES:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        reinforce(options(base, tmp_path / "cut", **many), progress=stop, attempts=toy)
    resumed = reinforce(options(base, tmp_path / "cut", **many, resume=True), attempts=toy)
    assert resumed.result.weights_sha256 == whole.result.weights_sha256


@pytest.mark.parametrize("kind", ["tracked", "keypoint"])
def test_a_step_makes_what_went_better_likelier_and_what_went_worse_less_so(
    kind: str, base: Path, tiny_policy: Callable[..., Path]
) -> None:
    folder = base if kind == "tracked" else tiny_policy(kind)
    bundle = act.load(folder)
    module = adapter.wrap(bundle.policy, folder, PRESETS[f"{kind}_lora"].lora)
    own = {n: p.detach().clone() for n, p in module.named_parameters() if not p.requires_grad}
    start = {n: p.detach().clone() for n, p in module.named_parameters()}
    explorer = Explorer(bundle, 0.05)
    explorer.driver.plan(here(explorer))
    for advantage in (1.0, -1.0):
        module.load_state_dict(start, strict=False)
        tried = decided(explorer, advantage)
        learner = GroupLearner(bundle, module, 0.05)

        def likely(tried: Decisions = tried) -> float:
            seen = {k: torch.from_numpy(v) for k, v in tried.seen.items()}
            deviation = (
                torch.from_numpy(tried.explored)
                - planned(bundle.policy, seen)[:, : tried.explored.shape[1]]
            )
            return float(densities(deviation, 0.05).detach())

        before = likely()
        step = torch.optim.SGD([p for p in module.parameters() if p.requires_grad], 1e-4)
        learner.loss(tried).backward()
        step.step()
        assert (likely() - before) * advantage > 0
        step.zero_grad()
    assert all(torch.equal(dict(module.named_parameters())[n], p) for n, p in own.items())


def test_other_policies_and_sizes_are_refused(base: Path, tmp_path: Path) -> None:
    with pytest.raises(UnusableInputError, match="--batch_size=7 must be at least 8"):
        reinforce(options(base, tmp_path / "run", batch_size=7))
