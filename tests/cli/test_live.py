"""The table of trials on a terminal, the plain lines elsewhere, and the summary of a run."""

from __future__ import annotations

import io
import math
from dataclasses import replace
from pathlib import Path

import pytest
from rich.console import Console

from ml.backends.runs import Event, Kind, Pause, Run
from ml.cli.render.progress import BEST_ROWS, SweepProgress, step_text, summary, watching
from ml.core.errors import Place, Problem
from ml.specs.plan.plans import (
    CommandPlan,
    Dimension,
    Environment,
    PipelinePlan,
    StepPlan,
    SweepPlan,
)
from tests.local import BACKEND

HERE = Place("sweep.yml", 1)
TRIAL = CommandPlan(HERE, "t", "e", "true", None, Environment("e"))
SPACE = {"lr": Dimension("lr", "uniform", (0.0, 1.0), HERE)}
PLAN = SweepPlan(HERE, "s", "e", TRIAL, SPACE, "random", "maximize", "score", max_total_trials=30)


def trial(number: int, score: float | None, ended: float | None = 5.0) -> Run:
    """A trial that completed with `score`, or one that runs."""
    metrics = {} if score is None else {"score": score}
    status = "Running" if ended is None else "Completed"
    values = {"lr": 0.125, "seed": 0}
    name = f"calm_river_03_{number}"
    return Run(str(number), name, status, "e", Path("/x"), 1.0, ended, values, metrics)


def sweep(*trials: Run, best: str | None = None) -> Run:
    return Run("id", "calm_river_03", "Running", "e", Path("/x"), 0.0, trials=trials, best=best)


def rendered(run: Run) -> list[str]:
    """The table as text, line by line."""
    text = io.StringIO()
    console = Console(file=text, width=100, no_color=True)
    console.print(SweepProgress(PLAN).table(run))
    return text.getvalue().splitlines()


def test_running_trials_come_first_then_the_best() -> None:
    """A NaN and a trial without a score come last, whatever the order of their ends."""
    trials = [
        trial(0, 0.5),
        trial(1, math.nan),
        trial(2, 0.9),
        trial(3, None, None),
        trial(4, None),
    ]
    lines = rendered(sweep(*trials, best="calm_river_03_2"))
    order = [line.split("03_")[1][0] for line in lines if "calm_river_03_" in line]
    assert order[:3] == ["3", "2", "0"]
    assert "4 of 30 trials ended, 1 running" in lines[0]
    assert any("0.125" in line for line in lines)


def test_a_table_of_a_thousand_trials_fits_a_terminal() -> None:
    """Only the best are shown besides what runs."""
    lines = rendered(sweep(*[trial(n, n / 1000) for n in range(1000)]))
    assert sum("calm_river_03_" in line for line in lines) == BEST_ROWS


def test_a_line_a_trial(capsys: pytest.CaptureFixture[str]) -> None:
    """Its score, its own values, what ended it, and the best so far; on stderr."""
    lost = replace(
        trial(0, math.nan), warnings=(Problem("metric-not-finite", "x", severity="warning"),)
    )
    cut = replace(trial(1, 0.5), status="Canceled", ended_by="median_stopping")
    run = sweep(lost, cut, best="calm_river_03_0")
    with watching(PLAN, True) as watch:
        for kind in ("started", "trial_started", "trial_metric"):
            watch(Event(kind, run, cut))
        watch(Event("trial_ended", run, lost))
        watch(Event("trial_ended", run, cut))
    out, err = capsys.readouterr()
    assert out == ""
    assert err.splitlines() == [
        "calm_river_03: 30 trials",
        "2/30 calm_river_03_0 Completed score nan (lr=0.125) [metric-not-finite] "
        "best so far calm_river_03_0",
        "2/30 calm_river_03_1 Canceled (median_stopping) score 0.5 (lr=0.125) "
        "best so far calm_river_03_0",
    ]


@pytest.mark.parametrize("plan", [TRIAL, PLAN])
def test_a_quiet_run_says_how_long_it_takes(
    capsys: pytest.CaptureFixture[str], plan: CommandPlan | SweepPlan
) -> None:
    """When nothing was printed for a while, less often later; output of the command counts."""

    def after(seconds: float, kind: Kind = "running") -> None:
        watch(Event(kind, replace(sweep(), started=1.0, ended=1.0 + seconds)))

    with watching(plan, True) as watch:
        after(0.0, "started")
        for seconds in (1.0, 7.9, 8.0, 9.0, 15.9):
            after(seconds)
        after(15.95, "output")
        for seconds in (20.0, 23.95, 600.0, 650.0, 700.0):
            after(seconds)
        after(900.0, "ended")
    first, *later = capsys.readouterr().err.splitlines()
    assert first.startswith("calm_river_03: ")
    assert later == [f"calm_river_03: running for {said} s" for said in (8, 24, 600, 700)]


def test_a_grid_has_no_more_trials_than_points() -> None:
    """Whatever the limit allows."""
    space = {"lr": Dimension("lr", "choice", (1, 2, 3), HERE)}
    grid = replace(PLAN, algorithm="grid", search_space=space)
    for plan, said in ((grid, "3 trials"), (replace(grid, max_total_trials=1), "1 trial")):
        assert SweepProgress(plan).line(Event("started", sweep())) == f"calm_river_03: {said}"


def test_an_output_that_was_never_written_is_told(tmp_path: Path) -> None:
    """The path of a canceled run leads nowhere, and its summary says so."""
    (tmp_path / "there").write_text("")
    outputs = {"rows": tmp_path / "nowhere", "log": tmp_path / "there"}
    said = summary(BACKEND, TRIAL, replace(sweep(), outputs=outputs), False)
    assert "nowhere (not written)" in said and "there (not written)" not in said


def test_the_summary_of_a_failure_ends_with_its_cause() -> None:
    """No next command that would lead nowhere; the hint of the problem is the next step."""
    error = Problem("metric-missing", "no trial logged `score`", hint="did you mean `scores`?")
    said = summary(
        BACKEND, PLAN, replace(sweep(trial(0, None)), status="Failed", ended=9.0, error=error)
    )
    assert "error[metric-missing]" in said
    assert "did you mean `scores`?" in said
    assert "calm_river_03: Failed in 9 s" in said
    assert "next:" not in said


def test_the_summary_of_a_pipeline_names_the_best_of_its_sweeps() -> None:
    """With its score and its own values; a sweep without a best trial has no such line."""
    plan = PipelinePlan(HERE, "p", "e", {"tune": StepPlan(HERE, PLAN)})
    won = replace(sweep(trial(0, 0.5), best="p.tune_0"), name="p.tune", status="Completed")
    won = replace(won, metrics={"score": 0.5}, parameters={"lr": 0.125, "seed": 0})
    whole = Run("id", "p", "Completed", "e", Path("/x"), 0.0, 9.0, steps=(won,))
    assert (
        "  best of tune: p.tune_0 (score 0.5, lr=0.125)"
        in summary(BACKEND, plan, whole).splitlines()
    )
    lost = replace(won, status="Failed", best=None)
    assert "best of" not in summary(BACKEND, plan, replace(whole, steps=(lost,)))


def test_a_nested_pipeline_that_stood_still_took_what_it_was_worked_on() -> None:
    """As the pipeline around it says of itself."""
    step = Run("id", "p.nest", "Completed", "e", Path("/x"), 0.0, 16.0, pauses=(Pause(2, 8, "x"),))
    assert step_text(step) == "Completed in 10.0 s"
