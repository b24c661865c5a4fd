"""Pipelines: what flows between steps, what goes on at once, what a failure stops."""

from __future__ import annotations

from pathlib import Path

import pytest
from mlflow.tracking import MlflowClient

from ml.backends.local.backend import LocalBackend
from ml.backends.local.runs.store import LocalRuns
from ml.backends.runs import Event
from ml.core.errors import UserError
from ml.core.home import tracking_uri
from tests.backends.conftest import LOG
from tests.backends.pipelines import RunPipeline, planned, statuses, write
from tests.backends.pipelines import repository as repository
from tests.backends.pipelines import run_pipeline as run_pipeline

# Each branch waits until the other has begun: they complete only when they run at once.
DIAMOND = """
outputs: {all: {type: uri_folder}}
jobs:
  bottom:
    @@
    command: cat ${{inputs.l}}/t ${{inputs.r}}/t > ${{outputs.o}}/t
    inputs: {l: "${{parent.jobs.left.outputs.o}}", r: "${{parent.jobs.right.outputs.o}}"}
    outputs: {o: "${{parent.outputs.all}}"}
  left:
    @@
    command: "touch HERE/l; for i in $(seq 600); do test -e HERE/r && break; sleep 0.1; done;
      test -e HERE/r && sed s/hello/left/ ${{inputs.x}}/t > ${{outputs.o}}/t"
    inputs: {x: "${{parent.jobs.top.outputs.o}}"}
    outputs: {o: {type: uri_folder}}
  right:
    @@
    command: "touch HERE/r; for i in $(seq 600); do test -e HERE/l && break; sleep 0.1; done;
      test -e HERE/l && sed s/hello/right/ ${{inputs.x}}/t > ${{outputs.o}}/t"
    inputs: {x: "${{parent.jobs.top.outputs.o}}"}
    outputs: {o: {type: uri_folder}}
  top: {@, command: "echo ${{inputs.word}} > ${{outputs.o}}/t",
    inputs: {word: hello}, outputs: {o: {type: uri_folder}}}
""".replace("@@", "type: command\n    environment: azureml:e:1")
# `a` fails; `b` needs it, `d` needs `b`, and `c` needs nobody but comes after `a` has failed.
FAILING = """
SETTINGS
jobs:
  a: {@, command: exit 3, outputs: {o: {type: uri_folder}}}
  b: {@, command: echo, inputs: {x: "${{parent.jobs.a.outputs.o}}"}, outputs: {o: null}}
  c: {@, command: "touch ${{outputs.o}}/t", outputs: {o: {type: uri_folder}}}
  d: {@, command: echo, inputs: {x: "${{parent.jobs.b.outputs.o}}"}}
"""


@pytest.fixture
def client(home: Path) -> MlflowClient:
    """The store that the steps report to."""
    return MlflowClient(tracking_uri())


@pytest.fixture(autouse=True)
def two_cores(monkeypatch: pytest.MonkeyPatch) -> None:
    """On a machine of any size."""
    monkeypatch.setattr("ml.backends.local.backend.cores", lambda: 2)


def test_branches_run_at_once(
    run_pipeline: RunPipeline, repository: Path, client: MlflowClient
) -> None:
    """A diamond: both branches between one top and one bottom, each a child run of the pipeline.

    Each is found by its name and id; the run of every event has what has begun.
    """
    told: list[Event] = []
    run = run_pipeline(DIAMOND.replace("HERE", str(repository)), told.append)
    assert run.status == "Completed", run.error
    assert (run.outputs["all"] / "t").read_text() == "left\nright\n"
    assert [one.name.rpartition(".")[2] for one in run.steps][0::3] == ["top", "bottom"]
    assert client.get_run(run.id).info.status == "FINISHED"
    for one in run.steps:
        tracked = client.get_run(one.id)
        assert tracked.info.status == "FINISHED"
        assert tracked.data.tags["mlflow.parentRunId"] == run.id
        assert one.folder.parent == run.folder / "steps"
        assert LocalRuns().find(one.id) == LocalRuns().find(one.name) == one
    assert run.step("top").parameters == {"word": "hello"}
    assert LocalRuns().find(run.name) == run
    with pytest.raises(KeyError):
        run.step("nobody")
    assert (told[0].kind, told[-1].kind) == ("started", "ended")
    assert told[-1].run == run
    for kind in ("step_started", "step_ended"):
        assert sum(event.kind == kind for event in told) == 4
    assert all(e.step in e.run.steps for e in told if e.kind.startswith("step"))


