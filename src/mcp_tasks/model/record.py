"""`TaskRecord`: everything known of one task at one moment.

A record is a value; `mcp_tasks.model.machine.apply` makes the next one, one `version` up.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, fields, replace
from datetime import UTC, datetime, timedelta
from enum import StrEnum
from operator import attrgetter
from types import MappingProxyType
from typing import Any, Final, Literal, TypeAlias, get_args

from mcp_tasks.model.json import JsonObject, JsonValue

# ---- status


class TaskStatus(StrEnum):
    """Where a task stands. The values are the words of the wire."""

    WORKING = "working"
    INPUT_REQUIRED = "input_required"
    COMPLETED = "completed"
    FAILED = "failed"
    CANCELLED = "cancelled"

    @property
    def is_final(self) -> bool:
        return self in FINAL_STATUSES


FINAL_STATUSES = frozenset({TaskStatus.COMPLETED, TaskStatus.FAILED, TaskStatus.CANCELLED})


# ---- actor
@dataclass(frozen=True, slots=True)
class Actor:
    """Who did something to a task.

    Attributes:
        kind: `client`: the caller, with the principal as `name`. `run`: the tool at work. `worker`: a process that
            claims, parks and hands over. `sweep`: the housekeeping of a process. These three have the name of the
            process. `operator`: a person at the store itself, with `mcp-tasks --store`, by the name of their account.
    """

    kind: Literal["client", "run", "worker", "sweep", "operator"]
    name: str | None = None


NOBODY: Final = Actor("client")
"""A client without a name."""


# ---- inputs

_EMPTY: Mapping[str, InputRequest] = MappingProxyType({})


@dataclass(frozen=True, kw_only=True, slots=True)
class InputRequest:
    """One question to the client: the method and params of the server-to-client request it stands for.

    From `deadline` on no answer counts.

    Attributes:
        hosted_as: The id of the client's own task that holds the question, where the client has taken it as one.
    """

    method: str
    params: JsonObject
    deadline: datetime | None = None
    hosted_as: str | None = None

    def is_overdue(self, now: datetime) -> bool:
        return self.deadline is not None and self.deadline <= now


@dataclass(frozen=True, kw_only=True, slots=True)
class InputBook:
    """The questions of one task: those still open, and every key ever used."""

    outstanding: Mapping[str, InputRequest] = field(default_factory=lambda: _EMPTY)
    used: frozenset[str] = frozenset()

    def ask(self, requests: Mapping[str, InputRequest]) -> InputBook:
        """The book with these questions open as well.

        Raises:
            ValueError: If a key was used before in this task, or there is nothing to ask.
        """
        if not requests:
            raise ValueError("there is nothing to ask")
        if reused := sorted(self.used & requests.keys()):
            raise ValueError(f"input keys are used once in a task's life; already used: {', '.join(reused)}")
        return replace(
            self,
            outstanding={**self.outstanding, **requests},
            used=self.used.union(requests),
        )

    def answerable(self, keys: Iterable[str], now: datetime) -> frozenset[str]:
        """Those of `keys` that an answer may still close.

        The rest were never issued, are answered or are overdue: late, not wrong.
        """
        named = frozenset(keys)
        return frozenset(key for key, ask in self.outstanding.items() if key in named and not ask.is_overdue(now))

    def host(self, key: str, task_id: str) -> InputBook:
        """The book with a question noted as held by a task of the client; the same if it is not open."""
        ask = self.outstanding.get(key)
        if ask is None or ask.hosted_as == task_id:
            return self
        return replace(self, outstanding={**self.outstanding, key: replace(ask, hosted_as=task_id)})

    def close(self, keys: Iterable[str]) -> InputBook:
        """The book with these questions closed; keys that are not open are ignored."""
        closed = frozenset(keys)
        return replace(self, outstanding={k: r for k, r in self.outstanding.items() if k not in closed})

    def withdraw(self) -> InputBook:
        """The book with no open question: the task ended, or its run did."""
        return replace(self, outstanding=_EMPTY) if self.outstanding else self


ALWAYS = datetime.min.replace(tzinfo=UTC)
"""An instant that is past for every clock."""

DEFAULT_QUEUE = "default"
"""The queue of tools without another one."""

_NOTHING: Mapping[str, object] = MappingProxyType({})


@dataclass(frozen=True, kw_only=True, slots=True)
class TaskRequest:
    """The request: all that a run needs, so that any process can start one, at any time.

    The HTTP request and its tokens are not here on purpose: they do not outlive the call, and a run that depended on
    them could not be repeated. Answers that the client gave on the original call are: the tool needs them to go on.

    Attributes:
        max_wait: How long a question of this task may stay unanswered before the task fails, where the call says so; a
            smaller limit of the tool's own holds too. A question with a timeout of its own is not subject to it.
    """

    name: str
    arguments: JsonObject
    method: str = "tools/call"
    meta: JsonObject = field(default_factory=lambda: _NOTHING)
    protocol_version: str = ""
    client_info: JsonObject | None = None
    client_capabilities: JsonObject = field(default_factory=lambda: _NOTHING)
    input_responses: JsonObject | None = None
    request_state: str | None = None
    max_wait: timedelta | None = None


Trial: TypeAlias = Literal["alone", "beside"]
"""How a run is watched whose tool may be what takes its process down: if it is lost alone, it was."""

Pause: TypeAlias = Literal["waiting", "resuming"]
"""How a claimed task stands that is not at work: its run waits in memory, or wants to go on and has to wait for a place
under its limits first."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Progress:
    """The last progress that the tool reported."""

    progress: float
    total: float | None = None
    message: str | None = None


