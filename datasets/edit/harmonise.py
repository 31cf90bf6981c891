"""What it would take to make one dataset like another, as far as nobody has to guess.

A conversion, worked out against one dataset, and the spec of one that would make it like another.
"""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any, Final

from gaploop.core.errors import UnusableInputError, unknown_choice
from gaploop.core.files import read_json
from gaploop.core.vocabulary import named
from gaploop.datasets import columns
from gaploop.datasets.check.description import checked_rename
from gaploop.datasets.columns import PICTURES
from gaploop.datasets.differences import DatasetDifference, differences, known_units, profile
from gaploop.datasets.edit.compose import DatasetPiece
from gaploop.datasets.edit.harmonise_spec import (
    UNDECIDED,
    UNITS,
    VECTORS,
    CameraSpec,
    HarmoniseSpec,
    Units,
    is_gripper,
    joint,
    parse_spec,
)
from gaploop.datasets.layout import DatasetInfo, EpisodeRow

FILLED: Final = (
    columns.TIME, columns.TAKE, columns.SENT, columns.INTERVENTION, columns.SAFETY,
)  # fmt: skip
"""Gap columns of frames that can be added: see `Conversion.fill`."""
RECORD: Final = "meta/gap/harmonise.json"
"""What was done to a dataset, with which numbers."""
SCHEMA: Final = "gaploop.harmonise.v1"


@dataclass(frozen=True)
class Conversion:
    """What will be done to one dataset.

    Attributes:
        info: the dataset, with the names that its features are given first.
        spec: with the units that its takes are in.
        fps: rate afterwards [Hz].
        units: of the joint vectors afterwards; "" where nobody knows.
        fill: gap columns to add: time from the frame's number, the take's hash, the requested
            action as what was sent, no intervention, no safety event, ages unknown.
        rename: feature to the name that it is given first.
    """

    info: DatasetInfo
    spec: HarmoniseSpec
    fps: float
    robot_type: str
    units: str
    fill: tuple[str, ...] = ()
    rename: Mapping[str, str] = field(default_factory=dict)

    @property
    def lost(self) -> tuple[str, ...]:
        """What the result no longer holds, in words."""
        lost = [f"joint {old}" for old, change in self.spec.joints.items() if not change.name]
        if self.fps != self.info.fps:
            lost.append(f"frames at {self.info.fps:g} fps")
        for name, change in self.spec.cameras.items():
            if change is None:
                lost.append(f"camera {name}")
            elif change.touches_pictures:
                lost.append(f"the pictures of camera {name} as they were")
        return (*lost, *(f"feature {name}" for name in self.spec.drop))

    def camera(self, feature: str) -> tuple[str, CameraSpec] | None:
        """Return the new feature of a camera and its change; None where it is left out."""
        change = self.spec.cameras.get(feature.removeprefix(columns.IMAGES), CameraSpec())
        if change is None:
            return None
        new = f"{columns.IMAGES}{change.name}" if change.name else feature
        return new, change

    def name_of(self, feature: str) -> str | None:
        """Return a feature's name afterwards; None where it is left out."""
        if feature in self.spec.drop:
            return None
        if feature.startswith(columns.CAMERA_AGE):
            change = self.spec.cameras.get(columns.camera_of_age(feature), CameraSpec())
            if change is None:
                return None
            feature = columns.age_column(change.name) if change.name else feature
        elif self.info.features[feature].get("dtype") in PICTURES:
            found = self.camera(feature)
            return None if found is None else found[0]
        return feature

    def features(self) -> dict[str, dict[str, Any]]:
        """Return LeRobot's feature table afterwards, without those that LeRobot adds."""
        table: dict[str, dict[str, Any]] = {}
        for name, spec in self.info.features.items():
            new = self.name_of(name)
            if name in columns.AUTOMATIC or new is None:
                continue
            if new in table:
                raise UnusableInputError(f"cameras: two of them get the name {new}.")
            shape = tuple(int(n) for n in spec.get("shape") or (1,))
            table[new] = {"dtype": spec["dtype"], "shape": shape, "names": spec.get("names")}
            if name in VECTORS:
                names = list(self.spec.joint_map(name, self.info.names(name)).names)
                table[new] = {"dtype": "float32", "shape": (len(names),), "names": names}
            elif spec["dtype"] in PICTURES:
                change = self.spec.cameras.get(name.removeprefix(columns.IMAGES)) or CameraSpec()
                height, width, *rest = shape
                if change.crop is not None:
                    x, y, w, h = change.crop
                    if x + w > width or y + h > height:
                        raise UnusableInputError(
                            f"cameras: crop [{x}, {y}, {w}, {h}] reaches out of a picture of "
                            f"{width}x{height}."
                        )
                    width, height = w, h
                if change.resize is not None:
                    width, height = change.resize
                table[new]["shape"] = (height, width, *rest)
        if self.fill:
            ages = (columns.camera_of_age(name) for name in self.fill)
            ours = columns.gap_features(table[columns.ACTION], ages)
            table |= {name: ours[name] for name in self.fill}
        return table

    def record(self) -> dict[str, Any]:
        """Return what `harmonise.json` says of it."""
        spec = self.spec
        return {
            "fps": {"from": self.info.fps, "to": self.fps},
            "renamed": dict(self.rename),
            "joints": {name: vars(change) for name, change in spec.joints.items()},
            "scale": asdict(spec.units) if spec.units is not None else {},
            "order": dict(spec.order),
            "cameras": {n: None if c is None else vars(c) for n, c in spec.cameras.items()},
            "dropped": list(spec.drop),
            "filled": list(self.fill),
            "robot_type": {"from": self.info.robot_type, "to": self.robot_type},
            "lost": list(self.lost),
        }


