"""Plain datasets, as files: what check and diagnose say of them first, and what bad input gets."""

from __future__ import annotations

import json
import shlex
import unicodedata
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from made_arms import NAMES, STATE, recording, write

from gaploop.core.errors import UnusableInputError
from gaploop.core.files import read_json, write_json
from gaploop.core.messages import FloatArray
from gaploop.core.vocabulary import GapDimension
from gaploop.datasets.absolute.examine import examine
from gaploop.datasets.absolute.findings import BELONGS
from gaploop.datasets.absolute.recording import read_recording
from gaploop.datasets.check.dataset import check
from gaploop.datasets.labels import open_labelled
from gaploop.datasets.layout import numbers
from gaploop.scripts.cli import main


def arm(offset_deg: float = 0.0, seed: int = 0) -> list[tuple[FloatArray, FloatArray]]:
    made = recording(seed, sent=lambda u, _: u + np.array([0, offset_deg, 0, 0, 0, 0]))
    return [(e.command, e.reading) for e in made.episodes]


def kinds(root: Path) -> set[str]:
    return {f.kind for f in examine(root).findings}


@pytest.mark.parametrize("scale", [1.0, 0.01, 0.0004])
def test_noise_of_a_gripper_that_stands_is_no_motion(tmp_path: Path, scale: float) -> None:
    """Incident: "gripper moves though its command never changes: 80.6 %", of 0.3 units of noise."""
    made = arm()
    for k, (command, reading) in enumerate(made):
        noise = np.random.default_rng(k).normal(0, 0.05, len(reading))
        command[:, 5], reading[:, 5] = 40.0 * scale, (40.0 + noise) * scale
    assert not kinds(write(tmp_path / "set", made))


@pytest.mark.members(2)
@pytest.mark.parametrize("key", ["action", STATE])
@pytest.mark.parametrize("sized", [True, False])
def test_plans_in_place_of_actions_are_said_to_be_so(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], key: str, sized: bool
) -> None:
    """Incident: a car's set, its rows of 30 actions each, was "damaged (ArrowNotImplementedError)".

    `edit trim` and `finetune --dry_run` ended in tracebacks.
    """
    root = write(tmp_path / "set", [(u[:60], y[:60]) for u, y in arm()])
    (path,) = (root / "data").rglob("*.parquet")
    table = pq.read_table(path)
    row = pa.list_(pa.float32(), 6) if sized else pa.list_(pa.float32())
    many = pa.array([[x] * 3 for x in table[key].to_pylist()], pa.list_(row))
    table = table.set_column(table.schema.get_field_index(key), key, many)
    frames = pa.array([*range(60)] * 10)
    pq.write_table(table.append_column("frame_index", frames), path)
    info = read_json(root / "meta/info.json")
    info["features"][key] |= {"shape": [3, 6], "names": None}
    write_json(root / "meta/info.json", info)
    assert main(["check", str(root), "--fix"]) == 0
    said = examine(root)
    assert said.untested["the arm"] == f"{key} isn't one vector a row"
    assert not {f.kind for f in said.findings}
    for outcome in ("failure", "success"):
        which = "--episodes=[0,1,2]" if outcome == "failure" else "--episodes=[3,4]"
        assert main(["label", str(root), which, f"--outcome={outcome}", "--author=x"]) == 0
    seen = ["--units=degrees"] * (key == "action") + [f"--output_dir={tmp_path / 'seen'}"]
    assert main(["diagnose", str(root), *seen]) == 0
    assert main(["edit", "trim", str(root), f"--output_dir={tmp_path / 'trimmed'}"]) == 0
    assert main(["check", str(root), str(root), "--history"]) == 0
    assert "Neither has joints to compare." in capsys.readouterr().out


