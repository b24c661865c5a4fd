"""ml.backends.attestation: only a statement that a trusted authority's certificate signs counts."""

from __future__ import annotations

import base64
import hashlib
import json
from collections.abc import Callable
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from cryptography.x509.oid import ExtendedKeyUsageOID

from ml.backends import attestation
from ml.backends.attestation import AttestationError, GitHubAttestations, Identity, Statement
from ml.core.errors import UserError
from tests.release.authority import TRUSTED, Authority, Workflow
from tests.stand_ins.attestations import RUNNER, SIGNER, SOURCE, SOURCE_REF, TRIGGER, gh

MADE = datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC)
EVIDENCE = b'{"metrics": {}}'
DIGESTS = (hashlib.sha256(EVIDENCE).hexdigest(), "sha256:" + "a" * 64)
STATEMENT = Statement(*DIGESTS, "c" * 40, "sha256:" + "d" * 64, MADE)
AUTHORITY = Authority()
WORKFLOW = Workflow(AUTHORITY)


def verified(
    bundle: bytes, statement: Statement = STATEMENT, by: GitHubAttestations = AUTHORITY.verifier
) -> Identity:
    return by.verify(EVIDENCE, bundle, statement)


def test_who_made_the_statement_is_in_the_certificate() -> None:
    """The workflow, its repository, its branch, and who issued its token."""
    assert verified(WORKFLOW(STATEMENT)) == TRUSTED
    fork = WORKFLOW.of(repository="somebody/fork", ref="refs/heads/a/topic")
    identity = verified(fork(STATEMENT))
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
        verified(workflow(STATEMENT))


def test_the_runner_and_the_trigger_are_told() -> None:
    """The gate decides about them."""
    other = WORKFLOW.of(runner="self-hosted", trigger="pull_request_target")
    identity = verified(other(STATEMENT))
    assert (identity.runner, identity.trigger) == ("self-hosted", "pull_request_target")


@pytest.mark.parametrize("length", [20, 127, 128, 200, 255, 256, 300])
def test_names_of_any_length_are_read(length: int) -> None:
    """A repository's and a workflow's may be long."""
    name = "a" * length
    identity = verified(WORKFLOW.of(repository=f"o/{name}")(STATEMENT))
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
        verified(WORKFLOW(STATEMENT), other)


@pytest.mark.attack("An attestation is signed by an authority that nobody named")
def test_another_authority_is_refused() -> None:
    """Its name is the same, its key is not."""
    other = Workflow(Authority())
    for verifier in (AUTHORITY.verifier, GitHubAttestations(gh())):
        with pytest.raises(AttestationError, match="no authority"):
            verified(other(STATEMENT), by=verifier)


@pytest.mark.attack("A certificate of another time, commit or use signs the evidence")
@pytest.mark.parametrize(
    ("workflow", "why"),
    [
        (replace(WORKFLOW, lag=timedelta(hours=1)), "was signed at"),
        (replace(WORKFLOW, lag=-timedelta(hours=1)), "was signed at"),
        (replace(WORKFLOW, commit="b" * 40), "another commit"),
        (replace(WORKFLOW, commit=""), "another commit"),
        (replace(WORKFLOW, use=ExtendedKeyUsageOID.SERVER_AUTH), "not for signing"),
        (WORKFLOW.of(workflow="actions/x.yml"), "not a workflow"),
    ],
)
def test_a_certificate_that_does_not_fit_is_refused(workflow: Workflow, why: str) -> None:
    """It names a time, a commit and a use."""
    with pytest.raises(AttestationError, match=why):
        verified(workflow(STATEMENT))


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
    other = json.loads(WORKFLOW(STATEMENT))
    bundle["dsseEnvelope"]["signatures"] = other["dsseEnvelope"]["signatures"]


def _authority_itself(bundle: dict[str, dict[str, dict[str, str]]]) -> None:
    der = AUTHORITY.pem.decode().split("-----")[2].replace("\n", "")
    bundle["verificationMaterial"]["certificate"]["rawBytes"] = der


def _signed_later(bundle: dict[str, dict[str, list[dict[str, str]]]]) -> None:
    """After its ten minutes, when the key may be anybody's."""
    (entry,) = bundle["verificationMaterial"]["tlogEntries"]
    entry["integratedTime"] = str(int(entry["integratedTime"]) + 900)


@pytest.mark.attack("The bytes of an attestation are changed")
@pytest.mark.parametrize(
    "change", [_two_signatures, _other_type, _flipped, _own_key, _authority_itself, _signed_later]
)
def test_a_changed_bundle_is_refused(change: Callable[[object], None]) -> None:
    """The signature covers the statement and its type."""
    bundle = json.loads(WORKFLOW(STATEMENT))
    change(bundle)
    with pytest.raises(AttestationError):
        verified(json.dumps(bundle).encode())


@pytest.mark.parametrize(
    "text", ["", "{}", "[]", "null", "1", "[" * 100_000, '{"dsseEnvelope": 1}']
)
def test_what_is_no_bundle_is_refused(text: str) -> None:
    """An error that names it, no traceback."""
    with pytest.raises(AttestationError, match="no Sigstore bundle"):
        verified(text.encode())


@pytest.mark.parametrize(
    "answer",
    ["", "[]", "{}", "[1]", '[{"verificationResult": {}}]', "null"],
)
def test_an_answer_of_another_form_attests_nothing(answer: str) -> None:
    """As a later gh might give."""
    with pytest.raises(AttestationError, match="unexpected output of gh"):
        verified(WORKFLOW(STATEMENT), by=GitHubAttestations(lambda words: (0, answer, "")))


def test_gh_is_asked_as_a_program(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """With the repository and the workflow that the certificate names; without it, its address."""
    program = AUTHORITY.program(tmp_path)
    script = program.read_text()
    program.write_text(script.replace("exec", f'echo "$@" >> {tmp_path}/words\nexec'))
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    assert verified(WORKFLOW(STATEMENT), by=GitHubAttestations()) == TRUSTED
    words = (tmp_path / "words").read_text()
    assert f"--repo {TRUSTED.repository} --signer-workflow {TRUSTED.repository}/" in words
    with pytest.raises(AttestationError, match=r"gh attestation verify: Error: .*no authority"):
        verified(Workflow(Authority())(STATEMENT), by=GitHubAttestations())
    monkeypatch.setattr(attestation, "TIMEOUT_S", 0.01)
    with pytest.raises(AttestationError, match="timed out"):
        verified(WORKFLOW(STATEMENT), by=GitHubAttestations())
    program.unlink()
    with pytest.raises(UserError, match="no-gh"):
        verified(WORKFLOW(STATEMENT), by=GitHubAttestations())
