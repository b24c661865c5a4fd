"""Plans of pipelines: bindings in every form, components, sweep steps, nested pipelines."""

from __future__ import annotations

import json
import textwrap
from pathlib import Path

import pytest
from syrupy.assertion import SnapshotAssertion

from ml.cli.render.plan_text import as_json, as_text
from ml.core import repository
from ml.core.errors import Exit, UserError
from ml.specs.check.check import check
from ml.specs.plan.bindings import source_of
from ml.specs.plan.planning import plan
from ml.specs.plan.plans import (
    CommandPlan,
    FromPipeline,
    FromStep,
    PipelinePlan,
    StepPlan,
    SweepPlan,
    commands,
    supplied_inputs,
)
from ml.specs.sdk.load import load
from tests.local import BACKEND


def pipeline(repo: Path, text: str, **overrides: str) -> PipelinePlan:
    if "default_compute" not in text and "\ncompute:" not in text:
        text += "compute: azureml:c\n"
    (repo / "jobs.yml").write_text(text)
    job = plan(load(Path("jobs.yml"), {k.replace("__", "."): v for k, v in overrides.items()}))
    assert isinstance(job, PipelinePlan)
    return job


def refused(repo: Path, text: str) -> UserError:
    with pytest.raises(UserError) as error:
        pipeline(repo, text)
    return error.value


def command(step: StepPlan) -> CommandPlan:
    assert isinstance(step.plan, CommandPlan)
    return step.plan


STEP = "type: command, command: echo, environment: azureml:e:1"
TWO = """\
type: pipeline
experiment_name: tests
compute: azureml:big
settings: {default_compute: azureml:small, continue_on_step_failure: false, force_rerun: true}
inputs:
  faq: {type: uri_folder, path: ./data}
  rate: 0.5
outputs:
  model: {mode: upload}
jobs:
  last:
    type: command
    command: cat ${{inputs.model}}
    environment: azureml:e:1
    environment_variables: {RATE: "x${{parent.inputs.rate}}"}
    compute: azureml:own
    inputs:
      model: {path: "${{parent.jobs.train.outputs.model}}", mode: download}
      note: ${{jobs.train.outputs.extra}}
  train:
    type: command
    component: ./component.yml
    inputs: {data: "${{parent.inputs.faq}}", rate: "${{parent.inputs.rate}}", kind: fancy}
    outputs: {model: "${{parent.outputs.model}}", extra: {type: uri_file, name: e, version: "2"}}
"""


def test_steps_that_may_run_keep_the_order_of_the_file(repo: Path) -> None:
    """Also beside one that waits: what stands last in the file is not before it."""
    later = f"{{{STEP}, inputs: {{of: '${{{{parent.jobs.first.outputs.out}}}}'}}}}"
    first = f"{{{STEP}, outputs: {{out: {{type: uri_folder}}}}}}"
    job = pipeline(
        repo, f"type: pipeline\njobs:\n  first: {first}\n  later: {later}\n  alone: {{{STEP}}}\n"
    )
    assert list(job.steps) == ["first", "later", "alone"]


def test_steps_and_their_sources(repo: Path) -> None:
    """Each step after those that it waits for; every form of a binding leads to its source."""
    job = pipeline(repo, TWO)
    assert list(job.steps) == ["train", "last"]
    assert job.steps["last"].after == ("train",)
    assert job.steps["last"].sources == {
        "model": FromStep("train", "model"),
        "note": FromStep("train", "extra"),
    }
    assert job.steps["train"].sources["data"] == FromPipeline("faq")
    assert command(job.steps["last"]).inputs["model"].mode == "download"
    assert job.inputs["faq"].path == repo / "data"
    assert (job.continue_on_step_failure, job.force_rerun) == (False, True)


def test_a_component_gives_defaults_and_types(repo: Path) -> None:
    """What the step leaves out has the component's default, or no value where it is optional."""
    train = command(pipeline(repo, TWO).steps["train"])
    assert train.inputs["rounds"].value == 10
    assert train.inputs["fast"].value is False
    assert (train.inputs["note"].type, train.inputs["note"].value) == ("string", None)
    assert train.inputs["kind"].value == "fancy"
    assert train.inputs["data"].type == "uri_folder"
    assert train.outputs["model"].type == "custom_model"
    assert str(train.outputs["extra"].asset) == "azureml:e:2"
    assert str(train.place).startswith("component.yml:")


