"""What a spec comes to once every reference in it is resolved: frozen, printable, without effects.

A plan says everything that a backend needs to run the job and nothing about where it runs.
`ml.specs.plan.planning` makes plans; `ml run --dry-run` prints them; backends carry them out.
"""

from __future__ import annotations

from collections.abc import Container, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

from ml.core.errors import Place
from ml.specs.search.domain import Hints

Value = str | int | float | bool
Mode = Literal[
    "ro_mount", "rw_mount", "download", "direct", "eval_mount", "eval_download", "upload"
]

LITERALS = frozenset({"string", "number", "integer", "boolean"})


@dataclass(frozen=True)
class Asset:
    """A named, versioned thing: `azureml:name:version`; the digest is sha256 of its content.

    `made_by` is the run that registered it on this machine, "" of one that a spec defines.
    """

    name: str
    version: str
    digest: str = ""
    made_by: str = ""

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
    """A path that the job may write, kept when it ends; registered when `asset` is set.

    An `asset` without a version gets the next one that is free.
    """

    name: str
    type: str
    place: Place
    mode: str = "rw_mount"
    asset: Asset | None = None


@dataclass(frozen=True)
class Dependency:
    """A line of a conda file, as written; `manager` is who installs it on Azure ML."""

    text: str
    manager: Literal["conda", "pip"]
    place: Place


@dataclass(frozen=True)
class Environment:
    """The environment a job asks for: an asset, a name, or an inline definition.

    With `dockerfile` its image is built from one. `dependencies` are those of its conda file (or of
    the mapping in its place), with what the file includes by `-r`; None where it has none, or it is
    not on this machine.
    """

    reference: str
    image: str = ""
    dockerfile: bool = False
    conda_file: Path | None = None
    dependencies: tuple[Dependency, ...] | None = None
    place: Place | None = None


@dataclass(frozen=True)
class Distribution:
    """How many processes a node starts, and by which launcher (pytorch, mpi, tensorflow).

    A tensorflow job has workers and parameter servers instead; `worker_count` None is one a node.
    """

    type: str
    process_count_per_instance: int
    place: Place
    worker_count: int | None = None
    parameter_server_count: int = 0

    def workers(self, nodes: int) -> int:
        """The workers of a tensorflow job: "if not specified, will default to the instance count"
        (azure-ai-ml's TensorFlowDistribution)."""
        return nodes if self.worker_count is None else self.worker_count

    def processes(self, nodes: int) -> int:
        """How many processes there are on so many nodes."""
        if self.type == "tensorflow":
            return self.workers(nodes) + self.parameter_server_count
        return nodes * self.process_count_per_instance


@dataclass(frozen=True)
class Parallel:
    """How a parallel step's data is divided into mini-batches, and when it has failed.

    By reference-yaml-job-parallel. `input` is the name of the input that is divided; mini-batches
    are of `mini_batch_size` files, or of that many bytes of a table (0: not given), or of one
    combination of `partition_keys`. A threshold of -1 ignores all failures. `append_row_to` is the
    name of the output that takes all that run() returned, "" for none.
    """

    entry_script: str
    input: str
    place: Place
    mini_batch_size: int = 0
    partition_keys: tuple[str, ...] = ()
    append_row_to: str = ""
    # "For a CPU compute, the default value is the number of cores."
    max_concurrency_per_instance: int | None = None
    max_retries: int = 2
    run_timeout_s: float = 60.0
    error_threshold: int = -1
    mini_batch_error_threshold: int = -1
    logging_level: str = "INFO"


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
    # Of a parallel step, whose `command` is the arguments of its entry script.
    parallel: Parallel | None = None
    tags: Mapping[str, str] = field(default_factory=dict)
    description: str = ""
    # The lines of fields that a backend may have to refuse or comment on: "compute" → Place.
    places: Mapping[str, Place] = field(default_factory=dict)

    @property
    def processes(self) -> int:
        """How many processes run the command at the same time, on all nodes together."""
        return self.distribution.processes(self.instance_count) if self.distribution else 1


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
    hints: Hints = field(default_factory=Hints)
    tags: Mapping[str, str] = field(default_factory=dict)
    description: str = ""
    places: Mapping[str, Place] = field(default_factory=dict)


