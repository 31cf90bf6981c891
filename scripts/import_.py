"""The command `gaploop import`."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Final

from gaploop.core.errors import UnusableInputError, unknown_choice
from gaploop.scripts.options import emit, progress

POSITIONAL: Final = "source"
FORMATS: Final = ("csv", "lerobot", "uci_failures")


@dataclass
class ImportConfig:
    """Bring foreign logs in as takes, or a foreign LeRobot dataset as one of ours.

    csv and uci_failures write journal takes to --output_dir; what the source says about its
    events goes to truth.jsonl there and nowhere else. lerobot checks the dataset, writes it to
    --output_dir and adds gap columns. Takes that are there already are not written again.
    """

    source: Path | None = None
    """File or folder to import (`gaploop import SRC` is short for it)."""
    format: str = ""
    """csv, uci_failures or lerobot."""
    output_dir: Path | None = None
    """The journal, or for lerobot the new dataset."""
    mapping: Path | None = None
    """csv: the YAML that says which column is what; see docs/files.md."""
    drop_videos: bool = False
    """lerobot: go on without pictures; joint state becomes observation.environment_state too."""
    episodes: str = ""
    """lerobot: only these, such as '0:30' or '[0, 3]'."""
    kind: str = ""
    """lerobot: demonstration, rollout or import; import unless the source says."""
    domain: str = ""
    """lerobot: real, sim or sim_target; real unless the source says."""
    outcome: str = ""
    """lerobot: success, failure, …; unlabelled unless the source says."""
    json: bool = False
    """Print what was written as one JSON object."""


EXAMPLE = """
gaploop import lp1.data --format=uci_failures --output_dir=uci_journal
gaploop import ur3.csv --format=csv --mapping=examples/ur3_cobotops.yaml --output_dir=ur3_journal
gaploop import teleop --format=lerobot --drop_videos=true --episodes='0:30' \\
               --kind=demonstration --outcome=success --output_dir=teleop_joints
"""


def run(config: ImportConfig) -> int:
    """Import; the work is in `collect.imports` and `datasets.lerobot_import`."""
    if config.source is None:
        raise UnusableInputError("Import what? Name it: gaploop import SRC --format=…")
    if config.output_dir is None:
        raise UnusableInputError("Import where to? Name a folder with --output_dir=DIR.")
    if config.format not in FORMATS:
        raise unknown_choice("format", config.format, FORMATS, "--format")
    run_format: Callable[[ImportConfig, Path, Path], int]
    run_format = _lerobot if config.format == "lerobot" else _takes
    return run_format(config, config.source, config.output_dir)


def _takes(config: ImportConfig, source: Path, journal: Path) -> int:
    from gaploop.collect.imports.csv_log import read_csv_takes
    from gaploop.collect.imports.csv_mapping import load_mapping
    from gaploop.collect.imports.takes import write_takes
    from gaploop.collect.imports.uci_failures import read_uci_failures

    notes: list[str] = []
    if config.format == "csv":
        if config.mapping is None:
            raise UnusableInputError(
                "Which column is what? Name a mapping with --mapping=FILE.yaml; docs/files.md "
                "and examples/ur3_cobotops.yaml show one."
            )
        takes, notes = read_csv_takes(source, load_mapping(config.mapping))
    else:
        takes = read_uci_failures(source)
    with progress("Importing", len(takes)) as advance:
        report = write_takes(journal, takes, notes, advance)
    there = f", {report.present} were there" if report.present else ""
    text = "\n".join([*notes, f"{report.written} takes written to {journal}{there}."])
    emit(config.json, {"journal": str(journal), **asdict(report)}, text)
    return 0


def _lerobot(config: ImportConfig, source: Path, target: Path) -> int:
    from gaploop.core.vocabulary import Domain, Outcome, TakeKind
    from gaploop.datasets.layout import read_info
    from gaploop.datasets.lerobot_import import ImportOptions, import_dataset, parse_episodes

    def choice(enum: Any, name: str) -> Any:
        word = getattr(config, name)
        if word and word not in list(enum):
            raise unknown_choice(name, word, [m.value for m in enum], f"--{name}")
        return enum(word) if word else None

    total = read_info(source).total_episodes
    episodes = parse_episodes(config.episodes, total) if config.episodes else None
    options = ImportOptions(
        episodes,
        config.drop_videos,
        choice(TakeKind, "kind"),
        choice(Domain, "domain"),
        choice(Outcome, "outcome"),
    )
    with progress("Importing", len(episodes) if episodes else total) as advance:
        count = import_dataset(source, target, options, advance)
    answer = {"dataset": str(target), "episodes": count}
    emit(config.json, answer, f"{count} of {total} episodes written to {target}.")
    return 0
