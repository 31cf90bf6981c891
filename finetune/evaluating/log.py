"""Rollouts on disk as they come, so that an evaluation that was stopped goes on where it was."""

from __future__ import annotations

import csv
import io
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from gaploop.core.errors import UnusableInputError
from gaploop.core.files import append_lines, read_json, write_json
from gaploop.finetune.evaluation import Rollout

ROLLOUTS: Final = "rollouts.csv"
SETTINGS: Final = "settings.json"
SCHEMA: Final = "gaploop.evaluation_settings.v1"
FIELDS: Final = tuple(Rollout.__dataclass_fields__)

type Scene = tuple[str, int]
"""Condition and seed: what names a rollout of one policy in one cell."""


class RolloutLog:
    """The rollouts of one policy in one cell, kept in a folder.

    Args:
        folder: holds `rollouts.csv`, and `settings.json` with what they share.
        settings: what all of them share, as JSON types: the policy, the cell.

    Raises:
        UnusableInputError: the folder holds rollouts of something else, or a damaged file.
    """

    def __init__(self, folder: Path, settings: Mapping[str, Any]) -> None:
        self.folder, self._path = folder, folder / ROLLOUTS
        self._check({"schema": SCHEMA, **settings})
        self.held: dict[Scene, Rollout] = {}
        """What the folder held at first."""
        for rollout in _read(self._path):
            self.held.setdefault((rollout.condition, rollout.seed), rollout)

    def add(self, rollouts: Sequence[Rollout]) -> None:
        """Write rollouts down; they are on the disk when this returns."""
        lines = csv_lines(rollouts)
        if not self._path.exists():
            lines = [",".join(FIELDS), *lines]
        append_lines(self._path, lines)

    def _check(self, settings: Mapping[str, Any]) -> None:
        path = self.folder / SETTINGS
        if not path.exists():
            if self._path.exists():
                raise UnusableInputError(
                    f"{self._path} is there without {SETTINGS}, so nobody knows what was rolled "
                    "out. Name another --output_dir."
                )
            write_json(path, settings)
            return
        held = read_json(path)
        if not isinstance(held, dict):
            raise UnusableInputError(f"{path} is damaged. Name another --output_dir.")
        other = [n for n in {**held, **settings} if held.get(n) != settings.get(n)]
        if other:
            was = ", ".join(f"{n} {held.get(n)}" for n in other)
            now = ", ".join(f"{n} {settings.get(n)}" for n in other)
            raise UnusableInputError(
                f"{self.folder} holds rollouts with {was}; now it is {now}. Name another "
                "--output_dir, or evaluate the same."
            )


def csv_lines(rollouts: Iterable[Rollout]) -> list[str]:
    """Return one line of CSV per rollout, without a line break in it."""
    lines = []
    for rollout in rollouts:
        stream = io.StringIO()
        values = [getattr(rollout, name) for name in FIELDS]
        row = [" ".join(v.split()) if isinstance(v, str) else v for v in values]
        csv.writer(stream, lineterminator="").writerow(row)
        lines.append(stream.getvalue())
    return lines


def _read(path: Path) -> Iterable[Rollout]:
    if not path.exists():
        return
    whole = path.read_text().rpartition("\n")[0]  # a kill may have torn the last line
    for number, row in enumerate(csv.DictReader(whole.splitlines()), 2):
        try:
            yield _rollout(row)
        except (KeyError, ValueError, TypeError, AttributeError):
            raise UnusableInputError(
                f"{path}, line {number}: not a rollout. Fix or remove that line."
            ) from None


def _rollout(row: Mapping[str, Any]) -> Rollout:
    if None in row.values():
        raise ValueError("too few values")
    success = {"True": True, "False": False}[row["success"]]
    given = {name: row[name] for name in FIELDS if name in row}
    return Rollout(
        **{
            **given,
            "seed": int(row["seed"]),
            "success": success,
            "duration_s": float(row["duration_s"]),
        }
    )
