"""What binds clients. The tests are those of `tests/client`."""

from __future__ import annotations

from tests.spec.requirements.model import Requirement

REQUIREMENTS = (
    Requirement(
        id="client/either-result",
        section="Capability Negotiation",
        says="A client that negotiated the extension handles both a tool's result and a task in answer to any call.",
        level="MUST",
        party="client",
        tests=("client/test_calls::test_a_tool_gives_its_result_whether_it_is_a_task_or_answers_inline",),
    ),
    Requirement(
        id="client/task-for-another-request",
        section="Capability Negotiation",
        says="A task in answer to a request that does not support tasks is an invalid response.",
        level="MUST",
        party="client",
        tests=("client/test_hostile::test_a_task_as_the_answer_to_another_request_is_no_result",),
    ),
    Requirement(
        id="client/inspects-input-requests",
        section="Task Status",
        says="On `input_required` the client inspects `inputRequests`, and answers with `tasks/update`.",
        level="MUST",
        party="client",
        tests=(
            "client/test_calls::test_questions_are_answered_before_the_task_and_in_the_middle",
            "client/test_handle::test_a_wait_answers_through_the_callback_of_the_client",
        ),
    ),
    Requirement(
        id="client/poll-interval",
        section="Task Polling",
        says="The client keeps to `pollIntervalMs`, and follows its changes.",
        level="SHOULD",
        party="client",
        tests=(
            "client/test_pace::test_polls_of_2026_07_28_keep_to_the_interval",
            "client/test_pace::test_the_interval_that_the_server_suggests_is_kept",
        ),
    ),
    Requirement(
        id="client/polls-to-the-end",
        section="Task Polling",
        says="The client goes on polling until the task has ended, or until it cancels it.",
        level="SHOULD",
        party="client",
        tests=("client/test_handle::test_watch_shows_every_change_of_status_and_ends_with_the_final_one",),
    ),
    Requirement(
        id="client/persists-ids",
        section="Task Polling",
        says="The client keeps task ids in durable storage, and goes on after a crash.",
        level="SHOULD",
        party="client",
        tests=("client/test_crashes::test_a_client_that_is_killed_at_a_question_and_at_work_comes_back_for_both",),
    ),
    Requirement(
        id="client/answers-what-is-pushed",
        section="Task Update Requests",
        says="Questions seen in a notification are answered like those seen in a poll, and the task is followed on.",
        level="SHOULD",
        party="client",
        tests=("client/test_push::test_a_question_that_is_pushed_again_and_again_is_put_once",),
    ),
    Requirement(
        id="client/same-trust",
        section="Task Update Requests",
        says="Each entry of `inputRequests` is treated as the standalone request it stands for: same callbacks, same "
        "trust.",
        level="MUST",
        party="client",
        tests=("client/test_questions::test_a_model_and_roots_are_asked_for_like_a_person",),
    ),
    Requirement(
        id="client/deduplicates-keys",
        section="Task Update Requests",
        says="A key that is seen again is not put to the user or model again, and not answered twice.",
        level="SHOULD",
        party="client",
        tests=(
            "client/test_crashes::test_a_client_that_is_killed_before_its_answer_arrived_sends_it_again_and_asks_nobody",
            "client/test_questions::test_a_question_that_comes_with_every_look_is_put_once",
        ),
    ),
    Requirement(
        id="client/cancels-with-tasks-cancel",
        section="Task Cancellation",
        says="A task is cancelled with `tasks/cancel`, never with `notifications/cancelled`.",
        level="MUST NOT",
        party="client",
        tests=("client/test_handle::test_a_wait_that_takes_too_long_leaves_or_cancels_its_task_and_says_which",),
    ),
    Requirement(
        id="client/mcp-name",
        section="Streamable HTTP: Routing Headers",
        says="On `tasks/get`, `tasks/update` and `tasks/cancel` the client sets `Mcp-Name` to the id of the task.",
        level="MUST",
        party="client",
        tests=(
            "client/test_network::test_tasks_methods_name_their_task_in_a_header_and_those_of_the_user_go_with_every_request",
        ),
    ),
)
