"""Remedies tried in a twin: the commands of the plan, smaller, and nothing done twice."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pytest

from gaploop.core.errors import UnusableInputError
from gaploop.core.files import write_json
from gaploop.core.twin import Twin, TwinParameter, save_twin
from gaploop.core.vocabulary import GapDimension
from gaploop.failure_analysis.planning.remedies import PlanContext, RemedyTrial
from gaploop.finetune.evaluation import Rollout, summarise
from gaploop.finetune.remedy_trials import ROLLOUTS, TAKES, try_remedies

CAMERA = TwinParameter(
    "spatial_geometry.camera_pose.dx_m", "1", 0.0, 0.02, (0.01, 0.03), True, "test"
)
SLOW = TwinParameter(
    "actuator_response.slow.speed_limit_rad_s", "rad/s", 4.0, 0.5, (0.4, 0.6), True, "test"
)


class Typist:
    """Stands for the processes: what is evaluated succeeds as often as its policy is told to."""

    def __init__(self, successes: dict[str, int]) -> None:
        self.successes, self.typed, self.stop_at = successes, list[str](), ""

    def __call__(self, words: Sequence[str]) -> None:
        if words[0] == self.stop_at:
            raise KeyboardInterrupt
        self.typed.append(words[0])
        options = dict(word.lstrip("-").partition("=")[::2] for word in words[1:])
        if self.successes.get(options.get("policy.path", "")) == -1:
            raise UnusableInputError("gaploop evaluate failed: no such policy")
        if words[0] == "record":
            assert int(options["dataset.num_episodes"]) <= TAKES
        if words[0] == "evaluate":
            n, name = int(options["n"]), Path(options["policy.path"]).name
            name += f" at {speed}" if (speed := options.get("speed_scale")) else ""
            assert n == ROLLOUTS
            went = [Rollout(seed, "nominal", seed < self.successes[name], 1.0) for seed in range(n)]
            folder = Path(options["output_dir"])
            folder.mkdir(parents=True, exist_ok=True)
            write_json(folder / "evaluation.json", summarise(went).to_json())
        elif self.successes.get(words[0]) == -1:
            raise UnusableInputError(f"gaploop {words[0]} failed: no room left")


def trials(
    typist: Typist, folder: Path, policy: str = "base", differs: TwinParameter = CAMERA
) -> tuple[dict[str, RemedyTrial], list[str]]:
    said = list[str]()
    twin = Twin("bench", "so101", (differs,))
    save_twin(twin, folder / "twin.yaml")
    about = PlanContext(folder, policy, twin, folder / "twin.yaml")
    causes = [GapDimension(differs.name.partition(".")[0])]
    return try_remedies(about, causes, False, say=said.append, type_command=typist), said


def test_each_remedy_is_carried_out_and_meets_the_same_scenes(tmp_path: Path) -> None:
    typist = Typist({"base": 3, "recalibrated": 17, "resimulated_policy": 9})
    found, _ = trials(typist, tmp_path)
    assert found == {
        "recalibrate": RemedyTrial((3, 20), (17, 20)),
        "resimulate": RemedyTrial((3, 20), (9, 20)),
    }
    assert typist.typed == ["evaluate", "calibrate", "evaluate", "record", "finetune", "evaluate"]


def test_a_policy_that_is_to_drive_slower_is_compared_with_itself_at_its_speed(
    tmp_path: Path,
) -> None:
    typist = Typist({"base": 2, "base at 0.5": 19, "resimulated_policy": 1})
    found, _ = trials(typist, tmp_path, differs=SLOW)
    assert found["drive_slower"] == RemedyTrial((2, 20), (19, 20))
    assert typist.typed[:2] == ["evaluate", "evaluate"]  # nothing is recorded or trained for it


def test_one_that_fails_says_why_and_the_others_are_tried(tmp_path: Path) -> None:
    found, said = trials(Typist({"base": 3, "recalibrated": 17, "finetune": -1}), tmp_path)
    assert not found["recalibrate"].failed
    assert found["resimulate"].failed == "gaploop finetune failed: no room left"
    assert any("couldn't be carried out" in line for line in said)


def test_after_ctrl_c_only_what_is_missing_is_carried_out(tmp_path: Path) -> None:
    typist = Typist({"base": 3, "recalibrated": 17, "resimulated_policy": 9})
    typist.stop_at = "finetune"
    with pytest.raises(KeyboardInterrupt):
        trials(typist, tmp_path)
    typist.stop_at, typist.typed = "", []
    assert set(trials(typist, tmp_path)[0]) == {"recalibrate", "resimulate"}
    assert typist.typed.count("calibrate") == 0
    assert typist.typed.count("record") == 1


def test_a_policy_that_cannot_be_tried_is_no_fault_of_a_remedy(tmp_path: Path) -> None:
    """Every remedy would be left out of the plan for it."""
    with pytest.raises(UnusableInputError, match="no such policy"):
        trials(Typist({"base": -1}), tmp_path)


def test_what_another_policy_was_tried_with_does_not_count(tmp_path: Path) -> None:
    successes = {"base": 3, "mine": 5, "recalibrated": 17, "resimulated_policy": 9}
    trials(Typist(successes), tmp_path)
    typist = Typist(successes)
    assert trials(typist, tmp_path, "mine")[0]["recalibrate"] == RemedyTrial((5, 20), (17, 20))
    assert typist.typed.count("calibrate") == 1


def test_training_that_takes_hours_is_named_and_left(tmp_path: Path) -> None:
    said = list[str]()
    twin = Twin("bench", "so101", (CAMERA,))
    save_twin(twin, tmp_path / "t")
    about = PlanContext(tmp_path, "me/smolvla", twin, tmp_path / "t")
    causes, typist = [GapDimension.SPATIAL_GEOMETRY], Typist({"smolvla": 3})
    found = try_remedies(about, causes, True, say=said.append, type_command=typist)
    assert not found
    assert any("isn't tried: it takes 4 h of one core" in line for line in said)
