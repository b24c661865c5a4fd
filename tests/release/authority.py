"""A certificate authority of the tests, which signs as any workflow that a test names.

It stands in for Sigstore's. Only the tests' own `gh` trusts it: `Authority.verifier`.
"""

from __future__ import annotations

import base64
import json
import sys
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

from cryptography import x509
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.serialization import Encoding
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID, ObjectIdentifier

from ml.backends.attestation import GitHubAttestations, Identity, Statement
from tests.stand_ins import attestations
from tests.stand_ins.attestations import (
    BUNDLE_TYPE,
    ISSUER,
    PAYLOAD_TYPE,
    RUNNER,
    SIGNER,
    SOURCE,
    SOURCE_COMMIT,
    SOURCE_REF,
    TRIGGER,
    gh,
    signed_bytes,
    utf8_head,
)

# As the organisation policy names it: policies/promotion/gates.yml.
TRUSTED = Identity(
    "https://token.actions.githubusercontent.com",
    "your-organisation/your-repository",
    ".github/workflows/merge.yml",
    "refs/heads/main",
    "github-hosted",
    "push",
)
MINUTES = timedelta(minutes=10)


def _name(text: str) -> x509.Name:
    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, text)])


@dataclass
class Authority:
    """Issues certificates of ten minutes, each for one signature."""

    key: ec.EllipticCurvePrivateKey = field(
        default_factory=lambda: ec.generate_private_key(ec.SECP256R1())
    )

    def __post_init__(self) -> None:
        now = datetime.now(UTC)
        self.certificate = (
            x509.CertificateBuilder()
            .subject_name(_name("authority of the tests"))
            .issuer_name(_name("authority of the tests"))
            .public_key(self.key.public_key())
            .serial_number(x509.random_serial_number())
            .not_valid_before(now - timedelta(days=400))
            .not_valid_after(now + timedelta(days=400))
            .add_extension(x509.BasicConstraints(ca=True, path_length=None), critical=True)
            .sign(self.key, SHA256())
        )

    @property
    def pem(self) -> bytes:
        """Its certificate, as a verifier is given it."""
        return self.certificate.public_bytes(Encoding.PEM)

    @property
    def verifier(self) -> GitHubAttestations:
        """The product's verifier, with a `gh` that trusts this authority alone."""
        return GitHubAttestations(gh(self.pem))

    def program(self, folder: Path) -> Path:
        """`gh` as a program in the folder, which a PATH needs to find it."""
        (folder / "authority.pem").write_bytes(self.pem)
        program = folder / "gh"
        words = f"{sys.executable} {attestations.__file__} {folder}/authority.pem"
        program.write_text(f'#!/bin/sh\nexec {words} "$@"\n')
        program.chmod(0o755)
        return program

    def issue(
        self,
        key: ec.EllipticCurvePrivateKey,
        identity: Identity,
        commit: str,
        at: datetime,
        use: ObjectIdentifier = ExtendedKeyUsageOID.CODE_SIGNING,
        extensions: Sequence[tuple[str, str | None]] = (),
    ) -> bytes:
        """A certificate of that workflow, as DER.

        `extensions` are those that say something else (OID and text), None for one left out.
        """
        uri = f"https://github.com/{identity.repository}/{identity.workflow}@{identity.ref}"
        builder = (
            x509.CertificateBuilder()
            .subject_name(x509.Name([]))
            .issuer_name(self.certificate.subject)
            .public_key(key.public_key())
            .serial_number(x509.random_serial_number())
            .not_valid_before(at - MINUTES / 2)
            .not_valid_after(at + MINUTES / 2)
            .add_extension(x509.ExtendedKeyUsage([use]), critical=False)
            .add_extension(
                x509.SubjectAlternativeName([x509.UniformResourceIdentifier(uri)]), critical=True
            )
        )
        stated: dict[str, str | None] = {
            ISSUER: identity.issuer,
            SIGNER: uri,
            RUNNER: identity.runner,
            SOURCE: f"https://github.com/{identity.repository}",
            SOURCE_COMMIT: commit,
            SOURCE_REF: identity.ref,
            TRIGGER: identity.trigger,
            **dict(extensions),
        }
        for oid, text in stated.items():
            if text is None:
                continue
            value = utf8_head(len(text.encode())) + text.encode()
            extension = x509.UnrecognizedExtension(ObjectIdentifier(oid), value)
            builder = builder.add_extension(extension, critical=False)
        return builder.sign(self.key, SHA256()).public_bytes(Encoding.DER)


@dataclass
class Workflow:
    """A workflow that attests what it makes: implements `ml.backends.attestation.Attestor`."""

    authority: Authority
    identity: Identity = TRUSTED
    commit: str | None = None
    lag: timedelta = timedelta()
    use: ObjectIdentifier = ExtendedKeyUsageOID.CODE_SIGNING
    extensions: Sequence[tuple[str, str | None]] = ()

    def __call__(self, statement: Statement) -> bytes:
        """A bundle signed by a new key."""
        key, at = ec.generate_private_key(ec.SECP256R1()), statement.created + self.lag
        commit = statement.commit if self.commit is None else self.commit
        certificate = self.authority.issue(
            key, self.identity, commit, at, self.use, self.extensions
        )
        payload = json.dumps(statement.to_json()).encode()
        signature = key.sign(signed_bytes(payload), ec.ECDSA(SHA256()))
        return bundle(certificate, payload, at, signature)

    def of(self, **changes: Any) -> Workflow:
        """Another workflow of the same authority."""
        return replace(self, identity=replace(self.identity, **changes))


def bundle(certificate: bytes, payload: bytes, at: datetime, *signatures: bytes) -> bytes:
    """A bundle as JSON."""

    def text(content: bytes) -> str:
        return base64.b64encode(content).decode()

    document = {
        "mediaType": BUNDLE_TYPE,
        "verificationMaterial": {
            "certificate": {"rawBytes": text(certificate)},
            "tlogEntries": [{"integratedTime": str(int(at.timestamp()))}],
        },
        "dsseEnvelope": {
            "payload": text(payload),
            "payloadType": PAYLOAD_TYPE,
            "signatures": [{"sig": text(each)} for each in signatures],
        },
    }
    return json.dumps(document).encode()
