"""Watches a running take: a failure score, calibrated on takes that went well, alarms once.

Each live signal is set against what successful takes show *at the same elapsed time*, in spreads,
upwards and downwards. The score is a weighted sum of these deviations, standardised by time again.
The alarm's threshold is the split-conformal quantile (Vovk et al. 2005; for time-varying bands
Diquigiovanni et al. 2022, arXiv:2106.01792, and for policies Xu et al. 2025, arXiv:2503.08558) of
the highest score of each successful take, so that one alarms with at most the stated probability. A
take that outlasts them all is set against the last time at which enough of them ran. At another
station what goes well there takes the place of what the score was fitted to, attempt by attempt.

A recorded take is turned into the loop's turns again, so that the score is fitted to takes by the
same code that watches rollouts.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final

import numpy as np
from scipy.stats import betabinom

from gaploop.core.errors import UnusableInputError
from gaploop.core.files import read_json
from gaploop.core.messages import FloatArray, FollowerState, LeaderSample, SafeCommand, Tick
from gaploop.core.protocols import TakeSink
from gaploop.core.take import Take
from gaploop.core.vocabulary import Outcome
from gaploop.datasets.lerobot_read import load_takes
from gaploop.failure_analysis.live_signals import STREAMED, LiveSignals
from gaploop.failure_analysis.reference import Ground, ground_of
from gaploop.failure_analysis.signals.registry import registry
from gaploop.failure_analysis.views.view import TakeView

log = logging.getLogger(__name__)

EVERY_S: Final = 0.1
"""How often the score is computed [s]."""
BIN_S: Final = 0.2
LEAST_RUNNING: Final = 8
"""Successful episodes that must still run for their spread to mean something."""
LEAST_TAKES: Final = 10
"""Successful episodes that a score is fitted to; a low false-alarm rate needs more of them."""
FOLDS: Final = 5
FALSE_ALARMS: Final = 0.05
"""Share of the episodes that go well that may alarm."""
ENOUGH: Final = math.ceil(1 / FALSE_ALARMS)
"""So many of those calibrate a threshold."""
OFF_P: Final = 0.02
"""So rarely a score that is calibrated alarms as often; looked at after each episode, it says that
it isn't at 3 % of stations at which it is."""


@dataclass(frozen=True)
class SignalTrack:
    """The live signals along one take, shape (m, len(STREAMED)), NaN where unseen."""

    t_s: FloatArray
    values: FloatArray
    failed: bool


@dataclass(frozen=True)
class Usual:
    """What successful takes show by elapsed time: mean and spread, shape (bins, len(STREAMED)).

    NaN where unseen; the spread is at least the signal's floor.
    """

    mean: FloatArray
    spread: FloatArray

    @classmethod
    def fit(cls, tracks: Sequence[SignalTrack]) -> Usual:
        """Fit to successful takes.

        Raises:
            UnusableInputError: too few of them.
        """
        _require(tracks, LEAST_RUNNING)
        ends = np.sort([float(t.t_s[-1]) for t in tracks])
        last_s = float(ends[-min(LEAST_RUNNING, len(ends))])  # as many still run then
        bins = max(1, int(last_s / BIN_S))
        floors = np.array([registry()[name].floor for name in STREAMED])
        mean, spread = np.empty((2, bins, len(STREAMED)))
        for b in range(bins):
            rows = np.concatenate([t.values[_bin(t.t_s, b)] for t in tracks])
            seen = np.isfinite(rows).sum(axis=0) >= LEAST_RUNNING
            shown = np.where(seen, rows, 0.0)
            mean[b] = np.where(seen, np.nanmean(shown, axis=0), np.nan)
            spread[b] = np.maximum(np.nanstd(shown, axis=0), floors)
        return cls(mean, spread)

    def deviations(self, t_s: FloatArray, values: FloatArray) -> FloatArray:
        """Return log(1 + deviation), upwards and downwards, shape (m, 2 * len(STREAMED)).

        Deviations are in spreads; their logarithm, because the hundredth spread says little more
        than the tenth.
        """
        place = np.clip((t_s / BIN_S).astype(int), 0, len(self.mean) - 1)
        z = np.nan_to_num((values - self.mean[place]) / self.spread[place])
        sides = np.concatenate((np.maximum(z, 0.0), np.maximum(-z, 0.0)), axis=1)
        return np.asarray(np.log1p(sides))


