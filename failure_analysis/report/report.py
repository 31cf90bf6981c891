"""`report.html` of a diagnosis, which a manager reads in a minute and an engineer goes on reading.

Where it fails, why, how sure that is, what to collect and what it costs; then take by take.
"""

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any, Final

import cv2
import numpy as np
from markupsafe import Markup

from gaploop.core.errors import UnusableInputError
from gaploop.core.messages import Image
from gaploop.core.plan import Plan
from gaploop.core.statistics import Estimate, percent, points, rate
from gaploop.core.vocabulary import DIMENSIONS, GapDimension, Phase
from gaploop.datasets import layout
from gaploop.datasets.absolute.findings import SHOWN, AbsoluteFinding, AbsoluteReport
from gaploop.datasets.absolute.recording import MotionRecording, read_recording
from gaploop.datasets.columns import IMAGES
from gaploop.datasets.layout import numbers
from gaploop.datasets.lerobot_read import pictures_at
from gaploop.failure_analysis.cameras.camera_check import CameraReport
from gaploop.failure_analysis.diagnosis import (
    NO_MODE,
    UNKNOWN_MODE,
    Diagnosis,
    TakeDiagnosis,
)
from gaploop.failure_analysis.factors import (
    FAMILY_ERROR,
    CohortStatistics,
    cohort_lines,
    effect_words,
)
from gaploop.failure_analysis.planning.document import plan_answer, plan_section
from gaploop.failure_analysis.report import page as html
from gaploop.failure_analysis.rules import signals_of
from gaploop.failure_analysis.station import UNMEASURED, words
from gaploop.failure_analysis.views.pictures import picture_png

SIM_TO_SIM: Final = (
    "Sim-to-sim: these episodes come from the embedded cell with injected gaps, a stand-in for a "
    "real robot. Nothing here is evidence about a real robot."
)
NONE_SEEN: Final = "none seen"
NOTHING_SEEN: Final = 0.99
"""Mean share of "none seen" above which there is nothing to draw."""
LEAST_SHARE: Final = 0.10
"""Of the failures: a dimension below it is drawn and not talked about."""
CARDS: Final = 12
"""Takes shown in full; a report of more shows the clearest of each kind."""


def diagnosis_report(
    diagnosis: Diagnosis,
    pictures: Mapping[str, Sequence[Image]] | None = None,
    plan: Plan | None = None,
    clips: Sequence[tuple[bytes, str]] = (),
) -> str:
    """Return the page.

    Args:
        pictures: a few of a take's, RGB, by uid.
        clips: WebM with captions: failures beside their counterfactuals in the twin.
    """
    summary, cohort = diagnosis.summary, diagnosis.cohort
    subtitle = (
        f"{summary['diagnosed']} of {summary['takes']} episodes diagnosed, "
        f"against {summary['reference']['name']}"
    )
    sections = [_in_a_minute(diagnosis, plan)]
    if cohort is not None:
        sections += where_sections(cohort)
    if diagnosis.takes:
        rows, columns, counts = _modes(diagnosis)
        if columns == ["unknown"]:
            found = [(words(mode), counts[mode, "unknown"]) for mode in rows]
            block = html.table(("mode", "episodes"), found, numbers=(1,))
            sections.append(html.section("What: failure modes", "", [block]))
        else:
            title, block = "What and when: failure modes by phase", html.heat(rows, columns, counts)
            sections.append(html.section(title, "Failed episodes.", [block]))
        sections.append(_dimension_section(diagnosis))
        if diagnosis.camera_check is not None:
            sections.append(_camera_check_section(diagnosis.camera_check))
        if "reproduction" in summary:
            sections.append(_reproduction_section(summary["reproduction"], clips))
        if lines := summary.get("hypotheses", {}).get("says"):
            sections.append(
                html.section("What nobody measured", "", [html.text(line) for line in lines])
            )
        taken = summary["reference"]["takes"]
        usual = f"What is usual: {summary['reference']['name']}"
        surety = [html.text(usual + (f" ({taken} episodes)." if taken else "."))]
        surety += [html.text(f"{line}.") for line in _judged_otherwise(summary)]
        for line in summary.get("evidence", {}).get("says", ()):
            surety.append(html.notice(line) if line.startswith("Warning") else html.text(line))
        if unseen := summary.get("unseen"):
            reasons = "; ".join(f"{why} ({count} episodes)" for why, count in unseen.items())
            surety.append(html.notice(f"Could not be seen: {reasons}."))
        sections.append(html.section("How sure", "", surety))
        if plan is not None:
            sections.append(plan_section(plan))
    if diagnosis.takes:
        sections.append(evidence_section(diagnosis, pictures or {}))
        meant: list[Sequence[Any]] = [
            (words(d.value), DIMENSIONS[d].definition, DIMENSIONS[d].evidence, DIMENSIONS[d].remedy)
            for d in GapDimension
            if summary["dimensions"][d.value] >= LEAST_SHARE
            and any(t.leaning for t in diagnosis.takes)
        ]
        head = ("dimension", "definition", "evidence", "remedy")
        nothing = html.text("No dimension stands out.")
        meanings = html.table(head, meant) if meant else nothing
        sections.append(html.section("What the dimensions mean", "", [meanings]))
    footer = (
        f"Diagnosis {diagnosis.id} of {diagnosis.source or 'episodes'}. Made by gaploop diagnose."
    )
    return html.page("Diagnosis", sections, subtitle=subtitle, footer=footer)


