"""`infra sas` against Azurite: requests in its scope succeed, all others get 403."""

from __future__ import annotations

import logging
import time
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from urllib.parse import parse_qs

import pytest
from azure.core.exceptions import HttpResponseError
from azure.storage.blob import BlobClient, BlobServiceClient

from infra.live import sas
from infra.live.sas import Access, Sas, issue, scope
from ml.core.errors import UserError
from tests.stand_ins import arm_server, azurite_server
from tests.stand_ins.arm_server import State
from tests.stand_ins.azurite_server import Azurite, Person

HOUR = timedelta(hours=1)
LIMIT = timedelta(hours=8)


@pytest.fixture(scope="module")
def azurite(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Azurite]:
    """With two containers of two files each."""
    with azurite_server.running(tmp_path_factory.mktemp("azurite")) as server:
        service = server.service()
        for container in ("raw", "curated"):
            service.create_container(container)
            for name in ("in/a.csv", "in/b.csv"):
                service.get_blob_client(container, name).upload_blob(f"{container} {name}".encode())
        yield server


def issued(azurite: Azurite, path: str, access: Access = "read", life: timedelta = HOUR) -> Sas:
    return issue(azurite.service(), scope(path), access, life, LIMIT)


def client(
    azurite: Azurite, token: str, container: str = "raw", name: str = "in/a.csv"
) -> BlobClient:
    """Somebody who has the token and nothing else."""
    return BlobClient(
        azurite.url, container, name, credential=token,
        connection_verify=str(azurite.certificate), retry_total=0,
    )  # fmt: skip


def denied(call: object) -> bool:
    with pytest.raises(HttpResponseError) as refused:
        call()  # type: ignore[operator]
    return refused.value.status_code == 403


def test_a_sas_to_read_reads_its_file(azurite: Azurite) -> None:
    """The URL is sufficient."""
    one = issued(azurite, "raw/in/a.csv")
    assert client(azurite, one.token).download_blob().readall() == b"raw in/a.csv"
    by_url = BlobClient.from_blob_url(one.url, connection_verify=str(azurite.certificate))
    assert by_url.download_blob().readall() == b"raw in/a.csv"


def test_a_sas_to_write_writes_its_file(azurite: Azurite) -> None:
    """Also a new one."""
    one = issued(azurite, "raw/out/new.csv", "write")
    client(azurite, one.token, name="out/new.csv").upload_blob(b"1", overwrite=True)
    read = azurite.service().get_blob_client("raw", "out/new.csv").download_blob().readall()
    assert read == b"1"


def test_another_file_is_denied(azurite: Azurite) -> None:
    """In the same folder."""
    one = issued(azurite, "raw/in/a.csv")
    assert denied(client(azurite, one.token, name="in/b.csv").download_blob)


def test_another_container_is_denied(azurite: Azurite) -> None:
    """With a file of the same path."""
    one = issued(azurite, "raw/in/a.csv")
    assert denied(client(azurite, one.token, container="curated").download_blob)


def test_another_permission_is_denied(azurite: Azurite) -> None:
    """Reading excludes writing, writing excludes reading, and neither may delete."""
    reader, writer = (issued(azurite, "raw/in/b.csv", one) for one in ("read", "write"))
    at = {"name": "in/b.csv"}
    assert denied(lambda: client(azurite, reader.token, **at).upload_blob(b"2", overwrite=True))
    assert denied(client(azurite, writer.token, **at).download_blob)
    for one in (reader, writer):
        assert denied(client(azurite, one.token, **at).delete_blob)


def test_an_expired_sas_is_denied(azurite: Azurite) -> None:
    """It worked before; storage counts whole seconds."""
    one = issued(azurite, "raw/in/a.csv", life=timedelta(seconds=2))
    reader = client(azurite, one.token)
    assert reader.download_blob().readall()
    time.sleep(max((one.expires - datetime.now(UTC)).total_seconds(), 0) + 1)
    assert denied(reader.download_blob)


def test_a_changed_token_is_denied(azurite: Azurite) -> None:
    """A later expiry or more permissions do not match the signature."""
    one = issued(azurite, "raw/in/a.csv")
    later = one.token.replace(f"{one.expires:%Y}", f"{one.expires.year + 1}")
    assert later != one.token
    assert denied(client(azurite, later).download_blob)
    assert denied(client(azurite, one.token.replace("sp=r", "sp=rw")).download_blob)


@pytest.mark.parametrize("access", ["read", "write"])
def test_a_token_is_a_user_delegation_for_https_only(azurite: Azurite, access: Access) -> None:
    """Signed with a person's key (skoid), for one blob (sr=b)."""
    found = parse_qs(issued(azurite, "raw/in/a.csv", access).token)
    assert found["skoid"] == ["22222222-2222-2222-2222-222222222222"]
    assert (found["sr"], found["spr"], found["sp"]) == (["b"], ["https"], [sas.FILE[access]])


def test_a_folder_is_signed_with_its_depth(azurite: Azurite) -> None:
    """Azurite has no folders, so the fields of the token are checked."""
    found = parse_qs(issued(azurite, "raw/in/2026/").token)
    assert (found["sr"], found["sdd"], found["sp"]) == (["d"], ["2"], ["rl"])