def test_the_nearest_compute_applies(repo: Path) -> None:
    """The step's own, else the pipeline's, else the default of its settings."""
    steps = pipeline(repo, TWO).steps
    assert command(steps["last"]).compute == "azureml:own"
    assert command(steps["train"]).compute == "azureml:big"
    without = TWO.replace("compute: azureml:big\n", "", 1)
    assert command(pipeline(repo, without).steps["train"]).compute == "azureml:small"


def test_promoted_outputs_have_the_type_of_the_step(repo: Path) -> None:
    """And the other way round, where only the pipeline says it."""
    job = pipeline(repo, TWO)
    assert job.outputs["model"].type == "custom_model"
    assert job.origins == {"model": FromStep("train", "model")}
    inline = (
        "type: pipeline\noutputs: {o: {type: uri_file, path: 'azureml://datastores/"
        "${{default_datastore}}/paths/${{name}}/o.txt'}}\njobs:\n"
        f"  a: {{{STEP}, outputs: {{x: '${{{{parent.outputs.o}}}}', y: null}}}}\n"
    )
    step = command(pipeline(repo, inline).steps["a"])
    assert [output.type for output in step.outputs.values()] == ["uri_file", "uri_folder"]


def test_registered_and_inline_components(repo: Path) -> None:
    """By asset (a version, or the newest), by `file:`, and written in place."""
    component = (repo / "component.yml").read_text()
    (repo / "ml" / "older.yml").write_text(component)
    (repo / "ml" / "newer.yml").write_text(component.replace('version: "1"', 'version: "10"'))
    inputs = "inputs: {data: {type: uri_folder, path: ./data}, rate: 0.1}"
    for written, file in (
        ("azureml:train:1", "ml/older.yml"),
        ("azureml:train@latest", "ml/newer.yml"),
        ("file:./component.yml", "component.yml"),
    ):
        text = f"type: pipeline\njobs:\n  a: {{type: command, component: '{written}', {inputs}}}\n"
        step = command(pipeline(repo, text).steps["a"])
        assert step.place.path == file
        assert step.inputs["rounds"].value == 10
    inline = (
        "type: pipeline\njobs:\n  a:\n    type: command\n    component:\n      type: command\n"
        "      command: echo ${{inputs.n}}\n      environment: azureml:e:1\n"
        "      is_deterministic: false\n      inputs: {n: {type: integer, default: 3}}\n"
    )
    job = pipeline(repo, inline).steps["a"]
    assert command(job).inputs["n"].value == 3
    assert not job.is_deterministic


SWEEP_STEP = """\
type: pipeline
jobs:
  sweep:
    type: sweep
    trial: ./component.yml
    sampling_algorithm: {type: random, seed: 4}
    search_space:
      rate: {type: uniform, min_value: 0, max_value: 1}
      note: {type: choice, values: [a, b]}
    objective: {goal: minimize, primary_metric: loss}
    limits: {max_total_trials: 5, trial_timeout: 60}
    inputs: {data: {type: uri_folder, path: ./data}, rounds: 3}
    outputs: {model: null}
"""


def test_a_sweep_step(repo: Path) -> None:
    """The component's inputs that are sampled come from the search space, optional ones too."""
    swept = pipeline(repo, SWEEP_STEP).steps["sweep"].plan
    assert isinstance(swept, SweepPlan)
    assert (swept.goal, swept.seed, swept.max_total_trials) == ("minimize", 4, 5)
    assert "${{search_space.rate}}" in swept.trial.command
    assert "$[[--note ${{search_space.note}}]]" in swept.trial.command
    assert "${{inputs.rounds}}" in swept.trial.command
    assert "rate" not in swept.trial.inputs
    assert swept.trial.inputs["rounds"].value == 3
    assert swept.trial.outputs["model"].type == "custom_model"
    assert swept.trial.timeout_s == 60


