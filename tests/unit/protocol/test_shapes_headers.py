"""Headers that name a task, as clients encode them."""

from __future__ import annotations

import pytest
from mcp.shared.inbound import decode_header_value, encode_header_value

from mcp_tasks.protocol.shapes import decode_header

VALUES = [
    "task_abc",
    "",
    "with space",
    " leading",
    "müller",
    "日本",
    "line\nbreak",
    "=?base64?YQ==?=",
    "\x7f",
    "=?base64?",
]


@pytest.mark.parametrize("value", VALUES, ids=repr)
def test_whatever_the_sdk_encodes_is_decoded(value: str) -> None:
    assert decode_header(encode_header_value(value)) == value


@pytest.mark.parametrize(
    "sent", ["=?base64?!!!?=", "=?base64?YQ?=", "=?base64?YR==?=", "=?base64?/w==?=", "=?base64??="]
)
def test_what_is_encoded_badly_is_what_it_is_to_the_sdk(sent: str) -> None:
    assert decode_header(sent) == decode_header_value(sent)


def test_what_cannot_be_encoded_text_names_nothing() -> None:
    assert decode_header("=?base64?é?=") is None
