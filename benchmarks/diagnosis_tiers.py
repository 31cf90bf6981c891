"""What the page that finds out why says of blind stations, typed as it stands (sim-to-sim).

A station is the embedded cell with one gap of drawn mechanism, severity and direction, with two, or
without any, and there either the base policy or one whose weights were shaken until it fails. It
rolls out twelve times; what its commands are shown of that is LeRobot's own columns, pictures and
how each attempt went. Then the commands of docs/start/find_out_why.md are typed, from `diagnose` to
`plan`, with the station in place of the page's robot. A row says what was named, and which link of
the chain lost what was there. Order and seeds stand here; the folder keeps each station's row.
"""

from __future__ import annotations

import contextlib
import io
import json
import os
import re
import shlex
import shutil
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import numpy as np
import pyarrow.parquet as pq

from benchmarks import blind_gaps, station_remedies
from gaploop.core.statistics import percent, rate
from gaploop.core.vocabulary import GapDimension
from gaploop.failure_analysis.station import POLICY, UNMEASURED
from gaploop.scripts import options

if TYPE_CHECKING:
    from benchmarks.bench import BenchConfig
    from gaploop.core.twin import Twin

PAGE: Final = Path(__file__).parents[1] / "docs" / "start" / "find_out_why.md"
PLAIN: Final = frozenset({
    "action", "observation.state", "timestamp", "frame_index", "episode_index", "index",
    "task_index",
})  # fmt: skip
"""What `lerobot-record` writes beside pictures."""
RECORD: Final = "--dataset.root=recorded --dataset.num_episodes=12 --dataset.episode_time_s=10"
TYPED: Final = ("diagnose", "rollout", "plan")
FIRST: Final = 3_400_000
"""Seed of the first station, where --seed is 0."""
SINGLE, PAIR, NOMINAL = "single", "pair", "nominal"
OTHERS: Final = (
    PAIR, POLICY, PAIR, NOMINAL, PAIR, POLICY, PAIR, NOMINAL, PAIR, POLICY, PAIR, NOMINAL, POLICY,
) * 2  # fmt: skip
SINGLES: Final = 40
ORDER: Final = tuple(
    kind
    for k in range(SINGLES)
    for kind in (SINGLE, *OTHERS[k * len(OTHERS) // SINGLES : (k + 1) * len(OTHERS) // SINGLES])
)
"""Forty stations of one gap, dimension after dimension, and the others spread among them."""
SCREENED: Final = 10
LEAST_FAILING: Final = 3
"""Of the scenes that are screened: a station that fails less often is drawn anew."""
SHAKEN: Final = (0.06, 0.08, 0.10, 0.12)
"""Noise on a bad policy's weights, as a part of each tensor's spread; drawn among them."""
PAIRED: Final = ("actuator_response", "spatial_geometry", "visual_domain", "object_property")
"""Two of these act at once."""
SEVERITIES: Final = {SINGLE: (0.5, 1.0), PAIR: (0.4, 0.7)}
CONFIDENCE: Final = 0.9
REMEDIES: Final = "remedies"
"""In --tasks: what a plan's remedies bring is measured, too."""
GOALS: Final = {
    "single_right": ("one gap: likeliest cause right", 0.85),
    "single_dimension": ("one gap: likeliest dimension right", None),
    "single_named": ("one gap: a dimension named", None),
    "named_right": ("right, of those named", 0.95),
    "gap_on_policy": ("a gap blamed on the policy", 0.05),
    "policy_on_gap": ("a bad policy blamed on a gap", 0.05),
    "policy_named": ("a bad policy named", None),
    "pair_both": ("two gaps: both named", 0.6),
    "pair_likeliest": ("two gaps: one of them likeliest", None),
    "nominal_named": ("no gap: anything named", None),
}  # fmt: skip
"""Each figure in words, and what is asked of it; of blame, at most that."""


# -- the page, typed -----------------------------------------------------------------------------


def typed(page: Path) -> list[str]:
    """Return the whole commands of a page, those in prose too, in order."""
    text = page.read_text().replace("\\\n", " ")
    found = re.findall(r"^(?:    )?(gaploop [^\n#]*)|`(gaploop [^`]*)`", text, re.MULTILINE)
    return [" ".join(c.split()) for pair in found if "…" not in (c := pair[0] or pair[1])]


def make_plain(source: Path, target: Path, robot: str = "so101_follower") -> None:
    """Copy a dataset with what LeRobot's own columns hold, and no more."""
    shutil.copytree(source, target, ignore=shutil.ignore_patterns("telemetry", "gap", "truth*"))
    info = json.loads((target / "meta" / "info.json").read_text())
    gone = {n for n in info["features"] if n not in PLAIN and "images" not in n}
    info["features"] = {n: f for n, f in info["features"].items() if n not in gone}
    (target / "meta" / "info.json").write_text(json.dumps(info | {"robot_type": robot}))
    stats = json.loads((target / "meta" / "stats.json").read_text())
    kept = {n: s for n, s in stats.items() if n not in gone}
    (target / "meta" / "stats.json").write_text(json.dumps(kept))
    tables = [*target.glob("data/*/*.parquet"), *target.glob("meta/episodes/*/*.parquet")]
    for path in tables:
        table = pq.read_table(path)
        ours = [c for c in table.column_names if c.startswith("gap") or c.split("/")[0] == "gap"]
        theirs = [c for c in table.column_names if (c.split("/") * 2)[1] in gone or c in gone]
        pq.write_table(table.drop_columns([*{*ours, *theirs}]), path)


def walk_page(robot: str, policy: str = "base") -> Iterator[tuple[str, str]]:
    """Type the page in the working folder, in the sizes it prints; yield each command as it ends.

    Args:
        robot: options of the station's cell, such as --robot.gaps=….
        policy: drives there; the page's is the base.

    Yields:
        The command and what it printed.

    Raises:
        RuntimeError: a command failed.
    """
    from gaploop.datasets.lerobot_read import load_takes

    yield _run(f"gaploop rollout {robot} --policy.path={policy} {RECORD}")
    make_plain(Path("recorded"), Path("rollouts"))
    recorded = list(load_takes(Path("recorded")))
    for outcome in ("success", "failure"):  # as the person saw it who stood beside
        if went := [i for i, take in enumerate(recorded) if take.outcome == outcome]:
            yield _run(
                f"gaploop label rollouts --episodes='{went}' --outcome={outcome} --author=ana"
            )
    for line in typed(PAGE):
        if "--measure" in line and "--robot.gaps" in line:
            # With 1 it says that a part of the check couldn't be done; the rest is identified.
            yield _run(re.sub(r"--robot.gaps='[^']*'", lambda _: robot, line), may_lack=True)
        elif line.split()[1] not in TYPED or " --" not in line:
            continue
        elif "--dataset.root=simulated" not in line or not Path("simulated").exists():
            yield _run(line.replace("--policy.path=base", f"--policy.path={policy}"))


def _run(line: str, may_lack: bool = False) -> tuple[str, str]:
    from gaploop.scripts.cli import main

    said = io.StringIO()
    with contextlib.redirect_stdout(said), contextlib.redirect_stderr(said):
        code = main(shlex.split(line)[1:])
    if code > may_lack:
        raise RuntimeError(line, code, said.getvalue())
    return line, said.getvalue()


# -- blind stations ------------------------------------------------------------------------------


def measure(config: BenchConfig, folder: Path) -> dict[str, Any]:
    """Type the page at station after station; what the folder holds counts."""
    path = folder / "stations.jsonl"
    rows = [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []
    asked = range(len(ORDER))[config.first :][: config.n or None]
    todo = [k for k in asked if k not in {row["station"] for row in rows}]
    seed, remedies = FIRST + config.seed, REMEDIES in config.tasks
    with options.progress("Stations", total=len(asked)) as advance:
        advance(len(asked) - len(todo))
        for k in todo:
            rows.append(_station(k, seed, folder.resolve(), remedies))
            with path.open("a") as file:
                file.write(json.dumps(options.jsonable(rows[-1])) + "\n")
            advance()
    return {"evidence": "sim-to-sim", "stations": rows, **scores(rows)}


def _station(k: int, first: int, folder: Path, remedies: bool) -> dict[str, Any]:
    kind = ORDER[k]
    policy, gaps, gap_seed = _drawn(kind, ORDER[:k].count(SINGLE), first + k, folder)
    place, nominal = folder / f"station_{k:02}", folder / "simulated"
    shutil.rmtree(place, ignore_errors=True)  # what a stopped run left
    place.mkdir()
    if policy == "base" and nominal.exists():
        (place / "simulated").symlink_to(nominal)
    robot = (
        f"--robot.gaps='{json.dumps(gaps)}' --robot.gap_seed={gap_seed} "
        f"--robot.gaps_module={blind_gaps.__name__}"
    )
    row: dict[str, Any] = {
        "station": k, "kind": kind, "gaps": gaps, "gap_seed": gap_seed,
        "policy": Path(policy).name, "processor_s": {}, "stopped": "",
    }  # fmt: skip
    with contextlib.chdir(place):
        spent_s = _spent_s()
        try:
            for line, said in walk_page(robot, policy):
                name = " ".join([line.split()[1], *(["--twin"] if "--twin=" in line else [])])
                now_s = _spent_s()
                row["processor_s"][name] = row["processor_s"].get(name, 0.0) + now_s - spent_s
                spent_s = now_s
                with Path("said.txt").open("a") as file:
                    file.write(f"$ {line}\n{said}\n")
                if name == "diagnose":
                    row["alone"] = _verdict()
        except RuntimeError as failed:
            line, code, said = failed.args
            why = said.strip().splitlines()[-1:]
            row["stopped"] = f"{line.split()[1]} ended with {code}: {' '.join(why)}"
        row |= _read(gaps, gap_seed)
        if remedies and gaps and row["failed"] and not row["stopped"]:
            try:
                row["remedies"] = station_remedies.remedied(robot, policy, _run)
            except RuntimeError as failed:
                row["no_remedies"] = " ".join(map(str, failed.args))
    if policy == "base" and not nominal.exists() and (place / "simulated").exists():
        (place / "simulated").rename(nominal)
    kept = {"diagnosis", "plan", "remedies", "station", "said.txt"}
    for path in place.iterdir():  # pictures of a station are 20 MB
        if path.name not in kept:
            path.unlink() if path.is_symlink() or path.is_file() else shutil.rmtree(path)
    return row | {"lost_at": lost_at(row)}


def _spent_s() -> float:
    """Return the processor time of this process and of those that it started and that ended."""
    return sum(os.times()[:4])


def _verdict() -> dict[str, Any]:
    path = Path("diagnosis", "diagnosis.json")
    summary = json.loads(path.read_text())["summary"] if path.exists() else {}
    return dict(summary.get("station") or {"named": [], "leading": "", "posterior": {}})


def _read(gaps: Mapping[str, float], gap_seed: int) -> dict[str, Any]:
    """Return what the page left in its folders, beside what is true."""
    from gaploop.core.plan import load_plan
    from gaploop.core.twin import load_twin
    from gaploop.datasets.lerobot_read import load_takes
    from gaploop.sim.gaps import draw_gaps

    outcomes = Counter(str(take.outcome) for take in load_takes(Path("recorded")))
    row: dict[str, Any] = {
        "failed": outcomes["failure"],
        "of": outcomes.total(),
        "injected": {g.key: dict(g.parameters) for g in draw_gaps(gaps, gap_seed)},
        "verdict": _verdict(),
    }
    if (path := Path("station", "station_twin.yaml")).exists():
        twin: Twin = load_twin(path)
        row["differs"] = [
            [p.name, p.joint, p.estimate, *p.interval] for p in twin.parameters if p.differs
        ]
        row["measured"] = sorted({p.mechanism for p in twin.parameters if p.excited})
    if (path := Path("plan", "plan.yaml")).exists():
        plan = load_plan(path)
        row["plan"] = [[i.dimension.value, i.remedy, i.takes, bool(i.commands)] for i in plan.items]
    return row


def lost_at(row: Mapping[str, Any]) -> str:
    """Return which link of the chain lost what was there; "" where it held to the end."""
    named, truth = set(row["verdict"]["named"]) - {UNMEASURED}, _truth(row)
    differs = {name.rpartition(".")[0] for name, *_ in row.get("differs", ())}
    if row["stopped"]:
        return str(row["stopped"])
    if named - truth:
        return f"diagnose: {', '.join(sorted(named - truth))} named wrongly"
    if missing := truth - named:
        lacks = [m for m in row["gaps"] if m.partition(".")[0] in missing]
        unmeasured = [m for m in lacks if m not in row.get("measured", ())]
        if unmeasured:
            return f"identify: measures no {', '.join(unmeasured)}; hypotheses name nothing"
        if unseen := [m for m in lacks if m not in differs]:
            return f"identify: {', '.join(unseen)} measured as nominal"
        return f"diagnose: {', '.join(sorted(missing))} measured and not named"
    runs = any(has_commands for *_, has_commands in row.get("plan", ()))
    return "" if not truth or runs else "plan: nothing that runs"


def _truth(row: Mapping[str, Any]) -> set[str]:
    return {POLICY} if row["kind"] == POLICY else {name.partition(".")[0] for name in row["gaps"]}


def _drawn(kind: str, n: int, seed: int, folder: Path) -> tuple[str, dict[str, float], int]:
    """Return policy, gaps and their seed of a station; drawn anew while it seldom fails."""
    from gaploop.finetune.evaluate import evaluate
    from gaploop.sim.gaps import MECHANISMS, add_mechanisms

    add_mechanisms(blind_gaps.__name__)
    every = [m for m in (*MECHANISMS, *blind_gaps.MECHANISMS) if not m.by_name]
    rng, known = np.random.default_rng(seed), [d.value for d in GapDimension]
    while True:
        policy, gaps, gap_seed = "base", dict[str, float](), int(rng.integers(100_000, 1_000_000))
        if kind == NOMINAL:
            return policy, gaps, gap_seed
        if kind == POLICY:
            policy = shaken(policy, float(rng.choice(SHAKEN)), gap_seed, folder)
        else:
            among = [known[n % len(known)]]
            among = list(rng.choice(PAIRED, 2, replace=False)) if kind == PAIR else among
            for dimension in among:
                mine = [m.key for m in every if m.dimension.value == dimension]
                gaps[str(rng.choice(mine))] = round(float(rng.uniform(*SEVERITIES[kind])), 2)
        tried = evaluate(policy, SCREENED, gaps=gaps, gap_seed=gap_seed, seed=900, workers=1)
        if tried.trials - tried.successes >= LEAST_FAILING:
            return policy, gaps, gap_seed


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


# -- figures -------------------------------------------------------------------------------------


def scores(rows: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Return each figure as (hits, of how many), the calibration error, and processor times."""
    dimensions = {d.value for d in GapDimension}

    def count(kinds: Sequence[str], hit: Callable[[Mapping[str, Any]], bool]) -> list[int]:
        hits = [hit(r) for r in rows if r["kind"] in kinds and (r["failed"] or kinds == [NOMINAL])]
        return [sum(hits), len(hits)]

    def named(row: Mapping[str, Any]) -> set[str]:
        return set(row["verdict"]["named"])

    def likeliest(row: Mapping[str, Any]) -> str:
        gaps = {d: p for d, p in row["verdict"]["posterior"].items() if d in dimensions}
        return max(gaps, key=lambda d: gaps[d], default="")

    alone = [r for r in rows if r["kind"] == SINGLE and named(r) & dimensions]
    found = {
        "single_right": count([SINGLE], lambda r: r["verdict"]["leading"] in _truth(r)),
        "single_dimension": count([SINGLE], lambda r: likeliest(r) in _truth(r)),
        "single_named": count([SINGLE], lambda r: bool(named(r) & dimensions)),
        "named_right": [sum(named(r) & dimensions == _truth(r) for r in alone), len(alone)],
        "gap_on_policy": count([SINGLE, PAIR], lambda r: POLICY in named(r)),
        "policy_on_gap": count([POLICY], lambda r: bool(named(r) & dimensions)),
        "policy_named": count([POLICY], lambda r: POLICY in named(r)),
        "pair_both": count([PAIR], lambda r: _truth(r) <= named(r)),
        "pair_likeliest": count([PAIR], lambda r: likeliest(r) in _truth(r)),
        "nominal_named": count([NOMINAL], lambda r: bool(named(r))),
    }
    sure = [
        (float(v["posterior"][v["leading"]]), v["leading"] in _truth(r))
        for r in rows
        if (v := r["verdict"])["leading"]
    ]
    commands = dict.fromkeys(name for r in rows for name in r["processor_s"])
    took = {c: float(np.median([r["processor_s"].get(c, 0.0) for r in rows])) for c in commands}
    return {"figures": found, "calibration_error": _calibration(sure), "processor_s": took}


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
    """Return the figures and the stations as Markdown."""
    rows, kinds = result["stations"], Counter(ORDER)
    ran = Counter(r["kind"] for r in rows)
    lines = [
        "Sim-to-sim, 90 % intervals; stations: "
        + ", ".join(f"{ran[kind]} of {of} {kind}" for kind, of in kinds.items()),
        "",
        "| | of stations | goal |",
        "|---|---|---|",
    ]
    for name, (words, goal) in GOALS.items():
        hits, of = result["figures"][name]
        told = f"{percent(rate(hits, of, CONFIDENCE))} (n={of})" if of else "none yet"
        asked = "" if goal is None else f"{'≤' if goal < 0.5 else '≥'} {goal:.0%}"
        lines.append(f"| {words} | {told} | {asked} |")
    error, by_chance = result["calibration_error"]
    lines.append(
        f"| calibration error (by chance, if calibrated) | {error:.2f} ({by_chance:.2f}) | |"
    )
    lines += [
        "",
        "| station | what is there | failed | likeliest | named | measured (true) | lost at |",
        "|---|---|---|---|---|---|---|",
    ]
    lines += [_line(row) for row in rows]
    lines += station_remedies.table(rows)
    took = ", ".join(f"{c} {s:.0f} s" for c, s in result["processor_s"].items())
    return "\n".join([*lines, "", f"Processor time, medians: {took}."])


def _line(row: Mapping[str, Any]) -> str:
    verdict = row["verdict"]
    there = ", ".join(f"`{name}` {severity:g}" for name, severity in row["gaps"].items())
    there = there or (f"`{row['policy']}`" if row["kind"] == POLICY else "nothing")
    leading = verdict["leading"]
    likeliest = f"{leading} {verdict['posterior'][leading]:.0%}" if leading else ""
    measured = [
        f"{' '.join([name.partition('.')[2], *joint.split()])} "
        f"{value:.3g} [{low:.3g}, {high:.3g}]{_true(row, name)}"
        for name, joint, value, low, high in row.get("differs", ())
    ]
    cells = [
        str(row["station"]), there, f"{row['failed']} of {row['of']}", likeliest,
        ", ".join(verdict["named"]), "; ".join(measured), row["lost_at"],
    ]  # fmt: skip
    return f"| {' | '.join(cells)} |"


def _true(row: Mapping[str, Any], name: str) -> str:
    mechanism, _, parameter = name.rpartition(".")
    value = row["injected"].get(mechanism, {}).get(parameter)
    return "" if value is None else f" ({value:.3g})"
