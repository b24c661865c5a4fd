"""Compare a candidate with a champion: metrics, slices, cost, latency, and today's gates.

Nothing is registered or logged. A champion that was measured on other data is scored again on the
candidate's, as for the gates: that runs the project's evaluation. `compare` is pure.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

from ml.backends.base import Backend
from ml.backends.model_registry import Version
from ml.backends.runs import Run
from ml.core.errors import UserError
from ml.measures.evaluation import PREDICTIONS
from ml.measures.metrics import UNDIRECTED
from ml.measures.schema import Estimate, Evaluation, Metrics, Stability, missing, stated
from ml.measures.tasks import TASKS
from ml.release.declaration import desired_state, projects
from ml.release.declaration.projects import Project
from ml.release.evidence import evidence
from ml.release.evidence.recomputation import Predictions, read_predictions, with_predictions
from ml.release.promotion.gate_check import (
    champion_evidence,
    champion_of,
    load_gates,
    request,
    version_to_beat,
)
from ml.release.versions import EVALUATION, digest_of, version_of
from policies.promotion.champion_gates import Difference, chosen, difference, paired_difference
from policies.promotion.decision import Decision
from policies.promotion.engine import EVALUATION_RULES, decide
from policies.promotion.evidence import Evidence

CHAMPION = "champion@"
# Metric → split → unit → value.
Outcomes = Mapping[str, Mapping[str, Mapping[str, float]]]


@dataclass(frozen=True)
class Side:
    """A side of a comparison: a version or a run's model, its evidence and per-unit metrics."""

    name: str
    digest: str
    evidence: Evidence
    outcomes: Outcomes = field(default_factory=dict)


@dataclass(frozen=True)
class MetricComparison:
    """One metric of the candidate and the champion, on a split or a slice."""

    place: str  # the split, or `DIMENSION=SLICE`
    metric: str
    ours: Estimate
    theirs: Estimate | None  # None if the champion has no comparable value
    # Candidate minus champion over the units measured for both; None if they cannot be paired.
    difference: Difference | None
    sign: int  # 1 if higher is better, -1 if lower is better, 0 if neither or unknown

    @property
    def verdict(self) -> str:
        """`better` or `worse` when the whole interval lies on that side of zero, else ""."""
        if self.difference is None or not self.sign:
            return ""
        low, high = sorted((self.sign * self.difference.low, self.sign * self.difference.high))
        return "better" if low > 0 else "worse" if high < 0 else ""


@dataclass(frozen=True)
class Amount:
    """A latency, cost or spread of both models; lower is better."""

    what: str
    unit: str
    ours: float | None  # None if unknown
    theirs: float | None  # None if unknown, or in another currency


@dataclass(frozen=True)
class Comparison:
    """The differences of two models."""

    candidate: Side
    champion: Side | None
    primary: str
    metrics: tuple[MetricComparison, ...]
    slices: tuple[MetricComparison, ...]
    amounts: tuple[Amount, ...]
    missing: tuple[str, ...]  # paths of required fields that the candidate's evidence lacks
    unpaired: str  # why units were not compared one by one, "" if they were
    confidence: float  # of the paired intervals; for `slices` before Bonferroni's correction
    model: str = ""
    environment: str = ""
    decision: Decision | None = None  # of the gates; None if they were not evaluated
    notes: tuple[str, ...] = ()  # sentences on what was not compared, or measured again, and why

    def to_json(self) -> dict[str, Any]:
        """Return the comparison as JSON-compatible values, also for pull request comments."""
        evidence, decision = self.candidate.evidence, self.decision

        def row(metric: MetricComparison) -> dict[str, Any]:
            return {
                "place": metric.place,
                "metric": metric.metric,
                "candidate": stated(metric.ours),
                "champion": stated(metric.theirs),
                "difference": asdict(metric.difference) if metric.difference else None,
                "sign": metric.sign,
                "verdict": metric.verdict or None,
            }

        def side(compared: Side) -> dict[str, str]:
            return {"name": compared.name, "digest": compared.digest}

        return {
            "model": self.model,
            "environment": self.environment,
            "candidate": side(self.candidate),
            "champion": side(self.champion) if self.champion else None,
            "primary_metric": self.primary,
            "confidence": self.confidence,
            "metrics": [row(metric) for metric in self.metrics],
            "slices": [row(metric) for metric in self.slices],
            "amounts": [asdict(amount) for amount in self.amounts],
            "hardware": {
                "measured": evidence.latency.hardware,
                "deployed": evidence.latency.instance_type,
            },
            "decision": {
                **decision.to_json(),
                "blocking": [asdict(result) for result in decision.blocking],
            }
            if decision
            else None,
            "lineage": asdict(evidence.lineage),
            "features": evidence.evaluation.feature_set_hash,
            "data": {name: asdict(data) for name, data in evidence.data.items()},
            "missing": self.missing,
            "unpaired": self.unpaired or None,
            "notes": self.notes,
        }


