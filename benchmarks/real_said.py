"""What `gaploop diagnose`, as typed, says of real episodes nothing is known to be wrong with.

Each line is a case in which it once named causes with confidence. Outcomes are made up by
`gaploop label`, so that whatever is named is named falsely.
"""

from __future__ import annotations

import contextlib
import io
import itertools
import json
import re
import shutil
import tempfile
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from gaploop.core.errors import UnusableInputError
from gaploop.datasets.layout import read_info
from gaploop.scripts.cli import main

ALONE: Final = 10
"""Episodes called failures, none a success."""
DEALT: Final = 12
"""Episodes called failures, then the other ones."""
LIGHT: Final = frozenset(
    {"exposure", "white_balance", "haze", "vignette", "local_light", "flicker"}
)
"""Questions about a camera that another light may answer by yes."""
SMALL: Final = 6
TWO_SIDED: Final = 3
"""Draws of three failures and three successes of six episodes."""


def said_of(root: Path, folder: Path) -> list[dict[str, Any]]:
    """Return what is said of one LeRobot v3 dataset: what was tried, named, and by which command.

    Raises:
        UnusableInputError: a command failed; with what it said.
    """
    n = read_info(root).total_episodes
    every, half = range(n), range(DEALT, 2 * DEALT)
    cases: list[tuple[str, Sequence[int], Sequence[int], Sequence[str]]] = [
        (f"all {n} called failures, joints only", every, (), ("--pictures=false",))
    ]
    if n >= ALONE:
        cases.append((f"{ALONE} called failures", every[:ALONE], (), ()))
    if n >= 2 * DEALT:
        cases.append((f"{DEALT} called failures, the next successes", every[:DEALT], half, ()))
        cases.append((f"those successes, the next {DEALT} failures", half, every[:DEALT], ()))
    if n >= SMALL:
        ways = list(itertools.combinations(range(SMALL), SMALL // 2))
        for failed in ways[:: len(ways) // TWO_SIDED][:TWO_SIDED]:
            words = f"of the first {SMALL}, {', '.join(map(str, failed))} called failures"
            cases.append((words, failed, [e for e in range(SMALL) if e not in failed], ()))
    with tempfile.TemporaryDirectory(dir=folder) as here:
        copy = Path(shutil.copytree(root, Path(here, root.name)))
        return [
            {"set": root.name, "tried": tried, **_told(copy, n, failed, well, more)}
            for tried, failed, well, more in cases
        ]


def _told(
    copy: Path, n: int, failed: Sequence[int], went_well: Sequence[int], more: Sequence[str]
) -> dict[str, Any]:
    """Label a copy of a dataset, diagnose it, and return what that named."""
    others = [e for e in range(n) if e not in failed and e not in went_well]
    for outcome, episodes in (
        ("failure", failed), ("success", went_well), ("unlabelled", others)
    ):  # fmt: skip
        if episodes:
            chosen = f"--episodes={list(episodes)}"
            _typed("label", copy, chosen, f"--outcome={outcome}", "--author=made up")
    to = copy.with_name(f"{copy.name}_diagnosis")
    shutil.rmtree(to, ignore_errors=True)
    command = ["diagnose", copy, *more, f"--output_dir={to}"]
    try:
        printed = _typed(*command)
    except UnusableInputError as error:
        if "--units=unknown goes on" not in str(error):
            raise
        command.insert(2, "--units=unknown")  # as the refusal says
        printed = _typed(*command)
    told = json.loads((to / "diagnosis.json").read_text())
    names = re.compile(r"^\d+\. (.*)", re.MULTILINE).findall(printed)
    return {
        "named": named(told), "by_itself": names,
        "command": " ".join(["gaploop", *map(str, command)]).replace(f"{copy.parent}/", ""),
        "says": told["summary"]["station"]["says"],
    }  # fmt: skip


def named(told: Mapping[str, Any]) -> dict[str, int]:
    """Return what a diagnosis named, each with the number of episodes or sets that it names."""
    takes, summary = told["takes"], told["summary"]
    found = Counter(f"mode {take['mode']}" for take in takes if take["mode"] != "unknown")
    found.update(f"cause {name}" for take in takes if not take["abstained"]
                 for name in take["named"])  # fmt: skip
    found.update(f"station {name}" for name in summary["station"]["named"])
    found.update(f"camera {one['camera']}: {one['question']}"
                 for one in (summary.get("camera_check") or {}).get("found", ()))  # fmt: skip
    return dict(found)


def _typed(*words: object) -> str:
    """Run a command as typed, in this process, and return what it printed."""
    out, err = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        code = main([str(word) for word in words])
    if code:
        raise UnusableInputError(f"gaploop {' '.join(map(str, words))}: {err.getvalue().strip()}")
    return out.getvalue()


def cases(result: Mapping[str, Any]) -> list[str]:
    """Return the table of cases that misled once: what is said now, and whether that is right."""
    lines = ["| tried on real pictures | said | |", "|---|---|---|"]
    for row in result["said"]:
        told = ", ".join(f"{name} {n}" for name, n in row["named"].items())
        judged = "wrong" if told else "can't tell"
        lines.append(f"| {row['set']}: {row['tried']} | {told or 'no mode, no cause'} | {judged} |")
    by_kind: dict[str, list[Mapping[str, Any]]] = {}
    for data in result["sets"]:
        for camera in data["cameras"].values():
            by_kind.setdefault(camera["kind"], []).append(camera)
    for kind, cameras in by_kind.items():
        n, accused = (sum(c[what] for c in cameras) for what in ("judged", "accused"))
        questions = Counter[str]()
        for camera in cameras:
            questions.update(camera["questions"])
        said = ", ".join(f"{q} {k}" for q, k in questions.items())
        judged = "right" if accused <= 0.05 * n else "wrong: more than 1 in 20"
        lines.append(f"| camera {kind}: {n} unaltered later episodes | accused {accused}"
                     f"{f' ({said})' if said else ''} | {judged} |")  # fmt: skip
    for data in result["lights"]:
        yes = Counter[str]()
        for row in data["rows"]:
            yes.update(row["yes"])
        n = sum(row["judged"] for row in data["rows"])
        said = ", ".join(f"{q} {k}" for q, k in yes.items()) or "nothing"
        judged = "wrong" if set(yes) - set(LIGHT) else "right, else can't tell"
        lines.append(f"| {data['name']}: {n} pictures under another light | {said} | {judged} |")
    for kind, cameras in by_kind.items():
        for about, strengths in cameras[0]["altered"].items():
            columns = []
            for k in range(len(strengths)):
                rows = [camera["altered"][about][k] for camera in cameras]
                n, found, unknown = (sum(r[w] for r in rows) for w in ("n", "found", "unknown"))
                columns.append((found, unknown, n - found - unknown, n))
            if not columns or not columns[-1][-1]:
                continue
            said = ", ".join(f"{f} yes {u} can't tell {no} no" for f, u, no, _ in columns)
            judged = "wrong" if any(no for _, _, no, _ in columns[1:]) else "right or can't tell"
            sizes = ", ".join(f"{cell['strength']:g}" for cell in strengths)
            lines.append(f"| camera {kind}: {about} {sizes} | {said} | {judged} |")
    for data in result["sets"]:
        for pair in data["swapped"]:
            names, n = " and ".join(pair["cameras"]), pair["n"]
            judged = "right" if pair["found"] == n and not pair["false"] else "wrong"
            said = f"found {pair['found']} of {n}, said of {pair['false']} of {n} others"
            lines.append(f"| {data['name']}: {names} swapped | {said} | {judged} |")
    return lines
