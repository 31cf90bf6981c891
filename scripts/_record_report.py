"""What `gaploop record` says when a session has ended."""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from gaploop.core.vocabulary import Outcome
from gaploop.scripts._campaign import Campaign
from gaploop.scripts.options import emit

if TYPE_CHECKING:
    from gaploop.collect.session import SessionEnd, TakeResult
    from gaploop.datasets.lerobot_publish import PublishReport

log = logging.getLogger(__name__)


def tell_end(
    as_json: bool,
    root: Path,
    journal: Path,
    end: SessionEnd,
    reports: Sequence[PublishReport],
    campaign: Campaign | None,
    evidence: str,
    pushed: Mapping[str, Any] | None = None,
) -> None:
    """Say how a session went.

    Args:
        as_json: print one JSON object on stdout.
        root: the dataset.
        journal: the takes.
        end: how the session went.
        reports: of every publication.
        campaign: the plan that was followed, if any.
        evidence: what the takes are evidence of, such as sim-to-sim.
        pushed: what became of `--dataset.push_to_hub`, if that was asked for.
    """
    for line in end.gave_up:
        log.info("%s", line)
    if end.trip:
        log.error("%s", end.trip)
    if end.recovered:
        log.info("%d unsealed takes in %s are marked interrupted.", end.recovered, journal)
    withheld = {uid: why for report in reports for uid, why in report.withheld.items()}
    for why, count in Counter(withheld.values()).items():
        log.info("%d not published: %s.", count, why)
    published = sum(len(report.published) for report in reports)
    counts = {o.value: sum(t.outcome is o for t in end.takes) for o in Outcome}
    counts = {name: count for name, count in counts.items() if count}
    summary = {
        "journal": journal,
        "root": root,
        "plan": "" if campaign is None else campaign.plan.id,
        "evidence": evidence,
        "takes": len(end.takes),
        "outcomes": counts,
        "counted": end.counted,
        "wanted": end.wanted,
        "published": published,
        "withheld": withheld,
        "campaign": None if campaign is None else campaign.as_json(),
        "recovered": end.recovered,
        "reconnected": end.reconnected,
        "interrupted": end.interrupted,
        "gave_up": end.gave_up,
        "trip": end.trip,
        "uids": [take.uid for take in end.takes],
        "video": video_figures(end.takes),
        "push": pushed,
    }
    words = ", ".join(f"{count} {name}" for name, count in counts.items()) or "none"
    text = f"{len(end.takes)} takes ({words}) in {journal}; {published} published to {root}."
    if end.interrupted:
        text += " Stopped; go on with the same command and --resume."
    if campaign is not None:
        log.info("%s", campaign.as_text())
    emit(as_json, summary, text)


def video_figures(takes: Iterable[TakeResult]) -> dict[str, float]:
    """Return, and warn of, what the encoder couldn't do in time.

    Returns:
        `dropped`: pictures; `most_behind_s`: the longest time whose pictures waited [s].
    """
    takes = tuple(takes)
    dropped = sum(take.dropped for take in takes)
    behind_s = max((take.behind_s for take in takes), default=0.0)
    if dropped:
        log.warning(
            "The encoder couldn't keep up: %d pictures were dropped; those rows stand beside the "
            "picture before. Close other programs, or use fewer or smaller pictures.",
            dropped,
        )
    elif behind_s:
        log.warning(
            "The encoder was up to %.1f s behind and encoded coarsely; nothing was dropped. Close "
            "other programs, or use fewer or smaller pictures.",
            behind_s,
        )
    return {"dropped": dropped, "most_behind_s": round(behind_s, 2)}
