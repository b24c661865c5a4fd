"""Whose tokens are taken: the subject that GitHub signs for a workflow of an environment."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from infra.live.steps import Step, cannot
from infra.settings import Settings

ISSUER = "https://token.actions.githubusercontent.com"
AUDIENCE = "api://AzureADTokenExchange"
SUBJECT = "actions/oidc/customization/sub"


def subject(first: Settings) -> Step:
    """What the tokens of the workflows begin with: where it is not what the stack files say, no
    credential would ever fit.
    """
    ask = ("gh", "api", f"repos/{first.github}/{SUBJECT}")
    return Step("subject", ask, ask, _fits, f"repo:{first.repository}")


def _fits(found: Any, declared: str) -> Mapping[str, str]:
    told = found or {}
    keys = told.get("include_claim_keys")
    if told.get("use_default") is False and keys not in (None, [], ["repo", "context"]):
        raise cannot(
            f"the subject of the workflows' tokens is made of {', '.join(keys)}",
            f"GitHub's default: {declared}:environment:NAME",
            f"gh api --method PUT repos/OWNER/NAME/{SUBJECT} -F use_default=true",
        )
    # Since July 2026 new repositories, and renamed ones, have the ids of owner and repository in it
    # (docs.github.com/actions/reference/security/oidc, "Immutable subject claims").
    prefix = str(told.get("sub_claim_prefix") or declared)
    if prefix != declared:
        raise cannot(
            f"the subject of the workflows' tokens begins with {prefix}",
            f"{declared}, after platform:repository",
            f"platform:repository: {prefix.removeprefix('repo:')} in every stack file",
        )
    return {"prefix": prefix}
