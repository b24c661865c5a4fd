"""ml.backends.local.serving.router.front: what callers can make the router hold."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import suppress

import pytest
from aiohttp import web

from ml.backends.local.serving.router import front
from ml.backends.local.serving.router.front import BoundedServer, Full, Load, Room

GET = b"GET / HTTP/1.1\r\nhost: h\r\n\r\n"
POST = b"POST / HTTP/1.1\r\nhost: h\r\n"
Streams = tuple[asyncio.StreamReader, asyncio.StreamWriter]
Connect = Callable[[], Awaitable[Streams]]


def served(
    scenario: Callable[[BoundedServer, Connect], Awaitable[None]], answer: bytes = b"ok"
) -> None:
    """Run the scenario against a server that gives this answer to every request."""

    async def handler(_: web.BaseRequest, __: bytes, load: Load) -> web.Response:
        load.add(len(answer))
        return web.Response(body=answer)

    async def run() -> None:
        server = BoundedServer(handler)
        runner = web.ServerRunner(server)
        await runner.setup()
        await web.TCPSite(runner, "127.0.0.1", 0, shutdown_timeout=0.1).start()
        opened: list[asyncio.StreamWriter] = []

        async def connect() -> Streams:
            streams = await asyncio.open_connection(*runner.addresses[0])
            opened.append(streams[1])
            return streams

        try:
            async with asyncio.timeout(20):
                await scenario(server, connect)
        finally:
            for writer in opened:
                writer.transport.abort()
            await runner.cleanup()

    asyncio.run(run())


async def status(streams: Streams, request: bytes = GET) -> int:
    """The status of one answer; 0 when the connection is closed."""
    reader, writer = streams
    with suppress(ConnectionError):
        writer.write(request)
        if line := await reader.readline():
            await reader.readuntil(b"\r\n\r\n")
            return int(line.split()[1])
    return 0


def test_small_requests_have_room_when_large_ones_fill_it() -> None:
    """Each has SMALL for itself; what ends makes room again."""
    room = Room()
    large = Load(room)
    large.add(front.MAX_HELD + front.SMALL)
    other = Load(room)
    other.add(front.SMALL)
    with pytest.raises(Full):
        other.add(1)
    large.end()
    other.add(1)
    assert room.held == 1


@pytest.mark.attack("a caller opens connections until no other caller gets one")
def test_the_connection_that_is_idle_longest_makes_room(monkeypatch: pytest.MonkeyPatch) -> None:
    """A new caller is answered; the others keep their connections."""
    monkeypatch.setattr(front, "MAX_CONNECTIONS", 3)

    async def scenario(server: BoundedServer, connect: Connect) -> None:
        first, second, third = [await connect() for _ in range(3)]
        while server.open < 3:
            await asyncio.sleep(0)
        assert await status(first) == 200  # from now on the second is idle longest
        assert await status(await connect()) == 200
        assert [await status(each) for each in (first, second, third)] == [200, 0, 200]
        assert server.open == 3

    served(scenario)


@pytest.mark.attack("a caller does not read a large answer")
def test_an_answer_that_is_not_read_ends_the_connection(monkeypatch: pytest.MonkeyPatch) -> None:
    """And its memory is free again; a caller who reads gets all of it."""
    answer = b"x" * 20 * 2**20

    async def scenario(server: BoundedServer, connect: Connect) -> None:
        reader, writer = await connect()
        writer.write(GET)
        head = await reader.readuntil(b"\r\n\r\n")
        assert b"200 OK" in head and len(await reader.readexactly(len(answer))) == len(answer)
        monkeypatch.setattr(front, "CALLER_SLOW_S", 0.1)
        _, lazy = await connect()
        lazy.transport.pause_reading()  # type: ignore[attr-defined]
        lazy.write(GET)
        while (server.open, bool(server.room.held)) != (2, True):
            await asyncio.sleep(0)
        while server.open == 2:
            await asyncio.sleep(0.01)
        assert not server.room.held

    served(scenario, answer)


@pytest.mark.attack("a caller sends requests and reads no answer")
def test_a_connection_is_not_read_while_its_request_is_answered() -> None:
    """Of 40 megabytes of requests, the server takes only what sockets buffer."""

    async def scenario(_: BoundedServer, connect: Connect) -> None:
        _, writer = await connect()
        writer.transport.pause_reading()  # type: ignore[attr-defined]
        body = b"x" * 2**20
        writer.write((POST + b"content-length: %d\r\n\r\n" % len(body) + body) * 40)
        for _ in range(50):
            await asyncio.sleep(0.01)
        assert writer.transport.get_write_buffer_size() > 20 * 2**20

    served(scenario, b"y" * 20 * 2**20)


@pytest.mark.attack("a caller fills the memory with headers, each of them short")
def test_all_headers_together_are_bounded() -> None:
    """431, also before the last header has come."""

    async def scenario(_: BoundedServer, connect: Connect) -> None:
        headers = b"".join(b"x%d: %b\r\n" % (number, b"y" * 1000) for number in range(66))
        assert await status(await connect(), POST + headers + b"\r\n") == 431
        assert await status(await connect(), POST + headers) == 431
        assert await status(await connect(), POST + headers[:50_000] + b"\r\n\r\n") == 200

    served(scenario)
