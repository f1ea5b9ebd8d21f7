"""JSON: types, encoding and decoding in pieces, sizes, and text that every parser reads."""

from __future__ import annotations

import codecs
import json
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, Final, TypeAlias, cast

from mcp_tasks.errors import LimitExceeded, ValueNotStorable

JsonValue: TypeAlias = Any
"""Any value `json.dumps` takes. Spelled `Any` because a recursive alias does not help at a call site."""

JsonObject: TypeAlias = Mapping[str, JsonValue]
"""A JSON object. A `Mapping`, because records are values."""


def object_in(holder: object, *keys: str) -> JsonObject | None:
    """The object at the end of a path of keys, if there is one, in untrusted data."""
    node = holder
    for key in keys:
        node = cast("JsonObject", node).get(key) if isinstance(node, Mapping) else None
    return cast("JsonObject", node) if isinstance(node, Mapping) else None


def list_in(holder: JsonObject, key: str) -> list[JsonValue]:
    """The list under a key; an empty one if there is none."""
    value = holder.get(key)
    return cast("list[JsonValue]", value) if isinstance(value, list) else []


# ---- json bytes
# JSON as bytes, as it is stored and sent: compact, and valid UTF-8.


LARGE = 64 * 1024
"""Bytes, roughly, that are encoded or decoded in about the time that the hop to a thread and back takes."""

_DEPTH = 30
"""How deep pieces are looked for. A value that is large and so far down is encoded or decoded at once."""

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
    """The value behind the bytes."""
    return json.loads(data)


def is_large(value: JsonValue) -> bool:
    """Whether the JSON of the value is large enough to be made in a thread. Takes no longer for a larger value."""
    return rough_size(value) > LARGE


def encode_in_pieces(value: JsonValue, *, strict: bool = False) -> bytes:
    """The same as `encode_json`, with turns for other threads."""
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
    """The same as `decode_json`, with turns for other threads."""
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


# ---- measure
# Bytes and depth of a JSON value, without encoding it where that can be avoided.


_PER_CHARACTER: Final = 6
"""Bytes that JSON has for a character at most: an escape."""

_MEASURE_CONTAINERS: Final = (dict, list, tuple)
_KINDS: Final[frozenset[type]] = frozenset(_MEASURE_CONTAINERS)
_FEW: Final = 16

_PER_VALUE: Final = 26
"""Bytes of the longest number that is no whole number, with the characters around it."""


def is_deeper(value: JsonValue, most: int) -> bool:
    """Whether the value is nested deeper than so many objects and arrays. Level by level: no nesting is too deep for
    this."""
    level: list[Any] = [value] if isinstance(value, _MEASURE_CONTAINERS) else []
    for _ in range(most):
        if not level:
            return False
        within: list[Any] = []
        for container in level:
            items = _items(container)
            # Most of what is long is long lists of text and numbers, which are seen through in a fifth of the time.
            if len(container) < _FEW or not _KINDS.isdisjoint(map(type, items)):
                within += [item for item in items if isinstance(item, _MEASURE_CONTAINERS)]
        level = within
    return bool(level)


def count_values(value: JsonValue, most: int) -> int:
    """How many values there are in the value, itself included; counted no further than to `most` and one more."""
    count = 1
    waiting: list[Any] = [value]
    while waiting and count <= most:
        item = waiting.pop()
        if isinstance(item, _MEASURE_CONTAINERS):
            container = cast("dict[Any, Any] | list[Any]", item)
            count += len(container)
            if count <= most:
                waiting.extend(_items(container))
    return min(count, most + 1)


