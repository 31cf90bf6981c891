"""What `gaploop check` does: finds damage, says what episodes show by themselves, fixes."""

import shlex
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Final

from rich.markup import escape
from rich.table import Table

from gaploop.collect.recovery import recover
from gaploop.core import journal_format
from gaploop.core.errors import UnusableInputError
from gaploop.core.files import existing_folder, read_json
from gaploop.datasets import layout
from gaploop.datasets.absolute.examine import compare_sets, examine, training_set
from gaploop.datasets.absolute.findings import AbsoluteReport
from gaploop.datasets.check import dataset
from gaploop.datasets.check.dataset import FixOptions, FixReport, fix, looks_like_dataset, plan
from gaploop.datasets.check.findings import ERROR, Finding
from gaploop.datasets.hub.target import HUB, is_hub_address
from gaploop.scripts import options
from gaploop.scripts.check import CheckConfig
from gaploop.scripts.cli import command
from gaploop.scripts.options import emit, progress

FIRST_PLACES: Final = 3
"""Of findings that are alike, so many are shown; --json has all."""


def run(config: CheckConfig) -> int:
    """Check the folders or fix one; 1 if there is an error, or something left to fix."""
    of_fix = ("dry_run", "drop", "output_dir", "labels_from")
    given = [f"--{name}" for name in of_fix if getattr(config, name)]
    if given and not config.fix:
        raise UnusableInputError(f"{', '.join(given)}: only with --fix, which changes the dataset.")
    if config.history:
        return _history(config)
    AbsoluteReport(Path()).failing(config.fail_on)  # an unknown kind is refused before any work
    if config.fix:
        folder = existing_folder(_root(config), "Folder")
        if not _is_journal(config, folder):
            return _fix_dataset(config, folder)
        if not config.dry_run:
            return _seal_takes(config, folder)
    roots = [root for name in config.roots for root in _datasets(name)]
    if len(roots) <= 1:
        answer = _checked(replace(config, roots=roots))
        emit(config.json, answer)
        return int(not answer["ok"])
    by_dataset = []
    for root in roots:
        try:
            answer = _checked(replace(config, roots=[root]))
        except UnusableInputError as error:  # the others are checked all the same
            answer = {"ok": False, "refused": str(error)}
            emit(False, {}, "" if config.json else str(error))
        by_dataset.append({"dataset": root, **answer})
    failed = [one["dataset"] for one in by_dataset if not one["ok"]]
    summary = f"{len(roots)} datasets, {len(failed)} with an error: {', '.join(failed)}"
    emit(config.json, {"ok": not failed, "by_dataset": by_dataset}, summary.rstrip(" :"))
    return int(bool(failed))


def _datasets(name: str) -> list[str]:
    """Return the datasets that a name stands for: itself, or those below a folder."""
    path = Path(name)
    if is_hub_address(name):
        return [name]
    existing_folder(path, "Folder")
    if (path / "meta").exists() or (path / "data").exists() or journal_format.is_journal(path):
        return [name]
    below = [found.parents[1] for found in sorted(path.glob(f"**/{layout.INFO}"))]
    shown = [p for p in below if not any(part[0] == "." for part in p.relative_to(path).parts)]
    return [str(found) for found in shown] or [name]


def _checked(config: CheckConfig) -> dict[str, Any]:
    """Check one dataset or journal, print what is wrong, and return it for --json."""
    report: AbsoluteReport | None
    name, shown = config.roots[0] if config.roots else "", list[Finding]()
    if is_hub_address(name):
        on_hub, findings = _on_hub(config)
        report, lines = on_hub, on_hub.lines()
        repo_id = name.removeprefix(HUB).partition("@")[0]
        copy = repo_id.rpartition("/")[2]  # commands are for a copy in a folder
        lines = [line.replace(str(on_hub.root), copy) for line in lines]
        findings = [replace(f, fix=f.fix.replace(str(on_hub.root), copy)) for f in findings]
        fetch = f"hf download {repo_id} --repo-type=dataset --local-dir={copy}"
        lines.append(f"The commands are for a copy of it: {fetch}")
    else:  # what takes longer comes later, and is shown then
        parts = dataset.check_in_parts(_root(config), config.deep)
        with progress("Checking the files"):
            shown = next(parts)
        if shown and not config.json:
            _show(shown, name)
        report = _examined(config)
        lines = report.lines() if report is not None else []
    if lines and not config.json:
        emit(False, {}, "\n".join(lines))
    if not is_hub_address(name):
        with progress("Decoding pictures"):
            findings = [*shown, *(f for f in next(parts, shown) if f not in shown)]
    failed = any(f.severity == ERROR for f in findings)
    failed |= report is not None and bool(report.failing(config.fail_on))
    answer = {"ok": not failed, "findings": [f.to_json() for f in findings]}
    answer |= report.to_json() if report is not None else {}
    if config.json:
        return answer
    if more := findings[len(shown) :]:
        _show(more, name)
    elif not findings:
        emit(False, {}, f"{name}: nothing wrong with the files.")
    return answer


