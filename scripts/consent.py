"""`gaploop consent`: who agreed to take part, for what, until when; and taking it back."""

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from gaploop.core import consent as consents
from gaploop.core.consent import (
    Consent,
    ConsentRegister,
    Place,
    Use,
    check_bands,
    check_day,
    check_scope,
    new_id,
    today,
)
from gaploop.core.errors import UnusableInputError
from gaploop.core.files import existing_folder
from gaploop.core.journal_format import is_journal
from gaploop.datasets.layout import is_dataset
from gaploop.scripts.options import counted, emit, progress, require_action, required

POSITIONAL: Final = ("action", "id")
ACTIONS: Final = ("add", "withdraw", "list")
RARE: Final = ("bands", "places", "name")

EXAMPLE: Final = """
gaploop consent add --expires=2027-06-30 --scope='[record, publish]' --name="form 12"
gaploop consent list
gaploop consent withdraw c-k3v7q2mzna          shows what would be removed
gaploop consent withdraw c-k3v7q2mzna --yes    removes it
"""


@dataclass
class ConsentConfig:
    """Consent of people in episodes: add one, list them, withdraw one and remove its episodes.

    Participants go by pseudonymous ids, which takes carry as gap_consent. `add` prints a new id;
    with an ID it renews that consent. Names stay in names.json beside the register, readable by
    you only, and are in no journal or dataset. `withdraw` removes the episodes from every journal
    and dataset that the register knows or you name, and lists where it can't reach: without --yes
    it only shows what it would do. Exit code 1 where a known place could not be cleared.

    The register is $GAPLOOP_CONSENTS, or ~/.local/share/gaploop/consents.jsonl.
    """

    action: str = ""
    """add, withdraw or list."""
    id: str = ""
    """A consent id, such as c-k3v7q2mzna."""
    expires: str = ""
    """add: last day on which it holds, YYYY-MM-DD (UTC)."""
    scope: list[str] = field(default_factory=list)
    """add: what it covers, of record, publish and push; each needs those before it."""
    name: str = ""
    """add: who it is, or the number of a paper form; kept in names.json only."""
    bands: dict[str, str] = field(default_factory=dict)
    """add: age_band (18-29, 30-44, 45-59, 60+), handedness (left, right, both), experience of
    driving robots (none, some, daily), body_type (small, medium, large) and style of movement
    (slow, steady, quick), for plans that ask who takes part; kept in bands.json."""
    places: list[Path] = field(default_factory=list)
    """withdraw: journals, datasets and folders of trained models to look in, besides those that the
    register knows."""
    yes: bool = False
    """withdraw: do it; without it nothing is changed."""
    json: bool = False
    """Print one JSON object."""


def run(config: ConsentConfig) -> int:
    """Add, list or withdraw."""
    require_action(config.action, ACTIONS, "consent")
    register = consents.default_register().absolute()
    return {"add": _add, "withdraw": _withdraw, "list": _list}[config.action](config, register)


def _add(config: ConsentConfig, register: Path) -> int:
    required(config.expires, "Until when? Name the last day with --expires=YYYY-MM-DD.")
    expires, scope = check_day(config.expires), check_scope(config.scope)
    if expires < today():
        raise UnusableInputError(f"--expires={expires} is past. Name a day from today on.")
    known = consents.load_register(register)
    if config.id:
        consents.get(known, config.id)
    check_bands(config.bands, "--bands")
    consent = consents.add(register, config.id or new_id(), expires, scope)
    if config.name:
        consents.set_name(register, consent.id, config.name)
    if config.bands:
        consents.set_bands(register, consent.id, config.bands)
    words = ", ".join(_in_order(consent))
    text = f"{consent.id}  until {expires}  for {words}\nRecord with: --consent={consent.id}"
    emit(config.json, _row(consent, known), text)
    return 0


def _list(config: ConsentConfig, path: Path) -> int:
    register = consents.load_register(path)
    rows = [_row(consent, register) for consent in register.consents.values()]
    lines = [
        f"{r['id']}  {r['state']:<9}  until {r['expires']}  {', '.join(r['scope']):<21}  "
        f"{len(r['places'])} places"
        for r in rows
    ]
    text = "\n".join(lines) or f"No consents in {path}. Add one with: gaploop consent add"
    emit(config.json, {"register": path, "consents": rows}, text)
    return 0


def _in_order(consent: Consent) -> list[str]:
    return [use.value for use in Use if use in consent.scope]


def _row(consent: Consent, register: ConsentRegister) -> dict[str, Any]:
    expired = "expired" if today() > consent.expires else "valid"
    return {
        "id": consent.id,
        "state": "withdrawn" if consent.withdrawn else expired,
        "expires": consent.expires.isoformat(),
        "scope": _in_order(consent),
        "at": consent.at,
        "withdrawn": consent.withdrawn,
        "places": [f"{p.what} {p.where}" for p in register.places.get(consent.id, ())],
    }


def _withdraw(config: ConsentConfig, register: Path) -> int:
    from gaploop.collect.withdrawal import report_path, withdraw

    required(config.id, "Withdraw which consent? Name its id; see: gaploop consent list")
    places, runs = [], []
    for path in (existing_folder(path, "--places").absolute() for path in config.places):
        if is_journal(path) or is_dataset(path):
            places.append(Place("journal" if is_journal(path) else "dataset", str(path)))
        else:
            runs.append(path)
    with progress("Looking for episodes"):
        report = withdraw(register, config.id, places=places, runs=runs, remove=config.yes)
    verb = "removed from" if report.done else "would be removed from"
    lines = [
        f"{counted(len(f.uids), 'episode')} {verb} the {f.what} {f.where}" for f in report.found
    ]
    if not report.found:
        where = "the places that were reached" if report.unreached else "any place known or named"
        lines.append(f"No episodes of {report.id} in {where}.")
    done = "Removed" if report.done else "Would be removed"
    lines += [f"{done}: {copy}, which shows them" for copy in report.copies]
    lines += [f"Not reached: {u.where}: {u.why}" for u in report.unreached]
    lines += [
        "Trained on "
        f"{counted(t.takes, 'episode') if t.takes else 'a policy that learned from some'} "
        f"of theirs: {t.command or 'run'} {t.folder}. Models don't unlearn: delete it and what was "
        "made from it, or train again. gaploop push refuses it."
        for t in report.trained
    ]
    lines += [
        f"Made from {counted(s.takes, 'episode')} of theirs: {s.command} {s.folder}. Ids and "
        "counts stay in it: delete it, or do it again without them."
        for s in report.shown
    ]
    lines += [f"Out of reach: {what}." for what in report.out_of_reach]
    if report.done:
        lines.append(f"Consent {report.id} is withdrawn since {report.withdrawn[:10]}.")
        lines.append(f"Report: {report_path(register, config.id)}")
    else:
        lines.append("Nothing is changed yet. Do it with: --yes")
    emit(config.json, report, "\n".join(lines))
    return int(report.done and bool(report.unreached))
