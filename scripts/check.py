"""The command `gaploop check`."""

from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from gaploop.scripts import options

POSITIONAL: Final = "roots"
RARE = ("drop",)


@dataclass
class CheckConfig:
    """Check a dataset or a journal, show how to fix what is wrong, or fix it.

    Compares what a LeRobot v3 dataset declares with what is there: counts, row ranges,
    timestamps, pictures, statistics (recomputed), NaN, copies, gap columns, labels, consent. Then
    tests what commands, readings and pictures of any robot show without a reference: at most
    seven sentences, what is good, what couldn't be tested (docs/start/my_policy_fails.md). Exit
    code 0 where nothing is wrong or there are only warnings, 1 where there is an error or what
    --fail_on names, 2 where the folder is neither dataset nor journal.

    --fix keeps every episode that is whole (of a cut-off file the ones before the cut), fixes
    names, rebuilds metadata and statistics, attaches labels that an edit tool dropped. Intact data
    files stay as they are, and the old folder stays next to the new one, as DIR.damaged-1. Where
    an episode or a file would be left out, it lists them and asks; with nobody to ask it changes
    nothing, unless --drop=true. Of a journal it seals each episode that a crash, a kill or a power
    cut left unsealed, as interrupted, at the longest stretch that all its streams hold. Exit code 1
    where something is left to fix.

    --history sets several against each other: which figures of arm and cameras stepped, between
    which, and in what the episodes of the last two differ, ranked by how far that moves what a
    policy sees.

    Several datasets without it, or those below a folder, are checked one after the other. Of one on
    a Hub it reads metadata and tables, and of videos the pictures that it looks at.
    """

    roots: list[str] = field(default_factory=list)
    """Folder of the dataset or journal, or OWNER/NAME on a Hub; or several, or a folder above
    datasets."""
    fix: bool = False
    """Fix what is wrong, in place; the folder before is kept next to it."""
    dry_run: bool = False
    """--fix: show what would be done, and change nothing."""
    drop: bool = False
    """--fix: leave out episodes and files of which nothing whole can be had, without asking."""
    output_dir: Path | None = None
    """--fix: write the dataset here instead; the damaged one is left unchanged."""
    labels_from: Path | None = None
    """--fix: dataset or journal in which the episodes still have their labels; found by
    gap.take."""
    deep: bool = False
    """Decode every picture. Otherwise all of a dataset with up to 3,000, and of a larger one
    those of some episodes, spread evenly."""
    policy: options.PolicyFolder = field(default_factory=options.PolicyFolder)
    """A LeRobot policy that learned from the dataset, or is to run where it was recorded: does it
    fit, and does it command what these rows do? Needs the train extra."""
    history: bool = False
    """Of several datasets of one station, oldest first, or of two versions of a training set: what
    changed, and when. A checkpoint stands for the dataset that its train_config.json names."""
    fail_on: list[str] = field(default_factory=list)
    """Exit code 1 where such sentences are said: kinds as --json has them, such as '[offset,
    joint_delay]', or '[any]'."""
    json: bool = False
    """Print {"ok", "findings": [{"code", "severity", "where", "message", "mend"}], "sentences",
    "good", "untested", "episodes"}, the last with each flagged episode's kinds; with --fix
    {"ok", "actions", "lost", "left", "written", "kept"}; of several {"ok", "by_dataset"}."""


EXAMPLE = """
gaploop check recordings/pick_place
gaploop check recordings/pick_place --deep
gaploop check recordings/pick_place --fail_on='[any]'
gaploop check recordings/pick_place --policy.path=outputs/train
gaploop check recordings/pick_place --fix --dry_run      what would be done
gaploop check recordings/pick_place --fix
gaploop check edited --fix --labels_from=recordings/pick_place --output_dir=edited_labelled
gaploop check monday tuesday wednesday --history
gaploop check outputs/old/checkpoints/last outputs/new/checkpoints/last --history
gaploop check lerobot/svla_so101_pickplace
gaploop check monday tuesday
gaploop check recordings/pick_place --json | jq '.findings[].code'
"""
