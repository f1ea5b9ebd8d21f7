"""The SQLite explorer of the MCP documentation, with an export that takes its time: as a task that survives kill -9.

python examples/sqlite_explorer.py                            # a client tries it all, in both eras, and says so
python examples/sqlite_explorer.py serve --database shop.db   # the server alone, at http://127.0.0.1:8000/mcp
"""

from __future__ import annotations

import argparse
import csv
import io
import logging
import re
import sqlite3
import tempfile
from collections.abc import Sequence
from contextlib import closing
from pathlib import Path
from typing import Any

import anyio
from mcp import Client
from mcp.server import MCPServer
from mcp.server.mcpserver import Context
from mcp.server.mcpserver.exceptions import ToolError
from mcp_types import TextResourceContents
from pydantic import BaseModel
from server_process import ServerProcess

from mcp_tasks import Tasks, current_task
from mcp_tasks.client import TaskHandle, TasksClient, TaskWasCancelled, reconnecting_http, resume_task, start_task

ROWS = 2_000
PAGE = 100


class Rows(BaseModel):
    """What a query found."""

    rows: list[dict[str, Any]]
    row_count: int


def build(database: Path, tasks: Tasks) -> MCPServer[Any]:
    """The server for one database, which it only reads."""
    server: MCPServer[Any] = MCPServer("sqlite-explorer", version="1.0.0", log_level="ERROR", **tasks.wiring())

    def fetch(sql: str, *values: object) -> list[dict[str, Any]]:
        with closing(sqlite3.connect(f"file:{database}?mode=ro", uri=True)) as connection:
            connection.row_factory = sqlite3.Row
            return [dict(row) for row in connection.execute(sql, values)]

    @server.resource("schema://main", title="Database Schema", mime_type="text/plain")
    def schema() -> str:
        """SQLite database schema."""
        return "\n".join(table["sql"] for table in fetch("SELECT sql FROM sqlite_master WHERE type = 'table'"))

    @server.tool(title="SQL Query")
    def query(sql: str) -> Rows:
        """Execute SQL queries on the database. Quick, so it is a plain call."""
        try:
            rows = fetch(sql)
        except sqlite3.Error as exc:
            raise ToolError(f"Error: {exc}") from exc
        return Rows(rows=rows, row_count=len(rows))

    @server.tool(title="Export")
    @tasks.task(recover="rerun")
    async def export(table: str, file: str, ctx: Context) -> str:
        """Export a table as CSV. If the server dies, the next one goes on where this one was."""
        if table not in [found["name"] for found in fetch("SELECT name FROM sqlite_master WHERE type = 'table'")]:
            raise ToolError(f"there is no table {table!r}")
        if Path(file).name != file:
            raise ToolError(f"{file!r} is not the name of a file: exports are written beside the database")
        total = fetch(f'SELECT count(*) AS rows FROM "{table}"')[0]["rows"]
        # Complete when it has its name. A tool cannot tell a cancelled task from a server that stops, so it leaves the
        # part where it is: the next run goes on with it.
        part = database.with_name(f"{current_task().id}.part")
        end = 0

        def write(offset: int, start: int) -> int:
            """Writes a page at its place, however often it is done, and says where the next one goes."""
            page = fetch(f'SELECT * FROM "{table}" ORDER BY rowid LIMIT {PAGE} OFFSET {offset}')
            with part.open("r+b" if start else "wb") as output:
                output.truncate(start)
                output.seek(start)
                output.write(_csv(page, header=start == 0))
                return output.tell()

        for offset in range(0, total, PAGE):
            end = await current_task().step(f"page-{offset}", write, offset, end)
            await ctx.report_progress(offset + PAGE, total, f"{offset + PAGE} of {total} rows")
            await anyio.sleep(0.05)  # so that there is something to see
        if part.exists():  # or an earlier run came to here
            part.replace(database.with_name(file))
        return f"{total} rows in {file}"

    return server


