"""Jobs of a workflow run on Azure: submitted by it, followed by name and digest, by no guess."""

from __future__ import annotations

import json
import re
import shutil
import time
from pathlib import Path

import pytest

from infra.settings.workflows import JOB_SUBMITTER
from ml.backends.azure import submission
from ml.backends.azure.backend import AzureBackend
from ml.backends.base import Options, WorkflowRun
from ml.cli import clusters
from ml.core.errors import UserError
from ml.specs.check.clusters import Bounds
from tests.backends.test_azure import planned
from tests.conftest import ROOT
from tests.github.events import git
from tests.stand_ins.azure.actions import actions
from tests.stand_ins.azure.running import StandIn

CLUSTERS = frozenset({"cpu-cluster"})
BOUNDS = Bounds(hours=1, nodes=1, trials=2, trials_at_once=2)


def handed_over(workflow: WorkflowRun) -> WorkflowRun:
    """As the next job of the workflow run reads it."""
    return WorkflowRun(CLUSTERS, BOUNDS, json.loads(json.dumps(workflow.jobs)), final=True)


def backend(workflow: WorkflowRun) -> AzureBackend:
    """On a machine of its own."""
    opened = AzureBackend(Options(workflow=workflow))
    shutil.rmtree(opened.workspace.folder, ignore_errors=True)
    return opened


@pytest.mark.slow
@pytest.mark.attack("Somebody's job has the name that main computes, or its outputs are replaced")
def test_only_its_own_jobs_are_followed(workspace: StandIn, spec: Path) -> None:
    forged = submission.prepare(planned(spec))  # the name is arithmetic
    AzureBackend().workspace.client.jobs.create_or_update(forged.job)
    workflow = WorkflowRun(CLUSTERS, BOUNDS)
    own = backend(workflow).run(planned(spec))
    assert own.name != forged.name
    assert re.fullmatch(r"say-a-word-[0-9a-f]{16}", own.name)
    # The identity that trains may send all of this.
    needed = actions(workspace.requests())
    assert any(action.endswith("/jobs/write") for action in needed)
    assert needed <= {*JOB_SUBMITTER.actions}

    # The next job of the workflow run submits nothing, and gets what this one saw.
    final = backend(handed_over(workflow))
    assert final.run(planned(spec)).name == own.name
    assert (final.run(planned(spec)).outputs["model"] / "model.txt").read_text() == "hello"
    with pytest.raises(UserError, match="not-reviewed"):
        final.run(planned(spec, word="bye"))
    assert not [line for line in workspace.requests() if re.match("PUT .*/jobs/", line)]

    # A node that may write to the storage replaces the model that the reviewer saw.
    blobs = final.workspace.blobs
    (blob,) = (
        name for name in blobs.list_blob_names() if f"{own.name}/" in name and "model.txt" in name
    )
    blobs.upload_blob(blob, b"evil", overwrite=True)
    with pytest.raises(UserError, match="output-changed"):
        backend(handed_over(workflow)).run(planned(spec))


@pytest.mark.attack("A job's properties say that it is of main's commit")
@pytest.mark.parametrize("name", ["mlflow.source.git.commit", "azureml.git.dirty", "gitops.code"])
def test_reserved_properties_are_nobodys(name: str, spec: Path) -> None:
    """Neither in what a person runs nor in what a workflow does; a person's own may stay."""
    text = spec.read_text()
    spec.write_text(f"{text}properties: {{team: a}}\n")
    assert AzureBackend().refusals(planned(spec)) == ()
    spec.write_text(f"{text}properties: {{{name}: abc}}\n")
    (problem,) = AzureBackend().refusals(planned(spec))
    assert problem.code == "reserved-property" and problem.place
    codes = {
        each.code
        for each in AzureBackend(Options(workflow=WorkflowRun(CLUSTERS, BOUNDS))).refusals(
            planned(spec)
        )
    }
    assert codes == {"forbidden-in-workflow"}


def test_what_a_workflow_may_ask_for_is_its_backends_to_refuse(spec: Path) -> None:
    """A person's job may ask for what the person may."""
    spec.write_text(spec.read_text() + "name: mine\nidentity: {type: user_identity}\n")
    assert AzureBackend().refusals(planned(spec)) == ()
    (*problems,) = AzureBackend(Options(workflow=WorkflowRun(CLUSTERS, BOUNDS))).refusals(
        planned(spec)
    )
    asked = " ".join(each.actual for each in problems)
    assert "`name: mine`" in asked and "`identity: " in asked


