"""A corpus of labelled takes: which stations there are, and which part of the benchmark each is.

A *station* is one cell as drawn (task, gaps with mechanism, severity and direction) driven by one
controller. Three things are held out: a task, severities and mechanisms. A station's part follows
from which of them it shares with training; see docs/figures/attribution_benchmark.md.
"""

from __future__ import annotations

import hashlib
import itertools
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Final, Literal

import numpy as np

from benchmarks.corpus.errant import ERRORS, HELD_OUT_ERRORS
from gaploop.core.vocabulary import GapDimension
from gaploop.sim.gaps import HeldOut, add_mechanisms, mechanisms_of

TRAIN_TASKS: Final = ("pick_place", "pick_lift")
TEST_TASK: Final = "stack_cube"
TRAIN_SEVERITIES: Final = (0.6, 0.8, 1.0)
TEST_SEVERITIES: Final = (0.3, 0.5, 0.7, 0.9)
"""Between those of training, and below them."""
POLICY: Final = "policy"
SCRIPT: Final = "script"
CONTROLLERS: Final[Mapping[str, tuple[str, ...]]] = {
    "pick_place": (POLICY, SCRIPT),
    "pick_lift": (SCRIPT,),
    "stack_cube": (SCRIPT,),
}
"""Task to who drives: the base policy, or the scripted controller that sees by the tracker."""
SHIFTS: Final[tuple[Mapping[str, object], ...]] = (
    {"lighting": "warm", "background": "grey"},
    {"lighting": "dim", "background": "cloth"},
)
"""Stations that differ from the reference for good, for recalibration by labels."""

PARTS: Final[Mapping[str, float]] = {
    "train": 0.33,
    "train_mixed": 0.055,
    "train_none": 0.035,
    "held_task": 0.065,
    "held_severity": 0.065,
    "held_mechanism": 0.065,
    "test": 0.21,
    "test_mixed": 0.055,
    "test_none": 0.04,
    "shifted": 0.08,
}
"""Part to its share of the takes. `test` holds out task, severities and mechanisms at once."""

REFERENCE: Final = "reference"
TWIN: Final = "twin"
REFERENCE_TAKES: Final = 15
"""Nominal takes of each task and controller that say what is usual."""
TWIN_SCENES: Final = 8
"""Scenes that gaps are tried on; a nominal take of each says that it can be done."""
type Kind = Literal["train", "test", "blind"]
"""Mechanisms for training, held out, or never looked at by whoever built the model."""
BLIND: Final = "blind"
TAKES_PER_STATION: Final = 2
SCENES: Final = 3_000_000
"""First scene of the twins: neither the training's nor the evaluation's."""
REFERENCE_SCENES: Final = 3_500_000


@dataclass(frozen=True)
class DrawnStation:
    """One drawn cell and who drives in it.

    Attributes:
        key: its name, unique in the corpus; it doesn't tell what is injected.
        part: `REFERENCE`, `TWIN`, `BLIND` or one of `PARTS`.
        task: of the cell.
        controller: `POLICY`, `SCRIPT`, or an error of `errant`.
        scenes: a take is recorded on each.
        gaps: "dimension.mechanism" to severity; empty for none.
        gap_seed: draws directions.
        conditions: what is set up for good.
    """

    key: str
    part: str
    task: str
    controller: str
    scenes: tuple[int, ...]
    gaps: Mapping[str, float] = field(default_factory=dict)
    gap_seed: int = 0
    conditions: Mapping[str, object] = field(default_factory=dict)

    @property
    def usual(self) -> str:
        """Name of the reference that holds here: that of task and plain controller."""
        driver = self.controller if self.controller in (POLICY, SCRIPT) else SCRIPT
        return f"{self.task}-{driver}"


def draw_corpus(takes: int, seed: int, blind: bool = False) -> list[DrawnStation]:
    """Draw a corpus of about `takes` takes; equal arguments give equal stations.

    The parts take turns, so that the beginning of a corpus is a small one, and a larger corpus of
    the same seed holds the smaller one.

    Args:
        takes: besides the nominal ones; parts are rounded.
        seed: draws combinations, directions and scenes.
        blind: only the part of the mechanisms that nobody has looked at.
    """
    if blind:
        every = list(_singles(CONTROLLERS, TEST_SEVERITIES + TRAIN_SEVERITIES, BLIND))
        return [*_nominal(), *_stations(BLIND, every, takes, seed)]
    drawn = []
    for part, combinations in _combinations().items():
        found = _stations(part, combinations, round(takes * PARTS[part]), seed)
        drawn += [((n + 0.5) / len(found), station) for n, station in enumerate(found)]
    drawn.sort(key=lambda pair: pair[0])
    return [*_nominal(), *(station for _, station in drawn)]


@dataclass(frozen=True)
class _Combination:
    task: str
    controller: str
    gaps: tuple[tuple[str, float], ...] = ()
    conditions: Mapping[str, object] = field(default_factory=dict)


def _stations(
    part: str, combinations: Sequence[_Combination], takes: int, seed: int
) -> list[DrawnStation]:
    """Return stations of about `takes` takes; each dimension comes equally often."""
    mark = list(part.encode())
    order = _balanced(combinations, np.random.default_rng([seed, 91, *mark]))
    count = max(1, round(takes / TAKES_PER_STATION)) if combinations else 0
    chosen = enumerate(itertools.islice(itertools.cycle(order), count))
    return [_station(part, n, c, np.random.default_rng([seed, 92, n, *mark])) for n, c in chosen]


