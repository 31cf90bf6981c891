"""A running failure score, calibrated on takes that went well.

Each live signal is set against what successful takes show *at the same elapsed time*, in spreads,
upwards and downwards. The score is a weighted sum of these deviations, standardised by time again.
The alarm's threshold is the split-conformal quantile (Vovk et al. 2005; for time-varying bands
Diquigiovanni et al. 2022, arXiv:2106.01792, and for policies Xu et al. 2025, arXiv:2503.08558) of
the highest score of each successful take, so that one alarms with at most the stated probability. A
take that outlasts them all is set against the last time at which enough of them ran.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final

import numpy as np

from gaploop.core.errors import DAMAGE, UnusableInputError
from gaploop.core.files import read_json, write_json
from gaploop.core.messages import FloatArray
from gaploop.failure_analysis.live.signals import STREAMED
from gaploop.failure_analysis.signals.registry import registry

SCHEMA: Final = "gaploop.live.v1"
FEATURES: Final = (*STREAMED, "chunk_disagreement_rad")
"""What the score looks at: the streamed signals, and the policy's own change of plan."""
EVERY_S: Final = 0.1
"""How often the score is computed [s]."""
BIN_S: Final = 0.2
LEAST_RUNNING: Final = 8
"""Successful takes that must still run for their spread to mean something."""
LEAST_TAKES: Final = 10
"""Successful takes that a score is fitted to; a low false-alarm rate needs more of them."""
FOLDS: Final = 5


@dataclass(frozen=True)
class SignalTrack:
    """The live signals along one take, shape (m, len(FEATURES)), NaN where unseen."""

    t_s: FloatArray
    values: FloatArray
    failed: bool


@dataclass(frozen=True)
class Usual:
    """What successful takes show by elapsed time: mean and spread, shape (bins, len(FEATURES)).

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
        floors = np.array([registry()[name].floor for name in FEATURES])
        mean, spread = np.empty((2, bins, len(FEATURES)))
        for b in range(bins):
            rows = np.concatenate([t.values[_bin(t.t_s, b)] for t in tracks])
            seen = np.isfinite(rows).sum(axis=0) >= LEAST_RUNNING
            shown = np.where(seen, rows, 0.0)
            mean[b] = np.where(seen, np.nanmean(shown, axis=0), np.nan)
            spread[b] = np.maximum(np.nanstd(shown, axis=0), floors)
        return cls(mean, spread)

    def deviations(self, t_s: FloatArray, values: FloatArray) -> FloatArray:
        """Return log(1 + deviation), upwards and downwards, shape (m, 2 * len(FEATURES)).

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
        weights: of the deviations, shape (2 * len(FEATURES),).
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
        return self.standardised(track.t_s, self.usual.deviations(track.t_s, track.values))

    def standardised(self, t_s: FloatArray, deviations: FloatArray) -> FloatArray:
        """Return the score of deviations at times [s], shape (m,)."""
        place = np.clip((t_s / BIN_S).astype(int), 0, len(self.level) - 1)
        return np.asarray((deviations @ self.weights - self.level[place]) / self.spread[place])

    def threshold(self, false_alarms: float) -> float:
        """Return the score that so many of the successful takes exceed; infinite where none may."""
        rank = math.ceil((len(self.peaks) + 1) * (1.0 - false_alarms))
        return float(self.peaks[rank - 1]) if rank <= len(self.peaks) else math.inf

    def p_value(self, peak: float) -> float:
        """Return the conformal p-value of a highest score so far: small where it is unusual."""
        above = len(self.peaks) - int(np.searchsorted(self.peaks, peak))
        return (above + 1) / (len(self.peaks) + 1)

    def save(self, path: Path) -> None:
        """Write it as JSON, atomically."""
        arrays = {
            "mean": self.usual.mean, "spread": self.usual.spread, "weights": self.weights,
            "level": self.level, "score_spread": self.spread, "peaks": self.peaks,
        }  # fmt: skip
        data = {k: _plain(v) for k, v in arrays.items()}
        notes = {"schema": SCHEMA, "name": self.name, "policy": self.policy, "features": FEATURES}
        write_json(path, {**notes, **data})

    @classmethod
    def load(cls, path: Path) -> FailureScore:
        """Read what `save` wrote.

        Raises:
            UnusableInputError: it is missing, damaged or of other signals.
        """
        value = read_json(path)
        if not isinstance(value, dict) or value.get("schema") != SCHEMA:
            raise UnusableInputError(f"{path} is not a live score (schema {SCHEMA}).")
        try:
            if tuple(value["features"]) != FEATURES:
                raise UnusableInputError(f"{path} was fitted to other signals. Fit it again.")
            usual = Usual(_array(value["mean"]), _array(value["spread"]))
            return cls(
                str(value["name"]),
                usual,
                _array(value["weights"]),
                _array(value["level"]),
                _array(value["score_spread"]),
                _array(value["peaks"]),
                str(value["policy"]),
            )
        except DAMAGE as error:
            raise UnusableInputError(f"{path} is damaged ({error}). Fit it again.") from None


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
            f"{len(tracks)} successful takes are too few to say what is usual by elapsed time: "
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


def _plain(values: FloatArray) -> Any:
    if values.ndim > 1:
        return [_plain(row) for row in values]
    return [None if math.isnan(v) else round(v, 6) for v in values.tolist()]


def _array(values: Any) -> FloatArray:
    return np.array(values, dtype=object).astype(np.float64)


def explain(score: FailureScore, t_s: float, values: Mapping[str, float]) -> str:
    """Return in words the deviation that adds most to the score at a time [s]."""
    row = np.array([[values.get(name, np.nan) for name in FEATURES]])
    parts = score.usual.deviations(np.array([t_s]), row)[0] * score.weights
    name = FEATURES[int(np.argmax(parts)) % len(FEATURES)]
    spec = registry()[name]
    return spec.describe(values[name])
