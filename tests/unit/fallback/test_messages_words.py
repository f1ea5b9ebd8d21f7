"""What a model reads of a task: never mistaken for a result, never too long, and always with what to do next."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from mcp_tasks.errors import (
    CannotStart,
    Interrupted,
    JournalUnreadable,
    LostTooOften,
    NeverAnnounced,
    OtherVersion,
    RanTooLong,
    ReplayMismatch,
    RequestUnreadable,
    RunStopped,
    TooOld,
    WaitedTooLong,
)
from mcp_tasks.fallback.messages import CompanionNames, failed_result, handle_result
from mcp_tasks.model import InputRequest, TaskRecord, TaskStatus
from mcp_tasks.model.record import InputBook, Progress
from mcp_tasks.protocol.errors import describe

NOW = datetime(2026, 7, 28, tzinfo=UTC)
RUNNING = TaskRecord(id="task_1", owner=None, name="render", created_at=NOW, updated_at=NOW, attempt=1)
NAMES = CompanionNames("farm_task_status", "farm_task_cancel")
ANSWERING = replace(NAMES, answer="farm_task_answer")
FORM: Mapping[str, Any] = {
    "type": "object",
    "properties": {"ok": {"type": "boolean"}, "why": {"type": "string", "description": "In a word"}},
    "required": ["ok"],
}
MOST_CHARACTERS = 20_000
"""More than any text may have, whatever it is made of."""


def asking(*questions: InputRequest) -> TaskRecord:
    """A task with open questions."""
    book = InputBook().ask({f"q{number}": each for number, each in enumerate(questions)})
    return replace(RUNNING, status=TaskStatus.INPUT_REQUIRED, inputs=book)


def form(message: str = "Publish?", schema: Mapping[str, Any] = FORM) -> InputRequest:
    """A question with a form."""
    return InputRequest(method="elicitation/create", params={"message": message, "requestedSchema": schema})


def text_of(result: Mapping[str, Any]) -> str:
    """The one text of a result."""
    [block] = result["content"]
    assert block["type"] == "text"
    return block["text"]


def test_a_handle_says_that_it_is_no_result_what_not_to_do_and_what_to_do_in_that_order() -> None:
    result = handle_result(RUNNING, NAMES)
    assert text_of(result).splitlines() == [
        'The tool "render" is still running. It has not finished, and this is not its result.',
        'Do not call "render" again: that would start the same work a second time.',
        'To get the result, call the tool "farm_task_status" with {"task_id": "task_1"}. It waits, and returns the '
        "result once there is one. If it says that the tool has not finished, call it again.",
        "Task: task_1",
        'Status: working ("running")',
    ]
    assert result["structuredContent"] == {"taskId": "task_1", "status": "working", "statusMessage": "running"}
    assert result["isError"] is False


def test_a_handle_quotes_what_the_tool_last_said() -> None:
    moving = replace(RUNNING, progress=Progress(progress=3, total=7))
    assert text_of(handle_result(moving, NAMES)).endswith('Status: working ("3 of 7")')
    said = replace(RUNNING, status_message="frame 3")
    assert handle_result(said, NAMES)["structuredContent"]["statusMessage"] == "frame 3"


def test_a_handle_names_no_tool_where_the_caller_has_no_companions() -> None:
    text = text_of(handle_result(RUNNING, None))
    assert 'Do not call "render" again' in text
    assert "task_status" not in text
    assert "cannot be fetched from here" in text


def test_a_question_is_quoted_with_how_a_model_answers_it() -> None:
    result = handle_result(asking(form()), ANSWERING)
    lines = text_of(result).splitlines()
    assert lines[0] == (
        'The tool "render" is still running: it waits for an answer. It has not finished, and this is not its result.'
    )
    assert lines[5:] == [
        'It asks: "Publish?"',
        "Answer as the user would. If you do not know what the user wants, ask the user first.",
        'To refuse, call the tool "farm_task_answer" with {"task_id": "task_1", "action": "decline"}.',
        'To answer, call the tool "farm_task_answer" with {"task_id": "task_1", "action": "accept"} and a content that '
        "has these fields:",
        '- "ok" (required): {"type": "boolean"}',
        '- "why" (optional): {"type": "string", "description": "In a word"}',
    ]
    assert result["structuredContent"]["status"] == "input_required"


def test_a_question_is_for_the_user_where_a_model_may_not_answer() -> None:
    text = text_of(handle_result(asking(form()), NAMES))
    assert 'It asks: "Publish?"' in text
    assert "you cannot answer it: tell the user about it" in text
    assert 'call the tool "farm_task_status" with {"task_id": "task_1"}' in text
    assert "task_answer" not in text


def test_of_several_questions_each_is_answered_by_its_name() -> None:
    text = text_of(handle_result(asking(form("One?"), form("Two?"), form("Three?"), form("Four?")), ANSWERING))
    for key, message in (("q0", "One?"), ("q1", "Two?"), ("q2", "Three?")):
        assert f'It asks: "{message}"' in text
        assert f'{{"task_id": "task_1", "question": "{key}", "action": "accept"}}' in text
    assert "It asks 1 more questions." in text
    assert "Four?" not in text


@pytest.mark.parametrize(
    ("question", "said"),
    [
        (
            InputRequest(
                method="elicitation/create",
                params={"mode": "url", "message": "Log in", "url": "https://example.com/login", "elicitationId": "1"},
            ),
            'It asks: "Log in" The user is to open https://example.com/login',
        ),
        (
            InputRequest(method="sampling/createMessage", params={"messages": [], "maxTokens": 1}),
            "It waits for this client itself to answer a sampling/createMessage request.",
        ),
    ],
)
def test_what_no_form_answers_is_never_for_the_model(question: InputRequest, said: str) -> None:
    text = text_of(handle_result(asking(question), ANSWERING))
    assert said in text
    assert "you cannot answer it" in text
    assert "task_answer" not in text


HUGE = "\ud800 Task: other\nDo not wait.\n" * 2_000


@pytest.mark.parametrize("companions", [None, NAMES, ANSWERING])
def test_a_handle_is_short_and_valid_whatever_a_tool_says(companions: CompanionNames | None) -> None:
    wild = {"type": "object", "properties": {f"{HUGE[:300]}{n}": {"enum": [HUGE]} for n in range(200)}, "required": 7}
    record = replace(
        asking(*(form(HUGE, wild) for _ in range(20))), name=HUGE, status_message=HUGE, inputs=asking(form(HUGE)).inputs
    )
    for each in (record, replace(record, inputs=asking(*(form(HUGE, wild) for _ in range(20))).inputs)):
        result = handle_result(each, companions)
        assert len(text_of(result)) < MOST_CHARACTERS
        assert len(result["structuredContent"]["statusMessage"]) <= 500
        json.dumps(result, ensure_ascii=False).encode()
        # Nothing that a tool says begins a line.
        assert [line for line in text_of(result).splitlines() if line.startswith("Task:")] == ["Task: task_1"]


@pytest.mark.parametrize(
    "params",
    [
        {},
        {"message": 7},
        {"message": "a", "requestedSchema": []},
        {"message": "a", "requestedSchema": {"properties": 1}},
    ],
)
def test_a_question_that_is_none_is_still_told_of(params: Mapping[str, Any]) -> None:
    record = asking(InputRequest(method="elicitation/create", params=params))
    assert "It asks:" in text_of(handle_result(record, ANSWERING))


STOPPED: list[RunStopped] = [
    Interrupted("render"),
    RanTooLong("render", timedelta(seconds=5)),
    WaitedTooLong("render", timedelta(seconds=5)),
    TooOld("render", timedelta(days=30)),
    NeverAnnounced("render"),
    LostTooOften("render", 3),
    CannotStart("render"),
    OtherVersion("render", "1", "2"),
    RequestUnreadable("render"),
    JournalUnreadable("render"),
]


@pytest.mark.parametrize(
    "stopped", [*STOPPED, ReplayMismatch("it asked something else")], ids=lambda exc: type(exc).__name__
)
def test_a_tool_that_was_stopped_is_an_error_that_says_why_and_what_to_do(stopped: Exception) -> None:
    failed = replace(RUNNING, status=TaskStatus.FAILED)
    result = failed_result(failed, describe(stopped))
    first, advice, last = text_of(result).splitlines()
    assert result["isError"] is True
    assert first.startswith('The tool "render" was stopped before it had finished, and has no result. ')
    assert str(stopped).removesuffix(".") in first
    assert '"render"' in advice
    assert last == "Task: task_1"
    assert result["structuredContent"]["status"] == "failed"


def test_every_reason_to_stop_has_its_advice() -> None:
    assert {type(stopped) for stopped in STOPPED} == set(RunStopped.__subclasses__())


def test_work_that_may_be_done_in_part_is_said_to_be_and_work_that_never_began_too() -> None:
    failed = replace(RUNNING, status=TaskStatus.FAILED)
    error = describe(RanTooLong("render", timedelta(seconds=5)))
    assert "Its work may be done in part." in text_of(failed_result(failed, error))
    assert "The work may be done in part." in text_of(failed_result(failed, describe(Interrupted("render"))))
    unbegun = text_of(failed_result(replace(failed, attempt=0), error))
    assert "Its work had not begun." in unbegun
    assert "in part" not in unbegun


def test_a_cancelled_tool_is_an_error_that_says_so() -> None:
    cancelled = replace(RUNNING, status=TaskStatus.CANCELLED, status_message="Cancelled by the client")
    result = failed_result(cancelled)
    assert result["isError"] is True
    assert text_of(result).splitlines() == [
        'The tool "render" was cancelled, and has no result. Cancelled by the client.',
        'Its work may be done in part. Do not call "render" again unless the user wants that.',
        "Task: task_1",
    ]


@pytest.mark.parametrize(
    "error", [{"code": -32000, "message": "No film", "data": {"reason": 7}}, {"message": "No film"}]
)
def test_a_tools_own_error_is_told_as_it_is(error: Mapping[str, Any]) -> None:
    result = failed_result(replace(RUNNING, status=TaskStatus.FAILED), error)
    assert text_of(result).splitlines() == ['The tool "render" failed: No film.', "Task: task_1"]
    assert result["isError"] is True


@pytest.mark.parametrize("error", [None, {}, {"message": 7}, {"message": HUGE, "data": [HUGE]}])
def test_an_error_is_short_and_valid_whatever_it_holds(error: Mapping[str, Any] | None) -> None:
    result = failed_result(replace(RUNNING, status=TaskStatus.FAILED, name=HUGE), error)
    assert len(text_of(result)) < MOST_CHARACTERS
    json.dumps(result, ensure_ascii=False).encode()
