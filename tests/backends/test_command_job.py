"""What a command job on this machine finds around it, and what stays of it."""

from __future__ import annotations

import importlib.util
import io
import json
import zipfile
from dataclasses import replace
from pathlib import Path

import pytest
from mlflow.tracking import MlflowClient

from ml.backends.base import Options
from ml.backends.local.backend import LocalBackend
from ml.backends.local.processes.process import cores
from ml.backends.local.runs import records
from ml.core.errors import Place, UserError
from ml.core.home import tracking_uri
from ml.reports.pages import report
from ml.specs.plan.plans import Asset, InputPlan
from tests.backends.conftest import Plans
from tests.release.test_commands import ml

HERE = Place("jobs/job.yml", 9)
PRINT = "import json, os; print(json.dumps(dict(os.environ)))"


def printed(folder: Path) -> str:
    """What the run printed."""
    return (folder / "logs" / "std_log.txt").read_text()


def test_the_environment_is_a_nodes(
    home: Path, command: Plans, monkeypatch: pytest.MonkeyPatch
) -> None:
    """MLflow's three, the job's own and the thread budget; nothing else of the person's shell."""
    monkeypatch.setenv("GITHUB_TOKEN", "secret")
    monkeypatch.setenv("PYTHONPATH", "/somewhere")
    plan = replace(command(PRINT), environment_variables={"TEAM": "faq"})
    run = LocalBackend().run(plan)
    seen = json.loads(printed(run.folder))
    assert seen["MLFLOW_TRACKING_URI"] == tracking_uri()
    assert seen["MLFLOW_RUN_ID"] == run.id
    assert seen["MLFLOW_EXPERIMENT_NAME"] == "tests"
    assert seen["TEAM"] == "faq"
    assert seen["OMP_NUM_THREADS"] == str(cores())
    assert seen["OMP_WAIT_POLICY"] == "PASSIVE"
    assert "/somewhere" not in seen["PYTHONPATH"]
    assert not {"GITHUB_TOKEN", "PYTEST_CURRENT_TEST"} & seen.keys()


def test_an_expression_that_a_command_does_not_have_is_refused_with_its_line(
    home: Path, command: Plans
) -> None:
    """Bash would call it a bad substitution, long after; nothing is made for it."""
    plan = command(PRINT)
    plan = replace(plan, command=f"echo ${{{{name}}}} && {plan.command}", places={"command": HERE})
    with pytest.raises(UserError) as refused:
        LocalBackend().run(plan)
    assert refused.value.problems[0].place == HERE
    assert not list((home / "jobs").glob("*/job.json"))


def test_what_a_job_installs_stays_in_the_job(home: Path, command: Plans, tmp_path: Path) -> None:
    """`pip install` works for the job that calls it, and this interpreter is as it was."""
    wheel = tmp_path / "installed_by_a_job-1.0-py3-none-any.whl"
    info = "installed_by_a_job-1.0.dist-info"
    with zipfile.ZipFile(wheel, "w") as archive:
        archive.writestr("installed_by_a_job.py", "WORD = 'there'")
        archive.writestr(
            f"{info}/METADATA", "Metadata-Version: 2.1\nName: installed-by-a-job\nVersion: 1.0\n"
        )
        archive.writestr(
            f"{info}/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n"
        )
        archive.writestr(f"{info}/RECORD", "")
    run = LocalBackend().run(
        command(
            "import subprocess, sys\n"
            f"subprocess.run([sys.executable, '-m', 'pip', 'install', '--no-index', {str(wheel)!r}]"
            ", check=True)\n"
            "print(subprocess.run([sys.executable, '-c', "
            "'import installed_by_a_job; print(installed_by_a_job.WORD)'], check=True))\n"
        )
    )
    assert run.status == "Completed", printed(run.folder)
    assert "there" in printed(run.folder)
    assert importlib.util.find_spec("installed_by_a_job") is None


def test_the_jobs_own_thread_budget_wins(home: Path, command: Plans) -> None:
    """environment_variables are the person's word."""
    plan = replace(command(PRINT), environment_variables={"OMP_NUM_THREADS": "7"})
    assert json.loads(printed(LocalBackend().run(plan).folder))["OMP_NUM_THREADS"] == "7"


