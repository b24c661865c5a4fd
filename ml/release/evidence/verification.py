"""Verify all files and statements that are stored with a version, offline; list differences."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from ml.backends.model_registry import EVIDENCE_FILE, Version
from ml.core.errors import UserError
from ml.measures.evaluation import PREDICTIONS, REQUESTS
from ml.measures.leakage import IDENTIFIERS
from ml.measures.reference import REFERENCE
from ml.measures.schema import Evaluation
from ml.release.evidence.evidence import REFERENCE_FIELD, SBOM, load_reference
from ml.release.evidence.recomputation import (
    mismatches,
    overlap_mismatches,
    read_predictions,
    sha256,
)
from ml.release.evidence.served import parity_check
from ml.serving.scoring.manifest import ManifestError, verify
from policies.promotion.evidence import SCHEMA_VERSION, Evidence, parse, uri


@dataclass(frozen=True)
class Check:
    """One check of a version."""

    name: str
    differs: tuple[str, ...]  # a sentence for each difference

    @property
    def sound(self) -> bool:
        """True if nothing differs."""
        return not self.differs


def checks(version: Version) -> tuple[Check, ...]:
    """Run every check: the stored evidence files, the evidence's statements, the model files.

    An unreadable file counts as a difference, with the reason. The checks need the registry's
    record of the version and files of this machine, but no server.
    """
    folder, document = version.evidence_folder, _document(version)
    evidence = parse(document)
    evaluation = evidence.evaluation
    results = [
        _check(EVIDENCE_FILE, lambda: _hash_differences(version)),
        _check("schema", lambda: _schema_differences(version, evidence)),
        _check("identity", lambda: _identity_differences(version, evidence)),
        _check("model", lambda: _model_differences(version)),
        *_prediction_checks(folder, evaluation),
    ]
    if evaluation.identifiers is not None:  # else the gate `leakage` refuses it
        results.append(_check(IDENTIFIERS, lambda: overlap_mismatches(evaluation, folder)))
    if evaluation.requests is not None:  # else the gate `serving` refuses it
        results.append(_check(REQUESTS, lambda: _requests_differences(folder, evaluation)))
    results.append(_check(SBOM, lambda: _sbom_differences(folder, evidence)))
    if document.get(REFERENCE_FIELD):  # a project may have no reference
        results.append(_check(REFERENCE, lambda: _reference_differences(version)))
    return tuple(results)


def _check(name: str, differences: Callable[[], Iterable[str]]) -> Check:
    """Return the check; if `differences` raises an error, its text is the difference."""
    try:
        return Check(name, tuple(differences()))
    except (OSError, ManifestError) as error:
        return Check(name, (str(error),))
    except UserError as refused:
        return Check(name, (refused.problems[0].actual,))


def _document(version: Version) -> Mapping[str, object]:
    """Return evidence.json; {} if it cannot be read."""
    try:
        document = json.loads((version.evidence_folder / EVIDENCE_FILE).read_bytes())
    except (OSError, ValueError, RecursionError):
        return {}
    return document if isinstance(document, dict) else {}


def _hash_differences(version: Version) -> Iterator[str]:
    digest = sha256(version.evidence_folder / EVIDENCE_FILE)
    if not version.evidence:
        yield "the registry has no hash of it: the version has no evidence"
    elif digest != version.evidence:
        yield f"its sha256 is {digest}, the registry's is {version.evidence}"


def _schema_differences(version: Version, evidence: Evidence) -> Iterator[str]:
    stated = evidence.schema_version
    if stated != SCHEMA_VERSION:
        again = f"ml release propose {version.project} --run {version.run} measures it anew"
        yield f"it states {stated}, this code reads {SCHEMA_VERSION}: {again}"


def _identity_differences(version: Version, evidence: Evidence) -> Iterator[str]:
    for name, stated, registered in (
        ("model", evidence.model, version.model),
        ("version", evidence.version, version.version),
        ("digest", evidence.digest, version.digest),
        ("uri", evidence.uri, uri(version.model, version.version)),
    ):
        if stated != registered:
            yield f"{name} states {stated or 'nothing'}, the registry {registered}"


def _model_differences(version: Version) -> tuple[str, ...]:
    verify(version.folder, version.digest)
    return ()


def _reference_differences(version: Version) -> tuple[str, ...]:
    load_reference(version)
    return ()


def _sbom_differences(folder: Path, evidence: Evidence) -> Iterator[str]:
    stated = evidence.supply_chain.sbom
    if stated is None:
        yield "the evidence states no bill of materials"
    elif (actual := sha256(folder / SBOM)) != stated:
        yield f"its sha256 is {actual}, the evidence states {stated}"


def _requests_differences(folder: Path, evaluation: Evaluation) -> Iterator[str]:
    # This check only reads the file: any pointer that is not empty will do.
    if reason := parity_check(folder, evaluation, REQUESTS).reason:
        yield reason


def _prediction_checks(folder: Path, evaluation: Evaluation) -> tuple[Check, Check]:
    try:
        rows = read_predictions(folder / PREDICTIONS, evaluation)
    except OSError as error:
        unknown = Check("metrics", ("not recomputed: no predictions",))
        return Check(PREDICTIONS, (str(error),)), unknown
    wrong = mismatches(evaluation, rows)
    of_the_file = tuple(mismatch for mismatch in wrong if mismatch.startswith(PREDICTIONS))
    metrics = tuple(mismatch for mismatch in wrong if mismatch not in of_the_file)
    return Check(PREDICTIONS, of_the_file), Check("metrics", metrics)
