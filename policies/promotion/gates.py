"""Loading gates.yml: the floor, and a project's file that may only tighten it."""

from __future__ import annotations

import difflib
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar, cast

import yaml

from policies.promotion import reviews, waivers
from policies.promotion.decision import Mode
from policies.promotion.reviews import Review
from policies.promotion.settings import SETTINGS, Bounds, Names, Numbers, checked, merged
from policies.promotion.waivers import Waiver

FLOOR = Path(__file__).with_name("gates.yml")
SCHEMA_VERSION = 1
# A project's file; the floor waives and reviews nothing, because it would for everybody.
_TOP = ("schema_version", "gates", "waivers", "reviews")


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
        try:
            values[gate, setting] = merged(own.value, gate, setting, values[gate, setting])
        except ValueError as error:
            raise GatesError(
                "gate-looser-than-floor",
                own.path,
                own.line,
                f"`{gate}.{setting}` is {_shown(own.value)}",
                str(error),
                "a project only tightens; to loosen it for everybody, change the floor itself",
            ) from None
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
    value: object
    path: Path
    line: int


def _shown(value: object) -> str:
    return "[" + ", ".join(value) + "]" if isinstance(value, tuple) else str(value)


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
            line = node.start_mark.line + 1
            value = _plain(node, path)
            try:
                stated[gate, setting] = _Stated(checked(value, gate, setting), path, line)
            except ValueError as error:
                found = f"`{gate}.{setting}` is {value}"
                raise GatesError("wrong-value", path, line, found, str(error)) from None
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
            hint = "it names the gate, what is found, an owner and the day on which it expires"
            raise GatesError(f"no-{what}", path, line, about, str(error), hint) from None


def _items(
    node: yaml.Node | None, path: Path, known: Iterable[str]
) -> Iterator[tuple[str, yaml.Node]]:
    """The keys of a mapping with their nodes; unknown and repeated keys are refused."""
    line = node.start_mark.line + 1 if node else 1
    if not isinstance(node, yaml.MappingNode):
        raise GatesError("wrong-value", path, line, "no mapping", "a mapping")
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


def _plain(node: yaml.Node, path: Path) -> object:
    try:
        return yaml.SafeLoader("").construct_document(node)
    except (yaml.MarkedYAMLError, ValueError) as error:  # ValueError: the 31st of February
        line = node.start_mark.line + 1
        why = str(getattr(error, "problem", error))
        raise GatesError("gates-unreadable", path, line, why, "YAML") from None
