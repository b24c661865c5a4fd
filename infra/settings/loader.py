"""Loads stack files: the list of stacks, their checked settings, and the JSON Schema.

The Pulumi program reads Pulumi's configuration, which merges the stack file with `-c` and ESC
environments (`configured`). Everything else reads the file (`load`). One model checks both.
"""

from __future__ import annotations

import dataclasses
import difflib
import json
import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from infra.settings import checks
from infra.settings import stacks as files
from infra.settings.model import Settings, StackFile
from ml.core import documents
from ml.core import settings as reader
from ml.core.azure import PLACEHOLDERS
from ml.core.documents import Document, Key
from ml.core.errors import Place, Problem, UserError, nearest
from ml.core.imports import ROOT

FOLDER = ROOT / "infra"
# Top-level keys of a stack file that Pulumi defines.
PULUMI_KEYS = frozenset(
    {"config", "encryptionsalt", "secretsprovider", "encryptedkey", "environment"}
)
# The project file, and its fields that do not change what is deployed.
PROJECT_FILE = "Pulumi.yaml"
ABOUT = frozenset({"author", "description", "license", "website"})
PROJECT = {"name": "platform", "runtime": {"name": "python", "options": {"virtualenv": "../.venv"}}}
# Values that must be encrypted: `pulumi config set --secret`.
SECRETS = frozenset({"platform:lake_sas"})
# Configuration keys of the provider azure-native that a stack file may set.
PROVIDER_KEYS = frozenset(
    {f"azure-native:{key}" for key in ("location", "subscriptionId", "tenantId")}
)
# Pulumi's ciphertext: base64, optionally after a version and a nonce. A SAS does not match.
_CIPHERTEXT = re.compile(r"[A-Za-z0-9+/:=_-]+")
_DECIMAL = re.compile(r"-?(0|[1-9]\d*)")


def stacks(folder: Path = FOLDER) -> tuple[str, ...]:
    """Return the stacks that have a file, by name: environments, and the shared registry."""
    return files.names(folder)


def environments(folder: Path = FOLDER) -> tuple[str, ...]:
    """Return the stacks in which models are trained and released, by name."""
    return files.environments(folder)


def select(names: Sequence[str] | None, folder: Path = FOLDER) -> Sequence[str]:
    """Return `names`, or all stacks if it is empty. Raise UserError if there are no stacks."""
    selected = names or stacks(folder)
    if not selected:
        expected, hint = "at least one environment", "write Pulumi.dev.yaml there"
        raise UserError(Problem("no-stack", f"no stack file in {folder.name}/", expected, hint))
    return selected


def load(stack: str, folder: Path = FOLDER) -> Settings:
    """Return the settings of a stack.

    Raise UserError with every problem of its file, each with line and key.
    """
    settings, document = _read(stack, folder)
    if problems := [
        *_project(folder),
        *checks.problems(settings, document),
        *_reference(settings, document, folder),
    ]:
        raise UserError(*problems)
    return settings


def environment(stack: str, folder: Path = FOLDER) -> Settings:
    """Load the settings of an environment; raise UserError if it is only the shared registry."""
    settings = load(stack, folder)
    if settings.makes_registry:
        message, listed = f"`{stack}` has only the shared registry", ", ".join(environments(folder))
        hint = f"name one of: {listed}"
        raise UserError(Problem("no-environment", message, "an environment", hint))
    return settings


def configured(stack: str, config: Mapping[str, str]) -> Settings:
    """Read the settings from the configuration that Pulumi passes to a program.

    Strings are plain text, other values JSON. Raises UserError as `load`, without line numbers.
    """
    properties = reader.schema(StackFile)["properties"]
    values = {key: _value(text, properties.get(key, {})) for key, text in config.items()}
    source = f"the configuration of {stack}"
    document = documents.parse(json.dumps({"config": values}), source)
    try:
        settings = _settings(stack, document)
        if problems := list(checks.problems(settings, document)):
            raise UserError(*problems)
    except UserError as refused:
        place = Place(source, 0)
        raise UserError(
            *(dataclasses.replace(problem, place=place) for problem in refused.problems)
        ) from None
    return settings


