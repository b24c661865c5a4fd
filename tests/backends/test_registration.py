"""Outputs that name an asset: registered on completion, found by later specs, never changed."""

from __future__ import annotations

import json
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

import pytest

from ml.backends.local import registration
from ml.backends.local.backend import LocalBackend
from ml.backends.local.execution import resumption
from ml.backends.local.runs import records
from ml.backends.local.runs.store import LocalRuns
from ml.backends.runs import Run
from ml.core import home as places
from ml.core.errors import UserError
from ml.specs.plan.planning import plan
from ml.specs.plan.plans import Asset, Plan, SweepPlan
from ml.specs.sdk.load import load
from tests.backends.conftest import LOG, Sweeps
from tests.backends.pipelines import repository, write

__all__ = ["repository"]

JOB = """\
command: {command}
inputs: {inputs}
outputs: {outputs}
environment: azureml:e:1
compute: azureml:c
experiment_name: tests
"""
Do = Callable[..., Run]


def planned(
    repository: Path, outputs: str = "{}", command: str = "echo hi", inputs: str = "{}"
) -> Plan:
    """The plan of a job's spec, with the assets of this machine."""
    spec = repository / "job.yml"
    spec.write_text(JOB.format(command=command, inputs=inputs, outputs=outputs))
    return plan(load(Path("job.yml")), registered=places.assets())


@pytest.fixture
def do(home: Path, repository: Path) -> Do:
    """Plans and runs a job's spec."""

    def run(*words: str, **fields: str) -> Run:
        return LocalBackend().run(planned(repository, *words, **fields))

    return run


WRITE = "echo {} > ${{{{outputs.o}}}}/a.txt"


def test_a_named_output_is_registered_and_found_by_a_later_spec(do: Do, repository: Path) -> None:
    """By its version and as the latest; the spec beside the content is one of Azure ML."""
    run = do("{o: {name: words, version: 3}}", command=WRITE.format("one"))
    assert run.registered == {"o": "azureml:words:3"}
    assert records.read(run.folder).registered == run.registered
    for reference in ("azureml:words:3", "azureml:words@latest"):
        made = planned(repository, inputs=f"{{i: {{path: '{reference}'}}}}")
        data = made.inputs["i"]  # type: ignore[union-attr]
        assert data.path is not None and (data.path / "a.txt").read_text() == "one\n"
        assert data.asset is not None and data.asset.made_by == run.name
    spec = load(places.assets() / "data" / "words" / "3" / "asset.yml")
    assert spec.kind.family == "data" and not spec.problems
    used = do(inputs="{i: {path: 'azureml:words:3'}}", command="cat ${{inputs.i}}/a.txt")
    assert (used.folder / "logs/std_log.txt").read_text() == "one\n"
    assert records.lineage(used.folder)["data"]["i"]["made_by"] == run.name


@pytest.mark.parametrize(
    ("kind", "family"),
    [("custom_model", "model"), ("mlflow_model", "model"), ("mltable", "data")],
)
def test_models_are_models(do: Do, kind: str, family: str) -> None:
    """What a model's output registers is a model asset, of its type."""
    do(f"{{o: {{type: {kind}, name: m}}}}", command=WRITE.format("m"))
    spec = load(places.assets() / family / "m" / "1" / "asset.yml")
    assert (spec.kind.family, spec.get("type"), spec.problems) == (family, kind, ())


def test_a_file_keeps_its_name(do: Do, repository: Path) -> None:
    """A `uri_file` is the file, not the folder around it."""
    do("{o: {type: uri_file, name: f}}", command="echo x > ${{outputs.o}}")
    made = planned(repository, inputs="{i: {type: uri_file, path: 'azureml:f:1'}}")
    path = made.inputs["i"].path  # type: ignore[union-attr]
    assert path is not None and path.read_text() == "x\n"


def test_versions_count_up_beyond_those_of_the_repository(do: Do, repository: Path) -> None:
    """10 comes after 9; what a spec of the repository defines is taken too."""
    (repository / "words").mkdir()
    (repository / "ml").mkdir()
    (repository / "ml" / "words.yml").write_text(
        "$schema: https://azuremlschemas.azureedge.net/latest/data.schema.json\n"
        "name: words\nversion: 9\ntype: uri_folder\npath: ../words\n"
    )
    for number in (10, 11):
        run = do("{o: {name: words}}", command=WRITE.format(number))
        assert run.registered == {"o": f"azureml:words:{number}"}
    made = planned(repository, inputs="{i: {path: 'azureml:words@latest'}}")
    assert made.inputs["i"].asset.version == "11"  # type: ignore[union-attr]


