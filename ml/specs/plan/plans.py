"""The plan of a job: its spec with every reference resolved, as frozen dataclasses.

A plan contains everything that a backend needs to run the job, and is the same for all backends.
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
    """A dict that raises TypeError on every change."""

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
    """A named, versioned asset: `azureml:name:version`."""

    name: str
    version: str
    digest: str = ""  # sha256 (hex) of its content; "" if the content is remote
    made_by: str = ""  # run that registered it on this machine; "" if a spec defines it

    def __str__(self) -> str:
        return f"azureml:{self.name}:{self.version}"


@dataclass(frozen=True)
class InputPlan:
    """An input: a literal value, or data."""

    name: str
    # Azure ML's type: string, number, integer, boolean, uri_file, uri_folder, mltable,
    # custom_model, mlflow_model or triton_model.
    type: str
    place: Place
    value: Value | None = None  # a literal
    source: str = ""  # data as written: a path, a URI or `azureml:name:version`
    path: Path | None = None  # absolute local path of data; None if it is remote
    asset: Asset | None = None
    mode: str = "ro_mount"

    @property
    def is_literal(self) -> bool:
        """Return True if the command receives a value rather than the path of data."""
        return self.type in LITERALS


@dataclass(frozen=True)
class OutputPlan:
    """An output: a path that the job may write, and that the backend keeps."""

    name: str
    type: str
    place: Place
    mode: str = "rw_mount"
    # The asset to register the output as; version "" means the next free version.
    asset: Asset | None = None


@dataclass(frozen=True)
class Dependency:
    """A line of a conda file."""

    text: str  # as written
    manager: Literal["conda", "pip"]  # installs it on Azure ML
    place: Place


@dataclass(frozen=True)
class Environment:
    """The environment of a job: an asset, a name, or an inline definition."""

    # `azureml:name:version` or name; `inline` for an inline definition without a name.
    reference: str
    image: str = ""
    dockerfile: Path | None = None  # builds the image
    conda_file: Path | None = None
    # From the conda file or the inline mapping; None if there is none on this machine.
    dependencies: tuple[Dependency, ...] | None = None
    place: Place | None = None

    @property
    def server(self) -> str:
        """Return the module of `ml.serving` in the Dockerfile's CMD; "" if there is none."""
        text = self.dockerfile.read_text() if self.dockerfile and self.dockerfile.is_file() else ""
        named = re.search(r'^CMD \["python", "-m", "(ml\.serving\.\w+)"[],]', text, re.M)
        return named[1] if named else ""

    @property
    def content(self) -> tuple[str, ...]:
        """Return one line per image, package and file (with digest), to compare environments.

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
    """The launcher of a distributed job, and its number of processes."""

    type: str  # pytorch, mpi, tensorflow or ray
    process_count_per_instance: int  # processes per node; unused for tensorflow
    place: Place
    worker_count: int | None = None  # workers of a tensorflow job; None: one per node
    parameter_server_count: int = 0

    def workers(self, nodes: int) -> int:
        """Return the number of workers of a tensorflow job; one per node by default.

        Source: azure-ai-ml, TensorFlowDistribution.
        """
        return nodes if self.worker_count is None else self.worker_count

    def processes(self, nodes: int) -> int:
        """Return the total number of processes on all nodes."""
        if self.type == "tensorflow":
            return self.workers(nodes) + self.parameter_server_count
        return nodes * self.process_count_per_instance


@dataclass(frozen=True)
class Parallel:
    """The mini-batches, retries and error thresholds of a parallel step.

    Source: reference-yaml-job-parallel.
    """

    entry_script: str
    input: str  # name of the input that is divided
    place: Place
    mini_batch_size: int = 0  # number of files, or bytes of a table; 0: not given
    # Columns: each combination of their values is one mini-batch.
    partition_keys: tuple[str, ...] = ()
    append_row_to: str = ""  # name of the output that receives the results of run(); "" for none
    # The file's name if that output is a folder (how-to-debug-parallel-run-step).
    append_file: str = "parallel_run_step.txt"
    # "For a CPU compute, the default value is the number of cores."
    max_concurrency_per_instance: int | None = None
    max_retries: int = 2
    run_timeout_s: float = 60.0
    error_threshold: int = -1  # allowed failed items; -1: all
    mini_batch_error_threshold: int = -1  # allowed failed mini-batches; -1: all
    logging_level: str = "INFO"


@dataclass(frozen=True)
class Dimension:
    """One hyperparameter's distribution."""

    name: str
    kind: str  # Azure ML's name: choice uniform quniform loguniform …
    # As in Azure ML's REST API: the values of `choice` (a mapping, name → Dimension, is a nested
    # space), or numbers (uniform: low, high; quniform: low, high, q; normal: mu, sigma; randint:
    # upper).
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
    """Values of some or all hyperparameters that a sweep tries first."""

    values: Mapping[str, object]
    place: Place  # line in the hints file
    because: str = ""  # the reason


