"""The plan of a job: its spec with every reference resolved. Frozen, printable, without effects.

A plan contains everything that a backend needs to run the job, and nothing about where it runs.
`ml.specs.plan.planning` makes plans, `ml run --dry-run` prints them, backends run them.
"""

from __future__ import annotations

import re
from collections.abc import Container, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, NoReturn, TypeVar

from ml.core import trees
from ml.core.errors import Place, Problem

Value = str | int | float | bool
Mode = Literal[
    "ro_mount", "rw_mount", "download", "direct", "eval_mount", "eval_download", "upload"
]

LITERALS = frozenset({"string", "number", "integer", "boolean"})
K = TypeVar("K")
V = TypeVar("V")


class Frozen(dict[K, V]):
    """The mapping of a plan: a dict that raises TypeError on every change."""

    def _refuse(self, *args: Any, **kwargs: Any) -> NoReturn:
        raise TypeError("a plan cannot be changed: change the spec, or use --set")

    __setitem__ = __delitem__ = __ior__ = _refuse
    clear = pop = popitem = setdefault = update = _refuse

    def __reduce__(self) -> tuple[type, tuple[dict[K, V]]]:
        return type(self), (dict(self),)

    def __hash__(self) -> int:  # type: ignore[override]
        return hash(frozenset(self))


