"""A job or a deployment against the code that it runs: libraries and arguments."""

from __future__ import annotations

import re
from collections.abc import Mapping
from importlib.metadata import PackageNotFoundError, requires
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from ml.core.errors import Problem
from ml.specs.assets import assets, packages
from tests.conftest import ROOT
from tests.specs.broken import LIMITS, SPACE
from tests.specs.conftest import Check

TRAIN = """\
from ml.projects.churn import model
from ml.toolkit.tables import Tabular, train

PROJECT = Tabular("schema", model, str)

if __name__ == "__main__":
    train(PROJECT)
"""
MODEL = 'SETTINGS = {"learning_rate": 0.1, "width": 3}\n'
TABLES = """\
from argparse import ArgumentParser


def train(project, arguments=None):
    parser = ArgumentParser()
    parser.add_argument("--data", required=True)
    parser.add_argument("--seed", type=int)
    for name, usual in project.model.SETTINGS.items():
        parser.add_argument(f"--{name.replace('_', '-')}", default=usual)


def trees():
    import lightgbm
    return lightgbm
"""
JOB = "code: .\ncommand: python -m ml.projects.churn.train\nenvironment: azureml:{}:1\n"
DEPLOYMENT = """\
$schema: https://azuremlschemas.azureedge.net/latest/managedOnlineDeployment.schema.json
name: blue
endpoint_name: faq
model: azureml:m:1
instance_type: Standard_DS3_v2
instance_count: 1
code_configuration:
  code: .
  scoring_script: ml/projects/churn/train.py
environment: azureml:{}:1
"""


def conda(*lines: str) -> str:
    return "dependencies:\n" + "".join(f"  - {line}\n" for line in lines)


@pytest.fixture
def code(repo: Path) -> Path:
    """A project of a table beside environments; its folder."""
    folder = repo / "ml" / "projects" / "churn"
    folder.mkdir(parents=True)
    (folder / "train.py").write_text(TRAIN)
    (folder / "model.py").write_text(MODEL)
    (repo / "ml" / "toolkit").mkdir()
    (repo / "ml" / "toolkit" / "tables.py").write_text(TABLES)
    for name, text in {
        "cpu": conda("python=3.11", "numpy", "pip", "pip: [lightgbm==4.7.0, scikit-learn]"),
        "torch": conda("python=3.11", "numpy", "pytorch-cpu=2.13", "pip", "pip: [safetensors]"),
        "own": conda("python=3.11", "numpy", "pip", "pip: [our-models==1]"),
        "forge": conda("python=3.11", "conda-forge::lightgbm>=4", "py-xgboost-cpu=3"),
    }.items():
        environment(repo, name, text)
    return folder


def environment(repo: Path, name: str, text: str) -> None:
    """An environment of a conda file."""
    place = repo / "ml" / "environments" / name
    place.mkdir(parents=True)
    (place / "conda.yml").write_text(text)
    (place / "environment.yml").write_text(
        f"name: {name}\nversion: '1'\nimage: ubuntu:22.04\nconda_file: conda.yml\n"
        "$schema: https://azuremlschemas.azureedge.net/latest/environment.schema.json\n"
    )


def built(repo: Path, dockerfile: str, files: Mapping[str, str]) -> None:
    """An environment of a Dockerfile, `built`."""
    place = repo / "ml" / "environments" / "built"
    place.mkdir(parents=True)
    for name, text in {"Dockerfile": dockerfile, **files}.items():
        (place / name).write_text(text)
    (place / "environment.yml").write_text(
        "name: built\nversion: '1'\nbuild: {path: .}\n"
        "$schema: https://azuremlschemas.azureedge.net/latest/environment.schema.json\n"
    )


def lines(problems: list[Problem]) -> list[tuple[int, str, str]]:
    return [(of.place.line if of.place else 0, of.severity, of.code) for of in problems]


@pytest.mark.parametrize("spec", [JOB, DEPLOYMENT], ids=["job", "deployment"])
def test_a_library_that_the_environment_lacks(code: Path, problems: Check, spec: str) -> None:
    """An error at the line of `environment`, with the module, the file and what would do."""
    (code / "model.py").write_text(f"import torch\nfrom safetensors.torch import save\n{MODEL}")
    text = spec.format("cpu")
    line = text.splitlines().index("environment: azureml:cpu:1") + 1
    found = problems(text)
    assert lines(found) == [(line, "error", "missing-package")]
    assert found[0].actual == (
        "ml.projects.churn.model imports safetensors and torch, which "
        "ml/environments/cpu/conda.yml does not list"
    )
    assert found[0].hint == "environment: azureml:torch:1, or list safetensors and torch in it"
    assert problems(spec.format("torch")) == []


