"""Why a server cannot be used: what its process said last, or one plain request to its URL, and what came of it."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from typing import Final, cast

import httpx2
from mcp.shared.exceptions import MCPError
from mcp_types import REQUEST_TIMEOUT

from mcp_tasks.client.servers.address import ServerAddress, looks_like_address
from mcp_tasks.client.transport import http_address
from mcp_tasks.errors import InvalidAddress, ServerUnreachable, TasksError, UnreachableReason

TIMEOUT: Final = 10.0
"""Seconds for the one request; somebody is waiting for the error message."""

_PING: Final = {"jsonrpc": "2.0", "id": 1, "method": "ping"}


async def why_unreachable(
    server: ServerAddress, exc: Exception, *, headers: Mapping[str, str] | None = None, said: str = ""
) -> TasksError:
    """Why a server could not be connected to.

    Args:
        exc: What connecting to it raised.
        said: The last lines that its process wrote to stderr.

    Returns:
        A `ServerUnreachable`, or the error of ours that `exc` is or contains.
    """
    cause = next((inner for inner in leaves(exc) if isinstance(inner, TasksError | MCPError | OSError)), exc)
    if isinstance(cause, TasksError):
        return cause
    if server.url is None:
        return _why_not_started(server, cause, said)
    found = await check_url(server.url, headers)
    if found is not None:
        return found
    if isinstance(cause, MCPError) and cause.code == REQUEST_TIMEOUT:
        return ServerUnreachable(f"{server.label} does not answer", reason="timeout")
    return ServerUnreachable(f"{server.label} cannot be used: {cause}")


def _why_not_started(server: ServerAddress, cause: BaseException, said: str) -> ServerUnreachable:
    command = server.argv[0]
    if isinstance(cause, FileNotFoundError):
        if not os.path.isdir(server.folder):
            return ServerUnreachable(f"the folder of this server is gone: {server.folder}", reason="not_found")
        hint = "Is it installed, and spelled like that?"
        if looks_like_address(command):
            hint = f"If that is an address, write http://{command}"
        return ServerUnreachable(f"command not found: {command}", hint, reason="not_found")
    if isinstance(cause, OSError):
        return ServerUnreachable(f"{command} cannot be started: {cause.strerror or cause}")
    hint = f"Its last lines on stderr:\n{said}" if said else "It wrote nothing to stderr."
    return ServerUnreachable(f"`{server.label}` exited, or does not speak MCP", hint, reason="exited")


async def check_url(url: str, headers: Mapping[str, str] | None = None) -> TasksError | None:
    """What keeps a URL from being used, as far as HTTP can tell; None if it looks like an MCP server.

    Returns:
        A `ServerUnreachable`, or an `InvalidAddress` if it is no URL.
    """
    # What is said is printed and logged, so it has no user name and password in it.
    named = http_address(url)
    try:
        async with httpx2.AsyncClient(timeout=TIMEOUT) as client:
            accept = {"accept": "application/json, text/event-stream"}
            async with client.stream("POST", url, json=_PING, headers={**accept, **(headers or {})}) as response:
                speaks = await _speaks_json_rpc(response)
                return _judge(named, response, speaks=speaks)
    except httpx2.InvalidURL as exc:
        return InvalidAddress(f"{url!r} is not a URL: {exc}")
    except httpx2.TimeoutException as exc:
        is_there = not isinstance(exc, httpx2.ConnectTimeout)
        hint = "Look at the server's log." if is_there else "Is the host name right, and no firewall in between?"
        return _unreachable(named, "does not answer", hint, reason="timeout")
    except httpx2.ConnectError as exc:
        return _unreachable(named, *_why_not_connected(exc), reason="connection")
    except httpx2.RequestError as exc:
        return _unreachable(named, f"breaks the connection: {str(exc) or type(exc).__name__}", reason="connection")


def leaves(exc: BaseException) -> Iterator[BaseException]:
    """The exceptions in a group, or the one exception."""
    if isinstance(exc, BaseExceptionGroup):
        for inner in cast("BaseExceptionGroup[BaseException]", exc).exceptions:
            yield from leaves(inner)
    else:
        yield exc


def _why_not_connected(exc: httpx2.ConnectError) -> tuple[str, str]:
    text = str(exc).lower()
    if "certificate" in text or "ssl" in text:
        return f"cannot be trusted: {exc}", "Is the certificate valid, and is this host the one it is for?"
    if "name" in text and ("resolution" in text or "known" in text or "nodename" in text):
        return "cannot be found: the host name is unknown", "Is the host name spelled right?"
    return "refuses the connection", "Is the server running, and on this port?"


async def _speaks_json_rpc(response: httpx2.Response) -> bool:
    kind = _kind(response)
    if kind == "text/event-stream" or response.status_code in (202, 204):
        return True
    return kind == "application/json" and b'"jsonrpc"' in await response.aread()


def _kind(response: httpx2.Response) -> str:
    return response.headers.get("content-type", "").partition(";")[0].strip()


def _judge(url: str, response: httpx2.Response, *, speaks: bool) -> ServerUnreachable | None:
    status, kind = response.status_code, _kind(response)
    if status in (401, 403):
        return _refused(url, response)
    if response.has_redirect_location:
        location = response.headers["location"]
        hint = f"Try {httpx2.URL(url).join(location)}"
        return _unreachable(url, f"redirects to {location}", hint, reason="redirect")
    if status >= 500:
        what = f"has an internal problem: HTTP {status}"
        return _unreachable(url, what, "Look at the server's log.", reason="internal")
    if not speaks:
        what = f"HTTP {status}" + (f" with {kind}" if kind else "")
        return _unreachable(url, f"is not an MCP server: it answers {what}", _endpoint_hint(url), reason="not_mcp")
    return None


def _refused(url: str, response: httpx2.Response) -> ServerUnreachable:
    asked = response.headers.get("www-authenticate", "").partition(" ")[0]
    what = "requires credentials" if response.status_code == 401 else "denies access"
    hint, scheme = f"It asks for {asked} authorization: send an Authorization header.", asked or "Bearer"
    if not asked:
        hint = "Send an Authorization header" + (", or another." if response.status_code == 403 else ".")
    return ServerUnreachable(f"{url} {what}: HTTP {response.status_code}", hint, reason="credentials", scheme=scheme)


def _endpoint_hint(url: str) -> str:
    path = httpx2.URL(url).path.rstrip("/")
    if path.endswith("/mcp"):
        return "Is it the right port, and the right path?"
    return f"The endpoint often ends in /mcp: try {url.rstrip('/')}/mcp"


def _unreachable(url: str, what: str, hint: str = "", *, reason: UnreachableReason) -> ServerUnreachable:
    return ServerUnreachable(f"{url} {what}", hint, reason=reason)
