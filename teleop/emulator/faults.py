"""What goes wrong on the bus, on request: now, or on a schedule."""

from __future__ import annotations

import math
import random
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, fields
from typing import Final

from gaploop.core.errors import UnusableInputError, unknown_choice
from gaploop.core.schema import number

KINDS: Final[Mapping[str, str]] = {
    "drop": "packets are lost, each with probability `rate` (0.1)",
    "corrupt": "answers have a byte changed, each with probability `rate` (0.1)",
    "garbage": "noise comes before answers, each with probability `rate` (0.1)",
    "slow": "answers come `latency_s` (0.02) later, and up to `jitter_s` (0) more",
    "vanish": "servo `id` loses power; it comes back with torque off and its RAM forgotten",
    "reboot": "servo `id` restarts in an instant: it answers, with torque off and RAM forgotten",
    "stuck": "the motor of servo `id` is dead: no current, the joint stays, all else as usual",
    "slip": "the encoder of servo `id` reads `value` (1024) ticks more; 4096 change nothing",
    "overheat": "servo `id` measures `value` °C (95)",
    "overload": "servo `id` measures `value` of its stall load (1.0)",
    "voltage": "the supply gives `value` V (4.0)",
    "unplug": "the USB cable is pulled: the port is closed and its link gone",
}
"""Faults by name, and what each does."""

_NEEDS_ID: Final = ("vanish", "reboot", "stuck", "slip", "overheat", "overload")


_RANGES: Final = {
    "rate": (0.0, 1.0),
    "at_s": (0.0, math.inf),
    "for_s": (0.0, math.inf),
    "latency_s": (0.0, 10.0),
    "jitter_s": (0.0, 10.0),
    "id": (0, 253),
    "value": (-math.inf, math.inf),
}


@dataclass(frozen=True)
class Fault:
    """One fault.

    Attributes:
        fault: one of KINDS.
        at_s: when it begins, since the emulator started [s].
        for_s: how long it lasts [s]; endless unless given.
        id: the servo it strikes.
        rate: probability for each packet.
        latency_s: added to every answer [s].
        jitter_s: most that is added on top, evenly drawn [s].
        value: temperature [°C], share of stall, voltage [V], or ticks.
    """

    fault: str
    at_s: float = 0.0
    for_s: float = math.inf
    id: int | None = None
    rate: float = 0.1
    latency_s: float = 0.02
    jitter_s: float = 0.0
    value: float | None = None

    def __post_init__(self) -> None:
        if self.fault not in KINDS:
            raise unknown_choice("fault", self.fault, KINDS)
        if self.fault in _NEEDS_ID and self.id is None:
            raise UnusableInputError(f"Fault {self.fault} needs the id of a servo, such as id: 3.")
        for name, (low, high) in _RANGES.items():
            value = getattr(self, name)
            if value is not None:
                number(value, f"Fault {self.fault}: {name}", low, high)

    @property
    def end_s(self) -> float:
        """When it is over [s]."""
        return self.at_s + self.for_s


def parse_faults(entries: object, where: str) -> tuple[Fault, ...]:
    """Return the faults in a list of mappings; UnusableInputError names the entry that is wrong."""
    if not isinstance(entries, list):
        raise UnusableInputError(
            f"{where} must be a list such as [{{at_s: 5, fault: vanish, id: 3, for_s: 2}}]."
        )
    names = [f.name for f in fields(Fault)]
    faults = []
    for nth, entry in enumerate(entries, 1):
        place = f"{where}, entry {nth}"
        if not isinstance(entry, Mapping) or "fault" not in entry:
            raise UnusableInputError(f"{place} needs `fault`, one of: {', '.join(KINDS)}.")
        for name in entry:
            if name not in names:
                raise unknown_choice("field", name, names, place)
        try:
            given = {str(name): value for name, value in entry.items()}
            if isinstance(given.get("id"), float):  # as the console has it
                given["id"] = round(given["id"])
            faults.append(Fault(**given))
        except UnusableInputError as error:
            raise UnusableInputError(f"{place}: {error}") from error
    return tuple(faults)


@dataclass
class WireFaults:
    """What befalls packets just now: probabilities, and what delays every answer [s]."""

    drop: float = 0.0
    corrupt: float = 0.0
    garbage: float = 0.0
    latency_s: float = 0.0
    jitter_s: float = 0.0

    def delay_s(self, rng: random.Random) -> float:
        """Draw what is added to an answer's delay [s]."""
        return self.latency_s + (rng.uniform(0.0, self.jitter_s) if self.jitter_s else 0.0)

    def spoil(self, answer: bytes, rng: random.Random) -> bytes:
        """Return what arrives of an answer."""
        if self.drop and rng.random() < self.drop:
            return b""
        if self.corrupt and rng.random() < self.corrupt:
            place = rng.randrange(len(answer))
            changed = answer[place] ^ rng.randrange(1, 256)
            answer = answer[:place] + bytes((changed,)) + answer[place + 1 :]
        if self.garbage and rng.random() < self.garbage:
            answer = rng.randbytes(rng.randrange(1, 12)) + answer
        return answer


def wire_faults(active: Iterable[Fault]) -> WireFaults:
    """Combine the active faults of the wire; the strongest of a kind counts."""
    wire = WireFaults()
    for fault in active:
        if fault.fault in ("drop", "corrupt", "garbage"):
            setattr(wire, fault.fault, max(getattr(wire, fault.fault), fault.rate))
        elif fault.fault == "slow":
            wire.latency_s = max(wire.latency_s, fault.latency_s)
            wire.jitter_s = max(wire.jitter_s, fault.jitter_s)
    return wire
