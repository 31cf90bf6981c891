"""Which datasets may be put into one, and what becomes of takes that several of them hold."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

from gaploop.core.errors import UnusableInputError, unknown_choice
from gaploop.datasets.columns import AUTOMATIC
from gaploop.datasets.compatible import Shape, require_same
from gaploop.datasets.edit.actions import EditPlan
from gaploop.datasets.edit.pieces import DatasetPiece

DUPLICATES: Final = ("refuse", "first")
HARMONISE: Final = "Make them alike first: gaploop harmonise {b} --to={a} --output_dir=OUT"


def plan_merge(
    pieces: Sequence[DatasetPiece], config: Mapping[str, Any], duplicates: str = "refuse"
) -> EditPlan:
    """Plan the dataset that holds all takes of several, in order.

    Args:
        duplicates: what becomes of a take whose uid is in several: `refuse`, or `first` to take
            it from the first one that has it, with the labels of all.

    Raises:
        UnusableInputError: fewer than two, or datasets that differ in robot, rate, features,
            units or gap columns, or a take in two of them.
    """
    if duplicates not in DUPLICATES:
        raise unknown_choice("choice", duplicates, DUPLICATES, "--duplicates")
    if len(pieces) < 2:
        raise UnusableInputError("Merge what? Name two or more: --roots='[A, B]'.")
    for other in pieces[1:]:
        _check_alike(pieces[0], other)
    _check_units(pieces)
    seen: dict[str, DatasetPiece] = {}
    chosen, twice = [], 0
    for piece in pieces:
        new = [e for e in piece.episodes if e.info.uid not in seen]
        double = [e for e in piece.episodes if e.info.uid in seen]
        if double and duplicates == "refuse":
            first = double[0]
            raise UnusableInputError(
                f"Takes are in both {seen[first.info.uid].info.root} and {piece.info.root}: "
                f"{len(double)}, such as its episode {first.index} ({first.info.uid}). Take each "
                "once, with the labels of both: --duplicates=first"
            )
        twice += len(double)
        seen |= {e.info.uid: piece for e in new}
        chosen.append(piece.only([e.index for e in new]))
    notes = (f"{twice} takes are in several; each is taken once.",) if twice else ()
    return EditPlan("merge", {"": tuple(chosen)}, config, notes=notes)


def _check_alike(a: DatasetPiece, b: DatasetPiece) -> None:
    if a.tagged != b.tagged:
        bare = b if a.tagged else a
        raise UnusableInputError(
            f"{bare.info.root} has no gap columns, the other has. Add them, with what its takes "
            f"are: gaploop import {bare.info.root} --format=lerobot --kind=… --domain=… "
            "--output_dir=OUT"
        )
    mend = HARMONISE.format(a=a.info.root, b=b.info.root)
    require_same(Shape.of_dataset(a.info), Shape.of_dataset(b.info), mend)
    if a.info.robot_type != b.info.robot_type:
        raise UnusableInputError(
            f"dataset {b.info.root} is of robot '{b.info.robot_type}', {a.info.root} of "
            f"'{a.info.robot_type}'. {mend}"
        )
    for name, spec in a.info.features.items():
        if spec.get("dtype") in ("video", "image") or name in AUTOMATIC:
            continue
        have, got = a.info.names(name), b.info.names(name)
        if have != got:
            raise UnusableInputError(
                f"dataset {b.info.root} doesn't fit {a.info.root}: the entries of {name} are "
                f"{', '.join(got)}, not {', '.join(have)}. {mend}"
            )


def _check_units(pieces: Sequence[DatasetPiece]) -> None:
    units: dict[str, DatasetPiece] = {}
    for piece in pieces:
        units |= {e.info.units: piece for e in piece.held if e.info.units}
    if len(units) > 1:
        (unit, first), (other, last) = list(units.items())[:2]
        a, b = first.info.root, last.info.root
        raise UnusableInputError(
            f"State and action of {a} are in {unit}, those of {b} in {other}. "
            f"{HARMONISE.format(a=a, b=b)}"
        )
