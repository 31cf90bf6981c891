"""What recording costs at a station: the `costs` of `station.yaml`."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from gaploop.core.errors import UnusableInputError
from gaploop.core.schema import check_keys, mapping, number

_RANGES: Final[dict[str, tuple[float, float]]] = {
    "take_s": (0.1, 36_000.0),
    "reset_s": (0.0, 36_000.0),
    "setup_s": (0.0, 36_000.0),
    "rate_per_hour": (0.0, 1e6),
}


@dataclass(frozen=True)
class Costs:
    """Times and rates of a station; what is None is measured from takes, or assumed.

    Attributes:
        take_s: length of a take [s].
        reset_s: from the end of a take to the start of the next of the same set-up [s].
        setup_s: what a change of set-up adds to that [s].
        rate_per_hour: operator and station [`currency` per hour].
        currency: such as EUR.
    """

    take_s: float | None = None
    reset_s: float | None = None
    setup_s: float | None = None
    rate_per_hour: float | None = None
    currency: str = "EUR"


def parse_costs(value: object, where: str) -> Costs:
    """Read and check a mapping of costs.

    Raises:
        UnusableInputError: a key or value that isn't valid.
    """
    given = dict(mapping(value, f"{where}: costs", "cost: number"))
    check_keys(given, (*_RANGES, "currency"), f"{where}: costs")
    currency = given.pop("currency", Costs.currency)
    if not isinstance(currency, str) or not currency.strip():
        raise UnusableInputError(
            f"{where}: costs: currency must be a name such as EUR, got {currency!r}."
        )
    checked = {
        name: number(entry, f"{where}: costs: {name}", *_RANGES[name])
        for name, entry in given.items()
        if entry is not None
    }
    return Costs(**checked, currency=currency)
