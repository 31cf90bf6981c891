"""The page that lists every signal; docs/diagnose/signals.md is what this returns."""

from __future__ import annotations

from typing import Final

from gaploop.failure_analysis.live_signals import STREAMED
from gaploop.failure_analysis.signals.registry import SOURCES, Signal, registry

CHANNELS: Final = {
    "motion": "joint commands and readings, from the control-rate record or else the frames",
    "currents": "motor currents",
    "loads": "drive loads in per cent of stall, for drives that report torque rather than current",
    "scene": "the tracked scene, `observation.environment_state`",
    "force": "a force/torque sensor",
    "touch": "a touch sensor; outside the cell the gripper's own current stands for it",
    "images": "the first camera's pictures",
}
HEAD: Final = """\
# Signals

Named numbers that each say one thing about one episode. Units are SI; angles are radians and shown
to people in degrees. A signal is empty where its channel is missing, and the diagnosis then says
so. "Floor" is the spread below which differences from usual mean nothing. "live" marks those that
are also kept up to date while a rollout runs, with the same value at its end.

`python -m benchmarks signals` measures what they cost and writes this page.
"""


def page() -> str:
    """Return the page as Markdown."""
    parts = [HEAD]
    for source in SOURCES:
        chosen = [s for s in registry().values() if s.source == source]
        lines = [f"## {source}: {CHANNELS[source]}\n"]
        lines += ["| signal | unit | floor | | what and how |", "|---|---|---|---|---|"]
        lines += [_row(s) for s in sorted(chosen, key=lambda s: s.name)]
        parts.append("\n".join(lines) + "\n")
    return "\n".join(parts)


def _row(spec: Signal) -> str:
    live = "live" if spec.name in STREAMED else ""
    doc = spec.doc.replace("|", "\\|")
    return f"| `{spec.name}` | {spec.unit or '1'} | {spec.floor:g} | {live} | {doc} |"
