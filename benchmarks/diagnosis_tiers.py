"""The station's verdict by evidence tier, on blind stations and with bad policies (sim-to-sim).

A station is the embedded cell with one gap of drawn mechanism, severity and direction, with two of
them, with one too small to fail anything, or without any and a base policy whose weights were
shaken until it fails. Its rollouts are recorded, and diagnosed by what each tier has: LeRobot's
columns against the station's own demonstrations or against rollouts of the base in the nominal
cell, with telemetry, with the tracked scene, and LeRobot's columns against either with the twin
that `gaploop identify --measure` makes of the station. Nothing is known of a station but
its takes.
"""

from __future__ import annotations

import json
import shutil
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from benchmarks import blind_gaps
from gaploop.core.take import TakeInfo
from gaploop.core.vocabulary import Domain, GapDimension, Outcome, TakeKind
from gaploop.failure_analysis.station import POLICY, UNMEASURED
from gaploop.scripts import options

if TYPE_CHECKING:
    from benchmarks.bench import BenchConfig
    from gaploop.collect.rig import EmbeddedRig
    from gaploop.core.protocols import Leader
    from gaploop.core.take import Take
    from gaploop.core.twin import Twin
    from gaploop.failure_analysis.diagnosis import Diagnosis
    from gaploop.finetune.reproduction import Reproduction

STATIONS: Final = 24
ROLLOUTS: Final = 10
DEMONSTRATIONS: Final = 7
SCENES: Final = 20
"""Of a reproduction, in each cell."""
STATION_SCENES: Final = 1_700_000
"""First scene of stations; those of evaluations, training and reproduction are others."""
SCREENED: Final = 6
LEAST_FAILING: Final = 2
"""Of the scenes that are screened: a station that fails less often is drawn anew."""
PAIR, FINE = "pair", "fine"
ORDER: Final = (
    "actuator_response", POLICY, "spatial_geometry", PAIR, "visual_domain", "object_property",
    FINE, POLICY, "sensor_noise", PAIR, "contact_dynamics", "environmental_complexity",
    "actuator_response", POLICY, PAIR, "human_behavior", "task_specification", FINE,
    "spatial_geometry", POLICY, PAIR, "object_property", "visual_domain", "sensor_noise",
)  # fmt: skip
SHAKEN: Final = (0.06, 0.08, 0.10, 0.12)
"""Noise on a bad policy's weights, as a part of each tensor's spread; drawn among them."""
PAIRED: Final = ("actuator_response", "spatial_geometry", "visual_domain", "object_property")
"""Two of these act at once, by mechanisms that a twin can hold."""
MEASURABLE: Final = frozenset({
    *(f"actuator_response.{m}" for m in ("latency", "backlash", "weak", "slow", "torque_limit")),
    *(f"spatial_geometry.{m}" for m in ("camera_pose", "zero_offset")),
    *(f"visual_domain.{m}" for m in ("exposure", "colour_cast", "blur")),
    *(f"sensor_noise.{m}" for m in ("coarse_encoder", "encoder_drift")),
    "object_property.size",
})  # fmt: skip
"""Mechanisms that identification has a parameter for: a twin can hold them."""
SEVERITIES: Final = {PAIR: (0.4, 0.7), FINE: (0.05, 0.2)}
"""Of kinds of stations; of the others 0.5 to 1."""
TIERS: Final = {
    "columns_own": "LeRobot columns, own demonstrations",
    "columns_free": "LeRobot columns, gap-free reference",
    "telemetry_free": "+ telemetry, gap-free reference",
    "scene_free": "+ tracked scene, gap-free reference",
    "twin_own": "LeRobot columns, own demonstrations, + twin (probed and identified)",
    "twin_free": "LeRobot columns, simulated reference, + twin",
}


