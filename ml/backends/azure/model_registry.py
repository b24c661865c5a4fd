"""Model versions on Azure, with the digest of their files as a tag.

They are in the registry that the environments share; in the workspace if no registry is set.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from datetime import UTC, datetime
from functools import cached_property
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from infra.settings import loader
from ml.backends.azure.errors import as_user_errors, or_none
from ml.backends.azure.workspace import REGISTRY, Workspace
from ml.backends.model_registry import (
    Version,
    is_evidence,
    kept_tag,
    later_releases,
    model_folder,
    parse_release_tags,
    served_tag,
)
from ml.core import home
from ml.core.errors import Exit, Problem, UserError
from ml.serving.scoring.manifest import ManifestError, folder_digest

# Tags of a version. `champion.ENV` replaces MLflow's alias, which Azure ML lacks.
DIGEST, PROJECT, RUN, EVIDENCE = "digest", "project", "run", "evidence"
# The owner of a version: teams that share a registry may use the same model names.
REPOSITORY = "repository"
_CHAMPION = "champion."
_YES = "true"
# Separates a model's name from the folder that is stored with it: `churn--evidence`.
_SEPARATOR = "--"
_KEPT = tuple(_SEPARATOR + folder for folder in ("evidence", "servings", "snapshots"))
# Any writer to the registry sets tags, and digests name local folders: so check their form.
_DIGEST = re.compile(r"sha256:[0-9a-f]{64}")
_SHA256 = re.compile(r"[0-9a-f]{64}")


class AzureRegistry:
    """Implements `model_registry.Registry`; only versions of this repository are visible."""

    exists = None

    def __init__(self, workspace: Workspace) -> None:
        self._workspace = workspace

    def reference(self, model: str, version: str) -> str:
        """Return the id by which a deployment references the version."""
        if shared := self._workspace.registry:
            return f"azureml://registries/{shared}/models/{model}/versions/{version}"
        return f"azureml:{model}:{version}"

    @property
    def shared(self) -> AzureRegistry:
        return self

    def demand(self, environment: str) -> None:
        if not self._workspace.registry:
            actual = f"`{environment}` is in another workspace, and {REGISTRY} is not set"
            expected = "the registry that the environments share"
            hint = f"export {REGISTRY}=\"$(az ml registry list --query '[].name' -o tsv)\""
            raise UserError(Problem("no-registry-named", actual, expected, hint))

    def download(self, version: Version) -> None:
        if not version.digest:
            raise _other_files(version.model, [version.version], "a digest, in the tag `digest`")
        self._download(version.model, [version.version], version.folder, _is_model(version.digest))
        if version.evidence:
            self.download_folder(
                version.model, version.evidence_folder, is_evidence(version.evidence)
            )

    def keep_folder(self, model: str, folder: Path) -> None:
        """Store the folder as a model: the SDK cannot download a registry's data assets."""
        self._add(_folder_asset_name(model, folder), folder.name, folder, {})

    def download_folder(self, model: str, folder: Path, is_content: Callable[[Path], bool]) -> None:
        """Download the folder, unless it exists; skip versions whose content does not match."""
        name = _folder_asset_name(model, folder)
        self._download(name, self._tagged(name, folder.name), folder, is_content)

    def _add(
        self, name: str, digest: str, folder: Path, tags: Mapping[str, str], about: str = ""
    ) -> Any:
        """Return the version with that digest; register the folder if there is none.

        Versions of models are positive integers (Azure/azureml-examples#2725), so the digest is a
        tag. If another machine registers the number at the same time, azure-ai-ml fails or returns
        that machine's version: the digest of the registered version then decides.
        """
        from azure.ai.ml.entities import Model

        number = 0
        identity = {DIGEST: digest}
        identity |= {tag: tags[tag] for tag in (PROJECT, REPOSITORY) if tag in tags}
        while True:
            listed = self._versions_of(name)
            # Versions of another project or repository with this name do not count.
            if same := [
                entity for entity in listed if identity.items() <= (entity.tags or {}).items()
            ]:
                return same[0]
            number = max([number, *(_order(str(entity.version))[0] for entity in listed)]) + 1
            asset = Model(
                name=name,
                version=str(number),
                path=folder,
                type="custom_model",
                description=about or None,
                tags={DIGEST: digest, **tags},
            )
            with as_user_errors(), self._workspace.quiet():
                try:
                    model = self._models.create_or_update(asset)
                except Exception:
                    if (model := self._get(name, str(number))) is None:
                        raise
            if identity.items() <= (model.tags or {}).items():
                return model

    def _tagged(self, name: str, digest: str) -> list[str]:
        listed = self._versions_of(name)
        return [str(model.version) for model in listed if (model.tags or {}).get(DIGEST) == digest]

    def _download(
        self, name: str, versions: Sequence[str], into: Path, is_content: Callable[[Path], bool]
    ) -> None:
        """Download the first version that `is_content` accepts to `into`, atomically.

        Do nothing if `into` exists; raise UserError if no version is accepted.
        """
        if into.is_dir():
            return
        into.parent.mkdir(parents=True, exist_ok=True)
        for version in versions:
            with (
                as_user_errors(),
                self._workspace.quiet(),
                TemporaryDirectory(dir=into.parent) as there,
            ):
                self._models.download(name, version, download_path=there)
                folders = (path for path in Path(there).rglob(into.name) if path.is_dir())
                top = min(folders, key=lambda path: len(path.parts), default=None)
                if top is not None and is_content(top):
                    top.rename(into)
                    return
        if versions:
            raise _other_files(name, versions, f"files with the digest {into.name}")

    def register(self, model: str, project: str, digest: str, run: str) -> Version:
        tags = {PROJECT: project, RUN: run, REPOSITORY: self._repository}
        about = f"registered from the run {run}"
        return _version(self._add(model, digest, model_folder(digest), tags, about))

    def versions(self, model: str | None = None) -> Sequence[Version]:
        return [_version(entity) for entity in self._registered(model)]

    def find(self, model: str, version: str) -> Version:
        return _version(self._find(model, version))

    def champion(self, model: str, environment: str) -> Version | None:
        return next(map(_version, self._champions(model, environment)), None)

    def promote(self, version: Version, environment: str, deployment_digest: str = "") -> None:
        """Tag the new champion before untagging the old one, so there is always a champion."""
        registered = self.find(version.model, version.version)
        for former, code in later_releases(
            self.versions(version.model), version, environment, deployment_digest
        ):
            entity = self._find(former.model, former.version)
            self._tag(entity, served_tag(environment, code), "withdrawn")
        if environment not in registered.served_in(deployment_digest):
            now = datetime.now(UTC).isoformat()
            entity = self._find(version.model, version.version)
            self._tag(entity, served_tag(environment, deployment_digest), now)
        self._tag(self._find(version.model, version.version), _CHAMPION + environment, _YES)
        for champion in self._champions(version.model, environment):
            if str(champion.version) != version.version:
                self._tag(champion, _CHAMPION + environment, "false")

    def demote(self, model: str, environment: str) -> None:
        for champion in self._champions(model, environment):
            self._tag(champion, _CHAMPION + environment, "false")

    def keep_evidence(self, version: Version, sha256: str) -> Version:
        self.keep_folder(version.model, replace(version, evidence=sha256).evidence_folder)
        entity = self._find(version.model, version.version)
        entity = self._tag(entity, kept_tag(sha256), datetime.now(UTC).isoformat())
        return _version(self._tag(entity, EVIDENCE, sha256))

    @property
    def _models(self) -> Any:
        return self._workspace.models

    @cached_property
    def _repository(self) -> str:
        """The GitHub repository in the stack files, in lower case; "" without one."""
        named = (
            loader.declared(stack, loader.FOLDER).github for stack in loader.stacks(loader.FOLDER)
        )
        return next(named, "").lower()

    def _is_ours(self, model: Any) -> bool:
        return bool((model.tags or {}).get(REPOSITORY, "") == self._repository)

    def _registered(self, model: str | None) -> list[Any]:
        """Return this repository's versions of a model, or of all models, in numeric order."""
        with as_user_errors():
            names = [entity.name for entity in self._models.list()]
        listed = [
            entity
            for name in names
            if model in (None, name) and not name.endswith(_KEPT)
            for entity in self._versions_of(name)
            if self._is_ours(entity)
        ]
        return sorted(listed, key=lambda entity: (entity.name, _order(str(entity.version))))

    def _champions(self, model: str, environment: str) -> list[Any]:
        """Return the champion, or two while one replaces another."""
        listed, tag = self._registered(model), _CHAMPION + environment
        return [entity for entity in listed if (entity.tags or {}).get(tag) == _YES]

    def _versions_of(self, name: str) -> list[Any]:
        """Return the versions with this name, oldest first; [] if there are none."""
        listed = or_none(lambda: list(self._models.list(name=name)))
        return sorted(listed or (), key=lambda entity: _order(str(entity.version)))

    def _get(self, name: str, version: str) -> Any:
        return or_none(lambda: self._models.get(name, version))

    def _find(self, model: str, version: str) -> Any:
        if (entity := self._get(model, version)) is not None and self._is_ours(entity):
            return entity
        names = ", ".join(str(entity.version) for entity in self._registered(model))
        raise UserError(
            Problem(
                "no-such-version",
                f"{self._repository or 'this repository'} has not registered version {version} "
                f"of `{model}`",
                f"one of: {names}" if names else "a registered model: this one has no version",
                "ml release propose PROJECT registers the best run",
            )
        )

    def _tag(self, model: Any, key: str, value: str) -> Any:
        model.tags = {**(model.tags or {}), key: value}
        with as_user_errors():
            return self._models.create_or_update(model)


