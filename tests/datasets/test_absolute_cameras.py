"""Laws of the cameras' tests: what is put into made pictures is named, and nothing else."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import lru_cache
from pathlib import Path

import av
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from made_arms import FPS, recording

from gaploop.core.messages import FloatArray
from gaploop.datasets.absolute.camera_findings import BLURRED, EDGE_PX, CameraTests, moved_beside
from gaploop.datasets.absolute.camera_looks import (
    RUN_S,
    THUMB,
    CameraLook,
    Run,
    blur,
    edge_width_px,
    look,
)
from gaploop.datasets.absolute.findings import AbsoluteReport
from gaploop.datasets.absolute.recording import MotionRecording

type Change = Callable[[FloatArray], FloatArray]


def scene(seed: int) -> FloatArray:
    """A table with things on it, grey, shape (height, width)."""
    rng = np.random.default_rng(seed)
    picture = np.full((THUMB[1] + 40, THUMB[0] + 40), 90.0)
    for _ in range(60):
        y, x = rng.integers(0, THUMB[1] + 30), rng.integers(0, THUMB[0] + 30)
        picture[y : y + rng.integers(3, 20), x : x + rng.integers(3, 20)] = rng.uniform(50, 180)
    return picture


def pictures(plain: MotionRecording, episode: int, seed: int, age: float = 0.0, shift: int = 0
             ) -> FloatArray:  # fmt: skip
    """Return what a camera beside the arm sees: a link that stands where two joints are."""
    q = np.asarray(plain.episodes[episode].reading, dtype=float)
    return drawn(q.tobytes(), q.shape, episode, seed, age, shift).copy()


@lru_cache(maxsize=10)  # of the episodes of one camera, which most tests look at
def drawn(
    reading: bytes, shape: tuple[int, ...], episode: int, seed: int, age: float, shift: int
) -> FloatArray:
    q = np.frombuffer(reading).reshape(shape)
    k = np.arange(len(q))
    q = np.stack([np.interp(k - age, k, x) for x in q.T], axis=1)
    rng, table = np.random.default_rng(episode), scene(seed)[20:-20, 20 + shift :]
    rows, columns = np.mgrid[: THUMB[1], : THUMB[0]].astype(float)
    out = np.empty((round(RUN_S * FPS), THUMB[1], THUMB[0]))
    for n in range(len(out)):
        out[n] = table[:, : THUMB[0]]
        for a, b in ((0, 1), (2, 3)):
            away = np.hypot(columns - 48 - 0.7 * q[n, a], rows - 36 - 0.5 * q[n, b])
            out[n] = np.where(away < 9, 200 - 6 * away, out[n])
    return np.asarray(out + rng.normal(0, 1.0, out.shape))


def camera(
    plain: MotionRecording, seed: int = 0, age: float = 0.0, change: Change = lambda x: x,
    shifted_from: int = 99, name: str = "top",
) -> CameraLook:  # fmt: skip
    seen = CameraLook(f"observation.images.{name}")
    for e in range(len(plain.episodes)):
        grey = change(pictures(plain, e, seed, age, 6 if e >= shifted_from else 0))
        seen.starts[e] = np.repeat(grey[0, :, :, None], 3, axis=2).astype(np.float32)
        if e < 5:
            seen.runs.append(Run(e, 0, grey))
    return seen


def kinds(plain: MotionRecording, *looks: CameraLook) -> dict[str, float]:
    report = AbsoluteReport(plain.info.root)
    CameraTests(plain, report, looks).run()
    assert all(len(f.sentence.split()) <= 30 for f in report.findings)
    return {f.kind: f.estimate.value for f in report.findings}


@pytest.fixture(scope="module")
def plain() -> MotionRecording:
    return recording(0)


def test_nothing_is_said_of_a_good_camera(plain: MotionRecording) -> None:
    assert kinds(plain, camera(plain)) == {}


@pytest.mark.members(1)
@pytest.mark.parametrize("rows", [2.0, 4.0, 9.0])
def test_the_age_of_pictures_is_told(plain: MotionRecording, rows: float) -> None:
    found = kinds(plain, camera(plain, age=rows))
    assert set(found) == {"camera_age"}
    assert found["camera_age"] == pytest.approx(rows / FPS * 1e3, abs=25)


def every_second(x: FloatArray) -> FloatArray:
    return x[(np.arange(len(x)) // 2) * 2]


def hunting(x: FloatArray) -> FloatArray:
    swing = 1 + 0.08 * np.sin(np.arange(len(x)) / FPS * 2 * np.pi * 0.8)
    return np.asarray(x * swing[:, None, None])


def flickering(x: FloatArray) -> FloatArray:
    hz = 100 % FPS  # what a camera at 30 Hz makes of lamps on 50 Hz mains
    wave = 1 + 0.03 * np.sin(np.arange(len(x)) / FPS * 2 * np.pi * hz)
    return np.asarray(x * wave[:, None, None])


@pytest.mark.members(2)
@pytest.mark.parametrize(
    ("kind", "change", "size"),
    [
        ("frozen_camera", lambda x: np.repeat(x[:1], len(x), axis=0), 3.0),
        ("camera_rate", every_second, 15.0),
        ("black_camera", lambda x: x * 0 + 2.0, 2.0),
        ("exposure", hunting, 16.0),
        ("flicker", flickering, 3.0),
    ],
)
def test_what_pictures_show_by_themselves(
    plain: MotionRecording, kind: str, change: Change, size: float
) -> None:
    found = kinds(plain, camera(plain, change=change))
    assert set(found) == {kind}
    assert found[kind] == pytest.approx(size, rel=0.35)


def test_a_camera_that_was_moved_is_told_with_the_episode(plain: MotionRecording) -> None:
    report = AbsoluteReport(plain.info.root)
    CameraTests(plain, report, [camera(plain, shifted_from=6)]).run()
    [found] = report.findings
    assert (found.kind, found.episodes) == ("moved_camera", (6, 7, 8, 9))
    assert found.estimate.value == pytest.approx(100 * 6 / THUMB[0], rel=0.6)


def test_an_arm_that_starts_elsewhere_is_no_camera_that_moved(plain: MotionRecording) -> None:
    """Before a plain desk the arm's edges were all that matched."""
    seen = camera(plain)
    for n, start in enumerate(seen.starts.values()):
        start[:] = 0.2 * (start - start.mean()) + start.mean()
        left = 10 if n < 5 else 10 + 4 * n
        start[20:60, left : left + 18] = 20.0
    report = AbsoluteReport(plain.info.root)
    CameraTests(plain, report, [seen]).run()
    assert "moved_camera" not in {found.kind for found in report.findings}


