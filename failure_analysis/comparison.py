"""What sets failed takes apart from takes that went well, beyond chance; nothing else is named.

Outside the embedded cell only takes of the station itself say what is usual. A figure is named if
it separates failures from successes better than the best of all figures does for 19 of 20 ways of
dealing out the same outcomes anew (the max-T test of Westfall and Young 1993), so that outcomes
dealt at random name anything in one set of twenty, however many figures are tried.
"""

import itertools
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

import numpy as np
from numpy.typing import NDArray

from gaploop.core.messages import FloatArray
from gaploop.core.vocabulary import FailureMode, GapDimension
from gaploop.failure_analysis.episode_figures import (
    FIGURES,
    SIGNALS,
    TakeFigures,
    figure_of,
    words_of,
)
from gaploop.failure_analysis.modes import PRECEDENCE, SHAKE_RAD, ModeCall
from gaploop.failure_analysis.signals.registry import Evidence
from gaploop.failure_analysis.views.phases import let_go_on_the_way

M = FailureMode
CHANCE: Final = 0.05
"""Share of sets in which outcomes dealt at random name anything."""
MOST_DEALS: Final = 1_999
LEAST_KNOWN: Final = 0.75
"""Of failures and of successes, the part in which a figure must be known."""
BEYOND: Final = 0.9
"""An episode shows a figure if it stands off more than this part of the successes."""
NEIGHBOURS: Final = 3
STOPS: Final = 3
"""So often an arm may stop more in failures than in successes, and read nothing twice for that."""
JUMP: Final = 4.0
"""Spreads by which a figure must jump where failures were recorded one after another, without an
overlap, and how somebody drove isn't compared at all: both change over a session by themselves."""
POSES: Final = ("start", "close", "open", "end")
"""Figures of where a joint is, by its readings."""
HANDLED: Final = ("held", "carried", "taken", "put")
"""Figures of what the gripper holds. Without loads, a joint off its command is said to press, and a
jaw that holds something is such a joint: these go before."""
SEEN_SHARE: Final = 40.0
"""What a camera shows of taking and putting says something if it shows so much of it where things
go well [%]; an episode lacks it at half of what successes have."""
LOADS: Final = ("peak_current_a", "load_peak_pct", "force_peak_n")
WOULD_TELL: Final = (
    "What would tell: more labelled episodes, or the policy that ran, asked about its "
    "demonstrations (--policy.path=… --trained_on=…)."
)
SHOWN: Final = 4
"""Figures that an episode lists as evidence."""
ENDS: Final = ("standstill_s", "never", "closings", "end", "duration")
"""Figures of how an attempt ended: what it ended by began before."""
WENT: Final = 0.5
"""Where no gripper tells: who went this part of the way that joints usually travel, and then
stands, may be done, and isn't called frozen."""
WAITS_S: Final = 0.3
"""An arm that stands still so soon after it has let go has done what it meant to."""


@dataclass(frozen=True)
class Separation:
    """A figure that separates failures from successes.

    Attributes:
        p: share of deals in which the best figure separates as well.
        failed, well: the figure's median in failures, and in successes.
        size: their difference in spreads of the successes.
    """

    name: str
    p: float
    failed: float
    well: float
    size: float

    @property
    def message(self) -> str:
        """What differs, in words."""
        said, _ = words_of(self.name, self.failed)
        return f"{said}; {words_of(self.name, self.well)[1]} in successes"


