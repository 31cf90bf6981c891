"""What goes wrong between here and a Hub: what deserves another try, what a person must fix."""

from __future__ import annotations

import json
import logging
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, Final

import httpx
import tenacity
from huggingface_hub.errors import HfHubHTTPError, OfflineModeIsEnabled

from gaploop.core.errors import GaploopError, UnusableInputError

logger = logging.getLogger(__name__)

BUSY_STATUSES: Final = frozenset({408, 409, 412, 423, 425, 429})
"""Answers below 500 that say "not now": time-out, somebody else's commit, rate limit."""
LONGEST_RETRY_AFTER_S: Final = 300.0
"""A server that asks for more patience than this is taken at this [s]."""


class HubUnreachableError(GaploopError):
    """The Hub didn't take a push this time; nothing is wrong with what was to be pushed."""

    exit_code = 1


@dataclass(frozen=True)
class Patience:
    """How long to go on trying.

    Attributes:
        retries: how many times each step is tried again; its count starts anew with every step
            that succeeds, so that a long upload survives many faults.
        wait_s: before the first retry; doubled each time, with jitter [s].
        longest_wait_s: limit of that [s].
        timeout_s: without a byte from the server for this long, a request has failed [s].
    """

    retries: int = 5
    wait_s: float = 1.0
    longest_wait_s: float = 30.0
    timeout_s: float = 30.0


def retried[T](work: Callable[[], T], patience: Patience, what: str, where: str) -> T:
    """Do one step of a push, again and again while the fault is the network's or the server's.

    Args:
        work: the step; must be safe to repeat.
        patience: how often and how fast.
        what: the step in words, for messages, such as "committing".
        where: the Hub's address, for messages.

    Raises:
        HubUnreachableError: it went on failing.
        UnusableInputError: the server refused for a reason that trying again doesn't fix.
    """
    backoff = tenacity.wait_exponential_jitter(patience.wait_s, patience.longest_wait_s)

    def wait(state: tenacity.RetryCallState) -> float:
        return max(backoff(state), _retry_after_s(_error(state)))

    def tell(state: tenacity.RetryCallState) -> None:
        logger.info(
            "%s failed (%s); trying again (%d of %d).",
            what,
            in_words(_error(state)),
            state.attempt_number,
            patience.retries,
        )

    retrying = tenacity.Retrying(
        retry=tenacity.retry_if_exception(lambda e: is_passing(e) and not _is_offline(e)),
        stop=tenacity.stop_after_attempt(patience.retries + 1),
        wait=wait,
        before_sleep=tell,
        reraise=True,
    )
    try:
        return retrying(work)
    except GaploopError:
        raise
    except (httpx.HTTPError, HfHubHTTPError, OSError, RuntimeError, ValueError, KeyError) as error:
        raise told(error, what, where) from error


def told(error: BaseException, what: str, where: str) -> GaploopError:
    """Return what to tell the user of an error that a step ended with."""
    if is_passing(error):
        return HubUnreachableError(f"{what} on {where} failed: {in_words(error)}")
    status = _status(error)
    if status == 401:
        return UnusableInputError(
            f"{where} doesn't know you (401, {what}). Log in with: hf auth login; or set HF_TOKEN."
        )
    if status in (403, 404):
        return UnusableInputError(
            f"{where} refused ({in_words(error)}, {what}). Check --repo_id, and that your token "
            "may write there: hf auth whoami"
        )
    return UnusableInputError(f"{what} on {where} failed: {in_words(error)}. Nothing was changed.")


def is_passing(error: BaseException) -> bool:
    """Say whether trying again later may help."""
    if isinstance(error, GaploopError):  # a step inside this one has tried already
        return False
    for link in _chain(error):
        status = _status(link)
        if status is not None:
            return status >= 500 or status in BUSY_STATUSES
        # A page that isn't JSON is a proxy's or a captive portal's, not a Hub's.
        if isinstance(link, httpx.TransportError | ConnectionError | TimeoutError):
            return True
        if isinstance(link, json.JSONDecodeError):
            return True
    # hf_xet and the LFS client wrap what happened in a RuntimeError, the LFS batch in ValueError.
    return isinstance(error, RuntimeError) or "LFS batch API" in str(error)


def is_missing(error: HfHubHTTPError) -> bool:
    """Say whether the Hub answered that something isn't there."""
    return bool(error.response.status_code == 404)


def in_words(error: BaseException | None) -> str:
    """Return an error on one short line."""
    if error is None:
        return "no answer"
    for link in _chain(error):
        status = _status(link)
        if status is not None:
            said = " ".join(str(getattr(link, "server_message", "") or "").split())[:160]
            return f"HTTP {status}" + (f": {said}" if said else "")
    cause = list(_chain(error))[-1]
    if isinstance(cause, httpx.TimeoutException):
        return "no answer in time"
    first = " ".join(str(cause).split())[:160]
    return first or type(cause).__name__


def _chain(error: BaseException) -> Iterator[BaseException]:
    """Yield an error and what caused it, outermost first."""
    seen: list[BaseException] = []
    link: BaseException | None = error
    while link is not None and link not in seen:
        yield link
        seen.append(link)
        link = link.__cause__ or link.__context__


def _status(error: BaseException) -> int | None:
    if not isinstance(error, HfHubHTTPError | httpx.HTTPStatusError):
        return None
    response: Any = getattr(error, "response", None)
    return None if response is None else int(response.status_code)


def _is_offline(error: BaseException) -> bool:
    """HF_HUB_OFFLINE is set: waiting doesn't help."""
    return any(isinstance(link, OfflineModeIsEnabled) for link in _chain(error))


def _retry_after_s(error: BaseException | None) -> float:
    """Return how long the server asks to be left alone [s]; 0 where it doesn't."""
    for link in _chain(error) if error is not None else ():
        headers: Any = getattr(getattr(link, "response", None), "headers", {})
        text = str(headers.get("Retry-After", ""))
        if text.isdigit():
            return min(float(text), LONGEST_RETRY_AFTER_S)
    return 0.0


def _error(state: tenacity.RetryCallState) -> BaseException | None:
    return state.outcome.exception() if state.outcome is not None else None
