"""Sensors that send lines of numbers: read, torn, silent, pulled and put back."""

from __future__ import annotations

import os
import pty
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest

from gaploop.core.errors import DeviceError, UnusableInputError
from gaploop.teleop.sensors import (
    LineSensor,
    check_sensors,
    connect_sensors,
    observed,
    reading,
)

CHANNELS = {"fx_n": "N", "fy_n": "N", "fz_n": "N"}


class Pad:
    """A driver of one's own."""

    def __init__(self, name: str, scale: float = 1.0, as_: str = "") -> None:
        self.channels = {f"{as_ or name}.touch": "kPa"}
        self._scale = scale

    def read(self) -> Mapping[str, float]:
        return dict.fromkeys(self.channels, 2.0 * self._scale)


class _Box:
    """A force/torque box: the far end of a pseudo-terminal under a name of its own."""

    def __init__(self, link: Path) -> None:
        self.link = link
        self._near = -1
        self.plug()

    def plug(self) -> None:
        self._near, far = pty.openpty()
        self.link.unlink(missing_ok=True)
        self.link.symlink_to(os.ttyname(far))
        os.close(far)

    def pull(self) -> None:
        self.link.unlink()
        os.close(self._near)

    def send(self, text: str) -> None:
        os.write(self._near, text.encode())


@pytest.fixture
def box(tmp_path: Path) -> _Box:
    return _Box(tmp_path / "box")


@pytest.fixture
def sensor(box: _Box) -> Iterator[LineSensor]:
    made = LineSensor("wrist", str(box.link), CHANNELS)
    yield made
    made.close()


def _soon(done: Callable[[], bool], again: Callable[[], object] = lambda: None) -> bool:
    end = time.monotonic() + 30.0
    while time.monotonic() < end:
        again()
        if done():
            return True
        time.sleep(0.02)
    return False


def _reads(sensor: LineSensor, wanted: list[float]) -> Callable[[], bool]:
    def now() -> bool:
        try:
            return list(sensor.read().values()) == wanted
        except DeviceError:
            return False

    return now


def test_columns_carry_the_sensors_name_and_the_newest_line_counts(
    box: _Box, sensor: LineSensor
) -> None:
    assert dict(sensor.channels) == {"wrist.fx_n": "N", "wrist.fy_n": "N", "wrist.fz_n": "N"}
    send = "0.5, 1, -2\n0.25; 1e1; 9.8\n"
    assert _soon(_reads(sensor, [0.25, 10.0, 9.8]), lambda: box.send(send))


def test_a_line_that_is_torn_or_odd_is_never_half_a_reading(box: _Box, sensor: LineSensor) -> None:
    """Opened in the middle of a line, a sensor's first numbers belong to other channels."""
    assert _soon(_reads(sensor, [1, 2, 3]), lambda: box.send("7, 8\nbooting\n1,2,3\n4,5"))
    assert _soon(_reads(sensor, [4, 5, 6]), lambda: box.send(",6\n4,5"))


def test_a_silent_or_foreign_port_says_what_it_sends(box: _Box, sensor: LineSensor) -> None:
    with pytest.raises(DeviceError, match="sends nothing"):
        sensor.wait(0.05)
    box.send("hello there\n")
    assert _soon(lambda: "hello there" in _why(sensor))


def _why(sensor: LineSensor) -> str:
    try:
        sensor.read()
    except DeviceError as error:
        return str(error)
    return ""


def test_old_readings_are_not_given_out_and_a_pulled_sensor_comes_back(
    box: _Box, sensor: LineSensor
) -> None:
    assert _soon(_reads(sensor, [1, 2, 3]), lambda: box.send("1,2,3\n"))
    box.pull()
    assert _soon(lambda: bool(_why(sensor)))
    box.plug()
    assert _soon(_reads(sensor, [4, 5, 6]), lambda: box.send("4,5,6\n"))


def test_a_driver_of_ones_own_is_made_with_its_options() -> None:
    path = f"{Pad.__module__}:Pad"
    (made,) = connect_sensors({"gel": {"driver": path, "options": {"scale": 3.0}}})
    assert made.read() == {"gel.touch": 6.0}
    with pytest.raises(UnusableInputError, match=r"two sensors write gel\.touch"):
        connect_sensors(
            {"gel": {"driver": path}, "pad": {"driver": path, "options": {"as_": "gel"}}}
        )
    with pytest.raises(UnusableInputError, match="can't be imported"):
        connect_sensors({"gel": {"driver": "no.such.module:Pad"}})
    with pytest.raises(UnusableInputError, match="can't be used"):
        connect_sensors({"gel": {"driver": path, "options": {"size": 1}}})


@pytest.mark.parametrize(
    ("spec", "says"),
    [
        ("/dev/ttyACM0", "must be a mapping"),
        ({"channels": CHANNELS}, "either port"),
        ({"port": "x", "driver": "a:b", "channels": CHANNELS}, "either port"),
        ({"port": "x"}, "needs channels"),
        ({"port": "x", "channels": CHANNELS, "baud": "fast"}, "baud"),
        ({"driver": "a:b", "options": 3}, "options"),
        ({"prot": "x"}, "port"),
        ({"port": "x", "channels": {"p": ["kPa", 4, "a"]}}, "rows, columns"),
        ({"port": "x", "channels": CHANNELS, "observe": 1}, "true or false"),
    ],
)
def test_what_is_wrong_is_said_before_anything_is_connected(spec: Any, says: str) -> None:
    with pytest.raises(UnusableInputError, match=says) as raised:
        check_sensors({"wrist": spec})
    assert "wrist" in str(raised.value)


def test_an_array_arrives_row_by_row_and_policies_see_it_whole(box: _Box) -> None:
    asked = {"skin": {"port": str(box.link), "channels": {"p": ["kPa", 2, 2]}, "observe": True}}
    check_sensors(asked)
    sensor = LineSensor("skin", str(box.link), asked["skin"]["channels"])
    try:
        assert list(sensor.channels) == ["skin.p_0_0", "skin.p_0_1", "skin.p_1_0", "skin.p_1_1"]
        assert _soon(_reads(sensor, [1, 2, 3, 4]), lambda: box.send("1 2 3 4\n"))
        assert observed(asked, [sensor]) == {"skin": sensor}
        assert reading(sensor).tolist() == [1, 2, 3, 4]
    finally:
        sensor.close()


def test_a_channel_without_a_number_is_no_reading_for_a_policy() -> None:
    """Half a reading would be learned from as if it were whole."""
    pad = Pad("gel", scale=float("nan"))
    with pytest.raises(DeviceError, match=r"no reading of gel\.touch"):
        reading(pad)
