"""Attestations: who made the evidence of a model version. A part of the port.

The form is that of GitHub's artifact attestations: a Sigstore bundle with an in-toto statement in a
DSSE envelope, signed by a key whose certificate names the workflow. `Certificates` verifies one
against certificates of authorities that the caller names. There is no default authority.
"""

from __future__ import annotations

import base64
import binascii
import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from datetime import datetime
from typing import Any, Protocol

PAYLOAD_TYPE = "application/vnd.in-toto+json"
BUNDLE_TYPE = "application/vnd.dev.sigstore.bundle.v0.3+json"
STATEMENT_TYPE = "https://in-toto.io/Statement/v1"
PREDICATE_TYPE = "https://azureml-gitops-starter/evaluation/v1"
# Extensions of a certificate (https://github.com/sigstore/fulcio/blob/main/docs/oid-info.md).
_FULCIO = "1.3.6.1.4.1.57264.1"
ISSUER, SIGNER, RUNNER = f"{_FULCIO}.8", f"{_FULCIO}.9", f"{_FULCIO}.11"
SOURCE, SOURCE_COMMIT, SOURCE_REF = f"{_FULCIO}.12", f"{_FULCIO}.13", f"{_FULCIO}.14"
TRIGGER = f"{_FULCIO}.20"
_WORKFLOW = re.compile(r"https://github\.com/([^/]+/[^/]+)/(\.github/workflows/[^@]+)@(refs/.+)")


@dataclass(frozen=True)
class Statement:
    """What an attestation says: this evidence, of this model, came out of this evaluation.

    The digests are sha256; `commit` and `evaluation` are of the code that evaluated the model.
    """

    evidence: str
    model: str
    commit: str
    evaluation: str
    created: datetime

    def to_json(self) -> dict[str, Any]:
        """As in-toto has it: the files that it is about, and what it says of them."""
        digests = {"evidence.json": self.evidence, "model": self.model}
        return {
            "_type": STATEMENT_TYPE,
            "subject": [
                {"name": name, "digest": {"sha256": digest.removeprefix("sha256:")}}
                for name, digest in digests.items()
            ],
            "predicateType": PREDICATE_TYPE,
            "predicate": {
                "commit": self.commit,
                "evaluation": self.evaluation,
                "created": self.created.isoformat(),
            },
        }


@dataclass(frozen=True)
class Identity:
    """Who signed: a workflow of a repository on a branch, as the issuer of its token says.

    The code that it ran is of that repository and branch as well. `runner` is `github-hosted` or
    `self-hosted`, `trigger` the event that started it, such as `push`.
    """

    issuer: str
    repository: str
    workflow: str
    ref: str
    runner: str
    trigger: str

    def to_json(self) -> Mapping[str, str]:
        """As evidence has it when it is loaded."""
        return asdict(self)


class AttestationError(Exception):
    """An attestation that does not hold; the message says why."""


class Attestor(Protocol):
    """Signs statements as the workflow that runs."""

    def attest(self, statement: Statement) -> bytes:
        """The attestation, a bundle as JSON."""
        ...


class Verifier(Protocol):
    """Verifies attestations."""

    def verify(self, attestation: bytes, statement: Statement) -> Identity:
        """Who made the statement; raises AttestationError unless the attestation is of it."""
        ...


def signed_bytes(payload: bytes) -> bytes:
    """What a DSSE signature is made of (its pre-authentication encoding)."""
    return b"DSSEv1 %d %s %d %s" % (
        *(len(PAYLOAD_TYPE), PAYLOAD_TYPE.encode()),
        *(len(payload), payload),
    )


