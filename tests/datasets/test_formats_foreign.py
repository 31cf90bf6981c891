"""Recordings that gaploop didn't write: read as they are, and asked about what they don't say."""

from __future__ import annotations

import base64
import json
from pathlib import Path
from typing import Any

import cv2
import h5py
import numpy as np
import pytest
import zarr
from mcap.writer import Writer as JsonWriter
from mcap_ros2.writer import Writer as RosWriter
from zarr.storage import ZipStore

from gaploop.core.errors import UnusableInputError
from gaploop.core.take import Take
from gaploop.core.vocabulary import Domain, Outcome, TakeKind
from gaploop.datasets.check.dataset import check
from gaploop.datasets.check.findings import ERROR
from gaploop.datasets.formats.dataset import write_dataset
from gaploop.datasets.formats.mcap import read_mcap
from gaploop.datasets.formats.model import ForeignRecording, ImportSettings
from gaploop.datasets.formats.registry import LAYOUTS, guess
from gaploop.datasets.layout import read_info
from gaploop.datasets.lerobot_read import read_takes
from gaploop.scripts.cli import main

RNG = np.random.default_rng(0)
KNOWN = ImportSettings(fps=20.0, units="rad", task="push")
JOINT_STATE = """
std_msgs/Header header
string[] name
float64[] position
float64[] velocity
float64[] effort
================================================================================
MSG: std_msgs/Header
builtin_interfaces/Time stamp
string frame_id
================================================================================
MSG: builtin_interfaces/Time
int32 sec
uint32 nanosec
"""
COMPRESSED = (
    "std_msgs/Header header\nstring format\nuint8[] data\n"
    + JOINT_STATE[JOINT_STATE.index("=" * 20) :]
)


def written(incoming: ForeignRecording, target: Path) -> list[Take]:
    write_dataset(incoming, target)
    assert [f for f in check(target) if f.severity == ERROR] == []
    return list(read_takes(target))


def picture(k: int) -> np.ndarray:
    """Return a picture, 30 pixels high and 41 wide, that shows which one it is."""
    return np.dstack([np.full((30, 41), v, np.uint8) for v in (20 * k % 250, 90, 250 - 7 * k)])


@pytest.fixture
def pusht(tmp_path: Path) -> Path:
    """As pusht_cchi_v7_replay.zarr is: float32 pictures, float32 state of 5, key points."""
    root = zarr.open_group(tmp_path / "pusht.zarr", mode="w", zarr_format=2)
    data = root.create_group("data")
    arrays = {
        "img": np.stack([picture(k) for k in range(9)]).astype(np.float32),
        "state": RNG.normal(size=(9, 5)).astype(np.float32),
        "action": RNG.normal(size=(9, 2)),
        "keypoint": RNG.normal(size=(9, 3, 2)).astype(np.float32),
        "n_contacts": np.arange(9, dtype=np.float32)[:, None],
    }
    for name, values in arrays.items():
        data.create_array(name, data=values, chunks=(4, *values.shape[1:]))
    root.create_group("meta").create_array("episode_ends", data=np.array([5, 9]))
    return tmp_path / "pusht.zarr"


def test_a_diffusion_policy_buffer(pusht: Path, tmp_path: Path) -> None:
    assert guess(pusht) == "diffusion_policy"
    takes = written(LAYOUTS["diffusion_policy"].read(pusht, KNOWN), tmp_path / "out")
    root = zarr.open_group(pusht, mode="r")
    assert [len(t.frames) for t in takes] == [5, 4]
    np.testing.assert_array_equal(
        takes[1].frames.action, root["data/action"][5:].astype(np.float32)
    )
    np.testing.assert_array_equal(takes[1].frames.state, root["data/state"][5:])
    for k, shown in enumerate(takes[1].cameras["img"](), 5):
        np.testing.assert_array_equal(shown, picture(k))
    assert {(t.info.units, t.info.task, t.info.kind) for t in takes} == {
        ("rad", "push", TakeKind.IMPORT)
    }
    info = read_info(tmp_path / "out")
    assert info.features["extra.keypoint"]["shape"] == [6]
    again = LAYOUTS["diffusion_policy"].read(pusht, KNOWN).episodes()
    assert [t.info.uid for t in takes] == [e.uid for e in again]


