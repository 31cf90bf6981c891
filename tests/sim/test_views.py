"""Cameras as measured: lens, size and pose of a calibration file, in the cell and in scenes."""

from __future__ import annotations

import json
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any

import cv2
import gymnasium as gym
import mujoco
import numpy as np
import pytest
from scipy.spatial.transform import Rotation

from gaploop.collect.rig import embedded_rig
from gaploop.core.camera import SCHEMA, MeasuredCamera
from gaploop.core.errors import UnusableInputError
from gaploop.core.kinematics import ArmModel
from gaploop.core.messages import FloatArray
from gaploop.sim.camera import LayeredCamera, look_at_quat
from gaploop.sim.cell import SimCell
from gaploop.sim.scene_file import load_scene
from gaploop.sim.scene_world import SceneWorld
from gaploop.sim.views import Lens, View, read_cameras
from gaploop.sim.world import GymWorld, WorldSpec

LENSES = {
    "barrel": (640, 480, 540.0, 547.0, 331.0, 229.0, (-0.28, 0.09, 1e-3, -7e-4, 0.0)),
    "pincushion": (424, 240, 310.0, 309.0, 205.0, 126.0, (0.05, -0.02, 0.0, 0.0, 0.0)),
    "wide": (
        480, 640, 260.0, 262.0, 251.0, 310.0,
        (-0.05, 0.01, 2e-4, 1e-4, 1e-3, 0.02, -3e-3, 5e-4),
    ),
}  # fmt: skip
"""Width, height, fx, fy, cx, cy and OpenCV's coefficients."""
BALL_M = 0.004


def looking(eye_m: FloatArray, at_m: FloatArray) -> FloatArray:
    """Return the pose of an OpenCV camera at `eye_m` that sees `at_m` [m], shape (4, 4)."""
    w, x, y, z = look_at_quat(eye_m, at_m)
    T = np.eye(4)
    T[:3, :3] = Rotation.from_quat([x, y, z, w]).as_matrix() @ np.diag([1.0, -1.0, -1.0])
    T[:3, 3] = eye_m
    return T


def measured(lens: str, T: FloatArray | None = None, setup: str = "eye_to_hand") -> dict[str, Any]:
    """Return a camera's part of a calibration file."""
    width, height, fx, fy, cx, cy, distortion = LENSES[lens]
    part: dict[str, Any] = {
        "intrinsics": {
            "width": width, "height": height, "lens": "wide" if len(distortion) > 5 else "standard",
            "camera_matrix": [[fx, 0.0, cx], [0.0, fy, cy], [0.0, 0.0, 1.0]],
            "distortion": list(distortion),
        }
    }  # fmt: skip
    if T is not None:
        part["hand_eye"] = {"setup": setup, "T_mount_camera": T.tolist()}
    return part


def calibration(folder: Path, **cameras: Any) -> Path:
    path = folder / "station.calibration.json"
    path.write_text(
        json.dumps({"schema": SCHEMA, "id": "sha256:1", "content": {"cameras": cameras}})
    )
    return path


ARM = """
<mujoco><worldbody>
  <camera name="front" pos="1 1 1"/>
  <geom name="floor" type="plane" size="1 1 0.1" rgba="0.3 0.4 0.3 1"/>
  <body name="base" pos="0.1 -0.2 0.05" euler="0 0 40">
    <joint name="turn" axis="0 0 1"/>
    <geom type="box" size="0.03 0.05 0.05" rgba="0.8 0.2 0.2 1"/>
    <site name="tool" pos="0.2 0 0.1" euler="10 20 30"/>
  </body>
</worldbody><actuator><position joint="turn"/></actuator></mujoco>
"""


class Turns(gym.Env[Any, Any]):
    """Shows 64 x 48 pixels of a camera that nobody measured."""

    metadata = {"render_fps": 20, "render_modes": ["rgb_array"]}  # noqa: RUF012
    render_mode = "rgb_array"

    def __init__(self) -> None:
        self.model = mujoco.MjModel.from_xml_string(ARM)
        self.data = mujoco.MjData(self.model)
        self.action_space = gym.spaces.Box(-1.0, 1.0, (1,), np.float32)
        self.observation_space = gym.spaces.Box(-9.0, 9.0, (1,), np.float64)

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        del options
        super().reset(seed=seed)
        mujoco.mj_resetData(self.model, self.data)
        mujoco.mj_forward(self.model, self.data)
        return self.data.qpos.copy(), {}

    def step(self, action: Any) -> Any:
        self.data.qpos[:] = action
        mujoco.mj_forward(self.model, self.data)
        return self.data.qpos.copy(), 0.0, False, False, {"success": False}

    def render(self) -> Any:
        return np.zeros((48, 64, 3), dtype=np.uint8)


