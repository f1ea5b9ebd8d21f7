"""A wall clock that is wrong, for a whole process: call `be_off` before anything else is imported.

The monotonic clocks go on as they are, as on a machine whose clock was set wrong.
"""

import datetime as module
import time
from typing import Any

_right_time = time.time
_right_time_ns = time.time_ns
_right_datetime = module.datetime


class _Kind(type):
    """What C code makes is of the right class, and counts as one of the wrong."""

    def __instancecheck__(cls, instance: object) -> bool:
        return isinstance(instance, _right_datetime)


def be_off(by: module.timedelta) -> None:
    """Have the wall clock of this process be ahead by so much, or behind."""

    class WrongDatetime(_right_datetime, metaclass=_Kind):
        @classmethod
        def now(cls, tz: module.tzinfo | None = None) -> Any:
            return cls.fromtimestamp(time.time(), tz)

        @classmethod
        def utcnow(cls) -> Any:
            return cls.now(module.UTC).replace(tzinfo=None)

        @classmethod
        def today(cls) -> Any:
            return cls.now()

    # Drivers know classes by their full names.
    WrongDatetime.__name__ = WrongDatetime.__qualname__ = "datetime"
    WrongDatetime.__module__ = "datetime"
    module.datetime = WrongDatetime
    time.time = lambda: _right_time() + by.total_seconds()
    time.time_ns = lambda: _right_time_ns() + round(by.total_seconds() * 1e9)
