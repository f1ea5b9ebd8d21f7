"""The examination: probes in order, each on its own, so that one that fails does not hide the others."""

from __future__ import annotations

import base64
import secrets
from collections.abc import AsyncIterator, Callable, Collection, Mapping
from contextlib import aclosing, suppress
from datetime import UTC, datetime
from functools import partial
from typing import Any, Final, TypeAlias

import anyio
from mcp.server.subscriptions import SUBSCRIPTION_ID_META_KEY
from mcp.shared.inbound import mcp_param_headers, x_mcp_header_map
from mcp_types import HEADER_MISMATCH, INVALID_PARAMS, METHOD_NOT_FOUND, MISSING_REQUIRED_CLIENT_CAPABILITY
from mcp_types.version import LATEST_HANDSHAKE_VERSION, LATEST_MODERN_VERSION

from mcp_tasks.cli.doctor import report as shapes
from mcp_tasks.cli.doctor.report import CLIENT, Exam, Flaw, Report
from mcp_tasks.cli.questions import PAGE_LIMIT, unknown_tool
from mcp_tasks.cli.raw import ANSWER_TIMEOUT, LISTENING, RawConnection, Reply, Silence, connect_raw
from mcp_tasks.cli.servers import ServerAddress, leaves
from mcp_tasks.model.json import JsonObject, list_in, object_in
from mcp_tasks.model.record import FINAL_STATUSES
from mcp_tasks.protocol.shapes import EXTENSION_ID

# ---- probes
# What a server is asked: what it says of itself, what it refuses, and a task on its way.


DISCOVER: Final = "server/discover"
LISTEN: Final = "subscriptions/listen"
HANDSHAKE: Final[JsonObject] = {"protocolVersion": LATEST_HANDSHAKE_VERSION, "capabilities": {}, "clientInfo": CLIENT}
NEVER_GIVEN_OUT: Final = f"doctor-{secrets.token_hex(16)}"

WATCHES: Final = 5.0
"""Seconds to see a notification, or a cancelled task end. Neither need come: that is no fault."""


async def negotiate(exam: Exam) -> None:
    """Does the server speak the protocol that has tasks, and say that it does tasks?"""
    try:
        reply = await exam.send(DISCOVER, {})
    except Silence as exc:
        exam.fail(DISCOVER, f"the server cannot be asked: {exc}", "Is it running, and is this its endpoint?")
        return
    status, result = reply.status or 0, reply.result or {}
    if status in (401, 403):
        exam.fail("access", f"the server answers HTTP {status}", "Give a token, or another header.")
    elif 300 <= status < 400:
        says = f"the endpoint redirects clients to {reply.headers.get('location', 'elsewhere')}"
        exam.fail("redirect", says, "Clients do not follow; serve it right here.")
    elif LATEST_MODERN_VERSION not in list_in(result, "supportedVersions"):
        await _look_for_legacy(exam, reply)
    else:
        info = object_in(result, "_meta", "io.modelcontextprotocol/serverInfo")
        name = "" if info is None else f" and is {info.get('name')} {info.get('version', '')}".rstrip()
        exam.ok(DISCOVER, f"the server speaks {LATEST_MODERN_VERSION}{name}")
        _look_for_tasks(exam, object_in(result, "capabilities") or {})


async def _look_for_legacy(exam: Exam, reply: Reply) -> None:
    """The server does not speak the protocol that has the extension; what does it speak?"""
    try:
        old = await exam.send("initialize", HANDSHAKE)
        result, said = old.result, old.summary
    except Silence as exc:
        result, said = None, f"nothing: {exc}"
    speaks = f"the server speaks only {(result or {}).get('protocolVersion', LATEST_HANDSHAKE_VERSION)}"
    needs, tasks = f"needs {LATEST_MODERN_VERSION}", object_in(result, "capabilities", "tasks")
    if result is None:
        exam.fail(DISCOVER, f"answered with {reply.summary}, and initialize with {said}", "Is this an MCP server?")
    elif tasks is None:
        exam.fail(DISCOVER, f"{speaks}, without tasks", f"The tasks extension {needs}; update the server's SDK.")
    else:
        requests = object_in(tasks, "requests") or {}
        calls = [f"{area}/{verb}" for area in requests for verb in object_in(requests, area) or {}]
        offers = ", ".join([*calls, *(verb for verb in ("list", "cancel") if verb in tasks)]) or "none of its calls"
        advice = f"Clients of this package drive them. The tasks extension, which is examined here, {needs}."
        exam.warn(DISCOVER, f"{speaks}, with the tasks of that version ({offers})", advice)
        exam.report.unexamined = speaks