def vector_names(info: DatasetInfo) -> dict[str, tuple[str, ...]]:
    """Return the names of the entries of a dataset's joint vectors."""
    return {name: tuple(info.names(name)) for name in VECTORS if name in info.features}


def renamed(info: DatasetInfo, rename: Mapping[str, str]) -> DatasetInfo:
    """Return a dataset's description with other names of features."""
    return replace(info, features={rename.get(n, n): f for n, f in info.features.items()})


def resolve(
    spec: HarmoniseSpec,
    info: DatasetInfo,
    episodes: Sequence[EpisodeRow],
    rename: Mapping[str, str] | None = None,
) -> Conversion:
    """Work a conversion out for one dataset, some of whose features get other names first.

    Raises:
        UnusableInputError: it names what isn't there, or leaves something to guess.
    """
    rename = checked_rename(info.features, rename or {})
    info = renamed(info, rename)
    # A camera that is called `image`, without the prefix, gets that with its new name.
    bare = {n: c for n, c in spec.cameras.items() if n in info.features and c and c.name}
    names = {n: f"{columns.IMAGES}{c.name}" for n, c in bare.items()}
    rename |= checked_rename(info.features, names)
    kept = {n: c for n, c in spec.cameras.items() if n not in bare}
    kept |= {c.name: replace(c, name="") for c in bare.values()}
    spec, info = replace(spec, cameras=kept), renamed(info, rename)
    vectors = vector_names(info)
    for what, asked, known in (
        ("joint", spec.joints, {joint(n) for names in vectors.values() for n in names}),
        ("camera", spec.cameras, {n.removeprefix(columns.IMAGES) for n in info.picture_keys}),
        ("feature", spec.drop, set(info.features) - set(columns.AUTOMATIC)),
    ):
        for name in asked:
            if name not in known:
                raise unknown_choice(what, name, known, str(info.root))
    units = known_units(episodes, info)
    if spec.units is not None:
        unconverted = replace(spec, units=None, order={})
        new = {n for f, old in vectors.items() for n in unconverted.joint_map(f, old).names}
        step = _units_step(spec.units, units, new)
        spec, units = replace(spec, units=step), step.target
    fps = info.fps if spec.fps is None else spec.fps
    robot = info.robot_type if spec.robot_type is None else spec.robot_type
    done = Conversion(info, spec, fps, robot, units, (), rename)
    if spec.fill:
        have = done.features()
        if columns.ACTION not in have:
            raise UnusableInputError(f"fill: {info.root} has no {columns.ACTION}.")
        cameras = [n.removeprefix(columns.IMAGES) for n in have if n.startswith(columns.IMAGES)]
        wanted = (*FILLED, *(columns.age_column(camera) for camera in cameras))
        done = replace(done, fill=tuple(name for name in wanted if name not in have))
    done.features()
    return done


