"""Steps: how often they are tried, and how their values and errors are kept in the journal and come back."""

from __future__ import annotations

import base64
import dataclasses
import functools
import importlib
import inspect
import json
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Mapping
from dataclasses import dataclass
from datetime import timedelta
from functools import partial
from typing import Any, Final, Never, NoReturn, cast, get_args, get_origin, get_type_hints

import anyio.to_thread
from pydantic import (
    BaseModel,
    ConfigDict,
    PydanticSchemaGenerationError,
    PydanticUserError,
    TypeAdapter,
    ValidationError,
)

from mcp_tasks.errors import InvalidOption, StepError, UsageError
from mcp_tasks.model.json import JsonValue
from mcp_tasks.model.limits import backoff
from mcp_tasks.model.values import check_duration, check_instance, check_number

_UNTYPED: Final = (None, Any, object, type(None), NoReturn, Never)
_BYTES_AS_BASE64: Final = ConfigDict(ser_json_bytes="base64", val_json_bytes="base64")
_BYTES: Final = "__bytes__"

# ---- values


class StepValue:
    """How the values of one step are kept.

    Raises:
        UsageError: The function's annotation names something that cannot be kept.
    """

    def __init__(self, step: str, function: Callable[..., Any]) -> None:
        self._step = step
        self._annotation = annotation = _return_annotation(function)
        self._adapter: TypeAdapter[Any] | None = None
        if annotation in _UNTYPED:
            return
        kind = get_origin(annotation) or annotation
        if inspect.isclass(kind) and issubclass(kind, Iterator | AsyncIterator):
            raise _cannot_be_kept(step, annotation, "it is gone once it was read")
        try:
            self._adapter = _adapter_of(annotation)
        except (PydanticSchemaGenerationError, PydanticUserError) as exc:
            raise _cannot_be_kept(step, annotation, "it has no JSON form") from exc

    def keep(self, value: Any) -> tuple[dict[str, JsonValue], Any]:
        """The value for the journal, and as the tool gets it.

        Raises:
            UsageError: It cannot be kept as JSON, or would come back changed.
        """
        plain = why = None
        try:
            plain = _plain(value)
        except (TypeError, ValueError, RecursionError) as exc:
            why = exc
        if why is None and _is_exactly(value, plain):
            return {"value": plain}, plain
        forms = self._typed_forms(value)
        for annotation, form in forms:
            kept = _kept_as(annotation, value)
            if kept is not None:
                return {"value": kept[0], **form}, kept[1]
        if why is None:
            return {"value": plain}, plain
        refused = f"step {self._step!r} gave a value that cannot be kept as JSON"
        if not forms:
            raise UsageError(
                f"{refused}: {why}. Return plain JSON, a Pydantic model or a dataclass, and annotate the function "
                "with it."
            ) from why
        raise UsageError(
            f"{refused}: this {type(value).__qualname__} would not come back equal to what it is. Secrets, excluded "
            "fields, fields that the constructor does not take, and what a subclass adds to the annotated class are "
            "lost. Return plain JSON, or a Pydantic model or dataclass that can be written as JSON and read back, and "
            "annotate the function with exactly that."
        ) from why

    def restore(self, stored: Mapping[str, Any]) -> Any:
        """The value as the tool got it in the run that recorded it."""
        value, adapter = stored["value"], self._adapter
        try:
            if stored.get("form") != "annotation":
                found = _find(stored["type"]) if "type" in stored else None
                adapter = _adapter_of(cast("type[Any]", found)) if isinstance(found, type) else None
            return value if adapter is None else _read(adapter, value)
        except (ValidationError, PydanticUserError):
            # Recorded when the annotation or the class was another.
            return value

    def _typed_forms(self, value: Any) -> list[tuple[Any, dict[str, str]]]:
        """The types as which a value may be kept that is more than JSON, and how its entry names them."""
        own_class = cast("type[Any]", type(value))
        # A built-in value is kept as JSON makes it unless the annotation says more.
        can_be_named = own_class.__module__ != "builtins" and _find(_name(value)) is own_class
        by_class = [(own_class, {"type": _name(value)})] if can_be_named else []
        # A class that is found by its name does not need the annotation, which may change.
        if self._adapter is None or (can_be_named and self._annotation is own_class):
            return by_class
        return [(self._annotation, {"form": "annotation"}), *by_class]


def _cannot_be_kept(step: str, annotation: Any, why: str) -> UsageError:
    return UsageError(
        f"step {step!r} would return {annotation!r}, which cannot be kept ({why}). Return plain JSON, a Pydantic model "
        "or a dataclass."
    )