class Certificates:
    """Verifies against the certificates (PEM) of authorities; it asks no server.

    A certificate is valid for minutes: the evidence has to have been made in that time. The commit
    in the certificate has to be the statement's.
    """

    def __init__(self, authorities: Sequence[bytes]) -> None:
        from cryptography import x509

        self._authorities = [x509.load_pem_x509_certificate(each) for each in authorities]

    def verify(self, attestation: bytes, statement: Statement) -> Identity:
        """See `Verifier`."""
        from cryptography import x509
        from cryptography.exceptions import InvalidSignature
        from cryptography.hazmat.primitives.asymmetric import ec
        from cryptography.hazmat.primitives.hashes import SHA256

        certificate, payload, signature = _parts(attestation)
        try:
            leaf = x509.load_der_x509_certificate(certificate)
            self._check_issued(leaf, statement.created)
            key = leaf.public_key()
            if not isinstance(key, ec.EllipticCurvePublicKey):
                raise AttestationError("the certificate has no key of an elliptic curve")
            key.verify(signature, signed_bytes(payload), ec.ECDSA(SHA256()))
            identity, commit = _named(leaf)
        except InvalidSignature:
            raise AttestationError("the signature is not of the key in the certificate") from None
        except (ValueError, TypeError, x509.ExtensionNotFound) as error:
            raise AttestationError(f"the certificate cannot be read: {error}") from None
        if commit != statement.commit:
            raise AttestationError(f"the certificate is of the commit {commit[:12]}")
        _check_content(payload, statement)
        return identity

    def _check_issued(self, leaf: Any, made: datetime) -> None:
        """Raises AttestationError unless an authority issued it to sign code, then."""
        from cryptography import x509
        from cryptography.exceptions import InvalidSignature
        from cryptography.x509.oid import ExtendedKeyUsageOID

        extensions = leaf.extensions
        uses = extensions.get_extension_for_class(x509.ExtendedKeyUsage).value
        if ExtendedKeyUsageOID.CODE_SIGNING not in uses:
            raise AttestationError("the certificate is not for signing")
        for authority in self._authorities:
            try:
                leaf.verify_directly_issued_by(authority)
            except (InvalidSignature, ValueError, TypeError):
                continue
            if not authority.not_valid_before_utc <= made <= authority.not_valid_after_utc:
                raise AttestationError("the authority was not valid when the evidence was made")
            if not leaf.not_valid_before_utc <= made <= leaf.not_valid_after_utc:
                raise AttestationError(
                    f"the evidence states that it was made at {made}, when the certificate was "
                    "not valid"
                )
            return
        raise AttestationError("no authority that is named here issued the certificate")


def _parts(attestation: bytes) -> tuple[bytes, bytes, bytes]:
    """Certificate, payload and signature of a bundle."""
    try:
        bundle = json.loads(attestation)
        envelope = bundle["dsseEnvelope"]
        (signature,) = envelope["signatures"]
        if envelope["payloadType"] != PAYLOAD_TYPE:
            raise AttestationError(f"its content is {envelope['payloadType']!r}")
        certificate, payload, signed = (
            base64.b64decode(text, validate=True)
            for text in (
                bundle["verificationMaterial"]["certificate"]["rawBytes"],
                envelope["payload"],
                signature["sig"],
            )
        )
    except (ValueError, KeyError, TypeError, RecursionError, binascii.Error) as error:
        raise AttestationError(f"it is not a bundle with one signature: {error!r}") from None
    return certificate, payload, signed


def _check_content(payload: bytes, statement: Statement) -> None:
    """Raises AttestationError unless the payload is the statement."""
    try:
        stated = json.loads(payload)
    except (ValueError, RecursionError):
        raise AttestationError("what was signed is not JSON") from None
    expected = statement.to_json()
    if not isinstance(stated, dict) or stated != expected:
        parts = stated if isinstance(stated, dict) else {}
        other = ", ".join(key for key, value in expected.items() if parts.get(key) != value)
        raise AttestationError(f"it is about something else: another {other or 'statement'}")


def _named(leaf: Any) -> tuple[Identity, str]:
    """The identity in a certificate, and the commit that the workflow ran on.

    Another repository may call this one's workflow, and a branch that of another branch: then the
    signer is trusted, and what it ran is not.
    """
    from cryptography import x509

    names = leaf.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    (uri,) = names.get_values_for_type(x509.UniformResourceIdentifier)
    match = _WORKFLOW.fullmatch(uri)
    if match is None:
        raise AttestationError(f"the certificate is of {uri}, which is not a workflow")
    repository, workflow, ref = match.groups()
    for oid, expected in (
        (SIGNER, uri),
        (SOURCE, f"https://github.com/{repository}"),
        (SOURCE_REF, ref),
    ):
        if (stated := _text(leaf, oid)) != expected:
            raise AttestationError(f"the workflow {uri} ran for {stated}")
    issuer, commit, runner, trigger = (
        _text(leaf, oid) for oid in (ISSUER, SOURCE_COMMIT, RUNNER, TRIGGER)
    )
    return Identity(issuer, repository, workflow, ref, runner, trigger), commit


def _text(leaf: Any, oid: str) -> str:
    """An extension that holds a UTF8String: tag 12, length, content (DER, X.690 8.1.3)."""
    from cryptography import x509

    extension = leaf.extensions.get_extension_for_oid(x509.ObjectIdentifier(oid)).value
    content: bytes = extension.value
    for head in (2, 3, 4):
        text = content[head:]
        if content[:head] == utf8_head(len(text)):
            return text.decode()
    raise AttestationError(f"the extension {oid} is not a text")


def utf8_head(length: int) -> bytes:
    """What comes before a UTF8String of so many bytes, at most 65,535."""
    if length < 0x80:
        return bytes([12, length])
    if length < 0x100:
        return bytes([12, 0x81, length])
    return bytes([12, 0x82, *length.to_bytes(2, "big")])
