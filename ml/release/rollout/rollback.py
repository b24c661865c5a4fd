"""Rollback: declare the previous version again, as `git revert` of the present one would.

The previous version is read from the branch's history of release.yml, or from the audit log if the
declaration is not committed (`local`). A second rollback changes nothing: name a version to go
further back.

If nothing was ever applied, the declared version is withdrawn: its declaration is removed.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from itertools import takewhile
from pathlib import Path

from ml.backends.base import Backend
from ml.backends.model_registry import Registry
from ml.core import faults, home
from ml.core.errors import UserError
from ml.release import audit
from ml.release.audit import WITHDRAWN, History
from ml.release.declaration import desired_state, projects
from ml.release.declaration.release_file import ReleaseEntry
from ml.release.promotion.gate_check import load_gates
from ml.release.promotion.propose import attach

# Length of the deployment digest prefix that distinguishes two deployments of one version.
_SHORT = 8
# Instead of a version: withdraw the declaration.
NONE = "none"


@dataclass(frozen=True)
class RolledBack:
    """The result of a rollback; it changes nothing if an earlier one declared this version."""

    project: str
    environment: str
    declared: ReleaseEntry  # empty if the version was withdrawn
    replaced: ReleaseEntry  # equals `declared` if nothing changed
    written: tuple[Path, ...]  # () if nothing changed
    further: tuple[str, ...] = ()  # if nothing changed: versions to return to, as `2@1a2b3c4d`


def roll_back(
    backend: Backend,
    project: str,
    environment: str = desired_state.LOCAL,
    why: str = "",
    to: str | None = None,
    has_audit_log: bool = False,
) -> RolledBack:
    """Declare the previous good version, or the earlier one `to`; `ml release apply` rolls it out.

    `to` is a version (`2`), `2@` and a prefix of its deployment digest, or NONE. Versions that were
    rejected or rolled back are skipped; if the declared one was, the live one is declared. Versions
    that gates.yml lists as invalid come last. Nothing changes if an earlier rollback declared the
    present version, unless `to` names another one or the present one failed since.

    If nothing was ever applied and no good version precedes, the version is withdrawn: nothing is
    declared. This requires `has_audit_log`: this backend has the environment's audit log, which is
    always true for `local`. Raises UserError if nothing is declared, if no good version precedes
    the present one, or if `to` is none of the earlier ones.
    """
    desired_state.check_environment(environment)
    target = projects.find(backend.root, project)
    has_audit_log = has_audit_log or environment == desired_state.LOCAL
    with desired_state.project_lock(target.name):
        now = desired_state.read(backend, target.name, environment)
        if now is None:
            raise _nowhere(target.name, environment, "nothing is declared")
        name = backend.endpoints.name_of(now.model, environment)
        log = audit.history(backend.audit_log, name)
        branch = desired_state.on_branch(backend, target.name, environment)
        is_back = log.went_back_to(now, target.name, environment) or _is_return(branch, now)
        invalid = {
            invalid_version.digest
            for invalid_version in load_gates(target)["superiority"].invalid_versions
        }
        before = _before(backend.registry, now, log, branch)
        before = sorted(before, key=lambda version: version.digest in invalid)  # stable: last
        can_withdraw = has_audit_log and not log.applied and backend.endpoints.live(name) is None
        further = (*map(_name, before), *([NONE] if can_withdraw else []))
        if to in (None, now.version) and is_back and log.refusal(now) is None:
            return RolledBack(target.name, environment, now, now, (), further)
        target_entry = next((entry for entry in before if to is None or _is_named(entry, to)), None)
        if target_entry is None and not (can_withdraw and to in (None, NONE)):
            which = "nothing served" if to is None else f"version {to} did not serve"
            state = f"{which} before version {now.version}"
            raise _nowhere(target.name, environment, state, further, has_audit_log)
        version = None
        if target_entry is not None:
            version = backend.registry.find(target_entry.model, target_entry.version)
            version = replace(version, evidence=target_entry.evidence)
            if (shared := backend.registry.shared) is not None:
                shared.download(version)
        target_entry = target_entry or ReleaseEntry()
        attached: list[Path] = []

        def first(file: Path) -> None:
            if environment != desired_state.LOCAL:
                attached.extend(attach(file, environment, version))
            details = {"project": target.name, "environment": environment, "why": why}
            details["by"] = home.user()
            if has_audit_log and not any(audit.is_declared(line, now) for line in log.applied):
                about = {**details, **asdict(now), "endpoint": name}
                audit.append(backend.audit_log, WITHDRAWN, about)
            declared = {
                name: getattr(target_entry, name)
                for name in ("digest", "deployment_digest", "decision")
            }
            numbers = {"from": now.version, "to": target_entry.version}
            audit.append(backend.audit_log, "rollback", {**details, **declared, **numbers})

        # A rollback that was killed before the declaration is simply repeated.
        with faults.as_user_errors():
            written = desired_state.declare(backend, target.name, environment, target_entry, first)
    return RolledBack(target.name, environment, target_entry, now, (written, *attached))


def _is_return(branch: Sequence[ReleaseEntry], now: ReleaseEntry) -> bool:
    """Return whether `now` is a rollback: the branch declared it, then another, then it again.

    The decision must be the same, too. A rollback that is not committed counts; one that was
    reverted does not.
    """
    decided = [(entry.digest, entry.deployment_digest, entry.decision) for entry in branch]
    again = (now.digest, now.deployment_digest, now.decision)
    while decided and decided[-1] == again:
        decided.pop()
    return again in decided and decided.index(again) < decided.index(decided[-1])


def _before(
    registry: Registry, now: ReleaseEntry, log: History, branch: Sequence[ReleaseEntry]
) -> Sequence[ReleaseEntry]:
    """Return the good versions before the declared one, latest first.

    They come from the history of the branch if that ends with `now` or the audit log has none;
    otherwise from the audit log.
    """
    *before, _ = audit.returnable(
        [*branch, now], lambda entry: (entry.digest, entry.deployment_digest)
    )
    good = [entry for entry in reversed(before) if log.is_good(entry)]
    is_committed = good and branch[-1] == now
    return good if is_committed else [*_served(registry, now, log)] or good


def _is_named(entry: ReleaseEntry, to: str) -> bool:
    version, _, prefix = to.partition("@")
    return entry.version == version and entry.deployment_digest.startswith(prefix)


def _served(registry: Registry, now: ReleaseEntry, log: History) -> Iterator[ReleaseEntry]:
    """Yield the versions that served before `now` according to the audit log, latest first."""
    for line in reversed([*takewhile(lambda line: not audit.is_declared(line, now), log.served)]):
        version = registry.find(str(line["model"]), str(line["version"]))
        decision = str(line["decision"])
        yield ReleaseEntry(
            model=version.model,
            version=version.version,
            digest=str(line["digest"]),
            evidence=version.evidence,
            decision=decision,
            reason=log.reason(decision),
            deployment_digest=str(line.get("deployment_digest", "")),
        )


def _nowhere(
    project: str,
    environment: str,
    state: str,
    further: Sequence[str] = (),
    has_audit_log: bool = True,
) -> UserError:
    names, hint = ", ".join(further), f"ml release status {project}"
    if has_audit_log:
        hint += "; to replace a wrong version, list it under `invalid_versions` in gates.yml"
    else:
        hint = f"ml release rollback {project} --env {environment} --on azure (local: simulated) "
        hint += "withdraws a version that was never applied"
    return UserError.with_code(
        "no-earlier-version",
        f"{state} in `{environment}` on this machine",
        f"one of: {names}" if names else "a version that served before the one that is declared",
        hint,
    )


def _name(entry: ReleaseEntry) -> str:
    return f"{entry.version}@{entry.deployment_digest[:_SHORT]}".removesuffix("@")
