"""What simulation says of the station's scenes, as a control of what the station says.

Both policies are tried in simulation on the station's scenes and on many others, drawn alike. Of a
pair of attempts on the station the control is the simulated difference on its scene, less the mean
over other scenes that no other pair uses. As all scenes were drawn alike that is 0 on average,
whatever the simulation gets wrong, so evidence that takes it in promises as much as without it
(prediction-powered inference: Angelopoulos et al. 2023, Science 382:669-674).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Final

import numpy as np

from gaploop.core.errors import UnusableInputError
from gaploop.core.files import read_text, write_atomically
from gaploop.core.messages import FloatArray
from gaploop.core.suite import Suite
from gaploop.finetune.evaluation import ROLLOUTS, read_rollouts
from gaploop.finetune.gate.folder import RESULT, SIDES, SIMULATED, GateFolder, attempts
from gaploop.finetune.gate.judge import HARDWARE
from gaploop.finetune.gate.replay import read_pairs

OTHERS: Final = 8
"""Other scenes for each pair, at least, while they last: the control then varies by an eighth more
than the simulated difference does."""
ALIKE: Final = 3.3
"""Standard errors by which the station's scenes may differ from the others in simulation: one file
of a thousand is refused although its scenes were drawn alike."""


@dataclass(frozen=True)
class SimulatedPairs:
    """What simulation says of a gate's pairs.

    Attributes:
        control: of `Outcomes`, shape (rounds, tasks); 0 where it says nothing.
        scenes: of how many pairs it says something.
        others: other scenes that went into that.
    """

    control: FloatArray
    scenes: int
    others: int


def gate_scenes(folder: GateFolder, tasks: int, rounds: int) -> list[list[str]]:
    """Return the names of the pairs that a gate may come to on the station, [task][round]."""
    found = [[""] * rounds for _ in range(tasks)]
    for turn in islice(attempts(folder.seed, HARDWARE, tasks), 2 * tasks * rounds):
        found[turn.task][turn.round] = str(turn.scene)
    return found


def simulated_pairs(
    source: Path | None, folder: GateFolder, suite: Suite, scenes: Sequence[Sequence[str]],
    recorded: bool = False,
) -> SimulatedPairs | None:  # fmt: skip
    """Return what was simulated; it is copied into the gate's folder before the first attempt.

    From then on the gate goes by the copy: what is bet may not hang on outcomes.

    Args:
        source: a CSV file like that of recorded outcomes, with a column `pair`; or a folder with
            what gaploop evaluate wrote of each policy, as `baseline` and `candidate`. None for
            the copy, if there is one.
        suite: its tasks are those of the file.
        scenes: names of the pairs on the station, [task][round].

    Raises:
        UnusableInputError: the gate began without it or with another, or it can't be used.
    """
    kept = folder.path / SIMULATED
    if source is None:
        return _read(read_text(kept), kept, suite, scenes) if kept.exists() else None
    if source.is_dir():
        lines = ["policy,success,pair"]
        for side in SIDES:
            rollouts = list(read_rollouts(source / side / ROLLOUTS))
            if len({rollout.condition for rollout in rollouts}) != 1:
                raise UnusableInputError(
                    f"{source / side / ROLLOUTS} must hold rollouts under one condition. Run: "
                    f"gaploop evaluate --policy.path=… --env.twin=… --output_dir={source / side}"
                )
            lines += [f"{side},{int(rollout.success)},{rollout.seed}" for rollout in rollouts]
        whole = "\n".join([*lines, ""])
    else:
        whole = read_text(source)
    begun = folder.tried(HARDWARE) or (recorded and (folder.path / RESULT).exists())
    if kept.exists() and whole != read_text(kept):
        raise UnusableInputError(
            f"{source} isn't what this gate began with ({kept}). Leave --simulated out to go on, "
            "or name another folder with --output_dir."
        )
    if begun and not kept.exists():
        raise UnusableInputError(
            f"The gate in {folder.path} began without simulated outcomes. Leave --simulated out "
            "to go on, or begin a new gate in another --output_dir."
        )
    found = _read(whole, source, suite, scenes)
    write_atomically(kept, whole)
    return found


def _read(whole: str, path: Path, suite: Suite, scenes: Sequence[Sequence[str]]) -> SimulatedPairs:
    """Which other scenes go with a pair hangs on no outcome: it is settled by their names."""
    pairs, _ = read_pairs(whole, path, suite)
    rounds = len(scenes[0])
    control = np.zeros((rounds, len(scenes)))
    count = used = 0
    for n, (task, names) in enumerate(zip(pairs, scenes, strict=True)):
        found = {pair: float(new[0]) - old[0] for pair, (old, new) in pairs[task].items()}
        own = {at: found.pop(name) for at, name in enumerate(names) if name in found}
        others = np.random.default_rng(0).permutation([found[name] for name in sorted(found)])
        each = max(OTHERS, len(others) // rounds)
        if not own or len(others) < each:
            raise UnusableInputError(
                f"{path}, {task or 'all rows'}: has {len(own)} scenes of the station and "
                f"{len(others)} others. Simulate both policies on pairs {names[0]} to {names[-1]} "
                f"and on at least {each} others, {OTHERS * rounds} for all pairs, drawn likewise; "
                "column pair names the scene."
            )
        # A control is 0 on average only where both kinds of scenes were drawn alike.
        ours = np.array(list(own.values()))
        spread = np.concatenate([ours, others]).std()
        error = spread * math.sqrt(1 / len(ours) + 1 / len(others))
        if abs(ours.mean() - others.mean()) > ALIKE * error:
            raise UnusableInputError(
                f"{path}, {task or 'all rows'}: in simulation the candidate gains "
                f"{ours.mean():+.1%} on the station's scenes and {others.mean():+.1%} on the "
                "others, so they weren't drawn alike. Draw the others as the station's are drawn, "
                "or leave --simulated out."
            )
        means = others[: len(others) // each * each].reshape(-1, each).mean(1)
        for (at, value), mean in zip(own.items(), means, strict=False):
            control[at, n] = value - mean
            count, used = count + 1, used + each
    return SimulatedPairs(control, count, used)
