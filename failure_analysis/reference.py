"""What is usual: robust statistics of each signal over takes that went well.

Two sources, best first: a reference given or shipped for the station, and the data's own
successful takes. Nominal values, colours, priors and the learned model were fitted in the embedded
cell: `Ground` says where takes stand, and elsewhere all that is silent.
"""

import math
from base64 import b64decode, b64encode
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from enum import StrEnum
from importlib.resources import files
from pathlib import Path
from typing import Any, Final

import numpy as np

from gaploop.core.arms import CELL_ARMS
from gaploop.core.errors import DAMAGE, UnusableInputError
from gaploop.core.files import read_json, write_json
from gaploop.core.messages import FloatArray, Image
from gaploop.core.station import SIM_STATION
from gaploop.core.take import Take
from gaploop.core.vocabulary import Domain, Outcome, TakeKind
from gaploop.failure_analysis.episode_figures import figures_of
from gaploop.failure_analysis.signals.registry import measure, registry
from gaploop.failure_analysis.views.pictures import background_of, picture_of, picture_png
from gaploop.failure_analysis.views.view import TakeView
from gaploop.sim.catalogue import INSTRUCTIONS

SCHEMA: Final = "gaploop.reference.v1"
SHIPPED: Final = "reference_so101_cell_{task}.json"
"""What is usual in the embedded cell, task by task.

Rebuilt by `python -m benchmarks reference`; for another station, `gaploop diagnose DIR
--save_reference=FILE` on episodes that went well.
"""
OWN_TAKES: Final = "the data's own successful episodes"
SHIPPED_FOR: Final = "so101_sim"
"""`robot_type` of the embedded cell."""


@dataclass(frozen=True)
class UsualValue:
    """A signal's usual value and spread, and over how many takes it was seen."""

    mean: float
    std: float
    n: int = 0


@dataclass(frozen=True)
class TakesOrigin:
    """Where takes that say what is usual were recorded, and what for."""

    domain: Domain
    station: str
    kind: TakeKind


LEAST_TAKES: Final = 5
"""That went well, to say what is usual."""


@dataclass(frozen=True)
class Reference:
    """What is usual, and in words where it comes from: from so many takes that went well.

    Attributes:
        start_pose_rad: where the arm starts [rad], shape (n_joints,).
        origins: where its takes were recorded; empty where nobody noted it.
        figures: of each take outside the cell, as of `episode_figures.figures_of`.
    """

    name: str
    takes: int
    signals: Mapping[str, UsualValue]
    background: Image | None = None
    start_pose_rad: FloatArray | None = None
    origins: tuple[TakesOrigin, ...] = ()
    figures: tuple[Mapping[str, float], ...] = ()

    def z(self, name: str, value: float, row_s: float = 0.0) -> float:
        """Return how many spreads `value` stands from usual; NaN where either is unknown.

        A time of the motion is told no finer than half a row, `row_s` long: within one nobody knows
        when command and reading were taken.
        """
        nominal = self.signals.get(name)
        if nominal is None or math.isnan(value):
            return math.nan
        of = registry()[name]
        finest = 0.5 * row_s if (of.source, of.unit) == ("motion", "s") else 0.0
        return (value - nominal.mean) / max(nominal.std, of.floor, finest)

    def to_json(self) -> dict[str, Any]:
        """Return what the reference file holds."""
        picture = b"" if self.background is None else picture_png(self.background)
        return {
            "schema": SCHEMA,
            "name": self.name,
            "takes": self.takes,
            "signals": {k: asdict(v) for k, v in self.signals.items()},
            "background": b64encode(picture).decode(),
            "start_pose_rad": [] if self.start_pose_rad is None else self.start_pose_rad.tolist(),
            "figures": [
                {k: float(v) for k, v in row.items() if math.isfinite(v)} for row in self.figures
            ],
            "origins": [[o.domain.value, o.station, o.kind.value] for o in self.origins],
        }


def build_reference(takes: Iterable[Take], name: str) -> Reference | None:
    """Compute a reference from the successful takes among `takes`; None if too few.

    Two passes over the takes: the first for the background and start pose, which the signals of
    the second are measured against.
    """
    good = [t for t in takes if t.outcome == Outcome.SUCCESS]
    if len(good) < LEAST_TAKES:
        return None
    seen = dict.fromkeys(TakesOrigin(t.info.domain, t.info.station, t.info.kind) for t in good)
    if ground_of(good) is Ground.ELSEWHERE and any(o.domain is Domain.REAL for o in seen):
        figures = tuple(figures_of(take).values for take in good)
        return Reference(name, len(good), {}, origins=tuple(seen), figures=figures)
    views = [TakeView(take) for take in good]
    background = background_of([v.pictures.first for v in views if v.pictures is not None])
    starts = [np.median(v.motion.position_rad[:3], axis=0) for v in views if v.motion is not None]
    start: FloatArray | None = None
    if len(starts) >= LEAST_TAKES and len({len(s) for s in starts}) == 1:
        start = np.median(np.stack(starts), axis=0)
    rows = [measure(TakeView(take, background, start_pose_rad=start)).values for take in good]
    return Reference(
        name, len(good), usual_values(rows, registry()), background, start, origins=tuple(seen)
    )


