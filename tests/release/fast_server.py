"""Scoring scripts run in `ml.serving.fast`, which starts in a fifth of the time that Azure ML's
server takes: releases are about what serves. tests/backends/serving and commands have the real one.
"""

from __future__ import annotations

import py_compile
from dataclasses import replace
from pathlib import Path

from ml.backends.endpoints import ModelDeployment
from ml.backends.local.serving import server
from tests.shared import ROOT

NAME = "fast_server"
_begin = server.begin


def install(folder: Path) -> None:
    """Compile it into a folder."""
    py_compile.compile(str(ROOT / "ml/serving/fast.py"), str(folder / f"{NAME}.pyc"), doraise=True)


def begin(folder: Path, slot: Path, deployment: ModelDeployment) -> server.Starting:
    """As `server.begin`, with the server in the folder where the deployment names none."""
    variables = {"PYTHONPATH": f"{deployment.code}:{folder}", **deployment.environment_variables}
    fast = replace(deployment, server=deployment.server or NAME, environment_variables=variables)
    return _begin(slot, fast)
