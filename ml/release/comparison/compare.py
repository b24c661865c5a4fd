"""Finding what is to be compared, and what the gates say of it. Reads; registers and logs nothing.

When the champion was measured on other data, it is scored again on the candidate's, as the gates
do it: that runs the project's evaluation.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from datetime import UTC, datetime

from ml.backends.base import Backend, Run, Watch, unwatched
from ml.backends.registry import Version
from ml.core.errors import Problem, Refused
from ml.release.comparison.comparison import Comparison, Outcomes, Side, compare, other_features
from ml.release.declaration import desired_state, projects
from ml.release.evidence import evidence, predictions, supply_chain
from ml.release.promotion import candidate as candidates
from ml.release.promotion.gate_check import champion_evidence, load_gates
from ml.release.registry.descendants import descendants
from ml.serving.scoring.manifest import ManifestError, verify
from ml.toolkit.evaluation import PREDICTIONS
from policies.promotion.decision import Decision, Request
from policies.promotion.engine import decide
from policies.promotion.evidence import Evidence, parse

CHAMPION = "champion@"


@dataclass(frozen=True)
class Compared:
    """A comparison for an environment, and what the gates say today; None where none was asked.

    `candidate` and `champion` are registered versions, None where there is none. `notes` say what
    a reader should know: what could not be had, and why.
    """

    comparison: Comparison
    decision: Decision | None
    environment: str
    model: str
    candidate: Version | None
    champion: Version | None
    notes: tuple[str, ...] = field(default=())


@dataclass(frozen=True)
class _Found:
    """What a reference stands for: a registered version, or a run whose model is not registered."""

    version: Version | None
    run: Run | None


def versus(
    backend: Backend,
    reference: str,
    against: str | None,
    environment: str | None = None,
    watch: Watch = unwatched,
) -> Compared:
    """Compare `wanted` with `against`, by default with the environment's champion.

    The environment is by default that of champion@ENVIRONMENT, else `local`.

    Each is MODEL:VERSION, a run's name or id, or champion@ENVIRONMENT. Raises Refused when there is
    no such thing, or nothing is known of how good it is.
    """
    named = against.removeprefix(CHAMPION) if against and against.startswith(CHAMPION) else ""
    environment = desired_state.check_environment(environment or named or desired_state.LOCAL)
    notes: list[str] = []
    candidate = _resolve(backend, reference, None)
    side, model = _side(candidate, notes)
    champion = _champion(backend, against, model, environment)
    if champion is None:
        where = f"{environment} has no champion of {model} yet"
        notes.append(f"{where}: there is nothing to compare with")
    theirs: Side | None = None
    against_evidence: Evidence | None = None
    if champion and champion.version and champion.version.digest == side.digest:
        notes.append(f"{side.name} is the very model of {_name(champion.version)}")
        champion, against_evidence = None, side.evidence
    elif champion:
        theirs = _scored(backend, side, champion, candidate.version, notes, watch)
        against_evidence = theirs.evidence
        notes += filter(None, [other_features(side, theirs)])
    confidence, decision = 0.95, None
    if candidate.version:
        project = projects.find(candidate.version.project)
        gates = load_gates(project)
        confidence = gates["non-inferiority"].number("confidence")
        request = Request(
            environment=environment,
            model=model,
            version=candidate.version.version,
            digest=side.digest,
            step="propose",
            now=datetime.now(UTC),
            reason=desired_state.reason_for(project.name, environment, side.digest),
        )
        chain = supply_chain.today(side.evidence.supply_chain)
        decision = decide(
            gates, replace(side.evidence, supply_chain=chain), against_evidence, request
        )
    else:
        notes.append(f"no gate was asked: the model of {side.name} is not registered")
    return Compared(
        comparison=compare(side, theirs, confidence),
        decision=decision,
        environment=environment,
        model=model,
        candidate=candidate.version,
        champion=champion.version if champion else None,
        notes=tuple(notes),
    )


def _resolve(backend: Backend, reference: str, model: str | None) -> _Found:
    if reference.startswith(CHAMPION):
        environment = desired_state.check_environment(reference.removeprefix(CHAMPION))
        models = [model] if model else [each.deployment().endpoint for each in projects.every()]
        champions = [backend.registry.champion(name, environment) for name in models]
        found = [champion for champion in champions if champion]
        if len(found) == 1:
            return _Found(found[0], None)
        named = ", ".join(f"{champion.model}:{champion.version}" for champion in found)
        raise Refused(
            Problem(
                "no-such-champion" if not found else "several-champions",
                f"{environment} has {named or 'no champion'}",
                "one champion",
                "name it as MODEL:VERSION; `ml release status` shows what serves where",
            )
        )
    name, _, version = reference.rpartition(":")
    if name and version:
        return _Found(backend.registry.find(name, version), None)
    run = backend.runs.find(reference)
    versions = descendants(backend.registry, run)
    for relation in ("made", "same files", "evaluated"):
        of = [version for version in versions if version.relation == relation]
        if of:
            return _Found(backend.registry.find(of[-1].model, of[-1].version), run)
    return _Found(None, run)


def _champion(backend: Backend, against: str | None, model: str, environment: str) -> _Found | None:
    if against is not None:
        return _resolve(backend, against, model)
    version = backend.registry.champion(model, environment)
    return _Found(version, None) if version else None


def _side(found: _Found, notes: list[str]) -> tuple[Side, str]:
    """What is known of a side, and the name of its model."""
    version = found.version
    if version is not None:
        stated = evidence.load(version)
        outcomes = _outcomes(version, stated)
        return Side(_name(version), version.digest, stated, outcomes), version.model
    assert found.run is not None
    run = found.run
    scored = next(
        (one for one in (run, *run.below()) if candidates.EVALUATION in one.outputs), None
    )
    if scored is None:
        raise Refused(
            Problem(
                "no-evidence",
                f"nothing is known of how good the model of {run.name} is: it was neither "
                "registered nor evaluated",
                "a registered version, or a run with the output `evaluation`",
                f"ml release propose PROJECT --run {run.name}",
            )
        )
    document = evidence.evaluation_of(scored)
    stated = parse(document)
    read = predictions.read(scored.outputs[candidates.EVALUATION] / PREDICTIONS, stated.task)
    stated = replace(
        stated,
        outcomes=read.outcomes(stated.primary_metric or ""),
        groups=read.groups(),
        members=read.members(),
        disagreements=(),
    )
    notes.append(f"{run.name} has no evidence yet, only the evaluation of {scored.name}")
    return Side(run.name, _digest(run), stated, read.every_outcome()), str(
        document.get("model") or ""
    )


def _scored(
    backend: Backend,
    ours: Side,
    champion: _Found,
    version: Version | None,
    notes: list[str],
    watch: Watch,
) -> Side:
    """The champion's side, scored again on the candidate's data where it has to be."""
    if champion.version is None or version is None:
        return _side(champion, notes)[0]
    kept = champion.version
    loaded, _ = _side(champion, notes)
    project = projects.find(version.project)
    held = champion_evidence(backend, project, ours.evidence, kept, version, watch)
    if held is None or (held.outcomes, held.data) == (
        loaded.evidence.outcomes,
        loaded.evidence.data,
    ):
        return loaded
    if not held.metrics:
        why = "; ".join(held.disagreements or ("nothing was measured",))
        notes.append(f"{loaded.name} could not be scored on the data of {ours.name}: {why}")
    else:
        notes.append(f"{loaded.name} was scored again on the data of {ours.name}")
    return Side(loaded.name, loaded.digest, held)


def _outcomes(version: Version, held: Evidence) -> Outcomes:
    """Every metric of every unit; none when the predictions are not what the evidence says."""
    if held.disagreements:
        return {}
    return predictions.read(version.evidence_folder / PREDICTIONS, held.task).every_outcome()


def _digest(run: Run) -> str:
    try:
        return verify(run.outputs[candidates.MODEL]) if candidates.MODEL in run.outputs else ""
    except (ManifestError, OSError):
        return ""


def _name(version: Version) -> str:
    return f"{version.model} {version.version}"
