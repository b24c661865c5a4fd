"""`--isolated`: environments that uv builds from conda files, and jobs that run in them."""

from __future__ import annotations

import json
import os
import signal
import sys
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, contextmanager
from dataclasses import replace
from pathlib import Path

import pytest

from ml.backends.base import Options
from ml.backends.local.backend import LocalBackend
from ml.backends.local.environments import building
from ml.backends.local.execution import resumption
from ml.backends.local.process_environment import HERE, Interpreter
from ml.backends.local.processes.process import Reaper
from ml.backends.local.runs import records
from ml.backends.runs import Event
from ml.core import home as places
from ml.core.errors import Exit, Place, UserError
from ml.specs.plan.plans import Dependency, Environment
from tests.backends.conftest import LOG, Plans, Sweeps
from tests.backends.pipelines import planned, repository, run_pipeline
from tests.backends.wheels import wheel, wheels

__all__ = ["repository", "run_pipeline", "wheels"]
SAY = "import amber; print('amber', amber.VERSION)"


def asking(*lines: str, name: str = "e") -> Environment:
    """An environment whose conda file asks pip for the lines, and for nothing from an index."""
    found = [f"python={'.'.join(map(str, sys.version_info[:2]))}"]
    dependencies = [Dependency(one, "conda", Place("conda.yml", 2)) for one in found]
    pip = ["--no-index", *lines]
    dependencies += [Dependency(one, "pip", Place("conda.yml", 4 + i)) for i, one in enumerate(pip)]
    return Environment(name, dependencies=tuple(dependencies), place=Place("jobs/job.yml", 9))


@contextmanager
def using(
    environment: Environment, say: Callable[[str], None] = lambda line: None
) -> Iterator[Interpreter]:
    """The environment's interpreter, built if it has to be."""
    with closing(Reaper()) as reaper, building.build(environment, reaper, say) as made:
        yield made


def made() -> list[str]:
    """The environments that lie in the home."""
    found = places.environments()
    return [p.name for p in found.iterdir() if p.name != building.LOCKS] if found.exists() else []


def test_a_job_sees_what_its_conda_file_asks_for(home: Path, wheels: Path, command: Plans) -> None:
    """Another Python on PATH, with that version; the second run builds nothing."""
    wheel(wheels, "amber", "1.0")
    wheel(wheels, "amber", "2.0")
    said: list[str] = []
    plan = replace(command(SAY), environment=asking("amber==1.0"))
    runs = [LocalBackend(Options(isolated=True, say=said.append)).run(plan) for _ in range(2)]
    assert [run.status for run in runs] == ["Completed", "Completed"]
    assert [(run.folder / "logs/std_log.txt").read_text() for run in runs] == ["amber 1.0\n"] * 2
    assert [line.split()[0] for line in said] == ["building", "built", "note:", "note:"]
    (digest,) = made()
    assert records.lineage(runs[0].folder)["interpreter"]["built"] == digest


def test_trials_and_steps_run_in_theirs(
    home: Path, wheels: Path, sweep: Sweeps, repository: Path
) -> None:
    """A sweep's trials in one; the steps of a pipeline each in their own; without a file, here."""
    wheel(wheels, "amber", "1.0")
    wheel(wheels, "amber", "2.0")
    searched = sweep(SAY)
    searched = replace(searched, trial=replace(searched.trial, environment=asking("amber==1.0")))
    run = LocalBackend(Options(isolated=True)).run(searched)
    assert {(t.folder / "logs/std_log.txt").read_text() for t in run.trials} == {"amber 1.0\n"}
    steps = "".join(
        f'  s{number}:\n    type: command\n    command: python -c "{SAY}" > ${{{{outputs.o}}}}\n'
        f"    outputs: {{o: {{type: uri_file}}}}\n    environment:\n      image: i\n"
        f"      conda_file: {{dependencies: [{{pip: [--no-index, amber=={number}.0]}}]}}\n"
        for number in (1, 2)
    )
    plan = planned(repository, f"jobs:\n{steps}  s3: {{@, command: python -c 'import amber'}}\n")
    run = LocalBackend(Options(isolated=True)).run(plan)
    written = [run.step(f"s{n}").outputs["o"].read_text() for n in (1, 2)]
    assert written == ["amber 1.0\n", "amber 2.0\n"]
    assert run.step("s3").status == "Failed"


