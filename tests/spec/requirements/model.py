"""One entry of the manifest."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, TypeAlias

Level: TypeAlias = Literal["MUST", "MUST NOT", "SHOULD", "SHOULD NOT", "MAY", "FORM"]
"""The keyword of the sentence; FORM for what only a type definition or an example shows."""

Source: TypeAlias = Literal["SEP-2663", "release", "2025-11-25", "guide"]
"""The SEP; the released protocol (2026-07-28) where it says more than the SEP or something else; the protocol of
2025-11-25 (its pages on tasks and on progress); the guide to tasks that shows what developers expect around it."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Requirement:
    """A sentence that binds somebody, and the tests that hold us to it.

    Attributes:
        section: The heading it stands under.
        says: The sentence, shortened or in our own words.
        tests: Tests of `tests/spec`, as `file::function`, or of another folder of `tests`, as `folder/file::function`.
        gap: Why there is no test yet, instead of tests.
        deviation: What we do instead of what the sentence asks for, and why; the tests show what we do.
        party: Whom it binds. Of 2025-11-25 most sentences bind either side, and there is an entry for each.
    """

    id: str
    section: str
    says: str
    level: Level
    tests: tuple[str, ...] = ()
    gap: str | None = None
    deviation: str | None = None
    source: Source = "SEP-2663"
    party: Literal["server", "client"] = "server"
    era: Literal["2026-07-28", "2025-11-25"] = "2026-07-28"
