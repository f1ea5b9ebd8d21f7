"""Ports of this machine: one that is free, one that is open already, and whether somebody listens on one."""

import socket
from collections.abc import Generator
from contextlib import contextmanager

HOST = "127.0.0.1"
_BACKLOG = 1024


def free_port(below: int = 65536) -> int:
    """A port that nobody listens on, for a server that opens it itself."""
    with socket.socket() as probe:
        probe.bind((HOST, 0))
        port = port_of(probe)
        return port if port < below else free_port(below)


@contextmanager
def listening() -> Generator[socket.socket]:
    """A socket that takes connections, to be handed to a server: whoever connects early waits until that is up.

    It can be handed down to another process by its number.
    """
    # With the protocol named: asyncio turns Nagle's algorithm off only for sockets that say they are TCP.
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM, socket.IPPROTO_TCP) as listener:
        listener.bind((HOST, 0))
        listener.listen(_BACKLOG)
        listener.set_inheritable(True)
        yield listener


@contextmanager
def closed_port() -> Generator[int]:
    """A port on which nobody listens, and nobody will while the block lasts."""
    with socket.socket() as taken:
        taken.bind((HOST, 0))
        yield port_of(taken)


def port_of(bound: socket.socket) -> int:
    port: int = bound.getsockname()[1]
    return port


def listens(port: int) -> bool:
    try:
        socket.create_connection((HOST, port), timeout=5).close()
    except OSError:
        return False
    return True


def base_url(port: int | str) -> str:
    return f"http://{HOST}:{port}"


def mcp_url(port: int) -> str:
    return f"{base_url(port)}/mcp"
