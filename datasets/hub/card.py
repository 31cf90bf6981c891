"""The card of what is pushed: our part is made anew by each push, what people wrote stays.

A dataset's tells its takes: counts, people, how real they are, a picture.
"""

import re
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final

import cv2
import jinja2
import numpy as np
import yaml

from gaploop.core.consent import takes_part
from gaploop.core.errors import UnusableInputError
from gaploop.core.schema import mapping, parse_yaml
from gaploop.core.vocabulary import Domain, Outcome, TakeKind, set_up
from gaploop.datasets.hub.target import HubTarget
from gaploop.datasets.layout import LABELS, TELEMETRY, DatasetInfo, EpisodeRow
from gaploop.datasets.lerobot_read import pictures_of

DEFAULT_LICENSE: Final = "apache-2.0"
"""As `LeRobotDataset.push_to_hub`."""
BEGIN: Final = "<!-- gaploop:begin, made by gaploop push: write outside of it -->"
END: Final = "<!-- gaploop:end -->"
_OURS: Final = re.compile(r"<!-- gaploop:begin.*?<!-- gaploop:end -->", re.DOTALL)
_FRONT: Final = re.compile(r"\A\ufeff?---[ \t]*\n(.*?\n)?---[ \t]*(?:\n|\Z)", re.DOTALL)


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


def card(before: str, title: str, body: str, metadata: Mapping[str, Any], license: str = "") -> str:
    """Return README.md.

    Args:
        before: the card that there is, or "": its text and its metadata are kept.
        title: heading, where there is no card yet.
        body: our part, and so is `metadata`; lists are joined with those that there are.
        license: as given by the user; "" for the card's, or the default.
    """
    known, text = split(before)
    front = {**known}
    front["license"] = license or known.get("license") or DEFAULT_LICENSE
    for key, value in metadata.items():
        if isinstance(value, list) and key != "configs":
            there = known.get(key)
            there = there if isinstance(there, list) else [] if there is None else [there]
            front[key] = there + [item for item in value if item not in there]
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
    """Return a card's metadata and its text.

    Raises:
        UnusableInputError: the metadata can't be read, so that its licence would be lost.
    """
    found = _FRONT.match(text)
    if found is None:
        return {}, text
    where = "The card's metadata, between the --- lines of README.md here or on the Hub,"
    return mapping(parse_yaml(found[1] or "", where), where, "name: value"), text[found.end() :]


def licence_of(before: str, license: str) -> str:
    """Return the licence that a card will state."""
    said = license or split(before)[0].get("license") or DEFAULT_LICENSE
    return ", ".join(map(str, said)) if isinstance(said, list) else str(said)


# -- A dataset's ----------------------------------------------------------------------------------

TEMPLATE: Final = Path(__file__).parent / "dataset_card.md"
PICTURE: Final = "assets/sample.jpg"
PICTURE_HEIGHT: Final = 240
"""Of every camera's part of the picture [pixels]."""
MOST_CAMERAS: Final = 4
MOST_ROWS: Final = 40
"""Rows of a table before the rest is summed up."""


