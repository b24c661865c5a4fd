"""The sweep of the reference, and the environment that it runs in."""

from __future__ import annotations

import re
from dataclasses import fields
from importlib.util import find_spec

import pytest
import yaml

from ml.core import repository
from ml.specs.plan.planning import plan
from ml.specs.plan.plans import SweepPlan
from ml.specs.sdk.load import load
from tests.conftest import ROOT

PROJECT = ROOT / "ml/projects/shelf_gaps"
ENVIRONMENT = ROOT / "ml/environments/images"


def test_each_dimension_is_an_argument() -> None:
    """Of train.py, for each value that the sweep may draw; a level has anchors of one size."""
    if not find_spec("torchvision"):
        pytest.skip("torchvision is not installed: make images")
    from ml.projects.shelf_gaps.network import LEVELS, Network
    from ml.projects.shelf_gaps.train import Schedule

    sweep = yaml.safe_load((PROJECT / "jobs/sweep.yml").read_text())
    known = {each.name: each.default for kind in (Network, Schedule) for each in fields(kind)}
    for name, space in sweep["search_space"].items():
        assert (
            f"--{name.replace('_', '-')} ${{{{search_space.{name}}}}}" in sweep["trial"]["command"]
        )
        for value in space.get("values") or [space["min_value"], space["max_value"]]:
            assert type(known[name]) is type(value)
            if name not in ("learning_rate",):
                Network.from_mapping({**Network().as_dict(), name: value})
    assert all(of.count("-") == LEVELS - 1 for of in sweep["search_space"]["anchors"]["values"])
    assert sweep["compute"] == "azureml:gpu-spot"
    assert sweep["early_termination"]["type"] == "bandit"
    assert sweep["objective"]["primary_metric"] == "validation_map_50"


def test_two_trials_of_a_few_steps() -> None:
    """The same spec, by `--set`."""
    changes = {"limits.max_total_trials": "2", "inputs.steps": "4"}
    small = plan(load(PROJECT / "jobs/sweep.yml", changes))
    assert isinstance(small, SweepPlan) and small.max_total_trials == 2


def test_the_environments_pins_are_the_locks() -> None:
    """Those of requirements/main.lock, or of images.txt, which `make images` installs here."""
    pins = r"^([a-z0-9-]+)==(\S+)"
    lock = dict(re.findall(pins, repository.lock(ROOT).read_text(), re.M))
    beside = repository.lock(ROOT).with_name("images.txt")
    lock |= dict(re.findall(pins, beside.read_text(), re.M))
    stated = dict(re.findall(pins, (ENVIRONMENT / "requirements.txt").read_text(), re.M))
    assert stated and {name: lock[name] for name in stated} == stated
    assert {"torch", "torchvision", "pycocotools", "pillow"} <= stated.keys()


def test_the_environment_has_what_is_imported() -> None:
    """Each third-party module of training and evaluation comes from a pinned package."""
    packages = {"PIL": "pillow", "yaml": "pyyaml", "sklearn": "scikit-learn"}
    text = (ENVIRONMENT / "requirements.txt").read_text()
    for path in [*PROJECT.glob("*.py"), *(ROOT / "ml/measures").glob("*.py")]:
        if path.name == "charts.py":  # on somebody's machine, not on a node
            continue
        for name in re.findall(r"^\s*(?:import|from) (\w+)", path.read_text(), re.M):
            if name in (
                "numpy",
                "PIL",
                "torch",
                "torchvision",
                "pycocotools",
                "mlflow",
                "fairlearn",
            ):
                assert f"\n{packages.get(name, name)}==" in text, f"{path}: {name}"
