"""The official conformance suite as tests; `python -m tests.conformance.harness` shows the same as tables."""

import pytest

from .harness import (
    Check,
    ExpectedFailure,
    Outcome,
    Status,
    check_baseline,
    check_clients,
    check_tasks,
    problems,
    regressions,
)

# The first run also fetches the suite from npm; later runs take a few seconds each.
pytestmark = [pytest.mark.conformance, pytest.mark.slow, pytest.mark.timeout(400)]


def _is_good(outcome: Outcome) -> None:
    print(outcome.report)
    assert not outcome.problems, "\n".join(outcome.problems)


def test_the_tasks_scenarios_pass_but_for_the_expected_failures() -> None:
    _is_good(check_tasks())


def test_wiring_tasks_into_a_server_makes_nothing_else_worse_in_either_era() -> None:
    _is_good(check_baseline())


def test_a_client_with_tasks_is_no_worse_than_a_plain_one_in_either_era() -> None:
    _is_good(check_clients())


# The judge: what it lets pass decides what the run is worth

KNOWN = ExpectedFailure(scenario="life", check="cancel", reason="not built")


def check(status: Status, *, scenario: str = "life", check_id: str = "cancel", name: str = "Cancel") -> Check:
    return Check(scenario=scenario, id=check_id, name=name, status=status, message="because")


GOOD, BAD = check(Status.SUCCESS), check(Status.FAILURE)


@pytest.mark.parametrize(
    ("checks", "expected", "found"),
    [
        ([BAD], [], ["failed: life / cancel: because"]),
        ([GOOD, BAD], [], ["failed: life / cancel: because"]),
        ([BAD], [KNOWN], []),
        # An expectation that does not come true, or whose check is gone, is stale.
        ([GOOD], [KNOWN], ["stale: life / cancel does not fail any more; remove its entry (not built)"]),
        (
            [check(Status.SUCCESS, check_id="create")],
            [KNOWN],
            ["stale: life / cancel does not fail any more; remove its entry (not built)"],
        ),
        ([check(Status.SUCCESS, scenario="wire")], [KNOWN], []),
        ([check(Status.WARNING), check(Status.SKIPPED), check(Status.INFO)], [], []),
    ],
)
def test_what_fails_unexpectedly_and_what_is_expected_in_vain_are_problems(
    checks: list[Check], expected: list[ExpectedFailure], found: list[str]
) -> None:
    assert problems(checks, expected) == found


def test_what_passed_and_does_not_pass_now_is_a_regression() -> None:
    assert regressions([GOOD], [BAD]) == ["passed before, now FAILURE: life / cancel (Cancel): because"]
    assert [len(regressions([GOOD], after)) for after in ([check(Status.WARNING)], [check(Status.SKIPPED)], [])] == [
        1
    ] * 3
    assert regressions([BAD], [BAD]) == []
    # Checks that share an id are compared by name.
    both = [check(Status.SUCCESS, name="First"), check(Status.FAILURE, name="Second")]
    assert regressions(both, both) == []