def test_no_log_holds_a_signature_or_a_key(
    azurite: Azurite, caplog: pytest.LogCaptureFixture
) -> None:
    """All logging of the issue is captured; the repr of a SAS does not contain its token."""
    caplog.set_level(logging.DEBUG)
    caplog.set_level(logging.DEBUG, "azure")
    one = issued(azurite, "raw/in/a.csv")
    signature = parse_qs(one.token)["sig"][0]
    assert caplog.text
    assert signature not in caplog.text
    assert one.token not in caplog.text
    assert "sig=" not in repr(one)


@pytest.mark.parametrize(
    "path",
    ["raw", "raw/", "/in/a.csv", "raw//a.csv", "raw/../curated/a.csv", "raw/./a", "Raw/a", "",
     "raw/a?sig=x", "raw/in\\a", "raw/a\nb", "r/a", "raw/a//"],
)  # fmt: skip
def test_a_path_that_is_too_wide_is_refused(path: str) -> None:
    """Or ambiguous."""
    with pytest.raises(UserError, match="invalid-path"):
        scope(path)


@pytest.mark.parametrize(
    ("life", "code"),
    [(LIMIT + timedelta(seconds=1), "sas-too-long"), (timedelta(0), "sas-too-short")],
)
def test_a_lifetime_beyond_the_limit_is_refused(
    azurite: Azurite, life: timedelta, code: str
) -> None:
    """Before any key is requested; the limit itself is allowed."""
    with pytest.raises(UserError, match=code):
        issued(azurite, "raw/in/a.csv", life=life)
    assert issued(azurite, "raw/in/a.csv", life=LIMIT).token


def test_azures_limit_applies_to_every_environment(azurite: Azurite) -> None:
    """Seven days."""
    with pytest.raises(UserError, match="168 h"):
        issue(azurite.service(), scope("raw/a"), "read", timedelta(days=8), timedelta(days=30))


def test_the_longest_sas_stays_within_azures_limit(azurite: Azurite) -> None:
    """Azure counts the seven days from the start of the key, which is before now."""
    week = timedelta(days=7)
    sas = issue(azurite.service(), scope("raw/in/a.csv"), "read", week, timedelta(days=30))
    times = parse_qs(sas.token)
    begins, ends = (datetime.fromisoformat(times[name][0]) for name in ("skt", "ske"))
    assert ends - begins == week and sas.expires == ends
    assert client(azurite, sas.token).download_blob().readall()


def test_an_unreachable_account_is_a_readable_error(tmp_path: Path) -> None:
    """Exit 1, with a hint."""
    with azurite_server.running(tmp_path) as server:
        gone = server
    with pytest.raises(UserError, match="no-delegation-key") as refused:
        issued(gone, "raw/in/a.csv")
    assert refused.value.exit_code == 1


DENIED = b"<Error><Code>AuthorizationFailure</Code><Message>no</Message></Error>"
XML = {"Content-Type": "application/xml"}
KEY = b"""<?xml version="1.0"?><UserDelegationKey><SignedOid>a</SignedOid><SignedTid>b</SignedTid>
<SignedStart>2026-01-01T00:00:00Z</SignedStart><SignedExpiry>2026-01-01T00:00:00Z</SignedExpiry>
<SignedService>b</SignedService><SignedVersion>2020-01-01</SignedVersion><Value>%s</Value>
</UserDelegationKey>"""


@pytest.mark.parametrize("path", ["raw/in/a.csv", "raw/in/"])
@pytest.mark.parametrize(
    ("status", "body", "found"),
    [
        (200, b"<html>Sign in to the hotel</html>", ""),
        (200, b"", ""),
        (200, KEY[:80], ""),
        (200, b"<a/>", ""),
        (200, KEY % b"", ""),
        (200, KEY % b"!!", ""),
        (401, b"", "status 401"),
        (403, DENIED, "AuthorizationFailure"),
        (403, b"<html>the proxy says no</html>", "status 403"),
        (404, b"", "status 404"),
        (503, b"<html>busy</html>", "status 503"),
    ],
)
def test_an_invalid_key_is_one_readable_error(
    tmp_path: Path, path: str, status: int, body: bytes, found: str
) -> None:
    """Exit 1, a few lines, and no SAS."""
    code = {"x-ms-error-code": found} if found[:6] not in ("", "status") else {}
    state = State(raw=[(status, {**XML, **code}, body)])
    with arm_server.running(state, tmp_path) as (address, certificate):
        service = BlobServiceClient(
            f"{address}/lake", credential=Person(), connection_verify=str(certificate),
            retry_total=0,
        )  # fmt: skip
        with pytest.raises(UserError, match="no-delegation-key") as refused:
            issue(service, scope(path), "read", HOUR, LIMIT)
    assert refused.value.exit_code == 1
    assert found in str(refused.value) and len(str(refused.value).splitlines()) <= 4


def test_a_blocked_network_is_distinguished_from_a_missing_role() -> None:
    """Both are 403, with different remedies."""
    hints = {}
    for code in ("AuthorizationFailure", "AuthorizationPermissionMismatch"):
        error = HttpResponseError("no")
        error.error_code = code  # type: ignore[attr-defined]
        hints[code] = str(sas.denied(error))
    assert "network" in hints["AuthorizationFailure"]
    assert "role" in hints["AuthorizationPermissionMismatch"]
