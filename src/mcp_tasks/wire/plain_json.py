"""JSON of what is known to be JSON, such as what came over the wire, in a third of the time."""

from __future__ import annotations

from pydantic_core import to_json

from mcp_tasks.core.json import JsonValue
from mcp_tasks.core.json_bytes import encode_json


def encode_plain(value: JsonValue) -> bytes:
    """The same value as `encode_json` writes. Of an object that is no JSON, a date or a set, it makes some instead of
    refusing it.

    Raises:
        ValueNotStorable: The value is nested too deeply.
    """
    try:
        return to_json(value)
    except ValueError:
        # A lone surrogate, or what only the standard library takes.
        return encode_json(value)
