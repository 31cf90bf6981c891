"""What the studies teach the planner: trials for its prior, and what they would have changed.

`python -m benchmarks.proof.lessons` puts what the ladder's rows teach into `remedy_sites.json`.
"""

from __future__ import annotations

import ast
import json
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Final

from benchmarks.proof import figures
from benchmarks.proof.design import StudyArm
from benchmarks.proof.rows import StudyRow, kept_rows, mean_of, won
from gaploop.core.files import read_json, write_atomically
from gaploop.core.vocabulary import GapDimension
from gaploop.failure_analysis.planning.gains import curves_of, prior_entries
from gaploop.failure_analysis.planning.planner import LEAST_RESPONSE
from gaploop.failure_analysis.planning.remedies import SITES

STUDY: Final = "study/"
"""What ids of the study's trials begin with."""
REFUSED_AT_FIRST: Final = frozenset(
    {
        GapDimension.CONTACT_DYNAMICS,
        GapDimension.ACTUATOR_RESPONSE,
        GapDimension.VISUAL_DOMAIN,
        GapDimension.SENSOR_NOISE,
        GapDimension.ENVIRONMENTAL_COMPLEXITY,
    }
)
"""For these the prior that the study began with (commit 8040ab8) allowed no takes."""
TAUGHT: Final = "taught"
"""Name of the arm that `taught` makes."""
UNTAUGHT: Final = "pick_place"
"""The prior that the study began with planned its sites; those after it, one that knew them."""
LADDER: Final = "ladder/"
"""What names of the ladder's stations begin with."""
RUNGS: Final = {
    "randomise": "both_mild",
    "identify": "randomised_identified",
    "demonstrate": "plus_100",
}
"""The ladder's arms that a plan tells of: each with those before it."""
TELLING: Final = 10
"""Failures in 100 rollouts below which there is too little to fix to tell what takes fix."""


def trials(rows: Sequence[StudyRow]) -> list[dict[str, Any]]:
    """Return the cells with takes for the one hidden dimension, as `responses.json` holds trials.

    Arms that recorded the same takes count once. Sites with several gaps don't count, since there
    it can't be told what fixed what, nor do those where the base hardly failed.
    """
    found: dict[str, dict[str, Any]] = {}
    for row in sorted(rows, key=lambda row: row.key):
        told = len(row.dimensions) == 1 and is_telling(row)
        if told and row.takes and set(row.planned) == set(row.dimensions):
            found.setdefault(
                row.data,
                {
                    "id": f"{STUDY}{row.site}-{row.takes}",
                    "site": f"{STUDY}{row.site}",
                    "dimension": row.dimensions[0],
                    "takes": row.takes,
                    "before": [row.before.count("1"), len(row.before)],
                    "after": [row.after.count("1"), len(row.after)],
                },
            )
    return list(found.values())


def is_telling(row: StudyRow) -> bool:
    """Return whether the base fails often enough for takes to fix something."""
    return row.before.count("0") / len(row.before) >= TELLING / 100


def taught(rows: Sequence[StudyRow]) -> list[StudyRow]:
    """Return what `targeted` would have got had its prior known the task's other seeds.

    No policy is run for it: where the better prior records what the first one didn't, the `oracle`
    has recorded just that; where it doesn't collect, the base's success stays. Sites with several
    gaps have no such row, nor have those without an oracle, nor those of later tasks, whose prior
    was taught.
    """
    kept = {r.key: r for r in rows if len(r.dimensions) == 1 and figures.setting(r) == UNTAUGHT}
    found = []
    for row in kept.values():
        oracle = kept.get(replace(row, arm=StudyArm.ORACLE.value).key)
        if row.arm == StudyArm.TARGETED.value and oracle:
            others = [other for other in kept.values() if other.seed != row.seed]
            found.append(replace(_decided(row, oracle, others), arm=TAUGHT))
    return found


def _decided(targeted: StudyRow, oracle: StudyRow, others: Sequence[StudyRow]) -> StudyRow:
    """Return the row of what a plan would have recorded whose prior knows `others`."""
    if targeted.found not in targeted.dimensions:
        return targeted
    dimension, lessons = GapDimension(targeted.found), trials(others)
    if not any(entry["dimension"] == dimension.value for entry in lessons):
        return targeted
    known = [entry for entry in prior_entries() if not entry["id"].startswith(STUDY)]
    if curves_of([*known, *lessons])[dimension].responds < LEAST_RESPONSE:
        return replace(
            targeted, planned={}, takes=0, attempts=0, hours=0.0, after=targeted.before, data=""
        )
    return oracle if dimension in REFUSED_AT_FIRST and not targeted.planned else targeted


def with_ladder(known: Mapping[str, Any], rows: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Return what `remedy_sites.json` holds with what the ladder's rows tell, in place of before.

    Each rung's points over nothing at all; and randomising, at each station for each of its gaps'
    dimensions that it is offered for: its share of all failures there, since which of the gaps
    made an episode fail can't be told. The other rungs' parts don't count by dimension: twins
    hold what was measured of a station, which isn't all of its gaps.
    """
    after = {(row["arm"], row["station"]): row["after"] for row in rows}
    base = {station: bits for (arm, station), bits in after.items() if arm == "none"}
    brought = dict[str, Any]()
    for rung, arm in RUNGS.items():
        over = [won(after[arm, s]) - won(bits) for s, bits in base.items() if (arm, s) in after]
        if (points := mean_of(over)) is not None:
            percents = [round(100.0 * v, 1) for v in (points.value, points.low, points.high)]
            brought[rung] = {"points": percents, "stations": len(over)}
    sites = [site for site in known["sites"] if not site["site"].startswith(LADDER)]
    for row in (r for r in rows if r["arm"] == RUNGS["randomise"]):
        for dimension in sorted({name.partition(".")[0] for name in ast.literal_eval(row["gaps"])}):
            if dimension in known["assumed"]["randomise"]:
                before = base[row["station"]]
                sites.append(
                    {
                        "remedy": "randomise",
                        "dimension": dimension,
                        "site": f"{LADDER}{row['station']}",
                        "before": [before.count("1"), len(before)],
                        "after": [row["after"].count("1"), len(row["after"])],
                    }
                )
    return {**known, "ladder": brought, "sites": sites}


def as_text(known: Mapping[str, Any]) -> str:
    """Return `remedy_sites.json` as it is kept: a line for each entry."""
    parts = list[str]()
    for name, value in known.items():
        text = json.dumps(value)
        if not isinstance(value, str):
            of = value.items() if isinstance(value, Mapping) else ()
            lines = [f"{json.dumps(n)}: {json.dumps(v)}" for n, v in of] or map(json.dumps, value)
            text = f"{text[0]}\n  " + ",\n  ".join(lines) + f"\n {text[-1]}"
        parts.append(f" {json.dumps(name)}: {text}")
    return "{\n" + ",\n".join(parts) + "\n}\n"


if __name__ == "__main__":
    LADDER_ROWS = kept_rows(Path("docs/figures/ladder_mended.parquet"), "station", None)
    write_atomically(SITES, as_text(with_ladder(read_json(SITES), LADDER_ROWS)))