@pytest.mark.parametrize(
    ("settings", "says"),
    [
        (ImportSettings(units="rad"), "--fps"),
        (ImportSettings(fps=10.0), "--units"),
        (ImportSettings(fps=12.5, units="rad"), "whole number"),
        (
            ImportSettings(10.0, "rad", keys={"observation.state": ("stat",)}),
            "keypoint, n_contacts, state",
        ),
    ],
)
def test_what_a_buffer_does_not_say_is_asked_for(
    settings: ImportSettings, says: str, pusht: Path
) -> None:
    with pytest.raises(UnusableInputError, match=says) as caught:
        LAYOUTS["diffusion_policy"].read(pusht, settings)
    assert "\n" not in str(caught.value)


def test_an_ambiguous_state_is_asked_for(pusht: Path) -> None:
    data = zarr.open_group(pusht, mode="a")["data"]
    data.create_array("agent_pos", data=np.zeros((9, 2), np.float32))
    with pytest.raises(UnusableInputError, match=r"which of .* is observation.state"):
        LAYOUTS["diffusion_policy"].read(pusht, KNOWN)
    chosen = ImportSettings(20.0, "rad", keys={"observation.state": ("agent_pos", "n_contacts")})
    episode = next(LAYOUTS["diffusion_policy"].read(pusht, chosen).episodes())
    assert episode.columns["observation.state"].shape == (5, 3)


def test_a_umi_buffer_with_jpeg_xl_pictures(tmp_path: Path) -> None:
    """As UMI's own pipeline writes it: no action, pictures as JPEG XL, one a chunk."""
    from imagecodecs.numcodecs import Jpegxl

    path, n = tmp_path / "demo.zarr.zip", 6
    pose = {
        f"robot{r}_{part}": RNG.normal(size=(n, width)).astype(np.float32)
        for r in range(2)
        for part, width in (("eef_pos", 3), ("eef_rot_axis_angle", 3), ("gripper_width", 1))
    }
    with ZipStore(path, mode="w") as store:
        root = zarr.create_group(store, zarr_format=2)
        data = root.create_group("data")
        for name, values in pose.items():
            data.create_array(name, data=values)
        seen = data.create_array(
            "camera0_rgb",
            shape=(n, 30, 41, 3),
            chunks=(1, 30, 41, 3),
            dtype="uint8",
            compressors=Jpegxl(level=99, lossless=True),
        )
        for k in range(n):
            seen[k] = picture(k)
        root.create_group("meta").create_array("episode_ends", data=np.array([2, 6]))
    assert guess(path) == "umi"
    incoming = LAYOUTS["umi"].read(path, ImportSettings(fps=60.0))
    takes = written(incoming, tmp_path / "out")
    wanted = np.concatenate(list(pose.values()), axis=1)
    np.testing.assert_array_equal(takes[1].frames.state, wanted[2:])
    np.testing.assert_array_equal(takes[1].frames.action, wanted[2:])
    assert takes[0].info.units == "m, rad"
    for k, shown in enumerate(takes[1].cameras["camera0"](), 2):
        np.testing.assert_array_equal(shown, picture(k))


def aloha(folder: Path, numbers: tuple[int, ...] = (0, 1), **attributes: Any) -> Path:
    folder.mkdir()
    for k in numbers:
        with h5py.File(folder / f"episode_{k}.hdf5", "w") as root:
            root.attrs.update({"sim": False, **attributes})
            root["action"] = RNG.normal(size=(4 + k, 14))
            root["observations/qpos"] = RNG.normal(size=(4 + k, 14))
            root["observations/qvel"] = np.zeros((4 + k, 14))
            root["observations/images/cam_high"] = np.stack([picture(i) for i in range(4 + k)])
    return folder


