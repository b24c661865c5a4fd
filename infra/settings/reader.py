"""Reads a stack file into a dataclass; every mistake is reported with its line.

`field` declares a field: a sentence for people, a form, bounds.
"""

from __future__ import annotations

import dataclasses
import difflib
import re
import types
import typing
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, TypeVar, cast

from ml.core import documents
from ml.core.documents import Document, Key
from ml.core.errors import Place, Problem, Refused


@dataclass(frozen=True)
class Form:
    """The form of a string: a pattern that matches all of it, and the same in words."""

    pattern: str
    words: str

    def fits(self, text: str) -> bool:
        """Whether a string has the form."""
        return re.fullmatch(self.pattern, text, re.ASCII) is not None


@dataclass(frozen=True)
class Rule:
    """What a value must be besides its type.

    Bounds are inclusive and count the items of a list; `key` is the key in the stack file where it
    differs from the field's name; an `internal` field is not in the file.
    """

    says: str
    form: Form | None = None
    low: int | None = None
    high: int | None = None
    key: str = ""
    internal: bool = False


def field(
    says: str,
    default: Any = dataclasses.MISSING,
    *,
    form: Form | None = None,
    low: int | None = None,
    high: int | None = None,
    key: str = "",
    internal: bool = False,
) -> Any:
    """A dataclass field with its rule; without a default the stack file must have it."""
    metadata = {"rule": Rule(says, form, low, high, key, internal)}
    if default is dataclasses.MISSING:
        return dataclasses.field(metadata=metadata)
    if callable(default):
        return dataclasses.field(default_factory=default, metadata=metadata)
    return dataclasses.field(default=default, metadata=metadata)


def rule(field_: dataclasses.Field[Any]) -> Rule:
    """The rule that a field was declared with."""
    declared = field_.metadata["rule"]
    assert isinstance(declared, Rule)
    return declared


def required(field_: dataclasses.Field[Any]) -> bool:
    """Whether the stack file must state the field."""
    return field_.default is dataclasses.MISSING and field_.default_factory is dataclasses.MISSING


PROJECT = "platform"
# Keys of a stack file that Pulumi writes.
PULUMIS = frozenset({"config", "encryptionsalt", "secretsprovider", "encryptedkey", "environment"})
# Values that must be encrypted: `pulumi config set --secret`.
SECRETS = frozenset({f"{PROJECT}:lake_sas"})
# Pulumi's ciphertext: base64, optionally after a version and a nonce. A SAS does not match.
_CIPHERTEXT = re.compile(r"[A-Za-z0-9+/:=_-]+")
_DECIMAL = re.compile(r"-?(0|[1-9]\d*)")
T = TypeVar("T")
_MISSING = object()


def document(path: Path) -> Document:
    """The stack file; Refused if it is unreadable, ambiguous or not a mapping with `config`."""
    shown = f"{path.parent.name}/{path.name}"
    try:
        document_ = documents.read(path, shown)
    except Refused as refused:
        if [problem.code for problem in refused.problems] == ["empty-file"]:
            raise Refused(_no_config(shown, "no content")) from None
        raise
    if not isinstance(document_.data, dict) or not isinstance(document_.data.get("config"), dict):
        raise Refused(_no_config(shown, "no mapping `config`"))
    for key in document_.data:
        if key not in PULUMIS:
            raise Refused(_unknown(document_, (), key, PULUMIS))
    return document_


def settings(kind: type[T], document: Document, **internal: object) -> T:
    """`config` as the dataclass `kind`; Refused with every problem."""
    problems: list[Problem] = []
    value = _mapping(kind, document, ("config",), problems, internal)
    if problems:
        raise Refused(*problems)
    return cast(T, value)


def file_key(field_: dataclasses.Field[Any], *, top: bool) -> str:
    """The key of a field in the stack file."""
    return rule(field_).key or (f"{PROJECT}:{field_.name}" if top else field_.name)


