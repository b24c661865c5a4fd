"""Runs a Pulumi program in this process against an engine; run by path, from any tree.

python launch.py ENGINE PROJECT STACK PROGRAM_FOLDER [bare]

azure-native gives each resource an alias for every past API version, and the SDK computes a URN for
each of them: three quarters of a run's CPU. The SDK only sends those URNs to engines without alias
specs. Ours supports alias specs, so they are not computed. `bare` leaves the SDK unchanged.
"""

from __future__ import annotations

import asyncio
import runpy
import sys
from pathlib import Path


def main(engine: str, project: str, stack: str, program: str, how: str = "") -> None:
    """Run PROGRAM_FOLDER/__main__.py, with `infra` imported from the folder's parent."""
    import pulumi.resource
    import pulumi.runtime

    if how != "bare":
        setattr(pulumi.resource, "collapse_alias_to_urn", lambda *alias: None)  # noqa: B010
    # `infra` and `ml` are namespace packages: without this, modules that the tree lacks would come
    # from the tree that is installed.
    root = str(Path(program).parent)
    sys.path[:] = [root, *(path for path in sys.path[1:] if not Path(path, "infra").is_dir())]
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
