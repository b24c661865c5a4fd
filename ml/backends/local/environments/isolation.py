"""`--isolated`: every command in the environment that its conda file describes."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from importlib.metadata import version

from ml.backends.local.environments import building as environment_building
from ml.backends.local.environments.interpreters import Interpreter, Interpreters
from ml.backends.local.environments.tracking_server import serving
from ml.backends.local.processes.process import Watchman
from ml.core.errors import Problem
from ml.specs.plan.plan import Environment, Plan, commands


def environments(plan: Plan) -> list[Environment]:
    """Those of the plan's commands, each once, in their order."""
    return list(dict.fromkeys(command.environment for command in commands(plan)))


def refusals(plan: Plan) -> tuple[Problem, ...]:
    """Why the plan cannot run isolated: what conda alone has, or nothing to build from at all."""
    every = environments(plan)
    if not any(one.dependencies is not None for one in every):
        return tuple(
            Problem(
                "nothing-to-build",
                f"the environment `{one.reference}` has no conda file on this machine",
                "an environment spec of this repository with a `conda_file:`",
                "leave --isolated out to run it in this interpreter",
                one.place,
            )
            for one in every
        )
    return tuple(p for one in every for p in environment_building.refusals(one))


@contextmanager
def ready(plan: Plan, watchman: Watchman, say: Callable[[str], None]) -> Iterator[Interpreters]:
    """The interpreters of the plan's commands, all built before the first one starts."""
    with ExitStack() as stack:
        found: dict[Environment, Interpreter] = {}
        for one in environments(plan):
            if one.dependencies is not None:
                found[one] = stack.enter_context(environment_building.built(one, watchman, say))
        address = ""
        for one, interpreter in found.items():
            if _needs_server(interpreter):
                address = address or stack.enter_context(serving(watchman))
                found[one] = replace(interpreter, tracking_uri=address)
            if not environment_building.mlflow_of(interpreter):
                say(
                    f"note: the conda file of {one.reference} asks for neither mlflow nor "
                    "azureml-mlflow: a script that imports mlflow fails here as on Azure ML"
                )
        yield Interpreters(found)


def _needs_server(interpreter: Interpreter) -> bool:
    found = environment_building.mlflow_of(interpreter)
    return bool(found) and found.get("mlflow") != version("mlflow")