def test_cameras_that_change_places_are_told_with_the_command(plain: MotionRecording) -> None:
    top, side = camera(plain), camera(plain, seed=5, name="side")
    top.starts[3], side.starts[3] = side.starts[3], top.starts[3]
    report = AbsoluteReport(plain.info.root)
    CameraTests(plain, report, [top, side]).run()
    [found] = report.findings
    assert (found.kind, found.episodes) == ("swapped_cameras", (3,))
    assert "--swap='[top, side]'" in found.command


@pytest.mark.parametrize("differs_by", [0.0, 3.0, 40.0])  # of a patch of a hundredth
def test_cameras_that_show_the_same_scene_cant_be_told_apart(
    plain: MotionRecording, differs_by: float
) -> None:
    """Of two that differed by a small patch and their noise, two episodes had changed places."""
    top, side = camera(plain), camera(plain, name="side")
    rng, scene = np.random.default_rng(0), top.starts[0].copy()
    for seen in (top, side):
        for start in seen.starts.values():
            start[:] = scene + rng.normal(0.0, 0.02, start.shape)
    for n, start in enumerate(side.starts.values()):
        start[:9, :12] += differs_by * (n not in (3, 7))
    for n in (3, 7):  # as chance has it
        top.starts[n][:9, :12] += differs_by
    report = AbsoluteReport(plain.info.root)
    CameraTests(plain, report, [top, side]).run()
    assert "changed places" not in str([found.sentence for found in report.findings])


