"""What an arm's estimates mean: which are faults, in which words, and what they can't tell apart.

Where a limit comes from stands beside it. "Other arms" are a real Piper (SO-101 leader, 15 Hz) and
emulated OpenMANIPULATORs, which `python -m benchmarks absolute` doesn't score; what they reach is
raised by a fifth, since limits fitted to pass 95 % of 40 recordings passed 82 % of others.
"""

import itertools
import math
from collections.abc import Mapping, Sequence
from typing import Final

import numpy as np

from gaploop.core.grippers import is_grip, sides_of
from gaploop.core.messages import FloatArray
from gaploop.core.statistics import Estimate, median_interval, rate
from gaploop.core.telemetry import lost_goals
from gaploop.datasets.absolute import joint_fits
from gaploop.datasets.absolute.findings import AbsoluteReport, scaled
from gaploop.datasets.absolute.recording import MotionRecording
from gaploop.datasets.absolute.row_findings import RowTests
from gaploop.datasets.check.frames import stretches
from gaploop.datasets.columns import STATE

ANSWERS: Final = 0.95
"""A reading that goes so well with its command [correlation] answers it, in whatever unit."""
HELD: Final = 0.8
"""Of a gripper, which stops at what it holds: 0.87 in a real SO-101's fifty grasps."""
EXPLAINED: Final = 0.97
"""Share of a joint's variance that its command must explain before delay and gain are believed;
the Piper's slew-limited wrist roll reaches 0.946."""
LATE_S: Final = 0.25
"""Servo arms follow within 0.05 to 0.2 s;"""
SOON_S: Final = 0.12
"""most of them sooner: whether one that is later always was, one set doesn't tell."""
TIMED: Final = 0.995
"""Where less is explained, as of the slew-limited Piper, a delay isn't told from a speed limit."""
ALONE_S: Final = 0.012
"""A joint with no other so near in time is late on its own. OpenMANIPULATOR: joints of one servo
make are within 10 ms of another, its two makes 50 ms apart."""
ALONE_FRAMES: Final = 0.5
"""The same in frames: what sampling hides."""
PLAY_DEG: Final = 0.8
PLAY_SHARE: Final = 0.8
"""Beyond the other joints' median, and as a share of it: OpenMANIPULATORs' reach 0.9 degrees, two
thirds of it, by friction of unlike servos."""
ONE_MAKE_S: Final = 0.025
"""Joints that answer so alike have one make of servo: OpenMANIPULATORs' two are 50 ms apart."""
ALIKE_DEG: Final = 1.05
"""Joints of one make are within 0.86 degrees of each other there, raised by a fifth."""
GAIN: Final = 0.08
"""Weight that grows with reach looks like a gain of 1.07 (OpenMANIPULATOR shoulder lift)."""
OFFSET_DEG: Final = 1.5
SAG_PER_PLAY: Final = 3.0
"""A drive that friction stops short is weak, and weight holds it further off: by up to 1.3 times
its dead band beyond 1.5 degrees on OpenMANIPULATORs, doubled and raised by a fifth."""
HOLDS_DEG: Final = 0.12
HOLDS_OFFSET_DEG: Final = 0.3
"""Where every other joint rests within `HOLDS_DEG` the arm integrates its error away, and such an
offset is none of weight; a Piper rests within 0.03 degrees."""
ANOTHER_DEG: Final = 45.0
"""Neither weight nor two calibrations hold a position servo so far from its goal."""
DRIFT_DEG: Final = 1.5
STEP_DEG: Final = 2.0
QUANTUM_DEG: Final = 0.25
"""Encoders of 4096 steps a turn read 0.088 degrees (Feetech, ROBOTIS)."""
BEHIND_DEG, FINE_DEG = 5.0, 0.1
"""A joint is behind its command from here on: real ones stick and jump by 4 degrees, some time and
again. Readings come in such steps at least."""
LOSES: Final = 0.1
"""Share of episodes in which a joint with a loose plug misses goals."""
NOISE_DEG: Final = 0.1
"""One step of such an encoder to and fro is 0.04; the Piper reads 0.07 while it settles."""
RINGS: Final = 1.7
"""Times a command's trembling that an arm may tremble by it: 1.5 in the cell, between rows, too."""
FOLLOWS: Final = 0.3
"""Share of the readings' trembling at rest by which it is the command's: half and more of an arm
that a policy drives in small steps, an eighth of the Piper's with noise of 0.15 degrees."""
BLOCKED: Final = 0.25
"""Of how far a joint is from its own command: so near it is to another's, or to its own turned
round, in none of five logs of real arms, where 0.53 is the least."""
STALL_S: Final = 0.5
LIMIT_DEG: Final = 0.3
SPEED_SHARE: Final = 0.02
CLOSED: Final = 12.0
"""Per cent of a gripper's travel: what it holds keeps it open by more, as a rule."""
STALLED_PCT: Final = 20.0
STALLED_PCT_S: Final = 5.0
"""A gripper that is told to open by so much more, and opens so slowly, doesn't."""
RANGES: Final = 8.0
"""Standard deviations over which white noise ranges in some thousand readings, at most."""
LEVEL: Final = ("pan", "roll", "yaw", "base", "rotate", "waist")
"""Joints named so turn about axes that weight doesn't load much."""


