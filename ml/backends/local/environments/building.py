"""Environments built by `uv` from a job's conda file, one a content, used again by every run."""

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
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

from ml.backends.local.environments import uv
from ml.backends.local.environments.interpreters import Interpreter
from ml.backends.local.environments.specs import Asked, understood
from ml.backends.local.processes.process import Watchman
from ml.core import faults, home
from ml.core.errors import Exit, Problem, Refused
from ml.specs.plan.plan import Environment

# Written last: an environment without it was never finished.
COMPLETE = "environment.json"
LOCKS = ".locks"
LAST_LINES = 12
# pip is in every conda environment, and jobs call it.
_SEED = "pip"


@dataclass(frozen=True)
class Recipe:
    """What an environment is built from: the Python, and the lines of a requirements file."""

    python: str
    requirements: tuple[str, ...]
    folder: Path | None

    @property
    def digest(self) -> str:
        """The name of what this builds on this machine."""
        said = [self.python, *self.requirements, platform.machine(), sys.platform]
        said += [str(self.folder)] if any(map(_is_path, self.requirements)) else []
        return hashlib.sha256(json.dumps(said).encode()).hexdigest()[:16]

    @property
    def place(self) -> Path:
        """Where it is built."""
        return home.environments() / self.digest


def refusals(environment: Environment) -> tuple[Problem, ...]:
    """What of the conda file nothing but conda can install, each with its line."""
    return tuple(
        Problem(
            "conda-only",
            f"`{one.dependency.text}` is a package of conda's channels alone",
            "packages that PyPI has under that name, or one that is known to be the same",
            "without --isolated the job runs in this interpreter, which may not need it",
            one.dependency.place,
        )
        for one in understood(environment.dependencies or ())
        if one.requirement is None
    )


def recipe(environment: Environment) -> Recipe:
    """How to build it; `python` as `uv` takes it, that of this interpreter where none is asked."""
    asked = list(understood(environment.dependencies or ()))
    python = next((_python(one) for one in asked if one.is_python and one.versions), "")
    lines = tuple(one.requirement for one in asked if one.requirement)
    has_pip = any(one.name == _SEED for one in asked)
    folder = environment.conda_file.parent if environment.conda_file else None
    here = platform.python_version()
    return Recipe(python or here, lines if has_pip else (*lines, _SEED), folder)


@contextmanager
def built(
    environment: Environment, watchman: Watchman, say: Callable[[str], None]
) -> Iterator[Interpreter]:
    """The environment's interpreter, built unless it is there; it stays while this is open.

    Of two that build the same at once one waits. A build that fails leaves nothing, and raises
    Refused with what uv said.
    """
    made = recipe(environment)
    locks = home.environments() / LOCKS
    locks.mkdir(parents=True, exist_ok=True)
    done = made.place / COMPLETE
    with (locks / made.digest).open("a") as lock:
        # Who uses it shares the lock, who builds or removes it has it alone.
        fcntl.flock(lock, fcntl.LOCK_SH)
        while not done.is_file():
            fcntl.flock(lock, fcntl.LOCK_EX)
            if not done.is_file():
                # A program that built it was killed half way.
                shutil.rmtree(made.place, ignore_errors=True)
                _build(made, environment, watchman, say)
            fcntl.flock(lock, fcntl.LOCK_SH)
        os.utime(made.place)
        python = made.place / "bin" / "python"
        data = json.loads(done.read_text())
        yield Interpreter(python, data["python"], built=made.digest)


def is_used(digest: str) -> bool:
    """Whether a run works in the environment, or somebody builds it."""
    try:
        with (home.environments() / LOCKS / digest).open() as lock:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except FileNotFoundError:
        return False
    except BlockingIOError:
        return True
    return False


def move(place: Path, to: Path) -> None:
    """Take an environment away, unless somebody works in it at this moment."""
    with suppress(BlockingIOError), (home.environments() / LOCKS / place.name).open("a") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        place.rename(to)


def mlflow_of(interpreter: Interpreter) -> dict[str, str]:
    """The MLflow packages that an interpreter has, and their versions."""
    found = {}
    for entry in interpreter.identity()[1:]:
        name, _, version = entry.removesuffix(".dist-info").partition("-")
        if name.lower() in {"mlflow", "mlflow_skinny", "azureml_mlflow"}:
            found[name.lower()] = version
    return found


def _build(
    made: Recipe, environment: Environment, watchman: Watchman, say: Callable[[str], None]
) -> None:
    began = time.monotonic()
    count = len(made.requirements)
    say(f"building the environment {environment.reference} ({count} packages, once)")
    try:
        _venv(environment, made, watchman, say)
        file = made.place / "requirements.txt"
        file.write_text("".join(f"{line}\n" for line in made.requirements))
        python = made.place / "bin" / "python"
        if said := uv.install(python, file, made.folder, watchman, _mark(made)):
            raise _failed(environment, said)
        version = subprocess.run(
            [python, "-c", "import platform; print(platform.python_version())"],
            capture_output=True,
            text=True,
            check=True,
        ).stdout.strip()
        data = {"python": version, "requirements": made.requirements}
        unfinished = made.place / f".{COMPLETE}"
        unfinished.write_text(json.dumps(data, indent=1))
        unfinished.rename(made.place / COMPLETE)
    except BaseException as error:
        shutil.rmtree(made.place, ignore_errors=True)
        problem = faults.explain(error) if isinstance(error, OSError) else None
        if problem is not None:
            raise Refused(problem, exit_code=Exit.RUN_FAILED) from None
        raise
    say(f"built {environment.reference} in {time.monotonic() - began:.0f} s")


def _venv(
    environment: Environment, made: Recipe, watchman: Watchman, say: Callable[[str], None]
) -> None:
    """The empty environment: of a patch release that is not to be had, the nearest other one."""
    said = uv.venv(made.python, made.place, watchman, _mark(made))
    minor = re.fullmatch(r"(\d+\.\d+)\.\d+", made.python)
    if said and minor is not None:
        said = uv.venv(minor[1], made.place, watchman, _mark(made))
        if not said:
            other = f"another {minor[1]} takes its place"
            say(f"note: no Python {made.python} is to be had here: {other}")
    if said:
        raise _failed(environment, said)


def _mark(made: Recipe) -> str:
    return f"build-{made.digest}"


def _failed(environment: Environment, said: str) -> Refused:
    """What uv said, at the line of the package that it speaks of where there is one."""
    lines = [line for line in said.splitlines() if line.strip()][-LAST_LINES:]
    place = environment.place
    for one in understood(environment.dependencies or ()):
        if one.name and f"{one.name} was not found" in said:
            place = one.dependency.place
    end = "".join(f"\n    | {line}" for line in lines)
    return Refused(
        Problem(
            "environment-not-built",
            f"uv could not build the environment {environment.reference}:{end}",
            "packages that this machine can fetch, and versions that go together",
            "mend the conda file, or run the job without --isolated; nothing was left behind",
            place,
        ),
        exit_code=Exit.RUN_FAILED,
    )


def _python(asked: Asked) -> str:
    text = str(asked.versions[0])
    exact = text.startswith("==") and "," not in text
    return text.removeprefix("==").removesuffix(".*") if exact else text


def _is_path(requirement: str) -> bool:
    return requirement.startswith((".", "/", "-e", "--editable", "file:"))
