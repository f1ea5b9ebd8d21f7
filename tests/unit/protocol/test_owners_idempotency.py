"""Keys of callers: which are taken, what is kept of them, and which calls are the same."""

from __future__ import annotations

from typing import Any

import pytest

from mcp_tasks.errors import CallNotKept, KeyTooShort
from mcp_tasks.model import TaskRequest
from mcp_tasks.protocol.errors import RpcError
from mcp_tasks.protocol.owners import LEAST_CHARACTERS, CallKey, check_first, take_key, without_key
from mcp_tasks.protocol.shapes import IDEMPOTENCY_KEY, LONGEST_KEY, REPEATED_META_KEY
from mcp_tasks.testing import make_request

KEY = "k" * LEAST_CHARACTERS


def nested(levels: int) -> Any:
    value: Any = []
    for _ in range(levels):
        value = [value]
    return value


@pytest.mark.parametrize("value", [object(), {1, 2}, nested(100_000)], ids=["object", "set", "too deep"])
def test_arguments_that_cannot_be_compared_are_refused(value: Any) -> None:
    request = TaskRequest(name="tool", arguments={"value": value}, meta={IDEMPOTENCY_KEY: "k" * 40})
    with pytest.raises(RpcError, match="cannot be written as JSON"):
        take_key(request, "alice")


def call(key: Any = KEY, *, meta: dict[str, Any] | None = None, **fields: Any) -> TaskRequest:
    return make_request(meta={IDEMPOTENCY_KEY: key, **(meta or {})}, **fields)


def kept(request: TaskRequest, **options: Any) -> CallKey:
    _, key = take_key(request, None, **options)
    assert key is not None
    return key


def test_a_call_without_a_key_is_as_it_was() -> None:
    request = make_request(meta={"com.example/a": 1})
    assert take_key(request, None) == (request, None)
    assert without_key(request.meta) is request.meta


def test_of_a_key_a_hash_is_kept_and_its_tool_sees_nothing() -> None:
    request, key = take_key(call(meta={REPEATED_META_KEY: True, "com.example/a": 1}), None)
    assert request.meta == {"com.example/a": 1}
    assert key is not None
    assert key.is_repeat
    assert KEY not in key.key + key.fingerprint


def test_the_same_call_is_known_by_its_key_and_another_by_what_it_asks_for() -> None:
    once = kept(call(arguments={"a": 1, "b": 2}))
    assert kept(call(arguments={"b": 2, "a": 1})) == once
    other = kept(call(arguments={"a": 1, "b": 3}))
    assert (other.key, other.fingerprint == once.fingerprint) == (once.key, False)
    assert kept(call(KEY + "2", arguments={"a": 1, "b": 2})).key != once.key


def test_each_request_of_a_call_that_asks_first_has_its_own_place_by_what_it_answers() -> None:
    first = kept(call(), asks_first=True)
    later = kept(call(input_responses={"name": "Ada"}, request_state="s"), asks_first=True)
    again = kept(call(input_responses={"name": "Bob"}, request_state="s"), asks_first=True)
    assert first == kept(call())
    assert first.key != later.key == again.key
    assert later.fingerprint != again.fingerprint


@pytest.mark.parametrize("key", ["", 7, None, ["k"], "k" * (LONGEST_KEY + 1)], ids=lambda key: type(key).__name__)
def test_what_is_no_key_is_refused(key: Any) -> None:
    with pytest.raises(RpcError, match=f"a string of 1 to {LONGEST_KEY} characters"):
        take_key(call(key), "alice")


def test_a_key_that_could_be_guessed_is_for_callers_with_a_name() -> None:
    assert take_key(call(KEY[1:]), "alice")[1] is not None
    with pytest.raises(KeyTooShort, match=f"at least {LEAST_CHARACTERS} characters"):
        take_key(call(KEY[1:]), None)


def test_a_call_that_may_have_been_made_before_is_not_made_where_calls_are_not_kept() -> None:
    check_first({IDEMPOTENCY_KEY: KEY})
    check_first({REPEATED_META_KEY: True})
    with pytest.raises(CallNotKept):
        check_first({IDEMPOTENCY_KEY: KEY, REPEATED_META_KEY: True})
