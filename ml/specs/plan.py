"""What a spec comes to once every reference in it is resolved: frozen, printable, without effects.

A plan says everything that a backend needs to run the job and nothing about where it runs.
`ml.specs.planning` makes plans; `ml run --dry-run` prints them; backends carry them out.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

from ml.specs.problems import Place

Value = str | int | float | bool
Mode = Literal[
    "ro_mount", "rw_mount", "download", "direct", "eval_mount", "eval_download", "upload"
]

LITERALS = frozenset({"string", "number", "integer", "boolean"})


@dataclass(frozen=True)
class Asset:
    """A named, versioned thing: `azureml:name:version`; the digest is sha256 of its content."""

    name: str
    version: str
    digest: str = ""

    def __str__(self) -> str:
        return f"azureml:{self.name}:{self.version}"


@dataclass(frozen=True)
class InputPlan:
    """An input: a literal `value`, or data at `path` (local, absolute) or `source` (as written).

    `type` is Azure ML's: string number integer boolean uri_file uri_folder mltable custom_model
    mlflow_model triton_model. A remote source that this machine does not hold has `path=None`.
    """

    name: str
    type: str
    place: Place
    value: Value | None = None
    source: str = ""
    path: Path | None = None
    asset: Asset | None = None
    mode: str = "ro_mount"

    @property
    def is_literal(self) -> bool:
        """Whether the command receives the value itself, not the path of data."""
        return self.type in LITERALS


@dataclass(frozen=True)
class OutputPlan:
    """A path that the job may write, kept when it ends; registered when `asset` is set."""

    name: str
    type: str
    place: Place
    mode: str = "rw_mount"
    asset: Asset | None = None


@dataclass(frozen=True)
class Distribution:
    """How many processes a node starts, and by which launcher (pytorch, mpi, tensorflow)."""

    type: str
    process_count_per_instance: int
    place: Place


@dataclass(frozen=True)
class Environment:
    """The environment a job asks for: an asset, a name, or an inline definition."""

    reference: str
    image: str = ""
    conda_file: Path | None = None


@dataclass(frozen=True)
class CommandPlan:
    """A command job; the `${{…}}` of `command` are resolved when a run has its paths."""

    place: Place
    display_name: str
    experiment: str
    command: str
    code: Path | None
    environment: Environment
    compute: str = ""
    environment_variables: Mapping[str, str] = field(default_factory=dict)
    inputs: Mapping[str, InputPlan] = field(default_factory=dict)
    outputs: Mapping[str, OutputPlan] = field(default_factory=dict)
    timeout_s: float | None = None
    instance_count: int = 1
    distribution: Distribution | None = None
    tags: Mapping[str, str] = field(default_factory=dict)
    # The lines of fields that a backend may have to refuse or comment on: "compute" → Place.
    places: Mapping[str, Place] = field(default_factory=dict)


@dataclass(frozen=True)
class Dimension:
    """One hyperparameter's distribution, by Azure ML's name: choice uniform quniform loguniform …

    `args` as Azure ML writes them on the wire: `choice` has its values (a mapping value is a nested
    space: name → Dimension), the others their numbers (uniform: low, high; quniform: low, high, q;
    normal: mu, sigma; randint: upper).
    """

    name: str
    kind: str
    args: tuple[object, ...]
    place: Place


@dataclass(frozen=True)
class EarlyTermination:
    """A policy: bandit, median_stopping or truncation_selection, with Azure ML's parameters."""

    type: str
    place: Place
    evaluation_interval: int = 1
    delay_evaluation: int = 0
    slack_factor: float | None = None
    slack_amount: float | None = None
    truncation_percentage: int | None = None


@dataclass(frozen=True)
class SweepPlan:
    """A sweep job: the trial's command, the space, how it is sampled, and when to stop."""

    place: Place
    display_name: str
    experiment: str
    trial: CommandPlan
    search_space: Mapping[str, Dimension]
    algorithm: Literal["random", "grid", "bayesian"]
    goal: Literal["maximize", "minimize"]
    primary_metric: str
    seed: int | None = None
    rule: Literal["random", "sobol"] = "random"
    max_total_trials: int = 1
    max_concurrent_trials: int = 1
    timeout_s: float | None = None
    trial_timeout_s: float | None = None
    early_termination: EarlyTermination | None = None
    tags: Mapping[str, str] = field(default_factory=dict)
    places: Mapping[str, Place] = field(default_factory=dict)


Plan = CommandPlan | SweepPlan
