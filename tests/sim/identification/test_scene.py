"""Pictures of cells that are known: what was put in is found, and nothing else."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace

import numpy as np
import pytest

from gaploop.core.messages import FloatArray, Image
from gaploop.core.take import Frames, Take, TakeInfo
from gaploop.core.telemetry import Telemetry
from gaploop.core.twin import Twin, TwinParameter
from gaploop.core.vocabulary import Outcome, TakeKind
from gaploop.sim.catalogue import SO101, to_degrees
from gaploop.sim.cell import SimCell
from gaploop.sim.gaps.mechanism import Values
from gaploop.sim.identification import scene
from gaploop.sim.identification.scene import FINEST, HAND, fit_scene
from gaploop.sim.identification.stills import recorded, stills_of
from gaploop.sim.identification.wander import DRIFT

HOME = np.array(SO101.home_q_rad)
POSES = [HOME + np.array([pan - HOME[0], lift, elbow, 0.0, 0.0, 0.0]) for pan, lift, elbow in (
    (-0.5, 0.0, 0.0), (0.0, -0.3, 0.1), (1.4, -0.57, 0.587),
)]  # fmt: skip
"""What the arm rests in, an episode for each."""


def takes_of(
    parameters: Mapping[str, Values], seed: int = 50, poses: Sequence[FloatArray] = POSES
) -> list[Take]:
    """Return takes of an arm that rests in a cell with something put in."""
    takes = []
    for number, q_rad in enumerate(poses):
        with SimCell(parameters=parameters) as cell:
            cell.reset(seed + number)
            pictures = []
            for row in range(66):
                cell.command(q_rad)
                cell.advance(0.05)
                if row >= 50:  # it has come to rest by then
                    pictures.append(cell.frame().image)
            state = np.tile(to_degrees(cell.read().position_rad), (len(pictures), 1))
        takes.append(take_of(pictures, state, f"u{number}"))
    return takes


def take_of(pictures: list[Image], state: np.ndarray, uid: str) -> Take:
    n = len(pictures)
    t_s = 0.05 * np.arange(n)
    video = recorded(pictures)

    def images() -> Iterator[Image]:
        yield from video

    none, flags = np.empty((n, 0)), np.zeros(n, dtype=np.int64)
    frames = Frames(t_s, state, state, state, none, flags.astype(bool), flags)
    info = TakeInfo(uid, kind=TakeKind.PROBE, joint_names=SO101.joint_names, units="deg")
    telemetry = Telemetry(np.empty(0), {})
    return Take(info, Outcome.UNLABELLED, frames, telemetry, cameras={"overhead": images})


def fitted(parameters: Mapping[str, Values]) -> dict[str, TwinParameter]:
    return {p.name: p for p in fit_scene(takes_of(parameters), SO101)}


def named(found: Mapping[str, TwinParameter]) -> set[str]:
    return {p.mechanism for p in found.values() if p.differs}


CAMERA = {"dx_m": 0.012, "dy_m": -0.009, "dz_m": 0.012, "dpitch_rad": 0.02, "dyaw_rad": -0.04}
BASE = {"dx_m": 0.014, "dy_m": -0.009, "droll_rad": 0.02, "dpitch_rad": -0.02, "dyaw_rad": 0.04}
CAST = {"cast_hue_rad": 2.0, "cast_strength": 0.3, "veil": 0.15}


@pytest.mark.members(1, of="fits of a whole scene")
@pytest.mark.parametrize(
    "put_in",
    [
        {},
        {"spatial_geometry.camera_pose": CAMERA},
        {"spatial_geometry.base_pose": BASE},
        {"environmental_complexity.similar": {"count": 3.0}},
        {"environmental_complexity.clutter": {"count": 5.0}},
        pytest.param(
            {"visual_domain.colour_cast": CAST},
            marks=pytest.mark.slow,
        ),
    ],
)
def test_what_was_put_in_is_found_within_its_interval(put_in: Mapping[str, Values]) -> None:
    found = fitted(put_in)
    assert list(found) == list(FINEST)
    places = [found[f"spatial_geometry.{name}.dx_m"] for name in ("camera_pose", "base_pose")]
    assert any(place.excited for place in places)
    size = found["object_property.size.size_factor"]
    assert size.excited is ("environmental_complexity.similar" not in put_in)
    assert named(found) == set(put_in)
    for mechanism, values in put_in.items():
        for name, truth in values.items():
            low, high = found[f"{mechanism}.{name}"].interval
            assert low <= truth <= high, f"{name}: {truth} isn't in [{low:.4f}, {high:.4f}]"


@pytest.mark.members(1, of="fits of a whole scene")
@pytest.mark.slow
def test_blur_and_size_are_found_beside_each_other() -> None:
    found = fitted(
        {
            "visual_domain.blur": {"defocus_fraction": 0.02},
            "object_property.size": {"size_factor": 1.5},
        }
    )
    assert found["visual_domain.blur.defocus_fraction"].estimate == pytest.approx(0.02, abs=0.006)
    assert found["object_property.size.size_factor"].estimate == pytest.approx(1.5, rel=0.1)
    assert not found["spatial_geometry.camera_pose.dx_m"].differs


def test_a_lamp_that_flickers_is_found_and_hides_nothing_else() -> None:
    lamp, pose = "visual_domain.flicker", "spatial_geometry.camera_pose"
    truth = {"depth": 0.5, "bands": 1.8, "drift_hz": 0.6, "lag_rad": 0.2}
    put_in = {lamp: truth, pose: CAMERA}
    found = {p.name: p for p in fit_scene(takes_of(put_in) + takes_of(put_in, 90), SO101)}
    assert named(found) >= {lamp, pose}
    for name, value in truth.items():
        low, high = found[f"{lamp}.{name}"].interval
        assert low <= value <= high, f"{name}: {value} isn't in [{low:.4f}, {high:.4f}]"


@pytest.mark.slow
def test_a_moved_base_is_told_from_a_moved_camera_within_its_interval() -> None:
    """Any direction, 4 to 20 mm and 1 to 3 degrees; neither is named for the other."""
    names = ("dx_m", "dy_m", "dz_m", "droll_rad", "dpitch_rad", "dyaw_rad")
    most = np.array([0.02, 0.02, 0.006, 0.05, 0.05, 0.06])
    covered = told = 0
    for seed in range(10):
        mechanism = ("spatial_geometry.base_pose", "spatial_geometry.camera_pose")[seed % 2]
        drawn = most * np.random.default_rng(seed).uniform(-1.0, 1.0, 6)
        found = fitted({mechanism: dict(zip(names, drawn.tolist(), strict=True))})
        told += named(found) == {mechanism}
        for name, truth in zip(names, drawn, strict=True):
            low, high = found[f"{mechanism}.{name}"].interval
            covered += low <= truth <= high
    assert told >= 9
    assert covered >= 0.8 * 60


@pytest.mark.slow
def test_a_bent_hand_is_told_within_its_interval() -> None:
    """Any direction, 3 to 12 degrees, beside a camera, a zero or a lamp that is off, too."""
    others: list[Mapping[str, Values]] = [
        {}, {"spatial_geometry.camera_pose": CAMERA}, {"visual_domain.exposure": {"gain": 0.7}},
        {"spatial_geometry.zero_offset": {"pan_rad": 0.05, "lift_rad": -0.04}},
    ]  # fmt: skip
    covered = told = 0
    for seed in range(12):
        rng, other = np.random.default_rng(seed), others[seed % 4]
        size_rad, angle = rng.uniform(0.05, 0.21), rng.uniform(0.0, 2.0 * np.pi)
        truth = {
            "aside_rad": size_rad * float(np.cos(angle)),
            "forward_rad": size_rad * float(np.sin(angle)),
        }
        found = fitted({**other, HAND: truth})
        told += named(found) == {HAND, *other}
        for name, value in truth.items():
            low, high = found[f"{HAND}.{name}"].interval
            covered += low <= value <= high
    assert told >= 10
    assert covered >= 0.8 * 24


@pytest.mark.members(1, of="fits of a whole scene")
@pytest.mark.parametrize(
    "values",
    [{"shoulder_pan.drift_rad": 0.07}, {"drift_rad": 0.04}, {"shoulder_lift.drift_rad": 0.05}],
)
def test_joints_that_wander_are_told_and_no_zero_or_camera_is(values: Values) -> None:
    """Station 33's drifting encoders were called zeros of pan and wrist, and a slippery object."""
    takes = takes_of({"sensor_noise.encoder_drift": values}, poses=[HOME] * 10)
    rows = fit_scene(takes, SO101, 0.001)
    ((key, truth),) = values.items()
    (found,) = (row for row in rows if row.differs)
    assert (found.name, found.key) == (DRIFT, key)
    assert found.interval[0] <= truth <= found.interval[1]
    assert not any(row.excited for row in rows if row.name.startswith("spatial_geometry"))
    values_of_twin = Twin("s", "so101", tuple(rows)).values()
    assert values_of_twin == {"sensor_noise.encoder_drift": {key: found.estimate}}


