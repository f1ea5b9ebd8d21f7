"""Which schemas of a peer may be left to a validator that works for as long as they ask."""

from __future__ import annotations

from typing import Any

import pytest

from mcp_tasks.protocol.schema import is_tame, target_of


def nested(depth: int, inner: Any) -> dict[str, Any]:
    schema = inner
    for _ in range(depth):
        schema = {"type": "array", "items": schema}
    return schema


def fan(levels: int, keyword: str = "allOf") -> dict[str, Any]:
    """References that fan out: so many levels of them are two to the power of so many visits."""
    definitions: dict[str, Any] = {
        f"d{n}": {keyword: [{"$ref": f"#/$defs/d{n + 1}"}, {"$ref": f"#/$defs/d{n + 1}"}]} for n in range(levels)
    }
    return {"$ref": "#/$defs/d0", "$defs": {**definitions, f"d{levels}": {"type": "integer"}}}


@pytest.mark.parametrize(
    "schema",
    [
        {},
        True,
        {"type": "object", "properties": {"pattern": {"type": "string"}}, "required": ["pattern"]},
        {"$ref": "#/$defs/n", "$defs": {"n": {"enum": [{"pattern": 1}]}}},
        fan(5),
    ],
)
def test_an_ordinary_schema_is_tame(schema: Any) -> None:
    assert is_tame(schema)


@pytest.mark.parametrize(
    "schema",
    [
        {"$ref": "https://example.com/a.json"},
        fan(30),
        {"$ref": "#"},
        {"pattern": "a"},
        {"items": {"$ref": "#"}},
        nested(5_000, {}),
        {"$ref": 7},
    ],
)
def test_one_that_may_be_a_bomb_is_not(schema: Any) -> None:
    assert not is_tame(schema)


@pytest.mark.parametrize(
    ("reference", "target"),
    [("#", "root"), ("#/a~1b/c~0d", 1), ("#/list/0", 2)],
)
def test_a_reference_is_a_json_pointer(reference: str, target: Any) -> None:
    root = {"a/b": {"c~d": 1}, "list": [2]}
    assert target_of(reference, root) == (root if target == "root" else target)
    for nowhere in ("#/x", "#/list/7", "other", "#anchor", None):
        with pytest.raises(LookupError):
            target_of(nowhere, root)
