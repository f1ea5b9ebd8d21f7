"""Every exception this package raises.

    TasksError
    ├── UsageError                  the author's code asks for something that cannot work
    │   ├── WiringError             the server is not completely wired for tasks
    │   ├── InvalidMark             a tool is marked in a way that cannot work
    │   ├── InvalidOption           an option has a value that it cannot have
    │   │   └── InvalidDuration     a duration is not a timedelta, or not a possible one
    │   ├── ReplayMismatch          a tool that was started again did not ask what it asked before
    │   ├── ResultTooLarge          a tool's result is larger than what is kept
    │   ├── ErrorTooLarge           the error that a tool raised is larger than what is kept
    │   ├── QuestionTooLarge        a tool asks with more than a question may have
    │   ├── OwnerRequired           a task has to have an owner, and there is none
    │   ├── InvalidAddress          what should name a server does not
    │   ├── UnknownServer           no server is known by this name
    │   ├── InvalidServerFile       a file that names servers, or a server in it, cannot be used
    │   ├── CredentialsForOne       credentials for one server would go to several
    │   ├── TaskNotRemembered       the ledger has no task of this name
    │   ├── AmbiguousTask           a name fits more than one task of the ledger
    │   ├── NoOpenQuestion          a task does not ask what somebody wants to answer
    │   ├── AmbiguousAnswer         a task asks several things, and an answer may be for each
    │   ├── UnknownTool             the server has no tool of this name
    │   └── MissingExtra            an optional dependency is not installed
    ├── Explained                   what is wrong and what to do, apart: some of the above and below
    ├── StepError                   a step failed in an earlier run, with an exception that cannot be rebuilt
    ├── QuestionTimedOut            nobody answered a question within its `timeout`
    ├── AnswerRefused               the client answered a question with an error
    ├── UnknownTask                 the caller named a task that is not there for this caller
    │   └── ResultExpired           a tool waits for a task that it started, and its result is gone
    ├── LimitExceeded               the caller takes more than it may
    ├── KeyRefused                  an idempotency key cannot be used for this call
    │   ├── KeyTaken                another call stands under it
    │   ├── KeySpent                its task has expired
    │   ├── KeyTooShort             it could be guessed, and there is no other proof of who calls
    │   └── CallNotKept             it cannot tell whether the call was made before
    ├── TaskWasCancelled            what a caller waited for was cancelled
    ├── WaitAbandoned               a caller stopped waiting for a task that has not ended
    │   ├── WaitTimedOut            it waited as long as it wanted to
    │   └── QuestionUnanswered      the task asks something, and the answer failed or was refused
    ├── BadValue                    what a person typed is no value of its field
    ├── QuestionUnseen              a task asks something, and its server does not show what
    ├── ServerUnreachable           a server cannot be used: not there, not for us, or no MCP server
    ├── ServerHasFaults             an examination of a server found something wrong
    ├── InvalidResponse             the other side did not keep to the protocol
    ├── RunStopped                  the work was stopped before it had an outcome
    │   ├── Interrupted             its process went away, and the tool may not be run again
    │   ├── RanTooLong              it ran longer than its `max_runtime`
    │   ├── WaitedTooLong           nobody answered it within its `max_wait`
    │   ├── TooOld                  it was not done within the time that any task has in all
    │   ├── NeverAnnounced          it asks something, and nobody was ever told of it
    │   ├── LostTooOften            its process died with it again and again
    │   ├── OtherVersion            it was begun with another version of its tool, which says that it then ends
    │   ├── CannotStart             it could not be found out how its tool is to be run
    │   ├── RequestUnreadable       what the tool was called with cannot be read
    │   └── JournalUnreadable       what earlier runs recorded cannot be read
    ├── CannotDecrypt               something encrypted needs another key, or was changed
    ├── TransitionRefused           what happened does not fit the task's state
    │   └── StaleRun                a run that lost its lease tried to write
    └── StoreError                  the place where tasks are kept did not do its part
        ├── StoreUnavailable        it cannot take the request now (full, locked, unreachable)
        ├── ValueNotStorable        a value is too large, or of a kind, for the store to keep
        ├── StoreCorrupt            what is there cannot be read as ours
        │   ├── UntrustedFile       others have put it there, or can write it
        │   ├── EncryptionMismatch  it is encrypted with another key, or not at all
        │   └── TaskUnreadable      one task's row or journal cannot be read
        ├── TaskExists              an id was created twice
        ├── LimitReached            as many tasks of its tool or its owner are at work as may be
        └── VersionConflict         somebody else saved this task first

Branches say whose fault it is. Only `protocol.errors` knows the JSON-RPC codes that these become. One more is an error
of the SDK's as well, and lives where the SDK may be imported: `mcp_tasks.client.TaskFailed`. So do those of a tool that
asks its client for a task: `mcp_tasks.legacy.server`.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import timedelta
from typing import Any, Literal

from mcp_tasks._utils import short_id

Fate = Literal["left", "cancelled", "not cancelled"]
"""What became of a task when its caller stopped waiting: it goes on, it was cancelled, or cancelling it failed."""


DOCS = "https://mcp-tasks.github.io/mcp-tasks/latest/"
"""Where the documentation is, for messages and help: a page of it is `DOCS` and its file, like `cli.html`."""


class TasksError(Exception):
    """Root of everything this package raises."""


class UsageError(TasksError):
    """The author's code asks for something that cannot work; the message says what to change."""


