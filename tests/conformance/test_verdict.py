"""The judge behind the conformance run: what it lets pass decides what the run is worth."""

from __future__ import annotations

from .harness import EXPECTED_FAILURES, TASK_SCENARIOS
from .suite import Check, Status
from .verdict import ExpectedFailure, load_expected, problems, regressions, table

KNOWN = ExpectedFailure(scenario="life", check="cancel", reason="not built")


def check(status: Status, *, scenario: str = "life", check_id: str = "cancel", name: str = "Cancel") -> Check:
    return Check(scenario=scenario, id=check_id, name=name, status=status, message="because")


def test_a_failure_that_nobody_expected_is_a_problem() -> None:
    assert problems([check(Status.FAILURE)], []) == ["failed: life / cancel: because"]


def test_an_expected_failure_is_no_problem() -> None:
    assert problems([check(Status.FAILURE)], [KNOWN]) == []


def test_an_expectation_that_does_not_come_true_is_stale() -> None:
    (line,) = problems([check(Status.SUCCESS)], [KNOWN])
    assert line.startswith("stale: life / cancel")


def test_an_expectation_about_a_check_that_is_gone_is_stale() -> None:
    (line,) = problems([check(Status.SUCCESS, check_id="create")], [KNOWN])
    assert line.startswith("stale: life / cancel")


def test_an_expectation_about_a_scenario_that_was_not_run_is_left_alone() -> None:
    assert problems([check(Status.SUCCESS, scenario="wire")], [KNOWN]) == []


def test_one_failing_occurrence_of_a_repeated_check_is_enough_to_fail() -> None:
    assert len(problems([check(Status.SUCCESS), check(Status.FAILURE)], [])) == 1


def test_warnings_skips_and_notes_are_no_problem() -> None:
    assert problems([check(Status.WARNING), check(Status.SKIPPED), check(Status.INFO)], []) == []


def test_what_passed_and_fails_now_is_a_regression() -> None:
    (line,) = regressions([check(Status.SUCCESS)], [check(Status.FAILURE)])
    assert line == "passed before, now FAILURE: life / cancel (Cancel): because"


def test_what_passed_and_is_only_warned_about_skipped_or_gone_is_a_regression() -> None:
    before = [check(Status.SUCCESS)]
    assert len(regressions(before, [check(Status.WARNING)])) == 1
    assert len(regressions(before, [check(Status.SKIPPED)])) == 1
    assert len(regressions(before, [])) == 1


def test_what_failed_before_cannot_regress() -> None:
    assert regressions([check(Status.FAILURE)], [check(Status.FAILURE)]) == []


def test_checks_that_share_an_id_are_compared_by_name() -> None:
    first, second = check(Status.SUCCESS, name="First"), check(Status.FAILURE, name="Second")
    assert regressions([first, second], [first, second]) == []


def test_the_table_counts_known_failures_apart() -> None:
    checks = [check(Status.FAILURE), check(Status.FAILURE, check_id="create"), check(Status.SUCCESS)]
    assert table(checks, [KNOWN]).splitlines()[-1].split() == ["total", "(1)", "1", "1", "1", "0", "0"]


def test_every_expected_failure_names_a_scenario_that_is_run_and_gives_a_reason() -> None:
    for entry in load_expected(EXPECTED_FAILURES):
        assert entry.scenario in TASK_SCENARIOS
        assert entry.reason
