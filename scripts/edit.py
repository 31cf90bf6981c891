"""The command `gaploop edit`."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from gaploop.core.errors import UnusableInputError, unknown_choice
from gaploop.core.paths import plain_name
from gaploop.scripts.options import DatasetFolder, emit, progress

if TYPE_CHECKING:
    from gaploop.datasets.edit.actions import EditPlan
    from gaploop.datasets.edit.pieces import DatasetPiece
    from gaploop.scripts.merge import MergeConfig

POSITIONAL: Final = ("action", "dataset.root")
ACTIONS: Final = ("delete", "keep", "split", "retag")

EXAMPLE: Final = """
gaploop edit delete recordings/pick --episodes='[3, 7]' --dry_run
gaploop edit delete recordings/pick --episodes='[3, 7]' --yes
gaploop edit keep   recordings/pick --where='outcome==success' --output_dir=recordings/good
gaploop edit split  recordings/pick --fraction=0.8 --seed=1 --output_dir=recordings/parts
gaploop edit split  recordings/pick --by=lighting --output_dir=recordings/by_light
gaploop edit retag  recordings/pick --episodes='0:10' --set='{"station": "bench_3"}' --yes
"""


@dataclass
class EditConfig:
    """Delete, keep, split or re-tag the takes of a dataset; labels and telemetry follow.

    The result goes to --output_dir, or takes the dataset's place with --yes; --dry_run only shows
    what would change. Killed at any instant, the dataset is the old one or the new one. Rows keep
    every bit; videos are taken whole or cut packet by packet and not encoded again; labels with
    their history, telemetry, consent ids and columns of other tools come along; run.json says
    from which dataset and episodes the result was made. Works on any LeRobot v3 dataset.

    split writes one dataset for each part below --output_dir, and never puts takes of one
    session into two parts: --fraction draws whole sessions.
    """

    action: str = ""
    """delete, keep, split or retag."""
    dataset: DatasetFolder = field(default_factory=DatasetFolder)
    episodes: str = ""
    """Which episodes, such as '[0, 3]' or '0:30'. split: they against the rest."""
    where: str = ""
    """Which episodes, by what is known of them, such as 'outcome==failure and lighting==dim'."""
    fraction: float | None = None
    """split: share of the takes in the part train; the others are in test."""
    splits: dict[str, Any] = field(default_factory=dict)
    """split: part to share or episodes: '{"train": 0.8, "val": 0.1, "test": 0.1}'."""
    by: str = ""
    """split: one part for each value of outcome, dimension, session, …, or of a condition."""
    seed: int = 0
    """split: which takes a fraction draws."""
    shared_sessions: bool = False
    """split: let takes of one session be in several parts."""
    set: dict[str, Any] = field(default_factory=dict)
    """retag: tag to value, such as '{"station": "bench_3", "conditions": {"lighting": "lamp"}}'."""
    author: str = ""
    """retag: who says so; your login name unless given."""
    note: str = ""
    """retag: why."""
    reencode: bool = False
    """Decode and encode again the pictures that can't be cut out of a video, with a loss."""
    output_dir: Path | None = None
    """The new dataset; for split the folder of the parts."""
    yes: bool = False
    """Change the dataset itself."""
    dry_run: bool = False
    """Show what would change, and change nothing."""
    consents: Path | None = None
    """The consent register; $GAPLOOP_CONSENTS or the default one unless given."""
    json: bool = False
    """Print one JSON object: {"changed", "parts", "left_out", "notes", "videos"}."""


def run(config: EditConfig) -> int:
    """Edit; the work is in `datasets.edit`."""
    from gaploop.datasets.edit.actions import opened
    from gaploop.scripts._edit_retag import retag

    actions = {"delete": _delete, "keep": _keep, "split": _split}
    if not config.action:
        raise UnusableInputError(f"gaploop edit what? One of: {', '.join(ACTIONS)}.")
    if config.action not in ACTIONS:
        raise unknown_choice("action", config.action, ACTIONS)
    if config.action == "retag":  # as a label, it is written without keeping anybody waiting
        return retag(config)
    change = config.yes and config.output_dir is None and not config.dry_run
    with opened([config.dataset.folder()], change) as (piece,):
        return actions[config.action](config, piece)


def _confirmed(config: EditConfig) -> bool:
    return config.yes or config.output_dir is not None


def _delete(config: EditConfig, piece: DatasetPiece) -> int:
    from gaploop.datasets.edit.actions import plan_choice

    gone = chosen(config, piece)
    plan = plan_choice("edit delete", piece, piece.chosen - gone, told(config))
    return finish(config, plan, config.output_dir, _confirmed(config))


def _keep(config: EditConfig, piece: DatasetPiece) -> int:
    from gaploop.datasets.edit.actions import plan_choice

    plan = plan_choice("edit keep", piece, chosen(config, piece), told(config))
    return finish(config, plan, config.output_dir, _confirmed(config))


def _split(config: EditConfig, piece: DatasetPiece) -> int:
    from gaploop.datasets.edit.actions import plan_split

    parts, named = _parts(config, piece)
    plan = plan_split(piece, parts, told(config), named=named, shared=config.shared_sessions)
    return finish(config, plan, required_output(config), True)


