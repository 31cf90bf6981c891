"""What rows show by themselves, of whatever arm: missing, copied, repeated, left out, shifted.

And how any test of a recording's motion says what it found.
"""

import shlex
from collections.abc import Mapping, Sequence
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from gaploop.core.messages import FloatArray
from gaploop.core.statistics import Estimate, rate
from gaploop.datasets.absolute import joint_fits
from gaploop.datasets.absolute.findings import FEWEST, AbsoluteReport, scaled
from gaploop.datasets.absolute.recording import Episode, MotionRecording
from gaploop.datasets.check.frames import stretches

SAME: Final = 0.99
MOST_ROWS: Final = 3
"""Commands that are readings of so few rows later, in such a share of rows, were made of them."""
CLEARLY: Final = 3.0
"""Times what episodes differ by among themselves: so far apart are two groups of them."""
ROWS_REPEAT: Final = 0.005
JOINT_REPEATS: Final = 0.025
MAKES_UP: Final = 1.5
"""Rows' way in a reading after one that wasn't read: two, less what a joint's pace varies."""
STICKS: Final = 0.3
"""A gripper sticks and slips by itself: OpenMANIPULATORs' repeat 4 % of rows on their way."""
JUMP_DEG: Final = 10.0
"""No joint moves so far and back within two frames: 300 degrees a second to and fro."""
SENT_JUMP_DEG: Final = 30.0
"""Nor does a hand, or a policy, send one so far."""
LEAPS: Final = 4.0
AROUND: Final = 3
"""So many times the pace of so many rows before and after is further than an arm goes at once."""


