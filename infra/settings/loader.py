"""Loads stack files: which exist, their checked settings, and their JSON Schema."""

from __future__ import annotations

import dataclasses
import difflib
import re
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from infra.settings import checks
from infra.settings.model import Settings, StackFile
from ml.core import documents
from ml.core import settings as reader
from ml.core.documents import Document, Key
from ml.core.errors import Place, Problem, Refused, nearest
from ml.core.imports import ROOT

FOLDER = ROOT / "infra"
# Keys of a stack file that Pulumi writes.
PULUMI_KEYS = frozenset(
    {"config", "encryptionsalt", "secretsprovider", "encryptedkey", "environment"}
)
# Values that must be encrypted: `pulumi config set --secret`.
SECRETS = frozenset({"platform:lake_sas"})
# What the stack files of the template hold until a fork writes its own.
PLACEHOLDERS = ("00000000-0000-0000-0000-000000000000", "your-organisation", "@example.com")
# Pulumi's ciphertext: base64, optionally after a version and a nonce. A SAS does not match.
_CIPHERTEXT = re.compile(r"[A-Za-z0-9+/:=_-]+")
_DECIMAL = re.compile(r"-?(0|[1-9]\d*)")


def stacks(folder: Path = FOLDER) -> tuple[str, ...]:
    """The environments that have a stack file, by name."""
    files = folder.glob("Pulumi.*.yaml")
    return tuple(sorted(path.name.removeprefix("Pulumi.").removesuffix(".yaml") for path in files))


def select(names: Sequence[str] | None, folder: Path = FOLDER) -> Sequence[str]:
    """`names`, or all environments where it is empty; Refused where there is none."""
    selected = names or stacks(folder)
    if not selected:
        expected, hint = "at least one environment", "write Pulumi.dev.yaml there"
        raise Refused(Problem("no-stack", f"no stack file in {folder.name}/", expected, hint))
    return selected


def load(stack: str, folder: Path = FOLDER) -> Settings:
    """The settings of a stack; Refused with every problem of its file, each with line and key."""
    existing = stacks(folder)
    if stack not in existing:
        near = difflib.get_close_matches(stack.lower(), existing, 1)
        hint = f"did you mean `{near[0]}`?" if near else "write Pulumi.STACK.yaml beside the others"
        if (folder / f"Pulumi.{stack}.yml").exists():
            hint = f"rename Pulumi.{stack}.yml: Pulumi only reads .yaml"
        expected = f"one of: {', '.join(existing) or 'none'}"
        raise Refused(Problem("unknown-stack", f"no stack {stack!r}", expected, hint))
    document = _document(folder / f"Pulumi.{stack}.yaml")
    problems = [*_open_secrets(document), *_other_notations(document)]
    config = {key: value for key, value in document.data["config"].items() if key not in SECRETS}
    try:
        public = dataclasses.replace(document, data={**document.data, "config": config})
        file = reader.read(StackFile, public, "config")
    except Refused as refused:
        raise Refused(*refused.problems, *problems) from None
    values = {field.name: getattr(file, field.name) for field in dataclasses.fields(StackFile)}
    settings = Settings(environment=stack, **values)
    problems.extend(checks.problems(settings, document))
    if problems:
        raise Refused(*problems)
    return settings


def placeholders(stack: str, folder: Path = FOLDER) -> Iterator[Problem]:
    """Settings of a stack that still hold the template's own values, each with its line."""
    document = _document(folder / f"Pulumi.{stack}.yaml")
    for key, value in document.data["config"].items():
        for placeholder in PLACEHOLDERS:
            if placeholder in str(value):
                message = f"`{key}` is the template's placeholder"
                hint = "write your own value into the stack file"
                place = document.place("config", key)
                yield Problem("placeholder", message, "a value of yours", hint, place)


def schema() -> dict[str, Any]:
    """The JSON Schema (draft 2020-12) of a stack file, without the checks across settings."""
    config = dict(reader.schema(StackFile))
    secret = {"type": "object", "required": ["secure"], "properties": {"secure": {}}}
    config["properties"] = {**config["properties"], **dict.fromkeys(sorted(SECRETS), secret)}
    return {
        "$schema": config.pop("$schema"),
        "$defs": config.pop("$defs"),
        "title": "An environment of the platform: Pulumi.<env>.yaml",
        "type": "object",
        "required": ["config"],
        "additionalProperties": False,
        "properties": {**{key: {} for key in sorted(PULUMI_KEYS)}, "config": config},
    }


def _document(path: Path) -> Document:
    """The stack file; Refused if it is unreadable, ambiguous or not a mapping with `config`."""
    shown = f"{path.parent.name}/{path.name}"
    try:
        document = documents.read(path, shown)
    except Refused as refused:
        if [problem.code for problem in refused.problems] == ["empty-file"]:
            raise Refused(_no_config(shown, "no content")) from None
        raise
    if not isinstance(document.data, dict) or not isinstance(document.data.get("config"), dict):
        raise Refused(_no_config(shown, "no mapping `config`"))
    for key in document.data:
        if key not in PULUMI_KEYS:
            near = nearest(str(key), PULUMI_KEYS)
            hint = f"did you mean `{near[0]}`?" if near else "delete it"
            expected = f"one of: {', '.join(sorted(PULUMI_KEYS))}"
            raise Refused(
                Problem("unknown-field", f"`{key}`", expected, hint, document.place(str(key)))
            )
    return document


def _open_secrets(document: Document) -> Iterator[Problem]:
    """Secrets that are not encrypted; the value may be the secret, so it is not shown."""
    for key in sorted(SECRETS & document.data["config"].keys()):
        value = document.get("config", key)
        secure = value.get("secure") if isinstance(value, dict) and len(value) == 1 else None
        if not isinstance(secure, str) or not _CIPHERTEXT.fullmatch(secure):
            message = f"`{key}` is in the file unencrypted"
            hint = f"pulumi config set --secret {key}, and revoke the old value"
            place = document.place("config", key)
            yield Problem("secret-in-the-open", message, "secure: …", hint, place)


def _other_notations(document: Document) -> Iterator[Problem]:
    """Integers that YAML does not read in decimal: `0500` is octal, `1:30` sexagesimal."""

    def walk(value: Any, keys: tuple[Key, ...]) -> Iterator[Problem]:
        if isinstance(value, dict | list):
            items = value.items() if isinstance(value, dict) else enumerate(value)
            for key, item in items:
                yield from walk(item, (*keys, key))
        elif isinstance(value, int) and not isinstance(value, bool):
            written = document.written(*keys)
            if written is not None and not _DECIMAL.fullmatch(written):
                message = f"`{reader.dotted(keys)}` is `{written}`, which YAML reads as {value}"
                expected, hint = "a decimal number", "write only digits, without leading zeros"
                yield Problem("wrong-value", message, expected, hint, document.place(*keys))

    yield from walk(document.data["config"], ("config",))


def _no_config(shown: str, message: str) -> Problem:
    hint = f"begin with `config:` and its keys; see another Pulumi.<env>.yaml beside {shown}"
    return Problem("no-config", message, "a mapping `config`", hint, Place(shown, 1))
