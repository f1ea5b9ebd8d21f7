"""Our exceptions as JSON-RPC errors."""

from __future__ import annotations

import json
from datetime import timedelta
from typing import Any

import pytest
from mcp.shared.exceptions import MCPError
from mcp_types import INTERNAL_ERROR, INVALID_PARAMS, INVALID_REQUEST, REQUEST_TIMEOUT

from mcp_tasks.errors import (
    AnswerRefused,
    Interrupted,
    KeyTaken,
    LimitExceeded,
    OwnerRequired,
    QuestionTimedOut,
    RanTooLong,
    ReplayMismatch,
    RunStopped,
    StoreCorrupt,
    StoreError,
    StoreUnavailable,
    TaskExists,
    TasksError,
    TaskUnreadable,
    UnknownTask,
    UsageError,
    VersionConflict,
)
from mcp_tasks.protocol.errors import RpcError, describe, discreet, refusing, to_error_data
from mcp_tasks.protocol.shapes import LIMIT_EXCEEDED
from mcp_tasks.server.tool_runner import to_mcp_error


def test_an_unknown_task_is_an_invalid_parameter_and_its_id_is_not_repeated() -> None:
    error = to_error_data(UnknownTask("task_secret"))
    assert error.code == INVALID_PARAMS
    assert "task_secret" not in error.message


@pytest.mark.parametrize(
    ("refused", "code", "data"),
    [
        (OwnerRequired("who?"), INVALID_REQUEST, {"reason": "owner_required"}),
        (KeyTaken(), INVALID_PARAMS, {"reason": "key_taken"}),
        (AnswerRefused(-32042, "not today", {"until": "noon"}), -32042, {"until": "noon"}),
        (QuestionTimedOut.after(timedelta(minutes=1)), REQUEST_TIMEOUT, None),
        (LimitExceeded("json_depth", "too deep"), LIMIT_EXCEEDED, {"reason": "limit", "limit": "json_depth"}),
    ],
    ids=lambda value: type(value).__name__,
)
def test_a_refusal_says_why_in_words_and_for_programs(refused: TasksError, code: int, data: Any) -> None:
    error = to_error_data(refused)
    assert (error.code, error.message, error.data) == (code, str(refused), data)


def test_when_to_come_back_is_told_in_whole_milliseconds_and_never_too_early() -> None:
    error = to_error_data(LimitExceeded("creates", "too often", retry_after=timedelta(microseconds=1_200)))
    assert error.data == {"reason": "limit", "limit": "creates", "retryAfterMs": 2}


@pytest.mark.parametrize(
    ("stopped", "reason"),
    [(Interrupted("render"), "interrupted"), (RanTooLong("render", timedelta(seconds=90)), "max_runtime")],
)
def test_work_that_was_stopped_says_why_in_words_and_for_programs(stopped: RunStopped, reason: str) -> None:
    error = to_error_data(stopped)
    assert error.code == INTERNAL_ERROR
    assert "'render'" in error.message
    assert error.data == {"reason": reason}


@pytest.mark.parametrize(
    ("limit", "named"),
    [(timedelta(seconds=90), " 90 s"), (timedelta(milliseconds=20), " 0.02 s"), (timedelta(days=30), " 2592000 s")],
)
def test_a_limit_is_named_in_seconds(limit: timedelta, named: str) -> None:
    assert named in to_error_data(RanTooLong("render", limit)).message


def test_a_run_that_differed_from_the_earlier_one_says_how() -> None:
    error = to_error_data(ReplayMismatch("question 2 differs"))
    assert (error.message, error.data) == ("question 2 differs", {"reason": "replay"})


@pytest.mark.parametrize(
    "failure",
    [
        StoreUnavailable("/home/alice/tasks.db is full"),
        StoreCorrupt("/home/alice/tasks.db is damaged"),
        TaskExists("task_secret"),
        VersionConflict("task_secret", 7),
    ],
    ids=lambda failure: type(failure).__name__,
)
def test_where_and_how_tasks_are_kept_is_not_told_to_clients(failure: StoreError) -> None:
    error = to_error_data(failure)
    assert error.code == INTERNAL_ERROR
    assert "alice" not in error.message
    assert "secret" not in error.message


def test_a_store_that_cannot_take_it_now_says_to_try_again() -> None:
    error = to_error_data(StoreUnavailable("full"))
    assert "try again later" in error.message
    assert error.data == {"reason": "unavailable"}


