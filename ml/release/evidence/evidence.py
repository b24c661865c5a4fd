"""evidence.json: assembled when a version is proposed, verified before each decision.

`checks` verifies everything that is kept with a version, offline, and lists all differences.
"""

from __future__ import annotations

import hashlib
import json
import shutil
import tempfile
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass, fields, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from ml.backends.base import Backend
from ml.backends.registry import Version
from ml.backends.runs import Run
from ml.core import faults, files
from ml.core.errors import Exit, Problem, Refused
from ml.release.evidence import supply_chain
from ml.release.evidence.recomputation import (
    disagreements,
    overlap_disagreements,
    read_predictions,
    sha256,
)
from ml.release.evidence.supply_chain import SBOM
from ml.release.versions import EVALUATION, EVIDENCE_FILE, MODEL
from ml.serving.client import Timing
from ml.serving.scoring.manifest import ManifestError, verify
from ml.toolkit import reference
from ml.toolkit.evaluation import PREDICTIONS, EvaluationRefused, read_evaluation
from ml.toolkit.leakage import IDENTIFIERS
from ml.toolkit.reference import REFERENCE
from policies.promotion.evidence import SCHEMA_VERSION, Evidence, EvidenceFile, parse, uri
from policies.supply_chain.formats import formats

# Inputs of an evaluation that are not data: the model, and the baseline of its pipeline.
_COMPARED = (MODEL, "baseline")
# The field of evidence.json with the sha256 of the reference.
REFERENCE_FIELD = "reference"


def evaluation_of(run: Run) -> Mapping[str, Any]:
    """The evaluation.json of an evaluation run; raises Refused when it is missing or invalid."""
    folder = run.outputs.get(EVALUATION, run.folder)
    try:
        return read_evaluation(folder)
    except EvaluationRefused as error:
        problem = Problem("no-evaluation", str(error), "what ml.toolkit.evaluation writes")
        raise Refused(problem, exit_code=Exit.RUN_FAILED) from None


def keep(
    backend: Backend,
    version: Version,
    trained: Run,
    evaluated: Run,
    timing: Timing,
    instance_type: str,
    cost: Mapping[str, object],
) -> Version:
    """Assemble the evidence and keep it with the version; returns the version with its hash.

    Raises Refused when the disk is full or the advisories cannot be read; a version without
    evidence passes no gate.
    """
    evaluation = evaluation_of(evaluated)
    trained_lineage, scored_lineage = (
        backend.runs.entry(run).lineage for run in (trained, evaluated)
    )
    stated, bill = supply_chain.look()
    document: dict[str, Any] = {
        **{each.name: evaluation.get(each.name) for each in fields(EvidenceFile)},
        "schema_version": SCHEMA_VERSION,
        "created": datetime.now(UTC).isoformat(),
        "project": version.project,
        "model": version.model,
        "version": version.version,
        "digest": version.digest,
        "uri": uri(version.model, version.version),
        "data": _data(trained_lineage, scored_lineage),
        "lineage": {
            "run": trained.id,
            "run_name": trained.name,
            "parent_run": trained_lineage.get("parent") or trained.id,
            "evaluation_run": evaluated.id,
            "code_snapshot": trained_lineage["code"]["digest"],
            "commit": trained_lineage["code"]["commit"],
            "dirty": trained_lineage["code"]["dirty"],
            "environment": trained_lineage["environment"],
            "environment_digest": trained_lineage["environment_digest"],
            "feature_set_hash": evaluation.get("feature_set_hash"),
            "hyperparameters": evaluation.get("hyperparameters"),
            "seed": evaluation.get("seed"),
        },
        "latency": {**asdict(timing), "instance_type": instance_type},
        "cost": cost,
        "supply_chain": stated,
    }
    with faults.as_refusals(), _unfinished(version) as folder:
        document[REFERENCE_FIELD] = keep_reference(evaluated.outputs[EVALUATION], folder)
        text = json.dumps(document, indent=1, sort_keys=True) + "\n"
        for file in (PREDICTIONS, *([IDENTIFIERS] if evaluation.get("identifiers") else [])):
            shutil.copyfile(evaluated.outputs[EVALUATION] / file, folder / file)
        files.replace(folder / SBOM, bill)
        files.replace(folder / EVIDENCE_FILE, text)
        kept = replace(version, evidence=hashlib.sha256(text.encode()).hexdigest())
        folder.chmod(0o755)
        folder.rename(kept.evidence_folder)
    return backend.registry.keep_evidence(version, kept.evidence)


