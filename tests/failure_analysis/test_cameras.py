"""Cameras set against a policy's training: moved, dirty, swapped, or with something unknown."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

import cv2
import numpy as np
import pytest
from failure_analysis_makers import take
from hypothesis import given, settings
from hypothesis import strategies as st

from gaploop.core.errors import UnusableInputError
from gaploop.core.messages import FloatArray, Image, Observation
from gaploop.core.take import Take
from gaploop.failure_analysis.cameras import CameraReference, StationCameras, moved, overlay
from gaploop.failure_analysis.diagnosis import diagnose
from gaploop.failure_analysis.report.report import diagnosis_report
from gaploop.failure_analysis.views.policy_view import PolicyTrace, ask


def scene(seed: int, right: float = 0.0, down: float = 0.0) -> Image:
    """Return a picture of 192 px of a textured place, moved by some pixels."""
    rng = np.random.default_rng(seed)
    whole = np.full((232, 232, 3), 120.0)
    for size in (6, 12, 29, 58, 116):
        grey, tint = rng.uniform(-26, 26, (size, size, 1)), rng.uniform(-6, 6, (size, size, 3))
        whole += cv2.resize(grey + tint, (232, 232), interpolation=cv2.INTER_CUBIC)
    shift = np.array([[1, 0, right - 20], [0, 1, down - 20]], dtype=np.float64)
    return np.clip(cv2.warpAffine(whole, shift, (192, 192)), 0, 255).astype(np.uint8)


TOP, WRIST = scene(1), scene(2)


def shown(usual: Image, seed: int, count: int = 12) -> list[Image]:
    """Return a take's pictures: noise, and something that moves across."""
    rng = np.random.default_rng(seed)
    pictures = []
    for k in range(count):
        picture = usual + rng.normal(0, 1.5, usual.shape)
        row, column = 30 + 9 * k, int(rng.integers(60, 100)) if k else 20 + 11 * (seed % 13)
        picture[row : row + 14, column : column + 14] = (40, 45, 50)
        pictures.append(np.clip(picture, 0, 255).astype(np.uint8))
    return pictures


def attempt(seed: int, top: Image = TOP, wrist: Image = WRIST) -> Take:
    """Return a failed take of two cameras."""
    cameras = {"top": shown(top, seed), "wrist": shown(wrist, seed + 500)}
    made = take(uid=f"take-{seed}", seed=seed)
    return replace(made, cameras={n: lambda p=p: iter(p) for n, p in cameras.items()})


class Eye:
    """A policy whose encoder sees the mean colour and contrast of each of 12 by 12 cells."""

    def reset(self) -> None:
        """Nothing is remembered."""

    def maps(self, observation: Observation) -> Mapping[str, Sequence[FloatArray]]:
        return {name: [self.cells(image)] for name, image in observation.images.items()}

    @staticmethod
    def cells(image: Image) -> FloatArray:
        pixels = cv2.resize(image, (192, 192)).astype(np.float64).reshape(12, 16, 12, 16, 3)
        return np.concatenate([pixels.mean(axis=(1, 3)), pixels.std(axis=(1, 3))], axis=2)


@pytest.fixture(scope="module")
def usual() -> CameraReference:
    made = CameraReference.build([attempt(k) for k in range(12)], "training", Eye())
    assert made is not None
    return made


def asked(usual: CameraReference, made: Take) -> PolicyTrace:
    trace = ask(made, Eye(), usual.patches)
    assert trace is not None
    return trace


def seen(usual: CameraReference, *takes: Take) -> StationCameras:
    return usual.station({t.info.uid: asked(usual, t).cameras for t in takes})


def kinds(station: StationCameras, camera: str = "top") -> set[str]:
    return {f.kind for f in station.findings if f.camera == camera}


@pytest.mark.parametrize("first", range(100, 112, 4))
def test_where_nothing_has_changed_nothing_is_named(usual: CameraReference, first: int) -> None:
    assert not seen(usual, *(attempt(first + k) for k in range(4))).findings
    assert not seen(usual, attempt(first)).findings


