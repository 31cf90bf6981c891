"""The port itself: exclusive, never hanging, and easy on the processor."""

from __future__ import annotations

import errno
import grp
import os
import subprocess
import sys
import threading
import time
import tty

import dynamixel_sdk
import pytest
import scservo_sdk
from fake_servos import FakeServos

from gaploop.core.errors import DeviceError
from gaploop.teleop.lerobot_devices.arm import PollPortHandler
from gaploop.teleop.servos.port import SerialPort, open_error, port_holder
from gaploop.teleop.servos.registers import Protocol

HOLDER = (
    "import os, sys; os.open(sys.argv[1], os.O_RDWR | os.O_NOCTTY); print(1, flush=True); input()"
)


def test_a_port_is_opened_once_and_closed_twice() -> None:
    with FakeServos(Protocol.FEETECH, {1: "sts3215"}) as fake:
        port = SerialPort(fake.path)
        port.open()
        port.open()
        with pytest.raises(DeviceError, match="in use"):
            SerialPort(fake.path).open()
        port.close()
        port.close()
        again = SerialPort(fake.path)
        again.open()
        again.close()


def test_a_port_without_permission_names_the_group_to_join() -> None:
    """Tests may run as root, who may open anything, so only the words are tested here."""
    with FakeServos(Protocol.FEETECH, {1: "sts3215"}) as fake:
        group = grp.getgrgid(os.stat(fake.path).st_gid).gr_name
        group = "dialout" if group == "root" else group
        text = str(open_error(fake.path, PermissionError(errno.EACCES, "Permission denied")))
        assert f"sudo usermod -aG {group} $USER" in text
        wrapped = OSError(f"[Errno 13] could not open port {fake.path}: [Errno 13] denied")
        assert "usermod" in str(open_error(fake.path, wrapped))  # as pyserial words it


def test_the_process_that_holds_a_port_is_named() -> None:
    master, slave = os.openpty()
    path = os.ttyname(slave)
    os.close(slave)
    with subprocess.Popen(
        [sys.executable, "-c", HOLDER, path], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as holder:
        assert holder.stdout is not None
        holder.stdout.readline()
        held = port_holder(path)
        assert held is not None
        assert held[0] == holder.pid
        holder.communicate(b"\n")
    assert port_holder(path) is None
    os.close(master)


def test_a_port_whose_other_end_is_gone_raises_and_doesnt_hang() -> None:
    master, slave = os.openpty()
    tty.setraw(slave)
    port = SerialPort(os.ttyname(slave))
    port.open()
    os.close(slave)
    os.close(master)
    with pytest.raises(OSError, match="Input/output error"):
        port.write(b"x" * 10)
    port.close()


def test_a_port_that_takes_no_bytes_gives_up() -> None:
    master, slave = os.openpty()
    tty.setraw(slave)
    port = SerialPort(os.ttyname(slave))
    port.open()
    with pytest.raises(TimeoutError):
        port.write(b"x" * 1_000_000)
    port.close()
    os.close(master)
    os.close(slave)


@pytest.fixture
def looks(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """How long each look for bytes may have waited [s]: who spins looks thousands of times."""
    looked, wait = list[float](), SerialPort.wait

    def counted(port: SerialPort, timeout_s: float) -> bool:
        looked.append(timeout_s)
        return wait(port, timeout_s)

    monkeypatch.setattr(SerialPort, "wait", counted)
    return looked


@pytest.mark.parametrize("protocol", list(Protocol))
def test_the_sdks_wait_for_a_slow_servo_without_spinning(
    protocol: Protocol, looks: list[float], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Their own handler asks for bytes all the time that a servo takes to answer."""
    monkeypatch.setattr("gaploop.teleop.lerobot_devices.arm.TIMEOUT_MARGIN_MS", 120_000.0)
    feetech = protocol is Protocol.FEETECH
    with FakeServos(protocol, {1: "sts3215" if feetech else "xl330-m288"}) as fake:
        fake.put(1, "Present_Temperature", 42)

        def slow(data: bytes) -> bytes:
            time.sleep(0.05)
            return data

        fake.spoil = slow
        handler = PollPortHandler(SerialPort(fake.path))
        assert handler.openPort()
        packets = scservo_sdk.PacketHandler(0) if feetech else dynamixel_sdk.PacketHandler(2.0)
        address = 63 if feetech else 146
        value, result, error = packets.read1ByteTxRx(handler, 1, address)
        assert (value, result, error) == (42, 0, 0)
        assert len(looks) < 20
        handler.closePort()


def test_the_sdks_give_up_where_nobody_answers(looks: list[float]) -> None:
    with FakeServos(Protocol.FEETECH, {1: "sts3215"}) as fake:
        handler = PollPortHandler(SerialPort(fake.path))
        handler.openPort()
        _, result, _ = scservo_sdk.PacketHandler(0).read1ByteTxRx(handler, 9, 63)
        assert result == scservo_sdk.COMM_RX_TIMEOUT
        assert len(looks) < 20
        handler.closePort()


def test_a_port_that_somebody_waits_at_can_be_waited_at_by_another() -> None:
    """The watchdog's torque-off failed with "concurrent poll() invocation" on a loop that hung."""
    master, slave = os.openpty()
    port = SerialPort(os.ttyname(slave))
    port.open()
    waits = threading.Thread(target=port.wait, args=(60.0,))
    waits.start()
    try:
        for _ in range(50):
            assert not port.wait(0.001)
        os.write(master, b"x")
        waits.join(60.0)
        assert port.wait(0.0)
    finally:
        port.close()
        os.close(master)
        os.close(slave)
