"""Convert a conda file's requirements for `packaging` and `uv`, and compare them with this Python.

Conda's match specifications follow its documentation ("Package match specifications",
docs.conda.io/projects/conda-build): `numpy=1.26` matches 1.26.*, `numpy==1.26` only that version,
`|` means or. A third part is the build, which is ignored.
"""

from __future__ import annotations

import platform
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from importlib.metadata import PackageNotFoundError, version
from typing import Any

from packaging.requirements import InvalidRequirement, Requirement
from packaging.specifiers import InvalidSpecifier, SpecifierSet
from packaging.version import InvalidVersion, Version

from ml.specs.assets.packages import ON_PYPI
from ml.specs.plan.plans import Dependency, Environment

_MATCH = re.compile(
    r"(?:[^\s=<>!~\[]+::)?(?P<name>[\w.\-]+)\s*"
    r"(?:\[(?:.*?version\s*=\s*['\"]?(?P<inside>[^'\"\],]+)['\"]?.*)?\]|(?P<rest>.*))$"
)
_OPTION = re.compile(r"\s--?[A-Za-z].*$")
# The name of Python itself in a conda file.
_PYTHON = "python"
# Azure ML's built-in environment of AutoML jobs; `automl_sweep` sets it for trials.
AUTOML = "azureml:AutoML:1"


@dataclass(frozen=True)
class Package:
    """A dependency of an environment as a package on PyPI."""

    dependency: Dependency
    name: str  # on PyPI; "" if the dependency cannot be parsed: a URL, a folder, an option of pip
    versions: tuple[SpecifierSet, ...]  # accepted alternatives; () for any version
    # Argument for `uv`; "" for Python itself, None if PyPI has no such package.
    requirement: str | None

    @property
    def is_python(self) -> bool:
        """Whether the package is Python itself."""
        return self.dependency.manager == "conda" and self.name == _PYTHON

    def accepts(self, version: str) -> bool:
        """Return whether the version satisfies the requirement.

        A local part (`2.13.0+cpu`) counts only if the requirement has one.
        """
        if not self.versions:
            return True
        try:
            number = Version(version)
        except InvalidVersion:
            return False
        return any(versions.contains(number, prereleases=True) for versions in self.versions)


def parse(dependencies: Sequence[Dependency]) -> Iterator[Package]:
    """Yield the dependencies that apply on this machine, without the libraries of Python itself.

    The name is "" if `packaging` cannot parse it: a URL, a folder, an option of pip.
    """
    for dependency in dependencies:
        package = _conda(dependency) if dependency.manager == "conda" else _pip(dependency)
        if package is not None:
            yield package


def _conda(dependency: Dependency) -> Package | None:
    match = _MATCH.match(dependency.text)
    if match is None:
        return Package(dependency, "", (), None)
    name = match["name"].lower()
    if name in _OF_PYTHON.split():
        return None
    text = (match["inside"] or match["rest"] or "").strip()
    try:
        versions = () if "*" in text.split("|") else tuple(_versions(text))
    except InvalidSpecifier:
        return Package(dependency, "", (), None)
    if name == _PYTHON:
        return Package(dependency, name, versions, "")
    if name in _CONDA_ONLY.split() or name.startswith("r-"):
        return Package(dependency, name, versions, None)
    pypi = ON_PYPI.get(name, name)
    # uv does not support `|`: it gets the first alternative.
    requirement = pypi + (str(versions[0]) if versions else "")
    return Package(dependency, pypi.partition("[")[0], versions, requirement)


def _versions(text: str) -> Iterator[SpecifierSet]:
    """Yield a SpecifierSet for each alternative of a conda version; none if all versions match.

    Examples: `1.26`, `=1.26.*`, `==1.26.4=py311_0`, `>=1.2,<2|3.*`. Raise InvalidSpecifier.
    """
    if text in {"", "*"}:
        return
    for alternative in text.split("|"):
        parts = []
        for part in alternative.split(","):
            match = re.match(r"\s*(?P<sign>==|!=|>=|<=|~=|=|<|>)?\s*(?P<number>[^\s=]+)", part)
            if match is None:
                raise InvalidSpecifier(part)
            sign, number = match["sign"] or "", match["number"]
            has_build = re.search(r"[^\s=<>!~][\s=]+[^\s=<>!~]", part.strip()[len(sign) :])
            if number == "*":
                continue
            if sign == "=" and not has_build and not number.endswith("*"):
                number += ".*"
            number = re.sub(r"(?<=\d)\*$", ".*", number)
            parts.append(f"{'==' if sign in {'', '='} else sign}{number}")
        if not parts:
            return
        yield SpecifierSet(",".join(parts))