@dataclass(frozen=True)
class Constraint:
    """An expression over hyperparameters that every trial must fulfil."""

    expression: str
    place: Place
    because: str = ""


@dataclass(frozen=True)
class Condition:
    """A hyperparameter that has an effect only if an expression is true."""

    parameter: str
    expression: str  # over the other hyperparameters, as in a constraint
    place: Place


@dataclass(frozen=True)
class Hints:
    """Hints for a sweep on this machine; Azure ML does not read them."""

    points: tuple[Point, ...] = ()
    constraints: tuple[Constraint, ...] = ()
    file: str = ""  # hints file beside the spec; "" for none
    sampler: Literal["", "evolution"] = ""  # replaces random sampling; "" for the spec's algorithm
    conditions: tuple[Condition, ...] = ()  # only the sampler `evolution` uses them

    def __bool__(self) -> bool:
        return bool(self.points or self.constraints or self.sampler)


@dataclass(frozen=True)
class StoppingCriteria:
    """The stopping criteria of an AutoML search; a search that meets one is complete."""

    exit_score: float | None = None  # value of the primary metric to reach; None: no limit
    patience: int | None = None  # trials without improvement; None: no limit
    landmarks: int = 0  # number of first trials that `patience` ignores
    ensembles: tuple[str, ...] = ()  # trials at the end, which the search reserves time for


@dataclass(frozen=True)
class Job:
    """The base class of all plans."""

    place: Place
    display_name: str
    experiment: str
    tags: Mapping[str, str] = field(default_factory=dict, kw_only=True)
    description: str = field(default="", kw_only=True)
    # Field → its line, for a backend's errors.
    places: Mapping[str, Place] = field(default_factory=dict, kw_only=True)
    # The loaded spec of the job (`ml.specs.sdk.load.Spec`), for a backend that submits it; None for
    # a step, a trial, and a plan that was deserialised or made in code.
    spec: Any = field(default=None, compare=False, repr=False, kw_only=True)
    # The reference of a component in the workspace or a registry; "" for a local or no component.
    component: str = field(default="", kw_only=True)
    # Problems with parts of the job that only Azure ML can run.
    not_here: tuple[Problem, ...] = field(default=(), compare=False, repr=False, kw_only=True)

    def leaves(self) -> Iterator[Any]:
        """Yield the plan itself; for a pipeline, the leaves of its steps."""
        yield self


@dataclass(frozen=True)
class CommandPlan(Job):
    """A command job."""

    command: str  # a backend resolves its `${{…}}` when it knows the run's paths
    code: Path | None
    environment: Environment
    compute: str = ""
    environment_variables: Mapping[str, str] = field(default_factory=dict)
    inputs: Mapping[str, InputPlan] = field(default_factory=dict)
    outputs: Mapping[str, OutputPlan] = field(default_factory=dict)
    timeout_s: float | None = None
    instance_count: int = 1
    distribution: Distribution | None = None
    # Set for a parallel step, whose `command` is the arguments of the entry script.
    parallel: Parallel | None = None

    @property
    def processes(self) -> int:
        """Return the number of processes that run the command at once, on all nodes."""
        return self.distribution.processes(self.instance_count) if self.distribution else 1


