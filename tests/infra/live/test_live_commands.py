"""The commands that ask Azure, over HTTP, with azure-identity and the SDKs unchanged.

A stand-in for a machine's identity endpoint issues the token, another answers as ARM, and Azurite
as storage.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from azure.core.exceptions import HttpResponseError
from azure.storage.blob import BlobClient

from infra import cli
from infra.live import arm, sas
from infra.live.doctor import GLOBAL
from infra.settings.loader import load
from tests.infra.live.declared import REGISTRY, STORAGE, SUBSCRIPTION, resources
from tests.infra.live.doctor.ready import USAGES, usage
from tests.infra.programs import ran
from tests.stand_ins import arm_server, azurite_server, token_server
from tests.stand_ins.arm_server import State
from tests.stand_ins.azurite_server import Azurite, Person

HERE = f"/subscriptions/{SUBSCRIPTION}/providers"
STORE = "https://storage.azure.com"


@pytest.fixture
def azure(state: State, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[list[str]]:
    """Somebody is signed in to a subscription that is ready; the audiences of the tokens."""
    state.resources[f"/subscriptions/{SUBSCRIPTION}"] = {
        "tenantId": load("dev").tenant,
        "state": "Enabled",
    }
    state.resources[load("dev").registry_id] = REGISTRY
    for _, type in GLOBAL.values():
        question = f"{type.partition('/')[0]}/checkNameAvailability"
        state.answers[f"{HERE}/{question}"] = {"nameAvailable": True}
    for name in ("Storage", "KeyVault", "ManagedIdentity", "MachineLearningServices"):
        state.resources[f"{HERE}/Microsoft.{name}"] = {"registrationState": "Registered"}
    state.lists[f"{HERE}/Microsoft.KeyVault/deletedVaults"] = []
    state.lists[f"{HERE}/Microsoft.Authorization/permissions"] = [{"actions": ["*"]}]
    state.lists[USAGES] = [
        usage("standardEDSv4Family", 100),
        usage("TotalDedicatedCores", 100),
        usage("TotalLowPriorityCores", 100, spot=True),
    ]
    monkeypatch.setattr(cli, "_declared", lambda stack, arm: resources())
    with arm_server.running(state, tmp_path) as (address, certificate):
        monkeypatch.setattr(arm, "PUBLIC", address)
        monkeypatch.setenv("REQUESTS_CA_BUNDLE", str(certificate))
        with token_server.running({address: "a-token"}) as (variables, asked):
            for name, value in variables.items():
                monkeypatch.setenv(name, value)
            yield asked


def test_doctor_without_findings(azure: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    """Exit 0, a line a check; the token was for Azure Resource Manager."""
    code, out, err = ran(capsys, "doctor", "dev")
    assert (code, err) == (0, "")
    assert all(line.startswith("ok ") for line in out.splitlines()) and "permissions" in out
    assert set(azure) == {arm.PUBLIC}


def test_doctor_with_a_finding(
    azure: list[str], state: State, capsys: pytest.CaptureFixture[str]
) -> None:
    """Exit 3, with the command that helps; the same as JSON."""
    state.resources[f"{HERE}/Microsoft.KeyVault"] = {"registrationState": "NotRegistered"}
    code, out, _ = ran(capsys, "doctor", "dev")
    assert code == 3
    assert "error    provider Microsoft.KeyVault: not registered (az provider register" in out
    code, out, _ = ran(capsys, "doctor", "dev", "--json")
    assert code == 3
    (wrong,) = (one for one in json.loads(out) if one["verdict"] == "error")
    assert wrong["name"] == "provider Microsoft.KeyVault"


def test_no_drift(azure: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    """Exit 0; an empty list as JSON."""
    assert ran(capsys, "drift", "dev") == (0, "dev: 7 resources are as declared\n", "")
    code, out, _ = ran(capsys, "drift", "dev", "--json")
    assert (code, json.loads(out)) == (0, [])


def test_drift(azure: list[str], state: State, capsys: pytest.CaptureFixture[str]) -> None:
    """Exit 3, with the declared and the actual value."""
    state.resources[STORAGE]["properties"]["allowSharedKeyAccess"] = True
    code, out, _ = ran(capsys, "drift", "dev")
    assert (code, out) == (3, "lake: allowSharedKeyAccess is True, declared False\n")
    code, out, _ = ran(capsys, "drift", "dev", "--json")
    (found,) = json.loads(out)
    assert code == 3
    assert (found["kind"], found["path"], found["actual"]) == (
        "changed",
        "allowSharedKeyAccess",
        True,
    )


def test_nobody_is_signed_in(
    azure: list[str], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The endpoint refuses: exit 1, one error, none of azure-identity's paragraphs."""
    monkeypatch.setenv("IDENTITY_HEADER", "another machine")
    monkeypatch.setenv("PATH", "")  # and neither az nor another tool is there to ask
    for words in (["doctor", "dev"], ["drift", "dev"], ["sas", "dev", "raw/a.csv"]):
        code, out, err = ran(capsys, *words)
        assert (code, out) == (1, "")
        assert err.startswith("error[not-signed-in]") and len(err.splitlines()) <= 4
    assert azure  # it was asked


