"""The regions of Azure's public cloud, kept by hand: `az account list-locations` has them all."""

from __future__ import annotations

_NAMES = """
australiacentral australiacentral2 australiaeast australiasoutheast austriaeast belgiumcentral
brazilsouth brazilsoutheast canadacentral canadaeast centralindia centralus chilecentral
denmarkeast eastasia eastus eastus2 eastus3 francecentral francesouth germanynorth
germanywestcentral indonesiacentral israelcentral italynorth japaneast japanwest
jioindiacentral jioindiawest koreacentral koreasouth malaysiawest mexicocentral newzealandnorth
northcentralus northeurope norwayeast norwaywest polandcentral qatarcentral southafricanorth
southafricawest southcentralus southeastasia southindia spaincentral swedencentral
swedensouth switzerlandnorth switzerlandwest uaecentral uaenorth uksouth ukwest westcentralus
westeurope westindia westus westus2 westus3
"""
REGIONS = frozenset(_NAMES.split())
# reliability/regions-list: regions without availability zones, and without a paired region.
_WITHOUT_ZONES = """
australiacentral australiacentral2 australiasoutheast brazilsoutheast canadaeast francesouth
germanynorth koreasouth northcentralus norwaywest southafricawest southindia switzerlandwest
uaecentral ukwest westcentralus westindia westus
"""
_WITHOUT_PAIR = """
austriaeast belgiumcentral chilecentral indonesiacentral israelcentral italynorth malaysiawest
mexicocentral newzealandnorth polandcentral qatarcentral spaincentral
"""
NO_ZONES, NO_PAIR = frozenset(_WITHOUT_ZONES.split()), frozenset(_WITHOUT_PAIR.split())
