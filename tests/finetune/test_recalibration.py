"""A policy that was recalibrated by a station's twin carries it in its own processors."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
import torch

from gaploop.core.errors import UnusableInputError
from gaploop.core.messages import Observation
from gaploop.core.twin import Twin, TwinParameter, load_twin, save_twin
from gaploop.finetune.evaluate import evaluate
from gaploop.finetune.lerobot_policy import PACKAGED_BASE, PREPROCESSOR, load_policy
from gaploop.finetune.recalibration import CLEARS, POSTPROCESSOR, is_recalibrated, recalibrate
from gaploop.scripts.cli import main
from gaploop.sim.gaps import draw_gaps, mechanism_named
from gaploop.sim.lerobot_recalibration_steps import LightStep
from gaploop.sim.recalibration import EXPOSURE, FLICKER, ZEROS, Recalibration
from gaploop.sim.tracker import POSE


def twin_of(path: Path, *mechanisms: str, arm: str = "so101") -> Path:
    found = []
    for key in mechanisms:
        values = draw_gaps({key: 0.8}, 5)[0].parameters
        for p in mechanism_named(key).parameters:
            value = values.get(p.name, p.nominal)
            ends = (value - 1e-6, value + 1e-6)
            found.append(
                TwinParameter(f"{key}.{p.name}", p.unit, p.nominal, value, ends, True, "test")
            )
    save_twin(Twin("bench", arm, tuple(found)), path)
    return path


def seen(state: np.ndarray, scene: np.ndarray) -> Observation:
    return Observation(state, scene, {})


def test_what_the_policy_sees_and_says_differs_by_the_twin_alone(tmp_path: Path) -> None:
    """Recalibrated, at the station, it does what the base does where nothing differs."""
    twin = twin_of(tmp_path / "twin.yaml", POSE, ZEROS)
    made = recalibrate("base", twin, tmp_path / "out")
    base, other = load_policy("base"), load_policy(made.folder)
    known = Recalibration(made.taken_out)
    state = np.array([5.0, -20.0, 30.0, 60.0, 4.0, 20.0])
    scene = np.array([0.2, 0.2, 0.1, -0.4, 0.18, 1.0, 0.0])
    says = base.plan(seen(state, known.scene(scene)))
    np.testing.assert_allclose(
        other.plan(seen(state + known.zero, scene)), says + known.zero, atol=1e-3
    )
    assert made.id != recalibrate("base", twin_of(twin, POSE), tmp_path / "other").id


def test_recalibrating_again_leaves_the_last_twin_only(tmp_path: Path) -> None:
    first = recalibrate("base", twin_of(tmp_path / "a.yaml", POSE, ZEROS), tmp_path / "a")
    again = recalibrate(first.folder, twin_of(tmp_path / "b.yaml", ZEROS), tmp_path / "b")
    once = recalibrate("base", tmp_path / "b.yaml", tmp_path / "c")
    for name in (PREPROCESSOR, POSTPROCESSOR):
        assert json.loads((again.folder / name).read_text()) == json.loads(
            (once.folder / name).read_text()
        )


def test_it_grasps_again_where_the_camera_was_moved(tmp_path: Path) -> None:
    made = recalibrate("base", twin_of(tmp_path / "twin.yaml", POSE), tmp_path / "out")
    station = {"gaps": {POSE: 0.8}, "gap_seed": 5, "workers": 1, "max_s": 6.0}
    assert evaluate("base", 1, **station).successes == 0  # type: ignore[arg-type]
    assert evaluate(made.folder, 1, **station).successes == 1  # type: ignore[arg-type]
    assert (is_recalibrated(made.folder), is_recalibrated(PACKAGED_BASE)) == (True, False)


def test_a_delay_is_carried_and_the_next_twin_sets_it_anew(tmp_path: Path) -> None:
    latency = twin_of(tmp_path / "l.yaml", "actuator_response.latency")
    first = recalibrate("base", latency, tmp_path / "a")
    delay_s = first.taken_out["actuator_response.latency"]["latency_s"]
    assert load_policy(first.folder).delay_s == delay_s > 0.1
    again = recalibrate(first.folder, twin_of(tmp_path / "b.yaml", ZEROS), tmp_path / "b")
    assert load_policy(again.folder).delay_s == load_policy("base").delay_s == 0.0


def test_late_pictures_are_carried_too(tmp_path: Path) -> None:
    twin = twin_of(tmp_path / "l.yaml", "sensor_noise.camera_delay")
    made = load_policy(recalibrate("base", twin, tmp_path / "a").folder)
    assert (made.camera_delay_s > 0.1, made.delay_s) == (True, 0.0)


def test_noise_is_carried_joint_by_joint_and_the_next_twin_sets_it_anew(tmp_path: Path) -> None:
    """At 2 degrees of noise the base fails in most scenes, and filtered in hardly any."""
    name, rad = "sensor_noise.readings.noise_rad", np.radians(2.0)
    joints = ("shoulder_pan", "shoulder_lift", "elbow_flex", "wrist_flex", "wrist_roll")
    noisy = [TwinParameter(name, "rad", 0.0, rad, (0.9 * rad, rad), joint=j) for j in joints]
    save_twin(Twin("bench", "so101", tuple(noisy)), twin := tmp_path / "twin.yaml")
    made = recalibrate("base", twin, tmp_path / "out")
    assert load_policy(made.folder).noise_rad == pytest.approx([rad] * 5 + [0.0])
    failed, mended = (
        evaluate(policy, 2, seed=3010, max_s=6.0, parameters=load_twin(twin).values(), workers=1)
        for policy in ("base", made.folder)
    )
    assert failed.successes < mended.successes
    again = recalibrate(made.folder, twin_of(tmp_path / "b.yaml", ZEROS), tmp_path / "b")
    assert load_policy(again.folder).noise_rad == ()


def test_what_cannot_be_recalibrated_is_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    drives = twin_of(tmp_path / "l.yaml", "actuator_response.weak")
    for twin, said in (
        (drives, "nothing to recalibrate"),
        (twin_of(tmp_path / "v.yaml", POSE, arm="bi_so101"), "bi_so101"),
    ):
        with pytest.raises(UnusableInputError, match=said):
            recalibrate("base", twin, tmp_path / "out")
    good = twin_of(tmp_path / "g.yaml", POSE)
    assert main(["calibrate", "from_twin", str(good)]) == 2
    assert "--output_dir" in capsys.readouterr().err
    command = ["calibrate", "from_twin", str(good), "--policy.path=base"]
    assert main([*command, f"--output_dir={tmp_path / 'done'}"]) == 0
    assert "camera_pose: dx_m" in capsys.readouterr().out
    assert main([*command, f"--output_dir={tmp_path / 'done'}"]) == 2
    assert "exists" in capsys.readouterr().err


def test_it_sees_again_where_light_was_too_bright(tmp_path: Path) -> None:
    """Tracked through gaploop's rig, which reads the scene in the picture as it came."""
    made = recalibrate("base", twin_of(tmp_path / "twin.yaml", EXPOSURE), tmp_path / "out")
    station = {"gaps": {EXPOSURE: 0.8}, "gap_seed": 5, "workers": 1, "max_s": 6.0}
    assert evaluate("base", 1, **station).successes == 0  # type: ignore[arg-type]
    assert evaluate(made.folder, 1, **station).successes == 1  # type: ignore[arg-type]
    both = twin_of(tmp_path / "both.yaml", EXPOSURE, POSE)
    seeing = recalibrate("base_vision", both, tmp_path / "seeing")
    assert (list(seeing.taken_out), seeing.left) == ([EXPOSURE], (POSE,))
    steps = json.loads((seeing.folder / PREPROCESSOR).read_text())["steps"]
    assert steps[0]["class"] == CLEARS


