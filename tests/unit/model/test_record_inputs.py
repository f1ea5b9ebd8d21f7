"""The book of a task's questions."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta

import pytest

from mcp_tasks.model import InputBook, InputRequest
from mcp_tasks.testing.clock import NOON

ASK = InputRequest(method="elicitation/create", params={"message": "Sure?"})


def test_a_book_begins_with_nothing_open_and_nothing_used() -> None:
    book = InputBook()
    assert not book.outstanding
    assert book.used == frozenset()


def test_questions_are_kept_in_the_order_they_were_asked() -> None:
    book = InputBook().ask({"b": ASK, "a": ASK}).ask({"c": ASK})
    assert list(book.outstanding) == ["b", "a", "c"]


def test_asking_leaves_the_older_book_as_it_was() -> None:
    book = InputBook()
    book.ask({"a": ASK})
    assert not book.outstanding


@pytest.mark.parametrize("again", [{"a": ASK}, {"new": ASK, "a": ASK}], ids=["alone", "among others"])
def test_a_key_is_refused_while_it_is_open_and_after(again: dict[str, InputRequest]) -> None:
    book = InputBook().ask({"a": ASK})
    for known in (book, book.close(["a"]), book.withdraw()):
        with pytest.raises(ValueError, match="already used: a"):
            known.ask(again)


def test_there_is_no_empty_question() -> None:
    with pytest.raises(ValueError, match="nothing to ask"):
        InputBook().ask({})


def test_only_open_keys_can_be_answered() -> None:
    book = InputBook().ask({"a": ASK, "b": ASK}).close(["a"])
    assert book.answerable(["a", "b", "never asked"], NOON) == {"b"}


def test_a_question_can_be_answered_until_its_deadline() -> None:
    book = InputBook().ask({"a": replace(ASK, deadline=NOON), "b": ASK})
    assert book.answerable(["a", "b"], NOON - timedelta(microseconds=1)) == {"a", "b"}
    assert book.answerable(["a", "b"], NOON) == {"b"}
    # It stays open until the tool that asked is told.
    assert list(book.outstanding) == ["a", "b"]


def test_an_overdue_question_can_still_be_closed() -> None:
    book = InputBook().ask({"a": replace(ASK, deadline=NOON)}).close(["a"])
    assert not book.outstanding


def test_closing_closes_these_questions_and_no_other() -> None:
    book = InputBook().ask({"a": ASK, "b": ASK}).close(["a", "never asked"])
    assert list(book.outstanding) == ["b"]
    assert book.used == {"a", "b"}


def test_withdrawing_closes_every_question_and_forgets_no_key() -> None:
    book = InputBook().ask({"a": ASK, "b": ASK}).withdraw()
    assert not book.outstanding
    assert book.used == {"a", "b"}
    assert book.withdraw() is book