def _station(
    part: str, number: int, chosen: _Combination, rng: np.random.Generator
) -> DrawnStation:
    drawn = rng.choice(TWIN_SCENES, TAKES_PER_STATION, replace=False)
    return DrawnStation(
        _key(part, number),
        part,
        chosen.task,
        chosen.controller,
        tuple(SCENES + int(k) for k in drawn),
        dict(chosen.gaps),
        int(rng.integers(1_000_000)),
        chosen.conditions,
    )


def _balanced(combinations: Sequence[_Combination], rng: np.random.Generator) -> list[_Combination]:
    """Shuffle, then take turns between the groups of equal dimensions or errors."""
    groups: dict[str, list[_Combination]] = {}
    for n in rng.permutation(len(combinations)):
        c = combinations[int(n)]
        name = "+".join(sorted(k.partition(".")[0] for k, _ in c.gaps)) or c.controller
        groups.setdefault(name, []).append(c)
    longest = max((len(g) for g in groups.values()), default=0)
    turns = [[g[n % len(g)] for g in groups.values()] for n in range(longest)]
    return [c for turn in turns for c in turn]


def _drivers() -> list[tuple[str, str]]:
    return [(task, driver) for task, drivers in CONTROLLERS.items() for driver in drivers]


def _nominal() -> list[DrawnStation]:
    """Return gap-free stations: for the references, and a twin of every scene that gaps get."""
    stations: list[DrawnStation] = []
    for part, first, count in (
        (REFERENCE, REFERENCE_SCENES, REFERENCE_TAKES),
        (TWIN, SCENES, TWIN_SCENES),
    ):
        for task, driver in _drivers():
            scenes = tuple(range(first, first + count))
            key = _key(part, len(stations))
            stations.append(DrawnStation(key, part, task, driver, scenes))
    return stations


def _key(part: str, number: int) -> str:
    """Return a station's name, which doesn't tell what is in it."""
    return hashlib.sha256(f"{part} {number}".encode()).hexdigest()[:8]


def _combinations() -> dict[str, list[_Combination]]:
    """Return part to everything that it draws from."""
    train = {task: CONTROLLERS[task] for task in TRAIN_TASKS}
    test = {TEST_TASK: CONTROLLERS[TEST_TASK]}
    return {
        "train": list(_singles(train, TRAIN_SEVERITIES, "train")),
        "train_mixed": list(_pairs(train, TRAIN_SEVERITIES, "train")),
        "train_none": list(_errors(TRAIN_TASKS, ERRORS)),
        "held_task": list(_singles(test, TRAIN_SEVERITIES, "train")),
        "held_severity": list(_singles(train, TEST_SEVERITIES, "train")),
        "held_mechanism": list(_singles(train, TRAIN_SEVERITIES, "test")),
        "test": list(_singles(test, TEST_SEVERITIES, "test")),
        "test_mixed": list(_pairs(test, TEST_SEVERITIES[2:], "test")),
        "test_none": list(_errors((TEST_TASK,), HELD_OUT_ERRORS)),
        "shifted": [
            replace(c, conditions=shift)
            for shift in SHIFTS
            for c in _singles({"pick_place": (SCRIPT,)}, TRAIN_SEVERITIES, "train")
        ],
    }


def mechanism_names(kind: Kind) -> list[str]:
    """Return "dimension.mechanism" of those for training, held out, or never looked at."""
    add_mechanisms("benchmarks.blind_gaps")
    held_out: dict[Kind, HeldOut] = {"train": "never", "test": "only", "blind": "blind"}
    return [
        f"{d.value}.{m.name}" for d in GapDimension for m in mechanisms_of(d.value, held_out[kind])
    ]


def _possible(task: str, gap: str) -> bool:
    """Whether a gap can show: lifting has no goal on the table to restate."""
    return not (task == "pick_lift" and gap.startswith("task_specification"))


def _singles(
    drivers: Mapping[str, Sequence[str]], severities: Sequence[float], kind: Kind
) -> Iterator[_Combination]:
    for task, names in drivers.items():
        for driver, gap, severity in itertools.product(names, mechanism_names(kind), severities):
            if _possible(task, gap):
                yield _Combination(task, driver, ((gap, severity),))


def _pairs(
    drivers: Mapping[str, Sequence[str]], severities: Sequence[float], kind: Kind
) -> Iterator[_Combination]:
    """Yield two gaps of different dimensions, both at the same severity."""
    for task, names in drivers.items():
        gaps = [g for g in mechanism_names(kind) if _possible(task, g)]
        for driver, (a, b), severity in itertools.product(
            names, itertools.combinations(gaps, 2), severities
        ):
            if a.partition(".")[0] != b.partition(".")[0]:
                yield _Combination(task, driver, ((a, severity), (b, severity)))


def _errors(tasks: Sequence[str], errors: Sequence[str]) -> Iterator[_Combination]:
    for task, error in itertools.product(tasks, errors):
        if not (task == "pick_lift" and error == "wrong_target"):
            yield _Combination(task, error)
