"""What a dry run says a job would cost on Azure at most."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path

import pytest

from infra.cost import prices
from infra.settings import loader
from infra.settings.model import Cluster
from ml.cli.render import costs
from ml.specs.plan import planning
from ml.specs.sdk import load
from tests.release.test_commands import ml

TRAIN = """\
type: command
experiment_name: priced
code: .
command: "true"
environment: azureml:ml-cpu:1
compute: azureml:cpu-cluster
limits: {timeout: 1800}
"""
SWEEP = """\
type: sweep
trial: {code: ., command: "echo ${{search_space.x}}", environment: "azureml:ml-cpu:1"}
compute: azureml:cpu-cluster
sampling_algorithm: random
objective: {goal: maximize, primary_metric: score}
search_space:
  x: {type: uniform, min_value: 0, max_value: 1}
limits: {max_total_trials: 16, max_concurrent_trials: 2, timeout: 7200, trial_timeout: 600}
"""
PIPELINE = """\
type: pipeline
settings: {default_compute: "azureml:cpu-cluster"}
jobs:
  prepare: &step
    type: command
    code: .
    command: "true"
    environment: azureml:ml-cpu:1
    limits: {timeout: 600}
  sweep:
    type: sweep
    trial: ./trial.yml
    sampling_algorithm: random
    objective: {goal: maximize, primary_metric: score}
    search_space:
      x: {type: uniform, min_value: 0, max_value: 1}
    limits: {max_total_trials: 16, max_concurrent_trials: 2, timeout: 7200, trial_timeout: 600}
  recipe: &half_an_hour
    <<: *step
    limits: {timeout: 1800}
  evaluate: *half_an_hour
"""
TRIAL = """\
type: command
name: priced_trial
version: 1
code: .
command: "echo ${{inputs.x}}"
environment: azureml:ml-cpu:1
inputs: {x: {type: number}}
"""


@pytest.fixture
def jobs(tmp_path: Path) -> Path:
    """The folder with the specs."""
    texts = {"train": TRAIN, "sweep": SWEEP, "pipeline": PIPELINE, "trial": TRIAL}
    for name, text in texts.items():
        (tmp_path / f"{name}.yml").write_text(text)
    return tmp_path


def planned(path: Path, **changes: str) -> list[costs.Cost]:
    return costs.estimate(planning.plan(load.load(path, changes)))


def test_a_sweep_is_bounded_by_its_trials_and_their_limit(jobs: Path) -> None:
    """16 trials of 600 s on one node each, spot and dedicated."""
    (cost,) = planned(jobs / "sweep.yml")
    assert cost.bound.node_hours == pytest.approx(16 / 6)
    said = costs.as_json(cost)
    assert said["dedicated"] == {"an_hour": 0.288, "most": 0.768}
    assert said["spot"] == {"an_hour": pytest.approx(0.0576), "most": 0.1536}
    assert "at most 0.77 USD dedicated, 0.15 spot (2.67 node-hours)" in str(cost)
    assert "prices from websites that copy Azure's price list" in str(cost)


def test_a_pipeline_is_the_sum_of_its_steps(jobs: Path) -> None:
    """Ten minutes to prepare, the sweep, half an hour each for the recipe and to evaluate."""
    (whole,) = planned(jobs / "pipeline.yml")
    assert whole.bound == costs.Bound(1 + 2 + 1 + 1, pytest.approx(1 / 6 + 16 / 6 + 2 / 2))


def test_without_a_time_limit_the_hour_is_priced_and_no_bound_is_claimed(jobs: Path) -> None:
    """Four nodes cost four times as much an hour."""
    (cost,) = planned(jobs / "train.yml", **{"resources.instance_count": "4"})
    unbounded = costs.Cost(**{**vars(cost), "bound": costs.single(4, None)})
    assert cost.bound.nodes == 4
    assert "1.15 USD dedicated, 0.23 spot an hour on 4 nodes; no time limit" in str(unbounded)
    assert costs.as_json(unbounded)["node_hours"] is None


def test_a_size_without_spot_nodes_has_no_spot_price(
    jobs: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Azure ML has no low-priority H100."""
    stack = loader.load("prod")
    cluster = Cluster(name="cpu-cluster", size="Standard_ND96isr_H100_v5", max_nodes=1)
    changed = dataclasses.replace(stack, clusters=(cluster,))
    monkeypatch.setattr(loader, "load", lambda name: changed)
    (cost,) = planned(jobs / "train.yml")
    assert " USD dedicated (0.50 node-hours); " in str(cost)
    assert costs.as_json(cost)["spot"] == {"an_hour": None, "most": None}


