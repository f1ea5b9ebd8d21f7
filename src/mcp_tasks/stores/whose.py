"""Whose tasks are meant: those of an owner, of nobody, of everybody, of a session, or of the task that started them."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from typing import Final, Literal, TypeAlias


@dataclass(frozen=True, slots=True)
class OwnedBy:
    """The tasks of one owner."""

    owner: str


@dataclass(frozen=True, slots=True)
class InSession:
    """The tasks of one session, whoever owns them: those made in it, and those that it took over."""

    session: str


@dataclass(frozen=True, slots=True)
class ChildrenOf:
    """The tasks that one task started, whoever owns them."""

    parent: str


class Anyone(Enum):
    """Whose tasks to list, where that is not one owner."""

    UNOWNED = "unowned"
    EVERYBODY = "everybody"


UNOWNED: Final = Anyone.UNOWNED
"""The tasks that nobody owns: those of clients without a name."""

EVERYBODY: Final = Anyone.EVERYBODY
"""All tasks, whoever owns them: for operators, never for a client."""

Whose: TypeAlias = OwnedBy | InSession | ChildrenOf | Literal[Anyone.UNOWNED, Anyone.EVERYBODY]
"""Whose tasks to list. There is no default: who lists must say it."""

Owners: TypeAlias = OwnedBy | Literal[Anyone.UNOWNED, Anyone.EVERYBODY]
"""Whose tasks to count: of one owner, of nobody, or of everybody."""


def owned_by(owner: str | None) -> OwnedBy | Literal[Anyone.UNOWNED]:
    """The tasks of a caller, who may have no name."""
    return UNOWNED if owner is None else OwnedBy(owner)
