"""A click on a picture: the colour that is there, and the station's file with it."""

from __future__ import annotations

import colorsys
from pathlib import Path

import numpy as np
import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from gaploop.core.errors import UnusableInputError
from gaploop.core.messages import Image
from gaploop.core.station import load_station
from gaploop.failure_analysis.review.site import marked, state_in

BENCH = """# the bench by the window
name: bench
scene:                 # what is looked at
  # paint of the cups
  object: green        # since Monday
costs: {take_s: 20}
"""


def pictured(hue_deg: float, seed: int = 0) -> Image:
    """Return a grey, unevenly lit table with a disc of some hue, and one of the opposite hue."""
    rng = np.random.default_rng(seed)
    down, right = np.mgrid[0:120, 0:160]
    light = 0.6 + 0.4 * right / 160.0 + rng.normal(0.0, 0.01, (120, 160))
    seen = np.full((120, 160, 3), 140.0)
    for at, hue in (((40, 40), hue_deg), ((80, 120), hue_deg + 180.0)):
        disc = np.hypot(down - at[0], right - at[1]) < 14
        seen[disc] = [255 * c for c in colorsys.hsv_to_rgb((hue % 360.0) / 360.0, 0.8, 0.8)]
    return np.clip(seen * light[..., None], 0, 255).astype(np.uint8)


@given(hue_deg=st.floats(0.0, 359.9), seed=st.integers(0, 99))
def test_a_click_tells_the_hue_of_what_is_there_alone(hue_deg: float, seed: int) -> None:
    found = marked(pictured(hue_deg, seed), 40 / 160, 40 / 120)
    low, high = found.hue_deg
    width = (high - low) % 360.0
    assert (hue_deg - low) % 360.0 <= width < 45.0
    assert found.places == 1
    assert found.outline.startswith("data:image/png;base64,")
    with pytest.raises(UnusableInputError, match="no colour to speak of"):
        marked(pictured(hue_deg, seed), 0.99, 0.02)


def test_the_stations_file_keeps_all_else(tmp_path: Path) -> None:
    file = tmp_path / "station.yaml"
    file.write_text(BENCH)
    state_in(file, "top: left", "object", (350.0, 12.0))
    state_in(file, "top: left", "target", (80.0, 120.0))
    state_in(file, "top: left", "target", (85.0, 120.0))
    text = file.read_text()
    assert [line for line in BENCH.splitlines() if line not in text.splitlines()] == [
        "  object: green        # since Monday"
    ]
    assert "  object: [350, 12]        # since Monday" in text
    scene = load_station(file).scene
    assert (scene.camera, scene.object_hue_deg, scene.target_hue_deg) == (
        "top: left", (350.0, 12.0), (85.0, 120.0)
    )  # fmt: skip
    assert scene.object_is_stated
    bare = tmp_path / "bare.yaml"
    bare.write_text("name: bench")
    state_in(bare, "top", "object", (80.0, 120.0))
    assert yaml.safe_load(bare.read_text())["scene"] == {"camera": "top", "object": [80, 120]}


@pytest.mark.parametrize(
    ("text", "role", "why"),
    [
        (BENCH, "target", "hues in common"),
        ("name: bench\nscene: {camera: top}\n", "object", "stays as it was"),
        ("scene:\n  camera: top\n", "object", "name"),
    ],
)
def test_what_would_not_be_read_again_is_not_written(
    text: str, role: str, why: str, tmp_path: Path
) -> None:
    file = tmp_path / "station.yaml"
    file.write_text(text)
    with pytest.raises(UnusableInputError, match=why):
        state_in(file, "top", role, (100.0, 140.0))
    assert file.read_text() == text