def _pip(dependency: Dependency) -> Package | None:
    text = _OPTION.sub("", dependency.text).strip()
    try:
        requirement = Requirement(text)
    except InvalidRequirement:
        return Package(dependency, "", (), dependency.text)
    if requirement.marker is not None and not requirement.marker.evaluate({"extra": ""}):
        return None
    versions = (requirement.specifier,) if requirement.specifier else ()
    return Package(dependency, requirement.name, versions, dependency.text)


# Conda packages that belong to Python itself: every other Python contains them.
_OF_PYTHON = (
    "_libgcc_mutex _openmp_mutex bzip2 ca-certificates expat icu ld_impl_linux-64 libexpat"
    " libffi libgcc libgcc-ng libgomp libnsl libsqlite libstdcxx libstdcxx-ng libuuid"
    " libxcrypt libzlib ncurses openssl python_abi readline sqlite tk xz zlib"
)
# Conda packages that PyPI lacks, or whose name is another package there.
_CONDA_ONLY = (
    "blas boost c-compiler compilers cuda cuda-nvcc cuda-toolkit cudatoolkit cudatoolkit-dev"
    " cudnn cxx-compiler ffmpeg gcc gcc_linux-64 gdal git git-lfs gmp gxx gxx_linux-64"
    " graphviz hdf5 intel-openmp java-jdk jpeg libblas liblapack libpng libtiff llvm"
    " llvm-openmp magma make mkl-service mpich mpi nccl nodejs nomkl openblas openjdk openmpi"
    " openmpi-mpicc perl poppler pytorch-cuda pytorch-mutex r-base rust tesseract unixodbc"
    " yaml"
)

# The number of differences to name in a summary; --dry-run lists all.
NAMED = 4


@dataclass(frozen=True)
class Mismatch:
    """A dependency that this interpreter does not satisfy."""

    dependency: Dependency
    # Installed version; "" if it is missing, None if it cannot be compared: a URL, an option of
    # pip, a package that only conda has.
    installed: str | None

    def __str__(self) -> str:
        text = f"`{self.dependency.text}`"
        if self.installed is None:
            return f"cannot be compared: {text}"
        return f"{text} → {self.installed} here" if self.installed else f"missing here: {text}"


@cache
def differences(environment: Environment) -> tuple[Mismatch, ...]:
    """Compare the conda file with this Python, in the file's order; () without a conda file."""
    return tuple(_differences(environment))


def summary(environment: Environment) -> str:
    """Summarize the comparison in one line, for messages."""
    if environment.dependencies is None:
        return _why_not(environment)
    different = differences(environment)
    total = len(environment.dependencies)
    if not different:
        return f"all {total} required packages are installed" if total else "no packages required"
    # First missing packages, then other versions, then packages that cannot be compared.
    ranked = sorted(different, key=lambda entry: (entry.installed is None, bool(entry.installed)))
    named = ", ".join(map(str, ranked[:NAMED]))
    remaining = len(different) - NAMED
    more = f", and {remaining} more (--dry-run names them)" if remaining > 0 else ""
    return f"{len(different)} of {total} packages differ: {named}{more}"


def as_json(environment: Environment) -> dict[str, Any]:
    """Return the comparison as JSON; `compared` is False without a conda file."""
    return {
        "reference": environment.reference,
        "conda_file": str(environment.conda_file) if environment.conda_file else None,
        "python": platform.python_version(),
        "compared": environment.dependencies is not None,
        "differences": [
            {
                "asked": difference.dependency.text,
                "manager": difference.dependency.manager,
                "place": str(difference.dependency.place),
                "here": difference.installed,
            }
            for difference in differences(environment)
        ],
    }


def _differences(environment: Environment) -> Iterator[Mismatch]:
    for package in parse(environment.dependencies or ()):
        if package.is_python:
            installed: str | None = platform.python_version()
        elif not package.name or package.requirement is None:
            installed = None
        else:
            installed = _installed(package.name)
        if not installed or not package.accepts(installed):
            yield Mismatch(package.dependency, installed)


def _installed(name: str) -> str:
    try:
        return version(name)
    except PackageNotFoundError:
        return ""


def _why_not(environment: Environment) -> str:
    if environment.reference == AUTOML:
        return "Azure ML's built-in AutoML environment; here the packages of `make automl`"
    if environment.conda_file is not None:
        return f"its conda file {environment.conda_file.name} does not exist: nothing to compare"
    if environment.dockerfile:
        return "packages of its Dockerfile are not compared"
    if environment.image:
        return "an image, so its packages are unknown"
    if environment.reference.startswith("azureml://registries/"):
        return "from a registry, so its packages are unknown"
    return "no spec of this repository defines it, so its packages are unknown"