def test_a_moved_camera_cannot_be_put_right_in_pictures(tmp_path: Path) -> None:
    with pytest.raises(UnusableInputError, match="sees pictures"):
        recalibrate("base_vision", twin_of(tmp_path / "t.yaml", POSE), tmp_path / "out")


def test_pictures_are_cleared_in_every_layout() -> None:
    step = LightStep({EXPOSURE: {"gain": 2.0}}, "top")
    view = np.random.default_rng(0).integers(0, 256, (6, 5, 3), dtype=np.uint8)
    clear = step._clear(view)
    key, first = "observation.images.top", torch.from_numpy(view).movedim(-1, 0)
    for given, wanted in (
        (view, clear),
        (first[None].float() / 255.0, torch.from_numpy(clear).movedim(-1, 0)[None] / 255.0),
        (torch.from_numpy(view)[None], clear[None]),
    ):
        said = step.observation({key: given, "observation.environment_state": torch.zeros(7)})
        assert list(said) == [key]  # what was tracked in the picture as it came is forgotten
        np.testing.assert_allclose(said[key], wanted, atol=1e-6)
    assert step.observation({"observation.state": 1}) == {"observation.state": 1}


def test_each_scene_of_a_batch_has_its_own_bands() -> None:
    """And a take's begin anew; nothing of them is saved with the policy."""
    known = {FLICKER: {"depth": 0.6, "bands": 1.5}}
    rng, key = np.random.default_rng(0), "observation.images.top"
    takes = torch.from_numpy(rng.integers(0, 256, (2, 3, 32, 24, 3), dtype=np.uint8))
    both = LightStep(known, "top")
    assert both.get_config() == {"known": known, "camera": "top"}
    together = [both.observation({key: takes[:, k]})[key] for k in range(3)]
    alone = LightStep(known, "top")
    for take in range(2):
        alone.reset()
        for k in range(3):
            picture = alone.observation({key: takes[take, k]})[key]
            np.testing.assert_array_equal(picture, together[k][take])
