"""The board's page: who is where, who can't be told apart, settings, videos, what was refused."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from markupsafe import Markup

from gaploop.core.statistics import Estimate, points
from gaploop.failure_analysis.report.page import (
    BarRow,
    bars,
    notice,
    page,
    section,
    table,
    text,
)
from gaploop.finetune.evaluation import NOMINAL, Rate
from gaploop.finetune.factors import order, words

TITLES = {"policy": "Policies", "attribution": "Attribution"}


def board_page(
    benchmark: Mapping[str, Any], results: Sequence[Mapping[str, Any]], ranking: Mapping[str, Any]
) -> str:
    """Return the page."""
    by_name = {f"{r['user']}/{r['name']}": r for r in results}
    sections = []
    for track, ranked in ranking["tracks"].items():
        if not ranked["order"]:
            continue
        rows, drawn = [], []
        for entry in ranked["order"]:
            name, rate = entry["submission"], Rate.from_json(entry)
            result = by_name[name]
            where = "files"
            if result["source"]:
                where = f"{result['source']} @ {result['revision'][:8]}"
            rows.append((entry["group"], name, str(rate), result["trained_on"], where))
            low, high = rate.interval
            drawn.append(BarRow(f"{entry['group']}  {name}", rate.rate, low, high, str(rate)))
        differences = [
            (p["better"], p["other"], points(Estimate(p["value"], *p["interval"])),
             f"{p['gained']} : {p['lost']}", f"{p['p_family']:.3g}",
             "yes" if p["told_apart"] else "no")
            for p in ranked["differences"]
        ]  # fmt: skip
        lead = "Submissions that share a letter can't be told apart at 5 % for all pairs together."
        head = ("group", "submission", "success", "trained on, as declared", "from")
        blocks = [bars(drawn, (0.0, 1.0)), table(head, rows)]
        if differences:
            columns = ("better", "other", "difference on equal scenes", "only one solved",
                       "p (Holm)", "told apart")  # fmt: skip
            blocks.append(table(columns, differences, numbers=(4,)))
        sections.append(section(TITLES[track], lead, blocks))
        if track != "policy":
            continue
        names = [entry["submission"] for entry in ranked["order"]]
        settings = sorted(by_name[names[0]]["settings"], key=lambda s: order(s, NOMINAL))
        rates = [
            (words(s), *(str(Rate.from_json(by_name[n]["settings"][s])) for n in names))
            for s in settings
        ]
        lead = "One factor at a time. Scenes differ between settings; policies met the same ones."
        sections.append(section("Settings", lead, [table(("setting", *names), rates)]))
        film = Markup("<figure><video src={} controls muted loop></video>{}</figure>")
        films = []
        for name in names:
            if path := by_name[name].get("video"):
                under = Markup("<figcaption>{}</figcaption>").format(name)
                films.append(film.format(Markup('"{}"').format(path), under))
        lead = "On extra scenes, which don't count."
        sections.append(section("Videos", lead, films))
    refused = [(n, r["track"], r["refused"]) for n, r in by_name.items() if r.get("refused")]
    if refused:
        listed = table(("submission", "track", "why"), refused)
        sections.append(section("Refused", "Not run, or not to the end.", [listed]))
    blocks = [
        notice("Sim-to-sim: the embedded cell, not a real robot."),
        text(f"Commitment to the hidden scenes (SHA-256): {benchmark['commitment']}"),
        text(f"Results are signed (Ed25519) by {benchmark['key']}"),
        text("Check them: python -m benchmarks.board show, with --key and the key as you know it."),
    ]
    sections.append(section("What this rests on", "", blocks))
    many = sum(not r.get("refused") for r in results)
    subtitle = f"{many} submissions, {benchmark['n']} hidden scenes under each setting"
    return page(f"Benchmark {benchmark['name']}", sections, subtitle=subtitle)