@dataclass(frozen=True)
class Comparison:
    """Failures beside successes.

    Attributes:
        separations: what separates them beyond chance, the farthest apart first.
        tried: figures that were tried.
        in_a_row: failures were recorded one after another, which chance would hardly do.
        least_p: the smallest p that so many takes can reach; above `CHANCE` nothing can be told.
        nearest: the figure that separates best, named or not; None if there is none.
        on_the_way: which takes let go before the end of the way that successes carry along.
        done: which stood still only once they had done what they meant to.
    """

    failures: int
    successes: int
    tried: int = 0
    in_a_row: bool = False
    least_p: float = 1.0
    separations: tuple[Separation, ...] = ()
    nearest: Separation | None = None
    values: Mapping[str, FloatArray] = field(default_factory=dict)
    on_the_way: NDArray[np.bool_] = field(default_factory=lambda: np.zeros(0, dtype=bool))
    done: NDArray[np.bool_] = field(default_factory=lambda: np.zeros(0, dtype=bool))

    def shown_by(self, row: int, name: str, failed: NDArray[np.bool_]) -> bool:
        """Say whether a take stands off most successes, on the failures' side, in a figure."""
        column = self.values[name]
        well = column[~failed & np.isfinite(column)]
        side = math.copysign(1.0, float(np.nanmedian(column[failed])) - float(np.median(well)))
        return bool(np.mean(side * column[row] > side * well) >= BEYOND)

    @property
    def cause(self) -> Separation | None:
        """The named figure that is direct evidence for a cause, if there is one."""
        return next((s for s in self.separations if figure_of(s.name).dimension), None)

    def message(self) -> str:
        """Return in words what the failures together say, or what would tell."""
        n, m = self.failures, self.successes
        if not n:
            return "Nothing failed: nothing to explain."
        if not m:
            return (
                "Station: unknown. No episode that went well is at hand to set the failures "
                "against. "
                "What would tell: label episodes that went well, or name such episodes with "
                "--reference."
            )
        takes = f"{many(n, 'failure')} and {many(m, 'success')}"
        if self.least_p > CHANCE or not self.tried:
            return (
                f"Station: unknown. {takes} are too few to tell any difference from chance. "
                "What would tell: 8 of each, or episodes that went well with --reference."
            )
        if not self.separations:
            near = (
                f" (nearest: {self.nearest.message}; p {self.nearest.p:.2f})"
                if self.nearest
                else ""
            )
            beyond = "chance"
            if self.in_a_row:
                beyond = "what else may have changed as the failures were recorded together"
            return (
                f"Station: unknown. None of {self.tried} figures sets {takes} apart beyond "
                f"{beyond}{near}. {WOULD_TELL}"
            )
        ends = {"duration", "end", "standstill_s"}
        if any(s.name == "mode:frozen" for s in self.separations):
            ends.remove("standstill_s")
        why = [s for s in self.separations if s.name.partition(":")[0] not in ends]
        first = self.cause or [*why, *self.separations][0]
        said = f"Station: {first.message} (p {max(first.p, 0.001):.3f} over {self.tried} figures; "
        said += f"{takes})."
        if not why:  # who doesn't succeed goes on until the time is up
            said += f" That is how they end, not why. {WOULD_TELL}"
        if self.in_a_row:
            said += " The failures were recorded together: what else changed then looks the same."
        return said


def many(count: int, word: str) -> str:
    """Return a number of failures or successes in words."""
    plural = {"failure": "failures", "success": "successes"}[word]
    return f"{count} {word if count == 1 else plural}"


def compare(
    rows: Sequence[TakeFigures],
    failed: Sequence[bool],
    *,
    other_driver: bool = False,
    in_order: bool = True,
) -> Comparison:
    """Set failures against successes, figure by figure.

    Args:
        rows: figures of both, in the order they were recorded.
        failed: which of them failed.
        other_driver: somebody else drove what went well: how it was driven isn't compared.
        in_order: a steady change over the recording is allowed for; without it, order means
            nothing.
    """
    bad = np.array(failed, dtype=bool)
    n, fails = len(bad), int(bad.sum())
    wells = n - fails
    if not fails or not wells:
        return Comparison(fails, wells)
    done = _done(rows)
    columns = _columns(rows, done)
    floors = _floors(columns, max(r.row_s for r in rows))
    names = [
        name
        for name, column in columns.items()
        if _may_differ(name, column, floors[name], bad)
        and not (other_driver and figure_of(name).by_policy)
    ]
    # Dealt the other way round, two groups of one size are as far apart.
    least_p = (2 if fails == wells else 1) / math.comb(n, fails)  # whole: it passes any float
    if not names or least_p > CHANCE:
        return Comparison(fails, wells, len(names), least_p=least_p)
    p, in_a_row = _chance(names, columns, bad, in_order)
    tried = [
        _separation(name, of_chance, columns[name], floors[name], bad)
        for name, of_chance in zip(names, p, strict=True)
    ]
    named = [
        s
        for s in tried
        if s.p <= CHANCE
        and abs(s.failed - s.well) >= floors[s.name]
        and (not in_a_row or _jumps(s, columns[s.name], bad))
    ]
    return Comparison(
        fails, wells, len(names), in_a_row, least_p,
        _in_time(named, [r for r, b in zip(rows, bad, strict=True) if b]),
        min(tried, key=lambda s: (s.p, -s.size)),
        columns,
        let_go_on_the_way(
            [r.carry_deg for r in rows],
            np.array([r.values.get("carried", math.nan) for r in rows]),
            ~bad,
        ),
        done,
    )  # fmt: skip