def test_a_version_does_not_change(do: Do, repository: Path) -> None:
    """The same content is that version; other content fails the run and is told before."""
    outputs = "{o: {name: words, version: 1}}"
    first = do(outputs, command=WRITE.format("one"))
    again = do(outputs, command=WRITE.format("one"))
    assert again.registered == first.registered
    said = LocalBackend().differences(planned(repository, outputs))
    assert any("other content fails the run" in line for line in said)
    other = do(outputs, command=WRITE.format("two"))
    assert other.status == "Failed"
    assert other.error is not None and other.error.code == "asset-immutable"
    assert str(other.error.place) == "job.yml:3"
    assert (other.outputs["o"] / "a.txt").read_text() == "two\n"
    found = places.assets() / "data" / "words" / "1" / "content" / "a.txt"
    assert found.read_text() == "one\n"


def test_content_that_was_changed_is_refused(do: Do, repository: Path) -> None:
    """A plan compares the digest; a person who edits an asset hears of it."""
    do("{o: {name: words}}", command=WRITE.format("one"))
    content = places.assets() / "data" / "words" / "1" / "content" / "a.txt"
    assert not content.stat().st_mode & 0o222
    content.unlink()
    content.write_text("edited")
    with pytest.raises(UserError) as error:
        planned(repository, inputs="{i: {path: 'azureml:words:1'}}")
    assert [problem.code for problem in error.value.problems] == ["asset-changed"]


def test_the_repository_comes_first_and_the_other_is_named(do: Do, repository: Path) -> None:
    """Of the same name and version the repository's counts; a newer one of a run is the latest."""
    do("{o: {name: words, version: 1}}", command=WRITE.format("run"))
    (repository / "words").mkdir()
    (repository / "words" / "a.txt").write_text("repository\n")
    (repository / "ml").mkdir()
    (repository / "ml" / "words.yml").write_text(
        "name: words\nversion: 1\ntype: uri_folder\npath: ../words\n"
    )
    made = planned(repository, inputs="{i: {path: 'azureml:words:1'}}")
    assert made.inputs["i"].path == repository / "words"  # type: ignore[union-attr]
    said = LocalBackend().differences(made)
    assert any("registered another of that name and version here" in line for line in said)
    do("{o: {name: words, version: 2}}", command=WRITE.format("newer"))
    made = planned(repository, inputs="{i: {path: 'azureml:words@latest'}}")
    assert made.inputs["i"].asset.version == "2"  # type: ignore[union-attr]


def test_nothing_is_registered_of_a_run_that_failed_or_wrote_nothing(do: Do) -> None:
    """A failed run's output is no asset; an empty one is warned of."""
    failed = do("{o: {name: words}}", command=WRITE.format("x") + "; exit 3")
    empty = do("{o: {name: words}}")
    assert (failed.status, dict(failed.registered)) == ("Failed", {})
    assert (empty.status, dict(empty.registered)) == ("Completed", {})
    assert [warning.code for warning in empty.warnings] == ["output-empty"]
    assert not (places.assets() / "data").exists()


def test_somebodys_data_stays_writable(do: Do, repository: Path) -> None:
    """An output that is a link to data, or another name of it, becomes a copy."""
    data = repository / "data.txt"
    data.write_text("mine")
    text = f"ln -s {data} ${{{{outputs.o}}}}/soft && ln {data} ${{{{outputs.o}}}}/hard"
    run = do("{o: {name: words}}", command=text)
    assert run.registered == {"o": "azureml:words:1"}
    assert data.stat().st_mode & 0o200
    content = places.assets() / "data" / "words" / "1" / "content"
    assert [(content / name).read_text() for name in ("soft", "hard")] == ["mine", "mine"]


@pytest.mark.parametrize(
    ("fields", "code"),
    [
        ("name: '../../escape'", "invalid-field"),  # the SDK's own rule
        ("name: words, version: '../../escape'", "bad-name"),
        ("name: words, version: '.hidden'", "bad-name"),
        ("name: words, version: 'a b'", "bad-name"),
    ],
)
def test_a_name_that_is_none_is_refused(repository: Path, fields: str, code: str) -> None:
    """Names and versions are folders here: they cannot lead elsewhere."""
    with pytest.raises(UserError) as error:
        planned(repository, f"{{o: {{{fields}}}}}")
    assert [problem.code for problem in error.value.problems] == [code]


def test_the_best_trial_is_registered_and_no_other(home: Path, sweep: Sweeps) -> None:
    """One version a sweep, with what the best trial wrote."""
    script = LOG + (
        "log('score', float(sys.argv[1]))\n(Path(sys.argv[2]) / 'x').write_text(sys.argv[1])\n"
    )
    made: SweepPlan = sweep(script, {"o": "custom_model"})
    output = replace(made.trial.outputs["o"], asset=Asset("m", ""))
    command = "python script.py ${{search_space.x}} ${{outputs.o}}"
    trial = replace(made.trial, outputs={"o": output}, command=command)
    run = LocalBackend().run(replace(made, trial=trial))
    assert run.registered == {"o": "azureml:m:1"}
    (version,) = (places.assets() / "model" / "m").iterdir()
    best = max(run.trials, key=lambda trial: trial.metrics["score"])
    assert (version / "content" / "x").read_text() == (best.outputs["o"] / "x").read_text()


