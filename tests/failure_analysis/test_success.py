"""Success by the last pictures: learned from labels, measured where it wasn't, refused else."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from gaploop.collect.journal import FrameRow, JournalWriter
from gaploop.collect.rollout import Attempts, SpeedRamp
from gaploop.core import journal_format, labels
from gaploop.core.errors import UnusableInputError
from gaploop.core.files import uuid7
from gaploop.core.journal_format import TakeHeader, after_path, read_take, take_folders
from gaploop.core.messages import Image
from gaploop.core.station import Station
from gaploop.core.take import TakeInfo
from gaploop.core.vocabulary import Domain, Outcome
from gaploop.datasets.labels import open_labelled
from gaploop.failure_analysis.success import (
    SuccessDetector,
    as_json,
    learn,
    load_detector,
    success_path,
    told,
)
from gaploop.failure_analysis.views.pictures import picture_png
from gaploop.scripts.cli import main

STATION = Station("bench")
SIZE = 96
SPEC = {"top": {"width": SIZE, "height": SIZE, "fps": 20.0, "codec": "h264"}}
RED, BLUE = (220, 30, 20), (20, 75, 215)
BROWN, GREEN = (110, 70, 40), (60, 150, 70)


def picture(
    place_px: tuple[int, int], goal_px: tuple[int, int], thing: object, goal: object
) -> Image:
    """Return a table with a square beside or on a disc."""
    row, column = np.mgrid[:SIZE, :SIZE]
    image = np.full((SIZE, SIZE, 3), (190, 180, 170), np.uint8)
    image[(row - goal_px[0]) ** 2 + (column - goal_px[1]) ** 2 < 12**2] = goal
    top, left = place_px
    image[top - 4 : top + 4, left - 4 : left + 4] = thing
    return image


def write(
    journal: Path, succeeds: bool, seed: int, thing: object = RED, goal: object = BLUE,
    outcome: Outcome | None = None, task: str = "t", is_hidden: bool = False,
) -> str:  # fmt: skip
    """Seal an episode whose last pictures show the square on the disc, or away from it.

    Where an arm has hidden it, only the picture does that was taken once it was gone.
    """
    draw = np.random.default_rng([seed, succeeds])
    at = draw.integers(30, SIZE - 30, 2)
    turn = draw.uniform(0, 2 * np.pi)
    away = (23 * np.array([np.sin(turn), np.cos(turn)])).astype(int)
    end = at + draw.integers(-3, 4, 2) if succeeds else at + away
    info = TakeInfo(uuid7(), task, 20.0, domain=Domain.SIM_TARGET, station="bench")
    with JournalWriter(journal, TakeHeader(replace(info, joint_names=("j",)), (), SPEC)) as writer:
        for k in range(14):
            place = at + away if k < 2 else end
            shown = picture(tuple(place), tuple(at), thing, goal)
            if is_hidden and k > 5:
                shown[:] = 40
            q = np.zeros(1)
            row = FrameRow(k / 20, q, q, q, np.empty(0), False, 0, {"top": 0.01}, {"top": shown})
            writer.frame(row)
        writer.seal(outcome or (Outcome.SUCCESS if succeeds else Outcome.FAILURE))
    if is_hidden:
        after = picture_png(picture(tuple(end), tuple(at), thing, goal))
        after_path(journal / info.uid, "top").write_bytes(after)
    return info.uid


def recorded(journal: Path, count: int = 24, **looks: object) -> Path:
    for seed in range(count // 2):
        for succeeds in (True, False):
            write(journal, succeeds, seed, **looks)  # type: ignore[arg-type]
    return journal


def learned(journal: Path, station: Station = STATION) -> SuccessDetector:
    store = open_labelled(journal)
    return learn(store, store.episodes, station)


@pytest.fixture(scope="module")
def journal(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return recorded(tmp_path_factory.mktemp("success") / "journal")


def test_object_and_target_in_the_stations_colours_tell_it(journal: Path, tmp_path: Path) -> None:
    found = learned(journal)
    assert (found.how, found.failures, found.successes) == ("tracked", 12, 12)
    assert found.false_successes + found.false_failures <= 1
    assert found.false_success.high > 0.2, "twelve don't show much, whatever they say"
    for succeeds, outcome in ((True, "success"), (False, "failure")):
        write(tmp_path / "new", succeeds, 99, outcome=Outcome.UNLABELLED)
        said = found.label(read_take(take_folders(tmp_path / "new")[-1]))
        assert (said.value, said.source) == (outcome, "auto")
        assert "of 12 failures it calls" in said.note
    write(tmp_path / "new", True, 99, task="another")
    with pytest.raises(UnusableInputError, match="learned for the task 't', and this is 'another'"):
        found.label(read_take(take_folders(tmp_path / "new")[-1]))


def test_where_nothing_is_tracked_colours_side_by_side_tell_it(tmp_path: Path) -> None:
    found = learned(recorded(tmp_path / "journal", 40, thing=BROWN, goal=GREEN))
    assert found.how == "pictures"
    assert found.false_successes + found.false_failures <= 4


def test_what_the_arm_hides_is_told_once_it_is_out_of_the_way(tmp_path: Path) -> None:
    """In the cell the arm hangs over the disc as an attempt ends: nearly half went wrong."""
    found = learned(recorded(tmp_path / "journal", is_hidden=True))
    assert found.after
    assert found.false_successes + found.false_failures <= 1
    uid = write(tmp_path / "journal", True, 99, outcome=Outcome.UNLABELLED, is_hidden=True)
    assert found.label_of(tmp_path / "journal" / uid).value == "success"
    after_path(tmp_path / "journal" / uid, "top").unlink()
    with pytest.raises(UnusableInputError, match=r"didn't go there: use --reset=script"):
        found.label_of(tmp_path / "journal" / uid)


def test_labels_by_chance_teach_nothing(journal: Path) -> None:
    store = open_labelled(journal)
    draw = np.random.default_rng(1)
    won = draw.permutation(np.repeat([True, False], len(store.episodes) // 2))
    rows = [
        replace(row, outcome=Outcome.SUCCESS if w else Outcome.FAILURE)
        for row, w in zip(store.episodes, won, strict=True)
    ]
    with pytest.raises(UnusableInputError, match="don't show success here, no better than chance"):
        learn(store, rows, STATION)
    few = [row for row in rows if row.outcome is Outcome.FAILURE]
    with pytest.raises(UnusableInputError, match=r"here are 0 and 12\. Label more"):
        learn(store, few, STATION)
    with pytest.raises(UnusableInputError, match="was recorded at bench"):
        learned(journal, Station("other"))


def test_it_is_written_beside_the_station_and_never_used_unmeasured(
    journal: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "lab.yaml"
    file.write_text("name: bench\n")
    assert load_detector(file, STATION) is None
    assert main(["label", str(journal), f"--success_detector={file}", "--json"]) == 0
    said = json.loads(capsys.readouterr().out)
    assert (said["how"], said["file"]) == ("tracked", str(tmp_path / "lab.success.json"))
    found = load_detector(file, STATION)
    assert found == learned(journal)
    with pytest.raises(UnusableInputError, match="measured at bench; this is other"):
        load_detector(file, Station("other"))
    form = as_json(found)
    unmeasured = [{**form, "failures": 0}, {**form, "false_successes": 12, "false_failures": 6}]
    for damaged in (*unmeasured, {**form, "weights": [1.0, 2.0]}, {"schema": form["schema"]}, []):
        success_path(file).write_text(json.dumps(damaged))
        with pytest.raises(UnusableInputError, match=r"Measure it: gaploop label DATASET --succ"):
            load_detector(file, STATION)


def test_a_persons_word_counts_and_the_detectors_own_teach_nothing(
    journal: Path, tmp_path: Path
) -> None:
    found = learned(journal)
    write(tmp_path / "attempt" / "takes_journal", True, 7, outcome=Outcome.UNLABELLED)
    assert told(found, tmp_path / "attempt")
    (event,) = labels.read(tmp_path / "attempt" / "takes_journal" / journal_format.LABELS)
    assert (event.author, event.source, event.value) == ("success_detector", "auto", "success")
    store = open_labelled(tmp_path / "attempt" / "takes_journal")
    store.say([replace(event, source="operator", author="ana", value="failure", note="")])
    assert not told(found, tmp_path / "attempt")

    again = recorded(tmp_path / "again", 20)
    uids = [write(again, True, 50 + k, outcome=Outcome.UNLABELLED) for k in range(3)]
    open_labelled(again).say([replace(event, uid=uid) for uid in uids])
    assert learned(again).successes == 10
    with pytest.raises(UnusableInputError, match="holds no dataset or journal"):
        told(found, again)


def test_an_attempt_that_nobody_judges_is_labelled_as_it_is_sealed(
    journal: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    attempts = Attempts(SpeedRamp(tmp_path, "p", 1.0))
    detect: Callable[[Path], None] = attempts._detect
    uid = write(tmp_path / "journal", True, 7, outcome=Outcome.UNLABELLED)
    detect(tmp_path / "journal" / uid)
    assert not attempts.detected, "nothing tells it here"
    attempts.detector = learned(journal).label_of
    detect(tmp_path / "journal" / uid)
    assert attempts.detected == {uid: Outcome.SUCCESS}
    assert open_labelled(tmp_path / "journal").episodes[0].outcome is Outcome.SUCCESS
    other = write(tmp_path / "journal", True, 8, outcome=Outcome.UNLABELLED, task="another")
    detect(tmp_path / "journal" / other)
    assert other not in attempts.detected
    assert "Success can't be told" in caplog.text


def test_a_gate_runs_without_anybody_and_says_what_wrong_labels_cost(
    journal: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    station, suite, drive = (tmp_path / name for name in ("lab.yaml", "suite.yaml", "drive.sh"))
    station.write_text("name: bench\n")
    suite.write_text(
        "name: s\nrules: {gain: 0.6, baseline_rate: 0.2, retrain_sd: 0}\n"
        "tasks: [{task: t, success_check: script, min_pass_rate: 0.5}]\n"
    )
    for succeeds in (True, False):
        folder = tmp_path / ("won" if succeeds else "lost")
        write(folder, succeeds, 3, outcome=Outcome.UNLABELLED)
    drive.write_text(
        f'if grep -q keypoint "$1/config.json"; then cp -r {tmp_path}/won "$2/takes_journal"\n'
        f'else cp -r {tmp_path}/lost "$2/takes_journal"; fi\n'
    )
    command = [
        "gate", "--baseline=base", "--candidate=base_vision", f"--suite={suite}", "--json",
        f"--output_dir={tmp_path / 'gate'}", f"--command=bash {drive} {{policy}} {{out}}",
        f"--station={station}", "--reset=script",
    ]  # fmt: skip
    assert main([*command, f"--output_dir={tmp_path / 'unmeasured'}"]) == 2
    assert "gaploop label DATASET --success_detector=FILE" in capsys.readouterr().err
    success_path(station).write_text(json.dumps(as_json(learned(journal))))
    assert main(command) == 0
    out, err = capsys.readouterr()
    assert "Success is told by the last pictures (tracked): of 12 failures" in err
    assert "times the attempts of labels that are right" in err
    assert "Success told by pictures, tracked: of 12 failures" in json.loads(out)["evidence"]
