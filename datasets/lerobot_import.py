"""A LeRobot dataset from elsewhere: checked, cut to some episodes, given gap columns.

Where its videos are kept, files are copied (all episodes) or cut (some), encoded again only where
a video can't be cut. Where they are dropped, rows and statistics are written anew, and the
joint state is copied to `observation.environment_state`, because ACT refuses state alone.
"""

import shlex
import shutil
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Final

from gaploop.core.consent import Place, note_places
from gaploop.core.errors import UnusableInputError
from gaploop.core.files import read_json, regular_file, write_json
from gaploop.core.vocabulary import Domain, Outcome, TakeKind
from gaploop.datasets import columns, episodes_table, layout, staging
from gaploop.datasets.check.dataset import FixOptions, check, fix
from gaploop.datasets.check.description import (
    checked_rename,
    read_object,
    rename_features,
    usual_names,
)
from gaploop.datasets.check.findings import ERROR, Finding, FixDraft
from gaploop.datasets.edit.changes import ticks_to_degrees
from gaploop.datasets.edit.compose import (
    UNCHANGED,
    DatasetPiece,
    EpisodeChange,
    VideosDone,
    compose,
)
from gaploop.datasets.episodes_table import gap_row
from gaploop.datasets.formats.lerobot_v2 import is_v2, upgrade
from gaploop.datasets.formats.new_dataset import (
    About,
    Recording,
    exported_features,
    recordings,
    write_dataset,
)
from gaploop.datasets.layout import DatasetInfo, EpisodeRow
from gaploop.datasets.v3_files import EpisodeReader, matrix
from gaploop.datasets.whole_stats import complete_stats

_ABOUT_VIDEO: Final = frozenset(
    ("missing_video", "no_video_columns", "misnamed_folder", "video_too_short")
)
_REPAIRED: Final = frozenset(
    (
        *("no_gap_columns", "missing_gap_columns", "not_finite"),
        *("missing_stats", "absurd_stats", "wrong_stats"),
    )
)
"""Findings that an import may leave: it adds the columns, looks at chosen rows, and computes
statistics."""


REPORT: Final = "meta/gap/convert.json"
"""What an import left out and fixed, beside the labels."""


@dataclass(frozen=True)
class ImportOptions:
    """How to import.

    Attributes:
        drop_videos: leave pictures out and copy the joint state to environment state.
        kind: None keeps what gap columns say, else import; so do domain (else real) and outcome
            (else unlabelled).
        rename: feature to the name that it gets.
        fps: of v2.0 and v2.1, the rate that holds instead of the stated one [Hz].
        calibration: LeRobot's of each arm, where joints are encoder ticks; they become degrees.
    """

    episodes: Sequence[int] | None = None
    drop_videos: bool = False
    kind: TakeKind | None = None
    domain: Domain | None = None
    outcome: Outcome | None = None
    rename: Mapping[str, str] = field(default_factory=dict)
    fps: float | None = None
    calibration: tuple[Path, ...] = ()


@dataclass(frozen=True)
class ImportedDataset:
    """How many were imported, which are left out (of v2.0 and v2.1) and why, what was fixed."""

    episodes: int
    left_out: Mapping[int, str] = field(default_factory=dict)
    fixed: tuple[str, ...] = ()


