"""Derive the role actions that requests need.

Sources: azure-resource-manager/management/control-plane-and-data-plane, and
role-based-access-control/role-definitions, "Actions format".
"""

from __future__ import annotations

import re
from collections.abc import Iterable

_WORKSPACE = re.compile(
    r"(?i)(?P<method>[A-Z]+) /subscriptions/[^/]+/resourceGroups/[^/]+/providers/"
    r"Microsoft\.MachineLearningServices/workspaces/[^/?]+(?P<part>/[^?]*)?"
)
_VERBS = {"GET": "read", "HEAD": "read", "PUT": "write", "PATCH": "write", "DELETE": "delete"}


def actions(requests: Iterable[str]) -> set[str]:
    """Return the actions that a role must allow for control plane requests, as `METHOD path`."""
    needed = set()
    for line in requests:
        if match := _WORKSPACE.match(line):
            parts = (match["part"] or "").strip("/").split("/")[::2]
            verb = _VERBS.get(match["method"], "action")
            kinds = ("Microsoft.MachineLearningServices", "workspaces", *filter(None, parts))
            needed.add("/".join((*kinds, verb)))
    return needed