@dataclass(frozen=True)
class FailureScore:
    """A score that runs along a take, and when it is too high.

    Attributes:
        weights: of the deviations, shape (2 * len(STREAMED),).
        level: usual score by bin, shape (bins,).
        spread: its spread by bin, shape (bins,).
        peaks: highest score of each successful take, ascending, shape (n,).
        policy: id of the policy that drove, or "" where that isn't known.
    """

    name: str
    usual: Usual
    weights: FloatArray
    level: FloatArray
    spread: FloatArray
    peaks: FloatArray
    policy: str = ""

    def along(self, track: SignalTrack) -> FloatArray:
        """Return the score along a take, shape (m,)."""
        place = np.clip((track.t_s / BIN_S).astype(int), 0, len(self.level) - 1)
        raw = self.usual.deviations(track.t_s, track.values) @ self.weights
        return np.asarray((raw - self.level[place]) / self.spread[place])

    def threshold(self, false_alarms: float) -> float:
        """Return the score that so many of the successful takes exceed; infinite where none may."""
        rank = self._rank(false_alarms)
        return float(self.peaks[rank - 1]) if rank <= len(self.peaks) else math.inf

    def _rank(self, false_alarms: float) -> int:
        return math.ceil((len(self.peaks) + 1) * (1.0 - false_alarms))

    def here(self, peaks: Sequence[float]) -> FailureScore:
        """Return the score as it stands at a station, given its highest scores of what went well.

        Where these are enough they are the calibration. Before, no alarm is raised at what went
        well already, and none at all where the score isn't calibrated there.

        Peaks are in the order of the attempts.
        """
        own = replace(self, peaks=np.sort(np.array(peaks, dtype=np.float64)))
        if math.isfinite(own.threshold(FALSE_ALARMS)):
            return own
        if self.is_off(peaks):
            return replace(self, peaks=np.empty(0))
        from_here = np.arange(1, len(self.peaks) + 1) >= self._rank(FALSE_ALARMS)
        highest = max(peaks, default=-math.inf)
        return replace(self, peaks=np.where(from_here, self.peaks.clip(highest), self.peaks))

    def is_off(self, peaks: Sequence[float]) -> bool:
        """Whether more of what went well at a station alarmed, at some time, than chance explains.

        Beta-binomial, as the threshold is itself an order statistic of few takes: exact where the
        others are exchangeable with those. Peaks are in the order of the attempts.
        """
        rank = self._rank(FALSE_ALARMS)
        alarmed = np.cumsum(np.array(peaks) > self.threshold(FALSE_ALARMS))
        takes, above = np.arange(1, len(peaks) + 1), len(self.peaks) + 1 - rank
        return bool(np.any(betabinom.sf(alarmed - 1, takes, above, rank) <= OFF_P))

    def p_value(self, peak: float) -> float:
        """Return the conformal p-value of a highest score so far: small where it is unusual."""
        above = len(self.peaks) - int(np.searchsorted(self.peaks, peak))
        return (above + 1) / (len(self.peaks) + 1)


def fit_score(tracks: Iterable[SignalTrack], weights: FloatArray, name: str) -> FailureScore:
    """Fit a score to the successful takes among `tracks`.

    Each take's highest score is computed with what is usual in the other folds, so that the
    threshold isn't fitted to the takes that it is the quantile of (cross-conformal, Vovk 2015).
    The weights of the deviations are learned from failures, or ones.

    Raises:
        UnusableInputError: too few successful takes.
    """
    good = [t for t in tracks if not t.failed]
    _require(good, LEAST_TAKES)
    peaks = []
    for fold in range(FOLDS):
        rest = [t for place, t in enumerate(good) if place % FOLDS != fold]
        part = _levelled(rest, weights, name)
        peaks += [float(part.along(t).max()) for t in good[fold::FOLDS]]
    return replace(_levelled(good, weights, name), peaks=np.sort(peaks))


