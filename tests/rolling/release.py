"""A process of one release: it creates, runs, answers and shows tasks, as it is told line by line.

    python -m tests.rolling.release URL

It begins when a line comes on its standard input, and says its format. Each further line is a JSON object
`{"do": VERB, ...}`, and is answered with one line.
"""

import asyncio
import json
import sys
from datetime import UTC, datetime, timedelta
from typing import Any, cast

from mcp_tasks.engines import LocalEngine
from mcp_tasks.model import InputRequest, TaskRecord, TaskRequest
from mcp_tasks.model.json import decode_json
from mcp_tasks.model.record import Actor
from mcp_tasks.runtime import Ending, Run, Settings, Success, TaskOptions, TaskRuntime, current_task
from mcp_tasks.runtime.launch import new_task_id
from mcp_tasks.stores.codec import FORMAT
from mcp_tasks.stores.url import store_from_url

QUICK = Settings(
    sweep_interval=timedelta(seconds=0.1),
    look_interval=timedelta(seconds=0.2),
    drain_timeout=timedelta(0),
    lease_duration=timedelta(seconds=5),
)
POLICY = TaskOptions(recover="rerun", park_after=timedelta(0))
CLIENT = Actor("client")


async def tool(run: Run) -> Ending:
    """Ask twice, with a step before, between and after that says which release does it."""
    done = [await current_task().step("before", _release)]
    for number in (1, 2):
        await run.ask(InputRequest(method="elicitation/create", params={"message": f"Question {number}"}))
        done.append(await current_task().step(f"after {number}", _release))
    return Success({"done": done})


async def quick(run: Run) -> Ending:
    return Success({"done": [await current_task().step("only", _release)]})


async def _release() -> int:
    return FORMAT


BODIES = {"tool": tool, "quick": quick}


class Release:
    def __init__(self, url: str) -> None:
        self.serves: set[str] = set()
        self.runtime = TaskRuntime(
            store=store_from_url(url),
            engine=LocalEngine(10),
            body=self._body,
            policy=self._policy,
            describe=lambda exc: {"code": -32603, "message": str(exc)},
            clock=lambda: datetime.now(UTC),
            settings=QUICK,
        )

    async def serve(self, tools: list[str]) -> None:
        self.serves = set(tools)

    async def create(self, name: str) -> str:
        now = self.runtime.now()
        record = TaskRecord(id=new_task_id(), owner=None, name=name, created_at=now, updated_at=now)
        request = TaskRequest(name=name, arguments={})
        return (await self.runtime.changes.create(record, request, actor=CLIENT)).id

    async def answer(self, task: str) -> None:
        record = await self.runtime.get(task, owner=None)
        answers = {key: {"action": "accept"} for key in record.inputs.outstanding}
        await self.runtime.answer(record, answers, actor=CLIENT)

    async def show(self, task: str) -> dict[str, Any]:
        record = await self.runtime.get(task, owner=None)
        outcome = await self.runtime.store.outcome(task)
        return {
            "status": record.status,
            "open": sorted(record.inputs.outstanding),
            "parked": record.worker is None,
            "done": None if outcome is None else cast("dict[str, Any]", decode_json(outcome.body)).get("done"),
            "colour": getattr(record, "colour", None),
            "unknown": dict(record.unknown),
            "shade": getattr(await self.runtime.store.request(task), "shade", None),
        }

    async def _body(self, run: Run) -> Ending:
        return await BODIES[run.request.name](run)

    async def _policy(self, method: str, name: str) -> TaskOptions | None:
        return POLICY if name in self.serves else None


async def main(url: str) -> None:
    await asyncio.to_thread(sys.stdin.readline)
    release = Release(url)
    await release.runtime.start()
    try:
        print(json.dumps(FORMAT), flush=True)
        while line := await asyncio.to_thread(sys.stdin.readline):
            told = json.loads(line)
            done = await getattr(release, told.pop("do"))(**told)
            print(json.dumps(done), flush=True)
    finally:
        await release.runtime.stop()


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1]))