def _in_a_minute(diagnosis: Diagnosis, plan: Plan | None) -> html.Section:
    cohort, rows = diagnosis.cohort, list[tuple[str, str]]()
    if cohort is not None and cohort.table is not None:
        success = percent(cohort.table.rate)
        rows.append(("Success", f"{success} of {cohort.table.trials} {cohort.counted}."))
        rows.append(("Where", headline(cohort)))
    if diagnosis.takes:
        kinds = Counter((t.mode, t.phase) for t in diagnosis.takes)
        what = ", ".join(
            f"{words(mode)}{f' in {phase}' if phase else ''} {n}×"
            for (mode, phase), n in kinds.most_common(3)
        )
        rows.append(("What", what + (" and others." if len(kinds) > 3 else ".")))
        n, left = len(diagnosis.takes), diagnosis.summary["abstained"]
        sure = f"{left} of {n} failures have no clear cause, and none is guessed."
        sure = sure if left else f"Each of the {n} failures has a clear cause."
        sure += f" {n} failures are few: read the intervals." if n < 20 else ""
        if "reproduction" in diagnosis.summary:
            sure += f" {diagnosis.summary['reproduction']['says'][-1]}"
        rows += [("First", line) for line in deployment_lines(diagnosis.summary)]
        rows += [("Why", _why(diagnosis)), ("How sure", sure)]
        rows += plan_answer(plan) if plan is not None else []
    else:
        rows.append(("Why", "No failure to explain."))
    blocks = [html.answers(rows)]
    if diagnosis.summary["sim_to_sim"]:
        blocks.insert(0, html.notice(SIM_TO_SIM))
    return html.section("In a minute", "", blocks)


def _why(diagnosis: Diagnosis) -> str:
    station = str(diagnosis.summary.get("station", {}).get("says", ""))
    if diagnosis.summary.get("ground") == "elsewhere":
        return station
    if not diagnosis.summary["top"]:
        return f"{station} No failure points clearly to one cause.".strip()
    spans = _cause_shares(diagnosis)
    none = spans.pop(NONE_SEEN)
    ranked = sorted(
        (s for s in spans.items() if s[1].value >= LEAST_SHARE), key=lambda s: -s[1].value
    )
    causes = [f"{words(name)} {percent(share)}" for name, share in ranked]
    if none.value >= LEAST_SHARE:
        causes.append(f"unexplained {percent(none)}")
    if not causes:
        return "No single cause explains a tenth of the failures."
    sentence = ", ".join(causes)
    return f"{station} {sentence[0].upper()}{sentence[1:]} of the failures.".strip()


def _cause_shares(diagnosis: Diagnosis) -> dict[str, Estimate]:
    """Return the share of failures that have each cause, with its 95 % interval.

    From the mean posterior: what is unsure about single takes and about how many there are both
    make it wider, as far as the posterior is calibrated.
    """
    n = len(diagnosis.takes)
    shares = {**diagnosis.summary["dimensions"], NONE_SEEN: diagnosis.summary["none"]}
    return {name: rate(share * n, n) for name, share in shares.items()}


