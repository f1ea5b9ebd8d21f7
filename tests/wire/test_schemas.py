"""Schemas of somebody else: a verdict, or word that there is none; always soon, and never by way of the network."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from typing import Any

import pytest

from mcp_tasks.wire.patterns import PatternRefused, matches
from mcp_tasks.wire.schemas import DEEPEST, MOST_NODES, Unchecked, is_tame, misfit_of, target_of


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


BACKTRACKING = "^(a+)+$"
TEXT = "a" * 5_000 + "!"


@pytest.fixture
def asked() -> Iterator[tuple[str, list[str]]]:
    """A web server that would hand out a schema, and what it was asked for."""
    paths: list[str] = []

    class Pages(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            paths.append(self.path)
            self.send_response(200)
            self.end_headers()
            self.wfile.write(b'{"type": "integer"}')

        def log_message(self, format: str, *args: Any) -> None:  # noqa: A002 - its name there
            """Nothing on the terminal."""

    server = HTTPServer(("127.0.0.1", 0), Pages)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    yield f"http://127.0.0.1:{server.server_port}", paths
    server.shutdown()
    thread.join()
    server.server_close()


# Patterns


@pytest.mark.parametrize(
    ("pattern", "text", "found"), [("b", "abc", True), ("^b", "abc", False), (r"^\d{3}$", "123", True), ("", "", True)]
)
def test_a_pattern_is_found_anywhere_unless_it_is_anchored(pattern: str, text: str, found: bool) -> None:
    assert matches(pattern, text) is found


def test_a_pattern_that_would_backtrack_for_ever_is_soon_decided() -> None:
    assert matches(BACKTRACKING, TEXT) is False
    assert matches(BACKTRACKING, TEXT[:-1]) is True


@pytest.mark.parametrize("pattern", ["(?=a)b", r"(a)\1", "(", "a{1000}{1000}{1000}", "x" * 1_001, "\ud800"])
def test_a_pattern_that_cannot_be_matched_in_linear_time_is_refused(pattern: str) -> None:
    with pytest.raises(PatternRefused):
        matches(pattern, "a")


# Verdicts


VERDICTS: list[tuple[dict[str, Any], Any, Any]] = [
    ({"type": "integer"}, 1, "1"),
    ({"type": "string", "pattern": "^a+$"}, "aa", "ab"),
    ({"patternProperties": {"^n": {"type": "integer"}}}, {"n": 1}, {"n": "1"}),
    ({"additionalProperties": False, "properties": {"a": {}}}, {"a": 1}, {"b": 1}),
    ({"additionalProperties": False, "patternProperties": {"^x": {}}}, {"xy": 1}, {"yx": 1}),
    ({"additionalProperties": {"type": "integer"}}, {"b": 1}, {"b": "1"}),
    ({"uniqueItems": True}, [1, True, "1", [1], {"a": 1}], [1, 1.0]),
    ({"uniqueItems": True}, [{"a": 1}, {"a": True}], [{"a": [1]}, {"a": [1.0]}]),
    ({"$ref": "#/$defs/n", "$defs": {"n": {"type": "integer"}}}, 1, "1"),
    ({"unevaluatedProperties": False, "allOf": [{"properties": {"a": {}}}]}, {"a": 1}, {"b": 1}),
    (fan(6), 1, "1"),
]


@pytest.mark.parametrize(("schema", "good", "bad"), VERDICTS)
def test_what_fits_is_told_from_what_does_not(schema: dict[str, Any], good: Any, bad: Any) -> None:
    assert misfit_of(good, schema) is None
    misfit = misfit_of(bad, schema)
    assert misfit is not None
    assert misfit.path.startswith("$")
    assert misfit.message


@pytest.mark.parametrize(
    ("schema", "value"),
    [
        (fan(40), 1),
        (fan(40, "anyOf"), "x"),
        ({"$ref": "#"}, 1),
        ({"allOf": [{"$ref": "#"}, {"$ref": "#"}]}, 1),
        ({"items": {"allOf": [{"$ref": "#"}, {"$ref": "#"}]}}, [[[[[[[[[[[[[[[[[[[[[[[[[1]]]]]]]]]]]]]]]]]]]]]]]]]),
        (nested(DEEPEST + 1, {}), 1),
        ({"enum": [[1]] * (MOST_NODES + 1)}, 1),
        ({"pattern": r"(a)\1"}, "aa"),
        ({"patternProperties": {BACKTRACKING: {}}, "unevaluatedProperties": False}, {TEXT: 1}),
        ({"type": 7}, 1),
        ({"properties": ["a"]}, {"a": 1}),
        ({"$ref": "#/nowhere"}, 1),
        ({"minimum": "many"}, 1),
    ],
)
def test_where_there_is_no_verdict_it_is_said_so(schema: dict[str, Any], value: Any) -> None:
    with pytest.raises(Unchecked):
        misfit_of(value, schema)


@pytest.mark.parametrize(
    "schema", [{"pattern": BACKTRACKING}, {"additionalProperties": False, "patternProperties": {BACKTRACKING: {}}}]
)
def test_patterns_of_a_schema_do_not_backtrack(schema: dict[str, Any]) -> None:
    assert misfit_of(TEXT if "pattern" in schema else {TEXT: 1}, schema) is not None


def test_equal_items_are_looked_for_in_one_go() -> None:
    assert misfit_of([*range(30_000), "x"], {"uniqueItems": True}) is None


@pytest.mark.parametrize("keyword", ["$ref", "$dynamicRef"])
def test_a_reference_to_elsewhere_is_never_fetched(keyword: str, asked: tuple[str, list[str]]) -> None:
    url, paths = asked
    for schema in ({keyword: f"{url}/a.json"}, {"$id": f"{url}/b.json", keyword: "c.json"}):
        with pytest.raises(Unchecked):
            misfit_of("text", schema)
        assert not is_tame(schema)
    assert paths == []


def test_a_misfit_quotes_only_so_much() -> None:
    misfit = misfit_of("x" * 100_000, {"type": "integer"})
    assert misfit is not None
    assert len(misfit.message) <= 500


# Schemas for other validators


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
    "schema", [fan(30), {"$ref": "#"}, {"pattern": "a"}, {"items": {"$ref": "#"}}, nested(5_000, {}), {"$ref": 7}]
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
