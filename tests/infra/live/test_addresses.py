"""The versions of Azure's APIs are those that the pinned SDKs use, not from memory."""

from __future__ import annotations

import importlib
import re
import sys
from pathlib import Path

import pytest
from azure.mgmt.resource.resources import ResourceManagementClient
from pulumi_azure_native.features import SubscriptionFeatureRegistration

from infra.live.addresses import PLACES
from infra.live.doctor import offline, subscription
from tests.stand_ins.arm_server import SignedIn


@pytest.mark.parametrize("kind", sorted(PLACES))
def test_a_kind_is_read_with_the_version_of_the_providers_sdk(kind: str) -> None:
    """As the source of its class says."""
    module, name = kind.split(":")
    made = getattr(importlib.import_module(f"pulumi_azure_native.{module}"), name)
    source = Path(str(sys.modules[made.__module__].__file__)).read_text()
    stated = re.search(r"Uses Azure REST API version (\S+?)\.\s", source)
    assert stated is not None
    assert PLACES[kind][1] == stated[1]


def test_providers_are_asked_with_the_version_of_azures_own_client() -> None:
    client = ResourceManagementClient(SignedIn(), "s", base_url="https://127.0.0.1")
    assert client._config.api_version == subscription.PROVIDERS


def test_features_are_asked_with_the_version_of_the_providers_sdk() -> None:
    source = Path(str(sys.modules[SubscriptionFeatureRegistration.__module__].__file__)).read_text()
    assert f"Uses Azure REST API version {subscription.FEATURES}." in source


def test_a_question_of_a_free_name_is_of_a_kind_that_has_a_place() -> None:
    """Its version is that of the kind."""
    assert set(offline.GLOBAL) <= set(PLACES)
