"""A run on Azure is followed through refusals that pass; others end the following, not the job."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from dataclasses import replace
from datetime import datetime
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from ml.backends.azure import following
from ml.backends.azure import workspace as workspace_module
from ml.backends.azure.backend import AzureBackend
from ml.backends.azure.jobs import JobReader
from ml.backends.azure.runs import AzureRuns
from ml.backends.azure.workspace import configured
from ml.backends.base import Options
from ml.backends.runs import unwatched
from ml.cli.render.logs import write
from ml.cli.render.runs_text import run_lines
from ml.core.errors import Exit, Problem, UserError
from ml.specs.plan import planning
from ml.specs.sdk import load
from tests.stand_ins.azure.running import StandIn, register_environment

PAGE = "<html><body>Sign in to the proxy</body></html>"
HISTORY, TRACKING, CONTROL, LOGS = "/details$", "/runs/get$", "GET .*/jobs/[^/]+$", "GET /logs/"
# What may pass: the token was about to be renewed, a replica did not know the run yet …
PASSING: tuple[dict[str, Any], ...] = (
    {"pattern": HISTORY, "status": 404, "times": 2},
    {"pattern": HISTORY, "status": 401},
    {"pattern": HISTORY, "status": 403},
    {"pattern": HISTORY, "body": PAGE},
    {"pattern": HISTORY, "body": ""},
    {"pattern": HISTORY, "body": "null"},
    {"pattern": HISTORY, "body": "{}"},
    {"pattern": HISTORY, "body": "{", "headers": {"Content-Length": "9", "Connection": "close"}},
    {"pattern": HISTORY, "body": "{}", "headers": {"Content-Encoding": "gzip"}},
    {"pattern": HISTORY, "status": 429, "headers": {"Retry-After": "soon"}},
    {"pattern": HISTORY, "status": 503, "headers": {"Retry-After": "86400"}},
    {"pattern": HISTORY, "body": '{"status": "Running", "logFiles": ["a"]}'},
    {"pattern": LOGS, "status": 403, "after": 1},  # a log that is lost once more is no news
    {"pattern": LOGS, "status": 404},
)


@pytest.fixture
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    """What would be waited out for minutes is for hundredths of a second."""
    for limit in ("LONG_S", "SHORT_S", "poll_s"):
        monkeypatch.setattr(AzureRuns, limit, 0.01)
    monkeypatch.setattr(following, "_FIRST_POLL_S", 0.02)


@pytest.fixture
def queued(azure: StandIn, spec: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """A job that stays queued."""
    azure.enter(monkeypatch, "idle")
    register_environment(configured().client, "ml-cpu", "1")
    backend = AzureBackend()
    yield backend._started(backend._submission(planning.plan(load.load(spec)))).name
    azure.fail()


@pytest.mark.slow
@pytest.mark.attack("Azure refuses, forgets or garbles a run while it is followed")
def test_refusals_that_pass_are_waited_out(
    workspace: StandIn, spec: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The run ends as it would have, with its log; each trouble is told."""
    monkeypatch.setattr(following, "_LAST_POLL_S", 0.05)
    monkeypatch.setattr(workspace_module, "LONGEST_S", 0.05)
    end = tmp_path / "end"
    script = spec.parent / "code" / "say.py"
    wait = f"while not os.path.exists({str(end)!r}): time.sleep(0.05)"
    script.write_text(f"import os, time\nprint('on', flush=True)\n{wait}\n{script.read_text()}")
    workspace.fail(*PASSING)

    def wait_for_the_last() -> None:
        while workspace.faults_left():
            time.sleep(0.05)
        # As the run ends: the control plane and tracking lag behind run history.
        workspace.fail(
            *({"pattern": at, "status": 404} for at in (TRACKING, CONTROL, TRACKING)),
            *({"pattern": at, "body": PAGE} for at in (TRACKING, CONTROL)),
        )
        end.touch()

    waiting = threading.Thread(target=wait_for_the_last, daemon=True)
    waiting.start()
    said: list[str] = []
    plan, backend = planning.plan(load.load(spec)), AzureBackend(Options(say=said.append))
    run = backend.run(plan)
    waiting.join()
    assert not workspace.faults_left()
    assert (run.status, run.error) == ("Completed", None)
    assert (run.outputs["model"] / "model.txt").read_text() == "hello"
    assert (run.folder / "logs" / "std_log.txt").read_text() == "on\nthe word is hello\n"
    assert any("retrying to follow" in line for line in said), said
    assert any("the log user_logs/std_log.txt" in line and run.name in line for line in said), said
    # A failure is explained without the log; who asks for it is told why there is none.
    workspace.fail({"pattern": LOGS, "status": 403, "times": 999})
    failed = replace(run, status="Failed", error=Problem("script-failed", "exited with code 3"))
    explained = backend._with_details(failed, plan).error
    assert explained is not None and "the command exited with 3" in explained.actual
    with pytest.raises(UserError, match=f"of {run.name} cannot be read"):
        write(AzureBackend().runs, run, None, False)
    entry = backend.runs.entry(run)
    assert any("cannot be read" in text for _, text in run_lines(backend, entry, "", ()))
    workspace.fail()


