"""Clusters and assets that a spec names with a typo, or without a version that is defined.

A typo is an error. What may exist elsewhere is a warning: a name that differs in its digits alone,
an earlier version, and data, which runs register too.
"""

from __future__ import annotations

from collections.abc import Iterator

from ml.core import repository
from ml.core.documents import Key, strings
from ml.core.errors import Severity, nearest
from ml.specs.assets import assets
from ml.specs.check.references import FAMILIES, fields
from ml.specs.check.rules.rule import Finding, Subject, rule
from ml.specs.kinds import MODEL_TYPES
from ml.specs.sdk.load import Spec

_COMPUTE = frozenset({"compute", "default_compute"})


@rule(
    "misspelt-cluster",
    scope="spec",
    severity="warning",
    source="a job waits for ever, or is refused, where its compute does not exist",
)
def misspelt_cluster(subject: Subject) -> Iterator[Finding]:
    """A compute with nearly the name of a declared cluster is that cluster."""
    declared = {cluster.name for cluster in subject.clusters}
    for keys, text in fields(subject.spec.document.data):
        if keys[-1] not in _COMPUTE or not isinstance(text, str) or "${{" in text:
            continue
        name = text.removeprefix("azureml:")
        if name not in declared and (near := nearest(name, declared)):
            expected = f"a cluster of infra/Pulumi.ENV.yaml: {', '.join(sorted(declared))}"
            hint = f"did you mean `azureml:{near[0]}`?"
            actual = f"no stack file declares `{name}`"
            yield Finding(keys, actual, expected, hint, _severity(name, near[0]))


@rule(
    "unknown-asset",
    scope="spec",
    severity="warning",
    source="a job is refused where an asset that it names is not registered",
)
def unknown_asset(subject: Subject) -> Iterator[Finding]:
    """An asset of this repository has a version and a name that its spec defines."""
    versions: dict[tuple[str, str], set[str]] = {}
    for asset in assets.definitions(repository.root(subject.spec.file)):
        versions.setdefault((asset.kind, asset.name), set()).add(asset.version)
    for keys, text in strings(subject.spec.document.data):
        kind, reference = _kind(subject.spec, keys), assets.parse(text)
        if kind is None or reference is None or "${{" in text:
            continue
        if defined := versions.get((kind, reference.name)):
            if not reference.version and reference.label != "latest":
                actual = f"`{text}` has no version"
                expected = f"azureml:{reference.name}:VERSION, or @latest"
                yield Finding(keys, actual, expected, "the SDK refuses it when it submits the job")
            elif reference.version and reference.version not in defined:
                newest = max(defined, key=assets.newness)
                actual = f"no {kind} spec of this repository defines `{text}`"
                expected = f"version {', '.join(sorted(defined, key=assets.newness))}"
                hint = f"azureml:{reference.name}:{newest}, or register this version first"
                yield Finding(keys, actual, expected, hint)
        elif near := nearest(reference.name, {name for family, name in versions if family == kind}):
            actual = f"no {kind} spec of this repository is named `{reference.name}`"
            hint = f"did you mean `{near[0]}`?"
            severity = "warning" if kind == "data" else _severity(reference.name, near[0])
            yield Finding(keys, actual, f"a name of {kind}", hint, severity)


def _severity(name: str, near: str) -> Severity:
    """An error for a slip of the keyboard; another letter or digit, as in `ml-gpu` beside `ml-cpu`,
    may be the name of what others made.
    """
    short, long = sorted((name, near), key=len)
    one_less = {
        long[:place] + long[place + 1 :] for place, letter in enumerate(long) if letter.isalpha()
    }
    swapped = {
        near[:place] + near[place : place + 2][::-1] + near[place + 2 :]
        for place in range(len(near) - 1)
    }
    return "error" if name in swapped or short in one_less else "warning"


def _kind(spec: Spec, keys: tuple[Key, ...]) -> str | None:
    """The kind of asset that a text at these keys names; None for another text, and for models,
    which runs register.
    """
    if not keys or "tags" in keys or "environment_variables" in keys:
        return None
    if keys[-1] == "path" and "inputs" in keys:
        return "data" if str(spec.get(*keys[:-1], "type")) not in MODEL_TYPES else None
    family = FAMILIES.get(str(keys[-1]))
    return family if family in {"environment", "component"} else None
