"""JSON as bytes, the way everything of ours is kept and sent: compact, and UTF-8 that every parser takes.

The C encoder and decoder of the standard library keep the interpreter to themselves for as long as they work, in a
thread as well: 10 MB would stop the event loop for a tenth of a second. What is large (`is_large`) is therefore encoded
and decoded in pieces, to be done in a thread: between two pieces the event loop has its turn.
"""

from __future__ import annotations

import codecs
import json
import re
from collections.abc import Iterable, Iterator
from typing import Any, cast

from mcp_tasks.core.json import JsonValue
from mcp_tasks.errors import ValueNotStorable

LARGE = 64 * 1024
"""Bytes, roughly, that are encoded or decoded in about the time that the hop to a thread and back takes."""

_DEPTH = 30
"""How deep pieces are looked for. What is larger than a piece so far down is encoded or decoded at once."""

_encoder = json.JSONEncoder(ensure_ascii=False, separators=(",", ":"))
_ascii_encoder = json.JSONEncoder(separators=(",", ":"))
_canonical_encoder = json.JSONEncoder(separators=(",", ":"), sort_keys=True)
_decoder = json.JSONDecoder()
_CONTAINERS = (dict, list, tuple)


def encode_json(value: JsonValue, *, strict: bool = False) -> bytes:
    """JSON of the value.

    A lone surrogate (valid in a JSON escape, not in UTF-8) makes the text unencodable, so such a value is written with
    escapes throughout; it is rare enough to try the short way first.

    Raises:
        ValueNotStorable: The value is not JSON, or is nested too deeply.
        UnicodeEncodeError: With `strict`, it holds a lone surrogate.
    """
    try:
        try:
            return _encoder.encode(value).encode()
        except UnicodeEncodeError:
            if strict:
                raise
            return _ascii_encoder.encode(value).encode()
    except UnicodeEncodeError:
        raise
    except (TypeError, ValueError, RecursionError) as exc:
        raise ValueNotStorable(f"a value cannot be stored because it cannot be written as JSON: {exc}") from exc


def decode_json(data: bytes) -> JsonValue:
    """The value behind the bytes.

    Raises:
        ValueError: They are not JSON.
    """
    return json.loads(data)


def is_large(value: JsonValue) -> bool:
    """Whether the JSON of the value is large enough to be made in a thread. Takes no longer for a larger value."""
    return rough_size(value) > LARGE


def encode_in_pieces(value: JsonValue, *, strict: bool = False) -> bytes:
    """The same as `encode_json`, with turns for other threads.

    Raises:
        ValueNotStorable: The value is not JSON, or is nested too deeply.
        UnicodeEncodeError: With `strict`, it holds a lone surrogate.
    """
    try:
        try:
            return b"".join(_pieces(value, _encoder))
        except UnicodeEncodeError:
            if strict:
                raise
            return b"".join(_pieces(value, _ascii_encoder))
    except UnicodeEncodeError:
        raise
    except (TypeError, ValueError, RecursionError):
        # Not JSON, or nested deeper than Python functions can follow: the C encoder knows which.
        return encode_json(value, strict=strict)


def encode_canonical(value: JsonValue) -> bytes:
    """JSON that is the same for equal values, in whatever order their members come; in pieces, as above.

    Raises:
        ValueNotStorable: The value is not JSON, or is nested too deeply.
    """
    try:
        return b"".join(_pieces(value, _canonical_encoder))
    except (TypeError, ValueError, RecursionError) as exc:
        raise ValueNotStorable(f"a value cannot be compared because it cannot be written as JSON: {exc}") from exc


def decode_in_pieces(data: bytes) -> JsonValue:
    """The same as `decode_json`, with turns for other threads.

    Raises:
        ValueError: They are not JSON.
    """
    try:
        decode = codecs.getincrementaldecoder("utf-8")("surrogatepass").decode
        text = "".join([decode(data[at : at + LARGE], at + LARGE >= len(data)) for at in range(0, len(data), LARGE)])
        value, end = _value(text, _skip(text, 0))
        if _skip(text, end) == len(text):
            return value
    except (ValueError, IndexError, RecursionError):
        pass
    # Not JSON; the message is that of the whole.
    return decode_json(data)


def rough_size(value: JsonValue) -> int:
    """About how many bytes of JSON the value makes; not counted any further when it is large."""
    if isinstance(value, str):
        return len(value) + 2
    if not isinstance(value, _CONTAINERS):
        return 4
    weight, waiting = 0, [cast("Any", value)]
    while waiting and weight <= LARGE:
        item = waiting.pop()
        if isinstance(item, str):
            weight += len(item) + 2
        elif isinstance(item, _CONTAINERS):
            container = cast("dict[Any, Any] | list[Any]", item)
            weight += 2 * len(container) + 2
            if weight <= LARGE:
                waiting += container
                waiting += container.values() if isinstance(container, dict) else ()
        else:
            weight += 4
    return weight


def _pieces(value: JsonValue, encoder: json.JSONEncoder, depth: int = 0) -> Iterator[bytes]:
    if isinstance(value, str) and len(value) > LARGE:
        yield b'"'
        for at in range(0, len(value), LARGE):
            yield encoder.encode(value[at : at + LARGE])[1:-1].encode()
        yield b'"'
    elif not isinstance(value, _CONTAINERS) or depth == _DEPTH or not is_large(value):
        yield encoder.encode(value).encode()
    elif isinstance(value, dict):
        members = cast("dict[Any, Any]", value).items()
        members = sorted(members) if encoder.sort_keys else members
        yield from _joined(b"{", (_members(batch, encoder, depth + 1) for batch in _batches(members)), b"}")
    else:
        elements = cast("list[Any]", value)
        yield from _joined(b"[", (_elements(batch, encoder, depth + 1) for batch in _batches(elements)), b"]")


