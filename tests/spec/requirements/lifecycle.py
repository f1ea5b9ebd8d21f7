"""What happens to a task: reading, answering, cancelling."""

from __future__ import annotations

from tests.spec.requirements.model import Requirement

REQUIREMENTS = (
    Requirement(
        id="status/failed-is-for-protocol-errors",
        section="Task Status",
        says='"failed" is not used for anything but JSON-RPC errors.',
        level="MUST NOT",
        tests=(
            "test_errors::test_a_tool_that_fails_as_tools_fail_completes_with_is_error",
            "spec/legacy/test_interplay::test_a_result_that_is_an_error_is_worded_by_each_era_in_its_own_way",
        ),
    ),
    Requirement(
        id="get/by-status",
        section="Task Polling",
        says="tasks/get checks the status of the task and responds accordingly.",
        level="MUST",
        tests=("test_get::test_a_task_has_exactly_the_fields_of_its_status",),
    ),
    Requirement(
        id="get/working",
        section="Task Polling",
        says="A working task is returned with status working.",
        level="MUST",
        tests=("test_get::test_a_task_has_exactly_the_fields_of_its_status",),
    ),
    Requirement(
        id="get/input-required",
        section="Task Polling",
        says="A task that needs input is returned with that status and its inputRequests.",
        level="MUST",
        tests=(
            "test_get::test_a_task_has_exactly_the_fields_of_its_status",
            "test_get::test_a_question_is_shown_as_the_request_it_stands_for",
        ),
    ),
    Requirement(
        id="get/all-outstanding",
        section="Task Polling",
        says="inputRequests contains all outstanding requests.",
        level="MUST",
        tests=(
            "test_get::test_questions_asked_together_are_shown_together",
            "test_get::test_an_open_question_is_shown_at_every_poll",
            "test_get::test_a_question_that_its_tool_gave_up_is_not_shown_any_more",
        ),
    ),
    Requirement(
        id="get/completed",
        section="Task Polling",
        says="A completed task is returned with its final result.",
        level="MUST",
        tests=(
            "test_get::test_a_task_has_exactly_the_fields_of_its_status",
            "test_get::test_a_task_has_the_result_that_the_plain_call_has",
        ),
    ),
    Requirement(
        id="get/cancelled",
        section="Task Polling",
        says="A cancelled task is returned with status cancelled.",
        level="MUST",
        tests=("test_get::test_a_task_has_exactly_the_fields_of_its_status",),
    ),
    Requirement(
        id="get/failed",
        section="Task Polling",
        says="A failed task is returned with the error that occurred.",
        level="MUST",
        tests=("test_get::test_a_task_has_exactly_the_fields_of_its_status",),
    ),
    Requirement(
        id="get/result-type",
        section="Task Polling",
        says='The resultType of a tasks/get response is "complete", whatever the status.',
        level="MUST",
        tests=("test_get::test_a_task_has_exactly_the_fields_of_its_status",),
    ),
    Requirement(
        id="update/keys-are-unique",
        section="Task Update Requests",
        says="Each key in inputRequests is unique over the lifetime of a task.",
        level="MUST",
        tests=("test_update::test_every_question_of_a_task_has_a_key_of_its_own",),
    ),
    Requirement(
        id="update/keys-are-not-reused",
        section="Task Update Requests",
        says="A key is not reused for a later request after a response to it has been delivered.",
        level="MUST NOT",
        tests=("test_update::test_every_question_of_a_task_has_a_key_of_its_own",),
    ),
    Requirement(
        id="update/keys-are-not-shared",
        section="Task Update Requests",
        says="The same key never refers to two distinct requests over a task's lifetime.",
        level="MUST NOT",
        tests=(
            "test_update::test_every_question_of_a_task_has_a_key_of_its_own",
            "test_update::test_questions_after_the_call_have_keys_of_their_own",
        ),
    ),
    Requirement(
        id="update/ack",
        section="Task Update Requests",
        says="A successful update is acknowledged with an empty result.",
        level="MUST",
        tests=("test_update::test_an_update_is_acknowledged_with_nothing_but_its_result_type",),
    ),
    Requirement(
        id="update/result-type",
        section="Task Update Requests",
        says='The resultType of the acknowledgement is "complete".',
        level="MUST",
        tests=("test_update::test_an_update_is_acknowledged_with_nothing_but_its_result_type",),
    ),
    Requirement(
        id="update/unknown-task",
        section="Task Update Requests",
        says="An update of an unknown task is a JSON-RPC error.",
        level="SHOULD",
        tests=("test_errors::test_a_task_that_is_not_there_is_an_invalid_param",),
    ),
    Requirement(
        id="update/other-keys-are-ignored",
        section="Task Update Requests",
        says="Responses to keys that are not outstanding are ignored: never issued, already answered, superseded.",
        level="SHOULD",
        tests=(
            "test_update::test_an_answer_to_a_key_that_was_never_issued_is_ignored_whatever_it_looks_like",
            "test_update::test_a_second_answer_to_the_same_question_is_ignored",
            "test_update::test_an_answer_to_a_question_of_a_task_that_has_ended_is_ignored",
        ),
    ),
    Requirement(
        id="update/partial",
        section="Task Update Requests",
        says="A partial set of responses leaves the task input_required until the remaining keys are answered.",
        level="MUST",
        source="release",
        tests=("test_update::test_a_part_of_the_answers_leaves_the_rest_open",),
    ),
    Requirement(
        id="update/answers-fit",
        section="Task Update Requests",
        says="A response has the shape of an answer to its request; malformed params are refused with -32602.",
        level="MUST",
        source="release",
        tests=(
            "test_update::test_an_answer_that_does_not_fit_the_form_is_refused_and_the_question_stays_open",
            "test_update::test_an_answer_that_is_no_answer_at_all_is_refused_and_the_question_stays_open",
        ),
    ),
    Requirement(
        id="update/only-declared-kinds",
        section="Task Update Requests",
        says="No input request of a kind that the client did not declare on the request that made the task.",
        level="MUST NOT",
        source="release",
        tests=("test_update::test_a_client_is_never_asked_what_it_did_not_declare",),
    ),
    Requirement(
        id="cancel/not-by-notification",
        section="Task Cancellation",
        says="notifications/cancelled is not used to cancel a task.",
        level="MUST NOT",
        tests=("test_cancel::test_the_cancelled_notification_does_not_cancel_a_task",),
    ),
    Requirement(
        id="cancel/ack",
        section="Task Cancellation",
        says="A cancellation is acknowledged with an empty result.",
        level="MUST",
        tests=(
            "test_cancel::test_a_cancellation_is_acknowledged_with_nothing_but_its_result_type",
            "test_cancel::test_a_finished_task_is_acknowledged_too_and_stays_as_it_is",
        ),
    ),
    Requirement(
        id="cancel/result-type",
        section="Task Cancellation",
        says='The resultType of the acknowledgement is "complete".',
        level="MUST",
        tests=("test_cancel::test_a_cancellation_is_acknowledged_with_nothing_but_its_result_type",),
    ),
    Requirement(
        id="cancel/unknown-task",
        section="Task Cancellation",
        says="The cancellation of an unknown task is a JSON-RPC error.",
        level="SHOULD",
        tests=("test_errors::test_a_task_that_is_not_there_is_an_invalid_param",),
    ),
    Requirement(
        id="cancel/status",
        section="Task Cancellation",
        says='"cancelled" means cancelled before completion: the work is told to stop, and what it still says is lost.',
        level="FORM",
        tests=(
            "test_cancel::test_a_running_tool_is_stopped",
            "test_cancel::test_a_task_that_waits_for_input_is_cancelled_and_asks_nothing_more",
            "test_cancel::test_a_result_that_comes_after_the_cancellation_is_ignored",
        ),
    ),
)
