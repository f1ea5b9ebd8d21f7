"""Requests of every kind, drawn at random: a good one, and what may be wrong with it.

Most of them are good in most ways. What is wrong in every way is refused at the first look, and shows nothing of the
looks behind it.
"""

import base64
import json
import random
from collections.abc import Callable, Mapping, Sequence
from copy import deepcopy
from dataclasses import dataclass
from typing import Any, Final

from mcp_tasks.protocol.shapes import EXTENSION_ID
from tests.peers.nasty import spoilt
from tests.short.raw import Sent
from tests.short.servers import STAND_IN, STATES, for_side

VERSION: Final = "2026-07-28"
VERSION_KEY: Final = "io.modelcontextprotocol/protocolVersion"
INFO_KEY: Final = "io.modelcontextprotocol/clientInfo"
CAPABILITIES_KEY: Final = "io.modelcontextprotocol/clientCapabilities"
WITH_TASKS: Final[Mapping[str, Any]] = {"extensions": {EXTENSION_ID: {}}}


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
    what: str
    to: Any = None

    def do(self, draft: Draft) -> None:
        # A copy: what another flaw does to it is not done to what is drawn next.
        _FLAWS[self.what](draft, deepcopy(self.to))


@dataclass(frozen=True)
class Step:
    """One request, and how long after the one before it comes."""

    method: str
    params: Mapping[str, Any]
    name: str | None
    flaws: Sequence[Flaw] = ()
    token: str | None = "alice"
    wait_ms: int = 0

    def draft(self, *, auth: bool) -> Draft:
        draft = Draft(self.method, self.params, self.name)
        if auth and self.token is not None:
            draft.headers.append((b"authorization", f"Bearer {self.token}".encode()))
        for flaw in self.flaws:
            flaw.do(draft)
        return draft


# What is done to the bytes of a body


def _behind(opening: bytes) -> Callable[[bytes], Callable[[bytes], bytes]]:
    """What puts text into a body behind the opening of an object, as its first members."""
    return lambda text: lambda body: body.replace(opening, opening + text, 1)


_argument, _param, _in_meta = _behind(b'"arguments": {'), _behind(b'"params": {'), _behind(b'"_meta": {')

RAW_EDITS: Final[Mapping[str, Callable[[bytes], bytes]]] = {
    "nothing": lambda body: b"",
    "bom": lambda body: b"\xef\xbb\xbf" + body,
    "space around": lambda body: b" \t\r\n" + body + b"\n\n",
    "garbage after": lambda body: body + b"x",
    "batch": lambda body: b"[" + body + b"]",
    "halved": lambda body: body[: len(body) // 2],
    "bad utf-8": lambda body: body.replace(b"2.0", b"2.0\xff", 1),
    "surrogate pair": lambda body: body.replace(b"fuzz", b"\\ud83d\\ude00"),
    "escaped null": lambda body: body.replace(b"fuzz", b"\\u0000"),
    "escaped slash": lambda body: body.replace(b"/", b"\\/"),
    "escaped method": lambda body: body.replace(b'"method"', b'"m\\u0065thod"', 1),
    "raw control": lambda body: body.replace(b"fuzz", b"f\tzz"),
    "minus zero argument": _argument(b'"value": [-0, -0.0, 0e0, 1E2], '),
    "digits argument": _argument(b'"value": 0.1000000000000000055511151231257827, '),
    "3 KB": lambda body: body + b" " * 3_000,
    "256 KiB": lambda body: body + b" " * (262_144 - len(body)),
    "over 256 KiB": lambda body: body + b" " * (262_145 - len(body)),
    "large argument": _argument(b'"value": "' + b"y" * 100_000 + b'", '),
    "large meta": _in_meta(b'"x": "' + b"y" * 5_000 + b'", '),
}  # fmt: skip


# What is done to the rest


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
    "encode name": lambda draft, _: setattr(draft, "encoded", True),
    "name": lambda draft, to: setattr(draft, "name", to),
    "version": lambda draft, to: (
        _set_header(draft, (b"mcp-protocol-version", to.encode())),
        _set_meta(draft, (VERSION_KEY, to)),
    )[0],
    "verb": lambda draft, to: setattr(draft, "verb", to),
    "id": lambda draft, to: draft.message.update(id=to),
    "member": lambda draft, to: draft.message.update([to]),
    "drop member": lambda draft, name: draft.message.pop(name, None),
    "no meta": lambda draft, _: setattr(draft, "meta", _ABSENT),
    "meta": _set_meta,
    "drop meta": _drop_meta,
    "param": lambda draft, to: draft.params.update([to]),
    "drop param": lambda draft, name: draft.params.pop(name, None),
    "body": lambda draft, name: draft.edits.append(RAW_EDITS[name]),
    "spoil": lambda draft, seed: draft.edits.append(
        lambda body: spoilt(random.Random(seed), json.loads(body)) if body[:1] == b"{" else body
    ),
    "pieces": lambda draft, cuts: setattr(draft, "cuts", cuts),
    "cut off": lambda draft, cuts: (setattr(draft, "cuts", cuts), setattr(draft, "is_cut_off", True))[0],
}


