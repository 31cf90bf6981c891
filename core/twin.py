"""`station_twin.yaml`: what was measured of a station, as changes of the nominal simulated cell.
And ranges that a cell is drawn from anew for every take.

Each parameter is one of a gap mechanism (`sim.gaps`), named "dimension.mechanism.parameter", of the
whole cell or of one joint. What the takes couldn't tell is listed too, with `excited: false`: the
cell keeps its nominal value there.
"""

import math
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, Final

import yaml

from gaploop.core import schema
from gaploop.core.errors import UnusableInputError
from gaploop.core.files import write_atomically
from gaploop.core.vocabulary import dimension

SCHEMA: Final = "gaploop.twin.v1"
ANY_NUMBER: Final = {"range": (-math.inf, math.inf)}


def _numbers(value: Any, where: str) -> tuple[float, ...]:
    if not isinstance(value, list):
        raise UnusableInputError(f"{where} must be a list of numbers, got {value!r}.")
    return tuple(schema.number(v, where, -math.inf, math.inf) for v in value)


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
        draws: what it may be, where it is known together with others: draw k of each belongs
            together. It may have some where it can't be told by itself.
    """

    name: str
    unit: str
    nominal: float = field(metadata=ANY_NUMBER)
    estimate: float = field(metadata=ANY_NUMBER)
    interval: tuple[float, float] = field(
        metadata={"read": partial(schema.pair, low=-math.inf, high=math.inf)}
    )
    excited: bool = True
    source: str = "by hand"
    joint: str = ""
    draws: tuple[float, ...] = schema.read_with(_numbers, ())

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


def _sources(value: Any, where: str) -> tuple[Mapping[str, Any], ...]:
    if not isinstance(value or [], list):
        raise UnusableInputError(f"{where} must be a list of mappings.")
    return tuple(schema.mapping(entry, where, "name: value") for entry in value or [])


@dataclass(frozen=True)
class Twin:
    """A station as it was measured.

    Attributes:
        arm: the cell's arm, such as so101.
        parameters: what was measured, and what couldn't be.
        made_from: each journal or dataset: `id`, `sha256`, `uids`.
        fit: how well it fits; `open_loop_error_before`, `open_loop_error_after` on takes that were
            held out [rad], and whatever else the fit has to report.
        world: the simulation that it changes, as `env` of a suite's task names it, and its `roles`;
            {} for the embedded cell.
    """

    station: str
    arm: str
    parameters: tuple[TwinParameter, ...]
    made_from: tuple[Mapping[str, Any], ...] = schema.read_with(_sources, ())
    fit: Mapping[str, Any] = field(default_factory=dict)
    world: Mapping[str, Any] = field(default_factory=dict)

    def values(self, mechanisms: Iterable[str] | None = None) -> dict[str, dict[str, float]]:
        """Return what differs from nominal, as `SimCell(parameters=…)` takes it.

        With `mechanisms` only of those, by "dimension.mechanism". What is as it nominally is isn't
        said: a limit that no drive reached is infinite, which no file of rollouts can hold.
        """
        wanted = self.mechanisms if mechanisms is None else set(mechanisms)
        return {
            mechanism: {
                p.key: p.estimate
                for p in self.parameters
                if p.mechanism == mechanism and p.excited and p.estimate != p.nominal
            }
            for mechanism in self.mechanisms
            if mechanism in wanted
        }

    @property
    def mechanisms(self) -> tuple[str, ...]:
        """The mechanisms of which something differs from nominal, in the file's order."""
        return tuple(dict.fromkeys(p.mechanism for p in self.parameters if p.differs))

    @property
    def drawn_together(self) -> bool:
        """Whether something differs that is known only together with other quantities."""
        return any(p.draws and p.differs for p in self.parameters)


def save_twin(twin: Twin, path: Path) -> None:
    """Write `station_twin.yaml`, atomically."""
    value = {
        "schema": SCHEMA,
        "station": twin.station,
        "arm": twin.arm,
        "made_from": [dict(source) for source in twin.made_from],
        "parameters": [
            {k: _plain(v) for k, v in asdict(p).items() if v or not isinstance(v, str | tuple)}
            for p in twin.parameters
        ],
        "fit": dict(twin.fit),
        **({"world": dict(twin.world)} if twin.world else {}),
    }
    text = yaml.dump(value, Dumper=_Dumper, sort_keys=False, allow_unicode=True, width=100)
    write_atomically(path, text.encode())


class _Dumper(yaml.SafeDumper):
    """Writes tuples of numbers in a row."""