@pytest.mark.members(3)
@pytest.mark.parametrize(
    ("change", "kind", "words"),
    [
        (lambda x: x[..., ::-1], "turned_camera", "red and blue"),
        (lambda x: x[::-1, ::-1], "turned_camera", "upside down"),
        (lambda x: x[:, ::-1], "turned_camera", "mirrored"),
        (lambda x: 0 * x + 255.0, "exposure", "washed out"),
    ],
)
@pytest.mark.parametrize("odd", [(4,), (1, 2, 8)])
def test_episodes_whose_pictures_were_turned_or_washed_out_are_named(
    plain: MotionRecording, change: Change, kind: str, words: str, odd: tuple[int, ...]
) -> None:
    seen, tint = camera(plain), np.array([1.0, 0.7, 0.4], dtype=np.float32)
    for e, start in seen.starts.items():
        seen.starts[e] = change(start * tint) if e in odd else start * tint
    report = AbsoluteReport(plain.info.root)
    CameraTests(plain, report, [seen]).run()
    [found] = [f for f in report.findings if f.kind == kind]
    assert words in found.sentence
    assert found.episodes == odd
    assert found.command.startswith("gaploop edit delete")


def test_light_of_another_colour_is_no_exchanged_red_and_blue(plain: MotionRecording) -> None:
    seen, warm = camera(plain), np.array([1.0, 0.7, 0.4], dtype=np.float32)
    cold = np.array([0.6, 0.7, 0.8], dtype=np.float32)
    for e, start in seen.starts.items():
        seen.starts[e] = start * (cold if e in (1, 2) else warm)
    report = AbsoluteReport(plain.info.root)
    CameraTests(plain, report, [seen]).run()
    assert "turned_camera" not in [f.kind for f in report.findings]


def test_one_camera_under_two_names_is_told(plain: MotionRecording) -> None:
    report = AbsoluteReport(plain.info.root)
    CameraTests(plain, report, [camera(plain), camera(plain, name="side")]).run()
    [found] = report.findings
    assert found.sentence == "top and side show the same pictures"


@pytest.mark.members(3)
@pytest.mark.parametrize(
    ("change", "kind"), [(lambda x: x[:1], "frozen_camera"), (lambda x: 0 * x, "black_camera")]
)
@pytest.mark.parametrize("group", [2, 30])
@pytest.mark.parametrize("odd", [4, 8])
def test_a_camera_that_fails_in_an_episode_nobody_decodes_is_found_by_what_its_pictures_take(
    plain: MotionRecording, tmp_path: Path, change: Change, kind: str, odd: int, group: int
) -> None:
    """Eight episodes' pictures are decoded. In others a camera could stand still unnoticed."""
    key, n = "observation.images.top", round(RUN_S * FPS)
    seen = camera(plain)
    with av.open(tmp_path / "film.mp4", "w") as film:
        stream = film.add_stream("libx264", rate=int(FPS), options={"crf": "23", "g": str(group)})
        stream.width, stream.height, stream.pix_fmt = *THUMB, "yuv420p"
        for e in range(len(plain.episodes)):
            shown = pictures(plain, e, 0).clip(0, 255).astype(np.uint8)
            if e == odd:
                shown[20:70] = change(shown[20:70])
            for picture in shown:
                film.mux(stream.encode(av.VideoFrame.from_ndarray(picture, format="gray")))
        film.mux(stream.encode())
    table = [
        {"episode_index": e, "length": n, f"videos/{key}/from_timestamp": e * n / FPS}
        | {f"videos/{key}/{name}_index": 0 for name in ("chunk", "file")}
        for e in range(len(plain.episodes))
    ]
    folder = tmp_path / "meta/episodes/chunk-000"
    folder.mkdir(parents=True)
    pq.write_table(pa.Table.from_pylist(table), folder / "file-000.parquet")
    spec = {"dtype": "video", "shape": (*seen.runs[0].grey.shape[1:], 3), "names": None}
    info = replace(plain.info, root=tmp_path, video_path="film.mp4", features={key: spec})
    parts = tuple(replace(e, command=e.command[:n], reading=e.reading[:n]) for e in plain.episodes)
    made = replace(plain, info=info, episodes=parts, lengths=dict.fromkeys(plain.lengths, n))
    report = AbsoluteReport(tmp_path)
    CameraTests(made, report, look(made)).run()
    [found] = [f for f in report.findings if f.kind in ("frozen_camera", "black_camera")]
    assert (found.kind, found.episodes) == (kind, (odd,))


