"""JSON as bytes, the way everything of ours is kept and sent: compact, and UTF-8 that every parser takes.

The C encoder and decoder of the standard library keep the interpreter to themselves for as long as they work. What is
large is therefore encoded and decoded in pieces, to be done in a thread: the event loop has its turn between two.
"""

from __future__ import annotations

import json

from mcp_tasks.core.json import JsonValue
from mcp_tasks.errors import ValueNotStorable

_encoder = json.JSONEncoder(ensure_ascii=False, separators=(",", ":"))


def encode_json(value: JsonValue, *, strict: bool = False) -> bytes:
    """JSON of the value.

    A lone surrogate (valid in a JSON escape, not in UTF-8) makes the text unencodable, so such a value is written with
    escapes throughout; it is rare enough to try the short way first.

    Raises:
        ValueNotStorable: The value is not JSON, or is nested too deeply.
        UnicodeEncodeError: With `strict`, it holds a lone surrogate.
    """
    try:
        text = _encoder.encode(value)
    except (TypeError, ValueError, RecursionError) as exc:
        raise ValueNotStorable(f"a value cannot be stored because it cannot be written as JSON: {exc}") from exc
    try:
        return text.encode()
    except UnicodeEncodeError:
        if strict:
            raise
        return json.dumps(value, separators=(",", ":")).encode()


def decode_json(data: bytes) -> JsonValue:
    """The value behind the bytes.

    Raises:
        ValueError: They are not JSON.
    """
    return json.loads(data)