def versus(
    backend: Backend,
    reference: str,
    against: str | None,
    environment: str | None = None,
    progress: Callable[[str], None] = lambda _: None,
) -> Comparison:
    """Compare `reference` with `against`, by default with the environment's champion.

    Each is MODEL:VERSION, a run's name or id, or champion@ENVIRONMENT. The environment is by
    default that of champion@ENVIRONMENT, else `local`. Raises UserError if a reference does not
    exist, or names a run that was neither registered nor evaluated.
    """
    named = against.removeprefix(CHAMPION) if against and against.startswith(CHAMPION) else ""
    environment = desired_state.check_environment(environment or named or desired_state.LOCAL)
    notes: list[str] = []
    candidate = _resolve(backend, reference, None)
    ours, model = _side(backend, candidate, notes)
    champion = (
        _resolve(backend, against, model)
        if against is not None
        else backend.registry.champion(model, environment)
    )
    if champion is None:
        notes.append(f"{environment} has no champion of {model} to compare with")
    theirs: Side | None = None
    against_evidence: Evidence | None = None
    if isinstance(champion, Version) and champion.digest == ours.digest:
        notes.append(f"{ours.name} is the same model as {_name(champion)}")
        champion, against_evidence = None, ours.evidence
    elif champion is not None:
        if isinstance(champion, Run) or isinstance(candidate, Run):
            theirs, _ = _side(backend, champion, notes)
        else:
            project = projects.find(backend.root, candidate.project)
            rows = candidate.evidence_folder
            theirs = _measured_alike(backend, project, ours, rows, champion, notes, progress)
        against_evidence = theirs.evidence
        notes += filter(None, [other_features(ours, theirs)])
    confidence, decision = 0.95, None
    if isinstance(candidate, Version):
        project = projects.find(backend.root, candidate.project)
        gates = load_gates(project)
        confidence = gates["non-inferiority"].number("confidence")
        reason = desired_state.reason_for(backend, project.name, environment, ours.digest)
        wanted = request(backend, candidate, environment, reason=reason)
        if isinstance(champion, Version):
            valid, wanted = version_to_beat(gates, wanted, champion)
            against_evidence = against_evidence if valid else None
        judged = evidence.with_advisories(backend.root, ours.evidence)
        decision = decide(gates, judged, against_evidence, wanted)
    else:
        notes.append(f"the gates were not evaluated: the model of {ours.name} is not registered")
    return replace(
        compare(ours, theirs, confidence),
        model=model,
        environment=environment,
        decision=decision,
        notes=tuple(notes),
    )