def test_diagnose_needs_no_outcome(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """It ended with "None of the 6 takes has an outcome", whatever there was to see."""
    root = write(tmp_path / "set", arm(17.0))
    assert main(["diagnose", str(root)]) == 0
    said = capsys.readouterr().out
    assert "1. At rest lift stands off its command, by" in said
    assert "gaploop edit correct" in said
    assert "No episode has an outcome" in said
    page = (tmp_path / "set_diagnosis/curves.html").read_text()
    assert "lift stands off its command" in page
    assert page.count("data:image/png") == 1  # command and reading
    assert main(["diagnose", str(root), "--json"]) == 0
    answer = json.loads(capsys.readouterr().out)["absolute"]
    assert answer["sentences"][0]["kind"] == "offset"
    assert set(answer["episodes"]) == {str(n) for n in range(10)}
    assert main(["plan", str(tmp_path / "set_diagnosis")]) == 2
    assert "no episode had an outcome" in capsys.readouterr().err


@pytest.mark.members(3)
@pytest.mark.parametrize(
    ("column", "place", "kind"),
    [
        ("next.success", "last row", "bool"), ("success", "every row", "float"),
        ("is_success", "last row", "list"), ("is_failure", "every row", "bool"),
        ("next.reward", "last row", "float"), ("episode_success", "table", "bool"),
        ("next.reward", "on the way", "float"), ("next.reward", "never", "float"),
    ],
)  # fmt: skip
def test_what_a_column_says_of_the_outcome_is_taken_over_by_the_commands_printed(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], column: str, place: str, kind: str
) -> None:
    """Environments of LeRobot write `next.success`: nobody need look at those episodes again.
    Others' flags and rewards were passed over."""
    root = write(tmp_path / "my set", arm(17.0))
    (file,) = root.glob("meta/episodes/*/*" if place == "table" else "data/*/*.parquet")
    table = pq.read_table(file)
    episode = table["episode_index"].to_numpy()
    said = np.isin(episode, (1, 4)) != ("fail" in column)
    if place == "last row":
        said = said & np.r_[np.diff(episode) > 0, True]
    values = said.astype(float) * {"on the way": 0.4, "never": 0.0}.get(place, 1.0)
    if kind == "bool":
        values = said
    array = pa.array([[v] for v in values.tolist()] if kind == "list" else values)
    pq.write_table(table.append_column(column, array), file)
    if place != "table":
        info = read_json(root / "meta/info.json")
        info["features"][column] = {"dtype": "float32", "shape": [1], "names": None}
        write_json(root / "meta/info.json", info)
    assert main(["diagnose", str(root)]) == 0
    out = capsys.readouterr().out
    if place in ("on the way", "never"):
        assert "went well" not in out
        return
    assert f"{column} says that 2 of 10 went well" in out
    typed = [shlex.split(line) for line in out.splitlines() if line.startswith("  gaploop label")]
    assert [main(words[1:]) for words in typed] == [0, 0]
    outcomes = [str(e.outcome) for e in open_labelled(root).episodes]
    assert [n for n, outcome in enumerate(outcomes) if outcome == "success"] == [1, 4]
    assert outcomes.count("failure") == 8


def test_check_fails_on_what_is_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    root = write(tmp_path / "set", arm(17.0))
    main(["check", str(root), "--json"])
    plain = json.loads(capsys.readouterr().out)
    assert plain["sentences"][0]["about"] == "lift"
    assert main(["check", str(root), "--fail_on=[offset]"]) == 1
    assert main(["check", str(root), "--fail_on=[ofset]"]) == 2
    assert "Did you mean 'offset'" in capsys.readouterr().err


def test_radians_and_degrees_say_the_same(tmp_path: Path) -> None:
    values = arm(17.0)
    degrees = write(tmp_path / "deg", values)
    radians = write(tmp_path / "rad", [(np.radians(u), np.radians(y)) for u, y in values])
    first, second = (examine(root).findings for root in (degrees, radians))
    assert [f.kind for f in first] == [f.kind for f in second] == ["offset"]
    assert first[0].estimate.value == pytest.approx(second[0].estimate.value, rel=0.01)


def test_one_task_in_two_wordings_and_episodes_that_are_none(tmp_path: Path) -> None:
    values = arm()
    values[3] = tuple(x[:1] for x in values[3])  # type: ignore[assignment]
    values[5] = tuple(np.repeat(x[:1], 60, axis=0) for x in values[5])  # type: ignore[assignment]
    noise = np.random.default_rng(0).normal(0, 20, (90, 6))
    values[7] = (noise, noise)
    tasks = ["Stack the cups"] * 9 + ["Stack the cups."]
    report = examine(write(tmp_path / "set", values, tasks))
    found = {f.kind: f.episodes for f in report.findings}
    assert found["short_episode"] == (3,)
    assert found["motionless"] == (5,)
    assert found["noise_episode"] == (7,)
    assert found["task_wording"] == (9,)
    assert report.flags()["9"] == ["task_wording:Stack the cups"]


