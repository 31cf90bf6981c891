"""Ways to damage a LeRobot v3 dataset, each with what `check` must say and what repair saves."""

from __future__ import annotations

import json
import shlex
import shutil
import subprocess
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from pathlib import Path
from types import MappingProxyType
from typing import Any

import av
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from gaploop.datasets.check.findings import Finding
from gaploop.scripts.cli import main

EPISODES = "meta/episodes"


@dataclass(frozen=True)
class Damage:
    """One way.

    Attributes:
        plant: damages the dataset in a folder.
        code: a finding that `check` must report.
        keeps: from the number of episodes before to how many repair keeps at least.
        exact: whether it keeps no more than that.
    """

    plant: Callable[[Path], object]
    code: str
    keeps: Callable[[int], int] = lambda n: n
    exact: bool = True


FPS = 20
CAMERA = "observation.images.front"


def record(
    root: Path,
    episodes: int = 4,
    frames: int = 12,
    *,
    fault: str = "",
    videos: bool = True,
    cameras: int = 1,
    more: Mapping[str, tuple[int, ...]] = MappingProxyType({}),
    bright: Sequence[int] = (),
    radians: Sequence[int] = (),
) -> Path:
    """Record with LeRobot's own writer: an arm that follows its leader, with cameras.

    Args:
        root: where to.
        episodes: how many.
        frames: of each.
        fault: in all episodes, `dead` (a joint's state stays), `clipped` (it stops at a limit),
            `held` (the gripper stops at what it holds, the arm sags below an action that rests),
            `late` (the arm follows after 0.5 s) or `early`; in episode 1, `frozen` (the picture
            stays) or `stalled` (all joints' states stay for a second).
        videos: whether pictures are stored as videos.
        cameras: how many; each sees brighter pictures than the one before.
        more: features of noise, name to shape.
        radians: episodes whose joints are in radians, not in degrees.
        bright: of each episode, how bright its pictures are throughout, 0 to 255.
    """
    from lerobot.datasets.lerobot_dataset import LeRobotDataset

    joints = {"dtype": "float32", "shape": (3,), "names": ["pan.pos", "lift.pos", "gripper.pos"]}
    picture = {"shape": (48, 64, 3), "names": ["height", "width", "channels"]}
    camera = {"dtype": "video" if videos else "image", **picture}
    names = [CAMERA, *(f"{CAMERA}_{i}" for i in range(1, cameras))]
    features = {"action": joints, "observation.state": joints, **dict.fromkeys(names, camera)}
    features |= {n: {"dtype": "float32", "shape": s, "names": None} for n, s in more.items()}
    dataset = LeRobotDataset.create(
        "me/x", FPS, features, root=root, robot_type="so101", use_videos=videos
    )
    draw = np.random.default_rng(0)
    lag = {"late": 10, "early": -4}.get(fault, 1)
    for episode in range(episodes):
        phase, noise = draw.uniform(0, 6, 3), draw.normal(0, 0.1, (frames, 3))
        time = np.arange(frames)[:, None]
        action = 40 * np.sin(time / 6 + phase)
        state = 40 * np.sin((time - lag) / 6 + phase) + noise
        pictures = draw.integers(0, 255, (frames, 48, 64, 3), dtype=np.uint8)
        if episode in radians:
            action, state = np.radians(action), np.radians(state)
        if bright:
            pictures = pictures // 16 + np.uint8(bright[episode])
        if fault == "dead":
            state[:, 1] = 3.25
        elif fault == "clipped":
            state[:, 1] = np.minimum(state[:, 1], 20)
        elif fault == "held":
            state[:, 2] = np.maximum(state[:, 2], -15)
            action[:, 1] = np.minimum(action[:, 1], 20)
        elif fault == "frozen" and episode == 1:
            pictures[:] = pictures[0]
        elif fault == "stalled" and episode == 1:
            state[5:30] = state[5]
        for k in range(frames):
            values = {"action": np.float32(action[k]), "observation.state": np.float32(state[k])}
            shown = {n: pictures[k] // cameras * (i + 1) for i, n in enumerate(names)}
            values |= {n: draw.normal(size=s).astype(np.float32) for n, s in more.items()}
            dataset.add_frame({**values, **shown, "task": f"Task {episode % 2}"})
        dataset.save_episode()
    dataset.finalize()
    return root


def run_fix(finding: Finding, old: Path | None = None) -> Path:
    """Run what a finding prints, as a user would in a shell; return the folder that is right then.

    Args:
        finding: of `check`.
        old: what a user puts in the place of OLD.
    """
    words = shlex.split(finding.fix, comments=True)
    if words[0] == "mv":
        subprocess.run(words, check=True)
        return Path(words[1]).parent
    assert words[0] == "gaploop", finding
    code = main([w.replace("=OLD", f"={old}") for w in words[1:]])
    assert code == 0, finding
    out = [w.removeprefix("--output_dir=") for w in words if w.startswith("--output_dir=")]
    return Path(out[0] if out else next(w for w in words if w.startswith("/")))


def data_files(root: Path) -> list[Path]:
    return sorted((root / "data").glob("*/*.parquet"))


def episode_files(root: Path) -> list[Path]:
    return sorted((root / EPISODES).glob("*/*.parquet"))


def video_files(root: Path) -> list[Path]:
    return sorted((root / "videos").glob("*/*/*.mp4"))


def cut(path: Path, share: float = 0.6) -> None:
    data = path.read_bytes()
    path.write_bytes(data[: int(len(data) * share)])


def info(root: Path) -> dict[str, Any]:
    value: dict[str, Any] = json.loads((root / "meta/info.json").read_text())
    return value


def set_info(root: Path, **changes: object) -> None:
    (root / "meta/info.json").write_text(json.dumps({**info(root), **changes}))


def change(path: Path, name: str, edit: Callable[[list[Any]], list[Any]]) -> None:
    table = pq.read_table(path, partitioning=None)
    field = table.schema.field(name)
    values = pa.array(edit(table[name].to_pylist()), type=field.type)
    pq.write_table(table.set_column(table.column_names.index(name), field, values), path)


def rename_column(path: Path, old: str, new: str) -> None:
    table = pq.read_table(path, partitioning=None)
    names = [new if n == old else n for n in table.column_names]
    pq.write_table(table.rename_columns(names).replace_schema_metadata(None), path)


def rename_feature(root: Path, old: str, new: str) -> None:
    set_info(root, features={new if k == old else k: f for k, f in info(root)["features"].items()})


def rename_everywhere(root: Path) -> None:
    rename_feature(root, "action", "actions")
    for path in data_files(root):
        rename_column(path, "action", "actions")


def shuffled(values: list[Any]) -> list[Any]:
    return [values[i] for i in np.random.default_rng(0).permutation(len(values))]


def shuffle_rows(root: Path) -> None:
    for path in data_files(root):
        table = pq.read_table(path, partitioning=None)
        order = np.random.default_rng(0).permutation(len(table))
        pq.write_table(table.take(pa.array(order)), path)


def wrong_stats(root: Path) -> None:
    path = root / "meta/stats.json"
    stats = json.loads(path.read_text())
    stats["action"]["mean"] = [m + 7 for m in stats["action"]["mean"]]
    stats["observation.state"]["std"] = [3 * s for s in stats["observation.state"]["std"]]
    path.write_text(json.dumps(stats))


def wrong_name_of_videos(root: Path) -> None:
    if (root / "videos").exists():
        (root / "videos").rename(root / "video")
    else:
        (root / "video").mkdir()


def uneven(path: Path, fps: int) -> None:
    """Show the pictures of a video at uneven times, as a camera of variable rate has them."""
    part = path.with_suffix(".part.mp4")
    with av.open(str(path)) as old, av.open(str(part), "w") as new:
        stream = new.add_stream_from_template(old.streams.video[0], opaque=True)
        ticks = 1 / (Fraction(fps) * 512)
        for k, packet in enumerate(p for p in old.demux(video=0) if p.size):
            at = 512 * k + (100 if k % 4 == 1 else 0)
            packet.time_base, packet.pts, packet.dts, packet.stream = ticks, at, at, stream
            new.mux(packet)
    part.replace(path)


def rows_twice(root: Path) -> None:
    """What a retry after a failed encode leaves: the last episode's rows stand there twice."""
    path = data_files(root)[-1]
    table = pq.read_table(path, partitioning=None)
    last = table["episode_index"].to_numpy().max()
    pq.write_table(pa.concat_tables([table, table.filter(pa.array(_is(table, last)))]), path)


def _is(table: pa.Table, episode: int) -> Any:
    return table["episode_index"].to_numpy() == episode


def row_of_table_twice(root: Path) -> None:
    path = episode_files(root)[0]
    table = pq.read_table(path, partitioning=None)
    pq.write_table(pa.concat_tables([table, table.slice(0, 1)]), path)


def same_episode_again(root: Path) -> None:
    """Episode 0 appended as a new one, with everything counted as it should be."""
    data, meta = data_files(root), episode_files(root)
    table = pq.read_table(data[0], partitioning=None)
    copy = table.filter(pa.array(_is(table, 0)))
    last = pq.read_table(data[-1], partitioning=None)
    old = info(root)
    new, first = old["total_episodes"], old["total_frames"]
    for name, values in (
        ("episode_index", np.full(len(copy), new)),
        ("index", first + np.arange(len(copy))),
    ):
        at = copy.column_names.index(name)
        copy = copy.set_column(at, copy.schema.field(name), pa.array(values))
    pq.write_table(pa.concat_tables([last, copy]), data[-1])
    rows = pq.read_table(meta[-1], partitioning=None)
    place = {n: rows[n][-1].as_py() for n in ("data/chunk_index", "data/file_index")}
    row = pq.read_table(meta[0], partitioning=None).slice(0, 1).to_pylist()[0]
    row |= place | {
        "episode_index": new,
        "dataset_from_index": first,
        "dataset_to_index": first + len(copy),
    }
    pq.write_table(pa.concat_tables([rows, pa.Table.from_pylist([row], rows.schema)]), meta[-1])
    set_info(root, total_episodes=new + 1, total_frames=first + len(copy))


def killed(root: Path) -> None:
    """What LeRobot leaves when it is killed: open tables without an end."""
    cut(data_files(root)[-1], 0.999)
    shutil.rmtree(root / EPISODES)


def with_nan(root: Path) -> None:
    def spoil(values: list[Any]) -> list[Any]:
        return [[float("nan")] * len(values[0]), *values[1:]]

    change(data_files(root)[0], "observation.state", spoil)


DAMAGES: dict[str, Damage] = {
    "truncated data": Damage(
        lambda r: cut(data_files(r)[-1]), "unreadable", lambda n: n // 4, False
    ),
    "truncated episode table": Damage(lambda r: cut(episode_files(r)[-1]), "unreadable"),
    "wrong stats": Damage(wrong_stats, "wrong_stats"),
    "missing stats": Damage(lambda r: (r / "meta/stats.json").unlink(), "missing_stats"),
    "missing info": Damage(lambda r: (r / "meta/info.json").unlink(), "missing_info"),
    "missing episode table": Damage(lambda r: shutil.rmtree(r / EPISODES), "missing_episodes"),
    "missing tasks": Damage(lambda r: (r / "meta/tasks.parquet").unlink(), "missing_tasks"),
    "missing meta": Damage(lambda r: shutil.rmtree(r / "meta"), "missing_info"),
    "video for videos": Damage(wrong_name_of_videos, "misnamed_folder"),
    "misnamed key in info": Damage(
        lambda r: rename_feature(r, "observation.state", "observation.stat"), "missing_feature"
    ),
    "misnamed key in data": Damage(
        lambda r: [rename_column(p, "observation.state", "state") for p in data_files(r)],
        "missing_column",
    ),
    "misnamed key everywhere": Damage(rename_everywhere, "missing_feature"),
    "wrong fps": Damage(lambda r: set_info(r, fps=2 * info(r)["fps"]), "bad_timestamp"),
    "shuffled timestamps": Damage(
        lambda r: [change(p, "timestamp", shuffled) for p in data_files(r)], "bad_timestamp"
    ),
    "shuffled rows": Damage(shuffle_rows, "bad_rows"),
    "rows written twice": Damage(rows_twice, "bad_rows"),
    "episode listed twice": Damage(row_of_table_twice, "episode_numbers"),
    "duplicate episode": Damage(same_episode_again, "duplicate_episode"),
    "counts of a killed session": Damage(
        lambda r: set_info(r, total_episodes=info(r)["total_episodes"] + 3), "episode_count"
    ),
    "killed": Damage(killed, "missing_episodes", lambda n: n - 1, False),
    "NaN": Damage(with_nan, "not_finite", lambda n: n - 1),
}
"""What can be planted in any dataset, with videos or without."""

VIDEO_DAMAGES: dict[str, Damage] = {
    "missing video": Damage(lambda r: video_files(r)[0].unlink(), "missing_video"),
    "camera folder misnamed": Damage(
        lambda r: video_files(r)[0].parents[1].rename(r / "videos/observation.images.frnt"),
        "missing_video",
    ),
    "truncated video": Damage(
        lambda r: cut(video_files(r)[0]), "video_too_short", lambda n: n // 4, False
    ),
}
