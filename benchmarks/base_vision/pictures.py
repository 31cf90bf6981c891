"""Scripted takes with pictures: recorded once, kept at the size they are trained at, drawn by step.

What `demonstrations` is for the tracked base, this is for the base that sees. Pictures are scaled
down as they are taken and kept as raw bytes beside the joints, ten takes to a file that is mapped
into memory: nothing is encoded, decoded or scaled again however often it is drawn.

Most takes are shaken: what is sent to the arm is what the scripted person asks for and some
wandering noise, and what is learned is what was asked for, so that the policy sees how to come back
(Laskey et al. 2017, arXiv:1703.09327). A policy's own mistakes are a second kind: it drives for a
while, then the person takes over (Kelly et al. 2019, arXiv:1810.02890).

Beside a picture, what a photo is put behind it by is kept: where it shows bench and room, and how
much of their light is left by the shadows of what stands there. So a batch has any background,
drawn anew for each of its takes (`backgrounds`), and nothing is rendered again.
"""

from __future__ import annotations

import functools
import hashlib
import itertools
import math
import os
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final

import cv2
import mujoco
import numpy as np
from numpy.typing import NDArray

from benchmarks.base_vision.backgrounds import Backgrounds, light_of
from gaploop.collect.policy_leader import PolicyLeader
from gaploop.collect.rig import EmbeddedRig
from gaploop.collect.take import run_take
from gaploop.core.errors import UnusableInputError
from gaploop.core.messages import FloatArray, LeaderSample, Observation, Tick
from gaploop.core.vocabulary import Outcome
from gaploop.finetune.demonstrations import MAX_S, TargetCell
from gaploop.finetune.lerobot_policy import load_policy
from gaploop.finetune.workers import run_jobs
from gaploop.sim.camera import MOVING, STILL, LayeredCamera
from gaploop.sim.cell import SimCell
from gaploop.sim.expert import ExpertStage, ScriptedLeader
from gaploop.sim.kinematics import polar
from gaploop.sim.scene import CAMERA_NAME

PICTURES: Final = ".pictures.npy"
"""Beside the numbers of the same takes, which are written when it is whole."""
FILE_TAKES: Final = 10
"""Attempts behind one file."""
STILL_SHARE: Final = 0.3
"""Of the takes, those that aren't shaken."""
SHAKEN_RAD: Final = (0.005, 0.035)
"""Standard deviation of the noise on joint goals [rad], drawn for each take."""
SHAKEN_S: Final = (0.1, 0.5)
"""How long it takes to forget itself [s]."""
AT_WORK: Final = 0.35
"""Factor on the noise while the object is gripped or let go."""
FREE: Final = (ExpertStage.APPROACH, ExpertStage.LIFT, ExpertStage.CARRY, ExpertStage.RETREAT)
DRIVEN_S: Final = (0.2, 5.0)
"""How long a policy drives before the person takes over [s]."""
POSES: Final = 8
"""Entries of what `poses_of` returns."""
LAMPS: Final = 0.08
"""Spread of what the product's light on things before a background is wrong by, of each colour."""
OPEN, LIT = 3, 4
"""Channels of a kept picture after its colours, 0..255: how much of a pixel is bench or room, and
how much of a background's light comes from there."""


class Shaken:
    """A scripted person whose hand is pushed about; `asked_rad` is what they wanted.

    Args:
        seed: draws how hard.
    """

    def __init__(self, inner: ScriptedLeader, seed: int) -> None:
        self._inner, self._rng = inner, np.random.default_rng([seed, 77])

    def reset(self) -> None:
        """Get ready for a new take."""
        self._inner.reset()
        rng = self._rng
        is_shaken = float(rng.choice([0.0, 1.0], p=[STILL_SHARE, 1.0 - STILL_SHARE]))
        self._scale_rad = is_shaken * float(rng.uniform(*SHAKEN_RAD))
        self._noise_rad, self._last_s = np.zeros(6), math.nan
        self._memory_s = float(rng.uniform(*SHAKEN_S))

    def read(self, t_s: float) -> LeaderSample:
        """Return the next joint command [rad]."""
        sample = self._inner.read(t_s)
        self.asked_rad = sample.q_rad
        period_s = 0.01 if math.isnan(self._last_s) else min(max(t_s - self._last_s, 0), 0.1)
        self._last_s = t_s
        keep = np.exp(-period_s / self._memory_s)
        scale = self._scale_rad * (1.0 if self._inner.stage in FREE else AT_WORK)
        kick = scale * np.sqrt(1 - keep * keep) * self._rng.normal(size=len(sample.q_rad))
        self._noise_rad = keep * self._noise_rad + kick
        noise_rad = self._noise_rad.copy()
        noise_rad[-1] = 0.0  # the gripper does what is asked
        return replace(sample, q_rad=sample.q_rad + noise_rad)

    def done(self) -> bool:
        """Say whether the attempt is over."""
        return self._inner.done()