def test_an_unchanged_step_is_reused_in_the_same_environment_alone(
    home: Path, wheels: Path, repository: Path
) -> None:
    """What ran in this interpreter is no result of the environment, nor the other way round."""
    wheel(wheels, "amber", "1.0")
    conda = "{dependencies: [{pip: [--no-index, amber]}]}"
    text = (
        "jobs:\n  a:\n    type: command\n    command: echo hi > ${{outputs.o}}\n"
        "    outputs: {o: {type: uri_file}}\n"
        f"    environment: {{image: i, conda_file: {conda}}}\n"
    )
    plan = planned(repository, text)
    ways = [False, True, False, True]
    runs = [LocalBackend(Options(isolated=way)).run(plan) for way in ways]
    assert [bool(run.step("a").reused_from) for run in runs] == [False, False, True, True]


def test_two_at_once_build_once(home: Path, wheels: Path) -> None:
    """One builds, the other waits for it."""
    wheel(wheels, "amber", "1.0")
    said: list[str] = []

    def build(_: int) -> str:
        with using(asking("amber"), said.append) as interpreter:
            return str(interpreter.python)

    with ThreadPoolExecutor(2) as pool:
        pythons = set(pool.map(build, range(2)))
    assert len(pythons) == 1
    assert [line.split()[0] for line in said] == ["building", "built"]


def test_what_a_killed_build_left_is_built_again(home: Path, wheels: Path) -> None:
    """A folder without its last file was never finished."""
    wheel(wheels, "amber", "1.0")
    place = building.recipe(asking("amber")).place
    (place / "bin").mkdir(parents=True)
    (place / "bin" / "python").write_text("half")
    with using(asking("amber")) as interpreter:
        assert interpreter.python.resolve().stat().st_size > 4
    assert json.loads((place / building.COMPLETE).read_text())["requirements"]


@pytest.mark.parametrize(
    ("lines", "line", "said"),
    [
        (("nothing-of-that-name==1",), 5, "nothing-of-that-name was not found"),
        (("amber==9",), 9, "no version of amber==9"),
    ],
)
def test_a_build_that_fails_says_why_and_leaves_nothing(
    home: Path, wheels: Path, command: Plans, lines: tuple[str, ...], line: int, said: str
) -> None:
    """uv's last lines, at the line of the package where it names one that is not to be had."""
    wheel(wheels, "amber", "1.0")
    plan = replace(command(SAY), environment=asking(*lines))
    with pytest.raises(UserError) as error:
        LocalBackend(Options(isolated=True)).run(plan)
    (problem,) = error.value.problems
    assert problem.code == "environment-not-built"
    assert said in problem.actual
    assert problem.place is not None and problem.place.line == line
    assert error.value.exit_code == Exit.RUN_FAILED
    assert made() == []
    assert not places.jobs().exists()


def test_what_only_conda_has_is_refused_with_its_line(command: Plans) -> None:
    """Before anything is built; without --isolated it is a difference, no more."""
    environment = asking()
    extra = Dependency("cudatoolkit=11.3", "conda", Place("conda.yml", 7))
    environment = replace(environment, dependencies=(*(environment.dependencies or ()), extra))
    plan = replace(command(), environment=environment)
    (problem,) = LocalBackend(Options(isolated=True)).refusals(plan)
    assert (problem.code, str(problem.place)) == ("conda-only", "conda.yml:7")
    assert LocalBackend().refusals(plan) == ()


