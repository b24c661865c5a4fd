"""`--isolated`: run every command in an environment that `uv` builds from its conda file.

Runs whose conda files have the same content share one environment.
"""

from __future__ import annotations

import fcntl
import hashlib
import json
import os
import platform
import re
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, replace
from importlib.metadata import version
from pathlib import Path

from ml.backends.local.environments import requirements, uv
from ml.backends.local.process_environment import Interpreter, Interpreters
from ml.backends.local.processes.process import Reaper
from ml.backends.local.tracking import server
from ml.core import faults, files, home
from ml.core.errors import Exit, Problem, UserError
from ml.specs.plan.plans import Environment, Plan, commands

# Written last: a folder without this file is an unfinished environment.
COMPLETE = "environment.json"
LOCKS = ".locks"
LAST_LINES = 12
# Installed always, as in conda environments, since jobs call it.
_SEED = "pip"


@dataclass(frozen=True)
class Recipe:
    """The contents of an environment to build."""

    python: str
    requirements: tuple[str, ...]  # lines of a requirements file
    folder: Path | None  # paths in the requirements are relative to it; None without a conda file

    @property
    def digest(self) -> str:
        """The environment's folder name: a hash of the recipe and this platform, in hexadecimal."""
        parts = [self.python, *self.requirements, platform.machine(), sys.platform]
        parts += [str(self.folder)] if any(map(_is_path, self.requirements)) else []
        return hashlib.sha256(json.dumps(parts).encode()).hexdigest()[:16]

    @property
    def place(self) -> Path:
        """The folder in which the environment is built."""
        return home.environments() / self.digest


def recipe(environment: Environment) -> Recipe:
    """Return the packages and the Python version to build the environment with.

    The Python version defaults to that of this interpreter.
    """
    packages = list(requirements.parse(environment.dependencies or ()))
    python = next(
        (_python(package) for package in packages if package.is_python and package.versions), ""
    )
    lines = tuple(package.requirement for package in packages if package.requirement)
    has_pip = any(package.name == _SEED for package in packages)
    folder = environment.conda_file.parent if environment.conda_file else None
    here = platform.python_version()
    return Recipe(python or here, lines if has_pip else (*lines, _SEED), folder)


@contextmanager
def build(
    environment: Environment, reaper: Reaper, say: Callable[[str], None]
) -> Iterator[Interpreter]:
    """Build the environment if necessary, and yield its interpreter, locked against removal.

    Concurrent builds of the same environment wait for each other. A failed build leaves no files
    and raises UserError with uv's output.
    """
    plan = recipe(environment)
    locks = home.environments() / LOCKS
    locks.mkdir(parents=True, exist_ok=True)
    complete = plan.place / COMPLETE
    with (locks / plan.digest).open("a") as lock:
        # Users of the environment share the lock; building and removing need it exclusively.
        fcntl.flock(lock, fcntl.LOCK_SH)
        while not complete.is_file():
            fcntl.flock(lock, fcntl.LOCK_EX)
            if not complete.is_file():
                # Remove the rest of an interrupted build.
                shutil.rmtree(plan.place, ignore_errors=True)
                _build(plan, environment, reaper, say)
            fcntl.flock(lock, fcntl.LOCK_SH)
        os.utime(plan.place)
        data = json.loads(complete.read_text())
        yield Interpreter(plan.place / "bin" / "python", data["python"], built=plan.digest)


def is_used(digest: str) -> bool:
    """Return whether a run uses the environment, or a process is building it."""
    return files.is_locked(home.environments() / LOCKS / digest, or_shared=True)


def move(place: Path, to: Path) -> None:
    """Move an environment to `to`, unless a process uses or builds it."""
    with suppress(BlockingIOError), (home.environments() / LOCKS / place.name).open("a") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        place.rename(to)


def _mlflow(interpreter: Interpreter) -> dict[str, str]:
    """Return name → version of the interpreter's MLflow packages."""
    versions = {}
    for entry in interpreter.identity()[1:]:
        name, _, version = entry.removesuffix(".dist-info").partition("-")
        if name.lower() in {"mlflow", "mlflow_skinny", "azureml_mlflow"}:
            versions[name.lower()] = version
    return versions


