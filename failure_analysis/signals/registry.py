"""The registry of signals: named numbers that say one thing about one take, with their unit.

A signal is NaN where the take lacks its channel; `measure` then also says what it couldn't see.
"""

import contextlib
import importlib
import math
import pkgutil
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from functools import cache
from typing import Final

from gaploop.core.errors import unknown_choice
from gaploop.failure_analysis.views.view import TakeView

SOURCES: Final = ("motion", "currents", "loads", "scene", "force", "touch", "images")

_SHOWN: Final[dict[str, tuple[float, str]]] = {
    "rad": (180 / math.pi, "°"),
    "rad/s": (180 / math.pi, "°/s"),
    "m": (1000.0, " mm"),
    "s": (1000.0, " ms"),
    "share": (100.0, " %"),
    "": (1.0, ""),
}
"""Unit to the factor and symbol that people read it in."""


@dataclass(frozen=True)
class Signal:
    """One measurement.

    Attributes:
        unit: unit of its value; "share" is 0 to 1, "" has none.
        source: the channel it needs, one of `SOURCES`.
        floor: a spread below this [unit] means nothing, however alike the nominal takes were.
        sentence: `{value}` in it, for the evidence.
        compute: from a view of the take to the value, NaN where it can't tell.
    """

    name: str
    unit: str
    source: str
    floor: float
    doc: str
    sentence: str
    compute: Callable[[TakeView], float]

    def show(self, value: float) -> str:
        """Return `value` as people read it: degrees, millimetres, milliseconds, per cent."""
        factor, symbol = _SHOWN.get(self.unit, (1.0, f" {self.unit}"))
        number = value * factor
        digits = 0 if abs(number) >= 100 else 1 if abs(number) >= 10 else 2
        return f"{number:.{digits}f}{symbol}"

    def describe(self, value: float) -> str:
        """Return the signal's sentence about `value`."""
        return self.sentence.format(value=self.show(value))


REGISTRY: Final[dict[str, Signal]] = {}


class MissingChannelError(Exception):
    """A signal's channel is missing in a take."""


def known[T](channel: T | None) -> T:
    """Return a channel of a take; without it the signal that asks is NaN.

    Raises:
        MissingChannelError: the take lacks it.
    """
    if channel is None:
        raise MissingChannelError
    return channel


def signal(
    unit: str, source: str, floor: float, sentence: str
) -> Callable[[Callable[[TakeView], float]], Callable[[TakeView], float]]:
    """Register the decorated function as a signal of its name, its docstring as the doc."""
    if source not in SOURCES:
        raise unknown_choice("signal source", source, SOURCES)

    def register(function: Callable[[TakeView], float]) -> Callable[[TakeView], float]:
        doc = " ".join((function.__doc__ or "").split())
        name = function.__name__
        REGISTRY[name] = Signal(name, unit, source, floor, doc, sentence, function)
        return function

    return register


def signals_read(
    source: str,
    read: Callable[[TakeView, str], float],
    rows: Iterable[tuple[str, str, float, str, str, str]],
) -> None:
    """Register what one look at a take tells: name, unit, floor, sentence, key of `read`, doc."""
    for name, unit, floor, sentence, key, doc in rows:

        def compute(view: TakeView, key: str = key) -> float:
            return read(view, key)

        REGISTRY[name] = Signal(name, unit, source, floor, doc, sentence, compute)


@cache
def registry() -> Mapping[str, Signal]:
    """Return every signal of every module of this package by name."""
    from gaploop.failure_analysis import signals

    for module in pkgutil.iter_modules(signals.__path__):  # importing them registers theirs
        importlib.import_module(f"{signals.__name__}.{module.name}")
    return REGISTRY


@dataclass(frozen=True)
class TakeSignals:
    """The signals of one take, NaN where one couldn't be seen, and by source why none could.

    `row_s` is the time between two rows of the motion that they were read from [s], 0 if unknown.
    """

    values: Mapping[str, float]
    unseen: Mapping[str, str]
    row_s: float = 0.0

    def __getitem__(self, name: str) -> float:
        return self.values.get(name, math.nan)


def measure(view: TakeView) -> TakeSignals:
    """Compute every signal of a take."""
    unseen = view.blind()
    values = dict.fromkeys(registry(), math.nan)
    for name, spec in registry().items():
        if spec.source not in unseen:
            with contextlib.suppress(MissingChannelError):
                values[name] = float(spec.compute(view))
    return TakeSignals(values, unseen, 1.0 / view.motion.rate_hz if view.motion else 0.0)


@dataclass(frozen=True)
class Evidence:
    """An observation that speaks for a diagnosis; its value is NaN where only the words say it."""

    signal: str
    value: float
    unit: str
    message: str