class Corrected:
    """A policy drives, then a scripted person takes over and brings the take to its end.

    Args:
        policy: drives first, and is to be given the observations.
        after_s: when [s].
    """

    def __init__(self, policy: PolicyLeader, person: ScriptedLeader, after_s: float) -> None:
        self._policy, self._person, self._after_s = policy, person, after_s

    def reset(self) -> None:
        """Get ready for a new take."""
        self._policy.reset()
        self.asked_rad: FloatArray | None = None

    def observe(self, observation: Observation) -> None:
        """Hand an observation to the policy while it drives."""
        if self.asked_rad is None:
            self._policy.observe(observation)

    def read(self, t_s: float) -> LeaderSample:
        """Return the next joint command [rad]."""
        if t_s < self._after_s:
            return self._policy.read(t_s)
        if self.asked_rad is None:
            self._person.take_over()
        sample = self._person.read(t_s)
        self.asked_rad = sample.q_rad
        return sample

    def done(self) -> bool:
        """Say whether the person is done."""
        return self.asked_rad is not None and self._person.done()


class CutOut(LayeredCamera):
    """Draws as its parent does, and keeps what the product would put a photo behind.

    Attributes:
        around: OPEN and LIT of the last picture, shape (height, width, 2).
        bench: what stands still, shape (height, width, 4): colours, and 255 where it is kept.
    """

    white: Path

    def draw(self, data: mujoco.MjData) -> NDArray[np.uint8]:
        """Return the picture of `data`, shape (height, width, 3)."""
        self._gl.make_current()
        if self._still is None:
            self._still = self._drawn(data, STILL)
            self._backdrop = self._behind(self._still, self.white)
            kept = 255 * self._backdrop.kept.astype(np.uint8)
            self.bench = np.ascontiguousarray(np.dstack([self._still[0], kept])[::-1])
        (colour, depth), (behind, behind_depth) = self._drawn(data, MOVING), self._still
        nearer = (depth > behind_depth).view(np.uint8)
        assert self._backdrop is not None
        is_open = ~self._backdrop.kept & (nearer == 0)
        lit = self._backdrop.over(colour, depth, nearer)[..., 0] * is_open
        around = np.stack([255 * is_open.astype(np.uint8), lit], -1)
        self.around = np.ascontiguousarray(around[::-1])
        return np.ascontiguousarray(cv2.copyTo(colour, nearer, behind.copy())[::-1])


class _Memory:
    """A sink that keeps what training reads of every policy frame, and its picture, small."""

    def __init__(self, rig: EmbeddedRig, asked: Any, drawer: CutOut, size_px: int) -> None:
        self._rig, self._asked, self._drawer, self._size_px = rig, asked, drawer, size_px
        self._captured_s = np.nan
        self.taught_from = 0
        self.state: list[FloatArray] = []
        self.action: list[FloatArray] = []
        self.pose: list[FloatArray] = []
        self.picture_of: list[int] = []
        self.pictures: list[NDArray[np.uint8]] = []

    def tick(self, tick: Tick) -> None:
        asked_rad = self._asked.asked_rad
        if not tick.policy_frame or (asked_rad is None and self.state):
            return  # of what a policy drives, only the first picture is kept
        (frame,) = tick.frames.values()
        if frame.t_capture_s != self._captured_s:  # a camera takes one for every other frame
            self._captured_s = frame.t_capture_s
            both = (scaled(p, self._size_px) for p in (frame.image, self._drawer.around))
            self.pictures.append(np.dstack([*both]))
        self.picture_of.append(len(self.pictures) - 1)
        self.state.append(self._rig.follower.to_units(tick.state.position_rad))
        if asked_rad is None:
            self.taught_from, asked_rad = 1, tick.state.position_rad
        self.action.append(self._rig.follower.to_units(asked_rad))
        self.pose.append(place_of(self._rig.cell))