def _folder_asset_name(model: str, folder: Path) -> str:
    """Return the registry's name for a folder of the home: `churn--evidence` …"""
    return model + _SEPARATOR + folder.relative_to(home.home()).parts[0]


def _other_files(name: str, versions: Sequence[str], expected: str) -> UserError:
    return UserError(
        Problem(
            "registry-digest-mismatch",
            f"the registry's files of {name} {', '.join(versions)} do not match its digest",
            expected,
            "check who registered them; propose the version again from its run",
        ),
        exit_code=Exit.GATE_SAID_NO,
    )


def _is_model(digest: str) -> Callable[[Path], bool]:
    """Return a function that returns whether a folder's model files have the digest."""

    def check(folder: Path) -> bool:
        try:
            return folder_digest(folder) == digest
        except ManifestError:
            return False

    return check


def _order(version: str) -> tuple[int, str]:
    return (int(version) if version.isdecimal() else 0, version)


def _version(model: Any) -> Version:
    """Convert a registered model to a Version; malformed tags of other tools become ""."""
    tags = model.tags or {}
    values: Iterator[str] = (tags.get(key, "") for key in (DIGEST, PROJECT, RUN, EVIDENCE))
    digest, project, run, evidence = values
    digest = digest if _DIGEST.fullmatch(digest) else ""
    evidence = evidence if _SHA256.fullmatch(evidence) else ""
    return Version(
        model.name, str(model.version), digest, project, run, evidence, **parse_release_tags(tags)
    )
