"""Compare the time of `ml check` with a plain load of the same 100 specs by azure-ai-ml."""

from __future__ import annotations

import logging
import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

SPECS = 100

COMMAND = """\
$schema: https://azuremlschemas.azureedge.net/latest/commandJob.schema.json
type: command
display_name: train-{number}
experiment_name: faq-matching
code: src
command: >-
  python -m train --faq ${{{{inputs.faq}}}} --model ${{{{outputs.model}}}}
  --learning-rate ${{{{inputs.learning_rate}}}} $[[--folds ${{{{inputs.folds}}}}]]
inputs:
  faq: {{type: uri_folder, path: data}}
  learning_rate: 0.{number}
  folds: 5
outputs:
  model: {{type: custom_model}}
environment: azureml:ml-cpu:1
environment_variables: {{OMP_NUM_THREADS: "2"}}
compute: azureml:cpu-cluster
resources: {{instance_count: 1}}
limits: {{timeout: 3600}}
tags: {{purpose: benchmark}}
"""
SWEEP = """\
type: sweep
trial:
  code: src
  command: >-
    python -m train --faq ${{{{inputs.faq}}}} --rate ${{{{search_space.rate}}}}
    --leaves ${{{{search_space.leaves}}}}
  environment: azureml:ml-cpu:1
inputs:
  faq: {{type: uri_folder, path: data}}
search_space:
  rate: {{type: uniform, min_value: 0.01, max_value: 0.3}}
  leaves: {{type: choice, values: [15, 31, 63, {number}]}}
sampling_algorithm: random
objective: {{goal: maximize, primary_metric: gain}}
limits: {{max_total_trials: 20, max_concurrent_trials: 4, timeout: 3600}}
early_termination: {{type: median_stopping, evaluation_interval: 1, delay_evaluation: 5}}
compute: azureml:cpu-cluster
"""
PIPELINE = """\
type: pipeline
inputs:
  faq: {{type: uri_folder, path: data}}
settings: {{default_compute: azureml:cpu-cluster}}
jobs:
  prepare:
    type: command
    command: python -m prepare --faq ${{{{inputs.faq}}}} --out ${{{{outputs.prepared}}}}
    code: src
    environment: azureml:ml-cpu:1
    inputs:
      faq: ${{{{parent.inputs.faq}}}}
    outputs:
      prepared: {{type: uri_folder}}
  train:
    type: command
    component: component.yml
    inputs:
      data: ${{{{parent.jobs.prepare.outputs.prepared}}}}
      rate: 0.{number}
"""
COMPONENT = """\
type: command
name: train_model
version: "1"
inputs:
  data: {type: uri_folder}
  rate: {type: number, min: 0, max: 1, default: 0.1}
outputs:
  model: {type: custom_model}
code: src
environment: azureml:ml-cpu:1
command: python -m train --data ${{inputs.data}} --rate ${{inputs.rate}} --out ${{outputs.model}}
"""
DATA = """\
$schema: https://azuremlschemas.azureedge.net/latest/data.schema.json
name: faq-{number}
version: "1"
type: uri_folder
path: data
"""
ENVIRONMENT = """\
$schema: https://azuremlschemas.azureedge.net/latest/environment.schema.json
name: ml-cpu
version: "{number}"
image: mcr.microsoft.com/azureml/openmpi4.1.0-ubuntu22.04
"""
# The kinds of specs and their numbers, as a team may have: most are jobs.
MIX = [
    (COMMAND, "job", 40),
    (SWEEP, "job", 20),
    (PIPELINE, "job", 20),
    (DATA, "data", 15),
    (ENVIRONMENT, "environment", 5),
]


def write(folder: Path) -> list[tuple[Path, str]]:
    """Write the specs into a new repository; return each path with the name of its loader."""
    (folder / "pyproject.toml").write_text("")
    for name in ("src", "data"):
        (folder / name).mkdir()
        (folder / name / "file.txt").write_text(name)
    (folder / "component.yml").write_text(COMPONENT)
    specs: list[tuple[Path, str]] = []
    for template, loader, count in MIX:
        for _ in range(count):
            path = folder / f"spec-{len(specs):03}.yml"
            path.write_text(template.format(number=len(specs) + 10))
            specs.append((path, loader))
    return specs


def main(quick: bool) -> float:
    """Print a table of both; return the median ratio of checking to loading."""
    from azure.ai import ml as sdk

    from ml.specs.check.check import survey

    loaders: dict[str, Callable[[Path], Any]] = {
        "job": sdk.load_job,
        "data": sdk.load_data,
        "environment": sdk.load_environment,
    }
    logging.getLogger("azure.ai.ml").setLevel(logging.CRITICAL)
    with tempfile.TemporaryDirectory() as temporary:
        specs = write(Path(temporary))

        def load() -> None:
            for path, loader in specs:
                loaders[loader](path)

        def check() -> None:
            found = survey([path for path, _ in specs])
            if found.problems or found.specs != SPECS:
                raise SystemExit(f"the benchmark's own specs are wrong: {found.problems}")

        rounds = [(_seconds(load), _seconds(check)) for _ in range(1 + (3 if quick else 9))][1:]
    ratios = [checked / loaded for loaded, checked in rounds]
    print(f"{SPECS} specs, {len(rounds)} rounds   median      best")
    for name, seconds in zip(
        ("azure-ai-ml, load", "ml check"), zip(*rounds, strict=True), strict=True
    ):
        print(f"{name:24} {statistics.median(seconds):8.3f} s {min(seconds):8.3f} s")
    return statistics.median(ratios)


def _seconds(work: Callable[[], None]) -> float:
    began = time.process_time()  # CPU time, since other programs may use the machine
    work()
    return time.process_time() - began
