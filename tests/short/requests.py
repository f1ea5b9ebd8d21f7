"""Requests of every kind: a good one, and what may be wrong with it.

Most of them are good in most ways. What is wrong in every way is refused at the first look, and shows nothing of the
looks behind it.
"""

from __future__ import annotations

import base64
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from hypothesis import strategies as st

from mcp_tasks.wire import EXTENSION_ID
from tests.short.raw import Sent
from tests.short.standing import STAND_IN, STATES, for_side

VERSION: Final = "2026-07-28"
VERSION_KEY: Final = "io.modelcontextprotocol/protocolVersion"
INFO_KEY: Final = "io.modelcontextprotocol/clientInfo"
CAPABILITIES_KEY: Final = "io.modelcontextprotocol/clientCapabilities"
WITH_TASKS: Final[Mapping[str, Any]] = {"extensions": {EXTENSION_ID: {}}}

TOOLS: Final = (
    "marked repeatable required limited kept größe typed routed plain forbidden graceful joined resolving talking nobody"
).split()


class Draft:
    """A request that is being made worse.

    Attributes:
        name: What the name header says; None for no such header.
        encoded: Whether the name is written in the way for what no header carries as it is.
        edits: What is done to the bytes of the body in the end.
    """

    def __init__(self, method: str, params: Mapping[str, Any], name: str | None) -> None:
        self.verb = "POST"
        self.headers: list[tuple[bytes, bytes]] = [
            (b"host", b"farm:80"),
            (b"content-type", b"application/json"),
            (b"accept", b"application/json, text/event-stream"),
            (b"mcp-protocol-version", VERSION.encode()),
            (b"mcp-method", method.encode()),
        ]
        self.name = name
        self.encoded = False
        self.meta: Any = {
            VERSION_KEY: VERSION,
            INFO_KEY: {"name": "fuzz", "version": "1"},
            CAPABILITIES_KEY: dict(WITH_TASKS),
        }
        self.params: dict[str, Any] = dict(params)
        self.message: dict[str, Any] = {"jsonrpc": "2.0", "id": 1, "method": method, "params": self.params}
        self.edits: list[Callable[[bytes], bytes]] = []
        self.cuts: Sequence[int] = ()
        self.is_cut_off = False
        self.length: bytes | None = None

    def sent(self, side: str, number: int) -> Sent:
        """The request as it goes one way."""
        if self.meta is not _ABSENT:
            self.params["_meta"] = self.meta
        body = for_side(json.dumps(self.message).encode(), side, number)
        for edit in self.edits:
            body = edit(body)
        headers = [(name, for_side(value, side, number)) for name, value in self.headers]
        if self.name is not None:
            name = for_side(self.name.encode(errors="surrogatepass"), side, number)
            headers.append((b"mcp-name", _encoded(name) if self.encoded else _latin(name)))
        headers.append((b"content-length", str(len(body)).encode() if self.length is None else self.length))
        return Sent(headers=headers, body=body, verb=self.verb, cuts=self.cuts, is_cut_off=self.is_cut_off)


_ABSENT: Final = object()


def _encoded(name: bytes) -> bytes:
    return b"=?base64?" + base64.b64encode(name) + b"?="


def _latin(name: bytes) -> bytes:
    return name.decode(errors="replace").encode("latin-1", errors="replace")


@dataclass(frozen=True)
class Flaw:
    """Something done to a request that was good before."""

    what: str
    to: Any = None

    def do(self, draft: Draft) -> None:
        """Do it."""
        _FLAWS[self.what](draft, self.to)


@dataclass(frozen=True)
class Step:
    """One request, and how long after the one before it comes.

    Attributes:
        token: Who asks, on servers that want to know.
    """

    method: str
    params: Mapping[str, Any]
    name: str | None
    flaws: Sequence[Flaw] = ()
    token: str | None = "alice"
    wait_ms: int = 0

    def draft(self, *, auth: bool) -> Draft:
        """The request, ready to be sent either way."""
        draft = Draft(self.method, self.params, self.name)
        if auth and self.token is not None:
            draft.headers.append((b"authorization", f"Bearer {self.token}".encode()))
        for flaw in self.flaws:
            flaw.do(draft)
        return draft


# Values

