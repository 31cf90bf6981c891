"""Injected against diagnosed cause, on tasks, severities and mechanisms left out of training.

Records a corpus of labelled takes (simulation; resumes where it was stopped), fits the model to its
training part and scores it on the rest, beside baselines. Writes the model that ships: copy
model_so101_cell.json to failure_analysis/. Sim-to-sim throughout.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from gaploop.core.files import write_atomically
from gaploop.scripts import options

if TYPE_CHECKING:
    from benchmarks.bench import BenchConfig
    from benchmarks.corpus.design import DrawnStation
    from benchmarks.corpus.signals import MeasuredTake

TAKES: Final = 550
"""Of the corpus, besides the 92 nominal ones; about half an hour of one core."""
SHOWN: Final = (
    ("top1", "top-1"),
    ("top1_by_dimension", "top-1, mean over dimensions"),
    ("named", "named at all"),
    ("right_of_named", "right, of those named"),
    ("ece", "calibration error (ECE)"),
    ("ece_if_calibrated", "ECE of a perfect posterior, by chance"),
    ("mixed_safe", "mixed: both named, or abstained"),
    ("mixed_both_named", "mixed: both named"),
    ("false_cause", "cause named without a gap"),
    ("coverage", "in the conformal set"),
    ("set_size", "causes in that set, of ten"),
)
"""Figure to its words in the table."""
FELT: Final = ("force", "touch")
"""Channels that stations seldom have: "+ force" alone has them."""
COUNTS: Final = ("set_size",)
"""Those of them that aren't shares."""


def measure(config: BenchConfig, folder: Path) -> dict[str, Any]:
    """Record what is missing, fit, score; return every figure with its interval."""
    if config.real:
        from benchmarks import attribution_real

        return attribution_real.measure(config, folder)
    from benchmarks.corpus import figures
    from benchmarks.corpus.card import card
    from benchmarks.corpus.design import draw_corpus
    from benchmarks.corpus.fit import save_model
    from benchmarks.corpus.pictures import draw
    from benchmarks.corpus.signals import corpus_references
    from benchmarks.corpus.study import failures, fit_corpus, masked
    from gaploop.failure_analysis.attribution import SHIPPED, shipped_model

    stations = draw_corpus(config.n or TAKES, config.seed, config.blind)
    takes = _takes(config, stations, folder)
    references = corpus_references(stations, folder)
    felt = failures(takes, references)
    found = failures([masked(take, FELT) for take in takes], references)
    counts = {part: len(rows) for part, rows in sorted(found.items())}
    write_atomically(folder / "README.md", card(stations, takes, counts, config.seed))
    result: dict[str, Any] = {"evidence": "sim-to-sim", "takes": len(takes), "failures": counts}
    if config.predictions is not None:
        return {**result, "handed_in": figures.handed_in(found, config.predictions)}
    shipped = shipped_model()
    if config.blind:
        return {**result, "blind": figures.blind(found, shipped)}
    about = {"takes": len(takes), "seed": config.seed, "evidence": "sim-to-sim"}
    with options.progress("Fitting", total=None):
        model = fit_corpus(found, references, config.seed, about)
    save_model(model, folder / SHIPPED)
    figures.write_predictions(folder / "predictions.jsonl", found, model)
    with options.progress("Scoring", total=None):
        scored = figures.every_figure(found, references, model, config.seed)
        by_force = fit_corpus(felt, references, config.seed, about)
        scored["test"]["+ force"] = figures.strict_figures(felt, by_force)
        draw(scored, folder)
    return {
        **result,
        "model": {"file": str(folder / SHIPPED), "ships": figures.is_same(model, shipped)},
        **scored,
        "takes_per_minute": figures.speed(stations, folder, references, model),
    }


def _takes(config: BenchConfig, stations: list[DrawnStation], folder: Path) -> list[MeasuredTake]:
    from benchmarks.corpus.record import record_corpus
    from benchmarks.corpus.signals import measure_corpus

    count = sum(len(s.scenes) for s in stations)
    policy = config.policy.required()
    with options.progress("Recording", total=count) as advance:
        record_corpus(stations, folder, policy, workers=config.workers, progress=advance)
    with options.progress("Measuring", total=len(stations)) as advance:
        return measure_corpus(stations, folder, workers=config.workers, progress=advance)


def table(result: Mapping[str, Any]) -> str:
    """Return the figures as Markdown: ours beside the baselines, then part by part."""
    if "real" in result:
        from benchmarks import attribution_real

        return attribution_real.table(result)
    if "handed_in" in result:
        return _columns({"handed in": result["handed_in"]})
    if "blind" in result:
        return _columns(result["blind"])
    speed = result["takes_per_minute"]
    matched = ", ".join(f"{k} {v:.1%}" for k, v in result["length_matched_top1"].items())
    return "\n".join(
        [
            "Task, severities and mechanisms held out (sim-to-sim; 95 % intervals over stations):",
            "",
            _columns(result["test"]),
            "",
            f"With causes equally frequent at every length, top-1: {matched}",
            "",
            "One thing held out at a time; training part by fits without its mechanism and task:",
            "",
            _columns({**result["parts"], **result["left_out_in_training"]}),
            "",
            _confusion(result["confusion"]),
            "",
            *(_recalibration(row) for row in result["recalibration"]),
            f"Takes diagnosed in a minute of one core: {speed['with_pictures']:.0f} with pictures, "
            f"{speed['telemetry_and_scene']:.0f} from telemetry and tracked scene",
        ]
    )


def _columns(figures: Mapping[str, Mapping[str, Any]]) -> str:
    """Return a table with a column for each of `figures`."""
    lines = [
        "| | " + " | ".join(figures) + " |",
        "|---" * (len(figures) + 1) + "|",
    ]
    for name, words in SHOWN:
        form = ".1f" if name in COUNTS else ".1%"
        cells = [_cell(of.get(name), form) for of in figures.values()]
        lines.append(f"| {words} | " + " | ".join(cells) + " |")
    return "\n".join(lines)


def _cell(figure: Mapping[str, Any] | None, form: str = ".1%") -> str:
    if not figure or figure["value"] is None:
        return "–"
    low, high = figure["interval"]
    return f"{figure['value']:{form}} [{low:{form}}, {high:{form}}] (n={figure['n']})"


def _confusion(rows: Mapping[str, Mapping[str, int]]) -> str:
    names = list(rows)
    lines = [
        "| injected \\ likeliest | " + " | ".join(n.replace("_", " ") for n in names) + " |",
        "|---" * (len(names) + 1) + "|",
    ]
    for name, row in rows.items():
        cells = " | ".join(str(row[c] or "·") for c in names)
        lines.append(f"| {name.replace('_', ' ')} | {cells} |")
    return "\n".join(lines)


def _recalibration(row: Mapping[str, Any]) -> str:
    low, high = row["gain_interval"]
    gain = f"{100 * row['gain']:+.1f} points [{100 * low:+.1f}, {100 * high:+.1f}]"
    return (
        f"{row['labels']} labels at a station with {row['station']}: top-1 "
        f"{row['top1_before']:.1%} → {row['top1_after']:.1%}, gain {gain}"
    )
