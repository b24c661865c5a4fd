"""Serve a scoring script: `python -m ml.serving.fast --entry-script score.py --port 5001`.

Without arguments it takes what Azure ML sets from a deployment's `code_configuration`:
AML_APP_ROOT and AZUREML_ENTRY_SCRIPT.
"""

from __future__ import annotations

import argparse
import asyncio
import gc
import logging
import os
import signal
import sys
from collections.abc import Callable
from pathlib import Path

import uvloop

from ml.serving.fast.app import App, Spinner, load
from ml.serving.fast.direct import Direct
from ml.serving.router.front import Front

PORT = 5001
PATIENCE_S = 8.0


async def serve(run: Callable[[bytes], object], host: str, port: int, spin_us: int) -> None:
    """Answer until SIGTERM; what is under way is finished."""
    loop = asyncio.get_running_loop()
    ended = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, ended.set)
    spin_s = spin_us / 1e6
    app = App(run, Spinner(loop, spin_s).touch)
    callers: set[Front] = set()
    server = await loop.create_server(
        lambda: Direct(app, callers, loop, spin_s), host, port, backlog=2048
    )
    print(f"listening on {host}:{port}", file=sys.stderr, flush=True)
    while not ended.is_set():
        try:
            await asyncio.wait_for(ended.wait(), 5.0)
        except TimeoutError:
            for one in list(callers):
                one.stale(loop.time())
    server.close()
    for one in list(callers):
        one.close()
    deadline = loop.time() + PATIENCE_S
    while callers and loop.time() < deadline:
        await asyncio.sleep(0.01)


def main() -> None:
    """Load the script, then listen: a container that answers is ready."""
    parser = argparse.ArgumentParser(prog="python -m ml.serving.fast", description=__doc__)
    parser.add_argument("--entry-script", default=os.environ.get("AZUREML_ENTRY_SCRIPT", ""))
    parser.add_argument("--host", default="127.0.0.1", help="0.0.0.0 in a container")
    parser.add_argument("--port", type=int, default=PORT)
    parser.add_argument(
        "--spin-us", type=int, default=200, help="stay awake so long after an answer; 0: do not"
    )
    asked = parser.parse_args()
    if not asked.entry_script:
        parser.error("no scoring script: --entry-script, or AZUREML_ENTRY_SCRIPT")
    logging.basicConfig(stream=sys.stderr, level=logging.INFO)
    root = Path(os.environ.get("AML_APP_ROOT", "."))
    script = (root / asked.entry_script).resolve()
    sys.path.insert(0, str(root.resolve()))
    sys.path.insert(0, str(script.parent))
    module = load(script)
    # What was loaded stays: no collection ever looks at it again, so none takes long.
    gc.collect()
    gc.freeze()
    uvloop.run(serve(module.run, asked.host, asked.port, asked.spin_us))


if __name__ == "__main__":
    main()
