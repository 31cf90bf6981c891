"""What a diagnosis says, in memory and in `diagnosis.json`; `diagnosis` makes one.

Who reads diagnoses, such as the review page and plans, needs nothing of what makes them.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from gaploop.core.errors import DAMAGE, UnusableInputError
from gaploop.core.files import read_json, write_json
from gaploop.core.labels import LabelEvent
from gaploop.core.messages import Image
from gaploop.core.vocabulary import FailureMode, GapDimension, Phase, dimension
from gaploop.datasets.absolute.findings import BELONGS, MISTAKES, AbsoluteReport
from gaploop.failure_analysis.signals.registry import Evidence

if TYPE_CHECKING:
    from gaploop.failure_analysis.camera_check import CameraReport
    from gaploop.failure_analysis.cohort import CohortStatistics
    from gaploop.failure_analysis.station import EvidenceBase

SCHEMA: Final = "gaploop.diagnosis.v1"
NO_MODE: Final = "none"
"""Mode of an episode in which no failure was seen."""
UNKNOWN_MODE: Final = "unknown"
"""Mode of an episode that failed, of which nothing sets it apart from those that went well."""
LABELLED_SHARE: Final = 0.05
"""Dimensions below this share are left out of suggested labels."""


@dataclass(frozen=True)
class TakeDiagnosis:
    """What went wrong in one take; but for the mode as `Attribution` has it.

    Attributes:
        mode: a failure mode, or "none" where no failure was seen.
        phase: a phase, or "" where it can't be told.
        abstained: the evidence is too weak or too close to name a dimension.
        unseen: what this take has no channel for, in words.
    """

    uid: str
    episode: int | None
    mode: str
    phase: str
    dimensions: Mapping[str, float]
    none: float
    abstained: bool
    evidence: tuple[Evidence, ...]
    unseen: tuple[str, ...] = ()
    named: tuple[str, ...] = ()
    candidates: tuple[str, ...] = ()
    by: str = ""

    @property
    def top(self) -> str:
        """The dimension with the largest share, or "" when abstaining."""
        return "" if self.abstained else max(self.dimensions, key=lambda d: self.dimensions[d])

    @property
    def failed(self) -> bool:
        """Whether a failure was seen, or somebody said that it failed."""
        return self.mode != NO_MODE or any(self.dimensions.values())

    @property
    def leaning(self) -> str:
        """The likeliest dimension, named or not; "" where nothing speaks for one above others."""
        *others, (share, likeliest) = sorted((v, k) for k, v in self.dimensions.items())
        return likeliest if share > max([0.0, *(v for v, _ in others)]) + 1e-6 else ""

    def to_json(self) -> dict[str, Any]:
        """Return its entry in `diagnosis.json`."""
        return {
            "uid": self.uid,
            "episode": self.episode,
            "mode": self.mode,
            "phase": self.phase,
            "dimensions": {k: round(v, 6) for k, v in self.dimensions.items()},
            "none": round(self.none, 6),
            "abstained": self.abstained,
            "evidence": [
                {
                    "signal": e.signal,
                    "value": None if math.isnan(e.value) else e.value,
                    "unit": e.unit,
                    "says": e.message,
                }
                for e in self.evidence
            ],
            "unseen": list(self.unseen),
            "named": list(self.named),
            "candidates": list(self.candidates),
            "by": self.by,
        }

    @classmethod
    def from_json(cls, value: Mapping[str, Any], where: str) -> TakeDiagnosis:
        """Read what `to_json` returned; `where` names the place in errors."""
        shares = {dimension(k, where).value: float(v) for k, v in value["dimensions"].items()}
        return cls(
            uid=str(value["uid"]),
            episode=value["episode"],
            mode=value["mode"]
            if value["mode"] in (NO_MODE, UNKNOWN_MODE)
            else FailureMode(value["mode"]).value,
            phase=Phase(value["phase"]).value if value["phase"] else "",
            dimensions={d.value: shares.get(d.value, 0.0) for d in GapDimension},
            none=float(value.get("none", 0.0)),
            abstained=bool(value["abstained"]),
            evidence=tuple(
                Evidence(
                    e["signal"],
                    math.nan if e["value"] is None else float(e["value"]),
                    e["unit"],
                    e["says"],
                )
                for e in value["evidence"]
            ),
            unseen=tuple(value.get("unseen", ())),
            named=tuple(value.get("named", ())),
            candidates=tuple(value.get("candidates", ())),
            by=str(value.get("by", "")),
        )


@dataclass(frozen=True)
class Diagnosis:
    """What went wrong in a set of takes.

    Attributes:
        takes: one entry for each take that failed.
        summary: counts and mean shares; see `summarise`.
        cohort: what all takes say together, where `diagnose` was asked for it.
        base: what it rests on, where it was just made.
        camera_check: what has changed about them, where it was just made.
        spots: by uid, fixed cameras before and after, with where the gripper closed and opened.
    """

    id: str
    source: str
    takes: tuple[TakeDiagnosis, ...]
    summary: Mapping[str, Any] = field(default_factory=dict)
    cohort: CohortStatistics | None = None
    base: EvidenceBase | None = None
    camera_check: CameraReport | None = None
    spots: Mapping[str, Image] = field(default_factory=dict)

    def to_json(self) -> dict[str, Any]:
        """Return what `diagnosis.json` holds."""
        return {
            "schema": SCHEMA,
            "id": self.id,
            "source": self.source,
            "takes": [take.to_json() for take in self.takes],
            "summary": dict(self.summary),
        }


def deployment(report: AbsoluteReport, found: Diagnosis) -> list[dict[str, Any]]:
    """Return how policy, arm and cameras were put together wrongly, and what failed so.

    Each entry has the failures that the fault is in, their modes, what is wrong, and its fix.
    """
    made = []
    for finding in report.findings:
        if finding.kind not in MISTAKES:
            continue
        whole = len(finding.episodes) >= finding.of
        hit = [t for t in found.takes if whole or t.episode in (None, *finding.episodes)]
        modes = Counter(f"{t.mode}{f' in {t.phase}' if t.phase else ''}" for t in hit)
        if hit:
            made.append({
                "kind": finding.kind, "failures": len(hit), "modes": dict(modes.most_common()),
                "what": finding.line(), "fix": finding.command,
            })  # fmt: skip
    return made


def shown_alone(report: AbsoluteReport) -> list[dict[str, Any]]:
    """Return what at least half of the episodes show by themselves, and its fix, dearest first.

    How policy, arm and cameras were put together isn't among it: see `deployment`.
    """
    return [
        {"kind": f.kind, "belongs_to": BELONGS[f.kind], "what": f.line(), "fix": f.command}
        for f in report.findings
        if f.kind not in MISTAKES and 2 * len(f.episodes) >= f.of
    ]


def suggested_labels(take: TakeDiagnosis) -> tuple[LabelEvent, ...]:
    """Return what a diagnosis suggests as labels, of the lowest source: a person's word wins.

    No mode where none was seen, no phase where it can't be told, no dimensions when abstaining.
    """

    def event(field_name: str, value: Any, confidence: float) -> LabelEvent:
        return LabelEvent(take.uid, field_name, value, "gaploop", "auto", confidence=confidence)

    events = []
    if take.mode not in (NO_MODE, UNKNOWN_MODE):
        events.append(event("failure_mode", take.mode, 1.0))
    if take.phase:
        events.append(event("phase", take.phase, 1.0))
    if not take.abstained:
        shares = {d: round(s, 3) for d, s in take.dimensions.items() if s >= LABELLED_SHARE}
        events.append(event("dimensions", shares, round(max(take.dimensions.values()), 3)))
    return tuple(events)


def save_diagnosis(diagnosis: Diagnosis, path: Path) -> None:
    """Write `diagnosis.json`, atomically."""
    write_json(path, diagnosis.to_json())


def load_diagnosis(path: Path) -> Diagnosis:
    """Read a `diagnosis.json`.

    Raises:
        UnusableInputError: it is missing, of another kind, or damaged.
    """
    value = read_json(path)
    if not isinstance(value, dict) or value.get("schema") != SCHEMA:
        raise UnusableInputError(
            f"{path} is not a diagnosis (schema {SCHEMA}). Make one with gaploop diagnose DIR."
        )
    try:
        takes = tuple(
            TakeDiagnosis.from_json(take, f"{path}: take {n}")
            for n, take in enumerate(value["takes"], 1)
        )
        return Diagnosis(str(value["id"]), str(value["source"]), takes, dict(value["summary"]))
    except DAMAGE as error:
        raise UnusableInputError(
            f"{path} is damaged ({error}). Make it again with gaploop diagnose DIR."
        ) from None