def usual_values(
    rows: Sequence[Mapping[str, float]], names: Iterable[str]
) -> dict[str, UsualValue]:
    """Return median and spread (1.4826 MAD, at least half the standard deviation) by signal.

    Those that fewer than `LEAST_TAKES` takes know are left out.
    """
    found = {}
    for name in names:
        values = np.array([row.get(name, math.nan) for row in rows])
        values = values[np.isfinite(values)]
        if len(values) >= LEAST_TAKES:
            middle = float(np.median(values))
            spread = 1.4826 * float(np.median(np.abs(values - middle)))
            spread = max(spread, 0.5 * float(values.std()))
            found[name] = UsualValue(middle, spread, len(values))
    return found


def save_reference(reference: Reference, path: Path) -> None:
    """Write a reference file, atomically."""
    write_json(path, reference.to_json())


def load_reference(path: Path) -> Reference:
    """Read a reference file.

    Raises:
        UnusableInputError: it is missing or isn't one.
    """
    value = read_json(path)
    if not isinstance(value, dict) or value.get("schema") != SCHEMA:
        raise UnusableInputError(
            f"{path} is not a reference file (schema {SCHEMA}). Build one with "
            "gaploop diagnose DIR --save_reference=FILE."
        )
    try:
        signals = {
            k: UsualValue(float(v["mean"]), float(v["std"]), int(v["n"]))
            for k, v in value["signals"].items()
        }
        picture, start = value.get("background", ""), value.get("start_pose_rad", [])
        return Reference(
            str(value["name"]),
            int(value["takes"]),
            signals,
            picture_of(b64decode(picture)) if picture else None,
            np.asarray(start, dtype=np.float64) if start else None,
            origins=tuple(
                TakesOrigin(Domain(domain), str(station), TakeKind(kind))
                for domain, station, kind in value.get("origins", ())
            ),
            figures=tuple(
                {str(k): float(v) for k, v in row.items()} for row in value.get("figures", ())
            ),
        )
    except DAMAGE as error:
        raise UnusableInputError(f"{path} is damaged ({error}). Build it again.") from None


def shipped_reference(task: str = "pick_place") -> Reference:
    """Return the embedded cell's reference for one of its tasks."""
    name = SHIPPED.format(task=task)
    known = load_reference(Path(str(files("gaploop.failure_analysis").joinpath(name))))
    return replace(known, origins=(TakesOrigin(Domain.SIM, SIM_STATION.name, TakeKind.ROLLOUT),))


def choose_reference(takes: Sequence[Take], given: Reference | None = None) -> Reference:
    """Return the best reference for `takes`: given, shipped, or their own successes.

    One task's reference would make everything about another's takes look odd, so takes of several
    tasks have no shipped one; takes told in other words are taken for pick_place.
    """
    chosen = given
    # The shipped ones are of control-rate records: frames alone come in other steps and lags.
    ours = all(t.info.robot_type == SHIPPED_FOR and t.telemetry.arms() for t in takes)
    if chosen is None and takes and ours:
        known = {words: task for task, words in INSTRUCTIONS.items()}
        tasks = {known.get(take.info.task, "pick_place") for take in takes}
        chosen = shipped_reference(tasks.pop()) if len(tasks) == 1 else None
    if chosen is None and ground_of(takes) is Ground.CELL:
        chosen = build_reference(takes, OWN_TAKES)
    return chosen or Reference("no episode that went well", 0, {})


class Ground(StrEnum):
    """Where takes stand, as far as evidence is concerned that was fitted somewhere."""

    CELL = "cell"
    """The embedded cell."""
    TWIN = "twin"
    """A station set against simulated episodes that the user named."""
    ELSEWHERE = "elsewhere"
    """Any other: only episodes of the station itself say what is usual."""


OTHERS: Final = ("simulation", "scene_sim")
"""Robot types of episodes from gymnasium environments and scene files."""


def ground_of(takes: Sequence[Take], reference: Reference | None = None) -> Ground:
    """Return the ground of one folder's takes: by what they say, never by what an arm looks like.

    That is `robot_type`, `gap_domain`, and where the reference's takes were recorded. A gap that
    was put into somebody else's simulation doesn't make it the cell.
    """
    cells = {arm.robot_type for arm in CELL_ARMS.values()}
    if takes and all(
        t.info.robot_type in cells
        or (t.info.domain is Domain.SIM_TARGET and t.info.robot_type not in OTHERS)
        for t in takes
    ):
        return Ground.CELL
    origins = reference.origins if reference is not None else ()
    simulated = bool(origins) and all(o.domain is Domain.SIM for o in origins)
    return Ground.TWIN if simulated else Ground.ELSEWHERE
