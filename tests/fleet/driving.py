"""The clients of a fleet: they ask for tasks, answer and cancel them, wait for them, and keep all that they see."""

from __future__ import annotations

import asyncio
import json
import random
import re
import ssl
import time
from collections import Counter
from collections.abc import AsyncGenerator, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any

import anyio
import httpx2
from mcp import Client, MCPError
from mcp.client.session import ClientRequestContext
from mcp_types import CallToolResult, ElicitRequestParams, ElicitResult, TextContent

from harness.http import HttpWire
from harness.rpc import INVALID_PARAMS, MODERN, TASKS, Tasking
from mcp_tasks.client import (
    Patience,
    TaskFailed,
    TaskHandle,
    TasksClient,
    TaskWasCancelled,
    UnknownTask,
    reconnecting_http,
    start_task,
)
from tests.fleet.fleet import LIMIT, LOOK
from tests.fleet.plans import Call

FINAL = ("completed", "failed", "cancelled")
_MOVES = ("_meta", "ttlMs", "pollIntervalMs", "resultType")
"""Parts of an answer that say nothing of the task."""

_PAUSE = 0.2

IMPATIENT = Patience(max_pause=timedelta(seconds=2))
"""A fleet that is shot at is away again and again, and never for long."""


@dataclass(frozen=True, kw_only=True, slots=True)
class View:
    """A task as one who looked saw it.

    Attributes:
        where: By which way.
        asked: When it was asked for; it is a view of that time or a later one.
        at: When it arrived.
        text: The answer, but for what moves by itself.
    """

    where: str
    asked: float
    at: float
    status: str
    text: str

    @property
    def is_final(self) -> bool:
        """Whether the task had ended."""
        return self.status in FINAL

    @property
    def outcome(self) -> tuple[str, str]:
        """How it had ended, in a few words."""
        task = json.loads(self.text)
        if self.status == "completed":
            return self.status, "".join(part.get("text", "") for part in task["result"]["content"])
        return self.status, task.get("error", {}).get("message", "")


@dataclass(slots=True)
class Acknowledged:
    """A task that a client was promised.

    Attributes:
        ended: When its client was told how it ended.
        outcome: What it was told: a status, and a text; None if nothing.
        cancelled_at: When a cancellation was acknowledged.
        is_lost: A server has said that there is no such task.
    """

    call: Call
    job: str
    id: str
    at: float
    views: list[View] = field(default_factory=list[View])
    ended: float = float("inf")
    outcome: tuple[str, str] | None = None
    cancelled_at: float | None = None
    is_lost: bool = False


def seen(task: Mapping[str, Any], where: str, asked: float) -> View:
    """The answer to `tasks/get`, as a view."""
    text = json.dumps({key: value for key, value in task.items() if key not in _MOVES}, sort_keys=True)
    return View(where=where, asked=asked, at=time.monotonic(), status=task["status"], text=text)


class Door(Tasking):
    """Raw requests to a fleet, by one who asks less often than usual: there are many processes to be kept busy."""

    async def until(self, task_id: str, *statuses: str) -> dict[str, Any]:
        """Poll until the task has one of the statuses; fails if it ends in another, or after a while."""
        with anyio.fail_after(LIMIT):
            while (task := await self.get(task_id))["status"] not in statuses:
                assert task["status"] not in FINAL, task
                await asyncio.sleep(LOOK)
        return task


