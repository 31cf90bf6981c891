"""`station_twin.yaml`: what was measured of a station, as changes of the nominal simulated cell.

Each parameter is one of a gap mechanism (`sim.gaps`), named "dimension.mechanism.parameter", of the
whole cell or of one joint. What the takes couldn't tell is listed too, with `excited: false`: the
cell keeps its nominal value there.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Final

import yaml

from gaploop.core.errors import UnusableInputError
from gaploop.core.files import write_atomically
from gaploop.core.schema import check_keys, load_yaml, mapping, number
from gaploop.core.vocabulary import dimension

SCHEMA: Final = "gaploop.twin.v1"


@dataclass(frozen=True)
class TwinParameter:
    """One measured quantity.

    Attributes:
        name: "dimension.mechanism.parameter", such as actuator_response.latency.latency_s.
        unit: such as "s"; "1" for a factor, a fraction or a count.
        nominal: value in the nominal cell.
        estimate: value measured; the nominal one where the takes couldn't tell.
        interval: 90 % interval of the estimate; infinite ends where the takes couldn't tell.
        excited: whether the takes could tell.
        source: what it was measured from, such as "probe: 4 motions".
        joint: whose it is; "" for the whole arm or cell.
    """

    name: str
    unit: str
    nominal: float
    estimate: float
    interval: tuple[float, float]
    excited: bool
    source: str
    joint: str = ""

    @property
    def mechanism(self) -> str:
        """The mechanism's key, "dimension.mechanism"."""
        return self.name.rpartition(".")[0]

    @property
    def key(self) -> str:
        """Its name among the mechanism's values: "parameter", or "joint.parameter"."""
        parameter = self.name.rpartition(".")[2]
        return f"{self.joint}.{parameter}" if self.joint else parameter

    @property
    def differs(self) -> bool:
        """Whether the interval leaves the nominal value out."""
        low, high = self.interval
        return self.excited and not low <= self.nominal <= high


@dataclass(frozen=True)
class Twin:
    """A station as it was measured.

    Attributes:
        arm: the cell's arm, such as so101.
        parameters: what was measured, and what couldn't be.
        made_from: each journal or dataset: `id`, `sha256`, `uids`.
        fit: how well it fits; `open_loop_error_before`, `open_loop_error_after` on takes that were
            held out [rad], and whatever else the fit has to report.
    """

    station: str
    arm: str
    parameters: tuple[TwinParameter, ...]
    made_from: tuple[Mapping[str, Any], ...] = ()
    fit: Mapping[str, Any] = field(default_factory=dict)

    def values(self, mechanisms: Iterable[str] | None = None) -> dict[str, dict[str, float]]:
        """Return what differs from nominal, as `SimCell(parameters=…)` takes it.

        With `mechanisms` only of those, by "dimension.mechanism".
        """
        wanted = self.mechanisms if mechanisms is None else set(mechanisms)
        return {
            mechanism: {
                p.key: p.estimate for p in self.parameters if p.mechanism == mechanism and p.excited
            }
            for mechanism in self.mechanisms
            if mechanism in wanted
        }

    @property
    def mechanisms(self) -> tuple[str, ...]:
        """The mechanisms of which something differs from nominal, in the file's order."""
        return tuple(dict.fromkeys(p.mechanism for p in self.parameters if p.differs))


def save_twin(twin: Twin, path: Path) -> None:
    """Write `station_twin.yaml`, atomically."""
    value = {
        "schema": SCHEMA,
        "station": twin.station,
        "arm": twin.arm,
        "made_from": [dict(source) for source in twin.made_from],
        "parameters": [
            {k: _plain(v) for k, v in asdict(p).items() if v != ""} for p in twin.parameters
        ],
        "fit": dict(twin.fit),
    }
    write_atomically(path, yaml.safe_dump(value, sort_keys=False, allow_unicode=True).encode())


def _plain(value: Any) -> Any:
    """Return a value as YAML takes it: pairs as lists, NumPy's numbers as Python's."""
    if isinstance(value, tuple):
        return [float(end) for end in value]
    return float(value) if isinstance(value, float) else value


def load_twin(path: Path) -> Twin:
    """Read and check a `station_twin.yaml`.

    Whether the cell has such mechanisms and parameters is checked where it is built.

    Raises:
        UnusableInputError: what is wrong in it, where, and what is valid.
    """
    value, where = load_yaml(path, "Twin"), str(path)
    if value.get("schema") != SCHEMA:
        raise UnusableInputError(
            f"{where} is no station twin (schema {value.get('schema')!r}, expected {SCHEMA}). "
            "Make one with gaploop identify."
        )
    keys = ("schema", *Twin.__dataclass_fields__)
    check_keys(value, keys, where, ("station", "arm", "parameters"))
    rows, sources = value["parameters"], value.get("made_from") or []
    for name, found in (("parameters", rows), ("made_from", sources)):
        if not isinstance(found, list) or not all(isinstance(entry, dict) for entry in found):
            raise UnusableInputError(f"{where}: {name} must be a list of mappings.")
    station, arm = (_text(value[key], f"{where}: {key}") for key in ("station", "arm"))
    parameters = []
    for k, row in enumerate(rows, 1):
        place = f"{where}: parameter {k}"
        needed = ("name", "unit", "nominal", "estimate", "interval")
        check_keys(row, TwinParameter.__dataclass_fields__, place, needed)
        name = _text(row["name"], f"{place}: name")
        if name.count(".") != 2:
            raise UnusableInputError(
                f"{place}: name must be dimension.mechanism.parameter, such as "
                f"actuator_response.latency.latency_s; got {name!r}."
            )
        dimension(name.partition(".")[0], place)
        ends = row["interval"]
        if not isinstance(ends, list) or len(ends) != 2:
            raise UnusableInputError(f"{place}: interval must be [low, high], got {ends!r}.")
        low, high = (number(end, f"{place}: interval", -math.inf, math.inf) for end in ends)
        nominal, estimate = (
            number(row[key], f"{place}: {key}", -math.inf, math.inf)
            for key in ("nominal", "estimate")
        )
        excited = row.get("excited", True)
        if not isinstance(excited, bool):
            raise UnusableInputError(f"{place}: excited must be true or false, got {excited!r}.")
        if not low <= estimate <= high:
            raise UnusableInputError(
                f"{place}: estimate {estimate:g} lies outside its interval [{low:g}, {high:g}]."
            )
        parameters.append(
            TwinParameter(
                name,
                _text(row["unit"], f"{place}: unit"),
                nominal,
                estimate,
                (low, high),
                excited,
                _text(row.get("source", "by hand"), f"{place}: source"),
                _text(row["joint"], f"{place}: joint") if "joint" in row else "",
            )
        )
    fit = mapping(value.get("fit"), f"{where}: fit", "name: number")
    return Twin(station, arm, tuple(parameters), tuple(sources), fit)


def _text(value: Any, where: str) -> str:
    if not isinstance(value, str) or not value.strip():
        raise UnusableInputError(f"{where} must be text, got {value!r}.")
    return value
