"""From data to model: the runs on the way, through steps, reuse and registered assets."""

from __future__ import annotations

import shutil
from pathlib import Path

from ml.backends.base import Link, Run
from ml.backends.local.backend import LocalBackend
from ml.backends.local.runs.store import LocalRuns
from ml.cli.commands.runs.lineage import as_json, lineage_lines
from ml.core import home as places
from ml.specs.assets.assets import digest
from ml.specs.plan.planning import plan
from ml.specs.sdk.load import load
from tests.backends.pipelines import repository, write

__all__ = ["repository"]

PIPELINE = """\
inputs: {d: {path: 'azureml:words:1'}}
outputs: {model: {name: speller}}
jobs:
  prepare: {@, command: 'cp ${{inputs.d}}/a ${{outputs.o}}/b', inputs: {d: '${{parent.inputs.d}}'},
            outputs: {o: null}}
  train: {@, command: 'cp ${{inputs.i}}/b ${{outputs.m}}/m',
          inputs: {i: '${{parent.jobs.prepare.outputs.o}}'},
          outputs: {m: '${{parent.outputs.model}}'}}
"""


def run(root: Path, text: str, **changes: str) -> Run:
    """Plans and runs a pipeline of the repository, with the assets of this machine."""
    fields = {name.replace("__", "."): value for name, value in changes.items()}
    spec = load(write(root, text).relative_to(root), fields)
    return LocalBackend().run(plan(spec, registered=places.assets()))


def made(root: Path) -> None:
    """The data asset that the pipeline reads."""
    (root / "words").mkdir()
    (root / "words" / "a").write_text("hello")
    (root / "words.yml").write_text("name: words\nversion: 1\ntype: uri_folder\npath: words\n")


def by_name(links: list[Link]) -> dict[str, Link]:
    return {link.run.name.rpartition(".")[2]: link for link in links}


def test_the_way_through_a_pipeline(home: Path, repository: Path) -> None:
    """Each step after the one that it reads from, the pipeline last; data with its version."""
    made(repository)
    whole = run(repository, PIPELINE)
    links = LocalRuns().lineage(whole)
    assert [link.run.name.rpartition(".")[2] for link in links] == ["prepare", "train", whole.name]
    (datum,) = links[0].data
    assert (datum.what, datum.digest) == ("azureml:words:1", digest(repository / "words"))
    (datum,) = links[1].data
    assert (datum.run, datum.output) == (f"{whole.name}.prepare", "o")
    assert datum.digest == links[0].made[0].digest
    (model,) = links[2].made
    assert model.asset == "azureml:speller:1"
    assert model.digest == links[1].made[0].digest
    assert links[0].code["digest"] == "" and links[0].code["dirty"] is True


def test_a_step_alone_shows_what_led_to_it(home: Path, repository: Path) -> None:
    """The steps before it, and not those after."""
    made(repository)
    whole = run(repository, PIPELINE)
    assert len(LocalRuns().lineage(whole.step("prepare"))) == 1
    links = LocalRuns().lineage(whole.step("train"))
    assert [link.run.name for link in links] == [f"{whole.name}.prepare", f"{whole.name}.train"]


def test_reused_steps_have_the_same_way(home: Path, repository: Path) -> None:
    """With the run that they were taken from, and the same digests."""
    made(repository)
    first, second = run(repository, PIPELINE), run(repository, PIPELINE)
    ours, theirs = by_name(LocalRuns().lineage(second)), by_name(LocalRuns().lineage(first))
    assert ours["train"].run.reused_from == f"{first.name}.train"
    for name in ("prepare", "train"):
        assert ours[name].made[0].digest == theirs[name].made[0].digest
        assert ours[name].data[0].digest == theirs[name].data[0].digest
    lines = dict(lineage_lines(LocalRuns().lineage(second), []))
    assert lines["  → model"].endswith("registered as azureml:speller:2")


def test_an_asset_leads_to_the_run_that_registered_it(home: Path, repository: Path) -> None:
    """Over any number of runs; one that is gone is still named."""
    made(repository)
    first = run(repository, PIPELINE)
    text = (
        "jobs:\n  use: {@, command: 'cat ${{inputs.m}}/m',\n"
        "        inputs: {m: {path: 'azureml:speller:1'}}}\n"
    )
    second = run(repository, text)
    links = LocalRuns().lineage(second.step("use"))
    assert [link.run.name for link in links][-2:] == [first.name, f"{second.name}.use"]
    (datum,) = links[-1].data
    assert (datum.what, datum.run, datum.output) == ("azureml:speller:1", first.name, "model")
    shutil.rmtree(first.folder)
    (link,) = LocalRuns().lineage(second.step("use"))
    assert link.data[0].run == first.name


def test_a_path_in_another_runs_folder_leads_there(home: Path, repository: Path) -> None:
    """As `--set inputs.m=.local/jobs/…/outputs/model` gives it."""
    made(repository)
    first = run(repository, PIPELINE)
    path = first.folder / "steps" / "train" / "outputs" / "m"
    text = "jobs:\n  use: {@, command: 'true', inputs: {m: {path: none}}}\n"
    second = run(repository, text, jobs__use__inputs__m__path=str(path))
    (datum,) = LocalRuns().lineage(second.step("use"))[-1].data
    assert (datum.run, datum.output) == (f"{first.name}.train", "m")


def test_what_is_gone_says_so(home: Path, repository: Path) -> None:
    """An output that was removed has no digest any more."""
    made(repository)
    whole = run(repository, PIPELINE)
    shutil.rmtree(whole.folder / "steps" / "prepare" / "outputs")
    links = by_name(LocalRuns().lineage(whole))
    assert links["prepare"].made[0].digest is None
    found = as_json(LocalRuns().lineage(whole), [])["runs"]
    assert found[0]["outputs"]["o"]["digest"] is None
    assert found[0]["environment"]["interpreter"]["built"] == ""
    assert any("(gone)" in text for _, text in lineage_lines(LocalRuns().lineage(whole), []))
