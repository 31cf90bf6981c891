"""Draws the pictures of docs/train/looks.md: python docs/img/looks.py (pip install mitsuba)."""

from __future__ import annotations

import math
from collections.abc import Iterable
from pathlib import Path

import cv2
import matplotlib.pyplot as plt
import numpy as np
import sklearn.datasets

from gaploop.core.messages import Image
from gaploop.sim.cell import SimCell
from gaploop.sim.conditions import FIDELITIES
from gaploop.sim.demonstrators import Demonstrator
from gaploop.sim.randomise import known_and_drawn
from gaploop.sim.scene_file import load_scene
from gaploop.sim.scene_world import SceneWorld
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


def contact() -> None:
    """Draw what CD changes and no camera sees: motion, over half a second."""
    cases: list[tuple[str, str, tuple[float, ...]]] = [
        ("actuator_response.gripper_drive", "stiffness_factor", (0.3, 1.0, 2.0)),
        ("actuator_response.action_noise", "noise_rad", (0.0, math.radians(0.5))),
        ("object_property.centre_of_mass", "com_x_fraction", (-0.5, 0.0, 0.5)),
        ("contact_dynamics.restitution", "damping_factor", (0.2, 0.5, 1.0)),
    ]
    sides = (
        "jaws close [°]",
        "goal that arrives [°]",
        "tilt of the cube [°]",
        "cube's height [mm]",
    )
    figure, axes = plt.subplots(1, 4, figsize=(11, 2.4), layout="constrained")
    for (mechanism, key, values), axis, side in zip(cases, axes, sides, strict=True):
        for value in values:
            with SimCell(parameters={mechanism: {key: value}}) as cell:
                axis.plot(*_motion(cell, side), label=f"{value:.3g}", linewidth=1.0)
        axis.set(title=key, ylabel=side, xlabel="s")
        axis.legend(fontsize="small", frameon=False)
    figure.savefig(HERE / "looks_contact.png", dpi=80)


def _motion(cell: SimCell, side: str) -> tuple[list[float], list[float]]:
    """Return times [s] and what is seen of a motion that a mechanism changes."""
    cell.reset(3)
    data, goal = cell.data, cell.read().position_rad
    thing = int(cell.model.joint("object").qposadr[0])
    if side.startswith("jaws"):
        goal[-1] -= 0.5
    elif side.startswith("tilt"):  # on an edge, near where it falls over
        half_rad = math.radians(17.0)
        data.qpos[thing + 2] += 0.006
        data.qpos[thing + 3 : thing + 7] = [math.cos(half_rad), 0.0, math.sin(half_rad), 0.0]
    elif side.startswith("cube"):
        data.qpos[thing + 2] += 0.05
    times_s, seen = [], []
    for frame in range(int(0.5 * cell.control_hz)):
        cell.command(goal)
        cell.advance(1.0 / cell.control_hz)
        w, _, y, _ = data.qpos[thing + 3 : thing + 7]
        value = {
            "jaws": math.degrees(float(cell.read().position_rad[-1])),
            "goal": math.degrees(float(data.ctrl[0])),
            "tilt": math.degrees(2.0 * math.atan2(y, w)),
            "cube": 1000.0 * float(data.qpos[thing + 2]),
        }[side[:4]]
        times_s.append((frame + 1) / cell.control_hz)
        seen.append(value)
    return times_s, seen


names = list(PATTERNS)
save("library", [[procedural(n, 1, 64) for n in names[k : k + 14]] for k in range(0, 28, 14)])
save("lamps", [episodes("LS", (2, *WITH_SHADOWS))])
save("surfaces", [episodes("TX+OC", range(1, 8))])
save("distractors", [episodes("DM", range(1, 15))[::2]])
save("frames", [frames(7)])
save("scene", [scenes(range(1, 8))])
photos = Path(sklearn.datasets.__file__).parent / "images"
save(
    "folders",
    [
        episodes(f"TX,textures={photos}", range(1, 5))
        + episodes(f"CP,backgrounds={photos}", range(1, 4))
    ],
)
save("fidelity", [fidelity()])
contact()
save("soft", [soft((0, 80, 181))])
