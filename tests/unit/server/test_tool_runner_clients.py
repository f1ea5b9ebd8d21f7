"""Who a client is: parsed once, and kept within bounds."""

from __future__ import annotations

from typing import Any

from mcp_tasks.model import TaskRequest
from mcp_tasks.server.tool_runner import ClientCache


def _request(version: str, *, size: int = 0, **capabilities: Any) -> TaskRequest:
    return TaskRequest(
        name="tool",
        arguments={},
        protocol_version="2026-07-28",
        client_info={"name": "x" * size, "version": version},
        client_capabilities=capabilities,
    )


def test_clients_that_say_the_same_are_parsed_once() -> None:
    cache = ClientCache()
    first = cache.client_of(_request("1", elicitation={}))
    assert cache.client_of(_request("1", elicitation={})) is first
    assert first.client_params is not None
    assert first.client_params.client_info.version == "1"
    for other in (_request("2", elicitation={}), _request("1")):
        assert cache.client_of(other) is not first


def test_the_client_that_was_not_seen_for_longest_makes_room() -> None:
    cache = ClientCache(room=3_000)
    known = {version: cache.client_of(_request(version, size=1000)) for version in "12"}
    cache.client_of(_request("1", size=1000))
    cache.client_of(_request("3", size=1000))
    assert cache.client_of(_request("1", size=1000)) is known["1"]
    assert cache.client_of(_request("2", size=1000)) is not known["2"]


def test_a_client_that_says_too_much_of_itself_is_not_kept_and_takes_no_others_place() -> None:
    cache = ClientCache(room=10_000)
    modest = cache.client_of(_request("1"))
    talkative = cache.client_of(_request("2", size=10_000))
    assert cache.client_of(_request("2", size=10_000)) is not talkative
    assert cache.client_of(_request("1")) is modest
