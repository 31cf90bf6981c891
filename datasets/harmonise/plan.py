"""What it would take to make one dataset like another: a spec, as far as nobody has to guess."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from gaploop.core.units import named
from gaploop.datasets import columns
from gaploop.datasets.differences import DatasetDifference, differences, profile
from gaploop.datasets.edit.compose import DatasetPiece
from gaploop.datasets.harmonise.conversion import FILLED, empty_vectors
from gaploop.datasets.harmonise.spec import UNDECIDED, UNITS, VECTORS, is_gripper, joint
from gaploop.datasets.layout import DatasetInfo

_TIDY: Final = ("robot_type", "fps", "units", "joints", "order")


@dataclass
class SpecDraft:
    """A spec in the making.

    Attributes:
        spec: as YAML would hold it; `?` stands where only its user can decide.
        undecided: what is to be decided, with the choices, in words.
        impossible: what no conversion can bring about, in words.
        differences: what differs, the dataset's value first.
    """

    spec: dict[str, Any] = field(default_factory=dict)
    undecided: list[str] = field(default_factory=list)
    impossible: list[str] = field(default_factory=list)
    differences: list[DatasetDifference] = field(default_factory=list)


def derive(piece: DatasetPiece, reference: DatasetPiece) -> SpecDraft:
    """Return what would make `piece` like `reference`.

    Raises:
        UnusableInputError: one of them holds takes in several units.
    """
    draft = SpecDraft()
    ours, theirs = profile(piece.info, piece.episodes), profile(reference.info, reference.episodes)
    draft.differences = list(differences(ours, theirs))
    a, b = piece.info, reference.info
    if bool(ours.units) != bool(theirs.units):
        said = (ours.units or "not stated", theirs.units or "not stated")
        draft.differences.append(DatasetDifference("units", "units", *said))
    if a.robot_type != b.robot_type:
        robots = (a.robot_type, b.robot_type)
        draft.differences.append(DatasetDifference("robot_type", "robot_type", *robots))
        draft.spec["robot_type"] = b.robot_type
    if a.fps != b.fps:
        draft.spec["fps"] = {"to": int(b.fps) if b.fps == int(b.fps) else b.fps, "rule": "hold"}
    target = theirs.units
    if target not in (ours.units, ""):
        units: dict[str, Any] = {} if ours.units else {"from": UNDECIDED}
        units["to"] = target
        if not ours.units:
            draft.undecided.append(
                f"units, from: no take of {a.root} states its units: one of "
                f"{', '.join(map(named, UNITS))}."
            )
        if "m100_100" in (ours.units, target):
            units["ranges"] = UNDECIDED
            draft.undecided.append(
                "units, ranges: the angles [deg] at -100 and 100, as {joint: [low, high]}, "
                "a LeRobot calibration file, or model with arm: NAME."
            )
        grippers = [n for v in empty_vectors(a).values() for n in v.names if is_gripper(n)]
        if grippers and "rad" in (ours.units, target):
            units["gripper"] = UNDECIDED
            draft.undecided.append(
                "units, gripper: keep, model with arm: NAME, or [rad at 0, rad at 100]."
            )
        draft.spec["units"] = units
    _joints(draft, a, b)
    _cameras(draft, a, b)
    _others(draft, a, b)
    if piece.tagged != reference.tagged:
        bare = a if reference.tagged else b
        draft.impossible.append(
            f"{bare.root} has no gap columns. Add them first: gaploop convert {bare.root} "
            "--set='{kind: …, domain: …}' --output_dir=OUT"
        )
    return draft


def _joints(draft: SpecDraft, a: DatasetInfo, b: DatasetInfo) -> None:
    extra, missing = _strangers(a, b), _strangers(b, a)
    if extra:
        draft.spec["joints"] = dict.fromkeys(extra, UNDECIDED)
        choices = f"one of {', '.join(missing)}, or null" if missing else "null"
        draft.undecided.append(
            f"joints: {b.root} has no {', '.join(extra)}. Which is which? For each {choices} (to "
            "leave it out)."
        )
    elif missing:
        draft.impossible.append(
            f"{a.root} has no joints {', '.join(missing)}. Leave them out of {b.root}: "
            f"joints: {{{missing[0]}: null}}."
        )
    if extra or missing:
        return
    shared = [f for f in VECTORS if f in a.features and f in b.features]
    for feature in shared:
        ours, theirs = a.names(feature), b.names(feature)
        if sorted(map(joint, ours)) != sorted(map(joint, theirs)):
            draft.impossible.append(
                f"{feature} has {len(ours)} entries, {b.root} has {len(theirs)}: "
                f"{', '.join(ours)}, not {', '.join(theirs)}."
            )
        elif ours != theirs:
            draft.spec.setdefault("order", {})[feature] = list(theirs)


def _strangers(a: DatasetInfo, b: DatasetInfo) -> list[str]:
    """Return the joints that a feature has in `a` and not in `b`."""
    found = []
    for feature in VECTORS:
        if feature in a.features and feature in b.features:
            known = {joint(n) for n in b.names(feature)}
            found += [joint(n) for n in a.names(feature) if joint(n) not in known]
    return list(dict.fromkeys(found))


def _pictures(info: DatasetInfo) -> dict[str, tuple[int, ...]]:
    sizes = {name: info.features[name]["shape"] for name in info.picture_keys}
    return {n.removeprefix(columns.IMAGES): tuple(map(int, size)) for n, size in sizes.items()}


def _cameras(draft: SpecDraft, a: DatasetInfo, b: DatasetInfo) -> None:
    ours, theirs = _pictures(a), _pictures(b)
    extra = [n for n in ours if n not in theirs]
    missing = [n for n in theirs if n not in ours]
    changes: dict[str, Any] = {}
    if extra and missing:
        changes |= dict.fromkeys(extra, UNDECIDED)
        draft.undecided.append(
            f"cameras: {b.root} has no {', '.join(extra)}. Which is which? For each one of "
            f"{', '.join(missing)}, or null (to leave it out)."
        )
    elif extra:
        changes |= dict.fromkeys(extra)
        draft.differences += [
            DatasetDifference(f"camera {name}", "presence", ours[name], None) for name in extra
        ]
    elif missing:
        draft.impossible.append(
            f"{a.root} has no camera {', '.join(missing)}. Leave it out of {b.root}: "
            f"cameras: {{{missing[0]}: null}}."
        )
    for name in ours:
        if name in theirs and ours[name] != theirs[name]:
            have, want = ours[name], theirs[name]
            resize = [want[1], want[0]]
            if have[0] * want[1] == have[1] * want[0]:
                changes[name] = {"resize": resize}
                continue
            scale = min(have[0] / want[0], have[1] / want[1])
            h, w = int(want[0] * scale) // 2 * 2, int(want[1] * scale) // 2 * 2
            middle = [(have[1] - w) // 2, (have[0] - h) // 2, w, h]
            draft.undecided.append(
                f"cameras, {name}: {have[1]}x{have[0]} has other sides than {want[1]}x{want[0]}. "
                f"crop: [x, y, width, height], such as the middle {middle}, or null (to distort "
                "it)."
            )
            changes[name] = {"crop": UNDECIDED, "resize": resize}
    if changes:
        draft.spec["cameras"] = changes


def _others(draft: SpecDraft, a: DatasetInfo, b: DatasetInfo) -> None:
    def plain(info: DatasetInfo) -> list[str]:
        skip = (*columns.AUTOMATIC, *VECTORS, *info.picture_keys)
        found = (n for n in info.features if n not in skip)
        return [n for n in found if not n.startswith(columns.CAMERA_AGE)]

    ours, theirs = plain(a), plain(b)
    drop = [n for n in ours if n not in theirs]
    drop += [n for n in VECTORS if n in a.features and n not in b.features]
    if drop:
        draft.spec["drop"] = drop
    missing = [n for n in theirs if n not in ours]
    missing += [n for n in VECTORS if n in b.features and n not in a.features]
    if set(missing) & set(FILLED) or (_ages(b) and not _ages(a)):
        draft.spec["fill"] = True
    missing = [n for n in missing if n not in FILLED]
    if missing:
        other = {n: name for name in missing for n in drop if _form(a, n) == _form(b, name)}
        named = ", ".join(f"{n}: {name}" for n, name in other.items()) or f"THEIRS: {missing[0]}"
        draft.impossible.append(
            f"{a.root} has no {', '.join(missing)}, which can't be made up. Is it there under "
            f"another name? Add --rename_map='{{{named}}}'. Or leave it out of {b.root} with a "
            f"spec: drop: [{', '.join(missing)}]."
        )
    for name in ours:
        if name in theirs and _form(a, name) != _form(b, name):
            draft.impossible.append(
                f"{name} is {_form(a, name)}, in {b.root} {_form(b, name)}. Leave it out of both: "
                f"drop: [{name}]."
            )


def _ages(info: DatasetInfo) -> bool:
    return any(n.startswith(columns.CAMERA_AGE) for n in info.features)


def _form(info: DatasetInfo, name: str) -> str:
    names = info.names(name)
    return f"{info.features[name].get('dtype')} of {len(names)} ({', '.join(names)})"


def tidy(spec: Mapping[str, Any]) -> dict[str, Any]:
    """Return a spec with its keys in the order of the documents."""
    return {k: spec[k] for k in (*_TIDY, *(k for k in spec if k not in _TIDY)) if k in spec}
