"""Turns a checked spec into a frozen plan with every reference resolved. Pure: creates nothing.

A job is planned like a pipeline step: its own fields override those of its component or trial. The
plan of a pipeline contains the plans of its steps.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, NoReturn

from ml.core import repository
from ml.core.errors import Exit, Problem, UserError, errors
from ml.specs import expressions
from ml.specs.assets import assets
from ml.specs.check import check
from ml.specs.plan import automl, fields, parallel
from ml.specs.plan.bindings import Bindings, Ports, waits_for
from ml.specs.plan.plans import (
    CommandPlan,
    FromStep,
    Frozen,
    InputPlan,
    OutputPlan,
    PipelinePlan,
    Plan,
    StepPlan,
    SweepPlan,
)
from ml.specs.sdk.load import Spec
from ml.specs.search import hints
from ml.specs.yaml_node import Layers, YamlNode

RUNNABLE = frozenset({"command", "sweep", "pipeline", "parallel", "automl"})
# Codes of problems with parts that only Azure ML can run; the backend decides whether to refuse.
NOT_HERE = frozenset({"remote-code", "component-not-local", "unsupported-step"})
# Outputs that every step has without declaration: `./outputs` and `./logs`.
_IMPLICIT = frozenset({"default", "artifacts"})
# Steps that Azure ML runs before and after all others; private preview.
_HOOKS = ("on_init", "on_finalize")
_SOURCE = "reference-yaml-job-pipeline: jobs.<name>.component"


def plan(
    spec: Spec,
    root: Path | None = None,
    registered: Path | None = None,
    problems: Sequence[Problem] | None = None,
) -> Plan:
    """Return the plan of a command, sweep, pipeline or AutoML job.

    `root` is the repository whose specs define `azureml:` assets; `registered` is the folder where
    runs on this machine register assets. `problems` are the results of the checks, if they already
    ran. Raises UserError with every error, and with exit code 33 for a kind of job that cannot run
    here. Steps that cannot run here, and remote code and components, go to the plan's `not_here`.
    """
    if wrong := errors(check.check(spec) if problems is None else problems):
        raise UserError(*wrong)
    if not spec.kind.is_job or spec.kind.type not in RUNNABLE:
        _refuse_kind(spec)
    # Azure ML's default is the name of the working directory (reference-yaml-job-command).
    experiment = str(spec.get("experiment_name") or Path.cwd().name)
    name = str(spec.get("display_name") or spec.get("name") or spec.file.stem)
    bindings = Bindings(root or repository.root(spec.file), registered)
    job = _Planner(bindings, experiment).step(spec, name, _Around())
    reported = tuple(dict.fromkeys(bindings.problems))
    if wrong := tuple(problem for problem in reported if problem.code not in NOT_HERE):
        raise UserError(*wrong)
    # Drop azure-ai-ml's entity, which can be neither copied nor sent to another process.
    return replace(job.plan, spec=replace(spec, entity=None), not_here=reported)


def _refuse_kind(spec: Spec) -> NoReturn:
    message, code = f"this backend does not run {spec.kind}s yet", Exit.CANNOT_HONOUR
    if not spec.kind.is_job:
        message = f"this is the spec of {spec.kind.with_article}, not of a job"
        code = Exit.WRONG_CALL
    hint = f"`ml check {spec.document.shown}` checks it"
    problem = Problem(
        "unsupported-kind",
        message,
        "a command, sweep, pipeline or AutoML job",
        hint,
        spec.place("type"),
    )
    raise UserError(problem, exit_code=code)


@dataclass(frozen=True)
class _Around:
    """The settings that a step gets from its pipeline; empty for a job."""

    settings: Mapping[str, Any] = field(default_factory=dict)
    compute: str = ""
    prefix: str = ""  # path from the job to the step: `jobs.train.`; "" for a job
    outputs: Mapping[str, OutputPlan] = field(default_factory=dict)


class _Planner:
    """Plans one job and its steps, which inherit its experiment and compute.

    `bindings` collects the problems of all steps.
    """

    def __init__(self, bindings: Bindings, experiment: str) -> None:
        self._bindings, self._experiment = bindings, experiment
        self._problems = bindings.problems

    def step(self, node: YamlNode, name: str, around: _Around) -> StepPlan:
        """Return the plan of a step, or of a job as the only step.

        A step that only Azure ML can run is planned as a command, with a problem.
        """
        component, registered = None, ""
        if node.get("component") is not None:
            component = self._component(node, "component")
            registered = "" if component else str(node.get("component"))
        layers = Layers(node, component)
        kind = str((component or node).get("type") or node.get("type") or "command").lower()
        if kind not in RUNNABLE or (component is not None and component.get("nodes") is not None):
            self._problems.append(
                _unsupported(node, name, kind if kind not in RUNNABLE else "flow")
            )
            kind = "command"
        declared = component
        if kind == "sweep":
            declared = self._component(layers.owner("trial"), "trial")
            registered = "" if declared else str(layers.get("trial"))
        ports = Ports(node, declared, self._bindings, around.prefix)
        inputs, sources = ports.inputs()
        outputs, promoted = ports.outputs(around.outputs)
        plan: Plan
        if kind == "automl":
            plan, sources = automl.planned(
                node,
                name=name,
                experiment=self._experiment,
                compute=around.compute,
                bindings=self._bindings,
                prefix=around.prefix,
                outputs=outputs,
            )
        elif kind == "pipeline":
            # No endless recursion: the checks refuse a component that contains itself.
            plan = self._pipeline(layers, name, replace(around, outputs=outputs), inputs)
            plan = replace(plan, component=registered)
            if around.prefix:  # a step redeclares the outputs of its component
                plan = replace(plan, outputs=outputs)
        else:
            task = layers.owner("task") if kind == "parallel" and not registered else None
            command = self._command(Layers(node, declared), name, around.compute, task)
            if around.prefix:
                outputs = Frozen((k, v) for k, v in outputs.items() if not _is_implicit(k, command))
            command = replace(command, inputs=inputs, outputs=outputs, component=registered)
            plan = self._sweep(layers, command, around) if kind == "sweep" else command
        return StepPlan(
            place=node.place(),
            plan=plan,
            sources=sources,
            promoted=promoted,
            after=tuple(dict.fromkeys(waits_for(node))),
            is_deterministic=(declared or node).get("is_deterministic") is not False,
        )

    def _pipeline(
        self, layers: Layers, name: str, around: _Around, inputs: Mapping[str, InputPlan]
    ) -> PipelinePlan:
        """Return the plan of a pipeline; a nested one inherits settings and compute."""
        self._problems += _hooks(layers)
        settings = {**around.settings, **(layers.get("settings") or {})}
        compute = layers.get("compute") or settings.get("default_compute") or around.compute
        jobs = layers.owner("jobs").child("jobs")
        steps: dict[str, StepPlan] = {}
        for key in jobs.mapping():
            prefix = f"{around.prefix}jobs.{key}."
            inside = replace(around, settings=settings, compute=str(compute), prefix=prefix)
            steps[str(key)] = self.step(jobs.child(key), str(key), inside)
        self._demand(steps, inputs, jobs)
        origins = {
            target: FromStep(step, output)
            for step, planned in steps.items()
            for output, target in planned.promoted.items()
        }
        outputs = around.outputs.items()
        return PipelinePlan(
            place=layers.place(),
            display_name=name,
            experiment=self._experiment,
            steps=Frozen(_in_order(steps)),
            inputs=inputs,
            outputs=Frozen((k, _typed(o, origins.get(k), steps)) for k, o in outputs),
            origins=Frozen(origins),
            continue_on_step_failure=settings.get("continue_on_step_failure") is not False,
            force_rerun=settings.get("force_rerun") is True,
            tags=fields.tags(layers),
            description=fields.text(layers.get("description")),
            places=fields.places(layers),
        )

    def _command(
        self, layers: Layers, name: str, compute: str, task: YamlNode | None
    ) -> CommandPlan:
        """Return the plan of a command job, step or trial; the caller adds inputs and outputs.

        `task` is the node whose field `task` defines a parallel step; None for other types.
        """
        prefix = ("task",) if task is not None else ()
        command = task.get("task", "program_arguments") if task else layers.get("command")
        variables = {
            **(layers.component.mapping("environment_variables") if layers.component else {}),
            **layers.step.mapping("environment_variables"),
        }
        resources = layers.get("resources") or {}
        environment = task or layers.owner("environment")
        plan = CommandPlan(
            place=layers.owner("command").place(),
            display_name=name,
            experiment=self._experiment,
            command=str(command or ""),
            code=self._bindings.code(task or layers.owner("code"), *prefix, "code"),
            environment=self._bindings.environment(environment, *prefix, "environment"),
            compute=str(layers.step.get("compute") or compute),
            environment_variables=Frozen((str(k), fields.text(v)) for k, v in variables.items()),
            timeout_s=fields.seconds(layers.step.get("limits", "timeout")),
            instance_count=int(resources.get("instance_count") or 1),
            distribution=fields.distribution(layers, "distribution"),
            tags=fields.tags(layers),
            description=fields.text(layers.get("description")),
            places=fields.places(layers),
        )
        if task is None:
            return plan
        mini_batches = parallel.planned(layers)
        if isinstance(mini_batches, list):
            self._problems += mini_batches
            return plan
        return replace(plan, parallel=mini_batches)

    def _sweep(self, layers: Layers, trial: CommandPlan, around: _Around) -> SweepPlan:
        """Return the plan of a sweep.

        In a step, sampled values replace the component's inputs of the same names.
        """
        names = {str(name) for name in layers.get("search_space") or {}}
        if around.prefix:
            inputs = Frozen((k, v) for k, v in trial.inputs.items() if k not in names)
            trial = replace(trial, command=_sampled(trial.command, names), inputs=inputs)
        limits = layers.get("limits") or {}
        trial = replace(trial, timeout_s=fields.seconds(limits.get("trial_timeout")))
        owner = layers.owner("search_space")
        plan, problems = hints.attach(fields.sweep(layers, trial), owner.file, owner.keys)
        self._problems += errors(problems)
        return plan

    def _component(self, owner: YamlNode, key: str) -> YamlNode | None:
        """Return the component at `key` (`component`, `trial`); None and a problem if remote."""
        root = self._bindings.root
        component = assets.component(owner, key, root)
        if component is None:
            text = str(owner.get(key))
            where = "a registry" if text.startswith("azureml://registries") else "the workspace"
            hint = "run it with `--on azure`, or export it (`az ml component show`) to a file"
            if not repository.is_root(root):
                hint += f"; to use all specs below a folder, run `touch {repository.MARK}` in it"
            self._problems.append(
                Problem(
                    "component-not-local",
                    f"`{key}: {text}` is in {where}, not on this machine",
                    "a component file, or a component that a spec under ml/ or infra/ defines",
                    hint,
                    owner.place(key),
                    source=_SOURCE,
                )
            )
        return component

    def _demand(
        self, steps: Mapping[str, StepPlan], inputs: Mapping[str, InputPlan], jobs: YamlNode
    ) -> None:
        """Add a problem for each missing source; the checks only cover bindings with `parent`."""
        for name, step in steps.items():
            for key, source in step.sources.items():
                if isinstance(source, FromStep):
                    exists = source.step in jobs.mapping()
                    names = ", ".join(map(str, jobs.mapping()))
                else:
                    exists, names = source.input in inputs, ", ".join(inputs)
                if not exists:
                    actual = f"step `{name}` uses `{source}`, which the pipeline does not have"
                    expected = f"one of {names}" if names else "a value"
                    place = jobs.place(name, "inputs", key)
                    hint = f"change `inputs.{key}`, or add `{source}` to the pipeline"
                    problem = Problem("unknown-source", actual, expected, hint, place)
                    self._problems.append(problem)


def _sampled(command: str, names: set[str]) -> str:
    """Replace `${{inputs.X}}` by `${{search_space.X}}` in a command for each X in `names`."""
    for reference in reversed(expressions.references(command)):
        if reference.source == "inputs" and reference.name in names:
            text = f"${{{{search_space.{reference.name}}}}}"
            command = command[: reference.start] + text + command[reference.end :]
    return command


def _is_implicit(output: str, command: CommandPlan) -> bool:
    """Return True for an output in `_IMPLICIT` that the command does not reference."""
    texts = [command.command, *command.environment_variables.values()]
    return output in _IMPLICIT and not any(
        (reference.source, reference.name) == ("outputs", output)
        for text in texts
        for reference in expressions.references(text)
    )


def _in_order(steps: Mapping[str, StepPlan]) -> dict[str, StepPlan]:
    """Return the steps in topological order; steps that are equal keep the file's order."""
    done: dict[str, StepPlan] = {}
    while len(done) < len(steps):
        remaining = [name for name in steps if name not in done]
        ready = (name for name in remaining if not {*steps[name].after} & {*remaining})
        # The checks refuse cycles. The default avoids an endless loop if one gets here.
        name = next(ready, remaining[0])
        done[name] = steps[name]
    return done


