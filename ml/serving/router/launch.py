"""Run the traffic router of one endpoint; started as a file by `ml.serving.router.process`.

python -P launch.py FOLDER PORT ROUTES_FILE
"""

from __future__ import annotations

import asyncio
import gc
import json
import os
import secrets
import signal
import sys
from pathlib import Path

import uvloop

from ml.serving.router.control import Control
from ml.serving.router.exchange import Switchboard
from ml.serving.router.front import Front

HOST = "127.0.0.1"
# The routes file is looked at this often, in case nobody could say that it changed.
LOOK_S = 0.5
SWEEP_S = 5.0
# What is under way may end before the process does; `ml serve --stop` waits ten seconds.
PATIENCE_S = 8.0
BACKLOG = 2048


async def serve(folder: Path, port: int, file: Path) -> None:
    """Answer until SIGTERM; then no new connection, and what is under way is finished."""
    loop = asyncio.get_running_loop()
    ended = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, ended.set)
    board = Switchboard(file, loop)
    board.refresh()
    token = secrets.token_urlsafe(24)
    control = Control(board, token)
    callers: set[Front] = set()
    watchers: set[Front] = set()
    controlled = await loop.create_server(lambda: Front(control, watchers, loop), HOST, 0)
    front = await loop.create_server(
        lambda: Front(board, callers, loop), HOST, port, backlog=BACKLOG
    )
    _announce(folder, port, controlled.sockets[0].getsockname()[1], token)
    swept = loop.time()
    while not ended.is_set():
        try:
            await asyncio.wait_for(ended.wait(), LOOK_S)
        except TimeoutError:
            board.refresh()
        if loop.time() - swept > SWEEP_S:
            swept = loop.time()
            for one in [*callers, *watchers]:
                one.stale(swept)
    front.close()
    for one in list(callers):
        one.close()
    deadline = loop.time() + PATIENCE_S
    while (board.in_flight or callers) and loop.time() < deadline:
        await asyncio.sleep(0.01)
    board.collector.flush()
    controlled.close()


def _announce(folder: Path, port: int, control: int, token: str) -> None:
    """Write where the router listens, for its owner alone, in one step."""
    unfinished = folder / f".router.json.{os.getpid()}.tmp"
    unfinished.touch(mode=0o600)
    unfinished.write_text(
        json.dumps({"pid": os.getpid(), "port": port, "control": control, "token": token})
    )
    unfinished.replace(folder / "router.json")


def main() -> None:
    """Serve until a signal ends it."""
    folder, port, file = sys.argv[1:]
    gc.freeze()  # what is imported is no garbage: it is not looked through again
    uvloop.run(serve(Path(folder), int(port), Path(file)))


if __name__ == "__main__":
    main()
