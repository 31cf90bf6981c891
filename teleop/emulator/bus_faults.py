"""Faults of a running bus: struck and fixed from any thread, or on schedule."""

from __future__ import annotations

import math
import random
import threading
from collections.abc import Iterable
from dataclasses import replace
from typing import Protocol

from gaploop.teleop.emulator.faults import Fault, WireFaults, wire_faults


class Struck(Protocol):
    """What faults need of a bus."""

    lock: threading.RLock

    def age_s(self) -> float:
        """Return the time since the start [s]."""
        ...

    def require_servo(self, identity: int | None) -> None:
        """Raise `UnusableInputError` where there is no servo of that id."""
        ...

    def strike(self, fault: Fault) -> None:
        """Begin a fault."""
        ...

    def mend(self, fault: Fault) -> None:
        """End a fault."""
        ...


class InjectedBusFaults:
    """Faults of one bus, at run time; safe to use from any thread."""

    def __init__(self, bus: Struck, scheduled: Iterable[Fault], seed: int) -> None:
        self._bus = bus
        self.rng = random.Random(seed)
        self._waiting = sorted(scheduled, key=lambda f: f.at_s)
        self.active: list[Fault] = []
        self.wire = WireFaults()

    def add(self, fault: Fault) -> None:
        """Let a fault strike now, or when its `at_s` [s] comes."""
        with self._bus.lock:
            self._bus.require_servo(fault.id)
            at_s = max(fault.at_s, self._bus.age_s())
            self._waiting = sorted(
                [*self._waiting, replace(fault, at_s=at_s)], key=lambda f: f.at_s
            )
            self.update(self._bus.age_s())

    def drop(self, rate: float) -> None:
        """Lose packets, each with probability `rate`."""
        self.add(Fault("drop", rate=rate))

    def corrupt(self, rate: float) -> None:
        """Change a byte of answers, each with probability `rate`."""
        self.add(Fault("corrupt", rate=rate))

    def garbage(self, rate: float) -> None:
        """Put noise before answers, each with probability `rate`."""
        self.add(Fault("garbage", rate=rate))

    def slow(self, latency_s: float, jitter_s: float = 0.0) -> None:
        """Delay every answer by `latency_s` and up to `jitter_s` more [s]."""
        self.add(Fault("slow", latency_s=latency_s, jitter_s=jitter_s))

    def vanish(self, servo: int, for_s: float = math.inf) -> None:
        """Take the power from a servo; it comes back as just switched on."""
        self.add(Fault("vanish", id=servo, for_s=for_s))

    def overheat(self, servo: int, celsius: float = 95.0, for_s: float = math.inf) -> None:
        """Let a servo measure a temperature [°C]."""
        self.add(Fault("overheat", id=servo, value=celsius, for_s=for_s))

    def overload(self, servo: int, share: float = 1.0, for_s: float = math.inf) -> None:
        """Let a servo measure a load, as a share of stall."""
        self.add(Fault("overload", id=servo, value=share, for_s=for_s))

    def voltage(self, volts: float, for_s: float = math.inf) -> None:
        """Set the supply voltage [V]."""
        self.add(Fault("voltage", value=volts, for_s=for_s))

    def unplug(self, for_s: float = math.inf) -> None:
        """Pull the USB cable; `clear` or the end of `for_s` [s] plugs it in again."""
        self.add(Fault("unplug", for_s=for_s))

    def clear(self, kind: str | None = None, servo: int | None = None) -> None:
        """End all faults, or those of a kind, or of a servo, scheduled ones included."""
        with self._bus.lock:

            def meant(fault: Fault) -> bool:
                return kind in (None, fault.fault) and servo in (None, fault.id)

            self._waiting = [f for f in self._waiting if not meant(f)]
            for fault in [f for f in self.active if meant(f)]:
                self._end(fault)
            self.wire = wire_faults(self.active)

    def update(self, now_s: float) -> None:
        """Begin and end what is due at `now_s` [s] since the start."""
        if not self._waiting and not self.active:
            return
        changed = False
        for fault in [f for f in self.active if f.end_s <= now_s]:
            self._end(fault)
            changed = True
        while self._waiting and self._waiting[0].at_s <= now_s:
            fault = self._waiting.pop(0)
            self.active.append(fault)
            self._bus.strike(fault)
            changed = True
        if changed:
            self.wire = wire_faults(self.active)

    def _end(self, fault: Fault) -> None:
        self.active.remove(fault)
        if not any(f.fault == fault.fault and f.id == fault.id for f in self.active):
            self._bus.mend(fault)
