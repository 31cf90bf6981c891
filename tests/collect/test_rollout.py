"""A session of rollouts goes on after whatever ends a take; a new policy starts slowly."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from gaploop.collect.campaign import Quota
from gaploop.collect.intervention import SharedLeader
from gaploop.collect.policy_leader import PolicyLeader
from gaploop.collect.rig import EmbeddedRig, Rig, embedded_rig
from gaploop.collect.rollout import (
    FILE,
    SUCCESSES,
    Attempts,
    RolloutNote,
    SpeedRamp,
)
from gaploop.collect.take import Operator, SessionEnd, record_takes
from gaploop.core.errors import DeviceError, LostError, UnusableInputError
from gaploop.core.journal_format import read_end, read_journal, read_take, take_folders
from gaploop.core.messages import CameraFrame, FloatArray, Observation
from gaploop.core.take import TakeInfo
from gaploop.core.vocabulary import Outcome, TakeKind


class Still:
    """A policy that stands still; it raises in the takes that it is told to."""

    fps = 50.0

    def __init__(self, fails: tuple[int, ...] = (), error: Exception | None = None) -> None:
        self.fails, self.takes, self.frames = fails, -1, 0
        self.error = error or RuntimeError("shapes (3,4) and (5,) not aligned")

    def reset(self) -> None:
        self.takes, self.frames = self.takes + (self.frames > 0 or self.takes < 0), 0

    def act(self, observation: Observation) -> FloatArray:
        self.frames += 1
        if self.frames == 5 and self.takes in self.fails:
            raise self.error
        return observation.state


class Frozen:
    """A camera that keeps handing out its first picture from some time on."""

    def __init__(self, rig: EmbeddedRig, after_s: float) -> None:
        self.name, self._camera = rig.cameras[0].name, rig.cameras[0]
        self._after_s, self._last = after_s, self._camera.frame()

    def frame(self) -> CameraFrame:
        now = self._camera.frame()
        if now.t_capture_s < self._after_s:
            self._last = now
        return self._last


def roll(
    journal: Path, policy: Still, takes: int, *, frozen: bool = False, operator: Operator
) -> SessionEnd:
    def rig(_conditions: object) -> Rig:
        made = embedded_rig()
        return replace(made, cameras=(Frozen(made, 0.2),)) if frozen else made

    def leader(rig: Rig, _seed: int) -> SharedLeader:
        drives = PolicyLeader(policy, rig.follower, rig.fps, rig.control_hz)
        return SharedLeader(drives, None, lambda: rig.safety.sent_rad)

    return record_takes(
        journal,
        TakeInfo("", "t", kind=TakeKind.ROLLOUT, policy="p"),
        [Quota(takes)],
        rig,
        leader,
        operator=operator,
        max_s=1.0,
    )


def test_a_policy_that_raises_ends_its_take_and_the_session_goes_on(tmp_path: Path) -> None:
    notes: list[RolloutNote] = []
    attempts = Attempts(SpeedRamp(tmp_path, "p", 1.0), lambda n, _r: notes.append(n))
    operator = Operator(attempts=attempts)
    end = roll(tmp_path, Still(fails=(1,)), 3, operator=operator)
    assert end.counted == 3
    takes = list(read_journal(tmp_path))
    assert [take.outcome for take in takes] == [Outcome.FAILURE] * 3
    assert [round(result.duration_s, 1) for result in end.takes] == [1.0, 0.1, 1.0]
    assert "the policy failed: RuntimeError: shapes (3,4)" in end.takes[1].reason
    assert [bool(note.fault) for note in notes] == [False, True, False]


def test_a_policy_out_of_reach_is_no_failure_and_is_waited_for(tmp_path: Path) -> None:
    """Incident: a killed server filled the dataset with failures of one frame, counted as rollouts.

    All attempts that were asked for were over within a second, before anybody could serve it again.
    """
    gone = ["No link.", "No link.", ""]
    blocked: list[str] = []

    def blocker() -> str:
        blocked.append(gone[0] if len(gone) == 1 else gone.pop(0))
        return blocked[-1]

    policy = Still(fails=(0,), error=LostError("The policy at host:8441: The link is closed."))
    attempts = Attempts(SpeedRamp(tmp_path, "p", 1.0), blocker=blocker)
    end = roll(tmp_path, policy, 2, operator=Operator(attempts=attempts))
    assert end.counted == 2
    assert blocked[:3] == ["No link.", "No link.", ""]
    outcomes = [read_end(folder) for folder in take_folders(tmp_path)]
    assert [e.outcome for e in outcomes if e] == [Outcome.INTERRUPTED, *[Outcome.FAILURE] * 2]
    assert outcomes[0] is not None
    assert outcomes[0].reason.startswith("The policy at host:8441: The link is closed")


def test_a_policy_that_always_raises_ends_the_session_in_one_line(tmp_path: Path) -> None:
    operator = Operator(attempts=Attempts(SpeedRamp(tmp_path, "p", 1.0)))
    with pytest.raises(DeviceError, match=r"3 episodes in a row ended in a fault; .* not aligned"):
        roll(tmp_path, Still(fails=tuple(range(9))), 9, operator=operator)
    assert len(list(read_journal(tmp_path))) == 3


def test_a_policy_does_not_drive_on_a_stale_picture(tmp_path: Path) -> None:
    operator = Operator(attempts=Attempts(SpeedRamp(tmp_path, "p", 1.0)))
    with pytest.raises(DeviceError, match=r"3 episodes in a row .* Camera overhead is stale"):
        roll(tmp_path, Still(), 1, frozen=True, operator=operator)
    for folder in take_folders(tmp_path):
        end = read_end(folder)
        assert end is not None
        assert end.outcome is Outcome.INTERRUPTED
        assert "Camera overhead is stale" in end.reason
    assert len(read_take(folder).frames) == pytest.approx(36, abs=3)


def test_the_ramp_takes_twenty_successes_and_is_kept(tmp_path: Path) -> None:
    journal = tmp_path / "journal"
    scales = []
    for take in range(SUCCESSES + 2):
        ramp = SpeedRamp(journal, "sha256:a")
        scales.append(ramp.scale)
        journal.mkdir(exist_ok=True)
        assert ramp.successes == min(take, SUCCESSES)
        ramp.succeeded({f"episode {take}"})
    assert scales[0] == pytest.approx(0.1)
    np.testing.assert_allclose(np.diff(scales[: SUCCESSES + 1]), 0.9 / SUCCESSES)
    assert scales[SUCCESSES:] == [1.0, 1.0]
    assert SpeedRamp(journal, "sha256:b").scale == pytest.approx(0.1), "another policy is new"
    fixed = SpeedRamp(journal, "sha256:b", 0.5)
    assert (fixed.scale, fixed.successes) == (0.5, None)
    (journal / FILE).write_text("[]")
    with pytest.raises(UnusableInputError, match="Delete it"):
        SpeedRamp(journal, "sha256:a")


def test_help_does_not_speed_a_policy_up_and_a_word_taken_back_slows_it_down(
    tmp_path: Path,
) -> None:
    ramp = SpeedRamp(tmp_path, "p")
    attempts = Attempts(ramp)
    attempts.notes = {
        "helped": RolloutNote("helped", 0.1, 1, 0.5),
        "alone": RolloutNote("alone", 0.1, 0, 0.0),
    }
    attempts.judged({"helped": Outcome.SUCCESS})
    assert ramp.scale == pytest.approx(0.1)
    attempts.judged({"helped": Outcome.SUCCESS, "alone": Outcome.SUCCESS})
    assert SpeedRamp(tmp_path, "p").scale == ramp.scale == pytest.approx(0.145)
    attempts.judged({"helped": Outcome.SUCCESS, "alone": Outcome.FAILURE})
    assert SpeedRamp(tmp_path, "p").scale == ramp.scale == pytest.approx(0.1)


def test_a_count_that_cannot_be_written_ends_no_session(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    ramp = SpeedRamp(tmp_path / "journal", "p")
    (tmp_path / "journal").write_text("a file where the folder should be")
    ramp.succeeded({"a"})
    assert ramp.scale == pytest.approx(0.145)
    assert "successes can't be written" in caplog.text
