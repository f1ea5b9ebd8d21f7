"""Is a server's support for tasks right? Ask it, with raw JSON-RPC, and say in plain words what it does wrong.

Nothing is repeated, checked or corrected on the way to the server, so that exactly what clients see is examined. The
probes are run in order, each on its own, so that one that fails does not hide the others.
"""

from __future__ import annotations

import base64
import json
import secrets
import tempfile
from abc import ABC, abstractmethod
from collections.abc import (
    AsyncGenerator,
    AsyncIterator,
    Awaitable,
    Callable,
    Collection,
    Iterable,
    Iterator,
    Mapping,
    Sequence,
)
from contextlib import aclosing, asynccontextmanager, suppress
from dataclasses import asdict, dataclass, field
from datetime import UTC, datetime
from functools import partial
from itertools import count
from typing import Any, Final, Literal, NamedTuple, TextIO, TypeAlias, TypeGuard

import anyio
import httpx2
from mcp.client.stdio import stdio_client
from mcp.server.subscriptions import SUBSCRIPTION_ID_META_KEY
from mcp.shared.inbound import ERROR_CODE_HTTP_STATUS, encode_header_value, mcp_param_headers, x_mcp_header_map
from mcp.shared.message import SessionMessage
from mcp_types import (
    CLIENT_CAPABILITIES_META_KEY,
    CLIENT_INFO_META_KEY,
    HEADER_MISMATCH,
    INVALID_PARAMS,
    METHOD_NOT_FOUND,
    MISSING_REQUIRED_CLIENT_CAPABILITY,
    PROTOCOL_VERSION_META_KEY,
    JSONRPCRequest,
)
from mcp_types.version import LATEST_HANDSHAKE_VERSION, LATEST_MODERN_VERSION
from pydantic import ValidationError

from mcp_tasks.cli.servers import (
    PAGE_LIMIT,
    ServerAddress,
    check_url,
    leaves,
    stdio_parameters,
    unknown_tool,
    why_unreachable,
)
from mcp_tasks.client.http import messages_in
from mcp_tasks.client.wire import notification, request_message
from mcp_tasks.errors import ServerHasFaults
from mcp_tasks.model.json import JsonObject, list_in, object_in
from mcp_tasks.model.record import FINAL_STATUSES, TaskStatus
from mcp_tasks.protocol.shapes import EXTENSION_ID

__all__ = ["Finding", "Report", "Verdict", "examine"]

# ---- raw requests
# JSON-RPC over HTTP or through the pipes of a process, and exactly what came back.


ANSWER_TIMEOUT: Final = 10.0
"""Seconds for one response. A request that reads or writes one record takes far less."""

LISTENING: Final = "notifications/subscriptions/acknowledged"
"""The first message on a listen stream."""

LONGEST_LINE: Final = 200
"""Characters that are shown of a line that a server wrote."""


class Silence(Exception):
    """No response came: not in time, or not at all."""


@dataclass
class Reply:
    """A response, or a message that came before it, with its HTTP status, if there is one. `message` is empty if it is
    not JSON-RPC; else `result` or `error` is part of it, and the error's `code`."""

    status: int | None = None
    headers: Mapping[str, str] = field(default_factory=dict[str, str])
    message: JsonObject = field(default_factory=dict[str, Any])

    def __post_init__(self) -> None:
        self.result: JsonObject | None = object_in(self.message, "result")
        self.error: JsonObject | None = object_in(self.message, "error")
        self.code: Any = (self.error or {}).get("code")

    @property
    def summary(self) -> str:
        """The reply in a few words."""
        where = "" if self.status is None else f" with HTTP {self.status}"
        if self.error is not None:
            return f"error {self.code} ({self.error.get('message')}){where}"
        if self.message:
            return f"{'a result' if self.result is not None else self.message.get('method')}{where}"
        kind = self.headers.get("content-type", "").partition(";")[0]
        return f"no JSON-RPC message{where}" + (f" and {kind}" if kind else "")


class RawConnection(ABC):
    """A connection to a server.

    Attributes:
        over_http: Whether there are headers and statuses.
        patience: Seconds for the next response.
        stray: The first message that does not belong there: not JSON-RPC, or the response to another request.
    """

    over_http: bool
    patience: float = ANSWER_TIMEOUT
    stray: str = ""

    @abstractmethod
    def exchange(self, request: JSONRPCRequest, headers: Mapping[str, str]) -> AsyncGenerator[Reply]:
        """Send a request; gives all messages that come for it. Leaving before its response cancels it.

        Raises:
            Silence: The server went away.
        """

    async def ask(self, request: JSONRPCRequest, headers: Mapping[str, str]) -> Reply:
        """Send a request; returns its response, or the acknowledgement of a listen stream.

        Raises:
            Silence: Nothing came back.
        """
        # The patience when the wait began: less is needed once a server has started.
        reply, patience = Reply(), self.patience
        try:
            with anyio.fail_after(patience):
                async with aclosing(self.exchange(request, headers)) as coming:
                    async for reply in coming:
                        # After the acknowledgement of a stream, nothing may come for a long time.
                        if reply.message.keys() & {"result", "error"} or reply.message.get("method") == LISTENING:
                            break
        except TimeoutError as exc:
            raise Silence(f"no answer within {patience:g} s") from exc
        return reply


@dataclass
class HttpConnection(RawConnection):
    """Streamable HTTP."""

    url: str
    client: httpx2.AsyncClient
    over_http: bool = True

    async def exchange(self, request: JSONRPCRequest, headers: Mapping[str, str]) -> AsyncGenerator[Reply]:
        # The last reply has no message: that was all.
        sent = {"accept": "application/json, text/event-stream", **headers}
        body = request.model_dump(by_alias=True, exclude_unset=True)
        try:
            async with self.client.stream("POST", self.url, json=body, headers=sent) as response:
                async for message in messages_in(response):
                    answered, is_error = message.get("id"), "error" in message
                    # Null is for errors of requests that could not be read.
                    if "method" not in message and answered != request.id and not (is_error and answered is None):
                        self.stray: str = self.stray or f"the answer to request {request.id} has the id {answered!r}"
                    yield Reply(response.status_code, response.headers, message)
                yield Reply(response.status_code, response.headers)
        except httpx2.RequestError as exc:
            raise Silence(f"the connection broke: {exc or type(exc).__name__}") from exc


