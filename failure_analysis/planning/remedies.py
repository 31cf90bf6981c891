"""What fixes each dimension: how to record demonstrations against it, and under which conditions.

Or what to do instead, with the cheapest test that tells whether that is the right remedy.
"""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from gaploop.core.plan import every_value
from gaploop.core.station import NAMED_CONDITIONS, Station
from gaploop.core.vocabulary import GapDimension
from gaploop.failure_analysis.planning.failures import CAUSES, Failures

NOBODY: Final = "none"
"""The `human` condition in which nobody is there: nothing to record against people."""

D = GapDimension


@dataclass(frozen=True)
class Remedy:
    """What to do about a dimension, in words.

    Attributes:
        instead: one of core.plan's REMEDIES where demonstrations don't fix it; `steps` say how.
        protocol: how to record demonstrations.
        vary: conditions that the takes are spread over, all values of each.
        split_by: the condition by whose values takes are shared out, where failures differ in it.
        test: the cheapest test that tells whether this is the cause.
    """

    instead: str
    steps: str
    protocol: str
    sensors: tuple[str, ...]
    vary: tuple[str, ...]
    split_by: str
    test: str


REMEDIES: Final[Mapping[GapDimension, Remedy]] = {
    D.SPATIAL_GEOMETRY: Remedy(
        "recalibrate",
        "Recalibrate camera and joint zeros (gaploop calibrate hand_eye, lerobot-calibrate), "
        "measure the table's height; then evaluate again.",
        "First recalibrate camera and joint zeros. If the station has to stay as it is, record "
        "successful demonstrations on it as it stands, the object in every cell of the grid.",
        ("every camera that the policy uses", "joint positions"),
        ("grid_cell",),
        "table_height",
        "gaploop calibrate drift compares camera and arm with the stored calibration; or lay "
        "the object on a measured mark and compare it with what the tracker reports.",
    ),
    D.OBJECT_PROPERTY: Remedy(
        "change_scene",
        "Use objects that the policy was made for, or set grip width and height by hand; then "
        "evaluate again.",
        "Record successful demonstrations with the real objects, sizes and weights in turn, each "
        "in every cell of the grid.",
        ("every camera that the policy uses", "gripper width and current"),
        ("grid_cell",),
        "object",
        "Put an object that the policy was made for into the cell and roll out ten times: it "
        "should succeed.",
    ),
    D.CONTACT_DYNAMICS: Remedy(
        "change_scene",
        "Clean or change the finger pads, raise the gripping force, slow the lift down; then "
        "evaluate again.",
        "First clean or change the finger pads and grip harder. Then record slow, firm grasps on "
        "the real surfaces; pause half a second after closing, before lifting.",
        ("gripper current or force telemetry", "gripper width", "every camera"),
        ("grid_cell",),
        "object",
        "Clean pads and object with alcohol, grip by hand command and lift ten times: does it "
        "still slip?",
    ),
    D.HUMAN_BEHAVIOR: Remedy(
        "change_scene",
        "Agree on when people may reach in, let the arm wait while somebody is in view; then "
        "evaluate again.",
        "Agree on when people may reach in. Record takes with consenting participants (gaploop "
        "consent) in which the arm waits, then goes on from where the object lies.",
        ("every camera that the policy uses", "a camera that sees the people"),
        ("grid_cell",),
        "human",
        "Roll out ten times with nobody near the cell: do the failures stop?",
    ),
    D.ACTUATOR_RESPONSE: Remedy(
        "change_scene",
        "Log fast and reversing motions, identify delay, play and gain, compensate them in the "
        "controller or service the drive; then evaluate again.",
        "First service the drive, or identify delay, play and gain and compensate them. If the arm "
        "has to stay as it is, record successful demonstrations on it, the object in every cell "
        "of the grid.",
        ("joint positions, velocities and currents at control rate",),
        ("grid_cell",),
        "",
        "gaploop diagnose DATASET measures delay and play from episodes that are there already.",
    ),
    D.SENSOR_NOISE: Remedy(
        "recalibrate",
        "Check cables, bus and camera link, recalibrate zeros, filter what remains; log scripted "
        "motions to characterise it; then evaluate again.",
        "Record scripted motions with every sensor on.",
        ("joint positions at control rate", "status of every servo"),
        (),
        "",
        "gaploop doctor queries every servo; log one minute at rest: do readings jitter, repeat or "
        "drop out?",
    ),
    D.VISUAL_DOMAIN: Remedy(
        "change_scene",
        "Fix exposure and white balance, focus the lens, add light, set the colour segmentation "
        "anew; then evaluate again.",
        "Fix exposure, white balance and focus. Then record successful demonstrations with the "
        "deployment cameras under every light of the site, spread over the day.",
        ("the deployment cameras, settings locked",),
        ("lighting", "grid_cell"),
        "lighting",
        "Lock exposure and white balance, switch the usual lamp on and roll out ten times.",
    ),
    D.ENVIRONMENTAL_COMPLEXITY: Remedy(
        "change_scene",
        "Clear the cell, or make perception tell the object from what looks like it; keep "
        "obstacles out of the arm's way; then evaluate again.",
        "Record successful demonstrations with systematic clutter: 0, 2, 4 and 8 objects, in new "
        "places every take.",
        ("every camera that the policy uses",),
        ("grid_cell",),
        "distractors",
        "Clear the cell of everything but the object and roll out ten times.",
    ),
    D.TASK_SPECIFICATION: Remedy(
        "change_task",
        "Look at these takes together with whoever judges them, agree on criterion and tolerance, "
        "write them down, and evaluate again.",
        "Nothing to record.",
        (),
        (),
        "",
        "Let two people judge the same ten takes without talking: do they agree?",
    ),
}


