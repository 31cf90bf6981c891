"""Say in one line what stands in the way of running gaploop here; exit 2 if anything does."""

from __future__ import annotations

import ctypes
import os
import sys
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

RIVALS = ("opencv-python", "opencv-contrib-python", "opencv-contrib-python-headless")
"""Distributions that install the same `cv2` folder as opencv-python-headless, over it."""


def installed(name: str) -> str | None:
    """Return the version of a distribution, or None."""
    try:
        return version(name)
    except PackageNotFoundError:
        return None


def opencv() -> str | None:
    """Return what is wrong with the installed OpenCV, or None."""
    rivals = [name for name in RIVALS if installed(name)]
    if rivals:
        return (
            f"{' and '.join(rivals)} installed beside opencv-python-headless: they overwrite each "
            f"other. Fix: .venv/bin/pip uninstall -y {' '.join(rivals)} opencv-python-headless && "
            "rm .venv/.gaploop-setup && make setup"
        )
    return None


def rendering() -> str | None:
    """Return what is missing for rendering without a display, or None."""
    if not sys.platform.startswith("linux") or os.environ.get("MUJOCO_GL", "egl") != "egl":
        return None
    try:
        ctypes.CDLL("libEGL.so.1")
    except OSError:
        return (
            "libEGL.so.1 not found, so MuJoCo can't render without a display. Fix: apt-get "
            "install libegl1 libgl1-mesa-dri (or choose with MUJOCO_GL=osmesa|glfw)"
        )
    return None


def links() -> str | None:
    """Return which folders of the package are missing, or None."""
    folder = Path(__file__).resolve().parent.parent / "src" / "gaploop"
    linked = [path for path in folder.iterdir() if not path.suffix and path.name != "__pycache__"]
    missing = sorted(path.name for path in linked if path.is_symlink() and not path.exists())
    if missing:
        return f"folder missing: {', '.join(missing)}. Fix: git checkout -- {' '.join(missing)}"
    if not all(path.is_dir() for path in linked):
        return (
            "this checkout has no symbolic links under src/gaploop. Fix: git config "
            "core.symlinks true && git checkout -- src"
        )
    return None


def main() -> int:
    """Print one line for each thing that is wrong; return 0 if nothing is."""
    wrong = [said for said in (links(), opencv(), rendering()) if said]
    for said in wrong:
        sys.stderr.write(f"gaploop: {said}\n")
    return 2 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
