"""Changes of settings that Azure makes to no workspace that is there.

Source: learn.microsoft.com/azure/machine-learning/how-to-managed-network ("Configure for serverless
Spark jobs", "Limitations", "Migration of compute resources"). Of opening to approved only it says
once that it cannot be, and elsewhere how it is done: what is shown here is the cautious reading.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from infra.preview.changes import Change

WORKSPACE = "machinelearningservices:Workspace"
MODE = "managedNetwork.isolationMode"
_NEW = "another stack file makes a workspace beside it"


def lasting(changes: Iterable[Change]) -> Iterator[str]:
    """What would be refused of the changes where they meet one, each with what to do instead."""
    for change in changes:
        for one in change.properties:
            if change.kind != WORKSPACE or one.path != MODE:
                continue
            told = f"{change.name}: if it is there already, {MODE} stays {one.before}"
            if one.before == "Disabled":
                yield f"{told} until its clusters, instances and deployments are deleted"
            else:
                yield f"{told}, it does not become {one.after}: {_NEW}"
