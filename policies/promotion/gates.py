"""Loading gates.yml: the floor, and a project's file that may only tighten it."""

from __future__ import annotations

import difflib
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import TypeVar, cast

import yaml

from policies.promotion import reviews, waivers
from policies.promotion.decision import Mode
from policies.promotion.reviews import Review
from policies.promotion.settings import SETTINGS, Bounds, Names, Numbers, checked, merged, shown
from policies.promotion.waivers import Waiver

FLOOR = Path(__file__).with_name("gates.yml")
SCHEMA_VERSION = 1
# A project's file; the floor waives and reviews nothing, because it would for everybody.
_TOP = ("schema_version", "gates", "waivers", "reviews")
_EXAMPLES = {
    "waiver": "{gate: latency, reason: WHY, owner: NAME, expires: 2025-06-30}",
    "review": "{gate: fairness, version: 7, finding: WHAT, owner: NAME, expires: 2025-12-31}",
}


class GatesError(Exception):
    """A gates.yml that cannot be used: where, what was found, what was expected, what to type."""

    def __init__(
        self, code: str, path: Path, line: int, found: str, expected: str, hint: str = ""
    ) -> None:
        self.code = code
        self.path = path
        self.line = line
        self.found = found
        self.expected = expected
        self.hint = hint
        super().__init__(f"{path}:{line}: {found}; expected {expected}")


@dataclass(frozen=True)
class Gate:
    """One gate as it stands for a project, checked and typed."""

    name: str
    mode: Mode
    settings: Mapping[str, object]
    waivers: tuple[Waiver, ...] = ()
    reviews: tuple[Review, ...] = ()

    def number(self, setting: str) -> float:
        """A maximum or a minimum."""
        return cast(float, self.settings[setting])

    def names(self, setting: str) -> Names:
        """An allow-list or a list of demands."""
        return cast(Names, self.settings[setting])

    def numbers(self, setting: str) -> Numbers:
        """Floors or ceilings, by `split.metric`."""
        return cast(Numbers, self.settings[setting])

    def bounds(self, setting: str) -> Bounds:
        """The lowest and the highest value that a metric can have, by its name."""
        return cast(Bounds, self.settings[setting])


Gates = Mapping[str, Gate]
_Word = TypeVar("_Word", Waiver, Review)


def load(project: Path | None = None, floor: Path = FLOOR, *, shown: str = "") -> Gates:
    """Every gate, as the floor sets it and the project's file tightens it.

    `shown` is the project's file as a waiver's place names it. Raises GatesError when a file is
    unreadable, names an unknown gate or setting, has a value of the wrong type, when the floor
    leaves a setting out or waives a gate, when the project's file is looser, or when a waiver or a
    review of it is none.
    """
    stated, *_ = _read(floor, ("schema_version", "gates"))
    values: dict[tuple[str, str], object] = {}
    for gate, settings in SETTINGS.items():
        for setting in ("mode", *settings):
            if (gate, setting) not in stated:
                found = f"no `{gate}.{setting}`"
                raise GatesError("gate-missing", floor, 1, found, "every setting of every gate")
            values[gate, setting] = stated[gate, setting].value
    tighter, waived, reviewed = _read(project, _TOP, shown) if project else ({}, (), ())
    for (gate, setting), own in tighter.items():
        values[gate, setting] = own.judged(
            f"{gate}.{setting}",
            partial(merged, gate=gate, setting=setting, floor=values[gate, setting]),
            "gate-looser-than-floor",
            "a project only tightens; to loosen it for everybody, change the floor itself",
        )
    return {
        gate: Gate(
            gate,
            cast(Mode, values[gate, "mode"]),
            {setting: values[gate, setting] for setting in settings},
            tuple(waiver for waiver in waived if waiver.gate == gate),
            tuple(review for review in reviewed if review.gate == gate),
        )
        for gate, settings in SETTINGS.items()
    }


@dataclass(frozen=True)
class _Stated:
    """What a file states; `lines` are those of a mapping's entries."""

    value: object
    path: Path
    line: int
    lines: Mapping[object, int]

    def judged(self, name: str, judge: Callable[[object], object], code: str, hint: str) -> object:
        """What `judge` makes of it; GatesError, of a mapping at the first entry that it refuses."""
        try:
            return judge(self.value)
        except ValueError as error:
            refused, line, value, expected = name, self.line, self.value, str(error)
        for key, of in self.value.items() if isinstance(self.value, Mapping) else ():
            try:
                judge({key: of})
            except ValueError as error:
                refused, line, value, expected = f"{name}.{key}", self.lines[key], of, str(error)
                break
        raise GatesError(code, self.path, line, f"`{refused}` is {shown(value)}", expected, hint)


