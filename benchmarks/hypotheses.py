"""What no probe measures: the station's verdict with and without hypotheses (sim-to-sim).

A station is the embedded cell with one gap of a mechanism that no probe of drives and cameras
measures, or none and a base policy whose weights were shaken, or none at all. It rolls out until
ten attempts failed; one that seldom fails is drawn anew. Its twin is taken to be the nominal cell,
as a probe would find it. Both verdicts are of LeRobot's columns and pictures, against ten nominal
rollouts: that with the twin as it is, and that with hypotheses.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from benchmarks import blind_gaps
from benchmarks.diagnosis_tiers import SHAKEN, shaken
from gaploop.core.take import Take
from gaploop.core.twin import Twin
from gaploop.core.vocabulary import Domain, GapDimension, Outcome, TakeKind
from gaploop.scripts import options

if TYPE_CHECKING:
    from benchmarks.bench import BenchConfig
    from gaploop.collect.rig import Rig
    from gaploop.core.messages import Image
    from gaploop.failure_analysis.diagnosis import Diagnosis

UNMEASURED: Final[Mapping[str, Sequence[str]]] = {
    "contact_dynamics": ("slippery", "soft", "sticky"),
    "visual_domain": ("lens",),
    "sensor_noise": ("stale_reads", "torn_frames"),
    "object_property": ("elongated", "tall", "round"),
    "environmental_complexity": ("similar", "clutter", "occluder"),
    "human_behavior": ("nudge", "reach_in", "take"),
    "spatial_geometry": ("table_height",),
    "task_specification": ("tolerance", "goal_offset", "alignment"),
}
"""What no probe of the drives and cameras measures, by dimension."""
BLIND: Final[Mapping[str, Sequence[str]]] = {
    "contact_dynamics": ("slick_table",),
    "visual_domain": ("glare", "banding"),
    "sensor_noise": ("encoder_spikes", "dead_rows"),
    "object_property": ("flat", "l_shaped"),
    "environmental_complexity": ("posts",),
    "human_behavior": ("cover_target", "bump_arm"),
    "spatial_geometry": ("base_moved", "bent_gripper"),
    "task_specification": ("deadline", "keep_clear"),
}
"""Mechanisms of `blind_gaps` that no hypothesis is made of."""
CALIBRATION, FIGURE = 3_100_000, 3_200_000
"""First seeds: of stations that thresholds may be set by (--seed=0), and of those that figures are
of (--seed=1)."""
KINDS: Final = {"single": 0, "blind": 1000, "policy": 2000, "nominal": 3000}
"""Added to them."""
ORDER: Final = (*(("single", k) for k in range(16)), *((kind, k) for k in range(4)
                for kind in ("policy", "nominal")), *(("blind", k) for k in range(8)))  # fmt: skip
FAILURES, MOST, QUIET = 10, 24, 12
"""Failures that a station ends with, rollouts that it has at most, and those of a nominal one."""
LEAST_FAILING: Final = 0.3
SEES: Final = "lerobot"
TASK: Final = "Put the cube on the disc"


def station(
    first: int, k: int, attempt: int, among: Mapping[str, Sequence[str]] = UNMEASURED
) -> tuple[str, float, int]:
    """Return mechanism, severity and gap seed of a station; drawn anew while it seldom fails."""
    rng = np.random.default_rng([first + k, attempt])
    dimension = list(UNMEASURED)[k % len(UNMEASURED)]
    mechanism = str(rng.choice(among[dimension]))
    severity = round(float(rng.uniform(0.5, 1.0)), 2)
    return f"{dimension}.{mechanism}", severity, int(rng.integers(100_000, 1_000_000))


def measure(config: BenchConfig, folder: Path) -> dict[str, Any]:
    """Roll out and diagnose station after station; what the folder holds counts."""
    path = folder / "stations.jsonl"
    rows = [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []
    todo = ORDER[: config.n or len(ORDER)]
    with options.progress("Stations", total=len(todo)) as advance:
        advance(len(rows))
        for kind, k in todo[len(rows) :]:
            rows.append(_row(kind, k, FIGURE if config.seed else CALIBRATION, config, folder))
            with path.open("a") as file:
                file.write(json.dumps(options.jsonable(rows[-1])) + "\n")
            advance()
    return {"evidence": "sim-to-sim", "stations": rows, "scores": scores(rows)}


def _row(kind: str, k: int, first: int, config: BenchConfig, folder: Path) -> dict[str, Any]:
    from gaploop.failure_analysis.diagnosis import diagnose
    from gaploop.failure_analysis.reference import build_reference
    from gaploop.failure_analysis.station import limited_to_tier
    from gaploop.finetune.evaluate import EVALUATION_SEEDS

    offset, attempt = KINDS[kind], 0
    first_scene = EVALUATION_SEEDS + first + 1000 * k + 100 * offset
    while True:
        policy, gaps, seed = "base", dict[str, float](), 0
        if kind == "policy":
            rng = np.random.default_rng([first + offset + k, attempt])
            noise, drawn = float(rng.choice(SHAKEN)), int(rng.integers(1_000_000))
            policy = shaken(policy, noise, drawn, folder)
        elif kind != "nominal":
            among = BLIND if kind == "blind" else UNMEASURED
            name, severity, seed = station(first + offset, k, attempt, among)
            gaps = {name: severity}
        takes = list[Take]()
        for take in _rolled_out(policy, gaps, seed, range(first_scene, first_scene + MOST), 1.0):
            takes.append(take)
            n, lost = len(takes), sum(t.outcome is Outcome.FAILURE for t in takes)
            if n >= QUIET if kind == "nominal" else lost >= FAILURES or (
                lost < {6: 1, 10: 3, 16: 5}.get(n, 0)
            ):  # fmt: skip
                break
        if kind == "nominal" or (lost >= LEAST_FAILING * n and (lost >= FAILURES or n == MOST)):
            break
        attempt += 1
    row: dict[str, Any] = {"kind": kind, "truth": gaps, "failed": lost, "of": n}
    if not lost:
        return row
    seeds = range(EVALUATION_SEEDS + 900_000, EVALUATION_SEEDS + 900_010)
    usual = [
        replace(limited_to_tier(t, SEES), info=replace(t.info, domain=Domain.SIM))
        for t in _rolled_out("base", {}, 0, seeds, None)
    ]
    reference = build_reference(usual, "nominal rollouts")
    alone = diagnose([limited_to_tier(t, SEES) for t in takes], reference)
    told = verdicts(alone, takes, policy, folder, config.workers)
    return row | {name: d.summary["station"] for name, d in told.items()}


def verdicts(
    alone: Diagnosis, takes: Sequence[Take], policy: str, folder: Path, workers: int
) -> dict[str, Diagnosis]:
    """Return the diagnosis with the twin without hypotheses, and with them."""
    from gaploop.finetune.evaluate import attempt_s
    from gaploop.finetune.hypotheses import rolled_out, widened, worth_trying
    from gaploop.finetune.reproduction import reproduced

    twin, kept = Twin("made up", "so101", ()), folder / "reproduction"
    before = reproduced(alone, takes, twin, policy, kept, n=20, workers=workers)
    after = before
    if names := worth_trying(before, twin):
        mine = {f"{d}.{m}" for d, every in UNMEASURED.items() for m in every}
        tried = rolled_out(
            policy, twin, [m for m in names if m in mine], TASK, sees=SEES,
            max_s=attempt_s(takes, "so101"), workers=workers, folder=kept,
        )  # fmt: skip
        after = widened(before, takes, twin, tried, folder)
    return {"today": before, "widened": after}


def _rolled_out(
    policy: str, gaps: Mapping[str, float], seed: int, scenes: Sequence[int], domain: float | None
) -> Iterator[Take]:
    """Yield rollouts with their pictures, in memory."""
    from gaploop.collect.journal import FrameRow, Recorder
    from gaploop.collect.policy_leader import PolicyLeader
    from gaploop.collect.take import run_take
    from gaploop.finetune.evaluate import MAX_S, CellSpec, MemoryTake, rig_of
    from gaploop.finetune.lerobot_policy import load_policy
    from gaploop.sim.gaps import add_mechanisms

    class Seen(MemoryTake):
        def __init__(self, rig: Rig) -> None:
            super().__init__(rig)
            self.pictures: list[dict[str, Image]] = []

        def frame(self, row: FrameRow) -> None:
            self.pictures.append({c: p.copy() for c, p in row.pictures.items()})
            super().frame(row)

    add_mechanisms(blind_gaps.__name__)
    driver = load_policy(policy)
    rig = rig_of(CellSpec(gaps=gaps, gap_seed=seed, domain=domain), {}, driver.fps).seen_by(driver)
    leader = PolicyLeader(driver, rig.follower, rig.fps, rig.control_hz)
    for scene in scenes:
        memory = Seen(rig)
        seen = memory.pictures
        sinks = (Recorder(memory, rig.follower),)
        ended = run_take(rig, leader, seed=scene, max_s=MAX_S, sinks=sinks)
        take = memory.take(ended.outcome)
        info = replace(
            take.info, uid=f"s{scene}", task=TASK, kind=TakeKind.ROLLOUT, domain=Domain.SIM_TARGET
        )
        cameras = {c: (lambda c=c, seen=seen: iter([row[c] for row in seen])) for c in seen[0]}
        yield replace(take, info=info, cameras=cameras)
    rig.close()


def scores(rows: Sequence[Mapping[str, Any]]) -> dict[str, dict[str, Counter[str]]]:
    """Return by kind and verdict how many led rightly, and named rightly, wrongly or nothing."""
    known = {d.value for d in GapDimension}
    found = {kind: {v: Counter[str]() for v in ("today", "widened")} for kind in KINDS}
    for row in rows:
        truth = {name.partition(".")[0] for name in row["truth"]}
        for name, counts in found[row["kind"]].items():
            told = row.get(name, {"named": [], "leading": "", "posterior": {}})
            named = set(told["named"]) & known
            gaps = {d: p for d, p in told["posterior"].items() if d in known}
            counts["n"] += 1
            counts["likeliest right"] += max(gaps, key=lambda d: gaps[d], default="") in truth
            counts["right" if named and named <= truth else "wrong" if named else "nothing"] += 1
    return found


def table(result: Mapping[str, Any]) -> str:
    """Return the figures as Markdown, a row a kind of stations."""
    from gaploop.core.statistics import percent, rate

    words = {
        "single": "a gap that no probe measures", "blind": "one that no hypothesis is made of",
        "policy": "no gap, a bad policy", "nominal": "no gap, the base policy",
    }  # fmt: skip
    lines = [
        "| stations | verdict | likeliest dimension right | named right | named wrong | no name |",
        "|---|---|---|---|---|---|",
    ]
    for kind, by_verdict in result["scores"].items():
        for name, count in by_verdict.items():
            if of := count.get("n", 0):
                cells = [
                    percent(rate(count.get(c, 0), of))
                    for c in ("likeliest right", "right", "wrong", "nothing")
                ]
                lines.append(f"| {words[kind]} (n={of}) | {name} | {' | '.join(cells)} |")
    return "\n".join(lines)
