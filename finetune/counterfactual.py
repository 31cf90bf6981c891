"""A failed episode beside the twin's rollout of its scene, and that without the blamed cause.

Object and target lie where the twin's own tracker reads them as the episode's first pictures did.
An episode whose scene nobody tracked stands beside another scene, and the caption says so.
"""

import contextlib
import io
import itertools
from collections.abc import Mapping, Sequence
from dataclasses import replace
from fractions import Fraction
from pathlib import Path
from typing import Final

import av
import cv2
import numpy as np

from gaploop.collect.policy_leader import PolicyLeader
from gaploop.collect.rig import EmbeddedRig
from gaploop.collect.take import run_take
from gaploop.core.messages import FloatArray, Image
from gaploop.core.protocols import Policy
from gaploop.core.take import TRACKED_SCENE, Take
from gaploop.core.twin import Twin
from gaploop.core.vocabulary import Outcome
from gaploop.failure_analysis.diagnosis import Diagnosis
from gaploop.failure_analysis.station import cause_words
from gaploop.finetune.evaluate import EVALUATION_SEEDS, MAX_S, CellSpec, rig_of
from gaploop.finetune.lerobot_policy import load_policy
from gaploop.finetune.reproduction import SCENES
from gaploop.sim.catalogue import find_task
from gaploop.sim.kinematics import from_polar

LEAST_POINTS: Final = 0.10
"""Share of all rollouts that a cause must cost to be shown."""
TRIES: Final = 3
"""Episodes that are looked at until one fails in the twin, and succeeds without the cause."""
LAYS: Final = 3
"""Times that things are laid nearer to where they were tracked."""
FPS: Final = Fraction(25, 2)
PANEL_PX: Final = 240
CODEC: Final = {"crf": "36", "deadline": "realtime", "cpu-used": "5"}


def counterfactuals(
    found: Diagnosis, takes: Sequence[Take], twin: Twin, policy: str | Path, camera: str = ""
) -> list[tuple[bytes, str]]:
    """Return a video with its caption for each measured cause that costs more than ten points.

    Args:
        camera: whose pictures are shown; the first one's unless given.

    Returns:
        WebM of three panels: the episode, the twin, the twin without the cause.
    """
    driver, made = load_policy(policy), []
    by_uid = {take.info.uid: take for take in takes if take.cameras}
    for cost in found.summary.get("reproduction", {}).get("costs", ()):
        if cost["name"] not in twin.mechanisms or cost["points"][0] <= LEAST_POINTS:
            continue
        failed = [t for t in found.takes if t.uid in by_uid and t.failed]
        failed.sort(key=lambda t: (-t.dimensions.get(cost["cause"], 0.0), t.uid))
        mine, name = (cost["name"],), cause_words(cost["name"]).replace(".", ": ")
        rest = tuple(m for m in twin.mechanisms if m not in mine)
        # Where the others suffice for a failure, what the cause does shows beside none of them.
        ways = [(twin.mechanisms, rest, "the twin"), (mine, (), f"the twin with only {name}")]
        clips: list[Sequence[Image]] = []
        caption, is_clear = "", False
        for (*cells, words), (k, told) in itertools.product(
            ways[: 1 + bool(rest)], enumerate(failed[:TRIES])
        ):
            take = by_uid[told.uid]
            driver.task = take.info.task
            if not (station := _recorded(take, camera)):
                continue
            (twins, won), (others, won_without) = (
                _rolled_out(take, twin, cell, driver, SCENES + k) for cell in cells
            )
            is_clear = won_without and not won
            if is_clear or not clips:
                clips = [station, twins, others]
                at = f"episode {take.episode}" if take.episode is not None else take.info.uid[:13]
                scene = "the same scene" if _tracked(take) else "another scene (none was tracked)"
                caption = (
                    f"{name}: {at} at the station; {words} in {scene}, which {_ends(won)}; "
                    f"without {name}, which {_ends(won_without)}."
                )
            if is_clear:
                break
        if clips:
            made.append(
                (_video(dict(zip(("station", "twin", "without"), clips, strict=True))), caption)
            )
    return made


def _ends(won: bool) -> str:
    return "succeeds" if won else "fails"


