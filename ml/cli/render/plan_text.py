"""Format a plan for `ml run --dry-run`."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import fields, is_dataclass, replace
from pathlib import Path
from typing import Any

from ml.cli.render.output import align
from ml.core.repository import shown
from ml.reports.formatting import count
from ml.specs.plan.plans import (
    AutoMLPlan,
    CommandPlan,
    Dimension,
    FromPipeline,
    FromStep,
    Hints,
    InputPlan,
    Parallel,
    PipelinePlan,
    Plan,
    StepPlan,
    SweepPlan,
)

_KINDS: dict[type, str] = {
    CommandPlan: "command",
    SweepPlan: "sweep",
    AutoMLPlan: "automl",
    PipelinePlan: "pipeline",
    FromPipeline: "input",
    FromStep: "output",
}


def as_json(value: object) -> Any:
    """Convert a plan, or a part of one, to JSON values; `kind` is the type of plan or source."""
    if is_dataclass(value) and not isinstance(value, type):
        data = {
            item.name: as_json(getattr(value, item.name)) for item in fields(value) if item.compare
        }
        kind = _KINDS.get(type(value))
        return {"kind": kind, **data} if kind else data
    if isinstance(value, Mapping):
        return {str(key): as_json(item) for key, item in value.items()}
    if isinstance(value, tuple | list):
        return [as_json(item) for item in value]
    return str(value) if isinstance(value, Path) else value


def as_text(plan: Plan) -> str:
    """Format the plan as aligned lines (label, text)."""
    return align(_pairs(plan))


def _pairs(plan: Plan) -> Iterator[tuple[str, str]]:
    if isinstance(plan, PipelinePlan):
        return _pipeline(plan)
    if isinstance(plan, AutoMLPlan):
        return _search(plan)
    return _sweep(plan) if isinstance(plan, SweepPlan) else _command(plan)


def _pipeline(plan: PipelinePlan) -> Iterator[tuple[str, str]]:
    """Yield the lines of a pipeline, then of each step in topological order."""
    yield "pipeline", f"{plan.display_name} ({plan.place})"
    yield "experiment", plan.experiment
    if plan.component:
        yield "component", plan.component
    for name, data in plan.inputs.items():
        yield f"input {name}", _input(data)
    for name, output in plan.outputs.items():
        yield f"output {name}", f"{plan.origins.get(name, 'no step writes it')} ({output.type})"
    going_on = "the others go on" if plan.continue_on_step_failure else "the pipeline stops"
    yield "when a step fails", going_on
    yield "unchanged steps", "run again (force_rerun)" if plan.force_rerun else "are reused"
    for name, step in plan.steps.items():
        yield f"step {name}", f"after {', '.join(step.after)}" if step.after else "at once"
        for what, text in _step(step):
            yield f"  {what}", text


def _step(step: StepPlan) -> Iterator[tuple[str, str]]:
    """Yield the lines of a step, without its name and experiment, which the pipeline shows."""
    for what, text in _pairs(step.plan):
        source = step.sources.get(what.removeprefix("input "))
        if what in {"job", "sweep", "pipeline"}:
            yield what, str(step.place)
        elif what.startswith("input ") and source is not None:
            yield what, str(source)
        elif what != "experiment":
            yield what, text
    for output, promoted in step.promoted.items():
        yield f"output {output}", f"is the pipeline's `{promoted}`"
    if not step.is_deterministic:
        yield "is_deterministic", "false: never reused"


def _sweep(plan: SweepPlan) -> Iterator[tuple[str, str]]:
    yield "sweep", f"{plan.display_name} ({plan.place})"
    yield "experiment", plan.experiment
    yield "objective", f"{plan.goal} {plan.primary_metric}"
    seed = "" if plan.seed is None else f", seed {plan.seed}"
    yield "sampling", (plan.rule if plan.rule == "sobol" else plan.algorithm) + seed
    for name, dimension in plan.search_space.items():
        yield f"  {name}", _dimension(dimension)
    yield from _hints(plan.hints)
    yield "trials", f"{plan.max_total_trials}, {plan.max_concurrent_trials} at once"
    if plan.early_termination:
        policy = plan.early_termination
        every = f"every {policy.evaluation_interval} from {policy.delay_evaluation}"
        yield "early termination", f"{policy.type}, {every}"
    yield from _timeouts(plan.timeout_s, plan.trial_timeout_s or plan.trial.timeout_s)
    yield from list(_command(replace(plan.trial, timeout_s=None)))[2:]


def _search(plan: AutoMLPlan) -> Iterator[tuple[str, str]]:
    yield "job", f"{plan.display_name} ({plan.place})"
    yield "experiment", plan.experiment
    target = f" of `{plan.target_column}`" if plan.target_column else ""
    yield "AutoML", f"{plan.task}{target}"
    yield "objective", f"{plan.goal} {plan.primary_metric}"
    yield "algorithms", ", ".join(plan.algorithms) or "all of the task"
    yield "trials", f"{plan.max_total_trials}, {plan.max_concurrent_trials} at once"
    yield from _timeouts(plan.timeout_s, plan.trial_timeout_s)
    yield "compute", plan.compute or "none"
    for name, data in plan.inputs.items():
        yield f"input {name}", _input(data)
    for name, output in plan.outputs.items():
        yield f"output {name}", output.type


def _timeouts(search_s: float | None, trial_s: float | None) -> Iterator[tuple[str, str]]:
    limits = ((search_s, "for all trials together"), (trial_s, "for each trial"))
    if texts := [f"{seconds:g} s {what}" for seconds, what in limits if seconds is not None]:
        yield "timeout", ", ".join(texts)


def _hints(hints: Hints) -> Iterator[tuple[str, str]]:
    """Yield the lines of the hints file beside the spec."""
    if hints:
        yield "hints", f"{hints.file} (for this machine; Azure ML does not read it)"
    for point in hints.points:
        values = ", ".join(f"{name}={value}" for name, value in point.values.items())
        yield "  try first", values + (f" – {point.because}" if point.because else "")
    for constraint in hints.constraints:
        yield (
            "  require",
            constraint.expression + (f" – {constraint.because}" if constraint.because else ""),
        )
    if hints.sampler:
        yield "  sampler", f"{hints.sampler}, instead of random sampling"
    for condition in hints.conditions:
        yield f"  {condition.parameter}", f"only if {condition.expression}"


def _command(plan: CommandPlan) -> Iterator[tuple[str, str]]:
    yield "job", f"{plan.display_name} ({plan.place})"
    yield "experiment", plan.experiment
    if plan.parallel is not None:
        yield from _parallel(plan, plan.parallel)
    if plan.component:
        yield "component", plan.component
    what = "arguments" if plan.parallel is not None else "command"
    for number, line in enumerate(plan.command.strip().splitlines()):
        yield "" if number else what, line
    if not plan.component:
        yield "code", shown(plan.code) if plan.code else "none"
        yield "environment", plan.environment.reference
    yield "compute", plan.compute or "none"
    if plan.distribution is not None:
        yield "distribution", _distribution(plan)
    for name, data in plan.inputs.items():
        yield f"input {name}", _input(data)
    for name, output in plan.outputs.items():
        yield f"output {name}", output.type
    for name, value in plan.environment_variables.items():
        yield f"variable {name}", value
    if plan.timeout_s is not None:
        yield "timeout", f"{plan.timeout_s:g} s"


def _distribution(plan: CommandPlan) -> str:
    launcher, nodes = plan.distribution, plan.instance_count
    if launcher is None:
        return "none"
    if launcher.type == "tensorflow":
        servers = launcher.parameter_server_count
        parts = ["tensorflow", count(launcher.workers(nodes), "worker")]
        return ", ".join([*parts, count(servers, "parameter server")] if servers else parts)
    processes = count(launcher.process_count_per_instance, "process", "processes")
    return f"{launcher.type}, {count(nodes, 'node')} × {processes}"


def _parallel(plan: CommandPlan, task: Parallel) -> Iterator[tuple[str, str]]:
    number = task.mini_batch_size
    size = count(number, "file") if number < 1 << 10 else f"{number >> 10} kB of a table"
    size = size if number else "of the default size"
    yield "entry script", task.entry_script
    keys = ", ".join(task.partition_keys)
    yield "mini-batches", f"of `{task.input}`, " + (f"one for each {keys}" if keys else size)
    per_node = task.max_concurrency_per_instance
    on_each = count(per_node, "process", "processes") if per_node else "one process a core"
    yield "processes", f"{count(plan.instance_count, 'node')} × {on_each}"
    yield "tries", f"{task.max_retries + 1} of {task.run_timeout_s:g} s each"
    for what, allowed in (
        ("failed mini-batches", task.mini_batch_error_threshold),
        ("failed items", task.error_threshold),
    ):
        yield what, "any number" if allowed < 0 else f"at most {allowed}"


def _input(data: InputPlan) -> str:
    if data.is_literal:
        return f"{'not given' if data.value is None else data.value} ({data.type})"
    if not data.source:
        return f"not given ({data.type})"
    where = shown(data.path) if data.path else "not on this machine"
    digest = f", {data.asset.digest[:19]}…" if data.asset and data.asset.digest else ""
    return f"{data.source} → {where} ({data.type}{digest})"


def _dimension(dimension: Dimension) -> str:
    def plain(value: object) -> str:
        if isinstance(value, Mapping):
            members = ", ".join(
                f"{name}: {_dimension(member) if isinstance(member, Dimension) else member}"
                for name, member in value.items()
            )
            return f"{{{members}}}"
        return str(value)

    return f"{dimension.kind}({', '.join(plain(value) for value in dimension.args)})"
