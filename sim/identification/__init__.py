"""A station's twin from its takes: the drives by their motion, the scene by its pictures, contact
by what is felt of it."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from gaploop.core.take import Take
from gaploop.core.twin import Twin
from gaploop.sim.identification.contact import FULL, PROBE, fit_contact
from gaploop.sim.identification.drives import FittedDrives, fit_drives
from gaploop.sim.identification.open_loop import DrivenArm, ServoArm
from gaploop.sim.identification.scene import fit_scene


def fit_station(
    takes: Sequence[Take],
    arm: DrivenArm,
    station: str,
    *,
    made_from: Sequence[Mapping[str, Any]] = (),
    pictures: bool = True,
    advance: Callable[..., None] = lambda *_: None,
) -> tuple[Twin, FittedDrives]:
    """Return the twin, and how its drives were found.

    Args:
        takes: of the station; their units known.
        arm: the cell's arm that stands for its own, or anybody's.
        made_from: as in `Twin`.
        pictures: measure the scene, too.
        advance: told the physics steps of work on the drives; called after each piece on contact.
    """
    free = [take for take in takes if take.info.conditions.get(PROBE) != FULL]
    drives = fit_drives(free, arm, advance)
    rows = {(p.name, p.joint): p for p in drives.parameters}
    # Zeros may come of either: of the one that can tell.
    for row in fit_scene(takes, arm) if pictures and not isinstance(arm, ServoArm) else ():
        if (row.name, row.joint) not in rows or row.excited:
            rows[row.name, row.joint] = row
    twin = Twin(station, arm.name, tuple(rows.values()), tuple(made_from), drives.fit)
    if isinstance(arm, ServoArm):
        return replace(twin, world={"model": str(arm.path.resolve())}), drives
    contact = fit_contact(takes, arm, twin, advance=advance)
    return replace(twin, parameters=(*twin.parameters, *contact)), drives
