"""ml.serving.client: the hardware that a latency was measured on."""

from __future__ import annotations

import pytest

from ml.serving.client import hardware


def test_a_machine_states_its_instance_type(monkeypatch: pytest.MonkeyPatch) -> None:
    """What the latency gate compares with the deployment's; without it the machine in words."""
    monkeypatch.setenv("MLOPS_INSTANCE_TYPE", " Standard_DS3_v2 ")
    assert hardware() == "Standard_DS3_v2"
    for unstated in ("", "  "):
        monkeypatch.setenv("MLOPS_INSTANCE_TYPE", unstated)
        assert " cores, " in hardware() and "GiB" in hardware()
