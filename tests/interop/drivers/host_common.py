"""What a host without tasks does with our server, for the Python drivers; standard library only.

A driver gives two functions that call a tool: one of a client that can be asked, one of a client that cannot. Each
takes the tool's name and arguments and gives `{"text", "isError", "structured"}`.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

from common import run_all

LONG = 7.0  # seconds: longer than all waits of a call
MIDDLING = 2.5  # longer than one wait, shorter than all that a client of 2026-07-28 comes back for

Call = Callable[[str, dict[str, Any]], Awaitable[dict[str, Any]]]
asked: list[str] = []
"""Every question that reached the person."""


class Host:
    def __init__(self, call: Call, call_unasked: Call) -> None:
        self._call = call
        self._call_unasked = call_unasked

    async def run(self) -> dict[str, Any]:
        named = (self.quick, self.middling, self.long, self.structured, self.asks, self.unasked, self.fails)
        named += (self.fails_late, self.cancel, self.unknown)
        return await run_all({scenario.__name__: scenario for scenario in named})

    async def quick(self) -> dict[str, Any]:
        return await self._call("render", {"seconds": 0, "label": "quick"})

    async def middling(self) -> dict[str, Any]:
        return await self._followed("render", {"seconds": MIDDLING, "label": "middling"})

    async def long(self) -> dict[str, Any]:
        outcome = await self._followed("render", {"seconds": LONG, "label": "long"})
        again = await self._status(outcome["first"])
        return {**outcome, "again": again}

    async def structured(self) -> dict[str, Any]:
        return await self._followed("describe", {"seconds": LONG, "label": "structured"})

    async def asks(self) -> dict[str, Any]:
        outcome = await self._followed("publish", {"label": "asks"})
        return {**outcome, "asked": asked.count("Publish asks?")}

    async def unasked(self) -> dict[str, Any]:
        return await self._call_unasked("publish", {"label": "unasked"})

    async def fails(self) -> dict[str, Any]:
        return await self._call("fail", {"seconds": 0, "label": "fails"})

    async def fails_late(self) -> dict[str, Any]:
        return await self._followed("fail", {"seconds": LONG, "label": "fails_late"})

    async def cancel(self) -> dict[str, Any]:
        first = await self._call("render", {"seconds": 60, "label": "cancel"})
        cancelled = await self._call("task_cancel", {"task_id": first["structured"]["taskId"]})
        return {"first": first, "cancelled": cancelled, "last": await self._status(first)}

    async def unknown(self) -> dict[str, Any]:
        return await self._call("task_status", {"task_id": "no-such-task"})

    async def _followed(self, tool: str, arguments: dict[str, Any]) -> dict[str, Any]:
        """A call, and what a model does that reads its answer. Where a person is to answer, it tells the person."""
        last = first = await self._call(tool, arguments)
        while "still running" in last["text"] and last["structured"]["status"] == "working":
            last = await self._status(first)
        return {"first": first, "last": last}

    async def _status(self, first: dict[str, Any]) -> dict[str, Any]:
        return await self._call("task_status", {"task_id": first["structured"]["taskId"]})
