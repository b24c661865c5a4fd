"""Stack files that must be refused, each with its error.

`# wrong: CODE` at the end of a line says which error the loader must find there, and no other.
"""

from __future__ import annotations

import textwrap

STACK = """\
azure-native:location: westeurope
azure-native:subscriptionId: 6f8d2c1e-0000-4000-8000-000000000000
azure-native:tenantId: 6f8d2c1e-0000-4000-8000-000000000001
platform:name: mlplat
platform:repository: acme/ml-platform
platform:owner: ml@example.com
platform:cost_center: ml
platform:guardrails: {monthly_budget: 500, budget_from: 2026-12}
"""
GROUP = "/subscriptions/6f8d2c1e-0000-4000-8000-000000000009/resourceGroups/rg-hub"
NETWORKS = f"{GROUP}/providers/Microsoft.Network/virtualNetworks"
HERE = GROUP.replace("000000000009", "000000000000")
VAULT = f"{HERE}/providers/Microsoft.KeyVault/vaults/kv"
LOGS = f"{HERE}/providers/Microsoft.OperationalInsights/workspaces/log"
REGISTRY = f"{HERE}/providers/Microsoft.ContainerRegistry/registries/acr"
PERSON = "person: 6f8d2c1e-0000-4000-8000-000000000002"

# Added to STACK, in the place of a setting of the same name there.
SETTINGS = {
    "budget-infinite": "platform:guardrails: {monthly_budget: .inf, budget_from: 2026-12}"
    "  # wrong: wrong-value",
    "client-secret": "azure-native:clientSecret: abc  # wrong: unknown-field",
    "clusters-a-mapping": "platform:clusters:  # wrong: wrong-value\n  gpu: {preset: t4}",
    "exposure-a-bool": "platform:exposure: true  # wrong: wrong-value",
    "exposure-unknown": "platform:exposure: privat  # wrong: wrong-value",
    "key-is-true": "yes: 1  # wrong: unknown-field",
    "key-twice": "platform:name: mlplat\nplatform:name: other  # wrong: duplicate-key",
    "missing-budget": "platform:guardrails: {budget_from: 2026-12}  # wrong: missing-field",
    "name-is-no": "platform:name: no  # wrong: wrong-value",
    "name-too-long": "platform:name: mlplatform  # wrong: wrong-value",
    "name-upper-case": "platform:name: MLPlat  # wrong: wrong-value",
    "network-a-text": "platform:network: private  # wrong: wrong-value",
    "network-empty": "platform:network:  # wrong: wrong-value",
    "network-given-without-a-subnet": "platform:network:  # wrong: missing-subnet\n"
    f"  virtual_network: {NETWORKS}/vnet-spoke",
    "no-namespace": "clusters: []  # wrong: unknown-field",
    "no-pair": "azure-native:location: italynorth  # wrong: no-paired-region\n"
    "platform:storage: {redundancy: GRS}",
    "owner-no-mail": "platform:owner: the ML team  # wrong: wrong-value",
    "region-misspelt": "azure-native:location: westeurop  # wrong: unknown-region",
    "region-with-blank": "azure-native:location: West Europe  # wrong: wrong-value",
    "registry-beside-a-lake": "platform:asset_registry: {mode: create, name: shared}\n"
    "platform:storage: {redundancy: ZRS, soft_delete_days: 30}  # wrong: registry-stack",
    "registry-beside-clusters": "platform:asset_registry: {mode: create, name: shared}\n"
    "platform:clusters:  # wrong: registry-stack\n  - {name: cpu-cluster, preset: cpu}",
    "registry-of-no-stack": "platform:asset_registry:  # wrong: unknown-stack\n"
    "  mode: use\n  name: shared\n  stack: shared",
    "registry-of-two-places": "platform:asset_registry:  # wrong: missing-field\n"
    "  mode: use\n  name: shared\n  stack: shared\n  resource_group: rg-other",
    "registry-without-name": "platform:asset_registry: {mode: create}  # wrong: missing-field",
    "registry-without-place": "platform:asset_registry:  # wrong: missing-field\n"
    "  mode: use\n  name: shared",
    "repository-no-owner": "platform:repository: ml-platform  # wrong: wrong-value",
    "repository-url": "platform:repository: https://github.com/acme/ml  # wrong: wrong-value",
    "secret-called-secure": "platform:lake_sas:  # wrong: plaintext-secret\n"
    "  secure: sv=2024-11-04&sig=abc",
    "secret-empty": "platform:lake_sas:  # wrong: plaintext-secret\n  secure:",
    "secret-in-the-open": "platform:lake_sas: '?sv=2024&sig=abc'  # wrong: plaintext-secret",
    "subscription-no-guid": "azure-native:subscriptionId: my-subscription  # wrong: wrong-value",
    "tenant-a-number": "azure-native:tenantId: 12345  # wrong: wrong-value",
    "unknown-key": "platform:cluster: []  # wrong: unknown-field",
    "zones-of-a-share": "azure-native:location: ukwest  # wrong: no-availability-zones\n"
    "platform:storage: {redundancy: LRS, nfs_share_gib: 100}\n"
    "platform:images: {zone_redundant: false}",
    "zones-of-images": "azure-native:location: westus  # wrong: no-availability-zones\n"
    "platform:storage: {redundancy: LRS}",
    "zones-of-storage": "azure-native:location: northcentralus  # wrong: no-availability-zones\n"
    "platform:images: {zone_redundant: false}",
}