def test_aloha_episodes_in_the_order_of_their_numbers(tmp_path: Path) -> None:
    source = aloha(tmp_path / "raw", (0, 2, 10))
    settings = ImportSettings(50.0, "rad", outcome=Outcome.SUCCESS)
    takes = written(LAYOUTS["aloha"].read(source, settings), tmp_path / "out")
    assert [len(t.frames) for t in takes] == [4, 6, 14]
    assert {(t.info.domain, t.outcome) for t in takes} == {(Domain.REAL, Outcome.SUCCESS)}
    with h5py.File(source / "episode_10.hdf5") as root:
        wanted = root["action"][:].astype(np.float32)
    np.testing.assert_array_equal(takes[2].frames.action, wanted)
    np.testing.assert_array_equal(next(iter(takes[2].cameras["cam_high"]())), picture(0))


def test_aloha_with_nan_is_refused_and_nothing_stays(tmp_path: Path, capsys: Any) -> None:
    source, out = aloha(tmp_path / "raw"), tmp_path / "out"
    with h5py.File(source / "episode_1.hdf5", "a") as root:
        root["action"][3, 2] = np.nan
    argv = ["convert", str(source), "--fps=50", "--units=rad", f"--output_dir={out}"]
    assert main(argv) == 2
    (line,) = capsys.readouterr().err.strip().splitlines()
    assert "action holds NaN" in line
    assert "row 3" in line
    assert sorted(p.name for p in tmp_path.iterdir() if "lock" not in p.name) == ["raw"]


@pytest.fixture
def robosuite(tmp_path: Path) -> Path:
    path = tmp_path / "low_dim.hdf5"
    with h5py.File(path, "w") as file:
        data = file.create_group("data")
        env = {"env_name": "Lift", "type": 1, "env_kwargs": {"control_freq": 20, "robots": "Panda"}}
        data.attrs["env_args"], data.attrs["total"] = json.dumps(env), 3 * 5
        for k in (0, 2, 10):
            demo = data.create_group(f"demo_{k}")
            demo.attrs["num_samples"] = 5
            demo["actions"] = np.full((5, 7), k / 10)
            for key, width in (
                ("robot0_eef_pos", 3),
                ("robot0_eef_quat", 4),
                ("robot0_gripper_qpos", 2),
                ("object", 10),
                ("robot0_joint_vel", 7),
            ):
                demo[f"obs/{key}"] = RNG.normal(size=(5, width))
            demo["obs/agentview_image"] = np.stack([picture(i) for i in range(5)])
    return path


def test_robomimic_as_its_default_config_reads_it(robosuite: Path, tmp_path: Path) -> None:
    assert guess(robosuite) == "robomimic"
    incoming = LAYOUTS["robomimic"].read(robosuite, ImportSettings(units="unknown"))
    assert any("control_freq" in note for note in incoming.notes)
    takes = written(incoming, tmp_path / "out")
    assert [float(t.frames.action[0, 0]) for t in takes] == pytest.approx([0.0, 0.2, 1.0])
    assert takes[0].frames.state.shape == (5, 9)
    assert takes[0].frames.environment_state.shape == (5, 10)
    assert {(t.info.domain, t.info.fps, t.info.units, t.info.robot_type) for t in takes} == {
        (Domain.SIM, 20.0, "", "panda")
    }
    np.testing.assert_array_equal(list(takes[1].cameras["agentview"]())[3], picture(3))


def test_the_action_of_robomimic_is_no_choice(robosuite: Path) -> None:
    keys = {"action": ("robot0_joint_vel",)}
    with pytest.raises(UnusableInputError, match=r"Leave action out of --rename_map"):
        LAYOUTS["robomimic"].read(robosuite, ImportSettings(units="unknown", keys=keys))


