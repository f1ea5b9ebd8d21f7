"""Show that the simulation finds faults: each fault that it was made for is put back, and looked for.

    python -m tests.simulation.mutants [--only late-stop] [--seconds 120] [--processes 2] [--seed 1]

The worlds are those of `plan_for`, one seed after the other. A fault counts as found with a violation of a kind that it
causes, in a world that has no violation without the fault. Most faults are put back at a boundary of the simulated
world: in what a process sends to the store, in what it is told, or in how a runtime is built. Where that is not
possible, `breaks` names the rule that the source patch breaks.
"""

import argparse
import gc
import random
import signal
import sys
import time
from collections import Counter
from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from datetime import timedelta
from functools import partial
from itertools import count
from multiprocessing import Pool
from multiprocessing import TimeoutError as TooLate
from typing import Any, Final
from unittest.mock import patch

from mcp_tasks.errors import KeySpent, StoreUnavailable
from mcp_tasks.model.record import TaskRecord, WriteId
from mcp_tasks.runtime.journal import Writer
from mcp_tasks.runtime.lease import LeaseTimes
from mcp_tasks.stores import Store
from tests.simulation.soak import BATCH, always_the_same, simulate
from tests.simulation.store import Connection as StoreConnection
from tests.simulation.store import StoreMachine


@dataclass(frozen=True)
class Mutant:
    """One fault that is put back.

    Attributes:
        name: A short name of the fault.
        what: What is broken, and where.
        kinds: The kinds of violations that it causes.
        put_back: While this is entered, the fault is there.
        breaks: For a patch of the source: the rule that it breaks.
    """

    name: str
    what: str
    kinds: frozenset[str]
    put_back: Callable[[], Any]
    breaks: str | None = None


@contextmanager
def _asks(change: Callable[..., Any]) -> Generator[None]:
    """Change calls of the store on their way: `change(ask, verb, args, options)` gives the answer."""
    ask = StoreConnection.ask

    async def changed(self: StoreConnection, verb: str, args: tuple[Any, ...], options: Mapping[str, Any]) -> Any:
        return await change(partial(ask, self), self, verb, args, options)

    with patch.object(StoreConnection, "ask", changed):
        yield


@contextmanager
def _new_id_for(concerns: Callable[[TaskRecord, Mapping[str, Any]], bool]) -> Generator[None]:
    """Each attempt to save draws a write id of its own, so that the store does not recognise a repeat."""
    numbers = count()

    async def change(ask: Any, _: StoreConnection, verb: str, args: tuple[Any, ...], options: Mapping[str, Any]) -> Any:
        if verb == "save" and args[0].writes and concerns(args[0], options):
            first, *others = args[0].writes
            fresh = WriteId(f"attempt {next(numbers)}", int(first.number == 1))
            if first.number > 1:
                # The record still says which run it is of, as of its last write but one.
                others = [WriteId(first.writer, first.number - 1), *others]
            args = (args[0].but(writes=(fresh, *others)), *args[1:])
        return await ask(verb, args, options)

    with _asks(change):
        yield


def _asks_a_question(_: TaskRecord, options: Mapping[str, Any]) -> bool:
    return any(entry.kind == "ask" for entry in options.get("entries", ()))


def _records_a_result(_: TaskRecord, options: Mapping[str, Any]) -> bool:
    return any(entry.kind in ("step", "done") for entry in options.get("entries", ()))


def _claims(record: TaskRecord, _: Mapping[str, Any]) -> bool:
    return record.writes[0].number == 1


@contextmanager
def _creations_never_happened() -> Generator[None]:
    """A creation without an answer is reported as refused."""

    async def change(ask: Any, _: StoreConnection, verb: str, args: tuple[Any, ...], options: Mapping[str, Any]) -> Any:
        try:
            return await ask(verb, args, options)
        except StoreUnavailable as exc:
            exc.may_have_happened = exc.may_have_happened and verb != "create"
            raise

    with _asks(change):
        yield


