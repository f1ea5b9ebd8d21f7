"""One keep-alive connection, with as little between the socket and the clock as there can be.

The server's CPU is what is counted, but latency is measured here: a real HTTP client would add more to it than some
of the servers do.
"""

from __future__ import annotations

import json
import re
import socket
from collections.abc import Mapping, Sequence
from typing import Any

from harness.rpc import LEGACY, MODERN, TASKS, hello, legacy_request, notification, request

ID = 1
"""Of every request: each is made once, and sent as often as it takes."""

TIMEOUT = 120.0
"""Seconds for one answer; only a server that hangs needs them."""

_LENGTH = re.compile(rb"\r\ncontent-length: *(\d+)\r\n", re.IGNORECASE)
_CHUNKED = b"\r\ntransfer-encoding: chunked\r\n"
_LAST_CHUNK = b"\r\n0\r\n\r\n"
_SESSION = re.compile(rb"\r\nmcp-session-id: *(\S+)\r\n", re.IGNORECASE)


class BenchError(Exception):
    """A server did not do what is being measured."""


def tool_call(tool: str, **arguments: Any) -> bytes:
    """A `tools/call`, ready to be sent."""
    return _request("tools/call", tool, {"name": tool, "arguments": arguments})


def plain_tool_call(tool: str, **arguments: Any) -> bytes:
    """The same by a client that speaks no tasks."""
    return _request("tools/call", tool, {"name": tool, "arguments": arguments}, capabilities={})


def task_get(task_id: str) -> bytes:
    """A `tasks/get`, ready to be sent."""
    return _request("tasks/get", task_id, {"taskId": task_id})


def task_update(task_id: str, **answers: Any) -> bytes:
    """A `tasks/update`, ready to be sent."""
    return _request("tasks/update", task_id, {"taskId": task_id, "inputResponses": answers})


def task_cancel(task_id: str) -> bytes:
    """A `tasks/cancel`, ready to be sent."""
    return _request("tasks/cancel", task_id, {"taskId": task_id})


def method_call(method: str) -> bytes:
    """A request of a method without params, ready to be sent."""
    return _request(method, None, {})


def listen(task_ids: Sequence[str]) -> bytes:
    """A `subscriptions/listen` for these tasks, ready to be sent."""
    return _request("subscriptions/listen", None, {"notifications": {"taskIds": list(task_ids)}})


def answer_in(received: bytes | bytearray) -> bytes | None:
    """The body of an answer, or its one event if it is a stream; None while the answer is not there as a whole.

    Raises:
        BenchError: The answer has another status than 200, or no end that can be told.
    """
    end = received.find(b"\r\n\r\n")
    if end < 0:
        return None
    head = bytes(received[: end + 2])
    length = _LENGTH.search(head)
    if head.startswith(b"HTTP/1.1 200") and length is not None:
        whole = end + 4 + int(length[1])
        return bytes(received[end + 4 : whole]) if len(received) >= whole else None
    if head.startswith(b"HTTP/1.1 200") and _CHUNKED in head.lower():
        return _event(received) if received.endswith(_LAST_CHUNK) else None
    raise BenchError(f"unexpected answer: {bytes(received[:500])!r}")


def _event(received: bytes | bytearray) -> bytes:
    return bytes(received).partition(b"data: ")[2].partition(b"\r\n")[0]


def connect_to(port: int) -> socket.socket:
    """A connection to a server on this machine."""
    connected = socket.create_connection(("127.0.0.1", port), timeout=TIMEOUT)
    connected.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    return connected


def older_tool_call(connection: Connection, tool: str, **arguments: Any) -> bytes:
    """A `tools/call` of the 2025-11-25 wire in a session that is begun here, ready to be sent."""
    session = connection.session(_post(legacy_request("initialize", hello(), ID), ""))
    headers = f"MCP-Protocol-Version: {LEGACY}\r\nMcp-Session-Id: {session}\r\n"
    connection.exchange(_post(notification("notifications/initialized"), headers), status=202)
    return _post(legacy_request("tools/call", {"name": tool, "arguments": arguments}, ID), headers)


