"""Specs of plans that a test made in code: a backend that passes specs on needs the file."""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import yaml

from ml.specs.plan.plans import CommandPlan, Dimension, Plan, SweepPlan
from ml.specs.sdk import load

_SCHEMA = "https://azuremlschemas.azureedge.net/latest/{}Job.schema.json"


def with_spec(plan: Plan, folder: Path) -> Plan:
    """The plan with a spec that says the same, in `folder`; a plan that has one, as it is."""
    if plan.spec is not None:
        return plan
    assert isinstance(plan, CommandPlan | SweepPlan)
    document = _command(plan) if isinstance(plan, CommandPlan) else _sweep(plan)
    path = folder / "job.yml"
    path.write_text(yaml.safe_dump(document, sort_keys=False))
    return replace(plan, spec=load.load(path))


def _command(plan: CommandPlan) -> dict[str, Any]:
    document = {
        "$schema": _SCHEMA.format("command"),
        "type": "command",
        **_job(plan),
        **_task(plan),
        **_ports(plan),
        "compute": plan.compute,
    }
    if plan.timeout_s is not None:
        document["limits"] = {"timeout": math.ceil(plan.timeout_s)}
    return document


def _sweep(plan: SweepPlan) -> dict[str, Any]:
    document = {
        "$schema": _SCHEMA.format("sweep"),
        "type": "sweep",
        **_job(plan),
        "trial": _task(plan.trial),
        **_ports(plan.trial),
        "compute": plan.trial.compute,
        "search_space": {name: _dimension(each) for name, each in plan.search_space.items()},
        "sampling_algorithm": {"type": plan.algorithm, "seed": plan.seed},
        "objective": {"goal": plan.goal, "primary_metric": plan.primary_metric},
        "limits": {
            "max_total_trials": plan.max_total_trials,
            "max_concurrent_trials": plan.max_concurrent_trials,
        },
    }
    if policy := plan.early_termination:
        fields = ("type", "evaluation_interval", "delay_evaluation")
        fields += ("slack_factor", "slack_amount", "truncation_percentage")
        written = {name: getattr(policy, name) for name in fields}
        document["early_termination"] = {k: v for k, v in written.items() if v is not None}
    return document


def _job(plan: CommandPlan | SweepPlan) -> dict[str, Any]:
    return {"display_name": plan.display_name, "experiment_name": plan.experiment}


def _task(plan: CommandPlan) -> dict[str, Any]:
    return {
        "code": str(plan.code),
        "command": plan.command,
        "environment": plan.environment.reference,
    }


def _ports(plan: CommandPlan) -> dict[str, Any]:
    inputs = {
        name: data.value if data.is_literal else {"type": data.type, "path": str(data.path)}
        for name, data in plan.inputs.items()
    }
    outputs = {name: {"type": output.type} for name, output in plan.outputs.items()}
    return {"inputs": inputs, "outputs": outputs}


def _dimension(dimension: Dimension) -> dict[str, Any]:
    assert dimension.kind == "uniform"
    low, high = dimension.args
    return {"type": "uniform", "min_value": low, "max_value": high}
