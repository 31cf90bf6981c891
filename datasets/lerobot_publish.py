"""Journal to LeRobot v3 dataset: idempotent, appending, and safe to kill at any instant."""

import contextlib
import logging
import shlex
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Final

import numpy as np

from gaploop.core import journal_format, labels
from gaploop.core.consent import Place, Use, refusal_at
from gaploop.core.errors import UnusableInputError
from gaploop.core.files import existing_folder, read_content
from gaploop.core.journal_format import TakeHeader, read_end, read_header, read_take, take_folders
from gaploop.core.statistics import from_stated
from gaploop.core.take import Take
from gaploop.core.vocabulary import Outcome, TakeKind
from gaploop.datasets import columns, episodes_table, layout, staging
from gaploop.datasets.differences import Profile, profile, require_same
from gaploop.datasets.formats.new_dataset import NewDataset
from gaploop.datasets.telemetry_zarr import telemetry_path, write_telemetry
from gaploop.datasets.video import verify

logger = logging.getLogger(__name__)

PUBLISHED: Final = (Outcome.SUCCESS, Outcome.FAILURE, Outcome.UNLABELLED)
"""Outcomes that go into a dataset; discarded and interrupted episodes stay in the journal."""
_FIX: Final = "Publish to another folder with --dataset.root."


@dataclass(frozen=True)
class PublishReport:
    """What a publish did.

    Attributes:
        published: uids added now, in order of episode.
        present: takes of the journal that the dataset already had.
        skipped: outcome to number of takes left out because of it; `unsealed`, `no_consent` and
            `probe`, a station check, among them.
        refused: uid to the reason why a take can't be published.
        labels: label events added now.
        withheld: uid to the reason why there is no valid consent.
    """

    published: tuple[str, ...] = ()
    present: int = 0
    skipped: Mapping[str, int] = field(default_factory=dict)
    refused: Mapping[str, str] = field(default_factory=dict)
    labels: int = 0
    withheld: Mapping[str, str] = field(default_factory=dict)


def publish(journal: Path, root: Path, _repo_id: str = "") -> int:
    """Publish as `publish_takes` does; return how many takes were new."""
    return len(publish_takes(journal, root).published)


def publish_takes(
    journal: Path,
    root: Path,
    _repo_id: str = "",
    *,
    on_take: Callable[[int, int], None] | None = None,
    hook: staging.Hook = staging.no_hook,
) -> PublishReport:
    """Publish what is new in `journal` to the dataset at `root`.

    Takes in which people take part stay in the journal unless their consent to publishing is
    valid today.

    Args:
        root: dataset folder; created, or appended to after a compatibility check.
        on_take: called with (takes done, takes to do).

    Raises:
        UnusableInputError: no journal there, a root with other fps, joints or features than all
            takes, or a folder that can't be written. Nothing is changed then.
    """
    journal, root = Path(journal).absolute(), Path(root).absolute()
    existing_folder(journal, "Journal")
    if not journal_format.is_journal(journal):
        raise UnusableInputError(
            f"{journal} holds no episodes. Record some with: gaploop record --journal={journal}"
        )
    inside = journal.resolve().is_relative_to(root.resolve())
    if inside or root.resolve().is_relative_to(journal.resolve()):
        raise UnusableInputError(
            f"Journal {journal} and dataset {root} lie inside each other. Keep them side by side."
        )
    foreign = root.is_dir() and any(root.iterdir()) and not layout.is_dataset(root)
    if root.exists() and (foreign or not root.is_dir()):
        raise UnusableInputError(f"{root} exists and is not a LeRobot dataset. {_FIX}")
    with staging.locked(root):
        staging.recover(root)
        known: set[str] = set()
        if layout.is_dataset(root):
            rows = layout.episode_rows(root)
            lacking = [n for n in columns.EPISODE_COLUMNS if rows and n not in rows[0]]
            if lacking and columns.TAKE in layout.read_info(root).features:
                raise UnusableInputError(
                    f"{root / layout.EPISODES} has lost {', '.join(lacking[:3])}, as by an edit "
                    f"tool. Bring it back: gaploop check {shlex.quote(str(root))} "
                    f"--fix --labels_from={shlex.quote(str(journal))}"
                )
            known = {str(row.get("gap_uid") or "") for row in rows} - {""}
        said = labels.current(labels.read(journal / journal_format.LABELS))
        present, skipped = 0, Counter[str]()
        folders: list[tuple[Path, TakeHeader]] = []
        for folder in take_folders(journal):
            header, end = read_header(folder), read_end(folder)
            if header.info.uid in known:
                present += 1
            elif header.info.kind is TakeKind.PROBE:
                skipped[TakeKind.PROBE.value] += 1
            elif end is None:
                skipped["unsealed"] += 1
            elif (word := said.get(header.info.uid, {}).get("outcome", end.outcome)) in PUBLISHED:
                folders.append((folder, header))
            else:
                skipped[str(word)] += 1
        place, withheld = Place("dataset", str(root)), dict[str, str]()
        for _, header in folders:  # whose participants haven't agreed, or not any more
            reason = refusal_at(None, header.info, Use.PUBLISH, place)
            if reason:
                withheld[header.info.uid] = reason
        if withheld:
            skipped["no_consent"] = len(withheld)
            folders = [pair for pair in folders if pair[1].info.uid not in withheld]
        report = PublishReport((), present, dict(skipped), withheld=withheld)
        unfit = _unfit(root, [header for _, header in folders])
        for uid, why in unfit.items():
            logger.warning("Episode %s is not published: %s", uid, why)
        folders = [pair for pair in folders if pair[1].info.uid not in unfit]
        new = episodes_table.new_events(journal, root, known | {h.info.uid for _, h in folders})
        if not folders and not new:
            return report
        stage, first = staging.sibling(root, "staging"), 0
        if layout.is_dataset(root):
            staging.clone(root, stage)
            first = layout.read_info(root).total_episodes
        hook("cloned")
        with contextlib.ExitStack() as opened:
            added, refused = _write(stage, folders, said, on_take, hook, opened)
        uids = tuple(str(row["gap_uid"]) for row in added)
        if added or layout.is_dataset(root):
            episodes_table.publish_events(journal, stage, new, folders)
            episodes_table.materialise(stage, dict(enumerate(added, first)))
            hook("columns written")
            truth, copy = journal / journal_format.TRUTH, stage / journal_format.TRUTH
            if truth.exists():
                have = set(read_content(copy).split(b"\n")) if copy.exists() else set()
                held = known.union(uids)
                with copy.open("ab") as stream:
                    for line in read_content(truth).split(b"\n"):
                        if line not in have and labels.is_about(line, held):
                            stream.write(line + b"\n")
            staging.commit(stage, root, hook)
        return replace(report, published=uids, refused={**unfit, **refused}, labels=len(new))