def _kept_as(annotation: Any, value: Any) -> tuple[JsonValue, Any] | None:
    """A value as JSON, and as it is read back; None if that is not the value."""
    try:
        adapter = _adapter_of(annotation)
        kept = _plain(adapter.dump_python(value, mode="json", by_alias=False, round_trip=True, warnings="error"))
        again = _read(adapter, kept)
        return (kept, again) if _same(value, again) else None
    except Exception:
        # Validators, serializers and comparisons are the author's, and raise what they like.
        return None


def _read(adapter: TypeAdapter[Any], kept: JsonValue) -> Any:
    # Fields are kept by their names: the aliases of a model may differ between reading and writing.
    try:
        # Strict models take a datetime from text only if that is JSON.
        return adapter.validate_json(json.dumps(kept), by_alias=False, by_name=True)
    except ValidationError:
        # Lone surrogates (odd file names) are read from Python alone.
        return adapter.validate_python(kept, by_alias=False, by_name=True)


def _is_exactly(value: Any, plain: JsonValue) -> bool:
    """Whether a value is JSON as it stands."""
    if type(value) is not type(plain):
        return False
    if isinstance(value, dict):
        mapping = cast("dict[Any, Any]", value)
        return mapping.keys() == plain.keys() and all(_is_exactly(mapping[key], plain[key]) for key in plain)
    if isinstance(value, list):
        return all(map(_is_exactly, cast("list[Any]", value), plain))
    return True


def _same(value: Any, again: Any) -> bool:
    """Whether a value came back unchanged: the same classes with equal fields, and NaN as NaN."""
    if value is again:
        return True
    fields = _fields(value)
    if fields is not None:
        return type(again) is type(value) and _same(fields, _fields(again))
    if isinstance(value, dict) and isinstance(again, dict):
        old, new = cast("dict[Any, Any]", value), cast("dict[Any, Any]", again)
        return old.keys() == new.keys() and all(_same(old[key], new[key]) for key in old)
    if isinstance(value, list | tuple) and isinstance(value, type(again)):
        items = cast("tuple[Any, ...]", value)
        return len(items) == len(again) and all(map(_same, items, again))
    # Only NaN differs from itself.
    return bool(value == again) or bool(value != value and again != again)


def _fields(value: Any) -> dict[str, Any] | None:
    """The fields of an object, also those that its `==` ignores; None for a value that is compared as a whole."""
    if isinstance(value, BaseModel):
        fields = {name: getattr(value, name) for name in type(value).model_fields}
        return fields | {"extra": value.model_extra, "private": value.__pydantic_private__}
    if dataclasses.is_dataclass(value):
        return {field.name: getattr(value, field.name, None) for field in dataclasses.fields(value)}
    # An object that does not say when it equals another.
    return dict(getattr(value, "__dict__", {})) if type(value).__eq__ is object.__eq__ else None


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
    # An awaitable is awaited; the last of its arguments is the type of that.
    return get_args(annotation)[-1] if inspect.isclass(origin) and issubclass(origin, Awaitable) else annotation


def _adapter_of(annotation: Any) -> TypeAdapter[Any]:
    try:
        return _cached_adapter(annotation)
    except TypeError:
        # An annotation that cannot be hashed.
        return _cached_adapter.__wrapped__(annotation)


@functools.lru_cache(maxsize=1024)
def _cached_adapter(annotation: Any) -> TypeAdapter[Any]:
    try:
        return TypeAdapter(annotation, config=_BYTES_AS_BASE64)
    except PydanticUserError:
        # Models and dataclasses bring their own config.
        return TypeAdapter(annotation)


def _plain(value: Any, *, tag_bytes: bool = False) -> JsonValue:
    text = json.dumps(value, default=_tagged if tag_bytes else None)
    plain = json.loads(text)
    if json.dumps(plain) != text:
        raise ValueError("two of its keys are the same in JSON")
    return plain


def _name(value: object) -> str:
    """Where the class of a value is found again."""
    return f"{type(value).__module__}:{type(value).__qualname__}"


def _find(name: str) -> Any:
    """The object of that name; None if there is none."""
    module, _, path = name.partition(":")
    try:
        # A step may have been the first to import it, and is not called in later runs.
        found: Any = importlib.import_module(module)
    except Exception:
        return None
    for part in path.split("."):
        found = getattr(found, part, None)
    return found


# ---- errors


def keep_error(exc: Exception) -> dict[str, Any]:
    """An exception for the journal."""
    try:
        message = str(exc)
    except Exception as failure:
        message = f"(its text cannot be read: {type(failure).__name__})"
    error: dict[str, Any] = {"type": _name(exc), "arguments": None, "message": message}
    try:
        made_by, arguments, *rest = cast("tuple[Any, ...]", exc.__reduce__())
        if made_by is type(exc):
            plain = _plain(list(arguments), tag_bytes=True)
            if state := _plain_state(rest[0] if rest else None):
                error["state"] = state
            error["arguments"] = plain
    except Exception:
        # It holds what is not JSON, or its own `__reduce__` fails: it cannot be rebuilt.
        return {"error": error}
    return {"error": error}


