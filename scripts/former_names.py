"""Commands that have another name now: what they run, with one line that says so.

They answer for one release; `python -m benchmarks house` counts none of them as a command.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

FORMER: Final[Mapping[str, tuple[str, ...]]] = {
    "probe": ("identify", "--measure"),
    "ros2": ("rollout", "--robot.type=ros2", "--take_over=never"),
}
"""Former command → the words that run it now, before the arguments that were given."""


def current(arguments: list[str]) -> tuple[list[str], str | None]:
    """Return the arguments as they are typed now, and the line to say if that is a change."""
    words = FORMER.get(arguments[0]) if arguments else None
    if words is None:
        return arguments, None
    now = " ".join(words)
    return [*words, *arguments[1:]], f"is now: gaploop {now}. The former name ends with 0.1."
