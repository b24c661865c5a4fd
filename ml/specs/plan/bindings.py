"""Resolves a job's inputs, outputs, code and environment on this machine."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from ml.core import repository
from ml.core.documents import Key
from ml.core.errors import Place, Problem
from ml.specs.assets import assets, conda
from ml.specs.plan.fields import Written
from ml.specs.plan.layers import Part
from ml.specs.plan.plan import Asset, Environment, InputPlan, OutputPlan

# Azure ML's defaults (reference-yaml-job-command).
DATA_TYPE = "uri_folder"
INPUT_MODE = "ro_mount"
OUTPUT_MODE = "rw_mount"
LITERAL_TYPES = {bool: "boolean", int: "integer", float: "number"}


class Bindings:
    """Resolves the references of one spec; `problems` collects those that cannot be resolved.

    `root` is the repository whose specs define `azureml:` assets; `prefix` is the path from the
    job to the spec (`jobs.train.` of a step), for the hints. `registered` is the folder of the
    assets that runs on this machine registered; the repository's own take precedence.
    """

    def __init__(
        self, spec: Written, root: Path, prefix: str = "", registered: Path | None = None
    ) -> None:
        self.spec, self.root, self.prefix, self.registered = spec, root, prefix, registered
        self.problems: list[Problem] = []

    def input(self, name: str) -> InputPlan:
        """An input: a literal with its type, or data with its local path and digest if any."""
        spec, place = self.spec, self.spec.place("inputs", name)
        written = spec.get("inputs", name)
        if not isinstance(written, dict):
            kind = LITERAL_TYPES.get(type(written), "string")
            return InputPlan(name, kind, place, value=written)
        return self.data(name, written, self.spec.place("inputs", name, "path"))

    def data(self, name: str, written: Mapping[str, Any], place: Place) -> InputPlan:
        """Data as an input: its local path and, of an asset, its digest."""
        spec = self.spec
        source = str(written.get("path") or "")
        kind = str(written.get("type") or DATA_TYPE)
        path, asset = assets.local(source, spec.folder), None
        reference = assets.parse(source)
        if reference is not None:
            definition = self._data(source, reference)
            path, version = None, reference.version or f"@{reference.label or 'latest'}"
            if definition is not None:
                path, version = definition.path, definition.version
                kind = str(definition.get("type") or kind)
            made_by = definition.tag("run") if definition is not None else ""
            asset = Asset(reference.name, version, made_by=made_by)
        if path is not None:
            path = path.resolve()
            if not path.exists():
                self.problems.append(missing(path, place, f"{self.prefix}inputs.{name}"))
            elif asset is not None:
                asset = replace(asset, digest=assets.digest(path))
                if (
                    definition is not None
                    and asset.made_by
                    and definition.tag("digest") != asset.digest
                ):
                    self.problems.append(_changed(asset, path, place))
        mode = str(written.get("mode") or INPUT_MODE)
        return InputPlan(name, kind, place, source=source, path=path, asset=asset, mode=mode)

    def _data(self, text: str, reference: assets.Reference) -> assets.AssetSpec | None:
        """The data asset of that name, or else the model, in its newest version.

        The repository's definition wins over a registered one of the same version.
        """
        for kind in ("data", "model"):
            from_repository = assets.find(text, kind, self.root)
            from_runs = assets.registered(text, kind, self.registered)
            if from_repository is None or from_runs is None:
                newest = from_repository or from_runs
            else:
                is_newer = assets.newness(from_runs.version) > assets.newness(
                    from_repository.version
                )
                newest = from_runs if is_newer else from_repository
            if newest is not None:
                return newest
        return None

    def output(self, name: str) -> OutputPlan:
        """An output; with `name:` its content is registered as an asset."""
        place, written = self.spec.place("outputs", name), self.spec.get("outputs", name) or {}
        asset, problem = registration(written, place)
        self.problems += [problem] if problem else []
        kind, mode = written.get("type") or DATA_TYPE, written.get("mode") or OUTPUT_MODE
        return OutputPlan(name, str(kind), place, str(mode), asset)

    def code(self, *keys: Key) -> Path | None:
        """The folder of the job's code; None when it has none."""
        written = self.spec.get(*keys)
        path = assets.local(written, self.spec.folder) if isinstance(written, str) else None
        if path is None and isinstance(written, str):
            self.problems.append(
                Problem(
                    "remote-code",
                    f"`code: {written}` is not on this machine",
                    "a local folder",
                    "check the code out and give the path of its folder",
                    self.spec.place(*keys),
                )
            )
        return path.resolve() if path else None

    def environment(self, *keys: Key) -> Environment:
        """The environment: defined in the repository, inline, or known only by name."""
        written, place = self.spec.get(*keys), self.spec.place(*keys)
        if not isinstance(written, str):
            name = self.spec.get(*keys, "name") if isinstance(written, dict) else None
            return self._environment(str(name or "inline"), self.spec, keys, place)
        asset = assets.find(written, "environment", self.root)
        if asset is not None:
            name = f"azureml:{asset.name}:{asset.version}"
            return self._environment(name, Part(asset.document, asset.file), (), place)
        return Environment(written, place=place)

    def _environment(
        self, name: str, written: Written, at: tuple[Key, ...], place: Place
    ) -> Environment:
        image, conda_file = written.get(*at, "image"), written.get(*at, "conda_file")
        file, conda_spec = None, None
        if isinstance(conda_file, str):
            file = assets.local(conda_file, written.folder)
            file = file.resolve() if file is not None else None
            conda_spec = conda.of_file(file) if file is not None and file.is_file() else None
        elif isinstance(conda_file, dict):
            conda_spec = conda.of_mapping(written, *at, "conda_file")
        self.problems += conda_spec.problems if conda_spec else ()
        dependencies = conda_spec.dependencies if conda_spec else None
        is_built = isinstance(written.get(*at, "build"), dict)
        return Environment(name, str(image or ""), is_built, file, dependencies, place)


def missing(path: Path, place: Place, field: str) -> Problem:
    """The problem of local data that does not exist."""
    return Problem(
        "missing-file",
        f"`{repository.shown(path)}` does not exist",
        "a file or folder on this machine",
        f"create it, or pass another path with `--set {field}=PATH`",
        place,
    )


def registration(written: Mapping[str, Any], place: Place) -> tuple[Asset | None, Problem | None]:
    """The asset that an output is registered as, if any, and the problem with its name."""
    if not written.get("name"):
        return None, None
    asset = Asset(str(written["name"]), str(written.get("version") or ""))
    for text in (asset.name, *([asset.version] if asset.version else [])):
        if not assets.is_name(text):
            message = f"`{text}` is not a valid name of an asset or a version"
            return None, Problem(
                "bad-asset-name",
                message,
                "letters, digits, `-`, `_` and `.`, at most 255, not starting with `-` or `.`",
                place=place,
                source="azure-ai-ml: the names of assets",
            )
    return asset, None


def _changed(asset: Asset, path: Path, place: Place) -> Problem:
    return Problem(
        "asset-changed",
        f"{repository.shown(path)} is not what {asset.made_by} registered as `{asset}`",
        "the registered content: assets do not change",
        f"remove {repository.shown(path.parent.parent)} and run the job that registers it again",
        place,
    )
