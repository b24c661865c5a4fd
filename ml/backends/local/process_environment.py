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

# Inherited from the caller. Nothing else is, as on a node: tokens do not reach training code, and
# PYTHONPATH cannot hide an import that would fail on Azure.
PASSED = (
    *("HOME", "USER", "LOGNAME", "LANG", "LANGUAGE", "TZ", "TMPDIR", "TERM"),
    *("LD_LIBRARY_PATH", "DYLD_LIBRARY_PATH", "CUDA_VISIBLE_DEVICES", "NVIDIA_VISIBLE_DEVICES"),
    *("http_proxy", "https_proxy", "no_proxy", "HTTP_PROXY", "HTTPS_PROXY", "NO_PROXY"),
    *("SSL_CERT_FILE", "SSL_CERT_DIR", "REQUESTS_CA_BUNDLE"),
)
# The target of `pip install` in a job, in its working copy.
PACKAGES = ".packages"
# The variables whose values differ between runs.
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
        """The first folder of PATH. Not resolved: a venv's python is a symbolic link."""
        return self.python.parent

    def identity(self) -> list[str]:
        """Return the Python and the names and versions of what is installed for it."""
        return [self.version, *_installed(self.python)]


HERE = Interpreter(Path(sys.executable), platform.python_version())


# The interpreters that were built for environments; every other command runs in `HERE`.
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

    `job_variables` (environment_variables) overrides all but the three MLFLOW variables, which
    locate this run and are those that Azure ML sets. `threads` is this run's share of the cores:
    two LightGBM fits that take two threads each on two cores are a hundred times slower than with
    one each, since waiting OpenMP threads spin (OMP_WAIT_POLICY lets them sleep). A sweep's values
    are passed as AZUREML_SWEEP_<name> (azure-ai-ml's SweepJob documents them). pip installs into
    the working copy `work`, as on a separate node, and never into the interpreter. `python` on PATH
    is `interpreter`'s. `passed` is `of_the_caller`, if it is known already.
    """
    packages = str(work / PACKAGES)
    passed = of_the_caller() if passed is None else passed
    return {
        **passed,
        # The first is relative to the working copy, so that every run has the same PATH.
        "PATH": os.pathsep.join([f"{PACKAGES}/bin", str(interpreter.bin), passed["PATH"]]),
        # A log file is not a terminal: without this the last lines of a killed script are lost.
        "PYTHONUNBUFFERED": "1",
        "PIP_TARGET": packages,
        "PYTHONPATH": packages,
        **dict.fromkeys(THREADS, str(threads)),
        "OMP_WAIT_POLICY": "PASSIVE",
        "MLFLOW_DISABLE_TELEMETRY": "true",
        # Its import opens a database and starts threads: no process could be forked after it.
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
    """Return whether the value of that variable differs from run to run."""
    return name in OF_A_RUN or name.startswith(_SWEEP)


def text(value: object) -> str:
    """Return a value as the command line spells it: a nested choice is JSON, true is `True`."""
    return json.dumps(value) if isinstance(value, dict | list) else str(value)


def literals(values: Mapping[str, object]) -> dict[str, Value]:
    """Return the values as parameters of a run: nested choices become their JSON text."""
    return {
        name: value if isinstance(value, str | int | float | bool) else text(value)
        for name, value in values.items()
    }
