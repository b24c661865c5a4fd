"""Attestations: which workflow made a model version's evidence. Part of the backend port.

The form is that of GitHub's artifact attestations: a Sigstore bundle with an in-toto statement,
signed by a key whose certificate names the workflow. `gh attestation verify` checks the certificate
chain, the transparency log and the time of the signature.
"""

from __future__ import annotations

import base64
import json
import re
import shutil
import subprocess
import tempfile
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any, Protocol

from ml.core.errors import UserError

STATEMENT_TYPE = "https://in-toto.io/Statement/v1"
PREDICATE_TYPE = "https://azureml-gitops-starter/evaluation/v1"
# The maximum time between the evidence and its signature.
MAX_DELAY, CLOCK_SKEW = timedelta(minutes=30), timedelta(minutes=5)
TIMEOUT_S = 60
_WORKFLOW = re.compile(r"https://github\.com/([^/]+/[^/]+)/(\.github/workflows/[^@]+)@(refs/.+)")


@dataclass(frozen=True)
class Statement:
    """An attestation's content: this evaluation of this model produced this evidence."""

    evidence: str  # sha256 of evidence.json, in hexadecimal
    model: str  # digest of the model folder
    commit: str  # of the code that evaluated the model
    evaluation: str  # digest of that code's snapshot
    created: datetime

    def to_json(self) -> dict[str, Any]:
        """Return the in-toto statement as JSON: file digests as its subjects, and the predicate."""
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
    """The signer of an attestation: a workflow that ran in a repository, on a branch.

    The code that the workflow ran is from the same repository and branch.
    """

    issuer: str  # URL of the token's OIDC issuer
    repository: str  # `owner/name`
    workflow: str  # `.github/workflows/NAME.yml`
    ref: str  # `refs/heads/main`
    runner: str  # `github-hosted` or `self-hosted`
    trigger: str  # event that started the workflow, such as `push`

    def to_json(self) -> Mapping[str, str]:
        """Return the fields by name, as loaded evidence contains them."""
        return asdict(self)


class AttestationError(Exception):
    """An attestation is invalid; the message says why."""


# Signs a statement with the running workflow's identity; returns a Sigstore bundle as JSON.
Attestor = Callable[[Statement], bytes]


class Verifier(Protocol):
    """Verifies attestations."""

    def verify(self, evidence: bytes, attestation: bytes, statement: Statement) -> Identity:
        """Return the identity that signed the statement about evidence.json.

        Raise AttestationError if the attestation is invalid or is about another statement.
        """


def run_gh(words: Sequence[str]) -> tuple[int, str, str]:
    """Run `gh` with these arguments; return its exit code (1 after a timeout), stdout and stderr.

    Raise UserError if `gh` is not installed.
    """
    program = shutil.which("gh")
    if program is None:
        hint = "https://cli.github.com; GitHub's runners have it"
        raise UserError.with_code(
            "no-gh", "`gh` is not installed", "gh, to verify attestations", hint
        )
    try:
        done = subprocess.run(
            [program, *words],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=TIMEOUT_S,
        )
    except subprocess.TimeoutExpired:
        return 1, "", "timed out after a minute"
    return done.returncode, done.stdout, done.stderr


