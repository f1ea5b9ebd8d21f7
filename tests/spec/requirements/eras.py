"""Beside the experimental tasks of 2025-11-25."""

from __future__ import annotations

from tests.spec.requirements.model import Requirement

REQUIREMENTS = (
    Requirement(
        id="eras/extension-means-nothing-before",
        section="Backward Compatibility",
        says="Under 2025-11-25 the extension does not enable tasks; requests proceed as if nothing was declared.",
        level="MUST NOT",
        era="2025-11-25",
        tests=(
            "test_eras::test_a_legacy_client_that_declares_the_extension_gets_plain_results",
            "test_eras::test_the_methods_of_the_extension_alone_do_not_exist_for_a_legacy_client",
            "test_eras::test_versions_before_tasks_have_none",
        ),
    ),
    Requirement(
        id="eras/legacy-capability-is-no-declaration",
        section="Backward Compatibility",
        says="A client that declares only the legacy capability counts as not declaring the extension.",
        level="MUST",
        tests=("test_eras::test_the_legacy_capability_does_not_declare_the_extension",),
    ),
    Requirement(
        id="eras/legacy-tasks-stay-reachable",
        section="Backward Compatibility",
        says="A server that supports both lets such clients get and cancel tasks created under the legacy flow.",
        level="SHOULD",
        tests=(
            "spec/legacy/test_interplay::test_a_client_on_the_newer_wire_without_the_extension_is_told_to_declare_it",
        ),
        deviation="-32021, as for any other task: the same release makes that a MUST for every request about tasks "
        "from a client without the extension, and whoever made the task on the older wire still has it there",
    ),
    Requirement(
        id="eras/no-tasks-result",
        section="Backward Compatibility",
        says="tasks/result is removed: -32601.",
        level="MUST",
        tests=("test_eras::test_the_removed_methods_are_not_found_whatever_their_params",),
    ),
    Requirement(
        id="eras/task-param-is-ignored",
        section="Backward Compatibility",
        says="The task parameter of tools/call is ignored, as an unknown field is.",
        level="MUST",
        tests=(
            "test_eras::test_the_task_parameter_changes_nothing",
            "test_eras::test_a_malformed_task_parameter_changes_nothing_either",
        ),
    ),
    Requirement(
        id="eras/migrated",
        section="Backward Compatibility",
        says="Servers declare the extension instead of the legacy capabilities.",
        level="MUST",
        tests=("test_eras::test_no_legacy_capability_is_advertised_beside_the_extension",),
    ),
    Requirement(
        id="eras/no-legacy-capabilities",
        section="Backward Compatibility",
        says="The legacy capabilities are not advertised under a version that includes the extension.",
        level="MUST NOT",
        tests=("test_eras::test_no_legacy_capability_is_advertised_beside_the_extension",),
    ),
)
