"""A private environment allows exactly the hosts that its images are built from."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

import pytest
import yaml

from infra.program.network import OUTBOUND
from infra.settings.loader import environments, load
from tests.conftest import ROOT

IMAGES = ROOT / "ml" / "environments"
PYPI = frozenset({"pypi.org", "files.pythonhosted.org"})
# What a command of a Dockerfile fetches from. Azure ML's base images are Ubuntu's, with a package
# source of Microsoft's: github.com/Azure/AzureML-Containers, base/cpu.
FETCHES = {
    r"apt-get update": {"archive.ubuntu.com", "security.ubuntu.com", "packages.microsoft.com"},
    r"conda create .*--override-channels": {"conda.anaconda.org"},
    r"pip install": PYPI,
}


def _wanted() -> Iterator[str]:
    for file in IMAGES.glob("*/Dockerfile"):
        text = file.read_text()
        for command, hosts in FETCHES.items():
            if re.search(command, text):
                yield from hosts
    for _ in _conda():
        yield from {"conda.anaconda.org", *PYPI}


def _conda() -> Iterator[dict[str, Any]]:
    for file in IMAGES.glob("*/conda.yml"):
        yield yaml.safe_load(file.read_text())


@pytest.mark.parametrize("stack", [one for one in environments() if load(one).private])
def test_the_hosts_of_the_images_are_allowed(stack: str) -> None:
    """No more and no fewer."""
    assert set(load(stack).network.allowed_hosts) == set(_wanted())


def test_conda_uses_only_named_channels() -> None:
    """It adds its default channels, on another host, unless `nodefaults` is listed."""
    for found in _conda():
        assert set(found["channels"]) == {"conda-forge", "nodefaults"}


def test_a_builder_in_our_own_network_reaches_ubuntus_packages() -> None:
    """They are signed and served by HTTP."""
    (packages,) = (one for one in OUTBOUND["builds"] if one.to == "Internet")
    assert set(packages.ports) == {"80", "443"}
