"""What other validators say of the faults that `gaploop check` is tested with, as a table.

python tests/datasets/compare_validators.py WORK_DIR [--robovet=PROGRAM] [--lerobot_doctor=PROGRAM]
    [--lance_doctor=PROGRAM]

Each program is installed in an environment of its own; those not named are left out. A fault
counts as found where the program says something (a warning or worse) that it doesn't say of the
same dataset without the fault. `check` is held to the same.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path

import damage

PLANTED = (
    "truncated data",
    "truncated episode table",
    "wrong stats",
    "missing stats",
    "missing info",
    "missing tasks",
    "video for videos",
    "misnamed key in info",
    "misnamed key in data",
    "wrong fps",
    "shuffled timestamps",
    "rows written twice",
    "episode listed twice",
    "duplicate episode",
    "counts of a killed session",
    "NaN",
    "missing video",
    "truncated video",
)
RECORDED = ("dead", "frozen")
TEXT_TIMEOUT_S = 300

type Says = Callable[[Path], set[str]]


def gaploop(root: Path) -> set[str]:
    from gaploop.core.errors import UnusableInputError
    from gaploop.datasets.check.dataset import check

    try:
        return {f.code for f in check(root) if f.severity != "info"}
    except UnusableInputError as error:
        return {str(error)}


def output(*command: object) -> tuple[int, str]:
    done = subprocess.run(
        [str(c) for c in command],
        capture_output=True,
        text=True,
        timeout=TEXT_TIMEOUT_S,
        check=False,
    )
    return done.returncode, done.stdout + done.stderr


def robovet(program: str) -> Says:
    def says(root: Path) -> set[str]:
        with tempfile.TemporaryDirectory() as folder:
            file = Path(folder, "found.json")
            code, text = output(program, "doctor", root, "--json", file)
            if not file.exists():
                return {f"exit {code}"} if code else set()
            found = re.findall(r"^\s*(FAIL|WARN)\s+(\S+)", text, flags=re.MULTILINE)
            return {" ".join(pair) for pair in found}

    return says


def lerobot_doctor(program: str) -> Says:
    def says(root: Path) -> set[str]:
        code, text = output(program, "check", root)
        found = re.findall(r"^\[(FAIL|WARN)\] (.+)$", text, flags=re.MULTILINE)
        if not found:
            return {f"exit {code}"} if code else set()
        return {" ".join(pair) for pair in found}

    return says


def lance_doctor(program: str) -> Says:
    def says(root: Path) -> set[str]:
        code, text = output(program, "--root", root)
        found = re.findall(r"FAIL\S*\] (\w+)", text)
        return set(found) or ({f"exit {code}"} if code else set())

    return says


def clean_sets(folder: Path) -> dict[str, Path]:
    """Make five datasets without a fault, each by LeRobot itself."""
    from lerobot.datasets.dataset_tools import delete_episodes, merge_datasets
    from lerobot.datasets.lerobot_dataset import LeRobotDataset

    whole = damage.record(folder / "recorded", 4, 60)
    other = damage.record(folder / "other", 3, 70)
    first = LeRobotDataset("me/x", root=whole)
    delete_episodes(first, [1], folder / "edited", "me/x")
    merge_datasets([first, LeRobotDataset("me/y", root=other)], "me/z", folder / "merged")
    return {
        "recorded by LeRobot, videos": whole,
        "recorded by LeRobot, pictures in the tables": damage.record(
            folder / "pictures", 3, 60, videos=False
        ),
        "cut by LeRobot's delete_episodes": folder / "edited",
        "joined by LeRobot's merge_datasets": folder / "merged",
        "recorded by LeRobot, another": other,
    }


def faulty_sets(folder: Path, base: Path) -> dict[str, Path]:
    """Make the datasets with one fault each."""
    sets = {}
    ways = {**damage.DAMAGES, **damage.VIDEO_DAMAGES}
    for name in PLANTED:
        root = Path(shutil.copytree(base, folder / name.replace(" ", "_")))
        ways[name].plant(root)
        sets[name] = root
    for fault in RECORDED:
        sets[f"{fault} (recorded so)"] = damage.record(folder / fault, 4, 60, fault=fault)
    return sets


def main() -> None:
    """Print the two tables and the counts as Markdown."""
    parser = argparse.ArgumentParser()
    parser.add_argument("work_dir", type=Path)
    makers = {
        "robovet": robovet,
        "lerobot_doctor": lerobot_doctor,
        "lance_doctor": lance_doctor,
    }
    for name in makers:
        parser.add_argument(f"--{name}", default="")
    options = parser.parse_args()
    validators: dict[str, Says] = {"gaploop check": gaploop}
    for name, make in makers.items():
        if getattr(options, name):
            validators[name] = make(getattr(options, name))
    options.work_dir.mkdir(parents=True)
    with contextlib.redirect_stdout(sys.stderr):
        clean = clean_sets(options.work_dir / "clean")
        faulty = faulty_sets(options.work_dir / "faulty", next(iter(clean.values())))
        before = {v: says(next(iter(clean.values()))) for v, says in validators.items()}
        spoken = {
            name: {v: sorted(says(root)) for v, says in validators.items()}
            for name, root in {**clean, **faulty}.items()
        }
    (options.work_dir / "said.json").write_text(json.dumps(spoken, indent=1))
    lines = ["| fault | " + " | ".join(validators) + " |", "|---" * (len(validators) + 1) + "|"]
    hits = dict.fromkeys(validators, 0)
    for name in faulty:
        cells = []
        for validator in validators:
            found = bool(set(spoken[name][validator]) - before[validator])
            hits[validator] += found
            cells.append("found" if found else "–")
        lines.append(f"| {name} | " + " | ".join(cells) + " |")
    lines.append(
        "| **found** | " + " | ".join(f"{hits[v]} of {len(faulty)}" for v in validators) + " |"
    )
    lines += [
        "",
        "| clean set | " + " | ".join(validators) + " |",
        "|---" * (len(validators) + 1) + "|",
    ]
    for name in clean:
        cells = [", ".join(spoken[name][v]) or "nothing" for v in validators]
        lines.append(f"| {name} | " + " | ".join(cells) + " |")
    sys.stdout.write("\n".join(lines) + "\n")


if __name__ == "__main__":
    main()
