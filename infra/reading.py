"""A stack file read as the dataclass that says what may stand in it; every mistake has its line."""

from __future__ import annotations

import dataclasses
import difflib
import re
import types
import typing
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal, TypeVar, cast

from infra.fields import Rule, required, rule
from ml.core import documents
from ml.core.documents import Document, Key
from ml.core.errors import Place, Problem, Refused

PROJECT = "platform"
# What Pulumi itself writes into a stack file.
PULUMIS = frozenset({"config", "encryptionsalt", "secretsprovider", "encryptedkey", "environment"})
# Values that only ever stand encrypted: `pulumi config set --secret`.
SECRETS = frozenset({f"{PROJECT}:lake_sas"})
# What Pulumi encrypts to: base64, after its version and nonce where it has them. No SAS is that.
_CIPHERTEXT = re.compile(r"[A-Za-z0-9+/:=_-]+")
_DECIMAL = re.compile(r"-?(0|[1-9]\d*)")
T = TypeVar("T")
_MISSING = object()


def document(path: Path) -> Document:
    """The stack file; Refused when it is unreadable, ambiguous or not a mapping with `config`."""
    shown = f"{path.parent.name}/{path.name}"
    try:
        found = documents.read(path, shown)
    except Refused as refused:
        if [problem.code for problem in refused.problems] == ["empty-file"]:
            raise Refused(_no_config(shown, "no content")) from None
        raise
    if not isinstance(found.data, dict) or not isinstance(found.data.get("config"), dict):
        raise Refused(_no_config(shown, "no mapping `config`"))
    for key in found.data:
        if key not in PULUMIS:
            raise Refused(_unknown(found, (), key, PULUMIS))
    return found


def settings(kind: type[T], document: Document, **internal: object) -> T:
    """The dataclass that `config` states; Refused with every problem that was found."""
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
    given = document.get(*keys)
    top = keys == ("config",)
    if not isinstance(given, dict):
        names = [one.name for one in dataclasses.fields(kind) if not rule(one).internal]
        problems.append(_wrong(document, keys, given, "a mapping", f"its keys: {', '.join(names)}"))
        return None
    hints = typing.get_type_hints(kind)
    fields = {
        file_key(one, top=top): one for one in dataclasses.fields(kind) if not rule(one).internal
    }
    for key in given:
        if top and key in SECRETS:
            problems.extend(_secret(document, str(key)))
        elif key not in fields:
            problems.append(_unknown(document, keys, key, fields))
    values: dict[str, object] = dict(internal or {})
    before = len(problems)
    for key, one in fields.items():
        if key in given:
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
    given = document.get(*keys)
    said = rule(field_)
    kinds = [one for one in typing.get_args(hint) if one is not types.NoneType]
    if isinstance(hint, types.UnionType) or typing.get_origin(hint) is typing.Union:
        hint = kinds[0]
    if dataclasses.is_dataclass(hint):
        return _mapping(cast(type[Any], hint), document, keys, problems)
    if typing.get_origin(hint) is Literal:
        allowed = typing.get_args(hint)
        if given not in allowed:
            folded = {str(one).lower(): one for one in allowed}
            near = difflib.get_close_matches(str(given).lower(), folded, 1, 0.7)
            hint_ = f"did you mean `{folded[near[0]]}`?" if near else said.says
            problems.append(
                _wrong(document, keys, given, "one of: " + ", ".join(map(str, allowed)), hint_)
            )
        return given
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
    given = document.get(*keys)
    said = rule(field_)
    if not isinstance(given, list):
        problems.append(_wrong(document, keys, given, "a list: a dash before each item", said.says))
        return ()
    low, high = said.low or 0, said.high or len(given)
    if not low <= len(given) <= high:
        found = f"`{_dotted(keys)}` has {len(given)} items"
        expected = f"{low} to {high}" if said.high else f"{low} or more"
        problems.append(Problem("wrong-setting", found, expected, said.says, document.place(*keys)))
    if dataclasses.is_dataclass(kind):
        return tuple(
            _mapping(cast(type[Any], kind), document, (*keys, index), problems)
            for index in range(len(given))
        )
    bare = dataclasses.field(metadata={"rule": dataclasses.replace(said, low=None, high=None)})
    return tuple(
        _scalar(kind, bare, document, (*keys, index), problems) for index in range(len(given))
    )


