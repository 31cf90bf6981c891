"""Labelled recordings of real robots: classes of force windows, stops and lost parts foreseen.

`python -m benchmarks attribution --real --data=DIR`. The recordings aren't part of the project.
Named by their source: UCI robot execution failures (doi 10.24432/C5M89N) as `lp*.data`, UR3
CobotOps (doi 10.24432/C5J891) as `ur3_cobotops/*.csv`. What isn't there is left out and said so.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from gaploop.core.errors import UnusableInputError
from gaploop.core.files import existing_folder
from gaploop.scripts import options

if TYPE_CHECKING:
    from benchmarks.bench import BenchConfig
    from benchmarks.recorded.figures import Labels
    from benchmarks.recorded.stops import Foresight
    from benchmarks.recorded.transfer import Transfer
    from gaploop.core.messages import FloatArray

REPEATS: Final = 20
MAPPING: Final = Path(__file__).parent / "recorded" / "ur3_cobotops.yaml"
SEEN: Final = (".current_a", ".velocity_rad_s")
"""Channels looked at; temperatures drift with the hour and would name the session."""
NOTES: Final = {
    "lp3": "LP3 holds LP2's windows under other labels",
    "lp5": "LP5 is LP4 and LP2 together under other labels",
}


def measure(config: BenchConfig, _folder: Path) -> dict[str, Any]:
    """Cross-validate every set of windows that is there, and leave out the log's sessions."""
    from benchmarks.recorded.transfer import every_transfer
    from benchmarks.recorded.uci_failures import labelled_windows

    if config.data is None:
        raise UnusableInputError("Which recordings? Name their folder with --data=DIR.")
    data = existing_folder(config.data, "Folder of recordings")
    files = sorted({*data.glob("[lL][pP]?.data"), *data.glob("*/[lL][pP]?.data")})
    logs = sorted(data.glob("ur3_cobotops/*.csv"))
    if not files and not logs:
        raise UnusableInputError(
            f"{data} has none of: lp*.data, uci_robot_execution_failures/lp*.data, "
            "ur3_cobotops/*.csv. Put one there."
        )
    sets = {file.stem.lower(): labelled_windows(file) for file in files}
    repeats = range(config.seed, config.seed + (config.n or REPEATS))
    scored = _scored(sets, repeats)
    means = {m: _mean(scored, m) for m in ("accuracy", "balanced")} if scored else None
    moved = every_transfer(sets, config.seed)
    return {
        "evidence": "real recordings",
        "real": True,
        "repeats": len(repeats),
        "sets": scored,
        "mean": means,
        "transfer": {name: _transfer_json(t) for name, t in moved.items()},
        "foreseen": _foreseen(logs[0], config.seed) if logs else None,
    }


def _scored(sets: Mapping[str, tuple[FloatArray, Labels]], repeats: range) -> dict[str, Any]:
    from benchmarks.recorded.figures import (
        METHODS,
        OURS,
        cross_validated,
        duplicates,
        score,
    )

    found: dict[str, Any] = {}
    total = len(sets) * len(repeats) * len(METHODS)
    with options.progress("Cross-validating", total=total or None) as advance:
        for name, (windows, labels) in sets.items():
            groups, alone = duplicates(windows), np.arange(len(labels))
            figures = {}
            for method, make in METHODS.items():
                told = cross_validated(windows, labels, make, repeats, groups, advance)
                figures[method] = _score_json(score(told, labels, groups))
            twins = len(labels) - len(np.unique(groups))
            apart = figures[OURS]
            if twins:
                told = cross_validated(windows, labels, METHODS[OURS], repeats, alone)
                apart = _score_json(score(told, labels, alone))
            found[name] = {
                "cases": len(labels),
                "classes": {str(c): int((labels == c).sum()) for c in np.unique(labels)},
                "duplicates": twins,
                "methods": figures,
                "duplicates_apart": {k: apart[k] for k in ("accuracy", "balanced")},
                "note": NOTES.get(name, ""),
            }
    return found


def _mean(scored: Mapping[str, Any], figure: str) -> dict[str, float]:
    """Return the plain mean over the sets, by method."""
    methods = next(iter(scored.values()))["methods"]
    return {
        method: float(np.mean([s["methods"][method][figure]["value"] for s in scored.values()]))
        for method in methods
    }


def _score_json(score: Any) -> dict[str, Any]:
    return {
        "accuracy": score.accuracy.to_json(),
        "balanced": score.balanced.to_json(),
        "confusion": score.confusion,
    }


def _transfer_json(found: Transfer) -> dict[str, Any]:
    return {
        "collisions": found.collisions,
        "obstructions": found.obstructions,
        "auroc": found.auroc.to_json(),
        "balanced": found.balanced.to_json(),
        "found": found.found,
        "false_alarms": found.false_alarms,
    }


