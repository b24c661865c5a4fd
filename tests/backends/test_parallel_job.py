"""Parallel jobs: mini-batches handed to processes, tried again, counted, and put together."""

from __future__ import annotations

import csv
import subprocess
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from ml.backends.base import Options
from ml.backends.local import files
from ml.backends.local.backend import LocalBackend
from ml.backends.local.processes.reaper import processes_of
from ml.backends.local.runs.store import LocalRuns
from ml.backends.runs import Run
from ml.core.errors import Place
from ml.specs.plan.plans import CommandPlan, InputPlan, Parallel
from tests.backends.conftest import Plans
from tests.backends.pipelines import RunPipeline, repository, run_pipeline, statuses
from tests.backends.test_interruption import ml_run, wait_for

__all__ = ["ml_run", "repository", "run_pipeline"]

PLACE = Place("jobs/pipeline.yml", 12)
HEAD = "import argparse, os, signal, sys, time\nfrom pathlib import Path\n"
# Each file's name and ten times its number.
TENFOLD = HEAD + (
    "def init():\n"
    "    global factor\n"
    "    parser = argparse.ArgumentParser(); parser.add_argument('--factor', type=int)\n"
    "    factor = parser.parse_known_args()[0].factor; print('init')\n"
    "def run(mini_batch):\n"
    "    return [f'{Path(p).stem} {int(Path(p).read_text()) * factor}' for p in mini_batch]\n"
    "def shutdown(): print('shutdown')\n"
)
# Fails on the file 3 as often as ONCE says, told by notes beside the data's copy.
FAILS = HEAD + (
    "def run(mini_batch):\n"
    "    names = [Path(p).stem for p in mini_batch]\n"
    "    if '3' in names:\n"
    "        note = Path('tries'); note.open('a').write('x')\n"
    "        if len(note.read_text()) <= TIMES: FAULT\n"
    "    return names\n"
)
FAULTS = {
    "raise ValueError('three is bad')": "ValueError: three is bad",
    "time.sleep(600)": "run() took more than 1 s",
    "os.kill(os.getpid(), signal.SIGKILL)": "the process was ended by SIGKILL",
    "sys.exit(5)": "SystemExit: 5",
    "return 'three'": "TypeError: run() returned str",
}

Jobs = Callable[..., CommandPlan]


@pytest.fixture
def parallel(command: Plans, tmp_path: Path, home: Path) -> Jobs:
    """Makes the plan of a parallel job over five files with the numbers 1 to 5."""
    folder = tmp_path / "numbers"
    folder.mkdir()
    for number in range(1, 6):
        (folder / f"{number}.txt").write_text(str(number))

    def make(
        script: str,
        arguments: str = "",
        data: Path = folder,
        out: str = "uri_file",
        **settings: object,
    ) -> CommandPlan:
        given = InputPlan("rows", "uri_folder", PLACE, source="x", path=data)
        plan = command(script, arguments, {"scored": out}, {"rows": given})
        task = Parallel("script.py", "rows", PLACE, 2, (), "scored", max_concurrency_per_instance=2)
        return replace(plan, parallel=replace(task, **settings))

    return make


def run(plan: CommandPlan) -> Run:
    """The run of a parallel job; nothing of it is left running."""
    done = LocalBackend().run(plan)
    assert processes_of(done.id) == []
    return done


def rows(done: Run) -> list[str]:
    """The lines of the common file of a job that completed."""
    assert done.status == "Completed", done.error
    return done.outputs["scored"].read_text().splitlines()


def table(done: Run) -> list[dict[str, str]]:
    """What became of every mini-batch."""
    with (done.folder / "logs" / "mini_batches.csv").open(newline="") as source:
        return list(csv.DictReader(source))


def printed(done: Run) -> str:
    return files.log(done.folder).read_text()


