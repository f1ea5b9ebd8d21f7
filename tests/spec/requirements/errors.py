"""The two ways in which something goes wrong: the request about a task, and the work of the task."""

from __future__ import annotations

from tests.spec.requirements.model import Requirement

REQUIREMENTS = (
    Requirement(
        id="errors/standard",
        section="Protocol Errors",
        says="Protocol errors are standard JSON-RPC errors.",
        level="MUST",
        tests=("test_errors::test_http_statuses_follow_the_kind_of_error",),
    ),
    Requirement(
        id="errors/get-unknown",
        section="Protocol Errors",
        says="tasks/get with an invalid or nonexistent id is -32602.",
        level="MUST",
        tests=(
            "test_errors::test_a_task_that_is_not_there_is_an_invalid_param",
            "test_errors::test_an_expired_task_is_not_there_any_more",
            "test_errors::test_an_id_of_the_wrong_type_is_an_invalid_param",
        ),
    ),
    Requirement(
        id="errors/update-and-cancel-unknown",
        section="Protocol Errors",
        says="So are tasks/update and tasks/cancel.",
        level="SHOULD",
        tests=(
            "test_errors::test_a_task_that_is_not_there_is_an_invalid_param",
            "test_errors::test_an_id_of_the_wrong_type_is_an_invalid_param",
        ),
    ),
    Requirement(
        id="errors/clearly-invalid",
        section="Ack-only Cancellation",
        says="Errors are returned for clearly invalid updates and cancellations, although they answer with an ack.",
        level="SHOULD",
        tests=(
            "test_errors::test_a_task_that_is_not_there_is_an_invalid_param",
            "peers/test_every_method::test_whatever_is_sent_is_refused_or_answered_and_nothing_is_left_behind",
            "peers/test_input_trust::test_an_answer_is_checked_against_the_form_it_was_asked_with",
        ),
    ),
    Requirement(
        id="errors/internal",
        section="Protocol Errors",
        says="Internal errors are -32603.",
        level="MUST",
        tests=(
            "test_errors::test_a_store_that_fails_is_an_internal_error_that_gives_nothing_away",
            "test_errors::test_a_crash_that_the_server_does_not_catch_fails_the_task_and_gives_nothing_away",
        ),
    ),
    Requirement(
        id="errors/missing-capability",
        section="Protocol Errors",
        says="tasks/get, tasks/update and tasks/cancel from a client that does not declare the extension are refused "
        "as missing a required client capability.",
        level="MUST",
        tests=("test_errors::test_a_client_that_does_not_declare_the_extension_cannot_use_the_tasks_methods",),
    ),
    Requirement(
        id="errors/listen-missing-capability",
        section="Protocol Errors",
        says="So is subscriptions/listen for task notifications.",
        level="MUST",
        tests=("test_notifications::test_listening_for_tasks_needs_the_extension",),
    ),
    Requirement(
        id="errors/informative",
        section="Protocol Errors",
        says="Error messages describe the cause.",
        level="SHOULD",
        tests=("test_errors::test_errors_say_what_is_wrong",),
    ),
    Requirement(
        id="errors/http-status",
        section="Protocol Errors",
        says="Over HTTP an unknown task, malformed params, a missing capability and a header mismatch are 400, "
        "an unknown method is 404, and results are 200.",
        level="MUST",
        source="release",
        tests=("test_errors::test_http_statuses_follow_the_kind_of_error",),
    ),
    Requirement(
        id="errors/failed-has-a-message",
        section="Task Execution Errors",
        says="A failed task has a statusMessage with diagnostic information.",
        level="SHOULD",
        tests=("test_errors::test_a_protocol_error_of_the_tool_fails_the_task_with_that_very_error",),
    ),
    Requirement(
        id="errors/failed-has-an-error",
        section="Task Execution Errors",
        says="A failed task has the error field with the JSON-RPC error.",
        level="MUST",
        tests=("test_errors::test_a_protocol_error_of_the_tool_fails_the_task_with_that_very_error",),
    ),
    Requirement(
        id="errors/is-error-is-no-failure",
        section="Task Execution Errors",
        says='"failed" does not represent a tool result with isError.',
        level="MUST NOT",
        tests=("test_errors::test_a_tool_that_fails_as_tools_fail_completes_with_is_error",),
    ),
    Requirement(
        id="errors/is-error-completes",
        section="Task Execution Errors",
        says='Errors within a result use the "completed" status, with the details in the result.',
        level="MUST",
        tests=("test_errors::test_a_tool_that_fails_as_tools_fail_completes_with_is_error",),
    ),
    Requirement(
        id="errors/error-is-that-error",
        section="Task Execution Errors",
        says="The error field contains the JSON-RPC error that the underlying request resulted in.",
        level="MUST",
        tests=(
            "test_errors::test_a_protocol_error_of_the_tool_fails_the_task_with_that_very_error",
            "test_errors::test_a_crash_that_the_server_does_not_catch_fails_the_task_and_gives_nothing_away",
        ),
    ),
    Requirement(
        id="errors/result-is-that-result",
        section="Task Execution Errors",
        says="The result field contains the result that the underlying request completed with, isError or not.",
        level="MUST",
        tests=("test_get::test_a_task_has_the_result_that_the_plain_call_has",),
    ),
)