def _look_for_tasks(exam: Exam, capabilities: JsonObject) -> None:
    settings = (object_in(capabilities, "extensions") or {}).get(EXTENSION_ID)
    if settings is None:
        advice = f'Declare it in server/discover: capabilities.extensions["{EXTENSION_ID}"] = {{}}.'
        exam.fail("extension", f"the server does not declare {EXTENSION_ID}", advice)
        return
    exam.has_tasks = True
    flaw = Flaw(f"it is declared as {settings!r}", "Declare exactly {}; some clients ignore it otherwise.")
    exam.judge("extension", [] if settings == {} else [flaw], "the tasks extension is declared, as an empty object")
    says = f"`tasks` of 2025-11-25 is declared under {LATEST_MODERN_VERSION} too"
    flaw = Flaw(says, "Declare it only to clients of 2025-11-25.")
    well = "the `tasks` capability of 2025-11-25 is not declared here"
    exam.judge("legacy capability", [flaw] if "tasks" in capabilities else [], well)


async def refuse_unknown_tasks(exam: Exam) -> None:
    """Ids that were never given out, and no id at all."""
    for method, params in _about(NEVER_GIVEN_OUT).items():
        # A MUST for looking, a SHOULD for the other two.
        must = method == "tasks/get"
        exam.judge_refusal(f"{method} of an unknown task", INVALID_PARAMS, await exam.send(method, params), must=must)
    exam.judge_refusal("tasks/get without an id", INVALID_PARAMS, await exam.send("tasks/get", {}))


async def refuse_removed_methods(exam: Exam) -> None:
    """Methods of 2025-11-25 that are gone."""
    code = METHOD_NOT_FOUND
    exam.judge_refusal("tasks/result, which is gone", code, await exam.send("tasks/result", {"taskId": "doctor"}))
    # Of this one it is not said in so many words.
    exam.judge_refusal("tasks/list, which is gone", code, await exam.send("tasks/list", {}), must=False)


async def refuse_undeclared(exam: Exam) -> None:
    """A client that does not declare the extension."""
    missing, task_id = MISSING_REQUIRED_CLIENT_CAPABILITY, exam.task_id or NEVER_GIVEN_OUT
    for method, params in _about(task_id).items():
        reply = await exam.send(method, params, declare=False)
        exam.judge_refusal(method, missing, reply)
        named = object_in(reply.error, "data", "requiredCapabilities", "extensions", EXTENSION_ID) is not None
        if reply.code == missing and method == "tasks/get" and not named:
            advice = "Put it under error.data.requiredCapabilities.extensions."
            exam.warn("what is missing", "the error does not name the missing extension", advice)
    probe = f"{LISTEN} for tasks"
    try:
        reply = await exam.send(LISTEN, {"notifications": {"taskIds": [task_id]}}, declare=False)
        if reply.code == METHOD_NOT_FOUND:
            exam.skip(LISTEN, "the server has no listen streams, which is allowed")
        else:
            exam.judge_refusal(probe, missing, reply)
    except Silence:
        exam.fail(probe, "the stream is opened, or the request ignored", f"Answer with error {missing}.")