def test_all_that_run_returns_in_one_file(parallel: Jobs) -> None:
    """Two files a mini-batch, in order; arguments by argparse; init and shutdown once a process."""
    done = run(parallel(TENFOLD, "--factor 10"))
    assert rows(done) == ["1 10", "2 20", "3 30", "4 40", "5 50"]
    assert [row["items"] for row in table(done)] == ["2", "2", "1"]
    assert "3 mini-batches of 5 items" in printed(done)
    assert done.warnings == ()
    logs = [path.read_text() for path in done.folder.glob("logs/process_*.txt")]
    assert logs and all(log.splitlines() == ["init", "shutdown"] for log in logs)


def test_a_folder_gets_a_common_file(parallel: Jobs) -> None:
    """By the name that Azure ML gives it; without `append_row_to` there is none."""
    done = run(parallel(TENFOLD, "--factor 1", out="uri_folder"))
    assert (done.outputs["scored"] / "parallel_run_step.txt").read_text().count("\n") == 5
    none = run(parallel(TENFOLD, "--factor 1", out="uri_folder", append_row_to=""))
    assert list(none.outputs["scored"].iterdir()) == []


def test_rows_of_frames(parallel: Jobs) -> None:
    """Separated by blanks, without a header unless it is asked for, and then once."""
    script = (
        "import pandas as pd\n"
        "def run(batch): return pd.DataFrame({'file': [p[-5] for p in batch], 'n': 1})\n"
    )
    plain = [f"{number} 1" for number in range(1, 6)]
    assert rows(run(parallel(script))) == plain
    with_header = parallel(script, "--append_row_dataframe_header True")
    assert rows(run(with_header)) == ["file n", *plain]


def test_processes_work_at_the_same_time(parallel: Jobs, monkeypatch: pytest.MonkeyPatch) -> None:
    """Two mini-batches that wait for each other both end."""
    for module in ("backend", "parallel.parallel"):
        monkeypatch.setattr(f"ml.backends.local.{module}.cores", lambda: 2)
    script = HEAD + (
        "def run(batch):\n"
        "    Path(f'here-{os.getpid()}').touch()\n"
        "    while len(list(Path().glob('here-*'))) < 2: time.sleep(0.01)\n"
        "    return batch\n"
    )
    done = run(parallel(script, mini_batch_size=1))
    assert len(rows(done)) == 5
    assert {row["process"] for row in table(done)} == {"0", "1"}


@pytest.mark.parametrize("fault", FAULTS)
def test_a_mini_batch_is_tried_again(parallel: Jobs, fault: str) -> None:
    """After an exception, a timeout, a killed process, an exit, a wrong type; rows come once."""
    script = FAILS.replace("FAULT", fault).replace("TIMES", "2")
    done = run(parallel(script, max_retries=2, run_timeout_s=1.0, mini_batch_error_threshold=0))
    assert rows(done) == ["1", "2", "3", "4", "5"]
    assert [row["tries"] for row in table(done)] == ["1", "3", "1"]
    assert done.warnings == ()
    assert f"mini-batch 1, try 2 of 3: {FAULTS[fault]}" in printed(done)


@pytest.mark.parametrize("fault", FAULTS)
def test_one_that_fails_every_time(parallel: Jobs, fault: str) -> None:
    """The job goes on without it as far as the threshold allows, and says so."""
    script = FAILS.replace("FAULT", fault).replace("TIMES", "99")
    done = run(parallel(script, max_retries=1, run_timeout_s=1.0, mini_batch_error_threshold=1))
    assert rows(done) == ["1", "2", "5"]
    (warning,) = done.warnings
    assert warning.code == "mini-batches-failed"
    assert "1 of 3 mini-batches failed (2 of 5 items)" in warning.actual
    assert [(row["tries"], FAULTS[fault] in row["error"]) for row in table(done)][1] == ("2", True)


