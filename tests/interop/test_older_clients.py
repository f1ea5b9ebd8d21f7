"""Clients of others on the 2025-11-25 wire, against our server, over stdio and over Streamable HTTP.

What a client reports under which name is in its driver; here is what must come out. Each visits twice: at the end of
the first visit it kills the server (`kill -9`), and comes back from another process to one that has the same file.
"""

from __future__ import annotations

import pytest

from .conftest import OlderReports
from .driving import Outcomes
from .older import WAYS

TYPESCRIPT, PYTHON, EXT_TASKS, STRANDS = "typescript", "python", "ext_tasks_v1", "strands_older"
ALL = (TYPESCRIPT, PYTHON, EXT_TASKS, STRANDS)
SDKS = (TYPESCRIPT, PYTHON)
WITH_HANDLES = (*SDKS, EXT_TASKS)

VERSIONS = {TYPESCRIPT: "1.32.2", PYTHON: "1.30.0", EXT_TASKS: "2.4.0/0.2.2", STRANDS: "1.62.0/1.30.0"}
CAPABILITY: dict[str, object] = {"list": {}, "cancel": {}, "requests": {"tools": {"call": {}}}}
SUPPORT = {"slow_compute": "optional", "confirm_delete": "optional", "failing_job": "required"}
TOOL_ERROR = "the job failed, as it always does"
PROTOCOL_ERROR = "the job ended in a protocol error, as it always does"
UNDECLARED = "the client did not declare the elicitation capability"
TTL = 60_000


@pytest.fixture(params=WAYS)
def way(request: pytest.FixtureRequest) -> str:
    """How the client reaches our server."""
    return request.param


@pytest.fixture
def outcomes(older: str, way: str, older_reports: OlderReports) -> Outcomes:
    """What a client reports of our server."""
    return older_reports[older, way]


def _of(outcomes: Outcomes, scenario: str) -> Outcomes:
    outcome = outcomes[scenario]
    assert "error" not in outcome, outcome
    return outcome


@pytest.mark.parametrize("older", ALL)
def test_the_version_is_the_pinned_one(older: str, outcomes: Outcomes) -> None:
    assert outcomes["version"] == VERSIONS[older]


@pytest.mark.parametrize("older", WITH_HANDLES)
def test_the_handshake_offers_tasks(outcomes: Outcomes) -> None:
    assert _of(outcomes, "handshake")["tasks"] == CAPABILITY


@pytest.mark.parametrize("older", SDKS)
def test_tools_say_whether_they_may_be_tasks(outcomes: Outcomes) -> None:
    support = _of(outcomes, "handshake")["support"]
    assert support.items() >= SUPPORT.items()
    assert support["greet"] in (None, "forbidden")


@pytest.mark.parametrize("older", ALL)
def test_plain_call(outcomes: Outcomes) -> None:
    assert _of(outcomes, "plain")["text"] == "Hello, Ada!"


# --- create -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("older", WITH_HANDLES)
def test_create(outcomes: Outcomes) -> None:
    task = _of(outcomes, "create")["task"]
    assert task["status"] == "working"
    assert task["ttl"] >= TTL
    assert task["pollInterval"] > 0


@pytest.mark.parametrize("older", [STRANDS])
def test_create_shows_only_in_the_result(outcomes: Outcomes) -> None:
    """Strands makes a task of every call of a tool that may be one, and gives nobody its id."""
    assert _of(outcomes, "create")["text"] == "create: done after 0.2 s"


@pytest.mark.parametrize("older", SDKS)
def test_a_tool_that_must_be_a_task_is_refused_plainly(outcomes: Outcomes) -> None:
    assert _of(outcomes, "required_plainly")["code"] == -32601


@pytest.mark.parametrize("older", SDKS)
def test_a_tool_that_must_not_be_a_task_is_refused_as_one(outcomes: Outcomes) -> None:
    assert _of(outcomes, "forbidden_as_task")["code"] == -32601


# --- result -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("older", ALL)
def test_result(outcomes: Outcomes) -> None:
    outcome = _of(outcomes, "result")
    assert (outcome["text"], outcome["isError"]) == ("result: done after 3 s", False)