# Below `platform:SECTION:`; a second section follows where its line is not indented.
SECTIONS = {
    "asset_registry": {
        "registry-made-elsewhere": "  mode: create\n  name: shared\n"
        "  resource_group: rg-other  # wrong: no-effect",
        "registry-named-and-not-used": "  name: shared  # wrong: no-effect",
        "registry-with-a-subscription-of-its-own": "  mode: create\n  name: shared\n"
        "  subscription: 6f8d2c1e-0000-4000-8000-000000000002  # wrong: no-effect",
        "regions-of-a-registry-made-elsewhere": "  mode: use\n  name: shared\n"
        "  resource_group: rg-other\n  regions: [northeurope]  # wrong: no-effect",
    },
    "clusters": {
        "cluster-called-builder": "- preset: cpu\n  name: image-builder  # wrong: duplicate-name",
        "cluster-name-too-long": "- name: the-cluster-for-training  # wrong: wrong-value\n"
        "  preset: cpu",
        "cluster-name-without-a-letter": "- name: gpu-4  # wrong: wrong-value\n  preset: cpu",
        "cluster-twice": "- {name: cpu-cluster, preset: cpu}\n"
        "- name: cpu-cluster  # wrong: duplicate-name\n  preset: cpu",
        "half-a-node": "- name: cpu-cluster\n  preset: cpu\n  max_nodes: 2.5  # wrong: wrong-value",
        "more-min-than-max": "- name: cpu-cluster\n  preset: cpu\n  max_nodes: 2\n"
        "  min_nodes: 3  # wrong: node-count",
        "negative-nodes": "- name: cpu-cluster\n  preset: cpu\n"
        "  min_nodes: -1  # wrong: wrong-value",
        "no-size": "- name: gpu  # wrong: ambiguous-size\n  max_nodes: 2",
        "preset-unknown": "- name: gpu\n  preset: gpu  # wrong: wrong-value",
        "priority-low": "- name: gpu\n  preset: t4\n  priority: LowPriority  # wrong: wrong-value",
        "size-and-preset": "- name: gpu  # wrong: ambiguous-size\n  preset: t4\n"
        "  size: Standard_NC4as_T4_v3",
        "size-retired": "- name: gpu\n  size: Standard_NC6s_v3  # wrong: retired-size",
        "size-unknown": "- name: gpu\n  size: Standard_XY9  # wrong: unknown-size",
        "spot-without-low-priority": "- name: large\n  size: Standard_ND96isr_H100_v5\n"
        "  priority: spot  # wrong: no-spot",
        "too-many-nodes-with-infiniband": "- name: large\n  preset: infiniband\n"
        "  max_nodes: 101  # wrong: node-count",
        "unknown-cluster-key": "- name: cpu-cluster\n  preset: cpu\n"
        "  maxNodes: 3  # wrong: unknown-field",
        "usage-above-max": "- name: gpu\n  preset: t4\n  max_nodes: 1\n"
        "  usage:\n    nodes: 4  # wrong: node-count",
    },
    "endpoints": {
        "endpoint-name-too-long": "- name: answers-to-questions-of-people  # wrong: endpoint-name\n"
        "platform:exposure: starter",
    },
    "feature_store": {
        "redis-size-unknown": "  mode: create\n  redis: Standard_C1  # wrong: wrong-value",
        "redis-without-a-feature-store": "  redis: Balanced_B0  # wrong: no-effect",
    },
    "guardrails": {
        "budget-in-hours-and-minutes": "  monthly_budget: 10:00  # wrong: wrong-value\n"
        "  budget_from: 2026-12",
        "budget-month": "  monthly_budget: 500\n  budget_from: 2026-13  # wrong: wrong-value",
        "budget-with-a-zero-before-it": "  monthly_budget: 0500  # wrong: wrong-value\n"
        "  budget_from: 2026-12",
    },
    "images": {
        "builder-unknown": "  builder_size: Standard_D4  # wrong: unknown-size",
        "builder-with-gpu": "  builder_size: Standard_NC4as_T4_v3  # wrong: builder-with-gpu",
        "zones-beside-a-given-registry": f"  registry: {REGISTRY}\n"
        "  zone_redundant: false  # wrong: no-effect",
    },
    "monitoring": {
        "retention-beside-given-logs": f"  workspace: {LOGS}\n"
        "  retention_days: 30  # wrong: no-effect",
        "scope-of-a-starter": f"  private_link_scope: {GROUP}/providers/Microsoft.Insights/"
        "privateLinkScopes/ampls  # wrong: no-effect\nplatform:exposure: starter",
    },
    "network": {
        "firewall-in-our-own-range": f"  peer: {NETWORKS}/vnet-hub\n"
        "  hub_firewall: 10.60.0.4  # wrong: wrong-value",
        "firewall-on-the-internet": f"  peer: {NETWORKS}/vnet-hub\n"
        "  hub_firewall: 20.1.2.3  # wrong: wrong-value",
        "firewall-without-a-hub": "  hub_firewall: 10.0.0.4  # wrong: no-effect",
        "host-twice": "  allowed_hosts:\n  - pypi.org\n  - pypi.org  # wrong: duplicate-name",
        "host-with-hyphen-at-its-end": "  allowed_hosts:\n  - foo-.org  # wrong: wrong-value",
        "host-with-scheme": "  allowed_hosts:\n  - pypi.org\n"
        "  - https://pypi.org  # wrong: wrong-value",
        "hosts-a-text": "  allowed_hosts: pypi.org  # wrong: wrong-value",
        "hosts-of-a-starter": "  allowed_hosts: [pypi.org]  # wrong: needs-network\n"
        "platform:exposure: starter",
        "hosts-of-our-own": "  isolation: own\n"
        "  allowed_hosts: [pypi.org]  # wrong: needs-managed-network",
        "hub-that-is-the-network": f"  virtual_network: {NETWORKS}/vnet\n"
        f"  subnet: {NETWORKS}/vnet/subnets/ml\n  peer: {NETWORKS}/vnet  # wrong: wrong-value",
        "network-by-name": "  virtual_network: vnet-spoke  # wrong: wrong-value",
        "range-not-private": "  address_space: 8.8.0.0/16  # wrong: wrong-value",
        "range-of-docker": "  address_space: 172.17.0.0/16  # wrong: wrong-value",
        "range-of-documentation": "  address_space: 192.0.2.0/24  # wrong: wrong-value",
        "range-of-loopback": "  address_space: 127.0.0.0/16  # wrong: wrong-value",
        "range-too-small": "  address_space: 10.60.0.0/28  # wrong: wrong-value",
        "range-with-host-bits": "  address_space: 10.60.1.7/16  # wrong: wrong-value",
        "runners-of-a-starter": "  runners: ml-private  # wrong: no-effect\n"
        "platform:exposure: starter",
        "runners-subnet-of-our-own": "  runners: ml-private\n"
        f"  runners_subnet: {NETWORKS}/vnet-hub/subnets/runners  # wrong: no-effect",
        "service-endpoints-managed": "  service_endpoints: true  # wrong: needs-own-network",
        "service-endpoints-of-a-starter": "  service_endpoints: true  # wrong: needs-network\n"
        "platform:exposure: starter",
        "subnet-of-another-network": f"  virtual_network: {NETWORKS}/vnet-spoke\n"
        f"  subnet: {NETWORKS}/vnet-spoke-2/subnets/ml  # wrong: missing-subnet",
        "subnet-of-our-own": f"  subnet: {NETWORKS}/vnet-spoke/subnets/ml  # wrong: no-effect",
        "too-few-addresses": "  isolation: own\n"
        "  address_space: 10.60.0.0/24  # wrong: too-few-addresses\nplatform:clusters:\n"
        "- {name: cpu-cluster, preset: cpu, max_nodes: 40}\n"
        "- {name: gpu-spot, preset: t4, max_nodes: 20}",
        "zones-of-a-starter": f"  private_dns_zones: {GROUP}  # wrong: no-effect\n"
        "platform:exposure: starter",
    },
    "storage": {
        "container-of-azure-ml": "  containers:\n  - workspaceblobstore  # wrong: duplicate-name",
        "container-of-the-feature-store": "  containers:\n  - raw\n"
        "  - features  # wrong: duplicate-name\nplatform:feature_store: {mode: create}",
        "container-twice": "  containers:\n  - raw\n  - raw  # wrong: duplicate-name",
        "container-upper-case": "  containers: [raw, Curated]  # wrong: wrong-value",
        "days-in-quotes": '  soft_delete_days: "14"  # wrong: wrong-value',
        "deleted-before-cool": "  delete_after_days: 7  # wrong: lifecycle-days",
        "flag-in-quotes": '  customer_managed_key: "yes"  # wrong: wrong-value',
        "no-containers": "  containers: []  # wrong: wrong-value",
        "redundancy-unknown": "  redundancy: Standard_ZRS  # wrong: wrong-value",
        "sas-beside-a-feature-store": "  containers: [raw]\n"
        "  datastores: sas  # wrong: several-containers\nplatform:feature_store: {mode: create}",
        "sas-for-a-year": "  sas_hours: 8760  # wrong: wrong-value",
        "sas-of-two-containers": "  datastores: sas  # wrong: several-containers\n"
        "  containers: [raw, curated]\nplatform:exposure: starter",
        "share-too-small": "  nfs_share_gib: 50  # wrong: wrong-value",
        "share-without-network": "  nfs_share_gib: 100  # wrong: needs-network\n"
        "platform:exposure: starter",
        "unknown-nested-key": "  redundency: ZRS  # wrong: unknown-field",
    },
    "tags": {
        "tag-of-the-template": "  Owner: somebody  # wrong: duplicate-name",
        "tag-that-is-kept": "  CostOf: somebody  # wrong: duplicate-name\n"
        "platform:kept_tags: [costof]",
    },
    "vault": {
        "generation-beside-a-given-vault": f"  id: {VAULT}\n  generation: 2  # wrong: no-effect",
        "vault-key-of-our-own": "  key: other  # wrong: no-effect",
    },
    "workspace": {
        "account-name-with-a-hyphen": "  storage_account: team-store  # wrong: wrong-value",
        "generation-of-a-workspace-to-adopt": "  name: team-workspace\n"
        "  generation: 2  # wrong: no-effect",
        "workspace-key-of-a-given-vault": "  customer_managed_key: true  # wrong: no-effect\n"
        f"platform:vault:\n  id: {VAULT}",
        "workspace-name-with-a-blank": "  name: team workspace  # wrong: wrong-value",
    },
    "workstations": {
        "idle-minutes-of-a-vm": f"- name: bob\n  kind: data-science-vm\n  {PERSON}\n"
        "  ssh_key: ssh-ed25519 AAAA bob\n  idle_minutes: 30  # wrong: no-effect",
        "key-of-an-instance": f"- name: ada\n  {PERSON}\n"
        "  ssh_key: ssh-ed25519 AAAA ada  # wrong: no-effect",
        "vm-without-key": "- name: ada  # wrong: missing-field\n  kind: data-science-vm\n"
        f"  {PERSON}",
    },
}


def _stack(settings: str) -> str:
    stated = {line.split(": ")[0] for line in f"{settings}\n".replace(":\n", ": \n").splitlines()}
    kept = [line for line in STACK.splitlines() if line.split(": ")[0] not in stated]
    return "config:\n" + textwrap.indent("\n".join([*kept, settings]), "  ") + "\n"


MISSING = {"guardrails": "platform:guardrails", "location": "azure-native:location"}
CASES = {
    "config-a-list": "config:  # wrong: no-config\n  - platform:name: mlplat\n",
    **{
        f"missing-{name}": _stack("")
        .replace("config:", "config:  # wrong: missing-field")
        .replace(setting, "#")
        for name, setting in MISSING.items()
    },
    "no-config": "platform:name: mlplat  # wrong: no-config\n",
    "only-a-comment": "# wrong: no-config\n",
    "tab": f"{_stack('')}\tplatform:exposure: private  # wrong: unreadable-yaml\n",
    "unknown-top-key": f"{_stack('')}stack: dev  # wrong: unknown-field\n",
    **{name: _stack(settings) for name, settings in SETTINGS.items()},
    **{
        name: _stack(f"platform:{section}:\n{settings}")
        for section, cases in SECTIONS.items()
        for name, settings in cases.items()
    },
}
