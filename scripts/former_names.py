"""Commands that have another name now: what they run, with one line that says so.

They answer for one release; `python -m benchmarks house` counts none of them as a command.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

FORMER: Final[Mapping[str, tuple[str, ...]]] = {
    "export": ("convert",),
    "factors": ("diagnose", "--factors"),
    "harmonise": ("edit", "harmonise"),
    "import": ("convert",),
    "latency": ("doctor", "--policy.path=base"),
    "merge": ("edit", "merge"),
    "mix": ("finetune", "--dry_run"),
    "preflight": ("doctor", "--robot.type=so101_sim"),
    "pretrain": ("finetune", "--policy.type=act"),
    "probe": ("identify", "--measure"),
    "reinforce": ("finetune", "--method=reinforce"),
    "repair": ("check", "--fix", "--dry_run"),
    "ros2": ("rollout", "--robot.type=ros2", "--take_over=never"),
    "studio": ("review",),
    "survey": ("check",),
    "train": ("finetune", "--method=lerobot"),
}
"""Former command → the words that run it now, before the arguments that were given."""
FORMER_OPTIONS: Final[Mapping[str, Mapping[str, str]]] = {
    "export": {"--format": "--to", "--output": "--output_dir"},
    "import": {"--format": "--from"},
    "pretrain": {
        "--vision": "--policy.type=keypoint",
        "--takes": "--sim_takes",
        "--dataset.root": "--sim",
        "--dataset.episodes": "--episodes",
    },
    "reinforce": {"--rounds": "--steps", "--workers": "--num_workers"},
    "probe": {"--journal": "--roots"},
    "repair": {"--yes": "--dry_run=false"},
    "ros2": {"--topics": "--robot.topics", "--dry_run": "--robot.dry_run"},
}
"""Former command → its options that are written otherwise now."""


def current(arguments: list[str]) -> tuple[list[str], str | None]:
    """Return the arguments as they are typed now, and the line to say if that is a change."""
    words = FORMER.get(arguments[0]) if arguments else None
    if words is None:
        return arguments, None
    now, given = " ".join(words), []
    for argument in arguments[1:]:
        name, equals, value = argument.partition("=")
        name = FORMER_OPTIONS.get(arguments[0], {}).get(name, name)
        value = "" if "=" in name else f"{equals}{value}"
        given.append(f"{name}{value}")
    return [*words, *given], f"is now: gaploop {now}. The former name ends with 0.1."
