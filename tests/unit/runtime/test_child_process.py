"""Child processes of a tool: real ones, with children of their own."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
import time
from datetime import timedelta
from pathlib import Path
from typing import Any

import anyio
import anyio.from_thread
import anyio.to_thread
import pytest

from harness.processes import send
from mcp_tasks.model import RunLost, RunStarted, TaskRecord, TaskStatus
from mcp_tasks.runtime import Ending, Run, TaskContext, ToolPolicy, child_process, current_task
from mcp_tasks.stores import MemoryStore
from tests.unit.running import CLIENT, RERUN, launch, ok, running, until_final

pytestmark = [
    pytest.mark.anyio,
    pytest.mark.skipif(os.name == "nt", reason="process groups are ended another way there"),
]

PYTHON = (sys.executable, "-S", "-c")

# A parent whose child does not listen to SIGTERM if told so; both write their ids down, then wait.
FAMILY = """
import os, signal, subprocess, sys, time
folder, deaf = sys.argv[1:3]
if deaf == "child":
    script = "import signal, sys, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); " \\
             "open(sys.argv[1], 'w').close(); time.sleep(60)"
else:
    script = "import sys, time; open(sys.argv[1], 'w').close(); time.sleep(60)"
if deaf == "parent":
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
ready = os.path.join(folder, "ready")
child = subprocess.Popen(
    [sys.executable, "-S", "-c", script, ready], stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL,
    stderr=subprocess.DEVNULL,
)
while not os.path.exists(ready):
    time.sleep(0.01)
with open(os.path.join(folder, "pids.new"), "w") as file:
    file.write(f"{os.getpid()} {child.pid}")
