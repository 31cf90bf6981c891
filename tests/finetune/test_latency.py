"""Number formats that make a policy faster plan nearly what it plans as trained."""

from __future__ import annotations

import importlib.util
import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from gaploop.core.errors import UnusableInputError
from gaploop.core.messages import Observation
from gaploop.datasets.absolute.checkpoint import read_checkpoint
from gaploop.finetune import lerobot_latency
from gaploop.finetune.lerobot_formats import FORMATS, weights_mb
from gaploop.finetune.lerobot_latency import (
    PlanTiming,
    action_error,
    check_timing,
    planned,
    time_plans,
)
from gaploop.finetune.lerobot_policy import ActPolicy, load_policy, resolve
from gaploop.scripts.cli import main

TIMED = "--policy.format=int8"


@pytest.fixture(scope="module")
def policy() -> ActPolicy:
    return load_policy("base")


def seen() -> Observation:
    scene = np.array([0.1, 0.2, 0.0, -0.4, 0.2, 1.0, 0.0])
    known = read_checkpoint(resolve("base"))
    return Observation(known.stats["observation.state"]["mean"], scene, {})


WITHIN_DEG = {
    "fp32": 0.0, "bf16": 3.0, "fp16": 1.0, "int8": 6.0, "int8_ao": 6.0, "int4": 0.0,
    "onnx": 0.01, "openvino": 3.0, "tensorrt": 0.0,
}  # fmt: skip


@pytest.mark.members(3)
@pytest.mark.parametrize("name", sorted(WITHIN_DEG))
def test_a_format_plans_what_the_policy_plans_or_says_what_lacks(
    policy: ActPolicy, name: str
) -> None:
    format_ = FORMATS[name]
    lacking = [p for p in format_.needs if importlib.util.find_spec(p) is None]
    if lacking or name in ("int4", "tensorrt"):  # the latter two: not on any CPU
        wanted = rf"gaploop\[{format_.extra}\]" if lacking else "can't be computed on this machine"
        with pytest.raises(UnusableInputError, match=wanted):
            load_policy("base", format=name)
        return
    made = load_policy("base", format=name)
    off = action_error(made, [planned(policy, seen(), 0)], [seen()])
    assert 0.0 <= off[0] <= off[1] <= WITHIN_DEG[name]
    assert (name == "fp32") == (off[1] == 0.0)
    assert weights_mb(made) == pytest.approx(2.0, rel=0.6)
    assert made.runs == f"cpu, {name}, 1 thread"


@pytest.mark.skipif(importlib.util.find_spec("onnxruntime") is None, reason="gaploop[formats]")
def test_a_policy_that_remembers_isnt_exported() -> None:
    """base_vision keeps its first view; in ONNX all takes had that of the export: 0 of 20."""
    with pytest.raises(UnusableInputError, match="may remember what it saw before"):
        load_policy("base_vision", format="onnx")


@pytest.mark.slow
def test_compiled_it_plans_the_same_or_says_why_it_cant_be(policy: ActPolicy) -> None:
    if shutil.which("g++") is None:
        with pytest.raises(UnusableInputError, match="can't be computed on this machine"):
            load_policy("base", format="compile")
        return
    compiled = load_policy("base", format="compile")
    assert np.allclose(compiled.plan(seen()), policy.plan(seen()), atol=0.05)


@pytest.mark.parametrize(
    ("option", "said"),
    [
        ({"format": "fp8"}, "fp32"),
        ({"device": "gpu"}, "Give auto .* or cpu"),
        ({"device": "cuda:97"}, "PyTorch can't use it here"),
        ({"threads": -1}, "at least 1"),
    ],
)
def test_what_a_policy_cant_run_on_is_refused_with_what_there_is(
    option: dict[str, Any], said: str
) -> None:
    with pytest.raises(UnusableInputError, match=said):
        load_policy("base", **option)


@pytest.mark.parametrize(("left_mb", "level"), [(None, None), (4000.0, "ok"), (200.0, "fail")])
def test_a_full_gpu_is_found_before_a_policy_drives(
    policy: ActPolicy, left_mb: float | None, level: str | None
) -> None:
    """A policy that fitted until the cameras' pictures came ended a session at its first frame."""

    class OnGpu(ActPolicy):
        gpu_left_mb = left_mb  # type: ignore[assignment]

    results = list(check_timing(OnGpu(policy.bundle), seen(), 50.0))
    assert [r.level for r in results if r.check == "GPU memory"] == ([level] if level else [])
    assert results[0].check == "latency"


def test_what_a_policy_was_trained_for_is_read_off_it(policy: ActPolicy) -> None:
    known = read_checkpoint(resolve("base"))
    assert (known.fps, known.units, policy.needs_scene) == (50.0, "deg", True)
    assert known.stats["action"]["mean"].shape == (6,)
    assert known.names[0] == "shoulder_pan.pos"


def test_times_are_quantiles_of_what_was_timed() -> None:
    assert len(time_plans(lambda: None, 7).took_s) == 7
    assert PlanTiming((1.0, 2.0, 3.0)).quantile_s(0.5) == 2.0


@pytest.fixture
def _few(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in {"BLOCKS": 2, "BLOCK": 2, "VIEWS": 2}.items():
        monkeypatch.setattr(lerobot_latency, name, value)


@pytest.mark.usefixtures("_few")
def test_the_base_is_timed_in_the_formats_that_were_named(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert main(["doctor", "--policy.path=base", TIMED]) == 0
    said = capsys.readouterr().out
    assert "fp32" in said
    assert "bf16" not in said


@pytest.mark.members(1)
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
