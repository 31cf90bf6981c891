"""Injected gaps: what makes the embedded "real" cell differ from the nominal one.

`mechanism` says what a mechanism is and where it may act, `mechanisms` has them, `randomised` those
that only training draws or a twin alone says, `readings` a twin's noise; anybody's own come from a
module that `add_mechanisms` is given. Here the gaps of a station are drawn and put into a cell.

A gap is drawn once per station (from `gap_seed`): which mechanism, which direction, and how
the severity is shared out. What changes from take to take is drawn from the take's seed.
"""

import importlib
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final, Literal

from gaploop.core.errors import UnusableInputError, unknown_choice
from gaploop.core.vocabulary import dimension
from gaploop.sim.gaps.mechanism import Appliers, Values, stream
from gaploop.sim.gaps.mechanism import Mechanism as Mechanism
from gaploop.sim.gaps.mechanism import Parameter as Parameter
from gaploop.sim.gaps.mechanisms import MECHANISMS as MECHANISMS
from gaploop.sim.gaps.randomised import MEASURED
from gaploop.sim.gaps.randomised import RANDOMISED as RANDOMISED
from gaploop.sim.gaps.readings import READINGS

HeldOut = Literal["any", "never", "only", "blind"]
MODULES: Final = "GAPLOOP_GAPS_MODULES"
"""Modules with further mechanisms, by comma, for the worker processes that this one starts."""
_ADDED: dict[str, tuple[Mechanism, ...]] = {}


def add_mechanisms(module: str) -> None:
    """Add the mechanisms of a module, its tuple `MECHANISMS`, here and in worker processes.

    Args:
        module: its name as `import` takes it, such as my_lab.gaps.

    Raises:
        UnusableInputError: it can't be imported, or has no such tuple, or a name that is taken.
    """
    if module in _ADDED:
        return
    try:
        found = getattr(importlib.import_module(module), "MECHANISMS", None)
    except Exception as error:  # whatever somebody's module raises
        raise UnusableInputError(
            f"gaps_module={module} can't be imported ({type(error).__name__}: {error}). Name "
            "a module that is installed or lies in a folder of PYTHONPATH."
        ) from error
    if not found or not all(isinstance(m, Mechanism) for m in found):
        raise UnusableInputError(
            f"gaps_module={module} has no MECHANISMS, a tuple of Mechanism objects "
            "(docs/extend/architecture.md, A gap)."
        )
    taken = {m.key for m in (*_known_gaps(), *MEASURED, READINGS, *RANDOMISED)}
    for key in sorted({m.key for m in found} & taken):
        raise UnusableInputError(
            f"gaps_module={module}: there is a mechanism {key} already. Name it otherwise."
        )
    _ADDED[module] = tuple(found)
    known = os.environ.get(MODULES, "").split(",")
    os.environ[MODULES] = ",".join(dict.fromkeys(filter(None, [*known, module])))


def _gaps() -> tuple[Mechanism, ...]:
    """Return the mechanisms that a gap may be drawn from."""
    for module in filter(None, os.environ.get(MODULES, "").split(",")):
        add_mechanisms(module)
    return _known_gaps()


def _known_gaps() -> tuple[Mechanism, ...]:
    return (*MECHANISMS, *(m for added in _ADDED.values() for m in added))


def all_mechanisms() -> dict[str, Mechanism]:
    """Return all mechanisms by "dimension.mechanism", also those of which no gap is drawn."""
    return {m.key: m for m in (*_gaps(), *MEASURED, READINGS, *RANDOMISED)}


@dataclass(frozen=True)
class InjectedGap:
    """A gap as drawn for one station; written to truth.jsonl and nowhere else.

    Attributes:
        parameters: physical quantities, named with their units.
        held_out: whether the mechanism is kept out of training.
        blind: whether, moreover, nobody who diagnoses was told of it.
    """

    dimension: str
    mechanism: str
    severity: float
    parameters: Mapping[str, float]
    held_out: bool
    blind: bool = False

    @property
    def key(self) -> str:
        """Its mechanism's name among all: "dimension.mechanism"."""
        return f"{self.dimension}.{self.mechanism}"