class RowTests:
    """Tests of one recording's rows, each adding to its report; what one explains others leave."""

    def __init__(self, recording: MotionRecording, report: AbsoluteReport) -> None:
        self.recording, self.report = recording, report
        self.episodes, self.total = recording.episodes, len(recording.lengths)
        self.everywhere = [e.index for e in recording.episodes]
        self.fps, self.unit = recording.info.fps, recording.unit
        self.names = [j.name for j in recording.joints]
        self.root = shlex.quote(str(recording.info.root))
        self.done: set[int] = set()
        """Joints whose behaviour is explained; their other figures would be echoes of it."""
        self.limited: set[int] = set()
        """Joints that stop at a limit again and again."""

    # --- what is told ------------------------------------------------------------------------

    def _say(
        self,
        kind: str,
        joint: int | Sequence[int] | None,
        sentence: str,
        found: Mapping[int, float] | Sequence[int],
        command: str,
        cost_deg: float | None = None,
        **more: Any,
    ) -> None:
        """Add a finding about one joint, several, or the whole arm; see `AbsoluteReport.add`."""
        joints = [joint] if isinstance(joint, int) else joint or []
        more.setdefault("unit", self._unit_of(joints[0]) if joints else "")
        about = ", ".join(self.names[k] for k in joints)
        self.report.add(kind, about, sentence, found, len(self.episodes), command, cost_deg, **more)

    def _note(self, what: str, about: str, unit: str, size: Estimate, least: float) -> None:
        if len(self.episodes) >= FEWEST:
            self.report.note(what, about, unit, size, least)

    def _unit_of(self, joint: int) -> str:
        return "%" if self.recording.joints[joint].is_grip else (self.unit or "units")

    def _free(self, *, arm_only: bool = True) -> list[int]:
        """Return the joints that nothing explains yet, and that are no gripper."""
        own = self.recording.arm if arm_only else range(len(self.names))
        return [k for k in own if k not in self.done]

    # --- tests ---------------------------------------------------------------------------------

    def _missing(self) -> None:
        """Rows that hold no number."""
        missing = self.recording.missing_rows
        if not missing:
            return
        shares = {e: 100.0 * n / self.recording.lengths[e] for e, n in missing.items()}
        who, fix = " and ".join(self.recording.missing_in), f"gaploop check {self.root} --fix"
        fix += " --drop=true  # leaves these episodes out"
        if len(missing) == self.total:
            fix = self.report.without(list(missing), self.total)
        self.report.add(
            "missing", "", f"Missing, NaN or infinite: {who}, in", shares, self.total, fix,
            100.0, unit="% of rows", apart="an encoder or cable, a driver that gave up",
        )  # fmt: skip

    def _copied(self) -> bool:
        """Commands that are a copy of readings: they tell nothing of how the arm answers."""
        rows = self._copied_from()
        if rows is None:
            return False
        which = "the readings of their own rows" if not rows else f"readings {rows} rows later"
        which = "the next row's readings" if rows == 1 else which
        self.report.untested["how the arm answers"] = f"its commands are a copy of {which}"
        if not rows:
            self._say(
                "action_lag", None, "Commands are a copy of their own rows' readings: a policy "
                "that learns them stays where it is", self.everywhere,
                "Record what was commanded, or take the next row's state as the action.", 50.0,
            )  # fmt: skip
        return True

    def _copied_from(self) -> int | None:
        """Return by how many rows commands are later readings, number by number; None if not."""
        for rows in range(MOST_ROWS + 1):
            long = [e for e in self.episodes if len(e.command) > MOST_ROWS]
            pairs = [(e.command[: len(e.command) - rows], e.reading[rows:]) for e in long]
            whole = [np.isclose(u, y, rtol=1e-5, atol=1e-5).all(axis=1) for u, y in pairs]
            moves = [np.ptp(y, axis=0).max(initial=0.0) > joint_fits.MOVES_DEG for _, y in pairs]
            if any(moves) and np.mean(np.concatenate(whole)) > SAME:
                return rows
        return None

    def _on_the_way(self, episode: Episode, k: int) -> NDArray[np.bool_]:
        """Say where a reading moves by more than its own steps before and after, shape (n,).

        On both sides, and the same way: an arm that is about to move, or turns round, repeats its
        readings rightly. Over six rows: over fewer, rows at which a slow bus has news would be left
        out more often than others.
        """
        values = episode.reading[:, k]
        step = joint_fits.quantum(values)
        least = max(12 * step, 0.6) if np.isfinite(step) else 0.6
        far = np.zeros(len(values), dtype=bool)
        went = values[6:] - values[:-6]
        way = np.sign(went) * (np.abs(went) > least)
        far[6:-6] = way[:-6] * way[6:] > 0
        return far

    def _repeats(self) -> None:
        """Readings that repeat while the joint is on its way: of all joints, or of some."""
        unread, moving, whole = list[NDArray[np.bool_]](), list[NDArray[np.bool_]](), list[int]()
        doubled = 0
        for e in self.episodes:
            joints = range(len(self.names))
            moving.append(np.stack([self._on_the_way(e, k) for k in joints], axis=1))
            unread.append(
                moving[-1] & np.stack([_not_read(e.reading[:, k]) for k in joints], axis=1)
            )
            same = np.diff(e.reading, axis=0, prepend=np.nan) == 0
            again = same.all(axis=1) & unread[-1].any(axis=1)
            whole.append(int(again.sum()))
            told = np.diff(e.command, axis=0, prepend=np.nan) == 0
            doubled += int((again & told.all(axis=1)).sum())
        rows = np.array([m.any(axis=1).sum() for m in moving])
        if rows.sum() >= 100:
            size = rate(float(sum(whole)), float(rows.sum()))
            self._note("repeated rows", "", "%", scaled(size, 100), 0.5)
            if size.value > ROWS_REPEAT and sum(whole) >= 3:
                what, twice = "All readings repeat", doubled > 0.9 * sum(whole)
                if twice:
                    what = "Commands and readings repeat"
                self._say_repeats(
                    None, f"{what} the row before while joints move, in", size,
                    whole / np.maximum(rows, 1), ROWS_REPEAT, 3.0, twice,
                )  # fmt: skip
                return
        again = np.array([u.sum(axis=0) for u in unread])
        there = np.array([m.sum(axis=0) for m in moving])
        of = np.maximum(there.sum(axis=0), 1)
        rates = [rate(float(n), float(m)) for n, m in zip(again.sum(axis=0), of, strict=True)]
        most = [STICKS if j.is_grip else JOINT_REPEATS for j in self.recording.joints]
        some = [
            k for k in range(len(self.names)) if k not in self.done | self.limited
            and there[:, k].sum() >= 100
            and rates[k].value > most[k] and rates[k].low > 0.6 * most[k]
        ]  # fmt: skip
        if some:
            first = max(some, key=lambda k: rates[k].value)
            size = rate(float(again[:, some].sum()), float(there[:, some].sum()))
            others = f"{len(some) - 1} other{'s' if some[2:] else ''}"
            who = self.names[first] + (f" and {others}" if some[1:] else "")
            every = 1 / max(1 - size.value, 0.05)
            text = f"Readings of {who} repeat while they move"
            text += f", as if refreshed every {every:.1f} rows:" if size.value > 0.3 else ":"
            of_episode = (again[:, some] / np.maximum(there[:, some], 1)).max(axis=1)
            self._say_repeats(some, text, size, of_episode, JOINT_REPEATS, 2.0)

    def _say_repeats(
        self,
        joints: Sequence[int] | None,
        text: str,
        size: Estimate,
        shares: FloatArray,
        least: float,
        cost_deg: float,
        twice: bool = False,
    ) -> None:
        """Tell of repeats; `shares` of each episode's rows; `twice`: commands repeat, too."""
        shown = {e: float(v) for e, v in zip(self.everywhere, shares, strict=True) if v >= least}
        apart, fix = "a slow bus, dropped packets", "gaploop doctor"
        if twice:  # the bus has no part in commands
            apart = "rows written twice, a recorder slower than the stated rate"
            fix = f"Compare fps in {self.root}/meta/info.json with what recorded it."
        self._say(
            "repeats", joints, text, shown, fix, cost_deg + 20 * size.value,
            unit="% of rows", size=scaled(size, 100), apart=apart,
        )  # fmt: skip

    def _jumps(self) -> None:
        """Single readings, or commands, far from both neighbours."""
        cable = "a corrupt packet, a loose cable"
        for k in self._free():
            read, sent = dict[int, float](), dict[int, float]()
            for e in self.episodes:
                by = joint_fits.lone_jump(e.reading[:, k])
                read |= {e.index: by} if by > JUMP_DEG else {}
                by = joint_fits.lone_jump(e.command[:, k])
                sent |= {e.index: by} if by > SENT_JUMP_DEG and e.index not in read else {}
            without = self.report.without(list(sent), self.total)
            for what, found, fix, apart in (
                ("readings", read, "gaploop doctor", cable),
                ("commands", sent, without, f"{cable} of a leader"),
            ):
                text = f"Single {what} of {self.names[k]} jump away and back, by"
                self._say("jumps", k, text, found, fix, 5.0, apart=apart)

    def _left_out(self) -> None:
        """Places at which commands and readings of several joints go on further in one row.

        A hand's jump reaches an arm later; a bus that wasn't read repeats the row before.
        """
        found, joints = dict[int, float](), self._free()
        for e in self.episodes if len(joints) > 1 else ():
            far = np.ones((max(len(e.command) - 1, 0), len(joints)), dtype=bool)
            if len(far) < 2 * AROUND + 1:
                continue
            for values in (e.command[:, joints], e.reading[:, joints]):
                steps = np.diff(values, axis=0)
                windows = np.lib.stride_tricks.sliding_window_view(np.abs(steps), AROUND, axis=0)
                pace = np.median(windows, axis=2)
                usual = np.full(steps.shape, np.inf)
                usual[AROUND:-AROUND] = np.maximum(pace[: -AROUND - 1], pace[AROUND + 1 :])
                far &= np.abs(steps) > LEAPS * usual + JUMP_DEG / 10
                far[1:] &= (steps[:-1] != 0).any(axis=1)[:, None]
            if places := int((far.sum(axis=1) >= 2).sum()):
                found[e.index] = float(places)
        if found and sum(found.values()) > 1:
            self._say(
                "missing", None, "Rows seem to be left out: commands and readings go further at "
                "once than before and after; places an episode:", found,
                self.report.without(list(found), self.total), 10.0,
                apart="a recorder that dropped frames, an edit",
            )  # fmt: skip

    def _shifted_episodes(self, known: Sequence[int]) -> None:
        """Episodes in which all joints follow later, or earlier, than in the others."""
        late_s = joint_fits.delays_by_episode(self.recording, known)
        order = sorted(late_s, key=lambda e: late_s[e])
        gaps = np.diff([late_s[e] for e in order])
        if len(order) < FEWEST or not len(gaps):
            return
        k = int(gaps.argmax()) + 1
        sides = order[:k], order[k:]
        within = max(float(late_s[side[-1]] - late_s[side[0]]) for side in sides)
        if gaps[k - 1] < max(1.5 / self.fps, CLEARLY * within):
            return
        odd, usual = sorted(sides, key=lambda side: (len(side), -min(side)))
        middle = float(np.median([late_s[e] for e in usual]))
        by_ms = {e: 1e3 * (late_s[e] - middle) for e in odd}
        than = "later" if odd is sides[1] else "earlier"
        self._say(
            "action_lag", None, f"In some episodes the arm follows {than} than in the others, by",
            {e: abs(ms) for e, ms in by_ms.items()}, self.report.without(odd, self.total), 20.0,
            unit="ms", apart="columns shifted in those episodes, another rate, program or bus",
        )  # fmt: skip


def _not_read(values: FloatArray) -> NDArray[np.bool_]:
    """Say where a joint's readings repeat although it went on, shape (n,).

    The first new one then makes up for those that weren't read. After a pause, as between two plans
    of a policy, it is one row's way, however the command went.
    """
    found = np.zeros(len(values), dtype=bool)
    for a, b in stretches(np.diff(values, prepend=np.nan) == 0):
        first, last = max(a - 6, 0), min(b + 5, len(values) - 1)
        pace = abs(values[last] - values[first]) / (last - first)
        found[a:b] = b < len(values) and abs(values[b] - values[a - 1]) > MAKES_UP * pace
    return found