class WiringError(UsageError):
    """A server was built with only a part of what tasks need."""


class InvalidMark(UsageError, TypeError):
    """A tool is marked in a way that cannot work; refused where the decorator stands."""


class InvalidOption(UsageError, ValueError):
    """An option has a value that it cannot have; refused where it is given."""


class InvalidDuration(InvalidOption, TypeError):
    """A duration is not a `timedelta`, or is negative, or is zero where that means nothing."""


class ReplayMismatch(UsageError):
    """A tool that was started again did something else than the first time, where it must do the same."""

    reason = "replay"


class ResultTooLarge(UsageError):
    """A tool's result is larger than `Limits.result_bytes`."""

    def __init__(self, tool: str, size: int, limit: int) -> None:
        self.tool = tool
        self.size = size
        self.limit = limit
        super().__init__(
            f"The result of tool {tool!r} has {size:,} bytes of JSON, and at most {limit:,} are kept "
            "(Limits.result_bytes). Return less, or a link to where the rest is."
        )


class ErrorTooLarge(UsageError):
    """The error that a tool raised is larger than `Limits.result_bytes`."""

    def __init__(self, tool: str, size: int, limit: int) -> None:
        self.tool = tool
        self.size = size
        self.limit = limit
        super().__init__(
            f"The error of tool {tool!r} has {size:,} bytes of JSON, and at most {limit:,} are kept "
            "(Limits.result_bytes). Raise one that says less."
        )


class QuestionTooLarge(UsageError):
    """A tool asks with more than a question may have; it is not put to anybody."""

    def __init__(self, tool: str, size: int, limit: int) -> None:
        self.tool = tool
        self.size = size
        self.limit = limit
        super().__init__(
            f"A question of tool {tool!r} has {size:,} bytes of JSON, and at most {limit:,} can be asked. "
            "Ask with less, or with a link to where the rest is."
        )


class MissingExtra(UsageError):
    """A backend needs a package that is not installed."""

    def __init__(self, what: str, extra: str) -> None:
        self.what = what
        self.extra = extra
        super().__init__(f"{what} needs an optional dependency: pip install 'mcp-tasks[{extra}]'")


class UnknownTask(TasksError):
    """No such task for this caller: never created, expired, or somebody else's. All three look alike.

    Attributes:
        hint: What else it may be, with servers of this kind.
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
        limit: Which limit it is: an attribute of `mcp_tasks.Limits`.
        retry_after: When to come back; None if the same request will not do then either.
    """

    def __init__(self, limit: str, message: str, *, retry_after: timedelta | None = None) -> None:
        self.limit = limit
        self.retry_after = retry_after
        super().__init__(message)


class OwnerRequired(UsageError):
    """A server that requires authentication was to make a task that nobody owns."""


class KeyRefused(TasksError):
    """An idempotency key cannot be used for this call. Nothing was done.

    Attributes:
        reason: Why, in one word for programs.
    """

    reason: str


class KeyTaken(KeyRefused):
    """Under the idempotency key stands a call of another tool, or with other arguments."""

    reason = "key_taken"

    def __init__(self) -> None:
        super().__init__(
            "The idempotency key belongs to another call: of another tool, or with other arguments. One key is for "
            "one call; take a new one"
        )


class KeySpent(KeyRefused):
    """The task that the idempotency key stands for is gone, and the key may not be used again yet.

    Attributes:
        task_id: Which task it was, if it was the child of one that is open.
    """

    reason = "key_spent"

    def __init__(self, task_id: str | None = None) -> None:
        self.task_id = task_id
        super().__init__(
            "The task of this idempotency key has expired, with its result. The call was made, and is not made again "
            "under the same key; take a new one to make it once more"
        )


class KeyTooShort(KeyRefused):
    """The idempotency key could be guessed, and the caller has no name: there is nothing else to tell callers apart."""

    reason = "key_too_short"

    def __init__(self, least: int) -> None:
        super().__init__(
            f"Without authentication an idempotency key has at least {least} characters, so that nobody can guess it: "
            "a UUID will do"
        )


