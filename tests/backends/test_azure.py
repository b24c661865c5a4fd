"""`--on azure`: what the contract does not say. The unmodified SDK against the stand-in."""

from __future__ import annotations

import os
import random
import re
import shutil
import subprocess
import threading
import time
from pathlib import Path
from typing import Any

import pytest
from azure.ai.ml import load_component
from azure.ai.ml.operations._job_ops_helper import get_git_properties

from ml.backends.azure import submission
from ml.backends.azure.backend import AzureBackend
from ml.backends.azure.errors import explain_job, log
from ml.backends.azure.workspace import VARIABLES, Workspace, configured
from ml.backends.base import Options
from ml.backends.runs import Filter
from ml.core.errors import Exit, UserError
from ml.specs.plan import planning
from ml.specs.plan.plans import Plan
from ml.specs.sdk import load
from tests.release.test_commands import ml
from tests.stand_ins.azure import bodies
from tests.stand_ins.azure.running import StandIn
from tests.test_fork import GIT


def planned(spec: Path, **changes: str) -> Plan:
    return planning.plan(
        load.load(spec, {f"inputs.{name}": text for name, text in changes.items()})
    )


def _submitted(requests: list[str]) -> list[str]:
    """The names of the jobs that were sent, one for each time."""
    return [line.rpartition("/")[2] for line in requests if re.match(r"PUT .*/jobs/[^/]+$", line)]


def test_the_name_of_a_job_is_the_same_wherever_its_data_lie(spec: Path, tmp_path: Path) -> None:
    """Another machine finds the job; other content is another job."""
    spec.write_text(spec.read_text().replace("word: hello", "word: {type: uri_file, path: x.txt}"))
    names = []
    for folder, text in (("here", "one"), ("there", "one"), ("here", "two")):
        (tmp_path / folder).mkdir(exist_ok=True)
        (tmp_path / folder / "x.txt").write_text(text)
        names.append(submission.prepare(planned(spec, word=f"{tmp_path}/{folder}/x.txt")).name)
    assert names[0] == names[1] != names[2]


