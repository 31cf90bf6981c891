"""A click on a picture says what the object, or the target, is: its colour goes to station.yaml."""

from __future__ import annotations

import base64
import re
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import cv2
import numpy as np
import yaml

from gaploop.core.errors import UnusableInputError
from gaploop.core.files import write_atomically
from gaploop.core.messages import Image
from gaploop.core.station import Interval, load_station
from gaploop.sim.recolour import COLOURED, of_hue

ROLES: Final = ("object", "target")
ALIKE_DEG: Final = 14.0
"""A pixel beside belongs to the same thing if its hue is so near to that of the click."""
MARGIN_DEG: Final = 6.0
"""Light changes over a day; so much is added on either side."""
LEAST_SHARE: Final = 2e-4
"""Of a picture's pixels, what a place of some colour has at least to be counted."""
OUTLINE: Final = (40, 230, 90, 255)
"""BGRA."""


@dataclass(frozen=True)
class Marked:
    """What was clicked on.

    Attributes:
        hue_deg: from and to on the colour circle, which may pass 360.
        places: how many things of this colour the picture shows.
        outline: their edges, a PNG of the picture's size as a data address.
    """

    hue_deg: Interval
    places: int
    outline: str


def marked(picture: Image, right: float, down: float) -> Marked:
    """Return the colour of what is at a place of a picture, RGB, shape (height, width, 3).

    `right` and `down` are shares of its size, 0 to 1.

    Raises:
        UnusableInputError: it has no colour to speak of.
    """
    height, width = picture.shape[:2]
    x, y = min(int(right * width), width - 1), min(int(down * height), height - 1)
    hsv = cv2.cvtColor(picture, cv2.COLOR_RGB2HSV)
    near = hsv[max(0, y - 2) : y + 3, max(0, x - 2) : x + 3].reshape(-1, 3)
    near = near[near[:, 1] > COLOURED]
    if len(near) < 3:
        raise UnusableInputError(
            "There is no colour to speak of. Grey, white and pale things can't be found by their "
            "colour."
        )
    turned = np.exp(1j * np.radians(2.0 * near[:, 0].astype(np.float64))).mean()
    middle_deg = float(np.degrees(np.angle(turned)) % 360.0)
    of_it = of_hue(picture, ((middle_deg - ALIKE_DEG) % 360.0, (middle_deg + ALIKE_DEG) % 360.0))
    _, labels = cv2.connectedComponents(of_it.astype(np.uint8))
    thing = (labels == labels[y, x]) & of_it if of_it[y, x] else of_it
    away = (2.0 * hsv[..., 0][thing] - middle_deg + 180.0) % 360.0 - 180.0
    low, high = middle_deg + np.percentile(away, (2, 98))
    hue_deg = (float(round(low - MARGIN_DEG) % 360), float(round(high + MARGIN_DEG) % 360))
    edges, _ = cv2.findContours(
        of_hue(picture, hue_deg).astype(np.uint8), cv2.RETR_EXTERNAL, cv2.CHAIN_APPROX_NONE
    )
    edges = [e for e in edges if cv2.contourArea(e) >= LEAST_SHARE * height * width]
    drawn = np.zeros((height, width, 4), dtype=np.uint8)
    cv2.drawContours(drawn, edges, -1, OUTLINE, max(1, round(width / 300)), cv2.LINE_AA)
    png = base64.b64encode(cv2.imencode(".png", drawn)[1].tobytes()).decode()
    return Marked(hue_deg, len(edges), f"data:image/png;base64,{png}")


def lines_of(camera: str, role: str, hue_deg: Interval) -> dict[str, str]:
    """Return what station.yaml says of it below `scene`, key to line."""
    low, high = (f"{v:g}" for v in hue_deg)
    name = yaml.safe_dump(camera).splitlines()[0]
    return {"camera": f"  camera: {name}", role: f"  {role}: [{low}, {high}]"}


def state_in(station: Path, camera: str, role: str, hue_deg: Interval) -> None:
    """Write it to a station's file, of which all else stays as it is, comments too.

    Raises:
        UnusableInputError: the file can't be changed so, or wouldn't be read with it.
    """
    lines = station.read_text().splitlines()
    start = next((n for n, line in enumerate(lines) if re.match(r"scene:\s*(#.*)?$", line)), None)
    if start is None:
        start = len(lines)
        lines.append("scene:")
    end = start + 1
    while end < len(lines) and (lines[end].startswith((" ", "#")) or not lines[end].strip()):
        end += 1
    for key, line in lines_of(camera, role, hue_deg).items():
        at = [n for n in range(start + 1, end) if re.match(rf"\s+{key}:", lines[n])]
        if at:
            comment = re.search(r"\s+#.*$", lines[at[0]])
            lines[at[0]] = line + (comment[0] if comment else "")
        else:
            lines.insert(start + 1, line)
            end += 1
    text = "\n".join(lines) + "\n"
    with tempfile.TemporaryDirectory() as folder:
        tried = Path(folder) / "station.yaml"
        tried.write_text(text)
        try:
            scene = yaml.safe_load(text)["scene"]
            load_station(tried)
        except (yaml.YAMLError, KeyError, TypeError, UnusableInputError) as error:
            why = " ".join(str(error).replace(str(tried), station.name).split())
            raise UnusableInputError(f"{station} stays as it was: {why}") from error
    if scene[role] != list(hue_deg) or scene["camera"] != camera:
        raise UnusableInputError(f"{station} stays as it was: write these lines to it yourself.")
    write_atomically(station, text)
