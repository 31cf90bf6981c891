"""The two policies of a gate, which may not change while it runs, nor between its stages."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from gaploop.core.errors import UnusableInputError

type _Stamps = dict[Path, tuple[int, int]]


@dataclass
class SamePolicies:
    """Says whether policies still are what they were.

    Attributes:
        folders: side to the folder of its policy.
        ids: side to the hash of its policy.
    """

    folders: Mapping[str, Path]
    ids: Mapping[str, str]
    _stamps: dict[str, _Stamps] = field(default_factory=dict)

    def __call__(self) -> None:
        """Check both; files are hashed again only where their size or date has changed.

        Raises:
            UnusableInputError: one isn't what the gate began with.
        """
        for side, folder in self.folders.items():
            stamps = _stamps(folder)
            if stamps == self._stamps.get(side):
                continue
            from gaploop.finetune.lerobot_policy import policy_id  # here: torch

            found = policy_id(folder)
            if found != self.ids[side]:
                raise UnusableInputError(
                    f"The {side} in {folder} was changed while the gate was under way "
                    f"({self.ids[side]}, now {found}). Put it back and give the same command "
                    "to go on, or begin a new gate with the policy as it is."
                )
            self._stamps[side] = stamps


def _stamps(folder: Path) -> _Stamps:
    files = ((path, path.stat()) for path in folder.rglob("*") if path.is_file())
    return {path: (stat.st_mtime_ns, stat.st_size) for path, stat in files}
