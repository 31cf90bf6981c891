"""A Dynamixel leader that pushes back: its motors take currents instead of hanging limp.

Only motors that can be given a current (XL330, XM430) and not the gripper's, which has a spring of
its own. They are set to current control with a current of 0, which a hand doesn't feel. What is
pushed is `ForceLaw`'s business; here it is made sure that it ends: with torque off at the end, by a
watchdog of ours where the loop stands still, and by the servos' own where this process is killed.
"""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Callable
from typing import Final

import numpy as np

from gaploop.core.errors import DeviceError, UnusableInputError
from gaploop.core.messages import FloatArray, FollowerState, LeaderSample, SafetyReason, Tick
from gaploop.teleop.leaders.feedback import STALE_S, ForceLaw
from gaploop.teleop.leaders.options import ForceOptions
from gaploop.teleop.lerobot_devices.servo_arm import ServoLeader, WrappedLeader
from gaploop.teleop.servos import registers as reg
from gaploop.teleop.servos.bus import ServoBus
from gaploop.teleop.servos.exchange import Script
from gaploop.teleop.servos.torque import each_of

CURRENT_MODE: Final = b"\x00"
"""Value of Operating Mode (ROBOTIS e-manual)."""
BUS_WATCHDOG: Final = reg.ServoRegister(98, 1)
WATCHDOG_S: Final = 0.2
"""A servo that hears nothing for this long stops by itself [s]."""
WATCHDOG_STEP_S: Final = 0.02
JUMP_TICKS: Final = 1000
"""A change of mode must not change what the encoder says by more than this [ticks]: a limp arm
sinks a little meanwhile, a lost turn is 4096."""


