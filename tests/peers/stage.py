"""A server under fire: in this process, with a task in every state, and a judge of what it answers."""

import json
import logging
import random
from collections.abc import AsyncGenerator, Mapping, Sequence
from contextlib import asynccontextmanager
from datetime import timedelta
from itertools import count
from typing import Any, Final, cast

from mcp.server.mcpserver import Context
from starlette.types import ASGIApp

from harness.rpc import (
    EVERYTHING,
    LEGACY,
    MODERN,
    NOTHING,
    accept,
    error_response,
    hello,
    legacy_request,
    notification,
    request,
    response,
)
from harness.server import QUICK, Desk, build
from harness.waiting import eventually
from mcp_tasks import Fallback, Tasks
from tests.peers.nasty import spoilt
from tests.short.raw import Answer, Sent, exchange

FORM: Final[Mapping[str, Any]] = {
    "type": "object",
    "properties": {
        "name": {"type": "string", "pattern": "^(a+)+$", "maxLength": 1_000},
        "price": {"type": "number", "multipleOf": 0.01, "minimum": 0},
        "tags": {"type": "array", "items": {"type": "string", "enum": ["x", "y"]}, "uniqueItems": True},
    },
    "required": ["name"],
}
"""What the tool `fill_in` asks for: as much of a form as has rules."""

IDEMPOTENCY: Final = "mcp-tasks/idempotencyKey"

_QUIET: Final = 0.1
"""Seconds without anything new after which a stream is left."""

OLDER: Final = hello({"elicitation": {}, "sampling": {}, "roots": {}, "tasks": {"list": {}, "cancel": {}}})


class Complaints(logging.Handler):
    """Lines of the log that no peer should be able to cause: those with a traceback, and errors."""

    def __init__(self) -> None:
        super().__init__(logging.WARNING)
        self.lines: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        if record.exc_info or record.levelno >= logging.ERROR:
            self.lines.append(self.format(record))


class Stage:
    """The server, and what can be sent to it."""

    def __init__(self, app: ASGIApp, tasks: Tasks) -> None:
        self.app = app
        self.tasks = tasks
        self.complaints = Complaints()
        self.ids: dict[str, str] = {}
        self.state = ""
        self.session = ""
        self._numbers = count(1)

    async def post(self, body: bytes, headers: Sequence[tuple[bytes, bytes]]) -> Answer:
        base = [
            (b"host", b"127.0.0.1:80"),
            (b"content-type", b"application/json"),
            (b"accept", b"application/json, text/event-stream"),
            (b"content-length", str(len(body)).encode()),
        ]
        return await exchange(self.app, Sent(headers=[*base, *headers], body=body), quiet=_QUIET)

    async def modern(self, message: Mapping[str, Any], body: bytes | None = None) -> Answer:
        """Send a message of the newest wire, or what has become of it."""
        sent = json.dumps(message).encode() if body is None else body
        return await self.post(sent, _headers(_read(sent) or message))

    async def older(self, message: Mapping[str, Any], body: bytes | None = None) -> Answer:
        headers = [(b"mcp-protocol-version", LEGACY.encode()), (b"mcp-session-id", self.session.encode())]
        return await self.post(json.dumps(message).encode() if body is None else body, headers)

    async def open(self) -> None:
        opened = await self.post(json.dumps(legacy_request("initialize", OLDER)).encode(), [])
        self.session = (opened.header(b"mcp-session-id") or b"").decode()
        await self.older(notification("notifications/initialized"))
        for state, tool in {"done": "echo", "working": "gated", "asking": "fill_in", "failed": "breaks"}.items():
            created = await self.modern(call(tool, {"value": 1} if tool == "echo" else {}))
            self.ids[state] = result_of(created)["taskId"]
        self.ids["older"] = result_of(await self.older(older_call("fill_in", {})))["task"]["taskId"]
        waiting = await self.modern(call("gated", {}, capabilities=NOTHING))
        self.state = result_of(waiting).get("requestState", "")
        assert self.state

    async def still_answers(self) -> None:
        """Fail unless the server does its work as before."""
        created = result_of(await self.modern(call("echo", {"value": "fine"})))

        async def result() -> Any:
            return result_of(await self.modern(request("tasks/get", {"taskId": created["taskId"]}))).get("result")

        assert "fine" in str(await eventually(result))
        assert "tasks" in result_of(await self.older(legacy_request("tasks/list")))
        asking = result_of(await self.modern(request("tasks/get", {"taskId": self.ids["asking"]})))
        assert asking["status"] in ("input_required", "cancelled", "completed"), asking


