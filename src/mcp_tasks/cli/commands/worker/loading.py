"""MODULE:SERVER on the command line: the server object that a module makes, and its tasks."""

from __future__ import annotations

import importlib
import inspect
import os
import re
import sys
import traceback
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any, cast

import click
from mcp.server import MCPServer, Server

from mcp_tasks import Tasks
from mcp_tasks.cli.terminal.exits import Exit, Problem
from mcp_tasks.errors import UsageError, WiringError

_SPEC = re.compile(r"(?P<module>[^\W\d]\w*(\.[^\W\d]\w*)*):(?P<path>[^\W\d]\w*(\.[^\W\d]\w*)*)(?P<call>\(\))?")
_PACKAGE = Path(__file__).parents[3]
_NOT_THE_AUTHORS = ("<frozen importlib", importlib.__file__, __file__)
"""Files whose frames say nothing of what is wrong with a module."""


@dataclass(frozen=True, slots=True)
class Loaded:
    """A server, and its tasks."""

    server: MCPServer[Any] | Server[Any]
    tasks: Tasks


def load_server(spec: str) -> Loaded:
    """The server that `spec` names: `farm:server`, `farm:app.server`, or `farm:make()` for a function that makes it.

    Modules are looked for in the working directory first.

    Raises:
        Problem: There is none, or its module cannot be imported; it says why.
    """
    match = _SPEC.fullmatch(spec)
    if match is None or Path(spec.partition(":")[0]).is_file():
        raise Problem(f"{spec!r} does not name a server", Exit.USAGE, hint=_how_to_name(spec))
    module = _imported(match["module"])
    found = _attribute(module, match["path"])
    if match["call"]:
        found = _made_by(found, spec)
    if not isinstance(found, MCPServer | Server):
        raise Problem(f"{spec} is {_kind(found)}, and not a server", Exit.USAGE, hint=_hint(module, found, spec))
    server = cast("MCPServer[Any] | Server[Any]", found)
    return Loaded(server, _tasks_of(server, module))


def show_traceback(exc: BaseException) -> None:
    """Show where the author's own code raised, and nothing of ours."""
    shown = traceback.TracebackException.from_exception(exc)
    shown.stack = traceback.StackSummary.from_list(
        [frame for frame in shown.stack if not frame.filename.startswith(_NOT_THE_AUTHORS)]
    )
    click.echo("".join(shown.format()), err=True, nl=False)


def _how_to_name(spec: str) -> str:
    file = Path(spec.partition(":")[0])
    if file.suffix == ".py" or file.is_file():
        return f"Name the module and not the file, and the server in it: {'.'.join(file.with_suffix('').parts)}:server"
    return "Write MODULE:SERVER, as in farm:server, or MODULE:FUNCTION() for a function that makes it."


def _imported(name: str) -> ModuleType:
    here = os.getcwd()
    # First, also where it is somewhere on PYTHONPATH.
    sys.path[:] = [here, *(folder for folder in sys.path if folder != here)]
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError as exc:
        if exc.name is not None and (name == exc.name or name.startswith(f"{exc.name}.")):
            hint = f"Modules are looked for in {here} first, and then where Python looks (PYTHONPATH)."
            raise Problem(f"there is no module {exc.name!r}", Exit.USAGE, hint=hint) from None
        raise _raised(f"module {name!r} could not be imported", exc) from None
    except (Exception, SystemExit) as exc:
        raise _raised(f"module {name!r} could not be imported", exc) from None


def _raised(what: str, exc: BaseException) -> Problem:
    if isinstance(exc, UsageError):
        # Written to be read by itself.
        frames = traceback.extract_tb(exc.__traceback__)
        own = [frame for frame in frames if not frame.filename.startswith((*_NOT_THE_AUTHORS, str(_PACKAGE)))]
        where = f"In {own[-1].filename}, line {own[-1].lineno}." if own else None
        return Problem(f"{what}: {exc}", Exit.USAGE, hint=where)
    show_traceback(exc)
    return Problem(what, Exit.SERVER_CODE, hint="What it raised is above.")


def _attribute(module: ModuleType, path: str) -> Any:
    found: Any = module
    name = module.__name__
    for part in path.split("."):
        if not hasattr(found, part):
            raise Problem(f"{name} has no {part!r}", Exit.USAGE, hint=_servers_in(module))
        found, name = getattr(found, part), f"{name}.{part}"
    return found


def _made_by(function: Any, spec: str) -> Any:
    if not callable(function):
        raise Problem(f"{spec} is not a function: leave the parentheses out", Exit.USAGE)
    try:
        made = function()
    except (Exception, SystemExit) as exc:
        raise _raised(f"{spec} failed", exc) from None
    if inspect.iscoroutine(made):
        made.close()
        raise Problem(f"{spec} is asynchronous; a function that makes a server must not be", Exit.USAGE)
    return made


def _kind(found: object) -> str:
    if isinstance(found, type) or inspect.isroutine(found):
        return f"the {'class' if isinstance(found, type) else 'function'} {found.__name__}"
    return f"a {type(found).__name__}"


def _hint(module: ModuleType, found: object, spec: str) -> str | None:
    if inspect.isfunction(found):
        return f"If it makes the server, write {spec}()"
    return _servers_in(module)


def _servers_in(module: ModuleType) -> str | None:
    names: Sequence[str] = [
        f"{module.__name__}:{name}" for name, value in vars(module).items() if isinstance(value, MCPServer | Server)
    ]
    return f"There is {' and '.join(names)}." if names else "A server is an MCPServer or a Server of the SDK."


def _tasks_of(server: MCPServer[Any] | Server[Any], module: ModuleType) -> Tasks:
    try:
        return Tasks.of(server)
    except WiringError as exc:
        # The author may have put the lifespan into another; who starts the server finds out if these are not its tasks.
        candidates = {id(value): value for value in vars(module).values() if isinstance(value, Tasks)}
        if len(candidates) == 1:
            return next(iter(candidates.values()))
        raise Problem(str(exc), Exit.USAGE) from None