def _dimension_section(diagnosis: Diagnosis) -> html.Section:
    title = "Why: what differs from where the policy works"
    if diagnosis.summary.get("ground") == "elsewhere":
        return html.section(title, "", [html.notice(str(diagnosis.summary["station"]["says"]))])
    if diagnosis.summary["none"] > NOTHING_SEEN:
        nothing = (
            "Nothing recorded in these episodes shows why: gap dimensions show in joint commands "
            "and readings, in pictures and in the tracked scene."
        )
        return html.section(title, "", [html.notice(nothing)])
    spans = sorted(_cause_shares(diagnosis).items(), key=lambda pair: -pair[1].value)
    rows = [
        html.BarRow(
            words(name), share.value, share.low, share.high, percent(share),
            "" if name != NONE_SEEN and (n == 0 or share.value >= LEAST_SHARE) else "quiet",
        )
        for n, (name, share) in enumerate(spans)
    ]  # fmt: skip
    lead = (
        "Share of the failures with 95 % intervals, which allow for how many there are and for "
        "what is unsure about each. 'None seen': no signal explains them."
    )
    reach = max(0.2, *(row.high for row in rows))
    return html.section(title, lead, [html.bars(rows, (0.0, min(1.0, 1.05 * reach)))])


def _reproduction_section(
    found: Mapping[str, Any], clips: Sequence[tuple[bytes, str]]
) -> html.Section:
    """Return what each cause costs by rolling the policy out in the station's twin."""
    rows = []
    for cost in sorted(found["costs"], key=lambda c: -float(c["points"][0])):
        span = Estimate(*cost["points"])
        kind = "bad" if span.low > 0 else "quiet"
        rows.append(html.BarRow(cost["says"], span.value, span.low, span.high, points(span), kind))
    low, high = min(0.0, *(r.low for r in rows)), max(0.2, *(r.high for r in rows))
    lead = (
        "Points of success that each cause takes, with 95 % intervals; together they are the "
        "station's failures."
    )
    said = [html.text(line) for line in found["says"] if not line.startswith(" ")]
    if found["reproduces"] is False:
        said[-1] = html.notice(str(found["says"][-1]))
    title = "Reproduced in the station's twin"
    shown = [html.video(*clip) for clip in clips]
    return html.section(title, lead, [html.bars(rows, (1.05 * low, 1.05 * high)), *said, *shown])


def _judged_otherwise(summary: Mapping[str, Any]) -> list[str]:
    """Return how many causes were judged by rules, where there was no model to judge by."""
    usual = ("model", "reproduction", "comparison")
    counts = summary.get("attributed_by", {}).items()
    return [f"{count} judged by the {by}" for by, count in counts if by not in usual]


def _camera_check_section(report: CameraReport) -> html.Section:
    """Return what has changed about the cameras, with the take that shows it best."""
    changed = len(report.found)
    lines = report.lines()[1:]
    blocks = [*map(html.notice, lines[:changed]), *map(html.text, lines[changed:])]
    for camera, question in report.found:
        uid, picture = report.shown[camera, question]
        caption = f"{camera}, {words(question)}: usual; in episode {uid[:13]}; what shows it"
        blocks.append(html.figure(picture_png(picture), caption, 760))
    lead = f"Against {report.n_reference} episodes: {report.reference}."
    return html.section("What has changed about the cameras", lead, blocks)


def _modes(diagnosis: Diagnosis) -> tuple[list[str], list[str], Counter[tuple[str, str]]]:
    """Return modes, commonest first; phases in order; and (mode, phase) to count."""
    counts = Counter((t.mode, t.phase or "unknown") for t in diagnosis.takes)
    modes = Counter(t.mode for t in diagnosis.takes)
    phases = [p.value for p in Phase if any(phase == p for _, phase in counts)]
    if any(phase == "unknown" for _, phase in counts):
        phases.append("unknown")
    return [mode for mode, _ in modes.most_common()], phases, counts


