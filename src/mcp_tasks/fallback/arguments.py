"""The arguments of a companion tool, as models send them: nearly right."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import Any, Final, cast

from mcp_tasks.core.json import JsonObject
from mcp_tasks.fallback.companion_tools import DEFAULT_WAIT, LONGEST_WAIT
from mcp_tasks.fallback.phrases import LONGEST_NAME, as_json, quoted

ACTIONS: Final = ("accept", "decline", "cancel")

_AROUND: Final = " \t\r\n\"'`"
"""What models put around an id, and no id of ours has."""


_OTHER_SPELLING: Final = "taskId"
"""How the structured content of a handle spells `task_id`."""


class BadArguments(Exception):
    """A call cannot be answered; the text says why, in whole sentences for a model."""


class Given:
    """What a call of a companion tool was given, read leniently: what can mean only one thing is taken for that.

    Every method raises `BadArguments` for what cannot be taken for anything.
    """

    def __init__(self, arguments: JsonObject) -> None:
        self._arguments = arguments

    def check_names(self, taken: Sequence[str]) -> None:
        """Refuse arguments that are none of those that the tool takes."""
        # Hosts add some for themselves, such as `__tool_use_purpose`.
        others = [
            name for name in self._arguments if name not in (*taken, _OTHER_SPELLING) and not name.startswith("_")
        ]
        if not others:
            return
        said = f"This tool has no argument {quoted(others[0], LONGEST_NAME)}. It takes {', '.join(map(quoted, taken))}."
        has_id = "task_id" in self._arguments or _OTHER_SPELLING in self._arguments
        raise BadArguments(said if has_id else f'{said} The id of the task goes into "task_id".')

    def task_id(self) -> str | None:
        """The id of a task; None if there is none."""
        given = self._arguments.get("task_id", self._arguments.get(_OTHER_SPELLING))
        if given is not None and not isinstance(given, str):
            raise BadArguments(f"The task_id must be a string, and is {as_json(given, 80)}.")
        return (given or "").strip(_AROUND) or None

    def seconds(self) -> float:
        """How long to wait: the usual if it is not said, and for what is out of range the nearest that is not."""
        given = self._arguments.get("wait_seconds")
        if given is None:
            return DEFAULT_WAIT
        seconds = _number(given)
        if seconds is None:
            raise BadArguments(f"The wait_seconds must be a number, and is {as_json(given, 80)}.")
        return float(min(max(seconds, 0), LONGEST_WAIT))

    def question(self) -> str | None:
        """The key of the question that is answered; None if it is not said."""
        given = self._arguments.get("question")
        if given is not None and not isinstance(given, str):
            raise BadArguments(f"The question must be named by a string, and is {as_json(given, 80)}.")
        return given or None

    def answer(self) -> dict[str, Any]:
        """The answer to an elicitation."""
        action = self._arguments.get("action")
        if action not in ACTIONS:
            raise BadArguments(f'The action must be "accept", "decline" or "cancel", and is {as_json(action, 80)}.')
        return {"action": action, "content": self._content()} if action == "accept" else {"action": action}

    def _content(self) -> dict[str, Any]:
        content = self._arguments.get("content")
        if isinstance(content, str):
            # A model that writes the object as text means the object.
            with suppress(ValueError, RecursionError):
                content = json.loads(content)
        if content is None:
            return {}
        if not isinstance(content, Mapping):
            raise BadArguments(
                f"The content must be an object with the fields of the answer, and is {as_json(content, 80)}."
            )
        return dict(cast("JsonObject", content))


def _number(given: Any) -> float | int | None:
    """The number that is given, also as text; None if it is none."""
    if isinstance(given, str):
        with suppress(ValueError):
            given = float(given)
    if isinstance(given, bool) or not isinstance(given, int | float):
        return None
    # An int may be larger than any float.
    return None if isinstance(given, float) and math.isnan(given) else given
