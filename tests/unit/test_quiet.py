"""Errors, and what goes into a log: where something was raised, and nothing that anybody said."""

import ast
import asyncio
import gc
import inspect
import io
import logging
import re
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

import mcp_tasks
from mcp_tasks import errors
from mcp_tasks._utils import shielded, short_id
from mcp_tasks.errors import (
    MissingExtra,
    RunStopped,
    StoreUnavailable,
    TaskExists,
    TasksError,
    TaskUnreadable,
    TaskWasCancelled,
    TransitionRefused,
    UnknownTask,
    VersionConflict,
    WaitTimedOut,
)
from mcp_tasks.quiet import LONGEST_LINE, SECRETS, get_logger, quietly, what

PACKAGE = Path(mcp_tasks.__file__).parent
SECRET = "hunter2"
ID = "task_AhLNxyz0123456789abcdef"


@pytest.fixture
def log() -> Iterator[io.StringIO]:
    text = io.StringIO()
    handler, logger = logging.StreamHandler(text), logging.getLogger("mcp_tasks.test")
    logger.addHandler(handler)
    yield text
    logger.removeHandler(handler)


def fail() -> None:
    try:
        raise KeyError(SECRET)
    except KeyError as exc:
        try:
            raise StoreUnavailable("the disk is full") from exc
        except StoreUnavailable:
            raise ExceptionGroup(SECRET, [ValueError(SECRET)]) from None


def logged() -> None:
    try:
        fail()
    except Exception:
        logging.getLogger("mcp_tasks.test").error("it failed", exc_info=quietly())


def test_a_traceback_says_where_and_not_what(log: io.StringIO) -> None:
    logged()
    said = log.getvalue()
    assert SECRET not in said
    for line in ("in fail", "ExceptionGroup: (its message is not logged)", "ValueError"):
        assert line in said
    # Unless somebody asks for it.
    SECRETS.setLevel("DEBUG")
    try:
        logged()
        assert what(KeyError(SECRET)) == repr(SECRET)
    finally:
        SECRETS.setLevel(logging.NOTSET)
    assert SECRET in log.getvalue()


def test_messages_of_ours_are_kept_and_printable(log: io.StringIO) -> None:
    try:
        try:
            raise KeyError(SECRET)
        except KeyError as exc:
            raise StoreUnavailable("full\x1b[2J\nCRITICAL: forged") from exc
    except StoreUnavailable as exc:
        get_logger("mcp_tasks.test").error("it failed", exc_info=quietly(exc))
    assert log.getvalue().endswith("StoreUnavailable: full\\x1b[2J\\nCRITICAL: forged\n")
    assert "KeyError: (its message is not logged)" in log.getvalue()
    assert SECRET not in log.getvalue()
    assert (what(KeyError(SECRET)), what(StoreUnavailable("full"))) == ("KeyError", "full")


def test_a_line_is_one_line_of_printable_text_that_is_cut(log: io.StringIO) -> None:
    logger = get_logger("mcp_tasks.test")
    logger.error("tool %s has %d of %r", "\n\x1b[2J\u202e\ud800", 3, ["a\nb"])
    logger.error("%s", "x" * 10_000)
    logger.error("%s: %s", KeyError("x" * 10_000), StoreUnavailable("it is\nfull"), exc_info=None)
    logger.error("%s" * 9, *["y" * 999] * 9)
    assert log.getvalue().splitlines() == [
        r"tool \n\x1b[2J\u202e\ud800 has 3 of ['a\nb']",
        "x" * 999 + "…",
        "'" + "x" * 998 + "…: it is\\nfull",
        "y" * (LONGEST_LINE - 1) + "…",
    ]


def test_a_line_that_cannot_be_made_is_left_to_the_handlers() -> None:
    class Bad:
        def __repr__(self) -> str:
            raise ValueError(SECRET)

    logger = get_logger("mcp_tasks.test")
    assert logger.filter(logger.makeRecord(logger.name, logging.ERROR, __file__, 0, "%r failed", (Bad(),), None))


@pytest.mark.parametrize(
    ("said", "left"),
    [
        ("Terminating session: 9fc1935bad46482aa5543189a1ad9667", "Terminating session: 9fc1935b…"),
        ("Session 9fc1935bad46482aa5543189a1ad9667 idle timeout", "Session 9fc1935b… idle timeout"),
        (
            "Could not find session for ID: 9fc1935b-ad46-482a-a554-3189a1ad9667",
            "Could not find session for ID: 9fc1935b…",
        ),
        ("StreamableHTTP session manager shutting down", "StreamableHTTP session manager shutting down"),
        ("Session termination failed: 404", "Session termination failed: 404"),
        ("unknown session ID: 1\x1b[2J", "unknown session ID: 1\\x1b[2J"),
    ],
)
def test_lines_of_the_sdk_have_the_beginning_of_a_session(log: io.StringIO, said: str, left: str) -> None:
    logger = logging.getLogger("mcp.server.streamable_http_manager")
    record = logger.makeRecord(logger.name, logging.INFO, __file__, 0, said, (), None)
    assert logger.filter(record)
    assert record.getMessage() == left