_ODD: Final[tuple[Any, ...]] = (
    None, True, False, 0, 1, -1, 1.0, 0.5, 2**31, 2**53, -(2**53), 2**53 - 1, 2**63, 2**64, 10**30, 1e300, "", "1", " ",
    "é", "\u2028", "\U0001f600", "\x00", "\x7f", "null", "a" * 300, [], [1], ["x"], {}, {"a": 1}, {"": None},
    {"io.modelcontextprotocol/x": 1}, [[[]]], {"a": {"b": [1.5, None, True]}},
)  # fmt: skip
ODD = st.sampled_from(_ODD)
JSON = st.recursive(ODD, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=4), inner, max_size=3), max_leaves=6)
IDS = st.sampled_from([f"{STAND_IN}{state}" for state in STATES])
ANSWERS = st.sampled_from([
    {},
    {"who": {"action": "accept", "content": {"name": "Ada"}}},
    {"who": {"action": "decline"}},
    {"who": {"action": "accept", "content": {"name": 7}}},
    {"where": {"roots": []}},
    {"where": {"roots": [{"uri": "file:///a", "name": None}]}},
    {"who": {"action": "cancel"}, "where": {"roots": []}},
    {"unknown": 1},
    {"who": {"action": "accept", "content": {"name": "\U0001f600", "more": [1.0, None]}}, "unknown": {}},
    {"who": None},
    {"who": {"method": "elicitation/create", "result": {"action": "cancel"}}},
])  # fmt: skip
ARGUMENTS = st.one_of(
    st.just({}),
    st.fixed_dictionaries({}, optional={"value": JSON, "number": st.sampled_from([1, "7", 1.0, True, None, 2**70])}),
    st.fixed_dictionaries({"count": st.sampled_from([1, "7", 1.0, 1.5, None, True])}, optional={"scene": ODD, "x": ODD}),
    st.just({"region": "us"}),
    JSON,
)


# Good requests

_GETS = st.builds(lambda task: ("tasks/get", {"taskId": task}, task), IDS)
_CANCELS = st.builds(lambda task: ("tasks/cancel", {"taskId": task}, task), IDS)
_UPDATES = st.builds(lambda task, told: ("tasks/update", {"taskId": task, "inputResponses": told}, task), IDS, ANSWERS)
_CALLS = st.builds(
    lambda tool, arguments: ("tools/call", {"name": tool, "arguments": arguments}, tool),
    st.sampled_from([*TOOLS[:8], *TOOLS]),
    ARGUMENTS,
)
_PLAIN_CALLS = st.sampled_from(
    [("tools/call", {"name": tool}, tool) for tool in TOOLS]
    + [("tools/call", {"name": tool, "arguments": {"value": 1}}, tool) for tool in TOOLS]
)
_LISTENS = st.builds(
    lambda tasks, more: ("subscriptions/listen", {"notifications": {"taskIds": tasks, **more}}, None),
    st.lists(IDS, max_size=4),
    st.sampled_from([{}, {}, {}, {"toolsListChanged": True}, {"toolsListChanged": False}, {"resourceSubscriptions": []}]),
)
_OTHERS = st.sampled_from(
    [("tools/list", {}, None), ("server/discover", {}, None), ("ping", {}, None), ("tasks/list", {}, None)]
    + [("tasks/result", {"taskId": "x"}, "x"), ("TASKS/GET", {"taskId": "x"}, "x"), ("initialize", {}, None)]
)
_REQUESTS = st.one_of(_GETS, _GETS, _CANCELS, _UPDATES, _CALLS, _CALLS, _PLAIN_CALLS)

# What is done to them