# What may be wrong with a request

_MEMBERS: Final[Sequence[Any]] = (1, None, {})
_HEADERS: Final[Mapping[bytes, Sequence[bytes]]] = {
    b"host": [b"farm", b"farm:", b"farm:8080", b"127.0.0.1", b"evil", b""],
    b"origin": [b"http://farm", b"http://farm:1", b"http://evil", b"null", b""],
    b"content-type": [b"application/json; charset=utf-8", b"application/jsonx", b"APPLICATION/JSON", b"text/plain"],
    b"accept": [
        *(b"*/*", b"application/json", b"text/event-stream", b"application/*", b"text/event-stream;q=0", b""),
        *(b"application/json;q=0.5,text/event-stream", b"text/*, application/json", b"application/json,*/*"),
    ],
    b"mcp-protocol-version": [b"2025-11-25", b"2025-06-18", b"2027-01-01", b"", b" 2026-07-28", b"\xff"],
    b"mcp-method": [b"tasks/get", b"tasks/cancel", b"tools/call", b"Tasks/Get", b"tools/list", b"", b"\xff"],
    b"mcp-name": [b"marked", b"x", b"", b"gr\xf6\xdfe", b"=?base64?bWFya2Vk?=", b"=?base64?!?=", b"=?base64?", b"\xff"],
    b"content-length": [b"0", b"1", b"-1", b"99999999", b"4194305", b"abc", b"", b"+3", b"1_0", b"\xb2"],
    b"authorization": [b"Bearer bob", b"Bearer nobody", b"bearer alice", b"Basic x", b"", b"Bearer"],
    b"mcp-session-id": [b"x", b""],
    b"transfer-encoding": [b"chunked", b"identity", b""],
    b"mcp-param-region": [b"us", b"eu", b"", b"=?base64?dXM=?="],
    b"traceparent": [b"00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01", b"x"],
    b"mcp-param-x": [b"1"],
    b"last-event-id": [b"1"],
    b"content-encoding": [b"gzip"],
    b"connection": [b"close"],
}
_CAPABILITIES: Final[Sequence[Any]] = [
    *({}, {"extensions": {}}, {"extensions": {EXTENSION_ID: {"x": 1}}}, {"extensions": {EXTENSION_ID: None}}),
    *({"extensions": {EXTENSION_ID: []}}, {"extensions": None}, {"extensions": []}, None, [], "x", 1),
    *({**WITH_TASKS, "elicitation": {}}, {**WITH_TASKS, "elicitation": 1}, {**WITH_TASKS, "x": [1.0]}),
    {**WITH_TASKS, "sampling": {"tools": {}}, "roots": {"listChanged": 1}},
]
_INFOS: Final[Sequence[Any]] = [
    *(None, {}, {"name": "x"}, {"name": 1, "version": "1"}, "x", [], {"name": "é\u2028", "version": ""}),
    *({"name": "x", "version": "1", "more": [1.0]}, {"name": "x", "version": "1", "websiteUrl": None}),
]

_ODD: Final[Sequence[Any]] = (1, None, {})

HARMLESS: Final = [
    *(Flaw("encode name"), Flaw("pieces", [1, 2, 50]), Flaw("pieces", [700]), Flaw("drop meta", INFO_KEY)),
    *(Flaw("id", each) for each in ("x", "", 0, -5, 2**53 - 1, "\u2028é", "1")),
    *(Flaw("meta", (key, value)) for key in ("progressToken", "x", "traceparent", "a/b") for value in ("x", 1, "")),
    *(Flaw("meta", (CAPABILITIES_KEY, value)) for value in _CAPABILITIES),
    *(Flaw("meta", (INFO_KEY, value)) for value in _INFOS),
    *(Flaw("add header", header) for header in ((b"x-y", b"z"), (b"traceparent", b"x"), (b"origin", b"http://farm"))),
]
FLAWS: Final = [
    *(Flaw("body", name) for name in RAW_EDITS),
    *(
        Flaw(how, (name, value))
        for name, values in _HEADERS.items()
        for value in values
        for how in ("set header", "add header", "add last header")
    ),
    *(Flaw(how, name) for name in _HEADERS for how in ("drop header", "repeat header")),
    *(Flaw("member", (name, value)) for name in ("x", "result", "error", "jsonrpc", "params") for value in _ODD),
    *(Flaw("drop member", name) for name in ("jsonrpc", "id", "method", "params")),
    *(Flaw("version", version) for version in ("2025-11-25", "2027-01-01", "")),
    *(Flaw("verb", verb) for verb in ("GET", "PUT", "DELETE", "post", "HEAD")),
    *(Flaw("name", name) for name in (f"{STAND_IN}asks", "kept", "größe", "é\u2028")),
    *(Flaw("no meta"), Flaw("drop meta", CAPABILITIES_KEY), Flaw("drop meta", VERSION_KEY), Flaw("cut off", [1, 9])),
]
"""What else a member may be in place of what it is, `spoilt` says."""


