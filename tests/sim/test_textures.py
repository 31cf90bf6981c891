"""Looks: a library by number, folders split by category, and pictures that change alone."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import cv2
import mujoco
import numpy as np
import pytest

from gaploop.core.errors import UnusableInputError
from gaploop.core.twin import Randomisation, as_yaml, load_randomisation
from gaploop.sim.camera import LayeredCamera
from gaploop.sim.cell import SimCell
from gaploop.sim.randomise import known_and_drawn, named
from gaploop.sim.textures import LOOKS, PATTERNS, SHAPES, Library, is_held_out, procedural

TETRAHEDRON = "v 0 0 0\nv 2 0 0\nv 0 1 0\nv 0 0 4\nf 1 3 2\nf 1 2 4\nf 1 4 3\nf 2 3 4\n"
LAMPS = {"count": 2.0, "layout": 4.0, "shadows": 1.0}


def drawn(text: str) -> Randomisation:
    found = known_and_drawn(None, text)[1]
    assert found is not None
    return found


def test_a_look_is_the_same_by_its_number_and_like_no_other() -> None:
    seen = {procedural(name, k, 32).tobytes() for name in PATTERNS for k in range(40)}
    assert len(PATTERNS) >= 20
    assert LOOKS >= 1000
    assert len(seen) == 40 * len(PATTERNS)
    before = procedural("wood", 3, 32)
    procedural.cache_clear()
    np.testing.assert_array_equal(procedural("wood", 3, 32), before)


def test_what_is_held_out_is_never_drawn_for_training() -> None:
    for known in (PATTERNS, SHAPES):
        assert 0 < sum(is_held_out(name) for name in known) < len(known)
    library, aside = (Library(Randomisation("x", (), held_out=h)) for h in (False, True))
    looks = [{part.texture(k, 32).tobytes() for k in range(100)} for part in (library, aside)]
    assert not looks[0] & looks[1]


def write(folder: Path, names: list[str]) -> Path:
    for k, name in enumerate(names):
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        if path.suffix == ".obj":
            path.write_text(TETRAHEDRON)
        else:
            cv2.imwrite(str(path), np.full((20, 30, 3), 10 * k, np.uint8))
    return folder


def test_a_folder_is_split_by_subfolder_whatever_else_is_in_it(tmp_path: Path) -> None:
    names = [
        f"{kind}/{k}.png"
        for kind in ("wall", "floor", "desk", "grass", "rug", "sofa")
        for k in "ab"
    ]
    few, more = write(tmp_path / "few", names[:6]), write(tmp_path / "more", names)
    for held_out in (False, True):
        parts = []
        for folder in (few, more):
            library = Library(
                Randomisation("x", (), folders={"textures": folder}, held_out=held_out)
            )
            try:
                parts.append({library.name("textures", k) for k in range(20)})
            except UnusableInputError:  # none of these is held out
                parts.append(set())
        assert parts[0] == parts[1] & set(names[:6])
        assert {is_held_out(n.split("/")[0]) for n in parts[1]} <= {held_out}


def test_a_file_and_an_option_say_the_same_settings(tmp_path: Path) -> None:
    textures = write(tmp_path / "textures", [f"{k}.png" for k in range(9)])
    said = drawn(f"TX:0.5,every=frame,textures={textures},held_out=true")
    (tmp_path / "TX.yaml").write_text(as_yaml(said))
    assert load_randomisation(tmp_path / "TX.yaml") == said
    assert drawn(f"{tmp_path / 'TX.yaml'},every=episode").every == "episode"


@pytest.mark.parametrize(
    ("said", "why"),
    [
        ("TX,every=picture", "episode, frame"),
        ("TX,evry=frame", "every"),
        ("TX,textures=nowhere", "no folder"),
        ("TX,held_out=perhaps", "true, false|false, true"),
        ("DM,meshes=.", "no .obj"),
        ("TX,textures=one", "held out"),
    ],
)
def test_a_wrong_setting_is_one_line(
    said: str, why: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    write(tmp_path / "one", ["wall/1.png"])
    if "one" in said:
        said += f",held_out={'false' if is_held_out('wall') else 'true'}"
    with pytest.raises(UnusableInputError, match=why) as caught:
        known_and_drawn(None, said)
    assert "\n" not in str(caught.value)


def test_a_mesh_of_a_file_stands_on_the_table(tmp_path: Path) -> None:
    folder = write(tmp_path, ["cup.obj", "can.obj", "jug.obj"])
    with SimCell(randomise=drawn(f"DM,meshes={folder}"), image_size=64) as cell:
        for seed in range(9):
            cell.reset(seed)
            things = [b for b in range(cell.model.nbody) if "distractor" in cell.model.body(b).name]
            if things:
                break
        model, data = cell.model, cell.data
        for body in things:
            geom = int(model.body_geomadr[body])
            start = int(model.mesh_vertadr[model.geom_dataid[geom]])
            corners = model.mesh_vert[start : start + 4] @ data.geom_xmat[geom].reshape(3, 3).T
            spread = np.ptp(corners, axis=0)
            assert spread[2] == pytest.approx(spread.max())  # as tall as it is in the file
            assert (corners + data.geom_xpos[geom])[:, 2].min() == pytest.approx(0.0, abs=1e-5)
            assert 0.013 < spread.max() < 0.056


def test_a_mesh_that_is_none_is_one_line(tmp_path: Path) -> None:
    (tmp_path / "torn.obj").write_text("v 0 0 0\n")
    (tmp_path / "torn2.obj").write_text("v 0 0 0\n")
    with (
        pytest.raises(UnusableInputError, match="can't be read"),
        SimCell(parameters={"environmental_complexity.distractors": {"count": 0.0}}),
    ):
        Library(Randomisation("x", (), folders={"meshes": tmp_path})).mesh(0)


def test_every_picture_looks_otherwise_and_nothing_else_does(nominal: SimCell, sweep: Any) -> None:
    """Arm and things move to the bit as in the plain cell; the same episode again is the same."""
    joints, pictures = sweep(nominal, 4)
    with SimCell(randomise=drawn("TX+OC+LT+CP,every=frame")) as cell:
        first = sweep(cell, 4)
        again = sweep(cell, 4)
        other = sweep(cell, 5)
        told = named(drawn("TX+CP,every=frame"), cell.drawn)
    assert "visual_domain.surfaces" in told["every_frame"]
    np.testing.assert_array_equal(first[0], joints)
    assert all((a == b).all() for a, b in zip(first[1], again[1], strict=True))
    for a, b in (
        (first[1][0], first[1][1]),
        (first[1][0], pictures[0]),
        (first[1][0], other[1][0]),
    ):
        assert (a != b).mean() > 0.5


def test_lamps_throw_shadows_and_keep_the_scene_about_as_bright() -> None:
    pictures = []
    for shadows in (0.0, 1.0):
        lamps = {"visual_domain.placed_lamps": {**LAMPS, "shadows": shadows}}
        with SimCell(parameters=lamps, image_size=96) as cell:
            pictures.append(cell.frame().image.astype(float))
    with SimCell(image_size=96) as plain:
        usual = plain.frame().image.mean()
    darker = (pictures[0] - pictures[1]).mean(axis=-1)
    assert (darker > 10.0).mean() > 0.005
    assert pictures[0].mean() == pytest.approx(usual, rel=0.3)


def test_what_moves_throws_its_shadow_on_what_stands_still() -> None:
    """Layers were drawn apart from each other: a scene's arm threw no shadow on its table."""
    model = mujoco.MjModel.from_xml_string("""<mujoco><worldbody>
      <light pos="0.3 0 1" dir="-0.3 0 -1"/><camera name="c" pos="0 0 1"/>
      <geom type="plane" size="1 1 .1"/>
      <body pos="0 0 0.2"><freejoint/><geom size="0.05"/></body></worldbody></mujoco>""")
    data = mujoco.MjData(model)
    mujoco.mj_forward(model, data)
    camera = LayeredCamera(model, "c", 64, 64)
    np.testing.assert_array_equal(camera.draw(data), camera.draw_whole(data))
    camera.close()
