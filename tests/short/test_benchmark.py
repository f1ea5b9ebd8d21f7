"""The benchmark's own requests are answered the short way, on a server that has what servers have: else what is
measured there is not what users get, and a release of the SDK could switch it off in silence.

Spans tell the same of a request, whichever way it went.
"""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Any

import pytest

from bench.client import Connection, listen, plain_tool_call, task_cancel, task_get, task_update, tool_call
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

    def __init__(self, port: int) -> None:
        self.connection = Connection(port)

    def ask(self, request: bytes, *, status: int = 200) -> dict[str, Any]:
        """Send one of the benchmark's requests, with a token and a trace beside it."""
        body = self.connection.exchange(_dressed(request), status=status)
        return json.loads(body) if body.startswith(b"{") else {}

    def listen(self, task_id: str) -> None:
        """Open a stream, and leave it when it has been acknowledged."""
        self.connection.first_notification(_dressed(listen([task_id])), "notifications/tasks")
        self.connection.renew()

    def create(self, **arguments: Any) -> str:
        """Make a task; gives its id."""
        return self.ask(tool_call("noop", **arguments))["result"]["taskId"]

    def seen(self) -> dict[str, Any]:
        """What the server has seen so far."""
        return json.loads(self.ask(plain_tool_call("seen"))["result"]["content"][0]["text"])


def _dressed(request: bytes) -> bytes:
    head, _, body = request.partition(b"\r\n\r\n")
    message = json.loads(body)
    message["params"]["_meta"]["traceparent"] = TRACE
    dressed = json.dumps(message).encode()
    head = head.replace(b"Content-Length: %d" % len(body), b"Content-Length: %d" % len(dressed))
    return head + b"\r\nAuthorization: Bearer alice\r\n\r\n" + dressed


def _spans(way: Way) -> list[dict[str, Any]]:
    """What is collected of requests of every kind: answered, refused, failed, and never heard of again."""
    task = way.create()
    way.ask(task_get(task))
    way.ask(task_get("nobody"), status=400)
    way.ask(task_update(task))
    way.ask(task_cancel(task))
    way.ask(task_cancel("nobody"), status=400)
    way.ask(tool_call("noop", fails=7))
    for failure in ("store", "defect"):
        assert "error" in way.ask(tool_call("noop", fails=failure))
    way.ask(task_get(task).replace(b"\r\n", b"\r\nX-Leaves: 1\r\n", 1), status=500)
    way.connection.renew()
    way.listen(task)
    ends = time.monotonic() + PATIENCE
    while (spans := way.seen()["spans"])[-1]["name"] != "subscriptions/listen":
        assert time.monotonic() < ends, f"the span of a stream that was left does not end: {spans}"
        time.sleep(0.01)
    return spans


@pytest.mark.slow
def test_the_benchmarks_requests_are_answered_the_short_way_and_leave_the_same_spans(tmp_path: Path) -> None:
    told: list[list[dict[str, Any]]] = []
    for which in ("short", "long"):
        arguments = ("{fd}", tmp_path / f"{which}.db", which)
        with ServerProcess("tests.short.benched", *arguments, fork=False, env=environment(), polite=True) as server:
            way = Way(server.port)
            told.append(_spans(way))
            before = way.seen()
            for task in [way.create() for _ in range(TIMES if which == "short" else 0)]:
                for request in (task_get(task), task_update(task, who={"action": "cancel"}), task_cancel(task)):
                    way.ask(request)
                way.listen(task)
            after = way.seen()
            way.connection.close()
        for method, once in before["answered"].items():
            assert once >= 1
            answered = after["answered"][method] - once
            assert answered >= SHARE * TIMES, f"{answered} of {method}; handed over: {after['handed_over']}"
        methods = {"tools/call", "tasks/get", "tasks/update", "tasks/cancel", "subscriptions/listen"}
        assert before["answered"].keys() == (methods if which == "short" else set())
    assert told[0] == told[1]
    # One each.
    assert [span["name"] for span in told[0]] == [
        *("tools/call noop", "tasks/get", "tasks/get", "tasks/update", "tasks/cancel", "tasks/cancel"),
        *("tools/call noop", "tools/call noop", "tools/call noop", "tasks/get", "subscriptions/listen"),
    ]
    assert {span["parent"] for span in told[0]} == {TRACE.split("-")[2]}
