"""Assemble evidence.json when a version is proposed, and verify it before each decision.

Its supply chain (packages, licences, advisories, bill of materials) describes the locked
environment. Advisories are looked up again before a decision, because new ones may exist.

Claims without an attestation are checked again on this machine: docs/threat-model.md.
"""

from __future__ import annotations

import base64
import hashlib
import json
import os
import shutil
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import fields, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from ml.backends.attestation import AttestationError, Attestor, Statement, Verifier
from ml.backends.base import Backend
from ml.backends.model_registry import EVIDENCE_FILE, Version
from ml.backends.runs import Run
from ml.core import faults, files, home, repository, trees
from ml.core.errors import Exit, Place, Problem, UserError
from ml.measures import reference, schema
from ml.measures.evaluation import PREDICTIONS, REQUESTS, EvaluationRefused, read_evaluation
from ml.measures.leakage import IDENTIFIERS
from ml.measures.reference import REFERENCE
from ml.measures.schema import Evaluation
from ml.release.evidence.cost import hardware
from ml.release.evidence.feature_sets import declared
from ml.release.evidence.recomputation import (
    Predictions,
    mismatches,
    overlap_mismatches,
    read_predictions,
    with_predictions,
)
from ml.release.versions import EVALUATION, MODEL
from ml.serving.scoring.manifest import ManifestError, verify
from policies.promotion.evidence import SCHEMA_VERSION, Adapter, Evidence, Latency, parse, uri
from policies.supply_chain import packages
from policies.supply_chain.advisories import Advisories, AdvisoriesError, read
from policies.supply_chain.formats import formats
from policies.supply_chain.packages import Package

# Inputs of an evaluation that are not data: the model, and the baseline of its pipeline.
_COMPARED = (MODEL, "baseline")
# The fields that an evaluation determines.
_MEASURED = (
    *("evaluation", "data", "mismatches"),
    *("outcomes", "labels", "statistics", "groups", "members", "range"),
)
# The field of evidence.json with the sha256 of the reference.
REFERENCE_FIELD = "reference"
ATTESTATION = "attestation.json"
# The local copy of OSV records: a folder, a zip or a file. The environment variable overrides it.
ADVISORIES = Path("policies/supply_chain/advisories")
VARIABLE = "MLOPS_ADVISORIES"
SBOM = "sbom.json"
# Written beside a model by `seal` of ml.toolkit.training.model_folder; forks may change `seal`.
SETTINGS = "settings.json"


def evaluation_of(run: Run) -> Evaluation:
    """Return an evaluation run's evaluation.json; raise UserError if it is missing or invalid."""
    folder = run.outputs.get(EVALUATION, run.folder)
    try:
        return read_evaluation(folder)
    except EvaluationRefused as error:
        problem = Problem(
            "no-evaluation",
            f"the evaluation cannot be read: {error}",
            hint="run the evaluation again",
        )
        raise UserError(problem, exit_code=Exit.RUN_FAILED) from None


def collect(
    backend: Backend,
    version: Version,
    trained: Run,
    evaluated: Run,
    latency: Latency,
    served: Mapping[str, object],
    cost: Mapping[str, object],
    simulated: bool,
    attestor: Attestor | None = None,
) -> Version:
    """Write the evidence on this machine; return the version with its hash.

    It is not stored in the registry yet. `served` is the result of the parity check
    (`ml.release.evidence.served`). Raise UserError when the disk is full or the advisories cannot
    be read.
    """
    evaluation = evaluation_of(evaluated)
    trained_lineage, scored_lineage = (
        backend.runs.entry(run).lineage for run in (trained, evaluated)
    )
    code = scored_lineage["code"]
    stated, bill = supply_chain(backend.root)
    document: dict[str, Any] = {
        "schema_version": SCHEMA_VERSION,
        "created": datetime.now(UTC).isoformat(),
        "project": version.project,
        "model": version.model,
        "version": version.version,
        "digest": version.digest,
        "uri": uri(version.model, version.version),
        "simulated": simulated,
        "evaluation": schema.stated(evaluation),
        "data": _assets(trained_lineage, scored_lineage),
        "lineage": {
            **_training(trained, trained_lineage),
            "evaluation_run": evaluated.id,
            "evaluation_snapshot": code["digest"],
            "evaluation_commit": code["commit"],
            "evaluation_dirty": code["dirty"],
        },
        "latency": schema.stated(latency),
        "serving": served,
        "adapter": _adapter(version.folder),
        "cost": cost,
        "supply_chain": stated,
    }
    with faults.as_user_errors(), _unfinished(version) as folder:
        document[REFERENCE_FIELD] = keep_reference(evaluated.outputs[EVALUATION], folder)
        text = json.dumps(document, indent=1, sort_keys=True) + "\n"
        stated_files = {IDENTIFIERS: evaluation.identifiers, REQUESTS: evaluation.requests}
        for file in (PREDICTIONS, *(name for name, sha256 in stated_files.items() if sha256)):
            shutil.copyfile(evaluated.outputs[EVALUATION] / file, folder / file)
        files.replace(folder / SBOM, bill)
        files.replace(folder / EVIDENCE_FILE, text)
        if attestor is not None:
            statement = _statement(text.encode(), parse(document))
            files.replace(folder / ATTESTATION, attestor(statement).decode())
        measured = replace(version, evidence=hashlib.sha256(text.encode()).hexdigest())
        folder.chmod(0o755)
        folder.rename(measured.evidence_folder)
    return measured


