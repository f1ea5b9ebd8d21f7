"""Clients for tests, the people behind them, and what they get."""

import asyncio
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import anyio
from mcp import Client
from mcp.client.session import ClientRequestContext
from mcp_types import CallToolResult, ElicitRequestParams, ElicitResult, TextContent

from harness.rpc import PATIENCE
from mcp_tasks.client import TaskHandle, TasksClient, TaskSnapshot, reconnecting_http, start_task
from mcp_tasks.client.poller import Patience

MOMENT = timedelta(milliseconds=20)

SHORT = Patience(max_outage=timedelta(seconds=0.3), first_pause=MOMENT, max_pause=5 * MOMENT)
"""For servers that do not come back."""

LONG = Patience(
    max_outage=timedelta(seconds=PATIENCE),
    first_pause=timedelta(milliseconds=20),
    max_pause=timedelta(milliseconds=100),
)
"""For servers that do."""


class Person:
    """Somebody who fills in the forms of a client: with a name and an age, when `ready`."""

    def __init__(self, *, ready: asyncio.Event | None = None) -> None:
        self.asked: list[str] = []
        self.left_alone = 0
        self.ready: asyncio.Event | None = ready
        self._begun = asyncio.Event()

    async def __call__(self, context: ClientRequestContext, params: ElicitRequestParams) -> ElicitResult:
        self.asked.append(params.message)
        self._begun.set()
        try:
            if self.ready is not None:
                await self.ready.wait()
        except asyncio.CancelledError:
            self.left_alone += 1
            raise
        return accepted()

    async def until_asked(self) -> None:
        with anyio.fail_after(PATIENCE):
            await self._begun.wait()


def accepted() -> ElicitResult:
    return ElicitResult(action="accept", content={"name": "Ada", "age": 36, "confirm": True})


ANSWER = accepted().model_dump(by_alias=True, mode="json", exclude_none=True)
"""The same, as it is on the wire."""


def connect(
    target: Any, *, person: Any = None, tasks: TasksClient | None = None, mode: Any = "auto", **options: Any
) -> Client:
    """The SDK's client with tasks; `options` are those of `TasksClient`. Where a URL does not do, over a transport of
    ours: with a ledger, and in the older era."""
    needs_ours = mode == "legacy" or (options.get("ledger") is not None and "server" not in options)
    if isinstance(target, str) and needs_ours:
        target = reconnecting_http(target)
    extension = tasks if tasks is not None else TasksClient(**options)
    return Client(target, mode=mode, elicitation_callback=person, extensions=[extension])


async def begin(client: Client, tool: str, **arguments: Any) -> TaskHandle:
    handle = await start_task(client, tool, arguments)
    assert isinstance(handle, TaskHandle), handle
    return handle


def text(result: CallToolResult) -> str:
    [block] = result.content
    assert isinstance(block, TextContent)
    return block.text


async def seen(handle: TaskHandle, condition: Callable[[TaskSnapshot], object]) -> TaskSnapshot:
    """The first state of the task that is looked at for which the condition holds."""
    with anyio.fail_after(PATIENCE):
        while not condition(snapshot := await handle.status()):  # noqa: ASYNC110 - what a look shows is what is wanted
            await anyio.sleep(0.005)
    return snapshot