def scaled(picture: NDArray[np.uint8], size_px: int) -> NDArray[np.uint8]:
    """Return a picture (h, w, c) with `size_px` pixels on a side."""
    if picture.shape[:2] == (size_px, size_px):
        return picture
    small = cv2.resize(picture, (size_px, size_px), interpolation=cv2.INTER_AREA)
    return np.asarray(small, dtype=np.uint8)


def place_of(cell: SimCell) -> FloatArray:
    """Return where object and target are, shape (9,).

    Object's x, y [m] and yaw [rad]; target's x, y [m]; then of both the column and row in the
    camera's picture, from -1 to 1.
    """
    truth: dict[str, Any] = cell.truth()
    object_m, target_m = (np.array(truth[f"{name}_pos_m"]) for name in ("object", "target"))
    model, camera = cell.model, cell.data.camera(CAMERA_NAME)
    focal = 1.0 / np.tan(np.radians(model.camera(CAMERA_NAME).fovy[0]) / 2.0)
    seen = np.array([object_m, target_m]) - camera.xpos
    seen = seen @ camera.xmat.reshape(3, 3)
    aims = focal * seen[:, :2] / -seen[:, 2:] * (1.0, -1.0)
    where = (*object_m[:2], truth["object_yaw_rad"], *target_m[:2])
    return np.array([*where, *aims.ravel()])


def poses_of(place: FloatArray) -> NDArray[np.float32]:
    """Return what the network is taught to see in a row of `place_of`, about -1 to 1, shape (8,).

    Polar about the first joint, as the arm moves; a cube looks the same every quarter turn.
    """
    (azimuth, radius), yaw, (to, far) = polar(place[:2]), place[2], polar(place[3:5])
    turn = yaw - azimuth
    return np.array(
        [
            azimuth / 0.5, (radius - 0.2) / 0.06, np.cos(4 * turn), np.sin(4 * turn),
            np.cos(4 * yaw), to / 0.5, (far - 0.2) / 0.06, np.sin(4 * yaw),
        ],
        dtype=np.float32,
    )  # fmt: skip


@dataclass(frozen=True)
class _Job:
    cell: TargetCell
    scenes: range
    path: Path
    size_px: int
    policy: Path | None


def _record(job: _Job) -> int:
    rig = replace(job.cell.rig(), tracker=None)  # nothing tracks, and it costs more than a picture
    policy = load_policy(job.policy) if job.policy else None
    CutOut.white = job.path.with_suffix(".white.png")
    cv2.imwrite(str(CutOut.white), np.full((8, 8, 3), 255, np.uint8))
    cell, benches = rig.cell, list[NDArray[np.uint8]]()
    drawer = CutOut(cell.model, CAMERA_NAME, cell.image_size, cell.image_size)
    cell._camera._drawers[CAMERA_NAME] = drawer
    kept: list[tuple[int, _Memory]] = []
    try:
        for scene in job.scenes:
            rig.reset(scene)
            person = ScriptedLeader(rig.cell, scene)
            leader: Shaken | Corrected = Shaken(person, scene)
            if policy is not None:
                driver = PolicyLeader(policy, rig.follower, rig.fps, rig.control_hz)
                after_s = float(np.random.default_rng([scene, 78]).uniform(*DRIVEN_S))
                leader = Corrected(driver, person, after_s)
            memory = _Memory(rig, leader, drawer, job.size_px)
            result = run_take(
                rig,
                leader,
                seed=scene,
                max_s=MAX_S + (DRIVEN_S[1] if policy else 0.0),
                sinks=(memory,),
                on_frame=(leader.observe,) if isinstance(leader, Corrected) else (),
            )
            benches.append(scaled(drawer.bench, job.size_px))
            if result.outcome is Outcome.SUCCESS and len(memory.state) > 1:
                kept.append((scene, memory))
    finally:
        rig.close()
        CutOut.white.unlink()
    pictures = [p for _, m in kept for p in m.pictures]
    np.save(job.path.with_suffix(PICTURES), np.array(pictures, dtype=np.uint8))
    part = job.path.with_suffix(".part.npz")
    size = dict.fromkeys(("state", "action"), (0, 6)) | {"pose": (0, 9)}
    rows = {
        name: np.concatenate([np.zeros(size[name]), *(getattr(m, name) for _, m in kept)])
        for name in size
    }
    np.savez(
        part,
        seed=[scene for scene, _ in kept],
        length=[len(m.state) for _, m in kept],
        npic=[len(m.pictures) for _, m in kept],
        taught_from=[m.taught_from for _, m in kept],
        bench=_empty(np.array(benches)),
        idx=np.array([i for _, m in kept for i in m.picture_of], dtype=np.int32),
        **{name: value.astype(np.float32) for name, value in rows.items()},
    )
    os.replace(part, job.path)
    return len(job.scenes)


