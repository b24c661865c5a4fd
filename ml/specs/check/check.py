"""Collects the problems of one or many specs, from the SDK and from the repository's rules."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from ml.core import plug_ins, repository
from ml.core.documents import read
from ml.core.errors import Problem, UserError, errors
from ml.core.terminal import printable
from ml.specs import kinds
from ml.specs.assets import assets
from ml.specs.assets.assets import Links
from ml.specs.check.clusters import Cluster, Placed, placed
from ml.specs.check.nodes import Node, nested_component_nodes, nodes, references
from ml.specs.check.rules.rule import NODE_TYPES, RULES, Rule, Subject
from ml.specs.sdk.load import Spec, from_document, quiet
from ml.specs.search import hints


@assets.listed_once()
def check(
    spec: Spec, links: Links | None = None, clusters: Sequence[Cluster] = ()
) -> list[Problem]:
    """Return the problems of a spec and of the specs that it references, sorted by line.

    The rules also run on a spec that the SDK refused, so that all problems show at once. Pass the
    same `links` for many specs to cache their folders. Jobs on one of the `clusters` are compared
    with its hardware.
    """
    links = links or Links()
    problems: list[Problem] = []
    subjects = [Subject(part, links, nodes(part), clusters) for part in (spec, *references(spec))]
    targets = [target for subject in subjects for target in _targets(subject, subject.spec is spec)]
    # Plug-ins register their rules last, so that no other rule reads their changes to a spec.
    for rule in RULES.values():
        for target in targets:
            if rule.scopes & target.scopes and (target.is_root or not rule.root_only):
                problems += _apply(rule, target, spec)
    problems = _without_repeats(spec.problems, problems)
    problems.sort(key=lambda problem: _order(problem, spec))
    if not errors(problems):
        problems += hints.problems(spec)  # hints need a valid search space
    return list(dict.fromkeys(map(_printable, problems)))


@dataclass(frozen=True)
class _Target:
    """A spec or node that rules are applied to."""

    subject: Subject
    item: Subject | Node | Placed
    scopes: set[str]  # rules with one of these scopes apply
    is_root: bool  # the checked spec, or a node that its file contains


def _targets(subject: Subject, is_checked: bool) -> Iterator[_Target]:
    """Yield a target for a spec, for its nodes, and for nodes of the components that they run."""
    yield _Target(subject, subject, {"spec", subject.spec.kind.family}, is_checked)
    pieces = [(node, is_checked) for node in subject.nodes]
    pieces += [(node, False) for node in nested_component_nodes(subject.nodes)]
    for node, is_root in pieces:
        scopes = {
            "node",
            *({node.type} & NODE_TYPES),
            *(["step"] if node.parent is not None else ()),
        }
        yield _Target(subject, node, scopes, is_root)
        if job := placed(node, subject.clusters):
            yield _Target(subject, job, {"cluster"}, is_root)


def _apply(rule: Rule, target: _Target, spec: Spec) -> Iterator[Problem]:
    """Yield the problems that a rule finds in a target; a plug-in's exception is one of them."""
    is_own = plug_ins.is_own(rule.find)
    try:
        with plug_ins.guarded() if is_own else nullcontext():
            yield from rule.apply(target.item)
    except Exception as error:
        if target.subject.spec is not spec or spec.problems:
            return  # the SDK has not validated this spec, so it may have any shape
        if not is_own:
            raise
        yield plug_ins.failure(error, f"the rule `{rule.name}`")


def _without_repeats(from_sdk: Iterable[Problem], from_rules: list[Problem]) -> list[Problem]:
    """Merge the two lists without the less specific of two problems at the same place.

    A rule's error replaces the SDK's `invalid-field` at that place, and `loader-failed` anywhere.
    A rule's problem is dropped if the SDK reports the same code at that place.
    """
    places = {problem.place for problem in errors(from_rules)}
    specific = [
        problem
        for problem in from_sdk
        if (problem.code != "invalid-field" or problem.place not in places)
        and (problem.code != "loader-failed" or not places)
    ]
    reported = {(problem.code, problem.place) for problem in specific}
    return specific + [
        problem for problem in from_rules if (problem.code, problem.place) not in reported
    ]


