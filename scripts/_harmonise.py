"""`gaploop edit harmonise`: a dataset converted so that it goes with another."""

from __future__ import annotations

from dataclasses import asdict
from typing import TYPE_CHECKING, Any

import yaml
from rich.markup import escape
from rich.table import Table

from gaploop.core.errors import UnusableInputError
from gaploop.datasets.differences import shown
from gaploop.scripts import options
from gaploop.scripts.options import emit, jsonable, progress

if TYPE_CHECKING:
    from gaploop.datasets.edit.compose import DatasetPiece
    from gaploop.scripts.edit import EditConfig


def harmonise(config: EditConfig) -> int:
    """Convert, or say what a conversion would be; 1 where a dry run leaves something open."""
    from gaploop.datasets.edit import harmonised
    from gaploop.datasets.edit.actions import opened
    from gaploop.datasets.edit.compose import DatasetPiece
    from gaploop.datasets.edit.harmonise import as_renamed, conversion, derive
    from gaploop.datasets.edit.harmonise_spec import HarmoniseSpec, load_spec

    if not (config.spec or config.to or config.rename_map):
        raise UnusableInputError(
            "Convert it how? Give --to=REFERENCE, --spec=FILE.yaml or --rename_map."
        )
    with opened([*config.roots, *([config.to] if config.to else [])]) as pieces:
        if config.dry_run and config.to and not config.spec:
            return _show_draft(config, as_renamed(pieces[0], config.rename_map), pieces[1])
        spec = HarmoniseSpec() if config.spec is None else load_spec(config.spec)
        reference = pieces[1] if config.to and config.spec is None else None
        steps = conversion(pieces[0], spec, reference, config.rename_map)
        if config.dry_run:
            shapes = {n: list(f["shape"]) for n, f in steps.features().items()}
            answer = {"done": steps.record(), "features": shapes}
            emit(config.json, answer, _yaml(answer))
            return 0
        out = options.required(
            config.output_dir, "Where to? Name a new folder with --output_dir=OUT."
        )
        with progress("Converting", len(pieces[0].episodes)) as advance:
            takes = harmonised.harmonise(pieces[0], steps, out, advance)
        left: list[str] = []
        text = f"{takes} episodes written to {out}."
        if config.to is not None:
            draft = derive(DatasetPiece.whole(out), pieces[1])
            left = [*draft.impossible, *draft.undecided, *map(str, draft.spec)]
            if not left:
                text += f" They go with {config.to}: gaploop edit merge, gaploop finetune."
        if left:
            text += f" Still different from {config.to}: {'; '.join(left)}"
        done = {"output_dir": out, "takes": takes, "done": steps.record(), "differs_in": left}
        emit(config.json, done, text)
        return int(bool(left))


def _show_draft(config: EditConfig, piece: DatasetPiece, reference: DatasetPiece) -> int:
    from gaploop.datasets.edit.harmonise import derive, tidy

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
