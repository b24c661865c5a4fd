"""Who signs in from GitHub: for each purpose an identity, a GitHub environment and a subject.

A workflow that trains cannot deploy infrastructure, and one that deploys an environment cannot
change another. Each identity has one credential; its subject names one GitHub environment.
"""

from __future__ import annotations

import uuid
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal, get_args

from infra.settings.model import Settings

# preview: reads an environment and its state. train: submits jobs to its workspace. release:
# changes its endpoints and the shared registry. watch: reads both, and the requests to its models.
# deploy: changes its infrastructure.
Purpose = Literal["preview", "train", "release", "watch", "deploy"]
PURPOSES: tuple[Purpose, ...] = get_args(Purpose)
# `infra bootstrap` makes the identities of these, the program those of the others.
BEFORE_THE_PROGRAM: tuple[Purpose, ...] = ("preview", "deploy")
OF_THE_PROGRAM: tuple[Purpose, ...] = ("train", "release", "watch")
# A person approves each job of theirs.
REVIEWED: tuple[Purpose, ...] = ("release", "deploy")
# The GitHub environment of jobs that open pull requests: it holds the key of the team's app.
BOT = "bot"


def github_environment(settings: Settings, purpose: Purpose) -> str:
    """The GitHub environment that jobs of this purpose name."""
    return f"{settings.environment}-{purpose}"


def subject(settings: Settings, purpose: Purpose) -> str:
    """The `sub` of the tokens of these jobs: docs.github.com/actions/reference/security/oidc."""
    return f"repo:{settings.repository}:environment:{github_environment(settings, purpose)}"


_ML = "Microsoft.MachineLearningServices/workspaces"
# The role AzureML Data Scientist, from which both roles below take something away:
# role-based-access-control/built-in-roles/ai-machine-learning.
_ACTIONS = tuple(f"{_ML}/*/{verb}" for verb in ("read", "action", "delete", "write"))
_NOT_ACTIONS = (
    f"{_ML}/delete",
    f"{_ML}/write",
    f"{_ML}/computes/*/write",
    f"{_ML}/computes/*/delete",
    f"{_ML}/computes/listKeys/action",
    f"{_ML}/listKeys/action",
    f"{_ML}/hubs/write",
    f"{_ML}/hubs/delete",
    f"{_ML}/featurestores/write",
    f"{_ML}/featurestores/delete",
)
_CHANGES = ("write", "delete", "action")


@dataclass(frozen=True)
class CustomRole:
    """A role that Azure does not have: all of AzureML Data Scientist except what `without` names.

    `without` are parts of a workspace, with everything below them; reading them stays allowed.
    """

    name: str
    description: str
    without: tuple[str, ...]

    def id(self, subscription: str) -> str:
        """The same GUID for every platform in the subscription: the role is the same too."""
        return str(uuid.uuid5(uuid.NAMESPACE_URL, f"{subscription.lower()}/{self.name}"))

    @property
    def permissions(self) -> Mapping[str, list[str]]:
        """What it grants, as Azure stores it."""
        withheld = [
            f"{_ML}/{part}{below}/{verb}"
            for part in self.without
            for below in ("", "/*")
            for verb in _CHANGES
        ]
        return {"actions": [*_ACTIONS], "notActions": [*_NOT_ACTIONS, *withheld]}

    def definition(self, subscription: str) -> Mapping[str, object]:
        """The body of a PUT of `Microsoft.Authorization/roleDefinitions`, 2022-04-01."""
        return {
            "properties": {
                # Unique in a tenant.
                "roleName": f"{self.name} ({subscription})",
                "description": self.description,
                "assignableScopes": [f"/subscriptions/{subscription}"],
                "permissions": [self.permissions],
            }
        }


JOB_SUBMITTER = CustomRole(
    "AzureML Job Submitter",
    "Trains in a workspace; cannot change its endpoints.",
    ("onlineEndpoints", "batchEndpoints", "serverlessEndpoints"),
)
RELEASER = CustomRole(
    "AzureML Releaser",
    "Changes the endpoints and models of a workspace; cannot run jobs.",
    ("jobs", "schedules"),
)
CUSTOM_ROLES = (JOB_SUBMITTER, RELEASER)