def check_json(
    limit: str,
    what: str,
    value: JsonValue,
    *,
    most: int | None,
    depth: int,
    around: int = 0,
    written: Callable[[JsonValue], bytes] = encode_json,
) -> None:
    """Check that a value of a caller is neither too large nor nested too deeply.

    Args:
        limit: Which limit its size is subject to: an attribute of `Limits`.
        what: What it is, as the start of a sentence.
        most: Bytes of JSON that it may have; None for any number.
        depth: Levels of objects and arrays that it may have.
        around: Levels that are not the caller's own.
        written: Writes the value, to see how long that is.
    """
    try:
        data = b"" if _is_within(value, LARGE if most is None else min(most, LARGE)) else written(value)
    except ValueNotStorable:
        # Nested too deeply even for that, or no JSON at all: the store has its own error for it.
        data = b""
    if most is not None and len(data) > most:
        raise LimitExceeded(limit, f"{what} may be {most:,} bytes of JSON at most, not {len(data):,}")
    # Most of a large value is text and numbers: with fewer brackets than levels, it cannot be too deep.
    has_few = data and data.count(b"[") + data.count(b"{") <= depth
    if not has_few and is_deeper(value, depth + around):
        raise LimitExceeded("json_depth", f"{what} may be nested {depth} levels deep at most")


def _is_within(value: JsonValue, most: int) -> bool:
    room = most
    waiting: list[Any] = [value]
    while waiting and room >= 0:
        item = waiting.pop()
        kind = cast("Any", type(item))
        if kind is str:
            room -= _PER_CHARACTER * len(item) + 3
        elif kind is dict:
            room -= 2 + len(item)
            waiting += item
            waiting += item.values()
        elif kind is list or kind is tuple:
            room -= 2
            waiting += item
        elif kind is int:
            # A digit is more than three bits.
            room -= item.bit_length() // 3 + 3
        elif item is None or kind is bool or kind is float:
            room -= _PER_VALUE
        else:
            return False
    return room >= 0


def _items(container: Any) -> Iterable[Any]:
    return cast("dict[Any, Any]", container).values() if isinstance(container, dict) else container


# ---- text

_SURROGATE = re.compile("[\ud800-\udfff]")
_UNREADABLE = "\ufffd"

LONGEST_MESSAGE = 4 * 1024
"""Bytes of a message that a record keeps, by default: it is read with every look at the task."""

LONGEST_LEGIBLE = 100
"""Characters of a name in labels of metrics and spans, by default."""

_ELLIPSIS = "…"


def is_valid_text(text: str) -> bool:
    """Whether the text is valid Unicode."""
    return text.isascii() or _SURROGATE.search(text) is None


def valid_text(text: str) -> str:
    """The text with U+FFFD for each lone surrogate; the same object if there is none."""
    return text if is_valid_text(text) else _SURROGATE.sub(_UNREADABLE, text)


def short_message(text: str, most: int | None = LONGEST_MESSAGE) -> str:
    """The text as a record keeps it: one of more than `most` bytes is cut, and ends with an ellipsis."""
    # A character has four bytes at most: what is short enough by far is not encoded.
    if most is None or len(text) * 4 <= most:
        return text
    # Half a character (a lone surrogate) is replaced elsewhere, by one of as many bytes.
    data = text.encode(errors="surrogatepass")
    if len(data) <= most:
        return text
    room = most - len(_ELLIPSIS.encode())
    return data[:room].decode(errors="ignore") + _ELLIPSIS if room > 0 else _ELLIPSIS[:most]


def legible(text: str, most: int = LONGEST_LEGIBLE) -> str:
    """The text as a log, a label or a span shows it: on one line, of so many characters at most, with an escape like
    `\\n` or `\\x1b` for each character that cannot be printed."""
    if len(text) <= most and text.isprintable():
        return text
    shown = "".join(char if char.isprintable() else _escape(char) for char in text[:most])
    return shown if len(text) <= most and len(shown) <= most else shown[: most - 1] + _ELLIPSIS


def _escape(char: str) -> str:
    return char.encode("unicode_escape").decode("ascii")


def valid_json(value: Any) -> Any:
    """The JSON value with `valid_text` throughout, keys included. Other values stay as they are."""
    if isinstance(value, str):
        return valid_text(value)
    if isinstance(value, Mapping):
        return {valid_json(key): valid_json(item) for key, item in cast("Mapping[Any, Any]", value).items()}
    if isinstance(value, list | tuple):
        return [valid_json(item) for item in cast("list[Any]", value)]
    return value
