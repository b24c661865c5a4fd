"""Bind the inputs of a pipeline's step to the pipeline's inputs and to other steps' outputs."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

from ml.specs.expressions import references
from ml.specs.plan.plans import (
    LITERALS,
    AutoMLPlan,
    CommandPlan,
    FromStep,
    Frozen,
    InputPlan,
    PipelinePlan,
    Source,
    StepPlan,
    SweepPlan,
)


def bind(
    step: StepPlan, pipeline: PipelinePlan, written: Mapping[FromStep, Path]
) -> CommandPlan | SweepPlan | PipelinePlan:
    """Return the step's plan with all inputs from the pipeline and other steps resolved.

    `written` maps the outputs of earlier steps to their paths.
    """
    inputs = {
        name: _input(data, step.sources[name], pipeline, written) if name in step.sources else data
        for name, data in step.plan.inputs.items()
    }
    texts = _texts(pipeline.inputs, written)
    inputs = {
        name: replace(data, value=_filled(data.value, texts))
        if isinstance(data.value, str)
        else data
        for name, data in inputs.items()
    }
    plan = step.plan
    if isinstance(plan, SweepPlan):
        return replace(plan, trial=_command(plan.trial, inputs, texts))
    if isinstance(plan, CommandPlan):
        return _command(plan, inputs, texts)
    assert not isinstance(plan, AutoMLPlan)  # refused before it starts
    return replace(plan, inputs=Frozen(inputs))


def _command(
    plan: CommandPlan, inputs: Mapping[str, InputPlan], texts: Mapping[str, str | None]
) -> CommandPlan:
    variables = {k: _filled(v, texts) for k, v in plan.environment_variables.items()}
    return replace(plan, inputs=Frozen(inputs), environment_variables=Frozen(variables))


def _input(
    data: InputPlan,
    source: Source,
    pipeline: PipelinePlan,
    written: Mapping[FromStep, Path],
) -> InputPlan:
    if isinstance(source, FromStep):
        output = pipeline.steps[source.step].plan.outputs.get(source.output)
        kind = output.type if output else "uri_folder"
        kind = kind if data.type in LITERALS or not data.type else data.type
        return replace(data, type=kind, path=written[source])
    outer = pipeline.inputs[source.input]
    if outer.is_literal:
        kind = data.type if data.type in LITERALS else outer.type
        return replace(data, type=kind, value=outer.value)
    kind = outer.type if data.type in LITERALS or not data.type else data.type
    return replace(data, type=kind, path=outer.path, source=outer.source, asset=outer.asset)


def _texts(
    inputs: Mapping[str, InputPlan], written: Mapping[FromStep, Path]
) -> dict[str, str | None]:
    """Return binding (`inputs.X`, `jobs.STEP.outputs.X`) → its text; None for unset inputs."""
    texts = {f"inputs.{k}": _text(data) for k, data in inputs.items()}
    return texts | {f"jobs.{s.step}.outputs.{s.output}": str(p) for s, p in written.items()}


def _text(data: InputPlan) -> str | None:
    value = data.value if data.is_literal else data.path
    return None if value is None else str(value)


def _filled(text: str, texts: Mapping[str, str | None]) -> str:
    for reference in reversed(references(text)):
        value = texts.get(reference.name) if reference.source == "parent" else None
        if value is not None:
            text = text[: reference.start] + value + text[reference.end :]
    return text


def used_outputs(plan: PipelinePlan, name: str) -> set[str]:
    """Return the outputs of the step `name` that other steps or the pipeline's outputs use."""
    sources = [s for step in plan.steps.values() for s in step.sources.values()]
    taken = [*sources, *plan.origins.values()]
    return {s.output for s in taken if isinstance(s, FromStep) and s.step == name}
