"""Devices of a session: the embedded cell in real time, and what is lost again and again."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import closing
from typing import Any

import numpy as np
import pytest

from gaploop.collect.devices import CellDevices, SessionDevices, say_trip
from gaploop.collect.rig import Rig, embedded_rig
from gaploop.collect.session import drive_on
from gaploop.core.clock import Clock
from gaploop.core.errors import DeviceError, LostError, TrippedError
from gaploop.core.messages import LeaderSample, SafetyReason


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