_NAMES = st.sampled_from(
    [b"host", b"content-type", b"accept", b"mcp-protocol-version", b"mcp-method", b"mcp-name", b"content-length",
     b"origin", b"authorization", b"mcp-session-id", b"transfer-encoding", b"mcp-param-region", b"mcp-param-x", b"x-y",
     b"traceparent", b"last-event-id", b"content-encoding", b"connection"]
)  # fmt: skip
_VALUES: Final[Mapping[bytes, Sequence[bytes]]] = {
    b"host": [b"farm", b"farm:", b"farm:8080", b"127.0.0.1", b"evil", b""],
    b"origin": [b"http://farm", b"http://farm:1", b"http://evil", b"null", b""],
    b"content-type": [b"application/json; charset=utf-8", b"application/jsonx", b"APPLICATION/JSON", b"text/plain", b""],
    b"accept": [b"*/*", b"application/json", b"text/event-stream", b"application/*", b"text/event-stream;q=0", b"",
                b"application/json;q=0.5,text/event-stream", b"text/*, application/json", b"application/json,*/*"],
    b"mcp-protocol-version": [b"2025-11-25", b"2025-06-18", b"2024-11-05", b"2027-01-01", b"", b" 2026-07-28", b"\xff"],
    b"mcp-method": [b"tasks/get", b"tasks/cancel", b"tools/call", b"Tasks/Get", b"tools/list", b"", b"\xff"],
    b"mcp-name": [b"marked", b"x", b"", b"gr\xf6\xdfe", b"=?base64?bWFya2Vk?=", b"=?base64?!?=", b"=?base64?", b"\xff"],
    b"content-length": [b"0", b"1", b"-1", b"99999999", b"4194305", b"abc", b"", b"+3", b"1_0", b"\xb2"],
    b"authorization": [b"Bearer bob", b"Bearer nobody", b"bearer alice", b"Basic x", b"", b"Bearer"],
    b"mcp-session-id": [b"x", b""],
    b"transfer-encoding": [b"chunked", b"identity", b""],
    b"mcp-param-region": [b"us", b"eu", b"", b"=?base64?dXM=?="],
    b"mcp-param-x": [b"1"],
    b"traceparent": [b"00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01", b"x"],
    b"last-event-id": [b"1"],
    b"content-encoding": [b"gzip", b"identity"],
    b"connection": [b"close"],
    b"x-y": [b"z"],
}  # fmt: skip
_META_KEYS = st.sampled_from(
    [VERSION_KEY, INFO_KEY, CAPABILITIES_KEY, "progressToken", "traceparent", "tracestate", "baggage", "x", "", "a/b",
     "io.modelcontextprotocol/logLevel", "io.modelcontextprotocol/related-task", "io.modelcontextprotocol/x",
     "io.modelcontextprotocol/serverInfo", EXTENSION_ID, "mcp-tasks/x"]
)  # fmt: skip
_CAPABILITIES = st.sampled_from(
    [{}, {"extensions": {}}, {"extensions": {EXTENSION_ID: {"x": 1}}}, {"extensions": {EXTENSION_ID: None}},
     {"extensions": {EXTENSION_ID: []}}, {"extensions": None}, {"extensions": []}, None, [], "x", 1,
     {**WITH_TASKS, "elicitation": {}}, {**WITH_TASKS, "elicitation": None}, {**WITH_TASKS, "elicitation": 1},
     {**WITH_TASKS, "sampling": {"tools": {}}, "roots": {"listChanged": 1}}, {**WITH_TASKS, "x": [1.0]},
     {**WITH_TASKS, "tasks": {}}, {**WITH_TASKS, "experimental": {"a": {}}}, {**WITH_TASKS, "experimental": 1}]
)  # fmt: skip
_INFOS = st.sampled_from(
    [None, {}, {"name": "x"}, {"name": "x", "version": "1", "more": [1.0]}, {"name": 1, "version": "1"}, "x", [],
     {"name": "x", "version": "1", "icons": [{"src": "y"}]}, {"name": "x", "version": "1", "websiteUrl": None},
     {"name": "é\u2028", "version": ""}]
)  # fmt: skip
_PARAM_KEYS = st.sampled_from(
    ["taskId", "inputResponses", "name", "arguments", "task", "requestState", "notifications", "x", "", "cursor", "uri",
     "task_id", "input_responses", "request_state"]
)  # fmt: skip
_HEADERS = _NAMES.flatmap(lambda name: st.tuples(st.just(name), st.sampled_from(_VALUES[name])))
_RAW_EDITS: Final[Mapping[str, Callable[[bytes], bytes]]] = {
    "nothing": lambda body: b"",
    "bom": lambda body: b"\xef\xbb\xbf" + body,
    "utf-16": lambda body: body.decode().encode("utf-16"),
    "utf-16-le": lambda body: body.decode().encode("utf-16-le"),
    "utf-32-be": lambda body: body.decode().encode("utf-32-be"),
    "space around": lambda body: b" \t\r\n" + body + b"\n\n",
    "other space": lambda body: b"\x0b" + body,
    "garbage after": lambda body: body + b"x",
    "null after": lambda body: body + b"\x00",
    "twice": lambda body: body + body,
    "batch": lambda body: b"[" + body + b"]",
    "cut": lambda body: body[:-1],
    "halved": lambda body: body[: len(body) // 2],
    "bad utf-8": lambda body: body.replace(b"2.0", b"2.0\xff", 1),
    "overlong": lambda body: body.replace(b'"id"', b'"i\xc1\xa4"', 1),
    "latin-1": lambda body: body.replace(b"fuzz", b"f\xfczz"),
    "raw surrogate": lambda body: body.replace(b"fuzz", b"\xed\xa0\x80"),
    "surrogate": lambda body: body.replace(b"fuzz", b"\\ud800"),
    "surrogate pair": lambda body: body.replace(b"fuzz", b"\\ud83d\\ude00"),
    "swapped pair": lambda body: body.replace(b"fuzz", b"\\ude00\\ud83d"),
    "surrogate in params": lambda body: body.replace(b'"params": {', b'"params": {"x": "\\udfff", '),
    "surrogate key": lambda body: body.replace(b'"params": {', b'"params": {"\\udfff": 1, '),
    "escaped null": lambda body: body.replace(b"fuzz", b"\\u0000"),
    "escaped slash": lambda body: body.replace(b"/", b"\\/"),
    "escaped method": lambda body: body.replace(b'"method"', b'"m\\u0065thod"', 1),
    "raw control": lambda body: body.replace(b"fuzz", b"f\tzz"),
    "bad escape": lambda body: body.replace(b"fuzz", b"f\\xzz"),
    "nan": lambda body: body.replace(b'"fuzz"', b"NaN"),
    "nan argument": lambda body: body.replace(b'"arguments": {', b'"arguments": {"value": NaN, '),
    "inf argument": lambda body: body.replace(b'"arguments": {', b'"arguments": {"value": -Infinity, '),
    "overflow argument": lambda body: body.replace(b'"arguments": {', b'"arguments": {"value": 1e400, '),
    "minus zero argument": lambda body: body.replace(b'"arguments": {', b'"arguments": {"value": [-0, -0.0, 0e0, 1E2], '),
    "digits argument": lambda body: body.replace(b'"arguments": {', b'"arguments": {"value": 0.1000000000000000055511151231257827, '),
    "big argument": lambda body: body.replace(b'"arguments": {', b'"arguments": {"value": ' + b"9" * 400 + b", "),
    "bigger argument": lambda body: body.replace(b'"arguments": {', b'"arguments": {"value": ' + b"9" * 5_000 + b", "),
    "surrogate argument": lambda body: body.replace(b'"arguments": {', b'"arguments": {"value": "\\ud800", '),
    "argument twice": lambda body: body.replace(b'"arguments": {', b'"arguments": {"value": 1, "value": 2.0, "number": 3, '),
    "arguments twice": lambda body: body.replace(b'"arguments": ', b'"arguments": {"value": 1}, "arguments": ', 1),
    "nan meta": lambda body: body.replace(b'"_meta": {', b'"_meta": {"x": NaN, '),
    "big meta": lambda body: body.replace(b'"_meta": {', b'"_meta": {"x": ' + b"9" * 5_000 + b", "),
    "meta twice": lambda body: body.replace(b'"_meta": {', b'"_meta": {}, "_meta": {', 1),
    "token twice": lambda body: body.replace(b'"_meta": {', b'"_meta": {"progressToken": 1, "progressToken": 1.5, '),
    "method twice": lambda body: body.replace(b'"method"', b'"method": "tools/list", "method"', 1),
    "id twice": lambda body: body.replace(b'"id"', b'"id": [], "id"', 1),
    "id last": lambda body: body[:-1] + b', "id": "other"}',
    "big id": lambda body: body.replace(b'"id": 1', b'"id": ' + b"9" * 40, 1),
    "float id": lambda body: body.replace(b'"id": 1', b'"id": 1e0', 1),
    "minus zero id": lambda body: body.replace(b'"id": 1', b'"id": -0', 1),
    "zero before": lambda body: body.replace(b'"id": 1', b'"id": 01', 1),
    "comma after": lambda body: body[:-1] + b",}",
    "comment": lambda body: body.replace(b'"id"', b'/* */"id"', 1),
    "single quotes": lambda body: body.replace(b'"', b"'"),
    "deep": lambda body: body.replace(b'"params": {', b'"params": {"x": ' + b"[" * 150 + b"]" * 150 + b", "),
    "deeper": lambda body: body.replace(b'"params": {', b'"params": {"x": ' + b"[" * 260 + b"]" * 260 + b", "),
    "deepest": lambda body: body.replace(b'"params": {', b'"params": {"x": ' + b"[" * 5_000 + b"]" * 5_000 + b", "),
    "deep argument": lambda body: body.replace(b'"arguments": {', b'"arguments": {"value": ' + b"[" * 190 + b"]" * 190 + b", "),
    "3 KB": lambda body: body + b" " * 3_000,
    "20 KB": lambda body: body + b" " * 20_000,
    "256 KiB": lambda body: body + b" " * (262_144 - len(body)),
    "over 256 KiB": lambda body: body + b" " * (262_145 - len(body)),
    "large argument": lambda body: body.replace(b'"arguments": {', b'"arguments": {"value": "' + b"y" * 100_000 + b'", '),
    "large meta": lambda body: body.replace(b'"_meta": {', b'"_meta": {"x": "' + b"y" * 5_000 + b'", '),
}  # fmt: skip


def _set_header(draft: Draft, to: tuple[bytes, bytes]) -> None:
    name, value = to
    if name == b"mcp-name":
        draft.name = None
    if name == b"content-length":
        draft.length = value
        return
    draft.headers = [header for header in draft.headers if header[0] != name]
    draft.headers.append(to)


def _drop_header(draft: Draft, name: bytes) -> None:
    draft.headers = [header for header in draft.headers if header[0] != name]
    draft.name = None if name == b"mcp-name" else draft.name


def _repeat_header(draft: Draft, name: bytes) -> None:
    if name == b"mcp-name" and draft.name is not None:
        draft.headers.append((name, draft.name.encode()))
    draft.headers += [header for header in draft.headers if header[0] == name][:1]


def _shout_header(draft: Draft, name: bytes) -> None:
    draft.headers = [(key.upper() if key == name else key, value) for key, value in draft.headers]


def _set_meta(draft: Draft, to: tuple[str, Any]) -> None:
    if isinstance(draft.meta, dict):
        draft.meta[to[0]] = to[1]


def _drop_meta(draft: Draft, name: str) -> None:
    if isinstance(draft.meta, dict):
        draft.meta.pop(name, None)


_FLAWS: Final[Mapping[str, Callable[[Draft, Any], None]]] = {
    "set header": _set_header,
    "add header": lambda draft, to: draft.headers.insert(0, to),
    "add last header": lambda draft, to: draft.headers.append(to),
    "drop header": _drop_header,
    "repeat header": _repeat_header,
    "shout header": _shout_header,
    "encode name": lambda draft, _: setattr(draft, "encoded", True),
    "name": lambda draft, to: setattr(draft, "name", to),
    "version": lambda draft, to: (_set_header(draft, (b"mcp-protocol-version", to.encode())), _set_meta(draft, (VERSION_KEY, to)))[0],
    "verb": lambda draft, to: setattr(draft, "verb", to),
    "id": lambda draft, to: draft.message.update(id=to),
    "member": lambda draft, to: draft.message.update([to]),
    "drop member": lambda draft, name: draft.message.pop(name, None),
    "whole meta": lambda draft, to: setattr(draft, "meta", to),
    "no meta": lambda draft, _: setattr(draft, "meta", _ABSENT),
    "meta": _set_meta,
    "drop meta": _drop_meta,
    "param": lambda draft, to: draft.params.update([to]),
    "drop param": lambda draft, name: draft.params.pop(name, None),
    "body": lambda draft, name: draft.edits.append(_RAW_EDITS[name]),
    "pieces": lambda draft, cuts: setattr(draft, "cuts", cuts),
    "cut off": lambda draft, cuts: (setattr(draft, "cuts", cuts), setattr(draft, "is_cut_off", True))[0],
}


def _flaw(what: str, to: st.SearchStrategy[Any]) -> st.SearchStrategy[Flaw]:
    return st.builds(Flaw, st.just(what), to)


_CUTS = st.lists(st.integers(0, 2_000), min_size=1, max_size=4)
_HARMLESS = st.one_of(
    _flaw("encode name", st.none()),
    _flaw("pieces", _CUTS),
    _flaw("id", st.sampled_from(["x", "", 0, -5, 2**53 - 1, "\u2028é", "1"])),
    _flaw("meta", st.tuples(st.sampled_from(["progressToken", "x", "traceparent", "baggage", "a/b"]), st.sampled_from(["x", 1, ""]))),
    _flaw("meta", st.tuples(st.just(CAPABILITIES_KEY), _CAPABILITIES)),
    _flaw("meta", st.tuples(st.just(INFO_KEY), _INFOS)),
    _flaw("drop meta", st.just(INFO_KEY)),
    _flaw("body", st.sampled_from(["space around", "escaped slash", "escaped method", "surrogate pair", "3 KB", "256 KiB"])),
    _flaw("add header", st.sampled_from([(b"x-y", b"z"), (b"traceparent", b"x"), (b"origin", b"http://farm")])),
)
_HARMFUL = st.one_of(
    _flaw("set header", _HEADERS),
    _flaw("add header", _HEADERS),
    _flaw("add last header", _HEADERS),
    _flaw("drop header", _NAMES),
    _flaw("repeat header", _NAMES),
    _flaw("shout header", _NAMES),
    _flaw("name", st.one_of(IDS, st.sampled_from(TOOLS), st.text(max_size=5))),
    _flaw("version", st.sampled_from(["2025-11-25", "2027-01-01", ""])),
    _flaw("verb", st.sampled_from(["GET", "PUT", "DELETE", "post", "HEAD"])),
    _flaw("id", ODD),
    _flaw("member", st.tuples(st.sampled_from(["jsonrpc", "id", "method", "params", "x", "result", "error"]), JSON)),
    _flaw("drop member", st.sampled_from(["jsonrpc", "id", "method", "params"])),
    _flaw("whole meta", ODD),
    _flaw("no meta", st.none()),
    _flaw("meta", st.tuples(_META_KEYS, JSON)),
    _flaw("meta", st.tuples(_META_KEYS, ODD)),
    _flaw("drop meta", _META_KEYS),
    _flaw("param", st.tuples(_PARAM_KEYS, JSON)),
    _flaw("param", st.tuples(_PARAM_KEYS, ODD)),
    _flaw("param", st.tuples(st.just("taskId"), st.one_of(IDS, st.text(max_size=5), st.just("x" * 300)))),
    _flaw("param", st.tuples(st.sampled_from(["inputResponses", "requestState", "task"]), st.one_of(ANSWERS, ODD))),
    _flaw("drop param", _PARAM_KEYS),
    _flaw("body", st.sampled_from(sorted(_RAW_EDITS))),
    _flaw("body", st.sampled_from(sorted(_RAW_EDITS))),
    _flaw("cut off", _CUTS),
)

_FLAW_LISTS = st.one_of(
    st.just([]),
    st.lists(_HARMLESS, max_size=3),
    st.lists(_HARMFUL, min_size=1, max_size=1),
    st.lists(st.one_of(_HARMLESS, _HARMFUL), max_size=3),
)
_TOKENS = st.sampled_from(["alice", "alice", "alice", "bob", "robot", "nobody", "", None])
_WAITS = st.sampled_from([0, 0, 0, 1, 250, 1_000, 61_000, 3_600_000])


def _step(request: tuple[str, Mapping[str, Any], str | None], flaws: Sequence[Flaw], token: str | None, wait: int) -> Step:
    return Step(*request, flaws=flaws, token=token, wait_ms=wait)


STEPS: st.SearchStrategy[Step] = st.one_of(
    st.builds(_step, _REQUESTS, _FLAW_LISTS, _TOKENS, _WAITS),
    st.builds(_step, _REQUESTS, _FLAW_LISTS, st.just("alice"), _WAITS),
    st.builds(_step, st.one_of(_REQUESTS, _OTHERS), _FLAW_LISTS, _TOKENS, _WAITS),
)
"""Anything that is answered at once."""

LISTENING: st.SearchStrategy[Step] = st.builds(_step, _LISTENS, _FLAW_LISTS, _TOKENS, _WAITS)
"""Requests that are answered with streams. They take longer, because nobody can tell when all is said."""