class Driver:
    """Makes the calls of a plan, and sees them through.

    Args:
        clients: They go through the balancer, to any replica.
        doors: Each replica by itself.
    """

    def __init__(self, clients: Sequence[Client], doors: Sequence[Tasking], seed: int) -> None:
        self.acknowledged: list[Acknowledged] = []
        self.refused: Counter[str] = Counter()
        self._clients = clients
        self._doors = doors
        self._chance = random.Random(seed)
        self._is_over = False

    async def drive(self, calls: Sequence[Call]) -> None:
        """Make all calls when their time comes, and wait until all of them have ended."""
        begun = time.monotonic()
        async with asyncio.TaskGroup() as group:
            for call in calls:
                await asyncio.sleep(begun + call.after - time.monotonic())
                group.create_task(self._see_through(call))

    def over(self) -> None:
        """Calls that have not been taken by now are not made again."""
        self._is_over = True

    async def look_everywhere(self) -> None:
        """Look at each task once more, by each of the doors."""
        for task in self.acknowledged:
            for number in range(len(self._doors)):
                await self._look(task, number, tries=20)

    async def _see_through(self, call: Call) -> None:
        client = self._chance.choice(self._clients)
        started = await self._started(client, call)
        if started is None:
            return
        task, handle = started
        looking = asyncio.create_task(self._keep_looking(task))
        try:
            cancelling = self._cancel(task, handle) if call.cancel_after is not None else None
            task.outcome, *_ = await asyncio.gather(self._outcome(task, handle), *([cancelling] if cancelling else []))
            task.ended = time.monotonic()
        finally:
            looking.cancel()

    async def _started(self, client: Client, call: Call) -> tuple[Acknowledged, TaskHandle] | None:
        """A task for the call. A call that fails may have made one all the same, so it is made again as another."""
        tries = 0
        while not (self._is_over and tries):
            job = call.job if not tries else f"{call.job}/{tries}"
            tries += 1
            try:
                handle = await start_task(client, call.kind, {"job": job, **call.arguments})
            except (MCPError, OSError, httpx2.HTTPError) as exc:
                self.refused[str(exc) or type(exc).__name__] += 1
                await asyncio.sleep(_PAUSE)
                continue
            assert isinstance(handle, TaskHandle), f"{job} was answered at once: {handle}"
            task = Acknowledged(call, job, handle.id, time.monotonic())
            self.acknowledged.append(task)
            return task, handle
        return None

    async def _cancel(self, task: Acknowledged, handle: TaskHandle) -> None:
        await asyncio.sleep(task.call.cancel_after or 0.0)
        while task.cancelled_at is None:
            try:
                await handle.cancel()
            except UnknownTask:
                task.is_lost = True
                return
            except (MCPError, OSError, httpx2.HTTPError):
                await asyncio.sleep(_PAUSE)
            else:
                task.cancelled_at = time.monotonic()

    async def _outcome(self, task: Acknowledged, handle: TaskHandle) -> tuple[str, str] | None:
        try:
            return "completed", text_of(await handle.result())
        except TaskFailed as exc:
            return "failed", exc.error.message
        except TaskWasCancelled:
            return "cancelled", ""
        except UnknownTask:
            task.is_lost = True
            return None

    async def _keep_looking(self, task: Acknowledged) -> None:
        """Look at it beside its client, by any door, less and less often."""
        pause = 0.1
        while True:
            await asyncio.sleep(pause * self._chance.uniform(0.5, 1.5))
            pause = min(pause * 1.5, 3.0)
            await self._look(task, self._chance.randrange(len(self._doors)), tries=1)

    async def _look(self, task: Acknowledged, number: int, *, tries: int) -> None:
        for _ in range(tries):
            asked = time.monotonic()
            try:
                reply = await self._doors[number].ask("tasks/get", {"taskId": task.id})
            except (httpx2.HTTPError, OSError):
                await asyncio.sleep(_PAUSE)
                continue
            if "result" in reply.message:
                task.views.append(seen(reply.result, f"replica {number}", asked))
                return
            if reply.code == INVALID_PARAMS:
                task.is_lost = True
                return
            await asyncio.sleep(_PAUSE)


def text_of(result: CallToolResult) -> str:
    """What a tool said."""
    return "".join(part.text for part in result.content if isinstance(part, TextContent))


async def answer(context: ClientRequestContext, params: ElicitRequestParams) -> ElicitResult:
    """Answers for the job that is asked about."""
    asked = re.fullmatch(r"A word for (.*)\?", params.message)
    return ElicitResult(action="accept", content={"word": f"word-{asked[1]}" if asked else "?"})


@asynccontextmanager
async def connected(port: int, *, push: bool = True, owner: str | None = None) -> AsyncGenerator[Client]:
    """A client that connects anew for each request: the balancer gives each to another replica."""
    headers = {"Connection": "close", **({} if owner is None else {"X-Owner": owner})}
    transport = reconnecting_http(
        f"http://127.0.0.1:{port}/mcp", headers=headers, timeout=httpx2.Timeout(30.0, read=60.0)
    )
    async with Client(
        transport, extensions=[TasksClient(push=push, patience=IMPATIENT)], elicitation_callback=answer, mode=MODERN
    ) as client:
        yield client


@asynccontextmanager
async def door(port: int, *, owner: str | None = None, capabilities: Mapping[str, Any] = TASKS) -> AsyncGenerator[Door]:
    """Raw requests to one replica, or to whatever listens there."""
    headers = {"Connection": "close", **({} if owner is None else {"X-Owner": owner})}
    # Loads no certificates: that takes longer than a test.
    verify = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    async with httpx2.AsyncClient(timeout=20.0, trust_env=False, verify=verify, headers=headers) as http:
        yield Door(HttpWire(f"http://127.0.0.1:{port}/mcp", http), capabilities)


@asynccontextmanager
async def driver(balancer: int, replicas: Sequence[int], seed: int, *, clients: int = 4) -> AsyncGenerator[Driver]:
    """Clients of a fleet: half of them are told of changes, the others ask."""
    async with AsyncExitStack() as stack:
        connecting = [connected(balancer, push=number % 2 == 0) for number in range(clients)]
        opened = [await stack.enter_async_context(client) for client in connecting]
        doors = [await stack.enter_async_context(door(port)) for port in replicas]
        yield Driver(opened, doors, seed)