@contextmanager
def _unfinished(version: Version) -> Iterator[Path]:
    """A folder to collect the evidence in, so that it can be moved into place in one step."""
    folder = replace(version, evidence="").evidence_folder
    folder.mkdir(parents=True, exist_ok=True)
    for leftover in folder.glob(".unfinished-*"):  # of a killed proposal; the caller holds the lock
        shutil.rmtree(leftover, ignore_errors=True)
    unfinished = Path(tempfile.mkdtemp(prefix=".unfinished-", dir=folder))
    try:
        yield unfinished
    finally:
        shutil.rmtree(unfinished, ignore_errors=True)


def load(version: Version) -> Evidence:
    """The evidence of a version for the gates: parsed and verified.

    Metrics are recomputed from the predictions, the overlap of training and test from the
    identifiers, formats from the model's files. When the evidence or the model is missing or was
    edited, the result is empty with the reason in `disagreements`.
    """
    nothing = Evidence(model=version.model, version=version.version, digest=version.digest)
    try:
        content = (version.evidence_folder / EVIDENCE_FILE).read_bytes()
        verify(version.folder, version.digest)
    except (OSError, ManifestError) as error:
        return replace(nothing, disagreements=(str(error),))
    if hashlib.sha256(content).hexdigest() != version.evidence:
        edited = f"{EVIDENCE_FILE} is not the file that was kept with the version"
        return replace(nothing, disagreements=(edited,))
    evidence = parse(json.loads(content))
    if evidence.schema_version != SCHEMA_VERSION:
        mismatch = f"{EVIDENCE_FILE} is of schema {evidence.schema_version:g}, not {SCHEMA_VERSION}"
        return replace(nothing, schema_version=evidence.schema_version, disagreements=(mismatch,))
    try:
        rows = read_predictions(version.evidence_folder / PREDICTIONS, evidence.task)
    except OSError as error:
        return replace(nothing, disagreements=(str(error),))
    return replace(
        evidence,
        disagreements=(
            *disagreements(evidence, rows),
            *overlap_disagreements(evidence, version.evidence_folder),
        ),
        outcomes=rows.outcomes(evidence.primary_metric or ""),
        statistics=rows.statistics(evidence.primary_metric or ""),
        groups=rows.groups(),
        members=rows.members(),
        files=formats(version.folder),
    )


def rescored(backend: Backend, champion: Evidence, evaluated: Run) -> Evidence:
    """The champion's evidence with its quality measured anew by an evaluation run."""
    evaluation = evaluation_of(evaluated)
    scored = backend.runs.entry(evaluated).lineage
    again = parse({**evaluation, "data": _data(scored, scored)})
    rows = read_predictions(evaluated.outputs[EVALUATION] / PREDICTIONS, again.task)
    return replace(
        champion,
        metrics=again.metrics,
        data=again.data,
        task=again.task,
        primary_metric=again.primary_metric,
        goal=again.goal,
        disagreements=disagreements(again, rows),
        outcomes=rows.outcomes(again.primary_metric or ""),
        statistics=rows.statistics(again.primary_metric or ""),
        groups=rows.groups(),
        members=rows.members(),
    )


