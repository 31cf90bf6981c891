"""Recording through the embedded cell, end to end: what the loop did is what the journal holds."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import TypedDict, Unpack

import numpy as np
import pytest

from gaploop.collect.campaign import Quota
from gaploop.collect.journal import JournalWriter
from gaploop.collect.policy_leader import PolicyLeader
from gaploop.collect.rig import EmbeddedRig, Rig, embedded_rig, scripted_leader
from gaploop.collect.take import (
    MakeLeader,
    Operator,
    SessionEnd,
    TakeResult,
    record_takes,
    run_take,
)
from gaploop.core import journal_format, labels
from gaploop.core.errors import DeviceError, UnusableInputError
from gaploop.core.journal_format import read_end, read_journal, read_take, take_folders
from gaploop.core.messages import (
    REBOOTED,
    FloatArray,
    FollowerState,
    LeaderSample,
    Observation,
    SafetyReason,
)
from gaploop.core.protocols import Leader
from gaploop.core.take import TakeInfo
from gaploop.core.vocabulary import Domain, Outcome, TakeKind
from gaploop.teleop.trips import OWN_ERRORS, SUPPLY


class Shared(TypedDict, total=False):
    """What takes share."""

    max_s: float
    resume: bool


class Idle:
    """Asks for the home pose, or what it is told to; it never says done."""

    def __init__(self, q_rad: FloatArray | None = None) -> None:
        self.q_rad, self.reads, self.takes = q_rad, 0, 0

    def reset(self) -> None:
        self.reads, self.takes = 0, self.takes + 1

    def read(self, t_s: float) -> LeaderSample:
        self.reads += 1
        return LeaderSample(t_s, np.zeros(6) if self.q_rad is None else self.q_rad)

    def done(self) -> bool:
        return False


class Unplugged(Idle):
    def __init__(self, times: int = 99) -> None:
        super().__init__()
        self.times = times

    def read(self, t_s: float) -> LeaderSample:
        if self.reads == 30 and self.times:
            self.times -= 1
            raise DeviceError("The leader doesn't answer. Check its cable.")
        return super().read(t_s)


class Sway:
    """A policy: answers with its state plus a constant, in LeRobot units."""

    fps = 50.0

    def __init__(self) -> None:
        self.seen = list[Observation]()

    def reset(self) -> None:
        self.seen.clear()

    def act(self, observation: Observation) -> FloatArray:
        self.seen.append(observation)
        return observation.state + 1.0


@pytest.fixture(scope="module")
def rig() -> Iterator[EmbeddedRig]:
    rig = embedded_rig()
    yield rig
    rig.close()


def record(
    journal: Path,
    quota: Quota,
    make_leader: MakeLeader,
    *,
    kind: TakeKind = TakeKind.DEMONSTRATION,
    policy: str = "",
    **shared: Unpack[Shared],
) -> SessionEnd:
    return record_takes(
        journal,
        TakeInfo("", "Put the cube on the disc", kind=kind, policy=policy),
        [quota, Quota(0, "nothing to record")],
        lambda conditions: embedded_rig(conditions=conditions),
        make_leader,
        **shared,
    )


def idle(_rig: Rig, _seed: int) -> Leader:
    return Idle()


def test_two_scripted_takes_are_recorded_and_read_back(tmp_path: Path) -> None:
    takes: list[tuple[TakeResult, bool]] = []
    end = record_takes(
        tmp_path,
        TakeInfo("", "Put the cube on the disc"),
        [Quota(2)],
        lambda _conditions: embedded_rig(),
        scripted_leader,
        on_take=lambda result, counts: takes.append((result, counts)),
    )
    assert (end.counted, end.wanted, end.interrupted, end.gave_up) == (2, 2, False, ())
    read = list(read_journal(tmp_path))
    assert [t.info.uid for t in read] == [r.uid for r, _ in takes]
    for take, (result, counts) in zip(read, takes, strict=True):
        assert counts
        assert take.outcome is Outcome.SUCCESS
        assert take.info.domain is Domain.SIM
        assert take.info.kind is TakeKind.DEMONSTRATION
        assert len(take.frames) == result.frames > 50
        assert len(list(take.cameras["overhead"]())) == len(take.frames)
        assert len(take.telemetry) in (2 * len(take.frames), 2 * len(take.frames) - 1)
        assert take.telemetry.arms() == ("follower",)
        assert take.telemetry.joints("follower") == take.info.joint_names
        assert take.frames.environment_state.shape == (len(take.frames), 7)
        assert (take.frames.camera_age_s["overhead"] <= 0.04 + 1e-9).all()
        sent = np.diff(take.telemetry.stack("follower", "sent_rad"), axis=0)
        assert np.abs(sent).max() <= 0.03 + 1e-9
    one, other = (take.frames.environment_state[0, :5] for take in read)
    assert not np.allclose(one, other)
    truth = (tmp_path / journal_format.TRUTH).read_text().splitlines()
    assert len(truth) == 2


def test_the_same_seed_gives_the_same_take(rig: EmbeddedRig, tmp_path: Path) -> None:
    read = []
    for _ in range(2):
        with JournalWriter(tmp_path, rig.header(TakeInfo("", "t"))) as writer:
            run_take(rig, scripted_leader(rig, 3), seed=5, max_s=1.0, writer=writer)
        read.append(read_take(writer.folder))
    a, b = read
    np.testing.assert_array_equal(a.frames.action, b.frames.action)
    np.testing.assert_array_equal(a.frames.environment_state, b.frames.environment_state)
    one, other = (t.telemetry.stack("follower", "position_rad") for t in (a, b))
    np.testing.assert_array_equal(one, other)


@pytest.mark.parametrize(
    ("gaps", "conditions"), [({"contact_dynamics": 0.5}, {}), ({}, {"distractors": 2})]
)
def test_a_gap_or_a_condition_makes_the_cell_a_target(
    gaps: dict[str, float], conditions: dict[str, object]
) -> None:
    target = embedded_rig(gaps=gaps, conditions=conditions)
    run_take(target, Idle(), seed=0, max_s=0.1)
    assert target.domain is Domain.SIM_TARGET
    assert target.header(TakeInfo("", "t")).info.conditions == conditions
    assert target.header(TakeInfo("", "t")).info.dimensions == {}
    target.close()


def test_what_the_cell_does_not_know_is_refused() -> None:
    with pytest.raises(UnusableInputError, match="no_such"):
        embedded_rig(gaps={"no_such": 0.5})
    with pytest.raises(UnusableInputError, match="One of"):
        embedded_rig(conditions={"lighting": "moon"})


def test_failed_demonstrations_are_kept_do_not_count_and_are_given_up_on(tmp_path: Path) -> None:
    end = record(tmp_path, Quota(2), idle, max_s=0.1)
    assert end.counted == 0
    assert len(end.takes) == 6
    assert {t.outcome for t in read_journal(tmp_path)} == {Outcome.FAILURE}
    assert "6 attempts gave 0 of 2" in end.gave_up[0]


def test_rollouts_count_however_they_end(tmp_path: Path) -> None:
    end = record(tmp_path, Quota(2), idle, kind=TakeKind.ROLLOUT, policy="p", max_s=0.1)
    assert end.counted == 2
    assert [t.info.policy for t in read_journal(tmp_path)] == ["p", "p"]


def test_a_plan_item_is_filled_once_over_all_sessions_and_tagged(tmp_path: Path) -> None:
    quota = Quota(2, "p-1", {"object_property": 1.0}, {"distractors": 2})
    for wanted in (Quota(1, "p-1", quota.dimensions, quota.conditions), quota, quota):
        record(tmp_path, wanted, idle, kind=TakeKind.ROLLOUT, max_s=0.06)
    read = list(read_journal(tmp_path))
    assert len(read) == 2
    assert {t.info.plan for t in read} == {"p-1"}
    assert all(dict(t.info.dimensions) == {"object_property": 1.0} for t in read)
    assert all(dict(t.info.conditions) == {"distractors": 2} for t in read)
    assert len({t.info.session for t in read}) == 2


def test_takes_asked_for_are_new_ones_unless_the_session_resumes(tmp_path: Path) -> None:
    for resume, held in ((False, 1), (False, 2), (True, 2)):
        record(tmp_path, Quota(1), idle, kind=TakeKind.ROLLOUT, max_s=0.06, resume=resume)
        assert len(take_folders(tmp_path)) == held


def test_a_stopped_session_leaves_one_interrupted_take_and_goes_on_later(tmp_path: Path) -> None:
    leader = Idle()
    end = record_takes(
        tmp_path,
        TakeInfo("", "t", kind=TakeKind.ROLLOUT),
        [Quota(3)],
        lambda _conditions: embedded_rig(),
        lambda _rig, _seed: leader,
        stop=lambda: leader.takes == 2 and leader.reads > 20,
        max_s=0.5,
    )
    assert end.interrupted
    assert end.counted == 1
    outcomes = [t.outcome for t in read_journal(tmp_path)]
    assert outcomes == [Outcome.FAILURE, Outcome.INTERRUPTED]
    said = labels.current(labels.read(tmp_path / journal_format.LABELS))
    assert list(said.values()) == [{"outcome": "interrupted"}]
    end = record(tmp_path, Quota(3), idle, kind=TakeKind.ROLLOUT, max_s=0.06, resume=True)
    assert end.counted == 3


def test_a_device_fault_interrupts_its_take_and_the_session_goes_on(tmp_path: Path) -> None:
    leader = Unplugged(times=1)
    end = record(tmp_path, Quota(2), lambda _r, _s: leader, kind=TakeKind.ROLLOUT, max_s=0.5)
    assert end.counted == 2
    cut, *whole = (read_end(folder) for folder in take_folders(tmp_path))
    assert cut is not None
    assert cut.outcome is Outcome.INTERRUPTED
    assert "cable" in cut.reason
    assert [end.outcome for end in whole if end] == [Outcome.FAILURE] * 2


def test_a_fault_of_every_take_ends_the_session_in_one_line(tmp_path: Path) -> None:
    with pytest.raises(DeviceError, match=r"3 episodes in a row .* cable"):
        record_takes(
            tmp_path,
            TakeInfo("", "t", kind=TakeKind.ROLLOUT),
            [Quota(1)],
            lambda _conditions: embedded_rig(),
            lambda _rig, _seed: Unplugged(),
        )
    assert [len(read_take(f).telemetry) for f in take_folders(tmp_path)] == [30] * 3


def test_a_policy_that_answers_nan_is_held_and_the_record_has_no_infinities(
    rig: EmbeddedRig, tmp_path: Path
) -> None:
    leader = Idle(np.array([np.nan, np.inf, 0, 0, 0, 0]))
    with JournalWriter(tmp_path, rig.header(TakeInfo("", "t"))) as writer:
        run_take(rig, leader, seed=0, max_s=0.1, writer=writer)
    take = read_take(writer.folder)
    assert (take.frames.safety == SafetyReason.NON_FINITE).all()
    assert np.isfinite(take.frames.sent).all()
    assert np.isnan(take.telemetry.stack("follower", "requested_rad")[:, :2]).all()


def test_a_safety_trip_ends_the_take_as_a_failure_and_is_an_event(
    rig: EmbeddedRig, tmp_path: Path
) -> None:
    class Panics(Idle):
        def read(self, t_s: float) -> LeaderSample:
            if self.reads == 10:
                rig.safety.estop()
            return super().read(t_s)

    with JournalWriter(tmp_path, rig.header(TakeInfo("", "t"))) as writer:
        result = run_take(rig, Panics(), seed=0, max_s=5.0, writer=writer)
    assert (result.outcome, result.reason) == (Outcome.FAILURE, "safety trip: ESTOP")
    assert result.duration_s == pytest.approx(0.62, abs=0.03)
    assert "ESTOP" in (writer.folder / journal_format.EVENTS).read_text()


@pytest.mark.parametrize("bits", [REBOOTED, SUPPLY])
def test_a_servo_without_power_is_no_failure_of_the_task(
    bits: int, rig: EmbeddedRig, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A servo that browned out for 0.03 s made a failure that was published; one for 0.2 s made an
    interrupted episode, as the page on recording says.
    """
    read = rig.follower.read

    def unpowered() -> FollowerState:
        return replace(read(), status=np.array([0, bits, 0, 0, 0, 0]))

    class BrownsOut(Idle):
        def read(self, t_s: float) -> LeaderSample:
            if self.reads == 10:
                monkeypatch.setattr(rig.follower, "read", unpowered)
            return super().read(t_s)

    with JournalWriter(tmp_path, rig.header(TakeInfo("", "t"))) as writer:
        result = run_take(rig, BrownsOut(), seed=0, max_s=5.0, writer=writer)
    assert result.outcome is Outcome.INTERRUPTED
    assert OWN_ERRORS[bits][0] in result.reason


