"""A process that speaks the protocol: a real `MCPServer` with `Tasks`, and clients of ours connected to it in memory.

Client and server share a process, so that nothing but the store is between them and the world. Calls are made with the
client library, and tools are entered through the SDK. All else goes to the runtime, as in other processes.
"""

from __future__ import annotations

import asyncio
import logging
from datetime import timedelta
from typing import TYPE_CHECKING, Any, Literal, cast

from mcp import Client, MCPError
from mcp.server import MCPServer
from mcp_types import CallToolResult

from mcp_tasks import Tasks
from mcp_tasks.client import CallLost, TaskHandle, TasksClient
from mcp_tasks.errors import StoreError
from mcp_tasks.runtime import Success
from mcp_tasks.runtime.context import current_run, current_runtime
from tests.simulation.processes import NAMESPACE, SETTLES_IN, Process, engine_of, policies_of, settings_of
from tests.simulation.tools import run_tool

if TYPE_CHECKING:
    from mcp_tasks.runtime import TaskRuntime
    from tests.simulation.processes import Machine
    from tests.simulation.world import World

WIRE_TTL = 3600.0
"""Seconds for which results are kept: on the wire, the tool says so and not the call."""


class MayHaveRun(Exception):
    """The client library says that the call may have been made."""


class WireProcess(Process):
    def __init__(self, world: World, machine: Machine, name: str) -> None:
        super().__init__(world, machine, name)
        self._tasks_client = TasksClient(ledger=None)
        self._client: Client | None = None

    async def _live(self) -> None:
        while True:
            tasks = Tasks(
                self.connection,
                engine=engine_of(self),
                namespace=NAMESPACE,
                settings=settings_of(self.world),
                runs_tools=self.machine.plan.runs_tools,
                short_way=False,
            )
            server = MCPServer(NAMESPACE, **tasks.wiring(), log_level="CRITICAL")
            for name in policies_of(self.world):
                self._add_tool(server, tasks, name)
            try:
                async with Client(server, extensions=[self._tasks_client]) as client:
                    self._client = client
                    # Nothing public gives the runtime of a server.
                    self.runtime = cast("Any", tasks)._lifecycle.runtime()
                    self.is_serving = True
                    await self._told_to_stop.wait()
                    self._client = None
                break
            except* StoreError as errors:
                self.world.trace(self.name, f"cannot start: {errors.exceptions}")
                await asyncio.sleep(1.0)
        self.world.clockwork.after(SETTLES_IN, self._stopped, self._restarts)

    def _begin_stop(self, restart: bool) -> None:
        self.is_ending, self._restarts = True, restart
        self.stopping = self._main
        self._told_to_stop.set()

    def _begin(self) -> None:
        self._told_to_stop = asyncio.Event()
        super()._begin()

    def _add_tool(self, server: MCPServer[Any], tasks: Tasks, name: str) -> None:
        policy = policies_of(self.world)[name]
        recover: Literal["rerun", "fail"] = "rerun" if policy.rerun else "fail"

        async def tool(tree: str) -> CallToolResult:
            run = current_run.get()
            if run is None:
                raise AssertionError("the client asks for tasks")
            # A server that starts may run tools before a client is connected.
            self.runtime = cast("TaskRuntime", current_runtime.get())
            ending = await run_tool(self, run)
            if isinstance(ending, Success):
                return CallToolResult.model_validate(ending.result)
            error = cast("Any", ending).error
            raise MCPError(error["code"], error["message"], error["data"])

        marked = tasks.task(
            name=name,
            recover=recover,
            ttl=timedelta(seconds=WIRE_TTL),
            park_after=policy.park_after,
            max_lost_runs=policy.max_lost_runs,
            grace=timedelta(0),
            max_at_work=policy.max_at_work,
        )(tool)
        server.tool(name=name)(marked)

    async def call(self, tool: str, plan: str) -> str | None:
        """The id of the task that a call has made; None if the call was answered without one.

        Raises:
            MayHaveRun: The call may have been made, and there is no answer.
            MCPError: It was not made.
        """
        client = self._client
        if client is None:
            raise MCPError(-32603, "the process does not serve")
        try:
            started = await self._tasks_client.start(client, tool, {"tree": plan})
        except CallLost as exc:
            if exc.may_have_run:
                raise MayHaveRun from exc
            raise MCPError(-32603, str(exc)) from exc
        except RuntimeError as exc:
            if self._client is client:
                raise
            # The connection was closed while the call was being repeated.
            raise MayHaveRun from exc
        if isinstance(started, TaskHandle):
            return started.id
        self.world.oracle.check_answer(plan, started.structured_content)
        return None


logging.getLogger("mcp").setLevel(logging.CRITICAL)

# The first server imports modules that draw random numbers. So it is made before a world sets the seed.
MCPServer("first", log_level="CRITICAL")