def test_a_library_of_a_sweep_and_of_steps(code: Path, problems: Check) -> None:
    """Each at its own line."""
    (code / "model.py").write_text(f"import torch\n{MODEL}")
    trial = JOB.format("cpu").replace("churn.train", "churn.train --width ${{search_space.rate}}")
    sweep = (
        "type: sweep\nobjective: {goal: maximize, primary_metric: gain}\ntrial:\n"
        + "".join(f"  {line}\n" for line in trial.splitlines())
        + SPACE
        + LIMITS
    )
    assert lines(problems(sweep)) == [(6, "error", "missing-package")]
    assert problems(sweep.replace(":cpu:", ":torch:")) == []
    step = "".join(f"    {line}\n" for line in JOB.format("cpu").splitlines())
    pipeline = f"type: pipeline\njobs:\n  train:\n{step}compute: azureml:c\n"
    assert lines(problems(pipeline)) == [(6, "error", "missing-package")]


@pytest.mark.parametrize(
    ("imports", "name", "severity"),
    [
        ("import lightgbm, sklearn.linear_model", "cpu", ""),
        ("import lightgbm", "torch", "error"),
        # Another package may bring it.
        ("import torch", "own", "warning"),
        # The recipes of conda-forge bring scikit-learn.
        ("import xgboost, lightgbm, sklearn", "forge", ""),
        ("import torch", "forge", "error"),
        # A function that is taken from another module runs the import.
        ("from ml.toolkit.tables import trees", "torch", "warning"),
        ("from ml.toolkit.tables import trees", "cpu", ""),
        # Imports that may not run, and those of none of the libraries.
        ("def fit():\n    import torch", "cpu", "warning"),
        ("try:\n    import torch\nexcept ImportError:\n    pass", "cpu", ""),
        ("from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    import torch", "cpu", ""),
        ("from ml.toolkit import torch", "cpu", ""),
        ("import pyarrow", "cpu", ""),
        # Nothing is known of these environments.
        ("import torch", "elsewhere", ""),
        # It is not Python.
        ("import torch torch", "cpu", ""),
    ],
)
def test_what_is_certain(
    code: Path, problems: Check, imports: str, name: str, severity: str
) -> None:
    """An error where it cannot run, a warning where it hardly can, and else nothing."""
    (code / "model.py").write_text(f"{imports}\n{MODEL}")
    expected = [(3, severity, "missing-package")] if severity else []
    assert lines(problems(JOB.format(name))) == expected


@pytest.mark.parametrize(
    ("module", "is_found"),
    [("missing", True), ("missing.part", True), ("sklearn.x", False), ("json.tool", False)],
)
def test_a_module_that_nothing_brings_is_a_warning(
    code: Path, problems: Check, module: str, is_found: bool
) -> None:
    """Neither the code nor a package of the environment, where all of these are known."""
    text = JOB.replace("ml.projects.churn.train", module)
    found = [problem.severity for problem in problems(text.format("cpu"))]
    assert found == ["warning"] * is_found
    assert problems(text.format("own")) == []


def test_relative_imports_are_followed(code: Path, problems: Check) -> None:
    """From the package and from a module of it."""
    (code / "model.py").write_text(f"from .nets import network\n{MODEL}")
    (code / "nets").mkdir()
    (code / "nets" / "__init__.py").write_text("from ..layers import network\n")
    (code / "layers.py").write_text("import torch\n")
    (found,) = problems(JOB.format("cpu"))
    assert found.actual.startswith("ml.projects.churn.layers imports torch,")


def test_a_command_that_installs_packages_may_install_it(code: Path, problems: Check) -> None:
    """So nothing is said of it."""
    (code / "model.py").write_text(f"import torch\n{MODEL}")
    job = JOB.format("cpu").replace("python -m ml", "pip install torch && python -m ml")
    assert [of for of in problems(job) if of.code == "missing-package"] == []


PLAIN = "FROM mcr.microsoft.com/azureml/openmpi4.1.0-ubuntu22.04\n"


