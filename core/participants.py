"""Who takes part in a campaign, as bands that name nobody: age, handedness, experience.

A plan may ask for takes of each band. Whose band is which stands beside the consent register, by
consent id, and goes when a consent is withdrawn; takes carry the id and no band.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from gaploop.core.errors import UnusableInputError, unknown_choice
from gaploop.core.schema import check_keys, mapping, whole_number

BANDS: Final[Mapping[str, tuple[str, ...]]] = {
    "age_band": ("18-29", "30-44", "45-59", "60+"),
    "handedness": ("left", "right", "both"),
    "experience": ("none", "some", "daily"),
}
"""Wide enough that a band alone tells nobody; experience is of driving robots."""


@dataclass(frozen=True)
class ParticipantQuotas:
    """What a plan asks of the people who take part.

    Attributes:
        bands: kind to band to the takes that are wanted of it at least.
        most_each: takes of one person at most; 0 for any number.
    """

    bands: Mapping[str, Mapping[str, int]]
    most_each: int = 0


def check_bands(value: Any, where: str) -> dict[str, str]:
    """Return one person's bands, kind to band, or raise UnusableInputError for an unknown one."""
    given = mapping(value, where, "kind: band")
    for kind, band in given.items():
        if kind not in BANDS:
            raise unknown_choice("kind", kind, BANDS, where)
        if band not in BANDS[kind]:
            raise unknown_choice("band", band, BANDS[kind], f"{where}: {kind}")
    return {str(kind): str(band) for kind, band in given.items()}


def parse_participants(value: Any, takes: int, where: str) -> ParticipantQuotas | None:
    """Read `participants` of a plan of `takes`, or raise UnusableInputError; None for none."""
    if value is None:
        return None
    place = f"{where}: participants"
    given = mapping(value, place, "kind: {band: takes}")
    check_keys(given, (*BANDS, "most_each"), place)
    counted = {"most_each": given.get("most_each", 0)}
    bands: dict[str, dict[str, int]] = {}
    for kind in (k for k in BANDS if k in given):
        wanted = mapping(given[kind], f"{place}: {kind}", "band: takes")
        for band, count in wanted.items():
            check_bands({kind: band}, place)
            counted[f"{kind}: {band}"] = count
        bands[kind] = {band: wanted[band] for band in BANDS[kind] if band in wanted}
    for name, count in counted.items():
        whole_number(count, f"{place}: {name}")
    for kind, wanted in bands.items():
        if sum(wanted.values()) > takes:
            raise UnusableInputError(
                f"{place}: {kind} asks for {sum(wanted.values())} takes, the plan for {takes}. "
                "Raise the takes of its items, or ask for fewer."
            )
    return ParticipantQuotas(bands, int(counted["most_each"]))