def test_a_policy_sees_every_frame_in_its_units_and_moves_in_straight_lines(
    rig: EmbeddedRig,
) -> None:
    policy = Sway()
    leader = PolicyLeader(policy, rig.follower, rig.fps, rig.control_hz)
    result = run_take(rig, leader, seed=0, max_s=0.4)
    assert result.frames == len(policy.seen) == 20
    assert policy.seen[0].images["overhead"].shape == (192, 192, 3)
    scene = policy.seen[0].environment_state
    assert scene is not None
    assert scene.shape == (7,)
    leader.observe(policy.seen[-1])
    q = [leader.read(0.0).q_rad for _ in range(3)]
    np.testing.assert_allclose(q[1], rig.follower.from_units(policy.seen[-1].state + 1.0))
    np.testing.assert_array_equal(q[1], q[2])


def test_a_policy_trained_at_another_rate_is_refused(rig: EmbeddedRig) -> None:
    with pytest.raises(UnusableInputError, match="50 fps"):
        PolicyLeader(Sway(), rig.follower, 25.0, rig.control_hz)


def test_what_is_in_a_takes_way_is_waited_for_and_only_so_long(
    rig: EmbeddedRig, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """The disk was full, and the session of an afternoon was over; now it waits for room.

    An arm on its way down was told each second, with the seconds that were left.
    """
    full = "Journal j has 3 MB of room left. Make room."
    blockers = iter([full, full.replace("3", "4"), ""])
    waits = replace(rig, blocker=lambda: next(blockers), close=lambda: None)
    end = record_takes(
        tmp_path,
        TakeInfo("", "t", kind=TakeKind.ROLLOUT),
        [Quota(1)],
        lambda _conditions: waits,
        idle,
        max_s=0.06,
    )
    assert end.counted == 1
    assert caplog.text.count("Waiting") == 1
    blocked = replace(rig, blocker=lambda: full, close=lambda: None)
    with pytest.raises(DeviceError, match=r"Make room\. Waited 0 s .* run the same command again"):
        record_takes(
            tmp_path,
            TakeInfo("", "t", kind=TakeKind.ROLLOUT),
            [Quota(1)],
            lambda _conditions: blocked,
            idle,
            operator=Operator(0.0),
            max_s=0.06,
        )
    assert len(take_folders(tmp_path)) == 1
