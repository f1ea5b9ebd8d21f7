"""Tools as trees: what one does, one thing after another or several at once."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from enum import Enum
from typing import TypeAlias

IO_IN_ALL = 1.5
"""Seconds of unrecorded work in one tool. A tool that is started again is handed recorded results in their order, which
waits for branches that do such work; a time-out around a result must be longer than that, or it is decided anew."""

GIVES_UP_AFTER = 4.0
"""Seconds of the one `move_on_after` that a tool may have."""


class Losers(Enum):
    """What becomes of those that lost a race."""

    REAPED = "cancelled, and waited for"
    CANCELLED = "cancelled, and not waited for"
    LEFT = "left alone"


@dataclass(frozen=True)
class Step:
    """Work that is recorded, of so many seconds; it may fail."""

    seconds: float = 0.0
    fails: bool = False


@dataclass(frozen=True)
class Ask:
    """A question, with a durable time-out or none; told from others by a key or by what it asks."""

    timeout: float | None = None
    keyed: bool = False


@dataclass(frozen=True)
class Sleep:
    """A durable sleep, told from others by its name."""

    seconds: float = 5.0


@dataclass(frozen=True)
class Io:
    """Work that is not recorded."""

    seconds: float = 0.5


@dataclass(frozen=True)
class Report:
    """A report of progress."""


@dataclass(frozen=True)
class Child:
    """A task of its own that does the child, of such a tool, kept for so many seconds; it may be waited for."""

    child: Node
    tool: str
    ttl: float
    waits: bool = True


@dataclass(frozen=True)
class Twice:
    """Two equal questions or two equal sleeps, one after the other or together."""

    asks: bool
    together: bool


@dataclass(frozen=True)
class Seq:
    """One thing after another."""

    children: tuple[Node, ...]


@dataclass(frozen=True)
class Gather:
    """`asyncio.gather`: the first failure is raised, and the others go on."""

    children: tuple[Node, ...]


@dataclass(frozen=True)
class Group:
    """A task group: the first failure cancels the others."""

    children: tuple[Node, ...]


@dataclass(frozen=True)
class Race:
    """`asyncio.wait` for the first; a step then records who won."""

    children: tuple[Node, ...]
    losers: Losers


@dataclass(frozen=True)
class Beside:
    """`create_task`: something goes on beside, while the tool does something else, and is then waited for."""

    beside: Node
    child: Node


@dataclass(frozen=True)
class MoveOn:
    """`move_on_after` around something; a step then records whether it was given up."""

    child: Node


@dataclass(frozen=True)
class Caught:
    """A failure is caught."""

    child: Node


Node: TypeAlias = (
    Step | Ask | Sleep | Io | Report | Child | Twice | Seq | Gather | Group | Race | Beside | MoveOn | Caught
)


def children_of(node: Node) -> Sequence[Node]:
    match node:
        case Seq() | Gather() | Group() | Race():
            return node.children
        case Beside():
            return (node.beside, node.child)
        case MoveOn() | Caught():
            return (node.child,)
        case _:
            return ()


def ends_recorded(node: Node) -> bool:
    """Whether it is a recorded thing that ends this, so that the journal says what ended first."""
    match node:
        case Io() | MoveOn() | Report():
            return False
        case Seq():
            return bool(node.children) and ends_recorded(node.children[-1])
        case _:
            return all(map(ends_recorded, children_of(node)))


class Trimmer:
    """Makes a tool of a tree: one that does the same whenever its recorded results come in the same order.

    A race is decided by recorded things, and of unrecorded ones there are few enough (see the numbers above).
    """

    def __init__(self) -> None:
        self._io_left = IO_IN_ALL
        self._may_move_on = True
        self._in_move_on = False
        self._in_race = False
        self._leaves_losers = False

    def trim(self, node: Node) -> Node:
        """The tool that is most like this tree."""
        match node:
            case Io(seconds):
                self._io_left -= seconds
                return node if self._io_left >= 0 else Step()
            case MoveOn(child):
                if not self._may_move_on or self._in_race or self._leaves_losers:
                    return self.trim(child)
                self._may_move_on, self._in_move_on = False, True
                trimmed = MoveOn(self.trim(child))
                self._in_move_on = False
                return trimmed
            case Caught(child):
                return Caught(self.trim(child))
            case Child(child):
                # A tool of its own.
                return replace(node, child=Trimmer().trim(child))
            case Beside(beside, child):
                return Beside(self.trim(beside), self.trim(child))
            case Race(children):
                # A loser that is left alone goes on after the time-out, and nothing tells that the others did not wait.
                losers = Losers.CANCELLED if self._in_move_on and node.losers is Losers.LEFT else node.losers
                # A time-out that fired in a race fires again when the tool is run again, after all of its seconds. What
                # is recorded behind it is not waited for that long (`journal.PATIENCE`): a limit of replay.
                # The same holds for one that fires while losers of an earlier race go on.
                self._leaves_losers |= losers is Losers.LEFT
                was_in_race, self._in_race = self._in_race, True
                trimmed = tuple(_decided(self.trim(child)) for child in children)
                self._in_race = was_in_race
                return Race(trimmed, losers)
            case Seq(children) | Gather(children) | Group(children):
                return replace(node, children=tuple(self.trim(child) for child in children))
            case _:
                return node


def _decided(node: Node) -> Node:
    return node if ends_recorded(node) else Seq((node, Step()))
