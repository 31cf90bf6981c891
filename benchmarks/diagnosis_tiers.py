"""The station's verdict by evidence tier, on blind stations and with bad policies (sim-to-sim).

A station is the embedded cell with one gap of drawn mechanism, severity and direction, or without
any and a base policy whose weights were shaken until it fails. Its rollouts are recorded, and
diagnosed by what each tier has: LeRobot's columns against the station's own demonstrations or
against gap-free takes, with telemetry, with the tracked scene, and LeRobot's columns and own
demonstrations with a twin. The twin is an oracle's, no identified one: the true parameters of
mechanisms that a probe can excite, to two digits, and beside them a small gap that isn't there.
Blind mechanisms, contacts, clutter, people and the task are in no twin.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from gaploop.core.vocabulary import Domain, GapDimension, Outcome, TakeKind
from gaploop.failure_analysis.station import UNMEASURED
from gaploop.scripts import options

if TYPE_CHECKING:
    from benchmarks.bench import BenchConfig
    from gaploop.collect.rig import EmbeddedRig
    from gaploop.core.protocols import Leader
    from gaploop.core.take import Take
    from gaploop.core.twin import Twin
    from gaploop.failure_analysis.diagnosis import Diagnosis

STATIONS: Final = 16
ROLLOUTS: Final = 10
DEMONSTRATIONS: Final = 7
SCENES: Final = 20
"""Of a reproduction, in each cell."""
STATION_SCENES: Final = 1_700_000
"""First scene of stations; those of evaluations, training and reproduction are others."""
LEAST_FAILING: Final = 3
"""Of eight rollouts: a station that fails less often has nothing to explain and is drawn anew."""
POLICY: Final = "policy"
ORDER: Final = (
    "actuator_response", POLICY, "spatial_geometry", "visual_domain", "object_property",
    "sensor_noise", POLICY, "contact_dynamics", "environmental_complexity", "actuator_response",
    "human_behavior", POLICY, "task_specification", "spatial_geometry", "object_property", POLICY,
)  # fmt: skip
SHAKEN: Final = (0.06, 0.08, 0.10, 0.12)
"""Noise on a bad policy's weights, as a part of each tensor's spread; drawn among them."""
IN_A_TWIN: Final = frozenset(
    {"actuator_response", "spatial_geometry", "visual_domain", "object_property", "sensor_noise"}
)
SPURIOUS: Final = (("spatial_geometry.camera_pose.dx_m", "m", 0.002),)
"""Measured, and not there."""
TIERS: Final = {
    "columns_own": "LeRobot columns, own demonstrations",
    "columns_free": "LeRobot columns, gap-free reference",
    "telemetry_free": "+ telemetry, gap-free reference",
    "scene_free": "+ tracked scene, gap-free reference",
    "twin_own": "LeRobot columns, own demonstrations, + twin (oracle)",
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
    return {"evidence": "sim-to-sim", "stations": rows, "tiers": _scores(rows)}


def _station(k: int, config: BenchConfig, folder: Path) -> dict[str, Any]:
    from gaploop.core.journal_format import read_journal
    from gaploop.failure_analysis.reference import build_reference, shipped_reference
    from gaploop.failure_analysis.tiers import seen_as

    rng = np.random.default_rng([config.seed, k, 77])
    kind = ORDER[k % len(ORDER)]
    while True:
        policy, gaps, gap_seed = _drawn(kind, rng, config.policy.required(), folder)
        failing = _failing(policy, gaps, gap_seed, config.workers)
        if failing >= LEAST_FAILING:
            break
    place = folder / f"station_{k:02}"
    shutil.rmtree(place, ignore_errors=True)  # what a stopped run left
    place.mkdir()
    _record(place / "rollouts", _driver(policy), gaps, gap_seed, ROLLOUTS, TakeKind.ROLLOUT)
    scripted = TakeKind.DEMONSTRATION
    _record(place / "takes", None, gaps, gap_seed, DEMONSTRATIONS, scripted)
    takes = list(read_journal(place / "rollouts"))
    good = [seen_as(t, "lerobot") for t in read_journal(place / "takes")]
    own, free = build_reference(good, "its own demonstrations"), shipped_reference()
    if not (folder / "nominal").exists():
        _record(folder / "nominal", _driver("base"), {}, 0, ROLLOUTS, TakeKind.ROLLOUT)
    nominal = [
        replace(seen_as(t, "lerobot"), info=replace(t.info, domain=Domain.SIM))
        for t in read_journal(folder / "nominal")
    ]
    found = {
        "columns_own": _diagnosed(takes, "lerobot", own),
        "columns_free": _diagnosed(takes, "lerobot", build_reference(nominal, "nominal takes")),
        "telemetry_free": _diagnosed(takes, "telemetry", free),
        "scene_free": _diagnosed(takes, "scene", free),
    }
    verdicts = {name: d.summary["station"] for name, d in found.items()}
    twin = oracle_twin(gaps, gap_seed)
    verdicts["twin_own"], reproduction = _reproduced(
        found["columns_own"], takes, twin, policy, config.workers, folder
    )
    shutil.rmtree(place)  # pictures of a station are 20 MB
    truth = kind
    return {
        "truth": truth,
        "gaps": dict(gaps),
        "gap_seed": gap_seed,
        "policy": Path(policy).name,
        "in_twin": list(twin.mechanisms),
        "failed": sum(t.outcome is Outcome.FAILURE for t in takes),
        "takes_right": {
            name: [sum(t.leaning == truth and t.dimensions[truth] > t.none for t in d.takes),
                   len(d.takes)]
            for name, d in found.items() if truth != POLICY
        },
        "verdicts": verdicts,
        "reproduction": reproduction,
    }  # fmt: skip


def _drawn(
    kind: str, rng: np.random.Generator, base: str, folder: Path
) -> tuple[str, dict[str, float], int]:
    from gaploop.sim.gaps import BLIND_MECHANISMS, MECHANISMS

    gap_seed = int(rng.integers(100_000, 1_000_000))
    if kind == POLICY:
        return shaken(base, float(rng.choice(SHAKEN)), gap_seed, folder), {}, gap_seed
    every = [m.key for m in (*MECHANISMS, *BLIND_MECHANISMS) if m.dimension.value == kind]
    return base, {str(rng.choice(every)): float(np.round(rng.uniform(0.5, 1.0), 2))}, gap_seed


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

    tried = evaluate(policy, 8, gaps=gaps, gap_seed=gap_seed, seed=900, workers=workers)
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
    from gaploop.collect.session import run_take
    from gaploop.finetune.evaluate import MAX_S
    from gaploop.sim.expert import ScriptedLeader
    from gaploop.sim.tasks import INSTRUCTIONS

    journal.mkdir()
    # Nothing changes the cell here, but it stands for a real one all the same.
    nothing = {"actuator_response.latency": {"latency_s": 0.0}} if not gaps else {}
    rig = embedded_rig(gaps=gaps, gap_seed=gap_seed, parameters=nothing)
    leader = driver(rig) if driver is not None else None
    for n in range(takes):
        seed = STATION_SCENES + n + (500 if driver is None else 0)
        rig.reset(seed)
        header = rig.header(INSTRUCTIONS["pick_place"], kind=kind)
        with JournalWriter(journal, header) as writer:
            drives = leader or ScriptedLeader(rig.cell, seed)
            run_take(rig, drives, seed=seed, max_s=MAX_S, writer=writer)
    rig.close()


def _diagnosed(takes: Sequence[Take], tier: str, reference: Any) -> Diagnosis:
    from gaploop.failure_analysis.diagnosis import diagnose
    from gaploop.failure_analysis.reference import ABSOLUTE, Reference
    from gaploop.failure_analysis.tiers import seen_as

    usual = reference or Reference("absolute limits", 0, ABSOLUTE)  # no demonstration went well
    return diagnose([seen_as(t, tier) for t in takes], usual)


def oracle_twin(gaps: Mapping[str, float], gap_seed: int) -> Twin:
    """Return a station's twin from its truth: what a probe could excite, to two digits."""
    from gaploop.core.twin import Twin, TwinParameter
    from gaploop.sim.gaps import draw_gaps, mechanism_named

    found = {name: (unit, 0.0, value) for name, unit, value in SPURIOUS}
    for gap in draw_gaps(gaps, gap_seed):
        if gap.blind or gap.dimension not in IN_A_TWIN:
            continue
        key = f"{gap.dimension}.{gap.mechanism}"
        known = {p.name: p for p in mechanism_named(key).parameters}
        for name, value in gap.parameters.items():
            rounded = float(f"{value:.2g}")
            found[f"{key}.{name}"] = (known[name].unit, known[name].nominal, rounded)
    parameters = []
    for name, (unit, nominal, value) in found.items():
        half = 0.1 * abs(value - nominal) if np.isfinite(nominal) else 0.1 * abs(value)
        span = (value - half, value + half)
        parameters.append(TwinParameter(name, unit, nominal, value, span, True, "oracle"))
    return Twin("blind", "so101", tuple(parameters))


