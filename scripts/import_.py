"""The command `gaploop import`."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Final

from gaploop.core.errors import UnusableInputError, unknown_choice
from gaploop.core.units import noted
from gaploop.core.vocabulary import Domain, Outcome, TakeKind
from gaploop.datasets.formats.model import ImportSettings, Recording
from gaploop.datasets.layout import read_info
from gaploop.scripts.options import counted, emit, progress, required

POSITIONAL: Final = "source"
LAYOUTS: Final = ("aloha", "diffusion_policy", "mcap", "robomimic", "umi")
FORMATS: Final = ("lerobot", *LAYOUTS)
_SAID: Final = ("fps", "units", "task", "robot_type", "keys", "swap_red_blue")
_DATASETS: Final = ("episodes", "kind", "domain", "outcome")
_ONLY_FOR: Final = {
    **dict.fromkeys(("drop_videos", "rename_map"), ("lerobot",)),
    **dict.fromkeys((*_SAID, "video", "consents"), LAYOUTS),
    "keys": ("diffusion_policy", "mcap", "robomimic"),
    "swap_red_blue": ("aloha", "diffusion_policy", "robomimic", "umi"),
    **dict.fromkeys(_DATASETS, ("lerobot", *LAYOUTS)),
}
"""Option to the formats that heed it."""


@dataclass
class ImportConfig:
    """Bring foreign recordings in as a dataset of ours.

    lerobot checks the dataset, writes it to --output_dir as v3 and adds gap columns; of v2.0 and
    v2.1, episodes with missing files are
    named and left out (then the exit code is 1), and every row and picture is compared.
    diffusion_policy, umi, aloha, robomimic and mcap become a LeRobot v3 dataset with gap columns;
    what gaploop itself exported comes back as it was (docs/formats.md).
    """

    source: Path | None = None
    """File or folder to import (`gaploop import SRC` is short for it)."""
    format: str = ""
    """aloha, diffusion_policy, lerobot, mcap, robomimic or umi; seen from the content unless
    given."""
    output_dir: Path | None = None
    """The new dataset."""
    drop_videos: bool = False
    """lerobot: go on without pictures; joint state becomes observation.environment_state too."""
    rename_map: dict[str, str] = field(default_factory=dict)
    """lerobot: feature to its new name, such as
    '{state: observation.state, image: observation.images.top}'."""
    episodes: str = ""
    """Datasets: only these, such as '0:30' or '[0, 3]'."""
    kind: str = ""
    """Datasets: demonstration, rollout or import; import unless the source states it."""
    domain: str = ""
    """Datasets: real, sim or sim_target; real unless the source states it."""
    outcome: str = ""
    """Datasets: success, failure, …; unlabelled unless the source states it."""
    fps: float | None = None
    """Foreign layouts: frames per second, where the source doesn't state them [Hz]."""
    units: str = ""
    """Foreign layouts: units of action and state, such as degrees or radians; unknown imports
    without."""
    task: str = ""
    """Foreign layouts: the instruction, in words, where the source doesn't state it."""
    robot_type: str = ""
    """Foreign layouts: name of the robot, such as so101_follower."""
    keys: dict[str, Any] = field(default_factory=dict)
    """diffusion_policy, robomimic: feature to key, mcap: feature to topic, such as
    '{"observation.state": "qpos"}'; several in brackets are joined end to end."""
    video: str = "lossless"
    """Foreign layouts: lossless keeps every pixel; small is H.264 as in recordings."""
    swap_red_blue: bool = False
    """aloha, diffusion_policy, robomimic, umi: the source's pictures are BGR."""
    consents: Path | None = None
    """Foreign layouts: the consent register, for exports that name the people in their
    takes; see gaploop consent --help."""
    json: bool = False
    """Print what was written as one JSON object."""


EXAMPLE = """
gaploop import teleop --format=lerobot --drop_videos=true --episodes='0:30' \\
               --kind=demonstration --outcome=success --output_dir=teleop_joints
gaploop import pick_place.zarr --output_dir=pick_place
gaploop import aloha_static_coffee --fps=50 --units=radians --task="Make coffee" --output_dir=coffee
gaploop import bag.mcap --fps=30 --output_dir=bag \\
               --keys='{"action": "/leader/joint_states", "observation.state": "/joint_states"}'
"""