@dataclass(frozen=True)
class FromPipeline:
    """The value of a step's input is the input of that name of the pipeline around it."""

    input: str

    def __str__(self) -> str:
        return f"${{{{parent.inputs.{self.input}}}}}"


@dataclass(frozen=True)
class FromStep:
    """The value of a step's input is what another step wrote."""

    step: str
    output: str

    def __str__(self) -> str:
        return f"${{{{parent.jobs.{self.step}.outputs.{self.output}}}}}"


Source = FromPipeline | FromStep


@dataclass(frozen=True)
class StepPlan:
    """A step of a pipeline: what it runs, and how it hangs together with the others.

    Inputs of `plan` that are in `sources` get their value or path from there; the others have
    theirs. `promoted` maps outputs of the step to outputs of the pipeline. `after` are the steps
    that must have completed before. A step that is not deterministic is never reused.
    """

    place: Place
    plan: CommandPlan | SweepPlan | PipelinePlan
    sources: Mapping[str, Source] = field(default_factory=dict)
    promoted: Mapping[str, str] = field(default_factory=dict)
    after: tuple[str, ...] = ()
    is_deterministic: bool = True


@dataclass(frozen=True)
class PipelinePlan:
    """A pipeline: steps by name, each after those that it waits for.

    `outputs` are the pipeline's own; `origins` says which step writes each. An input without a
    value and without data is one of a pipeline component, which the step that runs it fills in.
    """

    place: Place
    display_name: str
    experiment: str
    steps: Mapping[str, StepPlan]
    inputs: Mapping[str, InputPlan] = field(default_factory=dict)
    outputs: Mapping[str, OutputPlan] = field(default_factory=dict)
    origins: Mapping[str, FromStep] = field(default_factory=dict)
    # "By default, the pipeline will continue to run even if one step fails": what does not depend
    # on that step is still carried out. The default value is `True`; "if you change this setting
    # to False, … steps that are currently running will be canceled" (reference-yaml-job-pipeline,
    # attributes of the `settings` key).
    continue_on_step_failure: bool = True
    force_rerun: bool = False
    tags: Mapping[str, str] = field(default_factory=dict)
    description: str = ""
    places: Mapping[str, Place] = field(default_factory=dict)


Plan = CommandPlan | SweepPlan | PipelinePlan


def commands(plan: Plan) -> Iterator[CommandPlan]:
    """Every command that carrying out the plan may start: its own, its trial's, its steps'."""
    if isinstance(plan, PipelinePlan):
        for step in plan.steps.values():
            yield from commands(step.plan)
    else:
        yield plan.trial if isinstance(plan, SweepPlan) else plan


def sweeps(plan: Plan) -> Iterator[SweepPlan]:
    """Every sweep in the plan."""
    if isinstance(plan, PipelinePlan):
        for step in plan.steps.values():
            yield from sweeps(step.plan)
    elif isinstance(plan, SweepPlan):
        yield plan


def given(
    plan: Plan, at: str = "", besides: Container[str] = frozenset()
) -> Iterator[tuple[str, InputPlan]]:
    """Every input that the spec itself gives, by the field that says so (`jobs.train.inputs.x`).

    `besides` are inputs that come from somewhere else.
    """
    for name, data in inputs_of(plan).items():
        if name not in besides:
            yield f"{at}inputs.{name}", data
    if isinstance(plan, PipelinePlan):
        for name, step in plan.steps.items():
            yield from given(step.plan, f"{at}jobs.{name}.", step.sources)


def inputs_of(plan: Plan) -> Mapping[str, InputPlan]:
    """What goes into the plan; a sweep's inputs are its trial's."""
    return plan.trial.inputs if isinstance(plan, SweepPlan) else plan.inputs


def outputs_of(plan: Plan) -> Mapping[str, OutputPlan]:
    """What comes out of it; a sweep's outputs are those of its best trial."""
    return plan.trial.outputs if isinstance(plan, SweepPlan) else plan.outputs
