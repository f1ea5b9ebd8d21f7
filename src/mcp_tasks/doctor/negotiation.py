"""Does the server speak the protocol that has tasks, and does it say that it does tasks?"""

from __future__ import annotations

from mcp_types.version import LATEST_HANDSHAKE_VERSION, LATEST_MODERN_VERSION

from mcp_tasks.core.json import JsonObject
from mcp_tasks.doctor.report import Subject
from mcp_tasks.doctor.wire import Reply, Silence, object_in
from mcp_tasks.wire.models import EXTENSION_ID

DISCOVER = "server/discover"


async def negotiate(subject: Subject) -> bool:
    """Look at what the server says of itself; whether there is a point in going on."""
    try:
        reply = await subject.wire.send(DISCOVER)
    except Silence as exc:
        subject.fail(DISCOVER, f"the server cannot be asked: {exc}", "Is it running, and is this its endpoint?")
        return False
    if reply.status in (401, 403):
        subject.fail("access", f"the server answers HTTP {reply.status}", "Give a token, or another header.")
    elif reply.status is not None and 300 <= reply.status < 400:
        where = reply.headers.get("location", "elsewhere")
        advice = "Clients do not follow; serve it right here."
        subject.fail("redirect", f"the endpoint redirects clients to {where}", advice)
    elif reply.result is None or LATEST_MODERN_VERSION not in (reply.result.get("supportedVersions") or ()):
        await _look_for_legacy(subject, reply)
    else:
        info = object_in(reply.result, "_meta", "io.modelcontextprotocol/serverInfo")
        name = "" if info is None else f" and is {info.get('name')} {info.get('version', '')}".rstrip()
        subject.ok(DISCOVER, f"the server speaks {LATEST_MODERN_VERSION}{name}")
        return _is_declared(subject, object_in(reply.result, "capabilities") or {})
    return False


async def _look_for_legacy(subject: Subject, reply: Reply) -> None:
    """The server does not speak the protocol that has the extension; what does it speak?"""
    try:
        old = await subject.wire.shake_hands()
        said = old.summary
    except Silence as exc:
        old, said = Reply(), f"nothing: {exc}"
    if old.result is None:
        subject.fail(DISCOVER, f"answered with {reply.summary}, and initialize with {said}", "Is this an MCP server?")
        return
    version = old.result.get("protocolVersion", LATEST_HANDSHAKE_VERSION)
    needs = f"needs {LATEST_MODERN_VERSION}"
    tasks = object_in(old.result, "capabilities", "tasks")
    if tasks is None:
        advice = f"The tasks extension {needs}; update the server's SDK."
        subject.fail(DISCOVER, f"the server speaks only {version}, without tasks", advice)
        return
    subject.warn(
        DISCOVER,
        f"the server speaks only {version}, with the tasks of that version ({_older_tasks(tasks)})",
        f"Clients of this package drive them. The tasks extension, which is examined here, {needs}.",
    )
    subject.report.unexamined = f"the server speaks only {version}"


def _older_tasks(tasks: JsonObject) -> str:
    """What a server of 2025-11-25 says that it does with tasks."""
    requests = object_in(tasks, "requests") or {}
    calls = [f"{area}/{verb}" for area in requests for verb in object_in(requests, area) or {}]
    return ", ".join([*calls, *(verb for verb in ("list", "cancel") if verb in tasks)]) or "none of its calls"


def _is_declared(subject: Subject, capabilities: JsonObject) -> bool:
    settings = (object_in(capabilities, "extensions") or {}).get(EXTENSION_ID)
    if settings is None:
        advice = f'Declare it in server/discover: capabilities.extensions["{EXTENSION_ID}"] = {{}}.'
        subject.fail("extension", f"the server does not declare {EXTENSION_ID}", advice)
        return False
    if settings != {}:
        advice = "Declare exactly {}; some clients ignore it otherwise."
        subject.fail("extension", f"it is declared as {settings!r}", advice)
    else:
        subject.ok("extension", "the tasks extension is declared, as an empty object")
    if "tasks" in capabilities:
        says = f"`tasks` of 2025-11-25 is declared under {LATEST_MODERN_VERSION} too"
        subject.fail("legacy capability", says, "Declare it only to clients of 2025-11-25.")
    else:
        subject.ok("legacy capability", "the `tasks` capability of 2025-11-25 is not declared here")
    return True
