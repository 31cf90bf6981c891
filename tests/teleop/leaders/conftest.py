from __future__ import annotations

import os

# No window, no sound, and a gamepad that is heard although no window has the focus.
os.environ["SDL_VIDEODRIVER"] = "dummy"
os.environ["SDL_JOYSTICK_ALLOW_BACKGROUND_EVENTS"] = "1"
