"""Reading a release.yml: every problem with its file and line, or what it declares."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pydantic import TypeAdapter, ValidationError

from ml.core import documents, repository
from ml.core.documents import Document, Key
from ml.core.errors import Problem, Refused, nearest
from ml.release.declaration import strategy
from ml.release.declaration.declaration import DECLARED, TRACKED_FILE, Entry, schema
from ml.release.declaration.strategy import Strategy, StrategyError


@dataclass(frozen=True)
class ReleaseFile:
    """A file that was read without a problem."""

    document: Document
    entries: Mapping[str, Entry]
    strategies: Mapping[str, Strategy]

    def strategy(self, environment: str) -> Strategy:
        """How a canary is led there; the project's own way where nothing else is said."""
        return self.strategies.get(environment, self.strategies[""])


def read(path: Path, of: TypeAdapter[Any] = TRACKED_FILE) -> ReleaseFile:
    """The file at `path`; raises Refused with every problem found, each with its line."""
    document = documents.read(path, repository.shown(path))
    try:
        stated = of.validate_python(document.data)
    except ValidationError as error:
        raise Refused(*_told(error, document, schema(of))) from None
    found = {name: entry for name, entry in vars(stated.environments).items() if entry is not None}
    problems = [problem for name in found for problem in _parts(name, found[name], document)]
    strategies: dict[str, Strategy] = {}
    for name in ("", *found):
        try:
            strategies[name] = strategy.made(_traffic(document, name))
        except StrategyError as error:
            problems.append(_unfit(error, name, document))
            if not name:  # what an environment says rests on it
                break
    if problems:
        raise Refused(*problems)
    return ReleaseFile(document, found, strategies)


def _traffic(document: Document, environment: str) -> dict[str, Any]:
    """The project's `traffic` with the environment's over it, field by field."""
    whole = dict(document.get("traffic") or {})
    own = (document.get("environments", environment, "traffic") if environment else None) or {}
    tolerances = {**whole.get("tolerances", {}), **own.get("tolerances", {})}
    return {**whole, **own, **({"tolerances": tolerances} if tolerances else {})}


def _parts(name: str, entry: Entry, document: Document) -> Iterator[Problem]:
    """A declaration is whole or not there."""
    missing = [part for part in DECLARED if not getattr(entry, part)]
    if missing and (len(missing) < len(DECLARED) or entry.reason):
        yield Problem(
            "half-declared",
            f"`{name}` has no {', no '.join(f'`{part}`' for part in missing)}",
            ", ".join(DECLARED),
            f"`ml release propose PROJECT --env {name}` writes them",
            document.place("environments", name),
        )


def _unfit(error: StrategyError, environment: str, document: Document) -> Problem:
    own = ("environments", environment, "traffic")
    keys = own if environment and document.get(*own, error.field) is not None else ("traffic",)
    where = f" in {environment}" if environment else ""
    place = document.place(*keys, error.field)
    return Problem("wrong-value", f"{error.found}{where}", error.expected, place=place)


# pydantic's words → ours, with what it says beside them.
_EXPECTED = {
    "missing": "it",
    "int_type": "a whole number",
    "float_type": "a number",
    "finite_number": "a finite number",
    "string_type": "a text",
    "tuple_type": "a list",
    "dataclass_type": "a mapping",
    "literal_error": "{expected}",
    "greater_than": "more than {gt:g}",
    "greater_than_equal": "at least {ge:g}",
    "less_than_equal": "at most {le:g}",
    "too_short": "at least {min_length}",
    "string_too_short": "a text that is not empty",
    "string_pattern_mismatch": "a text that matches {pattern}",
}


def _told(
    error: ValidationError, document: Document, schema: Mapping[str, Any]
) -> Iterator[Problem]:
    every = error.errors(include_url=False)
    for one in every:
        keys: tuple[Key, ...] = one["loc"]
        if any(other["loc"][: len(keys)] == keys != other["loc"] for other in every):
            continue  # a list whose items are wrong counts as too short as well
        name, kind = ".".join(map(str, keys)) or "the file", one["type"]
        place = document.place(*keys)
        if kind == "unexpected_keyword_argument":
            known = list(_at(schema, keys[:-1]).get("properties", {}))
            near = nearest(str(keys[-1]), known)
            hint = f"did you mean `{near[0]}`?" if near else ""
            yield Problem("unknown-field", f"`{name}`", ", ".join(known), hint, place)
            continue
        expected = _EXPECTED.get(kind, one["msg"]).format(**one.get("ctx", {}))
        found = f"no `{name}`" if kind == "missing" else f"`{name}` is {_shown(one['input'])}"
        code = "missing-field" if kind == "missing" else "wrong-value"
        yield Problem(code, found, expected, _at(schema, keys).get("description", ""), place)


def _shown(value: object) -> str:
    text = "nothing" if value is None else str(value)
    return text if len(text) <= 60 else f"{text[:57]}…"


def _at(schema: Mapping[str, Any], keys: tuple[Key, ...]) -> Mapping[str, Any]:
    """What the schema says of the value at `keys`; empty where it says nothing."""
    found: Mapping[str, Any] = schema
    for key in (None, *keys):
        if key is not None:
            said = found.get("properties", {}).get(key) or found.get("items") or {}
            found = said if isinstance(key, str) or "items" in found else {}
        for choice in found.get("anyOf", ()):
            found = choice if "$ref" in choice else found
        if "$ref" in found:
            name = found["$ref"].rpartition("/")[2]
            found = {**schema["$defs"][name], **{k: v for k, v in found.items() if k != "$ref"}}
    return found
