"""Child processes that outlive the process that started them: which are killed, and which are left alone."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
import threading
from collections.abc import AsyncGenerator, Awaitable, Callable, Generator
from contextlib import asynccontextmanager, contextmanager
from dataclasses import replace
from datetime import timedelta
from itertools import product
from pathlib import Path
from subprocess import Popen
from typing import Any

import anyio
import anyio.to_thread
import pytest

from harness import processes
from mcp_tasks.model import ChildProcess, ProcessesChanged, RunLost, RunStarted, TaskRecord
from mcp_tasks.model.limits import Limits
from mcp_tasks.runtime import Ending, Run, TaskRuntime, ToolPolicy, current_task
from mcp_tasks.runtime.child_process import MARK, describe, end_children_of, end_orphans
from mcp_tasks.runtime.lease import process_here
from mcp_tasks.runtime.operator import Operator
from mcp_tasks.testing import make_record, make_request
from tests.unit.processes import dead_worker, other_process
from tests.unit.running import CLIENT, RERUN, Tool, create, launch, ok, running, until_final

pytestmark = [
    pytest.mark.anyio,
    pytest.mark.skipif(os.name == "nt", reason="process groups are ended another way there"),
]

LINUX = pytest.mark.skipif(sys.platform != "linux", reason="only Linux shows the environment of a process")

PYTHON = (sys.executable, "-S", "-c")
SLEEPS = "import time; time.sleep(60)"

DAY = timedelta(days=1)
NEWER = ToolPolicy(rerun=True, version="2", on_other_version="fail")

# Leads a group, and leaves it to its child when it is told to.
LEAVES = """
import os, subprocess, sys
child = subprocess.Popen([sys.executable, "-S", "-c", "import time; time.sleep(60)"], env={**os.environ, **ENV})
print(child.pid, flush=True)
sys.stdin.readline()
"""


@contextmanager
def leading() -> Generator[Popen[Any]]:
    """A process that leads a group."""
    with processes.running([*PYTHON, SLEEPS], group=True) as process:
        yield process


async def described(group: int) -> ChildProcess:
    process = await describe(group, attempt=1)
    assert process is not None
    return process


async def test_the_group_that_was_started_is_killed(caplog: pytest.LogCaptureFixture) -> None:
    with leading() as leader:
        process = await described(leader.pid)
        for _ in range(2):
            # The second time, what is left of it only waits to be reaped.
            assert await end_orphans(make_record(processes=(process,))) == {process}
        assert leader.wait(5) == -signal.SIGKILL
    assert caplog.text.count("outlived its worker, and was killed") == 1
    assert await end_orphans(make_record(processes=(process,))) == {process}


async def test_a_number_that_another_process_has_by_now_is_not_killed(caplog: pytest.LogCaptureFixture) -> None:
    with leading() as leader:
        process = replace(await described(leader.pid), started="1")
        assert await end_orphans(make_record(processes=(process,))) == {process}
        assert leader.poll() is None
    assert "killed" not in caplog.text


async def test_an_orphan_is_killed_although_all_threads_for_tools_are_busy() -> None:
    over = threading.Event()
    with leading() as leader:
        process = await described(leader.pid)
        busy = [asyncio.create_task(asyncio.to_thread(over.wait)) for _ in range(100)]
        await anyio.wait_all_tasks_blocked()
        try:
            with anyio.fail_after(5):
                assert await end_orphans(make_record(processes=(process,))) == {process}
        finally:
            over.set()
            await asyncio.gather(*busy)


@asynccontextmanager
async def left_alone(environment: str) -> AsyncGenerator[tuple[ChildProcess, int]]:
    """A group whose leader is gone, and what is left of it."""
    command = [*PYTHON, LEAVES.replace("ENV", environment)]
    with processes.running(command, text=True, group=True, stdin=processes.PIPE, stdout=processes.PIPE) as leader:
        child = int(processes.read_line(leader))
        process = await described(leader.pid)
        assert leader.stdin is not None
        leader.stdin.close()
        leader.wait(5)
        try:
            yield process, child
        finally:
            processes.send(child)


@LINUX
async def test_a_group_without_its_leader_is_killed_if_it_is_known_by_its_environment() -> None:
    mark = "f'{os.getpid()}:' + open('/proc/self/stat').read().rpartition(')')[2].split()[19]"
    async with left_alone(f"{{'{MARK}': {mark}}}") as (process, child):
        assert await end_orphans(make_record(processes=(process,))) == {process}
        assert await gone(child)


async def test_a_group_without_its_leader_that_is_not_known_is_not_killed() -> None:
    async with left_alone("{}") as (process, child):
        await end_orphans(make_record(processes=(process,)))
        with anyio.move_on_after(0.2):
            await gone(child)
        assert processes.is_running(child)


async def test_of_another_machine_the_log_says_that_a_child_may_still_run(caplog: pytest.LogCaptureFixture) -> None:
    with leading() as leader:
        process = replace(await described(leader.pid), boot="another", host="farm-2")
        assert await end_orphans(make_record(processes=(process,))) == set(), "it is looked for again there"
        assert leader.poll() is None
    assert f"its child process may still run there (process group {leader.pid})" in caplog.text
    assert "farm-2" in caplog.text


async def test_of_this_machine_before_it_was_started_again_nothing_is_left(caplog: pytest.LogCaptureFixture) -> None:
    with leading() as leader:
        process = replace(await described(leader.pid), boot="earlier")
        assert await end_orphans(make_record(processes=(process,))) == {process}
        assert leader.poll() is None
    assert caplog.text == ""


# Marked for its worker: sets its environment from its own number, as the small program that starts commands does.
MARKED = """
import os, sys, time
os.environ["MCP_TASKS_CHILD"] = f"{os.getpid() + int(sys.argv[2])}:1"
os.environ["MCP_TASKS_WORKER"] = sys.argv[1]
os.execv(sys.executable, [sys.executable, "-S", "-c", "print(flush=True); import time; time.sleep(60)"])
"""


@LINUX
@pytest.mark.parametrize(
    ("is_dead", "off", "is_killed"),
    [(True, 0, True), (False, 0, False), (True, 1, False)],
    ids=["of a dead worker", "of one that is there", "that left its group"],
)
async def test_what_a_dead_worker_started_is_killed_whatever_became_of_its_task(
    is_dead: bool, off: int, is_killed: bool
) -> None:
    with other_process() as (worker, process):
        pid, started = process_here(worker)
        command = [*PYTHON, MARKED, f"{pid}:{started}", str(off)]
        with processes.running(command, text=True, group=True, stdout=processes.PIPE) as leader:
            processes.read_line(leader)
            if is_dead:
                process.kill()
                process.wait()
            await end_children_of(worker)
            if is_killed:
                assert leader.wait(5) == -signal.SIGKILL
            else:
                assert leader.poll() is None


# In a run


async def test_a_run_writes_down_which_commands_it_runs() -> None:
    async def tool(run: Run) -> Ending:
        for _ in range(2):
            done = await current_task().run_process([*PYTHON, "import os; print(os.getpid())"])
            assert [process.group for process in run.record.processes] == [int(done.stdout)]
        return ok()

    async with running(tool) as runtime:
        ended = await until_final(runtime, await launch(runtime))
        assert (ended.result, ended.processes) == ({"value": "ok"}, ())


async def test_the_next_run_kills_what_was_left_before_its_tool_begins() -> None:
    seen: list[object] = []

    async def tool(run: Run) -> Ending:
        seen.append((leader.poll(), run.record.processes))
        return ok()

    with leading() as leader:
        lost = await described(leader.pid)
        elsewhere = replace(lost, boot="another", host="farm-2")
        async with running(tool, policy=RERUN) as runtime:
            task = await create(runtime)
            events = RunStarted(worker="dead"), ProcessesChanged(attempt=1, started=lost)
            await runtime.changes.change(
                task, *events, ProcessesChanged(attempt=1, started=elsewhere), RunLost(attempt=1), actor=CLIENT
            )
            await runtime.engine.submit(task.id)
            await until_final(runtime, task)
        assert seen == [(-signal.SIGKILL, (elsewhere,))]


async def at_once(run: Run) -> Ending:
    return ok()


async def by_a_client(runtime: TaskRuntime, record: TaskRecord) -> None:
    await runtime.cancel(record, "enough", actor=CLIENT)


async def by_an_operator(runtime: TaskRuntime, record: TaskRecord) -> None:
    async with Operator(runtime.store, name="ops").opened() as operator:
        await operator.cancel(record, "enough")


async def by_its_age(runtime: TaskRuntime, record: TaskRecord) -> None:
    await runtime.janitor.ageing.look()


async def by_a_claim(runtime: TaskRuntime, record: TaskRecord) -> None:
    await runtime.engine.submit(record.id)


@pytest.mark.parametrize(
    ("end", "is_claimed"),
    [*product([by_a_client, by_an_operator, by_its_age], [True, False]), (by_a_claim, False)],
)
async def test_the_children_of_a_lost_run_are_killed_when_its_task_is_ended_from_outside(
    end: Callable[[TaskRuntime, TaskRecord], Awaitable[None]], is_claimed: bool
) -> None:
    with leading() as leader:
        async with running({"render": Tool(at_once, NEWER)}, limits=Limits(task_age=DAY)) as runtime:
            created = runtime.now() - DAY
            record = make_record(
                attempt=1,
                worker=dead_worker() if is_claimed else None,
                created_at=created,
                started_at=created,
                processes=(await described(leader.pid),),
            )
            await end(runtime, await runtime.store.create(record, make_request()))
            await until_final(runtime, record)
            assert await anyio.to_thread.run_sync(leader.wait, 5) == -signal.SIGKILL


async def test_the_children_of_a_run_that_is_there_are_left_to_it() -> None:
    with leading() as leader, other_process() as (worker, _):
        async with running({}) as runtime:
            record = make_record(attempt=1, worker=worker, processes=(await described(leader.pid),))
            await by_an_operator(runtime, await runtime.store.create(record, make_request()))
            assert leader.poll() is None


# A process that is killed

COMMAND = "import os, sys, time; print(os.getpid(), file=open(sys.argv[1], 'w'), flush=True); time.sleep(60)"

BEFORE = """
import sys
from functools import partial
import anyio
from mcp_tasks.runtime.child_process import run_process

