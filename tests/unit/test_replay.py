"""What a run that is started again is handed of the earlier ones."""

from __future__ import annotations

from datetime import timedelta

import pytest

from mcp_tasks.core import InputRequest, JournalEntry
from mcp_tasks.errors import ReplayMismatch, UsageError
from mcp_tasks.runtime.replay import Replay, ask_entry, remaining_seconds
from mcp_tasks.testing.clock import NOON


def question(message: str, method: str = "elicitation/create") -> InputRequest:
    return InputRequest(method=method, params={"message": message})


def asked(*requests: InputRequest) -> list[JournalEntry]:
    """The journal of a run that put these questions."""
    replay = Replay()
    return [ask_entry(replay.next_ask(request)) for request in requests]


def test_questions_of_a_first_run_are_new_and_named_by_kind_and_place() -> None:
    replay = Replay()
    asks = [replay.next_ask(question("a")), replay.next_ask(InputRequest(method="roots/list", params={}))]
    assert [ask.key for ask in asks] == ["elicitation-1", "roots-2"]
    assert not any(ask.known for ask in asks)


def test_questions_that_were_put_before_have_the_same_keys_and_are_known() -> None:
    replay = Replay(asked(question("a"), question("b")))
    asks = [replay.next_ask(question("a")), replay.next_ask(question("b")), replay.next_ask(question("c"))]
    assert [(ask.key, ask.known) for ask in asks] == [
        ("elicitation-1", True),
        ("elicitation-2", True),
        ("elicitation-3", False),
    ]


def test_answers_come_by_key() -> None:
    answer = JournalEntry(kind="answer", key="elicitation-1", value={"action": "accept"})
    assert Replay([*asked(question("a")), answer]).answers == {"elicitation-1": {"action": "accept"}}


def test_another_question_at_the_same_place_is_refused_with_what_differs() -> None:
    replay = Replay(asked(question("a"), question("Delete x?")))
    replay.next_ask(question("a"))
    with pytest.raises(ReplayMismatch, match=r"question 2 .* message was 'Delete x\?', now it is 'Delete y\?'"):
        replay.next_ask(question("Delete y?"))


def test_another_kind_of_question_is_refused_with_both_kinds() -> None:
    replay = Replay(asked(question("a")))
    with pytest.raises(ReplayMismatch, match=r"it was elicitation/create, now it is sampling/createMessage"):
        replay.next_ask(question("a", method="sampling/createMessage"))


def test_a_long_difference_is_cut() -> None:
    replay = Replay(asked(question("a" * 10_000)))
    with pytest.raises(ReplayMismatch) as caught:
        replay.next_ask(question("b" * 10_000))
    assert len(str(caught.value)) < 600


def test_a_parameter_that_is_only_in_one_of_them_is_a_difference() -> None:
    replay = Replay(asked(InputRequest(method="roots/list", params={})))
    with pytest.raises(ReplayMismatch, match="mode was None, now it is 'form'"):
        replay.next_ask(InputRequest(method="roots/list", params={"mode": "form"}))


def test_steps_are_known_by_name_in_any_order() -> None:
    replay = Replay([JournalEntry(kind="step", key="a", value=1), JournalEntry(kind="step", key="b", value=None)])
    assert [replay.enter_step(name) for name in ("b", "new", "a")] == [True, False, True]
    assert (replay.step_value("a"), replay.step_value("b")) == (1, None)


def test_a_step_name_is_there_once_in_a_run() -> None:
    replay = Replay()
    replay.enter_step("a")
    with pytest.raises(UsageError, match="step 'a' is there twice"):
        replay.enter_step("a")


def test_sleeps_go_by_their_order() -> None:
    replay = Replay([JournalEntry(kind="timer", key="sleep-1", value=17)])
    assert replay.next_timer() == 17
    assert replay.next_timer() is None
    assert replay.timer_key == "sleep-2"


def test_what_is_left_of_a_sleep_is_never_negative() -> None:
    assert remaining_seconds(NOON + timedelta(seconds=1.5), NOON) == 1.5
    assert remaining_seconds(NOON, NOON + timedelta(days=1)) == 0.0