def test_a_script_that_changes_its_own_code_changes_no_snapshot(home: Path, command: Plans) -> None:
    """Two runs of the same content start from the same files, whatever the first did to its own."""
    plan = command("from pathlib import Path\np = Path('script.py')\np.open('a').write('#')\n")
    first, second = LocalBackend().run(plan), LocalBackend().run(plan)
    snapshot = (first.folder / "snapshot").resolve()
    assert snapshot == (second.folder / "snapshot").resolve()
    assert (snapshot / "script.py").read_text() == (plan.code / "script.py").read_text()
    assert not (first.folder / "work").exists()


def test_outputs_and_logs_of_the_working_folder_become_artifacts(
    home: Path, command: Plans
) -> None:
    """As on Azure ML, where `./outputs` and `./logs` are there from the start and uploaded."""
    run = LocalBackend().run(command("for folder in ('outputs', 'logs'): open(folder + '/a', 'w')"))
    client = MlflowClient(tracking_uri())
    found = {file.path for file in client.list_artifacts(run.id)}
    assert found == {"outputs", "logs"}
    assert [file.path for file in client.list_artifacts(run.id, "outputs")] == ["outputs/a"]
    silent = LocalBackend().run(command("print(1)"))
    assert client.list_artifacts(silent.id) == []


def test_what_azure_ml_would_not_log_is_a_warning(home: Path, command: Plans) -> None:
    """Each limit of its tracking server that was exceeded once; none of a run within them."""
    script = """import mlflow
mlflow.log_params({f"p{n}": "x" * 501 if MORE and not n else "x" for n in range(200 + MORE)})
mlflow.set_tags({f"t{n}": "x" for n in range(50 + MORE)})
mlflow.log_metrics({f"m{n}": float("nan") if MORE and not n else 1 for n in range(50 + MORE)})
if MORE:
    mlflow.initialize_logged_model(name="model", source_run_id=mlflow.active_run().info.run_id)
"""
    within = LocalBackend().run(command("MORE = 0\n" + script))
    assert (within.status, within.warnings) == ("Completed", ())
    beyond = LocalBackend().run(command("MORE = 1\n" + script))
    assert {warning.code for warning in beyond.warnings} == {"azure-limit"}
    assert [warning.actual for warning in beyond.warnings] == [
        "the run logged 201 parameters",
        "the value of the parameter `p0` is too long",
        "the run logged 51 tags",
        "the run logged 51 metrics",
        "`m0` was logged as NaN",
        "`log_model` logged the model `model`",
    ]


def test_an_output_left_empty_is_a_warning(home: Path, command: Plans) -> None:
    """Azure ML completes such a job too; a person should know before the next step fails."""
    outputs = {"model": "custom_model", "note": "uri_file", "full": "uri_folder"}
    line = "touch ${{outputs.full}}/a"
    run = LocalBackend().run(command("", line, outputs))
    assert run.status == "Completed"
    assert [problem.code for problem in run.warnings] == ["output-empty", "output-empty"]
    assert "outputs.model" in run.warnings[0].actual


def test_paths_with_blanks_reach_the_script_whole(
    home: Path, command: Plans, tmp_path: Path
) -> None:
    """A path is one word to the shell, literals are substituted verbatim."""
    data = tmp_path / "my data"
    data.mkdir()
    plan = command(
        "import sys; print(sys.argv[1:])",
        "python script.py ${{inputs.data}} ${{inputs.words}}",
        inputs={"data": InputPlan("data", "uri_folder", HERE, source="x", path=data)},
        words="two words",
    )
    assert printed(LocalBackend().run(plan).folder).strip() == str([str(data), "two", "words"])


@pytest.mark.parametrize(("mode", "changed"), [("ro_mount", "old+"), ("download", "old")])
def test_an_input_to_write_to_is_a_copy(
    home: Path, command: Plans, tmp_path: Path, mode: str, changed: str
) -> None:
    """With `download` or `rw_mount` the original stays; a mount is the data itself."""
    data = tmp_path / "data.txt"
    data.write_text("old")
    source = InputPlan("d", "uri_file", HERE, source="x", path=data, mode=mode)
    run = LocalBackend().run(command("", "printf + >> ${{inputs.d}}", inputs={"d": source}))
    assert run.status == "Completed"
    assert data.read_text() == changed


