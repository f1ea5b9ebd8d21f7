"""Our server for clients of the older era, over either transport, and told to write down which process it is.

python -m tests.interop.our_server --db FILE --pid FILE                 stdio
python -m tests.interop.our_server --db FILE --pid FILE --port N        Streamable HTTP; also --json, --token
"""

from __future__ import annotations

import argparse
import os
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

from harness.auth import Tokens, locks
from mcp_tasks import Tasks
from mcp_tasks.testing.fixture_server import build


def main(argv: Sequence[str] | None = None) -> None:
    """Serve until stopped."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--db", type=Path, required=True)
    parser.add_argument("--pid", type=Path, required=True)
    parser.add_argument("--port", type=int)
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--token")
    options = parser.parse_args(argv)
    # Of several that a client starts over stdio, the first is the one to be killed.
    with suppress(FileExistsError), options.pid.open("x") as file:
        file.write(str(os.getpid()))
    server = build(Tasks(f"sqlite:///{options.db}"), **locks(Tokens(options.token) if options.token else None))
    if options.port is None:
        server.run("stdio")
    else:
        server.run("streamable-http", host="127.0.0.1", port=options.port, json_response=options.json)


if __name__ == "__main__":
    main()
