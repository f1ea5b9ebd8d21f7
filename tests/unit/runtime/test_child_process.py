"""Child processes of a tool: real ones, with children of their own, and those that outlive their worker."""

import asyncio
import os
import signal
import subprocess
import sys
import threading
from collections.abc import AsyncGenerator, Awaitable, Callable, Generator, Sequence
from contextlib import asynccontextmanager, contextmanager
from dataclasses import replace
from datetime import timedelta
from itertools import product
from pathlib import Path
from subprocess import Popen
from typing import Any

import anyio
import pytest

from harness import processes
from harness.waiting import eventually
from mcp_tasks.errors import StoreUnavailable
from mcp_tasks.model import ChildProcess, TaskRecord, TaskStatus
from mcp_tasks.model.limits import Limits
from mcp_tasks.model.machine import ProcessesChanged, RunLost, RunStarted
from mcp_tasks.runtime import (
    Body,
    Ending,
    Run,
    TaskContext,
    TaskOptions,
    TaskRuntime,
    child_process,
    current_task,
)
from mcp_tasks.runtime.child_process import MARK, describe
from mcp_tasks.runtime.operator import Operator
from mcp_tasks.testing import make_record, make_request
from tests.unit.losing import as_of_now
from tests.unit.processes import dead_worker, other_process
from tests.unit.running import (
    CLIENT,
    RERUN,
    SECOND,
    MeddledStore,
    Tool,
    at_once,
    cancel,
    create,
    launch,
    ok,
    running,
    until_final,
)

pytestmark = [
    pytest.mark.anyio,
    pytest.mark.skipif(os.name == "nt", reason="process groups are ended another way there"),
]
LINUX = pytest.mark.skipif(sys.platform != "linux", reason="only Linux shows the environment of a process")

PYTHON = (sys.executable, "-S", "-c")
SLEEPS = "import time; time.sleep(60)"
DAY = timedelta(days=1)

# A parent whose child does not listen to SIGTERM if told so; both write their ids down, then wait.
FAMILY = """
import os, signal, subprocess, sys, time
folder, deaf = sys.argv[1:3]
ignore = "import signal; signal.signal(signal.SIGTERM, signal.SIG_IGN); "
waits = "import sys, time; open(sys.argv[1], 'w').close(); time.sleep(60)"
if deaf == "parent":
    exec(ignore)
ready, quiet = os.path.join(folder, "ready"), dict.fromkeys(("stdin", "stdout", "stderr"), subprocess.DEVNULL)
child = subprocess.Popen([sys.executable, "-S", "-c", (deaf == "child") * ignore + waits, ready], **quiet)
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
    await eventually((folder / "pids").exists)
    return [int(pid) for pid in (folder / "pids").read_text().split()]


def is_there(pid: int) -> bool:
    """Whether it runs. An orphan's zombie waits for whoever adopts orphans here, which may take its time."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] not in ("Z", "X")
    except OSError:
        return sys.platform != "linux" and processes.is_running(pid)


async def all_gone(pids: list[int], limit: float = 5.0) -> bool:
    try:
        await eventually(lambda: not any(map(is_there, pids)), limit)
    except TimeoutError:
        for pid in pids:
            processes.send(pid)
        return False
    return True


@asynccontextmanager
async def calling(command: Sequence[str]) -> AsyncGenerator[asyncio.Future[Any]]:
    """A command that is run outside of a task, and cancelled at the end."""
    call = asyncio.ensure_future(TaskContext().run_process(command))
    yield call
    call.cancel()
    with anyio.fail_after(10):
        await asyncio.wait({call})


def runs(*command: str, sync: bool = False) -> Body:
    def work() -> int:
        return anyio.from_thread.run(current_task().run_process, command).returncode

    async def body(run: Run) -> Ending:
        if sync:
            return ok(await anyio.to_thread.run_sync(work))
        return ok((await current_task().run_process(command)).returncode)

    return body


# One command


async def test_a_command_gives_what_it_wrote_and_how_it_ended(tmp_path: Path) -> None:
    script = "import os, sys; print(sys.stdin.read(), os.getcwd(), os.environ['WHO']); print('!', file=sys.stderr)"
    done = await current_task().run_process(
        [*PYTHON, script], input=b"hello", cwd=tmp_path, env={"WHO": "Ann", "PATH": os.environ["PATH"]}
    )
    assert done.returncode == 0
    assert done.stdout.decode().split() == ["hello", str(tmp_path), "Ann"]
    assert done.stderr == b"!\n"