@dataclass(frozen=True, kw_only=True, slots=True)
class Outcome:
    """How a task ended, as JSON bytes that are the same for all protocol versions.

    Attributes:
        body: The result of a completed task (an `isError` result counts as one) without its `resultType` and `_meta`;
            of a failed one, the JSON-RPC error; of one that asked on the original call, the question.
        meta: The `_meta` of the result, apart, because the answer that carries it may have some of its own.
    """

    body: bytes
    meta: bytes | None = None


OTHER_WRITES = 5
"""Ids of writes by others than the current run that a record keeps: with the run's, at most 64 bytes."""


@dataclass(frozen=True, slots=True)
class WriteId:
    """Names one change of a task. It is chosen once, and stays the same in every attempt to write it: an attempt whose
    answer was lost is recognised by it.

    Attributes:
        writer: 48 random bits.
        number: Counts the writes of one run, from 1 for its claim; 0 for a change that is not of a run.
    """

    writer: str
    number: int = 0


@dataclass(frozen=True, kw_only=True, slots=True)
class ChildProcess:
    """A process group that a run started, so that a later run can tell whether it is still there.

    Attributes:
        attempt: The run that started it.
        group: Its number, which is the process id of its leader.
        started: When the leader started, as its system says it: another process of that number has another time.
        boot: On which boot of which machine the number means something, and in which id space.
        host: The name of the machine, for people.
    """

    attempt: int
    group: int
    started: str
    boot: str
    host: str