def restore_error(step: str, stored: Mapping[str, Any]) -> Exception:
    """The exception of a step that failed: as its own class where it can be rebuilt, else as a `StepError`."""
    error = stored["error"]
    found = _find(error["type"])
    if error["arguments"] is not None and isinstance(found, type) and issubclass(found, Exception):
        try:
            rebuilt = found(*_untagged(error["arguments"]))
            rebuilt.__setstate__(_untagged(error.get("state", {})))
            # A class that makes its message from other things would come back saying something else.
            if str(rebuilt) == error["message"]:
                return rebuilt
        except Exception:
            return _step_error(step, error)
    return _step_error(step, error)


def _step_error(step: str, error: Mapping[str, Any]) -> StepError:
    return StepError(step, error["type"].rpartition(":")[2], error["message"])


def _plain_state(state: Any) -> dict[str, JsonValue]:
    kept: dict[str, JsonValue] = {}
    for name, value in cast("dict[str, Any]", state).items() if isinstance(state, dict) else ():
        try:
            kept[name] = _plain(value, tag_bytes=True)
        except (TypeError, ValueError, RecursionError):
            # Such as the response that an HTTP client attaches: no run gets it, the first one neither.
            continue
    return kept


def _tagged(value: Any) -> dict[str, str]:
    if not isinstance(value, bytes):
        raise TypeError(f"Object of type {type(value).__name__} is not JSON serializable")
    return {_BYTES: base64.b64encode(value).decode()}


def _untagged(kept: JsonValue) -> Any:
    """What was kept of an exception, with its bytes as bytes."""

    def untag(mapping: dict[str, Any]) -> Any:
        return base64.b64decode(mapping[_BYTES]) if mapping.keys() == {_BYTES} else mapping

    return json.loads(json.dumps(kept), object_hook=untag)


# ---- calls


@dataclass(frozen=True, kw_only=True, slots=True)
class Retry:
    """How often a step is tried before it has failed. The attempts happen inside the step, in memory.

    Attributes:
        attempts: How often in all.
        wait: The pause after the first failure; it doubles with every further one.
        max_wait: The longest pause.
        on: Exceptions after which it is worth another attempt.
    """

    attempts: int = 3
    wait: timedelta = timedelta(seconds=1)
    max_wait: timedelta = timedelta(minutes=1)
    on: type[Exception] | tuple[type[Exception], ...] = Exception

    def __post_init__(self) -> None:
        check_number("attempts", self.attempts, 1)
        check_duration("wait", self.wait, zero=True)
        check_duration("max_wait", self.max_wait, zero=True)
        # What `except` takes; anything else would be found out by the first failure, and hide it.
        kinds: tuple[object, ...] = self.on if isinstance(self.on, tuple) else (self.on,)
        if not all(isinstance(kind, type) and issubclass(kind, BaseException) for kind in kinds):
            raise InvalidOption(
                f"on must be an exception class, or a tuple of them such as (OSError, ValueError); got {self.on!r}"
            )

    def pause_after(self, failures: int) -> float:
        """Seconds to wait after so many failures."""
        return backoff(failures - 1, base=self.wait, limit=self.max_wait).total_seconds()


ONCE: Final = Retry(attempts=1)


def check_step(name: str, function: object, retry: object) -> None:
    """Refuse a step that is not one, before anything is done or recorded.

    Raises:
        UsageError: There is no function to call, or the retry is not one.
    """
    if not callable(function):
        called = "function"
        if inspect.iscoroutine(function):
            called = function.__name__
            function.close()
        raise UsageError(
            f"step({name!r}, ...) takes a function and its arguments, not what the function returned: "
            f"step({name!r}, {called})"
        )
    if retry is not None:
        check_instance("retry", retry, Retry)


async def attempt(retry: Retry, call: Callable[[], Awaitable[Any]]) -> Any:
    """The value of `call`, tried as often as `retry` says."""
    failures = 0
    while True:
        try:
            return await call()
        except retry.on:
            failures += 1
            if failures >= retry.attempts:
                raise
        await anyio.sleep(retry.pause_after(failures))


async def call_function(function: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Any:
    """The value of a function: awaited if it is async, on a worker thread if it is not."""
    if inspect.iscoroutinefunction(function):
        return await function(*args, **kwargs)
    value = await anyio.to_thread.run_sync(partial(function, *args, **kwargs))
    return await value if inspect.isawaitable(value) else value