@contextmanager
def _own_clocks() -> Generator[None]:
    async def change(
        ask: Any, own: StoreConnection, verb: str, args: tuple[Any, ...], options: Mapping[str, Any]
    ) -> Any:
        answer = await ask(verb, args, options)
        return own.process.machine.wall_clock() if verb == "now" else answer

    with _asks(change):
        yield


@contextmanager
def _late_stop() -> Generator[None]:
    """A process stops its runs at 12.5 fifteenths of the lease, and others take over from 12."""
    times = LeaseTimes.of

    def late(lease: timedelta, sweep_interval: timedelta) -> LeaseTimes:
        fifteenth = lease.total_seconds() / 15
        right = times(lease, sweep_interval)
        return replace(right, stop=fifteenth * 12.5, kill=fifteenth * 13, takeover=fifteenth * 12)

    with patch.object(LeaseTimes, "of", late):
        yield


def _waits_count() -> Any:
    def is_at_work(record: TaskRecord) -> bool:
        return record.worker is not None and not record.is_final

    return patch("mcp_tasks.stores.memory.is_at_work", is_at_work)


def _impatient() -> Any:
    def plain(store: Store) -> Store:
        return store

    return patch("mcp_tasks.runtime.runtime.patient", plain)


def _no_way_back() -> Any:
    async def make_up(self: Writer) -> None:
        """Ignore it."""

    return patch.object(Writer, "make_up", make_up)


@contextmanager
def _keys_go_with_children() -> Generator[None]:
    """The key of a child that is gone is free: a second child is made under it."""
    carry_out = StoreMachine.carry_out

    def forgetful(
        self: StoreMachine, process: Any, verb: str, args: tuple[Any, ...], options: Mapping[str, Any]
    ) -> Any:
        try:
            return carry_out(self, process, verb, args, options)
        except KeySpent:
            if args[0].parent is None:
                raise
            return carry_out(self, process, verb, args, {**options, "key": None})

    with patch.object(StoreMachine, "carry_out", forgetful):
        yield


MUTANTS: Final = (
    Mutant(
        "question-written-twice",
        "a save with a question has a new write id for each attempt (connection)",
        frozenset({"wrong error", "wrong result", "asked twice", "recorded twice"}),
        partial(_new_id_for, _asks_a_question),
    ),
    Mutant(
        "result-written-twice",
        "a save with a result has a new write id for each attempt (connection)",
        frozenset({"recorded twice", "waits forever"}),
        partial(_new_id_for, _records_a_result),
    ),
    Mutant(
        "lost-creation-reported-as-refused",
        "a creation whose answer was lost is reported as not carried out (connection)",
        frozenset({"started twice"}),
        _creations_never_happened,
    ),
    Mutant(
        "claim-written-twice",
        "a claim has a new write id for each attempt (connection)",
        frozenset({"interrupted", "logged"}),
        partial(_new_id_for, _claims),
    ),
    Mutant(
        "local-clocks",
        "a process takes its own wall clock for the time of the store (connection)",
        frozenset({"wrong time", "too early", "vanished", "started twice"}),
        _own_clocks,
    ),
    Mutant(
        "late-stop",
        "runs are stopped 12.5 fifteenths of the lease after its renewal, and taken over from 12 (`LeaseTimes`)",
        frozenset({"overlap", "stale run goes on"}),
        _late_stop,
    ),
    Mutant(
        "waiting-runs-count",
        "a run that waits counts against the limits (`is_at_work` of the simulated store)",
        frozenset({"waits forever"}),
        _waits_count,
    ),
    Mutant(
        "outages-reach-tools",
        "the store of a runtime is not `patient` (the wrapper is left out)",
        frozenset({"outage is an outcome", "wrong error", "wrong result"}),
        _impatient,
    ),
    Mutant(
        "failover-ignored",
        "a run ignores that the store has an older version (`Writer.make_up`)",
        frozenset({"waits forever"}),
        _no_way_back,
        breaks="a run that finds an older version of its task in the store writes again what the store lost",
    ),
    Mutant(
        "keys-go-with-children",
        "the key of a child is free when the child is gone (store)",
        frozenset({"started twice"}),
        _keys_go_with_children,
    ),
)


