"""Hidden stations, probed: what `fit_contact` and `fit_scene` recover, and what isn't there.

Contact stations come first: twelve with nominal drives, which share what is simulated, and some
whose drives have a fault, too, and are identified first. Rows are kept as they come, so that a run
that was cut off goes on. Sim-to-sim.
"""

from __future__ import annotations

import json
import math
import shutil
import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from gaploop.scripts import options

if TYPE_CHECKING:
    from benchmarks.bench import BenchConfig
    from gaploop.sim.identification.contact import Simulated

MECHANISMS: Final = (
    "spatial_geometry.camera_pose", "spatial_geometry.zero_offset",
    "visual_domain.exposure", "visual_domain.colour_cast", "visual_domain.blur",
    "object_property.size",
)  # fmt: skip
UNSEEN: Final = (
    "spatial_geometry.base_moved", "visual_domain.glare", "visual_domain.banding",
    "sensor_noise.dead_rows", "object_property.flat",
)  # fmt: skip
"""Blind mechanisms of pictures: none has a parameter here; what is found in them is only told."""
SEVERITIES: Final = (0.4, 0.8)
"""In turn, so that each mechanism has both."""
FIRST_SEED: Final = 900
"""Seeds that nothing here was tuned on begin with this one."""
CONTACTS, PAIRS, SCENES = 12, 3, 20
"""Contact stations with nominal drives, and with a second fault; rollouts at each."""
DRIVE_FAULTS: Final = ("weak", "backlash", "latency")


def measure(config: BenchConfig, folder: Path) -> dict[str, Any]:
    """Return a row per station: truth, estimates, times."""
    from gaploop.finetune.evaluate import evaluate

    n = config.n or 4
    policy = config.policy.required()
    contacts = _contact_stations(policy, folder)
    nominal = evaluate(policy, SCENES, seed=FIRST_SEED, workers=1).successes
    stations = [("", 0.0, FIRST_SEED + k) for k in range(n)]
    stations += [
        (mechanism, SEVERITIES[(k + number) % 2], FIRST_SEED + k)
        for k in range(n)
        for number, mechanism in enumerate(MECHANISMS)
    ]
    stations += [(m, 0.7, FIRST_SEED + k) for k in range(n) for m in UNSEEN]
    kept = folder / "rows.jsonl"
    rows = [json.loads(line) for line in kept.read_text().splitlines()] if kept.exists() else []
    done = {(row["mechanism"], row["severity"], row["seed"]) for row in rows}
    with options.progress("Probing stations", len(stations)) as advance, kept.open("a") as stream:
        for station in stations:
            if station not in done:
                rows.append(_station(*station, folder))
                stream.write(json.dumps(options.jsonable(rows[-1])) + "\n")
                stream.flush()
            advance()
    return {"evidence": "sim-to-sim", "rows": rows, "contacts": contacts, "nominal": nominal}


def _contact_stations(policy: str, folder: Path) -> list[dict[str, Any]]:
    file, shared = folder / "contacts.jsonl", list[Simulated]()
    rows = [json.loads(line) for line in file.read_text().splitlines()] if file.exists() else []
    with options.progress("Probing contact", CONTACTS + PAIRS) as advance, file.open("a") as kept:
        advance(len(rows))
        for k in range(len(rows), CONTACTS + PAIRS):
            row = _contact_station(k, policy, folder, shared)
            rows.append(json.loads(json.dumps(options.jsonable(row))))
            print(json.dumps(rows[-1]), file=kept, flush=True)
            advance()
    return rows


