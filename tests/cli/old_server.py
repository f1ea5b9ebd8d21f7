"""A stdio server that speaks 2025-11-25 and nothing newer, with tasks."""

from __future__ import annotations

import json
import sys
from typing import Any

TASKS: dict[str, Any] = {"list": {}, "cancel": {}, "requests": {"tools": {"call": {}}}}


def main() -> None:
    """Answer line by line until stdin ends."""
    for line in sys.stdin:
        message = json.loads(line)
        if "id" in message:
            print(json.dumps({"jsonrpc": "2.0", "id": message["id"], **_answer(message["method"])}), flush=True)


def _answer(method: str) -> dict[str, Any]:
    if method != "initialize":
        return {"error": {"code": -32601, "message": "Method not found"}}
    info = {"name": "old", "version": "1"}
    return {"result": {"protocolVersion": "2025-11-25", "capabilities": {"tasks": TASKS}, "serverInfo": info}}


if __name__ == "__main__":
    main()