def _foreseen(file: Path, seed: int) -> dict[str, Any]:
    """Foresee each event of a UR3 log from signals, beside the clock and the last row alone."""
    from benchmarks.recorded import stops
    from benchmarks.recorded.csv_log import load_mapping, read_log

    mapping = load_mapping(MAPPING)
    seen = {k: v for k, v in mapping.channels.items() if v[0].endswith(SEEN)}
    # The counter says where a cycle begins and which session a row is of; no forest sees it.
    log = read_log(file, replace(mapping, channels={**seen, "cycle": ("cycle", "count")}))
    t_s = (log.t_ns - log.t_ns[0]) * 1e-9
    moments = stops.moments_of(t_s, log.values[:, :-1], log.values[:, -1], log.active)
    inputs = {
        "signals": moments.features,
        "last row only": moments.features[:, : len(seen)],
        "time in the cycle only": moments.clock_s,
    }
    found: dict[str, Any] = {}
    total = len(log.active) * len(inputs)
    with options.progress("Leaving sessions out", total=total) as advance:
        for event in log.active:
            found[event] = {}
            for name, given in inputs.items():
                found[event][name] = _foresight_json(stops.foreseen(moments, event, given, seed))
                advance()
    sizes = [int((moments.session == s).sum()) for s in np.unique(moments.session)]
    return {"horizon_s": stops.HORIZON_S, "session_moments": sizes, "events": found}


def _foresight_json(found: Foresight) -> dict[str, Any]:
    return {
        "moments": found.moments,
        "positive": found.positive,
        "onsets": found.events,
        "auroc": found.auroc.to_json(),
        "matched_auroc": found.matched.to_json(),
        "balanced": found.balanced.to_json(),
        "events_found": found.events_found,
        "false_share": found.false_share,
        "sessions_auroc": list(found.sessions),
    }


def table(result: Mapping[str, Any]) -> str:
    """Return the figures as Markdown."""
    parts = [_sets_table(result), _transfer_table(result["transfer"])]
    if result["foreseen"]:
        parts.append(_foreseen_table(result["foreseen"]))
    return "\n\n".join(part for part in parts if part)


def _sets_table(result: Mapping[str, Any]) -> str:
    if not result["sets"]:
        return ""
    lines = [
        f"{result['repeats']}×5-fold, duplicate windows kept together; 95 % intervals over cases.",
        "",
        "| set | cases | method | accuracy | balanced accuracy |",
        "|---|---|---|---|---|",
    ]
    for name, found in result["sets"].items():
        for method, score in found["methods"].items():
            cells = f"{_share(score['accuracy'])} | {_share(score['balanced'])}"
            lines.append(f"| {name} | {found['cases']} | {method} | {cells} |")
        if found["duplicates"]:
            apart = found["duplicates_apart"]
            cells = f"{_share(apart['accuracy'])} | {_share(apart['balanced'])}"
            lines.append(f"| {name} | {found['cases']} | ours, duplicates apart | {cells} |")
    for method, value in result["mean"]["accuracy"].items():
        balanced = result["mean"]["balanced"][method]
        lines.append(f"| mean | | {method} | {value:.1%} | {balanced:.1%} |")
    notes = [found["note"] for found in result["sets"].values() if found["note"]]
    if notes:
        lines += ["", f"{'; '.join(notes)}: the mean counts the same windows more than once."]
    return "\n".join(lines)


def _transfer_table(found: Mapping[str, Any]) -> str:
    if not found:
        return ""
    lines = [
        "Collision against obstruction, trained on one set, frozen, judged on the other:",
        "",
        "| from → to | collisions, obstructions | AUROC | balanced accuracy | found | "
        "false alarms |",
        "|---|---|---|---|---|---|",
    ]
    for name, t in found.items():
        counts = f"{t['collisions']}, {t['obstructions']}"
        cells = f"{_plain(t['auroc'])} | {_share(t['balanced'])}"
        lines.append(
            f"| {name} | {counts} | {cells} | {t['found']:.1%} | {t['false_alarms']:.1%} |"
        )
    return "\n".join(lines)


def _foreseen_table(found: Mapping[str, Any]) -> str:
    lines = [
        f"UR3: an event within {found['horizon_s']:g} s, from rows before it, "
        f"{len(found['session_moments'])} sessions each left out in turn; "
        "95 % intervals over work cycles.",
        "",
        "| event | onsets | seen | AUROC | at the same second of a cycle | by session | "
        "balanced accuracy | events found | false alarms |",
        "|---|---|---|---|---|---|---|---|---|",
    ]
    for event, methods in found["events"].items():
        for name, f in methods.items():
            each = ", ".join(f"{v:.2f}" for v in f["sessions_auroc"])
            areas = f"{_plain(f['auroc'])} | {_plain(f['matched_auroc'])} | {each}"
            cells = f"{areas} | {_share(f['balanced'])}"
            rates = f"{f['events_found']:.0%} | {f['false_share']:.1%}"
            lines.append(f"| {event} | {f['onsets']} | {name} | {cells} | {rates} |")
    return "\n".join(lines)


def _share(figure: Mapping[str, Any]) -> str:
    low, high = figure["interval"]
    return f"{figure['value']:.1%} [{low:.1%}, {high:.1%}]"


def _plain(figure: Mapping[str, Any]) -> str:
    low, high = figure["interval"]
    return f"{figure['value']:.3f} [{low:.3f}, {high:.3f}]"
