"""The recorded session is what the command line does today."""

from __future__ import annotations

import difflib

from docs.assets.session import PAGE, normalised, record
from docs.assets.terminal import Screen


def test_the_session_is_what_is_seen_today() -> None:
    kept, seen = PAGE.read_text(), record()
    changes = "\n".join(difflib.unified_diff(kept.splitlines(), seen.splitlines(), "kept", "seen", lineterm=""))
    assert kept == seen, f"not what the command line shows; `make session` writes docs/session.md again:\n{changes}"


def test_what_is_drawn_anew_in_place_is_seen_once() -> None:
    screen = Screen(10)
    screen.write("one\r\n\x1b[?25l\x1b[32mtwo\x1b[0m\r\x1b[2Kthree\r\nfour\x1b[1A\r\x1b[2Ktwo\r\n")
    assert str(screen) == "one\ntwo\nfour"


def test_a_line_that_is_too_long_goes_on_in_the_next() -> None:
    screen = Screen(4)
    screen.write("abcdef\r\ng")
    assert str(screen) == "abcd\nef\ng"


def test_two_sessions_with_other_ids_times_and_ports_are_written_alike() -> None:
    one = "task_aaaaaaaa-bbb started 2030-01-02 03:04:05 (59 s ago) 0:07 http://localhost:8123/mcp task_aaaaaaaa ⠙"
    other = "task_c-cc_ccc1ddd started 2031-01-02 13:04:05 (1 min ago) 0:59 http://localhost:9123/mcp task_c-cc_ccc ⠇"
    alike = normalised(one, "http://localhost:8123/mcp")
    assert alike == normalised(other, "http://localhost:9123/mcp")
    assert alike.startswith("task_AhLN6miV0sUe started 2026-07-28 12:00:00 (8 s ago) 0:02 http://localhost:8000/mcp")
