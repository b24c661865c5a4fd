"""Points to try first and constraints, in a file beside the spec."""

from __future__ import annotations

import hashlib
from pathlib import Path

import pytest
from syrupy.assertion import SnapshotAssertion

from ml.cli.render.plan_text import as_json, as_text
from ml.core.errors import Place, Problem, UserError
from ml.specs.check.check import check, survey
from ml.specs.plan import planning
from ml.specs.plan.plans import Condition, Constraint, Point, SweepPlan, sweeps
from ml.specs.sdk.load import load

SPACE = """\
  rate: {type: uniform, min_value: 0.01, max_value: 0.3}
  depth: {type: choice, values: [2, 4, 8]}
  model:
    type: choice
    values:
      - {name: tree, leaves: {type: choice, values: [7, 15]}}
      - {name: linear, penalty: {type: loguniform, min_value: -3, max_value: 0}}
"""
SWEEP = (
    """\
type: sweep
trial:
  command: train ${{search_space.rate}} ${{search_space.depth}} '${{search_space.model}}'
  environment: azureml:e@latest
compute: azureml:cpu-cluster
sampling_algorithm: {type: random, seed: 7}
objective: {goal: maximize, primary_metric: gain}
limits: {max_total_trials: 12, max_concurrent_trials: 2}
search_space:
"""
    + SPACE
)


@pytest.fixture
def spec(repo: Path) -> Path:
    """A sweep without hints."""
    (repo / "sweep.yml").write_text(SWEEP)
    return repo / "sweep.yml"


def problems_of(spec: Path, text: str, name: str = "sweep.hints.yml") -> list[Problem]:
    """What is wrong once these hints are beside the spec."""
    (spec.parent / name).write_text(text)
    try:
        return check(load(spec))
    except UserError as refused:
        return list(refused.problems)


GOOD = """\
try_first:
  - values: {rate: 0.1, depth: 4, model: {name: tree, leaves: 7}}
    because: the best in May
  - values: {model: {penalty: 0.5}}
constraints:
  - rate * depth <= 2
  - require: model.leaves > 3 or depth == 2
    because: small trees are weak
"""

EVOLUTION = "sampler: evolution\n"


def test_evolution_and_its_conditions(spec: Path, snapshot: SnapshotAssertion) -> None:
    """They are part of the plan, which shows them; only random sampling gives way to them."""
    text = EVOLUTION + "conditions: {model: rate > 0.1 or depth == 2}\n"
    assert problems_of(spec, text) == []
    plan = planning.plan(load(spec))
    assert isinstance(plan, SweepPlan)
    place = Place("sweep.hints.yml", 2)
    assert plan.hints.sampler == "evolution"
    assert plan.hints.conditions == (Condition("model", "rate > 0.1 or depth == 2", place),)
    assert as_text(plan) == snapshot
    spec.write_text(SWEEP.replace("max_total_trials: 12", "max_total_trials: 10"))
    (problem,) = problems_of(spec, text)
    assert (problem.code, problem.severity) == ("few-trials", "warning")
    assert "all 10 trials are random" in problem.actual
    spec.write_text(SWEEP.replace("type: random, seed: 7", "type: bayesian"))
    (problem,) = [p for p in problems_of(spec, text) if p.severity == "error"]
    assert (problem.code, problem.place) == ("invalid-hint", Place("sweep.hints.yml", 1))
    assert "`sampling_algorithm: bayesian`" in problem.actual


def test_hints_are_part_of_the_plan(spec: Path) -> None:
    """With their lines and reasons; without a file there are none, and the spec is untouched."""
    bare = planning.plan(load(spec))
    assert isinstance(bare, SweepPlan)
    assert not bare.hints
    before = hashlib.sha256(spec.read_bytes()).hexdigest()
    assert problems_of(spec, GOOD) == []
    plan = planning.plan(load(spec))
    assert isinstance(plan, SweepPlan)
    first = {"rate": 0.1, "depth": 4, "model": {"name": "tree", "leaves": 7}}
    assert plan.hints.points == (
        Point(first, Place("sweep.hints.yml", 2), "the best in May"),
        Point({"model": {"penalty": 0.5}}, Place("sweep.hints.yml", 4)),
    )
    assert plan.hints.constraints == (
        Constraint("rate * depth <= 2", Place("sweep.hints.yml", 6)),
        Constraint(
            "model.leaves > 3 or depth == 2", Place("sweep.hints.yml", 7), "small trees are weak"
        ),
    )
    assert hashlib.sha256(spec.read_bytes()).hexdigest() == before


def test_a_dry_run_shows_hints(spec: Path, snapshot: SnapshotAssertion) -> None:
    """As text and as JSON."""
    problems_of(spec, GOOD)
    plan = planning.plan(load(spec))
    assert as_text(plan) == snapshot
    assert as_json(plan)["hints"]["constraints"][0]["expression"] == "rate * depth <= 2"


