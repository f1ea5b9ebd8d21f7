"""Several keep-alive connections at once, driven by one thread that waits for none of them.

The server is what is measured, so the client must be the cheaper of the two: it sends bytes that are ready, and looks
at no more of an answer than it has to.
"""

from __future__ import annotations

import heapq
import re
import selectors
import socket
import time
from collections.abc import Callable, Generator
from dataclasses import dataclass, field
from types import TracebackType
from typing import Self, TypeAlias

from bench.client import TIMEOUT, BenchError, answer_in, connect_to

Script: TypeAlias = Generator[bytes | float, bytes, None]
"""One operation: gives a request and is sent the body of its answer, or gives seconds in which nothing is sent."""

_TASK = re.compile(rb'"taskId":"([^"]+)"')
_STATUS = re.compile(rb'"status":"([a-z_]+)"')


def task_id_in(body: bytes) -> str:
    """The id of the task that an answer is about.

    Raises:
        BenchError: It is about none.
    """
    return _found(_TASK, body)


def status_in(body: bytes) -> str:
    """The status of the task that an answer is about.

    Raises:
        BenchError: It is about none.
    """
    return _found(_STATUS, body)


def _found(pattern: re.Pattern[bytes], body: bytes) -> str:
    found = pattern.search(body)
    if found is None:
        raise BenchError(f"unexpected answer: {body[:500]!r}")
    return found[1].decode()


@dataclass(eq=False)
class _Line:
    """One connection, and the operation that it is in."""

    socket: socket.socket
    script: Script | None = None
    began: int = 0
    received: bytearray = field(default_factory=bytearray)


class Load:
    """So many connections to one server, while the block lasts."""

    def __init__(self, port: int, connections: int) -> None:
        self._lines = [_Line(connect_to(port)) for _ in range(connections)]
        self._selector = selectors.DefaultSelector()
        self._resting: list[tuple[float, int, _Line]] = []
        self._waits: list[int] = []
        self._left = 0
        for line in self._lines:
            self._selector.register(line.socket, selectors.EVENT_READ, line)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._selector.close()
        for line in self._lines:
            line.socket.close()

    def drive(self, script: Callable[[], Script], operations: int) -> list[int]:
        """Do so many operations, on each connection the next as soon as one has ended; how long each took, in ns.

        Raises:
            BenchError: The server hung up, was silent for too long, or gave an answer that is none.
        """
        self._waits = []
        self._left = operations
        under_way = sum(self._begin(line, script) for line in self._lines)
        while under_way:
            for line in self._ready():
                under_way -= self._is_over(line, script)
        return self._waits

    def _begin(self, line: _Line, script: Callable[[], Script]) -> bool:
        """Begin the next operation, unless all have begun."""
        if not self._left:
            line.script = None
            return False
        self._left -= 1
        line.script = script()
        line.began = time.perf_counter_ns()
        self._do(line, next(line.script))
        return True

    def _is_over(self, line: _Line, script: Callable[[], Script]) -> bool:
        """Go on with what has arrived or with what was put off; whether nothing is left to do on this connection."""
        assert line.script is not None
        body = _body(line)
        if body is None:
            return False
        try:
            self._do(line, line.script.send(body))
        except StopIteration:
            self._waits.append(time.perf_counter_ns() - line.began)
            return not self._begin(line, script)
        return False

    def _do(self, line: _Line, step: bytes | float) -> None:
        if isinstance(step, bytes):
            line.socket.sendall(step)
        else:
            heapq.heappush(self._resting, (time.monotonic() + step, id(line), line))

    def _ready(self) -> list[_Line]:
        """Connections that have received something; those whose rest is over are sent on their way here."""
        now = time.monotonic()
        while self._resting and self._resting[0][0] <= now:
            line = heapq.heappop(self._resting)[2]
            assert line.script is not None
            self._do(line, line.script.send(b""))
        wait = max(0.0, self._resting[0][0] - now) if self._resting else TIMEOUT
        ready = self._selector.select(wait)
        if not ready and not self._resting:
            raise BenchError(f"no answer in {TIMEOUT:g} s")
        return [key.data for key, _ in ready]


def _body(line: _Line) -> bytes | None:
    """Take in what a connection has received; the body of the answer once it is there as a whole."""
    part = line.socket.recv(65536)
    if not part:
        raise BenchError("the server hung up")
    line.received += part
    answer = answer_in(line.received)
    if answer is not None:
        line.received = bytearray()
    return answer