def _reproduced(
    found: Diagnosis, takes: Sequence[Take], twin: Twin, policy: str, workers: int, folder: Path
) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return the verdict with the twin, and the reproduction."""
    from gaploop.failure_analysis.diagnosis import pooled_shares
    from gaploop.finetune.reproduction import StationFailures, combined, in_the_cell, reproduce

    base = found.base
    station = StationFailures.of(takes, twin.arm, "lerobot")
    if base is None or not station.failed:
        return found.summary["station"], {}
    roll_out = in_the_cell(
        policy, twin, takes[0].info.task, n=SCENES, workers=workers,
        folder=folder / "reproduction", sees="lerobot", progress=lambda _done: None,
    )  # fmt: skip
    reproduction = reproduce(station, twin, roll_out)
    verdict = combined(reproduction, pooled_shares(found.takes), base.trust, station.failed)
    return verdict.to_json(), reproduction.to_json()


def _scores(rows: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Return each tier's figures as (hits, of how many)."""
    gapped = [r for r in rows if r["truth"] != POLICY]
    bad = [r for r in rows if r["truth"] == POLICY]
    measured = [r for r in gapped if len(r["in_twin"]) > len(SPURIOUS) or _overlaps(r)]
    lacking = [r for r in gapped if r not in measured]
    dimensions = {d.value for d in GapDimension}
    scored = {}
    for tier in TIERS:
        named = [(r, set(r["verdicts"][tier]["named"]) & dimensions) for r in gapped]
        certain = [(r, names) for r, names in named if names]
        scored[tier] = {
            "top1": (sum(_leads(r, tier) for r in gapped), len(gapped)),
            "top1_in_twin": (sum(_leads(r, tier) for r in measured), len(measured)),
            "not_measured": (
                sum(UNMEASURED in r["verdicts"][tier]["named"] for r in lacking), len(lacking)
            ),
            "named": (len(certain), len(gapped)),
            "right_of_named": (sum(names == {r["truth"]} for r, names in certain), len(certain)),
            "bad_policy_blamed": (
                sum(bool(set(r["verdicts"][tier]["named"]) & dimensions) for r in bad), len(bad)
            ),
            "bad_policy_named": (
                sum(POLICY in r["verdicts"][tier]["named"] for r in bad), len(bad)
            ),
        }  # fmt: skip
    return scored