async def answer_undeclared_call(exam: Exam) -> None:
    """A call from a client that does not declare the extension, but sends the old opt-in."""
    params, code = {**exam.call["params"], "task": {"ttl": 60000}}, MISSING_REQUIRED_CLIENT_CAPABILITY
    probe = f"call {params['name']}"
    advice = f"Let such clients have a direct answer, or refuse them with {code} if the tool is only there as a task."
    send = partial(exam.send, "tools/call", headers=exam.call["headers"], declare=False)
    if exam.is_slow:
        exam.skip(probe, "the direct answer takes longer than doctor waits", "Give a quicker tool.")
        return
    try:
        reply = await send(params)
    except Silence as exc:
        exam.skip(probe, f"the direct answer takes longer than doctor waits ({exc})")
        return
    result = reply.result or {}
    if result.get("resultType") == "task":
        exam.fail(probe, "it gets a task that it cannot handle", "Look at the capabilities on this very request.")
    elif reply.code == code:
        exam.judge_refusal(probe, code, reply)
    else:
        well = "answered directly; the `task` param of 2025-11-25 is ignored"
        exam.judge_result(probe, reply, well, advice, must=False)
    # What it asks is dismissed, so that nothing is left waiting.
    with suppress(Silence), anyio.move_on_after(ANSWER_TIMEOUT):
        while asked := object_in(result, "inputRequests"):
            answers = {key: {"action": "cancel"} for key in asked}
            state = {key: value for key, value in result.items() if key == "requestState"}
            result = (await send({**params, **state, "inputResponses": answers})).result or {}


async def check_headers(exam: Exam) -> None:
    """The routing headers of a request about a task (SEP-2663, "Routing Headers"): wrong, encoded, and missing."""
    if not exam.server.over_http:
        exam.skip("routing headers", "there are none over stdio")
        return
    methods, mismatch = _about(exam.task_id), HEADER_MISMATCH
    for method, params in methods.items():
        reply = await exam.send(method, params, headers={"mcp-name": "another-task"})
        exam.judge_refusal(f"{method} with another task in Mcp-Name", mismatch, reply)
    look = partial(exam.send, "tasks/get", methods["tasks/get"])
    exam.judge_refusal("another method in Mcp-Method", mismatch, await look(headers={"mcp-method": "tasks/cancel"}))
    reply = await look(headers={"mcp-name": f"=?base64?{base64.b64encode(exam.task_id.encode()).decode()}?="})
    well, advice = "decoded before it is compared", "Decode =?base64?...?= before comparing."
    exam.judge_result("Mcp-Name in base64", reply, well, advice)
    probe, reply = "no Mcp-Name", await look(headers={"mcp-name": None})
    if reply.code == mismatch:
        exam.warn(probe, "refused, as is allowed; some clients do not send it", "Accept it if you can.")
    else:
        advice = f"Accept it, or refuse it with {mismatch}."
        exam.judge_result(probe, reply, "accepted; some clients do not send it", advice)


async def look_twice(exam: Exam) -> None:
    """Looking at a task does not change it."""
    first, second = await _get(exam, exam.task_id), await _get(exam, exam.task_id)
    keys = ("lastUpdatedAt", "status", "statusMessage", "ttlMs", "_meta")
    changed = [key for key in keys if first.get(key) != second.get(key)]
    advice = "Move it only when the task changes; clients order states by it."
    flaw = Flaw("lastUpdatedAt moved although nothing changed", advice, "warn")
    well = "looking at a task does not change it"
    exam.judge("two looks in a row", [flaw] if changed == ["lastUpdatedAt"] else [], well)


async def update(exam: Exam) -> None:
    """An answer to a question that was never asked is acknowledged and ignored."""
    probe, responses = "answer that nobody asked for", {"mcp-tasks-doctor": {"action": "cancel"}}
    reply = await exam.send("tasks/update", {"taskId": exam.task_id, "inputResponses": responses})
    well, advice = "acknowledged and ignored", "Ignore unknown keys and acknowledge."
    exam.judge_result(probe, reply, well, advice, shapes.flaws_of_ack(reply.result or {}), must=False)


async def listen(exam: Exam) -> None:
    """Listen to a task for a while. A server need not have notifications; if it does, they must be right."""
    try:
        async with aclosing(exam.stream(LISTEN, {"notifications": {"taskIds": [exam.task_id]}})) as coming:
            with anyio.move_on_after(WATCHES):
                await _hear(exam, coming)
                return
        exam.skip("notification", f"nothing came within {WATCHES:g} s; the task may not have changed")
    except Silence as exc:
        exam.warn("stream", f"the stream did not last: {exc}", "Keep it open; clients poll meanwhile.")


