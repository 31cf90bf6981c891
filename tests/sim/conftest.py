from __future__ import annotations

from collections.abc import Callable, Iterator

import numpy as np
import pytest
from numpy.typing import NDArray

from gaploop.sim.catalogue import SO101
from gaploop.sim.cell import SimCell

Trajectory = tuple[NDArray[np.float64], list[NDArray[np.uint8]]]


@pytest.fixture(scope="module")
def nominal() -> Iterator[SimCell]:
    with SimCell() as cell:
        yield cell


@pytest.fixture
def sweep() -> Callable[..., Trajectory]:
    """Joint trajectory and some pictures of a fixed motion."""

    def run(cell: SimCell, seed: int, ticks: int = 40) -> Trajectory:
        cell.reset(seed)
        joints, pictures = [], []
        home = np.asarray(SO101.home_q_rad)
        for tick in range(ticks):
            cell.command(home + 0.4 * np.sin(0.1 * tick))
            cell.advance(0.02)
            joints.append(cell.read().position_rad)
            if tick % 20 == 19:
                pictures.append(cell.frame().image.copy())
        return np.array(joints), pictures

    return run


@pytest.fixture
def same() -> Callable[[Trajectory, Trajectory], bool]:
    """Whether two trajectories are equal to the bit."""

    def compare(one: Trajectory, other: Trajectory) -> bool:
        pictures = all(np.array_equal(a, b) for a, b in zip(one[1], other[1], strict=True))
        return bool(np.array_equal(one[0], other[0]) and pictures)

    return compare
