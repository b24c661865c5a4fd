"""What a rule is: a name, a sentence, where it comes from, and what it finds."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from policies.infra.limits import Limits

AZURE = "azure-native"
UNKNOWN = "(not known before the update)"


@dataclass(frozen=True)
class Item:
    """A resource as a rule sees it; `uses` is input → URNs that it was made from.

    What only Azure knows is `UNKNOWN`, a whole list or object too. `kind` is the type without the
    provider. A rule of single resources sees the inputs and no `uses`; one of a whole stack the
    outputs, without names that are inputs alone (`computeName`, `privateZoneName`): it asks for
    `called`. `ignores` and `protected` are Pulumi's `ignoreChanges` and `protect`.
    """

    kind: str
    name: str
    urn: str
    props: Mapping[str, Any]
    uses: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    ignores: tuple[str, ...] = ()
    protected: bool = False

    def at(self, path: str, default: Any = None) -> Any:
        """The value at a dotted path, `default` where there is none, `UNKNOWN` within one."""
        value: Any = self.props
        for key in path.split("."):
            if value == UNKNOWN:
                return UNKNOWN
            if not isinstance(value, Mapping) or value.get(key) is None:
                return default
            value = value[key]
        return value

    def each(self, path: str) -> list[Item]:
        """The members of the list or mapping at a path, each as an item.

        One stands for a list that is not known: all that it is asked for is `UNKNOWN`.
        """
        found = self.at(path, ())
        if isinstance(found, Mapping):
            found = list(found.values())
        return [replace(self, props=one) for one in ([found] if found == UNKNOWN else found)]

    @property
    def called(self) -> str:
        """Its name in Azure; in a preview, which does not know that yet, the one in the program."""
        name = self.at("name", UNKNOWN)
        return self.name if name == UNKNOWN else str(name)


Check = Callable[[Item, Limits], Iterator[str]]
StackCheck = Callable[[Sequence[Item], Limits], Iterator[tuple[Item, str]]]


@dataclass(frozen=True)
class Rule:
    """A rule of single resources of some `kinds` (of any where it names none), or of a stack.

    `sources` cite the catalogues that ask for it; "own" is ours.
    """

    name: str
    says: str
    sources: str
    kinds: tuple[str, ...] = ()
    check: Check | None = None
    whole: StackCheck | None = None


def must(
    name: str,
    kind: str,
    path: str,
    allowed: Sequence[object],
    says: str,
    sources: str,
    default: object = None,
) -> Rule:
    """A rule that a value is one of `allowed`; `default` is what Azure takes where it is not."""

    def check(item: Item, limits: Limits) -> Iterator[str]:
        found = item.at(path, default)
        # 1 is True to Python, and nobody knows what it is to Azure.
        if not any(type(found) is type(one) and found == one for one in allowed):
            wanted = " or ".join(map(_shown, allowed))
            yield f"`{path}` is {_shown(found)}, must be {wanted}"

    return Rule(name, says, sources, (kind,), check)


def _shown(value: object) -> str:
    if value is None:
        return "not set"
    return str(value).lower() if isinstance(value, bool) else str(value)
