"""From data to model: the runs on the way, through steps, reuse and registered assets."""

from __future__ import annotations

import shutil
from pathlib import Path

from ml.backends.local.backend import LocalBackend
from ml.backends.local.runs.store import LocalRuns
from ml.backends.runs import LineageNode, Run
from ml.cli.render.runs_text import lineage_json, lineage_lines
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
    (root / "ml").mkdir()
    spec = "name: words\nversion: 1\ntype: uri_folder\npath: ../words\n"
    (root / "ml" / "words.yml").write_text(spec)


def by_name(nodes: list[LineageNode]) -> dict[str, LineageNode]:
    return {node.run.name.rpartition(".")[2]: node for node in nodes}


def test_the_way_through_a_pipeline(home: Path, repository: Path) -> None:
    """Each step after the one that it reads from, the pipeline last; data with its version."""
    made(repository)
    whole = run(repository, PIPELINE)
    nodes = LocalRuns().lineage(whole)
    assert [node.run.name.rpartition(".")[2] for node in nodes] == ["prepare", "train", whole.name]
    (datum,) = nodes[0].inputs
    assert (datum.source, datum.digest) == ("azureml:words:1", digest(repository / "words"))
    (datum,) = nodes[1].inputs
    assert (datum.run, datum.output) == (f"{whole.name}.prepare", "o")
    assert datum.digest == nodes[0].outputs[0].digest
    (model,) = nodes[2].outputs
    assert model.asset == "azureml:speller:1"
    assert model.digest == nodes[1].outputs[0].digest
    assert nodes[0].code["digest"] == "" and nodes[0].code["dirty"] is True


def test_a_step_alone_shows_what_led_to_it(home: Path, repository: Path) -> None:
    """The steps before it, and not those after."""
    made(repository)
    whole = run(repository, PIPELINE)
    assert len(LocalRuns().lineage(whole.step("prepare"))) == 1
    nodes = LocalRuns().lineage(whole.step("train"))
    assert [node.run.name for node in nodes] == [f"{whole.name}.prepare", f"{whole.name}.train"]


def test_reused_steps_have_the_same_way(home: Path, repository: Path) -> None:
    """With the run that they were taken from, and the same digests."""
    made(repository)
    first, second = run(repository, PIPELINE), run(repository, PIPELINE)
    ours, theirs = by_name(LocalRuns().lineage(second)), by_name(LocalRuns().lineage(first))
    assert ours["train"].run.reused_from == f"{first.name}.train"
    for name in ("prepare", "train"):
        assert ours[name].outputs[0].digest == theirs[name].outputs[0].digest
        assert ours[name].inputs[0].digest == theirs[name].inputs[0].digest
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
    nodes = LocalRuns().lineage(second.step("use"))
    assert [node.run.name for node in nodes][-2:] == [first.name, f"{second.name}.use"]
    (datum,) = nodes[-1].inputs
    assert (datum.source, datum.run, datum.output) == ("azureml:speller:1", first.name, "model")
    shutil.rmtree(first.folder)
    (node,) = LocalRuns().lineage(second.step("use"))
    assert node.inputs[0].run == first.name


def test_a_path_in_another_runs_folder_leads_there(home: Path, repository: Path) -> None:
    """As `--set inputs.m=.local/jobs/…/outputs/model` gives it."""
    made(repository)
    first = run(repository, PIPELINE)
    path = first.folder / "steps" / "train" / "outputs" / "m"
    text = "jobs:\n  use: {@, command: 'true', inputs: {m: {path: none}}}\n"
    second = run(repository, text, jobs__use__inputs__m__path=str(path))
    (datum,) = LocalRuns().lineage(second.step("use"))[-1].inputs
    assert (datum.run, datum.output) == (f"{first.name}.train", "m")


def test_what_is_gone_says_so(home: Path, repository: Path) -> None:
    """An output that was removed has no digest any more."""
    made(repository)
    whole = run(repository, PIPELINE)
    shutil.rmtree(whole.folder / "steps" / "prepare" / "outputs")
    nodes = by_name(LocalRuns().lineage(whole))
    assert nodes["prepare"].outputs[0].digest is None
    found = lineage_json(LocalRuns().lineage(whole), [])["runs"]
    assert found[0]["outputs"]["o"]["digest"] is None
    assert found[0]["environment"]["interpreter"]["built"] == ""
    assert any("(gone)" in text for _, text in lineage_lines(LocalRuns().lineage(whole), []))
