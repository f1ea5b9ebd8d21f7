"""Real servers in processes of their own, spoken to in raw JSON-RPC, and killed."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Generator, Iterable, Mapping
from contextlib import ExitStack, contextmanager
from http.client import HTTPConnection, HTTPException
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, TypeVar

from harness.http import modern_headers
from harness.rpc import TASKS, request
from harness.serving import ServerProcess

ASKABLE: Mapping[str, Any] = {**TASKS, "elicitation": {"form": {}}}
HEADERS = {"content-type": "application/json", "accept": "application/json, text/event-stream"}
FIXTURE = "mcp_tasks.testing.fixture_server"
GATED = "tests.chaos.gated_server"
IDLE_LIMIT = 2.0
"""Seconds after which a connection is not used again: uvicorn closes one that was idle for five."""

FINAL = frozenset({"completed", "failed", "cancelled"})
GONE = (ConnectionError, HTTPException, TimeoutError, OSError)
"""What a request ends with when the server dies under it."""

T = TypeVar("T")
Task = dict[str, Any]


class RpcError(Exception):
    """The server answered with an error."""

    def __init__(self, error: Mapping[str, Any]) -> None:
        self.code: int = error["code"]
        super().__init__(f"{error['code']}: {error['message']}")


class Client:
    """Speaks to one port, over one connection that is made again when it was lost."""

    def __init__(self, port: int) -> None:
        self._port = port
        self._connection: HTTPConnection | None = None
        self._last_used = 0.0

    def rpc(self, method: str, **params: Any) -> dict[str, Any]:
        """The result of one request.

        Raises:
            RpcError: The server refused it.
        """
        message = request(method, params, capabilities=ASKABLE)
        answer = self._send(message, HEADERS | dict(modern_headers(message)))
        if "error" in answer:
            raise RpcError(answer["error"])
        return answer["result"]

    def close(self) -> None:
        if self._connection is not None:
            self._connection.close()
            self._connection = None

    def _send(self, message: Mapping[str, Any], headers: Mapping[str, str]) -> dict[str, Any]:
        if time.monotonic() - self._last_used > IDLE_LIMIT:
            self.close()
        if self._connection is None:
            self._connection = HTTPConnection("127.0.0.1", self._port, timeout=20)
        self._last_used = time.monotonic()
        try:
            self._connection.request("POST", "/mcp", json.dumps(message), headers)
            return json.loads(self._connection.getresponse().read())
        except (*GONE, ValueError) as exc:
            self.close()
            raise ConnectionError("the server is gone") from exc


class Server(ServerProcess):
    """A server process that can be killed and started again on the same port and file."""

    def __init__(self, folder: Path, name: str, module: str, options: Iterable[str]) -> None:
        database = folder / "tasks.db"
        super().__init__(module, "--port", "{port}", "--db", database, *options, output=folder / f"{name}.log")
        self.client = Client(self.port)

    def start(self) -> None:
        """Return when it listens."""
        self.client.close()
        super().start()

    def terminate(self, limit: float) -> float:
        """Ask it to end; how many seconds it took."""
        self.client.close()
        return self.stop(limit=limit)

    def close(self) -> None:
        """End it, and hang up."""
        super().close()
        self.client.close()

    def call(self, tool: str, **arguments: Any) -> str:
        """The id of a new task."""
        created = self.client.rpc("tools/call", name=tool, arguments=arguments)
        assert created["resultType"] == "task", created
        return created["taskId"]

    def plain(self, tool: str, **arguments: Any) -> dict[str, Any]:
        """The result of a tool that is no task."""
        return self.client.rpc("tools/call", name=tool, arguments=arguments)

    def get(self, task_id: str) -> Task:
        return self.client.rpc("tasks/get", taskId=task_id)

    def cancel(self, task_id: str) -> None:
        self.client.rpc("tasks/cancel", taskId=task_id)

    def answer(self, task_id: str, **answers: Mapping[str, Any]) -> None:
        """Accept forms by the key of their question, with `_` for the dash that keyword arguments cannot have."""
        responses = {
            key.replace("_", "-"): {"action": "accept", "content": dict(content)} for key, content in answers.items()
        }
        self.client.rpc("tasks/update", taskId=task_id, inputResponses=responses)

    def status(self, task_id: str) -> str:
        return self.get(task_id)["status"]

    def until_status(self, task_id: str, *wanted: str, limit: float = 15.0) -> Task:
        """The task once it has one of these statuses."""

        def look() -> Task | None:
            task = self.get(task_id)
            return task if task["status"] in wanted else None

        return until(look, limit, what=f"task is {' or '.join(wanted)}")

    def until_all_final(self, task_ids: Iterable[str], limit: float) -> dict[str, Task]:
        """All the tasks, once each of them has ended."""
        ended: dict[str, Task] = {}
        waiting = list(task_ids)

        def look() -> bool:
            while waiting:
                task = self.get(waiting[-1])
                if task["status"] not in FINAL:
                    return False
                ended[waiting.pop()] = task
            return True

        until(look, limit, what="all tasks have ended")
        return ended


class Site:
    """A folder with one database, and the servers on it."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.log = folder / "jobs.log"
        self._servers: list[Server] = []

    @property
    def db(self) -> Path:
        return self.folder / "tasks.db"

    def serve(self, *options: str, module: str = FIXTURE, json_response: bool = True) -> Server:
        """One more server on the database, started."""
        chosen = ("--json", *options) if json_response else options
        server = Server(self.folder, f"server-{len(self._servers)}", module, chosen)
        self._servers.append(server)
        server.start()
        return server

    def job(self, server: Server, tool: str, number: int, seconds: float) -> str:
        """A task that writes its start and its end down."""
        return server.call(tool, n=number, seconds=seconds, log=str(self.log))

    def logged(self, event: str) -> list[int]:
        """The numbers of the jobs that started, or ended, in order; a number as often as it happened."""
        lines = self.log.read_text().splitlines() if self.log.exists() else []
        return [int(line.split()[2]) for line in lines if line.split()[1] == event]

    def pids(self, event: str, number: int) -> list[int]:
        """The processes in which that happened to the job."""
        lines = [line.split() for line in self.log.read_text().splitlines()]
        return [int(pid) for _, what, n, pid in lines if what == event and int(n) == number]

    def close(self) -> None:
        for server in self._servers:
            server.close()


@contextmanager
def site() -> Generator[Site]:
    """A place for servers; whatever runs there at the end is killed."""
    with ExitStack() as stack:
        place = Site(Path(stack.enter_context(TemporaryDirectory(prefix="mcp-tasks-chaos-"))))
        stack.callback(place.close)
        yield place


def until(look: Callable[[], T | None], limit: float, *, what: str) -> T:
    """What `look` finds, asked again until it finds something."""
    deadline = time.monotonic() + limit
    while True:
        found = look()
        if found is not None and found is not False:
            return found
        if time.monotonic() > deadline:
            raise AssertionError(f"not within {limit:g} s: {what}")
        time.sleep(0.02)
