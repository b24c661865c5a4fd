"""Fixtures: a small repository for specs, and a function that returns problems of `ml check`."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from ml.core.errors import Problem, UserError
from ml.specs.check.check import check
from ml.specs.check.clusters import Cluster
from ml.specs.sdk.load import load

Check = Callable[..., list[Problem]]
# Clusters of two environments; one of them is smaller.
CLUSTERS = (
    Cluster("dev", "gpus", "Standard_NC64as_T4_v3", 2, gpus=4),
    Cluster("prod", "gpus", "Standard_ND96asr_v4", 8, gpus=8, infiniband=True),
    Cluster("dev", "cpus", "Standard_DS3_v2", 4, memory_gib=14),
    Cluster("dev", "spots", "Standard_NC4as_T4_v3", 1, gpus=1, spot=True),
)


@pytest.fixture
def repo(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Create a repository with code, data and assets; make it the working directory."""
    root = tmp_path / "repository"
    for folder in ("src", "data", "ml/assets"):
        (root / folder).mkdir(parents=True)
        (root / folder / "file.txt").write_text(Path(folder).name)
    (root / "src" / "train.py").touch()
    (root / "data" / "above.py").touch()
    (root / "data" / "MLTable").write_text("paths: [{file: ./file.txt}]\n")
    (root / "prices").mkdir()
    (root / "prices" / "MLTable").write_text(
        "paths: [{file: ./rows.csv}]\ntransformations: [{read_delimited: {delimiter: ';'}}]\n"
    )
    (root / "prices" / "rows.csv").write_text("date;price\n2026-01-01;3\n")
    (root / "pattern").mkdir()
    (root / "pattern" / "MLTable").write_text(
        "paths: [{pattern: ./*.csv}]\ntransformations: [{read_delimited: {delimiter: ','}}]\n"
    )
    (root / "pattern" / "rows.csv").write_text("date,price\n2026-01-01,3\n")
    for name, option in {"lines": "", "multi": ", support_multi_line: true"}.items():
        (root / name).mkdir()
        (root / name / "rows.csv").write_text('date,price\n"one\ntwo",3\n')
        (root / name / "MLTable").write_text(
            "paths: [{pattern: ./*.csv}]\n"
            f"transformations: [{{read_delimited: {{encoding: utf8{option}}}}}]\n"
        )
    (root / "context").mkdir()
    for name in ("mlflow/MLmodel", "triton/m/1/model.onnx"):
        (root / name).parent.mkdir(parents=True)
        (root / name).touch()
    (root / "context" / "whole").write_text(
        "# syntax\nfrom a AS b\nCOPY --from=c x /\nCOPY whole /\n"
    )
    (root / "context" / "empty").write_text("# FROM scratch\n")
    (root / "context" / "copies").write_text("FROM a\nCOPY --chown=1 copies \\\n  none.txt /\n")
    (root / "ignored").mkdir()
    for name in ("train.py", "Dockerfile"):
        (root / "ignored" / name).touch()
    (root / "ignored" / ".amlignore").write_text("Dockerfile\n*.py\n")
    (root / "pyproject.toml").write_text("")
    (root / "conda.yml").write_text("name: conda\ndependencies: [python=3.11]\n")
    (root / "component.yml").write_text(COMPONENT)
    # Not `.yml`, so that a check of the whole repository skips these files.
    (root / "empty.part").write_text("")
    (root / "nul.part").write_text("\0")
    (root / "scheduled.part").write_text(SCHEDULED)
    (root / "command.part").write_text("command: echo\nenvironment: azureml:e:1\n")
    for name, inner in {"endless": "endless", "around": "inside", "inside": ""}.items():
        jobs = f"{{again: {{type: pipeline, component: {inner}.part}}}}" if inner else STEP
        (root / f"{name}.part").write_text(f"type: pipeline\nname: {name}\njobs: {jobs}\n")
    (tmp_path / "outside").mkdir()
    (tmp_path / "outside" / "secret.txt").write_text("outside")
    monkeypatch.chdir(root)
    return root


@pytest.fixture
def problems(repo: Path) -> Check:
    """Return a function that writes a spec into the repository and returns its problems."""
    for version in (2, 10):
        spec = f"name: numbers\nversion: {version}\nimage: python:3.11\n"
        (repo / f"ml/assets/numbers-{version}.yml").write_text(spec)
    prices = "name: prices\ntype: uri_folder\npath: ../../data\n"
    (repo / "ml/assets/prices.yml").write_text(prices)
    kind = "https://azuremlschemas.azureedge.net/latest/managedOnlineEndpoint.schema.json"
    (repo / "endpoint.yml").write_text(f"$schema: {kind}\nname: faq\n")

    def of(text: str | bytes, name: str = "spec.yml", **overrides: str) -> list[Problem]:
        path = repo / name
        path.write_bytes(text.encode() if isinstance(text, str) else text)
        changes = {key.replace("__", "."): value for key, value in overrides.items()}
        try:
            return check(load(path, changes), clusters=CLUSTERS)
        except UserError as refused:
            return list(refused.problems)

    return of


STEP = "{only: {command: echo, environment: 'azureml:e:1', compute: 'azureml:c'}}"
SCHEDULED = """\
type: pipeline
compute: azureml:c
inputs: {data: {type: uri_folder, path: data}, rate: 0.5, note: x}
jobs:
  train:
    component: component.yml
    inputs:
      data: ${{parent.inputs.data}}
      rate: ${{parent.inputs.rate}}
      note: ${{parent.inputs.note}}
"""
COMPONENT = """\
type: command
name: train
version: "1"
inputs:
  data: {type: uri_folder}
  rate: {type: number, min: 0, max: 1}
  rounds: {type: integer, default: 10}
  fast: {type: boolean, default: false}
  kind: {type: string, default: plain, enum: [plain, fancy]}
  note: {type: string, optional: true}
outputs:
  model: {type: custom_model}
command: >-
  python train.py ${{inputs.data}} ${{inputs.rate}} ${{inputs.rounds}} ${{inputs.fast}}
  ${{inputs.kind}} $[[--note ${{inputs.note}}]] ${{outputs.model}}
environment: azureml:ml-cpu:1
code: src
"""