def evidence_section(diagnosis: Diagnosis, pictures: Mapping[str, Sequence[Image]]) -> html.Section:
    """Return one card per take with its evidence and example frames, clearest first."""
    cards = []
    for take in shown_takes(diagnosis.takes):
        name = f"episode {take.episode}" if take.episode is not None else take.uid[:13]
        title = words(take.mode) + (f" in {take.phase}" if take.phase else "") + f" · {name}"
        ranked = sorted(take.dimensions.items(), key=lambda pair: -pair[1])[:3]
        ranked = ranked if take.leaning else []
        tags = [f"{words(d)} {share:.0%}" for d, share in ranked if share >= 0.05]
        if take.abstained:
            tags.insert(0, "cause not named")
        lines = [e.message for e in take.evidence[:5]]
        frames = pictures.get(take.uid, ())
        if take.uid in diagnosis.spots:
            frames = [diagnosis.spots[take.uid]]
            lines.append("Pictures: before, after; red where the gripper closes, green: opens.")
        cards.append(html.take_card(title, tags, lines, frames))
    takes = len(diagnosis.takes)
    lead = f"{CARDS} of {takes} episodes: of each kind, the clearest." if takes > CARDS else ""
    return html.section("Evidence, episode by episode", lead, cards)


def shown_takes(takes: Sequence[TakeDiagnosis]) -> list[TakeDiagnosis]:
    """Return takes to show: kinds (mode and cause) in turn, the clearest of each first."""

    def clearness(take: TakeDiagnosis) -> tuple[bool, bool, float]:
        return take.mode == NO_MODE, take.abstained, -max(take.dimensions.values())

    seen = Counter[tuple[str, str]]()
    ranked = []
    for take in sorted(takes, key=clearness):
        kind = (take.mode, take.top)
        ranked.append((seen[kind], *clearness(take), take.uid, take))
        seen[kind] += 1
    return [entry[-1] for entry in sorted(ranked, key=lambda entry: entry[:-1])[:CARDS]]


MOST_EFFECTS: Final = 16
"""Conditions on a page; the others are folded into a table."""
KIND: Final = {"costs": "bad", "helps": "good", "not shown": "quiet"}


def deployment_lines(summary: Mapping[str, Any]) -> list[str]:
    """Return a sentence for each mistake of the deployment: what was seen, why, what to do."""
    made = []
    for fault in summary.get("deployment", ()):
        seen = ", ".join(f"{words(mode)} {n}×" for mode, n in list(fault["modes"].items())[:3])
        made.append(
            f"Deployment: {fault['failures']} failures ({seen}) with {words(fault['kind'])}: "
            f"{fault['what']} → {fault['fix']}"
        )
    return made


def diagnosis_lines(found: Diagnosis) -> list[str]:
    """Return what a person reads of a diagnosis in the terminal."""
    summary = found.summary
    lines = [
        f"{summary['diagnosed']} of {summary['takes']} episodes diagnosed, "
        f"{summary['diagnosed'] - summary['abstained']} with a clear cause "
        f"(reference: {summary['reference']['name']})"
    ]
    if summary["modes"]:
        counts = sorted(summary["modes"].items(), key=lambda item: -item[1])
        lines.append("seen: " + ", ".join(f"{count} {mode}" for mode, count in counts))
    if silent := summary["outcomes"].get("unlabelled", 0):
        lines.append(f"{silent} episodes have no outcome and aren't judged: gaploop review")
    lines += [summary["not_reproduced"]] if "not_reproduced" in summary else []
    lines += deployment_lines(summary)
    lines.append(summary["station"]["says"])
    if summary.get("shown_alone") and set(summary["station"]["named"]) <= {UNMEASURED}:
        first = summary["shown_alone"][0]
        lines.append(f"Mend first what the episodes show by themselves: {first['what']}")
    lines += summary.get("reproduction", {}).get("says", ())
    lines += summary.get("hypotheses", {}).get("says", ())
    lines += summary["evidence"]["says"] if found.takes else []
    if summary["sim_to_sim"]:
        lines.append("sim-to-sim: a simulation stands for the real robot")
    if summary["labels_learned_from"]:
        lines.append(f"learned from {summary['labels_learned_from']} labels of engineers")
    lines += _judged_otherwise(summary)
    lines += found.camera_check.lines() if found.camera_check else []
    silent_about = list[str]()
    for take in found.takes:
        name = f"episode {take.episode}" if take.episode is not None else take.uid[:13]
        if take.mode == UNKNOWN_MODE and take.abstained and not take.evidence:
            silent_about.append(name.removeprefix("episode "))
            continue
        why, cause = " and ".join(take.named), take.top or take.leaning
        if cause and not take.top and take.dimensions[cause] <= take.none:
            cause = ""  # that it is none of them is likelier
        why = why or take.top or (f"unclear, leans to {cause}" if cause else "no clear cause")
        is_share = cause and len(take.named) < 2 and take.by != "comparison"
        share = f" {take.dimensions[cause]:.0%}" if is_share else ""
        when = f" in {take.phase}" if take.phase else ""
        first = f": {take.evidence[0].message}" if take.evidence else ""
        of = signals_of(cause) if cause else ()
        also = next((f"; {e.message}" for e in take.evidence[1:] if e.signal in of), "")
        lines.append(f"  {name}  {take.mode}{when}, {why}{share}{first}{also}")
    if silent_about:
        name = "episode" if len(silent_about) == 1 else f"{len(silent_about)} episodes:"
        lines.append(f"  {name} {numbers(silent_about)}  unknown, no clear cause")
    if found.cohort is not None:
        lines += ["", "All episodes together:", *cohort_lines(found.cohort)]
    return lines


