"""What `real_logs` plants into takes is what it says, and the table has a line for each figure."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from benchmarks.real_logs import _plants, table
from gaploop.core.take import Frames, Take, TakeInfo
from gaploop.core.telemetry import Telemetry
from gaploop.core.vocabulary import Outcome

NAMES = ("lift", "roll", "gripper")


def test_what_is_planted_is_what_is_said() -> None:
    t_s = np.arange(60) / 30.0
    state = np.stack([40 * np.sin(t_s), 5 * t_s, 20 * t_s], axis=1)
    frames = replace(Frames.empty(), t_s=t_s, state=state, action=state, sent=state)
    info = TakeInfo("0", fps=30.0, joint_names=NAMES, units="deg")
    picture = np.full((8, 8, 3), 200, dtype=np.uint8)
    cameras = {"top": lambda: iter([picture])}
    take = Take(info, Outcome.UNLABELLED, frames, Telemetry(np.empty(0), {}), cameras=cameras)
    plants = _plants([take, take])
    off = plants["8° offset"](take).frames.state - state
    assert np.allclose(off, [8.0, 0.0, 0.0])
    assert np.ptp(plants["stuck gripper"](take).frames.state, axis=0)[2] == 0.0
    late = plants["150 ms late"](take).frames.state
    assert np.allclose(late[10:, 1], state[10:, 1] - 0.75)
    (dark,) = plants["camera covered"](take).cameras["top"]()
    (half,) = plants["one light out"](take).cameras["top"]()
    assert dark.max() <= 6
    assert half[0, 0, 0] == 200
    assert half[0, -1, 0] == 80


def test_the_table_has_a_line_for_each_figure() -> None:
    told = {"failures": 2, "modes": {"unknown": 2}, "causes": 0, "station": []}
    row = {
        "name": "arm", "takes": 30, "random": {16: [1, 20]}, "blocks": [0, 3],
        "planted": {"150 ms late": [19, 20, 150]}, "alone": told, "halves": told,
    }  # fmt: skip
    text = table({"sets": [row]})
    assert text.count("\n") == 7
    assert "19 of 20" in text
    assert "150 of 160" in text