@dataclass
class PipeConnection(RawConnection):
    """The pipes of a server's process, which may take its time to start. There are no headers and no statuses."""

    read: Any
    write: Any
    log: TextIO
    over_http: bool = False
    patience: float = 60.0

    async def exchange(self, request: JSONRPCRequest, headers: Mapping[str, str]) -> AsyncGenerator[Reply]:
        # The response to another request came too late for that, and is skipped.
        closed, answered = (anyio.ClosedResourceError, anyio.BrokenResourceError), False
        try:
            with suppress(*closed):
                await self.write.send(SessionMessage(request))
                async for item in self.read:
                    self.patience = ANSWER_TIMEOUT
                    if isinstance(item, Exception):
                        given: Any = item.errors()[0]["input"] if isinstance(item, ValidationError) else item
                        line = given if isinstance(given, str) else json.dumps(given, default=str)
                        self.stray: str = self.stray or f"one of them is no JSON-RPC message: {line[:LONGEST_LINE]}"
                        continue
                    message: JsonObject = item.message.model_dump(by_alias=True, exclude_unset=True)
                    answered = "method" not in message and message.get("id") == request.id
                    if answered or "method" in message:
                        yield Reply(message=message)
            self.log.seek(0)
            said = self.log.read().strip().rpartition("\n")[2][:LONGEST_LINE]
            raise Silence("the server ended" + (f"; the last line on its stderr: {said}" if said else ""))
        finally:
            if not answered:
                params = {"requestId": request.id, "reason": "enough seen"}
                with anyio.move_on_after(1, shield=True), suppress(*closed):
                    await self.write.send(SessionMessage(notification("notifications/cancelled", params)))


@asynccontextmanager
async def _connect_raw(
    address: ServerAddress, headers: Mapping[str, str], environment: Mapping[str, str] | None
) -> AsyncGenerator[RawConnection]:
    if address.url is not None:
        if (problem := await check_url(address.url, headers)) is not None:
            raise problem
        timeout = httpx2.Timeout(ANSWER_TIMEOUT, read=None)
        async with httpx2.AsyncClient(timeout=timeout, headers=dict(headers)) as client:
            yield HttpConnection(address.url, client)
        return
    # A line that is not UTF-8 is for the report, like any that is not a message.
    how = stdio_parameters(address, environment).model_copy(update={"encoding_error_handler": "replace"})
    with tempfile.TemporaryFile("w+", errors="replace") as log:
        try:
            async with stdio_client(how, errlog=log) as (read, write):
                yield PipeConnection(read, write, log)
        except OSError as exc:
            # Of starting the process: later exceptions come in a group.
            raise await why_unreachable(address, exc) from exc


Headers: TypeAlias = Mapping[str, str | None]

CLIENT: Final[JsonObject] = {"name": "mcp-tasks-doctor", "version": "1"}


def _request_of(
    number: int, method: str, params: JsonObject, *, declare: bool = True, headers: Headers | None = None
) -> tuple[JSONRPCRequest, Mapping[str, str]]:
    """A request of a client of 2026-07-28, which knows tasks if it is to `declare` them, and its HTTP headers:
    `headers` are added or replace them; None leaves one out. An `initialize` is of 2025-11-25, and goes as it is."""
    if method == "initialize":
        return request_message(number, method, params), {}
    tasks: JsonObject = {"extensions": {EXTENSION_ID: {}}} if declare else {}
    meta: JsonObject = {
        PROTOCOL_VERSION_META_KEY: LATEST_MODERN_VERSION,
        CLIENT_INFO_META_KEY: CLIENT,
        CLIENT_CAPABILITIES_META_KEY: {"elicitation": {"form": {}, "url": {}}, **tasks},
    }
    # SEP-2243, and SEP-2663 for the tasks methods.
    routing = {"mcp-protocol-version": LATEST_MODERN_VERSION, "mcp-method": method}
    name: str | None = params.get("taskId" if method.startswith("tasks/") else "name")
    sent = {**routing, "mcp-name": name and encode_header_value(name), **(headers or {})}
    present = {key: value for key, value in sent.items() if value is not None}
    return request_message(number, method, {**params, "_meta": meta}), present


# ---- findings