def cohort_page(cohort: CohortStatistics, source: str) -> str:
    """Return one page of what trials of `source` say together."""
    blocks: list[Markup] = []
    if cohort.table is not None:
        success = cohort.table.rate
        span = f"success, 95 %: {success.low:.0%} to {success.high:.0%}"
        counted = (str(cohort.table.trials), cohort.counted)
        blocks.append(html.facts([(f"{success.value:.0%}", span), counted]))
    sections = [html.section("In short", headline(cohort), blocks), *where_sections(cohort)]
    footer = "Made by gaploop diagnose --factors."
    return html.page(f"What costs success: {source}", sections, footer=footer)


def headline(cohort: CohortStatistics) -> str:
    """Return in one sentence where success is lost."""
    if cohort.table is None:
        return "No episode has an outcome, so nothing can be compared."
    if not cohort.table.effects:
        return "Every episode was recorded under the same conditions, so none can be compared."
    worst = cohort.table.worst
    if worst is None:
        return "No condition is shown to cost success."
    reference = cohort.table.references[worst.factor][0]
    return (
        f"Costliest: {words(worst.factor)} {worst.level}, {points(worst.difference)} against "
        f"{reference}, all else alike."
    )


def where_sections(cohort: CohortStatistics) -> list[html.Section]:
    """Return the section on what each condition costs, where any was tried."""
    result = cohort.table
    if result is None or not (result.effects or result.aside):
        return []
    lead = (
        "Difference in success, in percentage points with 95 % intervals, from what the same "
        "trials would have had at the usual level, all else as it was. Coloured: shown, at "
        f"{FAMILY_ERROR:.0%} for all of them together."
    )
    rows = list[html.BarRow]()
    ranked = sorted(result.effects, key=lambda e: (e.verdict == "not shown", e.p))[:MOST_EFFECTS]
    shown = sorted(ranked, key=lambda e: (e.difference.value, e.factor, e.level))
    for effect in shown:
        d = effect.difference
        at_reference = min(max(effect.rate.value - d.value, 0.0), 1.0)  # these trials, there
        sentence = (
            f"{points(d)} · {effect.rate.value:.0%} of {effect.trials} trials, not "
            f"{at_reference:.0%} as at {result.references[effect.factor][0]}"
        )
        name = f"{words(effect.factor)}: {effect.level}"
        rows.append(html.BarRow(name, d.value, d.low, d.high, sentence, KIND[effect.verdict]))
    blocks = []
    if rows:
        left, right = min(r.low for r in rows), max(r.high for r in rows)
        reach = min(max(0.1, -left, right) * 1.05, 1.0)
        blocks.append(html.bars(rows, (-reach, min(reach, max(0.1, right))), filled=False))
    rest = [e for e in result.effects if e not in shown]
    if rest:
        lines = (effect_words(e, result.references[e.factor][0]) for e in rest)
        blocks.append(html.more(f"{len(rest)} more", [html.text(line) for line in lines]))
    whose = dict[str, list[str]]()
    for effect in shown:
        whose.setdefault(effect.note, []).append(f"{words(effect.factor)} {effect.level}")
    notes = [f"{', '.join(levels)}: {note}" for note, levels in whose.items() if note]
    notes += [f"{words(f)} not judged: {why}" for f, why in result.aside.items()]
    if notes:
        blocks.append(html.notice("; ".join(notes) + "."))
    how = (
        f"Intervals allow for differences between the {result.clusters} sessions."
        if result.clusters
        else "Intervals take the trials as independent of each other."
    )
    return [html.section("Where: what each condition costs", lead, [*blocks, html.text(how)])]


