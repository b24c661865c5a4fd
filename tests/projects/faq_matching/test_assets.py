"""The project's data and specs as they stand in the repository."""

from __future__ import annotations

import argparse
import re
from collections import Counter
from pathlib import Path

import pytest
import yaml

from ml.core import repository
from ml.projects.faq_matching.loading import DEFAULT_SCHEMA, read
from ml.projects.faq_matching.settings import Hyperparameters, add_arguments
from ml.projects.faq_matching.text import normalise
from ml.specs.plan.planning import plan
from ml.specs.sdk.load import load
from ml.specs.search.hints import is_hints
from tests.conftest import ROOT

PROJECT = ROOT / "ml/projects/faq_matching"
JOBS = sorted(path for path in (PROJECT / "jobs").glob("*.yml") if not is_hints(path))


def test_the_faq_is_large_and_varied_enough():
    """At least 100 entries, 12 different paraphrases each, answers and topics for all."""
    faq = read(PROJECT / "data/faq", DEFAULT_SCHEMA)
    question_count = Counter(question.entry for question in faq.questions)
    texts = [normalise(question.text) for question in faq.questions]
    assert (
        len(faq.entries) >= 100
        and min(question_count.values()) >= 12
        and len(question_count) == len(faq.entries)
    )
    assert len(set(texts)) == len(texts)
    assert all(entry.topic and len(entry.answer.split()) >= 8 for entry in faq.entries)


def test_the_asset_is_the_one_that_the_jobs_name():
    """Name and version of data/faq.yml, in every job."""
    declared = yaml.safe_load((PROJECT / "data/faq.yml").read_text())
    for path in JOBS:
        named = yaml.safe_load(path.read_text())["inputs"]["faq"]["path"]
        assert named == f"azureml:{declared['name']}:{declared['version']}"


@pytest.mark.parametrize("path", JOBS, ids=lambda path: path.stem)
def test_azure_mls_loader_accepts_the_jobs(path: Path):
    """The SDK's own schema; `code` is the repository."""
    from azure.ai.ml import load_job

    job = load_job(path)
    assert job.experiment_name == "faq-matching"
    codes = re.findall(r"^ *code: (\S+)$", path.read_text(), re.M)
    assert codes and all((path.parent / code).resolve() == ROOT for code in codes)


@pytest.mark.parametrize("path", JOBS, ids=lambda path: path.stem)
def test_the_jobs_can_be_planned(path: Path, tmp_path: Path):
    """Every reference resolves."""
    changes = {"inputs.model": str(tmp_path)} if path.stem == "evaluate" else {}
    assert plan(load(path, changes)).experiment == "faq-matching"


@pytest.mark.parametrize("name", ["sweep-random", "sweep-bayesian"])
def test_what_is_swept_is_a_hyperparameter(name: str):
    """Each dimension is an argument of train.py, and its values are within the bounds."""
    parser = argparse.ArgumentParser()
    add_arguments(parser)
    spec = yaml.safe_load((PROJECT / f"jobs/{name}.yml").read_text())
    assert spec["objective"] == {"goal": "maximize", "primary_metric": "validation_gain_at_3"}
    for dimension, space in spec["search_space"].items():
        argument = f"--{dimension.replace('_', '-')} ${{{{search_space.{dimension}}}}}"
        assert argument in spec["trial"]["command"]
        for value in space.get("values") or [space["min_value"], space["max_value"]]:
            # As on the command line: Azure ML's choice takes no booleans, hence "true".
            parsed = vars(parser.parse_args([argument.split()[0], str(value)]))
            assert str(Hyperparameters.from_mapping(parsed).as_dict()[dimension]).lower() == str(
                value
            )
    assert ("early_termination" in spec) == (name == "sweep-random")


def test_the_environments_pins_are_the_locks():
    """conda.yml says what requirements/main.lock says."""
    lock = dict(re.findall(r"^([a-z0-9-]+)==(\S+)", repository.lock(ROOT).read_text(), re.M))
    conda = yaml.safe_load((ROOT / "ml/environments/cpu/conda.yml").read_text())
    pins = [pin.split("==") for pin in conda["dependencies"][-1]["pip"]]
    assert pins and all(lock[name] == version for name, version in pins)
    spec = yaml.safe_load((ROOT / "ml/environments/cpu/environment.yml").read_text())
    assert (spec["name"], spec["version"]) == ("ml-cpu", "1") and conda["name"] == "ml-cpu"


def test_the_environment_has_what_the_project_imports():
    """Each third-party module that training and serving import comes from a pinned package."""
    packages = {"sklearn": "scikit-learn", "yaml": "pyyaml"}
    conda = (ROOT / "ml/environments/cpu/conda.yml").read_text()
    for folder in ("ml/projects/faq_matching", "ml/toolkit"):
        for path in (ROOT / folder).rglob("*.py"):
            for name in re.findall(r"^\s*(?:import|from) (\w+)", path.read_text(), re.M):
                if name in ("numpy", "scipy", "sklearn", "yaml", "mlflow", "lightgbm", "fairlearn"):
                    assert f"- {packages.get(name, name)}==" in conda, f"{path}: {name}"


def test_the_bayesian_sweep_begins_with_the_defaults():
    """The point of its hints is what a training does that is told nothing."""
    (point,) = plan(load(PROJECT / "jobs/sweep-bayesian.yml")).hints.points
    defaults = Hyperparameters().as_dict()
    assert {name: str(value) for name, value in point.values.items()} == {
        name: str(defaults[name]).lower() if name == "weighted" else str(defaults[name])
        for name in point.values
    }
