"""A plan that is written and read again is the same plan."""

from __future__ import annotations

import json
from dataclasses import is_dataclass
from pathlib import Path
from typing import Any

import pytest

from ml.backends.local.execution.saved_plan import from_json, kinds, to_json
from ml.core.errors import Place
from ml.specs.plan import plans
from ml.specs.plan.planning import plan
from ml.specs.plan.plans import (
    CommandPlan,
    Condition,
    Constraint,
    Dimension,
    Environment,
    Frozen,
    Hints,
    Point,
    SweepPlan,
)
from ml.specs.sdk.load import load
from tests.release import tiny


@pytest.mark.parametrize("job", ["train.yml", "sweep-random.yml", "pipeline.yml", "evaluate.yml"])
def test_a_plan_comes_back(job: str, tmp_path: Path) -> None:
    """Commands, sweeps and pipelines, through text."""
    jobs = tiny.make(tmp_path).folder / "jobs"
    (tmp_path / "model").mkdir()
    changes = {"inputs.model": str(tmp_path / "model")} if job == "evaluate.yml" else {}
    original = plan(load(jobs / job, changes))
    restored = from_json(json.loads(json.dumps(to_json(original))))
    assert restored == original
    assert isinstance(getattr(restored, "tags", None), Frozen)


def test_types_survive(tmp_path: Path) -> None:
    """Truth values, whole numbers, lists, tuples and nested spaces of a choice."""
    place = Place("a.yml", 3)
    inner = Dimension("depth", "randint", (5,), place)
    args = (True, 1, 1.0, "1", [1, "b"], {"name": "tree", "depth": inner}, {1: None})
    space = {"x": Dimension("x", "choice", args, place)}
    trial = CommandPlan(place, "a", "tests", "true", tmp_path, Environment("azureml:e:1"))
    conditions = (Condition("x", "y > 0", place),)
    points, constraints = (Point({"x": 1}, place),), (Constraint("x > 0", place),)
    hints = Hints(points, constraints, "a.hints.yml", "evolution", conditions)
    original = SweepPlan(place, "a", "tests", trial, space, "random", "maximize", "m", hints=hints)
    restored = from_json(json.loads(json.dumps(to_json(original))))
    assert restored == original
    assert isinstance(restored, SweepPlan)
    assert [type(item) for item in restored.search_space["x"].args[:5]] == [
        bool,
        int,
        float,
        str,
        list,
    ]
    assert restored.trial.code == tmp_path


def test_every_part_of_a_plan_can_be_written() -> None:
    """A dataclass that is added to the plans can be written and read; `Job` is their header."""
    classes = {name for name, item in vars(plans).items() if is_dataclass(item)}
    assert classes - {"Job", "Sample"} <= set(kinds())


@pytest.mark.parametrize(
    "data",
    [
        None,
        "text",
        {"is": "InputPlan", "with": {}},
        {"is": "os.system", "with": "ls"},
        {"is": "CommandPlan", "with": {"unknown": 1}},
        {"with": 1},
    ],
)
def test_anything_else_is_refused(data: Any) -> None:
    """What another version wrote, or somebody changed, is a ValueError and nothing else."""
    with pytest.raises(ValueError, match="not a plan"):
        from_json(data)


def test_other_types_are_not_written() -> None:
    """Nothing is turned into text that would not come back."""
    with pytest.raises(TypeError, match="a plan cannot contain"):
        to_json({"x": object()})
