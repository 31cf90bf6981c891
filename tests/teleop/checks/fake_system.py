"""Folders that stand for /proc, and users that may or may not."""

from __future__ import annotations

from pathlib import Path

from gaploop.teleop.checks import CheckResult


def allow(_path: str, _mode: int) -> bool:
    return True


def refuse(_path: str, _mode: int) -> bool:
    return False


def process(root: Path, pid: int, name: str, *opened: str, pty_index: int | None = None) -> None:
    folder = root / "proc" / str(pid)
    (folder / "fd").mkdir(parents=True)
    (folder / "fdinfo").mkdir()
    (folder / "comm").write_text(f"{name}\n")
    for number, target in enumerate(opened):
        (folder / "fd" / str(number)).symlink_to(target)
        said = f"pos:\t0\ntty-index:\t{pty_index}\n" if target.endswith("ptmx") else "pos:\t0\n"
        (folder / "fdinfo" / str(number)).write_text(said)


def one(findings: list[CheckResult]) -> CheckResult:
    (finding,) = findings
    return finding
