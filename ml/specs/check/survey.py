"""Checks many files: which of them are specs, and their problems."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ml.core import repository
from ml.core.documents import read
from ml.core.errors import Problem, Refused, errors
from ml.specs import kinds
from ml.specs.assets.links import Links
from ml.specs.check.check import check
from ml.specs.sdk.load import from_document, quiet
from ml.specs.search import hints


@dataclass(frozen=True)
class Survey:
    """The result: the number of specs, the number of skipped YAML files, the problems."""

    specs: int
    skipped: int
    problems: tuple[Problem, ...]

    @property
    def errors(self) -> tuple[Problem, ...]:
        """The problems that stop a spec."""
        return errors(self.problems)

    def summary(self) -> str:
        """The closing line: `12 specs, 0 errors, 2 warnings`."""
        warnings = len(self.problems) - len(self.errors)
        counts = ((self.specs, "spec"), (len(self.errors), "error"), (warnings, "warning"))
        line = ", ".join(f"{count} {word}{'' if count == 1 else 's'}" for count, word in counts)
        others = f"{self.skipped} other YAML file{'' if self.skipped == 1 else 's'}"
        return f"{line} ({others})" if self.skipped else line

    def as_json(self) -> dict[str, Any]:
        """The same for a program."""
        return {
            "specs": self.specs,
            "errors": len(self.errors),
            "warnings": len(self.problems) - len(self.errors),
            "skipped": self.skipped,
            "problems": [
                {
                    "code": problem.code,
                    "severity": problem.severity,
                    "file": problem.place.path if problem.place else None,
                    "line": problem.place.line if problem.place else None,
                    "found": problem.found,
                    "expected": problem.expected,
                    "hint": problem.hint,
                    "source": problem.source,
                }
                for problem in self.problems
            ],
        }


def survey(
    paths: Sequence[Path], others: Mapping[str, Callable[[Path], Sequence[Problem]]] | None = None
) -> Survey:
    """Check files, every spec in folders, or without paths every spec in the repository.

    A YAML file that is not an Azure ML spec is an error when named, and skipped in a folder;
    `others` are files of another kind by their pattern (`ml/projects/*/release.yml`), each with
    what finds the problems of one. Raises Refused without paths where no repository is.
    """
    links, problems = Links(), list[Problem]()
    specs = skipped = 0
    with quiet():
        for path, is_named in _files(paths or [_repository()]).items():
            if hints.is_hints(path) and hints.spec_of(path) is None and path.is_file():
                problems.append(hints.without_spec(path))
                continue
            other = next(
                (of for name, of in (others or {}).items() if path.absolute().match(name)), None
            )
            if other is not None and path.is_file():
                problems += other(path)
                specs += 1
                continue
            try:
                document = read(path, repository.shown(path))
                if is_named or kinds.kind_of(document.data) is not None:
                    problems += check(from_document(document, path.absolute(), {}), links)
                    specs += 1
                else:
                    skipped += 1
            except Refused as refused:
                if is_named or _was_meant_as_spec(path):
                    problems += refused.problems
                    specs += path.is_file()
                else:
                    skipped += 1
    return Survey(specs, skipped, tuple(dict.fromkeys(problems)))


def _repository() -> Path:
    """The root to check; Refused outside a repository, where it would be all that is below."""
    root = repository.root()
    if not repository.is_root(root):
        message = f"there is no repository at or above {root}"
        hint = "change to one, or name files and folders: ml check PATH"
        raise Refused(Problem("no-repository", message, f"a folder with a {repository.MARK}", hint))
    return root


def _files(paths: Sequence[Path]) -> dict[Path, bool]:
    """The files to read, each once, and whether it was named; hints stand for their spec."""
    files: dict[Path, bool] = {}
    for path in paths:
        if path.is_dir():
            for file in repository.yaml_files(path):
                if not hints.is_hints(file) or hints.spec_of(file) is None:
                    files.setdefault(file, False)
        else:
            files[(hints.spec_of(path) if hints.is_hints(path) else None) or path] = True
    return files


def _was_meant_as_spec(path: Path) -> bool:
    """Whether a file that does not load as YAML looks like a spec or may not be read."""
    try:
        return kinds.mentions_azure_ml(path.read_text("utf-8", errors="replace"))
    except PermissionError:
        return True
    except OSError:
        return False
