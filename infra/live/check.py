"""The result of a check of `infra doctor`, and the check of permissions."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import Any, Literal

from infra.live.addresses import version
from infra.live.arm import Arm


@dataclass(frozen=True)
class Check:
    """The result of one check of `infra doctor`."""

    name: str
    verdict: Literal["ok", "warning", "error"]
    message: str
    hint: str = ""

    def __str__(self) -> str:
        hint = f" ({self.hint})" if self.hint else ""
        return f"{self.verdict:<7}  {self.name}: {self.message}{hint}"


def granted(
    name: str,
    needed: Sequence[tuple[str, str]],
    arm: Arm,
    scope: str,
    by: str = "`infra bootstrap` assigns it to the deployer",
) -> Iterator[Check]:
    """Yield an error for each action in `needed` that the user lacks on `scope`, else one ok.

    `scope` is the id of a subscription, group or resource. `needed` has (action, role that allows
    it) pairs; `by` says who assigns the role.
    """
    path = f"{scope}/providers/Microsoft.Authorization/permissions"
    permissions = list(arm.all(path, version("authorization:RoleAssignment")))
    missing = [
        (action, role)
        for action, role in needed
        if not any(_allows(permission, action) for permission in permissions)
    ]
    for action, role in missing:
        hint = f"Owner, or {role}: {by}"
        yield Check(
            f"permission {action}", "error", f"not granted on {scope.rpartition('/')[2]}", hint
        )
    if not missing:
        yield Check(name, "ok", f"{len(needed)} actions that the deployment needs")


def _allows(permission: Mapping[str, Any], action: str) -> bool:
    def named(key: str) -> bool:
        patterns = [str(pattern).lower() for pattern in permission.get(key) or ()]
        return any(fnmatchcase(action.lower(), pattern) for pattern in patterns)

    return named("actions") and not named("notActions")