def _columns(rows: Sequence[TakeFigures], done: NDArray[np.bool_]) -> dict[str, FloatArray]:
    """Return every figure over the takes, with how far from its like each closed and opened."""
    columns = {
        name: np.array([r.values.get(name, math.nan) for r in rows])
        for name in sorted({name for r in rows for name in r.values})
    }
    for name in columns:
        if name.startswith("mode:"):
            columns[name] = np.nan_to_num(columns[name])
    if "mode:frozen" in columns:
        columns["mode:frozen"][done] = 0.0
    for what in ("close", "open"):
        pose = [c for name, c in columns.items() if name.startswith(f"{what}:")]
        if pose and len(rows) > NEIGHBOURS:
            places = np.array(pose).T
            apart = np.sqrt(np.mean((places[:, None] - places[None]) ** 2, axis=2))
            np.fill_diagonal(apart, np.nan)
            columns[f"{what}_far"] = np.sort(apart, axis=1)[:, :NEIGHBOURS].mean(axis=1)
    return columns


def _done(rows: Sequence[TakeFigures]) -> NDArray[np.bool_]:
    """Say whose standstill began once it had let go; without closings, once it had gone far."""
    closings, way_deg = (
        np.array([row.values.get(name, math.nan) for row in rows]) for name in ("closings", "never")
    )
    if np.median(closings) > 0:
        at_s = [(r.at_s.get("standstill_s", 0.0), r.at_s.get("open", math.inf)) for r in rows]
        return np.array([still_s >= open_s - WAITS_S for still_s, open_s in at_s])
    known = way_deg[np.isfinite(way_deg)]
    return np.asarray(way_deg >= WENT * (np.median(known) if len(known) else math.inf))


def _floors(columns: Mapping[str, FloatArray], row_s: float) -> dict[str, float]:
    """Return the difference of two takes that means nothing, by figure.

    A delay is no finer than half a row: between rows it goes with how somebody moves. And each stop
    of an arm repeats a reading.
    """
    floors = {name: figure_of(name).floor for name in columns}
    if "lag_s" in floors:
        floors["lag_s"] = max(floors["lag_s"], 0.5 * row_s)
    if "oscillation_rad" in floors:  # the root mean square of a swing that counts as shaking
        floors["oscillation_rad"] = SHAKE_RAD / math.sqrt(8.0)
    if "repeat_share" in floors and "duration" in columns:
        stops = STOPS * row_s / max(float(np.nanmedian(columns["duration"])), 1e-3)
        floors["repeat_share"] = max(floors["repeat_share"], stops)
    return floors


def _may_differ(name: str, column: FloatArray, floor: float, bad: NDArray[np.bool_]) -> bool:
    """Say whether a figure is known of most takes, and isn't the same for all of them."""
    known = np.isfinite(column)
    if min(known[bad].mean(), known[~bad].mean()) < LEAST_KNOWN or np.ptp(column[known]) < floor:
        return False
    shows_things = name.partition(":")[0] in ("taken", "put")
    return not (shows_things and np.percentile(column[known], 75) < SEEN_SHARE)


def _chance(
    names: Sequence[str], columns: Mapping[str, FloatArray], bad: NDArray[np.bool_], in_order: bool
) -> tuple[FloatArray, bool]:
    """Return in what share of deals the best figure separates as well as each of `names`.

    And whether failures were recorded one after another, which chance would hardly do.
    """
    n, deals = len(bad), _deals(len(bad), int(bad.sum()))
    # Values tell a jump from a spread, ranks heed no single outlier: the better of both counts.
    told_by = [np.array([f(columns[name]) for name in names]).T for f in (_centred, _ranks)]
    sides = np.array([figure_of(name).side for name in names])
    of_time = [np.ones(n), np.linspace(-1.0, 1.0, n)] if in_order and n > 4 else [np.ones(n)]
    trend, _ = np.linalg.qr(np.array(of_time).T)
    told_by = [_unit(x - trend @ (trend.T @ x)) for x in told_by]
    labels = bad[None].astype(float)
    observed = _separates(labels, told_by, trend, sides)[0]
    best = _separates(deals, told_by, trend, sides).max(axis=1)
    drawn = len(best) < math.comb(n, int(bad.sum()))  # at random, the true one not among them
    p = ((best[:, None] >= observed - 1e-9).sum(axis=0) + drawn) / (len(best) + drawn)
    turns, usual = (np.abs(np.diff(x, axis=1)).sum(axis=1) for x in (labels, deals))
    return np.asarray(p), in_order and bool(np.mean(usual <= turns[0]) <= CHANCE)


