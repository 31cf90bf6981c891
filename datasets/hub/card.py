"""The card of what is pushed: our part is made anew by each push, what people wrote stays."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final

import jinja2
import yaml

from gaploop.core.errors import UnusableInputError
from gaploop.core.schema import parse_yaml

DEFAULT_LICENSE: Final = "apache-2.0"
"""As `LeRobotDataset.push_to_hub`."""
BEGIN: Final = "<!-- gaploop:begin, made by gaploop push: write outside of it -->"
END: Final = "<!-- gaploop:end -->"
_OURS: Final = re.compile(r"<!-- gaploop:begin.*?<!-- gaploop:end -->", re.DOTALL)
_FRONT: Final = re.compile(r"\A---[ \t]*\n(.*?)\n---[ \t]*(?:\n|\Z)", re.DOTALL)


def render(template: Path, facts: Mapping[str, Any]) -> str:
    """Fill a Jinja2 template with `facts`; a name that it lacks is an error."""
    environment = jinja2.Environment(
        loader=jinja2.FileSystemLoader(template.parent),
        trim_blocks=True,
        lstrip_blocks=True,
        undefined=jinja2.StrictUndefined,
        autoescape=False,  # Markdown; what users wrote is escaped by `cell`
    )
    environment.filters["cell"] = cell
    text = environment.get_template(template.name).render(**facts)
    return re.sub(r"\n{3,}", "\n\n", text).strip()


def cell(value: object) -> str:
    """Return `value` as text that can't break a Markdown table or become HTML."""
    text = " ".join(str(value).split())
    return text.replace("|", "\\|").replace("<", "&lt;").replace(">", "&gt;")


def card(
    before: str,
    title: str,
    body: str,
    metadata: Mapping[str, Any],
    license: str = "",
    tags: Sequence[str] = (),
) -> str:
    """Return README.md.

    Args:
        before: the card that there is, or "": its text and its metadata are kept.
        title: heading, where there is no card yet.
        body: our part.
        metadata: our metadata; lists are joined with those that there are.
        license: as given by the user; "" for the card's, or the default.
        tags: the user's.
    """
    known, text = split(before)
    front = {**known}
    front["license"] = license or known.get("license") or DEFAULT_LICENSE
    for key, value in {**metadata, "tags": [*metadata.get("tags", ()), *tags]}.items():
        if isinstance(value, list) and key != "configs":
            front[key] = list(dict.fromkeys([*_as_list(known.get(key)), *value]))
        else:
            front.setdefault(key, value)
    ours = f"{BEGIN}\n\n{body}\n\n{END}"
    if _OURS.search(text):
        text = _OURS.sub(lambda _found: ours, text, count=1)
    else:
        text = f"{text.strip() or f'# {title}'}\n\n{ours}\n"
    head = yaml.safe_dump(front, sort_keys=False, allow_unicode=True, width=1000)
    return f"---\n{head}---\n\n{text.strip()}\n"


def split(text: str) -> tuple[dict[str, Any], str]:
    """Return a card's metadata and its text; no metadata where that isn't a YAML mapping."""
    found = _FRONT.match(text)
    if found is None:
        return {}, text
    try:
        front = parse_yaml(found[1], "README.md")
    except UnusableInputError:
        return {}, text[found.end() :]
    return (front if isinstance(front, dict) else {}), text[found.end() :]


def json_bytes(value: Any) -> bytes:
    """Return `value` as the bytes of a JSON file: the same for the same value."""
    return (json.dumps(value, indent=1, sort_keys=True, default=str) + "\n").encode()


def licence_of(before: str, license: str) -> str:
    """Return the licence that a card will state."""
    return str(license or split(before)[0].get("license") or DEFAULT_LICENSE)


def _as_list(value: Any) -> list[Any]:
    if value is None:
        return []
    return list(value) if isinstance(value, list) else [value]