@pytest.mark.parametrize("settings", ["", "settings: {continue_on_step_failure: true}"])
def test_a_failure_stops_what_needs_it(
    run_pipeline: RunPipeline, client: MlflowClient, settings: str
) -> None:
    """Other branches go on, which is Azure ML's default too."""
    run = run_pipeline(FAILING.replace("SETTINGS", settings))
    expected = {"a": "Failed", "b": "not-started", "c": "Completed", "d": "not-started"}
    assert (statuses(run), run.status) == (expected, "Failed")
    assert run.error is not None
    assert run.error.code == "step-failed"
    assert "step `a` failed; 2 not started" in run.error.actual
    assert "exited with 3" in run.error.actual
    assert str(run.error.place) == "pipeline.yml:6"
    assert client.get_run(run.id).info.status == "FAILED"


def test_a_failure_may_stop_everything(
    run_pipeline: RunPipeline, client: MlflowClient, repository: Path
) -> None:
    """continue_on_step_failure: false ends what runs and starts nothing more."""
    text = """
settings: {continue_on_step_failure: false}
jobs:
  a: {@, command: "while ! test -e HERE/ready; do sleep 0.05; done; exit 3"}
  b: {@, command: "touch HERE/ready; sleep 600", outputs: {o: null}}
  c: {@, command: echo}
  d: {@, command: echo, inputs: {x: "${{parent.jobs.b.outputs.o}}"}}
"""
    run = run_pipeline(text.replace("HERE", str(repository)))
    expected = {"a": "Failed", "b": "step_failed", "c": "not-started", "d": "not-started"}
    assert (statuses(run), run.status) == (expected, "Failed")
    assert client.get_run(run.step("b").id).info.status == "KILLED"
    assert run.error is not None
    assert "step `a` failed" in run.error.actual


def test_a_step_that_takes_too_long(run_pipeline: RunPipeline) -> None:
    """Its own limit ends it, and the pipeline with it."""
    run = run_pipeline("jobs:\n  a: {@, command: sleep 600, limits: {timeout: 1}}\n")
    assert (statuses(run), run.status) == ({"a": "timeout"}, "Failed")
    assert run.error is not None
    assert "limits.timeout" in run.error.actual


def test_values_reach_commands_and_variables(run_pipeline: RunPipeline) -> None:
    """Literals of the pipeline, inside longer texts too; an optional input that is not given."""
    text = """
inputs: {word: hello, n: 3}
jobs:
  a:
    type: command
    component:
      type: command
      environment: azureml:e:1
      command: >-
        echo ${{inputs.n}} ${{inputs.text}} ${{inputs.on_}}$[[ --note ${{inputs.note}}]] $GREETING
        > ${{outputs.o}}
      environment_variables: {GREETING: nobody}
      inputs: {n: {type: integer}, text: {type: string}, on_: {type: boolean, default: true},
        note: {type: string, optional: true}}
      outputs: {o: {type: uri_file}}
    environment_variables: {GREETING: "${{parent.inputs.word}}-${{parent.inputs.n}}"}
    inputs: {n: "${{parent.inputs.n}}", text: "a-${{parent.inputs.word}}"}
"""
    run = run_pipeline(text)
    assert run.status == "Completed", run.error
    assert run.step("a").outputs["o"].read_text() == "3 a-hello True hello-3\n"
    assert run.parameters == {"word": "hello", "n": 3}


def test_a_value_that_is_a_command_is_refused(run_pipeline: RunPipeline) -> None:
    """A value that a binding brings is judged as a written one is; nothing is run."""
    text = """
inputs: {word: "a; touch owned"}
jobs:
  a: {@, command: "echo ${{inputs.x}}", inputs: {x: "a ${{parent.inputs.word}}"}}
  b: {@, command: echo}
"""
    with pytest.raises(UserError) as refused:
        run_pipeline(text)
    assert {problem.code for problem in refused.value.problems} == {"shell-metacharacter"}


