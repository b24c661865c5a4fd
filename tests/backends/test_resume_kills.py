"""Executors that are killed at any moment: nothing is lost and nothing counted twice."""

from __future__ import annotations

import random
import shutil
import sqlite3
import time
from collections.abc import Callable
from contextlib import closing
from dataclasses import dataclass, replace
from itertools import count
from pathlib import Path

import pytest

from ml.backends.local.backend import LocalBackend
from ml.backends.local.runs.store import LocalRuns
from ml.backends.runs import Run
from ml.core import home as homes
from ml.core.errors import Place
from ml.specs.plan.plans import Dimension, PipelinePlan, SweepPlan
from tests.backends.conftest import Sweeps
from tests.backends.executors import begin, dying_at, go_on, kill, locks, only, settled, start
from tests.backends.pipelines import planned
from tests.backends.pipelines import repository as repository

# Kills at random moments in `make torture`, and in `make test`.
KILLS, FEW = 100, 4
# Of the changes that an executor makes, before which it is killed: every so many-th. (Each of them
# takes some minutes; all were tried.)
EVERY, RARELY = 4, 23
# Two values of the metric, a twentieth of a second apart; `-S -E` because Python's start is most of
# what a trial costs here.
TRIAL = """
import os, sqlite3, sys, time
store = os.environ["MLFLOW_TRACKING_URI"].removeprefix("sqlite:///")
for step in range(2):
    row = ("score", float(sys.argv[1]) + step, int(time.time() * 1000), os.environ["MLFLOW_RUN_ID"])
    with sqlite3.connect(store, timeout=20) as connection:
        connection.execute("INSERT INTO metrics (key, value, timestamp, run_uuid, step, is_nan)"
            f" VALUES (?, ?, ?, ?, {step}, 0)", row)
        connection.execute("INSERT OR REPLACE INTO latest_metrics (key, value, timestamp, run_uuid,"
            f" step, is_nan) VALUES (?, ?, ?, ?, {step}, 0)", row)
    connection.close()
    time.sleep(0.03)
"""
COMMAND = "python -S -E script.py ${{search_space.x}}"
PIPELINE = """
jobs:
  a: {@, command: "echo a > ${{outputs.o}}", outputs: {o: {type: uri_file}}}
  s:
    type: sweep
    trial: {code: ./code, command: "python -S -E script.py ${{search_space.x}}",
      environment: azureml:e:1}
    sampling_algorithm: random
    search_space: {x: {type: uniform, min_value: 0, max_value: 1}}
    objective: {goal: maximize, primary_metric: score}
    limits: {max_total_trials: 4, max_concurrent_trials: 2}
  n: {type: pipeline, component: ./inner.yml}
  b: {@, command: "cat ${{inputs.x}}; sleep 0.05", inputs: {x: "${{parent.jobs.a.outputs.o}}"}}
"""
INNER = """
jobs:
  i: {@, command: "sleep 0.05"}
  j: {@, command: "sleep 0.05"}
"""


def quick(sweep: Sweeps, **changes: object) -> SweepPlan:
    """A sweep whose trials take a tenth of a second."""
    plan = sweep(TRIAL, **changes)
    return replace(plan, trial=replace(plan.trial, command=COMMAND))


def grid(sweep: Sweeps) -> SweepPlan:
    place = Place("jobs/job.yml", 1)
    space = {"x": Dimension("x", "choice", (3, 1, 4, 2, 5), place)}
    return quick(sweep, algorithm="grid", search_space=space, max_total_trials=9)


@dataclass(frozen=True)
class Tracked:
    """A run in MLflow's store."""

    name: str
    status: str
    params: int
    values: int


def tracked() -> list[Tracked]:
    """Every run of the store, its parameters counted, and the values of its metric."""
    with closing(sqlite3.connect(homes.database())) as connection:
        return [
            Tracked(*row)
            for row in connection.execute(
                "SELECT name, status,"
                " (SELECT count(*) FROM params p WHERE p.run_uuid = r.run_uuid),"
                " (SELECT count(*) FROM metrics m WHERE m.run_uuid = r.run_uuid)"
                " FROM runs r ORDER BY name"
            )
        ]


