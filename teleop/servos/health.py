"""What is wrong with servos that answer, and its fix: for `doctor` and for every start."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Final

from gaploop.teleop.servos.registers import Protocol, Vitals, describe_error

_VOLTAGE: Final = 0x01
_SLACK_V: Final = 0.05
"""A supply is read in steps of 0.1 V."""
_HEAT: Final = 0x04
_FIXES: Final = (
    (_HEAT, "Switch the arm's power off and let it cool for some minutes"),
    # Overcurrent and overload of a Feetech servo; overload of a Dynamixel.
    (0x28, "Free what holds the joint, then switch the arm's power off for 5 s"),
    (
        _VOLTAGE,
        "Switch the arm's power off for 5 s; if it comes back, the supply's plug is loose or it "
        "gives too few amperes",
    ),
)
_ELSE: Final = "Switch the arm's power off for 5 s; if it comes back, replace the servo"


def ailments(
    protocol: Protocol, servos: Mapping[int, Vitals], named: Callable[[Sequence[int]], str]
) -> Iterator[tuple[str, str, tuple[int, ...]]]:
    """Yield what keeps servos from being used, what to do, and their ids; the worst first.

    Args:
        named: what some servos are called, such as `servos 1 (shoulder_pan), 2 (shoulder_lift)`.
    """
    high = [i for i, one in servos.items() if one.supply_v > one.most_v + _SLACK_V]
    low = [i for i, one in servos.items() if one.supply_v < one.least_v - _SLACK_V]
    for most_v in sorted({servos[i].most_v for i in high}):  # an arm may have servos of two kinds
        some = [i for i in high if servos[i].most_v == most_v]
        volts = max(servos[i].supply_v for i in some)
        found = f"{volts:.1f} V on {named(some)} for at most {most_v:.1f} V"
        fix = "Switch the arm's power off now: it destroys them. Use a supply of at most"
        yield found, f"{fix} {most_v:.1f} V", tuple(some)
    for least_v in sorted({servos[i].least_v for i in low}):
        some = [i for i in low if servos[i].least_v == least_v]
        volts = min(servos[i].supply_v for i in some)
        found = f"{volts:.1f} V on {named(some)} for at least {least_v:.1f} V"
        fix = "Check the supply's plug and switch: a USB cable alone doesn't power servos. Use one"
        yield found, f"{fix} of at least {least_v:.1f} V with enough amperes", tuple(some)
    for servo_id, one in servos.items():
        bits = one.errors & ~_VOLTAGE if servo_id in (*high, *low) else one.errors
        if bits:
            fix = next((words for bit, words in _FIXES if bits & bit), _ELSE)
            at = f" ({one.temperature_c} °C)" if bits & _HEAT else ""
            error = describe_error(protocol, bits)
            yield f"{named([servo_id])} reports {error}{at}", fix, (servo_id,)