def _build(
    plan: Recipe, environment: Environment, reaper: Reaper, say: Callable[[str], None]
) -> None:
    began = time.monotonic()
    count = len(plan.requirements)
    say(f"building the environment {environment.reference} ({count} packages, once)")
    try:
        _venv(environment, plan, reaper, say)
        file = plan.place / "requirements.txt"
        file.write_text("".join(f"{line}\n" for line in plan.requirements))
        python = plan.place / "bin" / "python"
        if output := uv.install(python, file, plan.folder, reaper, _mark(plan)):
            raise _failed(environment, output)
        version = subprocess.run(
            [python, "-c", "import platform; print(platform.python_version())"],
            capture_output=True,
            text=True,
            check=True,
        ).stdout.strip()
        data = {"python": version, "requirements": plan.requirements}
        files.replace(plan.place / COMPLETE, json.dumps(data, indent=1))
    except BaseException as error:
        shutil.rmtree(plan.place, ignore_errors=True)
        problem = faults.explain(error) if isinstance(error, OSError) else None
        if problem is not None:
            raise UserError(problem, exit_code=Exit.RUN_FAILED) from None
        raise
    say(f"built {environment.reference} in {time.monotonic() - began:.0f} s")


def _venv(
    environment: Environment, plan: Recipe, reaper: Reaper, say: Callable[[str], None]
) -> None:
    """Create the virtual environment; replace an unavailable patch release by another one."""
    output = uv.venv(plan.python, plan.place, reaper, _mark(plan))
    minor = re.fullmatch(r"(\d+\.\d+)\.\d+", plan.python)
    if output and minor is not None:
        output = uv.venv(minor[1], plan.place, reaper, _mark(plan))
        if not output:
            replacement = f"another {minor[1]} takes its place"
            say(f"note: Python {plan.python} is not available here: {replacement}")
    if output:
        raise _failed(environment, output)


def _mark(plan: Recipe) -> str:
    return f"build-{plan.digest}"


def _failed(environment: Environment, output: str) -> UserError:
    """Return the error with uv's last lines; it names the spec's line of a package not found."""
    lines = [line for line in output.splitlines() if line.strip()][-LAST_LINES:]
    place = environment.place
    for package in requirements.parse(environment.dependencies or ()):
        if package.name and f"{package.name} was not found" in output:
            place = package.dependency.place
    end = "".join(f"\n    | {line}" for line in lines)
    return UserError(
        Problem(
            "environment-not-built",
            f"uv could not build the environment {environment.reference}:{end}",
            "packages from reachable indexes, with compatible versions",
            "fix the conda file, or run the job without --isolated",
            place,
        ),
        exit_code=Exit.RUN_FAILED,
    )


def _python(package: requirements.Package) -> str:
    text = str(package.versions[0])
    exact = text.startswith("==") and "," not in text
    return text.removeprefix("==").removesuffix(".*") if exact else text


def _is_path(requirement: str) -> bool:
    return requirement.startswith((".", "/", "-e", "--editable", "file:"))


def environments(plan: Plan) -> list[Environment]:
    """Return the distinct environments of the plan's commands, in order."""
    return list(dict.fromkeys(command.environment for command in commands(plan)))


def refusals(plan: Plan) -> tuple[Problem, ...]:
    """Return the problems of an isolated run: no conda file, or packages that PyPI lacks."""
    every = environments(plan)
    if not any(environment.dependencies is not None for environment in every):
        return tuple(
            Problem(
                "no-conda-file",
                f"the environment `{environment.reference}` has no conda file on this machine",
                "an environment spec of this repository with a `conda_file:`",
                "omit --isolated to run it in this interpreter",
                environment.place,
            )
            for environment in every
        )
    return tuple(
        Problem(
            "conda-only",
            f"`{package.dependency.text}` is only in conda channels",
            "packages with the same or a known name on PyPI",
            "run without --isolated, if the job works without this package",
            package.dependency.place,
        )
        for environment in every
        for package in requirements.parse(environment.dependencies or ())
        if package.requirement is None
    )


@contextmanager
def build_all(plan: Plan, reaper: Reaper, say: Callable[[str], None]) -> Iterator[Interpreters]:
    """Build all environments of the plan; yield their interpreters, locked in the block.

    An interpreter with another MLflow version gets the URI of a tracking server.
    """
    with ExitStack() as stack:
        interpreters: dict[Environment, Interpreter] = {}
        for environment in environments(plan):
            if environment.dependencies is not None:
                built = stack.enter_context(build(environment, reaper, say))
                interpreters[environment] = built
        address = ""
        for environment, interpreter in interpreters.items():
            mlflow = _mlflow(interpreter)
            if mlflow and mlflow.get("mlflow") != version("mlflow"):
                address = address or stack.enter_context(server.in_front_of_store(reaper))
                interpreters[environment] = replace(interpreter, tracking_uri=address)
            if not mlflow:
                say(
                    f"note: the conda file of {environment.reference} lists neither mlflow nor "
                    "azureml-mlflow: a script that imports mlflow fails here as on Azure ML"
                )
        yield interpreters