def _order(problem: Problem, spec: Spec) -> tuple[bool, str, int]:
    """Return a sort key: first the spec's own problems, then other files'; each by line."""
    if problem.place is None:
        return False, "", 0
    is_elsewhere = problem.place.path != spec.document.shown and problem.place.line > 0
    return is_elsewhere, problem.place.path if is_elsewhere else "", problem.place.line


def _printable(problem: Problem) -> Problem:
    """Return the problem with control characters escaped, so that a key cannot forge a line."""
    return replace(
        problem,
        actual=printable(problem.actual),
        expected=printable(problem.expected),
        hint=printable(problem.hint),
    )


# Many files.


@dataclass(frozen=True)
class Survey:
    """The result of checking many files."""

    specs: int
    skipped: int  # YAML files that are not specs
    problems: tuple[Problem, ...]

    @property
    def errors(self) -> tuple[Problem, ...]:
        """Return the problems that are errors."""
        return errors(self.problems)

    def summary(self) -> str:
        """Return the closing line: `12 specs, 0 errors, 2 warnings`."""
        warnings = len(self.problems) - len(self.errors)
        counts = ((self.specs, "spec"), (len(self.errors), "error"), (warnings, "warning"))
        line = ", ".join(f"{count} {word}{'' if count == 1 else 's'}" for count, word in counts)
        others = f"{self.skipped} other YAML file{'' if self.skipped == 1 else 's'}"
        return f"{line} ({others})" if self.skipped else line

    def as_json(self) -> dict[str, Any]:
        """Return the counts and the problems as a JSON object."""
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
                    "actual": problem.actual,
                    "expected": problem.expected,
                    "hint": problem.hint,
                    "source": problem.source,
                }
                for problem in self.problems
            ],
        }


def survey(
    paths: Sequence[Path],
    others: Mapping[str, Callable[[Path], Sequence[Problem]]] | None = None,
    clusters: Sequence[Cluster] = (),
) -> Survey:
    """Check files, and every spec in folders.

    A YAML file that is not an Azure ML spec is an error if `paths` names it, and skipped in a
    folder. `others` maps a file pattern (`ml/projects/*/release.yml`) to an additional check.
    """
    links, problems = Links(), list[Problem]()
    specs = skipped = 0
    with quiet(), assets.listed_once():
        for path, is_named in _files(paths).items():
            if hints.is_hints(path) and hints.spec_of(path) is None and path.is_file():
                problems.append(hints.without_spec(path))
                continue
            file_rule = next(
                (rule for name, rule in (others or {}).items() if path.absolute().match(name)), None
            )
            try:
                if file_rule is not None and path.is_file():
                    problems += map(_printable, file_rule(path))
                document = read(path)
                is_spec = kinds.kind_of(document.data) is not None
                if file_rule is not None and not is_spec:
                    specs += 1
                elif is_named or is_spec:
                    problems += check(from_document(document, path.absolute(), {}), links, clusters)
                    specs += 1
                else:
                    skipped += 1
            except UserError as refused:
                if is_named or file_rule is not None or _was_meant_as_spec(path):
                    problems += refused.problems
                    specs += path.is_file()
                else:
                    skipped += 1
    return Survey(specs, skipped, tuple(dict.fromkeys(problems)))


def _files(paths: Sequence[Path]) -> dict[Path, bool]:
    """Map each file to read to whether `paths` names it; a hints file is replaced by its spec."""
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
    """Return True if an unparseable file mentions Azure ML, or is unreadable by its permissions."""
    try:
        return kinds.mentions_azure_ml(path.read_text("utf-8", errors="replace"))
    except PermissionError:
        return True
    except OSError:
        return False