@pytest.mark.parametrize(
    ("arguments", "settings", "said"),
    [
        ("", {"mini_batch_error_threshold": 0}, "mini_batch_error_threshold allows (0)"),
        ("--error_threshold 1", {}, "2 items failed, more than error_threshold allows (1)"),
        ("--error_threshold=1", {"error_threshold": 9}, "more than error_threshold allows (1)"),
        ("", {"error_threshold": 1}, "more than error_threshold allows (1)"),
        ("--allowed_failed_percent 30", {}, "33 % of the mini-batches failed"),
    ],
)
def test_more_failures_than_are_allowed(
    parallel: Jobs, arguments: str, settings: dict[str, object], said: str
) -> None:
    """The job fails, says which threshold, and leaves no common file behind."""
    script = FAILS.replace("FAULT", "raise ValueError('bad')").replace("TIMES", "99")
    done = run(parallel(script, arguments, max_retries=0, **settings))
    assert done.status == "Failed"
    assert done.error is not None and said in done.error.actual
    assert "ValueError: bad" in printed(done)
    assert not done.outputs["scored"].exists()


@pytest.mark.parametrize(
    ("arguments", "settings"),
    [
        ("--error_threshold 2", {"mini_batch_error_threshold": 1}),
        ("--allowed_failed_percent 34", {}),
        ("--error_threshold -1", {"error_threshold": 0}),
    ],
)
def test_as_many_failures_as_are_allowed(
    parallel: Jobs, arguments: str, settings: dict[str, object]
) -> None:
    """The threshold itself is still fine; an argument wins over the field."""
    script = FAILS.replace("FAULT", "raise ValueError('bad')").replace("TIMES", "99")
    assert len(rows(run(parallel(script, arguments, max_retries=0, **settings)))) == 3


def test_items_that_nothing_came_back_for(parallel: Jobs) -> None:
    """They count, the mini-batch counts, the rows that came are kept, and it is not run again."""
    script = HEAD + (
        "def run(batch):\n    Path('runs').open('a').write('x')\n"
        "    return [Path(p).stem for p in batch if '3' not in Path(p).name]\n"
    )
    done = run(parallel(script))
    assert rows(done) == ["1", "2", "4", "5"]
    assert "1 of 3 mini-batches failed (1 of 5 items)" in done.warnings[0].actual
    assert [row["tries"] for row in table(done)] == ["1", "1", "1"]
    failed = run(parallel(script, "--error_threshold 0"))
    assert failed.error is not None and "1 item failed" in failed.error.actual


def test_rows_are_whole_or_not_there(parallel: Jobs) -> None:
    """A process that is killed in the middle of writing leaves nothing in the common file."""
    script = HEAD + (
        "whole = Path.write_text\n"
        "def half(self, text):\n"
        "    if '3' in text and not Path('killed').exists():\n"
        "        Path('killed').touch(); whole(self, text[:1]); os.kill(os.getpid(), 9)\n"
        "    return whole(self, text)\n"
        "Path.write_text = half\n"
        "def run(batch): return [f'row of {Path(p).stem}' for p in batch]\n"
    )
    done = run(parallel(script))
    assert rows(done) == [f"row of {number}" for number in range(1, 6)]
    assert table(done)[1]["tries"] == "2"


@pytest.mark.parametrize(
    ("script", "said"),
    [
        (
            "def init(): raise OSError('no model')\ndef run(batch): return batch",
            "OSError: no model",
        ),
        ("def init(): pass", "has no function run(mini_batch)"),
        ("import no_such_package", "No module named 'no_such_package'"),
        ("import os\ndef init(): os.kill(os.getpid(), 9)\ndef run(b): return b", "SIGKILL"),
    ],
)
def test_a_script_that_cannot_begin(parallel: Jobs, script: str, said: str) -> None:
    """The job fails at once, with the reason; the traceback is in the process's log."""
    done = run(parallel(script))
    assert done.status == "Failed"
    assert done.error is not None
    assert "init() failed" in done.error.actual and said in done.error.actual