def _adapter(folder: Path) -> Mapping[str, object]:
    """Return the field `adapter` of settings.json, which the job wrote into the model folder.

    {} if it is missing or invalid.
    """
    try:
        stated = json.loads((folder / SETTINGS).read_text(encoding="utf-8"))["adapter"]
        return {setting.name: float(stated[setting.name]) for setting in fields(Adapter)}
    except (OSError, ValueError, LookupError, TypeError, RecursionError):
        return {}


def statement(version: Version) -> Statement:
    """Return the statement that an attestation of the version's local evidence must make."""
    content = (version.evidence_folder / EVIDENCE_FILE).read_bytes()
    return _statement(content, parse(json.loads(content)))


def keep_attested(backend: Backend, project: str, model: str, attestation: bytes) -> Version:
    """Store evidence that was collected here together with its attestation; return the version.

    The signer is not checked here: each decision checks it. Raise UserError if the evidence or its
    version is not on this machine.
    """
    try:
        payload = json.loads(base64.b64decode(json.loads(attestation)["dsseEnvelope"]["payload"]))
        digests = {item["name"]: str(item["digest"]["sha256"]) for item in payload["subject"]}
        sha256, digest = digests["evidence.json"], f"sha256:{digests['model']}"
    except (ValueError, KeyError, TypeError, RecursionError) as error:
        expected = "a bundle about `evidence.json` and `model`"
        actual = f"the attestation is invalid: {error!r}"
        hint = f"attest the evidence again; `ml release collect {project}` writes it"
        raise UserError.with_code("no-attestation", actual, expected, hint) from None
    versions = [version for version in backend.registry.versions(model) if version.digest == digest]
    collected = replace(versions[-1], evidence=sha256) if versions else None
    if collected is None or not (collected.evidence_folder / EVIDENCE_FILE).is_file():
        hint = f"ml release collect {project}, on this machine"
        actual = f"no evidence {sha256[:12]} of {model} ({digest[:19]}…) is on this machine"
        raise UserError.with_code("no-evidence", actual, "the evidence that is attested", hint)
    if not collected.kept_at(sha256):
        with faults.as_user_errors():
            files.replace(collected.evidence_folder / ATTESTATION, attestation.decode())
        return backend.registry.keep_evidence(versions[-1], sha256)
    return collected


@contextmanager
def _unfinished(version: Version) -> Iterator[Path]:
    """Yield a temporary folder for the evidence; a rename then moves it into place atomically."""
    folder = replace(version, evidence="").evidence_folder
    folder.mkdir(parents=True, exist_ok=True)
    for leftover in folder.glob(".unfinished-*"):  # killed proposals left them; the lock is held
        shutil.rmtree(leftover, ignore_errors=True)
    unfinished = Path(tempfile.mkdtemp(prefix=".unfinished-", dir=folder))
    try:
        yield unfinished
    finally:
        shutil.rmtree(unfinished, ignore_errors=True)


def before_evaluation(
    backend: Backend, version: Version, trained: Run, commit: trees.Commit | None, dirty: bool
) -> Evidence:
    """Return the evidence known before a run's model is evaluated; all else is empty.

    The evaluation code is that of `commit`; `dirty` says that it has uncommitted changes.
    """
    lineage = {
        **_training(trained, backend.runs.entry(trained).lineage),
        "evaluation_commit": commit.id if commit else "",
        "evaluation_dirty": dirty,
    }
    evidence = parse({"lineage": lineage, "supply_chain": supply_chain(backend.root)[0]})
    return replace(evidence, files=formats(version.folder))


