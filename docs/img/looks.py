"""Draws the pictures of docs/train/looks.md: python docs/img/looks.py (pip install mitsuba)."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

import cv2
import numpy as np

from gaploop.core.messages import Image
from gaploop.sim.cell import SimCell
from gaploop.sim.conditions import FIDELITIES
from gaploop.sim.randomise import known_and_drawn
from gaploop.sim.scene_file import Demonstrator, SceneWorld, load_scene
from gaploop.sim.textures import PATTERNS, procedural
from gaploop.sim.world import GymWorld, WorldSpec

HERE = Path(__file__).resolve().parent
SCENE = HERE.parent.parent / "examples" / "scene" / "scene.yaml"
SIZE_PX = 128
WITH_SHADOWS = (3, 6, 7, 8, 24, 47)
"""Episodes of LS."""


def save(name: str, rows: list[list[Image]]) -> None:
    """Write a sheet of pictures of one size."""
    picture = np.vstack([np.hstack(row) for row in rows])
    cv2.imwrite(str(HERE / f"looks_{name}.jpg"), picture[..., ::-1], [cv2.IMWRITE_JPEG_QUALITY, 80])


def episodes(randomise: str, seeds: Iterable[int]) -> list[Image]:
    """Return how episodes of the cell begin, seen from the side."""
    with SimCell(randomise=known_and_drawn(None, randomise)[1], image_size=SIZE_PX) as cell:
        found = []
        for seed in seeds:
            cell.reset(seed)
            found.append(cell.picture(SIZE_PX, SIZE_PX))
        return found


def frames(count: int) -> list[Image]:
    """Return pictures in a row of one episode, each drawn anew."""
    with SimCell(
        randomise=known_and_drawn(None, "looks,every=frame")[1], image_size=SIZE_PX
    ) as cell:
        cell.reset(7)
        found = []
        for _ in range(count):
            found.append(cell.frame().image)
            cell.advance(1.0 / cell.camera_hz)
        return found


def scenes(seeds: range) -> list[Image]:
    """Return how episodes of a scene file begin."""
    spec = WorldSpec(randomise=known_and_drawn(None, "looks")[1])
    world = GymWorld(lambda: SceneWorld(load_scene(SCENE)), spec)
    found = []
    for seed in seeds:
        world.reset(seed=seed)
        found.append(cv2.resize(world.render(), (SIZE_PX, SIZE_PX)))
    world.close()
    return found


def soft(shown: tuple[int, ...]) -> list[Image]:
    """Return pictures of a soft cube that is put into a tray, at these frames, beside a cloth."""
    world = SceneWorld(load_scene(SCENE.parent.parent / "tasks" / "soft.yaml"))
    world.reset(seed=0)
    world.draws, drive, found = False, Demonstrator(world), []
    for frame in range(max(shown) + 1):
        world.step(drive(None))
        if frame in shown:
            found.append(world.render())
    world.close()
    return found


def fidelity(count_px: int = 256) -> list[Image]:
    """Return one scene at each level, seen from the side; traced, by Mitsuba."""
    found = []
    for level in FIDELITIES:
        with SimCell(conditions={"fidelity": level}) as cell:
            cell.reset(3)
            found.append(cell.picture(count_px, count_px))
    return found


names = list(PATTERNS)
save("library", [[procedural(n, 1, 64) for n in names[k : k + 14]] for k in range(0, 28, 14)])
save("lamps", [episodes("LS", (2, *WITH_SHADOWS))])
save("surfaces", [episodes("TX+OC", range(1, 8))])
save("distractors", [episodes("DM", range(1, 15))[::2]])
save("frames", [frames(7)])
save("scene", [scenes(range(1, 8))])
save("fidelity", [fidelity()])
save("soft", [soft((0, 80, 181))])