def _tracked(take: Take) -> dict[str, float]:
    """Return the scene as the take's first row has it, by the tracker's names; {} without."""
    names, rows = take.frames.environment_names, take.frames.environment_state
    if not len(rows) or not set(TRACKED_SCENE) <= set(names):
        return {}
    return dict(zip(names, np.asarray(rows[0], dtype=float).tolist(), strict=True))


def _places(tracked: Mapping[str, float]) -> FloatArray:
    """Return where object and target lie [m], shape (4,)."""
    at = [
        from_polar(tracked[f"{name}_azimuth_rad"], tracked[f"{name}_radius_m"])
        for name in ("object", "target")
    ]
    return np.concatenate(at)


def _lay(rig: EmbeddedRig, wanted: Mapping[str, float]) -> None:
    """Lay object and target where the rig's own tracker reads them as `wanted`."""
    assert rig.tracker is not None
    at = _places(wanted)
    for _ in range(LAYS):
        yaw_rad = wanted["object_yaw_rad"] + wanted["object_azimuth_rad"]
        rig.cell.lay(at[:2], yaw_rad, at[2:])
        rig.tracker.reset()
        read = rig.tracker.observe(rig.cell.frame().image, 0.0).tolist()
        at = at + _places(wanted) - _places(dict(zip(rig.tracker.names, read, strict=True)))
    rig.tracker.reset()


def _rolled_out(
    take: Take, twin: Twin, mechanisms: Sequence[str], policy: Policy, scene: int
) -> tuple[list[Image], bool]:
    """Roll the policy out in the take's scene with these mechanisms; pictures, and success."""
    task, known = find_task(take.info.task), twin.values(mechanisms)
    rig = rig_of(CellSpec(task=task, robot=twin.arm, parameters=known))
    pictures = list[Image]()

    def reset(seed: int) -> None:
        rig.reset(seed)
        if wanted := _tracked(take):
            _lay(rig, wanted)

    leader = PolicyLeader(policy, rig.follower, rig.fps, rig.control_hz)
    with contextlib.closing(rig):
        ended = run_take(
            replace(rig, reset=reset),
            leader,
            seed=EVALUATION_SEEDS + scene,
            max_s=MAX_S * len(rig.cell.arm.arms),
            on_frame=[lambda _seen: pictures.append(rig.cell.frame().image)],
        )
    return pictures[:: max(1, round(rig.fps / FPS))], ended.outcome is Outcome.SUCCESS


def _recorded(take: Take, camera: str) -> list[Image]:
    """Return a take's pictures at about `FPS`."""
    name = camera if camera in take.cameras else next(iter(take.cameras))
    every = max(1, round(take.info.fps / FPS))
    return list(itertools.islice(take.cameras[name](), 0, None, every))


def _video(panels: Mapping[str, Sequence[Image]]) -> bytes:
    """Return panels side by side, each with its name; one that ends early stays as it ended."""
    with io.BytesIO() as file:
        with av.open(file, "w", format="webm") as container:
            stream = container.add_stream("libvpx-vp9", rate=FPS, options=CODEC)
            stream.width, stream.height = PANEL_PX * len(panels), PANEL_PX
            for k in range(max(map(len, panels.values()))):
                row = [_panel(p[min(k, len(p) - 1)], name) for name, p in panels.items()]
                frame = av.VideoFrame.from_ndarray(np.hstack(row), format="rgb24")
                frame.pts = k
                container.mux(stream.encode(frame))
            container.mux(stream.encode())
        return file.getvalue()


def _panel(picture: Image, name: str) -> Image:
    """Return a picture within a square, with a word in its corner."""
    scale = PANEL_PX / max(picture.shape[:2])
    width, height = (max(1, round(scale * side)) for side in picture.shape[1::-1])
    panel = np.full((PANEL_PX, PANEL_PX, 3), 255, dtype=np.uint8)
    panel[:height, :width] = cv2.resize(picture, (width, height), interpolation=cv2.INTER_AREA)
    for grey, width in ((0, 3), (255, 1)):
        cv2.putText(panel, name, (6, 18), cv2.FONT_HERSHEY_SIMPLEX, 0.5, (grey,) * 3, width)
    return panel