@pytest.mark.parametrize(
    ("dockerfile", "severity"),
    [
        (f"{PLAIN}RUN pip install \\\n    # the model\n    torch==2.13\n", ""),
        (f"{PLAIN}RUN pip install numpy\n", "error"),
        (f"{PLAIN}COPY needs.txt /tmp/needs.txt\nRUN pip install -r /tmp/needs.txt\n", ""),
        (f"{PLAIN}COPY few.txt /tmp/few.txt\nRUN pip install -r /tmp/few.txt\n", "error"),
        (f"{PLAIN}RUN conda create --prefix /x --channel pytorch python=3.11 pip\n", "error"),
        (f"{PLAIN}RUN conda install pytorch\n", ""),
        (f"{PLAIN}RUN pip install ./models\n", "warning"),
        # The image may have it, and so may what another program installs.
        ("FROM mcr.microsoft.com/azureml/curated/acpt-pytorch-2.2\nRUN pip install numpy\n", ""),
        (f"{PLAIN}RUN pip install numpy && sh setup.sh\n", ""),
        (f"{PLAIN}RUN pip install -r /tmp/elsewhere.txt\n", ""),
    ],
)
def test_dockerfiles(code: Path, problems: Check, dockerfile: str, severity: str) -> None:
    """What one installs is read where it does nothing else."""
    (code / "model.py").write_text(f"import torch\n{MODEL}")
    built(code.parents[2], dockerfile, {"needs.txt": "torch==2.13\n", "few.txt": "numpy\n"})
    expected = [(3, severity, "missing-package")] if severity else []
    assert lines(problems(JOB.format("built"))) == expected


CPU = [
    conda("pytorch-cpu=2.13.0"),
    conda("conda-forge::pytorch-cpu"),
    conda("pytorch=2.13", "cpuonly"),
    conda("pytorch=2.13=cpu_generic_py311"),
    conda("'pytorch=2.13[build=cpu*]'"),
    conda("pip: [torch==2.13.0+cpu]"),
    conda("pip: ['--index-url https://download.pytorch.org/whl/cpu', torch]"),
    conda("pip: ['--extra-index-url=https://download.pytorch.org/whl/cpu', torch]"),
    conda("pip: [tensorflow-cpu==2.20]"),
    conda("pip: ['jax[cpu]']"),
    "FROM ubuntu:22.04\nRUN pip install torch --index-url https://download.pytorch.org/whl/cpu\n",
    "FROM nvidia/cuda:13.0-base\nRUN apt-get install x \\\n && conda install pytorch-cpu\n",
    "FROM ubuntu:22.04\nCOPY needs.txt /n.txt\nRUN pip install -r /n.txt\n",
]
NOT_CPU = [
    conda("pytorch-gpu=2.13.0"),
    conda("pytorch=2.13=cuda129*"),
    conda("pip: [torch==2.13.0, tensorflow, 'jax[cuda12]']"),
    conda("pip: [torch==2.13.0+cu126]"),
    conda("pip: ['--index-url https://download.pytorch.org/whl/cu126', torch]"),
    conda("py-xgboost-cpu=3", "lightgbm", "psutil"),
    "FROM ubuntu:22.04\n# pytorch-cpu\nRUN pip install torch\n",
]


@pytest.mark.parametrize(
    ("text", "is_cpu"), [(text, True) for text in CPU] + [(text, False) for text in NOT_CPU]
)
def test_a_build_for_cpus_on_gpus(repo: Path, problems: Check, text: str, is_cpu: bool) -> None:
    """As a job, in a component, as a trial and by the default compute; without GPUs it is right."""
    if text.startswith("FROM"):
        built(repo, text, {"needs.txt": "torch==2.13.0+cpu\n"})
    else:
        environment(repo, "built", text)
    job = "command: echo\nenvironment: azureml:built:1\n"
    (repo / "part.yml").write_text(f"type: command\nname: c\nversion: '1'\n{job}")
    part = "type: pipeline\nsettings: {default_compute: azureml:gpus}\njobs:\n  s: "
    specs = {
        f"{job}compute: azureml:gpus\n": "spec.yml:2",
        f"{part}{{type: command, component: ./part.yml}}\n": "part.yml:5",
        f"{part}{{command: echo, environment: 'azureml:built:1'}}\n": "spec.yml:4",
        "type: sweep\nobjective: {goal: maximize, primary_metric: gain}\ncompute: azureml:gpus\n"
        "trial:\n  command: echo ${{search_space.rate}}\n  environment: azureml:built:1\n"
        f"{SPACE}{LIMITS}": "spec.yml:6",
    }
    for spec, place in specs.items():
        found = [of for of in problems(spec) if of.code == "cluster-build"]
        assert [str(of.place) for of in found] == [place] * is_cpu
        assert all(of.severity == "error" for of in found)
    found = problems(f"{job}compute: azureml:cpus\n")
    assert {of.severity for of in found} <= (set() if is_cpu else {"warning"})