def _training(trained: Run, lineage: Mapping[str, Any]) -> Mapping[str, object]:
    """Return the part of the field `lineage` that describes the training run."""
    code = lineage["code"]
    return {
        "run": trained.id,
        "run_name": trained.name,
        "parent_run": lineage.get("parent") or trained.id,
        "code_snapshot": code["digest"],
        "commit": code["commit"],
        "dirty": code["dirty"],
        "environment": lineage["environment"],
        "environment_digest": lineage["environment_digest"],
    }


def load(backend: Backend, version: Version) -> Evidence:
    """Return the evidence of a version for the gates: downloaded if needed, parsed and verified.

    Metrics are recomputed from the predictions, the overlap of training and test from the
    identifiers, formats from the model's files. Without a valid attestation,
    `_without_attestation` replaces further claims. When the evidence or the model is missing or was
    edited, the result is empty with the reason in `mismatches`.
    """
    nothing = Evidence(model=version.model, version=version.version, digest=version.digest)
    if (shared := backend.registry.shared) is not None:
        shared.download(version)
    try:
        content = (version.evidence_folder / EVIDENCE_FILE).read_bytes()
        verify(version.folder, version.digest)
    except (OSError, ManifestError) as error:
        return replace(nothing, mismatches=(str(error),))
    if hashlib.sha256(content).hexdigest() != version.evidence:
        edited = f"{EVIDENCE_FILE} differs from the file that was registered with the version"
        return replace(nothing, mismatches=(edited,))
    evidence = parse(json.loads(content))
    if evidence.schema_version != SCHEMA_VERSION:
        mismatch = f"{EVIDENCE_FILE} is of schema {evidence.schema_version:g}, not {SCHEMA_VERSION}"
        return replace(nothing, schema_version=evidence.schema_version, mismatches=(mismatch,))
    try:
        rows = read_predictions(version.evidence_folder / PREDICTIONS, evidence.evaluation)
    except OSError as error:
        return replace(nothing, mismatches=(str(error),))
    try:
        attested = _identity(version, content, evidence, backend.verifier)
        evidence = replace(evidence, attested=attested)
    except AttestationError as error:
        evidence = replace(
            _without_attestation(backend.root, version, evidence), unattested=str(error)
        )
    return replace(
        with_predictions(evidence, rows),
        mismatches=(
            *_verified(version.evidence, evidence.evaluation, rows),
            *overlap_mismatches(evidence.evaluation, version.evidence_folder),
        ),
        files=formats(version.folder),
        feature_sets=declared(backend.root, version.project, evidence.lineage),
    )


# A proposal loads the same evidence several times.
_MISMATCHES: dict[tuple[str, str], tuple[str, ...]] = {}


def _verified(digest: str, evaluation: Evaluation, rows: Predictions) -> tuple[str, ...]:
    """Return the mismatches of the evidence, cached by the digest of its bytes and the rows'."""
    if (key := (digest, rows.sha256)) not in _MISMATCHES:
        _MISMATCHES[key] = mismatches(evaluation, rows)
    return _MISMATCHES[key]


def _statement(content: bytes, evidence: Evidence) -> Statement:
    """Return the statement that an attestation of the evidence must contain."""
    lineage = evidence.lineage
    return Statement(
        evidence=hashlib.sha256(content).hexdigest(),
        model=evidence.digest or "",
        commit=lineage.evaluation_commit or "",
        evaluation=lineage.evaluation_snapshot or "",
        created=evidence.created or datetime.max.replace(tzinfo=UTC),
    )


def _identity(
    version: Version, content: bytes, evidence: Evidence, verifier: Verifier | None
) -> Mapping[str, str]:
    """Return the signer of the attestation; raise AttestationError if it is missing or invalid."""
    if verifier is None:
        raise AttestationError("this backend cannot verify attestations")
    try:
        attestation = (version.evidence_folder / ATTESTATION).read_bytes()
    except OSError as error:
        why = f"{ATTESTATION}: {error.strerror}"
        raise AttestationError(f"no attestation is kept with the evidence ({why})") from None
    statement = replace(_statement(content, evidence), model=version.digest)
    return verifier.verify(content, attestation, statement).to_json()


