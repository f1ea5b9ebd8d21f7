"""Every exception this package raises. Branches say whose fault it is; `TasksError` is the root.

Only `protocol.errors` knows the JSON-RPC codes that they become. `mcp_tasks.client.TaskFailed` is an error of the SDK's
as well, and lives where the SDK may be imported. So do the errors of a tool that asks its client for a task:
`mcp_tasks.legacy.server`.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import timedelta
from typing import Any, Literal

from mcp_tasks._utils import short_id

DOCS = "https://mcp-tasks.github.io/mcp-tasks/latest/"
"""The documentation, for messages and help: a page of it is `DOCS` and its file, like `cli.html`."""


class TasksError(Exception):
    """Root of everything this package raises."""


# ---- usage: the author's code, or what a person typed, has to change


class UsageError(TasksError):
    """The author's code asks for something that cannot work; the message says what to change."""


class WiringError(UsageError):
    """A server was built with only a part of what tasks need."""


class InvalidOption(UsageError, ValueError, TypeError):
    """An option, a mark of a tool or a duration has a value that it cannot have; refused where it is given."""


class OwnerRequired(UsageError):
    """A server that requires authentication was to create a task without an owner."""


class MissingExtra(UsageError):
    """An optional dependency is not installed."""

    def __init__(self, what: str, extra: str) -> None:
        self.what = what
        self.extra = extra
        super().__init__(f"{what} needs an optional dependency: pip install 'mcp-tasks[{extra}]'")


class ReplayMismatch(UsageError):
    """A tool that was started again did something else than the first time, where it must do the same."""

    reason = "replay"


class TooLarge(UsageError):
    """The result, an error or a question of a tool has too many bytes.

    Attributes:
        what: Which of them it is.
        size: How many bytes of JSON it has.
        limit: How many it may have.
    """

    def __init__(self, what: Literal["result", "error", "question"], tool: str, size: int, limit: int) -> None:
        self.what = what
        self.tool = tool
        self.size = size
        self.limit = limit
        begins, can, do = _TOO_LARGE[what]
        super().__init__(f"{begins} of tool {tool!r} has {size:,} bytes of JSON, and at most {limit:,} {can} {do}")


_TOO_LARGE = {
    "result": ("The result", "are kept (Limits.result_bytes).", "Return less, or a link to where the rest is."),
    "error": ("The error", "are kept (Limits.result_bytes).", "Raise one that says less."),
    "question": ("A question", "can be asked.", "Ask with less, or with a link to where the rest is."),
}


class Explained(TasksError):
    """An error for a person at a terminal.

    Attributes:
        what: What is wrong, without a full stop.
        hint: What to do about it, on as many lines as it takes; may be empty.
    """

    def __init__(self, what: str, hint: str = "") -> None:
        self.what: str = what
        self.hint: str = hint
        super().__init__(f"{what}\n{hint}" if hint else what)


InputReason = Literal[
    "address",
    "server",
    "server_file",
    "credentials",
    "task",
    "several_tasks",
    "no_question",
    "several_questions",
    "tool",
]
"""Which input is wrong: the address of a server, its name, a file that names servers, credentials that are for one
server and would go to several; a task that the ledger does not have, or an id that fits more than one; an answer that
the task does not ask for, or that fits more than one question; or the name of a tool."""


class InvalidInput(Explained, UsageError):
    """Something that a person named is not there, or is not clear; the hint lists alternatives."""

    def __init__(self, reason: InputReason, what: str, hint: str = "") -> None:
        super().__init__(what, hint)
        self.reason: InputReason = reason


class BadValue(TasksError, ValueError):
    """A value that a person typed does not fit its field; the message says why.

    Attributes:
        names: The fields that are to be given, or given otherwise; empty if that is known from elsewhere.
        hint: The possible values, one on each line; empty if a single field was asked for.
    """

    def __init__(self, message: str, *, names: Sequence[str] = (), hint: str = "") -> None:
        super().__init__(message)
        self.names: tuple[str, ...] = tuple(names)
        self.hint: str = hint


class QuestionUnseen(Explained):
    """The task asks something, and its server does not show what: it does so only for a client that will answer, or
    not at the moment."""


# ---- callers


