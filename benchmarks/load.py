"""Send HTTP requests with little overhead: raw sockets, keep-alive if the server allows it."""

from __future__ import annotations

import socket
import threading
import time
from collections import Counter

HOST = "127.0.0.1"


class Caller:
    """A client with one connection, which it reopens if the server closes it."""

    def __init__(self, port: int, body: bytes, spins: bool = False) -> None:
        self._port = port
        self._spins = spins  # poll the socket in a busy loop instead of sleeping
        path = "/score"
        self._request = (
            f"POST {path} HTTP/1.1\r\nHost: h\r\nContent-Type: application/json\r\n"
            f"Content-Length: {len(body)}\r\n\r\n"
        ).encode() + body
        self._socket: socket.socket | None = None

    def ask(self) -> tuple[int, bytes]:
        """Send the request; return status and body. Raises OSError for an incomplete response."""
        if self._socket is None:
            self._socket = socket.create_connection((HOST, self._port), timeout=30)
            self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            if self._spins:
                self._socket.setblocking(False)  # with a timeout, Python would sleep in poll()
        try:
            self._socket.sendall(self._request)
            got = self._more()
            while (end := got.find(b"\r\n\r\n")) < 0:
                got += self._more()
            head = got[:end].lower()
            place = head.index(b"content-length:") + 15
            stop = head.find(b"\r\n", place)
            length = int(head[place:] if stop < 0 else head[place:stop])
            while len(got) < end + 4 + length:
                got += self._more()
        except (OSError, ValueError) as error:
            self.close()
            raise OSError(f"no whole answer: {error}") from None
        if b"connection: close" in head:
            self.close()
        return int(got[9:12]), got[end + 4 :]

    def close(self) -> None:
        """Close the connection."""
        if self._socket is not None:
            self._socket.close()
            self._socket = None

    @staticmethod
    def _spin(stream: socket.socket) -> bytes:
        while True:
            try:
                return stream.recv(65536)
            except BlockingIOError:
                continue

    def _more(self) -> bytes:
        assert self._socket is not None
        found = self._spin(self._socket) if self._spins else self._socket.recv(65536)
        if not found:
            raise OSError("closed")
        return found


def closed_loop(
    port: int, body: bytes, seconds: float, callers: int = 1, spins: bool = False
) -> float:
    """Return the requests per second of callers that send the next request after each response."""
    counts = [0] * callers
    end = time.perf_counter() + seconds

    def run(number: int) -> None:
        caller = Caller(port, body, spins)
        while time.perf_counter() < end:
            status, _ = caller.ask()
            assert status == 200
            counts[number] += 1
        caller.close()

    threads = [threading.Thread(target=run, args=(number,)) for number in range(callers)]
    begun = time.perf_counter()
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return sum(counts) / (time.perf_counter() - begun)


def latencies(
    port: int,
    body: bytes,
    requests: int,
    per_second: float | None = None,
    spins: bool = False,
) -> list[float]:
    """Return the sorted latencies of a caller's requests in milliseconds.

    Requests are sent at the rate `per_second`, or one after another if it is None.
    """
    caller, found = Caller(port, body, spins), []
    due = time.perf_counter()
    for _ in range(requests):
        if per_second is not None:
            due += 1 / per_second
            time.sleep(max(due - time.perf_counter(), 0))
        begun = time.perf_counter()
        status, _ = caller.ask()
        found.append((time.perf_counter() - begun) * 1000)
        assert status == 200
    caller.close()
    return sorted(found)


class Crowd:
    """Callers in threads that send requests until `stop`, and count every status and failure."""

    def __init__(self, port: int, body: bytes, callers: int) -> None:
        self.found: Counter[str] = Counter()
        self._stop = threading.Event()
        self._lock = threading.Lock()
        self._threads = [
            threading.Thread(target=self._run, args=(Caller(port, body),)) for _ in range(callers)
        ]
        for thread in self._threads:
            thread.start()

    @property
    def answered(self) -> int:
        """Return the number of completed requests, successful or not."""
        return sum(self.found.values())

    def stop(self) -> None:
        """Stop the callers and wait for their last responses."""
        self._stop.set()
        for thread in self._threads:
            thread.join()

    def _run(self, caller: Caller) -> None:
        while not self._stop.is_set():
            try:
                found = str(caller.ask()[0])
            except OSError as error:
                found = str(error)
            with self._lock:
                self.found[found] += 1
        caller.close()


def share(values: list[float], fraction: float) -> float:
    """Return the quantile `fraction` of sorted values."""
    return values[min(int(len(values) * fraction), len(values) - 1)]