def _request(method: str, name: str | None, params: dict[str, Any], capabilities: Mapping[str, Any] = TASKS) -> bytes:
    # Tasks are declared to the bare server too, so that all requests have the same envelope to parse.
    message = request(method, params, capabilities=capabilities, request_id=ID)
    named = "" if name is None else f"Mcp-Name: {name}\r\n"
    return _post(message, f"MCP-Protocol-Version: {MODERN}\r\nMcp-Method: {method}\r\n{named}")


def _post(message: dict[str, Any], headers: str) -> bytes:
    body = json.dumps(message, separators=(",", ":")).encode()
    head = (
        "POST /mcp HTTP/1.1\r\nHost: 127.0.0.1:80\r\nContent-Type: application/json\r\n"
        f"Accept: application/json, text/event-stream\r\n{headers}Content-Length: {len(body)}\r\n\r\n"
    )
    return head.encode() + body


class Connection:
    """A blocking HTTP/1.1 connection that sends what is ready and reads one answer."""

    def __init__(self, port: int) -> None:
        self.port = port
        self._socket = connect_to(self.port)

    def renew(self) -> None:
        """Hang up and call again: a server hangs up by itself on a connection that was not used for five seconds."""
        self._socket.close()
        self._socket = connect_to(self.port)

    def exchange(self, request: bytes, *, status: int = 200) -> bytes:
        """Send a request and return the body of its answer, or the one event of an answer that is a stream.

        Raises:
            BenchError: The answer has another status, or no end that can be told.
        """
        return self._exchange(request, status)[1]

    def session(self, request: bytes) -> str:
        """Send an `initialize`, and return the id of the session that it began.

        Raises:
            BenchError: It began none.
        """
        head, body = self._exchange(request, 200)
        named = _SESSION.search(head + b"\r\n")
        if named is None:
            raise BenchError(f"no session: {(head + body)[:500]!r}")
        return named[1].decode()

    def _exchange(self, request: bytes, status: int) -> tuple[bytes, bytes]:
        self._socket.sendall(request)
        head, rest = self._read_head()
        length = _LENGTH.search(head + b"\r\n")
        if head.startswith(b"HTTP/1.1 %d" % status) and length is not None:
            return head, self._read_length(rest, int(length[1]))
        if head.startswith(b"HTTP/1.1 %d" % status) and _CHUNKED in head.lower() + b"\r\n":
            # What the SDK has ready on the newer wire comes with a length in both modes; the older wire has a stream.
            return head, self._read_event(rest)
        raise BenchError(f"unexpected answer: {(head + rest)[:500]!r}")

    def _read_length(self, rest: bytes, length: int) -> bytes:
        parts = [rest]
        missing = length - len(rest)
        while missing > 0:
            parts.append(self._receive())
            missing -= len(parts[-1])
        return b"".join(parts)

    def _read_event(self, rest: bytes) -> bytes:
        while not rest.endswith(_LAST_CHUNK):
            rest += self._receive()
        return _event(rest)

    def first_notification(self, request: bytes, method: str) -> None:
        """Send a request that is answered with a stream, and return once a notification of `method` is on it.

        Raises:
            BenchError: The stream ended without one.
        """
        self._socket.sendall(request)
        wanted = f'"method":"{method}"'.encode()
        received = b""
        while wanted not in received:
            # What was seen is kept, in case the name comes in two parts.
            received = received[-len(wanted) :] + self._receive()

    def result(self, request: bytes) -> dict[str, Any]:
        """Send a request and return the result of its answer.

        Raises:
            BenchError: It was answered with an error.
        """
        answer = json.loads(self.exchange(request))
        if "result" not in answer or answer["result"].get("isError"):
            raise BenchError(f"unexpected answer: {answer}")
        return answer["result"]

    def close(self) -> None:
        """Hang up."""
        self._socket.close()

    def _read_head(self) -> tuple[bytes, bytes]:
        received = self._receive()
        while b"\r\n\r\n" not in received:
            received += self._receive()
        head, _, rest = received.partition(b"\r\n\r\n")
        return head, rest

    def _receive(self) -> bytes:
        part = self._socket.recv(65536)
        if not part:
            raise BenchError("the server hung up")
        return part
