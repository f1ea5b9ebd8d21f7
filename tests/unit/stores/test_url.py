"""One URL, or nothing at all, decides where tasks are kept."""

import hashlib
import json
import os
import re
import subprocess
import sys
import unicodedata
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from harness import processes
from harness.processes import run
from mcp_tasks import Tasks
from mcp_tasks.engines import Engine
from mcp_tasks.engines.docket import DocketCarrier
from mcp_tasks.engines.procrastinate import ProcrastinateCarrier
from mcp_tasks.engines.remote import engine_from_url
from mcp_tasks.errors import UsageError
from mcp_tasks.files import state_folder
from mcp_tasks.stores import MemoryStore, Store
from mcp_tasks.stores.postgres import PostgresStore
from mcp_tasks.stores.redis import RedisStore
from mcp_tasks.stores.sqlite import SqliteStore
from mcp_tasks.stores.url import default_store, store_from_url

REDIS: Any = RedisStore
"""As authors without a type checker have them."""


def engine_of(url: str) -> Engine:
    return engine_from_url(url, 1)


def path_of(store: Store) -> Path:
    assert isinstance(store, SqliteStore)
    return store.path


@pytest.mark.parametrize(
    ("url", "path"),
    [
        ("sqlite:///tasks.db", "tasks.db"),
        ("sqlite:///some/folder/tasks.db", "some/folder/tasks.db"),
        ("sqlite:////var/lib/tasks.db", "/var/lib/tasks.db"),
        ("sqlite:///with%20space.db", "with space.db"),
        ("sqlite:///snow%E2%98%83%3F%23.db", "snow☃?#.db"),
    ],
)
def test_a_sqlite_url_names_a_file(url: str, path: str) -> None:
    assert path_of(store_from_url(url)) == Path(path)


@pytest.mark.parametrize(
    "url",
    [
        "postgresql+psycopg://u:s3cret@h/db",
        "amqp://u:s3cret@h/db",
        "amqp://u:s3/cret?@h/db",
        "mysql://h/db?password=s3cret",
        "mysql://h/db?x=1&sslpassword=s3cret",
        "host=h password=s3cret dbname=db",
        "u:s3cret@h",
    ],
)
def test_a_url_that_is_refused_is_repeated_without_its_password(url: str) -> None:
    for refuse in (store_from_url, engine_of):
        with pytest.raises(UsageError, match=r"names no (store|engine)") as refused:
            refuse(url)
        assert "cret" not in str(refused.value)
        assert "h" in str(refused.value).partition(" names")[0]


@pytest.mark.parametrize(
    ("make", "url"),
    [
        (RedisStore, "redis://:s3cret@localhost:port/0"),
        (RedisStore, "redis://user:s3cret/x@localhost/0"),
        (RedisStore, "redis://localhost:6379/0?socket_timeout=s3cret"),
        (RedisStore, "http://:s3cret@localhost"),
        (RedisStore, "localhost:s3cret"),
        (PostgresStore, "postgresql://u:s3c/ret@host/db"),
        (PostgresStore, "postgresql://u@h/db?s3cret=1"),
        (PostgresStore, "postgresql://[s3cret"),
        (DocketCarrier, "redis://me:s3cret@host/0?max_connections=many"),
        (ProcrastinateCarrier, "postgresql://me:s3cret%zz@host/x"),
    ],
)
def test_a_url_that_names_no_server_is_refused_without_repeating_it(make: Callable[[str], object], url: str) -> None:
    with pytest.raises(UsageError, match=r"Redis|Postgres") as refused:
        make(url)
    assert "s3c" not in f"{refused.value!r} {refused.value.__cause__!r}"
    assert refused.value.__suppress_context__ or refused.value.__context__ is None


