"""The official JSON schemas, as a check on everything a server under test answers."""

from __future__ import annotations

import json
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Any

from jsonschema import Draft202012Validator

_FOLDER = Path(__file__).parent.parent / "tests" / "spec" / "schema"

_RESULTS = {
    "completion/complete": "CompleteResult",
    "prompts/get": "GetPromptResult",
    "prompts/list": "ListPromptsResult",
    "resources/list": "ListResourcesResult",
    "resources/read": "ReadResourceResult",
    "resources/templates/list": "ListResourceTemplatesResult",
    "server/discover": "DiscoverResult",
    "tools/list": "ListToolsResult",
}
_OLDER = "mcp-2025-11-25"
_OLDER_AUGMENTED = ("tools/call", "prompts/get", "resources/read", "elicitation/create", "sampling/createMessage")
_OLDER_RESULTS = {
    "completion/complete": "CompleteResult",
    "elicitation/create": "ElicitResult",
    "initialize": "InitializeResult",
    "prompts/get": "GetPromptResult",
    "prompts/list": "ListPromptsResult",
    "resources/list": "ListResourcesResult",
    "resources/read": "ReadResourceResult",
    "resources/templates/list": "ListResourceTemplatesResult",
    "sampling/createMessage": "CreateMessageResult",
    "tasks/cancel": "CancelTaskResult",
    "tasks/get": "GetTaskResult",
    "tasks/list": "ListTasksResult",
    "tasks/result": "GetTaskPayloadResult",
    "tools/call": "CallToolResult",
    "tools/list": "ListToolsResult",
}
_OLDER_REQUESTS = {
    "elicitation/create": "ElicitRequest",
    "ping": "PingRequest",
    "roots/list": "ListRootsRequest",
    "sampling/createMessage": "CreateMessageRequest",
}
_OLDER_CLIENT_REQUESTS = {
    "initialize": "InitializeRequest",
    "tasks/cancel": "CancelTaskRequest",
    "tasks/get": "GetTaskRequest",
    "tasks/list": "ListTasksRequest",
    "tasks/result": "GetTaskPayloadRequest",
    "tools/call": "CallToolRequest",
    "tools/list": "ListToolsRequest",
}
_OLDER_NOTIFICATIONS = {
    "notifications/cancelled": "CancelledNotification",
    "notifications/elicitation/complete": "ElicitationCompleteNotification",
    "notifications/message": "LoggingMessageNotification",
    "notifications/progress": "ProgressNotification",
    "notifications/prompts/list_changed": "PromptListChangedNotification",
    "notifications/resources/list_changed": "ResourceListChangedNotification",
    "notifications/resources/updated": "ResourceUpdatedNotification",
    "notifications/tasks/status": "TaskStatusNotification",
    "notifications/tools/list_changed": "ToolListChangedNotification",
}
_OLDER_TASK_FIELDS = {
    "createdAt",
    "lastUpdatedAt",
    "pollInterval",
    "status",
    "statusMessage",
    "taskId",
    "ttl",
}
_TASK_RESULTS = {"tasks/get": "GetTaskResult", "tasks/update": "UpdateTaskResult", "tasks/cancel": "CancelTaskResult"}
_TASKS_BY_STATUS = {
    "working": "WorkingTask",
    "input_required": "InputRequiredTask",
    "completed": "CompletedTask",
    "failed": "FailedTask",
    "cancelled": "CancelledTask",
}
_ERRORS = {
    -32700: "ParseError",
    -32600: "InvalidRequestError",
    -32601: "MethodNotFoundError",
    -32602: "InvalidParamsError",
    -32603: "InternalError",
}
_ERROR_MESSAGES = {-32020: "HeaderMismatchError", -32021: "MissingRequiredClientCapabilityError"}


def check_message(method: str, message: Mapping[str, Any]) -> None:
    """Check the answer to a request of the 2026-07-28 wire against the official schemas."""
    if "error" in message:
        _check_error(message)
    else:
        _check("mcp-2026-07-28", "JSONRPCResultResponse", message)
        _check_result(method, message["result"])


def check_notification(name: str, message: Mapping[str, Any]) -> None:
    """Check a notification of the 2026-07-28 wire against its definition."""
    _check("mcp-2026-07-28", name, message)


def check_task_notification(message: Mapping[str, Any]) -> None:
    """Check a `notifications/tasks` against the extension's definitions."""
    _check("mcp-2026-07-28", "JSONRPCNotification", message)
    _check("ext-tasks", "TaskStatusNotification", message)
    _check_task(message["params"])