async def begin(group):
    print(group, flush=True)
    await anyio.sleep_forever()

options = dict(input=None, stdout=None, stderr=None, cwd=None, env=None, check=False)
anyio.run(partial(run_process, sys.argv[1:], begin=begin, **options))
"""

MEANWHILE = """
import sys
import anyio
from mcp_tasks import current_task
anyio.run(current_task().run_process, sys.argv[1:])
"""


async def gone(pid: int) -> bool:
    """Whether the process ends soon."""
    with anyio.move_on_after(5):
        while processes.is_running(pid):  # noqa: ASYNC110 - the kernel tells nobody
            await anyio.sleep(0.01)
        return True
    processes.send(pid)
    return False


async def test_a_process_that_is_killed_before_it_wrote_its_child_down_starts_no_command(tmp_path: Path) -> None:
    file = tmp_path / "file"
    command = [sys.executable, "-c", BEFORE, *PYTHON, COMMAND, str(file)]
    with processes.running(command, text=True, stdout=processes.PIPE) as process:
        child = int(processes.read_line(process))
        process.kill()
        process.wait()
    assert await gone(child)
    assert not file.exists()


@LINUX
async def test_the_kernel_ends_a_command_with_its_killed_parent(tmp_path: Path) -> None:
    file = tmp_path / "file"
    with processes.running([sys.executable, "-c", MEANWHILE, *PYTHON, COMMAND, str(file)]) as process:
        processes.until_ready(process, lambda: file.exists() and bool(file.read_text()), what="the command")
        process.kill()
        process.wait()
    assert await gone(int(file.read_text()))