def versus_champion(
    backend: Backend,
    project: Project,
    trained: Run,
    evaluated: Run,
    environment: str,
    progress: Callable[[str], None] = lambda _: None,
) -> Comparison:
    """Compare the model of a run, which the run `evaluated` scored, with the champion.

    The champion is scored again if it was measured on other data. The gates that judge measurements
    are evaluated, as if the model were proposed. Nothing is registered.
    """
    measured = evidence.measured(backend, evaluated)
    rows = read_predictions(evaluated.outputs[EVALUATION] / PREDICTIONS, measured.evaluation)
    ours = Side(trained.name, digest_of(trained), measured, rows.every_outcome())
    model = project.endpoint()
    notes = ["only the gates that judge measurements were evaluated: the model is not registered"]
    champion = champion_of(backend, model, environment)
    theirs, against = None, None
    if champion is None:
        notes.append(f"{environment} has no champion of {model} to compare with")
    elif champion.digest == ours.digest:
        notes.append(f"{ours.name} is the same model as {_name(champion)}")
        against = measured
    else:
        folder = evaluated.outputs[EVALUATION]
        theirs = _measured_alike(backend, project, ours, folder, champion, notes, progress)
        against = theirs.evidence
    gates = load_gates(project)
    unregistered = Version(model, trained.name, ours.digest, project.name, trained.id, "")
    wanted = request(backend, unregistered, environment)
    valid, wanted = version_to_beat(gates, wanted, champion)
    decision = decide(gates, measured, against if valid else None, wanted, EVALUATION_RULES)
    if decision.outcome == "approved":  # a promotion waits for a person too
        decision = replace(decision, outcome="pending")
    return replace(
        compare(ours, theirs, gates["non-inferiority"].number("confidence")),
        model=model,
        environment=environment,
        decision=decision,
        notes=tuple(notes),
    )


def _resolve(backend: Backend, reference: str, model: str | None) -> Version | Run:
    """Return the version that the reference names, or the run if its model is not registered."""
    if reference.startswith(CHAMPION):
        environment = desired_state.check_environment(reference.removeprefix(CHAMPION))
        models = (
            [model]
            if model
            else [candidate.endpoint() for candidate in projects.every(backend.root)]
        )
        champions = [
            champion
            for name in models
            if (champion := backend.registry.champion(name, environment)) is not None
        ]
        if len(champions) == 1:
            return champions[0]
        names = ", ".join(f"{champion.model}:{champion.version}" for champion in champions)
        raise UserError.with_code(
            "several-champions" if champions else "no-such-champion",
            f"{environment} has {names or 'no champion'}",
            "one champion",
            "promote a version, or name one as MODEL:VERSION; `ml release status` lists them",
        )
    name, _, version = reference.rpartition(":")
    if name and version:
        return backend.registry.find(name, version)
    run = backend.runs.find(reference)
    return version_of(backend.registry, run) or run


def _side(backend: Backend, reference: Version | Run, notes: list[str]) -> tuple[Side, str]:
    """Return a version or a run as a side, with its evidence, and the name of its model."""
    if isinstance(reference, Version):
        version = reference
        loaded = evidence.load(backend, version)
        outcomes = {} if loaded.mismatches else _predictions(version, loaded).every_outcome()
        return Side(_name(version), version.digest, loaded, outcomes), version.model
    run = reference
    evaluated = next((part for part in (run, *run.below()) if EVALUATION in part.outputs), None)
    if evaluated is None:
        project = backend.runs.entry(run).project or "PROJECT"
        raise UserError.with_code(
            "no-evidence",
            f"the model of {run.name} was neither registered nor evaluated",
            "a registered version, or a run with the output `evaluation`",
            f"ml release propose {project} --run {run.name}",
        )
    evaluation = evidence.evaluation_of(evaluated)
    rows = read_predictions(evaluated.outputs[EVALUATION] / PREDICTIONS, evaluation)
    loaded = replace(with_predictions(Evidence(evaluation=evaluation), rows), mismatches=())
    notes.append(f"{run.name} has no evidence yet, only the evaluation of {evaluated.name}")
    return Side(run.name, digest_of(run), loaded, rows.every_outcome()), evaluation.model or ""


def _measured_alike(
    backend: Backend,
    project: Project,
    ours: Side,
    rows: Path,
    champion: Version,
    notes: list[str],
    progress: Callable[[str], None],
) -> Side:
    """Return the champion's side; score it again if it was measured on other data."""
    theirs, _ = _side(backend, champion, notes)
    again = champion_evidence(
        backend, project, ours.evidence, rows, champion, ours.digest, progress
    )
    if again is None or (again.outcomes, again.data) == (
        theirs.evidence.outcomes,
        theirs.evidence.data,
    ):
        return theirs
    if not again.evaluation.metrics:
        why = "; ".join(again.mismatches or ("nothing was measured",))
        notes.append(f"{theirs.name} could not be scored on the data of {ours.name}: {why}")
    else:
        notes.append(f"{theirs.name} was scored again on the data of {ours.name}")
    return Side(theirs.name, theirs.digest, again)