@pytest.mark.parametrize(("frame", "setup"), [("base", "eye_to_hand"), ("tool", "eye_in_hand")])
def test_anybodys_simulation_draws_by_the_camera_that_was_measured(
    tmp_path: Path, frame: str, setup: str
) -> None:
    """Its pose counts in the frame of a body or site, wherever that is and goes."""
    T = looking(np.array([0.4, -0.3, 0.3]), np.zeros(3))
    calibration(tmp_path, front=measured("pincushion", T, setup))
    roles = tmp_path / "roles.yaml"
    roles.write_text(
        f"cameras: {{front: {{calibration: station.calibration.json, frame: {frame}}}}}\n"
    )
    with closing(GymWorld(Turns, WorldSpec(roles=roles))) as world:
        world.reset(seed=0)
        world.step(np.array([0.7]))
        shown, data = world.render(), world.data
        body, site = data.body("base"), data.site("tool")
        place = (body.xpos, body.xmat) if frame == "base" else (site.xpos, site.xmat)
        T_world_frame = np.eye(4)
        T_world_frame[:3, 3], T_world_frame[:3, :3] = place[0], place[1].reshape(3, 3)
        camera = MeasuredCamera.from_json(measured("pincushion", T_world_frame @ T), "")
        view, spec = View("seen", "seen", (424, 240), camera), mujoco.MjSpec.from_string(ARM)
        view.put_into(spec)
        model = spec.compile()
        there = mujoco.MjData(model)
        there.qpos[:] = data.qpos
        mujoco.mj_forward(model, there)
        with closing(LayeredCamera(model, "seen", 424, 240, view.lens)) as drawer:
            drawn = drawer.draw(there)
    assert shown.shape == (240, 424, 3)
    assert np.ptp(shown) > 50
    assert np.abs(shown.astype(int) - drawn).mean() < 0.1


def test_a_measured_camera_says_in_whose_frame_its_place_is(tmp_path: Path) -> None:
    calibration(tmp_path, front=measured("barrel", np.eye(4)))
    roles = tmp_path / "roles.yaml"
    roles.write_text("cameras: {front: {calibration: station.calibration.json}}\n")
    with pytest.raises(UnusableInputError, match=r"frame of the arm's base.*base"):
        GymWorld(Turns, WorldSpec(roles=roles))


def reprojection_px(lens: str) -> FloatArray:
    """Return how far balls at known places appear from where OpenCV projects them [px]."""
    T = looking(np.array([0.3, -0.4, 0.5]), np.array([0.1, 0.1, 0.0]))
    camera = MeasuredCamera.from_json(measured(lens, T), lens)
    spec = mujoco.MjSpec()
    View(lens, lens, (camera.width, camera.height), camera, lens).put_into(spec)
    spec.visual.headlight.ambient, spec.visual.headlight.diffuse = [1.0] * 3, [0.0] * 3
    pixels = np.stack(
        np.meshgrid(*(np.linspace(20, n - 21, 6) for n in (camera.width, camera.height))), -1
    )
    rays = cv2.undistortPoints(pixels.reshape(-1, 1, 2), camera.matrix, camera.distortion)
    depth = np.random.default_rng(0).uniform(0.4, 0.8, len(rays))[:, None]
    there = np.concatenate([rays[:, 0] * depth, depth], 1) @ T[:3, :3].T + T[:3, 3]
    for place in there:
        spec.worldbody.add_geom(
            type=mujoco.mjtGeom.mjGEOM_SPHERE, size=[BALL_M, 0, 0], pos=place, rgba=[0, 1, 0, 1]
        )
    model = spec.compile()
    data = mujoco.MjData(model)
    mujoco.mj_forward(model, data)
    drawer = LayeredCamera(model, lens, camera.width, camera.height, Lens(camera, lens))
    picture = drawer.draw(data)
    drawer.close()
    assert picture.shape == (camera.height, camera.width, 3)
    back = np.linalg.inv(T)
    turn, _ = cv2.Rodrigues(back[:3, :3])
    wanted, _ = cv2.projectPoints(there, turn, back[:3, 3], camera.matrix, camera.distortion)
    off = []
    green = picture[..., 1].astype(np.float64)
    for x, y in wanted[:, 0]:
        reach = 12
        rows, columns = (slice(max(0, round(c) - reach), round(c) + reach + 1) for c in (y, x))
        patch = green[rows, columns]
        at = np.argwhere(patch > -1) + np.array([rows.start, columns.start])
        row, column = (patch.reshape(-1, 1) * at).sum(axis=0) / patch.sum()
        off.append(np.hypot(column - x, row - y))
    return np.array(off)


@pytest.mark.members(1)
@pytest.mark.parametrize("lens", LENSES)
def test_a_measured_camera_shows_known_points_where_opencv_projects_them(lens: str) -> None:
    """Within half a pixel, in pictures of any aspect, up to their edges."""
    assert reprojection_px(lens).max() < 0.5