def test_joints_that_were_never_recorded_are_no_arm_that_was_off(tmp_path: Path) -> None:
    """Films with zeros for joints were to be recorded again."""
    zeros = [(np.zeros((90, 6)), np.zeros((90, 6))) for _ in range(4)]
    (found,) = examine(write(tmp_path / "set", zeros)).findings
    assert found.kind == "motionless"
    assert "without joints" in found.not_told_apart
    assert found.command.startswith("If no joints were recorded")


def test_idle_starts_and_long_pauses(tmp_path: Path) -> None:
    def waiting(x: FloatArray) -> FloatArray:
        return np.concatenate([np.repeat(x[:1], 120, axis=0), x])

    def pausing(x: FloatArray) -> FloatArray:
        return np.concatenate([x[:100], np.repeat(x[100:101], 180, axis=0), x[100:]])

    assert "idle_start" in kinds(write(tmp_path / "a", [tuple(map(waiting, e)) for e in arm()]))
    assert "pause" in kinds(write(tmp_path / "b", [tuple(map(pausing, e)) for e in arm()]))


@pytest.mark.parametrize("commands", ["radians", "a tool's steps"])
def test_an_arm_that_moves_holds_not_still_whatever_its_commands_are(
    tmp_path: Path, commands: str
) -> None:
    """Beside joints, commands in radians hardly change; of a tool's only the gripper is a joint."""
    changed = []
    for told, read in arm():
        if commands == "radians":
            told = np.radians(told)
        else:
            told = np.diff(told, axis=0, append=told[-1:]) / 100
            told[:, 5] = read[:, 5] = np.arange(len(read)) > 30
        changed.append((told, read))
    assert not kinds(write(tmp_path / "set", changed)) & {"pause", "idle_start"}


def test_readings_that_are_no_degrees_are_not_measured_as_such(tmp_path: Path) -> None:
    """A Piper's driver gives thousandths of a degree."""
    report = examine(write(tmp_path / "set", [(1e3 * u, 1e3 * y) for u, y in arm(17.0)]))
    assert not report.findings
    assert "no degrees" in report.untested["the arm"]


def test_one_wording_in_two_encodings_is_told(tmp_path: Path) -> None:
    task = "Stelle den Würfel auf die Fläche"
    tasks = [unicodedata.normalize("NFD" if k > 7 else "NFC", task) for k in range(10)]
    (found,) = examine(write(tmp_path / "set", arm(), tasks)).findings
    assert (found.kind, found.episodes) == ("task_wording", (8, 9))
    assert "accents" in found.sentence


@pytest.mark.parametrize("joints", [1, 3])
def test_both_arms_calibrated_anew_midway(tmp_path: Path, joints: int) -> None:
    """One change is one sentence: a humanoid's hand, opened, took five of the seven."""
    values = arm()
    for n, (u, y) in enumerate(values):
        for k in range(joints):
            step = 10 + (30.0 - 3 * k if n >= 6 else 0.0)
            u[:, k] += step - u[0, k]
            y[:, k] += step - y[0, k]
    found = examine(write(tmp_path / "set", values)).findings
    assert [(f.kind, f.about, f.episodes) for f in found] == [
        ("start_change", "base_pan", (6, 7, 8, 9))
    ]
    assert found[0].estimate.value == pytest.approx(30.0, abs=0.5)
    assert ("and 2 other joints start" in found[0].sentence) == (joints == 3)


def test_a_leader_of_another_make_is_paired_by_motion(tmp_path: Path) -> None:
    """Names and number differ; only the gripper has the same name."""
    values = [(u, np.insert(y, 3, 7.0, axis=1)) for u, y in arm()]
    root = write(tmp_path / "set", values, names=("a", "b", "c", "d", "e", "gripper", "g"))
    info = json.loads((root / "meta/info.json").read_text())
    info["features"][STATE]["names"] = [f"joint_{k}" for k in range(6)] + ["gripper.pos"]
    (root / "meta/info.json").write_text(json.dumps(info))
    pairs = [(j.action, j.state) for j in read_recording(root).joints]
    assert pairs == [(0, 0), (1, 1), (2, 2), (3, 4), (4, 5), (5, 6)]


