"""Number formats that make a policy faster plan nearly what it plans as trained."""

from __future__ import annotations

import importlib.util
import json
import shutil
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from gaploop.core.errors import UnusableInputError
from gaploop.core.messages import Observation
from gaploop.finetune import lerobot_formats
from gaploop.finetune.lerobot_formats import FORMATS, action_error, planned, policy_in_format
from gaploop.finetune.lerobot_latency import PlanTiming, time_plans
from gaploop.finetune.lerobot_policy import ActPolicy, load_policy
from gaploop.finetune.policy_fit import facts_of
from gaploop.scripts.cli import main

TIMED = "--formats=[int8]"


@pytest.fixture(scope="module")
def policy() -> ActPolicy:
    return load_policy("base")


def seen(policy: ActPolicy) -> Observation:
    facts = facts_of(policy)
    assert facts.state is not None
    scene = np.array([0.1, 0.2, 0.0, -0.4, 0.2, 1.0, 0.0])
    return Observation(facts.state.mean, scene, {})


WITHIN_DEG = {
    "fp32": 0.0, "bf16": 3.0, "fp16": 1.0, "int8": 6.0, "int8_ao": 6.0, "int4": 0.0,
    "onnx": 0.01, "openvino": 3.0, "tensorrt": 0.0,
}  # fmt: skip


@pytest.mark.parametrize("name", sorted(WITHIN_DEG))
def test_a_format_plans_what_the_policy_plans_or_says_what_lacks(
    policy: ActPolicy, name: str, tmp_path: Path
) -> None:
    plain = policy.plan(seen(policy))
    format_ = FORMATS[name]
    lacking = [p for p in format_.needs if importlib.util.find_spec(p) is None]
    if lacking or name in ("int4", "tensorrt"):  # the latter two: not on any CPU
        wanted = rf"gaploop\[{format_.extra}\]" if lacking else "can't be computed on this machine"
        with pytest.raises(UnusableInputError, match=wanted):
            policy_in_format(policy, name, seen(policy), tmp_path)
        return
    made, file_mb = policy_in_format(policy, name, seen(policy), tmp_path)
    off = action_error(made, [planned(policy, seen(policy), 0)], [seen(policy)])
    assert 0.0 <= off[0] <= off[1] <= WITHIN_DEG[name]
    assert (name == "fp32") == (off[1] == 0.0)
    assert file_mb == pytest.approx(2.0, rel=0.6)
    assert np.array_equal(policy.plan(seen(policy)), plain)  # the original is as it was


@pytest.mark.slow
def test_compiled_it_plans_the_same_or_says_why_it_cant_be(
    policy: ActPolicy, tmp_path: Path
) -> None:
    if shutil.which("g++") is None:
        with pytest.raises(UnusableInputError, match="can't be computed on this machine"):
            policy_in_format(policy, "compile", seen(policy), tmp_path)
        return
    compiled, _ = policy_in_format(policy, "compile", seen(policy), tmp_path)
    assert np.allclose(compiled.plan(seen(policy)), policy.plan(seen(policy)), atol=0.05)


def test_an_unknown_format_is_refused_with_those_there_are(
    policy: ActPolicy, tmp_path: Path
) -> None:
    with pytest.raises(UnusableInputError, match="fp32"):
        policy_in_format(policy, "fp8", seen(policy), tmp_path)


def test_what_a_policy_was_trained_for_is_read_off_it(policy: ActPolicy) -> None:
    facts = facts_of(policy)
    assert (facts.fps, facts.units, facts.needs_scene) == (50.0, "deg", True)
    assert facts.action is not None
    assert facts.action.mean.shape == (6,)
    assert facts.action_names[0] == "shoulder_pan.pos"


def test_times_are_quantiles_of_what_was_timed() -> None:
    assert len(time_plans(lambda: None, 7).took_s) == 7
    assert PlanTiming((1.0, 2.0, 3.0)).quantile_s(0.5) == 2.0


@pytest.fixture
def _few(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in {"BLOCKS": 2, "PLANS": 2, "VIEWS": 2}.items():
        monkeypatch.setattr(lerobot_formats, name, value)


@pytest.mark.usefixtures("_few")
def test_the_base_is_timed_in_the_formats_that_were_named(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert main(["doctor", "--policy.path=base", TIMED]) == 0
    said = capsys.readouterr().out
    assert "fp32" in said
    assert "bf16" not in said


@pytest.mark.usefixtures("_few")
@pytest.mark.parametrize("kind", ["act", "diffusion"])
def test_a_policy_that_sees_pictures_is_timed(
    kind: str,
    tiny_policy: Callable[..., Path],
    capsys: pytest.CaptureFixture[str],
) -> None:
    """It ended in a KeyError: the benchmark that this was showed it the tracked scene alone."""
    command = ["doctor", f"--policy.path={tiny_policy(kind)}", "--json", TIMED]
    assert main([*command, "--policy.fps=30"]) == 0
    said = json.loads(capsys.readouterr().out)["timing"]
    assert "fp32" in said["variants"]
    assert set(said["variants"]) | set(said["lacking"]) == {"fp32", "int8"}
    assert said["plans"] == 4
