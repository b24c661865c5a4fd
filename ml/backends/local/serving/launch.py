"""Runs the inference server of one slot; `ml.backends.local.serving.server` starts it as a file.

Without a MODULE it is the server inside managed online endpoints, unchanged but for its address:
azmlinfsrv always binds 0.0.0.0, which would offer an unauthenticated model to the whole network.
Here its gunicorn serves a socket that it inherits, LISTENER, as from systemd (sd_listen_fds(3)). A
MODULE of the deployment's own code is the server of its container (`ml.serving.fast`).

    python -P launch.py SLOT_FOLDER LISTENER SCORING_SCRIPT [MODULE]
"""

from __future__ import annotations

import os
import runpy
import socket
import sys

FIRST = 3  # the descriptor of the first socket, by that protocol


def main() -> None:
    """Serve until a signal ends it; exits 3 when the scoring script's init() fails."""
    _, listener, script, *module = sys.argv[1:]
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
    from azureml_inference_server_http import amlserver  # type: ignore[import-untyped]

    sys.argv = ["azmlinfsrv", "--entry_script", script, "--port", str(port)]
    amlserver.run()


if __name__ == "__main__":
    main()