def _scalar(
    kind: type[Any],
    field_: dataclasses.Field[Any],
    document: Document,
    keys: tuple[Key, ...],
    problems: list[Problem],
) -> Any:
    """A text, a whole number, or true or false; YAML's `yes` is a bool and `"4"` is a text."""
    given = document.get(*keys)
    said = rule(field_)
    if kind is bool:
        if not isinstance(given, bool):
            hint = "write it without quotes" if given in ("true", "false") else said.says
            problems.append(_wrong(document, keys, given, "true or false", hint))
    elif kind is int:
        low = 0 if said.low is None else said.low
        expected = f"a whole number from {low} to {said.high}"
        whole = isinstance(given, int) and not isinstance(given, bool)
        written = document.written(*keys)
        if not whole or not low <= given <= cast(int, said.high):
            digits = isinstance(given, str) and given.isdecimal()
            hint = "write the digits alone, without quotes" if digits else said.says
            problems.append(_wrong(document, keys, given, expected, hint))
        elif written is not None and not _DECIMAL.fullmatch(written):
            found = f"`{_dotted(keys)}` is written `{written}`, which YAML reads as {given}"
            hint = "write the digits alone"
            problems.append(Problem("wrong-setting", found, expected, hint, document.place(*keys)))
    elif not isinstance(given, str) or (said.form and not said.form.fits(given)):
        expected = said.form.words if said.form else "a text"
        hint = _text_hint(document.written(*keys), said, quoted=isinstance(given, str))
        problems.append(_wrong(document, keys, given, expected, hint))
    return given


def _text_hint(written: str | None, said: Rule, *, quoted: bool) -> str:
    """What to write instead of a text that does not fit, where that can be told."""
    if written is None or written == "":
        return said.says
    if not quoted and (said.form is None or said.form.fits(written)):
        return "put it in quotes"
    lower = written.strip().lower()
    near = [re.sub(r"[\s_]+", "-", lower), re.sub(r"\s+", "", lower)]
    meant = next((one for one in near if said.form and said.form.fits(one)), None)
    return f"did you mean `{meant}`?" if meant else said.says


def _wrong(
    document: Document, keys: tuple[Key, ...], given: object, expected: str, hint: str = ""
) -> Problem:
    shown = repr(given) if isinstance(given, str) else _plain(given)
    found = f"`{_dotted(keys)}` is {shown if len(shown) <= 80 else shown[:77] + '…'}"
    return Problem("wrong-setting", found, expected, hint, document.place(*keys))


def _plain(given: object) -> str:
    if given is None:
        return "empty"
    if isinstance(given, bool):
        return str(given).lower()
    if isinstance(given, list):
        return "a list"
    return "a mapping" if isinstance(given, dict) else str(given)


def _unknown(
    document: Document, keys: tuple[Key, ...], key: Key, known: typing.Iterable[str]
) -> Problem:
    """Names are compared without what they share: `azure-native:` alone is no likeness."""
    names = sorted(known)
    bare = {name.split(":")[-1]: name for name in names}
    near = difflib.get_close_matches(str(key).split(":")[-1], bare, 1)
    hint = f"did you mean `{bare[near[0]]}`?" if near else "delete it"
    inside = _dotted(keys)
    shown = key if isinstance(key, str) else _plain(key)
    found = f"`{shown}` is no setting" + (f" of `{inside}`" if inside else "")
    return Problem(
        "unknown-setting", found, "one of: " + ", ".join(names), hint, document.place(*keys, key)
    )


def _secret(document: Document, key: str) -> list[Problem]:
    given = document.get("config", key)
    secure = given.get("secure") if isinstance(given, dict) and len(given) == 1 else None
    if isinstance(secure, str) and _CIPHERTEXT.fullmatch(secure):
        return []
    # What stands there may be the secret: it is not shown.
    return [
        Problem(
            "secret-in-the-open",
            f"`{key}` stands in the file unencrypted",
            "secure: …",
            f"pulumi config set --secret {key}, and take the one that was there out of use",
            document.place("config", key),
        )
    ]


def _dotted(keys: tuple[Key, ...]) -> str:
    words = ""
    for key in keys[1:] if keys[:1] == ("config",) else keys:
        words += f"[{key}]" if isinstance(key, int) else f".{key}" if words else str(key)
    return words


def _no_config(shown: str, found: str) -> Problem:
    hint = f"begin with `config:` and the keys below it; another Pulumi.<env>.yaml beside {shown}"
    return Problem("no-config", found, "a mapping `config`", hint + " shows them", Place(shown, 1))
