"""The gates on the provenance of the evidence and the model.

A gate that lacks data fails. None, NaN and infinity satisfy no comparison, because every number
passes through `real` first.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from datetime import timedelta

from ml.core.names import not_words
from ml.measures.schema import Estimate, Stability, missing
from policies.promotion.decision import LISTED, VALIDATION, Case, Finding, listed, real, shown
from policies.promotion.evidence import SCHEMA_VERSION, Evidence, SupplyChain, uri
from policies.promotion.gate import Gate
from policies.supply_chain.formats import FORMATS, is_faulty
from policies.supply_chain.packages import licence_allowed

DIGEST = re.compile(r"sha256:[0-9a-f]{64}")
# The largest clock skew: evidence dated later than this is from the future.
CLOCK_SKEW = timedelta(minutes=5)
# Advisory dates may have no time, and so be up to a day ahead of the clock.
ADVISORY_SKEW = timedelta(days=1)
LISTED_DIFFERENCES = 3
# Units of a slice that the evaluation compares with others: `FEWEST` of ml.measures.fairness.
FEWEST_COMPARED = 20
# Fields of the evaluation that record the model's features and hyperparameters.
_FITTED_WITH = ("feature_set_hash", "hyperparameters", "seed")
# The fields of the attestation's certificate that identify the trusted workflow.
WORKFLOW = ("issuer", "repository", "workflow", "ref")


def identity(case: Case, gate: Gate) -> Finding:
    """The evidence has the current schema and is about the model that is requested."""
    request, evidence = case.request, case.evidence
    required = f"{request.model} {request.version} {_short(request.digest)}"
    actual = f"{evidence.model} {evidence.version} {_short(evidence.digest)}"
    if evidence.schema_version is None and evidence.mismatches:
        reason = evidence.mismatches[0]
        return Finding("fail", "no evidence that can be trusted", required, reason)
    if evidence.schema_version != SCHEMA_VERSION:
        reason = f"another version of the framework made it: run `{evidence.proposal}` again"
        schema = f"schema {shown(evidence.schema_version)}"
        return Finding("fail", schema, f"schema {SCHEMA_VERSION}", reason)
    if not DIGEST.fullmatch(request.digest):
        return Finding("fail", actual, required, "the requested model has no digest")
    same = (evidence.model, evidence.version, evidence.digest, evidence.uri) == (
        request.model,
        request.version,
        request.digest,
        uri(request.model, request.version),
    )
    reason = "" if same else "the evidence is about another model"
    return Finding("pass" if same else "fail", actual, required, reason)


def attestation(case: Case, gate: Gate) -> Finding:
    """The evidence was made by the workflow that `attestation` in gates.yml names."""
    evidence, request = case.evidence, case.request
    trusted = {name: gate.text(name) for name in WORKFLOW}
    required = "evidence made by {repository}/{workflow}@{ref}".format(**trusted)
    if request.environment in gate.names("unattested_allowed_in"):
        return Finding("not evaluated", "this environment requires no attestation", required)
    if request.simulated:
        actual = "a simulated environment: its evidence can never be applied to Azure"
        return Finding("pass", actual, "")
    if not evidence.attested or evidence.simulated is not False:
        actual = "the evidence has no attestation"
        reason = evidence.unattested or "it is of a simulated environment"
        return Finding("fail", actual, required, reason)
    made_by = {name: evidence.attested.get(name, "") for name in (*WORKFLOW, "runner", "trigger")}
    actual = "made by {repository}/{workflow}@{ref}".format(**made_by)
    differing = [name for name in WORKFLOW if made_by[name] != trusted[name]]
    differing += [
        f"{name} `{made_by[name]}`"
        for name in ("runner", "trigger")
        if made_by[name] not in gate.names(f"{name}s")
    ]
    why = f"not allowed: {', '.join(differing)}" if differing else ""
    return Finding("fail" if differing else "pass", actual, required, why)


def order(case: Case, gate: Gate) -> Finding:
    """The preceding environment has served the same model with the same serving code."""
    environment, environments = case.request.environment, gate.names("environments")
    if environment in gate.names("unordered"):
        return Finding("not evaluated", "no environment comes before it", "")
    if environment not in environments:
        return Finding("fail", f"{environment} is not in `order`", " → ".join(environments))
    before = environments[: environments.index(environment)][-1:]
    required = f"served in {before[0]} first" if before else ""
    if not before:
        return Finding("pass", "it is the first environment", required)
    if before[0] in case.request.served_in:
        return Finding("pass", f"{before[0]} has served it", required)
    actual = f"{before[0]} has not served this model by this serving code"
    if case.request.step == "propose":
        return Finding("pending", actual, required)
    return Finding("fail", actual, required, f"propose and apply it to {before[0]} first")


def freshness(case: Case, gate: Gate) -> Finding:
    """The evidence is recent, and not from the future."""
    limit = gate.number("max_age_days")
    required = f"at most {limit:g} days old"
    created = case.evidence.created
    if created is None or created.tzinfo is None:
        return Finding("fail", "`created` is missing or has no time zone", required)
    age = case.request.now - created
    days = age / timedelta(days=1)
    if age < -CLOCK_SKEW:
        return Finding("fail", f"dated {-days:.1f} days in the future", required, "check the clock")
    actual = f"the evidence is {max(days, 0):.1f} days old"
    return Finding("pass" if days <= limit else "fail", actual, required, measured=True)


def completeness(case: Case, gate: Gate) -> Finding:
    """Every required field is present, finite and within its bounds; the primary metric was
    measured on validation, and over two or more folds or seeds. A dimension with fewer than two
    large slices may lack its comparison: the gate `fairness` lists the small ones.
    """
    evidence, evaluation = case.evidence, case.evaluation
    required = "every field that the evidence's schema requires"
    absent = [path for path in missing(evidence) if path not in _too_rare(evidence)]
    metric = evaluation.primary_metric or ""
    if len(evaluation.stability.get(metric, Stability()).values) < 2:
        absent.append(f"evaluation.stability.{metric}.values")
    if VALIDATION not in evaluation.metrics:
        absent.append(f"evaluation.metrics.{VALIDATION}")
    if absent:
        return Finding("fail", f"missing: {listed(absent)}", required)
    return Finding("pass", "complete", required)


def _too_rare(evidence: Evidence) -> frozenset[str]:
    """Return the fields that are empty because a dimension has fewer than two large slices."""
    paths, evaluation = set(), evidence.evaluation
    for dimension in evidence.members.get(evaluation.slice_split or "", {}):
        slices = evaluation.slices.get(dimension)
        counts = [
            max(map(_count, metrics.values()), default=0) for metrics in (slices or {}).values()
        ]
        if sum(count >= FEWEST_COMPARED for count in counts) < 2:
            paths |= {f"fairness.{dimension}", *([f"slices.{dimension}"] if slices == {} else [])}
    return frozenset(f"evaluation.{path}" for path in paths)


def _count(estimate: Estimate) -> float:
    count = real(estimate.count)
    return count if count >= 0 else 0.0


def verified_metrics(case: Case, gate: Gate) -> Finding:
    """Every metric can be recomputed from the hashed predictions in the evidence, and the overlap
    of training and test from the hashed identifiers.
    """
    required = "equal to what the hashed predictions and identifiers give"
    differences = case.evidence.mismatches
    if differences is None:
        return Finding("fail", "not recomputed", required)
    if differences:
        more = f"{len(differences)} differ in all" if len(differences) > LISTED_DIFFERENCES else ""
        return Finding("fail", "; ".join(differences[:LISTED_DIFFERENCES]), required, more)
    custom = listed(list(case.evaluation.custom_metrics))
    reason = f"the project itself computes the values of {custom}" if custom else ""
    folds = [f"{split} ({n:g} folds)" for split, n in case.evaluation.out_of_fold.items() if n]
    if folds:
        reason += "; " * bool(reason) + (
            f"{', '.join(folds)} is out of fold: it estimates how this code and these settings do, "
            "by models trained on the other folds, not this very model"
        )
    return Finding("pass", "every metric is equal", required, reason)


def lineage(case: Case, gate: Gate) -> Finding:
    """The lineage is complete; only some environments allow uncommitted code. The feature sets are
    those that the project declares, and no event is later than the labels.
    """
    data = case.evidence.data
    absent = [*missing(case.evidence.lineage), *([] if data else ["data"])]
    absent += [path for path in missing(case.evaluation) if path.partition(".")[0] in _FITTED_WITH]
    for name, version in data.items():
        absent += missing(version, f"data.{name}.")
    if case.evaluation.training_set is None and case.evidence.feature_sets:
        unused = f"the training used none of: {', '.join(sorted(case.evidence.feature_sets))}"
        hint = "give columns of the data schema a `feature_set`, or delete the sets"
        return Finding("fail", unused, "the feature sets that the project declares", hint)
    absent += [path for path in missing(case.evaluation) if path.startswith("training_set.")]
    if not absent and (wrong := _wrong_features(case)):
        declared = "feature sets as the project declares them, events up to the last label"
        return Finding("fail", listed(wrong, "; "), declared, "train and evaluate again")
    return _committed(case, gate, absent)


def _wrong_features(case: Case) -> list[str]:
    """Return why the training set does not match the feature sets that the project declares."""
    training_set, declared = case.evaluation.training_set, case.evidence.feature_sets
    if training_set is None:
        return []
    wrong = []
    if training_set.evaluated != training_set.digest:
        wrong.append("the evaluation joined another table than the training")
    for name, used in training_set.sets.items():
        version, definition = declared.get(name, ("", ""))
        if not version:
            wrong.append(f"feature set {name}: not declared in the code of the training")
        elif used.version != version:
            wrong.append(f"feature set {name}: version {used.version}, declared {version}")
        elif used.definition != definition:
            wrong.append(f"feature set {name}: another definition or code than declared")
        if not (used.last and training_set.last_label and used.last <= training_set.last_label):
            wrong.append(f"feature set {name}: an event at {used.last} is later than the labels")
    return wrong


def lineage_before_evaluation(case: Case, gate: Gate) -> Finding:
    """Check the lineage of the training run before its model is evaluated.

    Fields `evaluation_…` may be missing; uncommitted code fails as in `lineage`.
    """
    absent = missing(case.evidence.lineage)
    return _committed(case, gate, [name for name in absent if not name.startswith("evaluation_")])


def _committed(case: Case, gate: Gate, absent: Sequence[str]) -> Finding:
    sources = case.evidence.lineage
    required = "run, parent run, evaluation, code, commit, environment, features, seed, data"
    if absent:
        return Finding("fail", "missing: " + ", ".join(absent), required)
    commit = _short(sources.commit)
    changed = [
        f"{what} by commit {_short(commit_id)} with uncommitted changes"
        for what, commit_id, dirty in (
            ("trained", sources.commit, sources.dirty),
            ("evaluated", sources.evaluation_commit, sources.evaluation_dirty),
        )
        if dirty is not False
    ]
    if changed and case.request.environment not in gate.names("dirty_allowed_in"):
        reason = f"{case.request.environment} takes committed code only"
        return Finding("fail", ", ".join(changed), required, reason, measured=True)
    return Finding("pass", f"complete; {', '.join(changed) or f'commit {commit}'}", required)


def model_format(case: Case, gate: Gate) -> Finding:
    """Every file of the model has an allowed format, recognised by its content.

    A version that serves or once served in the environment passes with any format that loads
    without running code, because `allowed` may have become narrower since.
    """
    listed_formats = gate.names("allowed")
    required = "only " + ", ".join(listed_formats)
    files = case.evidence.files
    if not files:
        return Finding("fail", "no file was checked", required)
    unlisted_files = {file: kind for file, kind in files.items() if kind not in listed_formats}
    if not unlisted_files:
        return Finding("pass", ", ".join(sorted(set(files.values()))), required)
    actual = ", ".join(f"{file} ({kind or 'unknown'})" for file, kind in unlisted_files.items())
    unlisted = sorted({kind for kind in unlisted_files.values() if kind in FORMATS})
    reasons = []
    if unlisted:
        reasons.append(f"`format.allowed` of gates.yml has no {', no '.join(unlisted)}")
    if len(unlisted) == len({*unlisted_files.values()}):
        if case.request.served_before or case.is_champion:
            return Finding("pass", actual, required, f"{reasons[0]}: it served here before")
    elif any(kind.partition(": ")[0] not in FORMATS for kind in unlisted_files.values()):
        reasons.append("a format that is unknown; loading it may run code, as a pickle does")
    if any(is_faulty(kind) for kind in unlisted_files.values()):
        reasons.append("a model that may crash, hang or exhaust its library: train it again")
    if any(file.lower().endswith(".onnx") and not kind for file, kind in unlisted_files.items()):
        reasons.append(
            "of ONNX, only models whose operators are the standard's and whose tensors are in the "
            "file itself"
        )
    return Finding(
        "fail", actual, required, "; ".join(reasons), measured=True, items=tuple(unlisted_files)
    )


def supply_chain(case: Case, gate: Gate) -> Finding:
    """Every package is the locked one, its licence is allowed, and no recent advisory affects it.

    In some environments the advisories may be missing or old; the finding then says so.
    """
    chain, limit = case.evidence.supply_chain, gate.number("max_advisory_age_days")
    required = f"locked packages, allowed licences, no advisory as of {limit:g} days ago or later"
    actual = f"{len(chain.packages)} packages"
    if problem := _incomplete(chain):
        return Finding("fail", actual, required, problem)
    licences, reviewed = gate.names("licences"), gate.names("reviewed")
    items = [
        f"{name} is {package.licence}"
        for name, package in chain.packages.items()
        if name not in reviewed and not licence_allowed(package.licence or "", licences)
    ]
    unchecked = _unchecked(case, limit, gate.number("min_advisories"))
    refused = [*items, *(chain.advisories or ())]
    # One advisory may affect two packages; a waiver names its id.
    items += dict.fromkeys(advisory.partition(":")[0] for advisory in chain.advisories or ())
    if unchecked and case.request.environment not in gate.names("unchecked_allowed_in"):
        return Finding("fail", actual, required, "; ".join([unchecked, *refused[:LISTED]]))
    if refused:
        reason = listed(refused, "; ")
        return Finding("fail", actual, required, reason, measured=True, items=tuple(items))
    return Finding("pass", actual, required, unchecked)


def _incomplete(chain: SupplyChain) -> str:
    """Return what is missing for a decision, or ""."""
    if not chain.packages:
        return "no package was checked"
    if chain.sbom is None:
        return "no bill of materials"
    for name, package in chain.packages.items():
        if package.locked is None or package.installed != package.locked:
            installed = package.installed or "missing"
            return f"{name} is locked at {package.locked or 'nothing'} and {installed} here"
        if package.licence is None:
            return f"the licence of {name} was not checked"
    if (chain.as_of is None) != (chain.advisories is None):
        return "advisories without a date, or a date without advisories"
    return ""


def _unchecked(case: Case, limit: float, fewest: float) -> str:
    """Return why the advisories are outdated or incomplete, or ""."""
    as_of = case.evidence.supply_chain.as_of
    if as_of is None:
        return "advisories not checked: set `MLOPS_ADVISORIES` to an OSV export (`make advisories`)"
    age = case.request.now - as_of
    if age < -ADVISORY_SKEW:
        return f"advisories dated in the future: {as_of.date()}"
    if age > timedelta(days=limit):
        return f"advisories are {age / timedelta(days=1):.0f} days old"
    if not real(records := case.evidence.supply_chain.records) >= fewest:
        return f"{shown(records)} advisories about PyPI, where an export of osv.dev has thousands"
    return ""


def sign_off(case: Case, gate: Gate) -> Finding:
    """A person approves: still pending when it is proposed, required when it is applied.

    Who may approve is in `.github/CODEOWNERS`.
    """
    name = case.request.approved_by.strip()
    if name and (problem := not_words(name)):
        return Finding("fail", repr(name), "a name that can be read", problem)
    if name:
        return Finding("pass", f"approved by {name}", "a name")
    if case.request.step == "propose":
        return Finding("pending", "nobody yet", "a name, when it is applied")
    return Finding("fail", "nobody", "a name", "not approved")


def _short(text: str | None) -> str:
    return "nothing" if text is None else text.removeprefix("sha256:")[:12]