def _units_step(spec: Units, known: str, names: Collection[str]) -> Units:
    source = spec.source or known
    if source not in UNITS:
        said = f"'{known}'" if known else "not stated"
        raise UnusableInputError(
            f"units: those of the dataset are {said}. Give them: units: {{from: deg, to: "
            f"{spec.target}}}; one of {', '.join(UNITS)}."
        )
    if known in UNITS and source != known:
        raise UnusableInputError(
            f"units: from {source}, but the episodes are in {known}. Leave from out, or mend the "
            "episodes with gaploop edit retag."
        )
    grippers = sorted({joint(n) for n in names if is_gripper(n)})
    to_or_from_rad = (source == "rad") != (spec.target == "rad")
    if grippers and to_or_from_rad and not spec.gripper_said:
        raise UnusableInputError(
            f"units: {', '.join(grippers)} goes from 0 to 100 outside rad. What is that in rad? "
            "Give gripper: keep (leave its values), or gripper: [rad at 0, rad at 100]."
        )
    return replace(spec, source=source)


def history_of(root: Path) -> list[Mapping[str, Any]]:
    """Return what was done to a dataset, oldest first; empty where nothing was.

    Raises:
        UnusableInputError: its record can't be read.
    """
    path = root / RECORD
    if not path.exists():
        return []
    value = read_json(path)
    if not isinstance(value, Mapping) or value.get("schema") != SCHEMA:
        raise UnusableInputError(f"{path} is not a record of gaploop edit harmonise. Restore it.")
    return list(value["history"])


def conversion(
    piece: DatasetPiece,
    spec: HarmoniseSpec,
    reference: DatasetPiece | None = None,
    rename: Mapping[str, str] | None = None,
) -> Conversion:
    """Work out what makes a dataset like `reference`, or what `spec` says where there is none.

    Raises:
        UnusableInputError: it leaves something to decide, or there is nothing to convert.
    """
    rename = rename or {}
    if reference is not None:
        both = f"{piece.info.root} --to={reference.info.root}"
        draft = derive(as_renamed(piece, rename), reference)
        for line in (*draft.impossible, *draft.undecided):
            raise UnusableInputError(
                f"{line} See all of it, and a spec to fill in: "
                f"gaploop edit harmonise {both} --dry_run"
            )
        if not draft.spec and not rename:
            raise UnusableInputError(
                f"{piece.info.root} goes with {reference.info.root} as it is."
                " Merge them with gaploop edit merge, or mix them in gaploop finetune."
            )
        spec = parse_spec(draft.spec, f"{piece.info.root}", Path())
    return resolve(spec, piece.info, piece.episodes, rename)


def as_renamed(piece: DatasetPiece, rename: Mapping[str, str]) -> DatasetPiece:
    """Return a dataset under other names of its features, before they are written."""
    return replace(piece, info=renamed(piece.info, checked_rename(piece.info.features, rename)))


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
        draft.spec["fps"] = int(b.fps) if b.fps == int(b.fps) else b.fps
    target = theirs.units
    if target not in (ours.units, ""):
        units: dict[str, Any] = {} if ours.units else {"from": UNDECIDED}
        units["to"] = target
        if not ours.units:
            draft.undecided.append(
                f"units, from: no episode of {a.root} states its units: one of "
                f"{', '.join(map(named, UNITS))}."
            )
        if "m100_100" in (ours.units, target):
            units["ranges"] = UNDECIDED
            draft.undecided.append(
                "units, ranges: the angles [deg] at -100 and 100, as {joint: [low, high]}, "
                "or a LeRobot calibration file."
            )
        grippers = [n for names in vector_names(a).values() for n in names if is_gripper(n)]
        if grippers and "rad" in (ours.units, target):
            units["gripper"] = UNDECIDED
            draft.undecided.append("units, gripper: keep, or [rad at 0, rad at 100].")
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
