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
from ml.specs.plan.data import LITERALS as LITERALS
from ml.specs.plan.data import Asset as Asset
from ml.specs.plan.data import Dependency as Dependency
from ml.specs.plan.data import Environment as Environment
from ml.specs.plan.data import InputPlan as InputPlan
from ml.specs.plan.data import OutputPlan as OutputPlan
from ml.specs.plan.data import Value as Value
from ml.specs.plan.processes import Distribution as Distribution
from ml.specs.plan.processes import Parallel as Parallel
from ml.specs.search.domain import Hints
from ml.specs.search.search import Dimension as Dimension
from ml.specs.search.search import EarlyTermination as EarlyTermination


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