def test_a_cluster_that_no_environment_has_is_not_priced(jobs: Path) -> None:
    """Nothing is made up."""
    assert planned(jobs / "train.yml", compute="azureml:somebody-elses") == []


def test_a_dry_run_says_it(jobs: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """In words on stderr and in its JSON."""
    _, out, err = ml(capsys, "run", str(jobs / "train.yml"), "--dry-run", "--json")
    (cost,) = json.loads(out)["azure_costs"]
    assert cost["node_hours"] == 0.5 and "on Azure: cpu-cluster" in err


def test_an_instance_is_priced_where_the_list_has_it() -> None:
    """With currency, source and date; a size that nobody lists has no price."""
    found = costs.of_instance("local")("Standard_DS3_v2")
    assert found is not None
    assert (found.per_hour, found.currency) == (0.229, "USD") and found.source and found.as_of
    assert costs.of_instance("prod")("Standard_DS3_v2") is not None
    assert costs.of_instance("local")("Standard_Nowhere") is None


def test_a_node_of_a_cluster_is_priced_as_the_environment_has_it() -> None:
    """Its size and whether it is spot are in the stack file; `local` has no clusters."""
    found = costs.of_instance("prod")("azureml:cpu-cluster")
    stack = loader.load("prod")
    (cluster,) = [one for one in stack.clusters if one.name == "cpu-cluster"]
    listed = prices.read().find(
        f"vm/{cluster.vm_size}", stack.location, "spot" if cluster.spot else "dedicated"
    )
    assert found and listed and found.instance_type == cluster.vm_size
    assert found.per_hour == listed.amount
    assert costs.of_instance("prod")("azureml:nobody-has-it") is None
    assert costs.of_instance("local")("azureml:cpu-cluster") is None


def test_without_a_price_list_every_price_is_unknown(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A list that cannot be read stops no release: the evidence leaves the amounts out."""
    monkeypatch.setattr(prices, "FILE", tmp_path / "prices.json")
    assert costs.of_instance("local")("Standard_DS3_v2") is None


def test_a_job_is_bounded_by_its_limit() -> None:
    """Four nodes for half an hour."""
    assert costs.single(4, 1800) == costs.Bound(4, 2.0)
    assert costs.single(4, None) == costs.Bound(4, None)


def test_a_sweep_is_bounded_by_the_smaller_limit() -> None:
    """16 trials of 10 minutes, two at a time within two hours, on one node each."""
    assert costs.sweep(1, 16, 2, 600, 7200) == costs.Bound(2, 16 / 6)
    assert costs.sweep(1, 16, 2, 3600, 7200) == costs.Bound(2, 4.0)
    assert costs.sweep(2, 16, 2, None, 3600) == costs.Bound(4, 4.0)
    assert costs.sweep(1, 3, 8, None, 3600) == costs.Bound(3, 3.0)
    assert costs.sweep(1, 16, 2, None, None) == costs.Bound(2, None)


def test_bounds_of_parts_add_up() -> None:
    """The sum has none if one part has none."""
    assert costs.Bound(1, 2.0) + costs.Bound(3, 4.0) == costs.Bound(4, 6.0)
    assert costs.Bound(1, 2.0) + costs.Bound(3, None) == costs.Bound(4, None)


def test_the_dry_run_of_an_online_deployment_is_its_price(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Of all instances, by the hour and by the month; nothing is guessed for an unknown size."""
    file = tmp_path / "deployment.yml"
    file.write_text(
        "$schema: https://azuremlschemas.azureedge.net/latest/managedOnlineDeployment.schema.json\n"
        "name: blue\nendpoint_name: priced\nmodel: azureml:m:1\ninstance_count: 2\n"
        "environment: {image: i:1, inference_config: {scoring_route: {port: 80, path: /}, "
        "liveness_route: {port: 80, path: /}, readiness_route: {port: 80, path: /}}}\n"
        "instance_type: Standard_NC24ads_A100_v4\n"
    )
    hourly = costs.of_instance("local")("Standard_NC24ads_A100_v4")
    assert hourly is not None
    for more, expected in {
        (): f"2 instances of Standard_NC24ads_A100_v4: {2 * hourly.per_hour:.2f} USD an hour",
        ("--set", "instance_type=Standard_X1"): "no price known for Standard_X1",
    }.items():
        code, _, err = ml(capsys, "run", str(file), "--dry-run", *more)
        assert code == 0 and expected in err