def test_lineage_is_kept(home: Path, command: Plans, tmp_path: Path) -> None:
    """Code, data and environment, in job.json and as MLflow tags."""
    data = tmp_path / "d.csv"
    data.write_text("1")
    asset = Asset("faq", "3", "ab" * 32)
    plan = command(
        inputs={"d": InputPlan("d", "uri_file", HERE, None, "azureml:faq:3", data, asset)}
    )
    run = LocalBackend().run(plan)
    kept = records.lineage(run.folder)
    assert kept["data"]["d"] == {
        "asset": "azureml:faq:3",
        "source": "azureml:faq:3",
        "digest": "ab" * 32,
        "made_by": "",
    }
    assert kept["code"]["dirty"] is True  # outside of git nothing can be told
    assert kept["code"]["digest"].startswith("sha256:")
    tags = MlflowClient(tracking_uri()).get_run(run.id).data.tags
    assert tags["data.d"] == "azureml:faq:3"
    assert tags["data.d.digest"] == "ab" * 32
    assert tags["environment"] == "azureml:ml-cpu:1"
    assert tags["code.digest"] == kept["code"]["digest"]
    assert records.read(run.folder) == run


def test_the_output_is_echoed(home: Path, command: Plans) -> None:
    """To the terminal of whoever asked for it, and all of it."""
    shown = io.StringIO()
    LocalBackend(Options(echo=shown)).run(command("for i in range(3): print(i)"))
    assert shown.getvalue() == "0\n1\n2\n"


def test_a_value_never_becomes_a_command(home: Path, command: Plans) -> None:
    """Refused before anything is made."""
    with pytest.raises(UserError):
        LocalBackend().run(command("", "echo ${{inputs.x}}", x="1; touch hacked"))
    assert list((home / "jobs").iterdir()) == []
    assert list((home / "live").iterdir()) == []


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ("no-such-program", "`no-such-program` is not installed"),
        ("kill -9 $$", "was ended by SIGKILL"),
        ("kill -SEGV $$", "was ended by SIGSEGV"),
        ("true | (exit 4)", "exited with 4"),
    ],
)
def test_how_a_command_failed_is_said(home: Path, command: Plans, line: str, said: str) -> None:
    """Exit codes, signals and missing programs in words."""
    run = LocalBackend().run(command("", line))
    assert run.error is not None
    assert said in str(run.error)


@pytest.mark.slow
def test_a_nan_that_log_model_logs_again_is_explained(home: Path, command: Plans) -> None:
    """MLflow's error names a constraint of its table. Another step of the model has no NaN."""
    script = """import mlflow, numpy as np
from sklearn.linear_model import LinearRegression
model = LinearRegression().fit([[0.0], [1.0]], [0.0, 1.0])
mlflow.log_metric("loss", float("nan"), step=0)
mlflow.sklearn.log_model(model, name="model", step={step})
"""
    failed = LocalBackend().run(command(script.replace("{step}", "0")))
    assert failed.error is not None and "log_model with another `step`" in failed.error.hint
    assert LocalBackend().run(command(script.replace("{step}", "1"))).status == "Completed"


LOGS = "mlflow.log_param('depth', 31.0); mlflow.log_metric('b', float('nan'))"


@pytest.mark.slow
@pytest.mark.parametrize("script", [LOGS, f"with mlflow.start_run(): {LOGS}"])
def test_a_script_uses_mlflow_as_on_azure(home: Path, command: Plans, script: str) -> None:
    """Implicit logging and start_run() both go to the run that was made for the script.

    A parameter that the script logs in another spelling than it was given is the script's.
    """
    run = LocalBackend().run(command(f"import mlflow\n{script}", depth=31, other="x"))
    assert run.status == "Completed", run.error
    tracked = MlflowClient(tracking_uri()).get_run(run.id)
    assert tracked.info.status == "FINISHED"
    assert tracked.data.params == {"depth": "31.0", "other": "x"}
    assert run.metrics["b"] != run.metrics["b"]
    assert LocalBackend().runs.parameters(run) == {"depth": 31, "other": "x"}


@pytest.mark.slow
def test_what_the_code_logs_stands_beside_its_inputs(
    home: Path, command: Plans, capsys: pytest.CaptureFixture[str]
) -> None:
    """In `ml runs show`, as text and as JSON, and in the report; the inputs come first."""
    script = "import mlflow\nmlflow.log_params({'a_rows': 7, 'word': 'other'})"
    run = LocalBackend().run(command(script, word="given"))
    code, out, _ = ml(capsys, "runs", "show", run.name)
    lines = [line.split() for line in out.splitlines()]
    assert code == 0
    assert [line for line in lines if line[:1] == ["parameter"]] == [
        ["parameter", "word", "given"],
        ["parameter", "a_rows", "7"],
    ]
    shown = json.loads(ml(capsys, "runs", "show", run.name, "--json")[1])["parameters"]
    assert shown == {"word": "given", "a_rows": "7"}
    assert "<td>a_rows</td><td>7</td>" in report(run, LocalBackend()).html
