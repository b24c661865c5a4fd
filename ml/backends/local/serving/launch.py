"""Run the inference server of one slot; `ml.backends.local.serving.server` starts this file.

    python -IBu launch.py SLOT_FOLDER LISTENER SCORING_SCRIPT [MODULE]

Without MODULE it runs azmlinfsrv, the server of managed online endpoints. That always binds
0.0.0.0, which would expose an unauthenticated model to the network. So its gunicorn serves the
inherited socket LISTENER, as from systemd (sd_listen_fds(3)). MODULE is another server, from the
deployment's code (`ml.serving.fast`).

The process first isolates itself (isolation.py). -I keeps the deployment's code off sys.path until
then: otherwise Python would import its `sitecustomize.py` or `ctypes.py` before.
"""

from __future__ import annotations

import os
import runpy
import socket
import sys
from importlib.machinery import SourceFileLoader
from pathlib import Path
from types import ModuleType
from typing import Any

FIRST = 3  # the first descriptor of systemd's protocol


def main() -> None:
    """Serve until a signal ends it; exit with 3 if the scoring script's init() fails."""
    slot, listener, script, *module = sys.argv[1:]
    paths = os.environ["PYTHONPATH"].split(os.pathsep)
    model = Path(os.environ["AZUREML_MODEL_DIR"], "model")
    loader = SourceFileLoader("isolation", str(Path(__file__).with_name("isolation.py")))
    isolation: Any = ModuleType("isolation")
    loader.exec_module(isolation)
    folders = [*map(Path, paths), Path(script), Path(slot, "azureml-models"), model.readlink()]
    if store := os.environ.get("SCORE_FEATURE_STORE"):
        folders.append(Path(store, "online"))
    folder = Path.cwd()
    print(isolation.enter(folders, Path(os.environ["TMPDIR"])), file=sys.stderr)
    os.chdir(folder)
    sys.path[:0] = paths
    if module:
        sys.argv = [*module, "--entry-script", script, "--listener", listener]
        runpy.run_module(module[0], run_name="__main__", alter_sys=True)
        return
    if int(listener) != FIRST:
        os.dup2(int(listener), FIRST)
        os.close(int(listener))
    with socket.socket(fileno=os.dup(FIRST)) as served:
        port = served.getsockname()[1]
    os.environ.update(LISTEN_PID=str(os.getpid()), LISTEN_FDS="1")
    from azureml_inference_server_http import amlserver

    sys.argv = ["azmlinfsrv", "--entry_script", script, "--port", str(port)]
    amlserver.run()


if __name__ == "__main__":
    main()