def import_dataset(
    source: Path,
    target: Path,
    options: ImportOptions,
    on_episode: Callable[[], None] = lambda: None,
) -> ImportedDataset:
    """Write the import of `source`, of v2.0 to v3, and its report to `target`.

    Raises:
        UnusableInputError: the source is damaged or has NaN in a chosen episode, videos are
            missing and were not dropped, the target isn't empty or can't be written. Nothing
            is left at the target then.
    """
    source, target = Path(source).absolute(), Path(target).absolute()
    staging.require_new_folder(target, source)  # before what takes long
    for path in (source / "meta").rglob("*"):  # a pipe would be copied for ever
        if not path.is_dir():
            regular_file(path)
    done = list[str]()
    # What else would only be refused once all of it has been converted.
    info = read_json(source / layout.INFO) if (source / layout.INFO).is_file() else None
    features = info.get("features") if isinstance(info, dict) else None
    if isinstance(features, dict):  # else what reads it says so
        own = options.rename
        usual = {a: b for a, b in usual_names(features).items() if b not in own.values()}
        renamed = checked_rename(features, {**usual, **own})
        _require_state([renamed.get(name, name) for name in map(str, features)], source)
        if is_v2(source) or own:  # else `fix` does it
            done = [f"feature {a} → {b}" for a, b in usual.items() if a not in own]
            options = replace(options, rename={**usual, **own})
    broken = [] if is_v2(source) or options.rename else _blocking(source, options.drop_videos)
    told = list(features) if isinstance(features, dict) and is_v2(source) else columns.AUTOMATIC
    made = [name for name in columns.AUTOMATIC if name not in told]
    done += [f"{', '.join(made)}: made, as LeRobot's writer does."] if made else []
    done += [f"Rows are {options.fps:g} a second, as stated."] if options.fps else []
    done += ["Encoder ticks became degrees."] if options.calibration else []
    left_out, fixed = dict[int, str](), tuple[str, ...]()

    def report(stage: Path, count: int) -> None:
        place = {"source": str(source), "dataset": str(target), "episodes": count}
        (stage / REPORT).parent.mkdir(parents=True, exist_ok=True)
        write_json(stage / REPORT, {**place, "left_out": left_out, "fixed": [*fixed, *done]})

    if not is_v2(source) and not options.rename and not broken:
        count = _import_v3(source, target, options, on_episode, report)
        return ImportedDataset(count, {}, tuple(done))
    layout_v3 = staging.sibling(target, "v3")
    try:
        shutil.rmtree(layout_v3, ignore_errors=True)  # what a kill left
        if is_v2(source):
            videos = not options.drop_videos
            left_out = upgrade(source, layout_v3, options.episodes, videos, on_episode, options.fps)
            options, on_episode = replace(options, episodes=None), lambda: None
            here = layout.read_info(layout_v3).features
            done += [f"{name} is left out: no episode has its video." for name in features or ()
                     if name not in here]  # fmt: skip
        elif broken:  # what `check --fix` would do first
            fixed = tuple(action.what for action in fix(source, FixOptions(), layout_v3).actions)
        else:
            layout.read_info(source)
            staging.clone(source, layout_v3, follow=True)
        if options.rename:
            draft = FixDraft(layout_v3, read_object(layout_v3 / layout.INFO))
            rename_features(draft, options.rename)
        count = _import_v3(layout_v3, target, options, on_episode, report)
    except UnusableInputError as error:
        raise UnusableInputError(str(error).replace(str(layout_v3), str(source))) from None
    finally:
        shutil.rmtree(layout_v3, ignore_errors=True)
    return ImportedDataset(count, left_out, (*fixed, *done))


def _require_state(features: Collection[str], root: Path) -> None:
    if columns.STATE not in features:
        raise UnusableInputError(
            f"{root} has no {columns.STATE}. Name the feature that holds it: "
            f"--rename_map='{{THEIRS: {columns.STATE}}}'; there are {', '.join(features)}."
        )


def _blocking(source: Path, drop_videos: bool) -> list[Finding]:
    """Return the errors of a dataset that an import doesn't see to by itself."""
    found = []
    for finding in check(source):
        about_video = finding.code in _ABOUT_VIDEO or finding.where.startswith("videos/")
        if finding.severity != ERROR or finding.code in _REPAIRED:
            continue
        if not (drop_videos and (about_video or finding.code.endswith("_stats"))):
            found.append(finding)
    return found


