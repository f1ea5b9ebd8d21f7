"""The official conformance suite as tests; `python -m tests.conformance.harness` shows the same as tables."""

import pytest

from .harness import Outcome, check_baseline, check_clients, check_tasks

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
