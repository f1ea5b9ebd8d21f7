"""Trees at work as tools of a fleet, and what they tell the oracle. The names of the package that they use beyond
those of `tests.properties.tools` are here, and in `processes.py`."""

from __future__ import annotations

from collections.abc import Collection
from datetime import timedelta
from typing import TYPE_CHECKING, Any

from mcp_tasks.errors import TasksError, UnknownTask
from mcp_tasks.model.record import TaskRequest
from mcp_tasks.runtime import Ending, Run, Success, TaskRuntime
from mcp_tasks.server.local import LocalStart, LocalTask
from mcp_tasks.server.options import UNSET, TaskOptions
from tests.properties.tools.body import TreeError, TreeRun, Witness
from tests.properties.tools.tree import Child

if TYPE_CHECKING:
    from tests.simulation.oracle import Visit
    from tests.simulation.processes import Process


async def start_child(
    runtime: TaskRuntime, run: Run, tool: str, arguments: dict[str, Any], ttl: timedelta
) -> LocalTask[Any]:
    """Start a child, as `tasks.start` does in a tool."""
    request = TaskRequest(name=tool, arguments=arguments)
    start = LocalStart(request=request, options=TaskOptions(), ttl=ttl, owner=UNSET, session=UNSET, key=None)
    task_id = await run.children.start(start.identity, lambda key: start.launch(runtime, TaskOptions(), key, run))
    return LocalTask(lambda: runtime, task_id, start.owner_in(run))


def request_of(tool: str, plan: str) -> TaskRequest:
    """A call of a tool."""
    return TaskRequest(name=tool, arguments={"tree": plan})


class FleetWitness(Witness):
    """The witness of one process."""

    def __init__(self, process: Process, slots: int) -> None:
        oracle = process.world.oracle
        super().__init__(slots, recorded_steps=self._recorded, answered=self._answered)
        self._process = process
        self._oracle = oracle
        self.visits: dict[str, Visit] = {}

    def _recorded(self, task: str) -> Collection[str]:
        return self._oracle.steps_of(task)

    def _answered(self, task: str) -> Collection[str]:
        return self._oracle.answers_of(task)

    def wrong(self, what: str) -> None:
        """Something is not as it must be. A dead process whose coroutines are being closed does not count."""
        if self._process.lives:
            self._oracle.wrong("tool", f"{self._process.name}: {what}")

    def must_live(self, run: Run, life: int) -> bool:
        return self._oracle.must_live(self._process, run.record.id, run.attempt)

    def begins(self, task: str, step: str, *, left_behind: bool) -> Any:
        visit = self.visits.get(task)
        if visit is not None and not left_behind:
            visit.working += 1
            self._oracle.begins_work(visit, f"step {step}")
        if task in self._oracle.lost:
            self.tries.pop((task, step), None)
        return super().begins(task, step, left_behind=left_behind)

    def ends(self, task: str, life: int) -> None:
        super().ends(task, life)
        visit = self.visits.get(task)
        if visit is not None:
            visit.working -= 1


class FleetRun(TreeRun):
    """One run of a tree that may have children."""

    def __init__(self, run: Run, process: Process, plan: str) -> None:
        super().__init__(run, process.witness)
        self._process = process
        self._plan = plan

    async def child(self, node: Child, path: str) -> Any:
        """Start a task of its own, and wait for it."""
        plan = f"{self._plan}/{path}"
        self._process.world.expect_child(plan, node, self._run.record.owner)
        arguments = {"tree": plan}
        handle = await start_child(self._process.runtime, self._run, node.tool, arguments, timedelta(seconds=node.ttl))
        if not node.waits:
            return f"started {path}"
        try:
            result = await handle.wait()
        except UnknownTask:
            raise TreeError(f"child gone {path}") from None
        except TasksError as exc:
            if "unreachable" in str(exc):
                raise
            raise TreeError(f"child failed {path}") from None
        return {"child": result.structured_content["value"]}


async def run_tool(process: Process, run: Run) -> Ending:
    """The body of every tool."""
    plan = run.request.arguments["tree"]
    oracle = process.world.oracle
    visit = process.witness.visits[run.record.id] = oracle.enters(process, run, plan)
    try:
        ending = await FleetRun(run, process, plan).outcome(oracle.plans[plan].tree, joins=process.world.joins(plan))
    finally:
        visit.left = True
    if isinstance(ending, Success):
        return Success({"content": [], "structuredContent": ending.result})
    return ending
