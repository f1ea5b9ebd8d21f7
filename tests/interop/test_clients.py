"""Clients of others, against our server, with SSE streams and with JSON bodies.

What a client reports under which name is in its driver; here is what must come out.
"""

from __future__ import annotations

import pytest

from .conftest import Reports
from .driving import Outcomes

FASTMCP, STRANDS, PYDANTIC_AI, EXT_TASKS = "fastmcp_client", "strands", "pydantic_ai", "ext_tasks"
ALL = (EXT_TASKS, FASTMCP, STRANDS, PYDANTIC_AI)
WITH_HANDLES = (EXT_TASKS, FASTMCP, STRANDS)

VERSIONS = {EXT_TASKS: "2.4.0/0.2.2", FASTMCP: "4.1.2", STRANDS: "1.62.0", PYDANTIC_AI: "2.66.0"}
RESULTS = {
    "plain": ("Hello, Ada!", False),
    "task": ("task: done after 1.2 s", False),
    "is_error": ("Error executing tool failing_job: the job failed, as it always does", True),
    "elicitation": ("deleted a.txt", False),
    "two_questions": ("name: accept, confirmation: accept", False),
    "mrtr": ("Hello, Ada!", False),
}
PROTOCOL_ERROR = "the job ended in a protocol error, as it always does"
UNDECLARED = "the client did not declare the elicitation capability"
NO_TASKS = "Client did not declare required extension 'io.modelcontextprotocol/tasks'"


@pytest.fixture(params=["sse", "json"])
def way(request: pytest.FixtureRequest) -> int:
    """Which of the two servers."""
    return ["sse", "json"].index(request.param)


@pytest.fixture
def outcomes(client: str, way: int, reports: Reports) -> Outcomes:
    """What a client reports of one of the servers."""
    return reports[client][way]


@pytest.mark.parametrize("client", ALL)
def test_the_version_is_the_pinned_one(client: str, outcomes: Outcomes) -> None:
    assert outcomes["version"] == VERSIONS[client]


@pytest.mark.parametrize("scenario", RESULTS)
@pytest.mark.parametrize("client", ALL)
def test_result(scenario: str, outcomes: Outcomes) -> None:
    outcome = outcomes[scenario]
    assert "error" not in outcome, outcome
    assert (outcome["text"], outcome["isError"]) == RESULTS[scenario]


@pytest.mark.parametrize("client", WITH_HANDLES)
def test_progress_is_seen_as_status_message(outcomes: Outcomes) -> None:
    outcome = outcomes["status"]
    assert outcome["text"] == "status: done after 2 s"
    seen = [message for message in outcome["messages"] if message is not None]
    assert seen
    assert all(message.startswith("status: ") and message.endswith(" s of 2 s") for message in seen)
    assert seen == sorted(seen)


@pytest.mark.parametrize("client", WITH_HANDLES)
def test_failed_task_has_its_error(outcomes: Outcomes) -> None:
    outcome = outcomes["failed"]
    assert outcome["status"] == "failed"
    assert outcome["jsonrpc"]["code"] == -32603
    assert outcome["jsonrpc"]["message"] == PROTOCOL_ERROR


@pytest.mark.parametrize("client", [FASTMCP, STRANDS, PYDANTIC_AI])
def test_failed_task_is_an_error_to_who_only_calls(outcomes: Outcomes) -> None:
    outcome = outcomes["failed_call"]
    assert PROTOCOL_ERROR in outcome["text"]
    assert outcome["isError"]


@pytest.mark.parametrize("client", WITH_HANDLES)
def test_cancel(outcomes: Outcomes) -> None:
    outcome = outcomes["cancel"]
    assert (outcome["before"], outcome["after"]) == ("working", "cancelled")


@pytest.mark.parametrize(("client", "goes_on"), [(FASTMCP, True), (STRANDS, False), (PYDANTIC_AI, True)])
def test_a_call_that_is_given_up(outcomes: Outcomes, goes_on: bool) -> None:
    """Strands cancels the task; FastMCP, and Pydantic AI on top of it, leave it to go on."""
    outcome = outcomes["given_up"]
    assert outcome["cancelled"]
    assert outcome["started"]
    assert outcome["went_on"] is goes_on


@pytest.mark.parametrize("client", WITH_HANDLES)
def test_nothing_is_asked_of_who_cannot_answer(outcomes: Outcomes) -> None:
    outcome = outcomes["undeclared_input"]
    assert UNDECLARED in outcome["text"]
    assert outcome["isError"]


@pytest.mark.parametrize("client", [EXT_TASKS, STRANDS])
def test_unknown_task(outcomes: Outcomes) -> None:
    assert outcomes["unknown_task"]["error"]["code"] == -32602


# --- one by one ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("client", [EXT_TASKS])
class TestExtTasks:
    def test_it_speaks_the_modern_wire(self, outcomes: Outcomes) -> None:
        assert outcomes["era"] == "modern"
        assert outcomes["task"]["kind"] == "task"
        assert outcomes["plain"]["kind"] == "immediate"

    def test_all_that_was_sent_fits_its_schemas(self, outcomes: Outcomes) -> None:
        assert outcomes["wire"]["problems"] == []
        assert outcomes["wire"]["checked"] > 30

    def test_push(self, outcomes: Outcomes) -> None:
        """It has no `taskIds` in its own types, but carries them, and takes the notifications."""
        outcome = outcomes["push"]
        assert outcome["text"] == outcome["result"] == "push: done after 1.2 s"
        assert outcome["statuses"][0] == "working"
        assert outcome["statuses"][-1] == "completed"
        assert outcome["statuses"].count("completed") == 1
        assert outcome["ids"]

    def test_another_session_resumes_a_task(self, outcomes: Outcomes) -> None:
        assert outcomes["resumed"]["text"] == "resumed: done after 0.6 s"

    def test_an_undeclared_input_has_its_code(self, outcomes: Outcomes) -> None:
        assert outcomes["undeclared_input"]["code"] == -32021


@pytest.mark.parametrize("client", [FASTMCP])
def test_fastmcp_has_no_handle_where_a_question_comes_before_the_task(outcomes: Outcomes) -> None:
    """`call_tool` answers such a question; `call_tool_task` refuses it. When that changes, docs/interop.md must too."""
    assert "InputRequiredResult" in outcomes["mrtr_handle"]["error"]["message"]


@pytest.mark.parametrize("client", [STRANDS])
class TestStrands:
    def test_a_question_is_declined_by_hand(self, outcomes: Outcomes) -> None:
        assert outcomes["answered_by_hand"]["text"] == "kept b.txt"

    def test_without_tasks_a_tool_answers_inline(self, outcomes: Outcomes) -> None:
        assert outcomes["without_tasks"]["text"] == "ok"

    def test_without_tasks_a_tool_that_must_be_one_is_refused(self, outcomes: Outcomes) -> None:
        assert NO_TASKS in outcomes["without_tasks_required"]["text"]


@pytest.mark.parametrize("client", [PYDANTIC_AI])
class TestPydanticAI:
    def test_a_task_that_was_asked_for(self, outcomes: Outcomes) -> None:
        assert outcomes["use_task"]["text"] == "use_task: done after 0.6 s"

    def test_a_task_that_was_asked_for_and_is_none(self, outcomes: Outcomes) -> None:
        outcome = outcomes["use_task_plain"]
        assert outcome["isError"]
        assert "did not run as a task" in outcome["text"]

    def test_an_agent_calls_a_tool_that_is_a_task(self, outcomes: Outcomes) -> None:
        assert outcomes["agent"]["text"] == "The tool says: agent: done after 0.6 s"