def _mapping(
    kind: type[Any],
    document: Document,
    keys: tuple[Key, ...],
    problems: list[Problem],
    internal: Mapping[str, object] | None = None,
) -> Any:
    value = document.get(*keys)
    top = keys == ("config",)
    if not isinstance(value, dict):
        names = [one.name for one in dataclasses.fields(kind) if not rule(one).internal]
        problems.append(_wrong(document, keys, value, "a mapping", f"its keys: {', '.join(names)}"))
        return None
    hints = typing.get_type_hints(kind)
    fields = {
        file_key(one, top=top): one for one in dataclasses.fields(kind) if not rule(one).internal
    }
    for key in value:
        if top and key in SECRETS:
            problems.extend(_secret(document, str(key)))
        elif key not in fields:
            problems.append(_unknown(document, keys, key, fields))
    values: dict[str, object] = dict(internal or {})
    before = len(problems)
    for key, one in fields.items():
        if key in value:
            values[one.name] = _value(hints[one.name], one, document, (*keys, key), problems)
        elif required(one):
            says, form = rule(one).says, rule(one).form
            problems.append(
                Problem(
                    "missing-setting",
                    f"no `{key}`" + ("" if top else f" in `{_dotted(keys)}`"),
                    form.words if form else says,
                    f"add `{key}:` ({says})",
                    document.place(*keys),
                )
            )
    return None if len(problems) > before else kind(**values)


def _value(
    hint: Any,
    field_: dataclasses.Field[Any],
    document: Document,
    keys: tuple[Key, ...],
    problems: list[Problem],
) -> Any:
    value = document.get(*keys)
    rule_ = rule(field_)
    kinds = [one for one in typing.get_args(hint) if one is not types.NoneType]
    if isinstance(hint, types.UnionType) or typing.get_origin(hint) is typing.Union:
        hint = kinds[0]
    if dataclasses.is_dataclass(hint):
        return _mapping(cast(type[Any], hint), document, keys, problems)
    if typing.get_origin(hint) is Literal:
        allowed = typing.get_args(hint)
        if value not in allowed:
            folded = {str(one).lower(): one for one in allowed}
            near = difflib.get_close_matches(str(value).lower(), folded, 1, 0.7)
            hint_ = f"did you mean `{folded[near[0]]}`?" if near else rule_.says
            problems.append(
                _wrong(document, keys, value, "one of: " + ", ".join(map(str, allowed)), hint_)
            )
        return value
    if typing.get_origin(hint) is tuple:
        return _items(typing.get_args(hint)[0], field_, document, keys, problems)
    return _scalar(hint, field_, document, keys, problems)


def _items(
    kind: Any,
    field_: dataclasses.Field[Any],
    document: Document,
    keys: tuple[Key, ...],
    problems: list[Problem],
) -> tuple[Any, ...]:
    value = document.get(*keys)
    rule_ = rule(field_)
    if not isinstance(value, list):
        problems.append(
            _wrong(document, keys, value, "a list: a dash before each item", rule_.says)
        )
        return ()
    low, high = rule_.low or 0, rule_.high or len(value)
    if not low <= len(value) <= high:
        found = f"`{_dotted(keys)}` has {len(value)} items"
        expected = f"{low} to {high}" if rule_.high else f"{low} or more"
        problems.append(
            Problem("wrong-setting", found, expected, rule_.says, document.place(*keys))
        )
    if dataclasses.is_dataclass(kind):
        return tuple(
            _mapping(cast(type[Any], kind), document, (*keys, index), problems)
            for index in range(len(value))
        )
    bare = dataclasses.field(metadata={"rule": dataclasses.replace(rule_, low=None, high=None)})
    return tuple(
        _scalar(kind, bare, document, (*keys, index), problems) for index in range(len(value))
    )