class UnknownTask(TasksError):
    """No such task for this caller: never created, expired, or somebody else's. All three look alike.

    Attributes:
        hint: Another possible reason, with servers of this kind.
    """

    def __init__(self, task_id: str, what: str = "Task not found", *, hint: str = "") -> None:
        self.task_id = task_id
        self.hint = hint
        super().__init__(f"{what}: it does not exist, has expired, or is not yours{f'; {hint}' if hint else ''}")


class ResultExpired(UnknownTask):
    """A tool waits for a task that it started, and the task has ended and is gone. It is not started again."""

    def __init__(self, task_id: str) -> None:
        self.task_id = task_id
        self.hint = ""
        TasksError.__init__(
            self,
            f"The result of task {task_id} is gone: its ttl was over before the tool waited for it, or it was deleted. "
            "The task is not started again. Start it with a longer ttl",
        )


class LimitExceeded(TasksError):
    """A caller asks for more than it may take. Nothing was done.

    Attributes:
        limit: The name of the limit: an attribute of `mcp_tasks.Limits`.
        retry_after: When to come back; None if the same request will not do then either.
    """

    def __init__(self, limit: str, message: str, *, retry_after: timedelta | None = None) -> None:
        self.limit = limit
        self.retry_after = retry_after
        super().__init__(message)


KeyReason = Literal["key_taken", "key_spent", "key_too_short", "call_not_kept"]


class KeyRefused(TasksError):
    """An idempotency key cannot be used for this call. Nothing was done.

    Attributes:
        reason: Another call stands under it; its task has expired; it could be guessed, and there is no other proof of
            who calls; or it cannot tell whether the call was made before.
    """

    def __init__(self, reason: KeyReason, *, least: int = 0) -> None:
        self.reason: KeyReason = reason
        super().__init__(_KEY_REFUSED[reason].format(least=least))


_KEY_REFUSED: dict[KeyReason, str] = {
    "key_taken": (
        "The idempotency key belongs to another call: of another tool, or with other arguments. One key is for one "
        "call; take a new one"
    ),
    "key_spent": (
        "The task of this idempotency key has expired, with its result. The call was made, and is not made again under "
        "the same key; take a new one to make it once more"
    ),
    "key_too_short": (
        "Without authentication an idempotency key has at least {least} characters, so that nobody can guess it: "
        "a UUID will do"
    ),
    "call_not_kept": (
        "The call may have been made before, and its idempotency key cannot tell: nothing is kept of calls of this "
        "tool under their keys. It is not made again"
    ),
}


class KeySpent(KeyRefused):
    """The task of the idempotency key is gone, and the key may not be used again yet.

    Attributes:
        task_id: Which task it was, if it was the child of one that is open.
    """

    def __init__(self, task_id: str | None = None) -> None:
        super().__init__("key_spent")
        self.task_id = task_id


# ---- waiting


class TaskWasCancelled(TasksError):
    """The task that a caller waited for was cancelled."""

    def __init__(self, task_id: str, message: str | None = None) -> None:
        self.task_id = task_id
        super().__init__(f"task {task_id} was cancelled" + (f": {message}" if message else ""))


Fate = Literal["left", "cancelled", "not cancelled"]
"""What became of a task when its caller stopped waiting: it goes on, it was cancelled, or cancelling it failed."""


class WaitAbandoned(TasksError):
    """A caller stopped waiting for a task that has not ended; `on_abandon` decided what became of the task.

    Attributes:
        fate: What became of the task.
    """

    def __init__(self, task_id: str, why: str, fate: Fate = "left", *, how_to_go_on: str | None = None) -> None:
        self.task_id = task_id
        self.fate: Fate = fate
        super().__init__(f"{why}. {(how_to_go_on or _HOW_TO_GO_ON[fate]).format(task_id=task_id)}")


_HOW_TO_GO_ON: dict[Fate, str] = {
    "left": "The task goes on (on_abandon='leave'): come back with resume_task(client, {task_id!r}).",
    "cancelled": "The task was cancelled (on_abandon='cancel'): call the tool again to start over.",
    "not cancelled": (
        "The task could not be cancelled and may go on: try resume_task(client, {task_id!r}).cancel() again."
    ),
}


