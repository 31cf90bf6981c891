"""huggingface_hub's client for any endpoint: with time-outs, without Xet where it isn't spoken."""

from __future__ import annotations

import contextlib
import json
import os
import re
from collections.abc import Iterator
from typing import Any, Final
from urllib.parse import urlsplit

import httpx
import huggingface_hub
from huggingface_hub import HfApi
from huggingface_hub import constants as hub_constants
from huggingface_hub.errors import HfHubHTTPError

from gaploop.core.schema import parse_yaml

PUBLIC_ENDPOINT: Final = "https://huggingface.co"
README: Final = "README.md"
CONNECT_S: Final = 10.0
"""A server that doesn't take a connection within this isn't there [s]."""
NO_CARD_CHECK: Final = frozenset({404, 405, 501})
"""Answers of a server that has no card check."""


def endpoint() -> str:
    """Return the Hub's address: `$HF_ENDPOINT`, or the public one."""
    return (os.environ.get("HF_ENDPOINT") or hub_constants.ENDPOINT).rstrip("/")


class _Api(HfApi):  # type: ignore[misc]  # huggingface_hub isn't followed by mypy
    """huggingface_hub's client, content with a server that has no card check."""

    def _validate_yaml(self, content: str, **options: Any) -> None:
        """Check a card's metadata on the Hub that it goes to, and here.

        huggingface_hub reads the answer as JSON before it looks at the status. (Its
        `RepoCard.validate`, which LeRobot's push calls, asks huggingface.co whatever the
        endpoint.)
        """
        front = re.match(r"---\s*\n(.*?)\n---\s*(\n|$)", content, re.DOTALL)
        parse_yaml(front[1] if front else "", f"{README}: its metadata")
        try:
            super()._validate_yaml(content, **options)
        except HfHubHTTPError as error:
            if error.response.status_code not in NO_CARD_CHECK:
                raise
        except json.JSONDecodeError:
            pass  # no Hub's answer: the commit itself will tell whether there is one


@contextlib.contextmanager
def connected(address: str, timeout_s: float) -> Iterator[Any]:
    """Yield a client for an endpoint.

    Args:
        address: the Hub's.
        timeout_s: without a byte for this long, a request has failed [s].
    """
    timeout = httpx.Timeout(timeout_s, connect=min(CONNECT_S, timeout_s))

    def make() -> httpx.Client:
        client: httpx.Client = huggingface_hub.utils._http.default_client_factory()
        client.timeout = timeout
        return client

    # Both are read at every call, so that they can be set for a while; LeRobot in the same process
    # downloads through Xet as before.
    bars = huggingface_hub.utils.are_progress_bars_disabled()
    huggingface_hub.utils.disable_progress_bars()  # one for each file, over our own
    before = hub_constants.HF_HUB_DISABLE_XET
    hub_constants.HF_HUB_DISABLE_XET = before or not _speaks_xet(address)
    huggingface_hub.set_client_factory(make)
    try:
        yield _Api(endpoint=address, library_name="gaploop")
    finally:
        huggingface_hub.set_client_factory(huggingface_hub.utils._http.default_client_factory)
        hub_constants.HF_HUB_DISABLE_XET = before
        if not bars:
            huggingface_hub.utils.enable_progress_bars()


def _speaks_xet(address: str) -> bool:
    """Say whether to upload through Xet: on huggingface.co, or where HF_HUB_DISABLE_XET=0 is set.

    huggingface_hub takes Xet wherever `hf_xet` is installed and fails on servers without it.
    """
    said = os.environ.get("HF_HUB_DISABLE_XET")
    if said is not None:
        return said.upper() not in ("1", "ON", "YES", "TRUE")
    host = urlsplit(address).hostname or ""
    return host == "huggingface.co" or host.endswith(".huggingface.co")
