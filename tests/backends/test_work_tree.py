"""A run imports its own code and the packages, and nothing of the work tree beside them.

`benchmarks` stands for a module at the root of the work tree (a numexpr.py, say, which pandas
imports where it is there), `ml.core` and `ml.measures.metrics` for modules of a namespace package
that the code does not have.
"""

from __future__ import annotations

import shutil
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from ml.backends.local.backend import LocalBackend
from ml.backends.local.parallel import batch_worker
from ml.backends.local.pool.pool import FORKED
from tests.backends.conftest import Plans, Sweeps
from tests.backends.test_parallel_job import Jobs, parallel, rows
from tests.backends.test_pool_faithful import log, start_method
from tests.conftest import ROOT

__all__ = ["parallel"]

OTHERS = ("benchmarks", "ml.core", "ml.core.errors", "ml.measures.metrics", "policies", "infra")
LOOKS = f"""
import importlib, sys

def strangers():
    for name in {OTHERS}:
        try:
            importlib.import_module(name)
        except ImportError:
            continue
        yield name
    yield from (path for path in vars(sys)["path"] if path == {str(ROOT)!r})
"""
PRINTS = f"{LOOKS}print('strangers:', *strangers())\n"
# A trial's imports are loaded before it is forked: so would be those of the work tree.
PRELOADS = f"""import numpy
try:
    import benchmarks.startup
    from ml.core import errors
except ImportError:
    pass
{PRINTS}"""
RETURNS = f"""{LOOKS}
def run(mini_batch):
    return list(strangers()) or ["none"] * len(mini_batch)
"""


def own_package(code: Path) -> None:
    """A package of the same name in the code."""
    (code / "ml" / "toolkit").mkdir(parents=True)
    (code / "ml" / "toolkit" / "own.py").write_text("WORD = 'my own'\n")


@pytest.mark.attack("A module of the work tree that no snapshot has is imported by a job")
@pytest.mark.parametrize("flags", ["", "-I ", "-m "])
def test_a_job(home: Path, command: Plans, flags: str) -> None:
    """Whatever the flags of its Python say."""
    target = "script" if flags == "-m " else "script.py"
    assert log(LocalBackend().run(command(PRINTS, f"python {flags}{target}"))) == "strangers:\n"


@pytest.mark.attack("A module of the work tree is loaded before trials are forked")
def test_a_trial_of_the_pool(home: Path, sweep: Sweeps) -> None:
    """Neither before the fork nor after it."""
    run = LocalBackend().run(sweep(PRELOADS, max_total_trials=2))
    assert {start_method(trial) for trial in run.trials} == {FORKED}
    assert {log(trial) for trial in run.trials} == {"strangers:\n"}


@pytest.mark.attack("A module of the work tree is imported by a worker of a parallel job")
def test_a_worker_of_a_parallel_job(parallel: Jobs) -> None:
    """Its interpreter is that of the job."""
    assert set(rows(LocalBackend().run(parallel(RETURNS)))) == {"none"}


@pytest.mark.attack("A module beside the framework's worker hides one of Python's")
def test_a_worker_starts_without_the_folder_of_its_program(tmp_path: Path) -> None:
    """Python puts the folder of the file that it is started with first."""
    program = shutil.copy(batch_worker.__file__, tmp_path)
    (tmp_path / "inspect.py").write_text("print('hidden')\n")
    done = subprocess.run([sys.executable, program], capture_output=True, text=True)
    assert "hidden" not in done.stdout and "IndexError" in done.stderr


def test_a_job_imports_its_own_package_of_the_same_name(home: Path, command: Plans) -> None:
    """The code folder's `ml` alone, by each way to start a script."""
    job = command("from ml.toolkit.own import WORD\nimport ml\nprint(WORD, len(ml.__path__))")
    assert job.code is not None
    own_package(job.code)
    assert log(LocalBackend().run(job)) == "my own 1\n"
    assert log(LocalBackend().run(replace(job, command="python -m script"))) == "my own 1\n"


def test_a_trial_imports_its_own_package_of_the_same_name(home: Path, sweep: Sweeps) -> None:
    """In the pool too."""
    plan = sweep("import numpy, ml\nfrom ml.toolkit.own import WORD\nprint(WORD, len(ml.__path__))")
    assert plan.trial.code is not None
    own_package(plan.trial.code)
    run = LocalBackend().run(plan)
    assert {(start_method(trial), log(trial)) for trial in run.trials} == {(FORKED, "my own 1\n")}