def _ranks(column: FloatArray) -> FloatArray:
    """Return ranks, ties alike, about 0; what isn't known stands in the middle."""
    from scipy.stats import rankdata

    known = np.isfinite(column)
    ranks = np.zeros(len(column))
    ranks[known] = rankdata(column[known]) - 0.5 * (known.sum() + 1)
    return ranks


def _centred(column: FloatArray) -> FloatArray:
    return np.nan_to_num(column - np.nanmean(column))


def _unit(columns: FloatArray) -> FloatArray:
    size = np.linalg.norm(columns, axis=0, keepdims=True)
    return np.asarray(columns / np.where(size > 1e-9, size, np.inf))


def _separates(
    labels: FloatArray, told_by: Sequence[FloatArray], trend: FloatArray, sides: NDArray[np.int64]
) -> FloatArray:
    """Return how well each deal of labels, (deals, n), is told by columns, (n, k): (deals, k)."""
    left = _unit((labels - (labels @ trend) @ trend.T).T)
    both = [np.where(sides == 0, np.abs(r), r * sides) for r in (left.T @ x for x in told_by)]
    return np.asarray(np.maximum(both[0], both[1]))


def _deals(n: int, failures: int) -> FloatArray:
    """Return every way to say which of n takes failed, or many at random: shape (deals, n)."""
    if math.comb(n, failures) <= MOST_DEALS:
        chosen = list(itertools.combinations(range(n), failures))
        labels = np.zeros((len(chosen), n))
        labels[np.arange(len(chosen))[:, None], chosen] = 1.0
        return labels
    order = np.argsort(np.random.default_rng(0).random((MOST_DEALS, n)), axis=1)
    return np.asarray((order < failures).astype(float))


def _separation(
    name: str, p: float, column: FloatArray, floor: float, bad: NDArray[np.bool_]
) -> Separation:
    """Return how far apart failures and successes are in a figure."""
    ours, theirs = (column[mask & np.isfinite(column)] for mask in (bad, ~bad))
    middle = np.mean if name.startswith("mode:") else np.median
    here, there = float(middle(ours)), float(middle(theirs))
    spread = max(1.4826 * float(np.median(np.abs(x - np.median(x)))) for x in (ours, theirs))
    return Separation(name, float(p), here, there, abs(here - there) / max(spread, floor))


def _jumps(found: Separation, column: FloatArray, bad: NDArray[np.bool_]) -> bool:
    """Say whether a figure differs by more than what changes over a session by itself."""
    ours, theirs = (column[mask & np.isfinite(column)] for mask in (bad, ~bad))
    apart = ours.min() > theirs.max() or ours.max() < theirs.min()
    return bool(apart) and not figure_of(found.name).by_policy and found.size >= JUMP


def _in_time(
    named: Sequence[Separation], failures: Sequence[TakeFigures]
) -> tuple[Separation, ...]:
    """Order what comes first in the attempt first; how it ended comes last.

    A joint that reads wrongly seems to be elsewhere whatever it does: where it is goes.
    """
    off = {s.name.partition(":")[2] for s in named if s.name.startswith("offset:")}
    kept = [s for s in named if not (
        (s.name.partition(":")[2] in off and s.name.partition(":")[0] in POSES)
        or (off and s.name.endswith("_far"))
    )]  # fmt: skip
    return tuple(sorted(kept, key=lambda s: (_begins_s(s.name, failures), -s.size)))


def _begins_s(name: str, rows: Sequence[TakeFigures]) -> float:
    """Return when in failures a figure is read: 0 if throughout, and last if it is of the end."""
    kind = name.partition(":")[0]
    if kind in ENDS or name == "mode:frozen":
        return math.inf
    return float(np.median([r.at_s.get(kind.removesuffix("_far"), 0.0) for r in rows]))


