"""What an export to LeRobot's older layout keeps to, whatever happens meanwhile."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from gaploop.collect.withdrawal import withdraw
from gaploop.core import consent, labels
from gaploop.core.consent import Use, new_id
from gaploop.core.errors import UnusableInputError
from gaploop.core.vocabulary import Domain, Outcome
from gaploop.datasets import staging
from gaploop.datasets.formats import lerobot_v2
from gaploop.datasets.formats.lerobot_v2 import export_v21
from gaploop.datasets.formats.new_dataset import exported_features
from gaploop.datasets.lerobot_publish import publish, publish_takes
from gaploop.scripts.cli import main

JOINTS = ("shoulder_pan", "shoulder_lift", "elbow_flex", "wrist_flex", "wrist_roll", "gripper")
FRAMES = (7, 5, 6)


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("formats")


@pytest.fixture
def dataset(store: Path, write_take: Callable[..., str]) -> Path:
    """Three takes with two cameras, telemetry, labels and dimensions; made once."""
    root = store / "set"
    if not root.exists():
        for k, frames in enumerate(FRAMES):
            uid = write_take(
                store / "journal",
                frames,
                Outcome.SUCCESS if k else Outcome.FAILURE,
                code=50 * k,
                joints=JOINTS,
                cameras=("overhead", "wrist"),
                task=f"Task {k % 2}",
                dimensions={"contact_dynamics": 0.7} if k == 1 else {},
                domain=Domain.SIM,
                conditions={"distractors": k},
            )
            if k == 0:
                event = labels.LabelEvent(uid, "failure_mode", "slip", "ana", "engineer")
                labels.append(store / "journal" / "labels.jsonl", event)
        publish(store / "journal", root, "me/set")
    return root


def test_a_failed_export_leaves_nothing(dataset: Path, tmp_path: Path) -> None:
    broken = Path(shutil.copytree(dataset, tmp_path / "set"))
    next((broken / "videos").rglob("*.mp4")).unlink()
    with pytest.raises(UnusableInputError, match=r"video of .* is missing"):
        export_v21(broken, tmp_path / "out")
    assert [p.name for p in tmp_path.iterdir()] == ["set"]


def test_two_exports_to_one_output_do_not_disturb_each_other(
    dataset: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(staging, "LOCK_WAIT_S", 0.0)
    output = tmp_path / "out"
    refused: list[BaseException | None] = []

    def second() -> None:
        with ThreadPoolExecutor(1) as pool:
            refused.append(pool.submit(export_v21, dataset, output).exception())

    export_v21(dataset, output, advance=second)
    assert [type(error) for error in refused] == [staging.BusyError] * len(FRAMES)
    assert len((output / "meta" / "episodes.jsonl").read_text().splitlines()) == len(FRAMES)
    assert list(tmp_path.iterdir()) == [output]


def test_an_output_that_appears_meanwhile_is_not_touched(
    dataset: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    output = tmp_path / "out"

    def slow(*given: Any) -> Any:
        found = exported_features(*given)
        output.write_text("theirs")  # by another export, which held the lock
        return found

    monkeypatch.setattr(lerobot_v2, "exported_features", slow)
    with pytest.raises(UnusableInputError, match="exists"):
        export_v21(dataset, output)
    assert output.read_text() == "theirs"


@pytest.mark.parametrize(
    ("argv", "says"),
    [
        (["--to=csv2", "--output_dir=x"], "Unknown format 'csv2'"),
        (["--to=lerobot_v21"], "Convert to where?"),
        (["--to=lerobot_v21", "--output_dir=x", "--fps=3"], "--fps is for what is read"),
        (["--to=lerobot_v21", "--output_dir=x", "--drop_videos=true"], "--drop_videos is for"),
        (["--to=aloha", "--output_dir=x"], "Unknown format 'aloha'"),
    ],
)
def test_wrong_exports_are_refused_in_one_line(
    argv: list[str], says: str, dataset: Path, capsys: Any
) -> None:
    assert main(["convert", str(dataset), *argv]) == 2
    (line,) = capsys.readouterr().err.strip().splitlines()
    assert says in line


def test_people_have_to_agree_to_a_copy(
    tmp_path: Path, write_take: Callable[..., str], monkeypatch: pytest.MonkeyPatch
) -> None:
    register, id_ = tmp_path / "consents.jsonl", new_id()
    expires = datetime.now(UTC).date() + timedelta(days=9)
    consent.add(register, id_, expires, frozenset(Use))
    write_take(tmp_path / "journal", 3, consent=id_)
    monkeypatch.setenv("GAPLOOP_CONSENTS", str(register))
    publish_takes(tmp_path / "journal", tmp_path / "set", "me/set")
    export_v21(tmp_path / "set", tmp_path / "a")
    places = consent.load_register(register).places[id_]
    assert str(tmp_path / "a") in {place.where for place in places}
    monkeypatch.setenv("GAPLOOP_CONSENTS", str(tmp_path / "other.jsonl"))
    with pytest.raises(UnusableInputError, match=id_):
        export_v21(tmp_path / "set", tmp_path / "b")
    assert not (tmp_path / "b").exists()
    argv = ["convert", str(tmp_path / "a"), f"--output_dir={tmp_path / 'back'}"]
    monkeypatch.setenv("GAPLOOP_CONSENTS", str(register))
    assert main(argv) == 0  # a copy again, in the same register
    places = consent.load_register(register).places[id_]
    assert str(tmp_path / "back") in {place.where for place in places}

    def leave() -> None:
        consent.withdraw(register, id_)

    with pytest.raises(UnusableInputError, match="withdrawn"):  # during the export
        export_v21(tmp_path / "set", tmp_path / "c", advance=leave)
    assert not [p for p in tmp_path.iterdir() if p.name in ("c", ".c.part")]
    report = withdraw(register, id_, remove=True)
    assert {str(tmp_path / name) for name in ("a", "c")} <= {
        place.where for place in report.unreached
    }
    assert str(tmp_path / "back") in {place.where for place in report.found}