def _predictions(version: Version, version_evidence: Evidence) -> Predictions:
    return read_predictions(version.evidence_folder / PREDICTIONS, version_evidence.evaluation)


def _name(version: Version) -> str:
    return f"{version.model} {version.version}"


def compare(candidate: Side, champion: Side | None, confidence: float = 0.95) -> Comparison:
    """Return the comparison; `confidence` is the level of the two-sided paired intervals."""
    ours = candidate.evidence
    unpaired = _unpaired(candidate, champion)
    comparable = None if champion and _on_other_data(ours, champion.evidence) else champion
    return Comparison(
        candidate=candidate,
        champion=champion,
        primary=ours.evaluation.primary_metric or "",
        metrics=tuple(_metrics(candidate, comparable, confidence, not unpaired)),
        slices=tuple(_slices(candidate, comparable, confidence, not unpaired)),
        amounts=tuple(_amounts(ours, champion.evidence if champion else Evidence())),
        missing=tuple(missing(ours)),
        unpaired=unpaired,
        confidence=confidence,
    )


def other_features(candidate: Side, champion: Side) -> str:
    """Return a sentence on the features that only one of the two reads; "" if there are none.

    Feature sets are compared by hash: "" too if a side states no hash. The sentence names only
    features with a stated contribution.
    """
    sides = (candidate.evidence.evaluation, champion.evidence.evaluation)
    hashes = [side.feature_set_hash for side in sides]
    if not all(hashes) or hashes[0] == hashes[1]:
        return ""
    ours, theirs = (
        {contribution.feature for contribution in side.contributions if contribution.feature}
        for side in sides
    )
    lists = {"new": sorted(ours - theirs), "gone": sorted(theirs - ours)}
    changes = "; ".join(f"{word}: {', '.join(names)}" for word, names in lists.items() if names)
    return (
        f"{candidate.name} reads other features than {champion.name}: "
        f"{changes or 'the same names, computed differently'}"
    )


def _unpaired(candidate: Side, champion: Side | None) -> str:
    if champion is None:
        return ""
    for side in (candidate, champion):
        wrong = side.evidence.mismatches
        if wrong is None:
            again = f"`{side.evidence.proposal}` measures it anew"
            return f"the metrics of {side.name} were not recomputed: {again}"
        if wrong:
            return f"the evidence of {side.name} cannot be trusted: {wrong[0]}"
    ours, theirs = candidate.evidence, champion.evidence
    evaluation, champion_evaluation = ours.evaluation, theirs.evaluation
    if (evaluation.primary_metric, evaluation.goal) != (
        champion_evaluation.primary_metric,
        champion_evaluation.goal,
    ):
        return "they have different primary metrics"
    hashes = [_hashes(side) for side in (ours, theirs)]
    if not hashes[0] or hashes[0] != hashes[1]:
        return "they were not measured on the same data"
    return ""


def _hashes(side: Evidence) -> Mapping[str, str]:
    return {name: asset.sha256 for name, asset in side.data.items() if asset.sha256}


def _on_other_data(ours: Evidence, theirs: Evidence) -> bool:
    """Return whether the data hashes of both are known and differ.

    If so, their metrics must not be compared.
    """
    hashes = [_hashes(side) for side in (ours, theirs)]
    return all(hashes) and hashes[0] != hashes[1]


def _metrics(
    candidate: Side, champion: Side | None, confidence: float, paired: bool
) -> Iterator[MetricComparison]:
    """Yield the comparison of each metric on each split, the primary metric first."""
    evaluation = candidate.evidence.evaluation
    against = champion.evidence.evaluation.metrics if champion else {}
    names = dict.fromkeys(metric for metrics in evaluation.metrics.values() for metric in metrics)
    for metric in sorted(names, key=lambda name: name != evaluation.primary_metric):
        for split, metrics in evaluation.metrics.items():
            if metric not in metrics:
                continue
            theirs = _estimate(against, split, metric)
            difference = None
            if champion and theirs and paired:
                difference = _paired(candidate, champion, split, metric, confidence)
            yield MetricComparison(
                split, metric, metrics[metric], theirs, difference, metric_sign(evaluation, metric)
            )