@pytest.mark.parametrize(
    ("text", "code", "line", "found"),
    [
        ("try_first: [{values: {rate: 0.5}}]", "invalid-hint", 1, "`rate` is 0.5, outside"),
        ("try_first:\n  - values:\n      depth: 3\n", "invalid-hint", 3, "not a choice of `depth`"),
        ("try_first: [{values: {rate: fast}}]", "invalid-hint", 1, "`rate` is 'fast'"),
        ("try_first: [{values: {rat: 0.1}}]", "invalid-hint", 1, "`rat` is not a hyperparameter"),
        (
            "try_first: [{values: {model: {leaves: 8}}}]",
            "invalid-hint",
            1,
            "not a choice of `leaves`",
        ),
        ("try_first: [{values: {model: tree}}]", "invalid-hint", 1, "not a choice of `model`"),
        ("try_first: [{values: {}}]", "wrong-hint-type", 1, "a point is"),
        ("try_first: [{rate: 0.1}]", "unknown-hint", 1, "`rate` is not a valid key"),
        ("try_first: {rate: 0.1}", "wrong-hint-type", 1, "try_first is"),
        ("try_frist: []", "unknown-hint", 1, "`try_frist`"),
        (
            "try_first:\n  - values: {rate: 0.1}\n  - values: {rate: 0.10}\n",
            "duplicate-hint",
            3,
            "the same as point 1",
        ),
        (
            "constraints: [rate < 0.1]\ntry_first:\n  - values: {rate: 0.2}\n",
            "point-breaks-constraint",
            3,
            "`rate < 0.1`",
        ),
        (
            "constraints: [speed < 3]",
            "invalid-constraint",
            1,
            "`speed` in `speed < 3` is not a hyperparam",
        ),
        (
            "constraints: [leaves < 3]",
            "invalid-constraint",
            1,
            "`leaves` in `leaves < 3` is not a hyper",
        ),
        ("constraints: ['rate <']", "invalid-constraint", 1, "is not an expression"),
        ("constraints: [1 < 2]", "invalid-constraint", 1, "names no hyperparameter"),
        ("constraints: ['__import__(rate)']", "invalid-constraint", 1, "calls `__import__`"),
        ("constraints: ['rate.real < 1']", "invalid-constraint", 1, "`rate.real`"),
        ("constraints: ['[rate for x in depth]']", "invalid-constraint", 1, "contains"),
        ("constraints: ['(lambda: rate)()']", "invalid-constraint", 1, "calls"),
        ("constraints: ['\"a\".join(rate)']", "invalid-constraint", 1, "calls"),
        ("constraints: [rate < 0.2, rate  <  0.2]", "duplicate-hint", 1, "twice"),
        ("constraints: [3]", "wrong-hint-type", 1, "a constraint is 3"),
        ("constraints: [{requires: rate < 1}]", "unknown-hint", 1, "`requires`"),
        ("jobs: {tune: {}}", "unknown-hint", 1, "`tune`"),
        ("sampler: evolve", "invalid-hint", 1, "`sampler` is 'evolve'"),
        ("conditions: {depth: rate > 0.1}", "invalid-hint", 1, "without a sampler"),
        (EVOLUTION + "conditions: [rate > 0.1]", "wrong-hint-type", 2, "conditions is"),
        (EVOLUTION + "conditions: {dept: rate > 0.1}", "invalid-hint", 2, "`dept` is not a hyper"),
        (EVOLUTION + "conditions:\n  depth: 3", "wrong-hint-type", 3, "`depth` is 3"),
        (EVOLUTION + "conditions:\n  depth: rat > 1", "invalid-constraint", 3, "`rat` in"),
        (EVOLUTION + "conditions: {depth: depth > 1}", "invalid-hint", 2, "names `depth`"),
        (
            EVOLUTION + "conditions:\n  rate: depth > 2\n  depth: rate > 0.1",
            "invalid-hint",
            3,
            "names `depth`, whose condition stands below",
        ),
        (EVOLUTION + "conditions: {rate: depth == 5}", "invalid-hint", 2, "holds for no values"),
        (
            EVOLUTION + "conditions: {rate: depth / 0 > 1}",
            "invalid-constraint",
            2,
            "cannot be evaluated for",
        ),
        ("[]", "wrong-hint-type", 1, "hints is []"),
    ],
)
def test_invalid_hints_are_refused(spec: Path, text: str, code: str, line: int, found: str) -> None:
    """Each with its line in the hints; the plan is refused for the same, and mended hints pass."""
    problems = problems_of(spec, text)
    first = problems[0]
    assert (first.code, first.place) == (code, Place("sweep.hints.yml", line))
    assert found in first.actual
    assert first.expected
    with pytest.raises(UserError) as refused:
        planning.plan(load(spec))
    assert code in {problem.code for problem in refused.value.problems}
    assert problems_of(spec, GOOD) == []


