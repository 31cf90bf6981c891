"""What trips the safety filter, watched on every turn before any command goes out, and in words."""

import math
from collections.abc import Iterable, Sequence
from typing import Final

from gaploop.core.grippers import sides_of
from gaploop.core.messages import (
    NO_REPLY,
    REBOOTED,
    FollowerState,
    LeaderSample,
    SafetyReason,
)
from gaploop.core.station import SafetyLimits
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
SUPPLY: Final = 0x01
"""Bit of either maker's error byte: the supply voltage is wrong, of all servos at once."""
HOT: Final = 0x04
"""Another one: the servo finds itself too hot."""
OWN_ERRORS: Final[dict[int, tuple[str, str]]] = {
    REBOOTED: ("a servo lost power or torque", "check its cable and the power supply"),
    SUPPLY: ("the supply voltage is out of range", "check the power supply and its plugs"),
    HOT: (
        "a servo says that it is too hot",
        "let it cool for some minutes, cut its power for 5 s",
    ),
    0x20: ("a servo is overloaded", "free its joint, cut its power for 5 s"),
}
"""Status bits that mean the same to either maker: what they say, and what to do."""
GONE: Final = SafetyReason.LOST_SERVO | SafetyReason.STALE_LEADER
"""After a trip by these the devices are connected anew: a port whose cable was pulled is another
one when it is back, and a servo that lost power has forgotten its settings."""


def errors_of(status: Iterable[int]) -> int:
    """Return the status bits of servos together, as far as they say why an arm tripped.

    A servo that reports an error of its own has let go because of it: it didn't lose its power.
    """
    own, found = ~(NO_REPLY | REBOOTED | SUPPLY), 0
    for bits in status:
        found |= bits & ~REBOOTED if bits & own else bits
    return found


def say_reasons(reasons: SafetyReason, errors: int = 0) -> str:
    """Return every reason in words, joined by semicolons; `errors` are the servos' status bits."""
    return "; ".join(_chosen(WHAT, reasons, errors, 0))


def say_to_do(reasons: SafetyReason, where: str = "", errors: int = 0) -> str:
    """Return what to do about a trip; `where` is host and port of a leader elsewhere, or ""."""
    to_do = TO_DO
    if where:
        link = f"check the link to {where}, and that gaploop serve runs there"
        to_do = {**TO_DO, SafetyReason.STALE_LEADER: link}
    return "; ".join(_chosen(to_do, reasons, errors, 1))


def _chosen(
    words: dict[SafetyReason, str], reasons: SafetyReason, errors: int, which: int
) -> list[str]:
    """Return the words for each reason; servos' errors by their bits, where all are known."""
    known = [says[which] for bit, says in OWN_ERRORS.items() if errors & bit]
    if errors & ~(NO_REPLY | sum(OWN_ERRORS)):
        known = []
    chosen: list[str] = []
    for reason in reasons:
        if reason is SafetyReason.HARDWARE_ERROR and known:
            chosen += known
        elif reason is SafetyReason.OVER_TEMPERATURE and known and errors & HOT:
            continue  # the servo has said so itself
        elif reason in words:
            chosen.append(words[reason])
    return chosen


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


def say_trip(reason: SafetyReason, joints: tuple[str, ...], errors: int = 0) -> str:
    """Return why the filter tripped, which joints show it, and what to do, in one line."""
    to_do = say_to_do(reason, errors=errors) or "see to it"
    return f"{say_reasons(reason, errors)}{say_joints(joints)}. To go on: {to_do}."


def say_joints(joints: tuple[str, ...]) -> str:
    """Return which joints show why the filter tripped, in brackets; "" where none does."""
    if not joints:
        return ""
    if len(joints) < MANY:
        return f" ({', '.join(joints)})"
    sides = {*sides_of(joints)}
    one = f"{sides.pop()} arm" if len(sides) == 1 else "arm"
    return f" (the whole {one.strip()})"