def _scalar(
    kind: type[Any],
    field_: dataclasses.Field[Any],
    document: Document,
    keys: tuple[Key, ...],
    problems: list[Problem],
) -> Any:
    """A string, a whole number, or true or false; YAML's `yes` is a bool and `"4"` a string."""
    value = document.get(*keys)
    rule_ = rule(field_)
    if kind is bool:
        if not isinstance(value, bool):
            hint = "write it without quotes" if value in ("true", "false") else rule_.says
            problems.append(_wrong(document, keys, value, "true or false", hint))
    elif kind is int:
        low = 0 if rule_.low is None else rule_.low
        expected = f"a whole number from {low} to {rule_.high}"
        whole = isinstance(value, int) and not isinstance(value, bool)
        written = document.written(*keys)
        if not whole or not low <= value <= cast(int, rule_.high):
            digits = isinstance(value, str) and value.isdecimal()
            hint = "write the digits alone, without quotes" if digits else rule_.says
            problems.append(_wrong(document, keys, value, expected, hint))
        elif written is not None and not _DECIMAL.fullmatch(written):
            found = f"`{_dotted(keys)}` is written `{written}`, which YAML reads as {value}"
            hint = "write the digits alone"
            problems.append(Problem("wrong-setting", found, expected, hint, document.place(*keys)))
    elif not isinstance(value, str) or (rule_.form and not rule_.form.fits(value)):
        expected = rule_.form.words if rule_.form else "a string"
        hint = _text_hint(document.written(*keys), rule_, quoted=isinstance(value, str))
        problems.append(_wrong(document, keys, value, expected, hint))
    return value


def _text_hint(written: str | None, rule_: Rule, *, quoted: bool) -> str:
    """What to write instead of a string that does not fit."""
    if written is None or written == "":
        return rule_.says
    if not quoted and (rule_.form is None or rule_.form.fits(written)):
        return "put it in quotes"
    lower = written.strip().lower()
    near = [re.sub(r"[\s_]+", "-", lower), re.sub(r"\s+", "", lower)]
    meant = next((one for one in near if rule_.form and rule_.form.fits(one)), None)
    return f"did you mean `{meant}`?" if meant else rule_.says


def _wrong(
    document: Document, keys: tuple[Key, ...], value: object, expected: str, hint: str = ""
) -> Problem:
    shown = repr(value) if isinstance(value, str) else _plain(value)
    found = f"`{_dotted(keys)}` is {shown if len(shown) <= 80 else shown[:77] + '…'}"
    return Problem("wrong-setting", found, expected, hint, document.place(*keys))


def _plain(value: object) -> str:
    if value is None:
        return "empty"
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, list):
        return "a list"
    return "a mapping" if isinstance(value, dict) else str(value)


def _unknown(
    document: Document, keys: tuple[Key, ...], key: Key, known: typing.Iterable[str]
) -> Problem:
    """Names are compared without their prefix, which many share."""
    names = sorted(known)
    bare = {name.split(":")[-1]: name for name in names}
    near = difflib.get_close_matches(str(key).split(":")[-1], bare, 1)
    hint = f"did you mean `{bare[near[0]]}`?" if near else "delete it"
    inside = _dotted(keys)
    shown = key if isinstance(key, str) else _plain(key)
    found = f"`{shown}` is not a setting" + (f" of `{inside}`" if inside else "")
    return Problem(
        "unknown-setting", found, "one of: " + ", ".join(names), hint, document.place(*keys, key)
    )


def _secret(document: Document, key: str) -> list[Problem]:
    value = document.get("config", key)
    secure = value.get("secure") if isinstance(value, dict) and len(value) == 1 else None
    if isinstance(secure, str) and _CIPHERTEXT.fullmatch(secure):
        return []
    # The value may be the secret: do not show it.
    return [
        Problem(
            "secret-in-the-open",
            f"`{key}` is in the file unencrypted",
            "secure: …",
            f"pulumi config set --secret {key}, and revoke the old value",
            document.place("config", key),
        )
    ]


def _dotted(keys: tuple[Key, ...]) -> str:
    words = ""
    for key in keys[1:] if keys[:1] == ("config",) else keys:
        words += f"[{key}]" if isinstance(key, int) else f".{key}" if words else str(key)
    return words


def _no_config(shown: str, found: str) -> Problem:
    hint = f"begin with `config:` and its keys; see another Pulumi.<env>.yaml beside {shown}"
    return Problem("no-config", found, "a mapping `config`", hint, Place(shown, 1))
