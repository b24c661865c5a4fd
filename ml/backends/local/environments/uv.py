"""uv, called so that it finds the Pythons and the packages that pip would find here."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

from ml.backends.local.environments import pip_settings
from ml.backends.local.processes.process import Watchman
from ml.core.errors import Exit, Problem, Refused


def venv(python: str, place: Path, watchman: Watchman, name: str) -> str:
    """Make an empty environment; what uv says when it cannot, else ""."""
    words = ("venv", "--quiet", "--python", python, str(place))
    return _call(words, os.environ, None, watchman, name)


def install(
    python: Path, requirements: Path, folder: Path | None, watchman: Watchman, name: str
) -> str:
    """Install a file of requirements, as seen from `folder`; what uv says when it cannot, else "".

    Raises Refused when pip's configuration cannot be read.
    """
    settings = pip_settings.settings(os.environ)
    # As pip does: of all the indexes the best version, not the first index that has one.
    options = ("--index-strategy", "unsafe-best-match", *pip_settings.options(settings))
    words = ("pip", "install", *options, "--python", str(python), "-r", str(requirements))
    own = {**os.environ, **pip_settings.variables(os.environ, settings)}
    return _call(words, own, folder, watchman, name)


def _call(
    words: tuple[str, ...],
    own: Mapping[str, str],
    folder: Path | None,
    watchman: Watchman,
    name: str,
) -> str:
    """Run it; `name` is the mark by which the watchman ends it when this program is killed."""
    watchman.tell("+", name)
    try:
        done = subprocess.run(
            [_program(), *words],
            cwd=folder,
            env={**_environment(own), "MLFLOW_RUN_ID": name},
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
        )
    finally:
        watchman.tell("-", name)
    return done.stderr or f"exit code {done.returncode}" if done.returncode else ""


def _program() -> str:
    path = os.environ.get("PATH", os.defpath)
    found = shutil.which("uv", path=f"{Path(sys.executable).parent}{os.pathsep}{path}")
    if found is None:
        raise Refused(
            Problem(
                "no-uv",
                "there is no `uv` beside this Python or on PATH",
                "uv, which builds environments",
                "make setup",
            ),
            exit_code=Exit.CANNOT_HONOUR,
        )
    return found


def _environment(own: Mapping[str, str]) -> dict[str, str]:
    # The Python that runs this must not decide what another one sees.
    found = {k: v for k, v in own.items() if k not in {"VIRTUAL_ENV", "PYTHONPATH"}}
    return {**found, "PATH": _search_path(own)}


def _search_path(own: Mapping[str, str]) -> str:
    """PATH for uv: pyenv's shims fail for every Python but the active one, so that uv gives up
    the search; the Pythons that they stand for take their place."""
    root = Path(own.get("PYENV_ROOT") or Path.home() / ".pyenv")
    found: list[str] = []
    for folder in own.get("PATH", os.defpath).split(os.pathsep):
        if Path(folder) == root / "shims":
            found += [str(path) for path in sorted(root.glob("versions/*/bin"), reverse=True)]
        else:
            found.append(folder)
    return os.pathsep.join(found)
