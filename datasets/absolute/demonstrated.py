"""Where rollouts leave what the demonstrations showed: starts, readings, pictures.

Distances are to the nearest row of any demonstration, in spreads of each joint (levels of small
pictures); how far is far, demonstrations say among themselves: each against the others.
"""

from __future__ import annotations

import shlex
from collections import Counter
from pathlib import Path
from typing import Final

import cv2
import numpy as np
from numpy.typing import NDArray

from gaploop.core.messages import FloatArray
from gaploop.core.statistics import median_interval
from gaploop.datasets.absolute.findings import AbsoluteFinding, AbsoluteReport
from gaploop.datasets.absolute.recording import evenly
from gaploop.datasets.columns import IMAGES, STATE
from gaploop.datasets.frames import FrameTable, load_frames
from gaploop.datasets.lerobot_read import pictures_at

LEAST: Final = 8
"""Demonstrations; fewer don't tell how far they lie apart."""
MOST: Final = 40
ROWS: Final = 60
"""Rows of each episode that are looked at."""
SUSTAINED: Final = 3
"""Rows in turn that are far: one may be a slip."""
MARGIN: Final = 1.5
"""Times as far as any demonstration from the others."""
START_MARGIN: Final = 0.5
"""Share of the range of demonstrated starts beyond which one lies outside."""
VIEWS: Final = 5
THUMB: Final = (16, 12)