@dataclass(frozen=True)
class Asset:
    """A named, versioned asset: `azureml:name:version`; the digest is sha256 of its content.

    `made_by` is the run that registered it on this machine; "" when a spec defines it.
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
    mlflow_model triton_model. A remote source has `path=None`.
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
        """Return True if the command receives a value rather than the path of data."""
        return self.type in LITERALS


@dataclass(frozen=True)
class OutputPlan:
    """A path that the job may write. It is kept, and registered when `asset` is set.

    An `asset` without a version gets the next free version.
    """

    name: str
    type: str
    place: Place
    mode: str = "rw_mount"
    asset: Asset | None = None


@dataclass(frozen=True)
class Dependency:
    """A line of a conda file, as written; `manager` installs it on Azure ML."""

    text: str
    manager: Literal["conda", "pip"]
    place: Place


@dataclass(frozen=True)
class Environment:
    """The environment of a job: an asset, a name, or an inline definition.

    If it has a `dockerfile`, that builds its image. `dependencies` are those of its conda file or
    inline mapping, including files named by `-r`; None when there is no such file on this machine.
    """

    reference: str
    image: str = ""
    dockerfile: Path | None = None
    conda_file: Path | None = None
    dependencies: tuple[Dependency, ...] | None = None
    place: Place | None = None

    @property
    def server(self) -> str:
        """Return the module of `ml.serving` that its Dockerfile starts as a server; "" for none."""
        text = self.dockerfile.read_text() if self.dockerfile and self.dockerfile.is_file() else ""
        named = re.search(r'^CMD \["python", "-m", "(ml\.serving\.\w+)"[],]', text, re.M)
        return named[1] if named else ""

    @property
    def content(self) -> tuple[str, ...]:
        """Return its image, its packages and the digests of its files, one per line.

        Files are the conda file, or all files beside the Dockerfile. () if only the name is known.
        """
        files = [self.conda_file] if self.conda_file else []
        if self.dockerfile:
            files = sorted(self.dockerfile.parent.glob("[!.]*"))
        return (
            *([f"image {self.image}"] if self.image else []),
            *(f"{dependency.manager} {dependency.text}" for dependency in self.dependencies or ()),
            *(
                f"{path.name} {trees.digest([(path.name, path)])}"
                for path in files
                if path.is_file()
            ),
        )


@dataclass(frozen=True)
class Distribution:
    """How many processes a node starts, and by which launcher (pytorch, mpi, tensorflow, ray).

    A tensorflow job has workers and parameter servers instead; None means one per node.
    """

    type: str
    process_count_per_instance: int
    place: Place
    worker_count: int | None = None
    parameter_server_count: int = 0

    def workers(self, nodes: int) -> int:
        """Return a tensorflow job's workers: "if not specified, will default to the instance count"
        (azure-ai-ml's TensorFlowDistribution).
        """
        return nodes if self.worker_count is None else self.worker_count

    def processes(self, nodes: int) -> int:
        """Return the number of processes on that many nodes."""
        if self.type == "tensorflow":
            return self.workers(nodes) + self.parameter_server_count
        return nodes * self.process_count_per_instance


@dataclass(frozen=True)
class Parallel:
    """How a parallel step divides its data into mini-batches, and when it fails.

    By reference-yaml-job-parallel. `input` is the name of the input that is divided; mini-batches
    are of `mini_batch_size` files, or of that many bytes of a table (0: not given), or of one
    combination of `partition_keys`. A threshold of -1 ignores all failures. `append_row_to` is the
    name of the output that receives the results of run(); "" for none.
    """

    entry_script: str
    input: str
    place: Place
    mini_batch_size: int = 0
    partition_keys: tuple[str, ...] = ()
    append_row_to: str = ""
    # The file's name if that output is a folder (how-to-debug-parallel-run-step).
    append_file: str = "parallel_run_step.txt"
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
class Point:
    """A complete or partial point to try first, with its reason and its line in the hints."""

    values: Mapping[str, object]
    place: Place
    because: str = ""


@dataclass(frozen=True)
class Constraint:
    """A condition on the values of every trial: an expression over their names."""

    expression: str
    place: Place
    because: str = ""


@dataclass(frozen=True)
class Condition:
    """When a parameter has an effect: an expression over the others, as in a constraint."""

    parameter: str
    expression: str
    place: Place


@dataclass(frozen=True)
class Hints:
    """Hints from the `file` beside the spec, for a sweep on this machine.

    `sampler` replaces random sampling, and takes the `conditions` into account.
    """

    points: tuple[Point, ...] = ()
    constraints: tuple[Constraint, ...] = ()
    file: str = ""
    sampler: Literal["", "evolution"] = ""
    conditions: tuple[Condition, ...] = ()

    def __bool__(self) -> bool:
        return bool(self.points or self.constraints or self.sampler)


@dataclass(frozen=True)
class Ending:
    """What ends the search of an AutoML job before its last trial; it is complete then.

    `exit_score` of the primary metric; or `patience` trials without a better one, after as many as
    `landmarks`; or the time that is left for `ensembles`, which are the last trials.
    """

    exit_score: float | None = None
    patience: int | None = None
    landmarks: int = 0
    ensembles: tuple[str, ...] = ()


@dataclass(frozen=True)
class Job:
    """The fields and methods that every kind of plan has.

    `places` are the lines of fields that a backend may have to refuse or comment on: "compute" →
    Place.
    """

    place: Place
    display_name: str
    experiment: str
    tags: Mapping[str, str] = field(default_factory=dict, kw_only=True)
    description: str = field(default="", kw_only=True)
    places: Mapping[str, Place] = field(default_factory=dict, kw_only=True)
    # The loaded spec (`ml.specs.sdk.load.Spec`) that a job was planned from, for a backend that
    # passes it on; None for a step, a trial, and a plan that was read back or made in code.
    spec: Any = field(default=None, compare=False, repr=False, kw_only=True)
    # The reference of a component that only the workspace or a registry has; else "".
    component: str = field(default="", kw_only=True)
    # Problems of the parts of a job that only Azure ML can run.
    not_here: tuple[Problem, ...] = field(default=(), compare=False, repr=False, kw_only=True)

    def leaves(self) -> Iterator[Any]:
        """Yield the plans in it that have no steps: itself, or those of its steps."""
        yield self


@dataclass(frozen=True)
class CommandPlan(Job):
    """A command job; the `${{…}}` of `command` are resolved when a run has its paths."""

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
    # Set for a parallel step: `command` then has the arguments of its entry script.
    parallel: Parallel | None = None

    @property
    def processes(self) -> int:
        """Return the number of processes that run the command at once, on all nodes."""
        return self.distribution.processes(self.instance_count) if self.distribution else 1


@dataclass(frozen=True)
class SweepPlan(Job):
    """A sweep job: the trial's command, the space, how it is sampled, and when to stop."""

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
    # Set for an AutoML job, which completes, rather than fails, at its time limit.
    ending: Ending | None = None

    @property
    def inputs(self) -> Mapping[str, InputPlan]:
        """Return the inputs of its trial."""
        return self.trial.inputs

    @property
    def outputs(self) -> Mapping[str, OutputPlan]:
        """Return the outputs of its trial; the best trial writes them."""
        return self.trial.outputs


@dataclass(frozen=True)
class AutoMLPlan(Job):
    """An AutoML job: the table to search a model for, the task, and what ends the search.

    `inputs` maps each data field (`training_data`, `validation_data` …) to its input.
    `primary_metric` is the name under which trials log it. `algorithms` is the allow list, empty
    for all, and `blocked` the block list. `settings` has the other fields of the spec as written.
    """

    task: str
    primary_metric: str
    goal: Literal["maximize", "minimize"]
    target_column: str
    compute: str = ""
    algorithms: tuple[str, ...] = ()
    blocked: tuple[str, ...] = ()
    settings: Mapping[str, Any] = field(default_factory=dict)
    inputs: Mapping[str, InputPlan] = field(default_factory=dict)
    outputs: Mapping[str, OutputPlan] = field(default_factory=dict)
    max_total_trials: int = 1
    max_concurrent_trials: int = 1
    timeout_s: float | None = None
    trial_timeout_s: float | None = None

    def setting(self, part: str, key: str) -> Any:
        """Return a field of `limits`, `training` or `featurization`; None if it is not set."""
        return (self.settings.get(part) or {}).get(key)


@dataclass(frozen=True)
class Sample:
    """The hyperparameters of trial `number` (from 0), typed and nested as they were sampled.

    `origin` describes their source in JSON values: its `kind` is `given` (a point of the
    hints), `random`, `sobol`, `grid`, `tpe` or `evolution`; `ml.reports.sweep` describes the other
    keys.
    """

    number: int
    values: Mapping[str, object]
    origin: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class FromPipeline:
    """A step's input takes the value of an input of the surrounding pipeline."""

    input: str

    def __str__(self) -> str:
        return f"${{{{parent.inputs.{self.input}}}}}"


@dataclass(frozen=True)
class FromStep:
    """A step's input is the output of another step."""

    step: str
    output: str

    def __str__(self) -> str:
        return f"${{{{parent.jobs.{self.step}.outputs.{self.output}}}}}"


Source = FromPipeline | FromStep


@dataclass(frozen=True)
class StepPlan:
    """A step of a pipeline: what it runs, and its connections to other steps.

    Inputs of `plan` that are in `sources` get their value or path from there. `promoted` maps
    outputs of the step to outputs of the pipeline. `after` are the steps that must complete
    before. A step that is not deterministic is never reused.
    """

    place: Place
    plan: Plan
    sources: Mapping[str, Source] = field(default_factory=dict)
    promoted: Mapping[str, str] = field(default_factory=dict)
    after: tuple[str, ...] = ()
    is_deterministic: bool = True


@dataclass(frozen=True)
class PipelinePlan(Job):
    """A pipeline: steps by name, each after those that it waits for.

    `outputs` are the pipeline's own; `origins` maps each to the step that writes it. An input of a
    pipeline component may have no value or data: the step that runs the component supplies it.
    """

    steps: Mapping[str, StepPlan]
    inputs: Mapping[str, InputPlan] = field(default_factory=dict)
    outputs: Mapping[str, OutputPlan] = field(default_factory=dict)
    origins: Mapping[str, FromStep] = field(default_factory=dict)
    # "By default, the pipeline will continue to run even if one step fails": steps that do not
    # depend on that step still run. The default value is `True`; "if you change this setting
    # to False, … steps that are currently running will be canceled" (reference-yaml-job-pipeline,
    # attributes of the `settings` key).
    continue_on_step_failure: bool = True
    force_rerun: bool = False

    def leaves(self) -> Iterator[Any]:
        """Yield the plans without steps of all its steps."""
        for step in self.steps.values():
            yield from step.plan.leaves()


Plan = CommandPlan | SweepPlan | PipelinePlan | AutoMLPlan


def commands(plan: Plan) -> Iterator[CommandPlan]:
    """Yield every command that running the plan may start: its own, its trial's, its steps'.

    An AutoML job has none.
    """
    for leaf in plan.leaves():
        if not isinstance(leaf, AutoMLPlan):
            yield leaf.trial if isinstance(leaf, SweepPlan) else leaf


def searches(plan: Plan) -> Iterator[AutoMLPlan]:
    """Yield every AutoML job in the plan."""
    return (leaf for leaf in plan.leaves() if isinstance(leaf, AutoMLPlan))


def sweeps(plan: Plan) -> Iterator[SweepPlan]:
    """Yield every sweep in the plan."""
    return (leaf for leaf in plan.leaves() if isinstance(leaf, SweepPlan))


def supplied_inputs(
    plan: Plan, prefix: str = "", besides: Container[str] = frozenset()
) -> Iterator[tuple[str, InputPlan]]:
    """Yield every input that the spec itself supplies, by its field (`jobs.train.inputs.x`).

    The data of an AutoML job has its own fields (`training_data`). `besides` are the names of
    inputs to skip, which have another source.
    """
    for name, data in plan.inputs.items():
        if name not in besides:
            yield f"{prefix}{'' if isinstance(plan, AutoMLPlan) else 'inputs.'}{name}", data
    if isinstance(plan, PipelinePlan):
        for name, step in plan.steps.items():
            yield from supplied_inputs(step.plan, f"{prefix}jobs.{name}.", step.sources)
