"""Safety reasons and servo status bits in words, with what a person does about them."""

from __future__ import annotations

from typing import Final

from gaploop.core.messages import NO_REPLY, REBOOTED, SafetyReason
from gaploop.teleop.servos.registers import Protocol, describe_error

WHAT: Final[dict[SafetyReason, str]] = {
    SafetyReason.NON_FINITE: "the leader asked for NaN or infinity",
    SafetyReason.JOINT_LIMIT: "asked beyond a joint's end",
    SafetyReason.VELOCITY: "asked faster than the velocity limit",
    SafetyReason.ACCELERATION: "asked to speed up faster than the limit",
    SafetyReason.WORKSPACE: "asked outside the workspace box",
    SafetyReason.STALL: "a motor pushed against something",
    SafetyReason.STALE_LEADER: "the leader stopped answering",
    SafetyReason.HARDWARE_ERROR: "a servo reports an error",
    SafetyReason.OVER_TEMPERATURE: "a motor is too hot",
    SafetyReason.ESTOP: "emergency stop",
    SafetyReason.LOST_SERVO: "a servo stopped answering",
    SafetyReason.LEADER_JUMP: "the leader jumped; the arm comes slowly to its new pose",
    SafetyReason.NOT_FOLLOWING: "a joint doesn't go where it is sent",
    SafetyReason.RELATIVE_TARGET: "asked further from the arm than max_relative_target",
}
"""What each reason means."""

TO_DO: Final[dict[SafetyReason, str]] = {
    SafetyReason.STALL: "free the arm, bring the leader to the follower's pose",
    SafetyReason.STALE_LEADER: "check the leader's cable and power, or the link to it",
    SafetyReason.HARDWARE_ERROR: "see the servo's status; fix its cause, cut its power for 5 s",
    SafetyReason.OVER_TEMPERATURE: "let it cool for some minutes",
    SafetyReason.ESTOP: "make sure that nobody is in the arm's way",
    SafetyReason.LOST_SERVO: "check that servo's cable and the power supply",
    SafetyReason.NOT_FOLLOWING: "see what holds the joint; check its servo's cable and power",
}
"""What to do after a trip before it is cleared."""
GONE: Final = SafetyReason.LOST_SERVO | SafetyReason.STALE_LEADER
"""After a trip by these the devices are connected anew: a port whose cable was pulled is another
one when it is back, and a servo that lost power has forgotten its settings."""


def say_reasons(reasons: SafetyReason) -> str:
    """Return every reason in words, joined by semicolons."""
    return "; ".join(WHAT[reason] for reason in reasons if reason in WHAT)


def say_to_do(reasons: SafetyReason, where: str = "") -> str:
    """Return what to do about a trip; `where` is host and port of a leader elsewhere, or ""."""
    to_do = TO_DO
    if where:
        link = f"check the link to {where}, and that gaploop serve runs there"
        to_do = {**TO_DO, SafetyReason.STALE_LEADER: link}
    return "; ".join(to_do[reason] for reason in reasons if reason in to_do)


def say_status(bits: int, protocol: str = "") -> str:
    """Return a servo's status bits in words, "" where all is well; by number without a protocol."""
    if bits & NO_REPLY:
        return "silent"
    words = ["lost power or torque"] if bits & REBOOTED else []
    bits &= ~REBOOTED
    if bits and protocol in list(Protocol):
        words.append(describe_error(Protocol(protocol), bits))
    elif bits:
        words += [f"bit {n}" for n in range(bits.bit_length()) if bits >> n & 1]
    return ", ".join(words)


MANY: Final = 6
"""More joints than a servo or two: the whole arm is meant."""


def say_trip(reason: SafetyReason, joints: tuple[str, ...]) -> str:
    """Return why the filter tripped, which joints show it, and what to do, in one line."""
    to_do = say_to_do(reason) or "see to it"
    return f"{say_reasons(reason)}{say_joints(joints)}. To go on: {to_do}."


def say_joints(joints: tuple[str, ...]) -> str:
    """Return which joints show why the filter tripped, in brackets; "" where none does."""
    if not joints:
        return ""
    return " (the whole arm)" if len(joints) >= MANY else f" ({', '.join(joints)})"
