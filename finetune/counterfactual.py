"""A failed episode beside the twin's rollout of its scene, and that without the blamed cause.

Object and target lie where the twin's own tracker reads them as the episode's first pictures did.
An episode whose scene nobody tracked stands beside another scene of the twin, and the caption says
so.
"""

from __future__ import annotations

import io
import itertools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from pathlib import Path
from typing import Any, Final

import av
import cv2
import numpy as np

from gaploop.collect.policy_leader import PolicyLeader
from gaploop.collect.rig import EmbeddedRig
from gaploop.collect.take import run_take
from gaploop.core.messages import FloatArray, Image, Observation
from gaploop.core.take import TRACKED_SCENE, Take
from gaploop.core.twin import Twin
from gaploop.core.vocabulary import Outcome
from gaploop.failure_analysis.diagnosis import Diagnosis
from gaploop.failure_analysis.station import cause_words
from gaploop.finetune.evaluate import EVALUATION_SEEDS, MAX_S, CellSpec, rig_of
from gaploop.finetune.lerobot_policy import load_policy
from gaploop.finetune.reproduction import SCENES
from gaploop.sim.kinematics import from_polar
from gaploop.sim.tasks import find_task

LEAST_POINTS: Final = 0.10
"""Share of all rollouts that a cause must cost to be shown."""
TRIES: Final = 3
"""Episodes that are looked at until one fails in the twin, and succeeds without the cause."""
FPS: Final = Fraction(25, 2)
PANEL_PX: Final = 240
CODEC: Final = {"crf": "36", "deadline": "realtime", "cpu-used": "5"}
LAYS: Final = 3
"""Times that things are laid nearer to where they were tracked."""


@dataclass(frozen=True)
class Counterfactual:
    """One video of three panels, WebM, and what is seen in it."""

    video: bytes
    caption: str


@dataclass(frozen=True)
class _Clip:
    pictures: Sequence[Image]
    succeeded: bool

    @property
    def ended(self) -> str:
        return "succeeds" if self.succeeded else "fails"


def counterfactuals(
    found: Diagnosis, takes: Sequence[Take], twin: Twin, policy: str | Path, camera: str = ""
) -> tuple[Counterfactual, ...]:
    """Return a video for each measured cause that costs more than ten points.

    Args:
        found: with its reproduction in the twin.
        takes: what was diagnosed.
        camera: whose pictures are shown; the first one's unless given.
    """
    driver = load_policy(policy)
    by_uid = {take.info.uid: take for take in takes if take.cameras}
    made = []
    for cost in found.summary.get("reproduction", {}).get("costs", ()):
        if cost["name"] not in twin.mechanisms or cost["points"][0] <= LEAST_POINTS:
            continue
        failed = [t for t in found.takes if t.uid in by_uid and t.failed]
        failed.sort(key=lambda t: (-t.dimensions.get(cost["cause"], 0.0), t.uid))
        mine, name = (cost["name"],), cause_words(cost["name"]).replace(".", ": ")
        rest = tuple(m for m in twin.mechanisms if m not in mine)
        # Where the others suffice for a failure, what the cause does shows beside none of them.
        ways = [(twin.mechanisms, rest, "the twin"), (mine, (), f"the twin with only {name}")]
        shown: tuple[Take, _Clip, _Clip, str] | None = None
        for (put_in, without, words), (k, told) in itertools.product(
            ways[: 1 + bool(rest)], enumerate(failed[:TRIES])
        ):
            take = by_uid[told.uid]
            clips = [_rolled_out(take, twin, m, driver, SCENES + k) for m in (put_in, without)]
            is_clear = clips[1].succeeded and not clips[0].succeeded
            if shown is None or is_clear:
                shown = take, clips[0], clips[1], words
            if is_clear:
                break
        if shown is None:
            continue
        take, with_it, without_it, words = shown
        at = f"episode {take.episode}" if take.episode is not None else take.info.uid[:13]
        same = (
            "the same scene" if _tracked(take) is not None else "another scene (none was tracked)"
        )
        panels = {at: _recorded(take, camera), "twin": with_it.pictures}
        panels["without"] = without_it.pictures
        caption = (
            f"{name}: {at} at the station; {words} in {same}, which {with_it.ended}; without "
            f"{name}, which {without_it.ended}."
        )
        made.append(Counterfactual(_video({n: p for n, p in panels.items() if p}), caption))
    return tuple(made)


