"""Where pip would look for packages on this machine, in uv's words: uv reads none of pip's own.

pip merges its configuration files and `PIP_…` variables itself and is asked for the outcome
(`pip config list`; pip.pypa.io, "Configuration": variables, then the section of the command, then
`[global]`). A uv variable that is set already is left as it is.
"""

from __future__ import annotations

import ast
import subprocess
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from urllib.parse import unquote, urlsplit

from ml.core.errors import Problem, Refused

# pip's option → uv's variable, and what separates several values in it; "" for those with one.
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
# From what counts most to what counts least; the first is that of the variables.
_SECTIONS = (":env:", "install", "global")


def variables(own: Mapping[str, str], settings: Mapping[str, str]) -> dict[str, str]:
    """uv's variables that say what pip's settings say, where `own` has none of that name."""
    found = {}
    for option, (name, separator) in _VARIABLES.items():
        values = settings.get(option, "").split()
        if option in _PLACES:
            values = [value for value in values if _is_there(value)]
        if values and not own.get(name):
            found[name] = separator.join(values) if separator else values[0]
    return found


def options(settings: Mapping[str, str]) -> Iterator[str]:
    """What uv has no variable for."""
    for option, said in (("no-index", ("--no-index",)), ("pre", ("--prerelease", "allow"))):
        if settings.get(option, "").lower() in {"1", "true", "yes", "on", "t", "y"}:
            yield from said


def settings(own: Mapping[str, str]) -> dict[str, str]:
    """pip's options of this machine: its name → its value, several separated by white space.

    Refused when pip cannot read its own files. Without pip only the variables count.
    """
    words = [sys.executable, "-m", "pip", "config", "list"]
    done = subprocess.run(words, env=dict(own), capture_output=True, text=True)
    if done.returncode and "No module named pip" in done.stderr:
        found = {k: v for k, v in own.items() if k.startswith("PIP_")}
        return {k.removeprefix("PIP_").lower().replace("_", "-"): v for k, v in found.items()}
    if done.returncode:
        said = " ".join(done.stderr.split()) or f"exit code {done.returncode}"
        raise Refused(
            Problem(
                "pip-settings",
                f"pip cannot read its configuration: {said.removeprefix('ERROR: ')}",
                "files that pip understands: they say where packages come from",
                "see which ones: pip config debug",
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


def _is_there(place: str) -> bool:
    """Of places on this disk those that exist: pip passes over the others, uv fails."""
    parts = urlsplit(place)
    if parts.scheme not in {"", "file"}:
        return True
    return Path(unquote(parts.path)).expanduser().exists()
