"""What a run that is started again finds of the earlier ones, by what it is and not by when it came."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta

import pytest

from mcp_tasks.errors import UsageError
from mcp_tasks.model import InputRequest, JournalEntry
from mcp_tasks.runtime.replay import (
    Ask,
    Place,
    Replay,
    ResultId,
    Timer,
    ask_entry,
    ask_identity,
    done_entry,
    name_of,
    short,
    step_entry,
    timer_entry,
)
from mcp_tasks.testing.clock import NOON

HERE = Place(branch=False, step=None)
"""In the tool's own task, in no step."""


def question(message: str, method: str = "elicitation/create") -> InputRequest:
    return InputRequest(method=method, params={"message": message})


def asked(key: str, request: InputRequest, *, by: str | None = None) -> JournalEntry:
    """The journal's entry of a question that an earlier run put; `by` is the author's own key."""
    return ask_entry(Ask(key=key, request=request, asked_at=NOON, identity=""), by, HERE)


def answered(key: str, value: object) -> JournalEntry:
    return JournalEntry(kind="answer", key=key, value=value)


def find(replay: Replay, request: InputRequest, *, by: str | None = None) -> str | None:
    """The key under which the question is known."""
    known = replay.find_ask(ask_identity(request, by))
    return None if known is None else known.key


# Questions


def test_a_question_is_found_by_what_it_asks_in_any_order_and_once() -> None:
    replay = Replay([asked("q-1", question("a")), asked("q-2", question("b"))])
    assert [find(replay, question(message)) for message in "bab"] == ["q-2", "q-1", None]


def test_equal_questions_are_told_apart_by_how_many_came_before() -> None:
    replay = Replay([asked("q-1", question("a")), asked("q-2", question("a"))])
    assert [find(replay, question("a")) for _ in range(3)] == ["q-1", "q-2", None]


@pytest.mark.parametrize(
    "other",
    [question("b"), question("a", "sampling/createMessage"), InputRequest(method="elicitation/create", params={})],
    ids=["message", "method", "fewer"],
)
def test_another_question_is_never_found_under_it(other: InputRequest) -> None:
    assert find(Replay([asked("q-1", question("a"))]), other) is None


def test_the_order_of_parameters_makes_no_other_question() -> None:
    one = InputRequest(method="m", params={"a": 1, "b": 2})
    assert find(Replay([asked("q-1", one)]), InputRequest(method="m", params={"b": 2, "a": 1})) == "q-1"


def test_a_question_with_a_key_of_its_own_is_found_whatever_it_asks() -> None:
    replay = Replay([asked("city", question("Which one, at 12:00?"), by="city")])
    assert find(replay, question("Which one, at 12:05?"), by="city") == "city"
    assert find(replay, question("Which one, at 12:00?")) is None


def test_a_question_keeps_its_deadline_and_when_it_was_asked() -> None:
    request = replace(question("a"), deadline=NOON + timedelta(minutes=5))
    known = Replay([asked("q-1", request)]).find_ask(ask_identity(question("a"), None))
    assert known is not None
    assert (known.request, known.asked_at) == (request, NOON)


def test_new_questions_are_numbered_on_and_no_key_is_used_twice() -> None:
    replay = Replay([asked("elicitation-1", question("a")), asked("elicitation-2", question("b"))])
    assert [replay.number_ask(), replay.number_ask()] == [3, 4]
    assert [replay.new_key(wanted) for wanted in ("elicitation-1", "city", "city", "city")] == [
        "elicitation-1-2",
        "city",
        "city-2",
        "city-3",
    ]


def test_answers_come_by_key() -> None:
    entries = [asked("q-1", question("a")), answered("q-1", {"action": "accept"})]
    assert Replay(entries).answers == {"q-1": {"action": "accept"}}


def test_a_question_that_is_open_or_answered_was_begun_and_one_given_up_was_not() -> None:
    entries = [asked(key, question(key)) for key in ("open", "answered", "given up")] + [answered("answered", "yes")]
    assert [result.key for result in Replay(entries, outstanding=["open"]).begun] == ["open", "answered"]


