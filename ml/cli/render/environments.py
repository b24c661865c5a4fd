"""The environments of a plan beside this interpreter, for a person and for a program."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from ml.backends.local.environments import building, requirements
from ml.specs.plan.plan import Plan


def as_lines(plan: Plan) -> Iterator[str]:
    """Every difference with its place."""
    for environment in building.environments(plan):
        for difference in requirements.differences(environment):
            yield f"  {difference.dependency.place}: {difference}"


def as_json(plan: Plan) -> list[dict[str, Any]]:
    """The comparison of each environment."""
    every = building.environments(plan)
    return [requirements.as_json(environment) for environment in every]