def test_an_environment_without_a_conda_file_is_nothing_to_build(command: Plans) -> None:
    """--isolated would not isolate: it is refused, at the line that names the environment."""
    plan = replace(command(), environment=Environment("azureml:e:1", place=Place("job.yml", 3)))
    (problem,) = LocalBackend(Options(isolated=True)).refusals(plan)
    assert (problem.code, str(problem.place)) == ("no-conda-file", "job.yml:3")


def test_one_place_says_which_interpreter(home: Path, wheels: Path, command: Plans) -> None:
    """Without --isolated it is this one, for every command."""
    run = LocalBackend().run(command("print(1)"))
    interpreter = records.lineage(run.folder)["interpreter"]
    assert interpreter == {"python": HERE.version, "built": ""}


def test_an_environment_in_use_is_known(home: Path, wheels: Path) -> None:
    """While a run works in it, or somebody builds it, it must not go."""
    wheel(wheels, "amber", "1.0")
    digest = building.recipe(asking("amber")).digest
    assert not building.is_used(digest)
    with using(asking("amber")):
        assert building.is_used(digest)
    assert not building.is_used(digest)


def test_a_missing_module_leads_to_isolated(home: Path, command: Plans) -> None:
    """When the job's environment may have it; not when nothing is known of the environment."""
    plan = command("import no_such_module_at_all")
    with_file = LocalBackend().run(replace(plan, environment=asking("no-such-module-at-all")))
    assert with_file.error is not None and "run it with --isolated" in with_file.error.hint
    without = LocalBackend().run(plan)
    assert without.error is not None and "has no spec here" in without.error.hint
    other = LocalBackend().run(command("raise SystemExit('no module')"))
    assert other.error is not None and "isolated" not in other.error.hint


@pytest.mark.slow
def test_an_older_mlflow_logs_over_http(home: Path, wheels: Path, command: Plans) -> None:
    """A client that cannot open the store reaches it as on Azure ML, and nothing stays behind."""
    client = (
        "import json, os, time, urllib.request\n"
        "def log_metric(key, value):\n"
        "    uri = os.environ['MLFLOW_TRACKING_URI']\n"
        "    assert uri.startswith('http://127.0.0.1:'), uri\n"
        "    body = {'run_id': os.environ['MLFLOW_RUN_ID'], 'key': key, 'value': value,\n"
        "            'timestamp': int(time.time() * 1000)}\n"
        "    urllib.request.urlopen(urllib.request.Request(\n"
        "        uri + '/api/2.0/mlflow/runs/log-metric', json.dumps(body).encode(),\n"
        "        {'Content-Type': 'application/json'}))\n"
    )
    wheel(wheels, "mlflow_skinny", "2.0", client)
    plan = command("import mlflow_skinny; mlflow_skinny.log_metric('score', 0.5)")
    plan = replace(plan, environment=asking("mlflow_skinny"))
    run = LocalBackend(Options(isolated=True)).run(plan)
    assert (run.status, run.metrics) == ("Completed", {"score": 0.5})


def test_a_stopped_sweep_goes_on_in_the_same_environment(
    home: Path, wheels: Path, sweep: Sweeps
) -> None:
    """The plan that it was begun with has the conda file's lines."""
    wheel(wheels, "amber", "1.0")
    made = sweep(LOG + SAY + "; log('score', float(sys.argv[1]))", max_concurrent_trials=1)
    made = replace(made, trial=replace(made.trial, environment=asking("amber")))

    def stop(event: Event) -> None:
        if event.kind == "trial_ended":
            os.kill(os.getpid(), signal.SIGTERM)

    stopped = LocalBackend(Options(isolated=True)).run(made, stop)
    assert stopped.status == "Canceled"
    ended = resumption.resume(stopped)
    assert ended.status == "Completed"
    logs = {(trial.folder / "logs/std_log.txt").read_text() for trial in ended.trials}
    assert logs == {"amber 1.0\n"}
