"""The MCP Inspector's command lines against our server, on the 2025-11-25 wire."""

from __future__ import annotations

from collections.abc import Generator

import pytest
from mcp import Client
from mcp.client.session import ClientRequestContext
from mcp.client.stdio import StdioServerParameters
from mcp_types import ElicitRequestParams, ElicitResult

from harness.processes import ROOT
from mcp_tasks.client import ServerTransport, TaskHandle, TasksClient, reconnecting_http, start_task, stdio_transport

from .conftest import Installs
from .inspector import Inspector, Reply, inspecting
from .older import WAYS, Ours, ours

TOOL_ERROR = "the job failed, as it always does"
PROTOCOL_ERROR = "the job ended in a protocol error, as it always does"
UNDECLARED = "the client did not declare the elicitation capability"
RELATED = "io.modelcontextprotocol/related-task"
CAPABILITY: dict[str, object] = {"list": {}, "cancel": {}, "requests": {"tools": {"call": {}}}}


@pytest.fixture(scope="module")
def inspector(installs: Installs) -> Generator[Inspector]:
    """The Inspector."""
    with inspecting(installs["npm"]) as inspector:
        yield inspector


@pytest.fixture(scope="module", params=WAYS)
def server(request: pytest.FixtureRequest) -> Generator[Ours]:
    """Our server, in each way of reaching it."""
    with ours(request.param) as server:
        yield server


class Mcpdo:
    """`mcpdo` with a connection to our server."""

    def __init__(self, inspector: Inspector, server: Ours, name: str) -> None:
        self._inspector = inspector
        self._server = server
        self._name = name

    def connect(self, *options: str) -> Reply:
        """Connect, under a name that is not in use."""
        return self._inspector.connect_older(self._name, self._server.target, *options)

    def __call__(self, *arguments: str) -> Reply:
        return self._inspector.mcpdo("--connection", self._name, *arguments)

    def call(self, tool: str, *fields: str) -> Reply:
        """Call a tool as a task."""
        return self("tools/call", "--task", tool, *fields)

    def status(self, task_id: str) -> str:
        """The status of a task."""
        return self("tasks/get", task_id).value["task"]["status"]

    def close(self) -> None:
        """Disconnect."""
        self("disconnect")


@pytest.fixture(scope="module")
def mcpdo(inspector: Inspector, server: Ours) -> Generator[Mcpdo]:
    """`mcpdo`, connected on the older wire."""
    connected = Mcpdo(inspector, server, f"ours-{server.directory.name}")
    assert connected.connect().value["protocolEra"] == "legacy"
    yield connected
    connected.close()


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
    command, *arguments = server.target
    return stdio_transport(StdioServerParameters(command=command, args=arguments, cwd=ROOT))


# --- mcpdo --------------------------------------------------------------------------------------------------


def test_the_handshake_offers_tasks(mcpdo: Mcpdo) -> None:
    shown = mcpdo("connections/show").value
    assert shown["protocolVersion"] == "2025-11-25"
    assert shown["capabilities"]["tasks"] == CAPABILITY


def test_plain_call(mcpdo: Mcpdo) -> None:
    assert mcpdo("tools/call", "greet", "name:=Ada").text == "Hello, Ada!"


def test_create_and_result(mcpdo: Mcpdo) -> None:
    reply = mcpdo.call("slow_compute", "seconds:=0.6", "label:=task")
    assert (reply.code, reply.text) == (0, "task: done after 0.6 s")
    assert mcpdo.status(reply.value["_meta"][RELATED]["taskId"]) == "completed"


def test_list_and_a_result_that_is_asked_for_again(mcpdo: Mcpdo) -> None:
    task_id = mcpdo.call("slow_compute", "seconds:=0", "label:=list").value["_meta"][RELATED]["taskId"]
    assert task_id in [task["taskId"] for task in mcpdo("tasks/list").value["tasks"]]
    assert "list: done after 0 s" in str(mcpdo("tasks/result", task_id).value)


@pytest.mark.parametrize(
    ("tool", "message"), [("failing_job", TOOL_ERROR), ("protocol_error_job", PROTOCOL_ERROR)], ids=["tool", "protocol"]
)
def test_failed_task(mcpdo: Mcpdo, tool: str, message: str) -> None:
    reply = mcpdo.call(tool)
    assert reply.code == 1
    assert message in reply.error["message"]


def test_question(mcpdo: Mcpdo, inspector: Inspector) -> None:
    asked = mcpdo.call("confirm_delete", "filename:=a.txt")
    assert inspector.respond(asked, "confirm:=true").text == "deleted a.txt"