class WaitTimedOut(WaitAbandoned, TimeoutError):
    """The task did not end in the time that the caller gave it."""

    def __init__(self, task_id: str, seconds: float, fate: Fate = "left", *, how_to_go_on: str | None = None) -> None:
        self.seconds = seconds
        if not task_id:
            # A call that had not become one.
            how_to_go_on = how_to_go_on or "It may have been made."
        why = f"{f'task {task_id}' if task_id else 'the call'} did not end within {seconds:.15g} s"
        super().__init__(task_id, why, fate, how_to_go_on=how_to_go_on)


class QuestionUnanswered(WaitAbandoned):
    """A question of the task got no answer: a callback failed or refused, or the server did not take the answer. The
    `__cause__` is what went wrong."""

    def __init__(self, task_id: str, key: str, why: str, fate: Fate = "left") -> None:
        self.key = key
        super().__init__(task_id, f"task {task_id} asks {key!r}, and {why}", fate)


# ---- peers


UnreachableReason = Literal[
    "connection", "credentials", "redirect", "internal", "not_mcp", "timeout", "not_found", "exited", "other"
]
"""Why a server cannot be used: no connection, credentials missing or refused, it has moved, it answers with an error of
its own, it is something else, it does not answer, there is no such command, its process ended; or something else."""


class ServerUnreachable(Explained):
    """A server cannot be used: it is not there, refuses the credentials, or is not an MCP server.

    Attributes:
        reason: Why, in one word for programs.
        scheme: With `credentials`: the kind of authorization that the server asks for, such as `Bearer`.
    """

    def __init__(
        self, what: str, hint: str = "", *, reason: UnreachableReason = "other", scheme: str = "Bearer"
    ) -> None:
        super().__init__(what, hint)
        self.reason: UnreachableReason = reason
        self.scheme: str = scheme


class ServerHasFaults(TasksError):
    """An examination of a server found something wrong, or could not look at its tasks."""

    def __init__(self, faults: Sequence[str]) -> None:
        self.faults: Sequence[str] = faults
        super().__init__("\n".join(["the server's support for tasks is not right:", *faults]))


class InvalidResponse(TasksError):
    """The other side sent something that the protocol does not allow."""


# ---- runs


StopReason = Literal[
    "interrupted",
    "max_runtime",
    "max_wait",
    "task_age",
    "unannounced",
    "lost",
    "cannot_start",
    "tool_version",
    "request",
    "journal",
]


class RunStopped(TasksError):
    """The work was stopped before it had an outcome; the task is `failed` and says so.

    Attributes:
        reason: One word for programs, carried in the error's data.

    Args:
        limit: The limit that was exceeded.
        times: How often the process died.
        versions: The version of the tool that the task began with, and that of now.
    """

    def __init__(
        self,
        reason: StopReason,
        tool: str,
        *,
        limit: timedelta = timedelta(0),
        times: int = 0,
        versions: tuple[str | None, str | None] = (None, None),
    ) -> None:
        self.reason: StopReason = reason
        self.tool = tool
        seconds, (began, now) = limit.total_seconds(), (version or "(none)" for version in versions)
        super().__init__(
            _STOPPED[reason].format(tool=tool, s=seconds, days=seconds / 86_400, times=times, began=began, now=now)
        )


_STOPPED: dict[StopReason, str] = {
    "interrupted": (
        "Interrupted: the server stopped, or lost touch with its task store, while {tool!r} was running, and the tool "
        "is not marked as safe to run again. The work may be done in part."
    ),
    "max_runtime": "The work was stopped: {tool!r} ran longer than its limit of {s:.15g} s.",
    "max_wait": "The work was stopped: nobody answered {tool!r} within {s:.15g} s.",
    "task_age": (
        "The work was stopped: {tool!r} was not done {days:.15g} days after its task was made, and no task goes on for "
        "longer here."
    ),
    "unannounced": "{tool!r} asks something, and nobody can answer: its call went away before it was answered.",
    "lost": (
        "The server process died {times} times in a row while {tool!r} was running, so the tool is not started again."
    ),
    "cannot_start": "The server could not find out how to run {tool!r}, often as it tried; its log says why.",
    "tool_version": (
        "The task was begun with version {began} of {tool!r}, and the server has version {now} by now, which does not "
        "go on with it. Call the tool again."
    ),
    "request": "The stored request to {tool!r} cannot be read, so the tool is not started.",
    "journal": "What earlier runs of {tool!r} recorded for this task cannot be read, so the tool is not started again.",
}


