"""Run a Pulumi program in this process against an engine; by path, so that it can be any program.

python launch.py ENGINE PROJECT STACK PROGRAM_FOLDER [bare]

azure-native gives a resource an alias for every version of its API that there ever was, and the SDK
makes a URN of each: three quarters of a run's CPU. Only engines without alias specs are told those
URNs, and ours has alias specs, so they are not made. `bare` leaves the SDK as it is.
"""

from __future__ import annotations

import asyncio
import runpy
import sys
from pathlib import Path


def main(engine: str, project: str, stack: str, program: str, how: str = "") -> None:
    """Run PROGRAM_FOLDER/__main__.py; the folder's parent is where `infra` is imported from."""
    import pulumi.resource
    import pulumi.runtime

    if how != "bare":
        setattr(pulumi.resource, "collapse_alias_to_urn", lambda *alias: None)  # noqa: B010
    sys.path[0] = str(Path(program).parent)
    pulumi.runtime.set_all_config(
        pulumi.runtime.get_config_env(), pulumi.runtime.get_config_secret_keys_env()
    )
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

    def run() -> None:
        runpy.run_path(str(Path(program) / "__main__.py"), run_name="__main__")

    asyncio.run(pulumi.runtime.run_in_stack(run))


if __name__ == "__main__":
    main(*sys.argv[1:])