ENDING: tuple[tuple[str, dict[str, Any], str, Exit], ...] = (
    ("expired", {"pattern": "workspaces", "status": 401}, "not-signed-in", Exit.WRONG_CALL),
    ("forbidden", {"pattern": "workspaces", "status": 403}, "no-permission", Exit.WRONG_CALL),
    ("deleted", {"pattern": "(history|jobs|runs)/", "status": 404}, "no-such-run", Exit.WRONG_CALL),
    ("history", {"pattern": "/history/", "status": 403}, "no-permission", Exit.WRONG_CALL),
    ("tracking", {"pattern": "/mlflow/", "status": 403}, "no-permission", Exit.WRONG_CALL),
    ("page", {"pattern": "/history/", "body": PAGE}, "azure-failed", Exit.RUN_FAILED),
    ("page of tracking", {"pattern": "/mlflow/", "body": PAGE}, "azure-failed", Exit.RUN_FAILED),
    ("page of jobs", {"pattern": CONTROL, "body": PAGE}, "azure-failed", Exit.RUN_FAILED),
    ("null of jobs", {"pattern": CONTROL, "body": "null"}, "azure-failed", Exit.RUN_FAILED),
    ("no job", {"pattern": CONTROL, "body": "{}"}, "no-such-run", Exit.WRONG_CALL),
    ("list", {"pattern": "/history/|/mlflow/", "body": "[]"}, "azure-failed", Exit.RUN_FAILED),
    ("nested", {"pattern": "/history/", "body": "[" * 100_000}, "azure-failed", Exit.RUN_FAILED),
)


@pytest.mark.slow
@pytest.mark.attack("Azure refuses, forgets or garbles a run while it is followed")
@pytest.mark.usefixtures("impatient")
def test_what_does_not_pass_ends_the_following(azure: StandIn, queued: str) -> None:
    """One problem, which names the run and the command that follows it again.

    `ml runs logs --follow` has the patience of `ml run`.
    """
    run = AzureBackend().runs.find(queued)
    for why, fault, code, exit_code in ENDING:
        azure.fail({**fault, "times": 999})
        for follow in (
            lambda backend: backend._follow(queued, unwatched),
            lambda backend: write(backend.runs, run, None, True, on=" --on azure"),
        ):
            with pytest.raises(UserError) as refused:
                follow(AzureBackend())
            (problem,) = refused.value.problems
            assert (problem.code, refused.value.exit_code) == (code, exit_code), (why, problem)
            assert queued in problem.actual, why
            assert f"ml runs logs --follow {queued} --on azure" in problem.hint, why


@pytest.mark.slow
@pytest.mark.usefixtures("impatient")
def test_a_job_that_run_history_does_not_know(azure: StandIn, queued: str) -> None:
    """The control plane has it: its status counts, and there is no log."""
    client = configured().client
    client.jobs.begin_cancel(queued).result()
    azure.fail({"pattern": "/history/", "status": 404, "times": 999})
    run = AzureBackend()._follow(queued, unwatched)
    assert run.status == "Canceled" and AzureBackend().runs.logs(run) == {}


@pytest.mark.slow
def test_jobs_that_the_sdk_does_not_read(azure: StandIn, queued: str) -> None:
    """A project of data labelling, or a run of the first SDK, hides no other job."""
    host = azure.variables["ARM_CLOUD_METADATA_URL"].partition("/metadata/")[0]
    kinds = ("Labeling", "Of tomorrow", None)
    others = [{"id": "x", "name": "x", "properties": {"jobType": kind}} for kind in kinds]
    page = {"value": others, "nextLink": f"{host}{configured().id}/jobs?api-version=2024-01-01"}
    azure.fail({"pattern": "GET .*/jobs$", "body": page})
    assert [entry.run.name for entry in AzureBackend().runs.entries()] == [queued]
    assert azure.faults_left() == 0


@pytest.mark.parametrize("status", [["Completed"], {"a": 1}, None])
def test_a_status_of_another_shape_is_a_problem(status: object) -> None:
    """And no traceback."""
    workspace: Any = SimpleNamespace(name="w", history=lambda run: {"status": status})
    with pytest.raises(UserError):
        AzureRuns(workspace).history("one")


