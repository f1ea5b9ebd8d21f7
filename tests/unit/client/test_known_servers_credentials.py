"""Tokens and headers as people write them."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from mcp_tasks.client import InvalidOption, check_token, is_in_the_clear, read_headers, read_token, secrets_of


def test_a_token_is_one_word() -> None:
    assert check_token(" abc.def\n") == "abc.def"


@pytest.mark.parametrize(
    ("text", "why"), [(" \n", "is empty"), ("two words", "characters"), ("caf\u00e9", "characters")]
)
def test_what_is_no_token_is_refused_without_repeating_it(text: str, why: str) -> None:
    with pytest.raises(InvalidOption, match=why) as raised:
        check_token(text)
    assert not text.strip() or text not in str(raised.value)


@pytest.mark.skipif(os.name != "posix", reason="others are kept out by other means on Windows")
def test_a_file_that_others_may_read_is_told(tmp_path: Path) -> None:
    file = tmp_path / "token"
    file.write_text("abc\n")
    file.chmod(0o600)
    assert read_token(file) == ("abc", False)
    file.chmod(0o644)
    assert read_token(file) == ("abc", True)


def test_a_file_that_has_no_token_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InvalidOption, match="cannot be read"):
        read_token(tmp_path / "nowhere")
    large = tmp_path / "large"
    large.write_bytes(b"x" * 100_000)
    with pytest.raises(InvalidOption, match="too large to be a token file"):
        read_token(large)


def test_headers_are_names_and_values_and_a_token_is_one_of_them() -> None:
    assert read_headers(["X-Team: blue ", "X-Url:http://a"]) == {"X-Team": "blue", "X-Url": "http://a"}
    assert read_headers(["X-Team:blue"], "abc") == {"X-Team": "blue", "Authorization": "Bearer abc"}


@pytest.mark.parametrize(
    ("line", "why"),
    [("X-Team", "NAME:VALUE, with a colon"), (":blue", "NAME:VALUE"), ("X:\u00e9", "'X' has characters")],
)
def test_what_is_no_header_is_refused(line: str, why: str) -> None:
    with pytest.raises(InvalidOption, match=why):
        read_headers([line])


def test_what_is_no_token_is_no_header_either() -> None:
    with pytest.raises(InvalidOption, match="the token is empty"):
        read_headers([], " ")


def test_what_may_be_a_secret_is_known() -> None:
    headers = {"Authorization": "Bearer abc", "X-Team": "blue", "Mcp-Session-Id": "s1", "X-Api-Key": ""}
    assert secrets_of(headers=headers) == ["abc", "s1"]
    assert secrets_of("https://ann:x@farm.example/mcp") == [":x@"]
    assert secrets_of("https://farm.example/mcp?a:b@c", {}) == []


@pytest.mark.parametrize(
    ("url", "is_open"),
    [
        ("http://farm.example/mcp", True),
        ("https://farm.example", False),
        ("http://localhost:1", False),
        ("http://[::1]", False),
    ],
)
def test_plain_http_to_elsewhere_can_be_read_on_the_way(url: str, is_open: bool) -> None:
    assert is_in_the_clear(url) is is_open