class GitHubAttestations:
    """Verifies attestations of GitHub workflows by `gh attestation verify`; implements `Verifier`.

    The certificate must name the statement's commit, and the signature must be at most `MAX_DELAY`
    younger than the evidence. The gate `attestation` decides which workflows are trusted.
    """

    def __init__(self, run: Callable[[Sequence[str]], tuple[int, str, str]] = run_gh) -> None:
        self._run = run

    def verify(self, evidence: bytes, attestation: bytes, statement: Statement) -> Identity:
        """See `Verifier`."""
        repository, workflow, ref = _signer(attestation)
        with tempfile.TemporaryDirectory() as folder:
            file, bundle = Path(folder) / "evidence.json", Path(folder) / "attestation.json"
            file.write_bytes(evidence)
            bundle.write_bytes(attestation)
            code, out, error = self._run(
                [
                    *("attestation", "verify", str(file), "--bundle", str(bundle)),
                    *("--repo", repository, "--signer-workflow", f"{repository}/{workflow}"),
                    *("--predicate-type", PREDICATE_TYPE, "--format", "json"),
                ]
            )
        if code:
            why = " ".join(error.split())[-400:] or f"exit code {code}"
            raise AttestationError(f"gh attestation verify: {why}")
        try:
            (verified,) = (result["verificationResult"] for result in json.loads(out))
            claims = verified["signature"]["certificate"]
            times = [_time(stamp["timestamp"]) for stamp in verified["verifiedTimestamps"]]
            stated = verified["statement"]
            identity = Identity(
                issuer=str(claims["issuer"]),
                repository=repository,
                workflow=workflow,
                ref=ref,
                runner=str(claims["runnerEnvironment"]),
                trigger=str(claims["buildTrigger"]),
            )
            uri = f"https://github.com/{repository}/{workflow}@{ref}"
            for name, expected in (
                ("subjectAlternativeName", uri),
                ("buildSignerURI", uri),
                # A reusable workflow can be called from another repository or branch: then the
                # signer is trusted, but not the code that it ran.
                ("sourceRepositoryURI", f"https://github.com/{repository}"),
                ("sourceRepositoryRef", ref),
            ):
                if claims[name] != expected:
                    raise AttestationError(f"the workflow {uri} ran for {claims[name]}")
            if claims["sourceRepositoryDigest"] != statement.commit:
                commit = str(claims["sourceRepositoryDigest"])[:12]
                raise AttestationError(f"the certificate names another commit: {commit}")
        except (ValueError, KeyError, TypeError) as problem:
            raise AttestationError(f"unexpected output of gh: {problem!r}") from None
        _check_content(stated, statement)
        if not any(-CLOCK_SKEW <= time - statement.created <= MAX_DELAY for time in times):
            raise AttestationError(
                f"the evidence states that it was made at {statement.created}, and was signed at "
                f"{', '.join(map(str, times)) or 'no time'}"
            )
        return identity


def _signer(attestation: bytes) -> tuple[str, str, str]:
    """Return repository, workflow and ref from the certificate, without verifying it."""
    from cryptography import x509

    try:
        bundle = json.loads(attestation)
        raw = base64.b64decode(bundle["verificationMaterial"]["certificate"]["rawBytes"])
    except (ValueError, KeyError, TypeError, RecursionError) as error:
        raise AttestationError(f"no Sigstore bundle with a certificate: {error!r}") from None
    try:
        leaf = x509.load_der_x509_certificate(raw)
        names = leaf.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
        (uri,) = names.get_values_for_type(x509.UniformResourceIdentifier)
    except (ValueError, TypeError, x509.ExtensionNotFound) as error:
        raise AttestationError(f"the certificate cannot be read: {error}") from None
    match = _WORKFLOW.fullmatch(uri)
    if match is None:
        raise AttestationError(f"the certificate names {uri}, which is not a workflow")
    return match[1], match[2], match[3]


def _time(text: str) -> datetime:
    time = datetime.fromisoformat(text)
    if time.tzinfo is None:
        raise ValueError(f"{text} has no zone")
    return time


def _check_content(stated: object, statement: Statement) -> None:
    """Raise AttestationError unless the signed content is the statement; file order is ignored."""
    parts = dict(stated) if isinstance(stated, Mapping) else {}
    expected = statement.to_json()
    for document in (parts, expected):
        with suppress(KeyError, TypeError):
            document["subject"] = sorted(document["subject"], key=lambda entry: str(entry["name"]))
    if parts != expected:
        fields = ", ".join(key for key, value in expected.items() if parts.get(key) != value)
        raise AttestationError(f"it is about other content: {fields or 'the statement'}")