def fetched(folder: Path, *names: str) -> tuple[dict[str, str], list[str]]:
    """By rank what is read of logs that hold their own names, and what is echoed."""
    details = {"status": "Running", "logFiles": {name: name for name in names}}
    workspace: Any = SimpleNamespace(
        folder=folder,
        history=lambda run: details,
        read_from=lambda url, start: url.encode()[start:],
    )
    runs = AzureRuns(workspace)
    echoed = [*runs.fetch_logs("job", details)]
    logs = runs.logs(SimpleNamespace(id="job"))  # type: ignore[arg-type]
    assert {*folder.rglob("*.txt")} == {*logs.values()}
    return {rank: path.read_text() for rank, path in logs.items()}, echoed


# As azure-ai-ml's own tests have them, with what a rank is called here.
USER = "user_logs/std_log"
LEGACY = "azureml-logs/70_driver_log"


@pytest.mark.parametrize(
    "ranks",
    [
        {"0": f"{USER}.txt"},
        {"0": f"{USER}_process_00.txt", "1": f"{USER}_process_01.txt", "12": f"{USER}_12.txt"},
        {
            **{"0": f"{USER}_node_00_worker.txt", "2": f"{USER}_node_02_worker.txt"},
            **{"ps_0": f"{USER}_node_00_ps.txt", "ps_1": f"{USER}_node_01_ps.txt"},
        },
        {"0": f"{LEGACY}.txt", "image_build": "azureml-logs/20_image_build_log.txt"},
        {"0": f"{LEGACY}_0.txt", "1": f"{LEGACY}_rank_1.txt"},
        {"0": f"{LEGACY}-worker-0.txt", "ps_3": f"{LEGACY}-ps-3.txt"},
        # Two that claim one rank are two files.
        {"0": f"{USER}.txt", "std_log_process_0": f"{USER}_process_0.txt", "1": f"{USER}_1.txt"},
        {"0": f"{USER}_0.txt", "std_log_process_00": f"{USER}_process_00.txt"},
        {"0": f"{USER}.txt", "70_driver_log": f"{LEGACY}.txt"},
        {"0": f"{USER}.txt", "retry_001.std_log": "user_logs/retry_001/std_log.txt"},
        {"std_log_of_tomorrow_a": f"{USER}_of_tomorrow_a.txt"},
    ],
)
def test_each_log_of_the_service_is_a_file_here(ranks: dict[str, str], tmp_path: Path) -> None:
    """Each by its rank, the same after a second look; rank 0 and the image's build are echoed."""
    found, echoed = fetched(tmp_path, *reversed(ranks.values()))
    assert found == ranks
    assert sorted(echoed) == sorted(ranks[rank] for rank in ("image_build", "0") if rank in ranks)
    assert fetched(tmp_path, *ranks.values()) == (ranks, [])


@pytest.mark.attack("A log's name leads out of the folder of logs")
@pytest.mark.parametrize(
    "name",
    [
        *(
            f"{USER}_{'a' * 300}.txt",
            f"{USER}_../../a.txt",
            f"{USER}/../../a.txt",
            f"{USER}\x00.txt",
        ),
        *(
            "user_logs/../std_log.txt",
            "/user_logs/std_log.txt",
            f"{USER}_..\\a.txt",
            f"{USER}.txt\n",
        ),
        *("user_logs/retry_1/../std_log.txt", f"{USER}_é.txt", f"{USER}_٣.txt", "std_log.txt"),
        *("azureml-logs/process_info.json", "azureml-logs/65_job_prep.txt", "logs/azureml/a.log"),
    ],
)
def test_a_name_that_is_no_log_of_the_program_is_passed_over(name: str, tmp_path: Path) -> None:
    """No disk holds the file, it would lie elsewhere, or it is the service's own."""
    assert fetched(tmp_path, name) == ({}, []) and not [*tmp_path.rglob("*.txt")]


@pytest.mark.attack("A tag on a sweep says which of its trials is the best")
def test_a_tag_of_automl_says_nothing_of_a_sweep() -> None:
    """What the service says does: the tag is AutoML's."""

    def tracked(name: str, **tags: str) -> dict[str, Any]:
        written = [{"key": key, "value": value} for key, value in tags.items()]
        data = {"metrics": [], "tags": written}
        return {"info": {"run_id": name, "status": "FINISHED"}, "data": data}

    job = SimpleNamespace(
        **{"name": "s", "type": "sweep", "status": "Completed", "experiment_name": "e"},
        **{"inputs": {}, "outputs": {}, "early_termination": None},
        creation_context=SimpleNamespace(created_at=datetime.now()),
        properties={"best_child_run_id": "s_0"},
    )
    reader = JobReader(SimpleNamespace(folder=Path()))  # type: ignore[arg-type]
    trials = {"s": [tracked("s_0"), tracked("s_1")]}
    assert reader.run(job, tracked("s", automl_best_child_run_id="s_1"), trials).best == "s_0"
