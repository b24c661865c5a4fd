"""Runs the Azure ML inference server for one slot; `ml.serving.server` starts it as a file.

It is the server inside managed online endpoints, unchanged but for its address: azmlinfsrv always
binds 0.0.0.0, which would offer an unauthenticated model to the whole network.

    python -P launch.py SLOT_FOLDER PORT SCORING_SCRIPT
"""

from __future__ import annotations

import sys


def main() -> None:
    """Serve until a signal ends it; exits 3 when the scoring script's init() fails."""
    _, port, script = sys.argv[1:]
    from azureml_inference_server_http import amlserver  # type: ignore[import-untyped]

    amlserver.DEFAULT_HOST = "127.0.0.1"
    sys.argv = ["azmlinfsrv", "--entry_script", script, "--port", port]
    amlserver.run()


if __name__ == "__main__":
    main()
