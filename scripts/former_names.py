"""Commands that have another name now: what they run, with one line that says so.

They answer for one release; `python -m benchmarks house` counts none of them as a command.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

FORMER: Final[Mapping[str, tuple[str, ...]]] = {
    "mix": ("finetune", "--dry_run"),
    "pretrain": ("finetune", "--policy.type=act"),
    "reinforce": ("finetune", "--method=reinforce"),
    "train": ("finetune", "--method=lerobot"),
}
"""Former command → the words that run it now, before the arguments that were given."""
FORMER_OPTIONS: Final[Mapping[str, Mapping[str, str]]] = {
    "pretrain": {
        "--vision": "--policy.type=keypoint",
        "--takes": "--sim_takes",
        "--dataset.root": "--sim",
        "--dataset.episodes": "--episodes",
    },
    "reinforce": {"--rounds": "--steps", "--workers": "--num_workers"},
}
"""Former command → option of it that has another name now → that name."""


def current(arguments: list[str]) -> tuple[list[str], str | None]:
    """Return the arguments as they are typed now, and the line to say if that is a change."""
    words = FORMER.get(arguments[0]) if arguments else None
    if words is None:
        return arguments, None
    now, renamed = " ".join(words), FORMER_OPTIONS.get(arguments[0], {})
    given = []
    for argument in arguments[1:]:
        name, equals, value = argument.partition("=")
        name = renamed.get(name, name)
        given.append(name if "=" in name else f"{name}{equals}{value}")
    return [*words, *given], f"is now: gaploop {now}. The former name ends with 0.1."
