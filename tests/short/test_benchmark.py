"""The benchmark's own requests are answered the short way, on servers that have what servers have: else what is
measured there is not what users get, and a release of the SDK could switch it off in silence.

Spans tell the same of a request, whichever way it went.
"""

from __future__ import annotations

import json
import time
from collections.abc import Generator, Sequence
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

import pytest

from bench.client import (
    BenchError,
    Connection,
    listen,
    plain_tool_call,
    task_cancel,
    task_get,
    task_update,
    tool_call,
)
from harness.processes import environment
from harness.rpc import PATIENCE
from harness.serving import ServerProcess

TRACE = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
TIMES = 20
"""How often each request is sent."""

SHARE = 0.95
"""How many of them are to be answered the short way, at the least."""


class Way:
    """A way to a server in another process."""

    def __init__(self, port: int, options: Sequence[str]) -> None:
        self._options = options
        self._connection = Connection(port)

    def ask(self, request: bytes, *, status: int = 200) -> dict[str, Any]:
        """Send one of the benchmark's requests, with what this server wants beside it."""
        body = self._connection.exchange(self._dressed(request), status=status)
        return json.loads(body) if body.startswith(b"{") else {}

    def listen(self, task_id: str) -> None:
        """Open a stream, and leave it when it has been acknowledged."""
        self._connection.first_notification(self._dressed(listen([task_id])), "notifications/tasks")
        self._connection.renew()

    def create(self, **arguments: Any) -> str:
        """Make a task; gives its id."""
        return self.ask(tool_call("noop", **arguments))["result"]["taskId"]

    def finished(self, task_id: str) -> None:
        """Wait for the end of a task."""
        while self.ask(task_get(task_id))["result"]["status"] == "working":
            time.sleep(0.01)

    def seen(self) -> dict[str, Any]:
        """What the server has seen so far."""
        return json.loads(self.ask(plain_tool_call("seen"))["result"]["content"][0]["text"])

    def renew(self) -> None:
        """Hang up and call again."""
        self._connection.renew()

    def close(self) -> None:
        """Hang up."""
        self._connection.close()

    def _dressed(self, request: bytes) -> bytes:
        head, _, body = request.partition(b"\r\n\r\n")
        if "auth" in self._options:
            head += b"\r\nAuthorization: Bearer alice"
        if "traced" in self._options:
            message = json.loads(body)
            message["params"]["_meta"]["traceparent"] = TRACE
            old, body = body, json.dumps(message).encode()
            head = head.replace(b"Content-Length: %d" % len(old), b"Content-Length: %d" % len(body))
        return head + b"\r\n\r\n" + body


@contextmanager
def _benched(db: Path, *options: str) -> Generator[Way]:
    arguments = ("{fd}", db, *options)
    with (
        ServerProcess("tests.short.benched", *arguments, fork=False, env=environment(), polite=True) as server,
        closing(Way(server.port, options)) as way,
    ):
        yield way


@pytest.mark.parametrize(
    "options", [(), ("auth",), ("watched",)], ids=["nothing else", "authentication", "audit and metrics"]
)
def test_the_benchmarks_requests_are_answered_the_short_way(tmp_path: Path, options: Sequence[str]) -> None:
    with _benched(tmp_path / "tasks.db", *options) as way:
        tasks = [way.create() for _ in range(TIMES)]
        for task in tasks:
            way.finished(task)
        before = way.seen()
        for task in tasks:
            way.create()
            way.ask(task_get(task))
            way.ask(task_update(task, who={"action": "cancel"}))
            way.ask(task_cancel(task))
        for task in tasks[:5]:
            way.listen(task)
        after = way.seen()
    for method in ("tools/call", "tasks/get", "tasks/update", "tasks/cancel", "subscriptions/listen"):
        sent = 5 if method == "subscriptions/listen" else TIMES
        answered = after["answered"].get(method, 0) - before["answered"].get(method, 0)
        assert answered >= SHARE * sent, f"{answered} of {sent} {method}; handed over: {after['handed_over']}"


def test_spans_are_those_of_the_sdk_and_made_here(tmp_path: Path) -> None:
    """With traces collected, too, what can be answered the short way is."""
    with (
        _benched(tmp_path / "short.db", "traced", "auth") as short,
        _benched(tmp_path / "long.db", "traced", "auth", "long") as long,
    ):
        told = [_spans(way) for way in (short, long)]
        answered = short.seen()["answered"]
    assert told[0] == told[1]
    # Those that were answered, those that were refused, and those that failed: one each.
    assert [span["name"] for span in told[0]] == [
        "tools/call noop",
        "tasks/get",
        "tasks/get",
        "tasks/update",
        "tasks/cancel",
        "tasks/cancel",
        "tools/call noop",
        "tools/call noop",
        "tools/call noop",
        "tasks/get",
        "subscriptions/listen",
    ]
    assert {span["parent"] for span in told[0]} == {TRACE.split("-")[2]}
    assert {span["ends"] for span in told[0]} == {1}
    assert answered == {
        "tools/call": 3,
        "tasks/get": 1,
        "tasks/update": 1,
        "tasks/cancel": 1,
        "subscriptions/listen": 1,
    }


_LEFT_OUT = ("tools/call seen", "tasks.run")
"""Spans that are not of the requests that are compared."""


def _without_id(span: dict[str, Any]) -> dict[str, Any]:
    """The span with whether it names its task, and not which that is: no two servers have the same."""
    attributes = {name: name == "mcp_tasks.task" or value for name, value in span["attributes"].items()}
    return {**span, "attributes": attributes}


def _spans(way: Way) -> list[dict[str, Any]]:
    """What is collected of requests of every kind, those of asking for it left out."""
    task = way.create()
    way.ask(task_get(task))
    way.ask(task_get("nobody"), status=400)
    way.ask(task_update(task))
    way.ask(task_cancel(task))
    way.ask(task_cancel("nobody"), status=400)
    way.ask(tool_call("noop", fails=7))
    for failure in ("store", "defect"):
        assert "error" in way.ask(tool_call("noop", fails=failure))
    # Answered, and never heard of.
    way.ask(task_get(task).replace(b"\r\n", b"\r\nX-Leaves: 1\r\n", 1), status=500)
    way.renew()
    way.listen(task)
    deadline = time.monotonic() + PATIENCE
    while True:
        spans = [span for span in way.seen()["spans"] if span["name"] not in _LEFT_OUT and span["ends"]]
        if spans[-1]["name"] == "subscriptions/listen":
            return [_without_id(span) for span in spans]
        if time.monotonic() > deadline:
            raise BenchError(f"the span of a stream that was left does not end: {spans}")
        time.sleep(0.01)
