"""What a new fork needs before its first `pulumi up`, as commands that may be run again.

State is kept in a blob container without shared keys, its secrets under a key of a vault (the state
backend `azblob://` and the secrets provider `azurekeyvault://` of Pulumi's documentation). Each
environment has an identity that deploys it, which GitHub's workflows take on by OIDC: there is no
secret anywhere.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from infra.live import backend, deployer, federation
from infra.live.steps import Step, cannot
from infra.settings import Settings


def steps(environments: Sequence[Settings]) -> tuple[Step, ...]:
    """Every step, in order, for environments of one platform; Refused when they are not of one.

    Who makes the shared registry is deployed before who uses it: rights on it, and ways to it, can
    be made once it is there.
    """
    if not environments:
        raise cannot("no environment", "at least one stack file")
    first = environments[0]
    for other in environments:
        same = (other.name, other.repository) == (first.name, first.repository)
        if not same:
            found = f"{first.environment} and {other.environment} are of different platforms"
            raise cannot(found, "one platform:name and platform:repository in every stack file")
    _registry(environments)
    in_turn = sorted(environments, key=lambda one: one.asset_registry.mode != "create")
    return (
        federation.subject(first),
        *backend.steps(first),
        *(step for one in in_turn for step in deployer.steps(one, first)),
    )


def shared(environments: Sequence[Settings]) -> Iterator[str]:
    """What is to be said of environments in one subscription: roles are given on the whole of it,
    since a deployment makes its resource group.
    """
    for held in sorted({one.subscription for one in environments}):
        names = [one.environment for one in environments if one.subscription == held]
        if len(names) > 1:
            yield (
                f"{', '.join(names)} are in one subscription: who deploys one of them may change "
                "the others; a subscription each keeps them apart, but without a shared registry"
            )


def _registry(environments: Sequence[Settings]) -> None:
    """A shared registry is looked for in the subscription of who uses it, and serves workspaces of
    its own region (how-to-share-models-pipelines-across-workspaces-with-registries).
    """
    makers = {
        one.asset_registry.name: one for one in environments if one.asset_registry.mode == "create"
    }
    for one in environments:
        name, maker = one.asset_registry.name, makers.get(one.asset_registry.name)
        if maker is None or one.asset_registry.mode != "use":
            continue
        if (one.subscription, one.location) != (maker.subscription, maker.location):
            found = (
                f"{one.environment} uses the asset registry {name} of {maker.environment},"
                " which has another subscription or region"
            )
            raise cannot(found, "one of both, or `asset_registry.mode: none` or `create`")
