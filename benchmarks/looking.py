"""Does a diagnosis that looks name what has changed about a camera, and nothing where it stayed?"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from gaploop.core.files import write_json
from gaploop.core.statistics import percent, rate
from gaploop.scripts import options

if TYPE_CHECKING:
    from benchmarks.bench import BenchConfig
    from gaploop.core.messages import FloatArray
    from gaploop.core.take import Take
    from gaploop.sim.cell import SimCell

MECHANISMS: Final[Mapping[str, frozenset[str]]] = {
    "visual_domain.exposure": frozenset({"exposure"}),
    "visual_domain.colour_cast": frozenset({"white_balance"}),
    "visual_domain.blur": frozenset({"sharpness"}),
    "visual_domain.lens": frozenset({"exposure", "vignette", "sharpness"}),
    "spatial_geometry.camera_pose": frozenset({"moved"}),
    "environmental_complexity.clutter": frozenset({"cover"}),
    "environmental_complexity.similar": frozenset({"cover"}),
    "environmental_complexity.occluder": frozenset({"cover"}),
}
"""What is injected, and the kinds of finding that name it."""
SEVERITIES: Final = (0.3, 0.6, 1.0)
GAP_SEEDS: Final = (7, 8)
TRAINING: Final = 30
"""Nominal takes that the reference is made of."""
EVERY_S: Final = 0.16
"""A picture is kept this often; the cell's camera takes no more."""
STATION: Final = 3
"""Takes of a station."""


def measure(config: BenchConfig, folder: Path) -> dict[str, Any]:
    """Set nominal takes, and takes with each mechanism at each severity, against nominal ones."""
    from gaploop.sim.cell import SimCell

    n = config.n or 10
    cells = [(m, s, g) for m in MECHANISMS for s in SEVERITIES for g in GAP_SEEDS]
    rows = []
    with options.progress("Looking", TRAINING + STATION * (n + len(cells))) as advance:

        def takes(first: int, count: int, **injected: Any) -> Iterator[Take]:
            cell = SimCell(camera_hz=1.0 / EVERY_S, **injected)
            try:
                for seed in range(first, first + count):
                    yield attempt(cell, config.seed + seed)
                    advance()
            finally:
                cell.close()

        training = list(takes(0, TRAINING))
        nominal = list(takes(1000, n * STATION))
        for start in range(0, len(nominal), STATION):
            found = kinds(training, nominal[start : start + STATION])
            rows.append({"mechanism": "", "severity": 0.0, "kinds": found})
        for k, (mechanism, severity, seed) in enumerate(cells):
            injected = {"gaps": {mechanism: severity}, "gap_seed": seed}
            found = kinds(training, list(takes(2000 + STATION * k, STATION, **injected)))
            rows.append({"mechanism": mechanism, "severity": severity, "kinds": found})
            write_json(folder / "stations.json", rows)
    return {"stations": rows, "evidence": "sim-to-sim"}


def attempt(cell: SimCell, seed: int) -> Take:
    """Return what the scripted expert did in a scene: joints and pictures, few of each."""
    from gaploop.core.take import Frames, Take, TakeInfo
    from gaploop.core.telemetry import Telemetry
    from gaploop.core.vocabulary import Outcome, TakeKind
    from gaploop.sim.catalogue import to_degrees
    from gaploop.sim.expert import ScriptedLeader
    from gaploop.sim.scene import CAMERA_NAME

    cell.reset(seed)
    expert = ScriptedLeader(cell, seed)
    expert.reset()
    pictures, states, step = [], [], 0
    while not expert.done() and cell.now_s < 8.0:
        if step % round(EVERY_S * cell.fps) == 0:
            pictures.append(cell.frame().image.copy())
            states.append(to_degrees(cell.read().position_rad, cell.arm))
        cell.command(expert.read(cell.now_s).q_rad)
        cell.advance(1.0 / cell.fps)
        step += 1
    state: FloatArray = np.array(states)
    count = len(state)
    t_s: FloatArray = EVERY_S * np.arange(count, dtype=np.float64)
    info = TakeInfo(str(seed), fps=1.0 / EVERY_S, kind=TakeKind.ROLLOUT, units="deg",
                    joint_names=cell.joint_names)  # fmt: skip
    frames = replace(
        Frames.empty(state.shape[1]), t_s=t_s, state=state, action=state,
        sent=state, environment_state=np.empty((count, 0)), intervention=np.zeros(count, bool),
        safety=np.zeros(count, np.int64),
    )  # fmt: skip
    nothing = Telemetry(np.empty(0), {})
    cameras = {CAMERA_NAME: lambda: iter(pictures)}
    return Take(info, Outcome.FAILURE, frames, nothing, cameras=cameras)


def kinds(training: list[Take], takes: list[Take]) -> list[str]:
    """Return the questions about a station's camera that are answered by yes."""
    from gaploop.failure_analysis.camera_check import check_takes

    checked = check_takes(training, takes, "nominal takes")
    return sorted({question for _, question in checked.found}) if checked is not None else []


def table(result: Mapping[str, Any]) -> str:
    """Return a row for each mechanism: how often anything, and the right kind, was named."""
    rows = result["stations"]
    nominal = [row for row in rows if not row["mechanism"]]
    alarms = rate(sum(bool(row["kinds"]) for row in nominal), len(nominal))
    lines = [f"nominal: something named in {percent(alarms)} of {len(nominal)} stations"]
    lines.append(f"{'':36}{'named rightly / at all, by severity':<40}kinds")
    for mechanism, right in MECHANISMS.items():
        cells, said = [], Counter[str]()
        for severity in SEVERITIES:
            here = [row["kinds"] for row in rows
                    if (row["mechanism"], row["severity"]) == (mechanism, severity)]  # fmt: skip
            hits = sum(bool(right & set(found)) for found in here)
            cells.append(f"{severity:g}: {hits}/{sum(map(bool, here))} of {len(here)}")
            said.update(kind for found in here for kind in found)
        each = ", ".join(f"{kind} {count}" for kind, count in said.most_common())
        lines.append(f"{mechanism:<36}{'   '.join(cells):<40}{each}")
    return "\n".join([*lines, f"Evidence: {result['evidence']}."])