def _typed(
    output: OutputPlan, origin: FromStep | None, steps: Mapping[str, StepPlan]
) -> OutputPlan:
    """Return the pipeline's output with the type of the step's output that is bound to it."""
    if origin is None:
        return output
    inner = steps[origin.step].plan.outputs.get(origin.output)
    return replace(output, type=inner.type) if inner else output


def _hooks(layers: Layers) -> list[Problem]:
    """Return a problem for each of the settings `on_init` and `on_finalize`."""
    settings = layers.owner("settings").child("settings")
    return [
        Problem(
            "unsupported-step",
            f"`{key}: {settings.get(key)}` is a step that runs before or after all others",
            "steps that run when their inputs are ready",
            "bind an input of the step to an output of the step that it waits for",
            settings.place(key),
            source=_SOURCE,
        )
        for key in _HOOKS
        if settings.get(key) is not None
    ]


def _unsupported(step: YamlNode, name: str, kind: str) -> Problem:
    """Return the problem of a kind of step that cannot run on this machine."""
    article = "an" if kind[:1] in "aeiou" else "a"
    return Problem(
        "unsupported-step",
        f"step `{name}` is {article} {kind} step, which cannot run on this machine",
        "command, sweep, pipeline, parallel and AutoML steps",
        "run it with `--on azure`, or the other steps as a separate pipeline",
        step.place("type") if step.get("type") is not None else step.place(),
        source=_SOURCE,
    )