def _empty(benches: NDArray[np.uint8]) -> NDArray[np.uint8]:
    """Return the bench without the targets, which lie elsewhere in each take, (size, size, 3)."""
    hidden = np.repeat(benches[..., 3:] > 0, 3, axis=-1)
    masked: Any = np.ma
    median = masked.median(masked.masked_array(benches[..., :3], hidden), axis=0)
    return np.asarray(median.filled(0), dtype=np.uint8)


def record(
    folder: Path,
    cell: TargetCell,
    takes: int,
    *,
    size_px: int,
    seed: int = 0,
    policy: Path | None = None,
    workers: int = 2,
    progress: Callable[[int], None] | None = None,
) -> None:
    """Record scripted takes of a cell into `folder`; what it holds already isn't recorded again.

    Args:
        folder: of these takes only.
        takes: attempts; scenes `seed` to `seed + takes - 1`. Failed ones are left out.
        size_px: width and height of the pictures that are kept [px].
        policy: drives first, before the person takes over; the person drives alone if None.
        workers: processes; the result doesn't depend on it.
        progress: called with the number of attempts just finished.
    """
    folder.mkdir(parents=True, exist_ok=True)
    jobs = []
    for i in range(seed, seed + takes, FILE_TAKES):
        scenes, path = range(i, min(i + FILE_TAKES, seed + takes)), folder / f"{i:06d}.npz"
        if path.exists():
            if progress:
                progress(len(scenes))
        else:
            jobs.append(_Job(cell, scenes, path, size_px, policy))
    for attempts in run_jobs(_record, jobs, workers):
        if progress:
            progress(attempts)


@dataclass(frozen=True)
class PictureBatch:
    """Samples of first and present frames; b samples, p pictures, chunks of k actions.

    Attributes:
        state: present, shape (b, n), LeRobot units.
        action: shape (b, k, n), LeRobot units.
        is_pad: actions past the end of a take, bool, shape (b, k).
        pictures: uint8, shape (p, size, size, 3); several samples share a first one.
        recorded: the same as they were recorded, with nothing put behind them.
        first: which of them is a sample's first, shape (b,).
        now: which is its present one, shape (b,).
        poses: what is where in both, shape (b, 2, POSES).
        aims: where in both pictures object and target are, shape (b, 2, 4).
    """

    state: NDArray[np.float32]
    action: NDArray[np.float32]
    is_pad: NDArray[np.bool_]
    pictures: NDArray[np.uint8]
    recorded: NDArray[np.uint8]
    first: NDArray[np.int64]
    now: NDArray[np.int64]
    poses: NDArray[np.float32]
    aims: NDArray[np.float32]


