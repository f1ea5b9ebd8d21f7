"""Messages that nobody should send: a good one, and something done to it at a place that chance picks.

A message is written as text by hand, because much of what a peer can write no value of Python's stands for: a name
twice in an object, NaN, half a character, ten thousand brackets.
"""

import json
import random
from collections.abc import Iterator, Mapping, Sequence
from copy import deepcopy
from dataclasses import dataclass
from typing import Any, Final, cast


@dataclass(frozen=True)
class Raw:
    """JSON, or what poses as JSON, that is written as it is."""

    text: str


NASTY: Final[Sequence[str]] = (
    *[
        "null",
        "true",
        "false",
        "0",
        "-0",
        "1",
        "-1",
        "1.0",
        "-0.0",
        "1e0",
        "0.5",
        "-5e-324",
        "1e308",
        "1e999",
        "-1e999",
    ],
    *("NaN", "Infinity", "-Infinity", str(2**31), str(2**53), str(2**63), str(-(2**63)), str(2**64), "9" * 400),
    *("9" * 4_299, "9" * 4_301, "1" + "0" * 5_000, "0." + "1" * 500, "1E400", "01", "+1", "0x10", "1_000", ".5", "5."),
    *('""', '" "', '"0"', '"null"', '"\\u0000"', '"\\ud800"', '"\\udfff\\ud800"', '"\\ud83d\\ude00"', '"\\u2028"'),
    *('"' + "x" * 300 + '"', '"' + "x" * 5_000 + '"', '"' + "é" * 70_000 + '"', '"' + "x" * 2**20 + '"'),
    *('"../../etc/passwd"', '"%s%n{0}"', '"\\u001b[2J"', '"\\r\\nX: y"', '"\' OR 1=1 --"', '"2026-07-28T00:00:00Z"'),
    *("[]", "[[]]", "[1]", '["x"]', "[null]", "[" + ",".join(["1"] * 10_000) + "]", "[" * 60 + "]" * 60),
    *("[" * 100 + "]" * 100, "[" * 300 + "]" * 300, "[" * 20_000 + "]" * 20_000, "[" * 500),
    '{"a":' * 100 + "1" + "}" * 100,
    *("{}", '{"a":1}', '{"":null}', '{"a":1,"a":2}', '{"\\ud800":1}', '{"__proto__":{}}', '{"_meta":null}'),
    *('{"' + "k" * 10_000 + '":1}', "{" + ",".join(f'"k{n}":{n}' for n in range(3_000)) + "}"),
    *('{"action":"accept","content":{"name":"a"}}', '{"action":"accept","content":null}', '{"roots":[{"uri":"x"}]}'),
    *('{"ttl":-1}', '{"ttl":true}', '{"ttl":1e999}', '{"ttl":"1"}', '{"ttl":NaN}', '{"ttl":' + "9" * 400 + "}"),
    *("undefined", "'x'", "", "//", "\x00", "\ufeff1", '"unended', '"\\x"', '"\t"', "[1,]", "{,}", '{"a"}', "nul"),
)
"""What goes in the place of a value."""

NAMES: Final[Sequence[str]] = (
    *[
        "taskId",
        "task",
        "ttl",
        "name",
        "arguments",
        "inputResponses",
        "requestState",
        "cursor",
        "_meta",
        "notifications",
    ],
    *("taskIds", "progressToken", "id", "method", "params", "jsonrpc", "result", "error", "x", "", "task_id", "\ud800"),
    *("io.modelcontextprotocol/related-task", "io.modelcontextprotocol/protocolVersion", "mcp-tasks/idempotencyKey"),
)


def written(value: Any) -> str:
    if isinstance(value, Raw):
        return value.text
    if isinstance(value, Mapping):
        pairs = cast("Mapping[str, Any]", value).items()
        return "{" + ",".join(f"{json.dumps(str(name))}:{written(part)}" for name, part in pairs) + "}"
    if isinstance(value, list):
        return "[" + ",".join(map(written, cast("list[Any]", value))) + "]"
    return json.dumps(value)


class _Twice(str):
    """A name that is in its object already, and is written once more."""

    __slots__ = ()
    __hash__ = str.__hash__

    def __eq__(self, other: object) -> bool:
        return self is other


def spoilt(chance: random.Random, message: Mapping[str, Any]) -> bytes:
    """The message with one to three things done to it, as bytes."""
    whole: list[Any] = [deepcopy(message)]
    for _ in range(chance.choice((1, 1, 1, 2, 3))):
        if places := list(_places(whole)):
            _spoil(*chance.choice(places), chance)
    data = "".join(map(written, whole)).encode(errors="surrogatepass")
    return _bytes_spoilt(chance, data) if chance.random() < 0.08 else data


def _bytes_spoilt(chance: random.Random, data: bytes) -> bytes:
    at = chance.randrange(len(data) + 1)
    return chance.choice(
        (
            lambda: data[:at],
            lambda: data[at:],
            lambda: data[:at] + bytes([chance.randrange(256)]) + data[at + 1 :],
            lambda: data[:at] + data,
            lambda: b"[" + data + b"," + data + b"]",
            lambda: data.decode(errors="replace").encode("utf-16"),
            lambda: bytes(chance.randrange(256) for _ in range(chance.randrange(200))),
        )
    )()


Holder = Any


def _places(holder: Holder) -> Iterator[tuple[Holder, Any]]:
    """Every member of a value and of those within it: what holds it, and its name or number there."""
    names: Sequence[Any] = list(cast("dict[str, Any]", holder)) if isinstance(holder, dict) else range(len(holder))
    for place in names:
        yield holder, place
        if isinstance(holder[place], dict | list):
            yield from _places(holder[place])


def _spoil(holder: Holder, place: Any, chance: random.Random) -> None:
    value, nasty = holder[place], Raw(chance.choice(NASTY))
    match chance.choice(("replace", "replace", "replace", "add", "add", "double", "wrap", "leave out")):
        case "add" if isinstance(value, dict):
            value[chance.choice(NAMES)] = nasty
        case "add":
            holder[place] = [*cast("list[Any]", value), nasty] if isinstance(value, list) else [value]
        case "double" if isinstance(value, dict) and value:
            value[_Twice(chance.choice(list(cast("dict[str, Any]", value))))] = nasty
        case "double":
            holder[place] = [value, value]
        case "wrap":
            kept: Any = holder[place]
            holder[place] = chance.choice(({"x": kept}, [kept], [[kept]], Raw(json.dumps(written(kept)))))
        case "leave out":
            del holder[place]
        case _:
            holder[place] = nasty
