"""The files of a policy as its repository holds them: also those that plain LeRobot looks for.

LeRobot loads an adapter's base from `base_model_name_or_path`. A path would mean a folder of this
computer. So the repository names itself: LeRobot then takes `model.safetensors` from its root,
which is the base's, once more beside `base/` (the Hub and the download cache keep one copy of
equal files). Whoever has the repository has the base.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, Final

from gaploop.core.errors import UnusableInputError
from gaploop.core.files import read_json
from gaploop.datasets.hub.dataset import NOTICES
from gaploop.datasets.hub.target import REPO_ID
from gaploop.datasets.hub.upload import HubFile
from gaploop.finetune import lerobot_adapter as adapter
from gaploop.finetune.lerobot_adapter import BASE_KEY
from gaploop.finetune.lerobot_policy import WEIGHTS

PARTS: Final = frozenset({".safetensors", ".json", ".yaml", ".yml"})
"""What policies consist of, as LeRobot's own push has it."""


def files_of(folder: Path) -> dict[str, Path]:
    """Return what belongs to a policy's folder: name to path."""
    found = sorted(p for p in folder.rglob("*") if p.is_file())
    return {
        p.relative_to(folder).as_posix(): p
        for p in found
        if (p.suffix in PARTS or p.stem.upper() in NOTICES)
        and not any(part.startswith(".") for part in p.relative_to(folder).parts)
    }


def portable(folder: Path, repo_id: str) -> list[HubFile]:
    """Return the files of a policy so that plain LeRobot loads it by the name `repo_id`.

    Raises:
        UnusableInputError: an adapter whose base is a path of this computer.
    """
    files: dict[str, Path | bytes] = dict(files_of(folder))
    if adapter.is_adapter(folder):
        config = read_json(folder / adapter.CONFIG)
        if (folder / adapter.BASE / WEIGHTS).is_file():
            config = {**config, BASE_KEY: repo_id}
            files[adapter.CONFIG] = (json.dumps(config, indent=1, sort_keys=True) + "\n").encode()
            files[WEIGHTS] = folder / adapter.BASE / WEIGHTS
        else:
            _require_hub_name(folder, config)
    return [HubFile(name, source) for name, source in files.items()]


def owns(name: str) -> bool:
    """Say whether a file on the Hub belongs to a policy: an old adapter's must not stay beside."""
    path = Path(name)
    return path.suffix in PARTS and (len(path.parts) == 1 or path.parts[0] == adapter.BASE)


def needs_gaploop(folder: Path) -> tuple[str, ...]:
    """Return the steps of a policy's processors that gaploop brings, by their class paths."""
    names: list[str] = []
    for file in sorted(folder.glob("policy_*processor.json")):
        value: Any = read_json(file)
        names += [str(step.get("class", "")) for step in value.get("steps", ())]
    return tuple(name for name in names if name.startswith("gaploop."))


def _require_hub_name(folder: Path, config: dict[str, Any]) -> None:
    base = str(config.get(BASE_KEY) or "")
    if not REPO_ID.fullmatch(base) or Path(base).exists():
        raise UnusableInputError(
            f"{folder} names {base or 'nothing'} as its base, which nobody else has. Copy the base "
            f"policy to {folder / adapter.BASE}, or push the merged folder of the same run."
        )
