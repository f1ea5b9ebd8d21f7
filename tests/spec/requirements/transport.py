"""What depends on how messages travel: headers, streams, notifications."""

from __future__ import annotations

from tests.spec.requirements.model import Requirement

REQUIREMENTS = (
    Requirement(
        id="headers/name",
        section="Streamable HTTP: Routing Headers",
        says="Mcp-Name carries the id of the task on tasks/get, tasks/update and tasks/cancel; a value that does not "
        "match is a Header Mismatch, and the base64 form is decoded before comparing.",
        level="MUST",
        source="release",
        tests=(
            "test_headers::test_a_name_that_is_not_the_tasks_is_a_header_mismatch",
            "test_headers::test_an_encoded_name_is_decoded_before_it_is_compared",
            "test_headers::test_a_name_that_cannot_be_decoded_is_a_header_mismatch",
            "test_headers::test_a_missing_name_is_accepted_unless_the_author_is_strict",
            "test_headers::test_a_name_is_refused_if_it_is_there_twice",
        ),
    ),
    Requirement(
        id="headers/method",
        section="Streamable HTTP: Routing Headers",
        says="Mcp-Method carries the method; a value that does not match is a Header Mismatch.",
        level="MUST",
        source="release",
        tests=("test_headers::test_a_method_header_that_is_not_the_method_is_a_header_mismatch",),
    ),
    Requirement(
        id="streams/closing-cancels-the-request-only",
        section="Task Cancellation",
        says="Closing the response stream cancels that request, never the task it created.",
        level="MUST NOT",
        source="release",
        tests=("test_cancel::test_a_client_that_hangs_up_does_not_cancel_the_task_it_made",),
    ),
    Requirement(
        id="notifications/missing-capability",
        section="Task Status Notifications",
        says="A listen request for tasks from a client that does not declare the extension is refused, naming the "
        "missing capability.",
        level="MUST",
        tests=("test_notifications::test_listening_for_tasks_needs_the_extension",),
    ),
    Requirement(
        id="notifications/acknowledged",
        section="Task Status Notifications",
        says="The acknowledgement of a listen request lists the tasks that the server agreed to report.",
        level="FORM",
        tests=(
            "test_notifications::test_the_acknowledgement_names_the_tasks_that_will_be_reported",
            "test_notifications::test_a_listen_request_that_names_no_task_is_served_as_ever",
            "test_notifications::test_task_ids_that_are_no_list_of_strings_are_refused",
        ),
    ),
    Requirement(
        id="notifications/complete",
        section="Task Status Notifications",
        says="A notification carries the complete task for its status, as tasks/get would have at that moment, and "
        "the id of the subscription.",
        level="FORM",
        tests=("test_notifications::test_a_notification_is_what_tasks_get_would_have_answered",),
    ),
    Requirement(
        id="notifications/no-progress-no-log",
        section="Task Status Notifications",
        says="notifications/progress and notifications/message are not sent on a listen stream for a task.",
        level="MUST NOT",
        tests=(
            "test_notifications::test_progress_and_logs_of_a_task_reach_no_listen_stream",
            "test_notifications::test_progress_on_a_stream_for_a_task_is_a_state_of_the_task",
            "test_notifications::test_progress_and_logs_of_a_task_do_not_reach_the_call_that_made_it",
        ),
    ),
)