def _data(trained: Mapping[str, Any], scored: Mapping[str, Any]) -> Mapping[str, object]:
    """The data assets of the evaluation, with their digests; a baseline follows from them.

    Data that the model was trained on in another version than it was scored on has no sha256 here,
    so that the lineage gate refuses it.
    """
    assets: dict[str, object] = {}
    for name, data in scored["data"].items():
        if name in _COMPARED:
            continue
        before = trained["data"].get(name, data)
        same = before["digest"] == data["digest"]
        assets[name] = {"asset": data["asset"], "sha256": data["digest"] if same else ""}
    return assets


def keep_reference(evaluation: Path, folder: Path) -> str | None:
    """Copy an evaluation's reference into the folder; its sha256 (hex), None without one."""
    source = evaluation / REFERENCE
    if not source.is_file():
        return None
    shutil.copyfile(source, folder / REFERENCE)
    return hashlib.sha256((folder / REFERENCE).read_bytes()).hexdigest()


def load_reference(version: Version) -> Mapping[str, Any]:
    """The reference that `ml watch` compares requests with.

    Raises Refused when none is kept, when a file was edited, and for another model's reference.
    """
    path = version.evidence_folder / REFERENCE
    name = f"{version.model} {version.version}"
    try:
        content = path.read_bytes()
    except OSError:
        raise Refused(
            Problem(
                "no-reference",
                f"no {REFERENCE} is kept with {name}",
                "the project's evaluation writes one (ml.toolkit.reference)",
                "propose the version's run again once it does",
            )
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
        raise _unfit(path, f"{EVIDENCE_FILE} is not the file that was kept with {name}")
    if hashlib.sha256(content).hexdigest() != stated or not sound:
        raise _unfit(path, "it is not the file whose sha256 the evidence states")
    if digest != version.digest:
        raise _unfit(path, f"it is of the model {digest}, {name} is {version.digest}")
    return dict(document)


def _unfit(path: Path, why: str) -> Refused:
    problem = Problem("reference-unfit", f"{path}: {why}", "the reference of this model")
    return Refused(problem, exit_code=Exit.RUN_FAILED)


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
    folder, document = version.evidence_folder, _document(version)
    evidence = parse(document)
    made = [
        _check(EVIDENCE_FILE, lambda: _hash_differences(version)),
        _check("schema", lambda: _schema_differences(version, evidence)),
        _check("identity", lambda: _identity_differences(version, evidence)),
        _check("model", lambda: _model_differences(version)),
        *_prediction_checks(folder, evidence),
    ]
    if evidence.identifiers is not None:  # else the gate `leakage` refuses it
        made.append(_check(IDENTIFIERS, lambda: overlap_disagreements(evidence, folder)))
    made.append(_check(SBOM, lambda: _sbom_differences(folder, evidence)))
    if document.get(REFERENCE_FIELD):  # a project may have no reference
        made.append(_check(REFERENCE, lambda: _reference_differences(version)))
    return tuple(made)


def _check(name: str, differences: Callable[[], Iterable[str]]) -> Check:
    """The check; an error that is raised is its difference."""
    try:
        return Check(name, tuple(differences()))
    except (OSError, ManifestError) as error:
        return Check(name, (str(error),))
    except Refused as refused:
        return Check(name, (refused.problems[0].found,))


def _document(version: Version) -> Mapping[str, object]:
    """evidence.json; empty when it cannot be read."""
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


def _prediction_checks(folder: Path, evidence: Evidence) -> tuple[Check, Check]:
    try:
        rows = read_predictions(folder / PREDICTIONS, evidence.task)
    except OSError as error:
        unknown = Check("metrics", ("not recomputed: no predictions",))
        return Check(PREDICTIONS, (str(error),)), unknown
    wrong = disagreements(evidence, rows)
    of_the_file = tuple(each for each in wrong if each.startswith(PREDICTIONS))
    metrics = tuple(each for each in wrong if each not in of_the_file)
    return Check(PREDICTIONS, of_the_file), Check("metrics", metrics)