def _value(text: str, form: Mapping[str, Any]) -> Any:
    """Parse a configuration value: JSON unless the setting is a string or the text is invalid."""
    if form.get("type") == "string" or "enum" in form or "const" in form:
        return text
    try:
        return json.loads(text)
    except ValueError:
        return text


def configuration(stack: str, folder: Path = FOLDER) -> Mapping[str, str]:
    """Return the configuration that Pulumi passes for a stack file, without secrets.

    {} if there is no file. Raises UserError if it is not a stack file.
    """
    if stack not in stacks(folder):
        return {}
    config = _document(folder / f"Pulumi.{stack}.yaml").data["config"]
    return {
        str(key): value if isinstance(value, str) else json.dumps(value, default=str)
        for key, value in config.items()
        if key not in SECRETS
    }


def declared(stack: str, folder: Path = FOLDER) -> Settings:
    """Load the settings without checks across settings; raises UserError as `load`.

    A deployed stack must stay readable even if Azure has retired one of its VM sizes.
    """
    return _read(stack, folder)[0]


def _read(stack: str, folder: Path) -> tuple[Settings, Document]:
    existing = stacks(folder)
    if stack not in existing:
        near = difflib.get_close_matches(stack.lower(), existing, 1)
        hint = f"did you mean `{near[0]}`?" if near else "add infra/Pulumi.STACK.yaml"
        if (folder / f"Pulumi.{stack}.yml").exists():
            hint = f"rename Pulumi.{stack}.yml: Pulumi only reads .yaml"
        expected = f"one of: {', '.join(existing) or 'none'}"
        raise UserError(Problem("unknown-stack", f"no stack {stack!r}", expected, hint))
    document = _document(folder / f"Pulumi.{stack}.yaml")
    problems = [*_open_secrets(document), *_other_notations(document)]
    config = {key: value for key, value in document.data["config"].items() if key not in SECRETS}
    try:
        public = dataclasses.replace(document, data={**document.data, "config": config})
        settings = _settings(stack, public)
    except UserError as refused:
        raise UserError(*refused.problems, *problems) from None
    if problems:
        raise UserError(*problems)
    return settings, document


def _settings(stack: str, document: Document) -> Settings:
    file = reader.read(StackFile, document, "config")
    values = {field.name: getattr(file, field.name) for field in dataclasses.fields(StackFile)}
    return Settings(environment=stack, **values)


def _reference(settings: Settings, document: Document, folder: Path) -> Iterator[Problem]:
    """Check that the stack that creates the registry exists, and that its settings match.

    A registry serves workspaces of any subscription of its tenant, in its regions
    (how-to-manage-registries, "Choose a name").
    """
    registry, key = settings.asset_registry, "platform:asset_registry"
    place = document.place("config", key)
    stacks = dict(files.read(folder))
    if not registry.stack or registry.resource_group:
        return
    try:
        maker = declared(files.required_stack(stacks, settings.environment), folder)
    except UserError as refused:
        yield from refused.problems
        return
    for what, stated, expected in (
        ("name", registry.name, maker.asset_registry.name),
        ("platform:name", settings.name, maker.name),
        ("azure-native:tenantId", settings.tenant, maker.tenant),
    ):
        if stated.lower() != expected.lower():
            message = (
                f"the registry of `{maker.environment}` has `{what}: {expected}`, not {stated}"
            )
            hint = "write the same in both stack files, or set `mode: none`"
            yield Problem("registry-mismatch", message, f"{what}: {expected}", hint, place)
    home = maker.subscription
    if settings.registry_subscription.lower() != home.lower():
        message = f"the registry of `{maker.environment}` is in the subscription {home}"
        hint = f"`subscription: {home}` in `{key}`"
        yield Problem("registry-mismatch", message, "its subscription", hint, place)
    regions = (maker.location, *maker.asset_registry.regions)
    if settings.location not in regions:
        message = f"the registry of `{maker.environment}` is not in {settings.location}"
        hint = f"`regions: [{settings.location}]` in `{key}` of Pulumi.{maker.environment}.yaml"
        yield Problem("registry-mismatch", message, f"one of: {', '.join(regions)}", hint, place)


