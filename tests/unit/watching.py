"""Those who are told of what happens: a watcher, a tracing and threads that keep what they are told."""

from collections.abc import Collection
from concurrent.futures import ThreadPoolExecutor
from contextlib import nullcontext
from typing import Any

from mcp_tasks.model import TaskRecord, TaskRequest
from mcp_tasks.runtime import Run, TaskChange
from mcp_tasks.runtime.observers import Refusal, TaskAccess, Wanted, Watcher


class Watching(Watcher):
    """Keeps what it is told of looks and refusals, as far as it wants it."""

    def __init__(self, *wanted: type[Wanted]) -> None:
        self.told: list[TaskAccess] = []
        self._wanted = wanted or (TaskAccess, Refusal)

    def wanted(self) -> Collection[type[Wanted]]:
        return self._wanted

    def __call__(self, change: TaskChange) -> None:
        raise AssertionError("it wants no changes")

    def access(self, access: TaskAccess) -> None:
        self.told.append(access)


class Touched:
    """Tracing that only knows which tasks requests were about."""

    def __init__(self) -> None:
        self.ids: list[str] = []

    def trace_of(self, request: TaskRequest) -> None:
        return None

    def around(self, run: Run) -> nullcontext[None]:
        return nullcontext()

    def touched(self, record: TaskRecord) -> None:
        self.ids.append(record.id)


class Threads(ThreadPoolExecutor):
    """Threads that count how often they were used."""

    used = 0

    def submit(self, *args: Any, **options: Any) -> Any:
        self.used += 1
        return super().submit(*args, **options)
