"""Draw the pictures of windows that the docs show: `python docs/img/windows.py`, without a display.

They show today's words and keys; run it after a change of either. The states are made up.
"""

import os
from dataclasses import replace
from pathlib import Path

os.environ.setdefault("SDL_VIDEODRIVER", "dummy")

from gaploop.collect.intervention import Driver
from gaploop.collect.operator.keys import ROLLOUT, KeyMap
from gaploop.collect.operator.machine import (
    LabelPrompt,
    Question,
    SessionStage,
    SessionState,
    StageTiming,
)
from gaploop.collect.operator.view import Loop, QuotaBar, Quotas, ScreenContent, TakeSeen, look
from gaploop.collect.operator.window import OperatorWindow
from gaploop.collect.rollout import Driven
from gaploop.sim.cell import SimCell
from gaploop.teleop.leaders.controls import ControlAction, Intent
from gaploop.teleop.leaders.panel import KEY_HELP, LeaderWindow, pygame, sign_of

HERE = Path(__file__).parent
TASK = "Put the cube on the disc"
RECORDED = (
    TakeSeen(1, "a", {"outcome": "success"}),
    TakeSeen(2, "b", {"outcome": "failure", "failure_mode": "slip"}),
    TakeSeen(3, "c", {"outcome": "failure"}),
)


def main() -> None:
    """Draw them all."""
    cell = SimCell(task="pick_place")
    cell.reset(3)
    pictures = {"top": cell.frame().image}
    cell.close()
    state = SessionState(StageTiming(20.0, 10.0), SessionStage.RECORDING, since_s=8.0)
    recording = ScreenContent(
        14.2, state, KeyMap(), TASK,
        Quotas(12, 20, (QuotaBar("visual domain", 7, 10), QuotaBar("nominal", 5, 10)), 700.0),
        RECORDED, Loop(200.0, 30.0), "lighting: dim",
    )  # fmt: skip
    asked = SessionState(
        state.timing, SessionStage.VERDICT, prompt=LabelPrompt("c", Question.MODE, marked=6)
    )
    resting = SessionState(state.timing, SessionStage.RESET, since_s=11.0)
    lost = (
        "Everything answers again, and torque is off. Make sure that the arm may move, then press "
        "C twice."
    )
    policy = Driven(Driver.POLICY, can_switch=True, speed_scale=1.0)
    rollout = replace(recording, keys=KeyMap(ROLLOUT), takes=(), quotas=Quotas(0, 10), setup="")
    person = replace(policy, driver=Driver.PERSON, interventions=1, person_s=3.4)
    window = OperatorWindow("gaploop")
    for name, seen in {
        "record_recording": recording,
        "record_what_failed": replace(recording, state=asked),
        "record_found_again": replace(recording, state=resting, loop=Loop(lost=lost, found=True)),
        "rollout_policy": replace(rollout, driven=policy),
        "rollout_you_drive": replace(rollout, driven=person),
    }.items():
        window.draw(look(seen), pictures)
        pygame.image.save(pygame.display.get_surface(), HERE / f"{name}.png")
    moving = Intent(held=True, step=3)
    leader = LeaderWindow("gaploop", KEY_HELP)
    leader.draw(sign_of(moving, (ControlAction.FORWARD, ControlAction.UP), "", "Space"), moving)
    pygame.image.save(pygame.display.get_surface(), HERE / "leaders.png")
    window.close()


if __name__ == "__main__":
    main()