def test_an_init_that_takes_too_long(parallel: Jobs) -> None:
    """`--first_task_creation_timeout` is for it; a few processes are tried."""
    script = HEAD + "def init(): time.sleep(600)\ndef run(batch): return batch\n"
    done = run(parallel(script, "--first_task_creation_timeout 1", max_concurrency_per_instance=1))
    assert done.status == "Failed"
    assert done.error is not None and "init() took more than 1 s" in done.error.actual


def test_nothing_to_process(parallel: Jobs, tmp_path: Path) -> None:
    """An empty folder is a mistake, not a job that completed."""
    (tmp_path / "empty").mkdir()
    done = run(parallel(TENFOLD, "--factor 1", data=tmp_path / "empty"))
    assert done.status == "Failed"
    assert done.error is not None and "there is nothing to process" in done.error.actual


def test_a_job_that_takes_too_long(parallel: Jobs) -> None:
    """The time limit of the job ends every process."""
    plan = parallel(HEAD + "def run(batch): time.sleep(600)\n")
    done = run(replace(plan, timeout_s=1.5))
    assert (done.status, done.ended_by) == ("Canceled", "timeout")


def test_a_node_that_goes(parallel: Jobs) -> None:
    """An eviction in the middle: the job begins anew, and its rows are there once."""
    script = HEAD + (
        "def run(batch):\n"
        "    note = Path('outputs/tries')\n"
        "    if not note.exists(): note.touch(); time.sleep(600)\n"
        "    return [Path(p).stem for p in batch]\n"
    )
    backend = LocalBackend(Options(evict_after=(1.5,)))
    done = backend.run(parallel(script, max_concurrency_per_instance=1))
    assert rows(done) == ["1", "2", "3", "4", "5"]
    assert len(done.restarts) == 1


def _csv_table(tmp_path: Path, transformations: str = "") -> Path:
    """An MLTable of two files: 8 rows of 2 stores, then 4 of a third."""
    folder = tmp_path / "table"
    folder.mkdir()
    parts = ([*["a,1"] * 4, *["b,1"] * 4], ["c,2"] * 4)
    for number, lines in enumerate(parts):
        (folder / f"{number}.csv").write_text("\n".join(["store,n", *lines]) + "\n")
    (folder / "MLTable").write_text(
        "paths:\n  - pattern: ./*.csv\ntransformations:\n  - read_delimited:\n"
        f"      delimiter: ','\n{transformations}"
    )
    return folder


COUNTS = "def run(rows): return [f'{s} {n}' for s, n in zip(rows['store'], rows['n'])]\n"
PER_KEY = "def run(rows, context): return [f'{context.partition_key_value} {len(rows)}']\n"


@pytest.mark.parametrize(("size", "batches"), [(25, ["4", "4", "4"]), (1000, ["8", "4"])])
def test_a_table_by_size(parallel: Jobs, tmp_path: Path, size: int, batches: list[str]) -> None:
    """DataFrames of about so many bytes that never cross the boundary of a file."""
    done = run(parallel(COUNTS, data=_csv_table(tmp_path), mini_batch_size=size))
    assert rows(done) == ["a 1"] * 4 + ["b 1"] * 4 + ["c 2"] * 4
    assert [row["items"] for row in table(done)] == batches


def test_a_table_by_its_keys(parallel: Jobs, tmp_path: Path) -> None:
    """A mini-batch for each value, which the script can ask for; one row back is enough."""
    plan = parallel(PER_KEY, data=_csv_table(tmp_path), partition_keys=("store",))
    done = run(replace(plan, parallel=replace(plan.parallel, mini_batch_error_threshold=0)))
    assert rows(done) == [f"{{'store': '{store}'}} 4" for store in "abc"]
    assert done.warnings == ()
    lost = run(parallel(PER_KEY, data=tmp_path / "table", partition_keys=("shop",)))
    assert lost.error is not None and "no column `shop`" in lost.error.actual