os.rename(os.path.join(folder, "pids.new"), os.path.join(folder, "pids"))
time.sleep(60)
"""


def family(folder: Path, deaf: str = "nobody") -> list[str]:
    """The command of a process with a child; one of them may not listen to SIGTERM."""
    return [*PYTHON, FAMILY, str(folder), deaf]


async def pids_of_family(folder: Path) -> list[int]:
    """The ids of both, once both are there."""
    with anyio.fail_after(10):
        while not (folder / "pids").exists():  # noqa: ASYNC110 - another process makes the file
            await anyio.sleep(0.01)
    return [int(pid) for pid in (folder / "pids").read_text().split()]


async def all_gone(pids: list[int], limit: float = 5.0) -> bool:
    """Whether all these processes end in time; those that do not are ended."""
    deadline = time.monotonic() + limit
    while left := [pid for pid in pids if _is_there(pid)]:
        if time.monotonic() > deadline:
            for pid in left:
                send(pid)
            return False
        await anyio.sleep(0.01)
    return True


def _is_there(pid: int) -> bool:
    try:
        os.kill(pid, 0)
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except ProcessLookupError:
        return False
    except OSError:
        return True
    # An orphan's zombie waits for whoever adopts orphans here, which may take its time.
    return state not in ("Z", "X")


async def test_a_command_gives_what_it_wrote_and_how_it_ended(tmp_path: Path) -> None:
    script = "import os, sys; print(sys.stdin.read(), os.getcwd(), os.environ['WHO']); print('!', file=sys.stderr)"
    done = await current_task().run_process(
        [*PYTHON, script], input=b"hello", cwd=tmp_path, env={"WHO": "Ann", "PATH": os.environ["PATH"]}
    )
    assert done.returncode == 0
    assert done.stdout.decode().split() == ["hello", str(tmp_path), "Ann"]
    assert done.stderr == b"!\n"


async def test_a_command_that_fails_raises_only_if_it_is_to_be_checked() -> None:
    command = [*PYTHON, "raise SystemExit(3)"]
    assert (await current_task().run_process(command)).returncode == 3
    with pytest.raises(subprocess.CalledProcessError) as caught:
        await current_task().run_process(command, check=True)
    assert caught.value.returncode == 3


async def test_a_command_that_is_not_there_raises_as_it_would_elsewhere() -> None:
    with pytest.raises(FileNotFoundError):
        await current_task().run_process(["/no/such/command"])


async def test_a_command_that_cannot_be_run_raises_as_it_would_elsewhere(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(PermissionError) as denied:
        await current_task().run_process([str(tmp_path / "file")])
    assert denied.value.filename == str(tmp_path / "file")
    with pytest.raises(FileNotFoundError):
        await current_task().run_process([sys.executable], cwd=tmp_path / "nowhere")
    with pytest.raises(ValueError, match="null byte"):
        await current_task().run_process([sys.executable, "\0"])
    with pytest.raises(ValueError, match="environment variable name"):
        await current_task().run_process([sys.executable], env={"A=B": "C"})


async def test_a_command_is_looked_for_where_its_environment_says(tmp_path: Path) -> None:
    tool = tmp_path / "our-tool"
    tool.write_text("#!/bin/sh\necho found $1\n")
    tool.chmod(0o700)
    env = {"PATH": f"{tmp_path}{os.pathsep}{os.environ['PATH']}"}
    done = await current_task().run_process(["our-tool", "it"], env=env)
    assert done.stdout == b"found it\n"
    assert done.args == ["our-tool", "it"]


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux shows which signals a process ignores")
async def test_a_command_begins_as_one_of_the_standard_library_does() -> None:
    sh = ["/bin/sh", "-c", "env; grep SigIgn /proc/self/status; ls /proc/self/fd"]
    env = {"WHO": "Ann", "with-dash": "kept", "PATH": os.environ["PATH"]}
    ours = await current_task().run_process(sh, env=env)
    theirs = await anyio.run_process(sh, env=env)
    lines = [
        line for line in ours.stdout.splitlines() if not line.startswith((b"MCP_TASKS_CHILD=", b"MCP_TASKS_WORKER="))
    ]
    assert sorted(lines) == sorted(theirs.stdout.splitlines())


async def test_a_program_without_an_interpreter_runs_commands_too(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "frozen", True, raising=False)
    numbers: list[int] = []

    async def tool(run: Run) -> Ending:
        done = await current_task().run_process([*PYTHON, "import os; print(os.getpid())"])
        numbers.extend([int(done.stdout), *(process.group for process in run.record.processes)])
        return ok()

    async with running(tool) as runtime:
        await until_final(runtime, await launch(runtime))
    assert len(numbers) == 2
    assert len(set(numbers)) == 1


async def test_a_command_that_reads_nothing_gets_nothing_to_read() -> None:
    done = await current_task().run_process([*PYTHON, "import sys; print(repr(sys.stdin.read()))"])
    assert done.stdout == b"''\n"


async def test_outside_a_task_a_command_ends_with_its_caller(tmp_path: Path) -> None:
    calling = asyncio.ensure_future(TaskContext().run_process(family(tmp_path)))
    pids = await pids_of_family(tmp_path)
    calling.cancel()
    assert await all_gone(pids)
    await asyncio.wait({calling})
    assert calling.cancelled()


@pytest.mark.slow
@pytest.mark.parametrize("deaf", ["nobody", "parent", "child"])
async def test_a_cancelled_task_takes_its_process_and_their_children_with_it(
    deaf: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(child_process, "TERMINATE_GRACE", 0.2)

    async def tool(run: Run) -> Ending:
        return ok((await current_task().run_process(family(tmp_path, deaf))).returncode)

    async with running(tool) as runtime:
        task = await launch(runtime)
        pids = await pids_of_family(tmp_path)
        await runtime.cancel(task, "enough", actor=CLIENT)
        assert await all_gone(pids)


@pytest.mark.slow
@pytest.mark.parametrize("deaf", ["nobody", "parent", "child"])
async def test_a_cancelled_task_takes_the_processes_of_a_sync_tool_with_it(
    deaf: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(child_process, "TERMINATE_GRACE", 0.2)

    def work() -> int:
        return anyio.from_thread.run(current_task().run_process, family(tmp_path, deaf)).returncode

    async def tool(run: Run) -> Ending:
        return ok(await anyio.to_thread.run_sync(work))

    async with running(tool) as runtime:
        task = await launch(runtime)
        pids = await pids_of_family(tmp_path)
        await runtime.cancel(task, "enough", actor=CLIENT)
        assert await all_gone(pids)


@pytest.mark.slow
async def test_a_task_that_ran_too_long_takes_its_process_with_it(tmp_path: Path) -> None:
    async def tool(run: Run) -> Ending:
        return ok((await current_task().run_process(family(tmp_path))).returncode)

    async with running(tool, policy=ToolPolicy(max_runtime=timedelta(seconds=1.5))) as runtime:
        task = await launch(runtime)
        pids = await pids_of_family(tmp_path)
        assert (await until_final(runtime, task)).status is TaskStatus.FAILED
        assert await all_gone(pids)


@pytest.mark.slow
async def test_a_process_that_hands_its_tasks_over_takes_the_commands_with_it(tmp_path: Path) -> None:
    async def tool(run: Run) -> Ending:
        return ok((await current_task().run_process(family(tmp_path))).returncode)

    async with running(tool) as runtime:
        await launch(runtime)
        pids = await pids_of_family(tmp_path)
    assert await all_gone(pids)


async def test_a_command_that_ends_when_it_is_told_leaves_nobody_to_be_killed(tmp_path: Path) -> None:
    ready = tmp_path / "ready"
    script = "import sys, time; open(sys.argv[1], 'w').close(); time.sleep(60)"
    calling = asyncio.ensure_future(TaskContext().run_process([*PYTHON, script, str(ready)]))
    with anyio.fail_after(10):
        while not ready.exists():  # noqa: ASYNC110 - another process makes the file
            await anyio.sleep(0.01)
    calling.cancel()
    with anyio.fail_after(10):
        await asyncio.wait({calling})
    assert calling.cancelled()


# Groups and their numbers


@pytest.fixture
def signalled(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The groups that were signalled. Each was ours when it was: its leader was there, at least as a zombie."""
    groups: list[int] = []
    send_to_group = os.killpg

    def killpg(group: int, number: int) -> None:
        # An error once the leader is reaped, after which its number may be another's.
        os.waitid(os.P_PID, group, os.WEXITED | os.WNOHANG | os.WNOWAIT)
        groups.append(group)
        send_to_group(group, number)

    monkeypatch.setattr(os, "killpg", killpg)
    return groups