# -- what episodes show by themselves ------------------------------------------------------------


PICTURE_PX: Final = 320
"""Width of a picture; its height follows."""
WORDS_ALONE: Final = ("task_wording", "wrong_task")
"""No curve shows these kinds of finding."""


def absolute_page(report: AbsoluteReport) -> str:
    """Return what a dataset shows by itself as a page, each sentence with a curve or pictures.

    Raises:
        UnusableInputError: the dataset can't be read any more.
    """
    recording, sections = read_recording(report.root), list[html.Section]()
    for finding in report.findings[:SHOWN]:
        is_typed = finding.command.startswith(("gaploop ", "lerobot-"))  # else done by hand
        told = html.command if is_typed else html.text
        blocks = [told(finding.command), *_figures(recording, finding)]
        sections.append(html.section(finding.line(), "", blocks))
    untested = [f"{what} ({why})" for what, why in report.untested.items()]
    for title, said in (
        ("Tested and good", list(report.good.values())),
        ("Could not be tested", untested),
    ):
        sections.append(html.section(title, "", [html.text(f"{'; '.join(said) or 'nothing'}.")]))
    return html.page(report.root.name, sections)


def _figures(recording: MotionRecording, finding: AbsoluteFinding) -> list[Markup]:
    shown = {e.index: e for e in recording.episodes}
    worst = finding.worst if finding.worst is not None else next(iter(finding.episodes), None)
    cameras = {key.removeprefix(IMAGES): key for key in recording.info.video_keys}
    if about := [cameras[name] for name in finding.about.split(", ") if name in cameras]:
        other = next((e for e in sorted(recording.lengths) if e not in finding.episodes), None)
        pair = [e for e in dict.fromkeys((other, worst)) if e is not None]
        made = []
        for key in about:
            found = {e: _picture(recording, key, e) for e in pair}
            seen = {f"episode {e}": image for e, image in found.items() if image is not None}
            if seen:
                caption = f"First picture of {key.removeprefix(IMAGES)}: {', then '.join(seen)}"
                width_px = PICTURE_PX * len(seen)
                joined = np.hstack(list(seen.values()))
                made.append(html.figure(picture_png(joined), caption, width_px))
        return made
    if worst not in shown or finding.kind in WORDS_ALONE:
        return []
    episode, names = shown[worst], [j.name for j in recording.joints]
    own = [names.index(name) for name in finding.about.split(", ") if name in names]
    lines = [(names[k], episode.reading[:, k]) for k in recording.arm]
    if own:
        both = (("command", episode.command), ("reading", episode.reading))
        lines = [(f"{names[k]} {what}", x[:, k]) for k in own for what, x in both]
    drawn_as = list[tuple[str, str]]()
    with html.new_figure(7.6, 2.4) as (drawn, axes):
        for number, (name, values) in enumerate(lines):
            style = ("-", "--", ":", "-.")[number // 10 % 4]  # colours come again after ten
            t_s = np.arange(len(values)) / recording.info.fps
            (line,) = axes.plot(t_s, values, style, lw=1.2)
            drawn_as.append((line.get_color(), name))
        axes.set_xlabel("time [s]")
        axes.set_ylabel(f"joints [{recording.unit or 'units'}]")
        png = html.figure_png(drawn)
    return [html.figure(png, f"Episode {worst}"), html.legend(drawn_as)]


def _picture(recording: MotionRecording, key: str, episode: int) -> Image | None:
    try:
        (one,) = layout.read_episodes(recording.info, [episode])
        first = pictures_at(recording.info, one, key, [0])[0]
        size = PICTURE_PX, max(1, round(PICTURE_PX * first.shape[0] / first.shape[1]))
        return np.asarray(cv2.resize(first, size), dtype=np.uint8)
    except (UnusableInputError, OSError, KeyError, TypeError, ValueError):
        return None
