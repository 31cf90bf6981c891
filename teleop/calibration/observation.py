"""What is seen at one moment, kept as a reference to compare with later."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

import numpy as np

from gaploop.core.errors import DAMAGE, UnusableInputError
from gaploop.core.types import FloatArray
from gaploop.teleop.calibration.board import Board, BoardView


@dataclass(frozen=True)
class CalibrationSighting:
    """What is seen now.

    Attributes:
        q_rad: joint positions [rad], shape (n_joints,), or None.
        joint_names: of `q_rad`.
        views: camera name to the board in its picture.
        board: the board in the pictures.
    """

    q_rad: FloatArray | None = None
    joint_names: tuple[str, ...] = ()
    views: Mapping[str, BoardView] = field(default_factory=dict)
    board: Board | None = None

    def to_json(self) -> dict[str, Any]:
        """Return what the calibration file holds as a reference."""
        return {
            "joint_names": list(self.joint_names),
            "q_rad": None if self.q_rad is None else [float(v) for v in self.q_rad],
            "board": None if self.board is None else asdict(self.board),
            "views": {
                name: {
                    "ids": view.ids.tolist(),
                    "corners_px": np.round(view.corners_px, 3).tolist(),
                    "width": view.width,
                    "height": view.height,
                }
                for name, view in self.views.items()
            },
        }

    @classmethod
    def from_json(cls, value: Mapping[str, Any], where: str) -> CalibrationSighting:
        """Read what `to_json` wrote; UnusableInputError where it isn't that."""
        try:
            q = value["q_rad"]
            board = value["board"]
            views = {
                str(name): BoardView(
                    np.array(v["ids"], dtype=np.int64),
                    np.array(v["corners_px"], dtype=np.float64).reshape(-1, 2),
                    int(v["width"]),
                    int(v["height"]),
                )
                for name, v in value["views"].items()
            }
            return cls(
                None if q is None else np.array(q, dtype=np.float64),
                tuple(value["joint_names"]),
                views,
                None if board is None else Board(**board),
            )
        except DAMAGE as error:
            raise UnusableInputError(
                f"{where} is not a reference ({error}). Store it again: gaploop calibrate drift "
                "--store"
            ) from None
