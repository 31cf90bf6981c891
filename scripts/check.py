"""The command `gaploop check`."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Final

from rich.markup import escape
from rich.table import Table

from gaploop.core.errors import UnusableInputError
from gaploop.scripts import options, survey
from gaploop.scripts._library import command
from gaploop.scripts.options import emit, progress

if TYPE_CHECKING:
    from gaploop.datasets.absolute.findings import Report
    from gaploop.datasets.check.findings import Finding

FIRST_PLACES: Final = 3
"""Of findings that are alike, so many are shown; --json has all."""


@dataclass
class CheckConfig:
    """Check a dataset or a journal and show how to fix what is wrong, and what it shows by itself.

    Compares what a LeRobot v3 dataset declares with what is there: counts, row ranges,
    timestamps, pictures, statistics (recomputed), NaN, copies, gap columns, labels, consent. Then
    tests what commands, readings and pictures of any robot show without a reference (docs/
    my_policy_fails.md): at most seven sentences, what is good, what couldn't be tested. Exit code
    0 where nothing is wrong or there are only warnings, 1 where there is an error or what --fail_on
    names, 2 where the folder is neither dataset nor journal.
    """

    dataset: options.TakesFolder = field(default_factory=options.TakesFolder)
    roots: list[str] = field(default_factory=list)
    """Check the metadata of these many datasets, as gaploop survey does; folders above them, or
    hf://datasets/OWNER/NAME."""
    deep: bool = False
    """Decode every picture and check every episode's motion. Otherwise all of a dataset with up
    to 3,000 pictures, and some episodes of a larger one, spread evenly."""
    consents: Path | None = None
    """The consent register; the usual one unless given. Not with --roots."""
    fail_on: list[str] = field(default_factory=list)
    """Exit code 1 where such sentences are said: kinds as --json has them, such as '[offset,
    joint_delay]', or '[any]'."""
    json: bool = False
    """Print {"ok", "findings": [{"code", "severity", "where", "message", "mend"}], "sentences",
    "good", "untested", "episodes"}; the last gives each flagged episode's kinds."""


EXAMPLE = """
gaploop check recordings/pick_place
gaploop check recordings/pick_place --deep
gaploop check recordings/pick_place --fail_on='[any]'
gaploop check --roots='[recordings]'
gaploop check recordings/pick_place --json | jq '.findings[].code'
"""


def run(config: CheckConfig) -> int:
    """Check the folder; 1 if there is an error."""
    from gaploop.datasets.check.findings import ERROR

    root = config.dataset.root
    if config.roots:
        if root is not None or config.deep or config.consents is not None:
            raise UnusableInputError(
                "--roots checks the metadata of many datasets, without --deep or --consents. For "
                "the data, videos and consents of one: gaploop check DIR"
            )
        return survey.run(survey.SurveyConfig(config.roots, json=config.json))
    report = _examined(config)
    if report is not None and not config.json:
        emit(False, {}, "\n".join(report.lines()))
    findings = check(config)
    failed = any(f.severity == ERROR for f in findings)
    failed |= report is not None and bool(report.failing(config.fail_on))
    answer = {"ok": not failed, "findings": [f.to_json() for f in findings]}
    answer |= report.to_json() if report is not None else {}
    emit(config.json, answer, "" if findings else f"{root}: nothing wrong with the files.")
    if findings and not config.json:
        _show(findings, str(root))
    return int(failed)


def _examined(config: CheckConfig) -> Report | None:
    """Return what a dataset shows by itself; None of a journal, or of what can't be read."""
    from gaploop.datasets.absolute.examine import examine
    from gaploop.datasets.absolute.findings import Report
    from gaploop.datasets.layout import is_dataset

    root = config.dataset.folder("check")
    Report(root).failing(config.fail_on)  # an unknown kind is refused before any work
    if not is_dataset(root):
        return None
    try:
        with progress("Looking at motion and pictures"):
            return examine(root)
    except UnusableInputError:
        return None  # the rules say what is wrong with the files


@command
def check(config: CheckConfig) -> list[Finding]:
    """Check a dataset or a journal; return what is wrong, each with the command that fixes it.

    Raises:
        UnusableInputError: the folder is neither.
    """
    from gaploop.datasets.check import dataset

    root = config.dataset.folder("check")
    with progress("Checking video files") as advance:
        return dataset.check(root, config.deep, consents=config.consents, advance=advance)


def _show(findings: Sequence[Finding], title: str) -> None:
    table = Table(title=title, title_justify="left", show_lines=True)
    for column in ("", "where", "what is wrong"):
        table.add_column(column, overflow="fold")
    rows: dict[tuple[str, str, str], list[Finding]] = {}
    for finding in findings:
        rows.setdefault((finding.severity, finding.code, finding.fix), []).append(finding)
    for (severity, _, _), same in rows.items():
        colour = {"error": "red", "warning": "yellow"}.get(severity, "dim")
        places = list(dict.fromkeys(finding.where for finding in same))
        where = ", ".join(places[:FIRST_PLACES])
        if len(places) > FIRST_PLACES:
            where += f" and {len(places) - FIRST_PLACES} more"
        messages = list(dict.fromkeys(finding.message for finding in same))
        message = f"{len(same)} times: " if len(same) > 1 else ""
        message += " · ".join(messages[:FIRST_PLACES])
        if len(messages) > FIRST_PLACES:
            message += f" (and {len(messages) - FIRST_PLACES} more like these)"
        table.add_row(f"[{colour}]{severity}[/]", escape(where), escape(message))
    console = options.console()
    console.print(table)
    for fix in dict.fromkeys(finding.fix for finding in findings):
        console.print(f"→ {escape(fix)}", soft_wrap=True, highlight=False)