def _contact_station(k: int, policy: str, folder: Path, shared: list[Simulated]) -> dict[str, Any]:
    from gaploop.collect.probe import parts_of, probe_cell
    from gaploop.collect.rig import embedded_rig
    from gaploop.core.twin import Twin, around_twin
    from gaploop.datasets.lerobot_read import load_takes
    from gaploop.finetune.evaluate import evaluate
    from gaploop.sim.catalogue import SO101
    from gaploop.sim.identification import contact
    from gaploop.sim.identification.drives import fit_drives

    rng, is_pair = np.random.default_rng([FIRST_SEED, k, 43]), k >= CONTACTS
    touch, fault = contact.drawn(rng), f"actuator_response.{DRIVE_FAULTS[k % len(DRIVE_FAULTS)]}"
    gaps = {fault: float(rng.uniform(0.3, 0.8))} if is_pair else {}
    there: dict[str, Any] = {"gaps": gaps, "gap_seed": FIRST_SEED + k, "parameters": touch}
    wanted = (contact.FULL, *(("reverse", "chirp", "step") if is_pair else ()))
    journal = folder / "contact_journal"
    shutil.rmtree(journal, ignore_errors=True)
    probe_cell(
        [p for p in parts_of(SO101.joint_names, (3, 3), SO101) if p.name.startswith(wanted)],
        journal,
        lambda conditions: embedded_rig(conditions=conditions, **there),
        seed=FIRST_SEED + k,
    )
    takes, began_s = list(load_takes(journal)), time.process_time()
    probe = contact.probed(takes, SO101)
    assert probe is not None
    free = [take for take in takes if take.info.conditions["probe"] != contact.FULL]
    drives = fit_drives(free, SO101).parameters if is_pair else ()
    twin = Twin("hidden", SO101.name, tuple(drives))
    if is_pair or not shared:
        simulated = contact.simulate(probe, SO101, twin)
        shared.append(simulated)
    else:
        simulated = shared[0]
    found = contact.fit_contact(takes, SO101, twin, simulated)
    used_s = time.process_time() - began_s
    here, errors = contact.predict(simulated, contact.summary(*probe, SO101))
    spans = np.quantile(simulated.contact, 0.95, 0) - np.quantile(simulated.contact, 0.05, 0)
    columns = zip(contact.PRIOR, contact.scaled(touch), here, errors.T, spans, strict=True)
    twin = replace(twin, parameters=(*drives, *found))
    cells = {
        "station": there,
        "twin": {"parameters": twin.values()},
        "drawn": {"parameters": twin.values(), "randomise": around_twin(twin)},
    }
    won = {
        name: evaluate(policy, SCENES, seed=FIRST_SEED, workers=1, **cell).successes
        for name, cell in cells.items()
    }
    return {
        "station": k,
        "gaps": gaps,
        "drives": [p.name for p in drives if p.differs],
        "told": [
            {"name": name, "truth": truth, "at": at, "low": low, "high": high,
             "share": (high - low) / span}
            for name, truth, at, error, span in columns
            for low, high in (contact.ends(at, error),)
        ],
        "named": [p.name for p in found if p.differs],
        "won": won,
        "processor_s": used_s,
    }  # fmt: skip


def _station(mechanism: str, severity: float, seed: int, folder: Path) -> dict[str, Any]:
    from gaploop.collect.probe import parts_of, probe_cell
    from gaploop.collect.rig import embedded_rig
    from gaploop.datasets.lerobot_read import load_takes
    from gaploop.sim.catalogue import SO101
    from gaploop.sim.gaps import draw_gaps
    from gaploop.sim.identification.scene import fit_scene

    gaps = {mechanism: severity} if mechanism else {}
    journal = folder / "journal"
    shutil.rmtree(journal, ignore_errors=True)
    # Slow and swinging motions are for the drives; their pictures show what the others show.
    parts = [
        part
        for part in parts_of(SO101.joint_names, (3, 3))
        if not mechanism or part.motion.script not in ("reverse", "chirp")
    ]
    began_s = time.monotonic()
    end = probe_cell(
        parts,
        journal,
        lambda conditions: embedded_rig(gaps=gaps, gap_seed=seed, conditions=conditions),
        seed=seed,
    )
    probed_s, used_s = time.monotonic(), time.process_time()
    found = fit_scene(list(load_takes(journal)), SO101)
    fitted_s = time.monotonic()
    return {
        "mechanism": mechanism,
        "severity": severity,
        "seed": seed,
        "truth": {
            f"{gap.dimension}.{gap.mechanism}.{name}": value
            for gap in draw_gaps(gaps, seed)
            for name, value in gap.parameters.items()
        },
        "found": [
            {
                "name": p.name,
                "estimate": p.estimate,
                "interval": list(p.interval),
                "excited": p.excited,
                "differs": p.differs,
            }
            for p in found
        ],
        "simulated_s": sum(now.duration_s for now in end.parts),
        "probe_s": probed_s - began_s,
        "fit_s": fitted_s - probed_s,
        "fit_processor_s": time.process_time() - used_s,
    }


