"""What goes out, in a form that needs no second pass over what is large."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from mcp_tasks.wire.plain_json import encode_plain


@dataclass(frozen=True, kw_only=True, slots=True)
class Message:
    """The result of a request, or the params of a notification.

    Attributes:
        fields: Its fields, small whatever the task is about.
        large: One more field, as JSON bytes: how the task ended. Kept apart so that it is never decoded only to be
            encoded again.
    """

    fields: dict[str, Any]
    large: tuple[str, bytes] | None = None

    def encode(self) -> bytes:
        """The whole object as JSON."""
        fields = encode_plain(self.fields)
        if self.large is None:
            return fields
        name, value = self.large
        return b"%b,%b:%b}" % (fields[:-1], encode_plain(name), value)