@dataclass(frozen=True, kw_only=True, slots=True)
class TaskRecord:
    """One task, as of `version`: all that a poll, a listing or a sweep needs, and always small.

    Its request (`TaskRequest`) and how it ended (`Outcome`) are stored beside it, and read only where they are needed.

    Attributes:
        owner: The principal that created the task; None on transports without authentication.
        name: The name of the tool.
        namespace: Which server the task belongs to. Processes of another server leave it alone.
        updated_at: When something that a client can see last changed.
        is_error: Whether the result of a completed task says `isError`.
        retention: How long the task is kept after it ended; None for as long as the store lives.
        poll_interval: A fixed interval to suggest to clients; None lets it adapt to the task's age.
        attempt: How many runs were started. 0 means the tool never saw this task.
        worker: The process that has the current run; None while there is none.
        started_at: When the current (or last) run began; None if no tool was called for the task yet.
        wake_at: When a parked task may run again without an answer; None for one that is not parked.
        lost: How many runs in a row died with their process before they got any further.
        announced: Whether the caller has been told of the task, or is about to be. Until then its tool may still answer
            on the original call, and nobody can come back for it.
        pause: Whether the current run has given up its place under the limits of its tool and its owner while it waits
            in memory, or wants it back by now; None while it has it, and where there are no limits.
        trial: How the current (or last) run is watched, after runs were lost: by itself, or beside others like it.
        session: The session in which the task was created, if its caller has sessions. It scopes listings and owns
            nothing.
        parent: The task in whose run this one was started.
        queue: Which pool of workers runs it.
        priority: Among the tasks of a queue those of a higher number are started first.
        tool_version: The version of its tool that the current (or last) run was started with, if the author gives any.
        fingerprint: What the call was, as a hash, for a task that stands under an idempotency key of its caller: under
            the same key no other call may stand.
        trace: The trace context of the call that made the task, as W3C text (`traceparent`): its runs go on with it.
        rerun_of: The task that an operator had run again as this one.
        processes: Child processes that its runs started, and that may still be there.
        writes: The ids of the writes that made it what it is, the newest first: the last one of the current (or last)
            run, and the last few of others.
        unknown: Fields of a newer release. They are written back as they were.
    """

    id: str
    owner: str | None
    name: str
    created_at: datetime
    updated_at: datetime
    method: str = "tools/call"
    status: TaskStatus = TaskStatus.WORKING
    status_message: str | None = None
    progress: Progress | None = None
    inputs: InputBook = field(default_factory=InputBook)
    is_error: bool = False
    finished_at: datetime | None = None
    retention: timedelta | None = None
    poll_interval: timedelta | None = None
    attempt: int = 0
    worker: str | None = None
    started_at: datetime | None = None
    wake_at: datetime | None = None
    lost: int = 0
    trial: Trial | None = None
    pause: Pause | None = None
    announced: bool = True
    session: str | None = None
    parent: str | None = None
    queue: str = DEFAULT_QUEUE
    priority: int = 0
    tool_version: str | None = None
    fingerprint: str | None = None
    trace: str | None = None
    rerun_of: str | None = None
    processes: tuple[ChildProcess, ...] = ()
    writes: tuple[WriteId, ...] = ()
    unknown: Mapping[str, JsonValue] = field(default_factory=lambda: _NOTHING)
    namespace: str = ""
    version: int = 1

    def but(self, **changes: Any) -> TaskRecord:
        """The record with these fields changed: `dataclasses.replace`, in a third of its time."""
        return TaskRecord(**{**dict(zip(_FIELDS, _values(self), strict=True)), **changes})

    def written(self, write: WriteId) -> TaskRecord:
        """The record with the id of the write that makes it.

        A run writes one thing after the other, and repeats what failed before it writes the next. So its last number
        says of each of its writes whether it was made, however many others write in between.
        """
        others = [each for each in self.writes if each.writer != write.writer]
        run = [] if write.number else [each for each in others if each.number]
        single = [each for each in others if not each.number]
        return self.but(writes=(write, *run, *single[: OTHER_WRITES - (not write.number)]))

    def has(self, write: WriteId) -> bool:
        """Whether this write was made."""
        return any(each.writer == write.writer and each.number >= write.number for each in self.writes)

    @property
    def is_final(self) -> bool:
        """Whether the task has ended, one way or another."""
        return self.status in FINAL_STATUSES

    def is_queued(self, now: datetime) -> bool:
        """Whether the task could run at `now` and nobody has it."""
        ready_at = self.ready_at
        return ready_at is not None and ready_at <= now

    @property
    def ready_at(self) -> datetime | None:
        """From when on the task can be started; None if it is claimed, has ended, or waits for an answer."""
        if self.worker is not None or self.is_final:
            return None
        if self.wake_at is not None:
            return self.wake_at
        # Not `created_at`: a replica whose clock is behind must not wait for its clock to come up to ours.
        return ALWAYS if self.status is TaskStatus.WORKING else None


_FIELDS = tuple(field.name for field in fields(TaskRecord))
_values = attrgetter(*_FIELDS)


# ---- journal
# Entries of a task's journal: the next run will ask for them again.


EntryKind: TypeAlias = Literal["ask", "answer", "refusal", "step", "timer", "done", "version"]

ENTRY_KINDS: frozenset[str] = frozenset(get_args(EntryKind))


@dataclass(frozen=True, kw_only=True, slots=True)
class JournalEntry:
    """One thing that happened for good.

    `ask`: a question was put, under `key`. `answer`: its answer arrived. `refusal`: it was answered with an error; of a
    kind of its own, so that no client can send an answer that looks like one. `timer`: a sleep began, and ends at
    `value`. `step`: a step ended, with `value`. `done`: the tool was handed the end of a question or a timer, or gave
    up on one or on a step; `value` says which. The order of `step` and `done` entries is the order in which the tool
    learned of things. `version`: from here on the tool has another version, and goes on from the entries before
    this one, or starts over, and then they do not count.

    A release that does not know a kind cannot run the task, and would end it. So one that writes a new kind writes its
    records in a format that releases without that kind do not read.

    Attributes:
        number: Its place in the journal, given by the store; 0 for an entry that has not been written.
    """

    kind: EntryKind
    key: str
    value: JsonValue
    number: int = 0