Verdict: TypeAlias = Literal["pass", "warn", "fail", "skip"]
"""What a finding comes to: as it should be, worth a look, wrong, or not looked at."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Finding:
    """What one probe found.

    Attributes:
        area: What it belongs to: negotiation, errors, creation ...
        probe: What was looked at, in a few words.
        verdict: `fail` for what the protocol forbids or a widely used client refuses, `warn` for what is worth a look,
            `skip` for what could not be looked at.
        says: What was found, in one sentence.
        advice: What to do about it; empty if there is nothing to do.
    """

    area: str
    probe: str
    verdict: Verdict
    says: str
    advice: str = ""

    def __str__(self) -> str:
        return f"{self.area}: {self.probe}: {self.says}" + (f"\n  → {self.advice}" if self.advice else "")

    def to_json(self) -> dict[str, Any]:
        """The finding as JSON; without empty fields."""
        return {key: value for key, value in asdict(self).items() if value}


@dataclass
class Report:
    """What was found, in the order it was looked at: iterate over it, or ask whether anything `failed`.

    Attributes:
        findings: One for each thing that was looked at.
        unexamined: Why nothing of the server's tasks was looked at, though nothing is wrong; empty if something was.
    """

    findings: list[Finding] = field(default_factory=list[Finding])
    unexamined: str = ""

    def __iter__(self) -> Iterator[Finding]:
        return iter(self.findings)

    def __len__(self) -> int:
        return len(self.findings)

    def __str__(self) -> str:
        return "\n".join(f"{finding.verdict} {finding}" for finding in self)

    @property
    def failed(self) -> Sequence[Finding]:
        """What is wrong with the server."""
        return [finding for finding in self if finding.verdict == "fail"]

    def count(self, verdict: Verdict) -> int:
        """How many findings have this verdict."""
        return sum(finding.verdict == verdict for finding in self)

    def raise_for_faults(self) -> None:
        """Fail a test of yours, with all that is wrong in words.

        Raises:
            ServerHasFaults: Something failed; or nothing could be examined, which says nothing good of the server.
        """
        if self.failed or self.unexamined:
            raise ServerHasFaults([str(finding) for finding in self.failed] or [self.unexamined])

    def to_json(self) -> dict[str, Any]:
        """The report as `mcp-tasks doctor --output json` prints it."""
        values = {"failed": len(self.failed), "findings": [finding.to_json() for finding in self]}
        return {**values, "unexamined": self.unexamined} if self.unexamined else values


class Flaw(NamedTuple):
    """One thing that is wrong."""

    says: str
    advice: str
    verdict: Verdict = "fail"


class Exam:
    """An examination under way: `ok`, `warn`, `fail` and `skip` note a finding in the present `area`.

    Attributes:
        has_tasks: Whether the server says that it does tasks.
        task_id: The task that is looked at; empty if there is none.
        made: All tasks that were made.
        is_slow: Whether the tool takes longer than the examination waits.
        call: The params of the call that made the task, and its headers, as `send` takes them.
    """

    def __init__(self, server: RawConnection) -> None:
        self.server: RawConnection = server
        self.report: Report = Report()
        self.area: str = ""
        self.has_tasks: bool = False
        self.task_id: str = ""
        self.made: list[str] = []
        self.is_slow: bool = False
        self.call: dict[str, Any] = {}
        self._numbers = count(1)
        self.ok: Callable[..., None] = partial(self.note, "pass")
        self.warn: Callable[..., None] = partial(self.note, "warn")
        self.fail: Callable[..., None] = partial(self.note, "fail")
        self.skip: Callable[..., None] = partial(self.note, "skip")

    def stream(self, method: str, params: JsonObject, **how: Any) -> AsyncGenerator[Reply]:
        """All messages for a request, made as `_request_of` says."""
        return self.server.exchange(*_request_of(next(self._numbers), method, params, **how))

    async def send(self, method: str, params: JsonObject, **how: Any) -> Reply:
        """The response to such a request."""
        reply = await self.server.ask(*_request_of(next(self._numbers), method, params, **how))
        if (result := reply.result or {}).get("resultType") == "task":
            self.made.append(str(result.get("taskId")))
        return reply

    def note(self, verdict: Verdict, probe: str, says: str, advice: str = "") -> None:
        self.report.findings.append(Finding(area=self.area, probe=probe, verdict=verdict, says=says, advice=advice))

    async def look(self, area: str, probe: Awaitable[None]) -> None:
        """Run a probe; a server that does not respond fails this one, and not those after it."""
        self.area = area
        try:
            await probe
        except Silence as exc:
            self.fail("answer", f"the server did not answer: {exc}", "Look at the server's log.")

    def judge_refusal(self, probe: str, code: int, reply: Reply, *, must: bool = True) -> None:
        """Judge a reply that should be this error; `must` says whether the specification insists on it."""
        status = ERROR_CODE_HTTP_STATUS[code]
        if reply.code != code:
            advice = f"Answer with error {code}."
            if code == MISSING_REQUIRED_CLIENT_CAPABILITY and reply.code == -32003:
                advice = f"-32003 is the code of a draft; the released one is {code}."
            says = f"answered with {reply.summary}, not with error {code}"
            self.note("fail" if must else "warn", probe, says, advice)
        elif reply.status not in (None, status):
            # The schema says MUST for these two; for the others it is what clients expect.
            verdict = "fail" if code in (HEADER_MISMATCH, MISSING_REQUIRED_CLIENT_CAPABILITY) else "warn"
            self.note(verdict, probe, f"error {code} comes with HTTP {reply.status}", f"Send it with HTTP {status}.")
        else:
            self.ok(probe, f"refused with {code}" + ("" if reply.status is None else f" and HTTP {status}"))

    def judge_result(
        self, probe: str, reply: Reply, well: str, advice: str, flaws: Iterable[Flaw] = (), *, must: bool = True
    ) -> bool:
        """Judge a reply that should be a result, and the result; `advice` is for any other reply."""
        if reply.result is None:
            self.note("fail" if must else "warn", probe, f"answered with {reply.summary}", advice)
        else:
            self.judge(probe, flaws, well)
        return reply.result is not None

    def judge(self, probe: str, flaws: Iterable[Flaw], well: str) -> None:
        """Note the flaws, or that there are none."""
        for flaw in list(flaws) or [Flaw(well, "", "pass")]:
            self.note(flaw.verdict, probe, flaw.says, flaw.advice)


# ---- shapes
# What is wrong with one task as a server sent it.


PAYLOADS: Final[Mapping[str, str]] = {"input_required": "inputRequests", "completed": "result", "failed": "error"}
"""What a status inlines."""

MIN_ID_LENGTH: Final = 16
"""Characters: a UUID without dashes has 32, 96 bits in base64 are 16."""


def flaws_of_created(task: JsonObject) -> Iterator[Flaw]:
    """What is wrong with a `CreateTaskResult`."""
    if object_in(task, "task") is not None:
        advice = "Put the task's fields next to resultType: CreateTaskResult is Result & Task, flat."
        yield Flaw("the task is nested under `task`, as in 2025-11-25", advice)
        return
    yield from _flaws_of_task(task)
    if inlined := sorted(task.keys() & set(PAYLOADS.values())):
        advice = "Leave it to tasks/get: clients do not look for an outcome in CreateTaskResult."
        yield Flaw(f"the new task already carries {', '.join(inlined)}", advice, "warn")


def flaws_of_detailed(task: JsonObject) -> Iterator[Flaw]:
    """What is wrong with a task in a `tasks/get` result or a notification."""
    yield from _flaws_of_task(task)
    status = str(task.get("status"))
    wanted = PAYLOADS.get(status, "")
    for owner, key in PAYLOADS.items():
        if key in task and key != wanted:
            yield Flaw(f"a {status} task carries {key}", f"Leave {key} out unless the status is {owner}.")
    payload = object_in(task, wanted) or {}
    if wanted and object_in(task, wanted) is None:
        yield Flaw(f"a {status} task has no {wanted}", f"Inline {wanted} as an object.")
    elif status == "failed" and not (is_whole(payload.get("code")) and isinstance(payload.get("message"), str)):
        yield Flaw("error is not a JSON-RPC error", "It needs a number as code and a text as message.")
    elif status == "completed" and payload.get("resultType") != "complete":
        advice = 'Set resultType to "complete" in the inlined result; strict clients refuse it otherwise.'
        yield Flaw("the inlined result has no resultType of its own", advice, "warn")
    elif status == "input_required":
        bad = [key for key in payload if not isinstance((object_in(payload, key) or {}).get("method"), str)]
        if bad or not payload:
            what = f"inputRequests[{bad[0]!r}] is not a request" if bad else "inputRequests is empty"
            yield Flaw(what, "Every entry has a method and params, and there is at least one.")


def flaws_of_first_look(task: JsonObject, created: JsonObject) -> Iterator[Flaw]:
    """What is wrong with the first `tasks/get` of a new task."""
    if task.get("taskId") != created.get("taskId") or task.get("createdAt") != created.get("createdAt"):
        yield Flaw("it is not the task that was created", "Give the same taskId and createdAt every time.")
    elif task.get("resultType") != "complete":
        advice = 'tasks/get always answers with resultType "complete", whatever the task\'s status.'
        yield Flaw(f"resultType is {task.get('resultType')!r}", advice)


def flaws_of_time(task: JsonObject, now: datetime) -> Iterator[Flaw]:
    """What is wrong with the times of a task that was made just now."""
    created, ttl = _instant(task.get("createdAt")), task.get("ttlMs")
    off = 0.0 if created is None else abs((now - created).total_seconds())
    if off > 300:
        advice = "Set the clock of one of the two; clients that count down a ttl will be wrong."
        yield Flaw(f"the server's clock is {off:.0f} s away from this machine's", advice, "warn")
    if is_whole(ttl) and ttl < 1000:
        says = f"ttlMs is {ttl}: the task may be gone before anybody asks"
        yield Flaw(says, "Keep tasks long enough for a client to come back for them.")


def flaws_of_id(task_id: str) -> Iterator[Flaw]:
    """Whether an id looks as if it could be guessed."""
    if task_id.isdigit() or len(task_id) < MIN_ID_LENGTH or len(set(task_id)) < MIN_ID_LENGTH // 2:
        advice = "Make ids from at least 96 random bits: whoever knows one may be able to read the task."
        yield Flaw(f"the id {task_id!r} looks as if it could be guessed", advice, "warn")


def flaws_of_ack(result: JsonObject) -> Iterator[Flaw]:
    """What is wrong with the acknowledgement of an update or a cancel."""
    if result.get("resultType") != "complete":
        yield Flaw(f"resultType is {result.get('resultType')!r}", 'Set resultType to "complete".')
    if extra := sorted(result.keys() - {"resultType", "_meta"}):
        yield Flaw(f"it carries {', '.join(extra)}", "An acknowledgement is empty but for resultType and _meta.")


def _flaws_of_task(task: JsonObject) -> Iterator[Flaw]:
    task_id, status, said = task.get("taskId"), task.get("status"), task.get("statusMessage", "")
    ttl, pause, statuses = task.get("ttlMs"), task.get("pollIntervalMs", 0), [known.value for known in TaskStatus]
    checks = [
        ("ttl" in task, "ttl is the 2025-11-25 name", "Call it ttlMs."),
        ("pollInterval" in task, "pollInterval is the 2025-11-25 name", "Call it pollIntervalMs."),
        (not isinstance(task_id, str) or not task_id, "taskId is missing, or not a string", "Every task has a taskId."),
        (status not in statuses, f"status is {status!r}", f"Use one of {', '.join(statuses)}."),
        (not isinstance(said, str), "statusMessage is not a string", "Leave it out when there is nothing to say."),
        ("ttlMs" not in task, "ttlMs is missing", "It is always there; null stands for no limit."),
        (ttl is not None and not is_whole(ttl), f"ttlMs is {ttl!r}", "It is a whole number of milliseconds, or null."),
        (not is_whole(pause), f"pollIntervalMs is {pause!r}", "It is a whole number, or left out."),
    ]
    yield from (Flaw(says, advice) for is_wrong, says, advice in checks if is_wrong)
    created, updated = _instant(task.get("createdAt")), _instant(task.get("lastUpdatedAt"))
    for key, instant in {"createdAt": created, "lastUpdatedAt": updated}.items():
        if instant is None:
            yield Flaw(f"{key} is {task.get(key)!r}", "Write ISO 8601, like 2026-07-28T12:00:00Z.")
        elif datetime.fromisoformat(task[key]).tzinfo is None:
            yield Flaw(f"{key} has no offset", "End it with Z or an offset; clients refuse it otherwise.")
    if created is not None and updated is not None and updated < created:
        yield Flaw("lastUpdatedAt is before createdAt", "A task is never updated before it is created.")


def is_whole(value: Any) -> TypeGuard[int]:
    """Whether a value is a whole number that every client can read: beyond 2**53 many read another."""
    return isinstance(value, int) and not isinstance(value, bool) and abs(value) <= 2**53


def _instant(text: Any) -> datetime | None:
    """The instant that a text names, in UTC if it does not say; None if it names none."""
    try:
        instant = datetime.fromisoformat(text)
    except (TypeError, ValueError):
        return None
    return instant if instant.tzinfo is not None else instant.replace(tzinfo=UTC)


# ---- probes
# What a server is asked: what it says of itself, what it refuses, and a task on its way.


DISCOVER: Final = "server/discover"
LISTEN: Final = "subscriptions/listen"
HANDSHAKE: Final[JsonObject] = {"protocolVersion": LATEST_HANDSHAKE_VERSION, "capabilities": {}, "clientInfo": CLIENT}
NEVER_GIVEN_OUT: Final = f"doctor-{secrets.token_hex(16)}"

WATCHES: Final = 5.0
"""Seconds to see a notification, or a cancelled task end. Neither need come: that is no fault."""


async def negotiate(exam: Exam) -> None:
    """Does the server speak the protocol that has tasks, and say that it does tasks?"""
    try:
        reply = await exam.send(DISCOVER, {})
    except Silence as exc:
        exam.fail(DISCOVER, f"the server cannot be asked: {exc}", "Is it running, and is this its endpoint?")
        return
    status, result = reply.status or 0, reply.result or {}
    if status in (401, 403):
        exam.fail("access", f"the server answers HTTP {status}", "Give a token, or another header.")
    elif 300 <= status < 400:
        says = f"the endpoint redirects clients to {reply.headers.get('location', 'elsewhere')}"
        exam.fail("redirect", says, "Clients do not follow; serve it right here.")
    elif LATEST_MODERN_VERSION not in list_in(result, "supportedVersions"):
        await _look_for_legacy(exam, reply)
    else:
        info = object_in(result, "_meta", "io.modelcontextprotocol/serverInfo")
        name = "" if info is None else f" and is {info.get('name')} {info.get('version', '')}".rstrip()
        exam.ok(DISCOVER, f"the server speaks {LATEST_MODERN_VERSION}{name}")
        _look_for_tasks(exam, object_in(result, "capabilities") or {})


async def _look_for_legacy(exam: Exam, reply: Reply) -> None:
    """The server does not speak the protocol that has the extension; what does it speak?"""
    try:
        old = await exam.send("initialize", HANDSHAKE)
        result, said = old.result, old.summary
    except Silence as exc:
        result, said = None, f"nothing: {exc}"
    speaks = f"the server speaks only {(result or {}).get('protocolVersion', LATEST_HANDSHAKE_VERSION)}"
    needs, tasks = f"needs {LATEST_MODERN_VERSION}", object_in(result, "capabilities", "tasks")
    if result is None:
        exam.fail(DISCOVER, f"answered with {reply.summary}, and initialize with {said}", "Is this an MCP server?")
    elif tasks is None:
        exam.fail(DISCOVER, f"{speaks}, without tasks", f"The tasks extension {needs}; update the server's SDK.")
    else:
        requests = object_in(tasks, "requests") or {}
        calls = [f"{area}/{verb}" for area in requests for verb in object_in(requests, area) or {}]
        offers = ", ".join([*calls, *(verb for verb in ("list", "cancel") if verb in tasks)]) or "none of its calls"
        advice = f"Clients of this package drive them. The tasks extension, which is examined here, {needs}."
        exam.warn(DISCOVER, f"{speaks}, with the tasks of that version ({offers})", advice)
        exam.report.unexamined = speaks


def _look_for_tasks(exam: Exam, capabilities: JsonObject) -> None:
    settings = (object_in(capabilities, "extensions") or {}).get(EXTENSION_ID)
    if settings is None:
        advice = f'Declare it in server/discover: capabilities.extensions["{EXTENSION_ID}"] = {{}}.'
        exam.fail("extension", f"the server does not declare {EXTENSION_ID}", advice)
        return
    exam.has_tasks = True
    flaw = Flaw(f"it is declared as {settings!r}", "Declare exactly {}; some clients ignore it otherwise.")
    exam.judge("extension", [] if settings == {} else [flaw], "the tasks extension is declared, as an empty object")
    says = f"`tasks` of 2025-11-25 is declared under {LATEST_MODERN_VERSION} too"
    flaw = Flaw(says, "Declare it only to clients of 2025-11-25.")
    well = "the `tasks` capability of 2025-11-25 is not declared here"
    exam.judge("legacy capability", [flaw] if "tasks" in capabilities else [], well)


async def refuse_unknown_tasks(exam: Exam) -> None:
    """Ids that were never given out, and no id at all."""
    for method, params in _about(NEVER_GIVEN_OUT).items():
        # A MUST for looking, a SHOULD for the other two.
        must = method == "tasks/get"
        exam.judge_refusal(f"{method} of an unknown task", INVALID_PARAMS, await exam.send(method, params), must=must)
    exam.judge_refusal("tasks/get without an id", INVALID_PARAMS, await exam.send("tasks/get", {}))


async def refuse_removed_methods(exam: Exam) -> None:
    """Methods of 2025-11-25 that are gone."""
    code = METHOD_NOT_FOUND
    exam.judge_refusal("tasks/result, which is gone", code, await exam.send("tasks/result", {"taskId": "doctor"}))
    # Of this one it is not said in so many words.
    exam.judge_refusal("tasks/list, which is gone", code, await exam.send("tasks/list", {}), must=False)


async def refuse_undeclared(exam: Exam) -> None:
    """A client that does not declare the extension."""
    missing, task_id = MISSING_REQUIRED_CLIENT_CAPABILITY, exam.task_id or NEVER_GIVEN_OUT
    for method, params in _about(task_id).items():
        reply = await exam.send(method, params, declare=False)
        exam.judge_refusal(method, missing, reply)
        named = object_in(reply.error, "data", "requiredCapabilities", "extensions", EXTENSION_ID) is not None
        if reply.code == missing and method == "tasks/get" and not named:
            advice = "Put it under error.data.requiredCapabilities.extensions."
            exam.warn("what is missing", "the error does not name the missing extension", advice)
    probe = f"{LISTEN} for tasks"
    try:
        reply = await exam.send(LISTEN, {"notifications": {"taskIds": [task_id]}}, declare=False)
        if reply.code == METHOD_NOT_FOUND:
            exam.skip(LISTEN, "the server has no listen streams, which is allowed")
        else:
            exam.judge_refusal(probe, missing, reply)
    except Silence:
        exam.fail(probe, "the stream is opened, or the request ignored", f"Answer with error {missing}.")


async def answer_undeclared_call(exam: Exam) -> None:
    """A call from a client that does not declare the extension, but sends the old opt-in."""
    params, code = {**exam.call["params"], "task": {"ttl": 60000}}, MISSING_REQUIRED_CLIENT_CAPABILITY
    probe = f"call {params['name']}"
    advice = f"Let such clients have a direct answer, or refuse them with {code} if the tool is only there as a task."
    send = partial(exam.send, "tools/call", headers=exam.call["headers"], declare=False)
    if exam.is_slow:
        exam.skip(probe, "the direct answer takes longer than doctor waits", "Give a quicker tool.")
        return
    try:
        reply = await send(params)
    except Silence as exc:
        exam.skip(probe, f"the direct answer takes longer than doctor waits ({exc})")
        return
    result = reply.result or {}
    if result.get("resultType") == "task":
        exam.fail(probe, "it gets a task that it cannot handle", "Look at the capabilities on this very request.")
    elif reply.code == code:
        exam.judge_refusal(probe, code, reply)
    else:
        well = "answered directly; the `task` param of 2025-11-25 is ignored"
        exam.judge_result(probe, reply, well, advice, must=False)
    # What it asks is dismissed, so that nothing is left waiting.
    with suppress(Silence), anyio.move_on_after(ANSWER_TIMEOUT):
        while asked := object_in(result, "inputRequests"):
            answers = {key: {"action": "cancel"} for key in asked}
            state = {key: value for key, value in result.items() if key == "requestState"}
            result = (await send({**params, **state, "inputResponses": answers})).result or {}


async def check_headers(exam: Exam) -> None:
    """The routing headers of a request about a task (SEP-2663, "Routing Headers"): wrong, encoded, and missing."""
    if not exam.server.over_http:
        exam.skip("routing headers", "there are none over stdio")
        return
    methods, mismatch = _about(exam.task_id), HEADER_MISMATCH
    for method, params in methods.items():
        reply = await exam.send(method, params, headers={"mcp-name": "another-task"})
        exam.judge_refusal(f"{method} with another task in Mcp-Name", mismatch, reply)
    look = partial(exam.send, "tasks/get", methods["tasks/get"])
    exam.judge_refusal("another method in Mcp-Method", mismatch, await look(headers={"mcp-method": "tasks/cancel"}))
    reply = await look(headers={"mcp-name": f"=?base64?{base64.b64encode(exam.task_id.encode()).decode()}?="})
    well, advice = "decoded before it is compared", "Decode =?base64?...?= before comparing."
    exam.judge_result("Mcp-Name in base64", reply, well, advice)
    probe, reply = "no Mcp-Name", await look(headers={"mcp-name": None})
    if reply.code == mismatch:
        exam.warn(probe, "refused, as is allowed; some clients do not send it", "Accept it if you can.")
    else:
        advice = f"Accept it, or refuse it with {mismatch}."
        exam.judge_result(probe, reply, "accepted; some clients do not send it", advice)


async def look_twice(exam: Exam) -> None:
    """Looking at a task does not change it."""
    first, second = await _get(exam, exam.task_id), await _get(exam, exam.task_id)
    keys = ("lastUpdatedAt", "status", "statusMessage", "ttlMs", "_meta")
    changed = [key for key in keys if first.get(key) != second.get(key)]
    advice = "Move it only when the task changes; clients order states by it."
    flaw = Flaw("lastUpdatedAt moved although nothing changed", advice, "warn")
    well = "looking at a task does not change it"
    exam.judge("two looks in a row", [flaw] if changed == ["lastUpdatedAt"] else [], well)


async def update(exam: Exam) -> None:
    """An answer to a question that was never asked is acknowledged and ignored."""
    probe, responses = "answer that nobody asked for", {"mcp-tasks-doctor": {"action": "cancel"}}
    reply = await exam.send("tasks/update", {"taskId": exam.task_id, "inputResponses": responses})
    well, advice = "acknowledged and ignored", "Ignore unknown keys and acknowledge."
    exam.judge_result(probe, reply, well, advice, flaws_of_ack(reply.result or {}), must=False)


async def listen(exam: Exam) -> None:
    """Listen to a task for a while. A server need not have notifications; if it does, they must be right."""
    try:
        async with aclosing(exam.stream(LISTEN, {"notifications": {"taskIds": [exam.task_id]}})) as coming:
            with anyio.move_on_after(WATCHES):
                await _hear(exam, coming)
                return
        exam.skip("notification", f"nothing came within {WATCHES:g} s; the task may not have changed")
    except Silence as exc:
        exam.warn("stream", f"the stream did not last: {exc}", "Keep it open; clients poll meanwhile.")


async def _hear(exam: Exam, coming: AsyncIterator[Reply]) -> None:
    acknowledged = False
    async for reply in coming:
        method, params = reply.message.get("method"), object_in(reply.message, "params") or {}
        if "error" in reply.message or "result" in reply.message:
            exam.skip("stream", "the server offers no notifications, which is allowed: clients poll")
            return
        if method in ("notifications/progress", "notifications/message") or not isinstance(method, str | None):
            exam.fail("stream", f"{method} came on it", "A listen stream for a task carries notifications/tasks only.")
        elif method == LISTENING:
            acknowledged, ids = True, (object_in(params, "notifications") or {}).get("taskIds")
            if ids is not None and not isinstance(ids, list):
                exam.fail("acknowledgement", f"taskIds is {ids!r}", "It is a list of ids.")
            elif exam.task_id not in (ids or ()):
                exam.skip("acknowledgement", "the server does not push for this task, which is allowed: clients poll")
                return
            else:
                exam.ok("acknowledgement", "it names the task")
        elif method == "notifications/tasks":
            if not acknowledged:
                exam.fail("order", "a state came before the acknowledgement", "Acknowledge the stream first.")
            await _judge_state(exam, params)
            return


async def _judge_state(exam: Exam, params: JsonObject) -> None:
    exam.judge("notification", flaws_of_detailed(params), "the complete task")
    if params.get("taskId") != exam.task_id:
        exam.fail("whose", "the notification is about another task", "Send only what was subscribed to.")
    if SUBSCRIPTION_ID_META_KEY not in (object_in(params, "_meta") or {}):
        says = f"the notification has no {SUBSCRIPTION_ID_META_KEY} in _meta"
        exam.warn("subscription id", says, "Add it; clients with several streams tell them apart by it.")
    is_new = str((await _get(exam, exam.task_id)).get("lastUpdatedAt")) >= str(params.get("lastUpdatedAt"))
    flaw = Flaw("tasks/get shows an older state than the notification", "Notify after the state is stored.")
    exam.judge("agreement", [] if is_new else [flaw], "tasks/get shows what was notified, or newer")


async def cancel(exam: Exam) -> None:
    """Cancel a task, twice."""
    if not await _cancel(exam, "tasks/cancel"):
        return
    task, status = await _until(exam, exam.task_id, WATCHES, FINAL_STATUSES)
    well = "the task is cancelled" if status == "cancelled" else f"the task had {status} before it could be cancelled"
    advice = "Stop the work if you can: whoever cancelled it does not want the result."
    flaw = Flaw(f"it is still {status} after {WATCHES:g} s, which is allowed", advice, "warn")
    exam.judge("what becomes of it", [] if status in FINAL_STATUSES else [flaw], well)
    exam.judge("shape afterwards", flaws_of_detailed(task), f"a {status} task as it should be")
    await _cancel(exam, "tasks/cancel again")


async def _cancel(exam: Exam, probe: str) -> bool:
    reply = await exam.send("tasks/cancel", {"taskId": exam.task_id})
    well, advice = "acknowledged, with nothing but resultType", "Acknowledge, also when the task has ended."
    return exam.judge_result(probe, reply, well, advice, flaws_of_ack(reply.result or {}))


async def see_the_end(exam: Exam) -> None:
    """Make another task, let it end and look at its outcome."""
    made = (await exam.send("tools/call", **exam.call)).result or {}
    if made.get("resultType") != "task":
        return
    task_id, probe, asks = str(made.get("taskId")), "how it ends", "input_required"
    task, status = await _until(exam, task_id, ANSWER_TIMEOUT, {*FINAL_STATUSES, asks})
    if status in FINAL_STATUSES:
        exam.judge(probe, flaws_of_detailed(task), f"{status}, with what that status inlines")
    elif status == asks:
        exam.judge("questions", flaws_of_detailed(task), "the task asks, and the question can be read")
        exam.skip(probe, "the task waits for an answer", "Give a tool that asks nothing.")
    else:
        exam.skip(probe, f"the task is still {status} after {ANSWER_TIMEOUT:g} s", "Give a quicker tool.")
        exam.is_slow = True


async def _until(exam: Exam, task_id: str, seconds: float, statuses: Collection[str]) -> tuple[JsonObject, str]:
    """Poll a task at the interval it suggests, and once more when the time is up; the task and its status then."""
    ends = anyio.current_time() + seconds
    while True:
        task = await _get(exam, task_id)
        # As text: whatever a server sends for a status can be looked for then.
        status, left = str(task.get("status")), ends - anyio.current_time()
        if status in statuses or left <= 0:
            return task, status
        pause = task.get("pollIntervalMs")
        await anyio.sleep(min(max(pause, 100) / 1000 if is_whole(pause) else 1, left))


async def _get(exam: Exam, task_id: str) -> JsonObject:
    return (await exam.send("tasks/get", {"taskId": task_id})).result or {}


def _about(task_id: str) -> Mapping[str, JsonObject]:
    """The methods of the extension, and what they take."""
    task = {"taskId": task_id}
    return {"tasks/get": task, "tasks/update": {**task, "inputResponses": {}}, "tasks/cancel": task}


MOST_TRIES: Final = 3
"""Harmless tools that are tried for one that becomes a task."""

AREAS: Final = ("errors", "creation", "undeclared client", "headers", "lifecycle", "push", "cancel", "outcome")
"""What there is to look at where a server has tasks."""

Arguments: TypeAlias = Mapping[str, Any] | Callable[[JsonObject], Mapping[str, Any]]


async def examine(
    server: ServerAddress | str,
    *,
    tool: str | None = None,
    arguments: Arguments | None = None,
    headers: Mapping[str, str] | None = None,
    environment: Mapping[str, str] | None = None,
) -> Report:
    """Look at what a server does with tasks, probe by probe, with raw requests: what clients see is what it sees.

    Args:
        server: Its URL or, for a stdio server, its command.
        tool: The tool to make tasks with; it is called three times. Without one only tools are called that are marked
            `readOnlyHint` and need no arguments, and what needs a task is skipped if there is none.
        arguments: Its arguments, or a function that makes them when it is given the tool's input schema.
        headers: What goes with every HTTP request, credentials included.
        environment: The environment variables of a stdio server; without any, what the SDK gives every server.

    Raises:
        InvalidInput: The text names no server, or the server has no such tool.
        ServerUnreachable: There is nothing to examine; it says why, and what to do.
    """
    address = ServerAddress.parse(server) if isinstance(server, str) else server
    try:
        async with _connect_raw(address, headers or {}, environment) as connection:
            return await examine_over(connection, tool=tool, arguments=arguments)
    except BaseExceptionGroup as group:
        # The pipes are read by a group of tasks, which wraps whatever is raised meanwhile.
        first, *others = leaves(group)
        raise (group if others else first) from None


async def examine_over(server: RawConnection, *, tool: str | None = None, arguments: Arguments | None = None) -> Report:
    """Examine the server at the other end of a connection."""
    exam = Exam(server)
    await exam.look("negotiation", negotiate(exam))
    why = exam.report.unexamined
    if exam.has_tasks:
        why = "there is no task to look at"
        await exam.look("errors", refuse_unknown_tasks(exam))
        await exam.look("errors", refuse_removed_methods(exam))
        await exam.look("creation", _create(exam, tool, arguments or {}))
        await exam.look("undeclared client", refuse_undeclared(exam))
    if exam.task_id:
        await exam.look("headers", check_headers(exam))
        await exam.look("lifecycle", look_twice(exam))
        await exam.look("lifecycle", update(exam))
        await exam.look("push", listen(exam))
        await exam.look("cancel", cancel(exam))
        await exam.look("outcome", see_the_end(exam))
        # Last, because it may take as long as the tool does.
        await exam.look("undeclared client", answer_undeclared_call(exam))
    elif why:
        seen = {finding.area for finding in exam.report}
        for exam.area in (area for area in AREAS if area not in seen):
            exam.skip("all of it", why)
    for task_id in exam.made:
        # Whatever the server says to that, nothing is left at work.
        with suppress(Silence):
            await exam.send("tasks/cancel", {"taskId": task_id})
    # What an older server says of requests that it cannot read is none of what is examined.
    if server.stray and not (server.over_http and exam.report.unexamined):
        exam.area, probe = ("answers", "ids") if server.over_http else ("stdout", "lines")
        advice = "Write JSON-RPC messages there and nothing else; logs go to stderr."
        exam.fail(probe, server.stray, "Answer with the id of the request." if server.over_http else advice)
    return exam.report


async def _create(exam: Exam, tool: str | None, arguments: Arguments) -> None:
    """Make a task, with this tool or with the first harmless one whose call becomes one, and look at it."""
    tools = await _tools(exam)
    if tool is not None and tool not in tools:
        raise unknown_tool(tool, tools)
    chosen = [name for name in tools if _is_harmless(tools[name])][:MOST_TRIES] if tool is None else [tool]
    if not chosen:
        says = "no tool is marked readOnlyHint and takes no arguments, and doctor calls no other by itself"
        advice = "Name one (--tool NAME key=value ...; tool= and arguments= in Python); it is called three times."
        exam.skip("a tool to call", says, advice)
    for name in chosen:
        exam.call = _call(tools[name], arguments if tool else {})
        probe, reply = f"call {name}", await exam.send("tools/call", **exam.call)
        kind = (reply.result or {}).get("resultType", "complete")
        if reply.result is None:
            exam.warn(probe, f"answered with {reply.summary}", "Give arguments that work, or another tool.")
        elif kind == "task":
            exam.ok(probe, "answered with a task")
            await _look_at_created(exam, reply.result)
            return
        elif kind == "input_required":
            exam.skip(probe, "it asks something before there is a task", "Give a tool that does not.")
        elif kind == "complete":
            advice = "Give a tool that becomes a task to look at the rest."
            exam.skip(probe, "answered directly, which is allowed: the server decides", advice)
        else:
            exam.fail(probe, f"resultType is {kind!r}", 'Use "complete", "input_required" or "task".')


async def _look_at_created(exam: Exam, created: JsonObject) -> None:
    """Judge a new task and look at it at once."""
    task_id, ttl = created.get("taskId"), created.get("ttlMs")
    exam.judge("shape of the new task", flaws_of_created(created), "flat, with every field it must have")
    if not isinstance(task_id, str) or not task_id:
        return
    kept = f"kept for {ttl / 1000:g} s" if is_whole(ttl) else "kept without limit"
    exam.judge("times", flaws_of_time(created, datetime.now(UTC)), f"created just now, {kept}")
    exam.judge("id", flaws_of_id(task_id), "long enough not to be guessed")
    probe, reply = "tasks/get at once", await exam.send("tasks/get", {"taskId": task_id})
    advice = "Answer a call only when tasks/get finds the task everywhere."
    well = "the task is there as soon as its id is known"
    exam.judge_result(probe, reply, well, advice, flaws_of_first_look(reply.result or {}, created))
    if reply.result is not None:
        well = "the fields its status asks for, and no others"
        exam.judge("shape in tasks/get", flaws_of_detailed(reply.result), well)
        exam.task_id = task_id


async def _tools(exam: Exam) -> Mapping[str, JsonObject]:
    """The server's tools, by their names."""
    tools: dict[str, JsonObject] = {}
    cursor: Any = None
    for _ in range(PAGE_LIMIT):
        page = (await exam.send("tools/list", {"cursor": cursor} if cursor else {})).result or {}
        if not isinstance(page.get("tools", []), list):
            exam.fail("tools/list", f"tools is {page['tools']!r}", "It is a list of tools.")
        for tool in list_in(page, "tools"):
            match tool:
                case {"name": str(name)}:
                    tools.setdefault(name, tool)
                case _:
                    exam.fail("tools/list", f"{tool!r} is no tool", "A tool is an object with a name.")
        if not (cursor := page.get("nextCursor")):
            break
    return tools


def _call(tool: JsonObject, arguments: Arguments) -> dict[str, Any]:
    """The params of a call, and its headers, as the tool's schema asks for them."""
    schema = object_in(tool, "inputSchema") or {}
    given = dict(arguments(schema) if callable(arguments) else arguments)
    headers = mcp_param_headers(x_mcp_header_map(dict(schema)), given)
    return {"params": {"name": tool["name"], "arguments": given}, "headers": headers}


def _is_harmless(tool: JsonObject) -> bool:
    hints, schema = object_in(tool, "annotations") or {}, object_in(tool, "inputSchema") or {}
    return bool(hints.get("readOnlyHint")) and not schema.get("required")