@pytest.mark.parametrize(
    ("text", "hint"),
    [
        ("try_first: [{values: {rat: 0.1}}]", "did you mean `rate`?"),
        ("constraints: [dept < 3]", "did you mean `depth`?"),
        ("try_frist: []", "did you mean `try_first`?"),
        ("constraints: [{requires: rate < 1}]", "did you mean `require`?"),
        (
            "constraints: [depth < 3]\ntry_first: [{values: {depth: 4}}]",
            "change its values, or the constraint",
        ),
    ],
)
def test_misspelt_names_are_suggested(spec: Path, text: str, hint: str) -> None:
    """As everywhere else."""
    assert problems_of(spec, text)[0].hint == hint


def test_more_points_than_trials_are_a_warning(spec: Path) -> None:
    """Some would never be tried; as many as trials are fine."""
    points = [f"  - values: {{rate: 0.{number}}}\n" for number in range(10, 23)]
    assert problems_of(spec, "try_first:\n" + "".join(points[:12])) == []
    (problem,) = problems_of(spec, "try_first:\n" + "".join(points))
    assert (problem.code, problem.severity) == ("more-points-than-trials", "warning")
    assert "13 points to try first, and 12 trials" in problem.actual


def test_two_files_of_hints_are_refused(spec: Path) -> None:
    """One would be ignored silently."""
    (spec.parent / "sweep.hints.yaml").write_text(GOOD)
    assert [problem.code for problem in problems_of(spec, GOOD)] == ["duplicate-hints-file"]
    (spec.parent / "sweep.hints.yml").unlink()
    plan = planning.plan(load(spec))
    assert isinstance(plan, SweepPlan)
    assert len(plan.hints.points) == 2


def test_hints_of_a_job_without_a_sweep_are_a_warning(repo: Path) -> None:
    """They would do nothing."""
    (repo / "train.yml").write_text(
        "type: command\ncommand: train\nenvironment: azureml:e@latest\ncompute: azureml:c\n"
    )
    (problem,) = problems_of(repo / "train.yml", GOOD, "train.hints.yml")
    assert (problem.code, problem.severity) == ("hints-without-sweep", "warning")


def test_the_survey_takes_hints_for_their_spec(spec: Path) -> None:
    """A folder counts the spec alone; hints that are named stand for it; orphans are an error."""
    (spec.parent / "sweep.hints.yml").write_text("constraints: [speed < 3]")
    for paths in ([spec.parent], [spec], [spec.parent / "sweep.hints.yml"]):
        result = survey(paths)
        assert [problem.code for problem in result.problems] == ["invalid-constraint"]
    assert survey([spec]).specs == survey([spec.parent / "sweep.hints.yml"]).specs == 1
    (spec.parent / "sweep.hints.yml").rename(spec.parent / "sweeps.hints.yml")
    assert [item.code for item in survey([spec.parent]).problems] == ["hints-without-spec"]


PIPELINE = """\
type: pipeline
settings: {default_compute: azureml:cpu-cluster}
jobs:
  tune:
    type: sweep
    trial: {command: "train ${{search_space.rate}}", environment: "azureml:e@latest"}
    sampling_algorithm: random
    objective: {goal: maximize, primary_metric: gain}
    limits: {max_total_trials: 4, max_concurrent_trials: 2}
    search_space:
""" + "".join(f"    {line}\n" for line in SPACE.splitlines())


def test_hints_of_a_pipeline_name_the_step(repo: Path) -> None:
    """Below `jobs:`, as in the spec; what stands at the top belongs to no sweep."""
    spec = repo / "pipeline.yml"
    spec.write_text(PIPELINE)
    text = "jobs:\n  tune:\n    constraints: [rate < 0.2]\n    try_first: [{values: {rate: 0.1}}]\n"
    assert [p for p in problems_of(spec, text, "pipeline.hints.yml") if p.severity == "error"] == []
    (sweep,) = sweeps(planning.plan(load(spec)))
    assert [item.expression for item in sweep.hints.constraints] == ["rate < 0.2"]
    assert sweep.hints.points[0].place == Place("pipeline.hints.yml", 4)
    wrong = problems_of(spec, "jobs: {tuna: {constraints: [rate < 0.2]}}", "pipeline.hints.yml")
    assert [(p.code, p.hint) for p in wrong if p.severity == "error"] == [
        ("unknown-hint", "did you mean `tune`?")
    ]
    misplaced = problems_of(spec, "constraints: [rate < 0.2]", "pipeline.hints.yml")
    assert "misplaced-hint" in {problem.code for problem in misplaced}


def test_hints_are_read_against_a_changed_space(spec: Path) -> None:
    """`--set` that moves the space may leave a point outside."""
    problems_of(spec, "try_first: [{values: {rate: 0.1}}]")
    changed = load(spec, {"search_space.rate.min_value": "0.2"})
    assert [problem.code for problem in check(changed)] == ["invalid-hint"]
