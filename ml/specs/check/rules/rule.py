"""Rules: generators of findings, registered by a decorator.

The docstring's first line is the text of the rule. The decorator sets its name, severity and
source. A source such as `reference-yaml-schedule` is a page under
learn.microsoft.com/azure/machine-learning.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import get_args

from ml.core.documents import Key
from ml.core.errors import Place, Problem, Severity
from ml.specs.assets.assets import Links
from ml.specs.check.clusters import Cluster, Placed
from ml.specs.check.nodes import Node
from ml.specs.kinds import COMPONENTS, FAMILIES, JOBS
from ml.specs.sdk.load import Spec

# Scopes: all specs, or a family of specs; all nodes, a node type, or pipeline steps; nodes whose
# `compute` is a declared cluster.
NODE_TYPES = JOBS | COMPONENTS
SCOPES = {"spec", *FAMILIES, "node", *NODE_TYPES, "step", "cluster"}


@dataclass(frozen=True)
class Finding:
    """A violation of a rule, at a field of the spec or node."""

    keys: tuple[Key, ...]  # path to the field from the spec or node
    actual: str
    expected: str = ""
    hint: str = ""
    severity: Severity | None = None  # None: the severity of the rule
    place: Place | None = None  # None: the line of the keys


@dataclass(frozen=True)
class Subject:
    """The input of a rule with scope "spec" or a family: the checked spec, or one that it names."""

    spec: Spec
    links: Links
    nodes: Sequence[Node]
    clusters: Sequence[Cluster] = ()  # every declared cluster

    def place(self, *keys: Key) -> Place:
        """Return the line of a field."""
        return self.spec.place(*keys)


@dataclass(frozen=True)
class Rule:
    """A registered rule."""

    name: str  # in kebab case; the code of its problems
    sentence: str
    severity: Severity
    source: str
    scopes: frozenset[str]
    root_only: bool
    find: Callable[..., Iterable[Finding]]

    def apply(self, subject: Subject | Node | Placed) -> Iterator[Problem]:
        """Yield the problems that the rule finds in a spec or in one of its nodes."""
        for finding in self.find(subject):
            yield Problem(
                self.name,
                finding.actual,
                finding.expected,
                finding.hint,
                finding.place or subject.place(*finding.keys),
                finding.severity or self.severity,
                self.source,
            )


RULES: dict[str, Rule] = {}


def rule(
    name: str,
    *,
    scope: str | Collection[str],
    source: str,
    severity: Severity = "error",
    root_only: bool = False,
) -> Callable[[Callable[..., Iterable[Finding]]], Callable[..., Iterable[Finding]]]:
    """Return a decorator that registers a generator of findings as a rule.

    The first line of its docstring is the rule's text. `scope` is one or several of SCOPES. The
    generator gets a `Subject` (scope "spec" or a family), a `Node` ("node", "step" or a type) or a
    `Placed` ("cluster"). With `root_only` it does not run on specs that the checked spec names.

    The decorator raises ValueError for a duplicate name and an unknown scope or severity.
    """
    scopes = frozenset({scope} if isinstance(scope, str) else scope)

    def register(find: Callable[..., Iterable[Finding]]) -> Callable[..., Iterable[Finding]]:
        sentence = (find.__doc__ or "").strip().splitlines()[0]
        if name in RULES:
            raise ValueError(f"the rule `{name}` exists")
        if not scopes <= SCOPES or severity not in get_args(Severity):
            expected = f"a scope of {', '.join(sorted(SCOPES))}, and error or warning"
            raise ValueError(f"scope {scope!r}, severity {severity!r}; expected {expected}")
        RULES[name] = Rule(name, sentence, severity, source, scopes, root_only, find)
        return find

    return register