async def test_a_command_that_fails_raises_only_if_it_is_to_be_checked() -> None:
    command = [*PYTHON, "import sys; print(repr(sys.stdin.read())); raise SystemExit(3)"]
    done = await current_task().run_process(command)
    assert (done.returncode, done.stdout) == (3, b"''\n"), "one that reads nothing gets nothing to read"
    with pytest.raises(subprocess.CalledProcessError, match="exit status 3"):
        await current_task().run_process(command, check=True)


@pytest.mark.parametrize(
    ("error", "command", "options"),
    [
        (FileNotFoundError, ["/no/such/command"], {}),
        (PermissionError, ["/etc/passwd"], {}),
        (FileNotFoundError, [sys.executable], {"cwd": "/no/where"}),
        (ValueError, [sys.executable, "\0"], {}),
        (ValueError, [sys.executable], {"env": {"A=B": "C"}}),
    ],
)
async def test_a_command_that_cannot_be_run_raises_as_it_would_elsewhere(
    error: type[Exception], command: list[str], options: dict[str, Any]
) -> None:
    with pytest.raises(error) as ours:
        await current_task().run_process(command, **options)
    with pytest.raises(error) as theirs:
        await anyio.run_process(command, **options)
    assert str(ours.value) == str(theirs.value)


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


