"""How a call becomes a task: negotiation, the two kinds of result, creation."""

from __future__ import annotations

from tests.spec.requirements.model import Requirement

REQUIREMENTS = (
    Requirement(
        id="negotiation/advertised",
        section="Capability Negotiation",
        says="The server declares the extension in its capabilities; an empty object indicates support.",
        level="FORM",
        tests=("test_negotiation::test_discover_names_the_extension_with_an_empty_object",),
    ),
    Requirement(
        id="negotiation/no-task-without-declaration",
        section="Capability Negotiation",
        says="No CreateTaskResult for a client that did not include the capability on its request, "
        '"regardless of prior declarations".',
        level="MUST NOT",
        tests=(
            "test_negotiation::test_a_client_that_declares_nothing_gets_the_plain_result",
            "test_negotiation::test_an_earlier_declaration_on_the_same_connection_does_not_count",
            "test_negotiation::test_a_declaration_that_is_not_an_object_is_none",
        ),
    ),
    Requirement(
        id="negotiation/missing-capability",
        section="Capability Negotiation",
        says="A request that can only be serviced with a task is refused to a client that does not declare the "
        "extension, with the missing capability in the error (-32021 in the release).",
        level="MUST",
        tests=("test_negotiation::test_a_tool_that_must_be_a_task_is_refused_to_a_client_that_cannot_have_one",),
    ),
    Requirement(
        id="methods/more-may-come",
        section="Supported Methods",
        says="Implementations are designed to accommodate further request types.",
        level="SHOULD",
        tests=("test_creation::test_a_task_remembers_which_method_it_answers",),
    ),
    Requirement(
        id="results/task-is-marked",
        section="Polymorphic Results",
        says='resultType is "task" on a CreateTaskResult.',
        level="MUST",
        tests=("test_creation::test_a_created_task_has_exactly_the_fields_of_a_task",),
    ),
    Requirement(
        id="results/nothing-else-is-marked",
        section="Polymorphic Results",
        says='No other result has the resultType "task".',
        level="MUST NOT",
        tests=("test_negotiation::test_only_a_created_task_has_the_result_type_task",),
    ),
    Requirement(
        id="task/fields",
        section="Tasks",
        says="A task has an id, a status, two ISO 8601 timestamps, ttlMs (an integer or null, never absent), and "
        "optionally a message and a poll interval in integer milliseconds; what is unset is left out.",
        level="FORM",
        tests=(
            "test_creation::test_a_created_task_has_exactly_the_fields_of_a_task",
            "test_creation::test_a_task_that_is_kept_for_good_has_a_null_ttl",
            "test_creation::test_durations_are_whole_milliseconds",
            "test_creation::test_timestamps_are_utc_with_a_z",
            "test_get::test_a_task_has_exactly_the_fields_of_its_status",
        ),
    ),
    Requirement(
        id="task/last-updated",
        section="Tasks",
        says="lastUpdatedAt is when the task was last updated: it does not move when nothing changed, and is never "
        "before createdAt.",
        level="FORM",
        tests=(
            "test_get::test_the_time_of_the_last_update_moves_only_when_something_changed",
            "test_get::test_a_task_that_waited_for_its_turn_is_not_updated_by_starting",
            "test_get::test_a_clock_that_jumps_back_never_puts_an_update_before_the_creation",
        ),
    ),
    Requirement(
        id="creation/durable",
        section="Task Creation",
        says="No CreateTaskResult before a tasks/get for its id would resolve.",
        level="MUST NOT",
        tests=(
            "test_creation::test_a_task_can_be_read_as_soon_as_it_is_announced",
            "test_creation::test_a_task_can_be_read_at_another_server_as_soon_as_it_is_announced",
            "test_creation::test_a_call_whose_task_cannot_be_kept_is_an_error_and_runs_nothing",
        ),
    ),
    Requirement(
        id="creation/consistent",
        section="Task Creation",
        says="With an eventually consistent store the server waits for consistency before it responds.",
        level="MUST",
        tests=("test_creation::test_a_call_is_not_answered_before_the_store_has_kept_its_task",),
    ),
    Requirement(
        id="creation/questions-before",
        section="Task Creation",
        says="Multi round-trip exchanges are resolved synchronously before the CreateTaskResult.",
        level="SHOULD",
        tests=(
            "test_creation::test_a_question_returned_before_the_work_is_asked_on_the_call_itself",
            "test_creation::test_a_question_for_a_parameter_is_asked_on_the_call_itself",
        ),
    ),
    Requirement(
        id="security/unguessable",
        section="Security Implications",
        says="Ids have so much entropy that a third party cannot enumerate or guess them.",
        level="MUST",
        tests=("test_security::test_ids_carry_at_least_128_random_bits",),
    ),
    Requirement(
        id="security/every-request-is-checked",
        section="Security Implications",
        says="Every request about a task is authenticated and authorized.",
        level="MUST",
        tests=(
            "test_security::test_a_task_is_there_for_its_owner_only",
            "test_security::test_somebody_elses_task_looks_exactly_like_no_task",
            "test_security::test_users_of_one_oauth_client_do_not_share_tasks",
            "test_security::test_nobody_listens_to_somebody_elses_task",
            "test_security::test_a_new_token_of_the_same_user_reaches_the_task",
            "test_security::test_a_request_without_a_valid_token_is_refused_before_anything_is_looked_up",
            "trust/test_matrix::test_over_http",
            "trust/test_matrix::test_over_pipes",
            "trust/test_matrix::test_over_pipes_where_an_owner_is_required_everywhere",
            "trust/test_owners::test_a_request_without_an_owner_makes_no_task",
            "trust/test_streams::test_a_stream_ends_with_the_token_that_opened_it",
        ),
    ),
)