@dataclass(frozen=True)
class SweepPlan(Job):
    """A sweep job: the trial's command, search space, sampling, limits and early termination."""

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
    # Set for an AutoML job, which completes instead of failing at its time limit.
    ending: StoppingCriteria | None = None

    @property
    def inputs(self) -> Mapping[str, InputPlan]:
        """Return the inputs of its trial."""
        return self.trial.inputs

    @property
    def outputs(self) -> Mapping[str, OutputPlan]:
        """Return the outputs of its trial; the sweep's are those of the best trial."""
        return self.trial.outputs


@dataclass(frozen=True)
class AutoMLPlan(Job):
    """An AutoML job: the task, the data, and the limits of the search."""

    task: str
    primary_metric: str  # the name under which trials log it
    goal: Literal["maximize", "minimize"]
    target_column: str
    compute: str = ""
    algorithms: tuple[str, ...] = ()  # allow list; empty for all
    blocked: tuple[str, ...] = ()  # block list
    # All fields of the spec as written, except data.
    settings: Mapping[str, Any] = field(default_factory=dict)
    # Data field, such as `training_data` → its data.
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
    """The hyperparameters of a trial."""

    number: int  # from 0
    values: Mapping[str, object]  # typed and nested as they were sampled
    # JSON about the sampling: `kind` is `given` (a point of the hints), `random`, `sobol`, `grid`,
    # `tpe` or `evolution`; `ml.reports.sweep` describes the other keys.
    origin: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class FromPipeline:
    """The source of a step's input: an input of the surrounding pipeline."""

    input: str

    def __str__(self) -> str:
        return f"${{{{parent.inputs.{self.input}}}}}"


@dataclass(frozen=True)
class FromStep:
    """The source of a step's input: an output of another step."""

    step: str
    output: str

    def __str__(self) -> str:
        return f"${{{{parent.jobs.{self.step}.outputs.{self.output}}}}}"


Source = FromPipeline | FromStep


@dataclass(frozen=True)
class StepPlan:
    """A step of a pipeline: its plan, and its connections to other steps."""

    place: Place
    plan: Plan
    # Input of `plan` → the source of its value or path.
    sources: Mapping[str, Source] = field(default_factory=dict)
    # Output of the step → output of the pipeline that it is bound to.
    promoted: Mapping[str, str] = field(default_factory=dict)
    after: tuple[str, ...] = ()  # steps that must complete first
    is_deterministic: bool = True  # False: the step is never reused


@dataclass(frozen=True)
class PipelinePlan(Job):
    """A pipeline."""

    steps: Mapping[str, StepPlan]  # by name, in topological order
    # Inputs of a pipeline component may have neither value nor path: the step supplies them.
    inputs: Mapping[str, InputPlan] = field(default_factory=dict)
    outputs: Mapping[str, OutputPlan] = field(default_factory=dict)
    # Output of the pipeline → the step's output that is bound to it.
    origins: Mapping[str, FromStep] = field(default_factory=dict)
    # True: steps that do not depend on a failed step still run. False: running steps are cancelled
    # (reference-yaml-job-pipeline, attributes of the `settings` key).
    continue_on_step_failure: bool = True
    force_rerun: bool = False

    def leaves(self) -> Iterator[Any]:
        """Yield the leaves of every step."""
        for step in self.steps.values():
            yield from step.plan.leaves()


Plan = CommandPlan | SweepPlan | PipelinePlan | AutoMLPlan


def commands(plan: Plan) -> Iterator[CommandPlan]:
    """Yield every command of the plan: its own, its trial's, or its steps'.

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
    plan: Plan, prefix: str = "", excluded: Container[str] = frozenset()
) -> Iterator[tuple[str, InputPlan]]:
    """Yield (field, input) of every input that is not bound to a pipeline or a step.

    A field is `jobs.train.inputs.x`, or `training_data` of an AutoML job. The names `excluded` are
    skipped.
    """
    for name, data in plan.inputs.items():
        if name not in excluded:
            yield f"{prefix}{'' if isinstance(plan, AutoMLPlan) else 'inputs.'}{name}", data
    if isinstance(plan, PipelinePlan):
        for name, step in plan.steps.items():
            yield from supplied_inputs(step.plan, f"{prefix}jobs.{name}.", step.sources)