_Dumper.add_representer(
    tuple, lambda dump, v: dump.represent_sequence("tag:yaml.org,2002:seq", v, flow_style=True)
)


def _plain(value: Any) -> Any:
    """Return a value with NumPy's numbers as Python's."""
    if isinstance(value, tuple):
        return tuple(float(number) for number in value)
    return float(value) if isinstance(value, float) else value


def load_twin(path: Path) -> Twin:
    """Read and check a `station_twin.yaml`.

    Whether the cell has such mechanisms and parameters is checked where it is built.

    Raises:
        UnusableInputError: what is wrong in it, where, and what is valid.
    """
    value, where = schema.load_yaml(path, "Twin"), str(path)
    if value.pop("schema", None) != SCHEMA:
        raise UnusableInputError(f"{where} is no {SCHEMA}. Make one with gaploop identify.")
    twin = schema.read_as(Twin, value, where)
    for k, parameter in enumerate(twin.parameters, 1):
        place = f"{where}: parameter {k}"
        _check_name(parameter.name, place, 2)
        low, high = parameter.interval
        if len({len(p.draws) for p in twin.parameters if p.draws}) > 1:
            raise UnusableInputError(f"{place}: draws must be as many for each that has some.")
        if not low <= parameter.estimate <= high:
            raise UnusableInputError(
                f"{place}: estimate {parameter.estimate:g} lies outside its interval "
                f"[{low:g}, {high:g}]."
            )
    return twin


def _check_name(name: str, where: str, *dots: int) -> None:
    if name.count(".") not in dots:
        raise UnusableInputError(
            f"{where}: name must be dimension.mechanism.parameter, such as "
            f"actuator_response.latency.latency_s; got {name!r}."
        )
    dimension(name.partition(".")[0], where)


# -- ranges to draw from ---------------------------------------------------------------------

RANGES: Final = "gaploop.randomisation.v1"
EVERY: Final = ("episode", "frame")
FOLDERS: Final = ("textures", "backgrounds", "meshes")
SETTINGS: Final = ("every", *FOLDERS, "held_out")
"""What a randomisation has beside its ranges and its strength."""
DISTRIBUTIONS: Final = ("uniform", "log_uniform", "normal", "integer", "together")
"""normal: low and high are its 5th and 95th percentile; nothing is drawn twice as far out.
together: one of its values, the same one of all such ranges."""


@dataclass(frozen=True)
class Range:
    """What one parameter is drawn from.

    Attributes:
        name: "dimension.mechanism.parameter", or with a joint before the parameter.
        unit: the parameter's own, such as "m"; "1" for a factor, a fraction or a count.
        distribution: one of `DISTRIBUTIONS`.
        centre: value at strength 0; the nominal one if None.
        values: of `together`: what it is drawn from.
    """

    name: str
    low: float = field(metadata=ANY_NUMBER)
    high: float = field(metadata=ANY_NUMBER)
    unit: str
    distribution: str = schema.read_with(schema.one_of(DISTRIBUTIONS, "distribution"), "uniform")
    centre: float | None = schema.ranged(None, -math.inf, math.inf)
    values: tuple[float, ...] = schema.read_with(_numbers, ())

    @property
    def mechanism(self) -> str:
        """The mechanism's key, "dimension.mechanism"."""
        return ".".join(self.name.split(".")[:2])

    @property
    def key(self) -> str:
        """Its name among the mechanism's values."""
        return self.name.split(".", 2)[2]


@dataclass(frozen=True)
class Randomisation:
    """What every take's cell is drawn from.

    Attributes:
        name: what it is called in a take's conditions, such as "all" or the file's name.
        ranges: each is drawn by its own name, so that a further one moves no other.
        strength: 1 draws from the ranges as they are, 0.5 from half of them about the centre.
        every: "episode", or "frame": what cameras see is drawn anew for every picture.
        folders: textures, backgrounds, meshes: where they come from instead of the library.
        held_out: looks are of the categories that are held out of training, instead of the others.
    """

    name: str
    ranges: tuple[Range, ...]
    strength: float = 1.0
    every: str = "episode"
    folders: Mapping[str, Path] = field(default_factory=dict)
    held_out: bool = False

    def __post_init__(self) -> None:
        if not 0.0 <= self.strength <= 2.0:
            raise UnusableInputError(f"randomise: a strength of {self.strength:g}; give 0 to 2.")