# Requests

TASK_TOOLS: Final = ("marked", "repeatable", "required", "limited", "kept", "größe")
"""Tools whose calls become tasks at once."""

OTHER_TOOLS: Final = ("typed", "routed", "plain", "forbidden", "graceful", "joined", "resolving", "talking", "nobody")

GOOD: Final = (
    Step("tasks/get", {"taskId": f"{STAND_IN}done"}, f"{STAND_IN}done"),
    Step("tools/call", {"name": "marked", "arguments": {"value": "v"}}, "marked"),
    Step("tasks/update", {"taskId": f"{STAND_IN}asks", "inputResponses": {"where": {"roots": []}}}, f"{STAND_IN}asks"),
    Step("tasks/cancel", {"taskId": f"{STAND_IN}queued"}, f"{STAND_IN}queued"),
)
"""One request of each kind with nothing wrong."""

_ANSWERS: Final[Sequence[Any]] = [
    *({}, {"unknown": 1}, {"who": None}, {"who": {"action": "decline"}}, {"where": {"roots": []}}),
    *({"who": {"action": "accept", "content": {"name": name}}} for name in ("Ada", 7, "\U0001f600")),
    *(
        {"where": {"roots": [{"uri": "file:///a", "name": None}]}},
        {"who": {"action": "cancel"}, "where": {"roots": []}},
    ),
]
_ARGUMENTS: Final[Sequence[Any]] = [
    *({}, {"value": None}, {"value": [1, 1.0, True, {"a": "é"}], "number": 2**70}, {"number": "7"}, {"number": 1.5}),
    *({"count": 1}, {"count": "7", "scene": "x"}, {"count": None}, {"count": 1.0, "x": {}}, {"region": "us"}, None, []),
]


def any_step(chance: random.Random) -> Step:
    """A request of any kind, with up to three things wrong with it; one in twenty is answered with a stream."""
    task = f"{STAND_IN}{chance.choice(list(STATES))}"
    tool = chance.choice(TASK_TOOLS if chance.random() < 0.7 else OTHER_TOOLS)
    call = ("tools/call", {"name": tool, "arguments": chance.choice(_ARGUMENTS)}, tool)
    others: list[dict[str, Any]] = [{}, {}, {}, {"toolsListChanged": True}, {"resourceSubscriptions": []}]
    tasks = [task, *(f"{STAND_IN}{each}" for each in chance.sample(list(STATES), chance.randrange(3)))]
    kinds: list[tuple[str, dict[str, Any], str | None]] = [
        *[("tasks/get", {"taskId": task}, task)] * 5,
        *[("tasks/cancel", {"taskId": task}, task)] * 3,
        *[("tasks/update", {"taskId": task, "inputResponses": chance.choice(_ANSWERS)}, task)] * 3,
        *[call] * 6,
        ("subscriptions/listen", {"notifications": {"taskIds": tasks, **chance.choice(others)}}, None),
        (chance.choice(["tools/list", "server/discover", "ping", "tasks/list", "initialize", "TASKS/GET"]), {}, None),
    ]
    harmless, bad = chance.choices(HARMLESS, k=chance.choice((0, 1, 3))), chance.choices(FLAWS, k=2)
    spoil = Flaw("spoil", chance.randrange(2**32))
    token = chance.choice(["alice"] * 12 + ["bob", "robot", "nobody", "", None])
    wait = chance.choice([0, 0, 0, 1, 250, 1_000, 61_000, 3_600_000])
    flaws = chance.choice([[], [], harmless, harmless, bad[:1], [spoil], [*harmless, *bad]])
    return Step(*chance.choice(kinds), flaws=flaws, token=token, wait_ms=wait)
