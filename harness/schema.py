"""The official JSON schemas, as a check on everything a server under test answers."""

import json
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Any

from jsonschema import Draft202012Validator

_FOLDER = Path(__file__).parent.parent / "tests" / "spec" / "schema"

_NEWER, _OLDER = "mcp-2026-07-28", "mcp-2025-11-25"
_OLDER_AUGMENTED = ("tools/call", "prompts/get", "resources/read", "elicitation/create", "sampling/createMessage")
_OLDER_TASK_FIELDS = {"createdAt", "lastUpdatedAt", "pollInterval", "status", "statusMessage", "taskId", "ttl"}
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
        _check(_NEWER, "JSONRPCResultResponse", message)
        _check_result(method, message["result"])


def check_notification(name: str, message: Mapping[str, Any]) -> None:
    _check(_NEWER, name, message)


def check_task_notification(message: Mapping[str, Any]) -> None:
    _check(_NEWER, "JSONRPCNotification", message)
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
    known = _methods(_OLDER, "ServerRequest" if "id" in message else "ServerNotification")
    assert message["method"] in known, f"nothing a server sends: {json.dumps(message)[:500]}"
    _check(_OLDER, known[message["method"]], message)
    if message["method"] == "notifications/tasks/status":
        check_older_task(message["params"])


def check_older_request(message: Mapping[str, Any]) -> None:
    """Check a request or a notification of a client on the 2025-11-25 wire, as far as it concerns tasks."""
    _check(_OLDER, "JSONRPCRequest" if "id" in message else "JSONRPCNotification", message)
    name = _methods(_OLDER, "ClientRequest").get(str(message["method"]))
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
    return _result_of(_OLDER, method)


def _older_tasks(method: str, result: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    if method in _OLDER_AUGMENTED:
        return [result["task"]] if "task" in result else []
    if method == "tasks/list":
        return list(result["tasks"])
    return [result] if method in ("tasks/get", "tasks/cancel") else []


def check_legacy_result(name: str, result: Mapping[str, Any]) -> None:
    _check(_OLDER, name, result)


def _check_error(message: Mapping[str, Any]) -> None:
    # An id that could not be read is null in JSON-RPC; the schema has it left out.
    known = {key: value for key, value in message.items() if not (key == "id" and value is None)}
    code = message["error"]["code"]
    _check(_NEWER, "JSONRPCErrorResponse", known)
    if code in _ERRORS:
        _check(_NEWER, _ERRORS[code], message["error"])
    if code in _ERROR_MESSAGES:
        _check(_NEWER, _ERROR_MESSAGES[code], known)


def _check_result(method: str, result: Mapping[str, Any]) -> None:
    if method == "tools/call":
        _check_call_result(result)
    elif method in _TASK_RESULTS:
        _check("ext-tasks", _TASK_RESULTS[method], result)
        if method == "tasks/get":
            _check_task(result)
    elif (name := _result_of(_NEWER, method)) is not None:
        _check(_NEWER, name, result)


def _check_call_result(result: Mapping[str, Any]) -> None:
    match result["resultType"]:
        case "task":
            _check("ext-tasks", "CreateTaskResult", result)
        case "input_required":
            _check(_NEWER, "InputRequiredResult", result)
        case _:
            _check(_NEWER, "CallToolResult", result)


def _check_task(task: Mapping[str, Any]) -> None:
    _check("ext-tasks", _TASKS_BY_STATUS[task["status"]], task)
    if task["status"] == "completed":
        _check(_NEWER, "CallToolResult", task["result"])


@cache
def _methods(schema: str, union: str) -> Mapping[str, str]:
    """The definitions of the requests or notifications that a union names, by their methods."""
    definitions = _document(schema)["$defs"]
    names = [one["$ref"].rpartition("/")[2] for one in definitions[union]["anyOf"]]
    return {definitions[name]["properties"]["method"]["const"]: name for name in names}


def _result_of(schema: str, method: str) -> str | None:
    """The definition of a method's result, where it has one."""
    unions = [union for union in ("ClientRequest", "ServerRequest") if union in _document(schema)["$defs"]]
    named = next((_methods(schema, union)[method] for union in unions if method in _methods(schema, union)), "")
    name = named.removesuffix("Request") + "Result"
    return name if named and name in _document(schema)["$defs"] else None


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
