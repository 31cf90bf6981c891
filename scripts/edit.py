"""The command `gaploop edit`."""

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

POSITIONAL: Final = ("action", "roots")
ACTIONS: Final = (
    "delete", "keep", "split", "trim", "correct", "force", "retag", "merge", "harmonise",
)  # fmt: skip
RARE = ("spec", "rename_map", "reencode", "subtract", "swap", "to", "set")
EXAMPLE: Final = """
gaploop edit delete recordings/pick --episodes='[3, 7]' --dry_run
gaploop edit delete recordings/pick --episodes='[3, 7]' --yes
gaploop edit keep   recordings/pick --where=outcome=success --output_dir=recordings/good
gaploop edit split  recordings/pick --splits='{"train": 0.8, "test": 0.2}' --output_dir=parts
gaploop edit split  recordings/pick --splits=lighting --output_dir=recordings/by_light
gaploop edit trim   recordings/pick --output_dir=recordings/trimmed --dry_run
gaploop edit correct recordings/pick --episodes='0:10' --subtract='{"elbow_flex.pos": 17.0}' --yes
gaploop edit correct recordings/pick --episodes='[4]' --swap='[top, wrist]' --yes
gaploop edit force  recordings/pick --output_dir=recordings/with_force
gaploop edit retag  recordings/pick --episodes='0:10' --set='{"station": "bench_3"}' --yes
gaploop edit merge  monday tuesday --output_dir=week
gaploop edit harmonise sim_takes --to=real_takes --dry_run > spec.yaml    # what differs, and a spec
gaploop edit harmonise sim_takes --to=real_takes --output_dir=sim_like_real
"""


@dataclass
class EditConfig:
    """Delete, split, trim, correct, re-tag, merge episodes; make datasets alike; labels follow.

    The result goes to --output_dir, or takes the dataset's place with --yes; --dry_run only shows
    what would change. Killed at any instant, the dataset is the old one or the new one. Rows keep
    every bit; videos are taken whole or cut packet by packet and not encoded again; labels with
    their history, telemetry, consent ids and columns of other tools come along; run.json says
    from which dataset and episodes the result was made. Works on any LeRobot v3 dataset.

    split writes one dataset for each part below --output_dir, and never puts episodes of one
    session into two parts: shares are drawn of whole sessions.

    trim leaves out frames at the ends of episodes in which neither state nor action moves; pauses
    in between stay. correct subtracts what joints read too much, and swaps cameras whose pictures
    went under each other's names. force adds what --sensors read, from telemetry, at each frame, as
    observation.force.<sensor>: what policies see.

    merge puts several datasets of one robot into a new one, in their order. They must agree in
    robot, rate, features, units and names; harmonise brings them together. An episode that several
    hold is refused, or taken once with the labels of all.

    harmonise renames features; renames, turns and orders joints; converts units (degrees,
    radians, normalized); resamples to another rate; renames, crops and scales cameras; leaves
    features out; names another robot. What was done with which numbers goes to
    meta/gap/harmonise.json. It never guesses: what isn't clear is one line with the choices (exit
    code 1 where a dry run leaves something open). docs/data/harmonising.md describes the spec.
    """

    action: str = ""
    """delete, keep, split, trim, correct, force, retag, merge or harmonise."""
    roots: list[Path] = field(default_factory=list)
    """Folder of the dataset; merge: of several."""
    episodes: str = ""
    """Which episodes, such as '[0, 3]' or '0:30'. split: these against the rest; trim: all."""
    where: str = ""
    """Which episodes, by what is known of them, such as 'outcome=failure lighting=dim'."""
    splits: dict[str, Any] | str = field(default_factory=dict)
    """split: part to share or episodes: '{"train": 0.8, "val": 0.1, "test": 0.1}'; or one part for
    each value of outcome, dimension, session, …, or of a condition: --splits=session."""
    subtract: dict[str, Any] = field(default_factory=dict)
    """correct: entry to what it reads too much, such as '{"elbow_flex.pos": 17.0}' of the
    state, or '{"action": {"elbow_flex.pos": 17.0}}', which shifts what was sent, gap.sent, too."""
    swap: list[str] = field(default_factory=list)
    """correct: two cameras whose pictures are under each other's names, '[top, wrist]'."""
    set: dict[str, Any] = field(default_factory=dict)
    """retag: tag to value, such as '{"station": "bench_3", "conditions": {"lighting": "lamp"}}'."""
    to: Path | None = None
    """harmonise: the dataset that it should match. With --spec: check the result against it."""
    spec: Path | None = None
    """harmonise: what to do, as YAML."""
    rename_map: dict[str, str] = field(default_factory=dict)
    """harmonise: feature to its new name, before all else, such as
    '{state: observation.state, image: observation.images.top}'; alone or with --to or --spec."""
    reencode: bool = False
    """Decode and encode again the pictures that can't be cut out of a video, with a loss."""
    output_dir: Path | None = None
    """The new dataset; for split the folder of the parts."""
    yes: bool = False
    """Change the dataset itself."""
    dry_run: bool = False
    """Show what would change, and change nothing; harmonise: the spec goes to stdout."""
    json: bool = False
    """Print one JSON object: {"changed", "parts", "left_out", "notes", "videos"}; trim: "ends";
    harmonise: {"output_dir", "takes", "done"}, or with --dry_run {"differences", "spec", …}."""