@pytest.mark.parametrize("older", WITH_HANDLES)
def test_states_on_the_way_to_the_result(outcomes: Outcomes) -> None:
    outcome = _of(outcomes, "result")
    assert outcome["statuses"][0] == "working"
    assert outcome["statuses"][-1] == "completed"
    assert outcome["messages"]
    assert all(message.startswith("result: ") for message in outcome["messages"])


@pytest.mark.parametrize("older", SDKS)
def test_status_notifications(outcomes: Outcomes) -> None:
    assert _of(outcomes, "result")["heard"][-1] == "completed"


@pytest.mark.parametrize("older", SDKS)
def test_a_result_that_is_waited_for(outcomes: Outcomes) -> None:
    outcome = _of(outcomes, "blocked")
    assert outcome["text"] == "blocked: done after 1 s"
    assert outcome["related"]


@pytest.mark.parametrize("older", SDKS)
def test_a_tool_that_fails(outcomes: Outcomes) -> None:
    outcome = _of(outcomes, "failed")
    assert outcome["status"] == "failed"
    assert TOOL_ERROR in outcome["statusMessage"]
    assert TOOL_ERROR in outcome["text"]
    assert outcome["isError"]


@pytest.mark.parametrize("older", SDKS)
def test_a_task_that_ends_in_a_protocol_error(outcomes: Outcomes) -> None:
    outcome = _of(outcomes, "protocol_error")
    assert outcome["status"] == "failed"
    assert outcome["code"] == -32603
    assert PROTOCOL_ERROR in outcome["message"]
    assert PROTOCOL_ERROR in outcome["statusMessage"]


@pytest.mark.parametrize(("scenario", "message"), [("failed", TOOL_ERROR), ("protocol_error", PROTOCOL_ERROR)])
@pytest.mark.parametrize("older", [EXT_TASKS])
def test_ext_tasks_shows_a_failure_by_its_status_message(outcomes: Outcomes, scenario: str, message: str) -> None:
    """It never asks for the result of a failed task: all that its user sees is the `statusMessage`."""
    outcome = _of(outcomes, scenario)
    assert outcome["outcome"] == "failed"
    assert message in outcome["failure"]


@pytest.mark.parametrize(("scenario", "message"), [("failed", TOOL_ERROR), ("protocol_error", PROTOCOL_ERROR)])
@pytest.mark.parametrize("older", [STRANDS])
def test_strands_shows_a_failure_by_its_status_message(outcomes: Outcomes, scenario: str, message: str) -> None:
    outcome = _of(outcomes, scenario)
    assert message in outcome["text"]
    assert outcome["isError"]


@pytest.mark.parametrize("older", WITH_HANDLES)
def test_unknown_task(outcomes: Outcomes) -> None:
    assert _of(outcomes, "unknown")["code"] == -32602


# --- question -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("older", ALL)
def test_question(outcomes: Outcomes) -> None:
    outcome = _of(outcomes, "question")
    assert outcome["text"] == "deleted a.txt"
    assert outcome["asked"] == ["Delete a.txt?"]


@pytest.mark.parametrize("older", ALL)
def test_two_questions(outcomes: Outcomes) -> None:
    assert _of(outcomes, "two_questions")["text"] == "name: accept, confirmation: accept"


@pytest.mark.parametrize("older", ALL)
def test_a_question_that_comes_first(outcomes: Outcomes) -> None:
    """A tool that asks by returning what it asks, which on this wire is asked like any other question of a task."""
    assert _of(outcomes, "question_first")["text"] == "Hello, Ada!"


@pytest.mark.parametrize("older", ALL)
def test_question_declined(outcomes: Outcomes) -> None:
    assert _of(outcomes, "question_declined")["text"] == "kept keep.txt"


@pytest.mark.parametrize("older", SDKS)
def test_question_to_who_does_not_wait_for_the_result(outcomes: Outcomes) -> None:
    outcome = _of(outcomes, "question_pushed")
    assert outcome["text"] == "deleted pushed.txt"
    assert outcome["asked"] == ["Delete pushed.txt?"]