def _slices(
    candidate: Side, champion: Side | None, confidence: float, paired: bool
) -> Iterator[MetricComparison]:
    """Yield the primary metric's comparison per slice, Bonferroni-corrected as in the gates."""
    evaluation = candidate.evidence.evaluation
    confidence = 1 - (1 - confidence) / max(sum(map(len, evaluation.slices.values())), 1)
    metric, split = evaluation.primary_metric or "", evaluation.slice_split or ""
    members = candidate.evidence.members.get(split, {})
    for dimension, slices in evaluation.slices.items():
        against = champion.evidence.evaluation.slices.get(dimension, {}) if champion else {}
        for name, metrics in slices.items():
            if metric not in metrics:
                continue
            theirs = _estimate(against, name, metric)
            units = members.get(dimension, {}).get(name, ())
            difference = None
            if champion and theirs and units and paired:
                difference = _paired(candidate, champion, split, metric, confidence, units)
            place = f"{dimension}={name}"
            yield MetricComparison(
                place, metric, metrics[metric], theirs, difference, metric_sign(evaluation, metric)
            )


def _paired(
    candidate: Side,
    champion: Side,
    split: str,
    metric: str,
    confidence: float,
    units: tuple[str, ...] | None = None,
) -> Difference | None:
    """Return the paired difference, computed as in the gates; None if the units differ."""
    try:
        if metric == candidate.evidence.evaluation.primary_metric:
            return paired_difference(
                candidate.evidence, champion.evidence, split, confidence, units
            )
        ours, theirs = (
            chosen(side.outcomes.get(metric, {}).get(split, {}), units)
            for side in (candidate, champion)
        )
        return difference(ours, theirs, confidence, candidate.evidence.groups.get(split))
    except ValueError:
        return None


def _estimate(metrics: Metrics, place: str, metric: str) -> Estimate | None:
    return metrics.get(place, {}).get(metric)


def metric_sign(evaluation: Evaluation, metric: str) -> int:
    """Return 1 if higher is better, −1 if lower is better, 0 if neither or unknown."""
    kind = TASKS.get(evaluation.task or "")
    definition = evaluation.custom_metrics.get(metric) or (
        kind.metrics.get(metric) if kind else None
    )
    goal = (
        evaluation.goal
        if metric == evaluation.primary_metric
        else definition.goal
        if definition
        else ""
    )
    return 0 if metric in UNDIRECTED else {"maximize": 1, "minimize": -1}.get(goal or "", 0)


def _amounts(ours: Evidence, theirs: Evidence) -> Iterator[Amount]:
    def amount(what: str, unit: str, value: float | None, champion_value: float | None) -> Amount:
        return Amount(what, unit, _finite(value), _finite(champion_value))

    for name in ("p50", "p95", "p99"):
        times = (getattr(side.latency, f"{name}_ms") for side in (ours, theirs))
        yield amount(f"latency, {name}", "ms", *times)
    currency, other_currency = ours.cost.currency, theirs.cost.currency
    for name, what in (
        ("training", "training"),
        ("thousand_predictions", "1,000 predictions"),
    ):
        usage, champion_usage = getattr(ours.cost, name), getattr(theirs.cost, name)
        yield amount(f"{what}, machine time", "s", usage.seconds, champion_usage.seconds)
        if usage.amount is not None or champion_usage.amount is not None:
            comparable = other_currency in (None, currency)
            unit = currency or other_currency or "of an unnamed currency"
            yield amount(
                f"{what}, price", unit, usage.amount, champion_usage.amount if comparable else None
            )
    metric = ours.evaluation.primary_metric or ""
    refits = (side.evaluation.stability.get(metric, Stability()) for side in (ours, theirs))
    spreads = [refit.std for refit in refits]
    yield amount(f"spread of {metric or 'the primary metric'} over refits", "", *spreads)


def _finite(value: float | None) -> float | None:
    return value if value is not None and math.isfinite(value) else None