def test_what_is_no_position_is_left_open(tmp_path: Path) -> None:
    values = [(np.diff(y, axis=0, append=y[-1:]), y) for _, y in arm()]
    report = examine(write(tmp_path / "set", values))
    assert "a change for each step" in report.untested["the arm"]
    assert not report.findings


@pytest.mark.members(4)
@pytest.mark.parametrize("side", [0, 1])
@pytest.mark.parametrize(
    ("value", "joint", "episodes", "rows", "looked_at"),
    [
        (np.nan, 2, (2,), slice(40, 45), 9),
        (np.inf, 2, (2, 5), slice(40, 41), 10),
        (np.nan, 2, tuple(range(10)), slice(None), 10),
        (-np.inf, 2, tuple(range(10)), slice(40, 41), 10),
        (np.nan, 1, (1, 3, 5), slice(0, 3), 7),
    ],
)
def test_what_is_missing_is_named_and_the_rest_is_tested(
    value: float, joint: int, episodes: tuple[int, ...], rows: slice, looked_at: int, side: int,
    tmp_path: Path,
) -> None:  # fmt: skip
    """One NaN in each episode, or a joint that wasn't read, left the whole arm untested."""
    values = arm(17.0)
    for episode in episodes:
        values[episode][side][rows, joint] = value
    root = write(tmp_path / "set", values)
    found = {f.kind: f for f in examine(root).findings}
    assert found["missing"].episodes == episodes
    name = f"{NAMES[joint]}.pos of {('action', STATE)[side]}"
    assert name in found["missing"].sentence
    assert ("record them again" in found["missing"].command) == (len(episodes) == 10)
    assert (found["offset"].about, found["offset"].of) == ("lift", looked_at)
    assert set(found) == {"missing", "offset"}
    said = next(f for f in check(root) if f.code == "not_finite")
    assert f"of {NAMES[joint]}.pos in" in said.message
    assert f"episodes {numbers(episodes)}." in said.message


def test_every_kind_is_documented_and_belongs_somewhere() -> None:
    page = Path(__file__).parents[2].joinpath("docs/start/my_policy_fails.md").read_text()
    assert [kind for kind in BELONGS if f"`{kind}`" not in page] == []
    assert set(BELONGS.values()) - set(GapDimension) == {"the deployment", "the policy", "the data"}


@pytest.mark.parametrize("damage", ["no rows", "cut", "no info", "text"])
def test_bad_input_is_one_line(tmp_path: Path, damage: str) -> None:
    root = write(tmp_path / "set", arm())
    [data] = (root / "data").rglob("*.parquet")
    if damage == "no rows":
        data.unlink()
        assert examine(root).untested["the arm"] == "it holds no rows"
        return
    if damage == "cut":
        data.write_bytes(data.read_bytes()[:500])
    elif damage == "no info":
        (root / "meta/info.json").unlink()
    else:
        table = pa.table({"episode_index": ["x"], "action": ["y"], STATE: ["z"]})
        pq.write_table(table, data)
    with pytest.raises(UnusableInputError) as error:
        examine(root)
    assert "\n" not in str(error.value)


def test_an_arm_is_judged_by_what_it_was_told_not_by_what_was_asked_of_the_filter(
    tmp_path: Path,
) -> None:
    """A safety filter's speed limit was told as one of the servo, of gaploop's own recording."""
    values, more = arm(17.0), np.array([0, 17.0, 0, 0, 0, 0])
    root, told = write(tmp_path / "set", values), np.concatenate([u + more for u, _ in values])
    assert "offset" in kinds(root)
    (file,) = root.glob("data/*/*.parquet")
    table = pq.read_table(file)
    sent = pa.FixedSizeListArray.from_arrays(pa.array(told.ravel(), pa.float32()), told.shape[1])
    pq.write_table(table.append_column("gap.sent", sent), file)
    info = json.loads((root / "meta/info.json").read_text())
    info["features"]["gap.sent"] = {**info["features"]["action"], "dtype": "float32"}
    (root / "meta/info.json").write_text(json.dumps(info))
    assert "offset" not in kinds(root)