def test_question_declined(mcpdo: Mcpdo, inspector: Inspector) -> None:
    asked = mcpdo.call("confirm_delete", "filename:=b.txt")
    assert inspector.respond(asked, "--decline").text == "kept b.txt"


def test_two_questions_one_after_the_other(mcpdo: Mcpdo, inspector: Inspector) -> None:
    first = mcpdo.call("multi_input")
    second = inspector.respond(first, "name:=Ada")
    assert inspector.respond(second, "confirm:=true").text == "name: accept, confirmation: accept"


def test_a_question_that_comes_first(mcpdo: Mcpdo, inspector: Inspector) -> None:
    asked = mcpdo.call("test_tool_with_task")
    assert inspector.respond(asked, "name:=Ada").text == "Hello, Ada!"


@pytest.mark.anyio
async def test_cancel(mcpdo: Mcpdo, server: Ours) -> None:
    task_id = await _started(server, "park", seconds=30)
    assert mcpdo.status(task_id) == "working"
    assert mcpdo("tasks/cancel", task_id).code == 0
    assert mcpdo.status(task_id) == "cancelled"
    assert "terminal status" in mcpdo("tasks/cancel", task_id).error["message"]


def test_unknown_task(mcpdo: Mcpdo) -> None:
    reply = mcpdo("tasks/get", "no-such-task")
    assert reply.code == 1
    assert "Task not found" in reply.error["message"]


@pytest.mark.anyio
async def test_resume_after_a_restart(mcpdo: Mcpdo, server: Ours) -> None:
    task_id = await _started(server, "slow_compute", seconds=2, label="left")
    mcpdo.status(task_id)
    server.kill()
    mcpdo.close()
    assert mcpdo.connect().value["protocolEra"] == "legacy"
    assert mcpdo.status(task_id) in ("working", "completed")
    assert "left: done after 2 s" in str(mcpdo("tasks/result", task_id).value)
    assert task_id in [task["taskId"] for task in mcpdo("tasks/list").value["tasks"]]


@pytest.mark.anyio
async def test_a_question_is_asked_again_after_a_restart(mcpdo: Mcpdo, inspector: Inspector, server: Ours) -> None:
    task_id = await _started(server, "confirm_delete", filename="left.txt")
    server.kill()
    mcpdo.close()
    assert mcpdo.connect().value["protocolEra"] == "legacy"
    asked = mcpdo("tasks/result", task_id)
    assert asked.value["elicitationPending"]["message"] == "Delete left.txt?"
    answered = inspector.respond(asked, "confirm:=true")
    assert "deleted left.txt" in str(answered.value)


# --- --cli --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("call", "text"),
    [
        (("greet", '{"name": "Ada"}'), "Hello, Ada!"),
        (("slow_compute", '{"seconds": 0.6, "label": "cli"}'), "cli: done after 0.6 s"),
    ],
)
def test_cli_calls_plainly(inspector: Inspector, server: Ours, call: tuple[str, str], text: str) -> None:
    """It has no way to ask for a task: a tool that may be one answers when it is done."""
    reply = _cli(inspector, server, *call)
    assert (reply.code, reply.text) == (0, text)


def test_cli_creates_a_task_where_it_must(inspector: Inspector, server: Ours) -> None:
    reply = _cli(inspector, server, "failing_job", "{}")
    assert reply.code == 1
    assert TOOL_ERROR in reply.error["message"]


def test_cli_cannot_answer(inspector: Inspector, server: Ours) -> None:
    """In the plain call that it makes, the SDK asks whoever calls, if there is a way to. It says no by itself."""
    reply = _cli(inspector, server, "confirm_delete", '{"filename": "x"}')
    assert reply.code != 0 or reply.text == "kept x"


@pytest.mark.parametrize("method", ["tasks/list", "tasks/get", "tasks/result", "tasks/cancel"])
def test_cli_has_no_way_to_a_task(inspector: Inspector, server: Ours, method: str) -> None:
    reply = inspector.cli_method(server.target, "--method", method)
    assert "Unsupported method" in reply.error["message"]


def _cli(inspector: Inspector, server: Ours, tool: str, arguments: str) -> Reply:
    options = ["--protocol-era", "legacy", "--method", "tools/call"]
    where = ["--transport", "http"] if len(server.target) == 1 else ["--cwd", str(ROOT)]
    return inspector.cli_method(server.target, *where, *options, "--tool-name", tool, "--tool-args-json", arguments)
