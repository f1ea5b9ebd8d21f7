"""Requests of every kind, drawn at random: a good one, and what may be wrong with it.

Most of them are good in most ways. What is wrong in every way is refused at the first look, and shows nothing of the
looks behind it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final, TypeAlias

from hypothesis import strategies as st

from mcp_tasks.protocol.shapes import EXTENSION_ID
from tests.short.drafts import CAPABILITIES_KEY, INFO_KEY, RAW_EDITS, VERSION_KEY, WITH_TASKS, Flaw, Step
from tests.short.standing import STAND_IN, STATES

Request: TypeAlias = tuple[str, Mapping[str, Any], str | None]
"""Method, params, and what the name header says."""

TASK_TOOLS: Final = ("marked", "repeatable", "required", "limited", "kept", "größe")
"""Those whose calls become tasks at once."""

TOOLS: Final = (
    *TASK_TOOLS,
    *("typed", "routed", "plain", "forbidden", "graceful", "joined", "resolving", "talking", "nobody"),
)


_HEADER_FLAWS: Final = ("set header", "add header", "add last header")

# Values


_ODD: Final[tuple[Any, ...]] = (
    None, True, False, 0, 1, -1, 1.0, 0.5, 2**31, 2**53, -(2**53), 2**53 - 1, 2**63, 2**64, 10**30, 1e300, "", "1", " ",
    "é", "\u2028", "\U0001f600", "\x00", "\x7f", "null", "a" * 300, [], [1], ["x"], {}, {"a": 1}, {"": None},
    {"io.modelcontextprotocol/x": 1}, [[[]]], {"a": {"b": [1.5, None, True]}},
)  # fmt: skip
_ANSWER_LIST: Final[Sequence[Any]] = [
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
]
_VALUES: Final[Mapping[bytes, Sequence[bytes]]] = {
    b"host": [b"farm", b"farm:", b"farm:8080", b"127.0.0.1", b"evil", b""],
    b"origin": [b"http://farm", b"http://farm:1", b"http://evil", b"null", b""],
    b"content-type": [
        b"application/json; charset=utf-8",
        b"application/jsonx",
        b"APPLICATION/JSON",
        b"text/plain",
        b"",
    ],
    b"accept": [
        b"*/*",
        b"application/json",
        b"text/event-stream",
        b"application/*",
        b"text/event-stream;q=0",
        b"",
        b"application/json;q=0.5,text/event-stream",
        b"text/*, application/json",
        b"application/json,*/*",
    ],
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
}
_META_KEY_LIST: Final[Sequence[Any]] = [
    VERSION_KEY,
    INFO_KEY,
    CAPABILITIES_KEY,
    "progressToken",
    "traceparent",
    "tracestate",
    "baggage",
    "x",
    "",
    "a/b",
    "io.modelcontextprotocol/logLevel",
    "io.modelcontextprotocol/related-task",
    "io.modelcontextprotocol/x",
    "io.modelcontextprotocol/serverInfo",
    EXTENSION_ID,
    "mcp-tasks/x",
]
_CAPABILITY_LIST: Final[Sequence[Any]] = [
    {},
    {"extensions": {}},
    {"extensions": {EXTENSION_ID: {"x": 1}}},
    {"extensions": {EXTENSION_ID: None}},
    {"extensions": {EXTENSION_ID: []}},
    {"extensions": None},
    {"extensions": []},
    None,
    [],
    "x",
    1,
    {**WITH_TASKS, "elicitation": {}},
    {**WITH_TASKS, "elicitation": None},
    {**WITH_TASKS, "elicitation": 1},
    {**WITH_TASKS, "sampling": {"tools": {}}, "roots": {"listChanged": 1}},
    {**WITH_TASKS, "x": [1.0]},
    {**WITH_TASKS, "tasks": {}},
    {**WITH_TASKS, "experimental": {"a": {}}},
    {**WITH_TASKS, "experimental": 1},
]
_INFO_LIST: Final[Sequence[Any]] = [
    None,
    {},
    {"name": "x"},
    {"name": "x", "version": "1", "more": [1.0]},
    {"name": 1, "version": "1"},
    "x",
    [],
    {"name": "x", "version": "1", "icons": [{"src": "y"}]},
    {"name": "x", "version": "1", "websiteUrl": None},
    {"name": "é\u2028", "version": ""},
]
_PARAM_KEY_LIST: Final[Sequence[Any]] = [
    "taskId",
    "inputResponses",
    "name",
    "arguments",
    "task",
    "requestState",
    "notifications",
    "x",
    "",
    "cursor",
    "uri",
    "task_id",
    "input_responses",
    "request_state",
]

ODD = st.sampled_from(_ODD)
JSON = st.recursive(
    ODD,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=4), inner, max_size=3),
    max_leaves=6,
)
IDS = st.sampled_from([f"{STAND_IN}{state}" for state in STATES])
ANSWERS = st.sampled_from(_ANSWER_LIST)
_NUMBERS: st.SearchStrategy[Any] = st.sampled_from([1, "7", 1.0, 1.5, True, None, 2**70])
_NO_ARGUMENTS: Mapping[str, Any] = {}
ARGUMENTS: st.SearchStrategy[Any] = st.one_of(
    st.just(_NO_ARGUMENTS),
    st.dictionaries(st.sampled_from(["value", "number"]), JSON | _NUMBERS),
    st.dictionaries(st.sampled_from(["count", "count", "scene", "x"]), _NUMBERS | ODD),
    st.just({"region": "us"}),
    JSON,
)


_NAMES = st.sampled_from(sorted(_VALUES))
_HEADERS = st.sampled_from([(name, value) for name, values in _VALUES.items() for value in values])
_META_KEYS = st.sampled_from(_META_KEY_LIST)
_CAPABILITIES = st.sampled_from(_CAPABILITY_LIST)
_INFOS = st.sampled_from(_INFO_LIST)
_PARAM_KEYS = st.sampled_from(_PARAM_KEY_LIST)


# Good requests


def _get(task: str) -> Request:
    return "tasks/get", {"taskId": task}, task


def _cancel(task: str) -> Request:
    return "tasks/cancel", {"taskId": task}, task


def _update(task: str, answers: Any) -> Request:
    return "tasks/update", {"taskId": task, "inputResponses": answers}, task


def _call(tool: str, arguments: Any) -> Request:
    return "tools/call", {"name": tool, "arguments": arguments}, tool


def _call_without(tool: str) -> Request:
    return "tools/call", {"name": tool}, tool


def _listen(tasks: list[str], more: Mapping[str, Any]) -> Request:
    return "subscriptions/listen", {"notifications": {"taskIds": tasks, **more}}, None


_GETS = st.builds(_get, IDS)
_CANCELS = st.builds(_cancel, IDS)
_UPDATES = st.builds(_update, IDS, ANSWERS)
_CALLS = st.builds(_call, st.sampled_from(TOOLS), ARGUMENTS)
_TASK_CALLS = st.builds(
    _call,
    st.sampled_from(TASK_TOOLS),
    st.fixed_dictionaries({}, optional={"value": JSON, "number": st.sampled_from([1, 0, -7, 2**70])}),
)
_PLAIN_CALLS = st.one_of(
    st.builds(_call_without, st.sampled_from(TOOLS)), st.builds(_call, st.sampled_from(TOOLS), st.just({"value": 1}))
)
_MORE: Final[Sequence[Mapping[str, Any]]] = (
    *({}, {}, {}, {}, {}, {}, {}, {}),
    {"toolsListChanged": True},
    {"toolsListChanged": False},
    {"resourceSubscriptions": []},
)
_LISTENS = st.builds(_listen, st.lists(IDS, max_size=4), st.sampled_from(_MORE))
_OTHER: Final[Sequence[Request]] = (
    ("tools/list", {}, None),
    ("server/discover", {}, None),
    ("ping", {}, None),
    ("tasks/list", {}, None),
    ("tasks/result", {"taskId": "x"}, "x"),
    ("TASKS/GET", {"taskId": "x"}, "x"),
    ("initialize", {}, None),
)
_REQUESTS = st.one_of(_GETS, _GETS, _CANCELS, _UPDATES, _CALLS, _TASK_CALLS, _TASK_CALLS, _PLAIN_CALLS)


# What is done to them


def _flaw(what: str, to: st.SearchStrategy[Any]) -> st.SearchStrategy[Flaw]:
    return st.builds(Flaw, st.just(what), to)


_CUTS = st.lists(st.integers(0, 2_000), min_size=1, max_size=4)
_HARMLESS = st.one_of(
    _flaw("encode name", st.none()),
    _flaw("pieces", _CUTS),
    _flaw("id", st.sampled_from(["x", "", 0, -5, 2**53 - 1, "\u2028é", "1"])),
    _flaw(
        "meta",
        st.tuples(
            st.sampled_from(["progressToken", "x", "traceparent", "baggage", "a/b"]), st.sampled_from(["x", 1, ""])
        ),
    ),
    _flaw("meta", st.tuples(st.just(CAPABILITIES_KEY), _CAPABILITIES)),
    _flaw("meta", st.tuples(st.just(INFO_KEY), _INFOS)),
    _flaw("drop meta", st.just(INFO_KEY)),
    _flaw(
        "body",
        st.sampled_from(["space around", "escaped slash", "escaped method", "surrogate pair", "3 KB", "256 KiB"]),
    ),
    _flaw("add header", st.sampled_from([(b"x-y", b"z"), (b"traceparent", b"x"), (b"origin", b"http://farm")])),
)
_HARMFUL = st.one_of(
    _flaw("set header", _HEADERS),
    _flaw("add header", _HEADERS),
    _flaw("add last header", _HEADERS),
    _flaw("drop header", _NAMES),
    _flaw("repeat header", _NAMES),
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
    _flaw("body", st.sampled_from(sorted(RAW_EDITS))),
    _flaw("body", st.sampled_from(sorted(RAW_EDITS))),
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


def _step(request: Request, flaws: Sequence[Flaw], token: str | None, wait: int) -> Step:
    return Step(*request, flaws=flaws, token=token, wait_ms=wait)


STEPS: st.SearchStrategy[Step] = st.one_of(
    st.builds(_step, _REQUESTS, _FLAW_LISTS, _TOKENS, _WAITS),
    st.builds(_step, _REQUESTS, _FLAW_LISTS, st.just("alice"), _WAITS),
    st.builds(_step, st.one_of(_REQUESTS, st.sampled_from(_OTHER)), _FLAW_LISTS, _TOKENS, _WAITS),
)
"""Anything that is answered at once."""

LISTENING: st.SearchStrategy[Step] = st.builds(_step, _LISTENS, _FLAW_LISTS, _TOKENS, _WAITS)
"""Requests that are answered with streams. They take longer, because nobody can tell when all is said."""


def _singles() -> list[Flaw]:
    """Everything above that can be wrong with a request, one at a time."""
    flaws = [Flaw("body", name) for name in sorted(RAW_EDITS)]
    flaws += [Flaw(how, (name, value)) for name, values in _VALUES.items() for value in values for how in _HEADER_FLAWS]
    flaws += [Flaw(how, name) for name in _VALUES for how in ("drop header", "repeat header")]
    flaws += [Flaw("meta", (key, value)) for key in _META_KEY_LIST for value in _ODD]
    flaws += [Flaw("drop meta", key) for key in _META_KEY_LIST]
    flaws += [Flaw("meta", (CAPABILITIES_KEY, value)) for value in _CAPABILITY_LIST]
    flaws += [Flaw("meta", (INFO_KEY, value)) for value in _INFO_LIST]
    flaws += [Flaw("param", (key, value)) for key in _PARAM_KEY_LIST for value in _ODD]
    flaws += [Flaw("drop param", key) for key in _PARAM_KEY_LIST]
    flaws += [Flaw("param", ("inputResponses", value)) for value in _ANSWER_LIST]
    flaws += [Flaw(what, value) for what in ("id", "whole meta") for value in _ODD]
    flaws += [Flaw("member", (name, value)) for name in ("jsonrpc", "method", "params", "x") for value in _ODD]
    flaws += [Flaw("drop member", name) for name in ("jsonrpc", "id", "method", "params")]
    flaws += [Flaw("version", version) for version in ("2025-11-25", "2027-01-01", "")]
    flaws += [Flaw("verb", verb) for verb in ("GET", "PUT", "DELETE", "post", "HEAD")]
    flaws += [Flaw("no meta"), Flaw("encode name"), Flaw("pieces", [1, 2, 50]), Flaw("cut off", [1, 9])]
    return flaws


SINGLE_FLAWS: Final = _singles()

GOOD: Final = (
    Step("tasks/get", {"taskId": f"{STAND_IN}done"}, f"{STAND_IN}done"),
    Step("tools/call", {"name": "marked", "arguments": {"value": "v"}}, "marked"),
    Step("tasks/update", {"taskId": f"{STAND_IN}asks", "inputResponses": {"where": {"roots": []}}}, f"{STAND_IN}asks"),
    Step("tasks/cancel", {"taskId": f"{STAND_IN}queued"}, f"{STAND_IN}queued"),
)
"""One request of each kind with nothing wrong."""