def lines(pattern: str, room: str = "") -> list[str]:
    return [
        f"{path.relative_to(PACKAGE).as_posix()}: {line.strip()}"
        for path in (PACKAGE / room).rglob("*.py")
        for line in path.read_text().splitlines()
        if re.search(pattern, line)
    ]


def test_every_logger_of_ours_writes_such_lines() -> None:
    # The audit log is JSON: it has escapes of its own, and is not to be cut.
    own = ("quiet.py", "telemetry/audit.py")
    assert [line for line in lines(r"^_?log(ger)?\b.*= logging\.getLogger\(") if not line.startswith(own)] == []


@pytest.mark.parametrize("error", [TaskUnreadable(ID, "it is damaged"), VersionConflict(ID, 3)])
def test_errors_that_end_in_a_log_have_no_whole_id(error: TaskUnreadable | VersionConflict) -> None:
    assert error.task_id == ID
    assert ID not in str(error)
    assert short_id(ID) in str(error)
    assert short_id("short") == "short"
    assert len(short_id(ID)) < len(ID) / 2


def test_no_line_of_ours_logs_an_exception_with_its_message() -> None:
    """`logger.exception`, and `exc_info` without `quietly`, would put into the log what a tool was called with."""
    # Commands of the command line say what failed to who typed them.
    found = lines(r"logger\.exception\(|exc_info=(?!quietly|shown)")
    assert [line for line in found if not line.startswith(("cli/", "doctor/", "testing/", "quiet.py"))] == []


def test_no_line_of_ours_logs_the_text_of_an_exception_that_is_not_ours() -> None:
    """Ours quote nothing; others go through `what`."""
    ours = {name for name, kind in vars(errors).items() if isinstance(kind, type) and issubclass(kind, TasksError)}
    # It says which part of a schema cannot be checked, and not what is in it.
    ours |= {"CallbackFailed", "UnusableSchema"}
    found = [
        f"{path.relative_to(PACKAGE)}:{call.lineno}"
        for path in PACKAGE.rglob("*.py")
        for handler in ast.walk(ast.parse(path.read_text()))
        if isinstance(handler, ast.ExceptHandler) and not _caught(handler.type) <= ours
        for call in ast.walk(handler)
        if isinstance(call, ast.Call) and ast.unparse(call.func).startswith("logger.")
        if any(isinstance(said, ast.Name) and said.id == handler.name for said in call.args)
    ]
    assert found == []


def _caught(kind: ast.expr | None) -> set[str]:
    match kind:
        case None:
            return {"BaseException"}
        case ast.Tuple(elts=kinds):
            return set[str]().union(*map(_caught, kinds))
        case _:
            return {ast.unparse(kind).rpartition(".")[2]}


async def _fails_when(may_fail: asyncio.Event) -> None:
    await may_fail.wait()
    raise ValueError("a secret")


async def test_work_that_fails_after_its_caller_has_left_is_not_told_to_the_event_loop() -> None:
    told: list[dict[str, Any]] = []
    asyncio.get_running_loop().set_exception_handler(lambda _, context: told.append(context))
    may_fail = asyncio.Event()
    work = asyncio.ensure_future(_fails_when(may_fail))
    caller = asyncio.ensure_future(shielded(work))
    await asyncio.sleep(0)
    caller.cancel()
    await asyncio.wait({caller})
    assert caller.cancelled()
    assert not work.done()

    may_fail.set()
    await asyncio.wait({work})
    del work
    gc.collect()
    await asyncio.sleep(0)
    assert told == []


# The exception tree: whose fault, and which fields


def _classes() -> list[type[BaseException]]:
    found = (
        member for _, member in inspect.getmembers(errors, inspect.isclass) if member.__module__ == errors.__name__
    )
    return [member for member in found if issubclass(member, BaseException)]


def test_everything_raised_here_is_caught_by_the_root() -> None:
    assert [member.__name__ for member in _classes() if not issubclass(member, TasksError)] == []


def test_errors_keep_the_fields_of_their_message() -> None:
    assert UnknownTask("task-1").task_id == "task-1"
    refused = TransitionRefused("task-1", "working", "RunStarted", "worker-1 has it")
    assert (refused.task_id, refused.status, refused.event) == ("task-1", "working", "RunStarted")
    late = RunStopped("max_runtime", "render", limit=timedelta(seconds=90))
    assert (late.reason, late.tool) == ("max_runtime", "render")
    assert isinstance(WaitTimedOut("task-1", 2.5), TimeoutError)


@pytest.mark.parametrize(
    ("error", "says"),
    [
        (TransitionRefused("task-1", "working", "RunStarted", "worker-1 has it"), "worker-1 has it"),
        (MissingExtra("The Postgres store", "postgres"), "pip install 'mcp-tasks[postgres]'"),
        (TaskExists("task-1"), "task task-1 already exists"),
        (WaitTimedOut("task-1", 2.5), "within 2.5 s"),
        (WaitTimedOut("t1", 2), "resume_task(client, 't1')"),
        (WaitTimedOut("", 2), "the call did not end within 2 s. It may have been made."),
        (TaskWasCancelled("task-1"), "task task-1 was cancelled"),
        (TaskWasCancelled("task-1", "enough"), "task task-1 was cancelled: enough"),
    ],
)
def test_an_error_says_what_happened_to_which_task(error: Exception, says: str) -> None:
    assert says in str(error)
