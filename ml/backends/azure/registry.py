"""Model versions with the digest of their files as a tag.

They are in the registry that environments share, or in the workspace where none is named.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from ml.backends.azure.errors import as_refusals
from ml.backends.azure.workspace import REGISTRY, Workspace
from ml.backends.registry import (
    Version,
    kept_tag,
    marks,
    model_folder,
    served_tag,
    withdrawn,
)
from ml.core import home
from ml.core.errors import Problem, Refused

# The tags of a version; `champion.ENV` is the alias of an environment, which Azure ML lacks.
DIGEST, PROJECT, RUN, EVIDENCE = "digest", "project", "run", "evidence"
_CHAMPION = "champion."
_YES = "true"
# Between a model's name and what is kept beside its versions.
_BESIDE = "--"


class AzureRegistry:
    """Implements `ml.backends.registry.Registry`."""

    def __init__(self, workspace: Workspace) -> None:
        self._workspace = workspace

    def reference(self, model: str, version: str) -> str:
        """How a deployment names the version."""
        if shared := self._workspace.registry:
            return f"azureml://registries/{shared}/models/{model}/versions/{version}"
        return f"azureml:{model}:{version}"

    def demand_shared(self, environment: str) -> None:
        if not self._workspace.registry:
            raise Refused(
                Problem(
                    "no-registry-named",
                    f"`{environment}` has a workspace of its own, and {REGISTRY} is not set",
                    "the registry that environments share, which brings it the same files",
                    f"export {REGISTRY}=\"$(az ml registry list --query '[].name' -o tsv)\"",
                )
            )

    def bring(self, version: Version) -> None:
        self._bring(version.model, version.version, version.folder)
        if version.evidence:
            self.bring_folder(version.model, version.evidence_folder)

    def keep_folder(self, model: str, folder: Path) -> None:
        """As a model too: the SDK downloads no data assets of a registry."""
        from azure.ai.ml.entities import Model
        from azure.core.exceptions import ResourceNotFoundError

        name = _beside(model, folder)
        with as_refusals(), self._workspace.quiet():
            try:
                self._models.get(name, folder.name)
            except ResourceNotFoundError:
                asset = Model(name=name, version=folder.name, path=folder, type="custom_model")
                self._models.create_or_update(asset)

    def bring_folder(self, model: str, folder: Path) -> None:
        self._bring(_beside(model, folder), folder.name, folder)

    def _bring(self, name: str, version: str, into: Path) -> None:
        """Download a model that was uploaded from a folder of this name, whole or not at all."""
        from azure.core.exceptions import ResourceNotFoundError

        if into.is_dir():
            return
        into.parent.mkdir(parents=True, exist_ok=True)
        with as_refusals(), self._workspace.quiet(), TemporaryDirectory(dir=into.parent) as folder:
            with suppress(ResourceNotFoundError):
                self._models.download(name, version, download_path=folder)
            found = (path for path in Path(folder).rglob(into.name) if path.is_dir())
            if (top := min(found, key=lambda path: len(path.parts), default=None)) is not None:
                top.rename(into)

    def exists(self) -> bool:
        return True

    def register(self, model: str, project: str, digest: str, run: str) -> Version:
        from azure.ai.ml.entities import Model

        registered = [version for version in self.versions(model) if version.digest == digest]
        if registered:
            return registered[-1]
        number = max((int(each.version) for each in self.versions(model)), default=0) + 1
        tags = {DIGEST: digest, PROJECT: project, RUN: run}
        with as_refusals(), self._workspace.quiet():
            made = self._models.create_or_update(
                Model(
                    name=model,
                    version=str(number),
                    path=model_folder(digest),
                    type="custom_model",
                    description=f"registered from the run {run}",
                    tags=tags,
                )
            )
        return _version(made)

    def versions(self, model: str | None = None) -> Sequence[Version]:
        return [_version(each) for each in self._registered(model)]

    def find(self, model: str, version: str) -> Version:
        return _version(self._find(model, version))

    def champion(self, model: str, environment: str) -> Version | None:
        for each in self._registered(model):
            if (each.tags or {}).get(_CHAMPION + environment) == _YES:
                return _version(each)
        return None

    def champions(self) -> Sequence[tuple[str, str, str]]:
        return sorted(
            (tag.removeprefix(_CHAMPION), each.name, str(each.version))
            for each in self._registered(None)
            for tag, value in (each.tags or {}).items()
            if tag.startswith(_CHAMPION) and value == _YES
        )

    def sources(self) -> Sequence[tuple[str, str]]:
        return [(f"{each.name} {each.version}", str(each.path)) for each in self._registered(None)]

    def promote(self, version: Version, environment: str, serving: str = "") -> None:
        """The new champion first: between the two writes there are two, and never none."""
        known = self.find(version.model, version.version)
        for other, code in withdrawn(self.versions(version.model), version, environment, serving):
            found = self._find(other.model, other.version)
            self._tag(found, served_tag(environment, code), "withdrawn")
        if environment not in known.served_in(serving):
            now = datetime.now(UTC).isoformat()
            found = self._find(version.model, version.version)
            self._tag(found, served_tag(environment, serving), now)
        self._tag(self._find(version.model, version.version), _CHAMPION + environment, _YES)
        for each in self._registered(version.model):
            is_other = str(each.version) != version.version
            if is_other and (each.tags or {}).get(_CHAMPION + environment) == _YES:
                self._tag(each, _CHAMPION + environment, "false")

    def demote(self, model: str, environment: str) -> None:
        for each in self._registered(model):
            if (each.tags or {}).get(_CHAMPION + environment) == _YES:
                self._tag(each, _CHAMPION + environment, "false")

    def keep_evidence(self, version: Version, sha256: str) -> Version:
        self.keep_folder(version.model, replace(version, evidence=sha256).evidence_folder)
        found = self._find(version.model, version.version)
        found = self._tag(found, kept_tag(sha256), datetime.now(UTC).isoformat())
        return _version(self._tag(found, EVIDENCE, sha256))

    @property
    def _models(self) -> Any:
        return self._workspace.models

    def _registered(self, model: str | None) -> list[Any]:
        """The versions of a model, or of every one, oldest first: 10 comes after 9."""
        with as_refusals():
            names = [each.name for each in self._models.list()]
            listed = [
                each
                for name in names
                if model in (None, name) and _BESIDE not in name
                for each in self._models.list(name=name)
            ]
        return sorted(listed, key=lambda each: (each.name, _order(str(each.version))))

    def _find(self, model: str, version: str) -> Any:
        from azure.core.exceptions import ResourceNotFoundError

        with as_refusals():
            try:
                return self._models.get(model, version)
            except ResourceNotFoundError:
                names = ", ".join(str(each.version) for each in self._registered(model))
        raise Refused(
            Problem(
                "no-such-version",
                f"there is no version {version} of `{model}` in the workspace",
                f"one of: {names}" if names else "a registered model: this one has no version",
                "ml release propose PROJECT registers the best run",
            )
        )

    def _tag(self, model: Any, key: str, value: str) -> Any:
        model.tags = {**(model.tags or {}), key: value}
        with as_refusals():
            return self._models.create_or_update(model)


def _beside(model: str, folder: Path) -> str:
    """The name under which a folder of the home is kept: `tiny--evidence`, `tiny--servings`."""
    return model + _BESIDE + folder.relative_to(home.home()).parts[0]


def _order(version: str) -> tuple[int, str]:
    return (int(version) if version.isdigit() else 0, version)


def _version(model: Any) -> Version:
    tags = model.tags or {}
    values: Iterator[str] = (tags.get(key, "") for key in (DIGEST, PROJECT, RUN, EVIDENCE))
    digest, project, run, evidence = values
    return Version(model.name, str(model.version), digest, project, run, evidence, **marks(tags))
