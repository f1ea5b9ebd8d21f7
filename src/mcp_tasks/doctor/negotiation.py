"""Does the server speak the protocol that has tasks, and does it say that it does tasks?"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, cast

from mcp_types.version import LATEST_HANDSHAKE_VERSION, LATEST_MODERN_VERSION

from mcp_tasks.core.json import JsonObject
from mcp_tasks.doctor.report import Area
from mcp_tasks.doctor.subject import Subject
from mcp_tasks.doctor.wire import Reply, Silence
from mcp_tasks.wire.models import EXTENSION_ID


async def negotiate(subject: Subject) -> bool:
    """Look at what the server says of itself; whether there is a point in going on."""
    area = subject.area("negotiation")
    try:
        reply = await subject.wire.send("server/discover")
    except Silence as exc:
        area.fail("server/discover", f"the server cannot be asked: {exc}", "Is it running, and is this its endpoint?")
        return False
    if not _is_reached(area, reply):
        return False
    if reply.result is None or LATEST_MODERN_VERSION not in (reply.result.get("supportedVersions") or ()):
        await _look_for_legacy(subject, area, reply)
        return False
    area.ok("server/discover", f"the server speaks {LATEST_MODERN_VERSION}{_name(reply.result)}")
    return _is_declared(area, cast("JsonObject", reply.result.get("capabilities") or {}))


def _is_reached(area: Area, reply: Reply) -> bool:
    if reply.status in (401, 403):
        area.fail("access", f"the server answers HTTP {reply.status}", "Give --token or --header.")
        return False
    if reply.status is not None and 300 <= reply.status < 400:
        where = reply.headers.get("location", "elsewhere")
        area.fail(
            "redirect", f"the endpoint redirects clients to {where}", "Clients do not follow; serve it right here."
        )
        return False
    return True


async def _look_for_legacy(subject: Subject, area: Area, reply: Reply) -> None:
    """The server does not speak the protocol that has the extension; what does it speak?"""
    probe = "server/discover"
    try:
        old = await subject.wire.shake_hands()
    except Silence as exc:
        area.fail(probe, f"answered with {reply.summary}, and initialize with nothing: {exc}", "Is this an MCP server?")
        return
    if old.result is None:
        area.fail(probe, f"answered with {reply.summary}, and initialize with {old.summary}", "Is this an MCP server?")
        return
    version = old.result.get("protocolVersion", LATEST_HANDSHAKE_VERSION)
    capabilities = cast("JsonObject", old.result.get("capabilities") or {})
    if "tasks" in capabilities:
        says = f"the server speaks only {version}, with the tasks of that version ({_older_tasks(capabilities)})"
        area.warn(
            probe,
            says,
            f"Clients of this package drive them. The tasks extension, which this command examines, needs "
            f"{LATEST_MODERN_VERSION}.",
        )
        subject.report.unexamined = f"the server speaks only {version}"
        return
    area.fail(
        probe,
        f"the server speaks only {version}, without tasks",
        f"The tasks extension needs {LATEST_MODERN_VERSION}; update the server's SDK.",
    )


def _older_tasks(capabilities: JsonObject) -> str:
    """What a server of 2025-11-25 says that it does with tasks."""
    tasks = _object(capabilities.get("tasks"))
    calls = [f"{area}/{verb}" for area, verbs in _object(tasks.get("requests")).items() for verb in _object(verbs)]
    return ", ".join([*calls, *(verb for verb in ("list", "cancel") if verb in tasks)]) or "none of its calls"


def _object(value: object) -> JsonObject:
    return cast("JsonObject", value) if isinstance(value, Mapping) else {}


def _is_declared(area: Area, capabilities: JsonObject) -> bool:
    extensions = cast("JsonObject", capabilities.get("extensions") or {})
    settings: Any = extensions.get(EXTENSION_ID)
    if settings is None:
        area.fail(
            "extension",
            f"the server does not declare {EXTENSION_ID}",
            'Declare it in server/discover: capabilities.extensions["io.modelcontextprotocol/tasks"] = {}.',
        )
        return False
    if settings != {}:
        area.fail(
            "extension", f"it is declared as {settings!r}", "Declare exactly {}; some clients ignore it otherwise."
        )
    else:
        area.ok("extension", "the tasks extension is declared, as an empty object")
    if "tasks" in capabilities:
        area.fail(
            "legacy capability",
            f"`tasks` of 2025-11-25 is declared under {LATEST_MODERN_VERSION} too",
            "Declare it only to clients of 2025-11-25.",
        )
    else:
        area.ok("legacy capability", "the `tasks` capability of 2025-11-25 is not declared here")
    return True


def _name(result: JsonObject) -> str:
    meta: Any = result.get("_meta")
    info: Any = (
        cast("JsonObject", meta).get("io.modelcontextprotocol/serverInfo") if isinstance(meta, Mapping) else None
    )
    if not isinstance(info, Mapping):
        return ""
    names = cast("JsonObject", info)
    return f" and is {names.get('name')} {names.get('version', '')}".rstrip()
