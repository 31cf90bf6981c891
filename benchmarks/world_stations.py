"""How often the cause of a station's failures is named in simulations that nobody here wrote.

A station is another's simulation with one gap, drawn by a seed that stood here before it was run:
mechanism, severity and direction, until its own script fails in some of a few episodes. The three
commands of docs/start/my_simulation.md then say what it is; the draw says whether that is right.
Run it where the simulations are installed: `make test-worlds`. `--tasks='[pictures]'` keeps the
same stations' pictures, where a simulation draws any; `--seed` draws others.
"""

from __future__ import annotations

import json
import shutil
from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from benchmarks.worlds import WORLDS, Foreign, evaluated, made, said
from gaploop.core.errors import GaploopError
from gaploop.core.statistics import percent, rate
from gaploop.failure_analysis.station import POLICY, UNMEASURED
from gaploop.scripts import options
from gaploop.sim.world import GymWorld

if TYPE_CHECKING:
    from benchmarks.bench import BenchConfig

SEED: Final = 20261127
STATIONS: Final = 6
"""In each world that has a script."""
EPISODES: Final = 8
LEAST_FAILED: Final = 2
DRAWS: Final = 12
"""Of a gap, until enough episodes fail."""
WEAKEST: Final = 0.5
PICTURES: Final = "pictures"


def measure(config: BenchConfig, folder: Path) -> dict[str, Any]:
    """Return what was injected and named at each station; --n for fewer in each world."""
    worlds = [(k, name, world) for k, (name, world) in enumerate(WORLDS.items()) if world.script]
    found, count = list[dict[str, Any]](), config.n or STATIONS
    pictures = PICTURES in (config.tasks or ())
    with options.progress("Stations", count * len(worlds)) as advance:
        for number in range(count):
            for k, name, world in worlds:
                place = folder / f"{name.replace(' ', '_')}_{number}"
                try:
                    seed = [SEED + config.seed, k, number]
                    found.append({"world": name, **station(world, seed, place, pictures)})
                except GaploopError as error:
                    found.append({"world": name, "injected": "", "why": str(error)})
                advance()
    return {"stations": found}


def station(
    world: Foreign, seed: list[int], folder: Path, pictures: bool = False
) -> dict[str, Any]:
    """Draw a station, have it identified and diagnosed, and return what was and what is said.

    What a folder has already isn't done again.
    """
    if (known := folder / "station.json").exists():
        return dict(json.loads(known.read_text()))
    was, plain = drawn(world, seed, folder, pictures), world if pictures else world.unseen
    takes, twin = folder / was.pop("takes"), folder / "twin"
    shutil.rmtree(twin, ignore_errors=True)
    fit = said("identify", str(takes), *plain.named, f"--output_dir={twin}")["fit"]
    diagnosis = said(
        "diagnose", str(takes), f"--twin={twin / 'station_twin.yaml'}", "--workers=1",
        f"--policy.path={world.script}", f"--n={EPISODES}", f"--output_dir={folder / 'diagnosis'}",
    )  # fmt: skip
    named = (diagnosis["summary"].get("station") or {}).get("named") or []
    found = {**was, "named": named, "why": fit["abstained"], "replays": fit["replays"]}
    known.write_text(json.dumps(found))
    return found


def drawn(world: Foreign, seed: list[int], folder: Path, pictures: bool = False) -> dict[str, Any]:
    """Return what was injected, and the name of the folder with the station's takes."""
    if (known := folder / "drawn.json").exists():
        return dict(json.loads(known.read_text()))
    rng, plain = np.random.default_rng(seed), world.unseen
    inside = GymWorld(lambda: made(plain))
    can = sorted(key for key, lacks in inside.parameters().items() if not lacks)
    inside.close()

    def tried(of: Foreign) -> int:
        shutil.rmtree(takes, ignore_errors=True)
        answer = evaluated(
            of, EPISODES, f"--gaps={json.dumps({key: severity})}", f"--gap_seed={gap_seed}",
            f"--dataset.root={takes}", "--dataset.failures=true", "--dataset.single_task=Do it",
        )  # fmt: skip
        return int(answer["trials"] - answer["successes"])

    for draw in range(DRAWS):
        key, severity = str(rng.choice(can)), float(rng.uniform(WEAKEST, 1.0))
        takes, gap_seed = folder / f"station_{draw}", int(rng.integers(1000))
        if (failed := tried(plain)) >= LEAST_FAILED:
            failed = tried(world) if pictures else failed
            break
    else:
        raise GaploopError(f"none of {DRAWS} gaps made its script fail")
    was = {"injected": key, "severity": severity, "failed": failed, "takes": takes.name}
    known.write_text(json.dumps(was))
    return was


def judged(found: Mapping[str, Any]) -> str:
    """Return "right", "wrong", "nothing named" or "not run" of a station."""
    if not found["injected"]:
        return "not run"
    dimension = found["injected"].partition(".")[0]
    causes = [c for c in found["named"] if c not in (POLICY, UNMEASURED)]
    if not causes:
        return "nothing named"
    return "right" if causes == [dimension] else "wrong"


def table(result: Mapping[str, Any]) -> str:
    """Return a line for each station, and how many were right."""
    counts = Counter(judged(s) for s in result["stations"])
    ran = sum(counts.values()) - counts["not run"]
    lines = [
        f"right {counts['right']} of {ran}, {percent(rate(counts['right'], ran))}"
        if ran
        else "none ran"
    ]
    lines[0] += "".join(f"; {what} {n}" for what, n in counts.items() if what != "right")
    for s in result["stations"]:
        was = f"{s['injected']} {s['severity']:.2f}, {s['failed']} failed" if s["injected"] else ""
        said_of = ", ".join(s.get("named", ())) or "nothing named"
        lines.append(f"{s['world']}: {was}: {judged(s)}: {said_of} {s['why']}".rstrip())
    return "\n".join(lines)
