"""What is usual: robust statistics of each signal over takes that went well.

Three sources, best first: a reference given or shipped for the station; the data's own
successful takes; and absolute limits that hold for any arm of this size.
"""

from __future__ import annotations

import math
from base64 import b64decode, b64encode
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from importlib.resources import files
from pathlib import Path
from typing import Any, Final

import numpy as np

from gaploop.core.errors import DAMAGE, UnusableInputError
from gaploop.core.files import read_json, write_json
from gaploop.core.messages import FloatArray, Image
from gaploop.core.station import SIM_STATION
from gaploop.core.take import Take
from gaploop.core.vocabulary import Domain, Outcome, TakeKind
from gaploop.failure_analysis.signals.registry import measure, registry
from gaploop.failure_analysis.views.pictures import background_of, picture_of, picture_png
from gaploop.failure_analysis.views.view import TakeView
from gaploop.sim.tasks import INSTRUCTIONS

SCHEMA: Final = "gaploop.reference.v1"
SHIPPED: Final = "reference_so101_cell_{task}.json"
"""What is usual in the embedded cell, task by task.

Rebuilt by `python -m benchmarks reference`; for another station, `gaploop diagnose DIR
--save_reference=FILE` on takes that went well.
"""
OWN_TAKES: Final = "the data's own successful takes"
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


ABSOLUTE: Final[Mapping[str, UsualValue]] = {
    "lag_s": UsualValue(0.06, 0.03),
    "rest_offset_rad": UsualValue(0.010, 0.010),
    "drift_rad": UsualValue(0.005, 0.008),
    "jitter_rad": UsualValue(0.0007, 0.0008),
    "quantum_rad": UsualValue(0.0015, 0.0010),
    "repeat_share": UsualValue(0.02, 0.03),
    "dropout_share": UsualValue(0.0, 0.005),
    "backlash_rad": UsualValue(0.010, 0.010),
    "speed_gain": UsualValue(1.0, 0.08),
    "stall_s": UsualValue(0.0, 0.3),
    "oscillation_rad": UsualValue(0.003, 0.004),
    "object_blobs": UsualValue(1.0, 0.2),
    "hand_share": UsualValue(0.001, 0.004),
    "jumps_hz": UsualValue(0.0, 0.3),
    "moved_alone_m": UsualValue(0.002, 0.004),
}
"""Limits for arms of the SO-100/SO-101, Koch and Piper kind at 50 Hz or faster, where no take
that went well is at hand: generous, so that only plain faults stand out. Assumed, not measured."""


LEAST_TAKES: Final = 5
"""That went well, to say what is usual."""


@dataclass(frozen=True)
class Reference:
    """What is usual, and in words where it comes from: from so many takes that went well.

    Attributes:
        start_pose_rad: where the arm starts [rad], shape (n_joints,).
        origins: where its takes were recorded; empty where nobody noted it.
    """

    name: str
    takes: int
    signals: Mapping[str, UsualValue]
    background: Image | None = None
    start_pose_rad: FloatArray | None = None
    origins: tuple[TakesOrigin, ...] = ()

    def z(self, name: str, value: float) -> float:
        """Return how many spreads `value` stands from usual; NaN where either is unknown."""
        nominal = self.signals.get(name)
        if nominal is None or math.isnan(value):
            return math.nan
        return (value - nominal.mean) / max(nominal.std, registry()[name].floor)

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
    views = [TakeView(take) for take in good]
    background = background_of([v.pictures.first for v in views if v.pictures is not None])
    starts = [np.median(v.motion.position_rad[:3], axis=0) for v in views if v.motion is not None]
    start: FloatArray | None = None
    if len(starts) >= LEAST_TAKES and len({len(s) for s in starts}) == 1:
        start = np.median(np.stack(starts), axis=0)
    rows = [measure(TakeView(take, background, start_pose_rad=start)).values for take in good]
    seen = dict.fromkeys(TakesOrigin(t.info.domain, t.info.station, t.info.kind) for t in good)
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
        )
    except DAMAGE as error:
        raise UnusableInputError(f"{path} is damaged ({error}). Build it again.") from None


def shipped_reference(task: str = "pick_place") -> Reference:
    """Return the embedded cell's reference for one of its tasks."""
    name = SHIPPED.format(task=task)
    known = load_reference(Path(str(files("gaploop.failure_analysis").joinpath(name))))
    return replace(known, origins=(TakesOrigin(Domain.SIM, SIM_STATION.name, TakeKind.ROLLOUT),))


def choose_reference(takes: Sequence[Take], given: Reference | None = None) -> Reference:
    """Return the best reference for `takes`: given, shipped, their own successes, or limits.

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
    if chosen is None:
        chosen = build_reference(takes, OWN_TAKES)
    if chosen is None:
        chosen = Reference("absolute limits: no take that went well is at hand", 0, ABSOLUTE)
    return chosen