def _require(tracks: Sequence[SignalTrack], least: int) -> None:
    if len(tracks) < least:
        raise UnusableInputError(
            f"{len(tracks)} successful episodes are too few to say what is usual by elapsed time: "
            f"give at least {least}."
        )


def _levelled(tracks: Sequence[SignalTrack], weights: FloatArray, name: str) -> FailureScore:
    usual = Usual.fit(tracks)
    bins = len(usual.mean)
    raw = FailureScore(name, usual, weights, np.zeros(bins), np.ones(bins), np.empty(0))
    scores = [raw.along(t) for t in tracks]
    level: FloatArray = np.zeros(bins)
    spread: FloatArray = np.ones(bins)
    for b in range(bins):
        rows = np.concatenate([s[_bin(t.t_s, b)] for s, t in zip(scores, tracks, strict=True)])
        level[b], spread[b] = float(rows.mean()), float(rows.std())
    spread = np.maximum(spread, 0.25 * float(np.median(spread)) + 1e-9)
    return replace(raw, level=level, spread=spread)


def _bin(t_s: FloatArray, b: int) -> slice:
    start, end = np.searchsorted(t_s, [(b - 0.5) * BIN_S, (b + 1.5) * BIN_S])
    return slice(int(start), int(end))


def explain(score: FailureScore, t_s: float, values: Mapping[str, float]) -> str:
    """Say which deviation adds most to the score at a time [s], beside what is usual then."""
    row = np.array([[values.get(name, np.nan) for name in STREAMED]])
    parts = score.usual.deviations(np.array([t_s]), row)[0] * score.weights
    column = int(np.argmax(parts)) % len(STREAMED)
    name = STREAMED[column]
    spec = registry()[name]
    place = min(int(t_s / BIN_S), len(score.usual.mean) - 1)
    usual = spec.show(float(score.usual.mean[place, column]))
    return f"{spec.describe(values[name])}, usually {usual}"


SHIPPED: Final = Path(__file__).with_name("live_so101_cell.json")
"""The score of the embedded cell with the shipped policy; `python -m benchmarks detection`
rebuilds it."""
ALARM: Final = "failure_alarm"
"""Name of the event in a take's events."""


@dataclass(frozen=True)
class Alarm:
    """A take that looks like failing, so long after it began.

    The score is in standard deviations of a successful take's at that time; the share `p_value` of
    those ever get as high.
    """

    t_s: float
    score: float
    p_value: float
    why: str


class SignalTracker:
    """A sink that keeps the live signals along a take, every 0.1 s."""

    def __init__(self, joints: Sequence[str], control_hz: float, fps: float) -> None:
        self._signals = LiveSignals(joints, control_hz, fps)
        self._every = max(1, round(EVERY_S * fps))
        self._frames = 0
        self.t_s: list[float] = []
        self.values: dict[str, float] = {}
        self._rows: list[list[float]] = []

    def tick(self, tick: Tick) -> None:
        """Take note of one turn."""
        self._signals.tick(tick)
        if not tick.policy_frame:
            return
        self._frames += 1
        if self._frames % self._every == 0:
            self.values = self._signals.values()
            self.t_s.append(tick.t_s)
            self._rows.append([self.values[name] for name in STREAMED])
            self.sampled(tick.t_s)

    def sampled(self, t_s: float) -> None:
        """Called after every sample; for whoever scores them."""

    def track(self, failed: bool) -> SignalTrack:
        """Return what was kept."""
        return SignalTrack(
            np.array(self.t_s), np.array(self._rows).reshape(-1, len(STREAMED)), failed
        )


