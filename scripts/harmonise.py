"""The command `gaploop harmonise`: a dataset converted so that it goes with another."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import yaml
from rich.markup import escape
from rich.table import Table

from gaploop.core.errors import UnusableInputError
from gaploop.datasets.differences import shown
from gaploop.scripts import options
from gaploop.scripts.options import DatasetFolder, emit, jsonable, progress

if TYPE_CHECKING:
    from gaploop.datasets.edit.compose import DatasetPiece
    from gaploop.datasets.harmonise.conversion import Conversion

EXAMPLE: Final = """
gaploop harmonise sim_takes --to=real_takes --dry_run > spec.yaml     # what differs, and a spec
gaploop harmonise sim_takes --to=real_takes --output_dir=sim_like_real
gaploop harmonise sim_takes --spec=spec.yaml --output_dir=sim_like_real
gaploop harmonise theirs --to=real_takes --output_dir=ours \\
               --rename_map='{state: observation.state, image: observation.images.top}'
gaploop harmonise sim_like_real --undo --output_dir=sim_again
"""
MORE: Final = "See all of it, and a spec to fill in: gaploop harmonise {root} --to={to} --dry_run"


@dataclass
class HarmoniseConfig:
    """Convert a dataset so that it can be mixed or merged with another.

    Renames features; renames, turns and orders joints; converts units (deg, rad, normalised) and
    between joint and tool space; resamples to another rate; renames, crops and scales cameras;
    leaves features out; names another robot. Writes a new dataset with labels, telemetry and
    consent, and what was done with which numbers to meta/gap/harmonise.json. It never guesses: what
    isn't clear is one line with the choices. docs/harmonising.md describes the spec.
    """

    dataset: DatasetFolder = field(default_factory=DatasetFolder)
    to: Path | None = None
    """The dataset that it should match. With --spec or --undo: check the result against it."""
    spec: Path | None = None
    """What to do, as YAML."""
    rename_map: dict[str, str] = field(default_factory=dict)
    """Feature to its new name, before all else, such as
    '{state: observation.state, image: observation.images.top}'; alone or with --to or --spec."""
    undo: bool = False
    """Undo the last conversion, as recorded in the dataset, where nothing was lost by it."""
    dry_run: bool = False
    """Only show what differs and what would be done; the spec goes to stdout."""
    output_dir: Path | None = None
    """The new dataset."""
    json: bool = False
    """Print {"output_dir", "takes", "done"}, or with --dry_run {"differences", "spec", …}."""


def run(config: HarmoniseConfig) -> int:
    """Convert, or say what a conversion would be; 1 where a dry run leaves something open."""
    from gaploop.datasets.edit.actions import opened
    from gaploop.datasets.edit.compose import DatasetPiece
    from gaploop.datasets.harmonise.lerobot_harmonise import harmonise
    from gaploop.datasets.harmonise.plan import derive

    root = config.dataset.folder()
    ways = [bool(config.spec), config.undo, bool(config.to and not (config.spec or config.undo))]
    if sum(ways) > 1 or not (any(ways) or config.rename_map):
        raise UnusableInputError(
            "Convert it how? Give one of --to=REFERENCE, --spec=FILE.yaml and --undo, or "
            "--rename_map."
        )
    if config.undo and config.rename_map:
        raise UnusableInputError("--undo also brings the names back. Leave out --rename_map.")
    roots = [root, *([config.to] if config.to else [])]
    with opened(roots) as pieces:
        if config.dry_run and config.to and not (config.spec or config.undo):
            return _show_draft(config, _renamed(config, pieces[0]), pieces[1])
        conversion = _conversion(config, pieces)
        if config.dry_run:
            shapes = {n: list(f["shape"]) for n, f in conversion.features().items()}
            answer = {"done": conversion.record(), "features": shapes}
            emit(config.json, answer, _yaml(answer))
            return 0
        out = options.required(
            config.output_dir, "Where to? Name a new folder with --output_dir=OUT."
        )
        with progress("Converting", len(pieces[0].episodes)) as advance:
            takes = harmonise(pieces[0], conversion, out, advance)
        left: list[str] = []
        text = f"{takes} takes written to {out}."
        if config.to is not None:
            draft = derive(DatasetPiece.whole(out), pieces[1])
            left = [*draft.impossible, *draft.undecided, *map(str, draft.spec)]
            if not left:
                text += f" They go with {config.to}: gaploop merge, gaploop finetune."
        if left:
            text += f" Still different from {config.to}: {'; '.join(left)}"
        done = {"output_dir": out, "takes": takes, "done": conversion.record(), "differs_in": left}
        emit(config.json, done, text)
        return int(bool(left))


def _renamed(config: HarmoniseConfig, piece: DatasetPiece) -> DatasetPiece:
    from gaploop.datasets.harmonise.conversion import renamed
    from gaploop.datasets.repair.description import checked_rename

    names = checked_rename(piece.info.features, config.rename_map)
    return replace(piece, info=renamed(piece.info, names))


def _conversion(config: HarmoniseConfig, pieces: tuple[DatasetPiece, ...]) -> Conversion:
    from gaploop.datasets.harmonise.conversion import history_of, resolve, undone
    from gaploop.datasets.harmonise.plan import derive
    from gaploop.datasets.harmonise.spec import HarmoniseSpec, load_spec, parse_spec

    piece = pieces[0]
    if config.undo:
        nothing = f"{piece.info.root} was not converted: nothing to undo."
        return undone(piece.info, options.required(history_of(piece.info.root), nothing)[-1])
    if config.spec is not None:
        return resolve(load_spec(config.spec), piece.info, piece.episodes, config.rename_map)
    if config.to is None:
        return resolve(HarmoniseSpec(), piece.info, piece.episodes, config.rename_map)
    draft = derive(_renamed(config, piece), pieces[1])
    for line in (*draft.impossible, *draft.undecided):
        more = MORE.format(root=piece.info.root, to=config.to)
        raise UnusableInputError(f"{line} {more}")
    if not draft.spec and not config.rename_map:
        raise UnusableInputError(
            f"{piece.info.root} goes with {config.to} as it is."
            " Merge them with gaploop merge, or mix them in gaploop finetune."
        )
    spec = parse_spec(draft.spec, f"{piece.info.root}", Path())
    return resolve(spec, piece.info, piece.episodes, config.rename_map)


def _show_draft(config: HarmoniseConfig, piece: DatasetPiece, reference: DatasetPiece) -> int:
    from gaploop.datasets.harmonise.plan import derive, tidy

    draft = derive(piece, reference)
    open_ = bool(draft.undecided or draft.impossible)
    answer = {
        "differences": [asdict(d) for d in draft.differences],
        "spec": tidy(draft.spec),
        "undecided": draft.undecided,
        "impossible": draft.impossible,
    }
    console = options.console(stderr=True, quiet=config.json)
    ours, theirs = str(piece.info.root), str(reference.info.root)
    table = Table("what", ours, theirs, title="What differs", title_justify="left")
    for d in draft.differences:
        name = d.what if d.aspect in (d.what, "presence") else f"{d.what}, {d.aspect}"
        values = (shown(d.have), shown(d.want))
        if d.aspect == "presence":
            values = ("there" if d.have else "missing", "there" if d.want else "missing")
        table.add_row(name, *map(escape, values))
    how = "so renamed" if config.rename_map else "as it is"
    console.print(table if draft.differences else f"{ours} goes with {theirs} {how}.")
    for line in draft.impossible:
        console.print(f"✗ {line}", markup=False, highlight=False, soft_wrap=True)
    for line in draft.undecided:
        console.print(f"? {line}", markup=False, highlight=False, soft_wrap=True)
    emit(config.json, answer, _yaml(answer["spec"]) if draft.spec else "")
    return int(open_)


def _yaml(value: Any) -> str:
    return str(yaml.safe_dump(jsonable(value), sort_keys=False, allow_unicode=True)).rstrip()
