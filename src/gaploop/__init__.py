"""gaploop: find out why a policy fails on the real robot, record what fixes it, adapt, prove it.

The names of `__all__` are the front door, loaded when first used; docs/extend/api.md shows them.

The folders of the project are linked into this package (`core`, `sim`, …); a checkout made
without symbolic links leaves text files in their place, which is said here rather than
surfacing as a puzzling missing module.
"""

import importlib
import os
import sys
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from gaploop.core.plan import Plan as Plan
    from gaploop.core.station import Station as Station
    from gaploop.core.take import Take as Take
    from gaploop.datasets.lerobot_read import load_takes as load_takes
    from gaploop.failure_analysis.diagnosis import Diagnosis as Diagnosis
    from gaploop.finetune.gate.judge import compare as compare
    from gaploop.scripts._check import check as check
    from gaploop.scripts._diagnose import diagnose as diagnose
    from gaploop.scripts._evaluate import evaluate as evaluate
    from gaploop.scripts._finetune import finetune as finetune
    from gaploop.scripts._gate import gate as gate
    from gaploop.scripts._plan import plan as plan
    from gaploop.scripts._publish import publish as publish
    from gaploop.scripts._rollout import rollout as rollout
    from gaploop.scripts.record import record as record
    from gaploop.sim.cell import SimCell as SimCell
    from gaploop.teleop.safety import SafetyFilter as SafetyFilter

__version__ = "0.2.0"

_FOLDERS = (
    "core", "sim", "teleop", "collect", "datasets", "failure_analysis", "finetune", "scripts",
)  # fmt: skip
_missing = [name for name in _FOLDERS if not (Path(__file__).parent / name).is_dir()]
if _missing:
    raise ImportError(
        f"gaploop: {', '.join(_missing)} not found beside {__file__}. This checkout has no "
        "symbolic links; run: git config core.symlinks true && git checkout -- src"
    )

# MuJoCo picks its OpenGL on import, and picks one that needs a screen. Without one, use EGL.
if sys.platform.startswith("linux") and not os.environ.get("DISPLAY"):
    os.environ.setdefault("MUJOCO_GL", "egl")
# Mesa's software rasteriser spreads each small picture over all cores by default; on a machine
# that also runs a control loop, waiting for those threads costs more than drawing (measured:
# 27 ms against 7 ms a picture under load).
os.environ.setdefault("LP_NUM_THREADS", "0")


_NAMES = {
    "record": "scripts.record",
    "rollout": "scripts._rollout",
    "publish": "scripts._publish",
    "check": "scripts._check",
    "load_takes": "datasets.lerobot_read",
    "diagnose": "scripts._diagnose",
    "plan": "scripts._plan",
    "finetune": "scripts._finetune",
    "evaluate": "scripts._evaluate",
    "compare": "finetune.gate.judge",
    "gate": "scripts._gate",
    "Take": "core.take",
    "Station": "core.station",
    "Diagnosis": "failure_analysis.diagnosis",
    "Plan": "core.plan",
    "SafetyFilter": "teleop.safety",
    "SimCell": "sim.cell",
}
"""Name to the module that defines it."""
__all__ = list(_NAMES)


def __getattr__(name: str) -> Any:
    if name not in _NAMES:
        raise AttributeError(f"module 'gaploop' has no attribute '{name}'")
    value = getattr(importlib.import_module(f"gaploop.{_NAMES[name]}"), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})


class _CallablePackage(ModuleType):
    """Adapt a policy once and write its run folder; also the folder of the modules that do it."""

    def __call__(self, *given: Any, **options: Any) -> Any:
        from gaploop.scripts._finetune import finetune

        return finetune(*given, **options)


_finetune = importlib.import_module("gaploop.finetune")
_finetune.__class__ = _CallablePackage
_finetune.__doc__ = _CallablePackage.__doc__
