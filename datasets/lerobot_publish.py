"""Journal to LeRobot v3 dataset: idempotent, appending, and safe to kill at any instant."""

from __future__ import annotations

import json
import logging
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Final

import numpy as np

from gaploop.core import journal_format, labels
from gaploop.core.consent import Place, Use
from gaploop.core.consent_store import refusal_at
from gaploop.core.errors import UnusableInputError
from gaploop.core.files import existing_folder
from gaploop.core.journal_format import TakeHeader, read_end, read_header, read_take, take_folders
from gaploop.core.labels import LabelEvent
from gaploop.core.take import Take
from gaploop.core.vocabulary import Outcome, TakeKind
from gaploop.datasets import columns, episodes_table, layout, staging
from gaploop.datasets.compatible import Shape, require_same
from gaploop.datasets.labels import transfer
from gaploop.datasets.telemetry_zarr import telemetry_path, write_telemetry
from gaploop.datasets.video import verify

logger = logging.getLogger(__name__)

PUBLISHED: Final = (Outcome.SUCCESS, Outcome.FAILURE, Outcome.UNLABELLED)
"""Outcomes that go into a dataset; discarded and interrupted takes stay in the journal."""
_MEND: Final = "Publish to another folder with --dataset.root."


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
        withheld: uid to the reason why there is no valid consent to publish a take.
    """

    published: tuple[str, ...] = ()
    present: int = 0
    skipped: Mapping[str, int] = field(default_factory=dict)
    refused: Mapping[str, str] = field(default_factory=dict)
    labels: int = 0
    withheld: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class _Candidates:
    folders: tuple[tuple[Path, TakeHeader], ...]
    present: int
    skipped: Mapping[str, int]
    withheld: Mapping[str, str]


def publish(journal: Path, root: Path, repo_id: str, consents: Path | None = None) -> int:
    """Publish what is new in `journal` to the dataset at `root`; return how many takes that was.

    Raises:
        UnusableInputError: as in `publish_takes`.
    """
    return len(publish_takes(journal, root, repo_id, consents=consents).published)


def publish_takes(
    journal: Path,
    root: Path,
    repo_id: str,
    *,
    on_take: Callable[[int, int], None] | None = None,
    hook: staging.Hook = staging.no_hook,
    consents: Path | None = None,
) -> PublishReport:
    """Publish what is new in `journal` to the dataset at `root`.

    Takes in which people take part stay in the journal unless their consent to publishing is
    valid today.

    Args:
        journal: folder of takes.
        root: dataset folder; created, or appended to after a compatibility check.
        repo_id: LeRobot's name of the dataset.
        on_take: called with (takes done, takes to do).
        hook: called with the name of each step.
        consents: the consent register; the default one where None.

    Raises:
        UnusableInputError: no journal there, a root with other fps, joints or features, or a
            folder that can't be written. Nothing is changed then.
    """
    journal, root = Path(journal).absolute(), Path(root).absolute()
    _check_folders(journal, root)
    with staging.locked(root):
        staging.recover(root)
        known = _known_uids(root)
        events = labels.current(labels.read(journal / journal_format.LABELS))
        found = _with_consent(_candidates(journal, known, events), root, consents)
        _check_compatible(root, found)
        uids = known | {h.info.uid for _, h in found.folders}
        new_events = transfer.new_events(journal, root, uids)
        if not found.folders and not new_events:
            return PublishReport((), found.present, found.skipped, withheld=found.withheld)
        job = _Job(journal, root, repo_id, on_take, hook)
        return job.run(found, events, new_events)


def _check_folders(journal: Path, root: Path) -> None:
    existing_folder(journal, "Journal")
    if not journal_format.is_journal(journal):
        raise UnusableInputError(
            f"{journal} holds no takes. Record some with: gaploop record --journal={journal}"
        )
    inside = journal.resolve().is_relative_to(root.resolve())
    if inside or root.resolve().is_relative_to(journal.resolve()):
        raise UnusableInputError(
            f"Journal {journal} and dataset {root} lie inside each other. Keep them side by side."
        )
    foreign = root.is_dir() and any(root.iterdir()) and not layout.is_dataset(root)
    if root.exists() and (foreign or not root.is_dir()):
        raise UnusableInputError(f"{root} exists and is not a LeRobot dataset. {_MEND}")


def _known_uids(root: Path) -> set[str]:
    if not layout.is_dataset(root):
        return set()
    return {str(row.get("gap_uid") or "") for row in layout.episode_rows(root)} - {""}


def _candidates(
    journal: Path, known: set[str], events: Mapping[str, Mapping[str, Any]]
) -> _Candidates:
    chosen: list[tuple[Path, TakeHeader]] = []
    present, skipped = 0, Counter[str]()
    for folder in take_folders(journal):
        header, end = read_header(folder), read_end(folder)
        if header.info.uid in known:
            present += 1
        elif header.info.kind is TakeKind.PROBE:
            skipped[TakeKind.PROBE.value] += 1
        elif end is None:
            skipped["unsealed"] += 1
        else:
            said = events.get(header.info.uid, {}).get("outcome", end.outcome)
            if said in PUBLISHED:
                chosen.append((folder, header))
            else:
                skipped[str(said)] += 1
    return _Candidates(tuple(chosen), present, dict(skipped), {})


def _with_consent(found: _Candidates, root: Path, consents: Path | None) -> _Candidates:
    """Leave out takes whose participants haven't agreed, or not any more."""
    place = Place("dataset", str(root))
    reasons = {
        header.info.uid: refusal_at(consents, header.info, Use.PUBLISH, place)
        for _, header in found.folders
    }
    withheld = {uid: reason for uid, reason in reasons.items() if reason}
    if not withheld:
        return found
    kept = tuple(pair for pair in found.folders if pair[1].info.uid not in withheld)
    skipped = {**found.skipped, "no_consent": len(withheld)}
    return replace(found, folders=kept, skipped=skipped, withheld=withheld)


