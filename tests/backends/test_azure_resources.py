"""Schedules and batch endpoints: created once from their specs; what they start runs."""

from __future__ import annotations

import time
from pathlib import Path
from types import SimpleNamespace

import pytest

from ml.backends.azure import resources
from ml.backends.azure.backend import AzureBackend
from ml.backends.azure.workspace import configured
from ml.backends.runs import OPEN
from ml.cli.app import main
from ml.core.errors import Exit, UserError
from ml.specs.plan import planning
from ml.specs.sdk import load
from tests.stand_ins.azure.running import StandIn

SCHEDULE = """\
$schema: https://azuremlschemas.azureedge.net/latest/schedule.schema.json
name: nightly
trigger: {type: cron, expression: "0 3 * * *"}
create_job: ./pipeline.yml
"""
PIPELINE = """\
$schema: https://azuremlschemas.azureedge.net/latest/pipelineJob.schema.json
type: pipeline
display_name: nightly words
experiment_name: words
settings: {default_compute: azureml:cpu-cluster}
jobs:
  say:
    type: command
    code: code
    command: python say.py night ${{outputs.model}}
    environment: azureml:ml-cpu:1
    outputs:
      model: {type: custom_model}
"""
ENDPOINT = """\
$schema: https://azuremlschemas.azureedge.net/latest/batchEndpoint.schema.json
name: lengths
auth_mode: aad_token
"""
DEPLOYMENT = """\
$schema: https://azuremlschemas.azureedge.net/latest/modelBatchDeployment.schema.json
name: first
endpoint_name: lengths
type: model
model: {path: factor}
code_configuration: {code: scoring, scoring_script: score.py}
environment: azureml:ml-cpu:1
compute: azureml:cpu-cluster
settings: {mini_batch_size: 1, output_file_name: lengths.csv}
"""
SCORE = """\
import os
from pathlib import Path

def init():
    global factor
    factor = int(Path(os.environ["AZUREML_MODEL_DIR"], "factor", "factor.txt").read_text())

def run(mini_batch):
    return [f"{Path(each).name} {factor * len(Path(each).read_text())}" for each in mini_batch]
"""


@pytest.fixture
def schedule(spec: Path) -> Path:
    """A schedule of a pipeline with code."""
    (spec.parent / "pipeline.yml").write_text(PIPELINE)
    (spec.parent / "schedule.yml").write_text(SCHEDULE)
    return spec.parent / "schedule.yml"