def test_without_pictures_or_motion_nothing_is_claimed(plain: MotionRecording) -> None:
    assert kinds(plain) == {}
    still = replace(plain, episodes=())
    assert kinds(still, camera(plain)) == {}


def test_blur_rises_as_a_picture_is_blurred() -> None:
    import cv2

    sharp = scene(1).astype(np.float32)
    for measure, limit in ((blur, 0.5), (edge_width_px, EDGE_PX)):
        values = [measure(sharp), *(measure(cv2.GaussianBlur(sharp, (0, 0), s)) for s in (1, 2, 4))]
        assert values == sorted(values)
        assert values[0] < limit < values[-1]


def test_a_scene_without_edges_is_not_called_out_of_focus(plain: MotionRecording) -> None:
    """A made scene, a block before a smooth background, was told to focus its lens."""
    seen = camera(plain)
    smooth = np.tile(np.linspace(20, 220, 320, dtype=np.float32), (240, 1))
    block = smooth.copy()
    block[100:120, 100:140] = 0.0
    for n, picture in enumerate((smooth, block)):
        seen.blur[n], seen.edges_px[n] = blur(picture), edge_width_px(picture)
    assert seen.blur[0] > BLURRED
    assert kinds(plain, seen) == {}


def test_a_camera_before_a_scene_at_rest_is_not_called_slow(plain: MotionRecording) -> None:
    """Of a camera that doesn't see the arm the encoder repeats pictures by itself."""
    at_rest = camera(plain)
    for run in at_rest.runs:
        run.grey[:] = run.grey[:1] + 0.3 * (np.arange(len(run.grey)) // 2 % 2)[:, None, None]
    assert "camera_rate" not in kinds(plain, at_rest)


def encoded_anew(x: FloatArray) -> FloatArray:
    """Return a slow camera's pictures as a codec leaves them that makes every second one whole."""
    whole = np.random.default_rng(0).normal(0, 0.8, x.shape)
    return every_second(x) + np.where(np.arange(len(x)) % 2, 1.0, 0.0)[:, None, None] * whole


def stepping(x: FloatArray) -> FloatArray:
    """Return a drawing in which a small thing goes on by a whole pixel every third row."""
    out = np.repeat(x[:1], len(x), axis=0)
    for row in range(len(x)):
        left = row // 3
        out[row, 30:38, left : left + 8] = 220.0
    return out


def test_a_drawn_thing_that_goes_by_whole_pixels_is_no_slow_camera(plain: MotionRecording) -> None:
    """Two made sets of 64 x 48 pixels were told to have more light."""
    assert kinds(plain, camera(plain, change=stepping)) == {}


def test_a_repeated_picture_is_told_though_it_was_encoded_anew(plain: MotionRecording) -> None:
    """A humanoid's camera gives every picture twice; half of its episodes hid it by whole ones."""
    found = kinds(plain, camera(plain, change=encoded_anew))
    assert found == {"camera_rate": pytest.approx(15.0, rel=0.1)}


@pytest.mark.members(1)
@pytest.mark.parametrize("first_key", [0, 1])
def test_pictures_that_an_encoder_repeats_arent_a_slow_cameras(
    plain: MotionRecording, first_key: int
) -> None:
    """LeRobot's own encoder left out every second picture of a drawn scene, and its author was
    told to have more light. A camera at half the rate repeats key frames, too."""
    seen, report = camera(plain, change=every_second), AbsoluteReport(plain.info.root)
    for run in seen.runs:
        run.keys = np.arange(len(run.grey)) % 2 == first_key
    CameraTests(plain, report, [seen]).run()
    assert [f.kind for f in report.findings] == ["camera_rate"] * first_key
    assert ("rate of top" in report.untested) is (first_key == 0)


def test_a_wrist_camera_without_known_joints_is_no_fixed_one(plain: MotionRecording) -> None:
    """Two on an SO-101 whose joints were encoder ticks were told to fix their exposure."""
    ticks = replace(plain, episodes=())
    wrist = camera(plain)
    for run in wrist.runs:
        for row in range(len(run.grey)):
            run.grey[row] = np.roll(run.grey[0], 3 * row, axis=1) * (1.0 + 0.1 * np.sin(row / 6.0))
    assert kinds(ticks, wrist) == {}
    assert kinds(ticks, camera(plain, change=hunting)) == {"exposure": pytest.approx(16, rel=0.35)}


def test_a_hand_that_creeps_is_no_frozen_camera(plain: MotionRecording) -> None:
    """Pictures of a simulator have no noise: two of NVIDIA's five episodes were to be deleted."""
    creeping = camera(plain)
    for run in creeping.runs:
        run.grey[:] = run.grey[:1]
        for row in range(len(run.grey)):
            run.grey[row, 30:34, 20] += row
    assert kinds(plain, creeping) == {}


def test_depth_is_no_picture_to_look_at(plain: MotionRecording) -> None:
    """Depth that stood still was called frozen, and its episodes were to be deleted."""
    depth = {"dtype": "video", "shape": [4, 4, 1], "info": {"is_depth_map": True}}
    info = replace(plain.info, features={**plain.info.features, "observation.images.depth": depth})
    assert info.video_keys == ("observation.images.depth",)
    assert look(replace(plain, info=info)) == []


def test_which_camera_sees_the_gripper(plain: MotionRecording) -> None:
    """One shows jaws that move while the arm stands, another shows only the arm."""
    n = round(RUN_S * FPS)
    grip = np.interp(np.arange(240), [20, 40, 60, 80], [100.0, 0, 0, 100])
    still = tuple(
        replace(e, reading=np.column_stack([np.zeros((240, 5)), grip])) for e in plain.episodes
    )
    held = replace(plain, episodes=still)
    top, wrist = camera(held), camera(held, name="wrist")
    for run in wrist.runs:
        for row in range(n):
            run.grey[row, 30:44, 40 : 44 + round(grip[row] / 5)] = 220.0
    report = AbsoluteReport(plain.info.root)
    CameraTests(held, report, [top, wrist]).run()
    assert "seen by wrist (" in report.good["sight of the gripper"]
    assert "top" not in report.good["sight of the gripper"]


def stood(rows: int = 60) -> tuple[FloatArray, FloatArray]:
    """Return the readings of an arm that stands, and its pictures, in colours."""
    shown = np.repeat(scene(1)[None, 20:-20, 20:-20, None], 3, axis=3)
    return np.zeros((rows, 6)), np.repeat(shown, rows, axis=0)


@pytest.mark.parametrize("stays", [False, True])
def test_something_that_comes_while_the_arm_stands_moves_beside_it(stays: bool) -> None:
    reading, seen = stood()
    for k in range(30, 60):
        x = min(2 * (k - 30), 20) if stays else 2 * (k - 30)
        seen[k, 10:30, x : x + 12] = (235, 180, 150)
    share = moved_beside(reading, seen.astype(np.uint8), FPS)
    assert share == pytest.approx(20 * 12 / (THUMB[0] * THUMB[1]), rel=0.6)


def light(seen: FloatArray) -> FloatArray:
    return seen * np.linspace(1.0, 0.6, len(seen))[:, None, None, None]


def lamp(seen: FloatArray) -> FloatArray:
    rows = np.arange(seen.shape[1])[None, :] / 6.0 + np.arange(len(seen))[:, None]
    return np.asarray(seen * (1.0 + 0.25 * np.sin(rows))[:, :, None, None])


def noise(seen: FloatArray) -> FloatArray:
    return seen + np.random.default_rng(0).normal(0.0, 6.0, seen.shape)


@pytest.mark.parametrize("change", [light, lamp, noise])
def test_light_and_noise_move_nothing(change: Change) -> None:
    reading, seen = stood()
    share = moved_beside(reading, change(seen).clip(0, 255).astype(np.uint8), FPS)
    assert share is not None
    assert share < 0.002


def test_what_moves_with_the_arm_is_the_arm() -> None:
    reading, seen = stood()
    reading[:, 0] = np.linspace(0.0, 60.0, 60)
    for k in range(60):
        seen[k, 10:30, k : k + 12] = 0.0
    assert moved_beside(reading, seen.astype(np.uint8), FPS) is None
