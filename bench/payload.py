"""What is large: arguments and results of many small values, as tables and scenes are."""

from __future__ import annotations

from typing import Any

ARGUMENT_BYTES = 3_000_000
"""Of a call's arguments as JSON. The SDK takes requests of up to 4 MiB."""

RESULT_BYTES = 10_000_000
"""Of a result as JSON."""

_ROW_BYTES = 80


def rows(size: int) -> list[dict[str, Any]]:
    """Rows that make about `size` bytes of JSON."""
    return [
        {"id": 10_000_000 + number, "name": f"frame {number:08}", "size": [1920, 1080], "ok": True, "at": 0.25}
        for number in range(size // _ROW_BYTES)
    ]