def _tracked(take: Take) -> Mapping[str, float] | None:
    """Return the scene as the take's first row has it, by the tracker's names; None without."""
    names, rows = take.frames.environment_names, take.frames.environment_state
    if not len(rows) or not set(TRACKED_SCENE) <= set(names):
        return None
    return dict(zip(names, np.asarray(rows[0], dtype=float).tolist(), strict=True))


def _lay(rig: EmbeddedRig, wanted: Mapping[str, float]) -> None:
    """Lay object and target where the rig's own tracker reads them as `wanted`."""
    assert rig.tracker is not None

    def places(of: Mapping[str, float]) -> FloatArray:
        thing, goal = (
            from_polar(of[f"{name}_azimuth_rad"], of[f"{name}_radius_m"])
            for name in ("object", "target")
        )
        return np.array([*thing, *goal])

    at = aim = places(wanted)
    yaw_rad = wanted["object_yaw_rad"] + wanted["object_azimuth_rad"]
    for _ in range(LAYS):
        rig.cell.lay(at[:2], yaw_rad, at[2:])
        rig.tracker.reset()
        read = rig.tracker.observe(rig.cell.frame().image, 0.0)
        at = at + aim - places(dict(zip(rig.tracker.names, read.tolist(), strict=True)))
    rig.tracker.reset()


def _rolled_out(
    take: Take, twin: Twin, mechanisms: Sequence[str], policy: Any, scene: int
) -> _Clip:
    """Roll the policy out in the take's scene with these mechanisms put in."""
    spec = CellSpec(
        task=find_task(take.info.task), robot=twin.arm, parameters=twin.values(mechanisms)
    )
    rig, wanted = rig_of(spec), _tracked(take)
    pictures = list[Image]()
    every = max(1, round(rig.fps / FPS))
    frames = 0

    def reset(seed: int) -> None:
        rig.reset(seed)
        if wanted is not None:
            _lay(rig, wanted)

    def look(_seen: Observation) -> None:
        nonlocal frames
        if frames % every == 0:
            pictures.append(rig.cell.frame().image.copy())
        frames += 1

    try:
        placed = replace(rig, reset=reset)
        leader = PolicyLeader(policy, rig.follower, rig.fps, rig.control_hz)
        longest_s = MAX_S * len(rig.cell.arm.arms)
        ended = run_take(
            placed, leader, seed=EVALUATION_SEEDS + scene, max_s=longest_s, on_frame=[look]
        )
    finally:
        rig.close()
    return _Clip(pictures, ended.outcome is Outcome.SUCCESS)


def _recorded(take: Take, camera: str) -> list[Image]:
    """Return a take's pictures at about `FPS`."""
    name = camera if camera in take.cameras else next(iter(take.cameras))
    every = max(1, round(take.info.fps / FPS))
    return [picture for k, picture in enumerate(take.cameras[name]()) if k % every == 0]


def _video(panels: Mapping[str, Sequence[Image]]) -> bytes:
    """Return panels side by side, each with its name; one that ends early stays as it ended."""
    length = max(len(pictures) for pictures in panels.values())
    with io.BytesIO() as file:
        with av.open(file, "w", format="webm") as container:
            stream = container.add_stream("libvpx-vp9", rate=FPS, options=CODEC)
            stream.width, stream.height, stream.pix_fmt = (
                PANEL_PX * len(panels),
                PANEL_PX,
                "yuv420p",
            )
            for k in range(length):
                row = [
                    _panel(pictures[min(k, len(pictures) - 1)], name)
                    for name, pictures in panels.items()
                ]
                frame = av.VideoFrame.from_ndarray(np.hstack(row), format="rgb24")
                frame.pts = k
                container.mux(stream.encode(frame))
            container.mux(stream.encode())
        return file.getvalue()


def _panel(picture: Image, name: str) -> Image:
    """Return a picture within a square, with a word in its corner."""
    scale = PANEL_PX / max(picture.shape[:2])
    size = [max(1, round(scale * side)) for side in picture.shape[1::-1]]
    panel = np.full((PANEL_PX, PANEL_PX, 3), 255, dtype=np.uint8)
    panel[: size[1], : size[0]] = cv2.resize(picture, size, interpolation=cv2.INTER_AREA)
    for colour, width in (((0, 0, 0), 3), ((255, 255, 255), 1)):
        cv2.putText(panel, name, (6, 18), cv2.FONT_HERSHEY_SIMPLEX, 0.5, colour, width, cv2.LINE_AA)
    return panel