class CallNotKept(KeyRefused):
    """A call that may have been made before is of a tool whose calls leave nothing to tell by: plain calls, and those
    that joined another."""

    reason = "call_not_kept"

    def __init__(self) -> None:
        super().__init__(
            "The call may have been made before, and its idempotency key cannot tell: nothing is kept of calls of this "
            "tool under their keys. It is not made again"
        )


class TaskWasCancelled(TasksError):
    """The task that a caller waited for was cancelled, here or by somebody else."""

    def __init__(self, task_id: str, message: str | None = None) -> None:
        self.task_id = task_id
        super().__init__(f"task {task_id} was cancelled" + (f": {message}" if message else ""))


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
    """A question of the task got no answer: a callback failed or refused, or the server did not take the answer.

    What went wrong is the `__cause__`.
    """

    def __init__(self, task_id: str, key: str, why: str, fate: Fate = "left") -> None:
        self.key = key
        super().__init__(task_id, f"task {task_id} asks {key!r}, and {why}", fate)


class Explained(TasksError):
    """What an error of somebody's input has apart for whoever shows it: what is wrong, and what to do.

    Attributes:
        what: What is wrong, without a full stop.
        hint: What to do about it, on as many lines as it takes; empty if there is nothing to say.
    """

    def __init__(self, what: str, hint: str = "") -> None:
        self.what: str = what
        self.hint: str = hint
        super().__init__(f"{what}\n{hint}" if hint else what)


class InvalidAddress(Explained, UsageError):
    """What should name a server does not: neither a URL nor a command, or a ledger does not say how to reach it."""


class UnknownServer(Explained, UsageError):
    """No server is known by that name; the hint has those that are spelled like it."""


class InvalidServerFile(Explained, UsageError):
    """A file that names servers, or a server in it, cannot be used: it is not JSON, say, or a variable is not set."""


class CredentialsForOne(Explained, UsageError):
    """Tasks are of several servers or identities, and the headers that were given can only be for one of them."""


class TaskNotRemembered(Explained, UsageError):
    """The ledger has no task whose id begins like that.

    Attributes:
        start: How it should begin.
    """

    def __init__(self, start: str) -> None:
        self.start: str = start
        hint = "That is the URL of a server; a task is named by its id." if "://" in start else ""
        super().__init__(f"no task in the ledger begins with {start!r}", hint)


class AmbiguousTask(Explained, UsageError):
    """The ledger has more than one task whose id begins like that; the hint lists them."""


class NoOpenQuestion(Explained, UsageError):
    """The task asks nothing, or nothing by that key; the hint has the keys of what it asks."""


class AmbiguousAnswer(Explained, UsageError):
    """The task asks several things, and the answer may be for each; the hint has them."""


class QuestionUnseen(Explained, TasksError):
    """The task asks something, and its server does not show what: to nobody who will not answer, or to nobody now."""


class UnknownTool(Explained, UsageError):
    """The server has no tool of that name; the hint has those that are spelled like it."""


UnreachableReason = Literal[
    "connection", "credentials", "redirect", "internal", "not_mcp", "timeout", "not_found", "exited", "other"
]
"""Why a server cannot be used: no connection, credentials missing or refused, it has moved, it answers with an error of
its own, it is something else, it does not answer, there is no such command, its process ended; or something else."""


class ServerUnreachable(Explained, TasksError):
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
    """An examination of a server found something wrong, or could not look at its tasks.

    Attributes:
        faults: What is wrong, each in words.
    """

    def __init__(self, faults: Sequence[str]) -> None:
        self.faults: Sequence[str] = faults
        super().__init__("\n".join(["the server's support for tasks is not right:", *faults]))


class InvalidResponse(TasksError):
    """The other side sent something that the protocol does not allow."""


class BadValue(TasksError, ValueError):
    """What a person typed is no value of its field; the message says why.

    Attributes:
        names: The fields that are to be given, or given otherwise; empty if that is known from elsewhere.
        hint: What can be given, a line each, and how that is written; empty if a single field was asked for.
    """

    def __init__(self, message: str, *, names: Sequence[str] = (), hint: str = "") -> None:
        super().__init__(message)
        self.names: tuple[str, ...] = tuple(names)
        self.hint: str = hint


class RunStopped(TasksError):
    """The work was stopped before it had an outcome; the task is `failed` and says so."""

    reason: str
    """One word for programs, carried in the error's data."""


class Interrupted(RunStopped):
    """The process that ran the tool stopped or died, and the tool is not marked as safe to run again."""

    reason = "interrupted"

    def __init__(self, tool: str) -> None:
        self.tool = tool
        super().__init__(
            f"Interrupted: the server stopped, or lost touch with its task store, while {tool!r} was running, and the "
            "tool is not marked as safe to run again. The work may be done in part."
        )


