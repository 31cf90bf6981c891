"""A failure, the twin in its scene, and the twin without the cause, in one video."""

from __future__ import annotations

import io
from dataclasses import replace

import av
import numpy as np
import pytest

from gaploop.collect.journal import JournalWriter
from gaploop.collect.policy_leader import PolicyLeader
from gaploop.collect.rig import embedded_rig
from gaploop.collect.take import run_take
from gaploop.core.take import Take, TakeInfo
from gaploop.core.twin import Twin, TwinParameter
from gaploop.core.vocabulary import GapDimension, Outcome, TakeKind
from gaploop.datasets.lerobot_read import load_takes
from gaploop.failure_analysis.diagnosis import Diagnosis, TakeDiagnosis
from gaploop.finetune.counterfactual import PANEL_PX, counterfactuals
from gaploop.finetune.evaluate import EVALUATION_SEEDS
from gaploop.finetune.lerobot_policy import load_policy

CAMERA, LATE = "spatial_geometry.camera_pose", "actuator_response.latency"
TWIN = Twin(
    "lab",
    "so101",
    (
        TwinParameter(f"{LATE}.latency_s", "s", 0.0, 0.3, (0.29, 0.31)),
        TwinParameter(f"{CAMERA}.dx_m", "m", 0.0, 0.004, (0.003, 0.005)),
    ),
)


@pytest.fixture(scope="module")
def take(tmp_path_factory: pytest.TempPathFactory) -> Take:
    """The first second of a rollout under a long delay, where the camera was moved, too."""
    folder = tmp_path_factory.mktemp("station")
    rig = embedded_rig(parameters=TWIN.values())
    seed = EVALUATION_SEEDS + 3
    rig.reset(seed)
    leader = PolicyLeader(load_policy("base"), rig.follower, rig.fps, rig.control_hz)
    header = rig.header(TakeInfo("", "Put the cube on the disc", kind=TakeKind.ROLLOUT))
    with JournalWriter(folder, header) as writer:
        run_take(rig, leader, seed=seed, max_s=1.0, writer=writer)
    rig.close()
    (found,) = load_takes(folder)
    return replace(found, outcome=Outcome.FAILURE)


def of(take: Take, late: float) -> list[tuple[bytes, str]]:
    shares = {d.value: 0.0 for d in GapDimension} | {"actuator_response": 0.9}
    told = TakeDiagnosis(take.info.uid, 0, "timeout", "approach", shares, 0.1, False, ())
    costs = [
        {"name": name, "cause": name.partition(".")[0], "points": [cost, 0.0, 1.0]}
        for name, cost in ((LATE, late), (CAMERA, 0.05), ("policy", 0.5))
    ]
    found = Diagnosis("d", "", (told,), {"reproduction": {"costs": costs}})
    return counterfactuals(found, [take], TWIN, "base")


def test_the_scene_is_the_episodes_and_the_cause_makes_the_difference(take: Take) -> None:
    ((video, caption),) = of(take, 0.6)
    assert "in the same scene, which fails; without actuator response: latency, which succeeds" in (
        caption
    )
    with av.open(io.BytesIO(video)) as container:
        frames = [f.to_ndarray(format="rgb24").astype(float) for f in container.decode(video=0)]
    panels = np.split(frames[0], 3, axis=1)
    assert all(panel.shape == (PANEL_PX, PANEL_PX, 3) for panel in panels)
    table = np.s_[30:150, :180]  # without the arm, whose start varies a little
    for panel in panels[1:]:
        assert np.abs(panel[table] - panels[0][table]).mean() < 4.0


def test_causes_that_cost_little_and_the_policy_itself_get_no_video(take: Take) -> None:
    assert not of(take, 0.1)


def test_an_episode_whose_scene_nobody_tracked_says_so(take: Take) -> None:
    frames = replace(take.frames, environment_names=())
    ((_, caption),) = of(replace(take, frames=frames), 0.6)
    assert "another scene (none was tracked)" in caption
