"""The MCP Inspector against our server: its command lines on both wires, and its page on that of 2025-11-25."""

from __future__ import annotations

import json
import os
import tempfile
from collections.abc import Generator
from pathlib import Path
from typing import Any

import pytest
from mcp import Client
from mcp.client.session import ClientRequestContext
from mcp.client.stdio import StdioServerParameters
from mcp_types import ElicitRequestParams, ElicitResult

from harness.processes import ROOT
from mcp_tasks.client import ServerTransport, TaskHandle, TasksClient, reconnecting_http, start_task, stdio_transport

from .conftest import Begun
from .driving import Outcomes, command, drive, reached
from .inspector import Inspector, Ours, Reply, ours, page_of
from .test_older_clients import CAPABILITY, PROTOCOL_ERROR, TOOL_ERROR, UNDECLARED

RELATED = "io.modelcontextprotocol/related-task"
MODERN, OLDER = "modern", "legacy"


class Mcpdo:
    def __init__(self, inspector: Inspector, server: Ours, era: str) -> None:
        self.inspector = inspector
        self.server = server
        self.era = era
        self._name = f"ours-{server.directory.name}"

    def connect(self) -> None:
        assert self.inspector.connect(self._name, self.era, self.server.target).value["protocolEra"] == self.era

    def __call__(self, *arguments: str) -> Reply:
        return self.inspector.mcpdo("--connection", self._name, *arguments)

    def call(self, tool: str, *fields: str) -> Reply:
        return self("tools/call", *(["--task"] if self.era == OLDER else []), tool, *fields)

    def status(self, task_id: str) -> str:
        return self("tasks/get", task_id).value["task"]["status"]

    def kill_the_server(self) -> None:
        self.server.kill()
        self("disconnect")
        self.connect()


@pytest.fixture(
    scope="module",
    params=[(MODERN, "http"), (MODERN, "json"), (OLDER, "stdio"), (OLDER, "http"), (OLDER, "json")],
    ids=lambda param: f"{'older-' if param[0] == OLDER else ''}{param[1]}",
)
def mcpdo(request: pytest.FixtureRequest, inspector: Inspector) -> Generator[Mcpdo]:
    """`mcpdo`, connected in each way."""
    era, way = request.param
    with ours(way) as server:
        connected = Mcpdo(inspector, server, era)
        connected.connect()
        yield connected
        connected("disconnect")


async def _started(server: Ours, tool: str, **arguments: object) -> str:
    """A task of our own client's: `mcpdo` tells the id of its own only with the result."""
    async with Client(_transport(server), extensions=[TasksClient()], elicitation_callback=_never) as client:
        handle = await start_task(client, tool, arguments)
        assert isinstance(handle, TaskHandle)
        return handle.id


async def _never(context: ClientRequestContext, params: ElicitRequestParams) -> ElicitResult:
    raise AssertionError("only who waits for a task is asked")


def _transport(server: Ours) -> ServerTransport:
    if len(server.target) == 1:
        return reconnecting_http(server.target[0])
    program, *arguments = server.target
    return stdio_transport(StdioServerParameters(command=program, args=arguments, cwd=ROOT))


def test_plain_call_and_task_to_its_end(mcpdo: Mcpdo) -> None:
    assert mcpdo("tools/call", "greet", "name:=Ada").text == "Hello, Ada!"
    reply = mcpdo.call("slow_compute", "seconds:=0.6", "label:=task")
    assert (reply.code, reply.text) == (0, "task: done after 0.6 s")


def test_what_an_older_client_is_offered(mcpdo: Mcpdo) -> None:
    if mcpdo.era == MODERN:
        return
    shown = mcpdo("connections/show").value
    assert (shown["protocolVersion"], shown["capabilities"]["tasks"]) == ("2025-11-25", CAPABILITY)
    task_id = mcpdo.call("slow_compute", "seconds:=0", "label:=list").value["_meta"][RELATED]["taskId"]
    assert task_id in [task["taskId"] for task in mcpdo("tasks/list").value["tasks"]]
    assert "list: done after 0 s" in str(mcpdo("tasks/result", task_id).value)


def test_failed_tasks(mcpdo: Mcpdo) -> None:
    tool, protocol = mcpdo.call("failing_job"), mcpdo.call("protocol_error_job")
    assert PROTOCOL_ERROR in protocol.error["message"]
    if mcpdo.era == OLDER:
        assert TOOL_ERROR in tool.error["message"]
        assert (tool.code, protocol.code) == (1, 1)
    else:
        assert tool.value["isError"]
        assert tool.error["code"] == "tool_is_error"


def test_questions(mcpdo: Mcpdo) -> None:
    respond = mcpdo.inspector.respond
    assert respond(mcpdo.call("confirm_delete", "filename:=a.txt"), "confirm:=true").text == "deleted a.txt"
    assert respond(mcpdo.call("confirm_delete", "filename:=b.txt"), "--decline").text == "kept b.txt"
    second = respond(mcpdo.call("multi_input"), "name:=Ada")
    assert respond(second, "confirm:=true").text == "name: accept, confirmation: accept"
    # One that comes before there is a task.
    assert respond(mcpdo.call("test_tool_with_task"), "name:=Ada").text == "Hello, Ada!"


