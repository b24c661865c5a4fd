"""Plans: what a spec comes to, frozen; what cannot be planned, refused with its exit code."""

from __future__ import annotations

import dataclasses
import pickle
from pathlib import Path

import pytest

from ml.core.errors import Exit, UserError
from ml.specs.assets.assets import digest
from ml.specs.plan.planning import plan
from ml.specs.plan.plans import CommandPlan, Dimension, Plan, SweepPlan
from ml.specs.sdk.load import load
from tests.specs.broken import CASES, CLUSTERS, COMMAND, NAMES
from tests.specs.samples import SAMPLES


def planned(repo: Path, text: str, **overrides: str) -> Plan:
    (repo / "jobs.yml").write_text(text)
    changes = {key.replace("__", "."): value for key, value in overrides.items()}
    return plan(load(Path("jobs.yml"), changes))


def command(repo: Path, text: str, **overrides: str) -> CommandPlan:
    job = planned(repo, text, **overrides)
    assert isinstance(job, CommandPlan)
    return job


def sweep(repo: Path, text: str, **overrides: str) -> SweepPlan:
    job = planned(repo, text, **overrides)
    assert isinstance(job, SweepPlan)
    return job


def refused(repo: Path, text: str) -> UserError:
    with pytest.raises(UserError) as error:
        planned(repo, text)
    return error.value


def test_command_plan(repo: Path) -> None:
    """Every field that a backend needs, from a spec that uses them all."""
    job = command(repo, SAMPLES["command"][2])
    assert (job.display_name, job.experiment) == ("Train", "faq")
    assert job.command.startswith("python train.py --faq ${{inputs.faq}}")
    assert job.code == repo / "src"
    assert job.environment.conda_file == repo / "conda.yml"
    assert job.environment_variables == {"THREADS": "2"}
    assert (job.timeout_s, job.instance_count) == (3600.0, 2)
    assert job.distribution is not None and job.distribution.process_count_per_instance == 2
    assert job.outputs["rest"].type == "uri_folder"
    assert str(job.outputs["model"].asset) == "azureml:faq:3"
    assert str(job.places["resources.instance_count"]) == "jobs.yml:29"
    assert str(job.inputs["faq"].place) == "jobs.yml:15"


def test_distributions(repo: Path) -> None:
    """How many processes, by launcher; a tensorflow job has a worker a node unless it says so."""
    cases = {
        "{type: PyTorch, process_count_per_instance: 4}": 8,
        "{type: mpi}": 2,
        "{type: tensorflow, parameter_server_count: 1}": 3,
        "{type: tensorflow, worker_count: 5}": 5,
    }
    for text, processes in cases.items():
        spec = f"{COMMAND}resources: {{instance_count: 2}}\ndistribution: {text}\n"
        assert command(repo, spec).processes == processes
    assert command(repo, COMMAND).processes == 1


def test_inputs(repo: Path) -> None:
    """Literals keep value and type; data has a path here, or only a source."""
    inputs = command(repo, SAMPLES["command"][2]).inputs
    assert inputs["rate"].is_literal and inputs["rate"].value == 0.1
    assert (inputs["faq"].path, inputs["faq"].asset) == (repo / "data", None)
    for name in ("remote", "stored", "asset", "model"):
        assert inputs[name].path is None and inputs[name].source
    assert str(inputs["asset"].asset) == "azureml:faq:@latest"
    text = COMMAND + "inputs: {a: 1, b: 1.5, c: true, d: text, e: {path: data}}\n"
    types = {name: data.type for name, data in command(repo, text).inputs.items()}
    assert list(types.values()) == ["integer", "number", "boolean", "string", "uri_folder"]


def test_assets_of_the_repository(repo: Path) -> None:
    """An asset's input has its path, type, version and digest; an environment its image."""
    data = "name: faq\nversion: '{}'\ntype: mltable\npath: ../../data\n"
    (repo / "ml" / "assets" / "faq.yml").write_text(data.format(3))
    (repo / "ml" / "assets" / "env.yml").write_text(
        "name: e\nversion: '1'\nimage: python:3.11\nconda_file: ../../conda.yml\n"
    )
    text = COMMAND + "inputs: {x: {path: azureml:faq@latest}}\n"
    job = command(repo, text)
    faq = job.inputs["x"]
    assert (faq.path, faq.type) == (repo / "data", "mltable")
    assert faq.asset is not None and str(faq.asset) == "azureml:faq:3"
    assert faq.asset.digest == digest(repo / "data")
    assert job.environment.image == "python:3.11"
    assert job.environment.conda_file == repo / "conda.yml"
    (repo / "ml" / "assets" / "faq.yml").write_text(
        data.format(4).replace("../../data", "../../gone")
    )
    problem = next(p for p in refused(repo, text).problems if p.code == "missing-file")
    assert "gone" in problem.actual


def test_a_sweep_without_a_limit_on_trials_at_once(repo: Path) -> None:
    """All of them, as on Azure ML; the backend says how many fit the machine."""
    text = SAMPLES["sweep"][2].replace("max_concurrent_trials: 2, ", "")
    job = sweep(repo, text)
    assert (job.max_total_trials, job.max_concurrent_trials) == (8, 8)