class StepError(TasksError):
    """A step failed, and its exception cannot be rebuilt: this one has its class and message.

    Attributes:
        step: The name of the step.
        error_type: The name of the exception's class.
        message: Its text.
    """

    def __init__(self, step: str, error_type: str, message: str) -> None:
        self.step = step
        self.error_type = error_type
        self.message = message
        super().__init__(f"step {step!r} failed with {error_type}: {message}")


class QuestionTimedOut(TasksError, TimeoutError):
    """A question of the tool was not answered within its `timeout`."""

    timeout: timedelta | None = None

    @classmethod
    def after(cls, timeout: timedelta | None) -> QuestionTimedOut:
        """The exception for a question that waited for so long.

        No constructor of its own: the server raises a subclass that is an error of the SDK's as well.
        """
        limit = "" if timeout is None else f" within {timeout.total_seconds():.15g} s"
        exc = cls(f"Nobody answered the question{limit}")
        exc.timeout = timeout
        return exc


class AnswerRefused(TasksError):
    """The client answered a question of the tool with this JSON-RPC error."""

    def __init__(self, code: int, message: str, data: object = None) -> None:
        self.code = code
        self.message = message
        self.data = data
        super().__init__(message)


class TransitionRefused(TasksError):
    """An event does not fit the state of a task."""

    def __init__(self, task_id: str, status: str, event: str, why: str) -> None:
        self.task_id = task_id
        self.status = status
        self.event = event
        super().__init__(f"task {short_id(task_id)} is {status} and refuses {event}: {why}")


class StaleRun(TransitionRefused):
    """A run tried to write after its lease went to another run (or was given up)."""


# ---- stores


class CannotDecrypt(TasksError):
    """Encrypted data needs another key, or was changed, or belongs to another task. The message shows nothing of it."""


class StoreError(TasksError):
    """The store did not do its part."""


class StoreUnavailable(StoreError):
    """The store cannot take the request now. Trying again later may work.

    Attributes:
        may_have_happened: Whether the request may have been carried out although no answer came. False: it was not.
    """

    def __init__(self, message: str, *, may_have_happened: bool = False) -> None:
        super().__init__(message)
        self.may_have_happened = may_have_happened


class StoreCorrupt(StoreError):
    """The store holds something that is not ours, is damaged, or was written by a newer release."""


class UntrustedFile(StoreCorrupt):
    """A file is not used, because another user may have put it there, or may write it; the message says what to do."""


class EncryptionMismatch(StoreCorrupt):
    """Stored data is encrypted and the key is missing or another one, or it is plain and there is a key."""


class TaskUnreadable(StoreCorrupt):
    """One task's row or journal is damaged, or was written by a newer release."""

    def __init__(self, task_id: str, why: str, *, owner: str | None = None) -> None:
        self.task_id = task_id
        self.why = why
        self.owner = owner
        super().__init__(f"task {short_id(task_id)} cannot be read: {why}")


class ValueNotStorable(StoreError):
    """The store can never keep this value, however often it is tried."""


class TaskExists(StoreError):
    """A task with this id is already there."""

    def __init__(self, task_id: str) -> None:
        self.task_id = task_id
        super().__init__(f"task {short_id(task_id)} already exists")


class LimitReached(StoreError):
    """A claim found that the concurrency limit of a tool or an owner is reached."""

    def __init__(self, task_id: str, what: str) -> None:
        self.task_id = task_id
        self.what = what
        super().__init__(f"task {short_id(task_id)} cannot be claimed now: as many of its {what} are at work as may be")


class VersionConflict(StoreError):
    """A save named a version that is no longer the stored one (or the task is gone).

    Attributes:
        current: The record as it is now, if the store has read it; None also for a task that is gone.
    """

    def __init__(self, task_id: str, expected: int, current: Any = None) -> None:
        self.task_id = task_id
        self.current = current
        self.expected = expected
        super().__init__(f"task {short_id(task_id)} is no longer at version {expected}")
