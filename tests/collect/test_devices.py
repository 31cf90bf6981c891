"""Devices of a session: the embedded cell in real time, and what is lost again and again."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any, cast

import numpy as np
import pytest

from gaploop.collect.devices import CellDevices, SessionDevices, say_trip, subscribers
from gaploop.collect.lerobot_factory import make_tool_leader
from gaploop.collect.rig import LedArm, Rig, embedded_rig, world_rig
from gaploop.collect.session import drive_on
from gaploop.collect.take import follow_turns
from gaploop.core.clock import Clock
from gaploop.core.errors import DeviceError, LostError, TrippedError
from gaploop.core.messages import LeaderSample, SafetyReason
from gaploop.core.protocols import Follower
from gaploop.teleop.leaders import panel
from gaploop.teleop.leaders.controls import Intent, IntentSource, TimedIntent


class Still:
    """Somebody who holds still."""

    def reset(self) -> None: ...

    def read(self, t_s: float) -> LeaderSample:
        return LeaderSample(t_s, np.zeros(6))

    def done(self) -> bool:
        return False


class Pulled(CellDevices):
    """Devices that answer again each time they are lost; no cell is built."""

    def __init__(self) -> None:
        super().__init__(lambda _conditions: embedded_rig())
        self.lost: list[str] = []

    def reconnect(
        self, lost: str, stop: Callable[[], bool], pause: Callable[[float], object] = print
    ) -> bool:
        del pause
        self.lost.append(lost)
        return not stop()


def test_the_policy_drives_the_cell_that_an_operator_watches() -> None:
    """Record with a policy and a display took the expert for it."""
    asked: list[Any] = []

    def shared(*given: Any) -> Still:
        asked.append(given)
        return Still()

    devices = CellDevices(lambda conditions: embedded_rig(conditions=conditions), shared=shared)
    with closing(devices), closing(devices.rig({})) as rig:
        assert isinstance(devices.leader(rig, 0), Still)
        ((follower, rates, sent_rad, _expert),) = asked
        assert (follower, rates) == (rig.follower, rig.rates)
        assert sent_rad().shape == rig.safety.sent_rad.shape


def driven(
    devices: SessionDevices, *ends: Exception | bool, stop: bool = False, **given: Any
) -> tuple[int, str]:
    """Drive until it is over; each stretch ends in an error or says whether more is to come."""
    left = list(ends)

    def drive() -> bool:
        end = left.pop(0)
        if isinstance(end, Exception):
            raise end
        return end

    return drive_on(devices, drive, lambda: stop, **given)


def test_what_is_lost_is_connected_anew_until_it_is_over() -> None:
    with closing(Pulled()) as devices:
        assert driven(devices, True, False) == (0, "")
        assert driven(devices, LostError("a cable"), True, LostError("power"), False) == (2, "")
        assert devices.lost == ["a cable", "power"]
        assert driven(devices, False, lost="it didn't begin") == (1, "")
        assert driven(devices, LostError("a cable"), stop=True) == (0, "")
        assert driven(devices, LostError("a cable"), TrippedError("stall")) == (1, "stall")


def test_what_is_lost_in_every_stretch_ends_what_nobody_watches() -> None:
    lost = [LostError("a servo")] * 3
    with closing(Pulled()) as devices:
        with pytest.raises(DeviceError, match="lost 3 times"):
            driven(devices, *lost, finished=lambda: 0)
        assert driven(devices, *lost, False) == (3, "")


def test_a_trip_of_many_joints_is_the_arms() -> None:
    names = tuple("abcdef")
    assert "(the whole arm)" in say_trip(SafetyReason.STALL, names)
    assert "(a, b)" in say_trip(SafetyReason.STALL, names[:2])
    left = tuple(f"left_{name}" for name in names)
    right = tuple(f"right_{name}" for name in names)
    assert "(the whole left arm)" in say_trip(SafetyReason.LOST_SERVO, left)
    assert "(the whole arm)" in say_trip(SafetyReason.LOST_SERVO, left + right)


def test_nothing_is_lost_of_the_cell() -> None:
    with closing(CellDevices(lambda _conditions: embedded_rig())) as devices:
        rig: Rig
        with closing(devices.rig({})) as rig:
            assert rig.is_real_time
        assert not devices.reconnect("nothing", lambda: False)


def test_a_leader_dates_its_answers_by_the_cell_that_runs_now() -> None:
    """A LeRobot leader was connected with the first cell's clock, which stands still.

    So the filter took it for one that no longer answers, at the end of every take.
    """
    clocks: list[Clock] = []

    def leader_of(_arm: object, _station: object, clock: Clock) -> Still:
        clocks.append(clock)
        return Still()

    devices = CellDevices(lambda _conditions: embedded_rig(), leader_of=leader_of)
    with closing(devices), closing(devices.rig({})) as rig:
        rig.reset(0)
        rig.clock.sleep_until(0.05)
        assert clocks[0].now_s() >= 0.05


class Hand(IntentSource):
    """Somebody at a keyboard."""

    intent = Intent()

    def latest(self) -> TimedIntent:
        return TimedIntent(self.intent, 0.0, closed=False)


BENCH = Path(__file__).parents[2] / "examples" / "scene" / "bench.xml"
SCENE = """
mjcf: bench.xml
arm: so101_nexus:assets/SO101_menagerie/so101.xml
arm_at_m: [0.4, 0.3, 0.02]
arm_turn_deg: {turn}
tool: gripperframe
gripper: {{joint: gripper, open: {opened}, closed: {closed}}}
home_deg: {{shoulder_lift: -40, elbow_flex: 40, wrist_flex: 85, gripper: 30}}
instruction: Move
success: {{lifted: block}}
"""


@pytest.mark.parametrize("turn", [0, 90, -150])
def test_a_person_moves_the_tool_of_a_scene_s_arm_from_where_the_arm_stands(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, turn: int
) -> None:
    """Forward is away from the arm's base, however it is put up; open is what the file says."""
    path = tmp_path / "scene.yaml"
    opened, closed = (1.0, -0.17) if turn else (-0.17, 1.0)
    path.write_text(SCENE.format(turn=turn, opened=opened, closed=closed))
    (tmp_path / "bench.xml").write_text(BENCH.read_text())
    hand = Hand()
    monkeypatch.setattr(panel, "Keyboard", lambda *_: hand)
    with closing(world_rig(path, gaps={}, conditions={}, looks=False)) as rig:
        rig.reset(0)
        leader = make_tool_leader("keyboard", cast(Follower, LedArm(rig.follower)), rig.station)
        tip = rig.scene.data.site("gripperframe")
        c, s = np.cos(np.radians(turn)), np.sin(np.radians(turn))

        def moved(**asked: Any) -> tuple[np.ndarray[Any, Any], float]:
            hand.intent = Intent(step=4, gripper=1.0, **asked)
            before, jaw = tip.xpos.copy(), rig.scene.angles()[-1]
            leader.reset()
            follow_turns(rig.turns(leader, 0.6), subscribers(leader), lambda: False)
            return tip.xpos - before, float(rig.scene.angles()[-1] - jaw)

        moved()  # the arm comes to rest
        for name, way in {"forward": (c, s, 0.0), "left": (-s, c, 0.0), "up": (0, 0, 1)}.items():
            step_m, _ = moved(**{name: 1.0})
            assert np.linalg.norm(step_m) < 0.002
            step_m, opens = moved(held=True, **{name: 1.0})
            assert step_m @ way > 0.03
            assert np.linalg.norm(step_m - (step_m @ way) * np.array(way)) < 0.015
            assert opens * (opened - closed) >= 0.0


def test_in_a_scene_a_leader_s_gripper_goes_from_closed_to_open() -> None:
    """LeRobot's leaders give percent; in metres or degrees it went anywhere."""
    scene = BENCH.with_name("scene.yaml")
    with closing(world_rig(scene, gaps={}, conditions={}, looks=False)) as rig:
        led = LedArm(rig.follower)
        for percent, end in ((0.0, -0.17), (100.0, 1.0)):
            asked = led.from_units(np.array([10.0, 0, 0, 0, 0, percent]))
            assert asked == pytest.approx([np.radians(10.0), 0, 0, 0, 0, end])
        assert led.from_ranges(np.full(6, 100.0)) == pytest.approx(
            rig.follower.joint_limits_rad[:, 1]
        )
