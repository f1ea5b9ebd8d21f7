"""A request that is good, and everything that can be done to it."""

from __future__ import annotations

import base64
import json
from collections.abc import Callable, Mapping, Sequence
from copy import deepcopy
from dataclasses import dataclass
from typing import Any, Final

from mcp_tasks.protocol.shapes import EXTENSION_ID
from tests.short.raw import Sent
from tests.short.standing import for_side

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
        # A copy: what another flaw does to it is not done to what is drawn next.
        _FLAWS[self.what](draft, deepcopy(self.to))


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


# What is done to the bytes of a body


def _behind(opening: bytes) -> Callable[[bytes], Callable[[bytes], bytes]]:
    """What puts text into a body behind the opening of an object, as its first members."""
    return lambda text: lambda body: body.replace(opening, opening + text, 1)


_argument, _param, _in_meta = _behind(b'"arguments": {'), _behind(b'"params": {'), _behind(b'"_meta": {')

RAW_EDITS: Final[Mapping[str, Callable[[bytes], bytes]]] = {
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
    "surrogate in params": _param(b'"x": "\\udfff", '),
    "surrogate key": _param(b'"\\udfff": 1, '),
    "escaped null": lambda body: body.replace(b"fuzz", b"\\u0000"),
    "escaped slash": lambda body: body.replace(b"/", b"\\/"),
    "escaped method": lambda body: body.replace(b'"method"', b'"m\\u0065thod"', 1),
    "raw control": lambda body: body.replace(b"fuzz", b"f\tzz"),
    "bad escape": lambda body: body.replace(b"fuzz", b"f\\xzz"),
    "nan": lambda body: body.replace(b'"fuzz"', b"NaN"),
    "nan argument": _argument(b'"value": NaN, '),
    "inf argument": _argument(b'"value": -Infinity, '),
    "overflow argument": _argument(b'"value": 1e400, '),
    "minus zero argument": _argument(b'"value": [-0, -0.0, 0e0, 1E2], '),
    "digits argument": _argument(b'"value": 0.1000000000000000055511151231257827, '),
    "big argument": _argument(b'"value": ' + b"9" * 400 + b", "),
    "bigger argument": _argument(b'"value": ' + b"9" * 5_000 + b", "),
    "surrogate argument": _argument(b'"value": "\\ud800", '),
    "argument twice": _argument(b'"value": 1, "value": 2.0, "number": 3, '),
    "arguments twice": lambda body: body.replace(b'"arguments": ', b'"arguments": {"value": 1}, "arguments": ', 1),
    "nan meta": _in_meta(b'"x": NaN, '),
    "big meta": _in_meta(b'"x": ' + b"9" * 5_000 + b", "),
    "meta twice": lambda body: body.replace(b'"_meta": {', b'"_meta": {}, "_meta": {', 1),
    "token twice": _in_meta(b'"progressToken": 1, "progressToken": 1.5, '),
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
    "deep": _param(b'"x": ' + b"[" * 150 + b"]" * 150 + b", "),
    "deeper": _param(b'"x": ' + b"[" * 260 + b"]" * 260 + b", "),
    "deepest": _param(b'"x": ' + b"[" * 5_000 + b"]" * 5_000 + b", "),
    "deep argument": _argument(b'"value": ' + b"[" * 190 + b"]" * 190 + b", "),
    "3 KB": lambda body: body + b" " * 3_000,
    "20 KB": lambda body: body + b" " * 20_000,
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
    "whole meta": lambda draft, to: setattr(draft, "meta", to),
    "no meta": lambda draft, _: setattr(draft, "meta", _ABSENT),
    "meta": _set_meta,
    "drop meta": _drop_meta,
    "param": lambda draft, to: draft.params.update([to]),
    "drop param": lambda draft, name: draft.params.pop(name, None),
    "body": lambda draft, name: draft.edits.append(RAW_EDITS[name]),
    "pieces": lambda draft, cuts: setattr(draft, "cuts", cuts),
    "cut off": lambda draft, cuts: (setattr(draft, "cuts", cuts), setattr(draft, "is_cut_off", True))[0],
}
