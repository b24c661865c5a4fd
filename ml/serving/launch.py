"""Run the Azure ML inference server for one slot; started as a file by `ml.serving.server`.

It is the server inside managed online endpoints, unchanged but for the address that it binds:
azmlinfsrv always takes 0.0.0.0, which would offer an unauthenticated model to the whole network.
The slot's folder stands in this process's command line and is how the server is found again.

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