class DemonstratedTests:
    """Tests of rollouts against their policy's training set.

    Args:
        training: folder of the demonstrations.
        rollouts: readings of the rollouts.
    """

    def __init__(self, training: Path, rollouts: FrameTable, report: AbsoluteReport) -> None:
        self.report, self.rollouts = report, rollouts
        self.shown = load_frames(training, [STATE])
        names = rollouts.info.names(STATE)
        self.names = [n.removesuffix(".pos") for n in names]
        self.root, self.training = shlex.quote(str(rollouts.info.root)), shlex.quote(str(training))
        columns = (np.asarray(t.columns[STATE], np.float64) for t in (self.shown, rollouts))
        self._shown, self._rolled = columns

    def run(self) -> None:
        """Run all tests."""
        if self._shown.shape[1] != self._rolled.shape[1]:
            self.report.untested["rollouts against demonstrations"] = "their joints differ"
        elif len(self.shown.episodes) < LEAST:
            self.report.untested["rollouts against demonstrations"] = (
                f"{len(self.shown.episodes)} demonstrations are too few"
            )
        else:
            before = len(self.report.findings)
            self._starts()
            self._states()
            self._views()
            if len(self.report.findings) == before:
                total = len(self.shown.episodes)
                self.report.good["demonstrated"] = (
                    f"rollouts begin and stay where the {total} demonstrations went"
                )

    def _say(
        self, kind: str, about: str, sentence: str, found: dict[int, float], unit: str,
        apart: str, command: str, cost: float,
    ) -> None:  # fmt: skip
        size = median_interval(np.array(list(found.values())))
        worst = max(found, key=lambda e: abs(found[e])) if unit != "s" else min(
            found, key=lambda e: found[e])  # fmt: skip
        self.report.findings.append(
            AbsoluteFinding(
                kind, about, sentence, size, unit, tuple(sorted(found)),
                len(self.rollouts.episodes), worst, apart, command, cost,
            )
        )  # fmt: skip

    def _rows(self, table: FrameTable, values: FloatArray) -> dict[int, FloatArray]:
        found = {}
        for one in table.episodes:
            own = values[table.rows_of(one.index)]
            if len(own):
                found[one.index] = own[np.unique(np.linspace(0, len(own) - 1, ROWS).astype(int))]
        return found

    def _starts(self) -> None:
        firsts = np.stack([rows[0] for rows in self._rows(self.shown, self._shown).values()])
        low, high = firsts.min(axis=0), firsts.max(axis=0)
        reach = np.ptp(self._shown, axis=0)
        room = START_MARGIN * (high - low) + 0.05 * reach
        out: dict[int, tuple[int, float]] = {}
        for index, rows in self._rows(self.rollouts, self._rolled).items():
            off = np.maximum(low - room - rows[0], rows[0] - high - room) / np.maximum(reach, 1e-9)
            if off.max() > 0:
                k = int(off.argmax())
                nearest = low[k] if rows[0][k] < low[k] else high[k]
                out[index] = k, float(rows[0][k] - nearest)
        if not out:
            return
        joint = Counter(k for k, _ in out.values()).most_common(1)[0][0]
        found = {e: v for e, (k, v) in out.items() if k == joint}
        self._say(
            "start_outside", self.names[joint], "Rollouts begin outside all demonstrated starts: "
            f"{self.names[joint]} is beyond them by", found, "units", "another zero or calibration",
            "Begin where demonstrations do, or record some from there", 40.0,
        )  # fmt: skip

    def _states(self) -> None:
        scale = np.maximum(self._shown.std(axis=0), 0.02 * np.ptp(self._shown, axis=0) + 1e-9)
        shown = {e: r / scale for e, r in self._rows(self.shown, self._shown).items()}
        rolled = {e: r / scale for e, r in self._rows(self.rollouts, self._rolled).items()}
        left = self._left(shown, rolled)
        if not left:
            return
        joints = Counter(int(np.abs(rolled[e][k] - near).argmax()) for e, (k, near) in left.items())
        joint = self.names[joints.most_common(1)[0][0]]
        self._say(
            "left_demonstrations", joint, "Rollouts go where no demonstration went, most in "
            f"{joint}, after", self._times(left), "s", "cause and effect: a policy that is lost "
            "leaves them, too", f"Look there: gaploop review {self.root}; record corrections from "
            "there", 30.0,
        )  # fmt: skip

    def _times(self, left: dict[int, tuple[int, FloatArray]]) -> dict[int, float]:
        lengths = {e.index: e.length for e in self.rollouts.episodes}
        fps = self.rollouts.info.fps
        return {e: k * max(1.0, (lengths[e] - 1) / (ROWS - 1)) / fps for e, (k, _) in left.items()}

    def _left(
        self, shown: dict[int, FloatArray], rolled: dict[int, FloatArray]
    ) -> dict[int, tuple[int, FloatArray]]:
        """Return, of each rollout that leaves, the place of the first row and the nearest known."""
        some = [list(shown)[k] for k in evenly(len(shown), MOST)]
        bank = np.concatenate([shown[e] for e in some])
        owner = np.repeat(some, [len(shown[e]) for e in some])
        reach = max(
            _sustained(_nearest(shown[e], bank[owner != e])[0]).max(initial=0.0) for e in some
        )
        left = {}
        for index, rows in rolled.items():
            away, near = _nearest(rows, bank)
            far = np.flatnonzero(_sustained(away) > MARGIN * reach)
            if len(far):
                left[index] = int(far[0]), bank[near[far[0]]]
        return left

    def _views(self) -> None:
        """Find cameras that show what they never did, or what another one did."""
        have = [k for k in self.rollouts.info.picture_keys if k in self.shown.info.picture_keys]
        known = {k: self._thumbs(self.shown, k) for k in have}
        now = {k: self._thumbs(self.rollouts, k) for k in have}
        fits = {
            (a, b): float(np.median([
                _nearest(rows, np.concatenate(list(known[b].values())))[0].mean()
                for rows in now[a].values()
            ]))
            for a in have for b in have if now[a] and known[b]
        }  # fmt: skip
        for a in have:
            name, best = a.removeprefix(IMAGES), min(have, key=lambda b: fits.get((a, b), np.inf))
            if best != a and fits[a, best] < 0.4 * fits[a, a]:
                other = best.removeprefix(IMAGES)
                share = {e: float(fits[a, a] / max(fits[a, best], 1.0)) for e in now[a]}
                self._say(
                    "camera_order", name, f"Camera {name} shows what {other} showed in the "
                    f"demonstrations; it is closer to it than to {name}, times", share, "",
                    "", f"Exchange {name} and {other} in --robot.cameras, or by --rename_map",
                    125.0,
                )  # fmt: skip
                continue
            left = self._left(known[a], now[a]) if len(known[a]) >= LEAST else {}
            if len(left) > 0.5 * len(now[a]):
                bank = np.concatenate(list(known[a].values()))
                off = {e: float(_nearest(now[a][e], bank)[0].mean()) for e in left}
                self._say(
                    "unfamiliar_view", name, f"Camera {name} shows what it never did in the "
                    "demonstrations: the nearest of their pictures differs in mean by", off,
                    "levels", "light, a moved camera, another object or background",
                    f"Look at both: gaploop review {self.root}, gaploop review {self.training}",
                    35.0,
                )  # fmt: skip

    def _thumbs(self, table: FrameTable, key: str) -> dict[int, FloatArray]:
        """Return small pictures of some episodes, each of shape (n, pixels), rms in levels."""
        found = {}
        for k in evenly(len(table.episodes), 16):
            one = table.episodes[k]
            rows = evenly(one.length, VIEWS)
            shown = pictures_at(table.info, one, key, rows)
            small = [cv2.resize(shown[r], THUMB, interpolation=cv2.INTER_AREA) for r in rows]
            values = np.stack(small).reshape(len(rows), -1).astype(np.float64)
            found[one.index] = values / values.shape[1] ** 0.5
        return found


def _nearest(rows: FloatArray, bank: FloatArray) -> tuple[FloatArray, NDArray[np.intp]]:
    """Return the distance of each row to the nearest known one, and which that is."""
    square = (rows**2).sum(1)[:, None] + (bank**2).sum(1) - 2 * rows @ bank.T
    near = square.argmin(axis=1)
    return np.sqrt(np.maximum(square[np.arange(len(rows)), near], 0.0)), near


def _sustained(away: FloatArray) -> FloatArray:
    """Return from each row on the least of `SUSTAINED` in turn."""
    if len(away) < SUSTAINED:
        return away
    least = np.lib.stride_tricks.sliding_window_view(away, SUSTAINED).min(axis=1)
    return np.asarray(least, dtype=np.float64)