def _read(
    path: Path, keys: Iterable[str], shown: str = ""
) -> tuple[dict[tuple[str, str], _Stated], tuple[Waiver, ...], tuple[Review, ...]]:
    """(gate, setting) → what the file states, checked, with its line; its waivers and reviews.

    `mode` is a setting here.
    """
    try:
        root = yaml.compose(path.read_text(encoding="utf-8"), Loader=yaml.SafeLoader)
    except (OSError, UnicodeDecodeError) as error:
        raise GatesError("gates-unreadable", path, 1, str(error), "a readable YAML file") from None
    except yaml.MarkedYAMLError as error:
        line = error.problem_mark.line + 1 if error.problem_mark else 1
        raise GatesError("gates-unreadable", path, line, str(error.problem), "YAML") from None
    top = dict(_items(root, path, keys))
    version = _plain(top["schema_version"], path) if "schema_version" in top else "missing"
    if version != SCHEMA_VERSION:
        found = f"`schema_version` is {version}"
        raise GatesError("gates-version", path, 1, found, f"schema_version: {SCHEMA_VERSION}")
    stated: dict[tuple[str, str], _Stated] = {}
    for gate, body in _items(top["gates"], path, SETTINGS) if "gates" in top else ():
        for setting, node in _items(body, path, ("mode", *SETTINGS[gate])):
            as_is = _Stated(_plain(node, path), path, node.start_mark.line + 1, _lines(node, path))
            judge = partial(checked, gate=gate, setting=setting)
            value = as_is.judged(f"{gate}.{setting}", judge, "wrong-value", "")
            stated[gate, setting] = replace(as_is, value=value)
    at = shown or str(path)
    return (
        stated,
        tuple(_listed(top.get("waivers"), path, at, "waiver", waivers.KEYS, waivers.checked)),
        tuple(_listed(top.get("reviews"), path, at, "review", reviews.KEYS, reviews.checked)),
    )


def _listed(
    node: yaml.Node | None,
    path: Path,
    shown: str,
    what: str,
    keys: Iterable[str],
    checked: Callable[[Mapping[str, object], str], _Word],
) -> Iterator[_Word]:
    """The waivers or reviews of a file; one that is none is refused: nobody is to count on it."""
    if node is None:
        return
    if not isinstance(node, yaml.SequenceNode):
        line, found = node.start_mark.line + 1, f"`{what}s` is no list"
        raise GatesError("wrong-value", path, line, found, f"a list of {what}s")
    for one in node.value:
        line = one.start_mark.line + 1
        stated = {key: _plain(of, path) for key, of in _items(one, path, keys)}
        try:
            yield checked(stated, f"{shown}:{line}")
        except ValueError as error:
            about = f"a {what} of `{stated.get('gate', 'no gate')}`"
            hint = f"a {what} such as {_EXAMPLES[what]}"
            raise GatesError(f"no-{what}", path, line, about, str(error), hint) from None


def _items(
    node: yaml.Node | None, path: Path, known: Iterable[str]
) -> Iterator[tuple[str, yaml.Node]]:
    """The keys of a mapping with their nodes; unknown and repeated keys are refused."""
    line = node.start_mark.line + 1 if node else 1
    if not isinstance(node, yaml.MappingNode):
        found = f"`{node.value}`" if isinstance(node, yaml.ScalarNode) else "no mapping"
        raise GatesError("wrong-value", path, line, found, "a mapping")
    names, seen = tuple(known), set()
    for key_node, value in node.value:
        key, line = str(key_node.value), key_node.start_mark.line + 1
        if key in seen:
            raise GatesError("duplicate-key", path, line, f"`{key}` twice", "each key once")
        if key not in names:
            close = difflib.get_close_matches(key, names, 1)
            hint = f"did you mean `{close[0]}`?" if close else ""
            raise GatesError("unknown-field", path, line, f"`{key}`", ", ".join(names), hint)
        seen.add(key)
        yield key, value


def _lines(node: yaml.Node, path: Path) -> Mapping[object, int]:
    """The line of every entry of a mapping; one that is there twice is refused."""
    lines: dict[object, int] = {}
    for key, _ in node.value if isinstance(node, yaml.MappingNode) else ():
        name, line = _plain(key, path), key.start_mark.line + 1
        if name in lines:
            raise GatesError("duplicate-key", path, line, f"`{name}` twice", "each key once")
        lines[name] = line
    return lines


def _plain(node: yaml.Node, path: Path) -> object:
    try:
        return yaml.SafeLoader("").construct_document(node)
    except (yaml.MarkedYAMLError, ValueError) as error:  # ValueError: the 31st of February
        line = node.start_mark.line + 1
        why = str(getattr(error, "problem", error))
        raise GatesError("gates-unreadable", path, line, why, "YAML") from None
