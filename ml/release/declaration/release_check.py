"""What is wrong with a release.yml, as far as that is known without a registry."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Sequence
from pathlib import Path

from ml.core import documents, repository
from ml.core.errors import Place, Problem, Refused
from ml.release.declaration import release_file
from ml.release.declaration.project import Project
from ml.release.declaration.release_file import Entry


def problems(path: Path) -> Sequence[Problem]:
    """Every problem of the file at `path`, in a project's folder; none when it may be applied."""
    try:
        found = release_file.read(path)
        model = Project(path.parent.name, path.parent).model()
    except Refused as refused:
        return refused.problems
    return [
        problem
        for environment, entry in found.entries.items()
        if entry.model
        for problem in _of(path, environment, entry, model, found.document)
    ]


def attached(file: Path, environment: str) -> Path:
    """The evidence that a tracked declaration rests on: it travels with the pull request."""
    return file.parent / "evidence" / f"{environment}.json"


def other_project(found: str, model: str, place: Place) -> Problem:
    """A model is declared for a project that does not make it."""
    expected = f"`{model}`, the model of this project's endpoint"
    hint = "`ml release propose` writes the right one"
    return Problem("model-of-another-project", f"the model `{found}`", expected, hint, place)


def evidence_edited(file: Path, found: str, sha256: str, place: Place) -> Problem:
    """The evidence beside the file is not what the gates were shown."""
    return Problem(
        "evidence-edited",
        f"{repository.shown(file)} {found}",
        f"the file with the sha256 {sha256}, as the release declares",
        "restore it from git, or propose the version again",
        place,
    )


def evidence_problem(file: Path, sha256: str, place: Place) -> Problem | None:
    """What is wrong with the attached evidence; None when it is what was declared."""
    try:
        is_now = hashlib.sha256(file.read_bytes()).hexdigest()
    except OSError as error:
        return evidence_edited(file, f"cannot be read ({error.strerror})", sha256, place)
    return None if is_now == sha256 else evidence_edited(file, "was changed", sha256, place)


def _of(
    path: Path, environment: str, entry: Entry, model: str | None, document: documents.Document
) -> Iterator[Problem]:
    keys = ("environments", environment)
    if model and entry.model != model:
        yield other_project(entry.model, model, document.place(*keys, "model"))
    place = document.place(*keys, "evidence")
    if problem := evidence_problem(attached(path, environment), entry.evidence, place):
        yield problem
