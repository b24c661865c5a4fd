"""Script that runs Pulumi programs, each in a fork of this process, which has imported the SDK.

Importing the SDK takes most of a program's time, so it happens once for all programs of a preview.
Each line of stdin is a request, each line of stdout the exit code of its program:

    {"engine": ADDRESS, "project": PROJECT, "stack": STACK, "root": TREE, "bare": false}

azure-native gives each resource an alias for every past API version, and the SDK computes a URN for
each of them: two thirds of a run's time. A preview has no state in which an alias could be found,
so a transformation removes them; `bare` keeps them.
"""

from __future__ import annotations

import asyncio
import copy
import gc
import importlib
import json
import os
import runpy
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pulumi
import pulumi.runtime

# The modules of azure-native that the program imports; a test compares them. A module that is
# missing here still works, but each fork imports it again.
SDK = (
    *("applicationinsights", "authorization", "compute", "consumption", "containerregistry"),
    *("keyvault", "machinelearningservices", "managedidentity", "monitor", "network"),
    *("operationalinsights", "privatedns", "redisenterprise", "resources", "security", "storage"),
)
# The resource type by which the engine returns the outputs of another stack.
OUTPUTS = "preview:outputs:Outputs"
# Modules that the program imports to read its settings.
READERS = ("pydantic.fields", "pydantic.type_adapter", "yaml")


def main() -> None:
    """Run the program of each request in a fork, and print its exit code."""
    for name in READERS:
        importlib.import_module(name)
    for name in SDK:
        # A module of the SDK loads when an attribute of it is read.
        getattr(importlib.import_module(f"pulumi_azure_native.{name}"), "_utilities", None)
    gc.collect()
    gc.freeze()  # the forks share this memory as long as no collection writes to it
    answers = os.fdopen(os.dup(1), "w")
    nowhere = os.open(os.devnull, os.O_RDWR)
    os.dup2(nowhere, 1)
    for line in sys.stdin:
        child = os.fork()
        if not child:
            os.dup2(nowhere, 0)
            return run(**json.loads(line))
        _, status = os.waitpid(child, 0)
        print(os.waitstatus_to_exitcode(status), file=answers, flush=True)
    return None


def run(
    engine: str, project: str, stack: str, root: str, config: dict[str, str], bare: bool
) -> None:
    """Run infra/__main__.py of the tree at `root`, importing `infra` and `ml` from that tree."""
    secrets = pulumi.runtime.get_config_secret_keys_env()
    os.environ["PULUMI_CONFIG"] = json.dumps({**pulumi.runtime.get_config_env(), **config})
    package, module, _ = OUTPUTS.split(":")
    pulumi.runtime.register_resource_module(package, module, OutputsOfStacks())
    sys.path[0] = root
    pulumi.runtime.set_all_config(pulumi.runtime.get_config_env(), secrets)
    program = str(Path(root) / "infra")
    pulumi.runtime.configure(
        pulumi.runtime.Settings(
            project=project,
            stack=stack,
            monitor=engine,
            engine=engine,
            parallel=16,
            dry_run=False,
            organization="organization",
            root_directory=program,
        )
    )

    def execute() -> None:
        if not bare:
            pulumi.runtime.register_stack_transformation(_without_aliases)
        runpy.run_path(str(Path(program) / "__main__.py"), run_name="__main__")

    asyncio.run(pulumi.runtime.run_in_stack(execute))


def _without_aliases(
    made: pulumi.ResourceTransformationArgs,
) -> pulumi.ResourceTransformationResult:
    options = copy.copy(made.opts)
    options.aliases = None
    return pulumi.ResourceTransformationResult(made.props, options)


class OutputsOfStacks(pulumi.runtime.ResourceModule):
    """Pulumi resource module that deserializes the engine's outputs of another stack."""

    def version(self) -> None:
        """Return None, which matches any version."""

    def construct(self, name: str, typ: str, urn: str) -> Any:
        """Return the outputs of the stack with the StackReference `name`."""
        return Outputs(name)


class Outputs(Mapping[str, str]):
    """The outputs of another stack: each is a placeholder, since its value is unknown here.

    Pulumi's unknown value works only in a dry run, and resources derived from it would be missing.
    """

    def __init__(self, reference: str) -> None:
        self._reference = reference

    def __getitem__(self, name: str) -> str:
        return f"{self._reference}/{name}"

    def __iter__(self) -> Iterator[str]:
        return iter(())

    def __len__(self) -> int:
        return 0


if __name__ == "__main__":
    main()