@pytest.mark.parametrize(
    ("store", "shown"),
    [
        (RedisStore("unix:///run/redis.sock?password=s3cret"), "RedisStore('unix:///run/redis.sock"),
        (store_from_url("rediss://user:s3cret@[::1]:7000/3?password=s3cret"), "RedisStore('rediss://[::1]:7000/3')"),
        (store_from_url("valkeys://:s3cret@example.org"), "RedisStore('valkeys://example.org:6379/0')"),
        (store_from_url("SQLITE:///A.db"), "SqliteStore"),
        (store_from_url("REDIS://u:p@Host/3"), "RedisStore('redis://host:6379/3')"),
        (store_from_url("Postgres://u:p@h/Db"), "PostgresStore('postgresql://u@h/Db')"),
    ],
    ids=repr,
)
def test_a_store_is_shown_without_secrets_and_the_case_of_its_scheme_does_not_matter(store: Store, shown: str) -> None:
    assert shown in repr(store)
    assert "s3cret" not in repr(store)


@pytest.mark.parametrize("database", ["x", "1/2", "-1", "0x1", "%31"])
def test_a_redis_database_that_is_no_number_is_refused(database: str) -> None:
    for refuse in (store_from_url, engine_of):
        with pytest.raises(UsageError, match="the database is a number") as refused:
            refuse(f"redis://u:s3cret@h:6379/{database}")
        assert "s3cret" not in str(refused.value)
        for fine in ("", "/", "/15", "/0/"):
            refuse(f"redis://h:6379{fine}")


@pytest.mark.slow
@pytest.mark.parametrize(
    ("extra", "driver", "store"), [("postgres", "psycopg", "Postgres"), ("redis", "redis", "Redis")]
)
def test_a_store_whose_driver_is_not_installed_says_what_to_install(extra: str, driver: str, store: str) -> None:
    program = (
        f"import sys; sys.modules['{driver}'] = None\n"
        "from mcp_tasks.errors import MissingExtra\n"
        "from mcp_tasks.stores.url import store_from_url\n"
        f"for ask in lambda: store_from_url('{extra}://h/0'), lambda: __import__('mcp_tasks.stores.{extra}'):\n"
        "    try: ask()\n"
        "    except MissingExtra as exc: print(exc)\n"
    )
    done = run([sys.executable, "-c", program], check=True)
    said = f"a task store in {store} needs an optional dependency: pip install 'mcp-tasks[{extra}]'"
    assert done.stdout.splitlines() == [said, said]


@pytest.mark.parametrize(
    ("url", "says"),
    [
        ("", "sqlite:///FILE"),
        ("tasks.db", "sqlite:///FILE"),
        ("sqlite:///", "sqlite:///FILE"),
        ("mysql://localhost/tasks", "sqlite:///FILE"),
        # Too few slashes would be another file.
        (
            "sqlite:tasks.db",
            "'sqlite:tasks.db' names no store: after sqlite: come three slashes and the file (sqlite:///ta",
        ),
        (
            "sqlite://folder/tasks.db",
            "(sqlite:///folder/tasks.db), or four for an absolute path (sqlite:////var/lib/x.db)",
        ),
        ("sqlite:", "(sqlite:///tasks.db)"),
        ("sqlite:/srv/x.db", "absolute path (sqlite:////srv/x.db)"),
        # Nothing is dropped silently.
        ("sqlite:///a.db?mode=ro", "in the name of a file that is written %3F"),
        ("sqlite:///a.db#frag", "in the name of a file that is written %23"),
        ("memory:", "memory:// is all"),
        ("memory:///", "memory:// is all"),
        ("memory://?a", "memory:// is all"),
    ],
)
def test_anything_else_is_refused_with_what_to_write(url: str, says: str) -> None:
    with pytest.raises(UsageError, match=re.escape(says)):
        store_from_url(url)


