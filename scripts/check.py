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
    from gaploop.datasets.check.findings import Finding

FIRST_PLACES: Final = 3
"""Of findings that are alike, so many are shown; --json has all."""


@dataclass
class CheckConfig:
    """Check a dataset or a journal and show how to fix what is wrong.

    Compares what a LeRobot v3 dataset declares with what is there: counts, row ranges,
    timestamps, pictures, statistics (recomputed), NaN, copies, gap columns, labels, consent; and
    looks for joints and pictures that stand still. Exit code 0 where nothing is wrong or there are
    only warnings, 1 where there is an error, 2 where the folder is neither dataset nor journal.
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
    json: bool = False
    """Print {"ok", "findings": [{"code", "severity", "where", "message", "mend"}]}."""


EXAMPLE = """
gaploop check recordings/pick_place
gaploop check recordings/pick_place --deep
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
    findings = check(config)
    failed = any(f.severity == ERROR for f in findings)
    answer = {"ok": not failed, "findings": [f.to_json() for f in findings]}
    emit(config.json, answer, "" if findings else f"{root}: nothing wrong.")
    if findings and not config.json:
        _show(findings, str(root))
    return int(failed)


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
