"""Ctrl-C, SIGTERM and SIGKILL in the middle of a pipeline, with real processes and signals."""

from __future__ import annotations

import signal
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from mlflow.tracking import MlflowClient

from ml.backends.local.processes.reaper import processes_of
from ml.backends.local.runs.store import LocalRuns
from ml.backends.runs import Run
from ml.core.home import tracking_uri
from tests.backends.pipelines import RunPipeline, statuses, write
from tests.backends.pipelines import repository as repository
from tests.backends.pipelines import run_pipeline as run_pipeline
from tests.forks import Program

# `b` and the step of the nested pipeline wait for a file that nobody makes before the kill.
WAIT = "touch HERE/{name}; while ! test -e HERE/go; do sleep 0.05; done"
TEXT = f"""
jobs:
  a: {{@, command: "date +%N > ${{{{outputs.o}}}}", outputs: {{o: {{type: uri_file}}}}}}
  b: {{@, command: "{WAIT.format(name="b")}", inputs: {{x: "${{{{parent.jobs.a.outputs.o}}}}"}},
    outputs: {{o: {{type: uri_folder}}}}}}
  n: {{type: pipeline, component: ./inner.yml}}
  last: {{@, command: "echo", inputs: {{x: "${{{{parent.jobs.b.outputs.o}}}}"}}}}
"""
INNER = f"""
jobs:
  i: {{@, command: "{WAIT.format(name="i")}"}}
"""
Start = Callable[[], Program]


@pytest.fixture
def start(home: Path, repository: Path) -> Iterator[Start]:
    """Starts `ml run` on the pipeline, as a person would."""
    inner = write(repository, INNER.replace("HERE", str(repository)), "inner.yml")
    inner.write_text(inner.read_text().replace("experiment_name: tests", 'name: i\nversion: "1"'))
    write(repository, TEXT.replace("HERE", str(repository)))
    started: list[Program] = []

    def run() -> Program:
        process = Program("run", "pipeline.yml")
        started.append(process)
        return process

    yield run
    for process in started:
        process.kill()


def wait_until(found: Callable[[], object], process: Program) -> None:
    """Until it is true; fails when the executor has ended before."""
    while not found():
        assert process.poll() is None, process.communicate()[1]
        time.sleep(0.05)


def gone(run: Run) -> bool:
    return not any(processes_of(one.id) for one in (run, *run.below()) if one.id)


@pytest.mark.slow
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_ends_every_step(repository: Path, start: Start, number: signal.Signals) -> None:
    """Running steps and what is in nested pipelines are Canceled; what had completed stays so."""
    process = start()
    wait_until(lambda: (repository / "b").exists() and (repository / "i").exists(), process)
    process.send_signal(number)
    said = process.communicate(timeout=60)[1]
    assert process.returncode == (130 if number == signal.SIGINT else 1), said
    assert "resume it: ml runs resume" in said
    run = LocalRuns().find("latest")
    assert (run.status, run.ended_by) == ("Canceled", number.name)
    assert run.step("a").status == "Completed"
    client = MlflowClient(tracking_uri())
    for one in (run.step("b"), run.step("n"), run.step("n").step("i"), run):
        assert (one.status, one.ended_by) == ("Canceled", number.name)
        assert client.get_run(one.id).info.status == "KILLED"
    assert run.step("last").ended_by == "not-started"
    assert gone(run)


@pytest.mark.slow
def test_after_a_kill_the_next_run_reuses_what_was_done(
    repository: Path, start: Start, run_pipeline: RunPipeline
) -> None:
    """No process is left, every run is closed, and what had completed does not run again."""
    process = start()
    wait_until(lambda: (repository / "b").exists() and (repository / "i").exists(), process)
    process.kill()
    process.communicate()
    killed = LocalRuns().find("latest")
    assert (killed.status, killed.ended_by) == ("Canceled", "executor-killed")
    assert killed.step("a").status == "Completed"
    deadline = time.monotonic() + 30
    while not gone(killed) and time.monotonic() < deadline:
        time.sleep(0.05)
    assert gone(killed)
    (repository / "go").touch()
    run = run_pipeline(TEXT.replace("HERE", str(repository)))
    expected = {"a": "reused", "b": "Completed", "n": "Completed", "last": "Completed"}
    assert (run.status, statuses(run)) == ("Completed", expected)
    stamp = killed.step("a").outputs["o"].read_text()
    assert run.step("a").outputs["o"].read_text() == stamp
    client = MlflowClient(tracking_uri())
    for one in (killed, *killed.below()):
        expected_status = "FINISHED" if one.status == "Completed" else "KILLED"
        assert client.get_run(one.id).info.status == expected_status
    closed = LocalRuns().find(killed.name)
    assert closed.status == "Canceled"
    assert closed.step("n").step("i").status == "Canceled"
