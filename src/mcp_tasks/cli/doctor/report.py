"""Findings, in words; and the examination under way, which judges a server's answers and notes them."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Awaitable, Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from datetime import UTC, datetime
from functools import partial
from itertools import count
from typing import Any, Final, Literal, NamedTuple, TypeAlias, TypeGuard

from mcp.shared.inbound import ERROR_CODE_HTTP_STATUS, encode_header_value
from mcp_types import (
    CLIENT_CAPABILITIES_META_KEY,
    CLIENT_INFO_META_KEY,
    HEADER_MISMATCH,
    MISSING_REQUIRED_CLIENT_CAPABILITY,
    PROTOCOL_VERSION_META_KEY,
    JSONRPCRequest,
)
from mcp_types.version import LATEST_MODERN_VERSION

from mcp_tasks.cli.raw import RawConnection, Reply, Silence
from mcp_tasks.client.wire import request_message
from mcp_tasks.errors import ServerHasFaults
from mcp_tasks.model.json import JsonObject, object_in
from mcp_tasks.model.record import TaskStatus
from mcp_tasks.protocol.shapes import EXTENSION_ID

# ---- requests
# The requests that a server is asked: those of a client of the 2026-07-28 protocol, which knows tasks or does not.


Headers: TypeAlias = Mapping[str, str | None]

CLIENT: Final[JsonObject] = {"name": "mcp-tasks-doctor", "version": "1"}


def request_of(
    number: int, method: str, params: JsonObject, *, declare: bool = True, headers: Headers | None = None
) -> tuple[JSONRPCRequest, Mapping[str, str]]:
    """A request, from a client that knows tasks if it is to `declare` them, and what HTTP headers go with it: `headers`
    in place of, or besides, those that belong to it; None leaves one out. An `initialize` is of the 2025-11-25
    protocol, and goes as it is."""
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
        """The finding as JSON; without what is empty."""
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
        is_slow: Whether the tool takes longer than anybody waits here.
        call: The params of the call that made it, and its headers, as `send` takes them.
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
        """All that comes for a request; `request_of` says how it may be made."""
        return self.server.exchange(*request_of(next(self._numbers), method, params, **how))

    async def send(self, method: str, params: JsonObject, **how: Any) -> Reply:
        """The answer to such a request."""
        reply = await self.server.ask(*request_of(next(self._numbers), method, params, **how))
        if (result := reply.result or {}).get("resultType") == "task":
            self.made.append(str(result.get("taskId")))
        return reply

    def note(self, verdict: Verdict, probe: str, says: str, advice: str = "") -> None:
        """Note a finding."""
        self.report.findings.append(Finding(area=self.area, probe=probe, verdict=verdict, says=says, advice=advice))

    async def look(self, area: str, probe: Awaitable[None]) -> None:
        """Look at something of an area; a server that does not answer fails this probe, and not those after it."""
        self.area = area
        try:
            await probe
        except Silence as exc:
            self.fail("answer", f"the server did not answer: {exc}", "Look at the server's log.")

    def judge_refusal(self, probe: str, code: int, reply: Reply, *, must: bool = True) -> None:
        """Judge an answer that should be this error; `must` says whether the specification insists on it."""
        status = ERROR_CODE_HTTP_STATUS[code]
        if reply.code != code:
            advice = f"Answer with error {code}."
            if code == MISSING_REQUIRED_CLIENT_CAPABILITY and reply.code == -32003:
                advice = f"-32003 is the code of a draft; the released one is {code}."
            says = f"answered with {reply.summary}, not with error {code}"
            self.note("fail" if must else "warn", probe, says, advice)
        elif reply.status not in (None, status):
            # The schema says MUST of these two; of the others it is what clients expect.
            verdict = "fail" if code in (HEADER_MISMATCH, MISSING_REQUIRED_CLIENT_CAPABILITY) else "warn"
            self.note(verdict, probe, f"error {code} comes with HTTP {reply.status}", f"Send it with HTTP {status}.")
        else:
            self.ok(probe, f"refused with {code}" + ("" if reply.status is None else f" and HTTP {status}"))

    def judge_result(
        self, probe: str, reply: Reply, well: str, advice: str, flaws: Iterable[Flaw] = (), *, must: bool = True
    ) -> bool:
        """Judge an answer that should be a result, and that result; `advice` is for one that is none."""
        if reply.result is None:
            self.note("fail" if must else "warn", probe, f"answered with {reply.summary}", advice)
        else:
            self.judge(probe, flaws, well)
        return reply.result is not None

    def judge(self, probe: str, flaws: Iterable[Flaw], well: str) -> None:
        """Note what is wrong, or that nothing is."""
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