class RanTooLong(RunStopped):
    """The tool ran longer than its `max_runtime`."""

    reason = "max_runtime"

    def __init__(self, tool: str, limit: timedelta) -> None:
        self.tool = tool
        self.limit = limit
        super().__init__(f"The work was stopped: {tool!r} ran longer than its limit of {limit.total_seconds():.15g} s.")


class WaitedTooLong(RunStopped):
    """A question of the tool stayed unanswered for longer than its `max_wait`."""

    reason = "max_wait"

    def __init__(self, tool: str, limit: timedelta) -> None:
        self.tool = tool
        self.limit = limit
        super().__init__(f"The work was stopped: nobody answered {tool!r} within {limit.total_seconds():.15g} s.")


class TooOld(RunStopped):
    """The task has not ended within `Limits.task_age` of its creation."""

    reason = "task_age"

    def __init__(self, tool: str, limit: timedelta) -> None:
        self.tool = tool
        self.limit = limit
        super().__init__(
            f"The work was stopped: {tool!r} was not done {limit.total_seconds() / 86_400:.15g} days after its task "
            "was made, and no task goes on for longer here."
        )


class NeverAnnounced(RunStopped):
    """The tool asks something in a task that nobody was told of: the call that made it is gone."""

    reason = "unannounced"

    def __init__(self, tool: str) -> None:
        self.tool = tool
        super().__init__(f"{tool!r} asks something, and nobody can answer: its call went away before it was answered.")


class LostTooOften(RunStopped):
    """The processes that ran the tool died with it, one after the other."""

    reason = "lost"

    def __init__(self, tool: str, times: int) -> None:
        self.tool = tool
        self.times = times
        super().__init__(
            f"The server process died {times} times in a row while {tool!r} was running, "
            "so the tool is not started again."
        )


class CannotStart(RunStopped):
    """Looking the tool up failed again and again, so the task was never started."""

    reason = "cannot_start"

    def __init__(self, tool: str) -> None:
        self.tool = tool
        super().__init__(f"The server could not find out how to run {tool!r}, often as it tried; its log says why.")


class OtherVersion(RunStopped):
    """The task was begun with another version of its tool, and the author said that such a task ends."""

    reason = "tool_version"

    def __init__(self, tool: str, began: str | None, now: str | None) -> None:
        self.tool = tool
        self.began = began
        self.now = now
        super().__init__(
            f"The task was begun with version {began or '(none)'} of {tool!r}, and the server has version "
            f"{now or '(none)'} by now, which does not go on with it. Call the tool again."
        )


class RequestUnreadable(RunStopped):
    """The request of the task cannot be read, so its tool cannot be started."""

    reason = "request"

    def __init__(self, tool: str) -> None:
        self.tool = tool
        super().__init__(f"The stored request to {tool!r} cannot be read, so the tool is not started.")


class JournalUnreadable(RunStopped):
    """The task's journal cannot be read, so the tool cannot be started again."""

    reason = "journal"

    def __init__(self, tool: str) -> None:
        self.tool = tool
        super().__init__(
            f"What earlier runs of {tool!r} recorded for this task cannot be read, so the tool is not started again."
        )


class StepError(TasksError):
    """A step failed, and its exception cannot be kept as what it was: this one tells its class and message.

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
    """Nobody answered a question of the tool within its `timeout`."""

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
    """The client answered a question of the tool with a JSON-RPC error: this one.

    Attributes:
        code: Its code.
        message: Its text.
        data: What it carries for programs, if anything.
    """

    def __init__(self, code: int, message: str, data: object = None) -> None:
        self.code = code
        self.message = message
        self.data = data
        super().__init__(message)


class CannotDecrypt(TasksError):
    """Something encrypted needs another key, or was changed, or is of another task. The message shows nothing of it."""


class TransitionRefused(TasksError):
    """An event does not fit the state a task is in."""

    def __init__(self, task_id: str, status: str, event: str, why: str) -> None:
        self.task_id = task_id
        self.status = status
        self.event = event
        super().__init__(f"task {short_id(task_id)} is {status} and refuses {event}: {why}")


class StaleRun(TransitionRefused):
    """A run tried to write after its lease went to another run (or was given up)."""


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
    """What the store holds is not ours, is damaged, or was written by a newer release."""


class UntrustedFile(StoreCorrupt):
    """A file is not used, because somebody else may have put it there, or may write it; the message says what to do."""


class EncryptionMismatch(StoreCorrupt):
    """What is kept is encrypted and the key is missing or another one, or it is plain and there is a key."""


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
    """A claim found as many tasks at work as may be at a time, of its tool or of its owner."""

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
