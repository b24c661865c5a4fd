"""A plan for reading: what `ml run --dry-run` prints."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import fields, is_dataclass
from pathlib import Path
from typing import Any

from ml.specs.plan import CommandPlan, Dimension, InputPlan, Plan, SweepPlan
from ml.specs.repository import shown


def as_json(value: object) -> Any:
    """The plan (or a part of one) as plain JSON values; `kind` tells a command from a sweep."""
    if is_dataclass(value) and not isinstance(value, type):
        data = {one.name: as_json(getattr(value, one.name)) for one in fields(value)}
        if isinstance(value, SweepPlan | CommandPlan):
            return {"kind": "sweep" if isinstance(value, SweepPlan) else "command", **data}
        return data
    if isinstance(value, Mapping):
        return {str(key): as_json(one) for key, one in value.items()}
    if isinstance(value, tuple | list):
        return [as_json(one) for one in value]
    return str(value) if isinstance(value, Path) else value


def as_text(plan: Plan) -> str:
    """The plan in aligned lines, most important first."""
    pairs = list(_sweep(plan) if isinstance(plan, SweepPlan) else _command(plan))
    width = max(len(name) for name, _ in pairs)
    return "\n".join(f"{name:<{width}}  {text}".rstrip() for name, text in pairs)


def _sweep(plan: SweepPlan) -> Iterator[tuple[str, str]]:
    yield "sweep", f"{plan.display_name} ({plan.place})"
    yield "experiment", plan.experiment
    yield "objective", f"{plan.goal} {plan.primary_metric}"
    seed = "" if plan.seed is None else f", seed {plan.seed}"
    yield "sampling", (plan.rule if plan.rule == "sobol" else plan.algorithm) + seed
    for name, dimension in plan.search_space.items():
        yield f"  {name}", _dimension(dimension)
    yield "trials", f"{plan.max_total_trials}, {plan.max_concurrent_trials} at once"
    if plan.early_termination:
        policy = plan.early_termination
        every = f"every {policy.evaluation_interval} from {policy.delay_evaluation}"
        yield "early termination", f"{policy.type}, {every}"
    for what, seconds in (("timeout", plan.timeout_s), ("trial timeout", plan.trial_timeout_s)):
        if seconds is not None:
            yield what, f"{seconds:g} s"
    yield from list(_command(plan.trial))[2:]


def _command(plan: CommandPlan) -> Iterator[tuple[str, str]]:
    yield "job", f"{plan.display_name} ({plan.place})"
    yield "experiment", plan.experiment
    yield "command", " ".join(plan.command.split())
    yield "code", shown(plan.code) if plan.code else "none"
    yield "environment", plan.environment.reference
    yield "compute", plan.compute or "none"
    for name, data in plan.inputs.items():
        yield f"input {name}", _input(data)
    for name, output in plan.outputs.items():
        yield f"output {name}", output.type
    for name, value in plan.environment_variables.items():
        yield f"variable {name}", value
    if plan.timeout_s is not None:
        yield "timeout", f"{plan.timeout_s:g} s"


def _input(data: InputPlan) -> str:
    if data.is_literal:
        return f"{data.value} ({data.type})"
    where = shown(data.path) if data.path else "not on this machine"
    digest = f", {data.asset.digest[:19]}…" if data.asset and data.asset.digest else ""
    return f"{data.source} → {where} ({data.type}{digest})"


def _dimension(dimension: Dimension) -> str:
    def plain(value: object) -> str:
        if isinstance(value, Mapping):
            members = ", ".join(
                f"{name}: {_dimension(one) if isinstance(one, Dimension) else one}"
                for name, one in value.items()
            )
            return f"{{{members}}}"
        return str(value)

    return f"{dimension.kind}({', '.join(plain(value) for value in dimension.args)})"