def _joined(opening: bytes, parts: Iterable[Iterator[bytes]], closing: bytes) -> Iterator[bytes]:
    yield opening
    comma = b""
    for part in parts:
        yield comma
        yield from part
        comma = b","
    yield closing


def _batches(items: Iterable[Any]) -> Iterator[list[Any]]:
    """The items in their order, as many at a time as are not large together; a large one is alone."""
    batch: list[Any] = []
    total = 0
    for item in items:
        weight = rough_size(item)
        if batch and total + weight > LARGE:
            yield batch
            batch, total = [], 0
        batch.append(item)
        total += weight
    yield batch


def _elements(batch: list[Any], encoder: json.JSONEncoder, depth: int) -> Iterator[bytes]:
    if len(batch) == 1:
        yield from _pieces(batch[0], encoder, depth)
    else:
        yield encoder.encode(batch)[1:-1].encode()


def _members(batch: list[tuple[Any, Any]], encoder: json.JSONEncoder, depth: int) -> Iterator[bytes]:
    if len(batch) == 1:
        ((key, value),) = batch
        yield encoder.encode({key: 0})[1:-2].encode()
        yield from _pieces(value, encoder, depth)
    else:
        yield encoder.encode(dict(batch))[1:-1].encode()


_SPACE = re.compile(r"[ \t\n\r]*")
# What a string consists of, never ending within an escape.
_STRING = re.compile(r'[^"\\]*(?:\\(?:u[0-9a-fA-F]{4}|[^u])[^"\\]*)*')

_OTHER_HALF = re.compile(r"\\u[dD][c-fC-F][0-9a-fA-F]{2}")


def _skip(text: str, at: int) -> int:
    space = _SPACE.match(text, at)
    return at if space is None else space.end()


def _value(text: str, start: int, depth: int = 0) -> tuple[Any, int]:
    """The value that begins at `start`, and where it ends."""
    window = text[start : start + LARGE]
    try:
        value, size = _decoder.raw_decode(window)
    except ValueError:
        if len(window) < LARGE:
            raise
    else:
        # A number at the end of the window may go on behind it, or with an exponent; nothing else can.
        if window[0] in '{["' or size < LARGE - 2 or len(window) < LARGE:
            return value, start + size
    if window[0] == '"':
        return _string(text, start)
    if window[0] not in "{[" or depth == _DEPTH:
        return _decoder.raw_decode(text, start)
    return _container(text, start, depth + 1, keyed=window[0] == "{")


def _container(text: str, start: int, depth: int, *, keyed: bool) -> tuple[Any, int]:
    """A large object or array, element by element. Those that lie in one window are taken from it."""
    element: Any = None
    items: list[Any] = []
    members: dict[str, Any] = {}
    take, closing = (_member, "}") if keyed else (_decoder.raw_decode, "]")
    base, at = _skip(text, start + 1), 0
    window = text[base : base + LARGE]
    while True:
        try:
            element, end = take(window, at)
            after = _skip(window, end)
            mark = window[after : after + 1]
        except (ValueError, IndexError):
            mark, after = "", 0
        if mark not in (",", closing):
            # It does not end in this window: take it by itself, and a new window behind it.
            element, end = (_large_member if keyed else _value)(text, _skip(text, base + at), depth)
            base, after = _skip(text, end), 0
            window = text[base : base + LARGE]
            mark = window[:1]
        if keyed:
            members[element[0]] = element[1]
        else:
            items.append(element)
        if mark == closing:
            return members if keyed else items, base + after + 1
        if mark != ",":
            raise ValueError("an element is followed by neither a comma nor the end")
        at = _skip(window, after + 1)


def _member(window: str, at: int) -> tuple[tuple[str, Any], int]:
    key, end = _decoder.raw_decode(window, at)
    value, end = _decoder.raw_decode(window, _after_colon(window, key, end))
    return (key, value), end


def _large_member(text: str, at: int, depth: int) -> tuple[tuple[str, Any], int]:
    key, end = _value(text, at)
    value, end = _value(text, _after_colon(text, key, end), depth)
    return (key, value), end


def _after_colon(text: str, key: object, end: int) -> int:
    colon = _skip(text, end)
    if not isinstance(key, str) or text[colon] != ":":
        raise ValueError("a member of an object is not a name with a value")
    return _skip(text, colon + 1)


def _string(text: str, start: int) -> tuple[str, int]:
    """A large string, part by part."""
    parts: list[str] = []
    at = start + 1
    while text[at] != '"':
        found = _STRING.match(text, at, at + LARGE)
        end = at if found is None else found.end()
        if end == at:
            raise ValueError("an invalid escape, or a string without an end")
        part: str = _decoder.raw_decode(f'"{text[at:end]}"')[0]
        if "\ud800" <= part[-1:] <= "\udbff" and (other := _OTHER_HALF.match(text, end)):
            # A character that was written as two escapes. Only one is looked for: first halves may follow without end.
            end = other.end()
            part = _decoder.raw_decode(f'"{text[at:end]}"')[0]
        parts.append(part)
        at = end
    return "".join(parts), at + 1