def test_sweep_plan(repo: Path) -> None:
    """Trial, space, sampling, limits and early termination."""
    job = sweep(repo, SAMPLES["sweep"][2])
    assert (job.algorithm, job.seed, job.rule) == ("random", 7, "sobol")
    assert (job.goal, job.primary_metric) == ("maximize", "gain")
    assert (job.max_total_trials, job.max_concurrent_trials) == (8, 2)
    assert (job.timeout_s, job.trial_timeout_s, job.trial.timeout_s) == (600.0, 60.0, 60.0)
    policy = job.early_termination
    assert policy is not None
    assert (policy.type, policy.delay_evaluation, policy.evaluation_interval) == (
        "median_stopping", 2, 1,
    )  # fmt: skip
    assert job.search_space["rate"].args == (0.01, 0.3)
    assert job.search_space["depth"].args == (2, 4, 8)
    assert job.trial.inputs["faq"].path == repo / "data"


def test_every_distribution_in_the_order_of_the_wire(repo: Path) -> None:
    """Arguments come as Azure ML sends them: low, high, q; mu, sigma, q; upper."""
    space = """\
  a: {type: quniform, q: 2, max_value: 9, min_value: 1}
  b: {type: qnormal, q: 1, sigma: 3, mu: 2}
  c: {type: randint, upper: 5}
  d: {type: choice, values: [{name: x, e: {type: uniform, min_value: 0, max_value: 1}}, plain]}
"""
    text = SAMPLES["sweep"][2].replace("search_space:\n", "search_space:\n" + space)
    dimensions = sweep(repo, text).search_space
    assert dimensions["a"].args == (1, 9, 2)
    assert dimensions["b"].args == (2, 3, 1)
    assert dimensions["c"].args == (5,)
    nested, plain = dimensions["d"].args
    assert plain == "plain"
    assert isinstance(nested, dict) and isinstance(nested["e"], Dimension)
    assert nested["e"].args == (0, 1) and nested["name"] == "x"


def test_overrides_reach_the_plan(repo: Path, tmp_path: Path) -> None:
    """What `--set` changes is what is planned, a folder outside the repository too."""
    job = command(repo, SAMPLES["command"][2], inputs__rate="0.7", inputs__faq="../outside")
    assert job.inputs["rate"].value == 0.7
    assert job.inputs["faq"].path == tmp_path / "outside"


def test_a_plan_is_frozen(repo: Path) -> None:
    """Neither a field nor a mapping of a plan can be changed; copies can be made."""
    for name in ("command", "sweep"):
        job = planned(repo, SAMPLES[name][2])
        with pytest.raises(dataclasses.FrozenInstanceError):
            job.experiment = "other"  # type: ignore[misc]
        for change in ("clear", "popitem", "setdefault", "update"):
            with pytest.raises(TypeError):
                getattr(job.tags, change)()
        with pytest.raises(TypeError):
            job.places["x"] = job.place  # type: ignore[index]
        assert pickle.loads(pickle.dumps(job)) == job
        assert dataclasses.asdict(job)["experiment"] == job.experiment


@pytest.mark.parametrize("name", ["spark", "import"])
def test_other_jobs_are_checked_but_not_planned(name: str, repo: Path) -> None:
    """A job that nothing here runs yet is refused with 33, naming the line of its type."""
    error = refused(repo, SAMPLES[name][2])
    assert error.exit_code == Exit.CANNOT_HONOUR
    assert f"this backend does not run {name} jobs yet" in str(error)
    assert "jobs.yml:1:" in str(error)


def test_other_specs_are_a_wrong_call(repo: Path) -> None:
    """The spec of an environment cannot be run."""
    error = refused(repo, SAMPLES["environment"][2])
    assert error.exit_code == Exit.WRONG_CALL
    assert "this is the spec of an environment, not of a job" in str(error)


def test_every_error_at_once(repo: Path) -> None:
    """A spec with three faults is refused once, with three problems."""
    text = COMMAND + "resources: {instance_count: -1}\nlimits: {timeout: -1}\ncompute: 3\n"
    assert len(refused(repo, text).problems) == 3


def test_missing_data_stops_a_plan(repo: Path, tmp_path: Path) -> None:
    """Data that is only a warning elsewhere stops the plan, with what to type."""
    folder = tmp_path / "elsewhere"
    folder.mkdir()
    (folder / "job.yml").write_text(COMMAND + "inputs: {x: {path: nowhere}}\n")
    with pytest.raises(UserError) as error:
        plan(load(folder / "job.yml"))
    assert "--set inputs.x=PATH" in str(error.value)


def test_remote_code_cannot_be_run_here(repo: Path) -> None:
    """Code in another place is for Azure ML."""
    job = command(repo, COMMAND + "code: git+https://example.org/r.git\n")
    assert [problem.code for problem in job.not_here] == ["remote-code"]


# A plan does not depend on the clusters that there are, nor on names that a workspace may have.
UNPLANNED = [
    name for name, text in CASES.items() if "# error" in text and name not in {*CLUSTERS, *NAMES}
]


@pytest.mark.parametrize("name", UNPLANNED)
def test_broken_specs_are_not_planned(name: str, repo: Path) -> None:
    """Whatever `ml check` calls an error is never planned."""
    refused(repo, CASES[name])