async def _hear(exam: Exam, coming: AsyncIterator[Reply]) -> None:
    acknowledged = False
    async for reply in coming:
        method, params = reply.message.get("method"), object_in(reply.message, "params") or {}
        if "error" in reply.message or "result" in reply.message:
            exam.skip("stream", "the server offers no notifications, which is allowed: clients poll")
            return
        if method in ("notifications/progress", "notifications/message") or not isinstance(method, str | None):
            exam.fail("stream", f"{method} came on it", "A listen stream for a task carries notifications/tasks only.")
        elif method == LISTENING:
            acknowledged, ids = True, (object_in(params, "notifications") or {}).get("taskIds")
            if ids is not None and not isinstance(ids, list):
                exam.fail("acknowledgement", f"taskIds is {ids!r}", "It is a list of ids.")
            elif exam.task_id not in (ids or ()):
                exam.skip("acknowledgement", "the server does not push for this task, which is allowed: clients poll")
                return
            else:
                exam.ok("acknowledgement", "it names the task")
        elif method == "notifications/tasks":
            if not acknowledged:
                exam.fail("order", "a state came before the acknowledgement", "Acknowledge the stream first.")
            await _judge_state(exam, params)
            return


async def _judge_state(exam: Exam, params: JsonObject) -> None:
    exam.judge("notification", shapes.flaws_of_detailed(params), "the complete task")
    if params.get("taskId") != exam.task_id:
        exam.fail("whose", "the notification is about another task", "Send only what was subscribed to.")
    if SUBSCRIPTION_ID_META_KEY not in (object_in(params, "_meta") or {}):
        says = f"the notification has no {SUBSCRIPTION_ID_META_KEY} in _meta"
        exam.warn("subscription id", says, "Add it; clients with several streams tell them apart by it.")
    is_new = str((await _get(exam, exam.task_id)).get("lastUpdatedAt")) >= str(params.get("lastUpdatedAt"))
    flaw = Flaw("tasks/get shows an older state than the notification", "Notify after the state is stored.")
    exam.judge("agreement", [] if is_new else [flaw], "tasks/get shows what was notified, or newer")


async def cancel(exam: Exam) -> None:
    """Cancel a task, twice."""
    if not await _cancel(exam, "tasks/cancel"):
        return
    task, status = await _until(exam, exam.task_id, WATCHES, FINAL_STATUSES)
    well = "the task is cancelled" if status == "cancelled" else f"the task had {status} before it could be cancelled"
    advice = "Stop the work if you can: whoever cancelled it does not want the result."
    flaw = Flaw(f"it is still {status} after {WATCHES:g} s, which is allowed", advice, "warn")
    exam.judge("what becomes of it", [] if status in FINAL_STATUSES else [flaw], well)
    exam.judge("shape afterwards", shapes.flaws_of_detailed(task), f"a {status} task as it should be")
    await _cancel(exam, "tasks/cancel again")


async def _cancel(exam: Exam, probe: str) -> bool:
    reply = await exam.send("tasks/cancel", {"taskId": exam.task_id})
    well, advice = "acknowledged, with nothing but resultType", "Acknowledge, also when the task has ended."
    return exam.judge_result(probe, reply, well, advice, shapes.flaws_of_ack(reply.result or {}))


async def see_the_end(exam: Exam) -> None:
    """Make another task, let it end and look at its outcome."""
    made = (await exam.send("tools/call", **exam.call)).result or {}
    if made.get("resultType") != "task":
        return
    task_id, probe, asks = str(made.get("taskId")), "how it ends", "input_required"
    task, status = await _until(exam, task_id, ANSWER_TIMEOUT, {*FINAL_STATUSES, asks})
    if status in FINAL_STATUSES:
        exam.judge(probe, shapes.flaws_of_detailed(task), f"{status}, with what that status inlines")
    elif status == asks:
        exam.judge("questions", shapes.flaws_of_detailed(task), "the task asks, and the question can be read")
        exam.skip(probe, "the task waits for an answer", "Give a tool that asks nothing.")
    else:
        exam.skip(probe, f"the task is still {status} after {ANSWER_TIMEOUT:g} s", "Give a quicker tool.")
        exam.is_slow = True


