"""What becomes of old data: cooler, then gone where the settings say so."""

from __future__ import annotations

import pulumi
from pulumi_azure_native import storage

from infra.components.site import Site
from infra.foundations import Storage as Settings


def lifecycle(
    name: str, site: Site, account: storage.StorageAccount, settings: Settings
) -> storage.ManagementPolicy:
    """The rules of an account: every container cools, the first one (raw data) may expire."""
    cool = storage.DateAfterModificationArgs(
        days_after_modification_greater_than=settings.cool_after_days
    )
    rules = [_rule("cool", [], storage.ManagementPolicyBaseBlobArgs(tier_to_cool=cool))]
    if settings.delete_after_days:
        late = storage.DateAfterModificationArgs(
            days_after_modification_greater_than=settings.delete_after_days
        )
        first = f"{settings.containers[0]}/"
        rules.append(_rule("expire", [first], storage.ManagementPolicyBaseBlobArgs(delete=late)))
    return storage.ManagementPolicy(
        f"{name}-lifecycle",
        management_policy_name="default",
        account_name=account.name,
        resource_group_name=site.group,
        policy=storage.ManagementPolicySchemaArgs(rules=rules),
        opts=pulumi.ResourceOptions(parent=account),
    )


def _rule(
    name: str, prefixes: list[str], actions: storage.ManagementPolicyBaseBlobArgs
) -> storage.ManagementPolicyRuleArgs:
    return storage.ManagementPolicyRuleArgs(
        name=name,
        type="Lifecycle",
        enabled=True,
        definition=storage.ManagementPolicyDefinitionArgs(
            filters=storage.ManagementPolicyFilterArgs(
                blob_types=["blockBlob"], prefix_match=prefixes
            ),
            actions=storage.ManagementPolicyActionArgs(base_blob=actions),
        ),
    )