# Timers


def timer(key: str) -> JournalEntry:
    return timer_entry(Timer(key=key, until=NOON), HERE)


def test_equal_sleeps_are_told_apart_by_how_many_came_before() -> None:
    first, _ = Replay().find_timer("sleep:1:00:00")
    replay = Replay([timer(first)])
    assert replay.find_timer("sleep:2:00:00")[1] is None
    assert replay.find_timer("sleep:1:00:00") == (first, NOON)
    second, until = replay.find_timer("sleep:1:00:00")
    assert (second != first, until) == (True, None)


def test_a_sleep_of_the_first_release_is_begun_anew() -> None:
    replay = Replay([JournalEntry(kind="timer", key="sleep-1", value=17)])
    assert replay.find_timer("sleep:1:00:00")[1] is None
    assert not replay.begun


# Steps and what was handed over


def test_results_have_the_order_in_which_the_tool_learned_of_them() -> None:
    entries = [
        asked("q-1", question("a")),
        timer("t"),
        step_entry(ResultId("step", "s"), {"value": 1}, Place(branch=True, step=None)),
        done_entry(ResultId("timer", "t"), "over", HERE),
        done_entry(ResultId("question", "q-1"), "answer", HERE),
    ]
    replay = Replay(entries)
    assert [str(result) for result in replay.results] == ["step 's'", "timer 't'", "question 'q-1'"]
    assert not replay.begun, "all of it has come to its end"


def test_what_was_not_handed_over_was_begun() -> None:
    replay = Replay([asked("q-1", question("a")), timer("t")], outstanding=["q-1"])
    assert list(replay.begun) == [ResultId("question", "q-1"), ResultId("timer", "t")]
    assert not replay.results


def test_a_step_name_is_there_once_in_a_run_unless_the_step_was_not_done() -> None:
    replay = Replay()
    replay.enter_step("a")
    with pytest.raises(UsageError, match="step 'a' is there twice"):
        replay.enter_step("a")
    replay.leave_step("a")
    replay.enter_step("a")


@pytest.mark.parametrize(
    "entry",
    [
        JournalEntry(kind="ask", key="q", value=None),
        JournalEntry(kind="ask", key="q", value={"params": {}}),
        JournalEntry(kind="timer", key="t", value={}),
        JournalEntry(kind="timer", key="t", value={"until": "noon"}),
        JournalEntry(kind="timer", key="t", value={"until": 10**30}),
        JournalEntry(kind="done", key="t", value={}),
        JournalEntry(kind="done", key="t", value=7),
        JournalEntry(kind="step", key="s", value=7),
        JournalEntry(kind="step", key="s", value={}),
        JournalEntry(kind="step", key="s", value={"error": {}}),
        JournalEntry(kind="step", key="s", value={"error": {"type": 1, "arguments": None, "message": "no"}}),
    ],
    ids=lambda entry: f"{entry.kind} {entry.value}",
)
def test_a_journal_that_makes_no_sense_is_refused_as_a_whole(entry: JournalEntry) -> None:
    with pytest.raises((LookupError, TypeError, ValueError, AttributeError, OverflowError)):
        Replay([entry])


# Names for people


def test_a_recorded_question_is_named_by_what_it_asks() -> None:
    entry = asked("q-1", question("Delete x?"))
    assert name_of(ResultId("question", "q-1"), entry.value) == "the question 'Delete x?'"
    assert name_of(ResultId("step", "s"), {"value": {"message": "no question"}}) == "step 's'"


def test_a_long_value_is_cut() -> None:
    assert short("a") == "'a'"
    assert len(short("a" * 10_000)) == 100


def test_a_question_of_which_nobody_noted_when_it_was_asked_is_the_same_one() -> None:
    asked_once = Ask(key="q-1", request=question("a"), asked_at=None, identity="")
    found = Replay([ask_entry(asked_once, None, HERE)]).find_ask(ask_identity(question("a"), None))
    assert found is not None
    assert (found.key, found.asked_at) == ("q-1", None)
