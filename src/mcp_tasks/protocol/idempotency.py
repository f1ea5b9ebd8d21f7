"""Idempotency keys: a caller that did not get the answer to a call makes it again, and gets the same task.

The caller gives a call a key in its `_meta`. This is the one place that knows what it looks like on the wire and what
is kept of it: a hash, in a space that no other key of a store is in, and never the text (of the hash a store keeps an
HMAC: `runtime.hidden_keys`). Without authentication the key is what tells a caller from a stranger, so it has to be one
that nobody guesses.

A tool that asks by returning is called several times in one call, with what was answered so far. Each of these requests
may be lost, and each is a task of its own until one is announced, so each but the first has its own place under the
caller's key: by the questions that it answers. What the answers are is a part of what was asked for, like the
arguments.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, replace
from hashlib import sha256
from typing import Any, Final

from mcp_types import INVALID_PARAMS

from mcp_tasks.core.record import TaskRequest
from mcp_tasks.errors import CallNotKept, KeyTooShort
from mcp_tasks.protocol.errors import RpcError
from mcp_tasks.wire.models import IDEMPOTENCY_KEY, LONGEST_KEY, REPEATED_META_KEY

LEAST_CHARACTERS: Final = 22
"""Of a key without authentication: what `secrets.token_urlsafe(16)` gives, 128 bits."""


@dataclass(frozen=True, slots=True)
class CallKey:
    """What a store keeps of the idempotency key of a call.

    Attributes:
        key: What the task of the call stands under.
        fingerprint: What the call is: under the same key no other may stand.
        is_repeat: Whether the caller says that the call may have been made before.
    """

    key: str
    fingerprint: str
    is_repeat: bool = False


def take_key(
    request: TaskRequest, owner: str | None, *, asks_first: bool = False
) -> tuple[TaskRequest, CallKey | None]:
    """Take the idempotency key out of a request: what is kept of the call is without it, and its tool never sees it.

    Args:
        owner: Whom the task will belong to; None for a caller that has no name.
        asks_first: Whether the tool may ask by returning, and be called again with the answers.

    Raises:
        RpcError: -32602: it is not a key.
        KeyTooShort: The caller has no name, and the key could be guessed.
    """
    if IDEMPOTENCY_KEY not in request.meta:
        return request, None
    key = _checked(request.meta[IDEMPOTENCY_KEY], owner)
    # The first of them stands where any call does: a key is one call's, whichever the tool, and whatever door it takes.
    is_later = asks_first and (request.request_state is not None or bool(request.input_responses))
    place = [key, request.request_state, sorted(request.input_responses or ())] if is_later else [key]
    what = [request.method, request.name, request.arguments, request.input_responses or {}]
    is_repeat = request.meta.get(REPEATED_META_KEY) is True
    taken = CallKey(f"idempotency/{_digest(place)}", _digest(what), is_repeat)
    return replace(request, meta=without_key(request.meta)), taken


def without_key(meta: Mapping[str, Any]) -> Mapping[str, Any]:
    """The `_meta` of a call as its tool sees it."""
    if IDEMPOTENCY_KEY not in meta:
        return meta
    return {name: value for name, value in meta.items() if name not in (IDEMPOTENCY_KEY, REPEATED_META_KEY)}


def check_first(meta: Mapping[str, Any]) -> None:
    """Refuse to make a call that may have been made before, of a tool whose calls are not kept.

    Raises:
        CallNotKept: Its caller says that it may have been.
    """
    if meta.get(REPEATED_META_KEY) is True and IDEMPOTENCY_KEY in meta:
        raise CallNotKept


def _checked(key: object, owner: str | None) -> str:
    if not isinstance(key, str) or not 0 < len(key) <= LONGEST_KEY:
        raise RpcError(
            INVALID_PARAMS,
            f"_meta[{IDEMPOTENCY_KEY!r}] must be a string of 1 to {LONGEST_KEY} characters, another one for each "
            "call: a UUID will do",
        )
    if owner is None and len(key) < LEAST_CHARACTERS:
        raise KeyTooShort(LEAST_CHARACTERS)
    return key


def _digest(value: Any) -> str:
    try:
        # ASCII, so that half a character has a spelling as well.
        text = json.dumps(value, sort_keys=True, separators=(",", ":"))
    except (RecursionError, TypeError, ValueError) as exc:
        raise RpcError(INVALID_PARAMS, f"The arguments of the call cannot be written as JSON: {exc}") from exc
    return sha256(text.encode()).hexdigest()