class FailureWatch(SignalTracker):
    """Scores a running take and alarms once where the score is too high.

    So it does in the share `false_alarms` of the takes that go well.
    """

    def __init__(
        self,
        score: FailureScore,
        joints: Sequence[str],
        control_hz: float,
        fps: float,
        *,
        false_alarms: float = FALSE_ALARMS,
        on_alarm: Callable[[Alarm], None] = lambda _alarm: None,
    ) -> None:
        super().__init__(joints, control_hz, fps)
        self._model, self._threshold = score, score.threshold(false_alarms)
        self._on_alarm = on_alarm
        self._over = False
        self.score = self.peak = 0.0
        self.alarm: Alarm | None = None

    def tick(self, tick: Tick) -> None:
        """Take note of one turn; once a person has taken over, the policy's failing is known."""
        if not self._over:
            self._over = tick.leader.intervention
            super().tick(tick)

    def sampled(self, t_s: float) -> None:
        """Score the take so far."""
        so_far = SignalTrack(np.array([t_s]), np.array([self._rows[-1]]), failed=False)
        self.score = float(self._model.along(so_far)[0])
        self.peak = max(self.peak, self.score)
        if self.alarm is None and self.score > self._threshold:
            why = explain(self._model, t_s, self.values)
            self.alarm = Alarm(t_s, self.score, self._model.p_value(self.score), why)
            self._on_alarm(self.alarm)


class SessionWatch:
    """Watches every attempt of a session, as soon as there is a score of how unusual one is.

    Args:
        score: None where there is none yet.
        weights: of the deviations, shape (2 * len(STREAMED),), for a score that is fitted to the
            attempts that went well once they are enough; None leaves it at `score`.
    """

    def __init__(self, score: FailureScore | None, weights: FloatArray | None = None) -> None:
        self.score, self._weights = score, weights
        self.alarms: dict[str, Alarm] = {}
        """Take to its alarm."""
        self.won: Callable[[], Sequence[str]] = tuple
        """Returns the attempts so far that went well without help, in order."""
        self._seen: dict[str, SignalTracker] = {}
        self._told = False

    def __call__(self, rig: Any, writer: Any) -> Sequence[TakeSink]:
        """Return what watches an attempt that begins, given its rig and its journal writer."""
        if self.score is None and self._weights is not None:
            self.score = self._fitted(self._weights)

        def alarmed(alarm: Alarm) -> None:
            self.alarms[writer.header.info.uid] = alarm
            said = {"score": alarm.score, "p_value": alarm.p_value, "why": alarm.why}
            writer.event(alarm.t_s, ALARM, **said)
            log.warning(
                "This attempt has looked like a failure since %.1f s: %s (p = %.2g).",
                alarm.t_s, alarm.why, alarm.p_value,
            )  # fmt: skip

        if not self._told and (doubt := self.doubt()):
            self._told = True
            log.warning("%s", doubt)
        of = rig.follower.joint_names, rig.control_hz, rig.fps
        if self.score is not None:
            seen: SignalTracker = FailureWatch(
                self.score.here(self._peaks()), *of, on_alarm=alarmed
            )
        elif self._weights is not None:
            seen = SignalTracker(*of)
        else:
            return ()
        self._seen[writer.header.info.uid] = seen
        return (seen,)

    def _peaks(self) -> list[float]:
        seen = [self._seen.get(uid) for uid in self.won()]
        return [watch.peak for watch in seen if isinstance(watch, FailureWatch)]

    def _fitted(self, weights: FloatArray) -> FailureScore | None:
        """Return the score of what went well in this session; None where it is too little yet."""
        tracks = [self._seen[uid].track(failed=False) for uid in self.won() if uid in self._seen]
        tracks = [track for track in tracks if len(track.t_s)]
        if len(tracks) < ENOUGH:
            return None
        log.info("Watched for failures from now on, by %s attempts that went well.", len(tracks))
        return fit_score(tracks, weights, "this session's attempts that went well")

    def doubt(self) -> str:
        """Return what to say where what went well alarmed more often than it may, or ""."""
        peaks = self._peaks()
        if self.score is None or not self.score.is_off(peaks):
            return ""
        alarmed = sum(peak > self.score.threshold(FALSE_ALARMS) for peak in peaks)
        return (
            f"{alarmed} of {len(peaks)} attempts that went well looked like failures, stated: "
            f"{FALSE_ALARMS:.0%}. The failure score isn't calibrated here: it raises no alarm "
            f"until {ENOUGH} attempts went well, and goes by these from then on. To fit it to "
            "episodes that went well on this station: --watch=DIR."
        )


