"""What a step gives or raises, as the journal keeps it and as later runs get it back.

A step comes back as what it was: JSON as JSON makes it, and what the function's annotation names (Pydantic models,
dataclasses, datetimes, lists of those) as such. The first run gets the same as every later one, so that a tool cannot
come to depend on what does not survive.
"""

from __future__ import annotations

import dataclasses
import functools
import inspect
import json
import sys
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Mapping
from typing import Any, Never, NoReturn, cast, get_args, get_origin, get_type_hints

from pydantic import BaseModel, PydanticSchemaGenerationError, PydanticUserError, TypeAdapter, ValidationError

from mcp_tasks.core.json import JsonValue
from mcp_tasks.errors import StepError, UsageError

_UNTYPED = (None, Any, object, type(None), NoReturn, Never)


class StepValue:
    """How the values of one step are kept.

    Raises:
        UsageError: The function's annotation names something that cannot be kept.
    """

    def __init__(self, step: str, function: Callable[..., Any]) -> None:
        self._step = step
        self._adapter = _annotated(step, function)

    def keep(self, value: Any) -> tuple[JsonValue, Any]:
        """The value for the journal, and as the tool gets it.

        Raises:
            UsageError: It cannot be kept as JSON.
        """
        adapter, stored = self._adapter or _model_adapter(value), {}
        if adapter is not None:
            try:
                kept = adapter.dump_python(value, mode="json", by_alias=False, warnings="error")
                stored = {"value": _plain(kept)} | ({} if self._adapter else {"type": _name(value)})
                return stored, _read(adapter, stored["value"])
            except (ValueError, TypeError, RecursionError):
                # The annotation is not true of this value; it is kept as what it is.
                pass
        try:
            stored = {"value": _plain(value)}
        except (TypeError, ValueError, RecursionError) as exc:
            raise UsageError(
                f"step {self._step!r} gave a value that cannot be kept as JSON: {exc}. Return plain JSON, a Pydantic "
                "model or a dataclass, and annotate the function with it."
            ) from exc
        return stored, stored["value"]

    def restore(self, stored: Mapping[str, Any]) -> Any:
        """The value as the tool got it in the run that recorded it."""
        value = stored["value"]
        name = stored.get("type")
        adapter = self._adapter if name is None else _adapter_of(_find(name))
        if adapter is None:
            return value
        try:
            return _read(adapter, value)
        except ValidationError:
            # Recorded when the annotation was another, or was not true.
            return value


def keep_error(exc: Exception) -> dict[str, Any]:
    """What the journal keeps of an exception."""
    try:
        arguments = _plain(list(exc.args))
    except (TypeError, ValueError, RecursionError):
        arguments = None
    return {"error": {"type": _name(exc), "arguments": arguments, "message": str(exc)}}


def restore_error(step: str, stored: Mapping[str, Any]) -> Exception:
    """The exception of a step that failed: as its own class where it can be rebuilt, else as a `StepError`."""
    error = stored["error"]
    rebuilt = _rebuild(error)
    return rebuilt if rebuilt is not None else StepError(step, error["type"].rpartition(":")[2], error["message"])


def _rebuild(error: Mapping[str, Any]) -> Exception | None:
    found = _find(error["type"])
    if error["arguments"] is None or not (isinstance(found, type) and issubclass(found, Exception)):
        return None
    try:
        rebuilt = found(*error["arguments"])
    except Exception:
        return None
    # A class that makes its message from other things would come back saying something else.
    return rebuilt if str(rebuilt) == error["message"] else None


def _read(adapter: TypeAdapter[Any], kept: JsonValue) -> Any:
    # Fields are kept by their names: the aliases of a model may differ between reading and writing.
    return adapter.validate_python(kept, by_alias=False, by_name=True)


def _annotated(step: str, function: Callable[..., Any]) -> TypeAdapter[Any] | None:
    annotation = _return_annotation(function)
    if annotation in _UNTYPED:
        return None
    if inspect.isclass(get_origin(annotation) or annotation) and issubclass(
        get_origin(annotation) or annotation, Iterator | AsyncIterator
    ):
        raise _cannot_be_kept(step, annotation, "it is gone once it was read")
    try:
        return _adapter_of(annotation)
    except (PydanticSchemaGenerationError, PydanticUserError) as exc:
        raise _cannot_be_kept(step, annotation, "it has no JSON form") from exc


def _cannot_be_kept(step: str, annotation: Any, why: str) -> UsageError:
    return UsageError(
        f"step {step!r} would return {annotation!r}, which cannot be kept ({why}). Return plain JSON, a Pydantic model "
        "or a dataclass."
    )


def _return_annotation(function: Callable[..., Any]) -> Any:
    target = function
    while isinstance(target, functools.partial):
        target = cast("functools.partial[Any]", target).func
    if not inspect.isroutine(target):
        # A class says nothing of what calling it returns; an object may, on its `__call__`.
        target = None if inspect.isclass(target) else vars(type(target)).get("__call__")
    try:
        annotation = get_type_hints(target).get("return") if target is not None else None
    except Exception:
        # Names that cannot be resolved from here.
        return None
    origin = get_origin(annotation)
    # What is given to be awaited is awaited; the last of its arguments says what that gives.
    return get_args(annotation)[-1] if inspect.isclass(origin) and issubclass(origin, Awaitable) else annotation


def _model_adapter(value: Any) -> TypeAdapter[Any] | None:
    """For a value whose function does not say what it returns: by its own class, if that can be found again."""
    is_model = isinstance(value, BaseModel) or (dataclasses.is_dataclass(value) and not isinstance(value, type))
    return _adapter_of(type(value)) if is_model and _find(_name(value)) is type(value) else None


def _adapter_of(annotation: Any) -> TypeAdapter[Any] | None:
    if annotation is None:
        return None
    try:
        return _cached_adapter(annotation)
    except TypeError:
        # An annotation that cannot be hashed.
        return TypeAdapter(annotation)


@functools.lru_cache(maxsize=1024)
def _cached_adapter(annotation: Any) -> TypeAdapter[Any]:
    return TypeAdapter(annotation)


def _plain(value: Any) -> JsonValue:
    return json.loads(json.dumps(value))


def _name(value: object) -> str:
    """Where the class of a value is found again."""
    return f"{type(value).__module__}:{type(value).__qualname__}"


def _find(name: str) -> Any:
    """What a name stands for in the modules that are loaded; None if it stands for nothing."""
    module, _, path = name.partition(":")
    found: Any = sys.modules.get(module)
    for part in path.split("."):
        found = getattr(found, part, None)
    return found
