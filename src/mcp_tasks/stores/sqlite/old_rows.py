"""What older releases wrote into a task's row, in the shape of this one: SQL functions for the migrations.

Formats 1 and 2 had the result or the error of a task in its state, and its method and name only in its request. Each
function leaves what it cannot read as it is: one damaged row costs one task, and not the migration.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Callable
from functools import lru_cache
from typing import Any, cast

from mcp_tasks.core.json_bytes import decode_json, encode_json
from mcp_tasks.errors import ValueNotStorable
from mcp_tasks.stores.fields import NOT_OURS
from mcp_tasks.stores.sqlite.waiting import tool_digest

_RENAMED = {"holder": "worker", "ttl": "retention"}
_OUTCOMES = {"completed": "result", "failed": "error"}
_UPGRADED = 3
"""The format that these functions make; what has it, or a newer one, is left alone."""


def add_functions(connection: sqlite3.Connection) -> None:
    """Let SQL on this connection call the functions of this file."""
    functions: dict[str, Callable[..., bytes | None]] = {
        "upgraded_state": _upgraded_state,
        "outcome_body": _outcome_body,
        "outcome_meta": _outcome_meta,
        "tool_of": _tool_of,
    }
    for name, function in functions.items():
        connection.create_function(name, function.__code__.co_argcount, function, deterministic=True)


def _upgraded_state(state: bytes, request: bytes | None) -> bytes:
    """The state with the method and the name of the request, and without the outcome."""
    try:
        fields = _fields(state)
        if fields["format"] >= _UPGRADED:
            return state
        upgraded = {_RENAMED.get(key, key): value for key, value in fields.items() if key not in ("result", "error")}
        upgraded["format"] = _UPGRADED
        return encode_json(upgraded | _identity(request))
    except (*NOT_OURS, ValueNotStorable):
        return state


def _identity(request: bytes | None) -> dict[str, str]:
    try:
        fields = decode_json(request or b"")
        return {"method": fields["method"], "name": fields["name"]}
    except NOT_OURS:
        # Without a name the state cannot be read any more, and neither could this task in the older release.
        return {}


@lru_cache(maxsize=1)
def _fields(state: bytes) -> Any:
    # SQL asks for the parts of one row one after the other.
    return decode_json(state)


def _outcome_body(state: bytes) -> bytes | None:
    outcome = _old_outcome(state)
    if outcome is None:
        return None
    return encode_json({key: value for key, value in outcome.items() if key not in ("resultType", "_meta")})


def _outcome_meta(state: bytes) -> bytes | None:
    meta = (_old_outcome(state) or {}).get("_meta")
    return None if meta is None else encode_json(meta)


def _tool_of(state: bytes) -> bytes:
    """What the column `tool` has for the task; nothing if its state is encrypted: the next save writes it."""
    try:
        fields = _fields(state)
        return tool_digest(fields["method"], fields["name"])
    except NOT_OURS:
        return b""


def _old_outcome(state: bytes) -> dict[str, Any] | None:
    try:
        fields = _fields(state)
        outcome = fields[_OUTCOMES[fields["status"]]]
    except NOT_OURS:
        return None
    return cast("dict[str, Any]", outcome) if isinstance(outcome, dict) else None