def check_sweep(run: Run, expected: list[object]) -> None:
    """Every trial once, with the values of a sweep that nobody disturbed, and the right best."""
    assert run.status == "Completed", run.error
    assert [one.name for one in run.trials] == [f"{run.name}_{n}" for n in range(len(expected))]
    assert [one.parameters["x"] for one in run.trials] == expected
    assert {one.status for one in run.trials} == {"Completed"}
    best = max(range(len(expected)), key=lambda number: float(str(expected[number])))
    assert run.best == f"{run.name}_{best}"


def check_store(run: Run, home: Path) -> None:
    """MLflow has the same: each part once FINISHED, first attempts KILLED, nothing RUNNING."""
    settled(run)
    found = {one.name: one for one in tracked() if one.status != "KILLED"}
    parts = [one for one in (run, *run.below()) if one.id]
    assert sorted(found) == sorted(one.name for one in parts)
    assert {one.status for one in found.values()} == {"FINISHED"}
    for trial in (one for one in parts if "score" in one.metrics and not one.trials):
        assert (found[trial.name].params, found[trial.name].values) == (1, 2)
    for one in tracked():
        assert one.status != "KILLED" or ", attempt " in one.name or one.name not in found
    assert locks(home) == []
    assert LocalRuns().find(run.name) == run


def finish(work: Callable[[], object], moments: Callable[[], float | None]) -> int:
    """Do the work and go on with it, killed after each of the moments; how often it was killed."""
    kills = 0
    while True:
        executor, after = start(work), moments()
        executor.join(after)
        if executor.exitcode is None:
            kill(executor)
            kills += 1
        elif executor.exitcode == 0:
            return kills
        else:
            assert executor.exitcode == -9, executor.exitcode
            kills += 1
        work = then(work)


def then(work: Callable[[], object]) -> Callable[[], object]:
    """What a person does after the kill: goes on, or begins anew where nothing was begun."""
    if list(homes.jobs().glob("*/job.json")):
        return go_on
    shutil.rmtree(homes.jobs(), ignore_errors=True)
    return work


def expected_of(plan: SweepPlan) -> list[object]:
    """The values of the trials when nobody disturbs."""
    run = LocalBackend().run(plan)
    values: list[object] = [trial.parameters["x"] for trial in run.trials]
    return values


@pytest.fixture
def undisturbed(home: Path, fresh_store: Path) -> Callable[[SweepPlan], list[object]]:
    """Runs the sweep once, and makes the home new again."""

    def run(plan: SweepPlan) -> list[object]:
        values = expected_of(plan)
        anew(home, fresh_store)
        return values

    return run


def anew(home: Path, store: Path) -> None:
    """The home as if nothing had run."""
    for path in home.iterdir():
        if path.is_dir():
            shutil.rmtree(path)
        else:
            path.unlink()
    shutil.copy(store, home / "mlflow.db")


Undisturbed = Callable[[SweepPlan], list[object]]


def at_random(seed: int, kills: int, longest: float) -> Callable[[], float | None]:
    """So many moments in the life of an executor, then none."""
    chance = random.Random(seed)
    left = [chance.uniform(0, longest) for _ in range(kills)]
    return lambda: left.pop() if left else None


def test_a_sweep_that_is_killed_three_times_comes_to_the_same(
    home: Path, sweep: Sweeps, undisturbed: Undisturbed
) -> None:
    """The quick one of the tests below."""
    plan = quick(sweep, max_total_trials=5)
    expected = undisturbed(plan)
    finish(begin(plan), at_random(3, 3, 0.5))
    run = only()
    check_sweep(run, expected)
    check_store(run, home)


