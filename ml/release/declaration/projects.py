"""Projects that can be released, and the files that a release reads."""

from __future__ import annotations

import difflib
import json
import shlex
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from ml.backends.endpoints import DeploymentSpec
from ml.core import documents, repository
from ml.core.errors import Place, UserError
from ml.release import serving


@dataclass(frozen=True)
class Project:
    """A project: a folder under ml/projects, by its name."""

    name: str
    folder: Path

    @property
    def gates(self) -> Path:
        """The path of the project's gates.yml."""
        return self.folder / "gates.yml"

    @property
    def evaluate(self) -> Path:
        """The path of the evaluation job: input `model`, output `evaluation`."""
        return self.folder / "jobs" / "evaluate.yml"

    @property
    def requests(self) -> Path:
        """The path of the sample requests, which every version must answer: JSON lines."""
        return self.folder / "endpoint" / "requests.jsonl"

    def model(self) -> str | None:
        """Return the endpoint's name in endpoint.yml, also the model's name; None without one."""
        path = self.folder / "endpoint" / "endpoint.yml"
        name = documents.read(path).get("name") if path.is_file() else None
        return str(name) if name else None

    def endpoint(self) -> str:
        """Return the name in endpoint.yml. Raise UserError if there is none."""
        if (name := self.model()) is None:
            path = repository.shown(self.folder / "endpoint" / "endpoint.yml")
            actual = f"the project {self.name} names no endpoint"
            raise UserError.with_code("no-endpoint", actual, f"`name` in {path}")
        return name

    def deployment_spec(self) -> DeploymentSpec:
        """Return the deployment spec of the project's files; raise UserError as `serving.read`."""
        return serving.read(self.folder / "endpoint", self.gates)

    def samples(self) -> Sequence[Mapping[str, object]]:
        """Return the sample requests.

        Raise UserError if there is none, or if one is not a JSON object.
        """
        path = repository.shown(self.requests)
        if not self.requests.is_file():
            hint = "write one JSON object per line: the smoke test and the latency gate send them"
            raise UserError.with_code("no-requests", f"there is no {path}", "sample requests", hint)
        samples: list[Mapping[str, object]] = []
        for number, line in enumerate(self.requests.read_text(encoding="utf-8").splitlines(), 1):
            try:
                sample = json.loads(line) if line.strip() else None
            except ValueError:
                sample = "no JSON"
            if isinstance(sample, dict):
                samples.append(sample)
            elif sample is not None:
                place = Place(path, number)
                actual = f"`{line[:80]}` is not a sample request"
                raise UserError.with_code("bad-request", actual, "a JSON object", place=place)
        if not samples:
            raise UserError.with_code("no-requests", f"{path} is empty", "one JSON object per line")
        return samples


# Longest request, in characters, that a printed command contains.
_LONGEST = 320


def find(root: Path, name: str) -> Project:
    """Return the project (`shop_search` or `shop-search`). Raise UserError if there is none."""
    folder = name.replace("-", "_")
    projects = {project.name: project for project in every(root)}
    if folder not in projects:
        close = difflib.get_close_matches(folder, projects, 1)
        raise UserError.with_code(
            "no-such-project",
            f"there is no project `{name}` with a gates.yml",
            f"one of: {', '.join(sorted(projects))}"
            if projects
            else "a folder under ml/projects, as ml/projects/README.md describes",
            f"did you mean `{close[0]}`?" if close else "",
        )
    return projects[folder]


def every(root: Path) -> Sequence[Project]:
    """Return every folder under ml/projects that can be released, by name."""
    folders = sorted((root / "ml" / "projects").glob("*/gates.yml"))
    return [Project(path.parent.name, path.parent) for path in folders]


def example(endpoint: str, project: Project | None) -> str:
    """Return an `ml invoke` command with the project's first sample request.

    If the request is too long, the command reads it from a file.
    """
    sample = project.samples()[0] if project else {}
    if not sample or not project:
        return (
            f"ml invoke {endpoint} REQUEST, a JSON object with the fields that its score.py reads"
        )
    text = str(next(iter(sample.values()))) if is_text(sample) else json.dumps(sample)
    if len(text) <= _LONGEST:
        return f"ml invoke {endpoint} {shlex.quote(text)}"
    if is_text(sample):
        return f"ml invoke {endpoint} --file FILE"
    return f'ml invoke {endpoint} "$(head -1 {shlex.quote(repository.shown(project.requests))})"'


def of_model(root: Path, model: str) -> Project | None:
    """Return the project whose endpoint.yml names the model and that has samples, or None."""
    for project in every(root):
        with suppress(UserError):
            if project.model() == model and project.samples():
                return project
    return None


def is_text(sample: Mapping[str, object]) -> bool:
    """Return whether the request is a single field with a text."""
    return [type(value) for value in sample.values()] == [str]
