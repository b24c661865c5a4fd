"""Who deploys an environment: an identity that its workflows take on, with the rights it needs."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import partial
from typing import Any

from infra.live.backend import Backend, backend
from infra.live.federation import AUDIENCE, ISSUER
from infra.live.roles import ASSIGNS, CONDITION, CONTRIBUTES, LOCKS, role
from infra.live.steps import Step
from infra.naming import names
from infra.settings import Settings

# What a workflow that trains and releases signs in as: the program makes it.
PIPELINE = "AZURE_PIPELINE_CLIENT_ID"


def steps(one: Settings, first: Settings) -> Iterator[Step]:
    """Its identity beside the state, with its credential and roles, and what GitHub is told."""
    home, here = backend(first), ("--subscription", first.subscription)
    where = ("--resource-group", home.group, *here)
    name, identity = one.environment, f"id-{one.name}-{one.environment}-deploy"
    principal = f"{{{name}-identity.principalId}}"
    yield Step(
        f"{name}-identity",
        ("az", "identity", "show", "--name", identity, *where),
        ("az", "identity", "create", "--name", identity, "--location", first.location, *where),
    )
    subject = f"repo:{one.repository}:environment:{name}"
    yield Step(
        f"{name}-credential",
        ("az", "identity", "federated-credential", "show", "--name", "github",
         "--identity-name", identity, *where),
        ("az", "identity", "federated-credential", "create", "--name", "github",
         "--identity-name", identity, *where, "--issuer", ISSUER, "--subject", subject,
         "--audiences", AUDIENCE),
        lambda found, value: found if (found or {}).get("subject") == value else None,
        subject,
    )  # fmt: skip
    scope = f"/subscriptions/{one.subscription}"
    yield role(f"{name}-contributor", CONTRIBUTES, principal, scope)
    yield role(f"{name}-role", ASSIGNS, principal, scope, condition=CONDITION)
    if one.guardrails.locks:
        yield role(f"{name}-locks", LOCKS, principal, scope)
    yield role(f"{name}-state", "Storage Blob Data Contributor", principal, "{account.id}")
    yield role(f"{name}-key", "Key Vault Crypto User", principal, "{vault.id}")
    yield Step(
        f"{name}-environment",
        ("gh", "api", f"repos/{one.github}/environments/{name}"),
        ("gh", "api", "--method", "PUT", f"repos/{one.github}/environments/{name}"),
    )
    for variable, value in _variables(one, home).items():
        yield _variable(one, variable, value)
    made = names(one)
    there = ("az", "identity", "show", "--name", made.local("id", "pipeline"),
             "--resource-group", made.group, "--subscription", one.subscription)  # fmt: skip
    # As whom the person is signed in; Pulumi's vault asks for that to be said.
    pulumi = ("env", f"PULUMI_BACKEND_URL={home.url}", "AZURE_KEYVAULT_AUTH_VIA_CLI=true", "pulumi")
    stack = ("--stack", name, "--cwd", "infra")
    secrets = ("--create", "--secrets-provider", home.secrets)
    yield Step(f"{name}-stack", there, (*pulumi, "stack", "select", *secrets, *stack), by_hand=True)
    yield Step(f"{name}-pipeline", there, (*pulumi, "up", *stack), by_hand=True)
    yield _variable(one, PIPELINE, f"{{{name}-pipeline.clientId}}")


def _variable(one: Settings, variable: str, value: str) -> Step:
    where = ("--repo", one.github, "--env", one.environment)
    return Step(
        f"{one.environment}-{variable}",
        ("gh", "variable", "list", *where, "--json", "name,value"),
        ("gh", "variable", "set", variable, *where, "--body", value),
        partial(_has, variable),
        value,
    )


def _variables(one: Settings, home: Backend) -> Mapping[str, str]:
    """What the workflows read; none of it is secret."""
    return {
        "AZURE_CLIENT_ID": f"{{{one.environment}-identity.clientId}}",
        "AZURE_TENANT_ID": one.tenant,
        "AZURE_SUBSCRIPTION_ID": one.subscription,
        "PULUMI_BACKEND_URL": home.url,
        "PULUMI_SECRETS_PROVIDER": home.secrets,
    }


def _has(variable: str, found: Any, value: str) -> bool:
    return {"name": variable, "value": value} in (found or [])
