"""API versions are those of the pinned SDKs."""

from __future__ import annotations

import importlib
import re
import sys
from pathlib import Path

import pytest
from azure.mgmt.resource.resources import ResourceManagementClient
from pulumi_azure_native.features import SubscriptionFeatureRegistration

from infra.live import doctor
from infra.live.addresses import PLACES
from tests.stand_ins.arm_server import SignedIn


@pytest.mark.parametrize("kind", sorted(PLACES))
def test_a_kind_has_the_api_version_of_the_providers_sdk(kind: str) -> None:
    """From the source of its class."""
    module, name = kind.split(":")
    made = getattr(importlib.import_module(f"pulumi_azure_native.{module}"), name)
    source = Path(str(sys.modules[made.__module__].__file__)).read_text()
    stated = re.search(r"Uses Azure REST API version (\S+?)\.\s", source)
    assert stated is not None
    assert PLACES[kind][1] == stated[1]


def test_providers_have_the_api_version_of_azures_client() -> None:
    client = ResourceManagementClient(SignedIn(), "s", base_url="https://127.0.0.1")
    assert client._config.api_version == doctor.PROVIDERS


def test_features_have_the_api_version_of_the_providers_sdk() -> None:
    source = Path(str(sys.modules[SubscriptionFeatureRegistration.__module__].__file__)).read_text()
    assert f"Uses Azure REST API version {doctor.FEATURES}." in source


def test_every_globally_named_kind_has_an_address() -> None:
    assert set(doctor.GLOBAL) <= set(PLACES)