@pytest.mark.parametrize("older", WITH_HANDLES)
def test_nothing_is_asked_of_who_cannot_answer(outcomes: Outcomes) -> None:
    outcome = _of(outcomes, "undeclared")
    assert outcome["status"] == "failed"
    assert UNDECLARED in outcome["statusMessage"]


# --- cancel -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("older", WITH_HANDLES)
def test_cancel(outcomes: Outcomes) -> None:
    outcome = _of(outcomes, "cancel")
    assert (outcome["before"], outcome["after"]) == ("working", "cancelled")
    assert outcome["again"]["code"] == -32602


@pytest.mark.parametrize("older", SDKS)
def test_who_waits_for_the_result_of_a_cancelled_task_is_told(outcomes: Outcomes) -> None:
    outcome = _of(outcomes, "cancelled_result")
    assert outcome["code"] is not None
    assert "cancelled" in outcome["message"]


@pytest.mark.parametrize("older", [STRANDS])
def test_strands_cancels_what_it_gives_up(outcomes: Outcomes) -> None:
    outcome = _of(outcomes, "cancel")
    assert outcome["cancelled"]
    assert outcome["started"]
    assert not outcome["went_on"]


# --- list ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("older", WITH_HANDLES)
def test_list(outcomes: Outcomes) -> None:
    outcome = _of(outcomes, "list")
    assert outcome["missing"] == 0
    assert outcome["twice"] == 0


@pytest.mark.parametrize("older", [STRANDS])
def test_strands_has_no_list_and_no_handles(outcomes: Outcomes) -> None:
    """Its task methods want the newer wire; on this one there is nothing that takes or gives an id."""
    outcome = _of(outcomes, "no_handle")
    assert outcome["lists"] == []
    assert set(outcome["refused"]) == {"submit_tool_async", "get_task_async", "cancel_task_async"}
    assert all("mcp 2.x" in message for message in outcome["refused"].values())


# --- resume after a restart ---------------------------------------------------------------------------------


@pytest.mark.parametrize("older", WITH_HANDLES)
def test_resume_after_a_restart(outcomes: Outcomes) -> None:
    outcome = _of(outcomes, "resume")
    assert outcome["before"] in ("working", "completed")
    assert outcome["running"]["text"] == "left: done after 3 s"
    assert outcome["ended"]["text"] == "ended: done after 0 s"


@pytest.mark.parametrize("older", WITH_HANDLES)
def test_a_question_is_asked_again_after_a_restart(outcomes: Outcomes) -> None:
    outcome = _of(outcomes, "resume")
    assert outcome["question"]["text"] == "deleted left.txt"
    assert outcome["asked"] == ["Delete left.txt?"]


@pytest.mark.parametrize("older", WITH_HANDLES)
def test_what_was_found_again_is_listed(outcomes: Outcomes) -> None:
    assert _of(outcomes, "resume")["listed"]


@pytest.mark.parametrize("older", [STRANDS])
def test_strands_tells_of_a_restart_and_cannot_resume(outcomes: Outcomes) -> None:
    outcome = outcomes["left"]
    assert "error" in outcome or outcome["status"] == "error", outcome


# --- one by one ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("older", [EXT_TASKS])
class TestExtTasks:
    def test_it_speaks_the_older_wire(self, outcomes: Outcomes) -> None:
        assert _of(outcomes, "handshake")["era"] == "legacy"
        assert _of(outcomes, "create")["kind"] == "task"
        assert _of(outcomes, "plain")["kind"] == "immediate"

    def test_all_that_was_sent_fits_its_schemas(self, outcomes: Outcomes) -> None:
        assert outcomes["wire"]["problems"] == []
        assert outcomes["wire"]["checked"] > 30
        assert outcomes["wire_again"]["problems"] == []


@pytest.mark.parametrize("older", [STRANDS])
class TestStrands:
    def test_without_tasks_a_tool_answers_inline(self, outcomes: Outcomes) -> None:
        assert _of(outcomes, "without_tasks")["text"] == "ok"

    def test_without_tasks_a_tool_that_must_be_one_is_refused(self, outcomes: Outcomes) -> None:
        assert _of(outcomes, "without_tasks_required")["status"] == "error"
