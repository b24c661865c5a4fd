"""`ml run` as a person types it: exit codes, streams, JSON."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from ml.cli.commands.run import parse_changes
from ml.cli.render.plan_text import as_text
from ml.cli.render.runs_text import number, parameters
from ml.core.errors import Place, UserError
from ml.specs.plan.planning import plan
from ml.specs.plan.plans import CommandPlan, Environment
from ml.specs.sdk.load import load
from tests import forks
from tests.conftest import EXAMPLE

SPEC = """$schema: https://azuremlschemas.azureedge.net/latest/commandJob.schema.json
type: command
code: ../code
command: echo ${{inputs.word}} && exit ${{inputs.code}}
inputs: {word: hello, code: 0}
environment: azureml:ml-cpu:1
compute: azureml:cpu-cluster
experiment_name: tests
"""
SWEEP = """$schema: https://azuremlschemas.azureedge.net/latest/sweepJob.schema.json
type: sweep
trial:
  code: ../code
  command: python script.py ${{search_space.x}}
  environment: azureml:ml-cpu:1
sampling_algorithm: {type: random, seed: 1}
search_space:
  x: {type: choice, values: [1, 2]}
objective: {goal: maximize, primary_metric: score}
limits: {max_total_trials: 2, max_concurrent_trials: 2}
experiment_name: tests
"""
Ml = Callable[..., "subprocess.CompletedProcess[str]"]


@pytest.fixture
def ml(tmp_path: Path, own_home: Path) -> Ml:
    """Runs `ml …` in a repository of one job."""
    (tmp_path / "code").mkdir()
    (tmp_path / "code" / "script.py").write_text(
        "import sys, mlflow; mlflow.log_metric('score', float(sys.argv[1]))"
    )
    (tmp_path / "jobs").mkdir()
    (tmp_path / "jobs" / "job.yml").write_text(SPEC)
    (tmp_path / "jobs" / "sweep.yml").write_text(SWEEP)
    (tmp_path / "pyproject.toml").touch()

    def call(*words: str) -> subprocess.CompletedProcess[str]:
        return forks.ml(*words, cwd=tmp_path)

    return call


@pytest.mark.slow
@pytest.mark.usefixtures("home")
def test_a_job_that_completes(ml: Ml) -> None:
    """Exit 0; words on stderr, what the job printed among them; nothing on stdout."""
    done = ml("run", "jobs/job.yml", "--set", "inputs.word=friend")
    assert done.returncode == 0, done.stderr
    assert done.stdout == ""
    assert "friend\n" in done.stderr
    assert "local: compute `azureml:cpu-cluster` → this machine" in done.stderr
    assert "Completed in" in done.stderr
    assert "next: ml report " in done.stderr


@pytest.mark.slow
@pytest.mark.usefixtures("home")
def test_a_job_that_fails(ml: Ml) -> None:
    """Exit 1, the line of the command, a hint, no traceback; JSON for a program."""
    done = ml("run", "jobs/job.yml", "--json", "--set", "inputs.code=3")
    assert done.returncode == 1
    said = json.loads(done.stdout)
    assert said["status"] == "Failed"
    assert said["error"]["code"] == "script-failed"
    assert said["error"]["place"] == {"path": "jobs/job.yml", "line": 4}
    assert Path(said["folder"], "logs", "std_log.txt").read_text() == "hello\n"
    assert "Traceback" not in done.stderr


@pytest.mark.slow
@pytest.mark.usefixtures("home")
def test_what_a_failing_job_printed_is_shown_once(ml: Ml) -> None:
    """While it ran; without progress, in the problem; the record has it in any case."""
    words = ("run", "jobs/job.yml", "--set", "inputs.code=3", "--set", "inputs.word=unlucky")
    for more in ((), ("--quiet",)):
        done = ml(*words, *more)
        assert done.returncode == 1
        assert done.stderr.count("unlucky") == 1
        assert "error[script-failed]: jobs/job.yml:4: the command exited with 3" in done.stderr
    assert "    | unlucky" in ml("runs", "show").stderr


@pytest.mark.slow
@pytest.mark.usefixtures("home")
def test_a_sweep_says_its_trials_in_plain_lines(ml: Ml) -> None:
    """Off a terminal: a line a trial, then the best."""
    done = ml("run", "jobs/sweep.yml")
    assert done.returncode == 0, done.stderr
    assert "2/2 " in done.stderr
    assert "best so far" in done.stderr
    assert "2 Completed" in done.stderr
    assert "\x1b" not in done.stderr


@pytest.mark.slow
def test_a_dry_run_makes_nothing(ml: Ml, own_home: Path) -> None:
    """The plan on stdout, readable or as JSON; the home stays empty."""
    text = ml("run", "jobs/sweep.yml", "--dry-run")
    assert text.returncode == 0, text.stderr
    assert "choice(1, 2)" in text.stdout
    assert "maximize score" in text.stdout
    data = json.loads(ml("run", "jobs/job.yml", "--dry-run", "--json").stdout)
    assert data["kind"] == "command"
    assert data["inputs"]["word"]["value"] == "hello"
    assert list(own_home.iterdir()) == []


@pytest.mark.slow
@pytest.mark.parametrize(
    ("words", "code", "said"),
    [
        (["jobs/none.yml"], 2, "none.yml"),
        (["jobs/job.yml", "--on", "azure"], 2, "no-workspace-named"),
        (["jobs/job.yml", "--on", "moon"], 2, "unknown-place"),
        (["jobs/job.yml", "--set", "inputs.word"], 2, "bad-override"),
        (["jobs/job.yml", "--set", "inputs.word=a;b"], 2, "inputs.word"),
        (["jobs/job.yml", "--evict-notice", "4s"], 2, "option-conflict"),
    ],
)
def test_what_is_refused(ml: Ml, own_home: Path, words: list[str], code: int, said: str) -> None:
    """Each with its exit code, a name and a hint; no run is made."""
    done = ml("run", *words)
    assert done.returncode == code, done.stderr
    assert said in done.stderr
    assert "hint: " in done.stderr
    assert "Traceback" not in done.stderr
    assert not (own_home / "jobs").exists()


@pytest.mark.slow
def test_two_first_runs_at_the_same_moment(ml: Ml, own_home: Path) -> None:
    """On a machine where nothing has run yet: both complete, under names of their own."""
    with ThreadPoolExecutor(2) as pool:
        done = list(pool.map(lambda _: ml("run", "jobs/job.yml", "--json"), range(2)))
    assert [one.returncode for one in done] == [0, 0], [one.stderr for one in done]
    names = {json.loads(one.stdout)["name"] for one in done}
    assert {path.name for path in (own_home / "jobs").iterdir()} == names
    assert len(names) == 2


def test_a_command_is_shown_as_the_shell_gets_it() -> None:
    """Its lines and its blanks: joined into one line it would be another command."""
    place = Place("job.yml", 1)
    text = "echo 'a  b' && \\\n  train\nls\n"
    plan = CommandPlan(place, "n", "e", text, None, Environment("azureml:e:1"))
    lines = as_text(plan).splitlines()
    at = next(n for n, line in enumerate(lines) if line.startswith("command"))
    start = len(lines[at]) - len("echo 'a  b' && \\")
    assert [line[start:] for line in lines[at : at + 3]] == ["echo 'a  b' && \\", "  train", "ls"]


@pytest.mark.example
def test_a_sweep_has_one_line_of_time_limits() -> None:
    """Each says what it bounds; a trial's is not printed a second time as its command's."""
    text = as_text(plan(load(EXAMPLE / "jobs/pipeline.yml")))
    sweep = text.partition("step sweep")[2].partition("step recipe")[0]
    limits = [line.split(maxsplit=1)[1] for line in sweep.splitlines() if "timeout " in line]
    assert limits == ["7200 s for all trials together, 600 s for each trial"]


def test_changes() -> None:
    """FIELD=VALUE, where the value may hold an equals sign."""
    assert parse_changes(["inputs.a=b=c", "tags.x="]) == {"inputs.a": "b=c", "tags.x": ""}
    for wrong in ("a", "=b", " =b"):
        with pytest.raises(UserError):
            parse_changes([wrong])


def test_numbers_and_parameters() -> None:
    """Short enough for a table, long enough to tell trials apart."""
    assert number(0.123456789) == "0.12346"
    assert parameters({"lr": 0.1, "n": 3, "kind": "gbdt"}) == "lr=0.1, n=3, kind=gbdt"
