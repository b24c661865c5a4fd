"""What a conda file asks for beside what this interpreter has."""

from __future__ import annotations

import platform
from importlib.metadata import version
from pathlib import Path

import pytest

from ml.backends.local.environments.requirements import as_json, differences, parse, summary
from ml.core.errors import Place
from ml.specs.plan.plans import Dependency, Environment

PLACE = Place("conda.yml", 4)
NUMPY = version("numpy")


def environment(*lines: str) -> Environment:
    """`conda:` or `pip:` and the text of a dependency."""
    found = [line.partition(":") for line in lines]
    return Environment(
        "e",
        dependencies=tuple(
            Dependency(text, "conda" if manager == "conda" else "pip", PLACE)
            for manager, _, text in found
        ),
    )


@pytest.mark.parametrize(
    ("text", "name", "versions"),
    [
        ("numpy", "numpy", []),
        ("numpy=*", "numpy", []),
        ("numpy=1.26", "numpy", ["==1.26.*"]),
        ("numpy==1.26", "numpy", ["==1.26"]),
        ("numpy=1.26.*", "numpy", ["==1.26.*"]),
        ("numpy 1.26*", "numpy", ["==1.26.*"]),
        ("numpy=1.26.4=py311h_0", "numpy", ["==1.26.4"]),
        ("numpy 1.26.4 py311h_0", "numpy", ["==1.26.4"]),
        ("conda-forge::numpy>=1.2,<2|3.1.*", "numpy", ["<2,>=1.2", "==3.1.*"]),
        ("numpy[version='>=1.2']", "numpy", [">=1.2"]),
        ("pytorch~=2.1", "torch", ["~=2.1"]),
        ("python-graphviz", "graphviz", []),
        ("python>=3.8,<3.12", "python", ["<3.12,>=3.8"]),
    ],
)
def test_match_specifications_of_conda(text: str, name: str, versions: list[str]) -> None:
    """One `=` means all below it, two mean that version; a build is conda's alone."""
    (found,) = parse([Dependency(text, "conda", PLACE)])
    assert (found.name, [str(one) for one in found.versions]) == (name, versions)


@pytest.mark.parametrize("text", ["cudatoolkit=11.3", "r-base", "graphviz", "openmpi"])
def test_what_pypi_does_not_have(text: str) -> None:
    """No requirement stands for it."""
    (found,) = parse([Dependency(text, "conda", PLACE)])
    assert found.requirement is None


@pytest.mark.parametrize(
    "line",
    [
        f"conda:python={platform.python_version().rpartition('.')[0]}",
        f"conda:numpy={NUMPY}",
        f"pip:numpy=={NUMPY}",
        "pip:NumPy>=1",
        "pip:no-such-package; python_version < '3'",
        "conda:libffi=3",
        "pip:numpy>=1 --hash=sha256:00",
    ],
)
def test_what_is_here_is_no_difference(line: str) -> None:
    """The version fits, the marker does not apply, or it comes with Python."""
    assert differences(environment(line)) == ()


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ("conda:python=3.1", f"`python=3.1` → {platform.python_version()} here"),
        ("conda:numpy=0.1", f"`numpy=0.1` → {NUMPY} here"),
        ("pip:numpy==0.1", f"`numpy==0.1` → {NUMPY} here"),
        ("pip:no-such-package>=1", "missing here: `no-such-package>=1`"),
        (
            "pip:no-such-package; python_version > '3'",
            "missing here: `no-such-package; python_version > '3'`",
        ),
        ("pip:git+https://github.com/a/b", "cannot be compared: `git+https://github.com/a/b`"),
        ("pip:--pre", "cannot be compared: `--pre`"),
        ("conda:cudatoolkit=11.3", "cannot be compared: `cudatoolkit=11.3`"),
    ],
)
def test_a_difference_is_named(line: str, said: str) -> None:
    """With what was asked for and what is here."""
    assert [str(one) for one in differences(environment(line))] == [said]


def test_one_line_an_environment() -> None:
    """What is missing comes first; beyond a few they are counted."""
    assert summary(environment("pip:numpy")) == "all 1 required packages are installed"
    lines = ["pip:numpy==0.1", *(f"pip:none-{number}" for number in range(5))]
    said = summary(environment(*lines))
    assert said.startswith("6 of 6 packages differ: missing here: `none-0`, ")
    assert said.endswith(", and 2 more (--dry-run names them)")
    assert as_json(environment("pip:numpy==0.1"))["differences"] == [
        {"asked": "numpy==0.1", "manager": "pip", "place": "conda.yml:4", "here": NUMPY}
    ]


@pytest.mark.parametrize(
    ("given", "said"),
    [
        (Environment("inline", image="python:3.11"), "an image, so its packages are unknown"),
        (
            Environment("inline", dockerfile=Path("Dockerfile")),
            "packages of its Dockerfile are not compared",
        ),
        (
            Environment("azureml://registries/azureml/environments/sklearn-1.5/labels/latest"),
            "from a registry, so its packages are unknown",
        ),
        (
            Environment("azureml:e:1"),
            "no spec of this repository defines it, so its packages are unknown",
        ),
        (
            Environment("inline", conda_file=Path("/none/conda.yml")),
            "its conda file conda.yml does not exist: nothing to compare",
        ),
    ],
)
def test_what_cannot_be_compared_says_so(given: Environment, said: str) -> None:
    """No comparison is not the same as no difference."""
    assert summary(given) == said
    assert as_json(given)["compared"] is False