def check_older_answer(request: Mapping[str, Any], message: Mapping[str, Any]) -> None:
    """Check the answer to a request of the 2025-11-25 wire, and that nothing of the newer wire is in it."""
    if "error" in message:
        _check(_OLDER, "JSONRPCErrorResponse", message)
        return
    _check(_OLDER, "JSONRPCResultResponse", message)
    name, result = _older_definition(request, message["result"]), message["result"]
    assert "resultType" not in result
    if name is not None:
        _check(_OLDER, name, result)
    for task in _older_tasks(str(request["method"]), result):
        check_older_task(task)


def check_older_push(message: Mapping[str, Any]) -> None:
    """Check a request or a notification of a server on the 2025-11-25 wire."""
    known = _OLDER_REQUESTS if "id" in message else _OLDER_NOTIFICATIONS
    assert message["method"] in known, f"nothing a server sends: {json.dumps(message)[:500]}"
    _check(_OLDER, known[message["method"]], message)
    if message["method"] == "notifications/tasks/status":
        check_older_task(message["params"])


def check_older_request(message: Mapping[str, Any]) -> None:
    """Check a request or a notification of a client on the 2025-11-25 wire, as far as it concerns tasks."""
    _check(_OLDER, "JSONRPCRequest" if "id" in message else "JSONRPCNotification", message)
    name = _OLDER_CLIENT_REQUESTS.get(str(message["method"]))
    if name is not None:
        _check(_OLDER, name, message)


def check_older_task(task: Mapping[str, Any]) -> None:
    """Check the fields of a task of the 2025-11-25 wire: those of the schema, and no nulls but that of `ttl`."""
    _check(_OLDER, "Task", task)
    assert task.keys() <= _OLDER_TASK_FIELDS | {"_meta"}, task.keys() - _OLDER_TASK_FIELDS
    assert None not in [value for key, value in task.items() if key != "ttl"]


def _older_definition(request: Mapping[str, Any], result: Mapping[str, Any]) -> str | None:
    method, params = request["method"], request.get("params", {})
    if method in _OLDER_AUGMENTED and "task" in params and "task" in result:
        return "CreateTaskResult"
    return _OLDER_RESULTS.get(method)


def _older_tasks(method: str, result: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    if method in _OLDER_AUGMENTED:
        return [result["task"]] if "task" in result else []
    if method == "tasks/list":
        return list(result["tasks"])
    return [result] if method in ("tasks/get", "tasks/cancel") else []


def check_legacy_result(name: str, result: Mapping[str, Any]) -> None:
    """Check a result of the 2025-11-25 wire against its definition."""
    _check("mcp-2025-11-25", name, result)


def _check_error(message: Mapping[str, Any]) -> None:
    # An id that could not be read is null in JSON-RPC; the schema has it left out.
    known = {key: value for key, value in message.items() if not (key == "id" and value is None)}
    code = message["error"]["code"]
    _check("mcp-2026-07-28", "JSONRPCErrorResponse", known)
    if code in _ERRORS:
        _check("mcp-2026-07-28", _ERRORS[code], message["error"])
    if code in _ERROR_MESSAGES:
        _check("mcp-2026-07-28", _ERROR_MESSAGES[code], known)


def _check_result(method: str, result: Mapping[str, Any]) -> None:
    if method == "tools/call":
        _check_call_result(result)
    elif method in _TASK_RESULTS:
        _check("ext-tasks", _TASK_RESULTS[method], result)
        if method == "tasks/get":
            _check_task(result)
    elif method in _RESULTS:
        _check("mcp-2026-07-28", _RESULTS[method], result)


def _check_call_result(result: Mapping[str, Any]) -> None:
    match result["resultType"]:
        case "task":
            _check("ext-tasks", "CreateTaskResult", result)
        case "input_required":
            _check("mcp-2026-07-28", "InputRequiredResult", result)
        case _:
            _check("mcp-2026-07-28", "CallToolResult", result)


def _check_task(task: Mapping[str, Any]) -> None:
    _check("ext-tasks", _TASKS_BY_STATUS[task["status"]], task)
    if task["status"] == "completed":
        _check("mcp-2026-07-28", "CallToolResult", task["result"])


def _check(schema: str, definition: str, value: Any) -> None:
    problems = [f"{error.json_path}: {error.message}" for error in _validator(schema, definition).iter_errors(value)]
    assert not problems, f"not a {definition} of {schema}: {problems}\n{json.dumps(value)[:2000]}"


@cache
def _validator(schema: str, definition: str) -> Draft202012Validator:
    document = _document(schema)
    assert definition in document["$defs"], f"{schema} defines no {definition}"
    # A reference to a definition stays inside the document only if the definitions come along.
    return Draft202012Validator({"$ref": f"#/$defs/{definition}", "$defs": document["$defs"]})


@cache
def _document(schema: str) -> dict[str, Any]:
    return json.loads((_FOLDER / f"{schema}.json").read_text(encoding="utf-8"))