def measure(config: BenchConfig, folder: Path) -> dict[str, Any]:
    """Record, diagnose and score station after station; what the folder holds counts."""
    path = folder / "stations.jsonl"
    rows = [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []
    count = config.n or STATIONS
    with options.progress("Stations", total=count) as advance:
        advance(len(rows))
        for k in range(len(rows), count):
            row = _station(k, config, folder)
            rows.append(row)
            with path.open("a") as file:
                file.write(json.dumps(options.jsonable(row)) + "\n")
            advance()
    return {"evidence": "sim-to-sim", "stations": rows, **scores(rows)}


def _station(k: int, config: BenchConfig, folder: Path) -> dict[str, Any]:
    from gaploop.core.journal_format import read_journal
    from gaploop.failure_analysis.reference import build_reference, shipped_reference
    from gaploop.failure_analysis.station import limited_to_tier
    from gaploop.sim.gaps import draw_gaps

    rng = np.random.default_rng([config.seed, k, 77])
    kind = ORDER[k % len(ORDER)]
    while True:
        policy, gaps, gap_seed = _drawn(kind, rng, config.policy.required(), folder)
        failing = _failing(policy, gaps, gap_seed, config.workers)
        if (failing == 0) if kind == FINE else (failing >= LEAST_FAILING):
            break
    place = folder / f"station_{k:02}"
    shutil.rmtree(place, ignore_errors=True)  # what a stopped run left
    place.mkdir()
    _record(place / "rollouts", _driver(policy), gaps, gap_seed, ROLLOUTS, TakeKind.ROLLOUT)
    scripted = TakeKind.DEMONSTRATION
    _record(place / "takes", None, gaps, gap_seed, DEMONSTRATIONS, scripted)
    takes = list(read_journal(place / "rollouts"))
    good = [limited_to_tier(t, "lerobot") for t in read_journal(place / "takes")]
    own, free = build_reference(good, "its own demonstrations"), shipped_reference()
    if not (folder / "nominal").exists():
        _record(folder / "nominal", _driver("base"), {}, 0, ROLLOUTS, TakeKind.ROLLOUT)
    nominal = [
        replace(limited_to_tier(t, "lerobot"), info=replace(t.info, domain=Domain.SIM))
        for t in read_journal(folder / "nominal")
    ]
    found = {
        "columns_own": _diagnosed(takes, "lerobot", own),
        "columns_free": _diagnosed(takes, "lerobot", build_reference(nominal, "nominal takes")),
        "telemetry_free": _diagnosed(takes, "telemetry", free),
        "scene_free": _diagnosed(takes, "scene", free),
    }
    verdicts = {name: d.summary["station"] for name, d in found.items()}
    row: dict[str, Any] = {
        "kind": kind,
        "truth": [kind] if kind == POLICY else sorted({key.partition(".")[0] for key in gaps}),
        "gaps": dict(gaps),
        "parameters": {f"{g.dimension}.{g.mechanism}": g.parameters
                       for g in draw_gaps(gaps, gap_seed)},
        "gap_seed": gap_seed,
        "policy": Path(policy).name,
        "failed": sum(t.outcome is Outcome.FAILURE for t in takes),
        "leaning": {name: [t.leaning for t in d.takes] for name, d in found.items()},
        "verdicts": verdicts | {f"twin_{r}": verdicts[f"columns_{r}"] for r in ("own", "free")},
    }  # fmt: skip
    if row["failed"]:
        began_s = time.process_time()
        twin = identified(gaps, gap_seed, place)
        measured_s = time.process_time()
        reproduction = _reproduced(takes, twin, policy, config.workers, folder)
        for reference in ("own", "free"):
            row["verdicts"][f"twin_{reference}"] = _with_twin(
                found[f"columns_{reference}"], reproduction, row["failed"]
            )
        row |= {
            "reproduction": reproduction.to_json(),
            "differs": [[p.name, p.joint, p.estimate, *p.interval]
                        for p in twin.parameters if p.differs],
            "can_hold": sorted(MEASURABLE & set(gaps)),
            "measuring_s": measured_s - began_s,
            "reproducing_s": time.process_time() - measured_s,
        }  # fmt: skip
    shutil.rmtree(place)  # pictures of a station are 20 MB
    return row


def _drawn(
    kind: str, rng: np.random.Generator, base: str, folder: Path
) -> tuple[str, dict[str, float], int]:
    """Return policy, gaps and their seed of a station."""
    from gaploop.sim.gaps import MECHANISMS, add_mechanisms

    add_mechanisms(blind_gaps.__name__)

    gap_seed = int(rng.integers(100_000, 1_000_000))
    if kind == POLICY:
        return shaken(base, float(rng.choice(SHAKEN)), gap_seed, folder), {}, gap_seed
    dimensions, among = [kind], (*MECHANISMS, *blind_gaps.MECHANISMS)
    if kind in (PAIR, FINE):
        dimensions = list(rng.choice(PAIRED, 2 if kind == PAIR else 1, replace=False))
        among = tuple(m for m in MECHANISMS if m.key in MEASURABLE)
    gaps = {}
    for dimension in dimensions:
        every = [m.key for m in among if m.dimension.value == dimension]
        severity = rng.uniform(*SEVERITIES.get(kind, (0.5, 1.0)))
        gaps[str(rng.choice(every))] = float(np.round(severity, 2))
    return base, gaps, gap_seed


def shaken(base: str, noise: float, seed: int, folder: Path) -> str:
    """Return the folder of a policy whose weights were shaken; made where it isn't there.

    Args:
        base: the policy.
        noise: standard deviation, as a part of each tensor's own.
        seed: of the noise.
        folder: where it goes.
    """
    import torch
    from safetensors.torch import load_file, save_file

    from gaploop.finetune.lerobot_policy import resolve

    place = folder / f"shaken_{noise:g}_{seed}"
    if not place.exists():
        shutil.copytree(resolve(base), place)
        draw = torch.Generator().manual_seed(seed)
        weights = load_file(place / "model.safetensors")
        for name, value in weights.items():
            if value.is_floating_point() and value.numel() > 1:
                value += noise * value.std() * torch.randn(value.shape, generator=draw)
            weights[name] = value
        save_file(weights, place / "model.safetensors")
    return str(place)


def _failing(policy: str, gaps: Mapping[str, float], gap_seed: int, workers: int) -> int:
    from gaploop.finetune.evaluate import evaluate

    tried = evaluate(policy, SCREENED, gaps=gaps, gap_seed=gap_seed, seed=900, workers=workers)
    return tried.trials - tried.successes


def _driver(policy: str) -> Callable[[EmbeddedRig], Leader]:
    from gaploop.collect.policy_leader import PolicyLeader
    from gaploop.finetune.lerobot_policy import load_policy

    driver = load_policy(policy)
    return lambda rig: PolicyLeader(driver, rig.follower, rig.fps, rig.control_hz)


def _record(
    journal: Path,
    driver: Callable[[EmbeddedRig], Leader] | None,
    gaps: Mapping[str, float],
    gap_seed: int,
    takes: int,
    kind: TakeKind,
) -> None:
    """Record a station's takes; scripted ones without a driver, and then until enough go well."""
    from gaploop.collect.journal import JournalWriter
    from gaploop.collect.rig import embedded_rig
    from gaploop.collect.take import run_take
    from gaploop.finetune.evaluate import MAX_S
    from gaploop.sim.catalogue import INSTRUCTIONS
    from gaploop.sim.expert import ScriptedLeader

    journal.mkdir()
    # Nothing changes the cell here, but it stands for a real one all the same.
    nothing = {"actuator_response.latency": {"latency_s": 0.0}} if not gaps else {}
    rig = embedded_rig(gaps=gaps, gap_seed=gap_seed, parameters=nothing)
    leader = driver(rig) if driver is not None else None
    for n in range(takes):
        seed = STATION_SCENES + n + (500 if driver is None else 0)
        rig.reset(seed)
        header = rig.header(TakeInfo("", INSTRUCTIONS["pick_place"], kind=kind))
        with JournalWriter(journal, header) as writer:
            drives = leader or ScriptedLeader(rig.cell, seed)
            run_take(rig, drives, seed=seed, max_s=MAX_S, writer=writer)
    rig.close()


def _diagnosed(takes: Sequence[Take], tier: str, reference: Any) -> Diagnosis:
    from gaploop.failure_analysis.diagnosis import diagnose
    from gaploop.failure_analysis.reference import Reference
    from gaploop.failure_analysis.station import limited_to_tier

    usual = reference or Reference("no reference", 0, {})  # no demonstration went well
    return diagnose([limited_to_tier(t, tier) for t in takes], usual)


def identified(gaps: Mapping[str, float], gap_seed: int, folder: Path) -> Twin:
    """Return a station's twin as its three-minute probe tells it.

    Args:
        gaps: the station's.
        gap_seed: draws them.
        folder: where journal and twin go.
    """
    from gaploop.collect.probe import parts_of, probe_cell
    from gaploop.collect.rig import embedded_rig
    from gaploop.scripts._identify import identify
    from gaploop.scripts.identify import IdentifyConfig
    from gaploop.sim.catalogue import SO101

    journal = folder / "probe"
    probe_cell(
        parts_of(SO101.joint_names, (3, 3)),
        journal,
        lambda conditions: embedded_rig(gaps=gaps, gap_seed=gap_seed, conditions=conditions),
        seed=gap_seed,
    )
    return identify(IdentifyConfig([journal], folder / "twin"))


def _reproduced(
    takes: Sequence[Take], twin: Twin, policy: str, workers: int, folder: Path
) -> Reproduction:
    from gaploop.finetune.reproduction import StationFailures, in_the_cell, reproduce

    roll_out = in_the_cell(
        policy, twin, takes[0].info.task, n=SCENES, workers=workers,
        folder=folder / "reproduction", sees="lerobot", progress=lambda _done: None,
    )  # fmt: skip
    return reproduce(StationFailures.of(takes, twin.arm, "lerobot"), twin, roll_out)


def _with_twin(found: Diagnosis, reproduction: Reproduction, failed: int) -> dict[str, Any]:
    """Return the verdict that comes of the takes and of what was reproduced."""
    from gaploop.failure_analysis.diagnosis import pooled_shares
    from gaploop.finetune.reproduction import combined

    assert found.base is not None  # it failed
    return combined(reproduction, pooled_shares(found.takes), found.base.trust, failed).to_json()


def scores(rows: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Return each tier's figures as (hits, of how many), calibration errors, and times."""
    dimensions = {d.value for d in GapDimension}
    failing = [r for r in rows if r["failed"] and r["kind"] != FINE]
    kinds = {
        "single": [r for r in failing if r["kind"] in dimensions],
        "held": [r for r in failing if r["kind"] in dimensions and r["can_hold"]],
        "lacking": [r for r in failing if r["kind"] in dimensions and not r["can_hold"]],
        PAIR: [r for r in failing if r["kind"] == PAIR],
        POLICY: [r for r in failing if r["kind"] == POLICY],
        FINE: [r for r in rows if r["kind"] == FINE],
    }
    tiers = {}
    for tier in TIERS:

        def count(kind: str, hit: Callable[[set[str], Any], bool], of: str = tier) -> list[int]:
            verdicts = [(r, r["verdicts"][of]) for r in kinds[kind]]
            hits = [hit(set(v["named"]), (v["leading"], set(r["truth"]))) for r, v in verdicts]
            return [sum(hits), len(hits)]

        names = [(set(r["verdicts"][tier]["named"]) & dimensions, set(r["truth"]))
                 for r in kinds["single"]]  # fmt: skip
        tiers[tier] = {
            "top1": count("single", lambda _named, told: told[0] in told[1]),
            "top1_held": count("held", lambda _named, told: told[0] in told[1]),
            "not_measured": count("lacking", lambda named, _told: UNMEASURED in named),
            "named": count("single", lambda named, _told: bool(named & dimensions)),
            "right_of_named": [
                sum(n == truth for n, truth in names if n), sum(bool(n) for n, _ in names)
            ],
            "pair_both": count(PAIR, lambda named, told: told[1] <= named),
            "pair_leading": count(PAIR, lambda _named, told: told[0] in told[1]),
            "policy_blamed": count(POLICY, lambda named, _told: bool(named & dimensions)),
            "policy_named": count(POLICY, lambda named, _told: POLICY in named),
            "fine_named": count(FINE, lambda named, _told: bool(named & dimensions)),
        }  # fmt: skip
    took = {
        name: float(np.median([r[name] for r in failing])) if failing else 0.0
        for name in ("measuring_s", "reproducing_s")
    }
    ece = {tier: _calibration([_sure(r, tier) for r in failing]) for tier in TIERS}
    return {"tiers": tiers, "calibration_error": ece, "processor_s": took}


def _sure(row: Mapping[str, Any], tier: str) -> tuple[float, bool]:
    """Return how likely the leading cause is said to be, and whether it is the right one."""
    told = row["verdicts"][tier]
    leading, lacks = told["leading"], row["kind"] != POLICY and not row["can_hold"]
    right = leading in row["truth"] or (leading == UNMEASURED and lacks)
    return float(told["posterior"][leading]), right


def _calibration(told: Sequence[tuple[float, bool]]) -> tuple[float, float]:
    """Return the calibration error, and what a calibrated posterior would have by chance."""
    from benchmarks.corpus.scores import expected_calibration_error

    if not told:
        return 0.0, 0.0
    sure, right = np.array([c for c, _ in told]), np.array([r for _, r in told])
    rng = np.random.default_rng(0)
    lots = [rng.random(len(sure)) < sure for _ in range(300)]
    by_chance = np.mean([expected_calibration_error(sure, lot) for lot in lots])
    return expected_calibration_error(sure, right), float(by_chance)


def table(result: Mapping[str, Any]) -> str:
    """Return the figures as Markdown, a row a figure and a column a tier."""
    from gaploop.core.statistics import percent, rate

    names = {
        "top1": "one gap: likeliest cause right",
        "top1_held": "the same, of gaps that a twin can hold",
        "not_measured": "'not measured' said of gaps that it can't hold",
        "named": "one gap: a dimension named",
        "right_of_named": "right, of those named",
        "pair_both": "two gaps: both named",
        "pair_leading": "two gaps: one of them likeliest",
        "policy_blamed": "a gap named for a bad policy",
        "policy_named": "the policy itself named for one",
        "fine_named": "a gap named where one is too small to fail anything",
    }
    lines = ["| | " + " | ".join(TIERS.values()) + " |", "|---|" + "---|" * len(TIERS)]
    for name, words in names.items():
        cells = [
            f"{percent(rate(hits, of))} (n={of})" if of else "none"
            for hits, of in (result["tiers"][tier][name] for tier in TIERS)
        ]
        lines.append(f"| {words} | " + " | ".join(cells) + " |")
    errors = [result["calibration_error"][tier] for tier in TIERS]
    cells = [f"{error:.2f} ({by_chance:.2f})" for error, by_chance in errors]
    lines.append(f"| calibration error (by chance, if calibrated) | {' | '.join(cells)} |")
    took = result["processor_s"]
    lines += [
        "",
        f"{len(result['stations'])} stations. Processor time, median: probing and identifying "
        f"{took['measuring_s']:.0f} s, reproducing {took['reproducing_s']:.0f} s.",
    ]
    return "\n".join(lines)