def mechanisms_of(name: str, held_out: HeldOut = "any") -> tuple[Mechanism, ...]:
    """Mechanisms of a dimension, optionally without, or only, those kept out of training.

    Blind ones come only by `held_out="blind"`, and then alone; none of those `by_name`.

    Raises:
        UnknownChoiceError: for an unknown dimension.
    """
    wanted = dimension(name, "gaps")
    keep = {"any": (False, True), "never": (False,), "only": (True,), "blind": (True,)}[held_out]
    return tuple(
        m
        for m in _gaps()
        if m.dimension == wanted
        and m.held_out in keep
        and m.blind == (held_out == "blind")
        and not m.by_name
    )


def draw_gaps(
    gaps: Mapping[str, float], seed: int, held_out: HeldOut = "any"
) -> tuple[InjectedGap, ...]:
    """Draw mechanism, direction and magnitude of every gap of a station, in the order of `gaps`.

    Args:
        gaps: dimension, or "dimension.mechanism", to severity in [0, 1].
        seed: draws mechanism and direction. Each mechanism draws by its own name, so that neither
            a further gap nor a further mechanism changes another's draw.
        held_out: as in `mechanisms_of`. A mechanism given by name is always taken.

    Raises:
        UnknownChoiceError: for an unknown dimension or mechanism.
        UnusableInputError: for a severity outside [0, 1].
    """
    drawn = []
    for key, severity in gaps.items():
        if not 0.0 <= severity <= 1.0:
            raise UnusableInputError(f"Severity of gap '{key}' is {severity}: give 0 to 1.")
        if "." in key:
            mechanism = mechanism_named(key)
        else:
            # Each draws a lot by its own name: a new mechanism wins some seeds, and of the others
            # none changes.
            mechanism = max(
                mechanisms_of(key, held_out),
                key=lambda m: float(stream([seed], m.key, "lot").random()),
            )
        values = mechanism.draw(stream([seed], mechanism.key), severity) if severity else {}
        drawn.append(
            InjectedGap(
                mechanism.dimension.value,
                mechanism.name,
                float(severity),
                {name: float(value) for name, value in values.items()},
                mechanism.held_out,
                mechanism.blind,
            )
        )
    return tuple(drawn)


def mechanism_named(key: str) -> Mechanism:
    """Return the mechanism of a "dimension.mechanism", or raise UnknownChoiceError."""
    name, _, wanted = key.partition(".")
    choices = {m.name: m for m in _gaps() if m.dimension == dimension(name, "gaps")}
    if wanted not in choices:
        raise unknown_choice(f"mechanism of {name}", wanted, choices, "gaps")
    return choices[wanted]


def put_into(
    on: Appliers, injected: Sequence[InjectedGap], given: Mapping[str, Values] | None = None
) -> None:
    """Put gaps into a cell as they were drawn, and mechanisms with values as they were given.

    A gap of severity 0 does nothing. `given` is "dimension.mechanism" to values of its parameters,
    where a twin or a randomisation says them; they count instead of a gap of the same mechanism.

    Raises:
        UnknownChoiceError: for an unknown mechanism or parameter.
        UnusableInputError: for a value out of range.
    """
    known, values = all_mechanisms(), dict[str, Values]()
    for gap in injected:
        if gap.severity > 0.0:
            values[gap.key] = known[gap.key].relative(gap.parameters, on)
    for key, given_values in (given or {}).items():
        if key not in known:
            raise unknown_choice("mechanism", key, known, "parameters")
        values[key] = given_values
    for key, mechanism in known.items():  # in one order, whatever the order they were asked in
        if key in values:
            mechanism.put(values[key], on)
