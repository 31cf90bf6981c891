"""The project's tab of the review: its sections, and a command to copy beside each entry."""

from __future__ import annotations

from pathlib import Path
from typing import Final

from nicegui import run, ui

from gaploop.core.errors import UnusableInputError
from gaploop.failure_analysis.review.project import SECTIONS, Project, ProjectEntry, read_project

STYLE: Final = Path(__file__).with_name("project.css")
WORDS: Final = {
    "Stations": "None yet. Describe yours in a station.yaml.",
    "Sessions": "None yet. gaploop record records episodes.",
    "Campaigns": "None yet. gaploop record --plan=plan.yaml begins one.",
    "Takes to review": "No episode waits for review.",
    "Diagnoses": "None yet. gaploop diagnose DIR finds out why episodes failed.",
    "Plans": "None yet. gaploop plan decides what to collect.",
    "Runs": "None yet. gaploop finetune adapts a policy.",
    "Gates": "None yet. gaploop gate compares two policies.",
}
"""What an empty section says."""


class ProjectPage:
    """The open page of a project's folder; `takes` names the folder that the other tab shows."""

    def __init__(self, root: Path, takes: str = "") -> None:
        ui.add_css(STYLE.read_text())
        self._root = root
        with ui.element("header"):
            if takes:
                ui.link("Takes", "./").classes("tab").tooltip(takes)
                ui.label("Project")
            ui.label(root.name).classes("name")
            ui.label(str(root)).classes("quiet")
            self._again = ui.button("Look again", on_click=self.look).props("flat dense no-caps")
        self._sections = ui.element("div").classes("sections")

    async def look(self) -> None:
        """Read the folder, and show what is there."""
        self._again.disable()
        try:
            found = await run.io_bound(read_project, self._root)
        except UnusableInputError as error:
            found = Project(self._root, damaged=[str(error)])
        if found is None or self._sections.is_deleted:
            return  # the page is closing
        self._sections.clear()
        with self._sections:
            if found.damaged:
                with ui.element("section").classes("damaged"):
                    ui.label(f"Can't be read {len(found.damaged)}").classes("head")
                    for line in found.damaged:
                        ui.label(line)
            for name in SECTIONS:
                with ui.element("section").props(f'data-section="{name}"'):
                    ui.label(f"{name} {len(found.entries[name]) or ''}").classes("head")
                    for entry in found.entries[name]:
                        self._entry(entry)
                    if not found.entries[name]:
                        ui.label(WORDS[name]).classes("quiet")
        self._again.enable()

    def _entry(self, entry: ProjectEntry) -> None:
        with ui.element("article"):
            with ui.element("div").classes("line"):
                ui.label(entry.title).classes("title")
                ui.label(entry.where).classes("quiet")
            ui.label(entry.facts)
            for name, have, wanted in entry.bars:
                with ui.element("div").classes("quota"):
                    ui.label(name)
                    with ui.element("div").classes("bar"):
                        ui.element("i").style(f"width: {100 * have / max(wanted, 1):.0f}%")
                    ui.label(f"{have}/{wanted}")
            if entry.next:
                with ui.element("div").classes("next"):
                    ui.label(entry.next).classes("command")
                    copy = ui.button("Copy", on_click=lambda: self._copy(entry.next))
                    copy.props("flat dense no-caps")

    def _copy(self, command: str) -> None:
        ui.clipboard.write(command)
        ui.notify("Copied. Run it in the project's folder.", timeout=2000)