def _import_v3(
    source: Path,
    target: Path,
    options: ImportOptions,
    on_episode: Callable[[], None],
    report: Callable[[Path, int], None],
) -> int:
    info = layout.read_info(source)
    for finding in _blocking(source, options.drop_videos):
        raise UnusableInputError(f"{source}, {finding.where}: {finding.message} {finding.fix}")
    episodes = layout.read_episodes(info, options.episodes)
    if not episodes:
        raise UnusableInputError(
            f"{source} has no episodes to import. Choose others with --episodes."
        )
    _require_state(info.features, info.root)
    said = {"kind": options.kind, "domain": options.domain, "outcome": options.outcome}
    changed = {f"gap_{name}": word.value for name, word in said.items() if word is not None}
    degrees = UNCHANGED
    if options.calibration:
        first = EpisodeReader(info, [columns.STATE]).rows_of(episodes[0])
        state = matrix(first[columns.STATE], info.width(columns.STATE))
        degrees = ticks_to_degrees(info, options.calibration, state)
        changed["gap_units"] = "deg"
    if options.drop_videos:
        about, written = _without_pictures(info, episodes, changed, degrees)
        return write_dataset(
            about,
            written,
            target,
            source,
            on_episode,
            amend=lambda stage: report(stage, len(episodes)),
        )
    about, _ = exported_features(info)
    learned = {n: about.features[n] for n in (columns.STATE, columns.ACTION)}
    for _ in recordings(info, replace(about, features=learned), episodes, whole=False):
        pass  # it refuses what isn't finite
    with staging.new_folder(target, source):
        note_places((e.info for e in episodes), Place("dataset", str(target)))
        stage = staging.sibling(target, "staging")
        if len(episodes) == info.total_episodes and degrees is UNCHANGED:
            shutil.copytree(info.root, stage)
            complete_stats(layout.parse_info(stage))
        else:
            chosen = DatasetPiece.whole(info.root).only([e.index for e in episodes])
            changes = dict.fromkeys(chosen.chosen, degrees)
            chosen = replace(chosen, changes=changes if degrees is not UNCHANGED else {})
            compose([chosen], stage, VideosDone(), reencode=True)
        rows = {k: {**gap_row(e), **changed} for k, e in enumerate(episodes)}
        episodes_table.materialise(stage, rows)
        report(stage, len(episodes))
        staging.commit(stage, target)
    return len(episodes)


def _without_pictures(
    info: DatasetInfo,
    episodes: list[EpisodeRow],
    changed: Mapping[str, str],
    degrees: EpisodeChange,
) -> tuple[About, Iterator[Recording]]:
    """Return episodes without pictures, their state copied to an environment state they lack."""
    about, _ = exported_features(info)
    kept = [name for name in about.numbers if not name.startswith(columns.CAMERA_AGE)]
    bare = {name: about.features[name] for name in kept}
    known = (*about.features, *columns.AUTOMATIC, *info.picture_keys)
    odd = [name for name in info.features if name not in known]
    if odd:
        raise UnusableInputError(
            f"{info.root}: without pictures only numbers and vectors can be written. Remove "
            f"{', '.join(odd)} first: lerobot-edit-dataset --repo_id=me/it "
            f"--root={shlex.quote(str(info.root))} --operation.type=remove_feature "
            f"--operation.feature_names='[{', '.join(odd)}]'"
        )
    features = dict(bare)
    if columns.ENVIRONMENT not in bare:
        names = list(info.names(columns.STATE))
        features[columns.ENVIRONMENT] = {**bare[columns.STATE], "names": names}

    def written() -> Iterator[Recording]:
        for r in recordings(info, replace(about, features=bare), episodes, whole=False):
            told = {
                name: (r.columns[name] - by) * degrees.scale[name]
                for name, by in degrees.subtract.items() if name in r.columns
            }  # fmt: skip
            own = {**r.columns, **told}
            values = {columns.ENVIRONMENT: own[columns.STATE], **own}
            kept = {name: values[name] for name in features}
            yield replace(r, columns=kept, row={**r.row, **changed})

    return replace(about, features=features), written()
