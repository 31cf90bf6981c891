"""What a run folder was asked for, so that nothing is gone on with from other data or settings."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any, Final

from gaploop.core.errors import UnusableInputError
from gaploop.core.files import read_json, sha256, write_json
from gaploop.datasets.layout import read_episodes, read_info
from gaploop.datasets.mixing.spec import load_mixture
from gaploop.finetune.checkpoints import CHECKPOINT
from gaploop.finetune.lerobot_policy import policy_id
from gaploop.finetune.tuning.work import AdaptOptions

ASKED: Final = "asked.json"
SCHEMA: Final = "gaploop.asked.v1"
PLACES: Final = ("base", "real", "sim", "output_dir", "mixture")
HARMLESS: Final = ("resume", "merge", "workers", "device", "cache")
"""Options that don't decide what is learned."""
HARMLESS_SPEC: Final = ("batch_size", "checkpoint_every", "log_every")
"""Whoever ran out of memory goes on with smaller batches."""


def require_same(
    folder: Path, options: AdaptOptions, base: Path, *, keep: bool, without: Sequence[str] = ()
) -> None:
    """Check that a folder that is gone on with was asked for the same; write down what is asked.

    Args:
        folder: a run folder; one without the note (older, or empty) holds nothing that differs.
        options: what is asked now.
        base: the base's folder.
        keep: the folder is gone on with; otherwise it begins anew.
        without: settings that may differ.

    Raises:
        UnusableInputError: it holds a run with other data or settings; says which.
    """
    path, now = folder / ASKED, _asked(options, base)
    if not keep or not path.exists():
        write_json(path, {"schema": SCHEMA, **now})
        return
    then = read_json(path)
    other = [n for n in now if n not in without and then.get(n) != now[n]]
    if other:
        listed = ", ".join(_differs(n, then.get(n), now[n]) for n in other)
        raise UnusableInputError(
            f"{folder} holds a run that was asked for something else: {listed}. Give what {path} "
            "says, or name another --output_dir."
        )


def require_free(folder: Path) -> None:
    """Check that no training is in a folder that is to begin anew.

    Raises:
        UnusableInputError: there is one, done or not.
    """
    if (folder / CHECKPOINT).exists():
        raise UnusableInputError(
            f"{folder} holds a training. Go on with it by --resume, or name another --output_dir."
        )


def _asked(options: AdaptOptions, base: Path) -> dict[str, Any]:
    """Return everything that decides what is learned, as JSON types."""
    known = {k: v for k, v in asdict(options).items() if k not in (*PLACES, *HARMLESS)}
    spec = {k: v for k, v in known.pop("spec").items() if k not in HARMLESS_SPEC}
    lora = {} if options.full else known["lora"]
    alpha = {} if options.full else {"alpha": options.lora.alpha or 2 * options.lora.r}
    mixed = load_mixture(options.mixture) if options.mixture else None
    roots = [r for s in mixed.sources for r in s.roots] if mixed else []
    value = {
        **known,
        "lora": {**lora, **alpha},
        "held_out_uids": sorted(options.held_out_uids),
        "size": options.cache.size,
        "base": policy_id(base),
        "takes of --real": [_takes(r) for r in options.real],
        "takes of --sim": [_takes(r) for r in options.sim],
        "mixture": sha256(options.mixture) if options.mixture else "",
        "takes of the mixture": [_takes(r) for r in roots],
        **spec,
    }
    found: dict[str, Any] = json.loads(json.dumps(value))  # as it will be read
    return found


def _takes(root: Path) -> str:
    """Return a hash of which takes a dataset holds, and of what is said of them."""
    digest = hashlib.sha256()
    for episode in read_episodes(read_info(root)):
        info = episode.info
        said = (info.uid, episode.length, episode.outcome.value, info.station, info.session)
        digest.update(repr((*said, sorted(info.dimensions.items()))).encode())
    return digest.hexdigest()


def _differs(name: str, then: Any, now: Any) -> str:
    is_short = all(isinstance(v, str | int | float) and len(str(v)) < 20 for v in (then, now))
    return f"{name} ({then}, now {now})" if is_short else name