def call(tool: str, arguments: Mapping[str, Any], *, capabilities: Mapping[str, Any] = EVERYTHING) -> dict[str, Any]:
    return request("tools/call", {"name": tool, "arguments": arguments}, capabilities=capabilities)


def older_call(tool: str, arguments: Mapping[str, Any]) -> dict[str, Any]:
    return legacy_request("tools/call", {"name": tool, "arguments": arguments, "task": {"ttl": 60_000}})


def messages_of(answer: Answer) -> list[dict[str, Any]]:
    """The messages in an answer, strictly read; empty if there are none."""
    if answer.is_stream:
        lines = [line for line in answer.body.splitlines() if line.startswith(b"data:")]
        return [json.loads(line[5:]) for line in lines if line[5:].strip()]
    if (answer.header(b"content-type") or b"").startswith(b"application/json") and answer.body:
        return [json.loads(answer.body)]
    return []


def result_of(answer: Answer) -> dict[str, Any]:
    results = [message["result"] for message in messages_of(answer) if "result" in message]
    assert results, answer
    return results[0]


def fault_in(answer: Answer, sent: int) -> str | None:
    """What is wrong with an answer to so many bytes; None for a right answer and for a defined refusal."""
    if answer.raised is not None:
        return f"raised {answer.raised}"
    if answer.status is None or answer.status >= 500:
        return f"status {answer.status}: {answer.body[:300]!r}"
    for message in messages_of(answer):
        if message.get("jsonrpc") != "2.0":
            return f"no JSON-RPC: {str(message)[:300]}"
        error = message.get("error")
        if error is not None and not (isinstance(error.get("code"), int) and isinstance(error.get("message"), str)):
            return f"no error: {str(message)[:300]}"
        if error is not None and error["code"] == -32603:
            return f"an internal error: {str(message)[:300]}"
        if error is not None and len(str(error)) > 20_000 + 2 * sent:
            return f"an error of {len(str(error))} characters: {str(error)[:300]}"
    return None


def _headers(message: Mapping[str, Any]) -> list[tuple[bytes, bytes]]:
    """The headers that belong to a message, as far as a header can carry what it says."""
    method, params = message.get("method"), message.get("params")
    headers = [(b"mcp-protocol-version", MODERN.encode())]
    if isinstance(method, str):
        headers.append((b"mcp-method", _latin(method)))
    if isinstance(params, Mapping):
        name = cast("Mapping[str, Any]", params).get("taskId" if str(method).startswith("tasks/") else "name")
        if isinstance(name, str):
            headers.append((b"mcp-name", _latin(name)))
    return headers


def _latin(text: str) -> bytes:
    return text.encode("latin-1", errors="replace").replace(b"\r", b"").replace(b"\n", b"")[:10_000]


def _read(body: bytes) -> Mapping[str, Any] | None:
    try:
        message = json.loads(body)
    except (ValueError, RecursionError):
        return None
    return cast("Mapping[str, Any]", message) if isinstance(message, dict) else None


@asynccontextmanager
async def stage() -> AsyncGenerator[Stage]:
    tasks = Tasks(
        "memory://",
        settings=QUICK,
        fallback=Fallback(wait=timedelta(milliseconds=20), legs=3, model_may_answer=True),
        companions="always",
    )
    server = build(tasks, Desk())

    @server.tool()
    @tasks.task(recover="rerun")
    async def fill_in(ctx: Context) -> str:
        answer = await ctx.session.elicit_form("Fill this in", dict(FORM))
        return answer.action

    app = server.streamable_http_app(json_response=False)
    async with app.router.lifespan_context(app):
        staged = Stage(app, tasks)
        root = logging.getLogger()
        level = root.level
        root.addHandler(staged.complaints)
        # The SDK's server has set it to what it logs itself.
        root.setLevel(logging.WARNING)
        try:
            await staged.open()
            yield staged
        finally:
            root.removeHandler(staged.complaints)
            root.setLevel(level)


