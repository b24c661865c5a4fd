"""Conda files: dependencies line by line, and whether their pins are those of the locks.

The format is conda's `environment.yml` (docs.conda.io, "Creating an environment file manually"):
`dependencies` are match specifications, and one mapping `pip:` with what a requirements file of
pip may hold, other than lines that name a file.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from packaging.requirements import InvalidRequirement, Requirement
from packaging.utils import canonicalize_name

from ml.core import files, repository
from ml.core.documents import read
from ml.core.errors import Place, Problem, Refused
from ml.specs.parts import Part
from ml.specs.plan.plans import Dependency

# Parts of a line that name a file or a folder of the machine that installs: an address is none.
_LOCAL = re.compile(
    r"(?:^|\s)(?:-[rcef]|--(?:requirement|constraint|editable|find-links))[\s=]*"
    r"(?!\S*://(?!/))\S"
    r"|(?:^|\s)(?!-)(?!\S*(?:://(?!/)|::))"
    r"(?:\.{1,2}(?=\s|$)|file:|[^\s;\[]*[/\\]|\S+\.(?:whl|zip|tgz|tar\.\w+|conda)(?![\w.]))"
)
# What no match specification of conda has: other operators than = == != < <= > >= ~=, or no value.
_NO_SPECIFICATION = re.compile(r"=[<>]|[<>=!~]{3}|<>|><|<<|>>|,,|[<>=!~,|]$")
_COMMENT = re.compile(r"(?:^|\s)#.*$")
_SOURCE = "conda's environment.yml and pip's requirements file format"
# Beside the main lock: the packages of the targets of make that install more.
_MORE = ("torch.lock", "torch.txt", "images.txt", "automl.lock")
_LOCKED = re.compile(r"^([\w.-]+)==([^\s;\\]+)", re.M)
_PIN = re.compile(r"(?:[\w./-]+::)?([\w.-]+)(?:\[[\w,. -]+\])? *={1,2} *([\w.!+]+)")


@dataclass(frozen=True)
class Conda:
    """The dependencies of a conda file, and its problems."""

    dependencies: tuple[Dependency, ...]
    problems: tuple[Problem, ...] = ()


def of_file(path: Path) -> Conda:
    """The dependencies of the conda file at `path`; problems refer to its own lines."""
    try:
        document = read(path)
    except Refused as refused:
        return Conda((), refused.problems)
    return of_part(Part(document, path))


def of_part(part: Part) -> Conda:
    """The dependencies of a conda file, which may be inline (`conda_file:` is a mapping)."""
    dependencies: list[Dependency] = []
    problems: list[Problem] = []
    data = part.get()
    if not isinstance(data, dict) or not isinstance(data.get("dependencies", []), list):
        faulty = "dependencies" if isinstance(data, dict) else "the file"
        place = part.place(*(["dependencies"] if isinstance(data, dict) else []))
        return Conda((), (_wrong(f"`{faulty}` is not a list of dependencies", place),))
    if data.get("variables"):
        # `conda activate` sets them, in a job and in a server.
        problems.append(
            Problem(
                "bad-conda-file",
                "`variables` sets environment variables",
                "only dependencies",
                "write them as `environment_variables` of the job or the deployment",
                part.place("variables"),
                source=_SOURCE,
            )
        )
    for index, entry in enumerate(data.get("dependencies") or []):
        place = part.place("dependencies", index)
        if isinstance(entry, str) and _LOCAL.search(entry.strip()):
            problems.append(_left_behind(entry.strip(), place))
        elif isinstance(entry, str) and _NO_SPECIFICATION.search(entry.strip()):
            problems.append(_wrong(f"`{entry}` is no match specification", place))
        elif isinstance(entry, str):
            dependencies.append(Dependency(entry.strip(), "conda", place))
        elif isinstance(entry, dict) and [*entry] == ["pip"] and isinstance(entry["pip"], list):
            for number, line in enumerate(entry["pip"]):
                place = part.place("dependencies", index, "pip", number)
                text = _COMMENT.sub("", line).strip() if isinstance(line, str) else ""
                if _LOCAL.search(text):
                    problems.append(_left_behind(text, place))
                elif fault := _fault(text):
                    problems.append(_wrong(f"`{text}` is no requirement: {fault}", place))
                elif isinstance(line, str):
                    dependencies += [Dependency(" ".join(text.split()), "pip", place)] * bool(text)
                else:
                    problems.append(_wrong(f"a pip dependency is {line!r}", place))
        else:
            problems.append(_wrong(f"a dependency is {entry!r}", place))
    return Conda(tuple(dependencies), tuple(problems))


def _fault(text: str) -> str:
    """Why a line is no requirement (PEP 508); "" for one, and for options and addresses."""
    if text.startswith("-") or "://" in text or not text:
        return ""
    try:
        Requirement(re.split(r"\s--", text)[0])
    except InvalidRequirement as error:
        return str(error).partition("\n")[0]
    return ""


def requirements(path: Path) -> tuple[Dependency, ...] | None:
    """The lines of pip's requirements file at `path`; None where they are not all known: it cannot
    be read, or names another file.
    """
    try:
        content = files.content(path).decode("utf-8-sig")
    except (OSError, ValueError):
        return None
    lines = [(number, _COMMENT.sub("", line).strip()) for number, line in _joined(content)]
    if any(_LOCAL.search(text) for _, text in lines):
        return None
    label = repository.shown(path)
    return tuple(Dependency(" ".join(t.split()), "pip", Place(label, n)) for n, t in lines if t)


def _joined(content: str) -> Iterator[tuple[int, str]]:
    """The lines of a requirements file with their numbers; a backslash joins two."""
    joined, first = "", 0
    for number, line in enumerate(content.splitlines(), 1):
        first = first or number
        if line.endswith("\\"):
            joined += line[:-1] + " "
            continue
        yield first, joined + line
        joined, first = "", 0
    if joined:
        yield first, joined


def _left_behind(text: str, place: Place) -> Problem:
    """The problem of a line that names a file: azure-ai-ml sends the conda file's text alone
    (1.35, Environment._to_rest_object), so that no other file is there when the image is built.
    """
    return Problem(
        "bad-conda-file",
        f"`{text}` names a file, which Azure ML does not upload with the conda file",
        "the packages themselves, such as `numpy==2.1`",
        "list them here, or copy both files into a build context with a Dockerfile",
        place,
        source=_SOURCE,
    )


def _wrong(actual: str, place: Place) -> Problem:
    return Problem(
        "bad-conda-file",
        actual,
        "a list of texts such as `numpy=1.26`, and one mapping `pip:` with a list of texts",
        "write it as `conda env export` does",
        place,
        source=_SOURCE,
    )


def pin_problems(root: Path) -> Iterator[Problem]:
    """Each pin of a locked package to another version than its lock's; none without a lock."""
    main = repository.lock(root)
    locked: dict[str, tuple[str, str]] = {}
    for file in (main, *map(main.with_name, _MORE)):
        for name, version in _LOCKED.findall(file.read_text("utf-8") if file.is_file() else ""):
            locked.setdefault(canonicalize_name(name), (version, f"requirements/{file.name}"))
    for path in sorted((root / "ml/environments").glob("*/*conda*.y*ml")):
        for dependency in of_file(path).dependencies:
            pin = _PIN.match(dependency.text)
            if pin is None:
                continue
            version, source = locked.get(canonicalize_name(pin[1]), (pin[2], ""))
            if pin[2] != version:
                actual = f"{pin[1]} {pin[2]} is installed on nodes"
                expected = f"{version}, as in {source}"
                hint = "set that version, and increment the environment's version"
                yield Problem("pin-mismatch", actual, expected, hint, dependency.place)
