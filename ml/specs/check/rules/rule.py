"""Rules: generators of findings, registered by a decorator.

The docstring's first sentence is the rule in words; the decorator gives its name, its severity
and the source. Azure ML's documents are cited by the last part of their address under
learn.microsoft.com/azure/machine-learning.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import get_args

from ml.core.documents import Key
from ml.core.errors import Place, Problem, Severity
from ml.specs.assets.links import Links
from ml.specs.check.clusters import Cluster, Placed
from ml.specs.check.nodes import Node
from ml.specs.kinds import COMPONENTS, FAMILIES, JOBS
from ml.specs.sdk.load import Spec

# "root", "spec", "node", "cluster", or the family of a spec or the type of a node.
Scope = str
SCOPES = frozenset({"root", "spec", "node", "cluster"}) | FAMILIES | JOBS | COMPONENTS


@dataclass(frozen=True)
class Finding:
    """The finding of a rule: its keys (from the node's root) and its texts.

    `place` is a line of another file that the spec names.
    """

    keys: tuple[Key, ...]
    found: str
    expected: str = ""
    hint: str = ""
    severity: Severity | None = None
    place: Place | None = None


@dataclass(frozen=True)
class Subject:
    """The subject of a rule of scope "spec" or "schedule": a whole spec, also one that another
    names; of scope "root": the spec that is checked alone. `clusters` are the declared ones.
    """

    spec: Spec
    links: Links
    nodes: Sequence[Node]
    clusters: Sequence[Cluster] = ()

    def place(self, *keys: Key) -> Place:
        """The line of a field."""
        return self.spec.place(*keys)


@dataclass(frozen=True)
class Rule:
    """A rule: its kebab-case name, its sentence, its severity and its source."""

    name: str
    sentence: str
    severity: Severity
    source: str
    scope: Scope
    find: Callable[..., Iterable[Finding]]

    def apply(self, subject: Subject | Node | Placed) -> Iterator[Problem]:
        """The problems that the rule finds in a spec or one node of it."""
        for finding in self.find(subject):
            yield Problem(
                self.name,
                finding.found,
                finding.expected,
                finding.hint,
                finding.place or subject.place(*finding.keys),
                finding.severity or self.severity,
                self.source,
            )


RULES: dict[str, Rule] = {}


def rule(
    name: str, *, scope: Scope, source: str, severity: Severity = "error"
) -> Callable[[Callable[..., Iterable[Finding]]], Callable[..., Iterable[Finding]]]:
    """Register a generator of findings as a rule; its docstring is the rule's sentence.

    ValueError for a name that another rule has, and for an unknown scope or severity.
    """

    def register(find: Callable[..., Iterable[Finding]]) -> Callable[..., Iterable[Finding]]:
        sentence = (find.__doc__ or "").strip().splitlines()[0]
        if name in RULES:
            raise ValueError(f"the rule `{name}` exists")
        if scope not in SCOPES or severity not in get_args(Severity):
            expected = f"a scope of {', '.join(sorted(SCOPES))}, and error or warning"
            raise ValueError(f"scope {scope!r}, severity {severity!r}; expected {expected}")
        RULES[name] = Rule(name, sentence, severity, source, scope, find)
        return find

    return register