# Leaves a process behind that has let go of all pipes, and ends.
LEAVES = """
import subprocess, sys
quiet = dict(stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
print(subprocess.Popen([sys.executable, "-S", "-c", "import time; time.sleep(60)"], **quiet).pid)
"""


async def test_what_a_command_leaves_running_ends_with_it(signalled: list[int]) -> None:
    done = await current_task().run_process([*PYTHON, LEAVES])
    assert await all_gone([int(done.stdout)])
    assert len(set(signalled)) == 1
    child_process.kill_children()
    assert len(signalled) == 1, "what was reaped is not known to be ours any more"


@pytest.mark.parametrize("deaf", ["nobody", "parent", "child"])
async def test_a_group_is_signalled_only_while_it_is_known_to_be_ours(
    deaf: str, tmp_path: Path, signalled: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(child_process, "TERMINATE_GRACE", 0.2)
    calling = asyncio.ensure_future(TaskContext().run_process(family(tmp_path, deaf)))
    pids = await pids_of_family(tmp_path)
    calling.cancel()
    await asyncio.wait({calling})
    assert await all_gone(pids)
    assert set(signalled) == {pids[0]}


async def test_a_group_is_not_signalled_once_other_code_has_reaped_its_leader(
    tmp_path: Path, signalled: list[int]
) -> None:
    calling = asyncio.ensure_future(TaskContext().run_process(family(tmp_path)))
    leader, child = await pids_of_family(tmp_path)
    send(leader)
    os.waitpid(leader, 0)  # noqa: ASYNC222 - before the code under test has its turn
    child_process.kill_children()
    send(child)
    await calling
    assert signalled == []


async def test_killing_all_children_ends_those_that_do_not_listen(tmp_path: Path) -> None:
    calling = asyncio.ensure_future(TaskContext().run_process(family(tmp_path, "parent")))
    pids = await pids_of_family(tmp_path)
    child_process.kill_children()
    assert await all_gone(pids)
    assert (await calling).returncode == -signal.SIGKILL


async def test_a_process_that_is_forked_leaves_the_children_of_the_other_alone(tmp_path: Path) -> None:
    calling = asyncio.ensure_future(TaskContext().run_process(family(tmp_path)))
    pids = await pids_of_family(tmp_path)
    forked = os.fork()
    if not forked:
        child_process.kill_children()
        os._exit(0)
    await anyio.to_thread.run_sync(os.waitpid, forked, 0)
    assert all(map(_is_there, pids))
    calling.cancel()
    assert await all_gone(pids)
    await asyncio.wait({calling})


async def test_an_event_loop_that_is_closed_leaves_no_child(tmp_path: Path) -> None:
    async def program() -> None:
        calling = asyncio.ensure_future(TaskContext().run_process(family(tmp_path, "parent")))
        await pids_of_family(tmp_path)
        assert not calling.done()

    await anyio.to_thread.run_sync(asyncio.run, program())
    assert await all_gone(await pids_of_family(tmp_path))


async def test_a_long_input_that_is_not_read_to_its_end_is_no_error() -> None:
    script = "import sys; print(len(sys.stdin.buffer.read(10)))"
    done = await current_task().run_process([*PYTHON, script], input=b"x" * 10_000_000)
    assert done.stdout == b"10\n"
    script = "import sys; print(len(sys.stdin.buffer.read()))"
    done = await current_task().run_process([*PYTHON, script], input=b"x" * 10_000_000)
    assert done.stdout == b"10000000\n"


async def test_a_child_process_of_a_run_whose_task_is_anothers_is_killed_at_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(child_process, "TERMINATE_GRACE", 3_600)

    async def tool(run: Run) -> Ending:
        return ok((await current_task().run_process(family(tmp_path, "parent"))).returncode)

    async with running(tool, policy=RERUN) as runtime:
        task = await launch(runtime)
        pids = await pids_of_family(tmp_path)
        record = await runtime.get(task.id, owner=None)
        lost = RunLost(attempt=record.attempt), RunStarted(worker="another")
        await runtime.changes.change(record, *lost, actor=CLIENT)
        assert await all_gone(pids)


class Watching(MemoryStore):
    """Looks at processes when a task is given up."""

    def __init__(self) -> None:
        super().__init__()
        self.pids: list[int] = []
        self.there: list[bool] = []

    async def save(self, record: TaskRecord, **options: Any) -> TaskRecord:
        if record.worker is None:
            self.there += map(_is_there, self.pids)
        return await super().save(record, **options)


@pytest.mark.parametrize("sync", [False, True], ids=["async", "sync"])
async def test_a_task_is_given_up_only_when_its_child_processes_have_ended(sync: bool, tmp_path: Path) -> None:
    store = Watching()

    def work() -> int:
        return anyio.from_thread.run(current_task().run_process, family(tmp_path, "parent")).returncode

    async def tool(run: Run) -> Ending:
        if sync:
            return ok(await anyio.to_thread.run_sync(work))
        return ok((await current_task().run_process(family(tmp_path, "parent"))).returncode)

    async with running(tool, store=store, policy=RERUN, stop_timeout=timedelta(seconds=0.4)) as runtime:
        task = await launch(runtime)
        store.pids = await pids_of_family(tmp_path)
    assert store.there == [False, False]
    record = await store.get(task.id)
    assert record is not None
    assert (record.worker, record.attempt) == (None, 1), "another process may run it"
    assert await all_gone(store.pids)
