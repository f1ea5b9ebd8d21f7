"""Whether a function of the SDK takes the arguments of a call, and why not: with bounded work, in few words.

Pydantic validates a list to its end, and writes a few lines about each value that does not fit: a mebibyte of them
makes an answer of 60 MB and keeps the interpreter for seconds. So what is not small is validated up to the first value
of each list that does not fit, and an answer names the first few problems.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cached_property
from typing import Any, Final, cast

from mcp.server.mcpserver.tools import Tool
from pydantic import ValidationError
from pydantic_core import CoreSchema, ErrorDetails, SchemaValidator

from mcp_tasks.core.json_bytes import rough_size
from mcp_tasks.core.text import valid_text

SMALL: Final = 4 * 1024
"""Bytes of JSON, roughly, in which every problem is looked for."""

MOST_PROBLEMS: Final = 10
"""Problems that are told of one call."""

MOST_COUNTED: Final = 10_000
"""Problems among which the first are found: Pydantic gives all of them or none. A model in a list of its own may have
more."""

LONGEST: Final = 4 * 1024
"""Characters of what is told: the names in it are the caller's."""

_NOT_ALL: Final = "Large arguments are looked at up to the first problem of each list: there may be more"

_COLLECTIONS: Final = frozenset({"list", "tuple", "set", "frozenset", "dict"})
_NO_SCHEMAS: Final = frozenset({"cls", "config", "default", "metadata", "serialization"})
_AS_IT_IS: Final = frozenset({"function-wrap", "function-plain", "chain", "dataclass", "call", "arguments"})
"""What in a schema of Pydantic's works with an instance of a model, or is compiled already."""

_PLAIN_CONFIG: Final = frozenset({"title", "extra_fields_behavior"})


class ArgumentsRefused(ValueError):
    """Arguments do not fit; the text says why, as the SDK says it, but in bounded words."""


class ArgumentCheck:
    """What the SDK makes of arguments for one function, before it enters it.

    Args:
        tool: The function, as the SDK registers it.
    """

    def __init__(self, tool: Tool) -> None:
        self._tool = tool

    def problem_with(self, arguments: Mapping[str, Any]) -> Exception | None:
        """Why the SDK will not let the function have these arguments; None if it will. Anything but `ArgumentsRefused`
        is a defect in what validates them."""
        given = dict(arguments)
        if is_more_than_small(arguments) and (found := self._first_problem(given)) is not None:
            return self._refused(found, _NOT_ALL)
        try:
            self._tool.fn_metadata.validate_arguments(given)
        except ValidationError as exc:
            return self._refused(exc)
        except Exception as exc:
            # Whatever it is: the SDK would run into it too.
            return exc
        return None

    def _first_problem(self, arguments: dict[str, Any]) -> ValidationError | None:
        if self._fast is None:
            return None
        try:
            self._fast.validate_python(self._tool.fn_metadata.pre_parse_json(arguments))
        except ValidationError as exc:
            return exc
        except Exception:
            # It is more lenient than the whole, so a function of the author's may meet what it does not expect.
            return None
        return None

    @cached_property
    def _fast(self) -> SchemaValidator | None:
        try:
            return SchemaValidator(_failing_fast(self._tool.fn_metadata.arg_model.__pydantic_core_schema__))
        except Exception:
            # A model that is not what it seems to be.
            return None

    def _refused(self, problem: ValidationError, *more: str) -> ArgumentsRefused:
        count = problem.error_count()
        lines = [f"{count} validation error{'s'[: count > 1]} for {self._tool.fn_metadata.arg_model.__name__}"]
        if count <= MOST_PROBLEMS:
            # As Pydantic words it, which names what validates.
            lines += str(problem).partition("\n")[2:]
        elif count <= MOST_COUNTED:
            details = problem.errors(include_url=False, include_input=False)[:MOST_PROBLEMS]
            lines += [*map(_line, details), f"and {count - MOST_PROBLEMS:,} more"]
        text = "\n".join([*lines, *more])
        return ArgumentsRefused(valid_text(text if len(text) <= LONGEST else text[: LONGEST - 1] + "…"))


def is_more_than_small(arguments: Mapping[str, Any]) -> bool:
    """Whether arguments are such that not every problem with them is looked for."""
    return rough_size(dict(arguments)) > SMALL


def _line(error: ErrorDetails) -> str:
    return f"{'.'.join(map(str, error['loc']))}\n  {error['msg']} [type={error['type']}]"


def _failing_fast(schema: CoreSchema) -> CoreSchema:
    """A schema of Pydantic's in which the validation of a collection ends with its first problem. It lets pass whatever
    the given one does, and maybe more.

    Models are replaced by their fields: a validator of each is there already, and would be taken as it is.
    """
    return cast("CoreSchema", _copied(schema))


def _copied(node: Any) -> Any:
    if isinstance(node, list | tuple):
        items = [_copied(item) for item in cast("Sequence[Any]", node)]
        return tuple(items) if isinstance(node, tuple) else items
    if not isinstance(node, dict):
        return node
    part = cast("dict[str, Any]", node)
    kind = part.get("type")
    if kind in _AS_IT_IS:
        return part
    if kind == "model":
        return _fields_of(part)
    if kind == "function-after" and part["schema"].get("type") == "model":
        # It would be called with an instance.
        return _copied(part["schema"])
    copy = {name: value if name in _NO_SCHEMAS else _copied(value) for name, value in part.items()}
    return {**copy, "fail_fast": True} if kind in _COLLECTIONS else copy


def _fields_of(model: dict[str, Any]) -> Any:
    config: dict[str, Any] = model.get("config", {})
    fields = model["schema"]
    if model.get("strict") or model.get("custom_init") or not config.keys() <= _PLAIN_CONFIG:
        return model
    copy = _copied(fields)
    if copy is fields:
        return model
    if "extra_fields_behavior" in config and fields.get("type") == "model-fields":
        copy.setdefault("extra_behavior", config["extra_fields_behavior"])
    return {**copy, "ref": model["ref"]} if "ref" in model else copy