@pytest.mark.parametrize("level", [0, 90, 255])
def test_a_picture_without_any_contrast_shows_no_arm(level: int) -> None:
    """A distorting lens led a fit out of the picture, and `identify` ended in a traceback."""
    assert not scene._silhouette(np.full((64, 64, 3), level, dtype=np.uint8), 1.5).any()


def test_a_room_that_is_not_the_simulation_tells_nothing() -> None:
    rng = np.random.default_rng(3)
    room = rng.integers(0, 255, (12, 12, 3)).repeat(16, axis=0).repeat(16, axis=1).astype(np.uint8)
    state = to_degrees(HOME)[None].repeat(3, axis=0)
    found = fit_scene([take_of([room] * 3, state, "u")], SO101)
    assert not any(p.excited for p in found)
    assert "don't resemble the simulation" in found[0].source


def test_pictures_that_are_not_square_and_unknown_units_tell_nothing() -> None:
    state = to_degrees(HOME)[None].repeat(8, axis=0)
    wide = np.zeros((120, 160, 3), dtype=np.uint8)
    take = take_of([wide] * 8, state, "u")
    assert "square" in fit_scene([take], SO101)[0].source
    unknown = replace(take, info=replace(take.info, units="m100"))
    assert "known units" in fit_scene([unknown], SO101)[0].source


def test_views_are_of_an_arm_that_stands_still() -> None:
    state = to_degrees(HOME)[None].repeat(40, axis=0)
    state[:20, 0] += np.linspace(30.0, 0.0, 20)
    pictures = [np.full((32, 32, 3), k, dtype=np.uint8) for k in range(40)]
    first, second = stills_of([take_of(pictures, state, "u")], SO101)
    assert len(first.pictures) > 1
    assert len(second.pictures) == 1  # the take's begin
    np.testing.assert_allclose(first.q_rad, HOME, atol=1e-6)