def table(result: Mapping[str, Any]) -> str:
    """Return errors, coverage and false findings as Markdown tables."""
    contacts = _contact_lines(result["contacts"], result["nominal"])
    return "\n".join([*contacts, "", *_scene_lines(result["rows"])])


def _contact_lines(rows: Sequence[Mapping[str, Any]], nominal: int) -> list[str]:
    lines = [
        "Sim-to-sim; stations are drawn as what they are compared with. Told: an interval of at "
        "most half of what is drawn from. Width: of all intervals, as its share.",
    ]
    for title, is_pair in (("nominal drives", False), ("with a fault of the drives", True)):
        of = [row for row in rows if bool(row["gaps"]) is is_pair]
        lines += [
            "", f"{len(of)} contact stations, {title}:", "",
            "| quantity | interval covers | told | of these covered | width, median |",
            "|---|---|---|---|---|",
        ]  # fmt: skip
        for name in dict.fromkeys(told["name"] for row in of for told in row["told"]):
            every = [told for row in of for told in row["told"] if told["name"] == name]
            inside = [told["low"] <= told["truth"] <= told["high"] for told in every]
            sure = [told["share"] <= 0.5 for told in every]
            both = sum(a and b for a, b in zip(inside, sure, strict=True))
            width = float(np.median([told["share"] for told in every]))
            lines.append(
                f"| `{name}` | {sum(inside)} of {len(every)} | {sum(sure)} | {both} | {width:.2f} |"
            )
        won = [row["won"] for row in of]
        sides = {name: [w[name] for w in won] for name in ("twin", "drawn")}
        for other, their in {**sides, "nominal": [nominal] * len(won)}.items():
            off = [100 * abs(w["station"] - n) / SCENES for w, n in zip(won, their, strict=True)]
            if off:
                lines += ["", f"Success in the {other} cell is {np.mean(off):.0f} points off."]
    return lines


def _scene_lines(rows: Sequence[Mapping[str, Any]]) -> list[str]:
    known = [row for row in rows if row["mechanism"] in MECHANISMS]
    lines = [
        "Sim-to-sim. Error: median of |estimate - truth|.",
        "",
        "| parameter | stations | told | error | largest true value | interval covers |",
        "|---|---|---|---|---|---|",
    ]
    names = dict.fromkeys(name for row in known for name in row["truth"])
    for name in names:
        pairs = [
            (row["truth"][name], p)
            for row in known
            if name in row["truth"]
            for p in row["found"]
            if p["name"] == name
        ]
        told = [(truth, p) for truth, p in pairs if p["excited"]]
        cover = sum(p["interval"][0] <= truth <= p["interval"][1] for truth, p in told)
        error = float(np.median([abs(p["estimate"] - t) for t, p in told])) if told else math.nan
        largest = max(abs(truth) for truth, _ in pairs)
        lines.append(
            f"| `{name}` | {len(pairs)} | {len(told)} | {error:.4f} | {largest:.4f} | "
            f"{cover} of {len(told)} |"
        )
    lines += [
        "",
        "| stations | mechanism named | another named beside or instead |",
        "|---|---|---|",
    ]
    for mechanism in dict.fromkeys(row["mechanism"] for row in rows):
        of = [row for row in rows if row["mechanism"] == mechanism]
        named = sum(mechanism in _named(row) for row in of)
        others = sorted(set().union(*map(_named, of)) - {mechanism})
        wrong = sum(bool(_named(row) - {mechanism}) for row in of)
        beside = f"{wrong} of {len(of)}" + (f": {', '.join(others)}" if others else "")
        lines.append(f"| `{mechanism or 'nominal'}` | {named} of {len(of)} | {beside} |")
    whole = [row for row in rows if not row["mechanism"]]
    lines += [
        "",
        f"A probe takes {max(row['simulated_s'] for row in whole):.0f} s of simulated time. "
        f"Fitting takes {np.median([row['fit_processor_s'] for row in rows]):.0f} s of processor "
        f"time (median), {np.median([row['fit_s'] for row in rows]):.0f} s on this machine.",
    ]
    return lines


def _named(row: Mapping[str, Any]) -> set[str]:
    return {p["name"].rpartition(".")[0] for p in row["found"] if p["differs"]}
