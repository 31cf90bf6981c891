"""The command `gaploop convert`."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any, Final

from gaploop.core.errors import UnusableInputError, unknown_choice
from gaploop.core.files import write_json
from gaploop.core.units import noted
from gaploop.core.vocabulary import Domain, Outcome, TakeKind
from gaploop.datasets.check.findings import numbers
from gaploop.datasets.formats.foreign import ImportSettings, Recording
from gaploop.datasets.layout import parse_episodes, read_info
from gaploop.scripts.options import counted, emit, progress, required

POSITIONAL: Final = "source"
LAYOUTS: Final = ("aloha", "diffusion_policy", "umi")
FORMATS: Final = ("lerobot", *LAYOUTS)
WRITTEN: Final = "lerobot_v21"
_WORDS: Final = {"kind": TakeKind, "domain": Domain, "outcome": Outcome}
_STATED: Final = ("fps", "units", "set", "rename_map")
_ONLY_FOR: Final = {
    "drop_videos": ("lerobot",),
    "calibration": ("lerobot",),
    "fps": ("lerobot", *LAYOUTS),
    "units": LAYOUTS,
    "rename_map": ("lerobot", "diffusion_policy"),
    **dict.fromkeys(("episodes", "set"), ("lerobot", *LAYOUTS)),
}
"""Option to the formats that heed it where they are read."""


@dataclass
class ConvertConfig:
    """Make a LeRobot v3 dataset with gap columns of foreign recordings, or write one as v2.1.

    A LeRobot dataset is checked, written to --output_dir as v3 and given gap columns; of v2.0 and
    v2.1, episodes with missing files are named and left out (then the exit code is 1), and every
    row and picture is compared. diffusion_policy, umi and aloha become a dataset, every pixel kept.

    --to=lerobot_v21 writes LeRobot's older layout, and leaves episodes out that aren't whole (then
    the exit code is 1). Uids, labels, units, tasks and telemetry come along. Takes with people in
    them need a valid consent. docs/data/formats.md says more.
    """

    source: Path | None = None
    """File or folder to convert."""
    to: str = ""
    """Write it as lerobot_v21."""
    from_: str = ""
    """aloha, diffusion_policy, lerobot or umi; seen from the content unless given."""
    output_dir: Path | None = None
    """The new dataset; it must not exist."""
    episodes: str = ""
    """Only these, such as '0:30' or '[0, 3]'."""
    set: dict[str, str] = field(default_factory=dict)
    """What the source doesn't state: kind (import unless given), domain (real), outcome; of
    foreign layouts task, robot_type and colours (bgr where red and blue are swapped), too:
    '{"kind": "demonstration", "task": "Make coffee"}'."""
    fps: float | None = None
    """Frames per second, where the source doesn't state them, or states them wrongly (LeRobot v2.0,
    v2.1) [Hz]."""
    calibration: Path | None = None
    """lerobot: joints are encoder ticks of the arm with this calibration file of LeRobot's, and
    become degrees."""
    units: str = ""
    """Foreign layouts: units of action and state, such as degrees or radians; unknown imports
    without."""
    rename_map: dict[str, str] = field(default_factory=dict)
    """Feature or key of the source to the feature it becomes, such as
    '{state: observation.state, image: observation.images.top}'; several are joined end to end."""
    drop_videos: bool = False
    """lerobot: go on without pictures; joint state becomes observation.environment_state too."""
    json: bool = False
    """Print what was written as one JSON object."""


REPORT: Final = "meta/gap/convert.json"
"""What a conversion left out and fixed, beside the labels."""
RARE = ("calibration", "drop_videos", "from", "units", "fps", "rename_map")
EXAMPLE = """
gaploop convert dataset_v21 --output_dir=dataset
gaploop convert pick_place.zarr --output_dir=pick_place
gaploop convert aloha_static_coffee --fps=50 --units=radians --output_dir=coffee \\
               --set='{"task": "Make coffee", "kind": "demonstration"}'