def _csv(rows: Sequence[dict[str, Any]], *, header: bool) -> bytes:
    text = io.StringIO()
    writer = csv.DictWriter(text, list(rows[0]))
    if header:
        writer.writeheader()
    writer.writerows(rows)
    return text.getvalue().encode()


async def visit(process: ServerProcess, folder: Path, mode: str) -> None:
    """Look around, export with a crash in the middle, and cancel another export."""
    async with Client(reconnecting_http(process.url), extensions=[TasksClient()], mode=mode) as client:
        version = client.protocol_version
        [content] = (await client.read_resource("schema://main")).contents
        assert isinstance(content, TextResourceContents)
        assert content.text.startswith("CREATE TABLE orders")
        found = await client.call_tool("query", {"sql": "SELECT sum(amount) AS sum FROM orders"})
        assert found.structured_content == {"rows": [{"sum": ROWS * 3}], "row_count": 1}
        assert (await client.call_tool("query", {"sql": "DELETE FROM orders"})).is_error, "it is read-only"

        handle = await _export(client, f"{version}.csv")
        await _until_half(handle)
        process.kill()
        await process.start()
    # In the older era a session ends with its server. The task does not: whoever has its id finds it again.
    async with Client(reconnecting_http(process.url), extensions=[TasksClient()], mode=mode) as client:
        result = await resume_task(client, handle.id).result()
        assert result.structured_content == {"result": f"{ROWS} rows in {version}.csv"}
        lines = (folder / f"{version}.csv").read_text().splitlines()
        assert lines[0] == "id,amount"
        assert [line.split(",")[0] for line in lines[1:]] == [str(number) for number in range(1, ROWS + 1)]
        print(f"{version}: {ROWS} rows exported, each once, by two processes")

        unwanted = await _export(client, "unwanted.csv")
        await _until_half(unwanted)
        await unwanted.cancel()
        try:
            await unwanted.result()
        except TaskWasCancelled:
            assert not (folder / "unwanted.csv").exists()
            print(f"{version}: another export cancelled, half way")
        else:
            raise SystemExit("the export was cancelled, and has a result")


async def _export(client: Client, file: str) -> TaskHandle:
    handle = await start_task(client, "export", {"table": "orders", "file": file})
    assert isinstance(handle, TaskHandle)
    return handle


async def _until_half(handle: TaskHandle) -> None:
    async for snapshot in handle.watch():
        rows = re.match(r"(\d+) of", snapshot.message or "")
        if rows is not None and int(rows[1]) >= ROWS / 2:
            return


async def main() -> None:
    """A shop's database, a server for it, and a client in both eras."""
    # The SDK logs a broken stream as an error; here that is the point of the exercise.
    logging.disable(logging.CRITICAL)
    with tempfile.TemporaryDirectory(prefix="sqlite-explorer-") as name:
        database = Path(name) / "shop.db"
        with closing(sqlite3.connect(database)) as connection, connection:
            connection.execute("CREATE TABLE orders (id INTEGER PRIMARY KEY, amount INTEGER)")
            connection.executemany("INSERT INTO orders (amount) VALUES (?)", [(3,)] * ROWS)
        process = ServerProcess(Path(__file__), "serve", "--database", database)
        await process.start()
        try:
            for mode in ("auto", "legacy"):
                await visit(process, Path(name), mode)
        finally:
            process.stop()


def serve(database: Path, port: int) -> None:
    """Tasks are kept beside the database."""
    tasks = Tasks(f"sqlite:///{database.resolve()}.tasks")
    build(database.resolve(), tasks).run("streamable-http", port=port)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    serving = parser.add_subparsers(dest="command").add_parser("serve")
    serving.add_argument("--database", type=Path, required=True)
    serving.add_argument("--port", type=int, default=8000)
    options = parser.parse_args()
    if options.command == "serve":
        serve(options.database, options.port)
    else:
        anyio.run(main)
