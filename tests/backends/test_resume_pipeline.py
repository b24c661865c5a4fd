"""A pipeline that was stopped goes on: completed steps are kept, sweeps and pipelines in it too."""

from __future__ import annotations

import time
from functools import partial
from multiprocessing.process import BaseProcess
from pathlib import Path

import pytest

from ml.backends.local.execution import resumption
from ml.backends.local.runs.store import LocalRuns
from ml.backends.runs import Run
from ml.core.errors import UserError
from ml.specs.plan.planning import plan
from ml.specs.sdk.load import load
from tests.backends.executors import begin, kill, locks, only, settled, start
from tests.backends.pipelines import planned, statuses, write
from tests.backends.pipelines import repository as repository

# `b`, the second step of the nested pipeline and the sweep's later trials wait for `go`.
WAIT = "touch HERE/{name}; while ! test -e HERE/go; do sleep 0.02; done"
TEXT = """
jobs:
  a: {@, command: "date +%N > ${{outputs.o}}; date +%N > outputs/n",
    outputs: {o: {type: uri_file}, default: null}}
  b: {@, command: "WAIT; cat ${{inputs.x}}", inputs: {x: "${{parent.jobs.a.outputs.o}}"}}
  n: {type: pipeline, component: ./inner.yml}
  last: {@, command: "cp ${{inputs.x}} ${{outputs.o}}; cp ${{inputs.d}}/outputs/n outputs",
    inputs: {x: "${{parent.jobs.a.outputs.o}}", d: "${{parent.jobs.a.outputs.default}}"},
    outputs: {o: {type: uri_file}}}
"""
INNER = """
jobs:
  i: {@, command: "date +%N > ${{outputs.o}}", outputs: {o: {type: uri_file}}}
  j: {@, command: "WAIT; cat ${{inputs.x}}", inputs: {x: "${{parent.jobs.i.outputs.o}}"}}
"""


def stopped(repository: Path, text: str = TEXT, inner: str = INNER) -> Run:
    """The pipeline's run, its executor killed while `b` and `j` run."""
    waits = {name: WAIT.format(name=name).replace("HERE", str(repository)) for name in "bj"}
    path = write(repository, inner.replace("WAIT", waits["j"]), "inner.yml")
    path.write_text(path.read_text().replace("experiment_name: tests", 'name: i\nversion: "1"'))
    executor = start(begin(planned(repository, text.replace("WAIT", waits["b"]))))
    wait(repository, executor)
    kill(executor)
    return only()


def wait(repository: Path, executor: BaseProcess, names: str = "bj") -> None:
    """Until those steps run."""
    while not all((repository / name).exists() for name in names):
        assert executor.is_alive()
        time.sleep(0.01)


def test_completed_steps_are_kept(home: Path, repository: Path) -> None:
    """Also those of a nested pipeline, which is the same run as before; what ran runs again."""
    dead = stopped(repository)
    assert (dead.status, dead.ended_by) == ("Canceled", "executor-killed")
    stamps = [dead.step(name).outputs["o"].read_text() for name in ("a",)]
    (repository / "go").touch()
    run = resumption.resume(dead)
    assert (run.status, run.id) == ("Completed", dead.id), run.error
    assert statuses(run) == dict.fromkeys(("a", "b", "n", "last"), "Completed")
    assert run.step("a") == dead.step("a")
    assert run.step("last").outputs["o"].read_text() == stamps[0]
    nested, before = run.step("n"), dead.step("n")
    assert nested.id == before.id
    assert nested.step("i") == before.step("i")
    assert [one.ended_by for one in (*run.pauses, *nested.pauses)] == ["executor-killed"] * 2
    for again, first in ((run.step("b"), dead.step("b")), (nested.step("j"), before.step("j"))):
        assert again.former[0].id == first.id != again.id
        assert again.former[0].folder.is_dir()
    assert LocalRuns().find(run.name) == run
    assert locks(home) == []
    settled(run)