def _history(config: CheckConfig) -> int:
    """Say what changed over several datasets; 0, whatever did."""
    if len(config.roots) < 2 or config.fix or config.fail_on:
        raise UnusableInputError(
            "--history sets two or more against each other, and changes nothing: "
            "gaploop check MONDAY TUESDAY --history"
        )
    sets = [training_set(Path(root)) for root in config.roots]
    with progress("Looking at motion and pictures", len(sets)) as advance:
        changed, content, silent = compare_sets(sets, advance)
    lines = [trend.line() for trend in changed] or ["Arm and cameras: no figure changed."]
    lines += [f"Without figures: {what}." for what in silent]
    answer = {"trends": [t.to_json() for t in changed], "contents": content.to_json()}
    emit(config.json, {**answer, "silent": silent}, "\n".join([*lines, "", *content.lines()]))
    return 0


def _on_hub(config: CheckConfig) -> tuple[AbsoluteReport, list[Finding]]:
    """Check a dataset on a Hub: its tables are fetched, of videos parts."""
    from gaploop.datasets.hub.upload import fetch, has_version, video_opener

    if config.deep or config.policy.path:
        raise UnusableInputError(
            "--deep and --policy.path are for all pictures of a dataset: gaploop check DIR"
        )
    repo_id, _, revision = config.roots[0].removeprefix(HUB).partition("@")
    with progress("Fetching metadata and tables"):
        root = fetch(repo_id, revision or None, "dataset", ["meta/**", "data/**"])
    if not layout.is_dataset(root):
        raise UnusableInputError(
            f"{config.roots[0]} is no LeRobot dataset: no {layout.INFO} there."
        )
    with progress("Looking at motion and pictures"):
        report = examine(root, opened=video_opener(repo_id, root))
    found = dataset.check(root)
    found = [f for f in found if f.code not in ("missing_video", "misnamed_folder")]
    if not revision and not has_version(repo_id):
        tag = str(read_json(root / layout.INFO).get("codebase_version"))
        lost = f"No tag {tag}: LeRobot looks for it, and can't load the dataset by its name."
        make = f"hf repos tag create {repo_id} {tag} --repo-type=dataset"
        found.append(Finding("missing_tag", ERROR, f"{repo_id} on the Hub", lost, make))
    return report, found


def _examined(config: CheckConfig) -> AbsoluteReport | None:
    """Return what a dataset shows by itself; None of a journal, or of what can't be read."""
    root = _root(config)
    if not layout.is_dataset(root):
        return None
    try:
        with progress("Looking at motion and pictures"):
            report = examine(root)
    except UnusableInputError:
        return None  # the rules say what is wrong with the files
    if config.policy.path:
        from gaploop.finetune.lerobot_open_loop import examine_policy

        with progress("Asking the policy about these rows"):
            examine_policy(config.policy.path, root, report, demonstrations=True)
    return report


@command
def check(config: CheckConfig) -> list[Finding]:
    """Check a dataset or a journal; return what is wrong, each with the command that fixes it.

    Raises:
        UnusableInputError: the folder is neither.
    """
    with progress("Checking the files"):
        return dataset.check(_root(config), config.deep)


