"""Cells of this process by name, so that a scripted teleoperator finds its robot's cell."""

from __future__ import annotations

from gaploop.core.errors import DeviceError
from gaploop.sim.cell import Cell

_CELLS: dict[str, tuple[Cell, int]] = {}


def share(name: str, cell: Cell, seed: int) -> None:
    """Offer `cell`, whose present scene is `seed`, under `name`; replaces one of that name."""
    _CELLS[name] = (cell, seed)


def withdraw(name: str, cell: Cell) -> None:
    """Take `cell` back, if it is still the one offered under `name`."""
    if name in _CELLS and _CELLS[name][0] is cell:
        del _CELLS[name]


def shared(name: str) -> Cell:
    """Return the cell offered under `name`.

    Raises:
        DeviceError: if there is none in this process.
    """
    if name not in _CELLS:
        offered = ", ".join(sorted(_CELLS)) or "none"
        raise DeviceError(
            f"No embedded cell '{name}' in this process (offered: {offered}). "
            "Connect --robot.type=so101_sim first; the scripted teleoperator sees only that."
        )
    return _CELLS[name][0]


def next_scene(name: str) -> None:
    """Reset the cell offered under `name` to its next scene."""
    cell = shared(name)
    seed = _CELLS[name][1] + 1
    cell.reset(seed)
    _CELLS[name] = (cell, seed)