@pytest.mark.attack("A spec, or the folder that somebody types in, says of which commit a job is")
def test_the_commit_of_a_job_is_that_of_its_spec(
    spec: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Asked of the repository of the spec; azure-ai-ml sees none, whose settings may run."""

    def git(folder: Path, *words: str) -> str:
        done = subprocess.run([*GIT, *words], cwd=folder, check=True, capture_output=True)
        return done.stdout.decode().strip()

    inner, pwned = tmp_path / "inner", tmp_path / "pwned"
    shutil.copytree(tmp_path / "code", inner / "code")
    spec = Path(shutil.move(spec, inner))
    for folder in (tmp_path, inner):
        git(folder, "init", "-q", "-b", folder.name)
        git(folder, "commit", "-q", "--allow-empty", "-m", folder.name)
    git(inner, "config", "core.fsmonitor", f"touch {pwned}")
    git(inner, "config", "core.worktree", ".")
    shutil.copytree(inner / ".git", inner, dirs_exist_ok=True)
    shutil.rmtree(inner / ".git")
    monkeypatch.chdir(inner)
    spec.write_text(f"{spec.read_text()}properties: {{mlflow.source.git.commit: forged}}\n")
    properties = submission.prepare(planned(spec)).job.properties
    assert properties["mlflow.source.git.commit"] == git(tmp_path, "rev-parse", "HEAD")
    assert properties["mlflow.source.git.branch"] == tmp_path.name
    assert properties["azureml.git.dirty"] == "True"
    with submission.no_repository():
        assert get_git_properties() == {} and not pwned.exists()
    get_git_properties()
    assert pwned.exists()  # the same without it


@pytest.mark.slow
def test_a_commit_and_a_spec_run_once(
    workspace: StandIn, spec: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Again they are the same job, in another process too; `again` and a change are another.

    Of a spec that is in no repository only azure-ai-ml starts git, which sees none.
    """
    program, calls = tmp_path / "programs/git", tmp_path / "calls"
    program.parent.mkdir()
    program.write_text(f'#!/bin/sh\necho "$@" >> {calls}\nexec {shutil.which("git")} "$@"\n')
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{program.parent}:{os.environ['PATH']}")
    said: list[str] = []
    first = AzureBackend().run(planned(spec))
    assert calls.read_text().splitlines() == ["rev-parse --is-inside-work-tree"]
    assert _submitted(workspace.requests()) == [first.name]
    same = AzureBackend(Options(say=said.append)).run(planned(spec))
    assert (same.name, same.status) == (first.name, "Completed")
    assert _submitted(workspace.requests()) == []
    assert any("--again" in line for line in said)
    other = AzureBackend(Options(again=True)).run(planned(spec))
    changed = AzureBackend().run(planned(spec, word="bye"))
    assert other.name == f"{first.name}-2"
    assert changed.name not in (first.name, other.name)
    assert (changed.outputs["model"] / "model.txt").read_text() == "bye"
    script = spec.parent / "code" / "say.py"
    script.write_text(f"{script.read_text()}print('more')\n")
    assert AzureBackend().run(planned(spec)).name not in (first.name, other.name, changed.name)


@pytest.mark.slow
@pytest.mark.parametrize(
    "fault",
    [
        {"pattern": "PUT .*/jobs/", "drop_after": True},
        {"pattern": "PUT .*/jobs/", "drop": True, "times": 2},
        {"pattern": "PUT .*/jobs/", "status": 500, "times": 2},
        {"pattern": "GET .*/details", "drop": True, "times": 6},
        {"pattern": "GET .*/details", "status": 500, "times": 5},
        {
            "pattern": "GET .*(/details|/jobs/)",
            "status": 429,
            "headers": {"Retry-After": "1"},
            "times": 2,
        },
        {"pattern": "GET /logs/", "drop": True, "times": 2},
    ],
    ids=["answer-lost", "dropped", "server-error", "following", "status", "throttled", "log"],
)
def test_a_fault_on_the_way_changes_nothing(
    workspace: StandIn, spec: Path, fault: dict[str, object]
) -> None:
    """The run ends as it would have, and one job was made."""
    workspace.fail(fault)
    said: list[str] = []
    run = AzureBackend(Options(say=said.append)).run(planned(spec))
    workspace.fail()
    assert run.status == "Completed"
    # The clients' own retries are silent; what outlasts them is told once.
    outlasted = sum("retrying to follow" in line for line in said)
    assert outlasted == (fault["pattern"] == "GET .*/details")
    assert (run.outputs["model"] / "model.txt").read_text() == "hello"
    assert [entry.run.name for entry in AzureBackend().runs.entries()] == [run.name]
    assert (run.folder / "logs" / "std_log.txt").read_text() == "the word is hello\n"


# What passes by itself, and what each is here: lost before and after the work, refused, slow.
PASSING: tuple[dict[str, Any], ...] = (
    {"drop": True},
    {"drop_after": True},
    {"status": 500},
    {"status": 503},
    {"status": 429, "headers": {"Retry-After": "1"}},
    {"slow_s": 0.3},
)


@pytest.mark.slow
@pytest.mark.parametrize(
    "count",
    [6, pytest.param(50, marks=pytest.mark.torture(only=True))],
)
def test_a_run_is_followed_through_faults(
    workspace: StandIn, spec: Path, tmp_path: Path, count: int
) -> None:
    """Submitting is done again until it succeeds, as a person would; there is one job in the end.

    The job goes on until the last fault has come.
    """
    end, draw = tmp_path / "end", random.Random(count)
    script = spec.parent / "code" / "say.py"
    wait = f"while not os.path.exists({str(end)!r}): time.sleep(0.1)"
    script.write_text(f"import os, time\n{wait}\n{script.read_text()}")
    faults = [dict(PASSING[number % len(PASSING)]) for number in range(count)]
    draw.shuffle(faults)
    workspace.fail(
        *({"pattern": "workspaces", "after": draw.randint(0, 3), **fault} for fault in faults)
    )

    def wait_for_the_last() -> None:
        while workspace.faults_left():
            time.sleep(0.1)
        end.touch()

    waiting = threading.Thread(target=wait_for_the_last, daemon=True)
    waiting.start()
    plan, run = planned(spec), None
    while run is None:
        try:
            run = AzureBackend().run(plan)
        except UserError as refused:
            assert refused.exit_code == Exit.RUN_FAILED
    waiting.join()
    assert (run.status, run.error) == ("Completed", None)
    assert [entry.run.name for entry in AzureBackend().runs.entries()] == [run.name]
    assert (run.outputs["model"] / "model.txt").read_text() == "hello"
    assert (run.folder / "logs" / "std_log.txt").read_text() == "the word is hello\n"


@pytest.mark.slow
@pytest.mark.parametrize(
    ("fault", "code", "exit_code"),
    [
        ({"pattern": "workspaces", "status": 401}, "not-signed-in", Exit.WRONG_CALL),
        (
            {"pattern": "workspaces", "status": 403, "code": "AuthorizationFailed"},
            "no-permission",
            Exit.WRONG_CALL,
        ),
        (
            {"pattern": "PUT .*/jobs/", "status": 400, "code": "QuotaExceeded"},
            "quota",
            Exit.WRONG_CALL,
        ),
    ],
)
def test_a_refusal_names_what_mends_it(
    workspace: StandIn, spec: Path, fault: dict[str, object], code: str, exit_code: Exit
) -> None:
    """One problem with a command to type; Azure's own answer is in the log."""
    workspace.fail({**fault, "times": 99})
    with pytest.raises(UserError) as refused:
        AzureBackend().run(planned(spec))
    workspace.fail()
    (problem,) = refused.value.problems
    assert (problem.code, refused.value.exit_code) == (code, exit_code)
    assert problem.hint
    assert "a fault that was asked for" in log().read_text()


@pytest.mark.slow
@pytest.mark.parametrize(
    ("change", "code"),
    [
        ({"environment": "azureml:ml-cpu:7"}, "no-asset"),
        ({"compute": "azureml:no-such-cluster"}, "no-compute"),
    ],
)
def test_what_a_spec_names_must_be_there(
    workspace: StandIn, spec: Path, change: dict[str, str], code: str
) -> None:
    """An environment or a cluster that the workspace lacks: exit 2, and no job."""
    with pytest.raises(UserError) as refused:
        AzureBackend().run(planning.plan(load.load(spec, change)))
    assert [problem.code for problem in refused.value.problems] == [code]
    assert refused.value.exit_code == Exit.WRONG_CALL
    assert AzureBackend().runs.entries() == []


@pytest.mark.slow
def test_a_dry_run_sends_nothing(workspace: StandIn, spec: Path) -> None:
    """It prints the upload and the body of the job, with the name that the job would have."""
    text = "\n".join(AzureBackend().requests(planned(spec)))
    assert workspace.requests() == []
    assert '"command": "python say.py ${{inputs.word}} ${{outputs.model}}"' in text
    assert "upload " in text
    run = AzureBackend().run(planned(spec))
    assert f"/jobs/{run.name}" in text


@pytest.mark.slow
def test_the_bare_sdk_works(
    workspace: StandIn, spec: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The stand-in answers azure-ai-ml itself: submit, stream, download, list."""
    from azure.ai.ml import load_job

    client = configured().client
    job = load_job(spec)
    job.name = "bare"
    client.jobs.create_or_update(job)
    client.jobs.stream("bare")
    assert "the word is hello" in capsys.readouterr().out
    client.jobs.download("bare", download_path=tmp_path / "here", output_name="model")
    assert (tmp_path / "here" / "named-outputs" / "model" / "model.txt").read_text() == "hello"
    assert [(each.name, each.status) for each in client.jobs.list()] == [("bare", "Completed")]


@pytest.mark.slow
def test_a_thousand_jobs_are_listed_by_page(workspace: StandIn, spec: Path) -> None:
    """As many requests as there are pages: none for a job."""
    run = AzureBackend().run(planned(spec))
    workspace.copy(run.name, 999)
    workspace.requests()
    entries = AzureBackend().runs.entries()
    requests = [line for line in workspace.requests() if "/metadata/" not in line]
    assert len(entries) == 1000
    assert len(Filter(experiment="words", statuses=("Completed",)).apply(entries)) == 1000
    # Ten pages of jobs and one of runs; the workspace and the experiment.
    assert len(requests) <= 14, requests


@pytest.mark.slow
def test_a_list_asks_for_what_it_shows(
    workspace: StandIn, spec: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The first page of jobs and one of runs; and durations beyond the first page of runs."""
    run = AzureBackend().run(planned(spec))
    workspace.copy(run.name, 1100)

    def asked() -> list[str]:
        lines = [line for line in workspace.requests() if "/metadata/" not in line]
        return [line for line in lines if re.search(r"GET .*/jobs\b|/runs/search$", line)]

    asked()
    code, out, err = ml(capsys, "runs", "list", "--on", "azure", "--limit", "5")
    assert (code, out.count("Completed")) == (0, 5) and "the 5 latest runs" in err
    assert len(asked()) <= 3
    assert AzureBackend().runs.find("latest").name == f"{run.name}-copy-1099"
    assert len(asked()) <= 3
    entries = AzureBackend().runs.entries()
    assert len(entries) == 1101
    for entry in entries:
        assert entry.run.active_s == pytest.approx(run.active_s, abs=0.01)


@pytest.mark.slow
def test_a_run_is_opened(
    workspace: StandIn, spec: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The studio's page, and each service of the spec with its URL or the command that connects."""
    services = "services: {lab: {type: jupyter_lab}, shell: {type: ssh}}\n"
    spec.write_text(spec.read_text() + services)
    run = AzureBackend().run(planned(spec))
    code, out, err = ml(capsys, "runs", "open", run.name, "--print", "--on", "azure")
    assert code == 0 and f"ml report {run.name} --on azure" in err
    studio, lab, shell = (line.split(maxsplit=1) for line in out.splitlines())
    assert studio[0] == "studio" and studio[1].startswith("https://ml.azure.com/runs/" + run.name)
    assert lab == ["lab", "https://lab-0.example.org  (JupyterLab, Running)"]
    assert shell[1].startswith(f"az ml job connect-ssh --name {run.name} --node-index 0 ")
    workspace.fail({"pattern": "/serviceinstances/", "status": 404})
    assert AzureBackend().runs.services(run) == ()
    workspace.fail({"pattern": "/serviceinstances/", "status": 403})
    with pytest.raises(UserError):
        AzureBackend().runs.services(run)
    workspace.fail()


@pytest.mark.slow
def test_assets_are_registered_once(workspace: StandIn, tmp_path: Path) -> None:
    """A missing one is registered; the same content is unchanged; other content is told."""
    (tmp_path / "words").mkdir()
    (tmp_path / "words" / "a.txt").write_text("a")
    (tmp_path / "data.yml").write_text(
        "$schema: https://azuremlschemas.azureedge.net/latest/data.schema.json\n"
        "type: uri_folder\nname: words\nversion: 3\npath: words\n"
    )
    store = AzureBackend().assets
    (state,) = store.compare(tmp_path)
    assert (str(state), state.status) == ("azureml:words:3", "missing")
    store.create(state)
    assert [each.status for each in store.compare(tmp_path)] == ["unchanged"]
    (tmp_path / "words" / "a.txt").write_text("b")
    assert [each.status for each in store.compare(tmp_path)] == ["changed"]


@pytest.mark.parametrize("name", VARIABLES)
def test_a_missing_setting_is_named(name: str) -> None:
    """Each variable with the command that prints its value."""
    values = dict.fromkeys(VARIABLES, "x")
    assert configured(values).name == "x"
    del values[name]
    with pytest.raises(UserError) as refused:
        configured(values)
    (problem,) = refused.value.problems
    assert name in problem.actual
    assert problem.hint == f'export {name}="$({VARIABLES[name]} -o tsv)"'


@pytest.mark.parametrize(
    ("message", "code"),
    [
        ("Image build failed. For more information, check log x.txt", "image-build-failed"),
        ("… error code ScriptExecution.StreamAccess.Authentication", "no-data-access"),
        ("AuthorizationPermissionMismatch: This request is not authorized", "no-data-access"),
        ("The total regional cores quota of 100 is exceeded", "quota"),
        ("(SkuNotAvailable) The size is not available in westeurope", "no-size-in-region"),
        ("The node was lost.", None),
        ("User process 'python' exited with status code 1", None),
    ],
)
def test_what_a_job_failed_of_is_known(message: str, code: str | None) -> None:
    """Azure's reasons for a failed job are the same errors; a script's own are not among them."""
    problem = explain_job(message)
    assert (problem.code if problem else None) == code
    assert problem is None or (problem.hint and message in problem.actual)


@pytest.mark.slow
def test_an_image_that_cannot_be_built(workspace: StandIn, spec: Path) -> None:
    """The build's log is shown while it is written; its end is in the error, with the line."""
    from io import StringIO

    from azure.ai.ml.entities import Environment

    for version, package in (("2", "numpy"), ("3", "no-such-package")):
        conda = {"name": "e", "dependencies": ["python=3.11", {"pip": [package]}]}
        environment = Environment(
            name="ml-cpu", version=version, image="mcr.microsoft.com/x", conda_file=conda
        )
        configured().client.environments.create_or_update(environment)
    echo = StringIO()
    good = load.load(spec, {"environment": "azureml:ml-cpu:2"})
    run = AzureBackend(Options(echo=echo)).run(planning.plan(good))
    assert run.status == "Completed" and "Collecting numpy" in echo.getvalue()
    bad = load.load(spec, {"environment": "azureml:ml-cpu:3"})
    run = AzureBackend().run(planning.plan(bad))
    assert run.status == "Failed" and run.error is not None
    assert run.error.code == "image-build-failed"
    assert "No matching distribution found for no-such-package" in run.error.actual
    assert run.error.place is not None and run.error.place.line == bad.place("environment").line


def test_data_that_a_component_supplies(
    spec: Path, home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A job's name depends on its content, also where the pipeline's file does not name it."""
    folder = spec.parent
    (folder / "pyproject.toml").touch()
    monkeypatch.chdir(folder)
    (folder / "words").mkdir()
    (folder / "component.yml").write_text(
        "type: pipeline\nname: c\nversion: '1'\njobs:\n  list:\n"
        "    command: ls ${{inputs.words}}\n    environment: azureml:ml-cpu:1\n"
        "    inputs: {words: {type: uri_folder, path: ./words}}\n"
    )
    (folder / "pipeline.yml").write_text(
        "type: pipeline\nsettings: {default_compute: azureml:cpu-cluster}\n"
        "jobs: {only: {type: pipeline, component: ./component.yml}}\n"
    )
    names = []
    for text in ("a", "b", "b"):
        (folder / "words" / "a.txt").write_text(text)
        names.append(submission.prepare(planned(folder / "pipeline.yml")).name)
    assert names[0] != names[1] == names[2]


@pytest.mark.slow
def test_a_registered_component_runs(spec: Path, workspace: StandIn) -> None:
    """It is submitted by its reference, as the spec has it."""
    folder = spec.parent
    (folder / "component.yml").write_text(
        "name: teams_scorer\nversion: '3'\ntype: command\ncommand: echo ${{inputs.rows}} rows\n"
        "environment: azureml:ml-cpu:1\ninputs: {rows: {type: integer}}\n"
    )
    components = configured().client.components
    components.create_or_update(load_component(folder / "component.yml"))
    (folder / "component.yml").unlink()
    backend, logs = AzureBackend(), []
    for rows, reference in enumerate(("teams_scorer:3", "teams_scorer@latest")):
        (folder / "pipeline.yml").write_text(
            "type: pipeline\nsettings: {default_compute: azureml:cpu-cluster}\njobs:\n  score:\n"
            f"    type: command\n    component: azureml:{reference}\n    inputs: {{rows: {rows}}}\n"
        )
        plan = planned(folder / "pipeline.yml")
        assert not backend.refusals(plan) and reference in "".join(backend.requests(plan))
        run = backend.run(plan)
        assert run.status == "Completed", run
        logs.append(backend.runs.logs(run.step("score"))["0"].read_text())
    assert logs == ["0 rows\n", "1 rows\n"]


def test_the_request_of_a_whole_job_that_is_a_registered_component(spec: Path) -> None:
    """A dry run asks no workspace for it."""
    path, name = spec.with_name("whole.yml"), "azureml://registries/r/components/c/versions/3"
    path.write_text(f"type: pipeline\ncomponent: {name}\n")
    backend = AzureBackend(workspace=Workspace("s", "g", "w"))
    assert name in "".join(backend.requests(planned(path)))


GOOD = {
    "properties": {
        "jobType": "Command",
        "command": "python x.py",
        "environmentId": "e",
        "limits": {"jobLimitsType": "Command", "timeout": "PT5M"},
        "inputs": {"n": {"jobInputType": "literal", "value": "3"}},
    }
}


@pytest.mark.parametrize(
    ("path", "value", "problem"),
    [
        (("properties", "jobType"), "Comand", "$.properties.jobType"),
        (("properties", "command"), None, "$.properties.command"),
        (("properties", "environmentId"), 3, "$.properties.environmentId"),
        (("properties", "limits", "timeout"), "5 minutes", "ISO 8601"),
        (("properties", "inputs", "n", "jobInputType"), "number", "jobInputType"),
        (("properties", "comand"), "x", "unknown to CommandJob"),
    ],
)
def test_a_malformed_body_is_refused(path: tuple[str, ...], value: object, problem: str) -> None:
    """By the service's own models: missing and unknown fields, types, enumerations, durations."""
    import copy

    assert bodies.problems("jobs", GOOD) == []
    body = copy.deepcopy(GOOD)
    at = body
    for key in path[:-1]:
        at = at[key]  # type: ignore[assignment]
    at[path[-1]] = value  # type: ignore[assignment]
    assert any(problem in text for text in bodies.problems("jobs", body))
