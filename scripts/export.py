"""The command `gaploop export`."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

from gaploop.datasets.layout import read_info
from gaploop.scripts.options import DatasetFolder, counted, emit, progress, required


@dataclass
class ExportConfig:
    """Write a dataset in another project's layout.

    diffusion_policy is a replay buffer (Zarr v2 folder), aloha a folder of episode_<i>.hdf5,
    lerobot_v21 LeRobot's older layout, which leaves episodes out that aren't whole (then the exit
    code is 1). Uids, labels, units,
    tasks and telemetry come along, so that gaploop import gives the same dataset back. Takes with
    people in them need a valid consent. docs/formats.md lists what goes where.
    """

    dataset: DatasetFolder = field(default_factory=DatasetFolder)
    format: str = ""
    """diffusion_policy, aloha or lerobot_v21."""
    output: Path | None = None
    """The new file or folder; it must not exist."""
    episodes: str = ""
    """Only these, such as '0:30' or '[0, 3]'."""
    compress: bool = False
    """aloha: pictures as JPEG, a tenth of the size; they are then no longer exact."""
    consents: Path | None = None
    """The consent register; see gaploop consent --help."""
    json: bool = False
    """Print {"output", "format", "episodes", "frames", "labels", "notes", "left_out"}."""


EXAMPLE = """
gaploop export recordings/pick_place --format=diffusion_policy --output=pick_place.zarr
gaploop export recordings/pick_place --format=aloha --output=pick_place_aloha --compress
gaploop export recordings/pick_place --format=lerobot_v21 --output=pick_place_v21 --episodes=0:30
"""


def run(config: ExportConfig) -> int:
    """Export; the work is in `datasets.formats`."""
    from gaploop.datasets.formats.registry import WRITTEN, export_dataset
    from gaploop.datasets.lerobot_import import parse_episodes

    root = config.dataset.folder()
    required(config.format, f"Export as what? Give --format=…, one of: {', '.join(WRITTEN)}.")
    asked = "Export where to? Name a new file or folder with --output=OUT."
    output = required(config.output, asked)
    total = read_info(root).total_episodes
    chosen = parse_episodes(config.episodes, total) if config.episodes else None
    with progress("Exporting", len(chosen) if chosen else total) as advance:
        out = export_dataset(
            root,
            config.format,
            output,
            episodes=chosen,
            compress=config.compress,
            advance=advance,
            consents=config.consents,
        )
    answer = {
        "output": str(config.output),
        "format": config.format,
        "episodes": len(out.lengths),
        "frames": out.total_frames,
        "labels": len(out.labels),
        "notes": out.notes,
        "left_out": out.left_out,
    }
    episodes = counted(len(out.lengths), "episode")
    text = f"{episodes}, {out.total_frames} frames written to {config.output}."
    lost = [f"Episode {e} is left out: {why}." for e, why in out.left_out.items()]
    emit(config.json, answer, "\n".join([*out.notes, *lost, text]))
    return int(bool(lost))
