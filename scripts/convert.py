"""The command `gaploop convert`."""

from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Final

from gaploop.core.errors import UnusableInputError, unknown_choice
from gaploop.core.files import existing_folder
from gaploop.core.vocabulary import Domain, Outcome, TakeKind
from gaploop.datasets.layout import numbers, parse_episodes, read_info
from gaploop.scripts.options import counted, emit, progress, required

POSITIONAL: Final = "source"
WRITTEN: Final = "lerobot_v21"
_WORDS: Final = {"kind": TakeKind, "domain": Domain, "outcome": Outcome}


@dataclass
class ConvertConfig:
    """Make a LeRobot v3 dataset with gap columns of one made elsewhere, or write one as v2.1.

    The dataset is checked, written to --output_dir as v3 and given gap columns; of v2.0 and
    v2.1, episodes with missing files are named and left out (then the exit code is 1), and every
    row and picture is compared.

    --to=lerobot_v21 writes LeRobot's older layout, and leaves episodes out that aren't whole (then
    the exit code is 1). Uids, labels, units, tasks and telemetry come along. Episodes with people
    in them need a valid consent. docs/data/formats.md says more.
    """

    source: Path | None = None
    """Folder of the dataset to convert."""
    to: str = ""
    """Write it as lerobot_v21."""
    output_dir: Path | None = None
    """The new dataset; it must not exist."""
    episodes: str = ""
    """Only these, such as '0:30' or '[0, 3]'."""
    set: dict[str, str] = field(default_factory=dict)
    """What the source doesn't state: kind (import unless given), domain (real), outcome:
    '{"kind": "demonstration"}'."""
    fps: float | None = None
    """Frames per second that hold instead of the stated ones (LeRobot v2.0, v2.1) [Hz]."""
    calibration: list[Path] = field(default_factory=list)
    """Joints are encoder ticks of the arm with this calibration file of LeRobot's, or of several,
    and become degrees."""
    rename_map: dict[str, str] = field(default_factory=dict)
    """Feature of the source to the feature it becomes, such as
    '{state: observation.state, image: observation.images.top}'."""
    drop_videos: bool = False
    """Go on without pictures; joint state becomes observation.environment_state too."""
    json: bool = False
    """Print what was written as one JSON object."""


CHECKS = "Checking every picture"
RARE = ("calibration", "drop_videos", "fps", "rename_map")
EXAMPLE = """
gaploop convert dataset_v21 --output_dir=dataset
gaploop convert teammates --output_dir=ours --set='{"kind": "demonstration"}'
gaploop convert recordings/pick_place --to=lerobot_v21 --output_dir=pick_place_v21 --episodes=0:30
"""


def run(config: ConvertConfig) -> int:
    """Convert; the work is in `datasets.formats` and `datasets.lerobot_import`."""
    source = existing_folder(
        required(config.source, "Convert what? Name it: gaploop convert SRC"), "Dataset"
    )
    where = "Convert to where? Name a new folder with --output_dir=OUT."
    target = required(config.output_dir, where)
    return _export(config, source, target) if config.to else _import(config, source, target)


def _export(config: ConvertConfig, source: Path, target: Path) -> int:
    from gaploop.datasets.formats.lerobot_v2 import export_v21

    if config.to != WRITTEN:
        raise unknown_choice("format", config.to, (WRITTEN,), "--to")
    plain = ConvertConfig()
    for option in (*RARE, "set"):
        if getattr(config, option) != getattr(plain, option):
            raise UnusableInputError(f"--{option} is for what is read, not for --to. Leave it out.")
    total = read_info(source).total_episodes
    chosen = parse_episodes(config.episodes, total) if config.episodes else None
    with progress("Converting", len(chosen) if chosen else total, CHECKS) as advance:
        out = export_v21(source, target, chosen, advance)
    answer = {"output": str(target), "format": config.to, **asdict(out)}
    text = f"{counted(out.episodes, 'episode')}, {out.frames} frames written to {target}."
    lost = [f"Episode {e} is left out: {why}." for e, why in out.left_out.items()]
    emit(config.json, answer, "\n".join([*out.notes, *lost, text]))
    return int(bool(lost))


def _import(config: ConvertConfig, source: Path, target: Path) -> int:
    from gaploop.datasets.formats.lerobot_v2 import is_v2, read_v2
    from gaploop.datasets.lerobot_import import REPORT, ImportOptions, import_dataset

    old = read_v2(source).episodes if is_v2(source) else None  # may have gaps
    every = range(read_info(source).total_episodes) if old is None else old
    total, chosen = len(every), None
    if config.episodes:
        named = parse_episodes(config.episodes, max(every, default=-1) + 1)
        chosen = [e for e in named if e in every] or named
    how = ImportOptions(
        chosen, config.drop_videos, **_words(config), rename=config.rename_map, fps=config.fps,
        calibration=tuple(config.calibration),
    )  # fmt: skip
    with progress("Converting", len(chosen) if chosen else total, CHECKS) as advance:
        done = import_dataset(source, target, how, advance)
    answer = {"dataset": target, "episodes": done.episodes, "left_out": done.left_out}
    answer["fixed"] = done.fixed
    alike: dict[str, list[int]] = {}  # files of many episodes are missing for the same reason
    for episode, why in done.left_out.items():
        alike.setdefault(why.replace(f"{episode:06d}", "N"), []).append(episode)
    lost = [f"Fixed: {what}" for what in done.fixed]
    for why, which in alike.items():
        name = "Episode" if len(which) == 1 else f"{len(which)} episodes:"
        lost.append(f"{name} {numbers(which)} left out: {why}.")
    lost += [f"Report: {target / REPORT}"] if lost else []
    lost.append(f"{done.episodes} of {total} episodes written to {target}.")
    emit(config.json, answer, "\n".join(lost))
    return int(bool(done.left_out))


def _words(config: ConvertConfig) -> dict[str, Any]:
    """Return what --set states, as words of the vocabulary."""
    stated: dict[str, Any] = {}
    for name, word in config.set.items():
        if name not in _WORDS:
            raise unknown_choice("field", name, _WORDS, "--set")
        known = [m.value for m in _WORDS[name]]
        if word not in known:
            raise unknown_choice(name, word, known, f"--set, {name}")
        stated[name] = _WORDS[name](word)
    return stated
