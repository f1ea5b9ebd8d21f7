"""2025-11-25: what is declared, and how a call becomes a task. Servers as receivers."""

from __future__ import annotations

from tests.spec.requirements.model import Requirement

REQUIREMENTS = (
    Requirement(
        id="older/capability",
        section="Capabilities",
        says="A server that supports task-augmented requests declares `tasks` in the handshake.",
        level="MUST",
        source="2025-11-25",
        era="2025-11-25",
        tests=(
            "spec/legacy/test_negotiation::test_the_handshake_declares_tasks_for_tool_calls",
            "spec/legacy/test_negotiation::test_versions_without_tasks_hear_nothing_of_them",
        ),
    ),
    Requirement(
        id="older/exhaustive",
        section="Capability Negotiation",
        says="What is not in `tasks.requests` does not support task augmentation.",
        level="FORM",
        source="2025-11-25",
        era="2025-11-25",
        tests=("spec/legacy/test_negotiation::test_the_task_parameter_of_other_requests_is_ignored",),
    ),
    Requirement(
        id="older/list-capability",
        section="Server Capabilities",
        says="`tasks.list` says whether `tasks/list` is supported.",
        level="FORM",
        source="2025-11-25",
        era="2025-11-25",
        tests=(
            "spec/legacy/test_negotiation::test_the_handshake_declares_tasks_for_tool_calls",
            "spec/legacy/test_negotiation::test_without_a_session_and_a_principal_there_is_no_list_and_none_is_declared",
            "spec/legacy/test_negotiation::test_without_sessions_tasks_work_by_id",
        ),
    ),
    Requirement(
        id="older/cancel-capability",
        section="Server Capabilities",
        says="`tasks.cancel` says whether `tasks/cancel` is supported.",
        level="FORM",
        source="2025-11-25",
        era="2025-11-25",
        tests=(
            "spec/legacy/test_negotiation::test_the_handshake_declares_tasks_for_tool_calls",
            "spec/legacy/test_negotiation::test_without_sessions_tasks_work_by_id",
        ),
    ),
    Requirement(
        id="older/tool-support",
        section="Tool-Level Negotiation",
        says="Tools declare in `execution.taskSupport` of `tools/list` whether they are required, optional or "
        "forbidden as tasks.",
        level="FORM",
        source="2025-11-25",
        era="2025-11-25",
        tests=("spec/legacy/test_negotiation::test_every_tool_says_whether_it_may_be_a_task",),
    ),
    Requirement(
        id="older/forbidden-tool",
        section="Tool-Level Negotiation",
        says="A tool that is forbidden as a task, or says nothing, answers a call as a task with -32601.",
        level="SHOULD",
        source="2025-11-25",
        era="2025-11-25",
        tests=("spec/legacy/test_negotiation::test_a_tool_that_is_no_task_is_not_found_as_one",),
    ),
    Requirement(
        id="older/optional-tool",
        section="Tool-Level Negotiation",
        says="A tool that is optional is called as a task or plainly, as the client wishes.",
        level="MAY",
        source="2025-11-25",
        era="2025-11-25",
        tests=("spec/legacy/test_negotiation::test_a_tool_that_may_be_a_task_is_what_the_client_asks_for",),
    ),
    Requirement(
        id="older/required-tool",
        section="Tool-Level Negotiation",
        says="A tool that is required as a task answers a plain call with -32601.",
        level="MUST",
        source="2025-11-25",
        era="2025-11-25",
        tests=("spec/legacy/test_negotiation::test_a_tool_that_must_be_a_task_is_not_found_otherwise",),
    ),
    Requirement(
        id="older/requires-augmentation",
        section="Protocol Errors",
        says="A request that must be augmented and is not may be answered with -32600.",
        level="MAY",
        source="2025-11-25",
        era="2025-11-25",
        tests=("spec/legacy/test_negotiation::test_a_tool_that_must_be_a_task_is_not_found_otherwise",),
        deviation="-32601, which the tool-level negotiation makes a MUST for tools, and no other request must be a "
        "task",
    ),
    Requirement(
        id="older/undeclared-types",
        section="Task Support and Handling",
        says="Requests of a type whose task capability is not declared are processed normally, and their task "
        "metadata is ignored.",
        level="MUST",
        source="2025-11-25",
        era="2025-11-25",
        tests=("spec/legacy/test_negotiation::test_the_task_parameter_of_other_requests_is_ignored",),
    ),
    Requirement(
        id="older/requires-tasks",
        section="Task Support and Handling",
        says="A receiver that declares the capability for a type of request may refuse plain ones of that type.",
        level="MAY",
        source="2025-11-25",
        era="2025-11-25",
        tests=("spec/legacy/test_negotiation::test_a_tool_that_must_be_a_task_is_not_found_otherwise",),
    ),
    Requirement(
        id="older/task-param",
        section="Task Parameters",
        says="`task` is an object with an optional number `ttl`; anything else, and arguments that the tool refuses, "
        "is -32602, and there is no task.",
        level="FORM",
        source="2025-11-25",
        era="2025-11-25",
        tests=(
            "spec/legacy/test_negotiation::test_a_malformed_task_parameter_is_refused_and_runs_nothing",
            "spec/legacy/test_negotiation::test_arguments_that_are_refused_make_no_task",
        ),
    ),
    Requirement(
        id="older/ttl-asked-for",
        section="Creating Tasks",
        says="The requestor may say in `task.ttl` how long it wants the task kept, from its creation.",
        level="MAY",
        source="2025-11-25",
        era="2025-11-25",
        tests=(
            "spec/legacy/test_creation::test_any_number_of_milliseconds_can_be_asked_for",
            "spec/legacy/test_creation::test_the_ttl_that_was_asked_for_counts_from_the_end",
        ),
        deviation="what was asked for counts from the end of the task: a receiver may override it, the ttl on the "
        "wire says what holds, and no task expires while it works",
    ),
    Requirement(
        id="older/create-result",
        section="Result Retrieval",
        says="A task-augmented request that is accepted is answered with a CreateTaskResult.",
        level="MUST",
        source="2025-11-25",
        era="2025-11-25",
        tests=("spec/legacy/test_creation::test_a_created_task_has_exactly_the_fields_of_a_task",),
    ),
    Requirement(
        id="older/create-soon",
        section="Result Retrieval",
        says="It is answered as soon as possible after the task was accepted.",
        level="SHOULD",
        source="2025-11-25",
        era="2025-11-25",
        tests=(
            "spec/legacy/test_creation::test_a_call_whose_task_cannot_be_kept_is_an_error_and_runs_nothing",
            "spec/legacy/test_creation::test_the_call_is_answered_while_the_tool_still_works",
        ),
    ),
    Requirement(
        id="older/create-has-no-outcome",
        section="Creating Tasks",
        says="The answer has the task and nothing of the outcome, which comes by `tasks/result` only.",
        level="FORM",
        source="2025-11-25",
        era="2025-11-25",
        tests=("spec/legacy/test_creation::test_a_created_task_has_exactly_the_fields_of_a_task",),
    ),
    Requirement(
        id="older/immediate-response",
        section="Creating Tasks",
        says="`io.modelcontextprotocol/model-immediate-response` in the `_meta` of a CreateTaskResult is a string for "
        "the model to have at once.",
        level="MAY",
        source="2025-11-25",
        era="2025-11-25",
        tests=(
            "spec/legacy/test_creation::test_what_the_model_may_be_told_at_once_is_in_the_meta_of_the_created_task",
        ),
    ),
)
