"""What fixes each dimension: how to record demonstrations against it, or what to do instead.

The words follow `core.vocabulary`'s remedies; the tests are the cheapest that tell whether the
remedy is the right one.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from gaploop.core.vocabulary import GapDimension

D = GapDimension


@dataclass(frozen=True)
class Remedy:
    """What to do about a dimension.

    Attributes:
        instead: one of core.plan's REMEDIES: what to do where demonstrations don't fix it.
        steps: how to do that, in words.
        protocol: how to record demonstrations, in words.
        sensors: what to record with.
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
        "the object on a measured mark and compare it with what the tracker says.",
    ),
    D.OBJECT_PROPERTY: Remedy(
        "control",
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
        "control",
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
        "control",
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
        "identify",
        "Log fast and reversing motions, identify delay, play and gain, compensate them in the "
        "controller or service the drive; then evaluate again.",
        "First service the drive, or identify delay, play and gain and compensate them. If the arm "
        "has to stay as it is, record successful demonstrations on it, the object in every cell "
        "of the grid.",
        ("joint positions, velocities and currents at control rate",),
        ("grid_cell",),
        "",
        "gaploop calibrate latency JOURNAL measures delay and play from takes that are there "
        "already.",
    ),
    D.SENSOR_NOISE: Remedy(
        "recalibrate",
        "Check cables, bus and camera link, recalibrate zeros, filter what remains; log scripted "
        "motions to characterise it; then evaluate again.",
        "Record scripted motions with every sensor on.",
        ("joint positions at control rate", "status of every servo"),
        (),
        "",
        "gaploop doctor asks every servo; log one minute at rest: do readings jitter, repeat or "
        "drop out?",
    ),
    D.VISUAL_DOMAIN: Remedy(
        "perception",
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
        "perception",
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
        "restate",
        "Look at these takes together with whoever judges them, agree on criterion and tolerance, "
        "write them down, and evaluate again.",
        "Nothing to record.",
        (),
        (),
        "",
        "Let two people judge the same ten takes without talking: do they agree?",
    ),
}
