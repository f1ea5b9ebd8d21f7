"""Clients of the 2025-11-25 wire that see every message as it comes, over HTTP and over the pipes of a process.

As a program it is a client to be killed: it makes a task, waits for its result, and says when it is asked.

    python -m tests.chaos.legacy_clients --port 8000 --folder /tmp/x
    python -m tests.chaos.legacy_clients --db tasks.db --folder /tmp/x
"""

from __future__ import annotations

import argparse
import json
import socket
import subprocess
import threading
import time
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from functools import partial
from http.client import HTTPConnection, HTTPResponse
from pathlib import Path
from typing import Any, Protocol

from harness.forking import fork
from harness.processes import PIPE, kill
from harness.rpc import LEGACY, hello, legacy_request, notification, response
from tests.chaos.serving import GATED, GONE

ASKABLE: Mapping[str, Any] = {"elicitation": {}}
RELATED = "io.modelcontextprotocol/related-task"
LIMIT = 45.0
"""Seconds until a message must have come, the start of a server over stdio included."""

Message = dict[str, Any]


class Stream:
    """Messages as they come, read by a thread of its own.

    Args:
        hang_up: Has the lines end.
        release: Closes what they came from, when they have ended.
    """

    def __init__(self, lines: Iterable[bytes], hang_up: Callable[[], None], release: Callable[[], None]) -> None:
        self.messages: list[Message] = []
        self._lines = lines
        self._hang_up = hang_up
        self._release = release
        self._changed = threading.Condition()
        self._over = False
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def close(self) -> None:
        """Hang up; safe twice."""
        self._hang_up()
        self._reader.join()

    def until(self, wanted: Callable[[Message], bool], *, after: int = 0) -> Message:
        """The first message that is wanted, of those that come after so many."""
        deadline = time.monotonic() + LIMIT
        with self._changed:
            while True:
                for message in self.messages[after:]:
                    if wanted(message):
                        return message
                left = deadline - time.monotonic()
                assert left > 0, f"it does not come: {self.messages}"
                assert not self._over, f"the stream ended without it: {self.messages}"
                self._changed.wait(left)

    def question(self, message: str) -> Message:
        """The question with this text."""
        return self.until(lambda each: each.get("params", {}).get("message") == message)

    def answer_to(self, number: int) -> Message:
        return self.until(lambda each: "method" not in each and each.get("id") == number)

    def _read(self) -> None:
        with suppress(*GONE, ValueError, AttributeError):
            for line in self._lines:
                text = line.removeprefix(b"data:").strip()
                if text.startswith(b"{"):
                    with self._changed:
                        self.messages.append(json.loads(text))
                        self._changed.notify_all()
        self._release()
        with self._changed:
            self._over = True
            self._changed.notify_all()


class Client(Protocol):
    """A session with a server."""

    def begin(self, method: str, **params: Any) -> tuple[int, Stream]:
        """Send a request; the number that its answer has, and where it and what comes before it will be."""
        ...

    def post(self, message: Message) -> None:
        """Send what has no answer."""
        ...

    def own(self) -> Stream:
        """The session's own stream."""
        ...

    def close(self) -> None:
        """Hang up."""
        ...


def ask(client: Client, method: str, **params: Any) -> Message:
    """The answer to a request, result or error."""
    number, stream = client.begin(method, **params)
    return stream.answer_to(number)


def create(client: Client, tool: str, folder: Path) -> str:
    """The id of a new task."""
    answer = ask(client, "tools/call", name=tool, arguments={"folder": str(folder)}, task={})
    return answer["result"]["task"]["taskId"]


def accept(client: Client, asked: Message, content: Mapping[str, Any]) -> None:
    """Fill in a form."""
    client.post(response(asked["id"], {"action": "accept", "content": dict(content)}))


class HttpClient:
    """A session over Streamable HTTP; each stream has a connection of its own."""

    def __init__(self, port: int) -> None:
        self._port = port
        self._number = 0
        self._session: str | None = None
        self._streams: list[Stream] = []
        ask(self, "initialize", **hello(ASKABLE))
        self.post(notification("notifications/initialized"))

    def begin(self, method: str, **params: Any) -> tuple[int, Stream]:
        self._number += 1
        began, stream = self._send("POST", json.dumps(legacy_request(method, params, self._number)))
        self._session = self._session or began.headers["mcp-session-id"]
        return self._number, stream

    def post(self, message: Message) -> None:
        response, stream = self._send("POST", json.dumps(message))
        assert response.status == 202, response.status
        stream.close()

    def own(self) -> Stream:
        response, stream = self._send("GET", None)
        assert response.status == 200, response.status
        return stream

    def close(self) -> None:
        for stream in self._streams:
            stream.close()

    def _send(self, method: str, body: str | None) -> tuple[HTTPResponse, Stream]:
        connection = HTTPConnection("127.0.0.1", self._port, timeout=60)
        headers = {"Content-Type": "application/json", "Accept": "application/json, text/event-stream"}
        if self._session is not None:
            headers |= {"mcp-session-id": self._session, "mcp-protocol-version": LEGACY}
        connection.request(method, "/mcp", body, headers)
        # Taken now: the response takes it over if the connection is not kept.
        sock = connection.sock
        response = connection.getresponse()
        stream = Stream(iter(response.readline, b""), partial(_hang_up, connection, sock), response.close)
        self._streams.append(stream)
        return response, stream


def _hang_up(connection: HTTPConnection, sock: socket.socket) -> None:
    # The thread that reads still has the file; only this ends the connection itself.
    with suppress(OSError):
        sock.shutdown(socket.SHUT_RDWR)
    connection.close()


class StdioClient:
    """A session over the pipes of a server process of its own."""

    def __init__(self, db: Path) -> None:
        self.process = fork(GATED, "--db", str(db), stdin=PIPE, stdout=PIPE)
        self._number = 0
        assert self.process.stdout is not None
        self._stream = Stream(self.process.stdout, lambda: None, self.process.stdout.close)
        ask(self, "initialize", **hello(ASKABLE))
        self.post(notification("notifications/initialized"))

    def begin(self, method: str, **params: Any) -> tuple[int, Stream]:
        self._number += 1
        self.post(legacy_request(method, params, self._number))
        return self._number, self._stream

    def post(self, message: Message) -> None:
        assert self.process.stdin is not None
        self.process.stdin.write(json.dumps(message).encode() + b"\n")
        self.process.stdin.flush()

    def own(self) -> Stream:
        return self._stream

    def kill(self) -> None:
        """End the server as a power cut would."""
        kill(self.process)
        self.close()

    def close(self) -> None:
        assert self.process.stdin is not None
        with suppress(OSError):
            self.process.stdin.close()
        try:
            self.process.wait(10)
        except subprocess.TimeoutExpired:
            kill(self.process)
            raise
        self._stream.close()


def main() -> None:
    """Make a task, wait for its result, and say its id and that it asks."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--port", type=int)
    parser.add_argument("--db", type=Path)
    parser.add_argument("--folder", type=Path, required=True)
    options = parser.parse_args()
    client = StdioClient(options.db) if options.port is None else HttpClient(options.port)
    task_id = create(client, "survey", options.folder)
    _, result = client.begin("tasks/result", taskId=task_id)
    result.until(lambda each: each.get("method") == "elicitation/create")
    print(task_id, flush=True)
    time.sleep(600)


if __name__ == "__main__":
    main()
