"""FastMCP's own client, given our `TasksClient`, against our server."""

from __future__ import annotations

import sys
from collections.abc import Generator
from typing import Any

import pytest

from harness.serving import serving_command

from .conftest import Installs
from .driving import Outcomes, command, drive

SELDOM = (sys.executable, "-m", "tests.interop.seldom_server", "--port", "{port}", "--db", "{db}")


@pytest.fixture(scope="module")
def outcomes(installs: Installs, streaming_url: str) -> Generator[Outcomes]:
    """What it reports."""
    driver = command(installs["fastmcp"], "fastmcp_with_ours.py")
    with serving_command(SELDOM) as seldom_url:
        yield drive(driver, [streaming_url, seldom_url], with_ours=True)[0]


def _of(outcomes: Outcomes, scenario: str) -> dict[str, Any]:
    outcome = outcomes[scenario]
    assert "error" not in outcome, outcome["error"]
    return outcome


def test_a_call_waits_for_longer_than_the_client_waits_for_an_answer(outcomes: Outcomes) -> None:
    outcome = _of(outcomes, "transparent")
    assert outcome["text"] == outcome["data"] == "long: done after 2.5 s"
    assert outcome["heard"] >= 2


def test_questions_reach_its_elicitation_handler_once(outcomes: Outcomes) -> None:
    outcome = _of(outcomes, "asking")
    assert outcome["texts"] == ["deleted fast.txt", "Hello, Ada!"]
    assert outcome["asked"] == 1


def test_a_task_is_had_in_hand(outcomes: Outcomes) -> None:
    outcome = _of(outcomes, "in_hand")
    assert (outcome["tool"], outcome["text"]) == ("slow_compute", "hand: done after 1 s")
    assert outcome["inline"] == "Hello, Ada!"


def test_a_wait_that_times_out_cancels_its_task(outcomes: Outcomes) -> None:
    outcome = _of(outcomes, "given_up")
    assert (outcome["type"], outcome["fate"]) == ("WaitTimedOut", "cancelled")


def test_the_ledger_finds_what_another_client_left(outcomes: Outcomes) -> None:
    outcome = _of(outcomes, "ledger")
    assert outcome["ids"]
    assert outcome["texts"] == ["left: done after 1.5 s"]
    assert outcome["left"] == []


def test_a_client_that_is_entered_again_is_still_told_of_its_tasks(outcomes: Outcomes) -> None:
    assert _of(outcomes, "entered_again")["texts"] == ["counted to 5", "counted to 20", "counted to 5"]


def test_a_client_without_the_extension_is_refused_in_words(outcomes: Outcomes) -> None:
    outcome = _of(outcomes, "strangers")
    assert outcome["not_given"]["type"] == outcome["by_function"]["type"] == "UsageError"
    assert "was not given this TasksClient" in outcome["not_given"]["message"]
    assert "methods of its TasksClient" in outcome["by_function"]["message"]
