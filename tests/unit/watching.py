"""Those who are told of what happens: a watcher, a tracing and threads that keep what they are told."""

from concurrent.futures import ThreadPoolExecutor
from typing import Any


class Threads(ThreadPoolExecutor):
    used = 0

    def submit(self, *args: Any, **options: Any) -> Any:
        self.used += 1
        return super().submit(*args, **options)