NESTED = """\
type: pipeline
name: inner
version: "1"
inputs: {data: {type: uri_folder}, rounds: {type: integer, default: 7}}
outputs: {model: {type: custom_model}}
jobs:
  train:
    type: command
    component: ../component.yml
    inputs: {data: "${{parent.inputs.data}}", rate: 0.5, rounds: "${{parent.inputs.rounds}}"}
    outputs: {model: "${{parent.outputs.model}}"}
"""
OUTER = """\
type: pipeline
compute: azureml:big
settings: {force_rerun: true}
outputs: {best: {type: custom_model}}
jobs:
  one:
    type: pipeline
    component: ./inner/inner.yml
    inputs: {data: {type: uri_folder, path: ./data}}
    outputs: {model: "${{parent.outputs.best}}"}
"""


def nested(repo: Path) -> PipelinePlan:
    (repo / "inner").mkdir()
    (repo / "inner" / "inner.yml").write_text(NESTED)
    return pipeline(repo, OUTER)


def test_a_nested_pipeline(repo: Path) -> None:
    """Its own plan, with the compute and the settings of the one around, and its defaults."""
    job = nested(repo)
    inner = job.steps["one"].plan
    assert isinstance(inner, PipelinePlan)
    assert inner.force_rerun
    assert inner.inputs["rounds"].value == 7
    assert inner.inputs["data"].path == repo / "data"
    assert command(inner.steps["train"]).compute == "azureml:big"
    assert inner.origins == {"model": FromStep("train", "model")}
    assert job.origins == {"best": FromStep("one", "model")}
    assert job.outputs["best"].type == "custom_model"
    (only,) = commands(job)
    assert only.inputs["rate"].value == 0.5
    assert "jobs.one.inputs.data" in dict(supplied_inputs(job))
    assert "jobs.one.jobs.train.inputs.data" not in dict(supplied_inputs(job))


def test_a_job_runs_a_pipeline_component(repo: Path) -> None:
    """A pipeline job may name a pipeline component and give it inputs."""
    (repo / "inner").mkdir()
    (repo / "inner" / "inner.yml").write_text(NESTED)
    text = (
        "type: pipeline\ncomponent: ./inner/inner.yml\n"
        "inputs: {data: {type: uri_folder, path: ./data}}\n"
    )
    job = pipeline(repo, text)
    assert list(job.steps) == ["train"]
    assert job.inputs["rounds"].value == 7


@pytest.mark.parametrize("name", ["default", "artifacts"])
def test_the_implicit_output(repo: Path, name: str) -> None:
    """What a step leaves in ./outputs is an output that its command does not name."""
    text = (
        f"type: pipeline\njobs:\n  a: {{{STEP}, outputs: {{{name}: null}}}}\n"
        f"  b: {{{STEP}, inputs: {{x: '${{{{parent.jobs.a.outputs.{name}}}}}'}}}}\n"
    )
    job = pipeline(repo, text)
    assert name not in command(job.steps["a"]).outputs
    named = text.replace("command: echo", f"command: 'echo ${{{{outputs.{name}}}}}'", 1)
    assert name in command(pipeline(repo, named).steps["a"]).outputs


@pytest.mark.parametrize(
    ("step", "line", "reason"),
    [
        ("{type: command, component: 'azureml:nobody:1'}", 3, "component-not-local"),
        ("{type: command, component: 'azureml://registries/r/components/c/versions/1'}", 3, "regi"),
        (f"{{{STEP}, code: 'git+https://example.org/x'}}", 3, "remote-code"),
        (
            "{type: spark, code: ./src, entry: {file: file.txt}, environment: azureml:e:1, "
            "compute: azureml:s, conf: {spark.driver.cores: 1, spark.driver.memory: 2g, "
            "spark.executor.cores: 1, spark.executor.memory: 2g, spark.executor.instances: 1}}",
            3,
            "spark",
        ),
    ],
)
def test_what_only_azure_runs_is_in_the_plan(repo: Path, step: str, line: int, reason: str) -> None:
    """The backend decides; this machine refuses it with 33, the line and the reason."""
    job = pipeline(repo, f"type: pipeline\njobs:\n  a: {step}\n  b: {{{STEP}}}\n")
    assert [*job.steps] == ["a", "b"] and reason in str(job.not_here[0])
    assert job.not_here[0].place is not None and job.not_here[0].place.line == line
    assert BACKEND.refusals(job) == job.not_here
    with pytest.raises(UserError) as raised:
        BACKEND.run(job)
    assert raised.value.exit_code == Exit.CANNOT_HONOUR
    assert raised.value.problems == job.not_here


