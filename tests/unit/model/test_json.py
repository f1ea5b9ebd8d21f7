"""JSON as bytes, at once and in pieces: the same bytes, values and refusals; text that every parser reads; sizes."""

import json
import os
from collections.abc import Mapping
from enum import StrEnum
from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from harness.thoroughness import examples
from mcp_tasks.errors import LimitExceeded, ValueNotStorable
from mcp_tasks.model import json as json_bytes
from mcp_tasks.model.json import (
    LARGE,
    check_json,
    decode_in_pieces,
    decode_json,
    encode_canonical,
    encode_in_pieces,
    encode_json,
    is_large,
    is_valid_text,
    legible,
    list_in,
    object_in,
    valid_json,
    valid_text,
)
from mcp_tasks.protocol.shapes import encode_plain
from tests.contracts.strategies import json_values

BIG: dict[str, Any] = {
    "one string": "x" * 300_000,
    "text that is not ASCII": "ü☃𝄞" * 70_000,
    "a string of escapes": '"\\\n\t\0' * 50_000,
    "a lone surrogate": ["x" * 100_000, "\ud800" * 30_000, "☃" * 100_000],
    "first halves of characters without end": "\ud800" * 300_000,
    "many numbers": list(range(100_000)),
    "odd numbers": [2**70, 0.1, -0.0, 5e-324, 1e300, -1] * 10_000,
    "many small objects": [{"id": n, "name": f"name {n}", "tags": ["a", None, True]} for n in range(10_000)],
    "many members": {f"key {n}": n for n in range(50_000)},
    "keys that are not text": dict.fromkeys(range(50_000)),
    "large inside small": {"a": {"b": [{"c": "x" * 200_000}, 1]}, "d": [[[list(range(50_000))]]], "e": {}, "f": []},
    "a large key": {"k" * 200_000: "v" * 200_000, "other": 1},
    "elements of about a window": ["x" * (LARGE - n) for n in range(8)],
    "nested deeper than pieces are looked for": json.loads("[" * 400 + json.dumps("x" * 100_000) + "]" * 400),
}


@pytest.mark.slow
@pytest.mark.parametrize("name", BIG)
def test_what_is_large_is_the_same_in_pieces_and_canonical_json_of_it_is_sorted_throughout(name: str) -> None:
    value = BIG[name]
    assert is_large(value)
    data = encode_in_pieces(value)
    assert data == encode_json(value)
    assert decode_in_pieces(data) == json.loads(data)
    assert encode_canonical(value) == canonical(value)


@given(value=json_values())
@settings(deadline=None)
def test_any_json_is_the_same_in_pieces(value: Any) -> None:
    assert encode_in_pieces(value) == encode_json(value)
    assert decode_in_pieces(encode_json(value)) == decode_json(encode_json(value)) == value


@given(value=json_values())
@example(value="\ud800")
@example(value={"\ud800": [2**70, -0.0]})
@settings(deadline=None)
def test_what_is_json_already_is_the_same_value_when_written_quickly(value: Any) -> None:
    assert decode_json(encode_plain(value)) == value


def joined(*parts: str) -> st.SearchStrategy[str]:
    return st.lists(st.sampled_from(parts)).map("".join)


@pytest.fixture
def small_pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    """Pieces of a few bytes, so that every cut that can be made is made."""
    monkeypatch.setattr(json_bytes, "LARGE", 13)


CUT = {
    "strings in a list": '["a long string","b","another long string"]',
    "many in a list": "[1, 2, 3, 4, 5, 6, 7, 8, 9]",
    "many members": '{"a":1, "b":2, "c":3}',
    "a long member": '{"a long key":"a long string","b":1}',
    "deeper than pieces are looked for": "[" * 40 + "1" + "]" * 40,
    "a number that goes on behind the piece": "0.1234567890123456789",
    "a character of two escapes": r'"1234567\ud83d\ude00"',
    "a first half twice": r'"1234567\ud83d\ud83d"',
}
"""What is cut in each way there is, with pieces of 13 characters: random input comes to these as well, now and then."""

CUT_WRONG = {
    "no comma": "[1, 2, 3, 4, 5, 6 7, 8]",
    "no colon": '{"a":1, "b":2, "c" 3}',
    "no end of a list": "[1, 2, 3, 4, 5, 6,",
    "no end of a string": '"there is no end',
    "no such escape": r'"a long \x string"',
    "half an escape": r'"a long \u00 string"',
    "more behind it": '"a long string" x',
    "nothing that is known": "nonsense",
}


