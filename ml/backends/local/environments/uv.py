"""Call uv with pip's configuration, so that it uses the same indexes as pip.

uv ignores pip's configuration. `pip config list` prints the settings from files and `PIP_…`
variables; variables take precedence, then the section `install`, then `[global]` (pip.pypa.io,
"Configuration"). uv's own variables are not overridden.
"""

from __future__ import annotations

import ast
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from urllib.parse import unquote, urlsplit

from ml.backends.local.processes.process import Reaper
from ml.core.errors import Exit, Problem, UserError


def venv(python: str, place: Path, reaper: Reaper, name: str) -> str:
    """Create an empty virtual environment; return "" or, if it fails, uv's output."""
    words = ("venv", "--quiet", "--python", python, str(place))
    return _call(words, os.environ, None, reaper, name)


def install(
    python: Path, requirements: Path, folder: Path | None, reaper: Reaper, name: str
) -> str:
    """Install a requirements file in `folder`; return "" or, if it fails, uv's output.

    Raise UserError when pip's configuration cannot be read.
    """
    settings = pip_settings(os.environ)
    # As pip: take the best version of all indexes, not that of the first index with the package.
    options = ("--index-strategy", "unsafe-best-match", *pip_options(settings))
    words = ("pip", "install", *options, "--python", str(python), "-r", str(requirements))
    environ = {**os.environ, **uv_variables(os.environ, settings)}
    return _call(words, environ, folder, reaper, name)


def _call(
    words: tuple[str, ...],
    environ: Mapping[str, str],
    folder: Path | None,
    reaper: Reaper,
    name: str,
) -> str:
    """Run uv; return "" or its error output.

    If this process is killed, the reaper ends uv by `name`, in the variable MLFLOW_RUN_ID.
    """
    # Variables of this Python must not affect another interpreter.
    inherited = {k: v for k, v in environ.items() if k not in {"VIRTUAL_ENV", "PYTHONPATH"}}
    reaper.tell("+", name)
    try:
        done = subprocess.run(
            [_program(), *words],
            cwd=folder,
            env={**inherited, "PATH": _search_path(environ), "MLFLOW_RUN_ID": name},
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
        )
    finally:
        reaper.tell("-", name)
    return done.stderr or f"exit code {done.returncode}" if done.returncode else ""


def _program() -> str:
    path = os.environ.get("PATH", os.defpath)
    uv = shutil.which("uv", path=f"{Path(sys.executable).parent}{os.pathsep}{path}")
    if uv is None:
        actual = "no `uv` next to this Python or on PATH"
        problem = Problem("no-uv", actual, "uv, which builds environments", "make setup")
        raise UserError(problem, exit_code=Exit.CANNOT_HONOUR)
    return uv


def _search_path(environ: Mapping[str, str]) -> str:
    """Return PATH for uv, with pyenv's shims replaced by the folders of its Pythons.

    A shim fails for every Python but the active one, and uv would end its search there.
    """
    root = Path(environ.get("PYENV_ROOT") or Path.home() / ".pyenv")
    folders: list[str] = []
    for folder in environ.get("PATH", os.defpath).split(os.pathsep):
        if Path(folder) == root / "shims":
            folders += [str(path) for path in sorted(root.glob("versions/*/bin"), reverse=True)]
        else:
            folders.append(folder)
    return os.pathsep.join(folders)


# pip's option → uv's variable, and the separator of its values; "" if it has one value.
_VARIABLES = {
    "index-url": ("UV_DEFAULT_INDEX", ""),
    "extra-index-url": ("UV_INDEX", " "),
    "find-links": ("UV_FIND_LINKS", ","),
    "trusted-host": ("UV_INSECURE_HOST", " "),
    "constraint": ("UV_CONSTRAINT", " "),
    "timeout": ("UV_HTTP_TIMEOUT", ""),
    "cert": ("SSL_CERT_FILE", ""),
    "proxy": ("ALL_PROXY", ""),
}
_PLACES = frozenset({"index-url", "extra-index-url", "find-links"})
# pip's configuration sections by precedence; the first stands for its environment variables.
_SECTIONS = (":env:", "install", "global")


def uv_variables(environ: Mapping[str, str], settings: Mapping[str, str]) -> dict[str, str]:
    """Translate pip's settings into uv's variables, except those that `environ` already sets."""
    variables = {}
    for option, (name, separator) in _VARIABLES.items():
        values = settings.get(option, "").split()
        if option in _PLACES:
            values = [value for value in values if _exists(value)]
        if values and not environ.get(name):
            variables[name] = separator.join(values) if separator else values[0]
    return variables


def pip_options(settings: Mapping[str, str]) -> Iterator[str]:
    """Yield options of `uv pip` for pip's settings `no-index` and `pre`, which have no variable."""
    for option, words in (("no-index", ("--no-index",)), ("pre", ("--prerelease", "allow"))):
        if settings.get(option, "").lower() in {"1", "true", "yes", "on", "t", "y"}:
            yield from words


def pip_settings(environ: Mapping[str, str]) -> dict[str, str]:
    """Return pip's configuration: option → value, or values separated by white space.

    Raise UserError if pip cannot read its files. Without pip, return only its variables.
    """
    words = [sys.executable, "-P", "-m", "pip", "config", "list"]
    done = subprocess.run(words, env=dict(environ), capture_output=True, text=True)
    if done.returncode and "No module named pip" in done.stderr:
        pip = {k: v for k, v in environ.items() if k.startswith("PIP_")}
        return {k.removeprefix("PIP_").lower().replace("_", "-"): v for k, v in pip.items()}
    if done.returncode:
        reason = " ".join(done.stderr.split()) or f"exit code {done.returncode}"
        raise UserError(
            Problem(
                "pip-settings",
                f"pip cannot read its configuration: {reason.removeprefix('ERROR: ')}",
                "configuration files that pip can parse",
                "pip config debug",
            )
        )
    sections: dict[str, dict[str, str]] = {}
    for line in done.stdout.splitlines():
        key, _, value = line.partition("=")
        section, _, option = key.partition(".")
        sections.setdefault(section, {})[option] = str(ast.literal_eval(value))
    merged: dict[str, str] = {}
    for section in reversed(_SECTIONS):
        merged |= sections.get(section, {})
    return {"timeout": merged.get("default-timeout", ""), **merged}


def _exists(place: str) -> bool:
    """Return whether a path exists (URLs always do): pip ignores missing ones, uv fails."""
    parts = urlsplit(place)
    if parts.scheme not in {"", "file"}:
        return True
    return Path(unquote(parts.path)).expanduser().exists()
