"""gaploop: find why a policy fails on the real robot, record what mends it, adapt, prove it.

The folders of the project are linked into this package (`core`, `sim`, …); a checkout made
without symbolic links leaves text files in their place, which is said here rather than
surfacing as a puzzling missing module.
"""

import os
import sys
from pathlib import Path

__version__ = "0.1.0"

_FOLDERS = (
    "core",
    "sim",
    "teleop",
    "collect",
    "datasets",
    "failure_analysis",
    "finetune",
    "scripts",
)
_missing = [name for name in _FOLDERS if not (Path(__file__).parent / name).is_dir()]
if _missing:
    raise ImportError(
        f"gaploop: {', '.join(_missing)} not found beside {__file__}. This checkout has no "
        "symbolic links; run: git config core.symlinks true && git checkout -- src"
    )

# MuJoCo picks its OpenGL on import, and picks one that needs a screen. Without one, use EGL.
if sys.platform.startswith("linux") and not os.environ.get("DISPLAY"):
    os.environ.setdefault("MUJOCO_GL", "egl")