def placeholders(stack: str, folder: Path = FOLDER) -> Iterator[Problem]:
    """Yield a problem for each setting that still has the template's placeholder."""
    document = _document(folder / f"Pulumi.{stack}.yaml")
    for key, value in document.data["config"].items():
        for placeholder in PLACEHOLDERS:
            if placeholder in str(value):
                message = f"`{key}` is the template's placeholder"
                hint = "write your own value into the stack file"
                place = document.place("config", key)
                yield Problem("placeholder", message, "your own value", hint, place)


def imported(stack: str, folder: Path = FOLDER) -> tuple[str, ...]:
    """Return the names of the Pulumi ESC environments that the stack file imports."""
    listed = _document(folder / f"Pulumi.{stack}.yaml").data.get("environment") or []
    names = listed if isinstance(listed, list) else [listed]
    return tuple(name if isinstance(name, str) else json.dumps(name, default=str) for name in names)


def _project(folder: Path) -> Iterator[Problem]:
    """Check that Pulumi.yaml selects no other program, settings or state backend."""
    for name in ("Pulumi.json", "Pulumi.yml"):
        if (folder / name).exists():
            place, actual = Place(f"{folder.name}/{name}", 1), f"there is a second file, {name}"
            yield Problem("project-mismatch", actual, f"{PROJECT_FILE} alone", "remove it", place)
    if not (folder / PROJECT_FILE).exists():
        return
    document = documents.read(folder / PROJECT_FILE, f"{folder.name}/{PROJECT_FILE}")
    fields = document.data if isinstance(document.data, dict) else {}
    for key in dict.fromkeys([*PROJECT, *fields]):
        if key not in ABOUT and fields.get(key) != PROJECT.get(key):
            actual = f"`{key}: {json.dumps(fields.get(key), default=str)[:100]}`"
            expected = f"{json.dumps(PROJECT[key])}" if key in PROJECT else "no such field"
            hint = "move settings to Pulumi.STACK.yaml; `infra bootstrap` sets the backend"
            yield Problem("project-mismatch", actual, expected, hint, document.place(str(key)))


def encryption(stack: str, folder: Path = FOLDER) -> tuple[str, str] | None:
    """Return the stack's secrets provider and encrypted key; None unless both are set."""
    document = _document(folder / f"Pulumi.{stack}.yaml")
    provider, key = document.get("secretsprovider"), document.get("encryptedkey")
    return (str(provider), str(key)) if provider and key else None


def schema() -> dict[str, Any]:
    """Return the JSON Schema (draft 2020-12) of a stack file, without checks across settings."""
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
    """Return the stack file.

    Raise UserError if it is unreadable, ambiguous or not a mapping with `config`.
    """
    name = f"{path.parent.name}/{path.name}"
    try:
        document = documents.read(path, name)
    except UserError as refused:
        if [problem.code for problem in refused.problems] == ["empty-file"]:
            raise UserError(_no_config(name, "no content")) from None
        raise
    if not isinstance(document.data, dict) or not isinstance(document.data.get("config"), dict):
        raise UserError(_no_config(name, "no mapping `config`"))
    for key in document.data:
        if key not in PULUMI_KEYS:
            near = nearest(str(key), PULUMI_KEYS)
            hint = f"did you mean `{near[0]}`?" if near else "delete it"
            expected = f"one of: {', '.join(sorted(PULUMI_KEYS))}"
            raise UserError(
                Problem("unknown-field", f"`{key}`", expected, hint, document.place(str(key)))
            )
    return document


def _open_secrets(document: Document) -> Iterator[Problem]:
    """Yield a problem for each unencrypted secret, without its value."""
    for key in sorted(SECRETS & document.data["config"].keys()):
        value = document.get("config", key)
        secure = value.get("secure") if isinstance(value, dict) and len(value) == 1 else None
        if not isinstance(secure, str) or not _CIPHERTEXT.fullmatch(secure):
            message = f"`{key}` is in the file unencrypted"
            hint = f"pulumi config set --secret {key}, and revoke the old value"
            place = document.place("config", key)
            yield Problem("plaintext-secret", message, "secure: …", hint, place)


def _other_notations(document: Document) -> Iterator[Problem]:
    """Check for integers not in decimal notation: `0500` is octal, `1:30` sexagesimal."""

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
    hint = f"begin with `config:`, as the other stack files next to {shown}"
    return Problem("no-config", message, "a mapping `config`", hint, Place(shown, 1))