def modern_messages(staged: Stage) -> list[dict[str, Any]]:
    """Good messages of the newest wire: every method, with and without tasks."""
    ids = staged.ids
    form = {"action": "accept", "content": {"name": "aaa", "price": 1.25, "tags": ["x", "y"]}}
    answers = {"inputResponses": {"q1": form}}
    back: dict[str, Any] = {"name": "gated", "arguments": {}, "requestState": staged.state}
    return [
        call("echo", {"value": [1, {"a": "b"}]}),
        call("point", {"x": 1.5}),
        call("must", {}),
        call("ask_before", {}),
        request("tools/call", {"name": "echo", "arguments": {"value": 1}}, meta={IDEMPOTENCY: "k" * 22}),
        call("echo", {"value": 1}, capabilities=NOTHING),
        call("task_status", {"task_id": ids["done"], "wait_seconds": 0}, capabilities=NOTHING),
        call("task_cancel", {"task_id": ids["failed"]}, capabilities=NOTHING),
        call(
            "task_answer",
            {"task_id": ids["asking"], "action": "accept", "content": {"name": "b"}, "question": "none"},
            capabilities=NOTHING,
        ),
        request("tools/call", back, capabilities=NOTHING),
        request("tools/call", {**back, **answers}, capabilities=EVERYTHING),
        *(request("tasks/get", {"taskId": each}) for each in (*ids.values(), "unknown")),
        request("tasks/update", {"taskId": ids["asking"], **answers}),
        request("tasks/update", {"taskId": ids["done"], **answers}),
        request("tasks/cancel", {"taskId": ids["done"]}),
        request("tasks/cancel", {"taskId": "unknown"}),
        request("subscriptions/listen", {"notifications": {"taskIds": [ids["done"], ids["working"], "unknown"]}}),
        request("subscriptions/listen", {"notifications": {"taskIds": [ids["done"]], "toolsListChanged": True}}),
        request("server/discover"),
        request("tools/list"),
    ]


def older_messages(staged: Stage) -> list[dict[str, Any]]:
    """Good messages of 2025-11-25: every method, notifications, and answers to what the server may have asked."""
    ids = staged.ids
    related = {"_meta": {"io.modelcontextprotocol/related-task": {"taskId": ids["older"]}}}

    return [
        legacy_request("initialize", OLDER),
        older_call("echo", {"value": [1]}),
        older_call("point", {"x": 1}),
        legacy_request(
            "tools/call", {"name": "echo", "arguments": {"value": 1}, "task": {}, "_meta": {IDEMPOTENCY: "k" * 22}}
        ),
        legacy_request("tools/call", {"name": "echo", "arguments": {"value": 1}, "_meta": {"progressToken": 1}}),
        legacy_request("tools/call", {"name": "task_status", "arguments": {"task_id": ids["done"], "wait_seconds": 0}}),
        *(legacy_request("tasks/get", {"taskId": each}) for each in (*ids.values(), "unknown")),
        *(legacy_request("tasks/result", {"taskId": ids[each]}) for each in ("done", "failed", "older")),
        legacy_request("tasks/list", {"cursor": "x"}),
        legacy_request("tasks/list"),
        legacy_request("tasks/cancel", {"taskId": ids["done"]}),
        legacy_request("tools/list"),
        notification("notifications/initialized", {}),
        notification("notifications/cancelled", {"requestId": 1, "reason": "x"}),
        notification("notifications/progress", {"progressToken": 1, "progress": 0.5, "total": 1}),
        notification(
            "notifications/tasks/status", {"taskId": ids["older"], "status": "working", "ttl": None, **related}
        ),
        notification("notifications/roots/list_changed", {}),
        response(1, {**accept(name="a"), **related}),
        error_response(1, -1, "no", {}),
    ]


class Fuzz:
    def __init__(self, staged: Stage, seed: int) -> None:
        self._staged = staged
        self._chance = random.Random(seed)
        self._modern, self._older = modern_messages(staged), older_messages(staged)

    async def one(self) -> str | None:
        """Send one; what was wrong, with all that is needed to see it again, or None."""
        is_modern = self._chance.random() < 0.6
        good = self._chance.choice(self._modern if is_modern else self._older)
        body = spoilt(self._chance, good)
        answer = await (self._staged.modern if is_modern else self._staged.older)(good, body)
        fault = fault_in(answer, len(body))
        if self._staged.complaints.lines:
            fault = f"{fault or ''} logged: {self._staged.complaints.lines[0]}"
            self._staged.complaints.lines.clear()
        era = "modern" if is_modern else "older"
        return None if fault is None else f"{era} {good.get('method', 'answer')}: {body[:600]!r}: {fault}"