@pytest.mark.parametrize(
    "variables",
    [
        {"AZURE_AUTHORITY_HOST": "http://login.example"},
        {"AZURE_TOKEN_CREDENTIALS": "nonsense"},
        {"AZURE_TENANT_ID": "a/b", "AZURE_CLIENT_ID": "x", "AZURE_CLIENT_SECRET": "hush"},
        {
            "AZURE_TENANT_ID": SUBSCRIPTION,
            "AZURE_CLIENT_ID": "x",
            "AZURE_CLIENT_CERTIFICATE_PATH": "/not/there.pem",
        },
    ],
)
def test_invalid_variables_of_azures_sign_in_are_named(
    variables: dict[str, str], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Exit 1 and one error, before the program runs; no secret in it."""
    monkeypatch.setattr(cli, "_declared", lambda stack, arm: pytest.fail("too early"))
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    for words in (["doctor", "dev"], ["drift", "dev"], ["sas", "dev", "raw/a.csv"]):
        code, out, err = ran(capsys, *words)
        assert (code, out) == (1, "")
        assert err.startswith("error[not-signed-in]") and "AZURE_" in err
        assert len(err.splitlines()) <= 4 and "hush" not in err


@pytest.mark.parametrize("hours", ["nan", "inf", "-1", "0", "1e-300", "9"])
def test_a_refused_lifetime_needs_no_sign_in(
    hours: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """Exit 2 and no traceback, for any kind of number."""
    code, out, err = ran(capsys, "sas", "dev", "raw/a.csv", "--hours", hours)
    assert (code, out) == (2, "")
    assert "error[sas-" in err and "at most 8 h" in err


def test_a_refused_path_needs_no_sign_in(capsys: pytest.CaptureFixture[str]) -> None:
    code, _, err = ran(capsys, "sas", "dev", "raw")
    assert code == 2 and "error[invalid-path]" in err


@pytest.fixture(scope="module")
def azurite(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Azurite]:
    """With one file."""
    with azurite_server.running(tmp_path_factory.mktemp("azurite")) as server:
        server.service().create_container("raw")
        server.service().get_blob_client("raw", "in/a.csv").upload_blob(b"1,2")
        yield server


@pytest.fixture
def store(azurite: Azurite, monkeypatch: pytest.MonkeyPatch) -> Iterator[dict[str, Any]]:
    """Azurite in place of the lake; who is signed in may ask for its keys."""
    token = Person().get_token(STORE).token
    monkeypatch.setattr(sas, "BLOBS", azurite.url)
    monkeypatch.setenv("REQUESTS_CA_BUNDLE", str(azurite.certificate))
    with token_server.running({STORE: token}) as (variables, asked):
        for name, value in variables.items():
            monkeypatch.setenv(name, value)
        yield {"asked": asked, "token": token, "verify": str(azurite.certificate)}


def test_a_sas(store: dict[str, Any], capsys: pytest.CaptureFixture[str]) -> None:
    """Only its URL is on stdout, and it works; stderr holds no secret."""
    code, out, err = ran(capsys, "sas", "dev", "raw/in/a.csv")
    assert code == 0 and len(out.splitlines()) == 1
    reader = BlobClient.from_blob_url(out.strip(), connection_verify=store["verify"])
    assert reader.download_blob().readall() == b"1,2"
    assert err.startswith("read raw/in/a.csv until ") and "sig=" not in err
    assert set(store["asked"]) == {STORE} and store["token"] not in out + err


def test_a_sas_to_write_as_json(store: dict[str, Any], capsys: pytest.CaptureFixture[str]) -> None:
    """It writes its file and cannot read."""
    code, out, err = ran(capsys, "sas", "dev", "raw/out/b.csv", "--write", "--hours=2", "--json")
    found = json.loads(out)
    assert (code, err, found["access"]) == (0, "", "write")
    writer = BlobClient.from_blob_url(found["url"], connection_verify=store["verify"])
    writer.upload_blob(b"3", overwrite=True)
    with pytest.raises(HttpResponseError) as refused:
        writer.download_blob()
    assert refused.value.status_code == 403


def test_a_sas_beyond_the_limit_of_the_stack(
    store: dict[str, Any], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Exit 2, and the limit is the stack file's."""
    settings = load("dev")
    short = replace(settings, storage=replace(settings.storage, sas_hours=2))
    monkeypatch.setattr("infra.settings.loader.load", lambda stack, folder: short)
    code, out, err = ran(capsys, "sas", "dev", "raw/in/a.csv", "--hours", "3")
    assert (code, out) == (2, "")
    assert "error[sas-too-long]: 3 h" in err and "at most 2 h" in err
    assert ran(capsys, "sas", "dev", "raw/in/a.csv", "--hours", "2")[0] == 0


def test_the_shared_registry_has_no_lake(capsys: pytest.CaptureFixture[str]) -> None:
    """Exit 2, before anybody is asked, with the environments to name instead."""
    code, _, err = ran(capsys, "sas", "shared", "raw/x.csv")
    assert code == 2 and "no-environment" in err and "dev, prod, staging" in err