LONGEST_LOOK_S: Final = 0.1
"""A motor isn't known to have pushed between two looks that are further apart than this [s]: on a
busy machine half a second is two looks, and an emulated arm stood still meanwhile."""
WAY_RAD: Final = 0.03
"""A joint that comes this much nearer to its goal within `following_s` is under way [rad]."""
IDLE_A: Final = 0.06
IDLE_PCT: Final = 6.0
"""A motor that draws less doesn't try: held 0.15 rad from its goal, one draws half an ampere at the
least gain in use (STS3215 with P 4; the XL servos' gains give more); without torque it draws what
its electronics take [A; % of stall where only load is reported]."""
FAR_RAD: Final = 1.0
FAR_S: Final = 1.0
"""A joint this far from its goal [rad] that comes no nearer for this long [s] trips whatever its
motor draws: nobody pushes through 57° for so long on purpose. A gripper does, on what it holds."""
DEAF_S: Final = 0.05
"""An arm of which nothing at all was heard for so long isn't driven on blindly: it holds [s]."""


class TripWatch:
    """Says what is wrong with leader and arm; joints in `grips` rightly don't reach their goals."""

    def __init__(self, limits: SafetyLimits, n_joints: int, grips: Sequence[int] = ()) -> None:
        self._limits = limits
        self._shape = (n_joints,)
        self._estop = False
        self._stalled = _Lasting(n_joints)
        self._silent = _Lasting(n_joints)
        self._following = _Following(limits, n_joints, grips)
        self._heard_s = math.nan
        self._watched_s = 0.0
        """Time that passed, a look counting for `LONGEST_LOOK_S` at most [s]."""
        self.ill = frozenset[int]()
        """The one servo that is too hot, or reports an error of its own."""
        self.is_deaf = False
        """Nothing has been heard of the arm for `DEAF_S`."""
        self.lets_go = False
        """Servos can't be relied on: some restarted, or several report errors of their own."""

    def estop(self) -> None:
        """Trip at the next turn. Safe to call from a signal handler or another thread."""
        self._estop = True

    def clear(self) -> None:
        """Forget an e-stop and what has lasted so far."""
        self._estop = self.lets_go = False
        self.ill = frozenset()
        self.reset()

    def reset(self) -> None:
        """Forget what has lasted so far: the loop didn't watch for a while."""
        self._stalled.forget()
        self._silent.forget()
        self._following.forget()
        self._heard_s = math.nan

    def cause(
        self, sample: LeaderSample, state: FollowerState, now_s: float, sent_rad: Sequence[float]
    ) -> SafetyReason:
        """Return what is wrong at `now_s` [s], or NONE; `sent_rad` are the follower's goals."""
        limits = self._limits
        cause = SafetyReason.ESTOP if self._estop else SafetyReason.NONE
        # Written so that NaN, and a time that lies ahead, count as stale.
        if not -limits.stale_leader_s <= now_s - sample.t_s <= limits.stale_leader_s:
            cause |= SafetyReason.STALE_LEADER
        parts = (
            state.status, state.position_rad, state.current_a, state.load_pct, state.temperature_c
        )  # fmt: skip
        is_whole = all(part.shape == self._shape for part in parts)
        if not is_whole or state.status.dtype.kind not in "iu":  # a torn report: a broken device
            self.lets_go = True
            return cause | SafetyReason.HARDWARE_ERROR
        status = state.status.tolist()
        self.is_deaf = False
        faulty = frozenset[int]()
        if any(status):
            if any(bits & ~NO_REPLY for bits in status):
                cause |= SafetyReason.HARDWARE_ERROR
                own = ~(NO_REPLY | REBOOTED | SUPPLY)
                faulty = frozenset(k for k, bits in enumerate(status) if bits & own)
                # One that reports an error has shut itself down: it didn't restart.
                self.lets_go |= any(bits & REBOOTED and not bits & own for bits in status)
            silent = [bool(bits & NO_REPLY) for bits in status]
            heard_s = now_s if math.isnan(self._heard_s) else self._heard_s
            if self._silent.longer_than(limits.lost_servo_s, silent, now_s, heard_s):
                cause |= SafetyReason.LOST_SERVO
            self.is_deaf = self._silent.all_for(DEAF_S, now_s)
        else:
            self._silent.forget()
        if not math.isnan(self._heard_s):
            self._watched_s += min(now_s - self._heard_s, LONGEST_LOOK_S)
        self._heard_s, watched_s = now_s, self._watched_s
        # As plain numbers: on six of them, from cold caches, array arithmetic costs far more.
        hot = [k for k, c in enumerate(state.temperature_c.tolist()) if c > limits.temperature_c]
        if hot:
            cause |= SafetyReason.OVER_TEMPERATURE
        if faulty or hot:
            # Several that are only hot have power left to be lowered with; the first stays ill.
            self.lets_go |= len(self.ill | faulty) > 1
            if not self.ill and len(faulty.union(hot)) == 1:
                self.ill = faulty.union(hot)
        current_a, load_pct = state.current_a.tolist(), state.load_pct.tolist()
        most_a, most_pct = limits.stall_current_a, limits.stall_load_pct
        # By the load where the current isn't known; None, as in a turn that a servo missed, where
        # neither is: it may still push.
        pushes = [
            abs(amps) > most_a if amps == amps else (abs(load) > most_pct if load == load else None)
            for amps, load in zip(current_a, load_pct, strict=True)
        ]
        if self._stalled.longer_than(limits.stall_s, pushes, watched_s, watched_s):
            cause |= SafetyReason.STALL
        if self._following.fails(sent_rad, state, current_a, load_pct, watched_s):
            cause |= SafetyReason.NOT_FOLLOWING
        return cause