def _root(config: CheckConfig) -> Path:
    if len(config.roots) != 1:
        raise UnusableInputError("Which folder? Name one: gaploop check DIR")
    return Path(config.roots[0])


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
    failed = any(f.severity == ERROR for f in findings)  # what only adds would be refused
    shown = [f for f in findings if not failed or f.severity != "info"]
    for how in dict.fromkeys(finding.fix for finding in shown):
        console.print(f"→ {escape(how)}", soft_wrap=True, highlight=False)


def _is_journal(config: CheckConfig, root: Path) -> bool:
    """Say whether episodes are to be sealed, not a dataset to be fixed."""
    if looks_like_dataset(root):
        return False
    has_streams = next(root.glob(f"*/{journal_format.FRAMES}"), None) is not None
    if not has_streams and not journal_format.is_journal(root):
        raise UnusableInputError(
            f"{root} holds neither a dataset nor episodes. Name a dataset's folder, or the one "
            "that record was given with --journal."
        )
    of_datasets = ("drop", "output_dir", "labels_from", "deep")
    if given := [f"--{name}" for name in of_datasets if getattr(config, name)]:
        raise UnusableInputError(
            f"{', '.join(given)}: only for datasets, and {root} is a journal. Its episodes are "
            f"sealed where they are: gaploop check {shlex.quote(str(root))} --fix"
        )
    return True


def _seal_takes(config: CheckConfig, root: Path) -> int:
    with progress("Sealing episodes"):
        report = recover(root)
    lines = [
        f"{take.uid}: {take.duration_s:.2f} s recovered ({take.frames} frames, "
        f"{take.telemetry_rows} telemetry rows); {take.cut_s:.2f} s cut off."
        for take in report.recovered
    ]
    lines += [f"{uid}: is being recorded, left alone." for uid in report.open]
    lines += [f"{uid}: not recovered: {why}" for uid, why in report.failed]
    lines += [f"{uid}: holds nothing yet; it may be deleted." for uid in report.headless]
    emit(config.json, report, "\n".join(lines) or f"{root}: every episode is sealed.")
    return int(bool(report.failed))


def _fix_dataset(config: CheckConfig, root: Path) -> int:
    how = FixOptions(config.labels_from, config.deep)

    def fixed(drop: bool) -> FixReport:
        with progress("Finding what to fix" if config.dry_run else "Fixing"):
            if config.dry_run:
                return plan(root, how)
            return fix(root, how, config.output_dir, may_lose=lambda _lost: drop)

    report = fixed(config.drop)
    may_ask = sys.stdin is not None and sys.stdin.isatty() and not (config.json or config.dry_run)
    if report.written is None and report.lost and may_ask:
        text = "".join(f"\n  {what}" for what in report.lost)
        if input(f"This would be left out:{text}\nLeave it out? [y/N] ").strip().lower() == "y":
            report = fixed(True)
    undone = bool(report.actions) and report.written is None
    ok = not report.left and not undone
    lines = []
    if not report.actions and not report.left:
        lines.append(f"{root}: nothing to fix.")
    elif not report.actions:
        lines.append(f"{root}: nothing that --fix can fix.")
    elif undone:
        lines.append(f"{root}: what --fix would do (nothing is changed):")
    lines += [f"  {action.what}" for action in report.actions]
    if report.left:
        lines.append("What it can't fix:")
    for finding in report.left:
        lines += [f"  {finding.where}: {finding.message}", f"    → {finding.fix}"]
    again = f"gaploop check {shlex.quote(str(root))} --fix"
    if report.written is not None:
        before = f"; before: {report.kept}" if report.kept else ""
        lines.append(f"Written: {report.written}{before}")
    elif undone and report.lost:
        lines.append("It would leave out what may still be had from where the dataset came from:")
        lines += [f"  {what}" for what in report.lost]
        lines.append(f"Get it and fix again; or: {again} --drop=true")
    elif undone:
        lines.append(f"Do it with: {again}   or with --output_dir=DIR")
    answer = {
        "ok": ok,
        "actions": report.actions,
        "lost": report.lost,
        "left": [finding.to_json() for finding in report.left],
        "written": report.written,
        "kept": report.kept,
    }
    emit(config.json, answer, "\n".join(lines))
    return int(not ok)