@pytest.fixture
def batch(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A repository with a batch endpoint, its deployment, and two files to score."""
    files = {
        "pyproject.toml": "",
        "endpoint.yml": ENDPOINT,
        "deployment.yml": DEPLOYMENT,
        "factor/factor.txt": "2",
        "scoring/score.py": SCORE,
        "texts/a.txt": "one",
        "texts/b.txt": "three",
    }
    for name, text in files.items():
        path = tmp_path / "batch" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    monkeypatch.chdir(tmp_path / "batch")
    return tmp_path / "batch"


def applied(spec: Path) -> str:
    return AzureBackend().resources.apply(load.load(spec)).change


def puts(requests: list[str], what: str) -> int:
    return sum(line.startswith("PUT ") and what in line for line in requests)


@pytest.mark.slow
def test_a_schedule_is_created_once(workspace: StandIn, schedule: Path) -> None:
    """The same content is not sent again; other content, also of its code, changes it."""
    assert applied(schedule) == "created"
    assert puts(workspace.requests(), "/schedules/nightly") == 1
    assert applied(schedule) == "unchanged"
    assert puts(workspace.requests(), "/schedules/nightly") == 0
    schedule.write_text(SCHEDULE.replace("0 3", "0 4"))
    assert applied(schedule) == "updated"
    script = schedule.parent / "code" / "say.py"
    script.write_text(f"{script.read_text()}print('more')\n")
    assert [applied(schedule) for _ in "ab"] == ["updated", "unchanged"]
    assert str(configured().client.schedules.get("nightly").trigger.expression) == "0 4 * * *"


@pytest.mark.slow
def test_what_a_schedule_starts_is_a_run(workspace: StandIn, schedule: Path) -> None:
    """azure-ai-ml triggers it: the pipeline runs the code that was sent with the schedule."""
    applied(schedule)
    name = configured().client.schedules.trigger("nightly").job_name
    runs = AzureBackend().runs
    for _ in range(300):
        if runs.find(name).status not in OPEN:
            break
        time.sleep(0.1)
    run = runs.find(name)
    assert (run.status, run.experiment) == ("Completed", "words")
    assert (run.step("say").outputs["model"] / "model.txt").read_text() == "night"


@pytest.mark.slow
def test_a_dry_run_of_a_schedule_sends_nothing(workspace: StandIn, schedule: Path) -> None:
    """It prints the upload, the address and the content."""
    text = "\n".join(AzureBackend().resources.requests(load.load(schedule)))
    assert workspace.requests() == []
    assert "upload " in text and "/schedules/nightly" in text and "0 3 * * *" in text


@pytest.mark.slow
def test_a_batch_endpoint_scores_files(workspace: StandIn, batch: Path) -> None:
    """The deployment becomes the default; the job is followed, and its result is here."""
    resources = AzureBackend().resources
    with pytest.raises(UserError, match="no-batch-endpoint"):
        applied(batch / "deployment.yml")
    assert [applied(batch / "endpoint.yml") for _ in "ab"] == ["created", "unchanged"]
    assert [applied(batch / "deployment.yml") for _ in "ab"] == ["created", "unchanged"]
    assert applied(batch / "endpoint.yml") == "unchanged"
    run = resources.score("lengths", "", "texts")
    assert run.status == "Completed", AzureBackend().runs.logs(run.steps[0])["0"].read_text()
    lines = (run.outputs["score"] / "lengths.csv").read_text().splitlines()
    assert sorted(lines) == ["a.txt 6", "b.txt 10"]
    (batch / "factor" / "factor.txt").write_text("3")
    assert applied(batch / "deployment.yml") == "updated"
    with pytest.raises(UserError, match="no-batch-endpoint"):
        resources.score("others", "", "texts")
    with pytest.raises(UserError, match="missing-file"):
        resources.score("lengths", "", "nowhere")


def test_this_machine_scores_by_the_same_spec(
    batch: Path, home: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """`ml invoke DEPLOYMENT.yml --input FOLDER`: the file has the deployment's name for it."""
    with pytest.raises(SystemExit) as ended:
        main(["invoke", "deployment.yml", "--input", "texts"])
    assert ended.value.code == Exit.DONE, capsys.readouterr()
    assert "output score: " in capsys.readouterr().out
    (file,) = home.glob("jobs/*/outputs/score/lengths.csv")
    assert sorted(file.read_text().splitlines()) == ["a.txt 6", "b.txt 10"]


@pytest.mark.parametrize(
    ("arguments", "exit_code", "said"),
    [
        (["run", "endpoint.yml"], Exit.CANNOT_HONOUR, "--on azure"),
        (["invoke", "lengths", "--input", "texts"], Exit.CANNOT_HONOUR, "no-batch-endpoint"),
        (
            ["invoke", "deployment.yml", "--input", "nowhere"],
            Exit.WRONG_CALL,
            "missing-file",
        ),
    ],
)
def test_what_this_machine_refuses(
    batch: Path,
    home: Path,
    capsys: pytest.CaptureFixture[str],
    arguments: list[str],
    exit_code: Exit,
    said: str,
) -> None:
    """An endpoint has no place here; data has to exist."""
    with pytest.raises(SystemExit) as ended:
        main(arguments)
    assert ended.value.code == exit_code
    assert said in capsys.readouterr().err


PARALLEL = """\
type: pipeline
display_name: lengths
experiment_name: words
settings: {default_compute: azureml:cpu-cluster}
inputs:
  texts: {type: uri_folder, path: texts}
jobs:
  score:
    type: parallel
    inputs: {texts: "${{parent.inputs.texts}}"}
    outputs: {score: {type: uri_file}}
    input_data: ${{inputs.texts}}
    mini_batch_size: "1"
    max_concurrency_per_instance: 1
    mini_batch_error_threshold: 0
    retry_settings: {max_retries: 0, timeout: 60}
    task:
      type: run_function
      code: scoring
      entry_script: parallel.py
      environment: azureml:ml-cpu:1
      program_arguments: --factor 2
      append_row_to: ${{outputs.score}}
"""
ENTRY = """\
import sys
from pathlib import Path

def init():
    pass

def run(mini_batch):
    factor = int(sys.argv[sys.argv.index("--factor") + 1])
    return [f"{Path(each).name} {factor * len(Path(each).read_text())}" for each in mini_batch]
"""


@pytest.mark.slow
def test_a_parallel_step_runs(workspace: StandIn, batch: Path) -> None:
    """Mini-batches, arguments, thresholds and the common output are sent as the step has them."""
    (batch / "pipeline.yml").write_text(PARALLEL)
    (batch / "scoring" / "parallel.py").write_text(ENTRY)
    run = AzureBackend().run(planning.plan(load.load(batch / "pipeline.yml")))
    assert run.status == "Completed", run.error and run.error.actual
    lines = run.step("score").outputs["score"].read_text().splitlines()
    assert sorted(lines) == ["a.txt 6", "b.txt 10"]


COMPONENT = """\
$schema: https://azuremlschemas.azureedge.net/latest/pipelineComponent.schema.json
type: pipeline
name: count
version: "1"
inputs:
  texts: {type: uri_folder}
outputs:
  counts: {type: uri_folder}
jobs:
  count:
    type: command
    command: ls ${{inputs.texts}} > ${{outputs.counts}}/names.txt
    environment: azureml:ml-cpu:1
    compute: azureml:cpu-cluster
    inputs: {texts: "${{parent.inputs.texts}}"}
    outputs: {counts: "${{parent.outputs.counts}}"}
"""
COMPONENT_DEPLOYMENT = """\
$schema: https://azuremlschemas.azureedge.net/latest/pipelineComponentBatchDeployment.schema.json
name: counting
endpoint_name: lengths
type: pipeline
component: ./component.yml
settings: {default_compute: cpu-cluster}
"""


@pytest.mark.slow
def test_a_batch_endpoint_runs_a_pipeline(workspace: StandIn, batch: Path) -> None:
    """Its input has a name of its own; the outputs are the pipeline's."""
    (batch / "component.yml").write_text(COMPONENT)
    (batch / "counting.yml").write_text(COMPONENT_DEPLOYMENT)
    applied(batch / "endpoint.yml")
    assert [applied(batch / "counting.yml") for _ in "ab"] == ["created", "unchanged"]
    run = AzureBackend().resources.score("lengths", "counting", "texts=texts")
    assert run.status == "Completed", run.error and run.error.actual
    assert (run.outputs["counts"] / "names.txt").read_text() == "a.txt\nb.txt\n"


@pytest.mark.parametrize("waits", [0, 2])
def test_an_operation_that_goes_on_is_told(waits: int) -> None:
    """A line for each wait that ended before it, none for one that is quick."""
    left, said = [False] * waits + [True], list[str]()
    poller = SimpleNamespace(
        wait=lambda seconds: None, done=lambda: left.pop(0), result=lambda: "made"
    )
    assert resources.ended(poller, "lengths", said.append) == "made"
    assert said == ["lengths: waiting for Azure, 0 s so far"] * waits