@pytest.mark.usefixtures("small_pieces")
class TestSmallPieces:
    @given(value=json_values(), indent=st.sampled_from([None, 1]), escaped=st.booleans())
    @settings(deadline=None, max_examples=examples(200))
    def test_any_json_is_the_same_however_it_is_cut(self, value: Any, indent: int | None, escaped: bool) -> None:
        assert encode_in_pieces(value) == encode_json(value)
        assert encode_canonical(value) == canonical(value)
        text = json.dumps(value, indent=indent, ensure_ascii=escaped)
        assert decode_in_pieces(text.encode("utf-8", "surrogatepass")) == json.loads(text)

    @given(
        text=joined("\\", '"', "u", "d83d", "\\ud83d", "\\ude00", "\\n", "☃", "𝄞", "0").map('["{}"]'.format)
        | joined(*'{}[],:" \\0123.eE-+x', "true", "null", "NaN", '"a"', "[[1,2],", '{"a":')
    )
    @example(text='["d83d\\ud83d\\ud83d\\ude00"]')
    @settings(deadline=None, max_examples=examples(400))
    def test_escapes_are_never_cut_in_two_and_what_is_not_json_is_refused_alike(self, text: str) -> None:
        assert outcome_of(decode_in_pieces, text.encode()) == outcome_of(json.loads, text.encode())

    @pytest.mark.parametrize("text", CUT.values(), ids=CUT)
    def test_however_it_is_cut_it_is_the_same(self, text: str) -> None:
        value = json.loads(text)
        assert decode_in_pieces(text.encode()) == value
        assert encode_in_pieces(value) == encode_json(value)
        assert encode_canonical(value) == canonical(value)

    @pytest.mark.parametrize("text", CUT_WRONG.values(), ids=CUT_WRONG)
    def test_wherever_it_goes_wrong_it_is_refused_as_the_whole_is(self, text: str) -> None:
        refusal = outcome_of(json.loads, text.encode())
        assert refusal.startswith("JSONDecodeError")
        assert outcome_of(decode_in_pieces, text.encode()) == refusal


def outcome_of(decode: Any, data: bytes) -> str:
    """What came of it, NaN included, in a form that can be compared."""
    try:
        return repr(decode(data))
    except ValueError as exc:
        return f"{type(exc).__name__}: {exc}"


def circular() -> list[Any]:
    value: list[Any] = ["x" * 1_000]
    value.append(value)
    return value


@pytest.mark.parametrize(
    ("value", "cause"),
    [
        *((value, TypeError) for value in (object(), {"a": {1, 2}}, b"bytes", ["x" * 200_000, {1, 2}])),
        ({(1, 2): "x" * 200_000}, TypeError),
        (circular(), (ValueError, RecursionError)),
    ],
    ids=["object", "set", "bytes", "large list", "large object", "circle"],
)
@pytest.mark.parametrize("encode", [encode_json, encode_in_pieces, encode_canonical])
def test_what_is_no_json_cannot_be_stored(encode: Any, value: Any, cause: Any) -> None:
    with pytest.raises(ValueNotStorable, match="cannot be written as JSON") as refused:
        encode(value)
    assert isinstance(refused.value.__cause__, cause)


def canonical(value: Any) -> bytes:
    return json.dumps(value, sort_keys=True, separators=(",", ":")).encode()


@pytest.mark.parametrize("encode", [encode_json, encode_in_pieces])
def test_text_is_kept_readable_unless_it_cannot_be(encode: Any) -> None:
    assert encode({"a": ["☃", None]}) == '{"a":["☃",null]}'.encode()
    assert encode(["☃", "\ud800"]) == b'["\\u2603","\\ud800"]'
    with pytest.raises(UnicodeEncodeError):
        encode(["\ud800"], strict=True)


@pytest.mark.parametrize("damaged", ["{1: %s}", '{"a" %s}', "{%s, 1: 2}"])
def test_a_large_object_whose_members_have_no_names_is_refused_alike(damaged: str) -> None:
    data = (damaged % json.dumps("x" * 3 * LARGE)).encode()
    assert outcome_of(decode_in_pieces, data) == outcome_of(decode_json, data)
    assert "JSONDecodeError" in outcome_of(decode_json, data)


ANY_TEXT = st.text(alphabet=st.characters(exclude_categories=()))


@given(ANY_TEXT)
@example(os.fsdecode(b"caf\xe9.txt"))
def test_whatever_comes_in_what_comes_out_can_be_encoded_and_is_as_long(text: str) -> None:
    valid = valid_text(text)
    assert valid.encode().decode() == valid
    assert len(valid) == len(text)
    assert is_valid_text(text) == (valid == text)
    assert all(new in (old, "\ufffd") for new, old in zip(valid, text, strict=True))


@given(
    st.recursive(
        st.none() | st.booleans() | st.integers() | ANY_TEXT,
        lambda inner: st.lists(inner) | st.dictionaries(ANY_TEXT, inner),
    )
)
def test_the_same_holds_for_json_throughout(value: object) -> None:
    valid = valid_json(value)
    assert json.loads(json.dumps(valid, ensure_ascii=False).encode()) == valid


def test_json_without_a_fault_is_equal_to_what_it_was() -> None:
    value: Any = {"a": [1, None, True, 0.5, {"b": "ü"}], "c": {}}
    assert valid_json(value) == value
    assert valid_json(("a", "\udcff")) == ["a", "\ufffd"]


@given(ANY_TEXT, st.integers(min_value=1, max_value=50))
def test_legible_text_can_be_printed_and_has_at_most_so_many_characters(text: str, most: int) -> None:
    shown = legible(text, most)
    assert shown.isprintable()
    assert len(shown) <= most
    assert (shown == text) == (text.isprintable() and len(text) <= most)


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


@pytest.mark.parametrize("odd", [None, 7, "text", ["a"], {"a": 7}, {"a": None}, {"a": ["b"]}, {"a": {"c": {}}}])
def test_where_there_is_no_object_at_the_end_of_the_path_there_is_none(odd: Any) -> None:
    assert object_in(odd, "a", "b") is None


def test_what_is_no_list_is_an_empty_one() -> None:
    assert list_in({"a": [1]}, "a") == [1]
    assert [list_in({"a": odd}, "a") for odd in (None, 7, "text", {"b": 1})] == [[]] * 4
    assert list_in({}, "a") == []