def _check_compatible(root: Path, found: _Candidates) -> None:
    shapes = [Shape.of_take(header) for _, header in found.folders]
    if layout.is_dataset(root):
        shapes.insert(0, Shape.of_dataset(layout.read_info(root)))
    for shape in shapes:
        if shape.fps != int(shape.fps):
            raise UnusableInputError(
                f"{shape.where} has {shape.fps:g} fps; LeRobot needs a whole number. Record at one."
            )
        require_same(shapes[0], shape, _MEND)


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


@dataclass(frozen=True)
class _Job:
    journal: Path
    root: Path
    repo_id: str
    on_take: Callable[[int, int], None] | None
    hook: staging.Hook

    def run(
        self,
        found: _Candidates,
        events: Mapping[str, Mapping[str, Any]],
        new_events: list[LabelEvent],
    ) -> PublishReport:
        stage = staging.beside(self.root, "staging")
        first = 0
        if layout.is_dataset(self.root):
            staging.clone(self.root, stage)
            first = layout.read_info(self.root).total_episodes
        self.hook("cloned")
        rows, refused = self._write(stage, found, events)
        report = PublishReport(
            tuple(str(row["gap_uid"]) for row in rows),
            found.present,
            found.skipped,
            refused,
            len(new_events),
            found.withheld,
        )
        if rows or layout.is_dataset(self.root):
            transfer.publish_events(self.journal, stage, new_events, found.folders)
            episodes_table.materialise(stage, dict(enumerate(rows, first)))
            self.hook("columns written")
            _copy_truth(self.journal, stage)
            staging.commit(stage, self.root, self.hook)
        return report

    def _write(
        self, stage: Path, found: _Candidates, events: Mapping[str, Mapping[str, Any]]
    ) -> tuple[list[dict[str, Any]], dict[str, str]]:
        rows: list[dict[str, Any]] = []
        refused: dict[str, str] = {}
        writer = None
        for number, (folder, header) in enumerate(found.folders, 1):
            take = _usable(folder, events)
            if isinstance(take, str):
                logger.warning("Take %s is not published: %s", header.info.uid, take)
                refused[header.info.uid] = take
                continue
            if writer is None:
                from gaploop.datasets.lerobot_writer import open_writer  # here: it imports torch

                info = header.info
                features = columns.frame_features(
                    info.joint_names, header.environment_state_names, header.cameras
                )
                writer = open_writer(stage, self.repo_id, info.fps, info.robot_type, features)
            videos = {
                camera: journal_format.camera_path(folder, camera) for camera in header.cameras
            }
            writer.save_take(take.info.task, columns.frame_columns(take), videos)
            if len(take.telemetry):
                write_telemetry(telemetry_path(stage, take.info.uid), take.telemetry)
            rows.append(columns.episode_row(take))
            self.hook("take written")
            if self.on_take is not None:
                self.on_take(number, len(found.folders))
        if writer is not None:
            writer.finalize()
        self.hook("finalized")
        return rows, refused


def _usable(folder: Path, events: Mapping[str, Mapping[str, Any]]) -> Take | str:
    """Read a take, or say why it can't be published; the others still are."""
    try:
        journal_format.require_as_sealed(folder)
        take = read_take(folder, events)
        for camera in take.cameras:
            verify(journal_format.camera_path(folder, camera), len(take.frames))
    except UnusableInputError as error:
        return str(error)
    return refusal(take) or take


def _copy_truth(journal: Path, stage: Path) -> None:
    source, target = journal / journal_format.TRUTH, stage / journal_format.TRUTH
    if not source.exists():
        return
    have = set(target.read_text().splitlines()) if target.exists() else set()
    uids = _known_uids(stage)
    new = [line for line in source.read_text().splitlines() if line and line not in have]
    with target.open("a") as stream:
        stream.writelines(line + "\n" for line in new if json.loads(line).get("uid") in uids)