@pytest.mark.parametrize(
    ("store", "engine", "says"),
    [
        ("memory://", "localhost", r"names no engine; use 'local', postgresql://"),
        ("memory://", "sqlite:///x.db", r"names no engine; use 'local', postgresql://"),
        ("memory://", "redis://u:s3cret@h", "tasks in memory are seen only by this process"),
        (MemoryStore(), "postgresql://u:s3cret@h/db", "tasks in memory are seen only by this process"),
    ],
)
def test_an_engine_that_cannot_carry_the_tasks_of_a_store_is_refused(
    store: str | Store, engine: str, says: str
) -> None:
    with pytest.raises(UsageError, match=says) as refused:
        Tasks(store, engine=engine)
    assert "s3cret" not in str(refused.value)


def test_a_url_from_the_environment_is_refused_with_where_it_comes_from(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MCP_TASKS_URL", "tasks.db")
    with pytest.raises(UsageError, match=r"environment variable MCP_TASKS_URL: '.*' names no store"):
        Tasks()


@pytest.mark.parametrize(
    ("name", "kept"),
    [
        ("../../etc/passwd", "etc-passwd"),
        ("...", "server"),
        ("späße", "späße"),
        ("render farm", "render-farm"),
        ("Demo", "Demo"),
        ("/home/me/demo/server.py", "home-me-demo-server.py"),
    ],
)
def test_a_name_never_leads_out_of_the_folder_and_stays_distinct(name: str, kept: str) -> None:
    # What was changed, or differs from another name only in case or accents, gets a hash.
    safe = f"{kept}-{hashlib.sha256(name.encode()).hexdigest()[:8]}"
    assert path_of(default_store(name, "acme")) == state_folder() / f"{safe}@acme.db"
    assert path_of(default_store("demo", name)) == state_folder() / f"demo@{safe}.db"
    assert path_of(default_store("render-farm", "acme.server")).name == "render-farm@acme.server.db"


ALIKE = [
    *("a b", "a-b", "a  b", "a/b", "A-b", "-a-b", "a-b.", "x" * 300, "x" * 301),
    *("\ud800", "\udfff", "é", "e\u0301", ""),
]


def test_no_two_servers_or_programs_share_a_file_by_accident() -> None:
    files = [path_of(default_store(server, origin)).name for server in ALIKE for origin in ALIKE]
    # Some file systems fold case and compose accents.
    assert len({unicodedata.normalize("NFC", file.casefold()) for file in files}) == len(ALIKE) ** 2
    # "a@b" is no other pair either.
    assert path_of(default_store("a@b", "c")) != path_of(default_store("a", "b@c"))


@pytest.mark.parametrize("name", ["x" * 5_000, "ü" * 5_000, "𝄞" * 5_000, "/very" * 100 + "/server.py"], ids=len)
def test_a_long_name_still_makes_a_file_and_of_a_path_the_end_is_kept(name: str, tmp_path: Path) -> None:
    file = path_of(default_store(name, name)).name
    assert len(file.encode()) < 200
    (tmp_path / file).touch()
    assert file.endswith(".db")
    assert ("server.py" in file) == name.endswith("server.py")


@pytest.mark.skipif(sys.platform in ("win32", "darwin"), reason="the place is another there")
def test_the_state_folder_is_where_the_desktop_standard_says(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    assert state_folder() == tmp_path / "mcp-tasks"
    monkeypatch.delenv("XDG_STATE_HOME")
    assert state_folder() == Path.home() / ".local/state/mcp-tasks"


# Which program a `Tasks` object belongs to: real modules, started and imported in all the ways there are


SERVER = """
from mcp_tasks.stores.url import origin_of
import json
print(json.dumps(origin_of(globals())))
"""

LOADER = """
import importlib.util, sys
spec = importlib.util.spec_from_file_location("server_module", sys.argv[1])
module = importlib.util.module_from_spec(spec)
spec.loader.exec_module(module)
"""


@pytest.fixture
def project(tmp_path: Path) -> Path:
    """A folder with a script, a package, two checkouts, an environment with installed packages, and links."""
    files = {
        "script/server.py": SERVER,
        "folder/__main__.py": SERVER,
        "acme/__init__.py": "",
        "acme/server.py": SERVER,
        "acme/__main__.py": SERVER,
        "whole/__init__.py": SERVER,
        "lib/site-packages/installed/tasks/server.py": SERVER,
        "lib/dist-packages/installed/__init__.py": SERVER,
    }
    for name, text in files.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)
    (tmp_path / "link").symlink_to(tmp_path / "script")
    return tmp_path


Case = tuple[Sequence[str], str, str, str]
"""The arguments of Python, the folder it is started in, the folder on its path, and the origin."""

SITE, DIST = "lib/site-packages", "lib/dist-packages"
CASES: dict[str, Case] = {
    "a script": (["script/server.py"], ".", "", "/script/server.py"),
    "a folder": (["folder"], ".", "", "/folder/__main__.py"),
    "no file": (["-c", SERVER], ".", "", "/__main__"),
    "a module by its path": (["acme/server.py"], ".", "", "/acme/server.py"),
    "a module by its name": (["-m", "acme.server"], ".", "", "/acme/server.py"),
    "a module that is imported": (["-c", "import acme.server"], ".", "", "/acme/server.py"),
    "a package": (["-c", "import whole"], ".", "", "/whole/__init__.py"),
    "a package that is run": (["-m", "acme"], ".", "", "/acme/__main__.py"),
    "an installed module": (["-c", "import installed.tasks.server"], ".", SITE, "installed.tasks.server"),
    "an installed package": (["-c", "import installed"], ".", DIST, "installed"),
    "loaded": (["-c", LOADER, "script/server.py"], ".", "", "/script/server.py"),
    "imported by a link": (["-c", "import server"], ".", "link", "/script/server.py"),
}


@pytest.mark.slow
@pytest.mark.parametrize(("arguments", "folder", "path", "origin"), CASES.values(), ids=CASES)
def test_a_program_is_known_by_its_file_or_by_the_name_of_its_installed_module(
    project: Path, arguments: Sequence[str], folder: str, path: str, origin: str
) -> None:
    environment = os.environ | {"PYTHONPATH": str(project / path) if path else "", "PYTHONDONTWRITEBYTECODE": "1"}
    # A relative file is one that the program opens, so it is started where that is.
    done = processes.run([sys.executable, *arguments], cwd=project / folder, env=environment, check=True)
    assert json.loads(done.stdout) == (f"{project}{origin}" if origin.startswith("/") else origin)


WAYS = {
    "python x.py": (sys.executable, "x.py"),
    "uvicorn x:app": processes.python("uvicorn", "x:app", "--port", "0"),
    "mcp-tasks worker x:server": processes.python("mcp_tasks", "worker", "x:server"),
}


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_a_server_has_one_default_file_however_it_is_started(tmp_path: Path) -> None:
    (tmp_path / "x.py").write_text(
        "from mcp.server import MCPServer\n"
        "from mcp_tasks import Tasks\n"
        "tasks = Tasks()\n"
        "server = MCPServer('demo', **tasks.wiring())\n"
        "app = server.streamable_http_app()\n"
        "if __name__ == '__main__':\n"
        "    server.run()\n",
    )
    with ExitStack() as stack:
        started: dict[Path, subprocess.Popen[bytes]] = {}
        for way, command in WAYS.items():
            state = tmp_path / way.partition(" ")[0]
            environment = processes.environment(XDG_STATE_HOME=str(state))
            process = processes.running(command, cwd=tmp_path, env=environment, stdin=processes.PIPE)
            started[state] = stack.enter_context(process)
        for state, process in started.items():
            processes.until_ready(process, lambda state=state: any(state.glob("**/*.db")), what=state.name, limit=250)
    names = {file.name for state in started for file in state.glob("**/*.db")}
    assert len(names) == 1, names