@settings(max_examples=6, deadline=None)
@given(right=st.floats(-15, 15), down=st.floats(-15, 15))
def test_a_moved_camera_is_measured(right: float, down: float) -> None:
    found = moved(TOP, scene(1, right, down))
    assert found is not None
    np.testing.assert_allclose(found.shift_px, (right, down), atol=0.3)
    assert found.scale == pytest.approx(1.0, abs=0.01)


def test_swapped_cameras_are_named_by_what_they_show(usual: CameraReference) -> None:
    station = seen(usual, *(attempt(k, top=WRIST, wrist=TOP) for k in range(420, 422)))
    said = {f.message for f in station.findings}
    assert said == {
        "camera top shows what wrist showed in training: swapped or renamed",
        "camera wrist shows what top showed in training: swapped or renamed",
    }


def test_another_size_or_crop_is_named(usual: CameraReference) -> None:
    small = cv2.resize(TOP, (96, 96), interpolation=cv2.INTER_AREA)
    made = replace(attempt(430), cameras={"top": lambda: iter([small] * 20)})
    (found,) = [f for f in seen(usual, made).findings if f.kind == "size"]
    assert found.message == "camera top gives 96x96 pictures, the policy learned from 192x192"
    crop = TOP[:, 24:168]
    made = replace(attempt(431), cameras={"top": lambda: iter([crop] * 20)})
    assert any("cropped" in f.message for f in seen(usual, made).findings)


def test_an_unknown_thing_is_shown_where_it_lies(usual: CameraReference) -> None:
    new = TOP.copy()
    new[20:50, 130:160] = (30, 230, 60)
    trace = asked(usual, attempt(440, top=new))
    row, column = np.unravel_index(np.argmax(trace.cameras["top"].where), (12, 12))
    assert row in (1, 2, 3)
    assert column in (8, 9)
    known = asked(usual, attempt(441)).cameras["top"]
    assert np.median(trace.cameras["top"].score) > 1.5 * np.median(known.score)
    marked = overlay(trace.cameras["top"]).astype(int)
    assert marked[35, 145, 0] - marked[35, 145, 1] > 100  # red there
    assert "unfamiliar" in kinds(seen(usual, *(attempt(k, top=new) for k in range(442, 445))))


def test_a_reference_is_small_and_comes_back_as_it_was(
    usual: CameraReference, tmp_path: Path
) -> None:
    usual.save(tmp_path / "cameras.npz")
    assert (tmp_path / "cameras.npz").stat().st_size < 500_000
    again = CameraReference.load(tmp_path / "cameras.npz")
    assert again.signals == usual.signals
    takes = [attempt(k, top=WRIST) for k in range(450, 453)]
    first, second = seen(usual, *takes), seen(again, *takes)
    assert [f.message for f in first.findings] == [f.message for f in second.findings]
    (tmp_path / "cameras.npz").write_bytes(b"PK nothing")
    with pytest.raises(UnusableInputError, match="--save_reference"):
        CameraReference.load(tmp_path / "cameras.npz")


def test_takes_without_pictures_are_no_reference() -> None:
    assert CameraReference.build([take(seed=k) for k in range(6)], "training", Eye()) is None


def test_a_diagnosis_has_it_as_evidence_in_numbers_and_on_the_page(usual: CameraReference) -> None:
    new = TOP.copy()
    new[20:50, 130:160] = (30, 230, 60)
    failed = [attempt(k, top=new) for k in range(460, 463)]
    found = diagnose(failed, ask_policy=lambda made: ask(made, Eye(), usual.patches), cameras=usual)
    for one in found.takes:
        assert any(e.signal == "view_unfamiliar" for e in one.evidence)
    told = found.summary["cameras"]["cameras"]["top"]
    assert told["values"]["unfamiliar"]["spreads"] > 4
    assert len(told["unfamiliar"]) == 3
    assert told["findings"][0]["kind"] == "unfamiliar"
    page = diagnosis_report(found)
    assert "What the policy makes of its pictures" in page
    assert "camera top: pictures unlike" in page
