"""How a task ended, read for whoever is shown the task."""

from __future__ import annotations

import json
from typing import Any

import pytest

from mcp_tasks.model.json import LARGE
from mcp_tasks.protocol.dialect import decoded


@pytest.mark.anyio
@pytest.mark.parametrize("value", [{"a": [1]}, {"a": "x" * 2 * LARGE}], ids=["small", "large"])
async def test_the_value_is_the_same_however_large_it_is(value: Any) -> None:
    assert await decoded(json.dumps(value).encode()) == value
