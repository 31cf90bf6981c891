"""The command `gaploop merge`."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from gaploop.scripts.edit import finish, required_output

POSITIONAL: Final = "roots"

EXAMPLE: Final = """
gaploop merge --roots='[monday, tuesday]' --output_dir=week
gaploop merge --roots='[parts/train, parts/test]' --output_dir=whole --dry_run
"""


@dataclass
class MergeConfig:
    """Put several datasets of one robot into a new one; labels and telemetry follow.

    Takes keep the order of the datasets. They must agree in robot, rate, features, units and
    names; gaploop harmonise brings them together. A take that several hold is refused, or taken
    once with the labels of all. Videos are copied as they are. run.json records what was merged.
    """

    roots: list[Path] = field(default_factory=list)
    """Folders of the datasets (`gaploop merge A B` is short for it)."""
    duplicates: str = "refuse"
    """What becomes of a take that several hold: refuse, or first to take it once."""
    output_dir: Path | None = None
    """The new dataset."""
    dry_run: bool = False
    """Show what would be written, and write nothing."""
    reencode: bool = False
    """Decode and encode again the pictures that can't be cut out of a video, with a loss."""
    consents: Path | None = None
    """The consent register; $GAPLOOP_CONSENTS or the default one unless given."""
    json: bool = False
    """Print one JSON object, as gaploop edit does."""


def run(config: MergeConfig) -> int:
    """Merge; the work is in `datasets.edit`."""
    from gaploop.datasets.edit.actions import opened, plan_merge

    output = required_output(config)
    with opened(config.roots) as pieces:
        plan = plan_merge(pieces, {"duplicates": config.duplicates}, config.duplicates)
        return finish(config, plan, output, True)
