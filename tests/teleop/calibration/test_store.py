"""The calibration file: one id for equal content, nothing lost, nothing changed unnoticed."""

from __future__ import annotations

import json
import threading
from pathlib import Path

import numpy as np
import pytest
from calibration_makers import camera
from hypothesis import given
from hypothesis import strategies as st

from gaploop.core.clock import utc_ns
from gaploop.core.errors import UnusableInputError
from gaploop.teleop.calibration.store import (
    SCHEMA,
    calibration_id,
    calibration_path,
    load_calibration,
    save_part,
)

JSON = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**40), 2**40) | st.text(max_size=5)
    | st.floats(allow_nan=False, allow_infinity=False),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=4), inner),
    max_leaves=8,
)  # fmt: skip
MATRIX = np.eye(4).tolist()
HAND_EYE = {"setup": "eye_in_hand", "T_mount_camera": MATRIX, "T_far_board": MATRIX}


def test_a_section_of_a_former_version_is_kept_and_read_by_nothing(tmp_path: Path) -> None:
    """0.1.0 kept where joints rest in it; the file was refused once nothing wrote that any more."""
    path = tmp_path / "lab.calibration.json"
    save_part(path, ("references", "rest"), {"joints": {"elbow": 0.1}})
    save_part(path, ("cameras", "wrist", "intrinsics"), camera().to_json())
    read = load_calibration(path)
    assert read.content["references"]["rest"]["joints"] == {"elbow": 0.1}
    assert read.doubts(None) == []
    save_part(path, ("cellar", "rest"), {})
    with pytest.raises(UnusableInputError, match="section"):
        load_calibration(path)


@given(st.dictionaries(st.text(max_size=4), JSON, max_size=4))
def test_the_id_is_of_the_values_not_of_their_order(content: dict[str, object]) -> None:
    turned = dict(reversed(content.items()))
    assert calibration_id(content) == calibration_id(turned)
    assert calibration_id(json.loads(json.dumps(content))) == calibration_id(content)
    assert calibration_id({**content, "more": 1}) != calibration_id(content)


def test_parts_are_merged_and_every_version_is_kept(tmp_path: Path) -> None:
    path = tmp_path / "lab.calibration.json"
    first = save_part(path, ("cameras", "wrist", "intrinsics"), camera().to_json())
    second = save_part(path, ("cameras", "side", "intrinsics"), camera(320, 240).to_json())
    third = save_part(path, ("cameras", "wrist", "hand_eye"), HAND_EYE)
    assert len({first.id, second.id, third.id}) == 3
    read = load_calibration(path)
    assert read.id == third.id
    assert [e.id for e in read.history] == [first.id, second.id, third.id]
    assert [e.what for e in read.history][-1] == "cameras.wrist.hand_eye"
    assert np.array_equal(read.intrinsics("wrist").camera_matrix, camera().camera_matrix)
    assert read.intrinsics("side").width == 320
    assert np.array_equal(read.hand_eye("wrist").T_mount_camera, np.eye(4))
    # A take that was recorded between the two still finds what it was recorded with.
    assert calibration_id(read.history[1].content) == second.id
    assert read.history[1].content == second.content
    with pytest.raises(UnusableInputError, match="hand_eye FOLDER --camera_name=wrist"):
        second.hand_eye("wrist")


def test_an_empty_calibration_has_no_id(tmp_path: Path) -> None:
    path = tmp_path / "none.calibration.json"
    assert load_calibration(path, missing_ok=True).id == ""
    with pytest.raises(UnusableInputError, match="gaploop calibrate intrinsics"):
        load_calibration(path)


def test_a_file_changed_by_hand_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "lab.calibration.json"
    save_part(path, ("cameras", "wrist", "intrinsics"), camera().to_json())
    value = json.loads(path.read_text())
    value["content"]["cameras"]["wrist"]["intrinsics"]["camera_matrix"][0][0] += 1
    path.write_text(json.dumps(value))
    with pytest.raises(UnusableInputError, match="changed by hand"):
        load_calibration(path)


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("{", "not JSON"),
        ("[]", "schema"),
        ('{"schema": "gaploop.take.v1"}', "schema"),
        (json.dumps({"schema": SCHEMA}), "not whole"),
        (json.dumps({"schema": SCHEMA, "id": "", "content": {"x": {}}, "history": []}), "section"),
    ],
)
def test_other_files_are_refused(text: str, says: str, tmp_path: Path) -> None:
    path = tmp_path / "other.json"
    path.write_text(text)
    with pytest.raises(UnusableInputError, match=says):
        load_calibration(path)


def test_it_lies_beside_the_station() -> None:
    assert calibration_path(Path("lab/left.yaml")) == Path("lab/left.calibration.json")
    assert calibration_path() == Path("station.calibration.json")


def test_ages_are_in_days(tmp_path: Path) -> None:
    path = tmp_path / "lab.calibration.json"
    saved = save_part(path, ("arms", "follower", "latency"), {"latency_s": 0.02})
    later = utc_ns() + round(40 * 86_400e9)
    ages = load_calibration(path).ages_days(later)
    assert ages["arms.follower.latency"] == pytest.approx(40, abs=0.01)
    assert set(ages) == {"arms.follower.latency"}
    assert saved.ages_days()["arms.follower.latency"] < 0.01


def test_writers_at_once_lose_nothing(tmp_path: Path) -> None:
    path = tmp_path / "lab.calibration.json"
    threads = [
        threading.Thread(
            target=save_part, args=(path, ("arms", f"arm{k}", "latency"), {"latency_s": k})
        )
        for k in range(8)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    read = load_calibration(path)
    assert set(read.content["arms"]) == {f"arm{k}" for k in range(8)}
    assert len(read.history) == 8


def test_what_is_not_a_number_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "lab.calibration.json"
    with pytest.raises(ValueError, match="JSON"):
        save_part(path, ("arms", "follower", "latency"), {"latency_s": float("nan")})
    assert not path.exists()