async def test_cancel(mcpdo: Mcpdo) -> None:
    task_id = await _started(mcpdo.server, "park", seconds=30)
    assert mcpdo.status(task_id) == "working"
    assert mcpdo("tasks/cancel", task_id).code == 0
    assert mcpdo.status(task_id) == "cancelled"
    if mcpdo.era == OLDER:
        assert "terminal status" in mcpdo("tasks/cancel", task_id).error["message"]


def test_unknown_task(mcpdo: Mcpdo) -> None:
    reply = mcpdo("tasks/get", "no-such-task")
    assert reply.code == 1
    assert "Task not found" in reply.error["message"]


async def test_an_older_client_resumes_after_a_restart_and_is_asked_again(mcpdo: Mcpdo) -> None:
    if mcpdo.era == MODERN:
        return
    running = await _started(mcpdo.server, "slow_compute", seconds=2, label="left")
    asking = await _started(mcpdo.server, "confirm_delete", filename="left.txt")
    mcpdo.kill_the_server()
    assert mcpdo.status(running) in ("working", "completed")
    assert "left: done after 2 s" in str(mcpdo("tasks/result", running).value)
    assert running in [task["taskId"] for task in mcpdo("tasks/list").value["tasks"]]
    asked = mcpdo("tasks/result", asking)
    assert asked.value["elicitationPending"]["message"] == "Delete left.txt?"
    assert "deleted left.txt" in str(mcpdo.inspector.respond(asked, "confirm:=true").value)


# `inspector --cli`, which does one thing


def _cli(mcpdo: Mcpdo, tool: str, **arguments: Any) -> Reply:
    options = ["--protocol-era", mcpdo.era, "--method", "tools/call", "--tool-name", tool]
    target = mcpdo.server.target
    where = ["--transport", "http"] if len(target) == 1 else ["--cwd", str(ROOT)]
    return mcpdo.inspector.cli_method(target, *where, *options, "--tool-args-json", json.dumps(arguments))


def test_cli(mcpdo: Mcpdo) -> None:
    assert _cli(mcpdo, "greet", name="Ada").text == "Hello, Ada!"
    reply = _cli(mcpdo, "slow_compute", seconds=0.6, label="cli")
    assert (reply.code, reply.text) == (0, "cli: done after 0.6 s")
    failed = _cli(mcpdo, "failing_job")
    assert failed.code != 0
    assert TOOL_ERROR in f"{failed.error} {failed.value}"


def test_cli_cannot_answer(mcpdo: Mcpdo) -> None:
    reply = _cli(mcpdo, "confirm_delete", filename="x")
    if mcpdo.era == MODERN:
        assert reply.code == 1
        assert UNDECLARED in reply.error["message"]
    else:
        # In the plain call that it makes, the SDK asks whoever calls, if there is a way to. It says no by itself.
        assert reply.code != 0 or reply.text == "kept x"
        refused = mcpdo.inspector.cli_method(mcpdo.server.target, "--method", "tasks/list")
        assert "Unsupported method" in refused.error["message"]


# The page, in a real browser. It cannot be told the id of a task: after a restart it finds again what `tasks/list`
# shows it. That is everything of its user where the server knows its users, and what was made or looked at in the
# session where it does not.

TOKEN = "secret"
KNOWN, UNKNOWN, STDIO = "http, users known", "http", "stdio"


@pytest.fixture(scope="module", params=[KNOWN, UNKNOWN, STDIO], ids=lambda way: f"older {way}")
def page(request: pytest.FixtureRequest, installs: Begun) -> Outcomes:
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as place:
        directory = Path(place)
        first = _visit(installs["npm"], directory, request.param, {"pid": str(directory / "pid")})
        again = _visit(installs["npm"], directory, request.param, {"left": first["left"]})
        return {**first, "again": again, "way": request.param}


def _visit(home: Path, directory: Path, way: str, plan: dict[str, Any]) -> Outcomes:
    known = ("--token", TOKEN) if way == KNOWN else ()
    theirs = ("--header", f"Authorization: Bearer {TOKEN}") if way == KNOWN else ()
    files = ("--pid", str(directory / "pid"))
    with reached(directory, "stdio" if way == STDIO else "http", "fixture", *files, *known) as server:
        target = server.get("command") or [server["url"]]
        with page_of(home, target, *theirs) as url:
            return drive(command(home, "older_page.mjs"), [json.dumps({**plan, "page": url})], limit=150)


def test_older_page(page: Outcomes) -> None:
    def of(step: str, outcomes: Outcomes = page) -> Outcomes:
        outcome = outcomes[step]
        assert "error" not in outcome, f"{outcome['error']['message']}{os.linesep}{outcome['error'].get('page')}"
        return outcome

    assert page["version"] == "2.12.0"
    assert "MCP 2025-11-25" in page["connected"]
    assert of("result")["task"].startswith("task_")
    assert of("result")["text"] == "page: done after 2 s"
    assert "Delete a.txt?" in of("question")["asked"]
    assert of("question")["text"] == "deleted a.txt"
    assert of("question_declined")["text"] == "kept b.txt"
    assert TOOL_ERROR in of("failed")["text"]
    assert not of("cancel")["active"]
    # It asks for the list once, when it connects.
    assert of("list")["asked"]
    assert of("list")["shown"] == 5
    found = {"found": True, "status": "completed"} if page["way"] == KNOWN else {"found": False}
    assert of("resume", page["again"]) == found
