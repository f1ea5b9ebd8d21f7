"""The HTTP headers by which requests for tasks are routed (SEP-2663, "Routing Headers")."""

from __future__ import annotations

import base64
import binascii
import re
from typing import Final

NAME_HEADER: Final = "mcp-name"
"""Names the task of a request, so that it can be routed without reading its body. In lower case, as doors give it."""

_ENCODED = re.compile(r"=\?base64\?(?P<payload>.*)\?=")


def decode_header(value: str) -> str | None:
    """The value that a header stands for; None for one that is encoded, and not as it should be.

    A value that HTTP would not carry as it is comes as `=?base64?...?=`. Only what the encoder would have made of a
    value counts, so that two spellings never name one task.
    """
    encoded = _ENCODED.fullmatch(value)
    if encoded is None:
        return value
    payload = encoded["payload"]
    try:
        decoded = base64.b64decode(payload, validate=True)
        return decoded.decode() if base64.b64encode(decoded).decode() == payload else None
    except (binascii.Error, UnicodeError, ValueError):
        return None
