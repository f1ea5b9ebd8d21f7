"""Servers and clients in processes of their own, to be killed.

    python -m tests.client.processes URL LEDGER LOG start|resume|host [TOOL ARGUMENTS ...] [--think MESSAGE]
        [--mode legacy]

`start` begins tasks and `resume` comes back for them, `host` hosts tasks of the server, makes plain calls, and stays.
A client prints a line of JSON for each task that it starts and for each result that it has, and writes a line into
LOG whenever its person is asked, and another when the person answers. With --think the person never answers
questions with that message.
"""

import argparse
import asyncio
import json
import os
from collections.abc import AsyncGenerator, Mapping, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import anyio
from mcp import Client
from mcp.client.session import ClientRequestContext
from mcp_types import ElicitRequestParams, ElicitResult

from harness.forking import Forked, fork
from harness.processes import ENVIRONMENT, PIPE
from harness.rpc import PATIENCE
from harness.serving import ServerProcess
from mcp_tasks.client import Hosting, TaskHandle, TasksClient, pending_tasks, reconnecting_http, start_task
from tests.client.connecting import text

START_LIMIT = 30.0


def server_process(folder: Path, *arguments: str) -> ServerProcess:
    return ServerProcess(
        "mcp_tasks.testing.fixture_server", "--port", "{port}", "--db", folder / "tasks.db", *arguments
    )


class ClientProcess:
    def __init__(self, process: Forked) -> None:
        self._process = process
        self._said = asyncio.StreamReader(limit=2**24)

    async def listen(self) -> None:
        loop = asyncio.get_running_loop()
        await loop.connect_read_pipe(lambda: asyncio.StreamReaderProtocol(self._said), self._process.stdout)

    async def line(self) -> dict[str, Any]:
        with anyio.fail_after(START_LIMIT):
            return json.loads(await self._said.readline())

    async def results(self) -> dict[str, str]:
        with anyio.fail_after(START_LIMIT):
            lines = [json.loads(line) for line in (await self._said.read()).splitlines()]
            assert await asyncio.to_thread(self._process.wait, START_LIMIT) == 0
        return {line["tool"]: line["result"] for line in lines if "result" in line}

    async def kill(self) -> None:
        self._process.kill()
        await asyncio.to_thread(self._process.wait)


@asynccontextmanager
async def client_process(url: str, ledger: Path, log: Path, *arguments: str) -> AsyncGenerator[ClientProcess]:
    command = ("tests.client.processes", url, ledger, log, *arguments)
    # Its pipe is the event loop's, which closes it.
    client = ClientProcess(fork(*map(str, command), env=ENVIRONMENT, stdout=PIPE))
    try:
        await client.listen()
        yield client
    finally:
        await client.kill()


async def logged(log: Path, *wanted: str) -> None:
    with anyio.fail_after(START_LIMIT):
        while not set(wanted) <= set(lines_of(log)):  # noqa: ASYNC110 - another process writes it
            await anyio.sleep(0.01)


def lines_of(log: Path) -> list[str]:
    return log.read_text().splitlines() if log.exists() else []


# The client process itself


def main(argv: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("url")
    parser.add_argument("ledger")
    parser.add_argument("log", type=Path)
    parser.add_argument("what", choices=("start", "resume", "host"))
    parser.add_argument("--think", default="")
    parser.add_argument("--mode", default="auto")
    parser.add_argument("rest", nargs="*")
    options = parser.parse_intermixed_args(argv)
    asyncio.run(_run(options))


async def _run(options: argparse.Namespace) -> None:
    person = _Person(options.log, options.think)
    transport: Any = reconnecting_http(options.url)
    if options.what == "host":
        tasks = TasksClient(hosting=Hosting(ledger=options.ledger))
        transport = tasks.host(transport)
    else:
        tasks = TasksClient(ledger=options.ledger)
    async with (
        Client(transport, mode=options.mode, elicitation_callback=person, extensions=[tasks]) as client,
        anyio.create_task_group() as group,
    ):
        if options.what == "host":
            for tool, arguments in _calls(options):
                _say({"tool": tool, "result": text(await client.call_tool(tool, arguments))})
            await anyio.sleep_forever()
        for handle in await _handles(client, options):
            group.start_soon(_report, handle)
    if tasks.ledger is not None:
        tasks.ledger.close()


def _calls(options: argparse.Namespace) -> list[tuple[str, dict[str, Any]]]:
    return [
        (tool, json.loads(arguments)) for tool, arguments in zip(options.rest[::2], options.rest[1::2], strict=True)
    ]


async def _handles(client: Client, options: argparse.Namespace) -> list[TaskHandle]:
    if options.what == "resume":
        return pending_tasks(client)
    handles: list[TaskHandle] = []
    for tool, arguments in _calls(options):
        handle = await start_task(client, tool, arguments)
        assert isinstance(handle, TaskHandle)
        _say({"tool": tool, "started": handle.id})
        handles.append(handle)
    return handles


async def _report(handle: TaskHandle) -> None:
    _say({"tool": handle.tool, "result": text(await handle.result(PATIENCE))})


def _say(line: Mapping[str, Any]) -> None:
    print(json.dumps(line), flush=True)


class _Person:
    def __init__(self, log: Path, think: str) -> None:
        self._log = log
        self._think = think

    async def __call__(self, context: ClientRequestContext, params: ElicitRequestParams) -> ElicitResult:
        self._write(f"asked: {params.message}")
        if self._think and self._think == params.message:
            await anyio.sleep_forever()
        self._write(f"answered: {params.message}")
        return ElicitResult(action="accept", content={"confirm": True, "name": "Ada", "ok": True})

    def _write(self, line: str) -> None:
        with self._log.open("a") as file:
            file.write(line + "\n")
            file.flush()
            os.fsync(file.fileno())


if __name__ == "__main__":
    main()