def _unfit(root: Path, headers: Sequence[TakeHeader]) -> dict[str, str]:
    """Return takes that don't fit the dataset at `root`, or without one the first, uid to why.

    Raises UnusableInputError where none fits.
    """
    shapes, unfit = [Profile.of_take(header) for header in headers], dict[str, str]()
    if headers and layout.is_dataset(root):
        there = layout.read_info(root)
        shapes.insert(0, profile(there, layout.read_episodes(there)))
    for header, shape in zip(headers, shapes[len(shapes) - len(headers) :], strict=True):
        try:
            if shape.fps != int(shape.fps):
                raise UnusableInputError(
                    f"{shape.where} has {shape.fps:g} fps; LeRobot needs a whole number. Record "
                    "at one."
                )
            require_same(shapes[0], shape, _FIX)
        except UnusableInputError as error:
            unfit[header.info.uid] = str(error)
            if len(unfit) == len(headers):
                raise
    return unfit


def refusal(take: Take) -> str:
    """Say why a sealed take can't be an episode; "" where it can."""
    frames = take.frames
    if not len(frames):
        return "it has telemetry only, no frames"
    for name, values in (
        ("observation.state", frames.state),
        ("observation.environment_state", frames.environment_state),
        ("gap.sent", frames.sent),
    ):
        bad = ~np.isfinite(values).all(axis=1)
        if bad.any():
            return f"{name} is not finite in {int(bad.sum())} frames, first at {int(bad.argmax())}"
    return ""


def _write(
    stage: Path,
    folders: Sequence[tuple[Path, TakeHeader]],
    said: Mapping[str, Mapping[str, Any]],
    on_take: Callable[[int, int], None] | None,
    hook: staging.Hook,
    opened: contextlib.ExitStack,
) -> tuple[list[dict[str, Any]], dict[str, str]]:
    """Append takes to the dataset at `stage`; return their episode columns, and those refused.

    What keeps one take out doesn't keep the others out. `opened` closes what an error leaves open.
    """
    rows: list[dict[str, Any]] = []
    refused: dict[str, str] = {}
    writer = None
    for number, (folder, header) in enumerate(folders):
        if on_take is not None and number:
            on_take(number, len(folders))
        info = header.info
        try:
            journal_format.require_as_sealed(folder)
            take = read_take(folder, said)
            for camera in (*take.cameras, *take.depth):
                verify(journal_format.camera_path(folder, camera), len(take.frames))
            at = {
                f"{columns.IMAGES}{c}": journal_format.camera_path(folder, c) for c in take.cameras
            }
            reason = refusal(take)
            frames = columns.frame_columns(take, header.observed) if not reason else {}
        except UnusableInputError as error:
            reason = str(error)
        if reason:
            logger.warning("Episode %s is not published: %s", info.uid, reason)
            refused[info.uid] = reason
            continue
        if writer is None:
            features = columns.take_features(header)
            writer = NewDataset(stage, info.fps, info.robot_type, features)
            opened.callback(writer.abandon)
        depth = {f"{columns.IMAGES}{c}": pictures for c, pictures in take.depth.items()}
        end = read_end(folder)
        stated = end.statistics if end is not None else {}
        stats = {f"{columns.IMAGES}{c}": from_stated(stated.get(c)) for c in take.cameras}
        writer.append(take.info.task, frames, at, depth, stats)
        if len(take.telemetry):
            write_telemetry(telemetry_path(stage, take.info.uid), take.telemetry)
        rows.append(columns.episode_row(take))
        hook("take written")
    if on_take is not None and folders:
        on_take(len(folders), len(folders))
    if writer is not None:
        writer.finish()
    hook("finalized")
    return rows, refused