class _Lasting:
    """Since when something has been so, joint by joint."""

    def __init__(self, n_joints: int) -> None:
        self._n_joints = n_joints
        self.forget()

    def forget(self) -> None:
        self._since_s: list[float | None] = [None] * self._n_joints

    def all_for(self, long_s: float, now_s: float) -> bool:
        """Say whether every joint has been so for `long_s` [s]."""
        return all(since_s is not None and now_s - since_s >= long_s for since_s in self._since_s)

    def longer_than(
        self, long_s: float, is_so: Sequence[bool | None], now_s: float, began_s: float
    ) -> bool:
        """Say whether any joint has been so for `long_s` [s]; what is new began at `began_s`.

        None, where nothing is known, changes nothing.
        """
        self._since_s = [
            since_s if so is None else ((began_s if since_s is None else since_s) if so else None)
            for so, since_s in zip(is_so, self._since_s, strict=True)
        ]
        return any(since_s is not None and now_s - since_s >= long_s for since_s in self._since_s)


class _Following:
    """Notices joints that don't go where they are sent: limp, stuck, or somebody else's.

    How far behind a joint may be isn't asked of one that moves: a fast motion, a weight or a slow
    servo leave it behind by any amount, yet it comes nearer. One that comes no nearer and draws
    nothing isn't trying. One that comes no nearer and pushes has met something; that is ordinary
    contact, up to `FAR_RAD`.
    """

    def __init__(self, limits: SafetyLimits, n_joints: int, grips: Sequence[int]) -> None:
        self._off_rad, self._long_s = limits.following_rad, limits.following_s
        self._far_s = max(FAR_S, limits.following_s)
        self._grips = frozenset(grips)
        self._n_joints = n_joints
        self.forget()

    def forget(self) -> None:
        self._behind: list[tuple[float, float, float] | None] = [None] * self._n_joints
        """For each joint that is behind: since when, since when idle too, and where it then was."""

    def fails(
        self,
        sent_rad: Sequence[float],
        state: FollowerState,
        current_a: list[float],
        load_pct: list[float],
        now_s: float,
    ) -> bool:
        """Say whether any joint doesn't follow."""
        q_rad, off_rad = state.position_rad.tolist(), self._off_rad
        for sent, q in zip(sent_rad, q_rad, strict=True):
            if not -off_rad <= sent - q <= off_rad:
                break
        else:
            self.forget()
            return False
        status, behind, fails = state.status.tolist(), self._behind, False
        for k, (sent, q) in enumerate(zip(sent_rad, q_rad, strict=True)):
            error = sent - q
            if status[k] & NO_REPLY or error != error:
                continue  # where it is isn't known
            if abs(error) <= off_rad:
                behind[k] = None
                continue
            effort, idle = current_a[k], IDLE_A
            if effort != effort:
                effort, idle = load_pct[k], IDLE_PCT
            since_s, idle_s, from_rad = behind[k] or (now_s, now_s, q)
            way = q - from_rad if error > 0 else from_rad - q
            if way > WAY_RAD:
                since_s = idle_s = now_s
                from_rad = q
            if not abs(effort) < idle:  # it tries, or doesn't tell
                idle_s = now_s
            behind[k] = since_s, idle_s, from_rad
            fails |= now_s - idle_s >= self._long_s
            is_far = abs(error) > FAR_RAD and k not in self._grips
            fails |= is_far and now_s - since_s >= self._far_s
        return fails
