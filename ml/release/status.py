"""What is declared, what is champion and what serves, side by side."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass

from ml.release import audit, desired
from ml.release import project as projects
from ml.release.desired import Declared
from ml.release.journal import last_refusal
from ml.release.registry import Registry
from ml.serving import endpoint
from ml.serving.state import Live


@dataclass(frozen=True)
class Status:
    """One project in one environment; versions are None where there is none.

    `verdict` is a sentence with the next thing to type when something is to be done.
    """

    project: str
    environment: str
    model: str
    declared: str
    digest: str
    champion: str | None
    serving: str | None
    url: str | None
    audit: str
    verdict: str

    def to_json(self) -> Mapping[str, object]:
        """As JSON takes it."""
        return asdict(self)


def status(project: str | None = None, environment: str = "local") -> Sequence[Status]:
    """The state of one project, or of every project that something is declared for.

    Raises Refused when a line of the audit log was changed.
    """
    names = [projects.find(project).name] if project else desired.projects()
    known = {line["hash"]: line for line in audit.verify()}
    found = []
    for name in names:
        declared = desired.read(name, environment)
        if declared is None:
            continue
        champion = Registry().champion(declared.model, environment)
        live = endpoint.live(declared.model)
        url = endpoint.url(declared.model)
        up = url is not None
        logged = declared.decision in known
        found.append(
            Status(
                project=name,
                environment=environment,
                model=declared.model,
                declared=declared.version,
                digest=declared.digest,
                champion=champion.version if champion else None,
                serving=live.launch.version if live and up else None,
                url=url,
                audit="verified" if logged else "the decision is not in the audit log",
                verdict=_rolled_back(name, declared, live)
                or _verdict(
                    name,
                    declared.model,
                    champion is not None and champion.digest == declared.digest,
                    live is not None and live.launch.digest == declared.digest,
                    up,
                ),
            )
        )
    return found


def _rolled_back(project: str, declared: Declared, live: Live | None) -> str | None:
    """What is said of a version that its canary refused; None of any other."""
    why = last_refusal(declared.model, declared)
    if why is None:
        return None
    serves = f"version {live.launch.version} serves" if live else "nothing serves"
    again = f"next: ml release propose {project}"
    return f"version {declared.version} was rolled back ({why}); {serves}; {again}"


def _verdict(project: str, model: str, is_champion: bool, is_live: bool, up: bool) -> str:
    if not (is_champion and is_live):
        return f"declared, not applied; next: ml release apply {project} --approved-by NAME"
    return "as declared" if up else f"as declared, but stopped; next: ml serve {model}"