@pytest.mark.attack(
    "A pull request declares the cluster, the data or the environment that it asks for"
)
def test_what_is_declared_is_what_main_declares(
    spec: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Not what the files beside the job do, though the command runs among them."""
    (tmp_path / "pyproject.toml").write_text("")
    (tmp_path / "infra").mkdir()
    stack = (ROOT / "infra/Pulumi.dev.yaml").read_text()
    (tmp_path / "infra/Pulumi.dev.yaml").write_text(stack.replace("cpu-cluster", "mine"))
    schema = "$schema: https://azuremlschemas.azureedge.net/latest/environment.schema.json\n"
    (tmp_path / "infra/environment.yml").write_text(
        f"{schema}name: mine\nversion: 1\nimage: ubuntu\n"
    )
    monkeypatch.chdir(tmp_path)
    spec.write_text(spec.read_text() + "limits: {timeout: 60}\n")
    workflow = WorkflowRun(clusters.names(), clusters.bounds("dev"))
    assert AzureBackend(Options(workflow=workflow)).refusals(planned(spec)) == ()
    spec.write_text(spec.read_text().replace("ml-cpu", "mine").replace("cpu-cluster", "mine"))
    found = [
        each.actual for each in AzureBackend(Options(workflow=workflow)).refusals(planned(spec))
    ]
    assert [text.split(":")[0] for text in found] == ["`compute", "`environment"]


@pytest.mark.attack("A pipeline takes over a step whose outputs somebody else's job has written")
def test_no_step_of_another_job_is_reused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A person's pipeline reuses steps, a workflow's does not."""
    step = "{type: command, command: echo, environment: azureml:ml-cpu:1}"
    (tmp_path / "job.yml").write_text(
        f"type: pipeline\ncompute: azureml:cpu-cluster\njobs: {{a: {step}}}\n"
    )
    wanted = submission.prepare(planned(tmp_path / "job.yml"))
    assert not wanted.job.settings.force_rerun
    opened, workflow = AzureBackend(), WorkflowRun(CLUSTERS, BOUNDS)
    monkeypatch.setattr(opened, "_submit", lambda submitted: submitted.job)
    job = opened._of_workflow(wanted, "content", workflow)
    assert job.settings.force_rerun and workflow.jobs["content"]["run"] == job.name != wanted.name


@pytest.mark.slow
def test_a_later_run_follows_a_job_that_outlived_the_first(
    workspace: StandIn, spec: Path, tmp_path: Path
) -> None:
    """By its content: a commit that changes nothing of it has the same job, another word not."""
    end = tmp_path / "end"
    script = spec.parent / "code" / "say.py"
    wait = f"while not os.path.exists({str(end)!r}): time.sleep(0.05)"
    script.write_text(f"import os, time\n{wait}\n{script.read_text()}")
    git(tmp_path, "init", "-q")
    git(tmp_path, "add", "code", "job.yml")
    git(tmp_path, "commit", "-qm", "a job")
    first = WorkflowRun(CLUSTERS, BOUNDS, deadline=time.monotonic())
    with pytest.raises(UserError, match="run-unfinished"):
        backend(first).run(planned(spec))
    ((content, submitted),) = first.jobs.items()
    git(tmp_path, "commit", "-q", "--allow-empty", "-m", "another")
    end.touch()
    second = WorkflowRun(CLUSTERS, BOUNDS, json.loads(json.dumps(first.jobs)))
    run = backend(second).run(planned(spec))
    assert (run.name, run.status) == (submitted["run"], "Completed")
    assert second.jobs[content]["outputs"]
    assert backend(second).run(planned(spec, word="bye")).name != run.name
    assert len(second.jobs) == 2


@pytest.mark.slow
def test_a_job_that_failed_since_is_submitted_again(
    workspace: StandIn, spec: Path, tmp_path: Path
) -> None:
    good = tmp_path / "good"
    script = spec.parent / "code" / "say.py"
    script.write_text(f"import os\nassert os.path.exists({str(good)!r})\n{script.read_text()}")
    first = WorkflowRun(CLUSTERS, BOUNDS)
    failed = backend(first).run(planned(spec))
    assert failed.status == "Failed"
    good.touch()
    run = backend(WorkflowRun(CLUSTERS, BOUNDS, first.jobs)).run(planned(spec))
    assert run.status == "Completed" and run.name != failed.name