def session_watch(watch: str, policy_id: str, is_embedded: bool) -> SessionWatch:
    """Return what watches a session's attempts.

    Args:
        watch: a folder of takes that went well, auto or never.
        policy_id: the id of the policy that drives.
        is_embedded: in the embedded cell; what ships was fitted there and is silent elsewhere.

    Raises:
        UnusableInputError: too few successful takes.
    """
    score = weights = None
    if watch == "auto" and is_embedded:
        shipped = shipped_score()
        weights = shipped.weights
        score = shipped if shipped.policy == policy_id else None
    elif watch == "auto":
        weights = np.ones(2 * len(STREAMED))
        log.warning(
            "Not watched for failures until %s attempts of this session went well: the score that "
            "ships isn't calibrated here. By episodes that went well earlier: --watch=DIR.",
            ENOUGH,
        )
    elif watch != "never":
        score = score_of(list(load_takes(Path(watch))), watch)
    if score is not None and math.isinf(score.threshold(FALSE_ALARMS)):
        raise UnusableInputError(
            f"{score.name}: {len(score.peaks)} episodes that went well are too few for a "
            f"false-alarm rate of {FALSE_ALARMS:g}: record {ENOUGH}."
        )
    return SessionWatch(score, weights)


def shipped_score(file: Path = SHIPPED) -> FailureScore:
    """Return the score that ships: weights learned from several policies' failures in the cell."""
    value = read_json(file)
    mean, spread, weights, level, score_spread, peaks = (
        np.array(value[name], dtype=object).astype(np.float64)
        for name in ("mean", "spread", "weights", "level", "score_spread", "peaks")
    )
    usual = Usual(mean, spread)
    return FailureScore(value["name"], usual, weights, level, score_spread, peaks, value["policy"])


def score_of(takes: Sequence[Take], name: str) -> FailureScore:
    """Fit a score to takes of one policy and station that went well.

    In the embedded cell with the weights that ship; elsewhere nothing that was fitted in the cell
    counts: every deviation from the station's own successes weighs the same.

    Raises:
        UnusableInputError: too few of them.
    """
    tracks = [track_of(t) for t in takes if t.outcome is Outcome.SUCCESS]
    in_cell = ground_of(takes) is Ground.CELL
    weights = shipped_score().weights if in_cell else np.ones(2 * len(STREAMED))
    return fit_score([t for t in tracks if len(t.t_s)], weights, name)


def track_of(take: Take) -> SignalTrack:
    """Return the live signals along a recorded take."""
    motion = TakeView(take, images=False).motion
    if motion is None:
        return SignalTrack(np.empty(0), np.empty((0, 0)), failed=True)
    tracker = SignalTracker(motion.joints, motion.rate_hz, take.info.fps)
    for tick in turns(take):
        tracker.tick(tick)
    return tracker.track(take.outcome is not Outcome.SUCCESS)


def turns(take: Take) -> Iterator[Tick]:
    """Yield a take's turns: commands, readings, currents, loads, and the scene at its frames."""
    view = TakeView(take, images=False)
    motion = view.motion
    if motion is None:
        return
    record, unknown = take.telemetry, np.full(len(motion.joints), np.nan)
    named = [arm for arm in record.arms() if record.joints(arm) == motion.joints]
    named.sort(key=lambda arm: arm != "follower")
    loads = record.stack(named[0], "load_pct") if named else None
    scene, frames_s = view.scene, take.frames.t_s
    frame = 0
    for k, t_s in enumerate(motion.t_s):
        is_frame = frame < len(frames_s) and frames_s[frame] <= t_s + 1e-4
        state = FollowerState(
            float(t_s), motion.position_rad[k], unknown, motion.current_a[k],
            loads[k] if loads is not None else unknown, unknown, unknown,
            np.zeros(len(motion.joints), dtype=np.int64),
        )  # fmt: skip
        sent = motion.sent_rad[k]
        yield Tick(
            index=k,
            t_s=float(t_s),
            period_s=1.0 / motion.rate_hz,
            lateness_s=0.0,
            leader=LeaderSample(float(t_s), sent),
            command=SafeCommand(sent, sent),
            state=state,
            frames={},
            environment_state=scene[frame] if is_frame and scene is not None else None,
            policy_frame=is_frame,
        )
        frame += is_frame