def test_what_is_said_before(parallel: Jobs, tmp_path: Path) -> None:
    """Fewer processes than the nodes had; a table that cannot be read here is refused."""
    plan = replace(parallel(TENFOLD), instance_count=50)
    assert any(
        "100 processes of a parallel step →" in one for one in LocalBackend().differences(plan)
    )
    assert not any("distribution" in one for one in LocalBackend().differences(plan))
    assert LocalBackend().refusals(plan) == ()
    data = _csv_table(tmp_path, "  - filter: 'col(\"n\") > 1'\n")
    (problem,) = LocalBackend().refusals(parallel(TENFOLD, data=data))
    assert (problem.code, problem.place) == ("unsupported-mltable", PLACE)
    assert "`filter` is not supported here" in problem.actual
    (problem,) = LocalBackend().refusals(parallel(TENFOLD, partition_keys=("store",)))
    assert "only the rows of a table" in problem.actual


PIPELINE = """
jobs:
  make: {@, command: 'echo 7 > ${{outputs.out}}/7.txt', outputs: {out: {type: uri_folder}}}
  score:
    type: parallel
    inputs: {rows: '${{parent.jobs.make.outputs.out}}'}
    outputs: {scored: {type: uri_file}}
    input_data: ${{inputs.rows}}
    environment_variables: {WHO: me}
    task:
      type: run_function
      code: src
      entry_script: score.py
      environment: azureml:e:1
      program_arguments: --times 2
      append_row_to: ${{outputs.scored}}
  read: {@, command: 'cat ${{inputs.x}}', inputs: {x: '${{parent.jobs.score.outputs.scored}}'}}
"""
SCORE = "import os, sys\ndef run(batch): return [' '.join([os.environ['WHO'], *sys.argv[1:]])]\n"


def test_a_step_between_others(run_pipeline: RunPipeline, repository: Path) -> None:
    """It takes what a step wrote, hands on what run() returned, and is reused when unchanged."""
    (repository / "src").mkdir()
    (repository / "src" / "score.py").write_text(SCORE)
    done = run_pipeline(PIPELINE)
    assert statuses(done) == dict.fromkeys(("make", "score", "read"), "Completed")
    assert files.log(done.step("read").folder).read_text() == "me --times 2\n"
    assert set(statuses(run_pipeline(PIPELINE)).values()) == {"reused"}
    changed = run_pipeline(PIPELINE.replace("--times 2", "--times 3"))
    assert statuses(changed) == {"make": "reused", "score": "Completed", "read": "Completed"}


SPEC = """
type: pipeline
experiment_name: tests
compute: azureml:c
jobs:
  score:
    type: parallel
    inputs: {rows: {type: uri_folder, path: ../code}}
    outputs: {scored: {type: uri_file}}
    input_data: ${{inputs.rows}}
    task: {type: run_function, code: ../code, entry_script: script.py, environment: azureml:e:1}
"""


@pytest.mark.slow
def test_a_killed_executor_leaves_no_process(
    home: Path, ml_run: Callable[..., subprocess.Popen[str]]
) -> None:
    """SIGKILL of `ml run`: what drives the mini-batches ends, and those that work on them."""
    executor = ml_run(SPEC, HEAD + "def run(batch): print('ready'); time.sleep(600)\n")
    wait_for(lambda: list((home / "jobs").glob("*/steps/score/logs/process_0.txt")), executor)
    log = next((home / "jobs").glob("*/steps/score/logs/process_0.txt"))
    wait_for(lambda: "ready" in log.read_text(), executor)
    run_id = LocalRuns().find("latest").step("score").id
    assert len(processes_of(run_id)) >= 2
    executor.kill()
    executor.wait()
    deadline = time.monotonic() + 30
    while processes_of(run_id):
        assert time.monotonic() < deadline, "orphans"
        time.sleep(0.1)