def _without_attestation(root: Path, version: Version, evidence: Evidence) -> Evidence:
    """Replace claims of evidence without an attestation by what this machine can verify.

    The date is the registry's if that is earlier. The code is dirty unless the commit contains the
    snapshot that ran. If the claimed hardware is the deployment's instance type, this machine's
    hardware replaces it. The stored advisories are dropped, because they are looked up again.
    """
    stored, created, lineage = version.kept_at(version.evidence), evidence.created, evidence.lineage
    chain, latency = evidence.supply_chain, evidence.latency
    if latency.hardware == latency.instance_type:
        latency = replace(latency, hardware=hardware())
    return replace(
        evidence,
        created=min(stored, created) if stored and created else created,
        lineage=replace(
            lineage,
            dirty=_is_dirty(root, lineage.dirty, lineage.code_snapshot, lineage.commit),
            evaluation_dirty=_is_dirty(
                root,
                lineage.evaluation_dirty,
                lineage.evaluation_snapshot,
                lineage.evaluation_commit,
            ),
        ),
        latency=latency,
        supply_chain=replace(chain, source=None, as_of=None, records=None, advisories=None),
    )


def _is_dirty(root: Path, stated: bool | None, code: str | None, commit: str | None) -> bool | None:
    """Return whether the code has uncommitted changes; None if unknown.

    A stated False holds only if the commit has exactly the code of the snapshot `code`.
    """
    if stated is not False:
        return stated
    digest = code or ""
    folder = home.snapshots() / digest.removeprefix(trees.DIGEST_PREFIX)
    revision = trees.commit(root, commit) if commit else None
    return not (revision and trees.is_content(folder, digest) and revision.has_folder(folder))


def by_metric_of(reference: Evidence, evidence: Evidence, folder: Path) -> Evidence:
    """Recompute the evidence of another version for the primary metric of `reference`.

    Uses its predictions in `folder`. Returns it unchanged if the primary metrics are the same, or
    if the metric is a custom metric that the versions do not share.
    """
    ours, theirs = reference.evaluation, evidence.evaluation
    name = ours.primary_metric or ""
    if (name, ours.goal) == (theirs.primary_metric, theirs.goal):
        return evidence
    if ours.custom_metrics.get(name) != theirs.custom_metrics.get(name):
        return evidence
    rows = read_predictions(folder / PREDICTIONS, theirs)
    judged = replace(theirs, primary_metric=ours.primary_metric, goal=ours.goal)
    return with_predictions(replace(evidence, evaluation=judged), rows)


def rescore(backend: Backend, champion: Evidence, evaluated: Run) -> Evidence:
    """Return the champion's evidence with the results of the run that evaluated it again."""
    again = measured(backend, evaluated)
    snapshot = again.lineage.evaluation_snapshot
    lineage = replace(champion.lineage, evaluation_snapshot=snapshot)
    return replace(champion, lineage=lineage, **{name: getattr(again, name) for name in _MEASURED})


def measured(backend: Backend, evaluated: Run) -> Evidence:
    """Return evidence with only the results of an evaluation, recomputed from its predictions."""
    scored = backend.runs.entry(evaluated).lineage
    stated = {
        "evaluation": schema.stated(evaluation_of(evaluated)),
        "data": _assets(scored, scored),
        "lineage": {"evaluation_snapshot": scored["code"]["digest"]},
    }
    evidence = parse(stated)
    rows = read_predictions(evaluated.outputs[EVALUATION] / PREDICTIONS, evidence.evaluation)
    return replace(
        with_predictions(evidence, rows), mismatches=mismatches(evidence.evaluation, rows)
    )


def _assets(trained: Mapping[str, Any], scored: Mapping[str, Any]) -> Mapping[str, object]:
    """Return the data assets of the evaluation with their sha256; the baseline is left out.

    If training and evaluation used different content of an asset, its sha256 is "", and the gate
    `lineage` rejects it.
    """
    assets: dict[str, object] = {}
    for name, data in scored["data"].items():
        if name in _COMPARED:
            continue
        before = trained["data"].get(name, data)
        same = before["digest"] == data["digest"]
        assets[name] = {"asset": data["asset"], "sha256": data["digest"] if same else ""}
    return assets