@pytest.mark.parametrize(
    ("name", "option"),
    [
        ("aloha", "--rename_map={qvel: observation.state}"),
        ("umi", "--rename_map={qvel: observation.state}"),
        ("umi", "--drop_videos"),
        ("lerobot", "--units=degrees"),
    ],
)
def test_an_option_that_a_format_does_not_heed_is_refused(
    name: str, option: str, tmp_path: Path, capsys: Any
) -> None:
    argv = ["convert", str(tmp_path), f"--from={name}", f"--output_dir={tmp_path / 'out'}"]
    assert main([*argv, option]) == 2
    (line,) = capsys.readouterr().err.strip().splitlines()
    assert option.partition("=")[0] + " is for" in line


def bag(path: Path, *, action_first_s: float = 0.0, names: str = "ab") -> Path:
    """Joint states at 100 Hz, commands at 20 Hz, JPEG pictures at 10 Hz, for one second."""
    messages: list[tuple[float, str, Any]] = []
    for k in range(101):
        speeds = [1.0, -1.0, 2.0][: len(names)]
        state = {"name": list(names), "position": [k / 100, -k / 100], "velocity": speeds}
        messages.append((k / 100, "/joint_states", {**state, "effort": []}))
    for k in range(21):
        if k / 20 >= action_first_s:
            command = {"name": ["a", "b"], "position": [k / 20 + 1, 0.0]}
            messages.append((k / 20, "/leader", {**command, "velocity": [], "effort": []}))
    for k in range(11):
        _, packed = cv2.imencode(".png", picture(k)[..., ::-1])
        content = {"format": "png", "data": packed.tobytes()}
        messages.append((k / 10, "/cam/image_raw/compressed", content))
    header = {"stamp": {"sec": 0, "nanosec": 0}, "frame_id": ""}
    with path.open("wb") as stream:
        writer = RosWriter(stream)
        joints = writer.register_msgdef("sensor_msgs/msg/JointState", JOINT_STATE)
        pictures = writer.register_msgdef("sensor_msgs/msg/CompressedImage", COMPRESSED)
        for t_s, topic, content in sorted(messages, key=lambda m: m[0]):
            schema = pictures if topic.startswith("/cam") else joints
            t_ns = 1_700_000_000_000_000_000 + round(t_s * 1e9)
            writer.write_message(topic, schema, {"header": header, **content}, t_ns)
        writer.finish()
    return path


def test_a_ros_bag_on_one_clock(tmp_path: Path) -> None:
    """Never a message from the future; how old a picture is, is said."""
    path = bag(tmp_path / "run.mcap")
    settings = ImportSettings(fps=25.0, keys={"action": ("/leader",)})
    incoming = read_mcap(path, settings)
    assert any("JointState" in note for note in incoming.notes)
    (take,) = written(incoming, tmp_path / "out")
    t_s = np.arange(26) / 25
    np.testing.assert_allclose(take.frames.state[:, 0], np.floor(t_s * 100 + 1e-6) / 100, atol=1e-6)
    np.testing.assert_allclose(
        take.frames.action[:, 0], np.floor(t_s * 20 + 1e-6) / 20 + 1, atol=1e-6
    )
    newest = np.floor(t_s * 10 + 1e-6).astype(int)
    np.testing.assert_allclose(take.frames.camera_age_s["cam"], t_s - newest / 10, atol=1e-6)
    for k, shown in zip(newest, take.cameras["cam"](), strict=True):
        np.testing.assert_array_equal(shown, picture(int(k)))
    assert take.info.units == "rad"
    assert take.info.t0_ns == 1_700_000_000_000_000_000
    assert take.telemetry.stack("follower", "position_rad").shape == (101, 2)
    np.testing.assert_array_equal(take.telemetry.columns["follower.a.velocity_rad_s"], 1.0)