def dataset_card(
    info: DatasetInfo,
    episodes: Sequence[EpisodeRow],
    target: HubTarget,
    before: str,
    license: str,
    picture: bool,
) -> str:
    """Return README.md of a dataset; see `card`."""

    def domain_of(episode: EpisodeRow) -> str:
        domain = episode.info.domain
        if not _is_ours(episode):
            return "not stated"
        return f"{domain.value} (sim-to-sim)" if domain is Domain.SIM_TARGET else domain.value

    failed = [e for e in episodes if e.outcome is Outcome.FAILURE]
    modes = (", ".join(w for w in (e.failure_mode, e.phase) if w) or "unlabelled" for e in failed)
    conditions = Counter(
        f"{name}: {value}" for e in episodes for name, value in set_up(e.info.conditions).items()
    )
    bare = sum(not e.info.conditions for e in episodes)
    if conditions and bare:
        conditions["none set up"] = bare
    counts = {
        "outcome": Counter(e.outcome.value for e in episodes),
        "domain": Counter(domain_of(e) for e in episodes),
        "kind": Counter(e.info.kind.value for e in episodes),
        "condition": conditions,
        "failure mode, phase": Counter(modes),
    }
    tables = []
    for what, count in counts.items():
        rows = count.most_common()
        rest = sum(n for _, n in rows[MOST_ROWS:])
        others = [(f"{len(rows) - MOST_ROWS} others", rest)] if rest else []
        if rows:
            tables.append((what, rows[:MOST_ROWS] + others))
    cause, purpose = Counter[str](), Counter[str]()
    for episode in episodes:
        against = (
            episode.info.kind is TakeKind.DEMONSTRATION and episode.outcome is not Outcome.FAILURE
        )
        for name in episode.info.dimensions:
            (purpose if against else cause)[str(name)] += 1
    stand_ins = sum(e.info.domain is Domain.SIM_TARGET for e in episodes)
    which = "All" if stand_ins == len(episodes) else f"{stand_ins} of the {len(episodes)}"
    simulated = (
        f"{which} episodes come from a simulated cell that stands in for the real one "
        "(domain `sim_target`). Nothing learned from them is evidence about a real robot."
    )
    facts = {
        "repo_id": target.repo_id,
        "licence": licence_of(before, license),
        "picture": PICTURE if picture else "",
        "episodes": len(episodes),
        "frames": info.total_frames,
        "minutes": f"{info.total_frames / info.fps / 60:.1f}",
        "fps": f"{info.fps:g}",
        "robot": info.robot_type or "an unnamed robot",
        "cameras": [key.rpartition(".")[2] for key in info.picture_keys],
        "tasks": sorted({e.info.task for e in episodes if e.info.task}),
        "tables": tables,
        "dimensions": [(n, cause[n], purpose[n]) for n in sorted(cause | purpose)],
        "simulated": simulated if stand_ins else "",
        "consent": _consent(episodes),
        "labelled": any(_is_ours(e) for e in episodes),
        "history": (info.root / LABELS).exists(),
        "telemetry": (info.root / TELEMETRY).is_dir(),
    }
    metadata = {
        "task_categories": ["robotics"],
        "tags": ["LeRobot", "gaploop", "robotics", *(["sim-to-sim"] if stand_ins else [])],
        "configs": [{"config_name": "default", "data_files": "data/*/*.parquet"}],
    }
    title = target.repo_id.partition("/")[2]
    return card(before, title, render(TEMPLATE, facts), metadata, license)


def _is_ours(episode: EpisodeRow) -> bool:
    """Say whether an episode has gap columns; without, domain and people are unknown."""
    return bool(episode.row.get("gap_uid"))


def _consent(episodes: Sequence[EpisodeRow]) -> str:
    """Say in one paragraph whether people take part, and that they agree."""
    people = sum(_has_people(e) for e in episodes)
    if people:
        verb = "shows" if people == 1 else "show"
        return (
            f"{people} of the {len(episodes)} episodes {verb} people who take part. Each of them "
            "has "
            "agreed to recording, publication and this upload (pseudonymous ids in `gap_consent`); "
            "the agreement was valid when this was pushed. Anybody who withdraws is removed from "
            "later versions: use the latest one."
        )
    if not all(_is_ours(e) for e in episodes):
        return "Not all episodes were recorded with gaploop: nothing here says who is in those."
    simulated = all(e.info.domain is not Domain.REAL for e in episodes)
    return (
        "The episodes are simulated; nobody is in them."
        if simulated
        else "No episode names a participant or was recorded with people taking part."
    )


def _has_people(episode: EpisodeRow) -> bool:
    """Say whether somebody takes part in a take."""
    return bool(episode.info.consent or takes_part(episode.info))


def sample_picture(info: DatasetInfo, episodes: Sequence[EpisodeRow]) -> bytes:
    """Return the first picture of a take by every camera, side by side, as JPEG; b"" without.

    A success and a take without people are preferred. UnusableInputError: one can't be read.
    """
    cameras = info.picture_keys[:MOST_CAMERAS]
    if not episodes or not cameras:
        return b""
    best = min(episodes, key=lambda e: (_has_people(e), e.outcome is not Outcome.SUCCESS, e.index))
    parts = []
    for key in cameras:
        shown = pictures_of(info, best, key)
        image = None if shown is None else next(iter(shown()), None)
        if image is None:
            raise UnusableInputError(
                f"{info.root}: no picture of {key} in episode {best.index} can be read. "
                f"Find out more with: gaploop check {info.root}"
            )
        width = max(1, round(image.shape[1] * PICTURE_HEIGHT / image.shape[0]))
        parts.append(cv2.resize(image, (width, PICTURE_HEIGHT), interpolation=cv2.INTER_AREA))
    # JPEG wants BGR.
    done, jpeg = cv2.imencode(".jpg", np.hstack(parts)[:, :, ::-1], [cv2.IMWRITE_JPEG_QUALITY, 85])
    return bytes(jpeg) if done else b""
