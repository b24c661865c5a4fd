"""Pipeline jobs and pipeline components → plans: their steps, and how these are connected."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from ml.core.errors import Problem, errors
from ml.specs import expressions
from ml.specs.plan import fields, parallel
from ml.specs.plan.bindings import Bindings
from ml.specs.plan.components import component_of, hooks, refused
from ml.specs.plan.plan import Frozen
from ml.specs.plan.layers import Layers, Part
from ml.specs.plan.plan import (
    CommandPlan,
    FromStep,
    InputPlan,
    OutputPlan,
    PipelinePlan,
    StepPlan,
    SweepPlan,
    outputs_of,
)
from ml.specs.plan.ports import Ports, waits_for
from ml.specs.search import hints

RUNNABLE = frozenset({"command", "sweep", "pipeline", "parallel"})
# Outputs that every step has without declaring them: its `./outputs` and `./logs`.
_IMPLICIT = frozenset({"default", "artifacts"})


@dataclass(frozen=True)
class _Around:
    """The surrounding pipeline of a step: its files, settings, compute, prefix and outputs."""

    files: tuple[Path, ...]
    settings: Mapping[str, Any] = field(default_factory=dict)
    compute: str = ""
    prefix: str = ""
    outputs: Mapping[str, OutputPlan] = field(default_factory=dict)


class Planner:
    """Plans one pipeline job; `problems` collects the problems of all steps.

    `root` is the repository whose specs define `azureml:` assets, `registered` the folder of those
    that runs registered. Every step inherits the job's experiment and compute.
    """

    def __init__(self, root: Path, experiment: str, registered: Path | None = None) -> None:
        self._root, self._experiment, self._registered = root, experiment, registered
        self.problems: list[Problem] = []

    def job(self, own: Part, display_name: str) -> PipelinePlan:
        """The plan of the pipeline job written at `own`; not usable when there are `problems`."""
        component = self._component(own, "component") if own.get("component") is not None else None
        layers = Layers(own, component)
        ports = Ports(own, component, self._root, registered=self._registered)
        return self._pipeline(layers, ports, display_name, _Around((own.file,)))

    def _pipeline(self, layers: Layers, ports: Ports, name: str, around: _Around) -> PipelinePlan:
        """A pipeline; a nested one inherits settings and compute."""
        inputs, _ = ports.inputs()
        outputs, _ = ports.outputs({})
        self.problems += [*ports.problems, *hooks(layers)]
        settings = {**around.settings, **(layers.get("settings") or {})}
        compute = layers.get("compute") or settings.get("default_compute") or around.compute
        inside = replace(around, settings=settings, compute=str(compute), outputs=outputs)
        jobs = layers.owner("jobs").at("jobs")
        steps: dict[str, StepPlan] = {}
        for key in jobs.mapping():
            step = self._step(jobs.at(key), str(key), inside)
            if step is not None:
                steps[str(key)] = step
        self._demand(steps, inputs, jobs)
        origins = {
            target: FromStep(step, output)
            for step, planned in steps.items()
            for output, target in planned.promoted.items()
        }
        return PipelinePlan(
            place=layers.place(),
            display_name=name,
            experiment=self._experiment,
            steps=Frozen(_in_order(steps)),
            inputs=inputs,
            outputs=Frozen((k, _typed(o, origins.get(k), steps)) for k, o in outputs.items()),
            origins=Frozen(origins),
            continue_on_step_failure=settings.get("continue_on_step_failure") is not False,
            force_rerun=settings.get("force_rerun") is True,
            tags=fields.tags(layers),
            description=fields.text(layers.get("description")),
            places=fields.places(layers),
        )

    def _step(self, own: Part, name: str, around: _Around) -> StepPlan | None:
        """A step; None when it has a problem."""
        written, component = own.get("component"), None
        if written is not None:
            component = self._component(own, "component")
            if component is None:
                return None
        layers = Layers(own, component)
        kind = str((component or own).get("type") or own.get("type") or "command").lower()
        if kind not in RUNNABLE or (component is not None and component.get("nodes") is not None):
            self.problems.append(refused(own, name, kind if kind not in RUNNABLE else "flow"))
            return None
        prefix = f"{around.prefix}jobs.{name}."
        trial = layers.owner("trial")
        declared = component
        if kind == "sweep":
            declared = self._component(trial, "trial")
            if declared is None:
                return None
        ports = Ports(own, declared, self._root, prefix, self._registered)
        inputs, sources = ports.inputs()
        outputs, promoted = ports.outputs(around.outputs)
        plan: CommandPlan | SweepPlan | PipelinePlan
        if kind == "pipeline":
            file = (component or own).file
            if component is not None and file in around.files:
                self.problems.append(_cycle(own, name))
                return None
            inside = replace(around, files=(*around.files, file), prefix=prefix)
            plan = self._pipeline(layers, ports, name, inside)
            # The step gives the inputs and redeclares the outputs.
            plan = replace(plan, outputs=outputs)
        else:
            self.problems += ports.problems
            task = layers.owner("task") if kind == "parallel" else None
            command = self._command(Layers(own, declared), name, around.compute, task)
            outputs = Frozen((k, v) for k, v in outputs.items() if not _is_implicit(k, command))
            command = replace(command, inputs=inputs, outputs=outputs)
            plan = self._sweep(layers, command) if kind == "sweep" else command
        after = tuple(dict.fromkeys(waits_for(own)))
        return StepPlan(
            place=own.place(),
            plan=plan,
            sources=sources,
            promoted=promoted,
            after=after,
            is_deterministic=(declared or own).get("is_deterministic") is not False,
        )

    def _command(
        self, layers: Layers, name: str, compute: str, task: Part | None = None
    ) -> CommandPlan:
        """The command of a step or of a trial; the caller adds inputs and outputs.

        `task` is the part with a parallel step's `task`: the arguments of its entry script.
        """
        at = ("task",) if task is not None else ()
        command = task.get("task", "program_arguments") or "" if task else layers.get("command")
        code = Bindings(task or layers.owner("code"), self._root)
        environment = Bindings(task or layers.owner("environment"), self._root)
        variables = {
            **(layers.component.mapping("environment_variables") if layers.component else {}),
            **layers.own.mapping("environment_variables"),
        }
        resources = layers.get("resources") or {}
        plan = CommandPlan(
            place=layers.owner("command").place(),
            display_name=name,
            experiment=self._experiment,
            command=str(command),
            code=code.code(*at, "code"),
            environment=environment.environment(*at, "environment"),
            compute=str(layers.own.get("compute") or compute),
            environment_variables=Frozen((str(k), fields.text(v)) for k, v in variables.items()),
            timeout_s=fields.seconds(layers.own.get("limits", "timeout")),
            instance_count=int(resources.get("instance_count") or 1),
            distribution=fields.distribution(layers, "distribution"),
            tags=fields.tags(layers),
            description=fields.text(layers.get("description")),
            places=fields.places(layers),
        )
        self.problems += [*code.problems, *environment.problems]
        if task is None:
            return plan
        mini_batches = parallel.planned(layers, plan.code)
        if isinstance(mini_batches, list):
            self.problems += mini_batches
            return plan
        return replace(plan, parallel=mini_batches)

    def _sweep(self, layers: Layers, trial: CommandPlan) -> SweepPlan:
        """A sweep step: its component takes the sampled values as inputs of the same names."""
        limits = layers.get("limits") or {}
        names = {str(name) for name in layers.get("search_space") or {}}
        trial = replace(
            trial,
            command=_sampled(trial.command, names),
            inputs=Frozen((k, v) for k, v in trial.inputs.items() if k not in names),
            timeout_s=fields.seconds(limits.get("trial_timeout")),
        )
        owner = layers.owner("search_space")
        plan, wrong = hints.attach(fields.sweep(layers, trial), owner.file, owner.keys)
        self.problems += errors(wrong)
        return plan

    def _component(self, owner: Part, key: str) -> Part | None:
        component = component_of(owner, key, self._root)
        if isinstance(component, Problem):
            self.problems.append(component)
            return None
        return component

    def _demand(
        self, steps: Mapping[str, StepPlan], inputs: Mapping[str, InputPlan], jobs: Part
    ) -> None:
        """Report every source that does not exist; the checks cover only those with `parent`."""
        for name, step in steps.items():
            for key, source in step.sources.items():
                if isinstance(source, FromStep):
                    exists = source.step in jobs.mapping()
                    names = ", ".join(map(str, jobs.mapping()))
                else:
                    exists, names = source.input in inputs, ", ".join(inputs)
                if not exists:
                    message = (
                        f"`{source}`, which step `{name}` uses, does not exist in the pipeline"
                    )
                    expected = f"one of {names}" if names else "a value"
                    place = jobs.place(name, "inputs", key)
                    self.problems.append(Problem("unknown-source", message, expected, place=place))


def _sampled(command: str, names: set[str]) -> str:
    """The command with `${{inputs.x}}` of a sampled `x` as `${{search_space.x}}`."""
    for reference in reversed(expressions.references(command)):
        if reference.source == "inputs" and reference.name in names:
            text = f"${{{{search_space.{reference.name}}}}}"
            command = command[: reference.start] + text + command[reference.end :]
    return command


def _is_implicit(output: str, command: CommandPlan) -> bool:
    """Whether an output is implicit: its command does not refer to it."""
    texts = [command.command, *command.environment_variables.values()]
    return output in _IMPLICIT and not any(
        (reference.source, reference.name) == ("outputs", output)
        for text in texts
        for reference in expressions.references(text)
    )


def _in_order(steps: Mapping[str, StepPlan]) -> dict[str, StepPlan]:
    """Each step after those that it waits for, otherwise in the order of the file."""
    done: dict[str, StepPlan] = {}
    while len(done) < len(steps):
        ready = [
            name
            for name, step in steps.items()
            if name not in done and all(other in done or other not in steps for other in step.after)
        ]
        # The checks refuse cycles; should one get here, its steps keep the order of the file.
        for name in ready or [name for name in steps if name not in done]:
            done[name] = steps[name]
    return done


def _typed(
    output: OutputPlan, origin: FromStep | None, steps: Mapping[str, StepPlan]
) -> OutputPlan:
    """An output of the pipeline, with the type of the step's output that it comes from."""
    if origin is None:
        return output
    inner = outputs_of(steps[origin.step].plan).get(origin.output)
    return replace(output, type=inner.type) if inner else output


def _cycle(own: Part, name: str) -> Problem:
    return Problem(
        "component-cycle",
        f"step `{name}` runs the pipeline that it is a step of",
        "a component that does not contain itself",
        place=own.place("component"),
    )
