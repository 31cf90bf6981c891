"""LeRobot's phone teleoperator as an input device; the test makes what its app would say."""

from __future__ import annotations

import types
from collections.abc import Iterator
from importlib.util import find_spec
from typing import Any

import numpy as np
import pytest
from lerobot.teleoperators.phone.config_phone import PhoneConfig, PhoneOS
from lerobot.utils.rotation import Rotation

from gaploop.core.errors import UnusableInputError
from gaploop.teleop.lerobot_devices.make import connected_teleoperator
from gaploop.teleop.lerobot_devices.phone import LerobotPhone


class FakeApp:
    """What LeRobot's `Phone` offers, without the packages that its app needs."""

    def __init__(self, phone_os: PhoneOS) -> None:
        self.config = types.SimpleNamespace(phone_os=phone_os)
        self.disconnects = 0

    def get_action(self) -> dict[str, Any]:
        return {}  # no pose yet

    def disconnect(self) -> None:
        self.disconnects += 1
        raise ConnectionError("gone already")


@pytest.fixture(params=list(PhoneOS))
def phone(request: pytest.FixtureRequest) -> Iterator[LerobotPhone]:
    phone = LerobotPhone(FakeApp(request.param), 3, lambda: phone_now[0])
    yield phone
    phone.close()
    phone.close()
    assert phone._device.disconnects == 1


phone_now = [0.0]


def action(
    *position_m: float, turn: tuple[float, float, float] = (0.0, 0.0, 0.0), **inputs: float
) -> dict[str, Any]:
    held = inputs.pop("held", True)
    return {
        "phone.pos": np.array(position_m or (0.0, 0.0, 0.0)),
        "phone.rot": Rotation.from_rotvec(np.array(turn)),
        "phone.raw_inputs": inputs,
        "phone.enabled": bool(held),
    }


def test_the_phones_axes_become_the_robots(phone: LerobotPhone) -> None:
    """As in LeRobot's example: the phone's -y is the robot's +x."""
    assert not phone.latest().intent.drives
    phone.take(action(0.1, -0.2, 0.3, turn=(-0.4, 0.5, 0.0)))
    intent = phone.latest().intent
    assert intent.drives
    assert intent.step == 3
    assert intent.hand == pytest.approx((0.2, 0.1, 0.3, 0.5, 0.4))
    phone.take(action(0.1, -0.2, 0.3, held=False))
    assert not phone.latest().intent.drives


def test_the_gripper_follows_each_systems_buttons(phone: LerobotPhone) -> None:
    is_ios = phone._device.config.phone_os is PhoneOS.IOS
    pressed = {"a3": -4.0} if is_ios else {"reservedButtonB": 1.0}
    phone.take(action(**pressed))
    assert phone.latest().intent.gripper == -1.0


def test_a_phone_that_is_gone_while_held_grows_old(phone: LerobotPhone) -> None:
    """LeRobot hands the last pose on for ever."""
    phone_now[0] = 0.0
    phone.take(action(0.1, 0.0, 0.0))
    phone_now[0] = 1.0
    phone.take(action(0.1, 0.0, 0.0))
    assert phone.latest().age_s == 1.0
    phone.take({})
    phone.take(action(float("nan"), 0.0, 0.0))
    assert phone.latest().age_s == 1.0
    phone.take(action(0.10001, 0.0, 0.0))
    assert phone.latest().age_s == 0.0
    phone.take(action(0.10001, 0.0, 0.0, held=False))
    phone_now[0] = 9.0
    assert phone.latest().age_s == 0.0


@pytest.mark.skipif(bool(find_spec("hebi")), reason="LeRobot's extra `phone` is installed")
def test_without_its_packages_it_is_one_line() -> None:
    with pytest.raises(UnusableInputError, match=r"^--teleop\.\*: 'hebi-py' .*phone") as refused:
        connected_teleoperator(PhoneConfig())
    assert len(str(refused.value).splitlines()) == 1


class FakeHebi:
    """What LeRobot's class for iPhones asks HEBI's library for: a group of one phone, in hand."""

    def __init__(self) -> None:
        self.size, self.position_m, self.pressed, self.slider = 1, np.zeros(3), True, 0.0
        bank_a = types.SimpleNamespace(has_float=lambda _n: True, get_float=lambda _n: self.slider)
        bank_b = types.SimpleNamespace(has_int=lambda n: n == 1, get_int=lambda _n: self.pressed)
        self._io = types.SimpleNamespace(a=bank_a, b=bank_b)

    def Lookup(self) -> FakeHebi:  # noqa: N802 - HEBI's name
        return self

    def get_group_from_names(self, *_names: list[str]) -> FakeHebi:
        return self

    def get_next_feedback(self) -> list[Any]:
        turn_wxyz = np.array([1.0, 0.0, 0.0, 0.0])
        return [
            types.SimpleNamespace(
                ar_position=self.position_m.copy(), ar_orientation=turn_wxyz, io=self._io
            )
        ]


def test_lerobots_own_class_drives_with_a_made_up_phone(monkeypatch: pytest.MonkeyPatch) -> None:
    """LeRobot's code from HEBI's feedback on, for a machine that lacks HEBI's packages."""
    app, told = FakeHebi(), "lerobot.teleoperators.phone.teleop_phone"
    monkeypatch.setattr(f"{told}.hebi", app)
    monkeypatch.setattr(f"{told}.require_package", lambda *_args, **_more: None)
    monkeypatch.setattr(f"{told}.time", types.SimpleNamespace(sleep=lambda _s: None))
    device = connected_teleoperator(PhoneConfig(phone_os=PhoneOS.IOS))
    phone = LerobotPhone(device, 3, lambda: 0.0)
    try:
        phone.take(device.get_action())
        app.position_m = np.array([0.1, -0.2, 0.3])
        phone.take(device.get_action())
        intent = phone.latest().intent
        assert intent.drives
        assert intent.hand == pytest.approx((0.2, 0.1, 0.3, 0.0, 0.0))
        app.pressed = False
        phone.take(device.get_action())
        assert not phone.latest().intent.drives
    finally:
        phone.close()
    assert not device.is_connected