@pytest.mark.parametrize(
    "reference",
    ["azureml:c:3", "azureml:c@latest", "azureml://registries/r/components/c/versions/3"],
)
@pytest.mark.parametrize(
    "step",
    [
        "type: command, component: 'REF'",
        "type: pipeline, component: 'REF'",
        "type: parallel, component: 'REF'",
        "type: sweep, trial: 'REF', search_space: {rounds: {type: choice, values: [1]}}, "
        "sampling_algorithm: random, objective: {goal: maximize, primary_metric: m}, "
        "limits: {max_total_trials: 1}",
    ],
    ids=["command", "pipeline", "parallel", "sweep"],
)
def test_a_registered_component_keeps_its_reference(repo: Path, step: str, reference: str) -> None:
    """With the inputs that the step sets, and the steps that take its outputs."""
    text = (
        f"type: pipeline\njobs:\n  a: {{{step.replace('REF', reference)}, inputs: {{n: 5}}, "
        "outputs: {y: {type: uri_file}}}\n"
        f"  b: {{{STEP}, inputs: {{x: '${{{{parent.jobs.a.outputs.y}}}}'}}}}\n"
    )
    job = pipeline(repo, text)
    plan = job.steps["a"].plan
    assert getattr(plan, "trial", plan).component == reference
    assert plan.inputs["n"].value == 5 and job.steps["b"].sources["x"] == FromStep("a", "y")
    assert [problem.code for problem in job.not_here] == ["component-not-local"]
    assert reference in as_text(job)
    whole = pipeline(repo, f"type: pipeline\ncomponent: {reference}\n")
    assert (whole.component, whole.steps) == (reference, {})


def test_outside_a_repository_a_missing_component_hints_at_one(repo: Path) -> None:
    """Without it only the specs beside the pipeline are looked at."""
    text = "type: pipeline\njobs:\n  a: {type: command, component: 'azureml:nobody:1'}\n"
    assert "touch" not in str(pipeline(repo, text).not_here[0])
    (repo / "pyproject.toml").unlink()
    repository._nearest.cache_clear()
    assert "run `touch pyproject.toml` in it" in str(pipeline(repo, text).not_here[0])


@pytest.mark.parametrize("key", ["on_init", "on_finalize"])
def test_steps_before_or_after_all_others_are_not_run_here(repo: Path, key: str) -> None:
    text = TWO.replace("settings: {", f"settings: {{{key}: last, ")
    assert text != TWO
    (problem,) = pipeline(repo, text).not_here
    assert problem.code == "unsupported-step" and f"{key}: last" in problem.actual
    assert problem.place is not None and problem.place.line == 4


def test_an_unknown_source_is_refused(repo: Path) -> None:
    """Also in the older spelling, which the SDK takes for a literal."""
    for text in ("${{jobs.nobody.outputs.x}}", "${{inputs.nobody}}"):
        error = refused(repo, f"type: pipeline\njobs:\n  a: {{{STEP}, inputs: {{x: '{text}'}}}}\n")
        assert error.exit_code == Exit.WRONG_CALL
        assert "unknown-source" in str(error)


def test_missing_data_names_the_override(repo: Path) -> None:
    """The hint is what to type for that step."""
    inputs = "inputs: {d: {type: uri_folder, path: ./nowhere}}"
    error = refused(repo, f"type: pipeline\njobs:\n  a: {{{STEP}, {inputs}}}\n")
    assert "--set jobs.a.inputs.d=PATH" in str(error)


def test_overrides_reach_steps_and_settings(repo: Path) -> None:
    """`--set` of an input, of a step's input and of a setting."""
    changes = {"inputs__rate": "0.9", "jobs__train__inputs__kind": "plain"}
    job = pipeline(repo, TWO, **changes, settings__force_rerun="false")
    assert job.inputs["rate"].value == 0.9
    assert command(job.steps["train"]).inputs["kind"].value == "plain"
    assert not job.force_rerun


