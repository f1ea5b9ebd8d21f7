"""A build of the package as the next release might be: one more field in records and requests, one more column.

It is made by small edits of a copy, each of which must apply: a build that silently is this release shows nothing.
"""

import re
import shutil
from pathlib import Path

import mcp_tasks
from mcp_tasks.stores.codec import FORMAT, READABLE
from mcp_tasks.stores.postgres import database as postgres
from mcp_tasks.stores.redis.connection import COMPATIBLE_FROM, LAYOUT
from mcp_tasks.stores.sqlite import schema as sqlite

PACKAGE = Path(mcp_tasks.__file__).parent

COLOUR, SHADE = "blue", "dark"
"""What the next release keeps with every task, and with every request."""


def build_next_release(folder: Path) -> Path:
    """Make the build; gives what to put on the path of its processes."""
    package = folder / "mcp_tasks"
    shutil.copytree(PACKAGE, package, ignore=shutil.ignore_patterns("__pycache__"))
    _add_fields(package)
    _add_column_to_sqlite(package)
    _add_column_to_postgres(package)
    _add_field_to_redis(package)
    return folder


def _add_fields(package: Path) -> None:
    record = package / "model/record.py"
    _edit(record, r"(    tool_version: str \| None = None\n)", rf'\1    colour: str | None = "{COLOUR}"\n')
    _edit(record, r"(    max_wait: timedelta \| None = None\n)", rf'\1    shade: str | None = "{SHADE}"\n')
    fields = package / "stores/codec.py"
    _edit(fields, rf"FORMAT = {FORMAT}\n", f"FORMAT = {FORMAT + 1}\n")
    _edit(fields, rf"READABLE = {READABLE}\n", f"READABLE = {FORMAT}\n")
    _edit(fields, r'(    _Field\("toolVersion".*\n)', r'\1    _Field("colour", "colour", str),\n')
    _edit(fields, r'(    _Field\("maxWait".*\n)', r'\1    _Field("shade", "shade", str),\n')
    _edit(fields, r"return TaskRequest\(\*\*attributes\)", 'return TaskRequest(**{"shade": None, **attributes})')


def _add_column_to_sqlite(package: Path) -> None:
    _add_script(package / "stores/sqlite", len(sqlite.migrations()), "tasks")
    _edit(package / "stores/sqlite/writes.py", r"(UPDATE tasks\nSET )(version = )", rf"\1colour = '{COLOUR}', \2")


def _add_column_to_postgres(package: Path) -> None:
    _add_script(package / "stores/postgres", len(postgres.migrations()), "mcp_tasks_tasks")
    pattern = r"(UPDATE mcp_tasks_tasks t\nSET )(version = )"
    _edit(package / "stores/postgres/writes.py", pattern, rf"\1colour = '{COLOUR}', \2")


def _add_script(store: Path, schema: int, table: str) -> None:
    (store / f"migrations/{schema + 1:04}_colour.sql").write_text(
        f"-- compatible from: {schema}\nALTER TABLE {table} ADD COLUMN colour TEXT NOT NULL DEFAULT 'none';\n"
    )


def _add_field_to_redis(package: Path) -> None:
    folder = package / "stores/redis"
    _edit(folder / "connection.py", rf"LAYOUT: Final = {LAYOUT}\n", f"LAYOUT: Final = {LAYOUT + 1}\n")
    _edit(
        folder / "connection.py",
        rf"COMPATIBLE_FROM: Final = {COMPATIBLE_FROM}\n",
        f"COMPATIBLE_FROM: Final = {LAYOUT}\n",
    )
    _edit(folder / "lua/save.lua", r"(call\('HSET', row, )('v', version)", rf"\1'colour', '{COLOUR}', \2")


def _edit(path: Path, pattern: str, replacement: str) -> None:
    text, count = re.subn(pattern, replacement, path.read_text(encoding="utf-8"))
    assert count == 1, f"{pattern!r} is {count} times in {path}; change the edit as the file has changed"
    path.write_text(text, encoding="utf-8")