@dataclass(frozen=True)
class Finding:
    """What was seen of one seed with a fault: the violation, if it is one of the fault, or why it does not count."""

    seed: int
    violation: tuple[str, str] | None = None
    other: str | None = None
    cpu: float = 0.0


def look(name: str, seed: int) -> Finding:
    """Simulate the world of a seed with a fault, and without it if there is a violation."""
    try:
        return _found(name, seed)
    finally:
        # A process of the world that was killed has left its handler, and the pool ends this one with the signal.
        signal.signal(signal.SIGTERM, signal.SIG_DFL)


def _found(name: str, seed: int) -> Finding:
    mutant = next(mutant for mutant in MUTANTS if mutant.name == name)
    began = time.process_time()
    other = None
    with mutant.put_back():
        violation = simulate(seed)
    if violation is not None and violation[0] not in mutant.kinds:
        violation, other = None, violation[0]
    elif violation is not None and (without := simulate(seed)) is not None:
        violation, other = None, f"{without[0]} without the fault"
    return Finding(seed, violation, other, time.process_time() - began)


def hunt(mutant: Mutant, seed: int, seconds: float, processes: int) -> Finding | None:
    """Look for a fault, and tell how it went."""
    patched = f"; a source patch, which breaks the rule: {mutant.breaks}" if mutant.breaks else ""
    print(f"{mutant.name}: {mutant.what}{patched}", flush=True)
    began, seen, found = time.monotonic(), list[Finding](), None
    # Objects that are there by now are not looked at after each world.
    gc.freeze()
    while found is None and (left := began + seconds - time.monotonic()) > 0:
        batch = range(seed + len(seen), seed + len(seen) + BATCH * processes)
        with Pool(processes) as pool, suppress(TooLate):
            findings = pool.imap_unordered(partial(look, mutant.name), batch)
            for _ in batch:
                seen.append(findings.next(left))
                if seen[-1].violation is not None:
                    found = seen[-1]
                    break
                left = began + seconds - time.monotonic()
    cpu = sum(finding.cpu for finding in seen)
    took = f"{time.monotonic() - began:.0f} s, {cpu:.0f} s of one core, {len(seen)} worlds"
    if found is not None and found.violation is not None:
        print(f"  found after {took}: seed {found.seed}: {found.violation[0]}: {found.violation[1][:300]}")
    else:
        print(f"  not found in {took}")
    if others := Counter(finding.other for finding in seen if finding.other is not None):
        print("  not counted:", ", ".join(f"{kind} {number}" for kind, number in others.most_common()))
    return found


def main(arguments: Sequence[str] | None = None) -> int:
    """Look for each fault in turn; 1 if one is not found."""
    parser = argparse.ArgumentParser(description="Put known faults back, and let the simulation find them.")
    parser.add_argument("--only", action="append", choices=[mutant.name for mutant in MUTANTS], help="only this fault")
    parser.add_argument("--seconds", type=float, default=120.0, help="for each")
    parser.add_argument("--processes", type=int, default=2)
    parser.add_argument("--seed", type=int, default=None, help="of the first world")
    options = parser.parse_args(arguments)
    seed: int = random.randrange(10**9) if options.seed is None else options.seed
    print(f"first seed: {seed}")
    chosen = [mutant for mutant in MUTANTS if options.only is None or mutant.name in options.only]
    missed = [each.name for each in chosen if hunt(each, seed, options.seconds, options.processes) is None]
    print("not found: " + ", ".join(missed) if missed else "all were found")
    return bool(missed)


if __name__ == "__main__":
    always_the_same()
    sys.exit(main())
