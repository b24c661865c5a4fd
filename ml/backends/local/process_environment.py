"""The environment of a run's processes: the interpreter and the environment variables."""

from __future__ import annotations

import json
import os
import platform
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from ml.core.home import tracking_uri
from ml.specs.plan.plans import Environment, Value

# Variables that a run inherits. As on a node, it inherits no others: no token reaches training
# code, and PYTHONPATH cannot hide an import that would fail on Azure.
PASSED = (
    *("HOME", "USER", "LOGNAME", "LANG", "LANGUAGE", "TZ", "TMPDIR", "TERM"),
    *("LD_LIBRARY_PATH", "DYLD_LIBRARY_PATH", "CUDA_VISIBLE_DEVICES", "NVIDIA_VISIBLE_DEVICES"),
    *("http_proxy", "https_proxy", "no_proxy", "HTTP_PROXY", "HTTPS_PROXY", "NO_PROXY"),
    *("SSL_CERT_FILE", "SSL_CERT_DIR", "REQUESTS_CA_BUNDLE"),
)
# The target of `pip install` in a job, in its working copy.
PACKAGES = ".packages"
# Variables whose values differ between runs.
OF_A_RUN = frozenset({"MLFLOW_RUN_ID", "PIP_TARGET", "PYTHONPATH"})
# The variables that locate the run in MLflow; a job cannot override them.
TRACKING = ("MLFLOW_TRACKING_URI", "MLFLOW_RUN_ID", "MLFLOW_EXPERIMENT_NAME")
_SWEEP = "AZUREML_SWEEP_"
THREADS = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS")


@dataclass(frozen=True)
class Interpreter:
    """A Python that runs commands."""

    python: Path
    version: str
    built: str = ""  # digest of the environment that it was built for; "" for this interpreter
    tracking_uri: str = ""  # MLflow tracking URI for its commands; "" for the tracking store itself

    @property
    def bin(self) -> Path:
        """The first folder of PATH; not resolved, since a venv's python is a symbolic link."""
        return self.python.parent

    def identity(self) -> list[str]:
        """Return the Python version and the `*.dist-info` names of the installed packages."""
        return [self.version, *_installed(self.python)]


HERE = Interpreter(Path(sys.executable), platform.python_version())


# Environment → the interpreter that was built for it; all others use `HERE`.
Interpreters = Mapping[Environment, Interpreter]


@cache
def _installed(python: Path) -> tuple[str, ...]:
    paths = (python.parent.parent / "lib").glob("python3*/site-packages/*.dist-info")
    return tuple(sorted(path.name for path in paths))


def variables(
    run_id: str,
    experiment: str,
    threads: int,
    job_variables: Mapping[str, str],
    sampled: Mapping[str, object],
    work: Path,
    interpreter: Interpreter = HERE,
    passed: Mapping[str, str] | None = None,
) -> dict[str, str]:
    """Return the environment variables of one run.

    `job_variables` (the spec's environment_variables) override all but the three MLFLOW variables,
    which locate this run, as on Azure ML. `threads` is this run's share of the cores: two LightGBM
    fits with two threads each on two cores are a hundred times slower than with one each, since
    waiting OpenMP threads spin (OMP_WAIT_POLICY lets them sleep). A sweep's values are passed as
    AZUREML_SWEEP_<name> (see azure-ai-ml's SweepJob). pip installs into the working copy `work`,
    never into the interpreter. `passed` defaults to `of_the_caller()`.
    """
    packages = str(work / PACKAGES)
    passed = of_the_caller() if passed is None else passed
    return {
        **passed,
        # The first folder is relative to the working copy, so that every run has the same PATH.
        "PATH": os.pathsep.join([f"{PACKAGES}/bin", str(interpreter.bin), passed["PATH"]]),
        # Output to a file is buffered: without this, a killed script's last lines are lost.
        "PYTHONUNBUFFERED": "1",
        "PIP_TARGET": packages,
        "PYTHONPATH": packages,
        **dict.fromkeys(THREADS, str(threads)),
        "OMP_WAIT_POLICY": "PASSIVE",
        "MLFLOW_DISABLE_TELEMETRY": "true",
        # Else importing ONNX Runtime opens a database and starts threads, which prevents a fork.
        "ORT_DISABLE_TELEMETRY": "1",
        "GIT_PYTHON_REFRESH": "quiet",
        **{f"{_SWEEP}{name}": text(value) for name, value in sampled.items()},
        **job_variables,
        "MLFLOW_TRACKING_URI": interpreter.tracking_uri or tracking_uri(),
        "MLFLOW_RUN_ID": run_id,
        "MLFLOW_EXPERIMENT_NAME": experiment,
    }


def of_the_caller() -> dict[str, str]:
    """Return the environment variables of this process that a run inherits."""
    passed = {name: os.environ[name] for name in PASSED if name in os.environ}
    passed |= {name: value for name, value in os.environ.items() if name.startswith("LC_")}
    return {**passed, "PATH": os.environ.get("PATH", os.defpath)}


def is_of_a_run(name: str) -> bool:
    """Return whether the variable's value differs between runs."""
    return name in OF_A_RUN or name.startswith(_SWEEP)


def text(value: object) -> str:
    """Return a value as text for a command line: JSON for a nested choice, else `str(value)`."""
    return json.dumps(value) if isinstance(value, dict | list) else str(value)


def literals(values: Mapping[str, object]) -> dict[str, Value]:
    """Return the values as run parameters, with nested choices as JSON text."""
    return {
        name: value if isinstance(value, str | int | float | bool) else text(value)
        for name, value in values.items()
    }
