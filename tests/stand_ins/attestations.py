"""A stand-in for `gh attestation verify` that verifies bundles of a test authority.

It makes the same checks as gh, except that it trusts the signature's time in the bundle, which in
gh Sigstore's log confirms. It can run as a program: `python THIS PEM attestation …`.
"""

from __future__ import annotations

import base64
import hashlib
import json
import sys
from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from cryptography import x509
from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.x509.oid import ExtendedKeyUsageOID

PAYLOAD_TYPE = "application/vnd.in-toto+json"
BUNDLE_TYPE = "application/vnd.dev.sigstore.bundle.v0.3+json"
# Extensions of a certificate (https://github.com/sigstore/fulcio/blob/main/docs/oid-info.md) →
# their names in gh's output.
_FULCIO = "1.3.6.1.4.1.57264.1"
ISSUER, SIGNER, RUNNER = f"{_FULCIO}.8", f"{_FULCIO}.9", f"{_FULCIO}.11"
SOURCE, SOURCE_COMMIT, SOURCE_REF = f"{_FULCIO}.12", f"{_FULCIO}.13", f"{_FULCIO}.14"
TRIGGER = f"{_FULCIO}.20"
CLAIMS = {
    ISSUER: "issuer",
    SIGNER: "buildSignerURI",
    RUNNER: "runnerEnvironment",
    SOURCE: "sourceRepositoryURI",
    SOURCE_COMMIT: "sourceRepositoryDigest",
    SOURCE_REF: "sourceRepositoryRef",
    TRIGGER: "buildTrigger",
}


class Unverified(Exception):
    """The verification failed; the message is that of gh on stderr."""


def gh(*authorities: bytes) -> Callable[[Sequence[str]], tuple[int, str, str]]:
    """Return a replacement of `ml.backends.attestation.run_gh` that trusts these PEM authorities.

    It returns (exit status, stdout, stderr).
    """

    def run(words: Sequence[str]) -> tuple[int, str, str]:
        assert words[:2] == ["attestation", "verify"], words
        options = dict(zip(words[3::2], words[4::2], strict=True))
        assert options.pop("--format") == "json"
        try:
            return 0, json.dumps([_verified(Path(words[2]), options, authorities)]), ""
        except Unverified as error:
            return 1, "", f"Error: verifying with issuer: {error}"

    return run


def _verified(file: Path, options: dict[str, str], authorities: Sequence[bytes]) -> Any:
    bundle = json.loads(Path(options["--bundle"]).read_bytes())
    try:
        envelope = bundle["dsseEnvelope"]
        (signature,) = envelope["signatures"]
        (entry,) = bundle["verificationMaterial"]["tlogEntries"]
        at = datetime.fromtimestamp(int(entry["integratedTime"]), UTC)
        payload, signed = (
            base64.b64decode(text, validate=True)
            for text in (envelope["payload"], signature["sig"])
        )
    except (KeyError, ValueError, TypeError) as error:
        raise Unverified(f"not a bundle with one signature: {error!r}") from None
    if envelope["payloadType"] != PAYLOAD_TYPE:
        raise Unverified(f"its content is {envelope['payloadType']!r}")
    raw = base64.b64decode(bundle["verificationMaterial"]["certificate"]["rawBytes"])
    leaf = x509.load_der_x509_certificate(raw)
    _check_issued(leaf, at, [x509.load_pem_x509_certificate(each) for each in authorities])
    key = leaf.public_key()
    assert isinstance(key, ec.EllipticCurvePublicKey)
    try:
        key.verify(signed, signed_bytes(payload), ec.ECDSA(SHA256()))
    except InvalidSignature:
        raise Unverified("the signature is not of the key in the certificate") from None
    statement = json.loads(payload)
    digest = hashlib.sha256(file.read_bytes()).hexdigest()
    if digest not in [each["digest"]["sha256"] for each in statement["subject"]]:
        raise Unverified(f"the digest {digest[:12]} of the file is not that of a subject")
    if statement["predicateType"] != options["--predicate-type"]:
        raise Unverified("another predicate type")
    claims = _claims(leaf)
    if claims.get("sourceRepositoryURI") != f"https://github.com/{options['--repo']}":
        raise Unverified(f"expected SourceRepositoryURI to be {options['--repo']}")
    workflow = f"https://github.com/{options['--signer-workflow']}@"
    if not str(claims["subjectAlternativeName"]).startswith(workflow):
        raise Unverified("no matching certificate identity")
    time = {"type": "Tlog", "uri": "https://rekor.sigstore.dev", "timestamp": at.isoformat()}
    return {
        "attestation": {"bundle": bundle},
        "verificationResult": {
            "statement": statement,
            "signature": {"certificate": claims},
            "verifiedTimestamps": [time],
        },
    }


def _check_issued(
    leaf: x509.Certificate, at: datetime, authorities: Sequence[x509.Certificate]
) -> None:
    """Raise Unverified unless an authority issued the certificate to sign code, valid at `at`."""
    uses = leaf.extensions.get_extension_for_class(x509.ExtendedKeyUsage).value
    if ExtendedKeyUsageOID.CODE_SIGNING not in uses:
        raise Unverified("the certificate is not for signing")
    for authority in authorities:
        try:
            leaf.verify_directly_issued_by(authority)
        except (InvalidSignature, ValueError, TypeError):
            continue
        if not leaf.not_valid_before_utc <= at <= leaf.not_valid_after_utc:
            raise Unverified("the certificate was not valid when it was used")
        return
    raise Unverified("no authority that is trusted issued the certificate")


def _claims(leaf: x509.Certificate) -> dict[str, str]:
    names = leaf.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    (uri,) = names.get_values_for_type(x509.UniformResourceIdentifier)
    claims = {"subjectAlternativeName": uri}
    for extension in leaf.extensions:
        if (name := CLAIMS.get(extension.oid.dotted_string)) is not None:
            assert isinstance(extension.value, x509.UnrecognizedExtension)
            claims[name] = _text(extension.value.value)
    return claims


def _text(content: bytes) -> str:
    """Return the text of a DER UTF8String: tag 12, length, content (X.690 8.1.3)."""
    head = next(head for head in (2, 3, 4) if content[:head] == utf8_head(len(content[head:])))
    return content[head:].decode()


def signed_bytes(payload: bytes) -> bytes:
    """Return the bytes that a DSSE signature signs (the pre-authentication encoding)."""
    return b"DSSEv1 %d %s %d %s" % (
        *(len(PAYLOAD_TYPE), PAYLOAD_TYPE.encode()),
        *(len(payload), payload),
    )


def utf8_head(length: int) -> bytes:
    """Return the DER tag and length of a UTF8String of at most 65,535 bytes."""
    if length < 0x80:
        return bytes([12, length])
    if length < 0x100:
        return bytes([12, 0x81, length])
    return bytes([12, 0x82, *length.to_bytes(2, "big")])


if __name__ == "__main__":
    code, out, error = gh(Path(sys.argv[1]).read_bytes())(sys.argv[2:])
    sys.stdout.write(out)
    sys.stderr.write(error)
    sys.exit(code)