def required_output(config: EditConfig | MergeConfig) -> Path:
    """Return the new folder's path; any name will do where nothing is written.

    Raises:
        UnusableInputError: it wasn't given.
    """
    if config.output_dir is None and not config.dry_run:
        raise UnusableInputError("Where to? Name a new folder with --output_dir=OUT.")
    return config.output_dir or Path("OUT")


def _parts(config: EditConfig, piece: DatasetPiece) -> tuple[dict[str, list[int]], bool]:
    """Return the parts of a split, and whether their episodes were named one by one."""
    from gaploop.datasets.edit.splits import by_field, by_share

    ways = {
        "episodes or where": bool(config.episodes or config.where),
        "fraction": config.fraction is not None,
        "splits": bool(config.splits),
        "by": bool(config.by),
    }
    if sum(ways.values()) != 1:
        raise UnusableInputError(
            'Split how? Give one of --fraction=0.8, --by=FIELD, --splits=\'{"train": 0.8, '
            "\"val\": 0.2}', --episodes='[0, 3]', --where=QUERY."
        )
    if config.by:
        return by_field(piece.held, config.by), False
    if config.episodes or config.where:
        these = chosen(config, piece)
        parts = {"chosen": sorted(these), "rest": sorted(piece.chosen - these)}
        return parts, not config.where
    by_fraction = {"train": config.fraction, "test": 1 - (config.fraction or 0)}
    shares: dict[str, Any] = _by_folder(config.splits) or by_fraction
    if all(isinstance(share, int | float) for share in shares.values()):
        return by_share(piece.held, shares, config.seed, not config.shared_sessions), False
    return {name: _listed(indices, name, piece) for name, indices in shares.items()}, True


def _by_folder(splits: Mapping[str, Any]) -> dict[str, Any]:
    """Return the parts by the folders they go to, each a name directly below the output folder."""
    parts: dict[str, Any] = {}
    for name, what in splits.items():
        folder = plain_name(str(name).strip(), "part", "--splits", "Name it such as train.")
        if folder in parts:
            raise UnusableInputError(f"--splits: two parts are named '{folder}'. Rename one.")
        parts[folder] = what
    return parts


def _listed(indices: Any, name: str, piece: DatasetPiece) -> list[int]:
    from gaploop.datasets.lerobot_import import parse_episodes

    if not isinstance(indices, list | str):
        raise UnusableInputError(
            f"--splits: {name} is {indices!r}. Give every part a share such as 0.8, or every part "
            "its episodes such as [0, 3] or '0:30'."
        )
    return parse_episodes(str(indices), len(piece.held))


def chosen(config: EditConfig, piece: DatasetPiece) -> frozenset[int]:
    """Return the episodes that --episodes and --where both name."""
    from gaploop.datasets.labels.query import where
    from gaploop.datasets.lerobot_import import parse_episodes

    if not config.episodes and not config.where:
        raise UnusableInputError(
            f"Which takes? Name them with --episodes='[0, 3]' or --where='outcome==failure'; "
            f"there are {len(piece.held)}."
        )
    chosen = piece.chosen
    if config.episodes:
        chosen &= frozenset(parse_episodes(config.episodes, len(piece.held)))
    if config.where:
        chosen &= frozenset(where(config.where, piece.held))
    if not chosen:
        raise UnusableInputError(
            f"--where={config.where} chooses none of the {len(piece.held)} takes. See what there "
            f"is: gaploop label {piece.info.root} --where=…"
        )
    return chosen


def told(config: EditConfig) -> dict[str, Any]:
    """Return the options that decided what the result holds."""
    names = ("episodes", "where", "fraction", "splits", "by", "set", "shared_sessions", "reencode")
    given = {name: getattr(config, name) for name in names if getattr(config, name)}
    return given | ({"seed": config.seed} if config.fraction or config.splits else {})


def finish(
    config: EditConfig | MergeConfig,
    plan: EditPlan,
    output: Path | None,
    confirmed: bool,
    amend: Callable[[Path], None] | None = None,
) -> int:
    """Show a plan, and carry it out unless that is a dry run or nobody said where to.

    Args:
        output: the new folder; None for the place of the plan's only dataset.
        confirmed: its user said where to.
        amend: changes each new dataset before anybody sees it.
    """
    from gaploop.datasets.edit.actions import EditRules, carry_out
    from gaploop.scripts._edit_report import answer, show

    done = None
    if confirmed and not config.dry_run:
        with progress("Writing", plan.takes) as advance:
            rules = EditRules(config.reencode, config.consents, advance)
            done = carry_out(plan, output, rules, amend)
    target = output.resolve() if output else plan.source
    if config.json:
        emit(True, answer(plan, target, done))
    else:
        show(plan, target, done)
    if done is None and not config.dry_run:
        raise UnusableInputError(
            "Nothing was changed. Write a new dataset with --output_dir=OUT, or change this one "
            "with --yes."
        )
    return 0
