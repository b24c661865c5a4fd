"""ml.backends.attestation: only a statement that a trusted authority's certificate signs counts."""

from __future__ import annotations

import base64
import json
from collections.abc import Callable
from dataclasses import replace
from datetime import UTC, datetime, timedelta

import pytest
from cryptography.x509.oid import ExtendedKeyUsageOID

from ml.backends.attestation import (
    RUNNER,
    SIGNER,
    SOURCE,
    SOURCE_REF,
    TRIGGER,
    AttestationError,
    Certificates,
    Statement,
)
from tests.release.authority import TRUSTED, Authority, Workflow

MADE = datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC)
STATEMENT = Statement("e" * 64, "sha256:" + "a" * 64, "c" * 40, "sha256:" + "d" * 64, MADE)
AUTHORITY = Authority()
WORKFLOW = Workflow(AUTHORITY)
VERIFIER = Certificates([AUTHORITY.pem])


def test_who_made_the_statement_is_in_the_certificate() -> None:
    """The workflow, its repository, its branch, and who issued its token."""
    assert VERIFIER.verify(WORKFLOW.attest(STATEMENT), STATEMENT) == TRUSTED
    fork = WORKFLOW.of(repository="somebody/fork", ref="refs/heads/a/topic")
    identity = VERIFIER.verify(fork.attest(STATEMENT), STATEMENT)
    assert (identity.repository, identity.ref) == ("somebody/fork", "refs/heads/a/topic")


@pytest.mark.attack("A stranger's repository, or another branch, calls the trusted workflow")
@pytest.mark.parametrize(
    "extensions",
    [
        {SOURCE: "https://github.com/somebody/else"},
        {SOURCE: "https://github.com/your-organisation/your-repository-2"},
        {SOURCE_REF: "refs/heads/topic"},
        {SOURCE_REF: "refs/pull/7/merge"},
        {SIGNER: "https://github.com/somebody/else/.github/workflows/x.yml@refs/heads/main"},
        *({oid: None} for oid in (SOURCE, SOURCE_REF, SIGNER, RUNNER, TRIGGER)),
    ],
    ids=str,
)
def test_the_workflow_ran_for_its_own_repository(extensions: dict[str, str | None]) -> None:
    """What it ran is of the repository and branch that the signer is of; it has to say so."""
    workflow = replace(WORKFLOW, extensions=tuple(extensions.items()))
    with pytest.raises(AttestationError):
        VERIFIER.verify(workflow.attest(STATEMENT), STATEMENT)


def test_the_runner_and_the_trigger_are_told() -> None:
    """The gate decides about them."""
    other = WORKFLOW.of(runner="self-hosted", trigger="pull_request_target")
    identity = VERIFIER.verify(other.attest(STATEMENT), STATEMENT)
    assert (identity.runner, identity.trigger) == ("self-hosted", "pull_request_target")


@pytest.mark.parametrize("length", [20, 127, 128, 200, 255, 256, 300])
def test_names_of_any_length_are_read(length: int) -> None:
    """A repository's and a workflow's may be long."""
    name = "a" * length
    identity = VERIFIER.verify(WORKFLOW.of(repository=f"o/{name}").attest(STATEMENT), STATEMENT)
    assert identity.repository == f"o/{name}"


@pytest.mark.attack("An attestation of something else is shown with the evidence")
@pytest.mark.parametrize(
    "change",
    [
        {"evidence": "f" * 64},
        {"model": "sha256:" + "b" * 64},
        {"commit": "b" * 40},
        {"evaluation": "sha256:" + "e" * 64},
        {"created": MADE + timedelta(minutes=1)},
    ],
    ids=lambda change: next(iter(change)),
)
def test_another_statement_is_refused(change: dict[str, object]) -> None:
    """Every part of the statement is bound."""
    other = replace(STATEMENT, **change)  # type: ignore[arg-type]
    with pytest.raises(AttestationError):
        VERIFIER.verify(WORKFLOW.attest(STATEMENT), other)


@pytest.mark.attack("An attestation is signed by an authority that nobody named")
def test_another_authority_is_refused() -> None:
    """Its name is the same, its key is not."""
    other = Workflow(Authority())
    for verifier in (VERIFIER, Certificates([])):
        with pytest.raises(AttestationError, match="no authority"):
            verifier.verify(other.attest(STATEMENT), STATEMENT)


@pytest.mark.attack("A certificate of another time, commit or use signs the evidence")
@pytest.mark.parametrize(
    ("workflow", "why"),
    [
        (replace(WORKFLOW, lag=timedelta(hours=1)), "not valid"),
        (replace(WORKFLOW, lag=-timedelta(hours=1)), "not valid"),
        (replace(WORKFLOW, commit="b" * 40), "the commit"),
        (replace(WORKFLOW, commit=""), "the commit"),
        (replace(WORKFLOW, use=ExtendedKeyUsageOID.SERVER_AUTH), "not for signing"),
        (WORKFLOW.of(workflow="actions/x.yml"), "not a workflow"),
    ],
)
def test_a_certificate_that_does_not_fit_is_refused(workflow: Workflow, why: str) -> None:
    """It names a time, a commit and a use."""
    with pytest.raises(AttestationError, match=why):
        VERIFIER.verify(workflow.attest(STATEMENT), STATEMENT)


def _two_signatures(bundle: dict[str, dict[str, list[object]]]) -> None:
    bundle["dsseEnvelope"]["signatures"] *= 2


def _other_type(bundle: dict[str, dict[str, str]]) -> None:
    bundle["dsseEnvelope"]["payloadType"] = "text/plain"


def _flipped(bundle: dict[str, dict[str, str]]) -> None:
    payload = bytearray(base64.b64decode(bundle["dsseEnvelope"]["payload"]))
    payload[-3] ^= 1
    bundle["dsseEnvelope"]["payload"] = base64.b64encode(payload).decode()


def _own_key(bundle: dict[str, dict[str, object]]) -> None:
    """The signature is of another key than the certificate's."""
    other = json.loads(WORKFLOW.attest(STATEMENT))
    bundle["dsseEnvelope"]["signatures"] = other["dsseEnvelope"]["signatures"]


def _authority_itself(bundle: dict[str, dict[str, dict[str, str]]]) -> None:
    der = AUTHORITY.pem.decode().split("-----")[2].replace("\n", "")
    bundle["verificationMaterial"]["certificate"]["rawBytes"] = der


@pytest.mark.attack("The bytes of an attestation are changed")
@pytest.mark.parametrize(
    "change", [_two_signatures, _other_type, _flipped, _own_key, _authority_itself]
)
def test_a_changed_bundle_is_refused(change: Callable[[object], None]) -> None:
    """The signature covers the statement and its type."""
    bundle = json.loads(WORKFLOW.attest(STATEMENT))
    change(bundle)
    with pytest.raises(AttestationError):
        VERIFIER.verify(json.dumps(bundle).encode(), STATEMENT)


@pytest.mark.parametrize(
    "text", ["", "{}", "[]", "null", "1", "[" * 100_000, '{"dsseEnvelope": 1}']
)
def test_what_is_no_bundle_is_refused(text: str) -> None:
    """An error that names it, no traceback."""
    with pytest.raises(AttestationError, match="not a bundle"):
        VERIFIER.verify(text.encode(), STATEMENT)