gaploop convert recordings/pick_place --to=lerobot_v21 --output_dir=pick_place_v21 --episodes=0:30
"""


def run(config: ConvertConfig) -> int:
    """Convert; the work is in `datasets.formats` and `datasets.lerobot_import`."""
    from gaploop.datasets.formats.layouts import guess

    source = required(config.source, "Convert what? Name it: gaploop convert SRC")
    where = "Convert to where? Name a new folder with --output_dir=OUT."
    target = required(config.output_dir, where)
    if config.to:
        return _export(config, source, target)
    if config.from_ and config.from_ not in FORMATS:
        raise unknown_choice("format", config.from_, FORMATS, "--from")
    name = required(
        config.from_ or guess(source),
        f"{source}: its content doesn't show its format. Give it with --from=…, one "
        f"of: {', '.join(sorted(FORMATS))}.",
    )
    plain = ConvertConfig()
    for option, formats in _ONLY_FOR.items():  # what the format would pass over in silence
        if name not in formats and getattr(config, option) != getattr(plain, option):
            raise UnusableInputError(
                f"--{option} is for {', '.join(formats)}, this is {name}. Leave it out."
            )
    if name == "lerobot":
        return _lerobot(config, source, target)
    return _layout(config, name, source, target)


def _export(config: ConvertConfig, source: Path, target: Path) -> int:
    from gaploop.datasets.formats.lerobot_v2 import export_v21

    if config.to != WRITTEN:
        raise unknown_choice("format", config.to, (WRITTEN,), "--to")
    plain = ConvertConfig()
    for option in ("from_", "drop_videos", "calibration", *_STATED):
        if getattr(config, option) != getattr(plain, option):
            raise UnusableInputError(
                f"--{option.rstrip('_')} is for what is read, not for --to. Leave it out."
            )
    total = read_info(source).total_episodes
    chosen = parse_episodes(config.episodes, total) if config.episodes else None
    with progress("Converting", len(chosen) if chosen else total) as advance:
        out = export_v21(source, target, chosen, advance)
    answer = {"output": str(target), "format": config.to, **asdict(out)}
    text = f"{counted(out.episodes, 'episode')}, {out.frames} frames written to {target}."
    lost = [f"Episode {e} is left out: {why}." for e, why in out.left_out.items()]
    emit(config.json, answer, "\n".join([*out.notes, *lost, text]))
    return int(bool(lost))


def _lerobot(config: ConvertConfig, source: Path, target: Path) -> int:
    from gaploop.datasets.formats.lerobot_v2 import is_v2, read_v2
    from gaploop.datasets.lerobot_import import ImportOptions, import_dataset

    old = read_v2(source).episodes if is_v2(source) else None  # may have gaps
    every = range(read_info(source).total_episodes) if old is None else old
    total, chosen = len(every), None
    if config.episodes:
        named = parse_episodes(config.episodes, max(every, default=-1) + 1)
        chosen = [e for e in named if e in every] or named
    words = _words(config, ())
    how = ImportOptions(
        chosen, config.drop_videos, **words, rename=config.rename_map, fps=config.fps,
        calibration=config.calibration,
    )  # fmt: skip
    with progress("Converting", len(chosen) if chosen else total) as advance:
        done = import_dataset(source, target, how, advance)
    answer = {"dataset": target, "episodes": done.episodes, "left_out": done.left_out}
    answer["fixed"] = done.fixed
    report = target / REPORT
    report.parent.mkdir(parents=True, exist_ok=True)
    write_json(report, {"source": str(source), **answer, "dataset": str(target)})
    alike: dict[str, list[int]] = {}  # files of many episodes are missing for the same reason
    for episode, why in done.left_out.items():
        alike.setdefault(why.replace(f"{episode:06d}", "N"), []).append(episode)
    lost = [f"Fixed: {what}" for what in done.fixed]
    for why, which in alike.items():
        name = "Episode" if len(which) == 1 else f"{len(which)} episodes:"
        lost.append(f"{name} {numbers(which)} left out: {why}.")
    lost += [f"Report: {report}"] if lost else []
    lost.append(f"{done.episodes} of {total} episodes written to {target}.")
    emit(config.json, answer, "\n".join(lost))
    return int(bool(done.left_out))


def _layout(config: ConvertConfig, name: str, source: Path, target: Path) -> int:
    from gaploop.datasets.formats.dataset import write_dataset
    from gaploop.datasets.formats.layouts import LAYOUTS as KNOWN
    from gaploop.datasets.formats.layouts import guess

    guess(source)  # it exists
    keys: dict[str, tuple[str, ...]] = {}
    for key, feature in config.rename_map.items():
        keys[feature] = (*keys.get(feature, ()), key)
    words = _words(config, ("task", "robot_type", "colours"))
    is_bgr = words.pop("colours", "rgb") == "bgr"
    settings = ImportSettings(
        config.fps, noted(config.units), keys=keys, swap_red_blue=is_bgr, **words
    )
    label, read = KNOWN[name]
    incoming = read(source, settings)
    if config.episodes:
        chosen, every = set(parse_episodes(config.episodes, incoming.count)), incoming.episodes

        def episodes() -> Iterator[Recording]:
            return (e for i, e in enumerate(every()) if i in chosen)

        incoming = replace(incoming, count=len(chosen), episodes=episodes)
    with progress("Converting", incoming.count) as advance:
        count = write_dataset(incoming, target, advance)
    seen = [] if config.from_ else [f"{source}: {label}."]
    notes = [*seen, *incoming.notes]
    answer = {"dataset": target, "format": name, "episodes": count, "notes": notes}
    written = f"{counted(count, 'episode')} written to {target}."
    emit(config.json, answer, "\n".join([*notes, written]))
    return 0


def _words(config: ConvertConfig, more: tuple[str, ...]) -> dict[str, Any]:
    """Return what --set states, as words of the vocabulary where there is one."""
    stated: dict[str, Any] = {}
    for name, word in config.set.items():
        if name not in (*_WORDS, *more):
            raise unknown_choice("field", name, (*_WORDS, *more), "--set")
        known = [m.value for m in _WORDS[name]] if name in _WORDS else ["rgb", "bgr"]
        if name in (*_WORDS, "colours") and word not in known:
            raise unknown_choice(name, word, known, f"--set, {name}")
        stated[name] = _WORDS[name](word) if name in _WORDS else word
    return stated