def take_evidence(
    found: Comparison, row: int, figures: TakeFigures, failed: NDArray[np.bool_], fps: float
) -> tuple[GapDimension | None, ModeCall, tuple[Evidence, ...]]:
    """Return what a failed take shows of what sets the failures apart: cause, mode, evidence.

    The mode is the first that it shows, in time; what came of it, a standstill or the end of time,
    counts where nothing went before.
    """
    cause: GapDimension | None = None
    shown = [s for s in found.separations if found.shown_by(row, s.name, failed)]
    names = {s.name.partition(":")[0] for s in shown}
    evidence, calls = list[Evidence](), list[tuple[float, int, ModeCall]]()
    handled = False
    for s in shown:
        kind, value = figure_of(s.name), float(found.values[s.name][row])
        name = s.name.partition(":")[0].removesuffix("_far")
        if name == "mode":
            mode = M(s.name.partition(":")[2])
            own, seen = mode is figures.mode.mode, ModeCall(mode, None, (figures.mode.seen[mode],))
            when_s = math.inf if mode is M.FROZEN else -math.inf
            calls.append((when_s, -own, figures.mode if own else seen))
            continue
        if name in ("taken", "put") and value > 0.5 * s.well:
            continue
        at_s = figures.at_s.get(name)
        said = f"{words_of(s.name, value)[0]}; {words_of(s.name, s.well)[1]} in successes"
        said += f" (at {at_s:.1f} s, frame {round(at_s * fps)})" if at_s is not None else ""
        evidence.append(Evidence(s.name, value, kind.unit.strip(), said))
        cause = cause or kind.dimension
        shows = _mode_of(name, value, found, row, failed, names)
        if shows is not None:
            when_s = at_s if at_s is not None else math.inf if name in ENDS else -math.inf
            by = evidence[-1]
            if name == "put":
                by = figures.mode.seen.get(shows, by)
            calls.append((when_s, PRECEDENCE.index(shows), ModeCall(shows, None, (by,))))
            handled |= name in HANDLED
    if handled and not any(math.isfinite(figures.values.get(n, math.nan)) for n in LOADS):
        calls = [c for c in calls if c[2].mode not in (M.OBSTRUCTION, M.COLLISION)]
    call = min(calls, key=lambda c: c[:2])[2] if calls else ModeCall(None, None)
    # What speaks for the cause, then for the mode, then the rest.
    first = [e for e in evidence if figure_of(e.signal).dimension is not None]
    ordered = dict.fromkeys([*first, *call.evidence, *evidence])
    return cause, call, tuple(ordered)[: SHOWN + len(call.evidence)]


def _was_taken(found: Comparison, row: int, failed: NDArray[np.bool_]) -> bool:
    """Say whether a camera that shows the taking of what goes well shows it here, too."""
    for name, column in found.values.items():
        well = column[~failed & np.isfinite(column)]
        shows = name.startswith("taken:") and len(well) and np.percentile(well, 75) >= SEEN_SHARE
        if shows and column[row] > 0.5 * np.median(well):
            return True
    return False


def _mode_of(
    name: str,
    value: float,
    found: Comparison,
    row: int,
    failed: NDArray[np.bool_],
    shown: set[str],
) -> FailureMode | None:
    """Return the mode that a figure shows beside the others that the take shows, if any."""
    mode = FIGURES[name].mode if name in FIGURES else SIGNALS[name][1]
    if name == "held":
        return M.SLIP if value > FIGURES[name].floor else mode
    held = found.values.get("held", np.full(len(failed), np.nan))
    well = held[~failed & np.isfinite(held)]
    jaws_tell = bool(len(well)) and np.median(well) >= 50.0
    if jaws_tell:
        if name in ("close", "taken") and held[row] >= BEYOND * np.median(well):
            return None  # whatever else is so, they had it until they were opened
        if name in ("open", "carried", "put") and held[row] < 0.5 * np.median(well):
            # They had nothing then: nothing came down for that, where all that went well had it.
            lost = M.SLIP if held[row] >= FIGURES["held"].floor else M.MISSED_GRASP
            return lost if name == "put" and well.min() >= 50.0 else None
    if name == "put" and shown & {"open", "open_far"}:
        return None  # where it opened is another place
    if name == "put" and not jaws_tell:
        return M.SLIP if _was_taken(found, row, failed) else None
    if name in ("open", "carried"):
        return M.SLIP if found.on_the_way[row] else M.MISPLACEMENT if name == "open" else None
    if mode in (M.FROZEN, M.TIMEOUT) and "standstill_s" in shown:
        return None if found.done[row] else mode
    return mode
