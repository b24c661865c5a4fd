"""Verifies the evidence of a version offline, and lists everything that differs."""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass

from ml.backends.registry import Version
from ml.core.errors import Refused
from ml.release.evidence.evidence import REFERENCE_FIELD, load_reference
from ml.release.evidence.recomputation import (
    disagreements,
    overlap_disagreements,
    read_predictions,
    sha256,
)
from ml.release.evidence.supply_chain import SBOM
from ml.release.versions import EVIDENCE_FILE
from ml.serving.scoring.manifest import ManifestError, verify
from ml.toolkit.evaluation import PREDICTIONS
from ml.toolkit.leakage import IDENTIFIERS
from ml.toolkit.reference import REFERENCE
from policies.promotion.evidence import SCHEMA_VERSION, Evidence, parse, uri


@dataclass(frozen=True)
class Check:
    """One check of a version; `differs` lists the differences, () when there are none."""

    name: str
    differs: tuple[str, ...]

    @property
    def sound(self) -> bool:
        """Whether nothing differs."""
        return not self.differs


def checks(version: Version) -> tuple[Check, ...]:
    """Every check: the files kept with the version, what the evidence states, the model's files.

    A file that cannot be read differs, with the reason. Needs the registry's record of the version
    and the files of this machine, and no server.
    """
    content, unread = _content(version)
    evidence = parse(_document(content))
    return (
        Check(EVIDENCE_FILE, unread or _kept(version, content)),
        Check("schema", _schema(version, evidence)),
        Check("identity", _identity(version, evidence)),
        Check("model", _model(version)),
        *_predictions(version, evidence),
        *_identifiers(version, evidence),
        Check(SBOM, _bill(version, evidence)),
        *_reference(version, _document(content)),
    )


def _reference(version: Version, document: dict[str, object]) -> tuple[Check, ...]:
    """Empty for a project without a reference."""
    if not document.get(REFERENCE_FIELD):
        return ()
    try:
        load_reference(version)
    except Refused as refused:
        return (Check(REFERENCE, (refused.problems[0].found,)),)
    return (Check(REFERENCE, ()),)


def _identifiers(version: Version, evidence: Evidence) -> tuple[Check, ...]:
    """Empty for evidence without identifiers, which the gate `leakage` refuses."""
    if evidence.identifiers is None:
        return ()
    return (Check(IDENTIFIERS, overlap_disagreements(evidence, version.evidence_folder)),)


def _content(version: Version) -> tuple[bytes, tuple[str, ...]]:
    try:
        return (version.evidence_folder / EVIDENCE_FILE).read_bytes(), ()
    except OSError as error:
        return b"", (str(error),)


def _document(content: bytes) -> dict[str, object]:
    try:
        document = json.loads(content)
    except (ValueError, RecursionError):
        return {}
    return document if isinstance(document, dict) else {}


def _kept(version: Version, content: bytes) -> tuple[str, ...]:
    if not version.evidence:
        return ("the registry has no hash of it: the version has no evidence",)
    digest = hashlib.sha256(content).hexdigest()
    if digest != version.evidence:
        return (f"its sha256 is {digest}, the registry's is {version.evidence}",)
    return ()


def _schema(version: Version, evidence: Evidence) -> tuple[str, ...]:
    if evidence.schema_version == SCHEMA_VERSION:
        return ()
    again = f"ml release propose {version.project} --run {version.run} measures it anew"
    return (f"it states {evidence.schema_version}, this code reads {SCHEMA_VERSION}: {again}",)


def _identity(version: Version, evidence: Evidence) -> tuple[str, ...]:
    pairs = {
        "model": (evidence.model, version.model),
        "version": (evidence.version, version.version),
        "digest": (evidence.digest, version.digest),
        "uri": (evidence.uri, uri(version.model, version.version)),
    }
    return tuple(
        f"{name} states {stated or 'nothing'}, the registry {registered}"
        for name, (stated, registered) in pairs.items()
        if stated != registered
    )


def _model(version: Version) -> tuple[str, ...]:
    try:
        verify(version.folder, version.digest)
    except (ManifestError, OSError) as error:
        return (str(error),)
    return ()


def _bill(version: Version, evidence: Evidence) -> tuple[str, ...]:
    stated = evidence.supply_chain.sbom
    if stated is None:
        return ("the evidence states no bill of materials",)
    try:
        actual = sha256(version.evidence_folder / SBOM)
    except OSError as error:
        return (str(error),)
    return () if actual == stated else (f"its sha256 is {actual}, the evidence states {stated}",)


def _predictions(version: Version, evidence: Evidence) -> tuple[Check, Check]:
    try:
        rows = read_predictions(version.evidence_folder / PREDICTIONS, evidence.task)
    except OSError as error:
        return Check(PREDICTIONS, (str(error),)), Check(
            "metrics", ("not recomputed: no predictions",)
        )
    wrong = disagreements(evidence, rows)
    of_the_file = tuple(each for each in wrong if each.startswith(PREDICTIONS))
    return (
        Check(PREDICTIONS, of_the_file),
        Check("metrics", tuple(each for each in wrong if each not in of_the_file)),
    )