def cut_off(run: Run) -> None:
    """As if its executor had been killed when the run was registered and not yet closed."""
    record = records.document(run.folder) | {"status": "Running", "ended": None, "registered": {}}
    (run.folder / records.FILE).write_text(json.dumps(record))
    (places.run_locks() / run.name).touch()


def registering(sweep: Sweeps, here: Path, version: str) -> SweepPlan:
    """A sweep that registers what its best trial wrote; trials log what a file says, or 1."""
    script = LOG + (
        f"other = Path('{here}/other')\n"
        "log('score', float(other.read_text()) if other.exists() else 1.0)\n"
        "(Path(sys.argv[2]) / 'x').write_text(sys.argv[1])\n"
    )
    made: SweepPlan = sweep(script, {"o": "custom_model"})
    output = replace(made.trial.outputs["o"], asset=Asset("m", version))
    command = "python script.py ${{search_space.x}} ${{outputs.o}}"
    return replace(made, trial=replace(made.trial, outputs={"o": output}, command=command))


@pytest.mark.parametrize("version", ["", "7"])
def test_a_sweep_that_was_cut_off_registers_once(
    home: Path, sweep: Sweeps, tmp_path: Path, version: str
) -> None:
    """What it had registered already is what it registers when it goes on."""
    run = LocalBackend().run(registering(sweep, tmp_path, version))
    cut_off(run)
    again = resumption.resume(LocalRuns().find(run.name))
    assert (again.status, again.best, again.registered) == (run.status, run.best, run.registered)
    assert len(list((places.assets() / "model" / "m").iterdir())) == 1


def test_a_sweep_whose_best_changed_says_that_the_version_is_its_own(
    home: Path, sweep: Sweeps, tmp_path: Path
) -> None:
    """A trial that was lost is run again and is the best now: a version does not change."""
    run = LocalBackend().run(registering(sweep, tmp_path, "7"))
    cut_off(run)
    (run.folder / "trials" / "2" / records.FILE).write_text("")
    (tmp_path / "other").write_text("2.0")
    again = resumption.resume(LocalRuns().find(run.name))
    assert (again.status, again.best) == ("Failed", f"{run.name}_2")
    assert again.error.code == "asset-immutable"
    assert again.error.actual.startswith("`azureml:m:7` was registered by this run before it")
    assert (again.outputs["o"] / "x").read_text() == str(again.trials[2].parameters["x"])
    (version,) = (places.assets() / "model" / "m").iterdir()
    kept = (version / "content" / "x").read_text()
    assert kept == str(run.trials[0].parameters["x"])


def test_steps_and_the_pipeline_register(home: Path, repository: Path) -> None:
    """A step's own output and the pipeline's; a reused step keeps the version it had."""
    text = (
        "outputs: {p: {name: whole}}\njobs:\n"
        "  a: {@, command: 'echo x > ${{outputs.o}}/x', outputs: {o: {name: part}}}\n"
        "  b: {@, command: 'cp ${{inputs.i}}/x ${{outputs.o}}/',\n"
        "      inputs: {i: '${{parent.jobs.a.outputs.o}}'},\n"
        "      outputs: {o: '${{parent.outputs.p}}'}}\n"
    )
    runs = [
        LocalBackend().run(
            plan(load(write(repository, text).relative_to(repository)), registered=places.assets())
        )
        for _ in range(2)
    ]
    assert runs[0].step("a").registered == {"o": "azureml:part:1"}
    assert runs[0].registered == {"p": "azureml:whole:1"}
    assert runs[1].step("a").reused_from and runs[1].step("a").registered == {"o": "azureml:part:1"}


def test_two_at_once_get_two_versions(home: Path, repository: Path, tmp_path: Path) -> None:
    """Registering takes turns; nothing half made is left."""
    made = planned(repository, "{o: {name: words}}")
    run = LocalBackend().run(planned(repository))

    def one(number: int) -> str:
        folder = tmp_path / str(number)
        folder.mkdir()
        (folder / "a").write_text(str(number))
        closed = registration.register_outputs(made.outputs, replace(run, outputs={"o": folder}))  # type: ignore[union-attr]
        return closed.registered["o"]

    with ThreadPoolExecutor(4) as pool:
        found = list(pool.map(one, range(8)))
    assert sorted(found) == sorted(f"azureml:words:{number}" for number in range(1, 9))
    assert not list(places.assets().glob(".unfinished-*"))