def test_the_implicit_output(run_pipeline: RunPipeline) -> None:
    """What a step leaves in ./outputs reaches the step that asks for `default`."""
    text = """
jobs:
  a: {@, command: "echo kept > ./outputs/t", outputs: {default: null}}
  b: {@, command: "cat ${{inputs.x}}/outputs/t > ${{outputs.o}}",
    inputs: {x: "${{parent.jobs.a.outputs.default}}"}, outputs: {o: {type: uri_file}}}
"""
    for expected in ("Completed", "reused"):
        run = run_pipeline(text)
        assert statuses(run) == {"a": expected, "b": expected}
        assert run.step("b").outputs["o"].read_text() == "kept\n"


def test_a_step_may_change_its_copy_alone(run_pipeline: RunPipeline) -> None:
    """`mode: download` of another step's output leaves that output as it was."""
    text = """
jobs:
  a: {@, command: "echo one > ${{outputs.o}}/t", outputs: {o: {type: uri_folder}}}
  b: {@, command: "echo two > ${{inputs.x}}/t && cp ${{inputs.x}}/t ${{outputs.o}}",
    inputs: {x: {path: "${{parent.jobs.a.outputs.o}}", mode: download}},
    outputs: {o: {type: uri_file}}}
"""
    run = run_pipeline(text)
    assert run.step("b").outputs["o"].read_text() == "two\n"
    assert (run.step("a").outputs["o"] / "t").read_text() == "one\n"


INNER = """
inputs: {word: {type: string, default: none}, data: {type: uri_folder}}
outputs: {said: {type: uri_file}}
jobs:
  one: {@, command: "cat ${{inputs.d}}/t > ${{outputs.o}} && echo ${{inputs.w}} >> ${{outputs.o}}",
    inputs: {w: "${{parent.inputs.word}}", d: "${{parent.inputs.data}}"},
    outputs: {o: {type: uri_file}}}
  two: {@, command: "cat ${{inputs.x}} > ${{outputs.o}}",
    inputs: {x: "${{parent.jobs.one.outputs.o}}"}, outputs: {o: "${{parent.outputs.said}}"}}
"""
OUTER = """
outputs: {all: {type: uri_file}}
jobs:
  data: {@, command: "echo data > ${{outputs.o}}/t", outputs: {o: {type: uri_folder}}}
  first:
    type: pipeline
    component: ./inner.yml
    inputs: {word: hello, data: "${{parent.jobs.data.outputs.o}}"}
  second:
    type: pipeline
    component: ./inner.yml
    inputs: {data: "${{parent.jobs.data.outputs.o}}"}
  join: {@, command: "cat ${{inputs.a}} ${{inputs.b}} > ${{outputs.o}}",
    inputs: {a: "${{parent.jobs.first.outputs.said}}", b: "${{parent.jobs.second.outputs.said}}"},
    outputs: {o: "${{parent.outputs.all}}"}}
"""


def test_pipelines_in_pipelines(
    run_pipeline: RunPipeline, repository: Path, client: MlflowClient
) -> None:
    """Two runs of one component, side by side; every run below knows its parent."""
    inner = write(repository, INNER, "inner.yml")
    inner.write_text(inner.read_text().replace("experiment_name: tests", 'name: i\nversion: "1"'))
    run = run_pipeline(OUTER)
    assert run.status == "Completed", run.error
    assert run.outputs["all"].read_text() == "data\nhello\ndata\nnone\n"
    first = run.step("first")
    assert client.get_run(first.step("two").id).data.tags["mlflow.parentRunId"] == first.id
    assert client.get_run(first.id).data.tags["mlflow.parentRunId"] == run.id
    assert first.step("one").folder == run.folder / "steps" / "first" / "steps" / "one"
    assert len(list(run.below())) == 8
    assert LocalRuns().find(f"{run.name}.first.two") == first.step("two")
    again = run_pipeline(OUTER)
    assert statuses(again.step("first")) == {"one": "reused", "two": "reused"}
    assert again.outputs["all"].read_text() == run.outputs["all"].read_text()