class ForceLeader(WrappedLeader):
    """A leader arm with force feedback. A `Leader`; also a `TakeSink` of the loop that it leads.

    Raises:
        UnusableInputError: none of the motors of the leader, which is limp, takes currents.
        DeviceError: a motor doesn't do what it is told.
    """

    def __init__(
        self,
        leader: ServoLeader,
        options: ForceOptions,
        now_s: Callable[[], float] = time.monotonic,
    ) -> None:
        super().__init__(leader)
        self._now_s, joints = now_s, leader.own_joints
        self._law = ForceLaw(options, len(joints))
        self._order, self._sign = np.array(joints), np.sign(leader.slope_rad_per_tick)
        self._motors = _motors(leader)
        if not any(self._motors.values()):
            models = sorted({model for bus in leader.buses for model in bus.models})
            raise UnusableInputError(
                f"--force.enabled needs a leader whose motors take currents ("
                f"{', '.join(n for n, m in reg.MODELS.items() if _takes_current(m))}); this one "
                f"has {', '.join(models)}. Leave --force.enabled out."
            )
        self._state: FollowerState | None = None
        self._tripped, self._pushing = False, False
        self._written_s = self._now_s()
        self._over = threading.Event()
        buses = list(self._motors)
        before = leader.group.take(buses)[1]
        # In current control without a current; the modes that they had are given back at the end.
        modes = dict(zip(buses, leader.group.each(buses, self._to_current), strict=True))
        after = leader.group.take(buses)[1]
        for old, new in zip(before, after, strict=True):
            moved = np.abs(new.position_ticks - old.position_ticks)
            if not (moved < JUMP_TICKS).all():
                leader.group.each(buses, self._restore)
                raise DeviceError(
                    "The leader's encoders read something else in current control: a joint is a "
                    "turn away from its calibration. Move it back and connect again."
                )
        self._modes = modes
        self._watchdog = threading.Thread(target=self._watch, name="force watchdog", daemon=True)
        self._watchdog.start()

    def reset(self) -> None:
        """Get ready for a new take, or to go on after a trip: no push."""
        self._leader.reset()
        self._law.reset()
        self._state, self._tripped = None, False
        self._write(np.zeros(len(self._order)))
        self._leader.group.each(list(self._motors), self._arm_watchdog)

    def tick(self, tick: Tick) -> None:
        """Take note of how the follower is; called from any thread."""
        self._state = tick.state
        self._tripped = bool(tick.command.reasons & SafetyReason.TRIPPED)

    def read(self, t_s: float) -> LeaderSample:
        """Return where the leader asks the follower to be, and push where that is blocked."""
        sample = self._leader.read(t_s)
        state = None if self._tripped else self._state
        push = self._law.current_a(sample, state, t_s)
        if self._pushing or push.any():
            self._write(push)
        self._written_s = self._now_s()
        return sample

    def close(self) -> None:
        """Let go, give the motors back their mode, disconnect; DeviceError if one isn't limp."""
        if self._over.is_set():
            return
        self._over.set()
        with contextlib.ExitStack() as stack:
            stack.callback(self._leader.close)
            stack.callback(self._leader.group.each, list(self._motors), self._restore)
            self._write(np.zeros(len(self._order)))
            self._watchdog.join(1.0)

    def _to_current(self, bus: ServoBus) -> Script[dict[int, bytes]]:
        mode, torque = bus.register("Operating_Mode"), bus.register("Torque_Enable")
        ids = self._motors[bus]
        had = yield bus.ask(mode, ids)
        for servo_id in ids:
            for register, value in ((torque, b"\x00"), (mode, CURRENT_MODE), (torque, b"\x01")):
                if servo_id not in (yield bus.store(servo_id, register, value)):
                    name = f"servo {servo_id} on {bus.line.port.path}"
                    raise DeviceError(f"{name} doesn't take current control. Check its cable.")
        yield from self._arm_watchdog(bus)
        return {servo_id: had[servo_id].data for servo_id in ids if servo_id in had}

    def _arm_watchdog(self, bus: ServoBus) -> Script[None]:
        for value in (b"\x00", bytes([round(WATCHDOG_S / WATCHDOG_STEP_S)])):
            yield bus.store_all(BUS_WATCHDOG, each_of(self._motors[bus], value))

    def _restore(self, bus: ServoBus) -> Script[None]:
        ids = self._motors[bus]
        yield bus.store_all(bus.register("Torque_Enable"), each_of(ids, b"\x00"))
        yield bus.store_all(BUS_WATCHDOG, each_of(ids, b"\x00"))
        for servo_id, mode in getattr(self, "_modes", {}).get(bus, {}).items():
            yield bus.store(servo_id, bus.register("Operating_Mode"), mode)

    def _write(self, current_a: FloatArray) -> None:
        """Send goal currents [A], in the follower's joints, to the motors."""
        own = np.zeros(len(self._leader.joint_names))
        own[self._order] = current_a * self._sign
        self._pushing = bool(current_a.any())
        amperes = {
            bus: dict(zip(bus.ids, own[span], strict=True))
            for bus, span in zip(self._leader.buses, self._leader.spans, strict=True)
        }

        def goals(bus: ServoBus) -> Script[None]:
            data = bytearray()
            for servo_id in self._motors[bus]:
                step_a = reg.MODELS[bus.models[bus.ids.index(servo_id)]].current_step_a
                steps = round(float(amperes[bus][servo_id]) / step_a)
                data += bytes((servo_id,)) + steps.to_bytes(2, "little", signed=True)
            yield bus.store_all(bus.register("Goal_Current"), bytes(data))

        self._leader.group.each(list(self._motors), goals)

    def _watch(self) -> None:
        while not self._over.wait(0.5 * STALE_S):
            if self._pushing and self._now_s() - self._written_s > STALE_S:
                self._write(np.zeros(len(self._order)))


def _motors(leader: ServoLeader) -> dict[ServoBus, tuple[int, ...]]:
    """Return the ids of the motors that may be pushed, by bus."""
    found: dict[ServoBus, tuple[int, ...]] = {}
    for arm in leader.arms:
        able = zip(arm.bus.ids, arm.bus.models, arm.units.names, strict=True)
        ids = tuple(
            i for i, model, name in able if _takes_current(reg.MODELS[model]) and name != "gripper"
        )
        if ids:
            found[arm.bus] = ids
    return found


def _takes_current(model: reg.Model) -> bool:
    return model.protocol is reg.Protocol.DYNAMIXEL and model.has_current
