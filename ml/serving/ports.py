"""Ports of this machine: one that is free, and who holds one that is not."""

from __future__ import annotations

import socket
from collections import deque

import psutil

from ml.core.errors import Problem

HOST = "127.0.0.1"  # nothing outside this machine reaches a local endpoint
LARGEST = 65535


# Given out, and perhaps not listened on yet.
_given: deque[int] = deque(maxlen=32)


def free() -> int:
    """A port that nothing listens on now, and that this was not the answer lately."""
    while True:
        with socket.socket() as probe:
            probe.bind((HOST, 0))
            port = int(probe.getsockname()[1])
        if port not in _given:
            _given.append(port)
            return port


def is_free(port: int) -> bool:
    """Whether a server could bind the port now."""
    with socket.socket() as probe:
        # What servers do too: a connection that has just closed does not keep the port.
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((HOST, port))
        except OSError:
            return False
        return True


def holder(port: int) -> str:
    """Who listens on the port, as `name (process 123, of user)`; as much as this user may see."""
    try:
        listening = [
            connection
            for connection in psutil.net_connections("inet")
            if connection.laddr and connection.laddr.port == port and connection.status == "LISTEN"
        ]
        pid = next((connection.pid for connection in listening if connection.pid), None)
        if pid is not None:
            process = psutil.Process(pid)
            return f"{process.name()} (process {pid}, of {process.username()})"
    except psutil.Error:
        pass
    return "a process that this user may not see"


def taken(port: int, starting: str) -> Problem:
    """What a person is told when a port that was free is held by another by now."""
    return Problem(
        "port-in-use",
        f"port {port} was taken by {holder(port)} as the {starting} started",
        "a port that stays free",
        "the same command again picks another",
    )


def listens(process: psutil.Process, port: int) -> bool:
    """Whether that very process listens on the port."""
    try:
        # The kind of HOST alone: "inet" reads four tables of every connection of the machine.
        connections = process.net_connections("tcp4")
    except psutil.Error:
        return False
    return any(
        connection.laddr and connection.laddr.port == port and connection.status == "LISTEN"
        for connection in connections
    )