@dataclass(frozen=True)
class SetupTakes:
    """Takes that share their conditions, and go through the values of others in turn.

    Attributes:
        mass: share of the dimension's failures that they are recorded against.
        suffix: what tells the part's item from others of its dimension; "" for an only one.
    """

    conditions: Mapping[str, Any]
    vary: Mapping[str, tuple[Any, ...]]
    mass: float = 1.0
    suffix: str = ""

    def every(self) -> list[dict[str, Any]]:
        """Return all set-ups."""
        combinations = itertools.product(*self.vary.values())
        return [{**self.conditions, **dict(zip(self.vary, c, strict=True))} for c in combinations]


def setups_for(
    dimension: GapDimension,
    failures: Failures,
    conditions: Mapping[str, Mapping[str, Any]],
    station: Station,
) -> tuple[SetupTakes, ...]:
    """Return how a dimension's takes are shared out among conditions; masses sum to 1.

    Takes are recorded under what all failures, by uid, had in common: the gap is in the station as
    it stands. Where failures differ in the condition that matters for the dimension, takes follow
    them; where nothing is known of it, they are spread over what the station can set up.
    """
    remedy, name = REMEDIES[dimension], REMEDIES[dimension].split_by
    known = [conditions[t.uid] for t in failures.takes if t.uid in conditions]
    shared = {
        n: value
        for n, value in sorted(known[0].items() if known else ())
        if all(n in other and other[n] == value for other in known)
    }
    # How much of the dimension's failures fell under each value of the condition, as far as known.
    mass, values = Counter[str](), dict[str, Any]()
    for take, row in zip(failures.takes, failures.posteriors, strict=True):
        if name in conditions.get(take.uid, {}):
            value = conditions[take.uid][name]
            values[repr(value)] = value
            mass[repr(value)] += row[CAUSES.index(dimension)]
    total = sum(mass.values())
    ranked = sorted(mass.items(), key=lambda pair: (-pair[1], pair[0])) if total > 0 else []
    names = [*remedy.vary]
    if not ranked and name in NAMED_CONDITIONS and name not in names:
        names.insert(0, name)
    if len(ranked) > 1:
        names = [n for n in names if n != name]
    every = {
        n: tuple(v for v in every_value(n, station) if (n, v) != ("human", NOBODY)) for n in names
    }
    vary = {n: found for n, found in every.items() if n not in shared and found}
    if len(ranked) < 2:
        return (SetupTakes(shared, vary),)
    return tuple(
        SetupTakes({**shared, name: values[key]}, vary, m / total, f":{name}={values[key]}")
        for key, m in ranked
    )
