"""AutoML jobs and steps on Azure: trials, metrics and the best model come back through the port."""

from __future__ import annotations

from pathlib import Path

import pytest

from ml.backends.azure.backend import AzureBackend
from ml.backends.azure.jobs import numbered
from ml.backends.local.backend import LocalBackend
from ml.backends.runs import Event, Run
from ml.reports.facts import gather
from ml.specs.plan import planning
from ml.specs.plan.plans import AutoMLPlan, Plan
from ml.specs.sdk import load
from tests.stand_ins.azure.running import StandIn

SEARCH = """\
type: automl
display_name: find a model
experiment_name: prices
task: {task}
primary_metric: {metric}
target_column_name: price
training_data: {{type: mltable, path: {table}}}
limits: {{max_trials: 2, max_concurrent_trials: 2, timeout_minutes: 10}}
outputs: {{best_model: {{type: mlflow_model}}}}
compute: azureml:cpu-cluster
"""
PIPELINE = """\
type: pipeline
display_name: find and use
experiment_name: prices
settings: {default_compute: azureml:cpu-cluster}
inputs:
  table: {type: mltable, path: table}
jobs:
  find:
    type: automl
    task: regression
    primary_metric: normalized_root_mean_squared_error
    target_column_name: price
    training_data: ${{parent.inputs.table}}
    limits: {max_trials: 2, max_concurrent_trials: 2}
    outputs: {best_model: {type: mlflow_model}}
  use:
    command: ls ${{inputs.model}}
    environment: azureml:ml-cpu:1
    inputs:
      model: {type: mlflow_model, path: "${{parent.jobs.find.outputs.best_model}}"}
"""


@pytest.fixture
def table(tmp_path: Path) -> Path:
    """A folder with a table of prices, which depend on size and town."""
    folder = tmp_path / "table"
    folder.mkdir()
    rows = [
        f"{n % 17},{'north' if n % 3 else 'south'},{3 * (n % 17) + 5 * (n % 3)}" for n in range(80)
    ]
    (folder / "rows.csv").write_text("size,town,price\n" + "\n".join(rows) + "\n")
    (folder / "MLTable").write_text(
        "paths: [{file: ./rows.csv}]\ntransformations: [{read_delimited: {delimiter: ','}}]\n"
    )
    return folder


def planned(folder: Path, text: str) -> Plan:
    (folder / "search.yml").write_text(text)
    return planning.plan(load.load(folder / "search.yml"))


def regression(table: Path) -> str:
    metric = "normalized_root_mean_squared_error"
    return SEARCH.format(task="regression", metric=metric, table=table.name)


def test_the_plan_of_a_search(table: Path) -> None:
    """The metric has the name that trials log; the table is an input of the plan."""
    text = SEARCH.format(task="classification", metric="auc_weighted", table="table")
    plan = planned(table.parent, text)
    assert isinstance(plan, AutoMLPlan)
    assert (plan.task, plan.target_column) == ("classification", "price")
    assert (plan.primary_metric, plan.goal) == ("AUC_weighted", "maximize")
    assert (plan.max_total_trials, plan.max_concurrent_trials) == (2, 2)
    assert plan.timeout_s == 600
    assert plan.inputs["training_data"].path == table
    assert planned(table.parent, regression(table)).goal == "minimize"  # type: ignore[union-attr]


def test_this_machine_names_azure(table: Path) -> None:
    """A forecast without a horizon, also as a step: the line, and the option that runs it."""
    forecasting = "task: forecasting\n{0}forecasting: {{time_column_name: size}}"
    for text, indent, line in ((regression(table), "", 5), (PIPELINE, "    ", 11)):
        text = text.replace("task: regression", forecasting.format(indent))
        (problem,) = LocalBackend().refusals(planned(table.parent, text))
        assert problem.code == "unsupported-automl" and "--on azure" in problem.hint
        assert problem.place is not None and problem.place.line == line


@pytest.mark.slow
def test_a_search_runs(workspace: StandIn, table: Path, tmp_path: Path) -> None:
    """Its trials are told of as they end; the best one's metrics and model are the job's."""
    told: list[Event] = []
    backend = AzureBackend()
    run = backend.run(planned(tmp_path, regression(table)), told.append)
    assert run.status == "Completed", run.error and run.error.actual
    assert len(run.trials) == 2 and sum(event.kind == "trial_ended" for event in told) == 2
    metric = "normalized_root_mean_squared_error"
    scores = {trial.name: trial.metrics[metric] for trial in run.trials}
    assert run.best == min(scores, key=scores.__getitem__)
    assert run.metrics[metric] == min(scores.values())
    assert (run.outputs["best_model"] / "MLmodel").is_file()
    (entry,) = backend.runs.entries()
    assert (entry.kind, entry.objective) == ("automl", (metric, "minimize"))
    assert entry.lineage["data"]["training_data"]["asset"]
    facts = gather(run, backend)
    assert facts.sweep is not None and facts.sweep.best is not None
    assert facts.sweep.best.run.name == run.best and facts.sweep.varied == ("algorithm",)
    assert facts.selected is not None and facts.selected.selection.metric == metric
    ranked = [row.candidate.name for row in facts.selected.selection.ranked]
    assert ranked == sorted(scores, key=scores.__getitem__)


@pytest.mark.slow
def test_a_search_is_a_step(workspace: StandIn, table: Path, tmp_path: Path) -> None:
    """The step has its trials and its best model, which the next step reads."""
    run = AzureBackend().run(planned(tmp_path, PIPELINE))
    assert (run.status, [step.status for step in run.steps]) == ("Completed", ["Completed"] * 2)
    search = run.step("find")
    assert len(search.trials) == 2 and search.best in {trial.name for trial in search.trials}
    assert (search.outputs["best_model"] / "MLmodel").is_file()
    log = AzureBackend().runs.logs(run.step("use"))["0"].read_text()
    assert "MLmodel" in log


@pytest.mark.slow
def test_a_dry_run_of_a_search_shows_its_request(workspace: StandIn, table: Path) -> None:
    """The task is in the body, and its table is named by where it lies here."""
    text = "\n".join(AzureBackend().requests(planned(table.parent, regression(table))))
    assert workspace.requests() == []
    assert '"taskType": "Regression"' in text and str(table) in text


def test_runs_that_are_no_trials_are_left_out() -> None:
    """AutoML's own set-up and explanation are children of the job too."""
    parent = Run("a_b", "a_b", "Completed", "e", Path(), 0.0)
    tracked = [{"info": {"run_id": name}} for name in ("a_b_setup", "a_b_0", "a_b_HD_1", "a_b_12")]
    assert [each["info"]["run_id"] for each in numbered(parent, tracked)] == ["a_b_0", "a_b_12"]
