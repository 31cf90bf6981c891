"""Carries a plan's remedies out in the station's twin, small, before anybody pays for one in full.

Each remedy is the commands that the plan would print, with fewer takes and rollouts, typed into
processes of their own. Policies before and after meet the same scenes of the twin. What came of a
remedy is kept as it is known, so that after Ctrl-C the same command goes on with the next.
"""

import re
import shlex
import shutil
import subprocess
import sys
from collections.abc import Callable, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Final

from gaploop.core.errors import UnusableInputError
from gaploop.core.files import read_json, sha256, write_json
from gaploop.core.vocabulary import GapDimension
from gaploop.failure_analysis.planning.remedies import (
    PlanContext,
    RemedyTrial,
    commands,
    offers,
    trial_name,
)
from gaploop.failure_analysis.station import words
from gaploop.finetune.evaluation import Evaluation

CAUSES: Final = 3
"""Leading dimensions whose remedies are tried."""
ROLLOUTS: Final = 20
TAKES: Final = 48
"""Takes that a trial records at most, of each kind."""
SLOW_H: Final = 1.0
"""A remedy that takes a core longer than this isn't tried [h]: a picture policy's training."""

type Type = Callable[[Sequence[str]], None]
"""Runs a command, given the words after `gaploop`; UnusableInputError where it fails."""


def try_remedies(
    about: PlanContext,
    dimensions: Sequence[GapDimension],
    images: bool,
    *,
    say: Callable[[str], None],
    type_command: Type,
) -> dict[str, RemedyTrial]:
    """Try every remedy that commands can carry out in the twin; return what came of each.

    Args:
        about: what the commands are filled in with; it has a twin.
        say: told what goes on, a line each.

    Raises:
        UnusableInputError: the policy can't be tried in the twin as it is.
    """
    found = dict[str, RemedyTrial]()
    before: Evaluation | None = None
    assert about.twin_file is not None
    asked = {"policy": about.policy, "twin": sha256(about.twin_file)}
    if (kept := about.folder / "tried" / "asked.json").exists() and read_json(kept) != asked:
        shutil.rmtree(kept.parent)  # another policy's or twin's
    kept.parent.mkdir(parents=True, exist_ok=True)
    write_json(kept, asked)
    for dimension in dimensions[:CAUSES]:
        for offer in offers(dimension, about, images):
            name = trial_name(offer.remedy, dimension)
            if name in found:
                continue
            if offer.machine_hours > SLOW_H:
                say(f"{words(name)} isn't tried: it takes {offer.machine_hours:.0f} h of one core.")
                continue
            folder = about.folder / "tried" / name
            typed = [shlex.split(line)[1:] for line in commands(
                offer.remedy, dimension, replace(about, folder=folder), images
            )]  # fmt: skip
            if before is None:
                untouched = [  # the same evaluation, of the policy as it was
                    f"--policy.path={about.policy}" if w.startswith("--policy.path=") else w
                    for w in typed[-1]
                    if not w.startswith("--speed_scale=")
                ]
                before = _evaluated(folder.parent / "before", untouched, type_command)
            try:
                say(f"Trying to {words(offer.remedy)} in the twin …")
                after = _carried_out(folder, typed, type_command)
            except UnusableInputError as error:
                found[name] = RemedyTrial((0, 0), (0, 0), str(error))
            else:
                found[name] = RemedyTrial(
                    (before.successes, before.trials), (after.successes, after.trials)
                )
                write_json(folder / "trial.json", asdict(found[name]))
            say(f"{words(name)}: {found[name].message}")
    return found


def _carried_out(folder: Path, typed: Sequence[Sequence[str]], type_command: Type) -> Evaluation:
    """Carry a remedy out in an empty folder, unless it was; return how its policy does."""
    if not (folder / "trial.json").exists():
        shutil.rmtree(folder, ignore_errors=True)
        for words in typed[:-1]:  # of those that record, --n is takes
            type_command([_smaller(word, TAKES) for word in words])
    return _evaluated(folder / "evaluated", typed[-1], type_command)


def _evaluated(folder: Path, words: Sequence[str], type_command: Type) -> Evaluation:
    """Run an evaluation, or go on with it; return it."""
    type_command([*map(_smaller, words), f"--output_dir={folder}"])
    return Evaluation.from_json(read_json(folder / "evaluation.json"))


def _smaller(word: str, rollouts: int = ROLLOUTS) -> str:
    """Return an option with fewer takes or rollouts."""
    for name, most in (("--dataset.num_episodes", TAKES), ("--n", rollouts)):
        if match := re.fullmatch(rf"{name}=(\d+)", word):
            return f"{name}={min(int(match[1]), most)}"
    return word


def in_a_process(words: Sequence[str]) -> None:
    """Run one of gaploop's commands in a process of its own, which Ctrl-C ends, too.

    Raises:
        UnusableInputError: it fails; its last line.
    """
    done = subprocess.run(
        [sys.executable, "-m", "gaploop.scripts.cli", *words], capture_output=True, text=True
    )
    if done.returncode:
        said = done.stderr.strip().splitlines() or ["it says nothing"]
        raise UnusableInputError(f"gaploop {words[0]} failed: {said[-1]}")