def test_a_build_for_cuda_without_gpus_is_a_warning(problems: Check) -> None:
    image = "mcr.microsoft.com/azureml/openmpi5.0-cuda12.4-ubuntu22.04"
    text = f"command: echo\nenvironment: {{{{image: {image}}}}}\ncompute: azureml:{{}}\n"
    [found] = problems(text.format("cpus"))
    assert (found.code, found.severity, str(found.place)) == (
        "cluster-build", "warning", "spec.yml:2",
    )  # fmt: skip
    assert problems(text.format("gpus")) == []


def test_the_environments_of_the_template_are_known() -> None:
    """All their packages, so that what they lack is an error; a team's own may have others."""
    names = {"ml-cpu", "ml-custom", "ml-fast-server", "ml-images", "ml-torch", "ml-torch-gpu"}
    names |= {"ml-acpt"}
    specs = [spec for spec in assets.definitions(ROOT) if spec.kind == "environment"]
    assert {spec.name for spec in specs} >= names
    for spec in (spec for spec in specs if spec.name in names):
        listed = packages.of_spec(spec)
        assert listed and listed.is_known, spec.name


def test_what_packages_bring_is_what_they_require() -> None:
    """Of those that are installed here, by their own metadata."""
    known = packages._LIBRARIES_OF
    for name, brings in known.items():
        try:
            direct = requires(name) or []
        except PackageNotFoundError:
            continue
        needed = {
            canonicalize_name(each.name)
            for each in map(Requirement, direct)
            if each.marker is None or each.marker.evaluate({"extra": ""})
        }
        for other in needed & known.keys():
            assert set(known[other].split()) <= set(brings.split()), f"{name} requires {other}"


@pytest.mark.parametrize(
    ("arguments", "named"),
    [
        ("--data x --seed 1 --learning-rate 0.1 --width=3", []),
        ("--learn 0.1", []),  # as argparse reads it
        ("--help", []),
        ("--depth 3", ["--depth"]),
        ("--learning_rate 0.1 --penalty=2", ["--learning_rate", "--penalty"]),
        ("--width 3 && echo --depth", []),
        ("--data 'a --depth'", []),
    ],
)
def test_arguments(code: Path, problems: Check, arguments: str, named: list[str]) -> None:
    """Those of a table's training are known by its model's settings."""
    job = JOB.format("cpu").replace("churn.train", f"churn.train {arguments}")
    found = [of for of in problems(job) if of.code == "unknown-argument"]
    assert [re.findall("`(.*)`", of.actual)[0] for of in found] == named
    for of in found:
        assert of.place and of.place.line == 2 and of.severity == "error"
        assert of.expected == "one of --data, --help, --learning-rate, --seed, --width"


def test_an_argument_of_the_search_space(code: Path, problems: Check) -> None:
    """At the line of the hyperparameter that it takes."""
    sweep = (
        "type: sweep\nobjective: {goal: maximize, primary_metric: gain}\ntrial:\n"
        "  code: .\n  environment: azureml:cpu:1\n"
        "  command: python -m ml.projects.churn.train --rate ${{search_space.rate}}\n"
    )
    assert lines(problems(sweep + SPACE + LIMITS)) == [(7, "error", "unknown-argument")]
    assert problems(sweep.replace("--rate", "--width") + SPACE + LIMITS) == []


@pytest.mark.parametrize(
    ("name", "old", "new"),
    [
        ("model.py", MODEL, "from os import environ\nSETTINGS = {**environ}\n"),
        ("model.py", MODEL, f"{MODEL}SETTINGS['depth'] = 3\n"),
        ("model.py", MODEL, "SETTINGS = dict(width=3)\n"),
        ("train.py", "PROJECT =", "model.SETTINGS['depth'] = 3\nPROJECT ="),
        ("train.py", "    train(PROJECT)", "    print(1)\n    train(PROJECT)"),
        ("train.py", "train(PROJECT)", "train(PROJECT, [])"),
        ("../../toolkit/tables.py", "    parser =", "    parser = own() if project else"),
        ("../../toolkit/tables.py", "()\n    parser.", "()\n    own(parser)\n    parser."),
        ("../../toolkit/tables.py", "ArgumentParser()\n", "ArgumentParser(parents=[own])\n"),
    ],
)
def test_arguments_that_are_not_certain(
    code: Path, problems: Check, name: str, old: str, new: str
) -> None:
    """Nothing is said of a program that may have more."""
    text = (code / name).read_text()
    assert old in text
    job = JOB.format("cpu").replace("churn.train", "churn.train --depth 3")
    assert lines(problems(job)) == [(2, "error", "unknown-argument")]
    (code / name).write_text(text.replace(old, new, 1))
    assert problems(job) == []
