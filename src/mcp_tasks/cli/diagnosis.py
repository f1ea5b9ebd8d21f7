"""Why a URL is not an MCP server that can be used: one plain request, and what came of it."""

from __future__ import annotations

from collections.abc import Mapping

import httpx2

from mcp_tasks.cli.terminal.exits import Exit, Problem

TIMEOUT = 10.0
"""Seconds for the one request; somebody is waiting for the error message."""

_PING = {"jsonrpc": "2.0", "id": 1, "method": "ping"}


async def diagnose(url: str, headers: Mapping[str, str]) -> Problem | None:
    """What keeps `url` from being used, as far as HTTP can tell; None if it looks like an MCP server."""
    try:
        async with httpx2.AsyncClient(timeout=TIMEOUT) as client:
            accept = {"accept": "application/json, text/event-stream"}
            async with client.stream("POST", url, json=_PING, headers={**accept, **headers}) as response:
                speaks = await _speaks_json_rpc(response)
                return _judge(url, response, speaks=speaks)
    except httpx2.InvalidURL as exc:
        return Problem(f"{url!r} is not a URL: {exc}", Exit.USAGE)
    except httpx2.ConnectTimeout:
        return _unreachable(url, "does not answer", "Is the host name right, and no firewall in between?")
    except httpx2.ConnectError as exc:
        return _unreachable(url, *_why_not_connected(exc))
    except httpx2.TransportError as exc:
        return _unreachable(url, f"breaks the connection: {exc or type(exc).__name__}")


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


def _judge(url: str, response: httpx2.Response, *, speaks: bool) -> Problem | None:
    status, kind = response.status_code, _kind(response)
    if status in (401, 403):
        return _refused(url, response)
    if response.has_redirect_location:
        location = response.headers["location"]
        return _unreachable(url, f"redirects to {location}", f"Try {httpx2.URL(url).join(location)}")
    if status >= 500:
        return _unreachable(url, f"has an internal problem: HTTP {status}", "Look at the server's log.")
    if not speaks:
        what = f"HTTP {status}" + (f" with {kind}" if kind else "")
        return _unreachable(url, f"is not an MCP server: it answers {what}", _endpoint_hint(url))
    return None


def _refused(url: str, response: httpx2.Response) -> Problem:
    scheme = response.headers.get("www-authenticate", "").partition(" ")[0]
    what = "requires credentials" if response.status_code == 401 else "denies access"
    hint = "Give --token-file FILE, --token - for a prompt (or MCP_TASKS_TOKEN), or --header 'Authorization:...'."
    if scheme and scheme.lower() != "bearer":
        hint = f"It asks for {scheme} authorization: --header 'Authorization:{scheme} ...'."
    return _unreachable(url, f"{what}: HTTP {response.status_code}", hint)


def _endpoint_hint(url: str) -> str:
    path = httpx2.URL(url).path.rstrip("/")
    if path.endswith("/mcp"):
        return "Is it the right port, and the right path?"
    return f"The endpoint often ends in /mcp: try {url.rstrip('/')}/mcp"


def _unreachable(url: str, what: str, hint: str | None = None) -> Problem:
    return Problem(f"{url} {what}", Exit.UNREACHABLE, hint=hint)