def test_a_store_that_gave_no_answer_says_that_the_request_may_have_been_carried_out() -> None:
    error = to_error_data(StoreUnavailable("/home/alice/tasks.db", may_have_happened=True))
    assert "may have been carried out" in error.message
    assert "try again" not in error.message
    assert "alice" not in error.message
    assert error.data == {"reason": "may_have_happened"}


def test_a_task_that_cannot_be_read_says_so_and_where_to_look() -> None:
    error = to_error_data(TaskUnreadable("task_secret", "/home/alice/tasks.db: no JSON", owner="alice"))
    assert error.code == INTERNAL_ERROR
    assert error.message == "This task cannot be read; the server's log says why"


@pytest.mark.parametrize(
    "exc",
    [
        MCPError(code=-1, message="no file \udcff", data={"na\udcffme": ["\ud800", {"deep": "\udfff"}]}),
        UsageError("no step \udcff"),
        ReplayMismatch("\udcff differs"),
    ],
    ids=lambda exc: type(exc).__name__,
)
def test_text_that_is_not_valid_unicode_does_not_get_into_an_error(exc: Exception) -> None:
    for error in (describe(exc), to_mcp_error(exc).error.model_dump(exclude_none=True)):
        assert "\ufffd" in json.dumps(error, ensure_ascii=False).encode().decode()


@pytest.mark.parametrize("exc", [UsageError("give every step its own name"), TasksError("something of ours")])
def test_other_errors_of_ours_keep_their_words(exc: TasksError) -> None:
    assert to_error_data(exc).message == str(exc)


def test_what_is_not_ours_keeps_its_words_to_itself() -> None:
    error = to_error_data(RuntimeError("password=hunter2"))
    assert (error.code, error.message, error.data) == (INTERNAL_ERROR, "Internal server error", None)


def test_an_error_of_the_sdk_is_handed_on_as_it_is() -> None:
    exc = MCPError(code=-32042, message="log in first", data={"url": "https://example.com"})
    assert to_mcp_error(exc) is exc
    assert describe(exc) == {"code": -32042, "message": "log in first", "data": {"url": "https://example.com"}}


def test_a_described_error_is_plain_json_with_nothing_unset() -> None:
    described = describe(Interrupted("render"))
    assert json.loads(json.dumps(described)) == described
    assert "data" not in describe(UnknownTask("x"))


def test_an_error_of_ours_becomes_one_that_the_sdk_sends() -> None:
    sent = to_mcp_error(UnknownTask("x"))
    assert isinstance(sent, MCPError)
    assert sent.error == to_error_data(UnknownTask("x"))


def test_what_goes_wrong_while_a_request_is_answered_is_its_refusal() -> None:
    with pytest.raises(RpcError) as refused, refusing():
        raise UnknownTask("x")
    assert refused.value.error == to_error_data(UnknownTask("x"))
    assert isinstance(refused.value.__cause__, UnknownTask)


def test_a_refusal_passes_as_it_is() -> None:
    refusal = RpcError(INVALID_PARAMS, "no", {"why": "because"})
    with pytest.raises(RpcError) as refused, refusing():
        raise refusal
    assert refused.value is refusal
    sent = to_mcp_error(refusal).error
    assert (sent.code, sent.message, sent.data) == (INVALID_PARAMS, "no", {"why": "because"})


def test_a_refusal_is_valid_unicode_whatever_it_quotes() -> None:
    refusal = RpcError(INVALID_PARAMS, "no \udcff", {"key \udcff": "\ud800"})
    assert (refusal.message, refusal.data) == ("no \ufffd", {"key \ufffd": "\ufffd"})


def test_a_defect_is_an_internal_error_that_says_nothing_of_it(caplog: pytest.LogCaptureFixture) -> None:
    told = "".join(["sec", "ret"])  # Tracebacks show the lines of this file.
    with pytest.raises(RpcError) as refused, discreet("tasks/get"):
        raise ValueError(told)
    assert told not in str(refused.value)
    assert "tasks/get failed" in caplog.text
    assert told not in caplog.text


def test_an_error_of_the_sdk_is_let_through() -> None:
    theirs = to_mcp_error(RpcError(-1, "theirs"))
    with pytest.raises(type(theirs)) as raised, discreet("tasks/get"):
        raise theirs
    assert raised.value is theirs


@pytest.mark.parametrize("ours", [RpcError(INVALID_PARAMS, "no"), UnknownTask("x")], ids=["refusal", "error"])
def test_what_we_mean_to_say_is_let_through(ours: Exception, caplog: pytest.LogCaptureFixture) -> None:
    with pytest.raises(type(ours)) as raised, discreet("tasks/get"):
        raise ours
    assert raised.value is ours
    assert caplog.messages == []