GOOD: Final[Mapping[str, tuple[tuple[str, ...], str]]] = {
    "wiring": (("swapped_joints", "reversed_joint", "dead_joint"),
               "joints answer their own commands, the right way round"),
    "offset": (("offset", "drift", "zero_change"),
               "joints rest at their commands, and stay there"),
    "dead_band": (("dead_band",), "no joint's play exceeds the others'"),
    "joint_delay": (("joint_delay",), "no joint is later than the others"),
    "gain": (("gain", "mixed_units"), "joints go as far as told"),
    "readings": (("repeats", "frozen_state", "jumps", "quantum", "missing"),
                 "readings are new in each row, and fine"),
    "noise": (("noise",), "joints are quiet at rest"),
    "limits": (("clipped_joint", "speed_limit"),
               "no limit of angle or speed is met again and again"),
}  # fmt: skip
"""What is good where none of some kinds is found."""


class ArmTests(RowTests):
    """Tests of one recording's arm and its rows."""

    def __init__(self, recording: MotionRecording, report: AbsoluteReport) -> None:
        super().__init__(recording, report)
        words = [name.removesuffix(".pos") for name in recording.info.names(STATE)]
        self.unnamed = not any(is_grip(word) or not word[-1:].isdigit() for word in words)
        """Nothing says which of the joints is a gripper: they are numbered, or have no names."""
        ends = {len(self.names) - 1, *([] if len(self.names) % 2 else [len(self.names) // 2 - 1])}
        self.may_grip = ends & set(recording.arm) if self.unnamed else set[int]()
        self.played: set[int] = set()
        """Those of `done` that have play."""
        self.trembling: set[int] = set()
        """Joints that tremble at rest as their commands do."""
        self.pushed: dict[int, dict[int, float]] = {}
        """Joints that something else moved, each with episodes and how far [deg]."""
        self.too_late = False
        """No delay that is looked for is long enough: what rests may be on its way."""

    def run(self) -> None:
        """Run all tests, the strongest explanation first."""
        recording, report = self.recording, self.report
        self._missing()
        if recording.why_not:
            report.untested["the arm"] = recording.why_not
            return
        self._note("rows a second", "", "", Estimate(self.fps, self.fps, self.fps), 0.5)
        self.fits = joint_fits.fit_joints(recording)
        self.rests = [joint_fits.rests_of(recording, k) for k in range(len(self.names))]
        if self._copied():
            for test in (self._repeats, self._jumps, self._readings):
                test()
            self._rest_of_it()
            return
        self._wiring()
        self._pushed()
        self._dead()
        self._other_quantities()
        self._limits()
        self._stalled()
        self._lost_goals()
        self._repeats()
        self._jumps()
        self._left_out()
        self._speed()
        self._readings()
        self._delays()
        self._play()
        self._gain()
        self._offsets()
        self._gripper()
        self._rest_of_it()

    def _good_fits(self) -> list[int]:
        free = (k for k in self._free() if k not in self.may_grip)
        return [k for k in free if self.fits[k].explained > EXPLAINED]

    def _wiring(self) -> None:
        """Commands that another joint answers, or the same one turned round; and other units."""
        delays = [f.delay_s.value for f in self.fits if f.explained > EXPLAINED]
        delay_s = float(np.median(delays)) if delays else 0.1
        same, turned, own = joint_fits.distances(self.recording, delay_s)
        moves = [k for k in self._free() if np.diag(own)[k] > 1.5]
        fix = "Fix ids or names in the robot's configuration, then record again."
        either = np.minimum(same, turned)

        def miswired(kind: str, joints: Sequence[int], sentence: str, size: float) -> None:
            exact = Estimate(size, size, size)
            self._say(kind, joints, sentence, self.everywhere, fix, 3 * size, size=exact)
            self.done.update(joints)

        pairs = itertools.combinations(moves, 2)  # the nearest first: all of two arms may be alike
        for i, j in sorted(pairs, key=lambda p: float(either[p] + either[p[::-1]])):
            straight, crossed = (either[i, i], either[j, j]), (either[i, j], either[j, i])
            limits = (straight[1], own[j, j]), (straight[0], own[i, i])
            alike = all(c < 0.5 * min(o) for c, o in zip(crossed, limits, strict=True))
            if alike and not self.done & {i, j}:
                miswired(
                    "swapped_joints", (i, j), f"{self.names[i]} answers the commands of "
                    f"{self.names[j]}, and the other way round: own commands miss by",
                    float(max(straight)),
                )  # fmt: skip
        for i, j in itertools.permutations(moves, 2):  # where weight or a stop blocks the other one
            size = float(same[j, j])
            if same[i, j] < min(BLOCKED * size, 0.35 * own[j, j]) and not self.done & {i, j}:
                miswired(
                    "swapped_joints", (j, i), f"{self.names[j]} answers the commands of "
                    f"{self.names[i]}, not its own: these miss by", size,
                )  # fmt: skip
        for k in (k for k in moves if k not in self.done):
            least = max(0.5 * own[k, k], BLOCKED * same[k, k])
            if turned[k, k] < min(0.5 * same[k, k], least):
                text = f"{self.names[k]} turns the wrong way round: it misses its command by"
                miswired("reversed_joint", [k], text, float(same[k, k]))
        scales = [self.fits[k].gain.value for k in self._good_fits()]
        for k in self._free():  # in another unit a command may hardly move
            far = min(
                max(float(np.ptp(e.command[:, k])) for e in self.episodes), joint_fits.MOVES_DEG
            )
            if far < joint_fits.MOVES_DEG:
                r, slope = joint_fits.answers(self.episodes, k, self.fps)
                scales += [slope] if r > ANSWERS and slope * far > joint_fits.MOVES_DEG else []
        odd = [g for g in scales if not 0.5 < g < 2.0]
        if len(odd) >= 2 and len(odd) > 0.6 * len(scales):
            self._say(
                "mixed_units", None, "Commands and readings are in different units: readings "
                "change by", self.everywhere, "Write both in one unit, then record again.", 50.0,
                unit="for each unit commanded", size=median_interval(np.array(odd)),
            )  # fmt: skip
            self.done |= set(self.recording.arm)

    def _pushed(self) -> None:
        """Joints that were told to stand, and that something else moved."""
        for k in self._free():
            found = joint_fits.pushes_of(self.recording, k)
            left = tuple(e for e in self.episodes if e.index not in found)
            if found and abs(joint_fits.answers(left, k, self.fps)[0]) > ANSWERS:
                self.pushed[k] = found
                self._say(
                    "pushed", k, f"Something pushed {self.names[k]} while it was told to stand, by",
                    found, "Keep people, cables and other machines away from the arm as it works.",
                    apart="a person, a cable that pulls, another machine",
                )  # fmt: skip

    def _dead(self) -> None:
        """Joints that stand, but for a jitter, while their command moves; or the other way."""
        apart, late = self._never_met(), math.ceil(joint_fits.LATEST_S * self.fps)
        for k in self._free(arm_only=False):
            name = self.names[k]
            moves = max(5.0, 0.1 * max(float(np.ptp(e.command[:, k])) for e in self.episodes))
            moves = max(moves, 30.0) if self.recording.joints[k].is_grip else moves
            dead, idle = dict[int, float](), dict[int, float]()
            for e in self.episodes:
                asked, went = (float(np.ptp(x[:, k])) for x in (e.command, e.reading))
                # What was told in an episode's last moments may be answered after it.
                due = e.command[: max(1, len(e.command) - late), k]
                if np.ptp(due) > moves and went < max(0.5, 0.03 * asked):
                    dead[e.index] = asked
                elif went - _shakes(e.reading[:, k]) > moves and asked < max(0.5, 0.03 * went):
                    idle |= {e.index: went} if k not in apart and k not in self.pushed else {}
            r, slope = (
                joint_fits.answers(self.episodes, k, self.fps) if dead or idle else (0.0, 0.0)
            )
            if abs(r) > (HELD if self.recording.joints[k].is_grip else ANSWERS):
                idle = {}  # it changes, in another unit
                if dead and abs(slope) < 0.1:
                    dead = {}
                    self._say(
                        "mixed_units", k, f"{name} is commanded in one unit and read in another: "
                        "readings change by", self.everywhere,
                        "Write both in one unit, then record again.", 50.0,
                        unit="for each unit commanded", size=Estimate(slope, slope, slope),
                    )  # fmt: skip
                    self.done.add(k)
            for found, text, cause in (
                (dead, f"{name} doesn't move when told to:", "encoder, cable, servo, no torque"),
                (
                    idle,
                    f"{name} moves though its command never changes:",
                    "a dead leader joint, an entry that drives nothing",
                ),
            ):
                if found:
                    fix = self.report.without(list(found), self.total)
                    self._say("dead_joint", k, text, found, fix, apart=cause)
                    if 2 * len(found) > len(self.episodes):
                        self.done.add(k)

    def _never_met(self) -> set[int]:
        """Return the entries whose reading is always far from its command."""
        off = [np.abs(e.reading - e.command).min(axis=0) for e in self.episodes]
        return set(np.flatnonzero(np.min(off, axis=0) > ANOTHER_DEG).tolist())

    def _other_quantities(self) -> None:
        """Leave out joints whose command is no position, such as a hand's to open or close."""
        far, apart = list[int](), self._never_met()
        for k in self._free():
            off = [abs(r.off) for r in self.rests[k]]
            if k in apart or (len(off) >= 3 and float(np.median(off)) > ANOTHER_DEG):
                far.append(k)
        self.done.update(far)
        if far:
            who = ", ".join(self.names[k] for k in far)
            at = f"{ANOTHER_DEG:g}{self.unit or ' units'}"
            self.report.untested[who] = f"rests over {at} from its command: another quantity"

    def _limits(self) -> None:
        """Readings that stop at one value, again and again, while commands go beyond and vary."""
        for k in (k for k in self._free() if k not in self.may_grip):
            low, high = self.fits[k].limits_deg
            for limit, sign in ((low, -1), (high, 1)):
                found, total = dict[int, float](), sum(len(e.command) for e in self.episodes)
                off = [sign * r.off for r in self.rests[k]]
                short = max(0.0, -float(np.median(off))) if off else 0.0  # as everywhere
                past, holds = list[FloatArray](), 0
                for e in self.episodes:
                    away = sign * (e.command[:, k] - limit)
                    at = (np.abs(e.reading[:, k] - limit) < LIMIT_DEG) & (away > 1.0 + 1.2 * short)
                    holds += sum(b - a >= 3 for a, b in stretches(at))
                    if at.sum() >= 3:
                        past.append(away[at])
                        found[e.index] = float(away[at].max())
                if holds < 2 or (len(found) < 2 and len(self.episodes) > 1):
                    continue
                every = np.concatenate(past)
                if len(every) < max(10, 0.003 * total) or np.ptp(every) < 2.0:
                    continue
                self.limited.add(k)
                self._say(
                    "clipped_joint", k, f"{self.names[k]} stops at {limit:.3g}{self.unit} while "
                    "its command goes on beyond by", found,
                    "Widen the limit, or calibrate that joint: lerobot-calibrate",
                    apart="a limit in the driver, of calibration, an end stop"
                    + (", something that a gripper holds" if self.unnamed else ""),
                )  # fmt: skip

    def _stalled(self) -> None:
        """Stretches in which no reading changes while commands move."""
        needed, found = max(5, round(STALL_S * self.fps)), dict[int, float]()
        moving = [k for k in range(len(self.names)) if k not in self.done]
        if len(moving) < 2:
            return
        delays = [f.delay_s.value for f in self.fits if f.explained > EXPLAINED]
        late = round(max(0.0, float(np.median(delays)) if delays else SOON_S) * self.fps) + 1
        for e in self.episodes:
            same = (np.diff(e.reading, axis=0) == 0).all(axis=1)
            for a, b in stretches(same):
                if b - a < max(needed, late + 2):
                    continue  # what is commanded last it has yet to answer
                asked = np.ptp(e.command[a : b + 1 - late][:, moving], axis=0) > 5.0
                if asked.sum() >= 2:
                    found[e.index] = max(found.get(e.index, 0.0), (b - a) / self.fps)
        self._say(
            "frozen_state", None, "All readings stand still while commands move, for", found,
            self.report.without(list(found), self.total), 30.0, unit="s",
            apart="a bus or driver that hung, an arm that was held",
        )  # fmt: skip

    def _lost_goals(self) -> None:
        """A joint that stands time and again while its command moves on, then jumps after it."""
        free = self._free()
        delays_s = [d for k in free if np.isfinite(d := self.fits[k].delay_s.value)]
        if len(free) < 2 or not delays_s:
            return
        late_s = float(np.median(delays_s))
        records = []
        for e in self.episodes:
            t_s = np.arange(len(e.reading)) / self.fps
            due = np.stack([np.interp(t_s - late_s, t_s, e.command[:, k]) for k in free], 1)
            read = e.reading[:, free]
            records.append((t_s, read, due - np.median(due - read, axis=0)))
        steps = [joint_fits.quantum(np.concatenate([r[:, k] for _, r, _ in records]))
                 for k in range(len(free))]  # fmt: skip
        if lost := lost_goals(records, float(np.nanmax([FINE_DEG, *steps])), BEHIND_DEG):
            k, stood = free[lost[0]], dict[int, float]()
            for e, stands in zip(self.episodes, lost[1], strict=True):
                rows = [s.last - s.first for s in stands if s.jump > 0.0]
                stood |= {e.index: max(rows) / self.fps} if rows else {}
            if len(stood) > max(1.0, LOSES * len(self.episodes)):
                self._say(
                    "lost_goals", k, f"{self.names[k]} stands for a time though its command goes "
                    "on, then jumps after it: up to", stood,
                    "Press in the plugs of its cable at both ends.", 20.0, unit="s",
                    apart="a loose plug, a broken wire",
                )  # fmt: skip
                self.done.add(k)

    def _speed(self) -> None:
        """Readings that never exceed a speed though commands ask for more, again and again."""
        for k in self._free():
            fit = self.fits[k]
            if not np.isfinite(fit.delay_s.value):
                continue
            lag = max(0, round(fit.delay_s.value * self.fps))
            speeds, asks, where = [], [], []
            for e in (e for e in self.episodes if len(e.reading) >= lag + 10):
                v, a = (np.abs(x[3:, k] - x[:-3, k]) * self.fps / 3 for x in (e.reading, e.command))
                speeds.append(v[lag:])
                asks.append(a[: len(v) - lag])
                where.append(np.full(len(v) - lag, e.index))
            if not speeds:
                continue
            v, a, of = np.concatenate(speeds), np.concatenate(asks), np.concatenate(where)
            top = float(np.percentile(v, 99.3))
            at_top = (v > 0.93 * top) & (v < 1.07 * top)
            capped = at_top & (a > 1.12 * top)
            if top < 5.0 or capped.sum() < max(15, SPEED_SHARE * (v > 0.2 * top).sum()):
                continue
            if np.percentile(a, 99) < 1.15 * top or (v > 1.15 * top).sum() > 0.1 * capped.sum():
                continue
            # A speed that is a limit is met more often than any a bit below it.
            if at_top.sum() < 1.5 * ((v > 0.79 * top) & (v < 0.93 * top)).sum():
                continue
            found = {int(e): float(capped[of == e].mean()) for e in np.unique(of[capped])}
            self._say(
                "speed_limit", k, f"{self.names[k]} moves no faster than", found,
                "Demonstrate more slowly, or raise the servo's speed limit.", 0.1 * top,
                size=Estimate(top, 0.93 * top, 1.07 * top),
                unit=f"{self._unit_of(k)}/s though told to",
                apart="a speed setting of the servo, a weak supply",
            )  # fmt: skip
            self.done.add(k)

    def _readings(self) -> None:
        """Coarse steps and noise."""
        for k in self._free():
            values = np.concatenate([e.reading[:, k] for e in self.episodes])
            step = joint_fits.quantum(values)
            # A joint on a straight way has equal gaps, too; steps are met again and again.
            again = np.count_nonzero(np.diff(values)) > 2 * len(np.unique(np.round(values, 5)))
            if np.isfinite(step) and step > QUANTUM_DEG and np.ptp(values) > 20 * step and again:
                self._say(
                    "quantum", k, f"Readings of {self.names[k]} come in steps of",
                    self.everywhere, "Read the encoder at full resolution, then record again.",
                    2 * step, size=Estimate(step, step, step),
                )  # fmt: skip
                continue
            noise = joint_fits.by_episode(self.rests[k], lambda r: r.noise)
            if len(noise) < 2:
                continue
            size = median_interval(np.array(list(noise.values())))
            asked, explained = joint_fits.trembles(
                self.recording, k, self.rests[k], self.fits[k].delay_s.value
            )
            if size.value > NOISE_DEG and (size.value < RINGS * asked or explained > FOLLOWS):
                self.trembling.add(k)
                who = f"noise of {self.names[k]} at rest"
                self.report.untested[who] = "its commands tremble there, too"
                continue
            self._note("noise at rest", self.names[k], self._unit_of(k), size, 0.5 * NOISE_DEG)
            if size.value > NOISE_DEG:
                self._say(
                    "noise", k, f"At rest, {self.names[k]} jitters by (standard deviation)",
                    {e: v for e, v in noise.items() if v >= NOISE_DEG}, "gaploop doctor",
                    4 * size.value, size=size, apart="a noisy encoder, an arm that shakes",
                )  # fmt: skip

    def _delays(self) -> None:
        """An arm that is late, or a joint that is later than all others."""
        known = self._good_fits()
        for k in known:
            fit, name, width = self.fits[k], self.names[k], self.fits[k].play_deg
            least_ms = 1e3 * max(0.02, 0.5 / self.fps)
            self._note("delay", name, "ms", scaled(fit.delay_s, 1e3), least_ms)
            self._note("gain", name, "", fit.gain, 0.5 * GAIN)
            least = max(PLAY_DEG, 0.5 * width.value)
            self._note("dead band", name, self._unit_of(k), width, least)
        every = [
            f.delay_s.value for f in (self.fits[k] for k in self.recording.arm)
            if np.isfinite(f.delay_s.value) and f.explained > 0.6
        ]  # fmt: skip
        if every:
            size = median_interval(np.array(every))
            fix = f"Look at fps in {self.root}/meta/info.json, and whether columns are shifted."
            late_ms = scaled(size, 1e3)
            self.too_late = size.value > joint_fits.LATEST_S - 1.5 / self.fps
            if size.low > LATE_S:
                more = " at least" if self.too_late else ""
                self._say(
                    "action_lag", None, f"The arm follows its commands late, by{more}",
                    self.everywhere, fix, 20.0 * size.value, unit="ms", size=late_ms,
                    apart="a slow arm, shifted columns, a wrong fps",
                )  # fmt: skip
            elif size.value < -1.5 / self.fps and not known:
                # Somebody pushes the arm, and its policy's commands follow where it was pushed.
                self.report.untested["shifted columns"] = "no joint follows its command closely"
            elif size.value < -1.5 / self.fps:
                self._say(
                    "action_lag", None, "Readings run ahead of commands: columns are shifted by",
                    self.everywhere, fix, 50.0, unit="ms", size=late_ms,
                )  # fmt: skip
            elif size.value > SOON_S:
                after = f"{late_ms.value:.0f} ms [{late_ms.low:.0f}, {late_ms.high:.0f}]"
                self.report.untested["a late arm"] = f"it follows after {after}, as slow arms do"
            else:
                after = f"{max(0.0, late_ms.value):.0f} ms"  # readings may seem to come first
                self.report.good["action_lag"] = f"the arm follows after {after}"
        self._shifted_episodes(known)
        known = [k for k in known if self.fits[k].explained > TIMED]
        if len(known) < 5:
            self.report.untested["one joint's delay"] = "fewer than five joints follow closely"
            return
        apart = max(ALONE_S, ALONE_FRAMES / self.fps)
        for k in known:
            delay = self.fits[k].delay_s
            others = [self.fits[o].delay_s for o in known if o != k]
            earlier = [d for d in others if d.value <= delay.value]
            # Joints with other servos may all be later or earlier: this one has none beside it.
            if not earlier or min(abs(d.value - delay.value) for d in others) < apart:
                continue
            nearest = max(earlier, key=lambda d: d.value)
            if delay.low > nearest.high:
                late, low, high = (v - nearest.value for v in (delay.value, delay.low, delay.high))
                self._say(
                    "joint_delay", k, f"{self.names[k]} follows later than the other joints, by",
                    self.everywhere, "gaploop doctor  # compares the servos' settings", 40.0 * late,
                    unit="ms", size=scaled(Estimate(late, low, high), 1e3),
                    apart="a weak or slow servo, a filter on one joint",
                )  # fmt: skip
                self.done.add(k)

        self._one_arm_late(known, apart)

    def _one_arm_late(self, known: Sequence[int], apart: float) -> None:
        """Say that all of one arm of a pair is later than the other, joint by joint."""
        sides = sides_of(self.names)
        left, right = ([k for k in self.recording.arm if sides[k] == s] for s in ("left", "right"))
        if len(left) != len(right):
            return
        twins = [(i, j) for i, j in zip(left, right, strict=True) if i in known and j in known]
        for late, pairs in (("left", twins), ("right", [(j, i) for i, j in twins])):
            delays = [(self.fits[i].delay_s, self.fits[j].delay_s) for i, j in pairs]
            if len(pairs) < 3 or not all(
                a.value - b.value > apart and a.low > b.high for a, b in delays
            ):
                continue
            by = median_interval(np.array([a.value - b.value for a, b in delays]))
            self._say(
                "joint_delay", [i for i, _ in pairs], f"All joints of the {late} arm follow later "
                "than the other arm's, by", self.everywhere,
                "gaploop doctor  # compares the servos' settings", 40.0 * by.value, unit="ms",
                size=scaled(by, 1e3), apart="its bus or program is slow, weak or slow servos",
            )  # fmt: skip

    def _play(self) -> None:
        known = self._good_fits()
        for k in known:
            width = self.fits[k].play_deg
            others = [self.fits[o].play_deg.value for o in known if o != k]
            usual = float(np.median(others)) if len(others) >= 2 else 0.0
            limit = max(PLAY_DEG, PLAY_SHARE * usual)
            delay_s = self.fits[k].delay_s.value
            alike = [
                self.fits[o].play_deg.value for o in known
                if o != k and abs(self.fits[o].delay_s.value - delay_s) < ONE_MAKE_S
            ]  # fmt: skip
            if alike:
                usual = float(np.median(alike))
                limit = float(np.clip(usual, PLAY_DEG, ALIKE_DEG))
            if width.value - usual > limit and width.low - usual > 0.3 * limit:
                self._say(
                    "dead_band", k, f"At reversals {self.names[k]} answers only after",
                    self.everywhere,
                    "Turn the joint by hand: what clicks is play (tighten horn and gears), "
                    "what drags is friction (raise the servo's P).",
                    size=width, apart="play before the encoder, friction of a weak drive",
                    to_mend=False,
                )  # fmt: skip
                self.done.add(k)
                self.played.add(k)

    def _gain(self) -> None:
        for k in self._good_fits():
            gain, name = self.fits[k].gain, self.names[k]
            away = abs(gain.value - 1)
            nearest = min(abs(gain.low - 1), abs(gain.high - 1))
            if away > GAIN and nearest > 0.6 * GAIN and (gain.low - 1) * (gain.high - 1) > 0:
                far = max(float(np.ptp(e.command[:, k])) for e in self.episodes)
                apart = "other units or ranges in calibration" if _is_level(name) else (
                    "weight that grows with reach, another range in calibration")  # fmt: skip
                self._say(
                    "gain", k, f"{name} goes {'further' if gain.value > 1 else 'less far'} than "
                    "told: times its command", self.everywhere,
                    "Calibrate leader and follower over the same range.", away * far / 2,
                    unit="", size=gain, apart=apart,
                )  # fmt: skip
                self.done.add(k)

    def _offsets(self) -> None:
        """Readings off a resting command: steady, from some episode on, or growing."""
        plays = [self.fits[k].play_deg.value for k in self._good_fits()]
        weak = float(np.median(plays)) if plays else 0.0
        offsets = dict[int, tuple[Estimate, float]]()
        for k in self.recording.arm:
            low, high = self.fits[k].limits_deg
            own = [
                r for r in self.rests[k]
                if low + LIMIT_DEG < r.command + r.off < high - LIMIT_DEG
                or high - low < joint_fits.MOVES_DEG  # it moves too little to meet a stop
            ]  # fmt: skip
            self.rests[k] = own or self.rests[k]
            if len(own) >= 3:
                offsets[k] = joint_fits.rest_offset(own)
                size = offsets[k][0]  # what weight does to it differs from pose to pose
                least = max(0.5, abs(size.value) / 6)
                self._note("offset", self.names[k], self._unit_of(k), size, least)
        if not offsets or self.too_late:
            why = "the arm arrives too late" if self.too_late else "commands never rest"
            self.report.untested["offsets at rest"] = why
            return
        for k, (size, spread) in offsets.items():
            if k in self.done and k not in self.played:
                continue
            if self._moves_off(k) or k in self.done:  # play explains an offset that stays
                continue
            others = [abs(offsets[o][0].value) for o in offsets if o != k]
            name = self.names[k]
            limit = OFFSET_DEG + (0.5 if _is_level(name) else SAG_PER_PLAY) * weak
            if len(others) >= 4 and max(others) < HOLDS_DEG:
                limit = HOLDS_OFFSET_DEG
            sure = abs(size.value) > limit and min(abs(size.low), abs(size.high)) > 0.6 * limit
            if not sure or size.low * size.high < 0:
                continue
            steady = spread < max(0.3, 0.2 * abs(size.value))
            if k in self.may_grip and not steady:
                continue  # it is off where it holds something
            text = f"At rest {name} stands off its command"
            apart = "leader and follower calibrated apart, a slipped horn"
            if steady:
                apart += "" if _is_level(name) else ", weight"
                joint = self.recording.joints[k]
                feature = self.recording.info.names("observation.state")[joint.state]
                raw = size.value / joint.scale
                fix = f"gaploop edit correct {self.root} "
                fix += f"--episodes='0:{max(self.recording.lengths) + 1}' "
                fix += f"--subtract='{{\"{feature}\": {raw:.3g}}}' --yes"
                fix += "  # and calibrate leader and follower in one pose"
            else:
                text += ", differently from pose to pose"
                fix = "Hold the arm stretched out, then folded: what changes is weight."
                apart = "weight on a weak drive, play, " + apart
            found = joint_fits.by_episode(self.rests[k], lambda r: r.off)
            shown = {e: v for e, v in found.items() if abs(v) >= 0.6 * limit}
            if k in self.may_grip:
                apart += ", something that a gripper holds"
                fix = f"Name the joints in {self.root}/meta/info.json, then check again."
            self._say(
                "offset", k, f"{text}, by", shown, fix, size=size, apart=apart, to_mend=steady
            )

    def _moves_off(self, k: int) -> bool:
        """Say whether a rest offset changes over the episodes, and tell so."""
        rests = self.rests[k]
        half = joint_fits.friction(rests)
        found = joint_fits.by_episode(rests, lambda r: r.off - half * r.side)
        if len(found) < 5:
            return False
        x, y = np.array(list(found), dtype=float), np.array(list(found.values()))
        i, j = np.triu_indices(len(x), 1)
        slope = float(np.median((y[j] - y[i]) / (x[j] - x[i])))
        total = slope * float(x[-1] - x[0])
        tau = float(np.mean(np.sign(y[j] - y[i])))
        first, step, clear = joint_fits.change_point(y)
        left = y - np.where(np.arange(len(y)) < first, np.median(y[:first] if first else y),
                            np.median(y[first:]))  # fmt: skip
        sloped = y - slope * (x - x.mean())
        stepped = np.median(np.abs(left)) < 0.6 * np.median(np.abs(sloped - np.median(sloped)))
        name, spread = self.names[k], float(1.4826 * np.median(np.abs(np.diff(y)))) / np.sqrt(2)
        noise = 1.96 * spread / np.sqrt(max(len(y) / 4, 1.0))
        if abs(step) > STEP_DEG and clear > 5.0 and stepped:
            after = [int(e) for e in x[first:]]
            self._say(
                "zero_change", k, f"From episode {after[0]} on, {name} stands elsewhere to its "
                "command, by", after, self.report.without(after, self.total), abs(step) + 2,
                size=Estimate(step, step - noise, step + noise), worst=after[0],
                apart="a new calibration, a slipped horn, another load",
            )  # fmt: skip
            return True
        if abs(total) > DRIFT_DEG and abs(tau) > 0.6 and abs(total) > 2 * spread:
            self._say(
                "drift", k, f"{name} drifts off its command from first to last episode, by",
                {e: v for e, v in found.items() if abs(v) >= abs(total) / 4},
                "Tighten the horn, calibrate again, record fewer episodes at a time.",
                size=Estimate(total, total - noise, total + noise),
                apart="a slipping horn, heat, a loosening screw",
            )  # fmt: skip
            return True
        return False

    def _gripper(self) -> None:
        """Closings that end closed where most end on something, and grippers that don't close."""
        for k in (k for k, j in enumerate(self.recording.joints) if j.is_grip):
            if k in self.done:
                continue
            seen = np.concatenate([e.reading[:, k] for e in self.episodes])
            asked = np.concatenate([e.command[:, k] for e in self.episodes])
            if np.ptp(asked) < 20.0:
                continue
            sign = joint_fits.closing(self.recording, k)
            end = float((sign * seen).min())
            gaps, stalls = dict[int, float](), dict[int, float]()
            stops = dict[int, list[float]]()
            for e in self.episodes:
                u, y = sign * e.command[:, k], sign * e.reading[:, k]
                closing = u < (sign * asked).min() + CLOSED
                held = [(a, b) for a, b in stretches(closing) if a and b - a >= 0.3 * self.fps]
                if held:
                    gaps[e.index] = float(max(np.median(y[a:b]) for a, b in held) - end)
                quiet = np.abs(np.diff(y, prepend=y[:1])) * self.fps < STALLED_PCT_S
                rows = max(1, round(0.3 * self.fps))  # over so many, noise of readings is none
                mean = np.convolve(np.pad(y, rows // 2, "edge"), np.ones(rows) / rows, "same")
                mean = mean[rows // 2 : rows // 2 + len(y)]
                holds = np.abs(np.diff(mean, prepend=mean[:1])) * self.fps < STALLED_PCT_S
                stops[e.index] = [  # short of a command to close further, loosely as that may be
                    float(np.median(y[a:b]) - end)
                    for a, b in stretches(holds & (y - u > CLOSED / 2)) if b - a >= rows
                ]  # fmt: skip
                for a, b in stretches(quiet & (u - y > STALLED_PCT)):
                    if b - a >= STALL_S * self.fps:
                        stalls[e.index] = max(stalls.get(e.index, 0.0), (b - a) / self.fps)
            if stalls and 2 * len(stalls) < len(self.episodes):
                self._say(
                    "stalled_gripper", k, f"{self.names[k]} is told to open and stands still, for",
                    stalls, self.report.without(list(stalls), self.total), 9.0, unit="s",
                    apart="an overload that tripped, jaws that jam, a cable",
                )  # fmt: skip
            values = np.array(list(gaps.values()))
            if len(values) < 8 or np.median(values) < CLOSED:
                continue
            usual = float(np.median(values))
            empty = [
                e for e, gap in gaps.items()
                if gap < 0.25 * usual and not any(abs(s - usual) < 0.5 * usual for s in stops[e])
            ]  # fmt: skip
            if empty and len(empty) <= 0.4 * len(values):
                self._say(
                    "empty_grasp", k, f"{self.names[k]} closes on nothing, where it mostly closes "
                    "on something:", empty, self.report.without(empty, self.total), 8.0,
                    unit="% of those that close it", worst=empty[0],
                    size=scaled(rate(len(empty), len(values)), 100),
                    apart="a missed object, a thinner object",
                )  # fmt: skip

    def _rest_of_it(self) -> None:
        """Name what was found good, and what these columns can't show."""
        report, told = self.report, {f.kind for f in self.report.findings}
        fitted = [k for k in self.recording.arm if self.fits[k].explained > 0.0]
        closed = set() if fitted else set(GOOD) - {"offset"}  # what shows in motion
        closed |= {"offset"} if self.done >= {*self.recording.arm} else set()
        closed |= {"offset"} if "offsets at rest" in report.untested else set()
        closed |= {"noise"} if self.trembling else set()
        if "how the arm answers" in report.untested:
            closed |= set(GOOD) - {"readings", "noise"}
        closed |= {"joint_delay"} if "one joint's delay" in report.untested else set()
        for name, (kinds, text) in GOOD.items():
            if not told & set(kinds) and name not in closed:
                report.good[name] = text
        explained = {*fitted, *self.done}
        still = [self.names[k] for k in self.recording.arm if k not in explained]
        if still:
            who = ", ".join(still[:4]) + (f" and {len(still) - 4} more" if len(still) > 4 else "")
            least = f"{joint_fits.MOVES_DEG:g}{self.unit or ' units'}"
            report.untested[who] = f"commands cover less than {least}"
        if self.may_grip:
            who = " and ".join(self.names[k] for k in sorted(self.may_grip))
            why = f"it may be a gripper: name the joints in {self.root}/meta/info.json"
            report.untested[f"delay, play, gain, limits of {who}"] = why
        report.untested["a wrong homing offset"] = "command and reading shift alike"
        report.untested["play behind the encoder"] = "readings don't show it"


def _shakes(values: FloatArray) -> float:
    """Return how far white noise makes readings range, shape (n,), by how they turn back."""
    if len(values) < 3:
        return 0.0
    return RANGES * float(np.median(np.abs(np.diff(values, 2)))) / (0.6745 * math.sqrt(6.0))


def _is_level(name: str) -> bool:
    return any(word in name.lower() for word in LEVEL)