def _overlaps(row: Mapping[str, Any]) -> bool:
    """Whether the injected mechanism is one of the spurious ones, and so in the twin."""
    return bool(set(row["gaps"]) & {name.rpartition(".")[0] for name, _, _ in SPURIOUS})


def _leads(row: Mapping[str, Any], tier: str) -> bool:
    return bool(row["verdicts"][tier]["leading"] == row["truth"])


def table(result: Mapping[str, Any]) -> str:
    """Return the figures as Markdown."""
    from gaploop.core.statistics import percent, rate

    names = {
        "top1": "likeliest cause right",
        "top1_in_twin": "the same, of gaps that a twin can hold",
        "not_measured": "'not measured' said of gaps that it can't hold",
        "named": "named",
        "right_of_named": "right, of those named",
        "bad_policy_blamed": "a gap named for a bad policy",
        "bad_policy_named": "the policy itself named for one",
    }
    head = "| evidence | " + " | ".join(names.values()) + " |"
    lines = [head, "|---|" + "---|" * len(names)]
    for tier, words in TIERS.items():
        cells = [
            f"{percent(rate(hits, of))} (n={of})" if of else "none"
            for hits, of in (result["tiers"][tier][name] for name in names)
        ]
        lines.append(f"| {words} | " + " | ".join(cells) + " |")
    return "\n".join(lines)