def run(config: ImportConfig) -> int:
    """Import; the work is in `datasets.formats` and `datasets.lerobot_import`."""
    from gaploop.datasets.formats.lerobot_v2 import is_v2, read_v2
    from gaploop.datasets.formats.registry import guess
    from gaploop.datasets.lerobot_import import ImportOptions, import_dataset, parse_episodes

    source = required(config.source, "Import what? Name it: gaploop import SRC --format=…")
    where = "Import where to? Name a folder with --output_dir=DIR."
    target = required(config.output_dir, where)
    if config.format and config.format not in FORMATS:
        raise unknown_choice("format", config.format, FORMATS, "--format")
    name = required(
        config.format or guess(source),
        f"{source}: its content doesn't show its format. Give it with --format=…, one "
        f"of: {', '.join(sorted(FORMATS))}.",
    )
    plain = ImportConfig()
    for option, formats in _ONLY_FOR.items():  # what the format would pass over in silence
        if name not in formats and getattr(config, option) != getattr(plain, option):
            raise UnusableInputError(
                f"--{option} is for {', '.join(formats)}, this is {name}. Leave it out."
            )
    if name in LAYOUTS:
        return _layout(config, name, source, target)
    old = read_v2(source).episodes if is_v2(source) else None  # may have gaps
    every = range(read_info(source).total_episodes) if old is None else old
    total, chosen = len(every), None
    if config.episodes:
        named = parse_episodes(config.episodes, max(every, default=-1) + 1)
        chosen = [e for e in named if e in every] or named
    options = ImportOptions(chosen, config.drop_videos, **_words(config), rename=config.rename_map)
    with progress("Importing", len(chosen) if chosen else total) as advance:
        done = import_dataset(source, target, options, advance)
    answer = {"dataset": target, "episodes": done.episodes, "left_out": done.left_out}
    lost = [f"Episode {e} is left out: {why}." for e, why in done.left_out.items()]
    lost.append(f"{done.episodes} of {total} episodes written to {target}.")
    emit(config.json, answer, "\n".join(lost))
    return int(bool(done.left_out))


def _layout(config: ImportConfig, name: str, source: Path, target: Path) -> int:
    from gaploop.datasets.formats.dataset import write_dataset
    from gaploop.datasets.formats.registry import LAYOUTS as KNOWN
    from gaploop.datasets.formats.registry import guess
    from gaploop.datasets.lerobot_import import parse_episodes

    guess(source)  # it exists
    keys = {
        str(feature): (named,) if isinstance(named, str) else tuple(map(str, named))
        for feature, named in config.keys.items()
    }
    settings = ImportSettings(
        config.fps,
        noted(config.units),
        config.task,
        config.robot_type,
        keys,
        **_words(config),
        swap_red_blue=config.swap_red_blue,
    )
    read = KNOWN[name].read
    assert read is not None  # of LAYOUTS here
    incoming = read(source, settings)
    plain = ImportConfig()
    said = [n for n in (*_SAID, *_DATASETS[1:]) if getattr(config, n) != getattr(plain, n)]
    if incoming.exact and said:
        raise UnusableInputError(
            f"{config.source} was exported by gaploop and comes back as it was. Leave out "
            f"{', '.join(f'--{name}' for name in said)}; label it afterwards: gaploop label"
        )
    if config.episodes:
        chosen, every = set(parse_episodes(config.episodes, incoming.count)), incoming.episodes

        def episodes() -> Iterator[Recording]:
            return (e for i, e in enumerate(every()) if i in chosen)

        incoming = replace(incoming, count=len(chosen), episodes=episodes)
    with progress("Importing", incoming.count) as advance:
        count = write_dataset(incoming, target, config.video, advance, config.consents)
    seen = [] if config.format else [f"{source}: {KNOWN[name].label}."]
    came = [f"Exported by gaploop: uids and {len(incoming.labels)} label events came along."]
    notes = [*seen, *incoming.notes, *(came if incoming.exact else [])]
    answer = {"dataset": target, "format": name, "episodes": count, "notes": notes}
    answer |= {"labels": len(incoming.labels), "exact": incoming.exact}
    written = f"{counted(count, 'episode')} written to {target}."
    emit(config.json, answer, "\n".join([*notes, written]))
    return 0


def _words(config: ImportConfig) -> dict[str, Any]:
    """Return kind, domain and outcome as words of the vocabulary, None where nobody said one."""
    found: dict[str, Any] = {}
    for name, enum in (("kind", TakeKind), ("domain", Domain), ("outcome", Outcome)):
        word = getattr(config, name)
        if word and word not in list(enum):
            raise unknown_choice(name, word, [m.value for m in enum], f"--{name}")
        found[name] = enum(word) if word else None
    return found