def as_yaml(randomisation: Randomisation) -> str:
    """Return the file that `load_randomisation` reads, for a person to edit."""
    head = {"schema": RANGES, "strength": randomisation.strength, "every": randomisation.every}
    head |= {kind: str(folder) for kind, folder in randomisation.folders.items()}
    head["held_out"] = randomisation.held_out
    usual = {"strength": 1.0, "every": EVERY[0], "held_out": False}
    head = {key: value for key, value in head.items() if value != usual.get(key)}
    lines = [yaml.safe_dump(head, sort_keys=False), "ranges:\n"]
    for r in randomisation.ranges:
        row: dict[str, Any] = {"low": _short(r.low), "high": _short(r.high), "unit": r.unit}
        if r.distribution != "uniform":
            row["distribution"] = r.distribution
        if r.centre is not None:
            row["centre"] = _short(r.centre)
        if r.values:
            row["values"] = [_short(v) for v in r.values]
        said = yaml.safe_dump(row, default_flow_style=True, sort_keys=False, width=200)
        lines.append(f"  {r.name}: {said}")
    return "".join(lines)


def _short(value: float) -> float:
    return float(f"{value:.6g}")


def load_randomisation(path: Path) -> Randomisation:
    """Read and check the YAML of `--robot.randomise=FILE`, or raise UnusableInputError.

    What isn't named stays as it is. Whether the cell has such a parameter is checked where values
    are drawn (`sim.randomise`).
    """
    value, where = schema.load_yaml(path, "Randomisation"), str(path)
    if value.get("schema") != RANGES:
        raise UnusableInputError(
            f"{where} is no {RANGES}. Print one to start from: gaploop record "
            "--robot.randomise=help"
        )
    schema.check_keys(value, ("schema", "strength", "ranges", *SETTINGS), where, ("ranges",))
    rows = schema.mapping(
        value["ranges"], f"{where}: ranges", "dimension.mechanism.parameter: low, high"
    )
    ranges = []
    for name, row in rows.items():
        place = f"{where}: {name}"
        found = schema.read_as(
            Range, {**schema.mapping(row, place, "low, high, unit"), "name": str(name)}, place
        )
        _check_name(found.name, place, 2, 3)
        low, high, centre = found.low, found.high, found.centre
        if not low <= high or not math.isfinite(high - low):
            raise UnusableInputError(
                f"{place}: low {low:g} and high {high:g} are no finite range."
                " Give two numbers, the lower one first."
            )
        if (found.distribution == "together") != bool(found.values):
            raise UnusableInputError(f"{place}: together needs values, and nothing else has any.")
        if found.distribution == "log_uniform" and low <= 0.0:
            raise UnusableInputError(f"{place}: log_uniform needs a low above 0, got {low:g}.")
        if centre is not None:
            schema.number(centre, f"{place}: centre", low, high)
        ranges.append(found)
    strength = schema.number(value.get("strength", 1.0), f"{where}: strength", 0.0, 2.0)
    settings = {str(key): value[key] for key in SETTINGS if key in value}
    return Randomisation(path.stem, tuple(ranges), strength, **read_settings(settings, where))


def read_settings(given: Mapping[str, Any], where: str) -> dict[str, Any]:
    """Check what is set beside the ranges, as fields of `Randomisation`.

    Raises:
        UnusableInputError: an unknown setting, or a value that it can't have.
    """
    schema.check_keys(given, SETTINGS, where)
    found = dict[str, Any](folders={})
    for key, value in given.items():
        if key in FOLDERS:
            found["folders"][key] = folder = Path(str(value))
            if not value or not folder.is_dir():
                raise UnusableInputError(f"{where}: {key}={folder} is no folder. Name one.")
        elif key == "every":
            found[key] = schema.one_of(EVERY, "every")(value, where)
        else:
            found[key] = schema.one_of(("true", "false"), key)(str(value).lower(), where) == "true"
    return found


def around_twin(twin: Twin, strength: float = 1.0) -> Randomisation:
    """Return ranges that are what isn't known of a station: the intervals of its twin.

    What the takes couldn't tell has no interval, and stays nominal, unless it is known together
    with what differs: then all of these are drawn together.
    """
    found = list[Range]()
    for p in twin.parameters:
        name = f"{p.mechanism}.{p.key}"
        if p.draws and twin.drawn_together:
            ends = min(p.draws), max(p.draws)
            found.append(Range(name, *ends, p.unit, "together", p.estimate, p.draws))
        elif p.excited and p.mechanism in twin.mechanisms and math.isfinite(sum(p.interval)):
            found.append(Range(name, *p.interval, p.unit, "normal", p.estimate))
    return Randomisation("twin", tuple(found), strength)
