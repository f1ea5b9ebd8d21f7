"""How much a value is, of kinds that are JSON only when they are written."""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum
from typing import Any

import pytest

from mcp_tasks.errors import LimitExceeded
from mcp_tasks.model.json import check_json


class Colour(StrEnum):
    RED = "red" * 10


@pytest.mark.parametrize("value", [Colour.RED, [Colour.RED], {"colour": Colour.RED}])
def test_a_text_of_a_kind_of_its_own_is_written_to_be_measured(value: Any) -> None:
    check_json("argument_bytes", "arguments", value, most=100, depth=2)
    with pytest.raises(LimitExceeded, match="20 bytes of JSON at most"):
        check_json("argument_bytes", "arguments", value, most=20, depth=2)


def test_what_is_no_json_is_left_to_the_store_to_refuse() -> None:
    value: Mapping[str, Any] = {"x": object()}
    check_json("argument_bytes", "arguments", dict(value), most=20, depth=2)
    with pytest.raises(LimitExceeded, match="nested 2 levels deep"):
        check_json("argument_bytes", "arguments", {"x": [[object()]]}, most=20, depth=2)
