"""How many requests went the short way, and why others did not."""

from __future__ import annotations

import logging
from collections import Counter
from enum import StrEnum
from traceback import walk_tb
from typing import Final

from mcp_tasks.quiet import get_logger, quietly

logger: Final = get_logger(__name__)


class Handover(StrEnum):
    """Why a request was handed over to the SDK. What each reason means is in docs/running.md, "The short way"."""

    OTHER_WIRE = "other wire"
    """Not a POST of the newest version: an older era, a GET, a version that is not known."""

    OTHER_METHOD = "other method"
    """A method that has nothing to do with tasks, or a tool that is not marked."""

    HEADERS = "headers"
    """Headers that the SDK refuses, or that are rare: `Mcp-Param-*`, `Transfer-Encoding`, one that comes twice."""

    BODY = "body"
    """A body that is large, cut off, not JSON, or not a plain request."""

    ENVELOPE = "envelope"
    """A `_meta` that the SDK refuses, or that disagrees with the headers."""

    PARAMS = "params"
    """Params that are rare, or that would be refused."""

    CALL = "call"
    """A call that becomes no task at once: the tool asks first, has a grace, or its client takes no tasks."""

    SERVER = "server"
    """Something of the author's own has to see the request: middleware, another extension, a handler, a cache hint."""

    REFUSED = "refused"
    """The request is refused: the answer is the SDK's to give."""

    LISTENERS = "listeners"
    """There are as many listeners here as may be."""

    FAILED = "failed"
    """A defect, here or in a store, which the log tells of once."""


class HandedOver(Exception):
    """The request is for the SDK."""

    def __init__(self, reason: Handover) -> None:
        super().__init__(reason)
        self.reason: Handover = reason


class DefectsHandedOver:
    """Around what only looks at a request: whatever goes wrong there, the SDK may well answer it."""

    def __enter__(self) -> None: ...

    def __exit__(self, _kind: object, exc: BaseException | None, _traceback: object) -> None:
        if isinstance(exc, Exception) and not isinstance(exc, HandedOver):
            raise HandedOver(Handover.FAILED) from exc


class Defects:
    """Defects that requests were handed over after. Every request may meet the same, so each is told of once."""

    def __init__(self) -> None:
        self._places: set[tuple[str, int]] = set()

    def tell(self, exc: BaseException) -> None:
        """Log a defect: in full view when it is the first that was raised in its place."""
        *_, (frame, line) = walk_tb(exc.__traceback__)
        place = (frame.f_code.co_filename, line)
        level = logging.DEBUG if place in self._places else logging.WARNING
        self._places.add(place)
        logger.log(level, "a request is left to the SDK after a defect on the short way", exc_info=quietly(exc))


class Counts:
    """What one process answered before the SDK saw it, and what it handed over.

    Attributes:
        answered: How many requests were answered, by method; those that failed for a reason of the server's too.
        handed_over: How many requests went to the SDK, by reason.
        listeners: How many streams of `subscriptions/listen` are served here at this moment.
    """

    def __init__(self) -> None:
        self.listeners: int = 0
        self.answered: Final[Counter[str]] = Counter()
        self.handed_over: Final[Counter[Handover]] = Counter()

    def __repr__(self) -> str:
        handed_over = {str(reason): count for reason, count in self.handed_over.items()}
        return f"Counts(answered={dict(self.answered)}, handed_over={handed_over}, listeners={self.listeners})"
