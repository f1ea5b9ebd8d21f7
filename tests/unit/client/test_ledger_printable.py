"""Text of a server's, made fit for a terminal."""

from __future__ import annotations

import json

import pytest

from mcp_tasks.client.ledger import on_one_line, printable, printable_json


def test_what_a_terminal_would_obey_is_left_out() -> None:
    assert printable("a\x1b[2Jb\u202ec\nd") == "a[2Jbc\nd"
    assert on_one_line("a\r\nb\u2028c") == "a bc"


@pytest.mark.parametrize("value", [{"a": "\x1b[2J\u202e\u2028"}, ["\u00e9\U0001f600", "\ud800"], "plain"])
def test_json_is_the_same_value_and_moves_no_cursor(value: object) -> None:
    text = printable_json(value)
    assert json.loads(text) == value
    assert printable(text) == text


def test_json_keeps_letters_of_every_script() -> None:
    assert printable_json(["\u00e9", "\u6f22"], indent=1) == '[\n "\u00e9",\n "\u6f22"\n]'