def test_a_step_that_was_cut_off_finds_its_mounted_outputs(home: Path, repository: Path) -> None:
    """As after an eviction, also when it is cut off twice; what is uploaded at the end is lost."""
    outputs = "{c: {type: uri_folder}, u: {type: uri_folder, mode: upload}}"
    train = "echo step >> ${{outputs.c}}/at; echo step >> ${{outputs.u}}/at; WAIT"
    text = f"jobs:\n  b: {{@, command: '{train}', outputs: {outputs}}}\n"
    dead = stopped(repository, text + "  n: {type: pipeline, component: ./inner.yml}\n")
    (repository / "b").unlink()
    executor = start(partial(resumption.resume, dead))
    wait(repository, executor)
    kill(executor)
    (repository / "go").touch()
    run = resumption.resume(only())
    assert run.status == "Completed", run.error
    step = run.step("b")
    assert len(step.former) == 2
    assert (step.outputs["c"] / "at").read_text() == "step\n" * 3
    assert (step.outputs["u"] / "at").read_text() == "step\n"


def test_a_step_that_failed_stays_failed(home: Path, repository: Path) -> None:
    """As if nothing had happened in between: what does not need it goes on, the pipeline fails."""
    bad = "  bad: {@, command: 'exit 3'}\n"
    dead = stopped(repository, TEXT.replace("jobs:\n", f"jobs:\n{bad}"))
    (repository / "go").touch()
    run = resumption.resume(dead)
    assert (run.status, run.step("bad").status) == ("Failed", "Failed")
    assert run.step("bad").id == dead.step("bad").id
    assert run.step("last").status == "Completed"
    with pytest.raises(UserError, match="not-interrupted"):
        resumption.resume(run)


def test_a_completed_step_whose_output_is_gone_runs_again(home: Path, repository: Path) -> None:
    """Others wait for it."""
    dead = stopped(repository)
    settled(dead)
    dead.step("a").outputs["o"].unlink()
    (repository / "go").touch()
    run = resumption.resume(dead)
    assert run.status == "Completed", run.error
    assert run.step("a").id != dead.step("a").id


def test_a_reused_step_is_kept_with_what_it_took_over(home: Path, repository: Path) -> None:
    """Its implicit output is that of the run that wrote it."""
    first = stopped(repository)
    settled(first)
    for mark in "bj":
        (repository / mark).unlink()
    executor = start(begin(plan(load(repository / "pipeline.yml"))))
    wait(repository, executor, "j")  # which has both cores, since nothing ran beside it
    kill(executor)
    dead = next(run for run in LocalRuns().all() if run.id != first.id)
    assert dead.step("a").reused_from == first.step("a").name
    (repository / "go").touch()
    run = resumption.resume(dead)
    assert run.status == "Completed", run.error
    assert run.step("a") == dead.step("a")


def test_the_same_pipeline_twice_at_once_does_not_collide(home: Path, repository: Path) -> None:
    """Each has its own steps; both complete."""
    text = "jobs:\n  a: {@, command: 'date +%N > ${{outputs.o}}', outputs: {o: {type: uri_file}}}\n"
    text += "  b: {@, command: 'cat ${{inputs.x}}', inputs: {x: '${{parent.jobs.a.outputs.o}}'}}\n"
    made = planned(repository, text)
    both = [start(begin(made)) for _ in range(2)]
    for one in both:
        one.join()
    assert [one.exitcode for one in both] == [0, 0]
    first, second = LocalRuns().all()
    assert {first.status, second.status} == {"Completed"}
    assert {one.id for one in first.below()}.isdisjoint(one.id for one in second.below())


def test_a_pipeline_takes_no_limit(home: Path, repository: Path) -> None:
    """`--timeout` is a sweep's."""
    dead = stopped(repository)
    with pytest.raises(UserError, match="no-timeout"):
        resumption.plan_of(dead, 10)
    settled(dead)