def with_advisories(root: Path, evidence: Evidence) -> Evidence:
    """Return the evidence with today's advisories on its packages.

    If the source here is older than that of the evidence, advisories are only added. Raises
    UserError if the source cannot be read.
    """
    source = _advisories(root)
    if source is None:
        return evidence
    name, advisories = source
    chain = evidence.supply_chain
    affecting = advisories.affecting(
        Package(name, stated.locked or "", stated.installed or "", stated.licence or "")
        for name, stated in chain.packages.items()
    )
    if chain.as_of is not None and chain.as_of > advisories.as_of:
        merged = tuple(sorted({*affecting, *(chain.advisories or ())}))
        return replace(evidence, supply_chain=replace(chain, advisories=merged))
    today = replace(
        chain,
        source=name,
        as_of=advisories.as_of,
        records=float(advisories.count),
        advisories=affecting,
    )
    return replace(evidence, supply_chain=today)


def supply_chain(root: Path) -> tuple[Mapping[str, object], str]:
    """Return the field `supply_chain` of evidence.json, and the bill of materials as text.

    Without a lock file both are empty, which the gate rejects. Raise UserError if the advisories
    cannot be read, or a line of the lock file is not `package==version`.
    """
    try:
        locked = packages.packages(repository.lock(root))
    except OSError:
        return {}, ""
    except ValueError as error:
        expected, hint = "one `package==version` a line, each package once", "make lock"
        place = Place(repository.LOCK, 1)
        raise UserError.with_code("lock-unread", str(error), expected, hint, place) from None
    bill = packages.sbom(locked)
    stated: dict[str, object] = {
        "lock": repository.LOCK,
        "packages": {
            package.name: {
                "locked": package.locked,
                "installed": package.installed,
                "licence": package.licence,
            }
            for package in locked
        },
        "sbom": hashlib.sha256(bill.encode()).hexdigest(),
    }
    if (source := _advisories(root)) is not None:
        name, advisories = source
        stated |= {
            "source": name,
            "as_of": advisories.as_of.isoformat(),
            "records": advisories.count,
            "advisories": list(advisories.affecting(locked)),
        }
    return stated, bill


def _advisories(root: Path) -> tuple[str, Advisories] | None:
    """Return the source's name for messages and its advisories; None without a source."""
    moved = os.environ.get(VARIABLE)
    source = Path(moved or root / ADVISORIES)
    if not moved and not source.exists():
        return None
    name = repository.shown(source)
    try:
        return name, read(source)
    except AdvisoriesError as error:
        hint = f"make advisories downloads them from osv.dev; {VARIABLE} names another copy"
        problem = Problem("no-advisories", str(error), "records in OSV JSON", hint, Place(name, 0))
        raise UserError(problem) from None


def keep_reference(evaluation: Path, folder: Path) -> str | None:
    """Copy an evaluation's reference into the folder; return its sha256 (hex), or None."""
    source = evaluation / REFERENCE
    if not source.is_file():
        return None
    shutil.copyfile(source, folder / REFERENCE)
    return hashlib.sha256((folder / REFERENCE).read_bytes()).hexdigest()


def load_reference(version: Version) -> Mapping[str, Any]:
    """Return the reference that `ml watch` compares requests with.

    Raises UserError if it is missing, if a file was edited, or if it is of another model.
    """
    path = version.evidence_folder / REFERENCE
    name = f"{version.model} {version.version}"
    try:
        content = path.read_bytes()
    except OSError:
        raise UserError.with_code(
            "no-reference",
            f"{name} has no {REFERENCE}",
            "the project's evaluation writes one (ml.measures.reference)",
            "propose the version's run again once it does",
        ) from None
    try:
        evidence = (version.evidence_folder / EVIDENCE_FILE).read_bytes()
        stated = json.loads(evidence).get(REFERENCE_FIELD)
        document = json.loads(content)
        digest = document["digest"]
        sound = document["schema_version"] == reference.SCHEMA_VERSION and all(
            isinstance(document[part], dict) for part in ("inputs", "predictions", "quality")
        )
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise _unfit(path, f"it cannot be read: {error!r}") from None
    if hashlib.sha256(evidence).hexdigest() != version.evidence:
        raise _unfit(path, f"{EVIDENCE_FILE} differs from the file that was registered with {name}")
    if hashlib.sha256(content).hexdigest() != stated or not sound:
        raise _unfit(path, "it is not the file whose sha256 the evidence states")
    if digest != version.digest:
        raise _unfit(path, f"it is of the model {digest}, {name} is {version.digest}")
    return dict(document)


def _unfit(path: Path, why: str) -> UserError:
    problem = Problem("invalid-reference", f"{path}: {why}", hint="propose the version again")
    return UserError(problem, exit_code=Exit.RUN_FAILED)