@pytest.mark.slow
@pytest.mark.torture
@pytest.mark.parametrize("kind", ["random", "sobol", "grid", "from the pool"])
@pytest.mark.attack("A sweep is killed at random moments")
def test_kills_of_a_sweep_at_random_moments(
    home: Path,
    fresh_store: Path,
    sweep: Sweeps,
    undisturbed: Undisturbed,
    kind: str,
    torture: bool,
) -> None:
    """A quarter of them for each way of sampling and of starting."""
    plan = grid(sweep) if kind == "grid" else quick(sweep, max_total_trials=8)
    if kind == "sobol":
        plan = replace(plan, rule="sobol")
    if kind == "from the pool":
        plain = COMMAND.replace(" -S -E", "")
        plan = replace(plan, trial=replace(plan.trial, command=plain))
    expected = undisturbed(plan)
    kills, seed = 0, 0
    while kills < (KILLS if torture else FEW) // 4:
        kills += finish(begin(plan), at_random(seed, 6, 0.8))
        seed += 1
        run = only()
        check_sweep(run, expected)
        check_store(run, home)
        anew(home, fresh_store)


@pytest.mark.slow
@pytest.mark.torture
@pytest.mark.attack("A pipeline is killed at random moments")
def test_kills_of_a_pipeline_at_random_moments(
    home: Path, fresh_store: Path, repository: Path, undisturbed: Undisturbed, torture: bool
) -> None:
    """Steps, a sweep among them and a nested pipeline, each Completed once."""
    plan = pipeline(repository)
    swept = plan.steps["s"].plan
    assert isinstance(swept, SweepPlan)
    kills, seed = 0, 0
    while kills < (KILLS if torture else FEW):
        kills += finish(begin(plan), at_random(seed, 6, 1.0))
        seed += 1
        check_pipeline(only(), home)
        anew(home, fresh_store)


def pipeline(repository: Path) -> PipelinePlan:
    (repository / "code").mkdir()
    (repository / "code" / "script.py").write_text(TRIAL)
    inner = repository / "inner.yml"
    text = INNER.replace("@", "type: command, environment: azureml:e:1")
    inner.write_text(f'type: pipeline\nname: i\nversion: "1"\n{text}')
    return planned(repository, PIPELINE)


def check_pipeline(run: Run, home: Path) -> None:
    assert run.status == "Completed", run.error
    assert {step.name.removeprefix(f"{run.name}.") for step in run.steps} == set("asnb")
    nested = run.step("n")
    assert {step.status for step in (*run.steps, *nested.steps)} == {"Completed"}
    assert len(nested.steps) == 2
    swept = run.step("s")
    assert [trial.name for trial in swept.trials] == [f"{swept.name}_{n}" for n in range(4)]
    assert len({trial.parameters["x"] for trial in swept.trials}) == 4
    check_store(run, home)


@pytest.mark.slow
@pytest.mark.torture
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("kind", ["begun", "resumed"])
def test_a_kill_before_a_change_of_a_sweep(
    home: Path,
    fresh_store: Path,
    sweep: Sweeps,
    undisturbed: Undisturbed,
    kind: str,
    torture: bool,
) -> None:
    """Before the files, folders, processes and rows of the store that an executor changes."""
    plan = quick(sweep, max_total_trials=2)
    expected = undisturbed(plan)
    for change in count(1, EVERY if torture else RARELY):
        if kind == "resumed":
            executor = start(begin(plan))
            while not list(home.glob("jobs/*/trials/0/job.json")):
                time.sleep(0.005)
            kill(executor)
            settled(only())
        was_hit = hit(change, go_on if kind == "resumed" else begin(plan), begin(plan))
        check_sweep(only(), expected)
        check_store(only(), home)
        anew(home, fresh_store)
        if not was_hit:
            assert change > 50
            return


@pytest.mark.slow
@pytest.mark.torture
@pytest.mark.timeout(1800)
def test_a_kill_before_a_change_of_a_pipeline(
    home: Path, fresh_store: Path, repository: Path, torture: bool
) -> None:
    """The same, with fewer of them: there are many."""
    plan = pipeline(repository)
    for change in count(1, 8 * EVERY if torture else 3 * RARELY):
        was_hit = hit(change, begin(plan), begin(plan))
        check_pipeline(only(), home)
        anew(home, fresh_store)
        if not was_hit:
            assert change > 200
            return


def hit(change: int, work: Callable[[], object], anew: Callable[[], object]) -> bool:
    """Do the work, killed before that change, then the rest; whether it came to the change."""
    executor = start(dying_at(change, work))
    executor.join()
    assert executor.exitcode in (0, -9)
    finish(then(anew), lambda: None)
    return executor.exitcode == -9