SWEPT = """
outputs: {best: {type: uri_file}}
jobs:
  sweep:
    type: sweep
    trial:
      type: command
      environment: azureml:e:1
      code: ./code
      command: python script.py ${{inputs.x}} ${{outputs.o}}
      inputs: {x: {type: number, default: 0}}
      outputs: {o: {type: uri_file}}
    sampling_algorithm: {type: random, seed: 1}
    search_space: {x: {type: choice, values: [1, 2]}}
    objective: {goal: maximize, primary_metric: score}
    limits: {max_total_trials: 2, max_concurrent_trials: 2}
    outputs: {o: "${{parent.outputs.best}}"}
  use: {@, command: "cat ${{inputs.b}}", inputs: {b: "${{parent.jobs.sweep.outputs.o}}"}}
"""


def test_a_sweep_among_steps(
    run_pipeline: RunPipeline, repository: Path, client: MlflowClient
) -> None:
    """Its best trial's output goes on; its trials are told to the watcher, with their step."""
    (repository / "code").mkdir()
    script = LOG + "log('score', float(sys.argv[1])); Path(sys.argv[2]).write_text(sys.argv[1])"
    (repository / "code" / "script.py").write_text(script)
    told: list[Event] = []
    run = run_pipeline(SWEPT, told.append)
    assert run.status == "Completed", run.error
    sweep = run.step("sweep")
    assert [trial.name for trial in sweep.trials] == [f"{sweep.name}_0", f"{sweep.name}_1"]
    best = sweep.trial(sweep.best or "")
    assert float(run.outputs["best"].read_text()) == best.metrics["score"] == sweep.metrics["score"]
    assert client.get_run(best.id).data.tags["mlflow.parentRunId"] == sweep.id
    log = (run.step("use").folder / "logs" / "std_log.txt").read_text()
    assert float(log) == best.metrics["score"]
    ended = [event for event in told if event.kind == "trial_ended"]
    assert len(ended) == 2
    assert all(e.step and e.step.name == sweep.name and e.run.id == run.id for e in ended)
    assert LocalRuns().find(best.name).id == best.id
    again = run_pipeline(SWEPT)
    assert statuses(again) == {"sweep": "reused", "use": "reused"}
    assert again.step("sweep").metrics == sweep.metrics
    assert client.get_run(again.step("sweep").id).data.metrics == sweep.metrics


@pytest.mark.parametrize("is_nested", [False, True])
def test_a_sweep_takes_the_cores_of_a_step_that_ended(
    run_pipeline: RunPipeline, repository: Path, is_nested: bool
) -> None:
    """It began with one of two cores, beside another step: each trial waits for the other."""
    (repository / "code").mkdir()
    met = f"Path({str(repository)!r}, 'met')"
    script = f"""{LOG}
{met}.open("a").write("here\\n")
until = time.monotonic() + 60
while time.monotonic() < until and len({met}.read_text().splitlines()) < 2:
    time.sleep(0.02)
log("score", len({met}.read_text().splitlines()))
Path(sys.argv[2]).write_text("")
"""
    (repository / "code" / "script.py").write_text(script)
    text = SWEPT
    if is_nested:
        write(repository, SWEPT, "inner.yml")
        text = "jobs:\n  inner: {type: pipeline, component: ./inner.yml}\n"
    run = run_pipeline(f"{text}  beside: {{@, command: sleep 0.1}}\n")
    assert run.status == "Completed", run.error
    sweep = run.step("inner").step("sweep") if is_nested else run.step("sweep")
    assert [trial.metrics["score"] for trial in sweep.trials] == [2, 2]


def test_what_a_step_asks_for_that_is_not_here(repository: Path) -> None:
    """Refusals name the field of the step; data that a binding brings is none of them."""
    text = """
inputs: {far: {type: uri_file, path: "https://example.org/x.csv"}}
jobs:
  a: {@, command: echo, inputs: {x: {type: uri_folder, path: "azureml://datastores/d/paths/p"}}}
  b: {@, command: echo, inputs: {x: "${{parent.inputs.far}}"}}
"""
    found = LocalBackend().refusals(planned(repository, text))
    assert [problem.code for problem in found] == ["data-not-local", "data-not-local"]
    assert "--set inputs.far=PATH" in found[0].hint
    assert "--set jobs.a.inputs.x=PATH" in found[1].hint
    assert all(problem.place and problem.place.path == "pipeline.yml" for problem in found)
