"""`ml run` on a pipeline: the plan that is shown, the lines and the table while it goes on."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from rich.console import Console

from ml.backends.runs import Event, Run
from ml.cli.render.progress import PipelineProgress, step_text, summary, watching
from ml.core.errors import Place, Problem
from ml.specs.plan.plans import PipelinePlan
from tests.backends.pipelines import planned
from tests.backends.pipelines import repository as repository
from tests.forks import ml
from tests.local import BACKEND

TWO = """
inputs: {far: {type: uri_file, path: "https://example.org/x.csv"}}
jobs:
  a: {@, command: "echo one > ${{outputs.o}}", outputs: {o: {type: uri_file}}}
  b: {@, command: "cat ${{inputs.x}}; exit CODE",
    inputs: {x: "${{parent.jobs.a.outputs.o}}"}}
"""
NEAR = TWO.replace(TWO.splitlines()[1] + "\n", "")


@pytest.mark.slow
def test_data_of_another_place_can_be_planned_but_not_run(repository: Path, own_home: Path) -> None:
    """--dry-run shows the steps and says what is lacking; a run is refused with 33."""
    planned(repository, TWO.replace("CODE", "0"))
    shown = ml("run", "pipeline.yml", "--dry-run")
    assert shown.returncode == 0, shown.stderr
    assert "after a" in shown.stdout
    assert "warning[data-not-local]: pipeline.yml:4:" in shown.stderr
    data = json.loads(ml("run", "pipeline.yml", "--dry-run", "--json").stdout)
    assert data["steps"]["b"]["sources"]["x"]["step"] == "a"
    refused = ml("run", "pipeline.yml")
    assert refused.returncode == 33
    assert "error[data-not-local]: pipeline.yml:4:" in refused.stderr
    assert list(own_home.glob("jobs/*")) == []


@pytest.mark.slow
def test_a_pipeline_says_its_steps_in_plain_lines(repository: Path, home: Path) -> None:
    """A failure names the step, its line and its log; the second run says what it reused."""
    planned(repository, NEAR.replace("CODE", "3"))
    failed = ml("run", "pipeline.yml")
    assert failed.returncode == 1, failed.stderr
    assert "a started\na Completed in" in failed.stderr
    assert "b Failed in" in failed.stderr
    assert "error[step-failed]: pipeline.yml:6: step `b` failed" in failed.stderr
    assert "Traceback" not in failed.stderr
    planned(repository, NEAR.replace("CODE", "0"))
    done = ml("run", "pipeline.yml")
    assert done.returncode == 0, done.stderr
    assert "a reused from " in done.stderr
    assert "steps    1 reused, 1 Completed" in done.stderr
    assert done.stdout == ""


def run(name: str, **changes: object) -> Run:
    facts: dict[str, object] = {"id": name, "status": "Completed", "ended": 3.0, **changes}
    return Run(name=name, experiment="e", folder=Path("f"), started=1.0, **facts)  # type: ignore[arg-type]


@pytest.fixture
def plan(repository: Path) -> PipelinePlan:
    """Two steps, one after the other."""
    return planned(repository, NEAR.replace("CODE", "0"))


def test_the_table_shows_what_waits_runs_and_has_ended(plan: PipelinePlan) -> None:
    """A row a step in the order of the plan, from the beginning on."""
    progress = PipelineProgress(plan)
    console = Console(width=100, record=True, force_terminal=False)
    step = run("p.a", reused_from="earlier.a")
    for state in (None, run("p", ended=None, steps=(step,))):
        console.print(progress.table(state))
    before, after = console.export_text().split("step ", 2)[1:]
    assert before.count("waits") == 2
    assert "reused from earlier.a" in after
    assert after.count("waits") == 1


def test_lines_for_programs_and_logs(
    plan: PipelinePlan, capsys: pytest.CaptureFixture[str]
) -> None:
    """A line at the start, at each step's start and end, and at each trial's end."""
    trial = run("p.b_0")
    sweep = run("p.b", ended=None, status="Running", trials=(trial,), best="p.b_0")
    whole = run("p", steps=(run("p.a"), sweep))
    with watching(plan, True) as watch:
        watch(Event("started", whole))
        watch(Event("step_started", whole, step=sweep))
        watch(Event("trial_ended", whole, trial, sweep))
        watch(Event("step_ended", whole, step=run("p.a")))
    assert capsys.readouterr().err.splitlines() == [
        "p: 2 steps",
        "b started",
        "b 1 trial ended, best so far p.b_0",
        "a Completed in 2.0 s",
    ]


def test_how_a_step_ended(plan: PipelinePlan) -> None:
    """Why it failed or never started, and that an output is empty."""
    problem = Problem("script-failed", "exited with 3", place=Place("p.yml", 4))
    warning = Problem("output-empty", "wrote nothing", severity="warning")
    lazy = Problem("not-started", "it needs step `a`", severity="warning")
    assert "[script-failed] see f" in step_text(run("p.a", status="Failed", error=problem))
    assert step_text(run("p.a", warnings=(warning,))).endswith("[output-empty]")
    left = run("p.b", id="", status="Canceled", ended_by="not-started", warnings=(lazy,))
    assert step_text(left) == "Canceled (not-started) it needs step `a`"
    pipeline = run("p", steps=(run("p.a"), run("p.c"), left))
    assert "steps    2 Completed, 1 Canceled (not-started)" in summary(BACKEND, plan, pipeline)
