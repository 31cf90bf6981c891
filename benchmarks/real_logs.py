"""Logs of real robots: what outcomes dealt at random name, and which planted causes are named.

Every LeRobot v3 dataset in the folder of the recordings is used, as `gaploop convert` writes it;
none is part of the project. Takes are set against each other as `gaploop diagnose` does it; a cause
is planted into the failures of a set, in readings and pictures, not on the robot.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from gaploop.core.errors import UnusableInputError
from gaploop.core.files import existing_folder
from gaploop.core.messages import Image
from gaploop.core.statistics import percent, rate
from gaploop.core.take import Images, Take
from gaploop.core.vocabulary import GapDimension, Outcome

if TYPE_CHECKING:
    from benchmarks.bench import BenchConfig
    from gaploop.failure_analysis.episode_figures import TakeFigures

D = GapDimension
SETS: Final = 200
"""Sets of takes for each figure; `--n` asks for others."""
FAILURES: Final = 8
OFFSET_DEG: Final = 8.0
DELAY_S: Final = 0.15
LIGHT_OUT: Final = (1.0, 0.4)
"""Gain at the left and the right edge once the lamp on the right is out."""
RIGHT: Final = {
    "8° offset": D.SPATIAL_GEOMETRY,
    "stuck gripper": D.ACTUATOR_RESPONSE,
    "150 ms late": D.ACTUATOR_RESPONSE,
    "camera covered": D.VISUAL_DOMAIN,
    "one light out": D.VISUAL_DOMAIN,
}


def measure(config: BenchConfig, _folder: Path) -> dict[str, Any]:
    """Run both sides on every dataset."""
    from gaploop.datasets.layout import is_dataset

    if config.data is None:
        raise UnusableInputError("Which recordings? Name their folder with --data=DIR.")
    data = existing_folder(config.data, "Folder of recordings")
    found = [root for root in (data, *sorted(data.iterdir())) if is_dataset(root)]
    if not found:
        raise UnusableInputError(
            f"{data} holds no LeRobot v3 dataset. Make them: gaploop convert SOURCE "
            f"--output_dir={data}/NAME"
        )
    rng, sets = np.random.default_rng(config.seed), config.n or SETS
    return {"evidence": "real recordings", "sets": [_dataset(root, rng, sets) for root in found]}


def _dataset(root: Path, rng: np.random.Generator, sets: int) -> dict[str, Any]:
    from gaploop.datasets.lerobot_read import load_takes
    from gaploop.failure_analysis.diagnosis import diagnose
    from gaploop.failure_analysis.episode_figures import figures_of
    from gaploop.failure_analysis.views.joints import with_units

    takes = with_units(list(load_takes(root)))
    clean = [figures_of(take) for take in takes]
    least = max(2 * FAILURES, 16)
    row: dict[str, Any] = {"name": root.name, "takes": len(takes), "random": {}, "planted": {}}
    for n in (6, 12, 16, 24, 40):
        if n <= len(takes):
            named = sum(_random(clean, n, rng) for _ in range(sets))
            row["random"][n] = [named, sets]
    blocks = [_blocks(clean, first) for first in range(0, len(takes) - 24 + 1, 2)]
    row["blocks"] = [sum(blocks), len(blocks)]
    if len(takes) >= least:
        for cause, plant in _plants(takes).items():
            bad = [figures_of(plant(take)) for take in takes]
            hits = [_planted(clean, bad, cause, least, rng) for _ in range(sets)]
            row["planted"][cause] = [sum(h for h, _ in hits), sets, sum(t for _, t in hits)]
    dealt = [
        replace(take, outcome=Outcome.FAILURE if k % 2 else Outcome.SUCCESS)
        for k, take in enumerate(takes)
    ]
    alone = diagnose([replace(take, outcome=Outcome.FAILURE) for take in takes], images=False)
    row["alone"] = _named(alone.to_json())
    row["halves"] = _named(diagnose(dealt).to_json())
    return row


def _named(diagnosis: Mapping[str, Any]) -> dict[str, Any]:
    takes = diagnosis["takes"]
    return {
        "failures": len(takes),
        "modes": dict(Counter(t["mode"] for t in takes)),
        "causes": sum(not t["abstained"] for t in takes),
        "station": diagnosis["summary"]["station"]["named"],
    }


def _random(rows: Sequence[TakeFigures], n: int, rng: np.random.Generator) -> bool:
    from gaploop.failure_analysis.comparison import compare

    chosen = np.sort(rng.choice(len(rows), n, replace=False))
    failed = np.zeros(n, dtype=bool)
    failed[rng.choice(n, n // 2, replace=False)] = True
    return bool(compare([rows[k] for k in chosen], failed.tolist()).separations)


def _blocks(rows: Sequence[TakeFigures], first: int) -> bool:
    from gaploop.failure_analysis.comparison import compare

    return bool(compare(rows[first : first + 24], [True] * 12 + [False] * 12).separations)


def _planted(
    clean: Sequence[TakeFigures],
    bad: Sequence[TakeFigures],
    cause: str,
    n: int,
    rng: np.random.Generator,
) -> tuple[bool, int]:
    """Return whether a set names what was planted into 8 of it, and how many of the 8 do."""
    from gaploop.failure_analysis.comparison import compare, take_evidence
    from gaploop.failure_analysis.episode_figures import figure_of

    chosen = np.sort(rng.choice(len(clean), n, replace=False))
    failed = np.zeros(n, dtype=bool)
    failed[rng.choice(n, FAILURES, replace=False)] = True
    rows = [bad[k] if f else clean[k] for k, f in zip(chosen, failed, strict=True)]
    found = compare(rows, failed.tolist())
    right = found.cause is not None and figure_of(found.cause.name).dimension is RIGHT[cause]
    takes = sum(
        take_evidence(found, k, rows[k], failed, 30.0)[0] is RIGHT[cause]
        for k in np.flatnonzero(failed)
    )
    return right, takes


def _plants(takes: Sequence[Take]) -> dict[str, Callable[[Take], Take]]:
    """Return cause to what plants it into a take of this dataset, of those that it can show."""
    names, units = takes[0].info.joint_names, takes[0].info.units
    plants: dict[str, Callable[[Take], Take]] = {}
    travel = np.median([np.ptp(t.frames.state, axis=0) for t in takes], axis=0)
    hand = np.array([any(w in n.lower() for w in ("grip", "hand", "finger")) for n in names])
    if units in ("deg", "rad"):
        arm = int(np.argmax(np.where(hand, 0.0, travel)))
        off = OFFSET_DEG if units == "deg" else math.radians(OFFSET_DEG)

        def offset(take: Take) -> Take:
            state = take.frames.state.copy()
            state[:, arm] += off
            return replace(take, frames=replace(take.frames, state=state))

        plants["8° offset"] = offset
    if hand.any():
        grip = int(np.argmax(np.where(hand, travel, 0.0)))

        def stuck(take: Take) -> Take:
            state = take.frames.state.copy()
            state[:, grip] = state[0, grip]
            return replace(take, frames=replace(take.frames, state=state))

        plants["stuck gripper"] = stuck

    def late(take: Take) -> Take:
        t_s = np.arange(len(take.frames)) / take.info.fps
        columns = [np.interp(t_s - DELAY_S, t_s, c) for c in take.frames.state.T]
        return replace(take, frames=replace(take.frames, state=np.array(columns).T))

    plants["150 ms late"] = late
    if all(t.cameras for t in takes):
        plants["camera covered"] = lambda take: _seen(take, lambda p: (0.03 * p).astype(np.uint8))
        plants["one light out"] = lambda take: _seen(take, _light_out)
    return plants


def _light_out(picture: Image) -> Image:
    gain = np.linspace(*LIGHT_OUT, picture.shape[1])[None, :, None]
    return np.asarray((picture * gain).astype(np.uint8))


def _seen(take: Take, change: Callable[[Image], Image]) -> Take:
    """Return a take whose first camera shows something else."""
    name = sorted(take.cameras)[0]
    opened: Images = take.cameras[name]

    def pictures() -> Iterator[Image]:
        return (change(picture) for picture in opened())

    return replace(take, cameras={**take.cameras, name: pictures})


def table(result: Mapping[str, Any]) -> str:
    """Return the figures as a Markdown table."""
    lines = ["| dataset | what was done | named | share |", "|---|---|---|---|"]
    for row in result["sets"]:
        name = f"{row['name']} ({row['takes']})"
        for n, (named, sets) in row["random"].items():
            lines.append(_line(name, f"outcomes at random, {n} takes", named, sets))
        if row["blocks"][1]:
            lines.append(_line(name, "the first 12 of 24 in a row called failures", *row["blocks"]))
        for cause, (hits, sets, takes) in row["planted"].items():
            of = sets * FAILURES
            lines.append(_line(name, f"{cause}, in 8 of 16 takes", hits, sets))
            lines.append(_line(name, f"{cause}: failed takes that name it", takes, of))
        for what, words in (("alone", "every take called a failure"), ("halves", "every second")):
            told = row[what]
            modes = sum(k for mode, k in told["modes"].items() if mode != "unknown")
            said = f"{words}: modes, causes"
            lines.append(f"| {name} | {said} | {modes}, {told['causes']} of {told['failures']} | |")
    return "\n".join(lines)


def _line(name: str, what: str, named: int, of: int) -> str:
    return f"| {name} | {what} | {named} of {of} | {percent(rate(named, of))} |"