class PictureTakes:
    """Takes that `record` kept, in memory, and batches of them.

    A batch is several frames of each of some takes, as a first picture costs as much to look at as
    a present one; it is a pure function of seed and step.

    Args:
        chunk: actions per sample.
        each: samples of a take in a batch.
        backgrounds: put behind most takes; all stay as they were recorded if None.
    """

    def __init__(
        self,
        folders: Sequence[Path],
        *,
        chunk: int,
        batch_size: int,
        seed: int,
        each: int = 4,
        backgrounds: Backgrounds | None = None,
    ) -> None:
        self.chunk, self.batch_size, self.seed = chunk, batch_size, seed
        self._backgrounds = backgrounds
        self._each = min(each, batch_size)
        found = [path for folder in folders for path in sorted(folder.glob("[0-9]*[0-9].npz"))]
        read = ((path, dict(np.load(path))) for path in found)
        kept = [(path, part) for path, part in read if len(part["length"])]
        if not kept:
            raise UnusableInputError(f"No takes in {', '.join(map(str, folders))}.")
        parts = [part for _, part in kept]
        self.state = np.concatenate([p["state"] for p in parts])
        self.action = np.concatenate([p["action"] for p in parts])
        self._pictures = [np.load(path.with_suffix(PICTURES), mmap_mode="r") for path, _ in kept]
        self._bench = [p["bench"] for p in parts]
        places = np.concatenate([p["pose"] for p in parts])
        self._poses = np.array([poses_of(row) for row in places])
        self._aims = places[:, 5:]
        self._takes: list[
            tuple[int, int, int, int, int]
        ] = []  # first row, the first to learn from, end, file, first picture
        self._picture_of = np.concatenate([p["idx"] for p in parts])
        row = 0
        for number, part in enumerate(parts):
            picture = 0
            taught = part.get("taught_from", np.zeros_like(part["length"]))
            for length, count, skip in zip(part["length"], part["npic"], taught, strict=True):
                end = row + int(length)
                self._takes.append((row, row + int(skip), end, number, picture))
                row, picture = end, picture + int(count)

    @functools.cached_property
    def digest(self) -> str:
        """Return the SHA-256 of all that is learned from."""
        digest = hashlib.sha256()
        for array in (self.state, self.action, self._picture_of, *self._pictures):
            digest.update(np.ascontiguousarray(array).tobytes())
        return digest.hexdigest()

    @property
    def takes(self) -> int:
        """How many takes there are."""
        return len(self._takes)

    @property
    def frames(self) -> int:
        """How many frames they have."""
        return len(self.state)

    def stream(self, first: int) -> Iterator[PictureBatch]:
        """Yield the batches of steps `first`, `first + 1`, … without end."""
        return map(self.batch, itertools.count(first))

    def batch(self, step: int) -> PictureBatch:
        """Return the batch of a step, the same whenever it is asked for."""
        rng = np.random.default_rng((self.seed, step))
        pictures: list[NDArray[np.uint8]] = []
        recorded: list[NDArray[np.uint8]] = []
        rows, index, is_pad, firsts, nows, begun = [], [], [], [], [], []
        for place in rng.integers(0, len(self._takes), -(-self.batch_size // self._each)):
            start, taught, end, number, offset = self._takes[place]
            first = len(pictures)
            chosen = rng.integers(taught, end, self._each)
            numbers = [offset, *(offset + self._picture_of[chosen])]
            kept = self._pictures[number][numbers]
            recorded.extend(kept[..., :OPEN])
            pictures.extend(self._before(rng, number, kept))
            for k, row in enumerate(chosen):
                ahead = row + np.arange(self.chunk)
                rows.append(row)
                begun.append(start)
                index.append(np.minimum(ahead, end - 1))
                is_pad.append(ahead >= end)
                firsts.append(first)
                nows.append(first + 1 + k)
        keep = slice(0, self.batch_size)
        both = np.stack([begun[keep], rows[keep]], 1)
        return PictureBatch(
            self.state[rows[keep]],
            self.action[np.array(index[keep])],
            np.array(is_pad[keep]),
            np.stack(pictures),
            np.stack(recorded),
            np.array(firsts[keep]),
            np.array(nows[keep]),
            self._poses[both],
            self._aims[both],
        )

    def _before(
        self, rng: np.random.Generator, number: int, kept: NDArray[np.uint8]
    ) -> NDArray[np.uint8]:
        """Return pictures of a take before a background, shape (n, size, size, 3)."""
        background = self._backgrounds.draw(rng) if self._backgrounds else None
        if background is None:
            return kept[..., :OPEN]
        shown = kept.astype(np.float32)
        is_open, lit = shown[..., OPEN, None] / 255, shown[..., LIT, None] / 255
        bench = self._bench[number].astype(np.float32)
        things = np.maximum(shown[..., :OPEN] - is_open * bench, 0)
        light = light_of(background, bench) * np.exp(rng.normal(0, LAMPS, 3))
        picture = things * light.astype(np.float32) + lit * background
        return np.asarray(np.clip(picture + 0.5, 0, 255), dtype=np.uint8)
