"""The hosts that a private environment lets its builder reach are those that images come from."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

import pytest
import yaml

from infra.program.network import OUTBOUND
from infra.settings.loader import load, stacks
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


@pytest.mark.parametrize("stack", [one for one in stacks() if load(one).private])
def test_the_hosts_of_the_images_are_allowed(stack: str) -> None:
    """No more and no fewer: each is a way out."""
    assert set(load(stack).network.allowed_hosts) == set(_wanted())


def test_conda_asks_no_channel_that_is_not_named() -> None:
    """It adds its own, of another host, unless `nodefaults` is among them."""
    for found in _conda():
        assert set(found["channels"]) == {"conda-forge", "nodefaults"}


def test_a_builder_in_our_own_network_reaches_what_apt_asks() -> None:
    """Ubuntu's packages come over HTTP, signed."""
    (packages,) = (one for one in OUTBOUND["builds"] if one.to == "Internet")
    assert set(packages.ports) == {"80", "443"}