@pytest.mark.parametrize("frozen", [False, True], ids=["an interpreter", "a frozen program"])
async def test_a_run_writes_down_which_commands_it_runs(frozen: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    if frozen:
        monkeypatch.setattr(sys, "frozen", True, raising=False)

    async def tool(run: Run) -> Ending:
        for _ in range(2):
            done = await current_task().run_process([*PYTHON, "import os; print(os.getpid())"])
            assert [process.group for process in run.record.processes] == [int(done.stdout)]
        return ok()

    async with running(tool) as runtime:
        ended = await until_final(runtime, await launch(runtime))
        assert (ended.result, ended.processes) == ({"value": "ok"}, ())


async def test_a_long_input_that_is_not_read_to_its_end_is_no_error() -> None:
    for read, said in (("10", b"10\n"), ("", b"10000000\n")):
        script = f"import sys; print(len(sys.stdin.buffer.read({read})))"
        done = await current_task().run_process([*PYTHON, script], input=b"x" * 10_000_000)
        assert done.stdout == said


# How commands end with what they belong to


@pytest.mark.slow
@pytest.mark.parametrize("how", ["cancelled", "too long", "handed over", "lost", "without lease"])
@pytest.mark.parametrize(("deaf", "sync"), [("nobody", True), ("parent", False), ("child", False)])
async def test_a_run_that_ends_takes_its_processes_and_their_children_with_it(
    how: str, deaf: str, sync: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Of a run whose task is another's they are killed at once.
    monkeypatch.setattr(child_process, "TERMINATE_GRACE", 3_600 if how in ("lost", "without lease") else 0.2)
    policy = TaskOptions(recover="rerun", max_runtime=timedelta(seconds=1.5) if how == "too long" else None)
    store = MeddledStore()
    options: dict[str, Any] = {"lease_duration": SECOND} if how == "without lease" else {}
    async with running(runs(*family(tmp_path, deaf), sync=sync), store=store, policy=policy, **options) as runtime:
        task = await launch(runtime)
        pids = await pids_of_family(tmp_path)
        if how == "cancelled":
            await cancel(runtime, task)
        elif how == "handed over":
            await runtime.stop()
        elif how == "lost":
            lost = RunLost(attempt=1), RunStarted(worker="another")
            await runtime.changes.change(await as_of_now(runtime, task), *lost, actor=CLIENT)
        elif how == "without lease":
            store.refuse(StoreUnavailable("away"), "heartbeat")
        assert await all_gone(pids)
        if how == "too long":
            assert (await until_final(runtime, task)).status is TaskStatus.FAILED


@pytest.mark.parametrize("sync", [False, True], ids=["async", "sync"])
async def test_a_task_is_given_up_only_when_its_child_processes_have_ended(sync: bool, tmp_path: Path) -> None:
    pids, there = list[int](), list[bool]()

    async def look(record: TaskRecord, **options: Any) -> None:
        if record.worker is None:
            there.extend(map(is_there, pids))

    tool = runs(*family(tmp_path, "parent"), sync=sync)
    async with running(
        tool, store=MeddledStore(save=look), policy=RERUN, stop_timeout=timedelta(seconds=0.4)
    ) as runtime:
        task = await launch(runtime)
        pids += await pids_of_family(tmp_path)
    assert there == [False, False]
    record = await as_of_now(runtime, task)
    assert (record.worker, record.attempt) == (None, 1), "another process may run it"


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
QUIETLY_LEAVES = """
import subprocess, sys
quiet = dict(stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
print(subprocess.Popen([sys.executable, "-S", "-c", "import time; time.sleep(60)"], **quiet).pid)
"""


async def test_what_a_command_leaves_running_ends_with_it(signalled: list[int]) -> None:
    done = await current_task().run_process([*PYTHON, QUIETLY_LEAVES])
    assert await all_gone([int(done.stdout)])
    assert len(set(signalled)) == 1
    child_process.kill_children()
    assert len(signalled) == 1, "what was reaped is not known to be ours any more"


@pytest.mark.parametrize("deaf", ["nobody", "parent"])
async def test_outside_a_task_a_command_ends_with_its_caller_and_only_a_group_of_ours_is_signalled(
    deaf: str, tmp_path: Path, signalled: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(child_process, "TERMINATE_GRACE", 0.2)
    async with calling(family(tmp_path, deaf)) as call:
        pids = await pids_of_family(tmp_path)
    assert await all_gone(pids)
    assert call.cancelled()
    assert set(signalled) == {pids[0]}


async def test_outside_a_task_a_command_ends_with_its_event_loop(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(child_process, "TERMINATE_GRACE", 0.2)

    async def program() -> None:
        left = asyncio.ensure_future(TaskContext().run_process(family(tmp_path, "parent")))
        await pids_of_family(tmp_path)
        assert not left.done()

    await anyio.to_thread.run_sync(asyncio.run, program())
    assert await all_gone(await pids_of_family(tmp_path))


async def test_a_group_is_not_signalled_once_other_code_has_reaped_its_leader(
    tmp_path: Path, signalled: list[int]
) -> None:
    async with calling(family(tmp_path)) as call:
        leader, child = await pids_of_family(tmp_path)
        processes.send(leader)
        os.waitpid(leader, 0)  # noqa: ASYNC222 - before the code under test has its turn
        child_process.kill_children()
        processes.send(child)
        await call
        assert signalled == []


async def test_a_process_that_is_forked_leaves_the_children_of_the_other_alone(tmp_path: Path) -> None:
    async with calling(family(tmp_path)):
        pids = await pids_of_family(tmp_path)
        forked = os.fork()
        if not forked:
            child_process.kill_children()
            os._exit(0)
        await anyio.to_thread.run_sync(os.waitpid, forked, 0)
        assert all(map(is_there, pids))
    assert await all_gone(pids)


# What outlived its worker


@contextmanager
def leading() -> Generator[Popen[Any]]:
    with processes.running([*PYTHON, SLEEPS], group=True) as process:
        yield process


async def described(group: int) -> ChildProcess:
    process = await describe(group, attempt=1)
    assert process is not None
    return process


async def next_run(process: ChildProcess) -> tuple[ChildProcess, ...]:
    """What the next run finds written down as its tool begins, where the last one has left that process."""
    seen: list[tuple[ChildProcess, ...]] = []

    async def tool(run: Run) -> Ending:
        seen.append(run.record.processes)
        return ok()

    async with running(tool, policy=RERUN) as runtime:
        task = await create(runtime)
        events = RunStarted(worker="dead"), ProcessesChanged(attempt=1, started=process), RunLost(attempt=1)
        await runtime.changes.change(task, *events, actor=CLIENT)
        await runtime.engine.submit(task.id)
        await until_final(runtime, task)
    return seen[0]


async def test_the_group_that_was_started_is_killed_before_the_next_tool_begins(
    caplog: pytest.LogCaptureFixture,
) -> None:
    with leading() as leader:
        process = await described(leader.pid)
        # Although all threads for tools are busy.
        over = threading.Event()
        busy = [asyncio.create_task(asyncio.to_thread(over.wait)) for _ in range(100)]
        await anyio.wait_all_tasks_blocked()
        try:
            assert await next_run(process) == ()
        finally:
            over.set()
            await asyncio.gather(*busy)
        # The second time, what is left of it only waits to be reaped.
        assert await next_run(process) == ()
        assert leader.wait(5) == -signal.SIGKILL
    assert caplog.text.count("outlived its worker, and was killed") == 1
    assert await next_run(process) == ()


@pytest.mark.parametrize(
    ("changes", "is_kept"),
    [({"started": "1"}, False), ({"boot": "another", "host": "farm-2"}, True), ({"boot": "earlier"}, False)],
    ids=["its number is another's", "of another machine", "of this one before it was started again"],
)
async def test_what_is_not_known_to_be_ours_is_not_killed(
    changes: dict[str, str], is_kept: bool, caplog: pytest.LogCaptureFixture
) -> None:
    with leading() as leader:
        process = replace(await described(leader.pid), **changes)
        # It is looked for again on its machine.
        assert await next_run(process) == ((process,) if is_kept else ())
        assert leader.poll() is None
    said = f"its child process may still run there (process group {leader.pid})"
    assert (said in caplog.text, "farm-2" in caplog.text, "killed" in caplog.text) == (is_kept, is_kept, False)


# Leads a group, and leaves it to its child when it is told to.
LEAVES = """
import os, subprocess, sys
child = subprocess.Popen([sys.executable, "-S", "-c", "import time; time.sleep(60)"], env={**os.environ, **ENV})
print(child.pid, flush=True)
sys.stdin.readline()
"""


@LINUX
@pytest.mark.parametrize("is_known", [True, False])
async def test_a_group_without_its_leader_is_killed_if_it_is_known_by_its_environment(is_known: bool) -> None:
    mark = "f'{os.getpid()}:' + open('/proc/self/stat').read().rpartition(')')[2].split()[19]"
    command = [*PYTHON, LEAVES.replace("ENV", f"{{'{MARK}': {mark}}}" if is_known else "{}")]
    with processes.running(command, text=True, group=True, stdin=processes.PIPE, stdout=processes.PIPE) as leader:
        child = int(processes.read_line(leader))
        process = await described(leader.pid)
        assert leader.stdin is not None
        leader.stdin.close()
        leader.wait(5)
        await next_run(process)
        assert is_there(child) is not is_known or await all_gone([child])
        processes.send(child)


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
        _, pid, begun, _ = worker.split("/")
        command = [*PYTHON, MARKED, f"{pid}:{begun}", str(off)]
        with processes.running(command, text=True, group=True, stdout=processes.PIPE) as leader:
            processes.read_line(leader)
            async with running(at_once) as runtime:
                await runtime.store.heartbeat(worker, namespace="", beats=1)
                if is_dead:
                    process.kill()
                    process.wait()
                await runtime.janitor.sweep()
            if is_killed:
                assert leader.wait(5) == -signal.SIGKILL
            else:
                assert leader.poll() is None


ENDINGS: dict[str, Callable[[TaskRuntime, TaskRecord], Awaitable[object]]] = {
    "by a client": lambda runtime, record: runtime.cancel(record, "enough", actor=CLIENT),
    "by an operator": lambda runtime, record: by_an_operator(runtime, record),
    "by its age": lambda runtime, record: runtime.janitor.end_old(),
    "by a claim": lambda runtime, record: runtime.engine.submit(record.id),
}


async def by_an_operator(runtime: TaskRuntime, record: TaskRecord) -> None:
    async with Operator(runtime.store, name="ops").opened() as operator:
        await operator.cancel(record, "enough")


@pytest.mark.parametrize(
    ("end", "is_claimed"), [each for each in product(ENDINGS, [True, False]) if each != ("by a claim", True)]
)
async def test_the_children_of_a_lost_run_are_killed_when_its_task_is_ended_from_outside(
    end: str, is_claimed: bool
) -> None:
    newer = TaskOptions(recover="rerun", version="2", on_other_version="fail")
    with leading() as leader:
        async with running({"render": Tool(at_once, newer)}, limits=Limits(task_age=DAY)) as runtime:
            old = runtime.now() - DAY
            record = make_record(
                attempt=1,
                worker=dead_worker() if is_claimed else None,
                created_at=old,
                started_at=old,
                processes=(await described(leader.pid),),
            )
            await ENDINGS[end](runtime, await runtime.store.create(record, make_request()))
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


async def test_a_process_that_is_killed_before_it_wrote_its_child_down_starts_no_command(tmp_path: Path) -> None:
    file = tmp_path / "file"
    command = [sys.executable, "-c", BEFORE, *PYTHON, COMMAND, str(file)]
    with processes.running(command, text=True, stdout=processes.PIPE) as process:
        child = int(processes.read_line(process))
        process.kill()
        process.wait()
    assert await all_gone([child])
    assert not file.exists()


@LINUX
async def test_the_kernel_ends_a_command_with_its_killed_parent(tmp_path: Path) -> None:
    file = tmp_path / "file"
    with processes.running([sys.executable, "-c", MEANWHILE, *PYTHON, COMMAND, str(file)]) as process:
        processes.until_ready(process, lambda: file.exists() and bool(file.read_text()), what="the command")
        process.kill()
        process.wait()
    assert await all_gone([int(file.read_text())])
