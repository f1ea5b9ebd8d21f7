"""Keys of callers, where the rest of the call is no JSON."""

from __future__ import annotations

from typing import Any

import pytest

from mcp_tasks.core import TaskRequest
from mcp_tasks.protocol.errors import RpcError
from mcp_tasks.protocol.idempotency import IDEMPOTENCY_KEY, take_key


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
