from __future__ import annotations

import os

import pytest

# No window, no sound, and a gamepad that is heard although no window has the focus.
os.environ["SDL_VIDEODRIVER"] = "dummy"
os.environ["SDL_JOYSTICK_ALLOW_BACKGROUND_EVENTS"] = "1"


@pytest.fixture
def no_display(monkeypatch: pytest.MonkeyPatch) -> None:
    """An operator who is logged in without a desktop."""
    monkeypatch.setenv("SDL_VIDEODRIVER", "nowhere")
    monkeypatch.delenv("DISPLAY", raising=False)
    monkeypatch.delenv("WAYLAND_DISPLAY", raising=False)
