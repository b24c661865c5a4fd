"""The environments of a plan beside this interpreter, for a person and for a program."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from ml.backends.local.environments import differences as environment_differences
from ml.backends.local.environments import isolation
from ml.specs.plan.plan import Plan


def as_lines(plan: Plan) -> Iterator[str]:
    """Every difference with its place."""
    for environment in isolation.environments(plan):
        for one in environment_differences.differences(environment):
            yield f"  {one.dependency.place}: {one}"


def as_json(plan: Plan) -> list[dict[str, Any]]:
    """The comparison of each environment."""
    every = isolation.environments(plan)
    return [environment_differences.as_json(environment) for environment in every]