def test_a_camera_on_the_tool_and_one_beside_the_arm_are_where_they_were_measured() -> None:
    """`T_tcp_camera` follows the arm's own kinematics, `T_base_camera` stands still."""
    in_hand = np.eye(4)
    in_hand[:3, :3] = Rotation.from_rotvec([0.2, -0.3, 0.5]).as_matrix()
    in_hand[:3, 3] = 0.05, -0.02, -0.06
    beside = looking(np.array([0.6, -0.2, 0.4]), np.array([0.2, 0.0, 0.0]))
    cameras = {
        "wrist": {"calibration": {"id": "1", **measured("wide", in_hand, "eye_in_hand")}},
        "front": {"calibration": {"id": "1", **measured("barrel", beside)}},
    }
    with SimCell(cameras=cameras) as cell:
        T_tcp = ArmModel.load("so101").T_base_tcp(cell.data.qpos[cell._qpos])
        for view, T in zip(cell.views, (T_tcp @ in_hand, beside), strict=True):
            camera = cell.data.camera(view.in_model)
            turned = camera.xmat.reshape(3, 3) @ np.diag([1.0, -1.0, -1.0])
            np.testing.assert_allclose(camera.xpos, T[:3, 3], atol=2e-4)
            np.testing.assert_allclose(turned, T[:3, :3], atol=2e-3)


def test_further_cameras_change_no_bit_of_the_overhead_one() -> None:
    with SimCell(gaps={"visual_domain.exposure": 0.5}) as plain:
        gaps, shapes = {"visual_domain.exposure": 0.5}, [(192, 192, 3), (72, 128, 3)]
        with SimCell(gaps=gaps, cameras={"overhead": {}, "wrist": {"size_px": [128, 72]}}) as more:
            for cell in (plain, more):
                cell.command(cell.read().position_rad + 0.3)
                cell.advance(0.4)
            assert (plain.frame().image == more.frame("overhead").image).all()
            assert [more.frame(v.name).image.shape for v in more.views] == shapes


def test_a_camera_that_moves_is_drawn_whole() -> None:
    """Of a wrist camera in a scene file, what stood still was drawn as at the episode's start."""
    scene = load_scene(Path(__file__).parents[2] / "examples/scene/scene.yaml")
    camera = replace(scene.cameras[0], name="wrist_cam", eye_m=None, at_m=None, size_px=(64, 48))
    world = SceneWorld(replace(scene, cameras=(camera,)))
    world.reset(seed=0)
    for _ in range(10):
        world.step(world.action_of(world.home + 0.5))
    seen = world.pictures()["wrist_cam"]
    world.close()  # drawn anew
    assert (seen == world.pictures()["wrist_cam"]).all()
    world.close()


def test_a_scene_file_takes_a_camera_from_a_calibration(tmp_path: Path) -> None:
    at = looking(np.array([0.6, 0.0, 0.4]), np.array([0.2, 0.0, 0.0]))
    calibration(tmp_path, front=measured("pincushion", at))
    for name in ("bench.xml", "scene.yaml"):
        text = (Path(__file__).parents[2] / "examples/scene" / name).read_text()
        (tmp_path / name).write_text(text)
    said = (tmp_path / "scene.yaml").read_text()
    (line,) = [line for line in said.splitlines() if line.strip().startswith("front:")]
    said = said.replace(line, "  front: {calibration: station.calibration.json}")
    (tmp_path / "scene.yaml").write_text(said)
    world = SceneWorld(load_scene(tmp_path / "scene.yaml"))
    seen, _ = world.reset(seed=0)
    world.close()
    assert seen["pixels"]["front"].shape == (240, 424, 3)
    assert world.observation_space["pixels"]["front"].shape == (240, 424, 3)  # type: ignore[index]


def test_the_tracker_reads_the_nominal_overhead_camera_alone(tmp_path: Path) -> None:
    """Elsewhere nobody tracks the scene, as on a real arm."""
    file = calibration(tmp_path, overhead=measured("barrel"))
    for said, tracked in (
        ({}, True),
        ({"overhead": {}, "wrist": {}}, True),
        ({"wrist": {}}, False),
        ({"overhead": {"calibration": str(file)}}, False),
    ):
        rig = embedded_rig(cameras=read_cameras(said, "--robot.cameras"))
        assert (rig.tracker is not None) == tracked
        assert rig.calibration == ("sha256:1" if "calibration" in str(said) else "nominal")
        rig.close()


@pytest.mark.parametrize(
    ("said", "words"),
    [
        ({"side": {}}, "Unknown camera of the embedded cell 'side' in cameras"),
        ({"wrist": {"size": 3}}, "Unknown key 'size' in --robot.cameras, wrist"),
        ({"wrist": {"size_px": 3}}, "give size_px"),
        ({"side": {"calibration": "FILE"}}, "no intrinsics of camera 'side' (cameras in it: front"),
        ({"front": {"calibration": "FILE"}}, "gaploop calibrate hand_eye FOLDER"),
        ({"bent": {"calibration": "FILE"}}, "can't be inverted"),
    ],
)
def test_a_camera_that_cannot_be_is_refused(
    tmp_path: Path, said: dict[str, Any], words: str
) -> None:
    bent = measured("barrel", np.eye(4))
    bent["intrinsics"]["distortion"] = [-2.0, 0.0, 0.0, 0.0, 0.0]
    file = calibration(tmp_path, front=measured("barrel"), bent=bent)
    given = json.loads(json.dumps(said).replace("FILE", str(file)))
    with pytest.raises(UnusableInputError) as refused:
        SimCell(cameras=read_cameras(given, "--robot.cameras"))
    assert words in str(refused.value)