async def _until(exam: Exam, task_id: str, seconds: float, statuses: Collection[str]) -> tuple[JsonObject, str]:
    """Poll a task at the interval it suggests, and once more when the time is up; the task and its status then."""
    ends = anyio.current_time() + seconds
    while True:
        task = await _get(exam, task_id)
        # As text: whatever a server sends for a status can be looked for then.
        status, left = str(task.get("status")), ends - anyio.current_time()
        if status in statuses or left <= 0:
            return task, status
        pause = task.get("pollIntervalMs")
        await anyio.sleep(min(max(pause, 100) / 1000 if shapes.is_whole(pause) else 1, left))


async def _get(exam: Exam, task_id: str) -> JsonObject:
    return (await exam.send("tasks/get", {"taskId": task_id})).result or {}


def _about(task_id: str) -> Mapping[str, JsonObject]:
    """The methods of the extension, and what they take."""
    task = {"taskId": task_id}
    return {"tasks/get": task, "tasks/update": {**task, "inputResponses": {}}, "tasks/cancel": task}


MOST_TRIES: Final = 3
"""Harmless tools that are tried for one that becomes a task."""

AREAS: Final = ("errors", "creation", "undeclared client", "headers", "lifecycle", "push", "cancel", "outcome")
"""What there is to look at where a server has tasks."""

Arguments: TypeAlias = Mapping[str, Any] | Callable[[JsonObject], Mapping[str, Any]]


async def examine(
    server: ServerAddress | str,
    *,
    tool: str | None = None,
    arguments: Arguments | None = None,
    headers: Mapping[str, str] | None = None,
    environment: Mapping[str, str] | None = None,
) -> Report:
    """Look at what a server does with tasks, probe by probe, with raw requests: what clients see is what it sees.

    Args:
        server: Its URL or, for a stdio server, its command.
        tool: The tool to make tasks with; it is called three times. Without one only tools are called that are marked
            `readOnlyHint` and need no arguments, and what needs a task is skipped if there is none.
        arguments: Its arguments, or a function that makes them when it is given the tool's input schema.
        headers: What goes with every HTTP request, credentials included.
        environment: The environment variables of a stdio server; without any, what the SDK gives every server.

    Raises:
        InvalidInput: The text names no server.
        ServerUnreachable: There is nothing to examine; it says why, and what to do.
        InvalidInput: The server has no such tool.
    """
    address = ServerAddress.parse(server) if isinstance(server, str) else server
    try:
        async with connect_raw(address, headers or {}, environment) as connection:
            return await examine_over(connection, tool=tool, arguments=arguments)
    except BaseExceptionGroup as group:
        # The pipes are read by a group of tasks, which wraps whatever is raised meanwhile.
        first, *others = leaves(group)
        raise (group if others else first) from None


async def examine_over(server: RawConnection, *, tool: str | None = None, arguments: Arguments | None = None) -> Report:
    """Examine the server at the other end of a connection."""
    exam = Exam(server)
    await exam.look("negotiation", negotiate(exam))
    why = exam.report.unexamined
    if exam.has_tasks:
        why = "there is no task to look at"
        await exam.look("errors", refuse_unknown_tasks(exam))
        await exam.look("errors", refuse_removed_methods(exam))
        await exam.look("creation", _create(exam, tool, arguments or {}))
        await exam.look("undeclared client", refuse_undeclared(exam))
    if exam.task_id:
        await exam.look("headers", check_headers(exam))
        await exam.look("lifecycle", look_twice(exam))
        await exam.look("lifecycle", update(exam))
        await exam.look("push", listen(exam))
        await exam.look("cancel", cancel(exam))
        await exam.look("outcome", see_the_end(exam))
        # Last, because it may take as long as the tool does.
        await exam.look("undeclared client", answer_undeclared_call(exam))
    elif why:
        seen = {finding.area for finding in exam.report}
        for exam.area in (area for area in AREAS if area not in seen):
            exam.skip("all of it", why)
    for task_id in exam.made:
        # Whatever the server says to that, nothing is left at work.
        with suppress(Silence):
            await exam.send("tasks/cancel", {"taskId": task_id})
    # What an older server says of requests that it cannot read is none of what is examined.
    if server.stray and not (server.over_http and exam.report.unexamined):
        exam.area, probe = ("answers", "ids") if server.over_http else ("stdout", "lines")
        advice = "Write JSON-RPC messages there and nothing else; logs go to stderr."
        exam.fail(probe, server.stray, "Answer with the id of the request." if server.over_http else advice)
    return exam.report