@pytest.mark.parametrize(
    ("text", "source"),
    [
        ("${{parent.inputs.a}}", FromPipeline("a")),
        (" ${{ parent.inputs.a }} ", FromPipeline("a")),
        ("${{parent.inputs.group.a}}", FromPipeline("group.a")),
        ("${{inputs.a}}", FromPipeline("a")),
        ("${{parent.jobs.s.outputs.o}}", FromStep("s", "o")),
        ("${{jobs.s.outputs.o}}", FromStep("s", "o")),
        ("x${{parent.inputs.a}}", None),
        ("${{parent.outputs.a}}", None),
        ("${{search_space.a}}", None),
        ("plain", None),
    ],
)
def test_sources(text: str, source: object) -> None:
    """A text is a binding only when it is one reference and nothing else."""
    assert source_of(text) == source


def test_a_plan_can_be_printed(repo: Path, snapshot: SnapshotAssertion) -> None:
    """As text with every step and what it waits for; as JSON with the kinds."""
    job = pipeline(repo, TWO)
    assert as_text(job) == snapshot
    data = json.loads(json.dumps(as_json(job)))
    assert data["kind"] == "pipeline"
    assert data["steps"]["train"]["plan"]["kind"] == "command"
    assert data["steps"]["last"]["sources"]["model"] == {
        "kind": "output",
        "step": "train",
        "output": "model",
    }


AROUND = """\
type: pipeline
jobs:
  outer:
    type: pipeline
    component: ./nested.yml
    compute: azureml:c
"""
DEEP = """\
type: pipeline
name: nested
jobs:
  first:
    type: command
    component: ./component.yml
    compute: azureml:c
    inputs: {{data: {{path: ./data}}, rate: 0.5}}
  second:
    type: command
    command: cat ${{{{inputs.i}}}}
    environment: azureml:e:1
    compute: azureml:c
    inputs: {{i: "{binding}"}}
"""


@pytest.mark.parametrize(
    ("binding", "code"),
    [
        ("${{parent.jobs.first.outputs.model}}", None),
        ("${{parent.jobs.none.outputs.model}}", "unknown-step"),
        ("${{parent.jobs.first.outputs.none}}", "unknown-output"),
        ("${{parent.inputs.none}}", "unknown-parent"),
    ],
)
def test_the_steps_of_a_nested_pipeline_are_checked(
    repo: Path, binding: str, code: str | None
) -> None:
    """At the line of the component's file; once, however many steps run it."""
    (repo / "nested.yml").write_text(DEEP.format(binding=binding))
    again = AROUND.partition("jobs:\n")[2].replace("outer", "again")
    (repo / "job.yml").write_text(AROUND + again)
    problems = [(item.code, str(item.place)) for item in check(load(Path("job.yml")))]
    # The SDK says of some that the component is wrong, and not where.
    expected = [(code, "nested.yml:14")] if code else []
    assert [
        item for item in problems if item[1] != "job.yml:5" and item[1] != "job.yml:9"
    ] == expected


def test_a_component_written_in_place_is_checked(repo: Path) -> None:
    """Its lines are those of the pipeline's own file."""
    inner = DEEP.format(binding="${{parent.jobs.none.outputs.o}}")
    written = "component:\n" + textwrap.indent(inner, "      ").rstrip()
    (repo / "job.yml").write_text(AROUND.replace("component: ./nested.yml", written))
    problems = {(item.code, str(item.place)) for item in check(load(Path("job.yml")))}
    assert ("unknown-step", "job.yml:19") in problems


def test_a_pipeline_that_contains_itself_ends(repo: Path) -> None:
    """The check follows it once; the planner refuses it."""
    (repo / "nested.yml").write_text(
        "type: pipeline\nname: nested\njobs:\n  a:\n    type: pipeline\n"
        "    component: ./nested.yml\n    compute: azureml:c\n"
    )
    (repo / "job.yml").write_text(AROUND)
    assert all(problem.code != "unknown-step" for problem in check(load(Path("job.yml"))))
