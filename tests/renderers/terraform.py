"""A capture as Terraform (azurerm), so that tools which read HCL can judge it.

Only what those tools judge is written; a reference to another resource stays one.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from infra.preview.capture import Capture, Resource

TYPES: Mapping[str, str] = {
    "storage:StorageAccount": "azurerm_storage_account",
    "storage:BlobContainer": "azurerm_storage_container",
    "keyvault:Vault": "azurerm_key_vault",
    "keyvault:Key": "azurerm_key_vault_key",
    "containerregistry:Registry": "azurerm_container_registry",
    "machinelearningservices:Workspace": "azurerm_machine_learning_workspace",
    "machinelearningservices:Compute": "azurerm_machine_learning_compute_cluster",
    "network:VirtualNetwork": "azurerm_virtual_network",
    "network:NetworkSecurityGroup": "azurerm_network_security_group",
    "network:PrivateEndpoint": "azurerm_private_endpoint",
    "applicationinsights:Component": "azurerm_application_insights",
}
REFERENCE = re.compile(r"\$\{(\w+):([\w.-]+)\.(\w+)\}")
Body = dict[str, Any]


def document(capture: Capture) -> str:
    """The configuration; resources of other kinds are left out."""
    known = {
        one.kind.split(":")[1]: TYPES[one.kind] for one in capture.provided if one.kind in TYPES
    }
    return "\n".join(_blocks(capture, lambda value: _expression(value, known)))


def _blocks(capture: Capture, shown: Callable[[Any], str]) -> Iterator[str]:
    by_kind = {
        "storage:StorageAccount": lambda one: _account(one, capture),
        "storage:BlobContainer": _container,
        "keyvault:Vault": _vault,
        "keyvault:Key": _key,
        "containerregistry:Registry": _images,
        "machinelearningservices:Workspace": _workspace,
        "machinelearningservices:Compute": _cluster,
        "network:VirtualNetwork": _network,
        "network:NetworkSecurityGroup": _group,
        "network:PrivateEndpoint": _endpoint,
        "applicationinsights:Component": _insights,
    }
    for one in capture.provided:
        if one.kind in by_kind and one.inputs.get("kind") != "FileStorage":
            yield _block(
                f'resource "{TYPES[one.kind]}" "{_label(one.name)}"', by_kind[one.kind](one), shown
            )
        if one.kind == "network:VirtualNetwork":
            yield from _subnets(one, shown)
        if "keyVaultProperties" in one.inputs.get("encryption", {}):
            head = f'resource "azurerm_storage_account_customer_managed_key" "{_label(one.name)}"'
            yield _block(head, _encryption(one), shown)


def _block(head: str, body: Body, shown: Callable[[Any], str], indent: str = "") -> str:
    """A block; a mapping within is a block of its own, and so is each mapping of a list."""
    lines = [f"{indent}{head} {{"]
    for key, value in body.items():
        inner = (
            value if isinstance(value, list) and value and isinstance(value[0], dict) else [value]
        )
        for one in inner:
            if isinstance(one, dict):
                lines.append(_block(key, one, shown, f"{indent}  "))
            elif one is not None:
                lines.append(f"{indent}  {key} = {shown(one)}")
    return "\n".join([*lines, f"{indent}}}"])


def _expression(value: Any, known: Mapping[str, str]) -> str:
    found = REFERENCE.fullmatch(value) if isinstance(value, str) else None
    if found and found[1] in known:
        return f"{known[found[1]]}.{_label(found[2])}.{found[3]}"
    return json.dumps(value).replace("${", "$${")


def _label(name: str) -> str:
    return re.sub(r"\W", "_", name)


def _account(one: Resource, capture: Capture) -> Body:
    given = one.inputs
    kept: Mapping[str, Any] = {}
    for service in capture.provided:
        if (
            service.kind == "storage:BlobServiceProperties"
            and one.urn in service.uses["accountName"]
        ):
            kept = service.inputs
    rules, sas = given.get("networkRuleSet", {}), given.get("sasPolicy")
    return {
        "name": given["accountName"],
        "account_kind": given["kind"],
        "account_tier": "Standard",
        "account_replication_type": given["sku"]["name"].split("_")[1],
        "https_traffic_only_enabled": given.get("enableHttpsTrafficOnly"),
        "min_tls_version": given.get("minimumTlsVersion"),
        "shared_access_key_enabled": given.get("allowSharedKeyAccess"),
        "allow_nested_items_to_be_public": given.get("allowBlobPublicAccess"),
        "public_network_access_enabled": given.get("publicNetworkAccess") != "Disabled",
        "local_user_enabled": given.get("isLocalUserEnabled"),
        "network_rules": {
            "default_action": rules.get("defaultAction"),
            "bypass": [rules.get("bypass")],
        },
        "sas_policy": sas
        and {
            "expiration_period": sas["sasExpirationPeriod"],
            "expiration_action": sas["expirationAction"],
        },
        "blob_properties": {
            name: {"days": kept[key]["days"]}
            for name, key in (
                ("delete_retention_policy", "deleteRetentionPolicy"),
                ("container_delete_retention_policy", "containerDeleteRetentionPolicy"),
            )
            if kept.get(key, {}).get("enabled")
        },
    }


def _encryption(one: Resource) -> Body:
    given = one.inputs["encryption"]["keyVaultProperties"]
    return {
        "storage_account_id": f"${{StorageAccount:{one.name}.id}}",
        "key_vault_id": given["keyVaultUri"].replace(".vaultUri}", ".id}"),
        "key_name": given["keyName"],
    }


def _container(one: Resource) -> Body:
    access = {"None": "private", "Blob": "blob", "Container": "container"}
    return {
        "name": one.inputs["containerName"],
        "storage_account_name": one.inputs["accountName"],
        "container_access_type": access[one.inputs["publicAccess"]],
    }


def _vault(one: Resource) -> Body:
    given = one.inputs["properties"]
    return {
        "name": one.inputs["vaultName"],
        "sku_name": given["sku"]["name"],
        "soft_delete_retention_days": given.get("softDeleteRetentionInDays"),
        "purge_protection_enabled": given.get("enablePurgeProtection"),
        "enable_rbac_authorization": given.get("enableRbacAuthorization"),
        "public_network_access_enabled": given.get("publicNetworkAccess") != "Disabled",
        "network_acls": {
            "default_action": given["networkAcls"]["defaultAction"],
            "bypass": given["networkAcls"]["bypass"],
        },
    }


def _key(one: Resource) -> Body:
    given = one.inputs["properties"]
    return {
        "name": one.inputs["keyName"],
        "key_vault_id": one.inputs["vaultName"].replace(".name}", ".id}"),
        "key_type": given["kty"],
        "key_size": given["keySize"],
        "key_opts": given["keyOps"],
    }


def _images(one: Resource) -> Body:
    given = one.inputs
    return {
        "name": given["registryName"],
        "sku": given["sku"]["name"],
        "admin_enabled": given.get("adminUserEnabled"),
        "anonymous_pull_enabled": given.get("anonymousPullEnabled"),
        "public_network_access_enabled": given.get("publicNetworkAccess") != "Disabled",
        "zone_redundancy_enabled": given.get("zoneRedundancy") == "Enabled",
        "data_endpoint_enabled": given.get("dataEndpointEnabled"),
        "retention_policy_in_days": given["policies"]["retentionPolicy"]["days"],
    }


def _workspace(one: Resource) -> Body:
    given = one.inputs
    return {
        "name": given["workspaceName"],
        "storage_account_id": given["storageAccount"],
        "key_vault_id": given["keyVault"],
        "application_insights_id": given["applicationInsights"],
        "container_registry_id": given["containerRegistry"],
        "public_network_access_enabled": given.get("publicNetworkAccess") != "Disabled",
        "identity": {"type": given["identity"]["type"]},
        "managed_network": {"isolation_mode": given["managedNetwork"]["isolationMode"]},
    }


def _cluster(one: Resource) -> Body:
    given = one.inputs["properties"]
    scale = given["properties"].get("scaleSettings", {})
    return {
        "name": one.inputs["computeName"],
        "vm_size": given["properties"]["vmSize"],
        "vm_priority": given["properties"].get("vmPriority"),
        "local_auth_enabled": not given.get("disableLocalAuth"),
        "node_public_ip_enabled": given["properties"].get("enableNodePublicIp"),
        "scale_settings": {
            "min_node_count": scale.get("minNodeCount"),
            "max_node_count": scale.get("maxNodeCount"),
        },
    }


def _network(one: Resource) -> Body:
    return {
        "name": one.inputs["virtualNetworkName"],
        "address_space": one.inputs["addressSpace"]["addressPrefixes"],
    }


def _subnets(one: Resource, shown: Callable[[Any], str]) -> Iterator[str]:
    for subnet in one.inputs["subnets"]:
        label = _label(subnet["name"])
        head = f'resource "azurerm_subnet" "{label}"'
        yield _block(
            head, {"name": subnet["name"], "address_prefixes": [subnet["addressPrefix"]]}, shown
        )
        group = shown(subnet["networkSecurityGroup"]["id"])
        yield (
            f'resource "azurerm_subnet_network_security_group_association" "{label}" {{\n'
            f"  subnet_id = azurerm_subnet.{label}.id\n  network_security_group_id = {group}\n}}"
        )


def _group(one: Resource) -> Body:
    return {
        "name": one.inputs["networkSecurityGroupName"],
        "security_rule": [
            {
                "name": rule["name"],
                "priority": rule["priority"],
                "direction": rule["direction"],
                "access": rule["access"],
                "protocol": rule["protocol"],
                "source_address_prefix": rule["sourceAddressPrefix"],
                "source_port_range": rule["sourcePortRange"],
                "destination_address_prefix": rule["destinationAddressPrefix"],
                "destination_port_range": rule.get("destinationPortRange"),
                "destination_port_ranges": rule.get("destinationPortRanges"),
            }
            for rule in one.inputs["securityRules"]
        ],
    }


def _endpoint(one: Resource) -> Body:
    (connection,) = one.inputs["privateLinkServiceConnections"]
    return {
        "name": one.inputs["privateEndpointName"],
        "private_service_connection": {
            "name": connection["name"],
            "is_manual_connection": False,
            "private_connection_resource_id": connection["privateLinkServiceId"],
            "subresource_names": connection["groupIds"],
        },
    }


def _insights(one: Resource) -> Body:
    return {"name": one.inputs["resourceName"], "application_type": "web"}