async def _create(exam: Exam, tool: str | None, arguments: Arguments) -> None:
    """Make a task, with this tool or with the first harmless one whose call becomes one, and look at it."""
    tools = await _tools(exam)
    if tool is not None and tool not in tools:
        raise unknown_tool(tool, tools)
    chosen = [name for name in tools if _is_harmless(tools[name])][:MOST_TRIES] if tool is None else [tool]
    if not chosen:
        says = "no tool is marked readOnlyHint and takes no arguments, and doctor calls no other by itself"
        advice = "Name one (--tool NAME key=value ...; tool= and arguments= in Python); it is called three times."
        exam.skip("a tool to call", says, advice)
    for name in chosen:
        exam.call = _call(tools[name], arguments if tool else {})
        probe, reply = f"call {name}", await exam.send("tools/call", **exam.call)
        kind = (reply.result or {}).get("resultType", "complete")
        if reply.result is None:
            exam.warn(probe, f"answered with {reply.summary}", "Give arguments that work, or another tool.")
        elif kind == "task":
            exam.ok(probe, "answered with a task")
            await _look_at_created(exam, reply.result)
            return
        elif kind == "input_required":
            exam.skip(probe, "it asks something before there is a task", "Give a tool that does not.")
        elif kind == "complete":
            advice = "Give a tool that becomes a task to look at the rest."
            exam.skip(probe, "answered directly, which is allowed: the server decides", advice)
        else:
            exam.fail(probe, f"resultType is {kind!r}", 'Use "complete", "input_required" or "task".')


async def _look_at_created(exam: Exam, created: JsonObject) -> None:
    """Judge a new task and look at it at once."""
    task_id, ttl = created.get("taskId"), created.get("ttlMs")
    exam.judge("shape of the new task", shapes.flaws_of_created(created), "flat, with every field it must have")
    if not isinstance(task_id, str) or not task_id:
        return
    kept = f"kept for {ttl / 1000:g} s" if shapes.is_whole(ttl) else "kept without limit"
    exam.judge("times", shapes.flaws_of_time(created, datetime.now(UTC)), f"created just now, {kept}")
    exam.judge("id", shapes.flaws_of_id(task_id), "long enough not to be guessed")
    probe, reply = "tasks/get at once", await exam.send("tasks/get", {"taskId": task_id})
    advice = "Answer a call only when tasks/get finds the task everywhere."
    well = "the task is there as soon as its id is known"
    exam.judge_result(probe, reply, well, advice, shapes.flaws_of_first_look(reply.result or {}, created))
    if reply.result is not None:
        well = "the fields its status asks for, and no others"
        exam.judge("shape in tasks/get", shapes.flaws_of_detailed(reply.result), well)
        exam.task_id = task_id


async def _tools(exam: Exam) -> Mapping[str, JsonObject]:
    """The server's tools, by their names."""
    tools: dict[str, JsonObject] = {}
    cursor: Any = None
    for _ in range(PAGE_LIMIT):
        page = (await exam.send("tools/list", {"cursor": cursor} if cursor else {})).result or {}
        if not isinstance(page.get("tools", []), list):
            exam.fail("tools/list", f"tools is {page['tools']!r}", "It is a list of tools.")
        for tool in list_in(page, "tools"):
            match tool:
                case {"name": str(name)}:
                    tools.setdefault(name, tool)
                case _:
                    exam.fail("tools/list", f"{tool!r} is no tool", "A tool is an object with a name.")
        if not (cursor := page.get("nextCursor")):
            break
    return tools


def _call(tool: JsonObject, arguments: Arguments) -> dict[str, Any]:
    """The params of a call, and its headers, as the tool's schema asks for them."""
    schema = object_in(tool, "inputSchema") or {}
    given = dict(arguments(schema) if callable(arguments) else arguments)
    headers = mcp_param_headers(x_mcp_header_map(dict(schema)), given)
    return {"params": {"name": tool["name"], "arguments": given}, "headers": headers}


def _is_harmless(tool: JsonObject) -> bool:
    hints, schema = object_in(tool, "annotations") or {}, object_in(tool, "inputSchema") or {}
    return bool(hints.get("readOnlyHint")) and not schema.get("required")