def test_a_speed_of_what_never_says_where_it_is_is_left_out(tmp_path: Path) -> None:
    """A wheel that only turns ended the import in a bare KeyError."""
    path = bag(tmp_path / "run.mcap", names="abc")
    incoming = read_mcap(path, ImportSettings(25.0, keys={"action": ("/leader",)}))
    (take,) = written(incoming, tmp_path / "out")
    assert take.info.joint_names == ("a", "b")
    np.testing.assert_array_equal(take.telemetry.columns["follower.b.velocity_rad_s"], -1.0)


def test_a_bag_begins_when_every_topic_is_there(tmp_path: Path) -> None:
    path = bag(tmp_path / "run.mcap", action_first_s=0.5)
    episode = next(read_mcap(path, ImportSettings(25.0, keys={"action": ("/leader",)})).episodes())
    assert episode.length == 13
    assert episode.row["gap_t0_ns"] == 1_700_000_000_500_000_000


def test_a_bag_does_not_guess_its_action(tmp_path: Path, capsys: Any) -> None:
    path = bag(tmp_path / "run.mcap")
    assert main(["convert", str(path), "--fps=25", f"--output_dir={tmp_path / 'out'}"]) == 2
    (line,) = capsys.readouterr().err.strip().splitlines()
    assert "/joint_states (sensor_msgs/msg/JointState)" in line
    assert "/leader" in line
    with pytest.raises(UnusableInputError, match=r"no topic /lader .*There are: /joint_states"):
        read_mcap(path, ImportSettings(25.0, keys={"action": ("/lader",)}))


def test_json_messages(tmp_path: Path) -> None:
    path = tmp_path / "log.mcap"
    _, packed = cv2.imencode(".png", picture(3)[..., ::-1])
    with path.open("wb") as stream:
        writer = JsonWriter(stream)
        writer.start()
        schema = writer.register_schema("any", "jsonschema", b"{}")
        channels = {
            t: writer.register_channel(t, "json", schema) for t in ("/state", "/command", "/eye")
        }
        for k in range(5):
            eye = {"format": "png", "data": base64.b64encode(packed.tobytes()).decode()}
            contents = {"/state": {"x": k, "y": 2.0}, "/command": {"data": [k + 1.0]}, "/eye": eye}
            for topic, content in contents.items():
                data = json.dumps(content).encode()
                writer.add_message(channels[topic], k * 10**8, data, k * 10**8)
        writer.finish()
    keys = {"action": ("/command",), "observation.state": ("/state",)}
    with pytest.raises(UnusableInputError, match="--units"):
        read_mcap(path, ImportSettings(10.0, keys=keys))
    (episode,) = read_mcap(path, ImportSettings(10.0, "m", keys=keys)).episodes()
    np.testing.assert_array_equal(episode.columns["observation.state"][:, 0], np.arange(5))
    np.testing.assert_array_equal(episode.columns["action"][:, 0], np.arange(5) + 1)
    np.testing.assert_array_equal(
        next(iter(episode.pictures["observation.images.eye"]())), picture(3)
    )


@pytest.mark.parametrize(
    ("name", "content", "says"),
    [
        ("cut.mcap", None, "mcap recover"),
        ("noise.hdf5", b"noise", "doesn't show its format"),
        ("noise.zarr.zip", b"noise", "doesn't show its format"),
        ("missing.hdf5", b"", "not found"),
    ],
)
def test_damaged_sources_get_one_line(
    name: str, content: bytes | None, says: str, tmp_path: Path, capsys: Any
) -> None:
    source = tmp_path / name
    if content is None:
        whole = bag(tmp_path / "whole.mcap").read_bytes()
        source.write_bytes(whole[: len(whole) // 2])
    elif content:
        source.write_bytes(content)
    argv = ["convert", str(source), "--fps=25", f"--output_dir={tmp_path / 'out'}"]
    assert main(argv) == 2
    (line,) = capsys.readouterr().err.strip().splitlines()
    assert says in line
    assert not (tmp_path / "out").exists()
