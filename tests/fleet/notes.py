"""What the tools of a fleet say of themselves, beside all stores: a line for each thing that happened, in one file."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path


@dataclass(frozen=True, kw_only=True, slots=True)
class Note:
    """One thing that a run of a tool did.

    Attributes:
        job: Which call it was, by the caller's count.
        what: `start`, `end`, `stopped` (the run was cancelled), or `step` (one was handed its value).
        attempt: Which run of the task.
        process: The name that the process goes by in its fleet, as it was started.
        at: Seconds on a clock that all processes of the machine share.
        key: Of a step: its name.
        value: Of a step: what it gave.
    """

    job: str
    what: str
    task: str | None
    attempt: int
    process: str
    at: float
    key: str = ""
    value: str = ""


class Notes:
    """The file with the notes."""

    def __init__(self, folder: Path) -> None:
        self.path = folder / "notes.jsonl"

    def add(
        self, job: str, what: str, *, task: str | None, attempt: int, process: str, key: str = "", value: str = ""
    ) -> None:
        """Write one down. A single write to the end of the file: processes that die tear no line apart."""
        note = Note(
            job=job, what=what, task=task, attempt=attempt, process=process, at=time.monotonic(), key=key, value=value
        )
        file = os.open(self.path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
        try:
            os.write(file, json.dumps(asdict(note)).encode() + b"\n")
        finally:
            os.close(file)

    def read(self) -> Sequence[Note]:
        """All of them, in the order in which they were written."""
        if not self.path.exists():
            return []
        return [Note(**json.loads(line)) for line in self.path.read_text().splitlines()]

    def of(self, job: str, *what: str) -> Sequence[Note]:
        """Those of one call, of these kinds."""
        return [note for note in self.read() if note.job == job and note.what in what]
