"""No child process of a tool outlives the process that runs the tool, however that one comes to its end."""

import sys
import time
from collections.abc import Sequence
from pathlib import Path
from signal import SIGINT, SIGKILL, SIGTERM, Signals

import anyio
import anyio.to_thread
import pytest

from harness.forking import fork
from harness.processes import send
from harness.rpc import Tasking
from tests.cli.deaf_farm import build
from tests.cli.running import LIMIT, Cli
from tests.cli.working import in_time, is_there, serving_only, working

SPEC = "tests.cli.deaf_farm:make()"
PATIENT = "tests.cli.deaf_farm:make_patient()"
LINUX = pytest.mark.skipif(sys.platform != "linux", reason="only Linux shows the environment of a process")
KINDS = ("in_async", "in_thread", "in_step", "of_child")


async def started(client: Tasking, folder: Path, *tools: str) -> dict[str, int]:
    for tool in tools:
        await client.create(tool, file=str(folder / tool))
    for tool in tools:
        await is_there(folder / tool)
    return {tool: int((folder / tool).read_text()) for tool in tools}


async def left(children: dict[str, int]) -> Sequence[str]:
    """The tools whose children are still there, once the kernel had its time to end what was killed."""
    until = time.monotonic() + 10.0
    while there := [tool for tool, pid in children.items() if _is_there(pid)]:
        if time.monotonic() > until:
            for tool in there:
                send(children[tool])
            break
        await anyio.sleep(0.02)
    return there


def _is_there(pid: int) -> bool:
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except OSError:
        return False
    return state not in ("Z", "X")


async def test_when_the_drain_is_over_no_child_is_left(cli: Cli, url: str, tmp_path: Path) -> None:
    async with serving_only(url, build) as client:
        with working(cli, "--drain", "0.2", spec=SPEC) as worker:
            children = await started(client, tmp_path, *KINDS)
            worker.send(SIGTERM)
            assert await worker.ends() == 0
            assert await left(children) == []
            assert "4 handed back" in worker.said


@pytest.mark.parametrize(("number", "code"), [(SIGTERM, -SIGTERM), (SIGINT, 130)])
async def test_after_a_third_signal_no_child_is_left(
    cli: Cli, url: str, tmp_path: Path, number: Signals, code: int
) -> None:
    async with serving_only(url, build) as client:
        with working(cli, "--drain", "3600", "--health", "127.0.0.1:0", spec=PATIENT) as worker:
            children = await started(client, tmp_path, *KINDS)
            worker.send(number)
            await (await worker.health()).say("draining")
            worker.send(number)
            await anyio.sleep(0.3)  # sleep: it waits for the children, and tells nobody
            worker.send(number)
            assert await worker.ends() == code
            assert await left(children) == []


async def test_beside_a_thread_that_does_not_stop_no_child_is_left(cli: Cli, url: str, tmp_path: Path) -> None:
    async with serving_only(url, build) as client:
        with working(cli, "--drain", "0", spec=SPEC) as worker:
            children = await started(client, tmp_path, *KINDS, "beside", "block")
            del children["block"]
            worker.send(SIGTERM)
            # It leaves at once, with `os._exit`: that thread would be waited for.
            assert await worker.ends() == 0
            assert "1 left behind in a thread that did not stop" in worker.said
            assert await left(children) == []


async def test_after_sigkill_a_child_is_killed_before_the_next_run_starts_its_own(
    cli: Cli, url: str, tmp_path: Path
) -> None:
    file = tmp_path / "of_child"
    async with serving_only(url, build) as client:
        with working(cli, spec=SPEC) as worker:
            first = await started(client, tmp_path, "of_child")
            worker.send(SIGKILL)
            await worker.ends()
        try:
            with working(cli, spec=SPEC) as worker:
                second = {
                    "of_child": await in_time(lambda: int(file.read_text()), lambda pid: pid != first["of_child"])
                }
                assert not await anyio.Path(f"{file}.beside").exists(), "both were at work"
                worker.send(SIGTERM)
                await worker.ends()
            assert await left(second) == []
        finally:
            assert await left(first) == []


async def test_after_sigkill_a_child_of_a_tool_that_may_not_run_again_is_killed(
    cli: Cli, url: str, tmp_path: Path
) -> None:
    async with serving_only(url, build) as client:
        with working(cli, spec=SPEC) as worker:
            task = await client.create("once", file=str(tmp_path / "once"))
            await is_there(tmp_path / "once")
            children = {"once": int((tmp_path / "once").read_text())}
            worker.send(SIGKILL)
            await worker.ends()
        with working(cli, spec=SPEC):
            await client.until(task, "failed")
            assert await left(children) == []


@LINUX
async def test_after_sigkill_a_child_of_a_task_that_has_just_been_cancelled_is_killed(
    cli: Cli, url: str, tmp_path: Path
) -> None:
    async with serving_only(url, build) as client:
        with working(cli, spec=SPEC) as worker:
            task = await client.create("of_child", file=str(tmp_path / "of_child"))
            await is_there(tmp_path / "of_child")
            child = int((tmp_path / "of_child").read_text())
            await client.cancel(task)
            # The child does not listen to SIGTERM, and the worker has no time for more.
            worker.send(SIGKILL)
            await worker.ends()
        try:
            # The next sweep of any process on the machine ends the child.
            await in_time(lambda: _is_there(child), lambda there: not there)
        finally:
            send(child)


@pytest.mark.parametrize(("how", "code"), [("ends", 0), ("raises", 1)])
async def test_when_a_program_of_the_authors_own_ends_no_child_is_left(
    cli: Cli, url: str, tmp_path: Path, how: str, code: int
) -> None:
    async with serving_only(url, build) as client:
        with (tmp_path / "log").open("wb") as log:
            end = tmp_path / "end"
            program = fork("tests.cli.deaf_farm", how, str(end), env=cli.environment, stdout=log, stderr=log)
        try:
            children = await started(client, tmp_path, *KINDS)
            end.touch()
            assert await anyio.to_thread.run_sync(program.wait, LIMIT) == code
            assert await left(children) == []
        finally:
            program.kill()
            program.wait()
